-- One row per thread: where its log ends, and who may advance it (see store/base.py, "the lease is the queue").
-- `num` stands for the thread in every other table, to keep their rows small. Times are milliseconds (UTC).
CREATE TABLE threads (
    num INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    agent TEXT NOT NULL,
    status TEXT NOT NULL,
    ready_at INTEGER,
    lease_owner TEXT,
    lease_until INTEGER NOT NULL DEFAULT 0,
    epoch INTEGER NOT NULL DEFAULT 0,
    head_seq INTEGER NOT NULL DEFAULT 0,
    head_hash BLOB NOT NULL DEFAULT (zeroblob(32)),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    metadata TEXT NOT NULL
);

CREATE INDEX threads_ready ON threads (agent, ready_at) WHERE ready_at IS NOT NULL;

CREATE INDEX threads_owner ON threads (lease_owner) WHERE lease_owner IS NOT NULL;

CREATE INDEX threads_newest ON threads (created_at, id);

CREATE INDEX threads_status ON threads (status, created_at, id);

-- The log. `num` grows in commit order over all threads, so it is also the feed by which one process sees what
-- another wrote. `body` is the exact JSON that was hashed. The first event of an append carries a digest of
-- the append's id. An erased event has neither salt nor body, and `body_hash` in their place.
CREATE TABLE events (
    num INTEGER PRIMARY KEY,
    thread INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    version INTEGER NOT NULL,
    type TEXT NOT NULL,
    at INTEGER NOT NULL,
    append_id BLOB,
    hash BLOB NOT NULL,
    body_hash BLOB,
    salt BLOB,
    body TEXT
);

CREATE UNIQUE INDEX events_place ON events (thread, seq);

CREATE UNIQUE INDEX events_append ON events (thread, append_id) WHERE append_id IS NOT NULL;

-- Which pauses are pending; `num` grows as they are raised. What was asked and answered lies only in the events, so erasing those is enough.
CREATE TABLE interrupts (
    num INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    thread INTEGER NOT NULL,
    kind TEXT NOT NULL,
    raised_seq INTEGER NOT NULL,
    raised_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    outcome TEXT,
    resolved_seq INTEGER,
    resolved_at INTEGER
);

CREATE INDEX interrupts_pending ON interrupts (num) WHERE outcome IS NULL;

CREATE INDEX interrupts_thread ON interrupts (thread, num);

CREATE TABLE blobs (digest TEXT NOT NULL PRIMARY KEY, body BLOB NOT NULL);

CREATE TABLE workers (
    owner TEXT NOT NULL PRIMARY KEY,
    agents TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE VIEW interrupt_rows AS
SELECT i.id AS id, t.id AS thread_id, t.agent AS agent, i.kind AS kind,
       i.raised_seq AS raised_seq, i.raised_at AS raised_at, i.expires_at AS expires_at,
       i.outcome AS outcome, i.resolved_at AS resolved_at, i.thread AS thread,
       raised.version AS raised_version, CAST(raised.body AS BLOB) AS raised_body,
       resolved.version AS resolved_version, CAST(resolved.body AS BLOB) AS resolved_body, i.num AS num
FROM interrupts AS i
JOIN threads AS t ON t.num = i.thread
JOIN events AS raised ON raised.thread = i.thread AND raised.seq = i.raised_seq
LEFT JOIN events AS resolved ON resolved.thread = i.thread AND resolved.seq = i.resolved_seq;

-- For people: what happened to a task, and after how many model replies. `rowid` is the event's seq. The window
-- is partitioned by the very column that people ask for, so that SQLite reads the events of that task only.
CREATE VIEW task_events (rowid, task_id, event, steps, at) AS
SELECT seq, task_id, event, steps,
       strftime('%Y-%m-%dT%H:%M:%S', at_ms / 1000, 'unixepoch') || printf('.%03dZ', at_ms % 1000)
FROM (
    SELECT e.seq AS seq, t.id AS task_id, e.at AS at_ms,
           sum(e.type = 'model_replied') OVER (PARTITION BY t.id ORDER BY e.seq) AS steps,
           CASE e.type
               WHEN 'thread_started' THEN 'started'
               WHEN 'interrupt_raised' THEN
                   CASE json_extract(e.body, '$.kind')
                       WHEN 'approval' THEN 'awaiting_approval'
                       WHEN 'review' THEN 'awaiting_review'
                   END
               WHEN 'interrupt_resolved' THEN
                   CASE json_extract(e.body, '$.outcome')
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
                   CASE json_extract(e.body, '$.limit') WHEN 'steps' THEN 'step_limit' ELSE 'halted' END
               WHEN 'thread_cancelled' THEN 'cancelled'
           END AS event
    FROM threads AS t
    JOIN events AS e ON e.thread = t.num
)
WHERE event IS NOT NULL;
