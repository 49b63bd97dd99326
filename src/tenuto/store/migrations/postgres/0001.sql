-- The tables. They are those of SQLite, and what is said of them there (migrations/sqlite) holds here too; this
-- page says what differs. Everything is found by search_path, so that one database holds several logs in schemas.

-- The one clock, in milliseconds (UTC). Tests put their own in its place.
CREATE FUNCTION tenuto_now() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;

-- Ids are compared byte by byte, as SQLite does. Room is left in each page, so that an append, which changes no
-- indexed column, finds a place beside the row it replaces and touches no index. `decided`: a person decided
-- something since the thread was last claimed, so it goes before others.
CREATE TABLE threads (
    num bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    agent text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    ready_at bigint,
    decided boolean NOT NULL DEFAULT false,
    lease_owner text COLLATE "C",
    lease_until bigint NOT NULL DEFAULT 0,
    deaths integer NOT NULL DEFAULT 0,
    epoch bigint NOT NULL DEFAULT 0,
    head_seq bigint NOT NULL DEFAULT 0,
    head_hash bytea NOT NULL DEFAULT decode(repeat('00', 32), 'hex'),
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    metadata text NOT NULL
) WITH (fillfactor = 70);

CREATE INDEX threads_ready ON threads (agent, decided, ready_at) WHERE ready_at IS NOT NULL;

CREATE INDEX threads_owner ON threads (lease_owner) WHERE lease_owner IS NOT NULL;

CREATE INDEX threads_newest ON threads (created_at, id);

CREATE INDEX threads_status ON threads (status, created_at, id);

-- The log. Bodies are bytes: jsonb would reorder them, text would refuse what the encoding's name says it may.
CREATE TABLE events (
    thread bigint NOT NULL,
    seq bigint NOT NULL,
    version integer NOT NULL,
    type text COLLATE "C" NOT NULL,
    at bigint NOT NULL,
    append_id bytea,
    hash bytea NOT NULL,
    body_hash bytea,
    salt bytea,
    body bytea,
    PRIMARY KEY (thread, seq)
);

CREATE UNIQUE INDEX events_append ON events (thread, append_id) WHERE append_id IS NOT NULL;

-- `num` grows as interrupts are raised; transactions that overlap may become visible in another order, so a page
-- of the inbox that is read in that very moment may be without one that the next reading has.
CREATE TABLE interrupts (
    num bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    thread bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    digest text COLLATE "C" NOT NULL,
    raised_seq bigint NOT NULL,
    raised_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    outcome text COLLATE "C",
    resolved_seq bigint,
    resolved_at bigint
);

CREATE INDEX interrupts_pending ON interrupts (num) WHERE outcome IS NULL;

CREATE INDEX interrupts_pending_of_kind ON interrupts (kind, num) WHERE outcome IS NULL;

CREATE INDEX interrupts_thread ON interrupts (thread, num);

CREATE TABLE labels (
    label text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    thread bigint NOT NULL,
    PRIMARY KEY (label, created_at, id)
);

CREATE INDEX labels_thread ON labels (thread);

CREATE TABLE blobs (digest text COLLATE "C" NOT NULL PRIMARY KEY, body bytea NOT NULL);

CREATE TABLE records (
    kind text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    expires_at bigint,
    PRIMARY KEY (kind, key)
);

CREATE INDEX records_expiring ON records (expires_at) WHERE expires_at IS NOT NULL;

-- No file lock reaches over machines: a worker is alive until `alive_until`, which its store moves on.
CREATE TABLE workers (
    owner text COLLATE "C" NOT NULL PRIMARY KEY,
    agents text NOT NULL,
    pid integer NOT NULL,
    host text NOT NULL,
    started_at bigint NOT NULL,
    alive_until bigint NOT NULL
);

CREATE VIEW interrupt_rows AS
SELECT i.id AS id, t.id AS thread_id, t.agent AS agent, i.kind AS kind,
       i.raised_seq AS raised_seq, i.raised_at AS raised_at, i.expires_at AS expires_at,
       i.outcome AS outcome, i.resolved_at AS resolved_at, i.thread AS thread,
       raised.version AS raised_version, raised.body AS raised_body,
       resolved.version AS resolved_version, resolved.body AS resolved_body, i.num AS num
FROM interrupts AS i
JOIN threads AS t ON t.num = i.thread
JOIN events AS raised ON raised.thread = i.thread AND raised.seq = i.raised_seq
LEFT JOIN events AS resolved ON resolved.thread = i.thread AND resolved.seq = i.resolved_seq;

-- One field of a stored body, for the view below. jsonb refuses the escape of NUL, so that is made U+FFFD first: a
-- backslash before the u that is itself escaped stays as it is.
CREATE FUNCTION tenuto_field(body bytea, field text) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT regexp_replace(convert_from(body, 'UTF8'), '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ufffd', 'g')::json ->> field $$;

-- For people: what happened to a task, and after how many model replies. `rowid` is the event's seq.
CREATE VIEW task_events AS
SELECT seq AS rowid, task_id, event, steps,
       to_char(to_timestamp(at_ms / 1000) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS')
           || '.' || lpad((at_ms % 1000)::text, 3, '0') || 'Z' AS at
FROM (
    SELECT e.seq AS seq, t.id AS task_id, e.at AS at_ms,
           count(*) FILTER (WHERE e.type = 'model_replied') OVER (PARTITION BY t.id ORDER BY e.seq) AS steps,
           CASE e.type
               WHEN 'thread_started' THEN 'started'
               WHEN 'interrupt_raised' THEN
                   CASE tenuto_field(e.body, 'kind')
                       WHEN 'approval' THEN 'awaiting_approval'
                       WHEN 'review' THEN 'awaiting_review'
                   END
               WHEN 'interrupt_resolved' THEN
                   CASE tenuto_field(e.body, 'outcome')
                       WHEN 'approved' THEN 'approved'
                       WHEN 'edited' THEN 'approved'
                       WHEN 'rejected' THEN 'rejected'
                       WHEN 'expired' THEN 'expired'
                       WHEN 'happened' THEN 'happened'
                       WHEN 'did_not_happen' THEN 'did_not_happen'
                       WHEN 'dropped' THEN 'dropped'
                   END
               WHEN 'thread_completed' THEN 'completed'
               WHEN 'thread_failed' THEN 'failed'
               WHEN 'thread_halted' THEN
                   CASE tenuto_field(e.body, 'limit') WHEN 'steps' THEN 'step_limit' ELSE 'halted' END
               WHEN 'thread_cancelled' THEN 'cancelled'
           END AS event
    FROM threads AS t
    JOIN events AS e ON e.thread = t.num
) AS all_events
WHERE event IS NOT NULL;
