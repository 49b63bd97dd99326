-- A thread about which a person just decided something goes before the others of its agent.
ALTER TABLE threads ADD COLUMN decided INTEGER NOT NULL DEFAULT 0;

DROP INDEX threads_ready;

CREATE INDEX threads_ready ON threads (agent, decided, ready_at) WHERE ready_at IS NOT NULL;
