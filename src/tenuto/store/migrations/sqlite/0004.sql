-- How many holders in a row died, or lost their lease, without getting a reply or a result into the log. Rest, a
-- model's reply and a call's result begin the count anew: see `Claim.deaths`.
ALTER TABLE threads ADD COLUMN deaths INTEGER NOT NULL DEFAULT 0;
