-- All but the first only read, and have the same names as in sqlite.sql; what writes is in functions (migrations/postgres).

-- batch: Writes: ops (JSON), their bodies one after the other, where each begins and how long it is (JSON), and salts.
-- An array of bytes would have the driver look up its type on each new connection, for longer than all this takes.
SELECT tenuto_batch($1,
    ARRAY(SELECT substring($2::bytea FROM (place ->> 0)::int FOR (place ->> 1)::int)
        FROM json_array_elements($3) AS place),
    ARRAY(SELECT substring($4::bytea FROM place FOR 16)
        FROM generate_series(1, octet_length($4::bytea), 16) AS place));

-- interrupt: One interrupt with the events that raised and resolved it.
SELECT * FROM interrupt_rows WHERE id = $1;

-- interrupts_pending: Interrupts that wait for a person, in the order in which they were raised. One after the other
-- (OFFSET 0), whatever the planner thinks of how thread and seq go together.
SELECT r.* FROM interrupts AS i
CROSS JOIN LATERAL (SELECT * FROM interrupt_rows WHERE num = i.num OFFSET 0) AS r
WHERE i.outcome IS NULL
      AND i.num > coalesce((SELECT num FROM interrupts WHERE id = $1), 0) AND ($2::text IS NULL OR r.agent = $2)
ORDER BY i.num LIMIT $3;

-- interrupts_pending_of_kind: The same, of one kind ($4).
SELECT r.* FROM interrupts AS i
CROSS JOIN LATERAL (SELECT * FROM interrupt_rows WHERE num = i.num OFFSET 0) AS r
WHERE i.outcome IS NULL AND i.kind = $4
      AND i.num > coalesce((SELECT num FROM interrupts WHERE id = $1), 0) AND ($2::text IS NULL OR r.agent = $2)
ORDER BY i.num LIMIT $3;

-- interrupts_any: All interrupts, or ($5 false) the decided ones, in the same order.
SELECT r.* FROM interrupts AS i
CROSS JOIN LATERAL (SELECT * FROM interrupt_rows WHERE num = i.num OFFSET 0) AS r
WHERE ($4::text IS NULL OR i.kind = $4) AND ($5::boolean IS NULL OR (i.outcome IS NULL) = $5)
      AND i.num > coalesce((SELECT num FROM interrupts WHERE id = $1), 0) AND ($2::text IS NULL OR r.agent = $2)
ORDER BY i.num LIMIT $3;

-- interrupts_of_thread: The same within one thread ($6).
SELECT * FROM interrupt_rows
WHERE thread = (SELECT num FROM threads WHERE id = $6)
      AND num > coalesce((SELECT num FROM interrupts WHERE id = $1), 0)
      AND ($2::text IS NULL OR agent = $2) AND ($4::text IS NULL OR kind = $4)
      AND ($5::boolean IS NULL OR (outcome IS NULL) = $5)
ORDER BY num LIMIT $3;

-- interrupt_heads: The same of any thread, without what the events say.
SELECT i.id, t.id, t.agent, i.kind, i.raised_seq, i.raised_at, i.expires_at, i.outcome, i.resolved_at
FROM interrupts AS i JOIN threads AS t ON t.num = i.thread
WHERE i.num > coalesce((SELECT num FROM interrupts WHERE id = $1), 0) AND ($2::text IS NULL OR t.agent = $2)
      AND ($4::text IS NULL OR i.kind = $4) AND ($5::boolean IS NULL OR (i.outcome IS NULL) = $5)
      AND ($6::text IS NULL OR t.id = $6)
ORDER BY i.num LIMIT $3;

-- doubtful: Threads, or that one ($2), that are ready without a live lease, in which a call started since the last
-- reply; of the oldest such threads only, so that a long queue costs no more.
SELECT t.id FROM (
    SELECT num, id FROM threads
    WHERE status = 'running' AND ready_at IS NOT NULL AND epoch > 0 AND lease_until <= $1 AND ($2::text IS NULL OR id = $2)
    ORDER BY created_at LIMIT $3::bigint * 10
) AS t
WHERE EXISTS (
    SELECT 1 FROM events AS e
    WHERE e.thread = t.num AND e.type = 'call_started' AND e.seq > (
        SELECT seq FROM events WHERE thread = t.num AND type = 'model_replied' ORDER BY seq DESC LIMIT 1)
    OFFSET 0)
LIMIT $3;

-- strays: In words, what no log and no list shows, of one thread ($1) or anywhere.
SELECT format('thread %s has %s events out of their place, the first of them event %s',
              coalesce(t.id, format('number %s, whose row is gone,', e.thread)), count(*), min(e.seq))
FROM events AS e LEFT JOIN threads AS t ON t.num = e.thread
WHERE (t.num IS NULL OR e.seq NOT BETWEEN 1 AND t.head_seq)
      AND ($1::text IS NULL OR e.thread = (SELECT num FROM threads WHERE id = $1))
GROUP BY e.thread, t.id
UNION ALL
SELECT format('interrupt %s is of thread number %s, whose row is gone', id, thread)
FROM interrupts WHERE $1 IS NULL AND thread NOT IN (SELECT num FROM threads);

-- waiting: What waits, how many, since when: pending interrupts by kind, threads that anybody could advance now; from
-- one agent's name in the index to the next, so that threads that sleep are not looked at.
WITH RECURSIVE agents (agent) AS (
    (SELECT agent FROM threads WHERE ready_at IS NOT NULL ORDER BY agent LIMIT 1)
    UNION ALL
    SELECT (SELECT agent FROM threads WHERE ready_at IS NOT NULL AND agent > a.agent ORDER BY agent LIMIT 1)
    FROM agents AS a WHERE a.agent IS NOT NULL
)
SELECT k.kind, count(*), min(i.raised_at) FROM (VALUES ('approval'), ('question'), ('review')) AS k (kind)
CROSS JOIN LATERAL (SELECT raised_at FROM interrupts WHERE outcome IS NULL AND kind = k.kind OFFSET 0) AS i
GROUP BY k.kind
UNION ALL
SELECT 'runnable', count(*), min(r.ready_at) FROM agents AS a CROSS JOIN (VALUES (false), (true)) AS d (decided)
CROSS JOIN LATERAL (
    SELECT ready_at FROM threads
    WHERE agent = a.agent AND decided = d.decided AND ready_at <= $1 AND lease_until <= $1 OFFSET 0) AS r
UNION ALL
SELECT 'abandoned', count(*), min(lease_until) FROM threads WHERE lease_owner IS NOT NULL AND lease_until <= $1;

-- workers: Those that are alive.
SELECT owner, agents, pid, started_at, host,
       (SELECT count(*) FROM threads AS t WHERE t.lease_owner = w.owner AND t.lease_until > tenuto_now()),
       alive_until - $1
FROM workers AS w WHERE alive_until > tenuto_now() ORDER BY started_at, owner;

-- blob: A body by its digest.
SELECT body FROM blobs WHERE digest = $1;

-- record: A body that has not expired.
SELECT body FROM records WHERE kind = $1 AND key = $2 AND coalesce(expires_at > $3, true);

-- records: Those of a kind, by key.
SELECT key, body FROM records
WHERE kind = $1 AND key > $2 AND coalesce(expires_at > $3, true) ORDER BY key LIMIT $4;

-- events: A part of a log, each row with the head; one row without an event when there is none after $2.
SELECT t.head_seq, e.seq, e.version, e.at, e.body
FROM threads AS t LEFT JOIN events AS e ON e.thread = t.num AND e.seq > $2
WHERE t.id = $1 ORDER BY e.seq LIMIT $3;

-- stored: The same with all that the chain is made of.
SELECT t.head_seq, e.seq, e.version, e.type, e.at, e.salt, e.body, e.body_hash, e.hash
FROM threads AS t LEFT JOIN events AS e ON e.thread = t.num AND e.seq > $2
WHERE t.id = $1 ORDER BY e.seq LIMIT $3;

-- thread: One thread at a glance.
SELECT id, agent, status, head_seq, created_at, updated_at, ready_at, lease_owner, metadata, encode(head_hash, 'hex')
FROM threads WHERE id = $1;

-- threads: Threads, newest first.
SELECT id, agent, status, head_seq, created_at, updated_at, ready_at, lease_owner, metadata, encode(head_hash, 'hex')
FROM threads WHERE (created_at, id) < ($1, $2) AND ($3::text IS NULL OR agent = $3)
ORDER BY created_at DESC, id DESC LIMIT $4;

-- threads_by_status: The same, of one status ($5).
SELECT id, agent, status, head_seq, created_at, updated_at, ready_at, lease_owner, metadata, encode(head_hash, 'hex')
FROM threads WHERE status = $5 AND (created_at, id) < ($1, $2) AND ($3::text IS NULL OR agent = $3)
ORDER BY created_at DESC, id DESC LIMIT $4;

-- threads_by_label: The same, of any status or one ($5), found by a label ($6) and having the others ($7, JSON).
SELECT t.id, agent, status, head_seq, t.created_at, updated_at, ready_at, lease_owner, metadata,
       encode(head_hash, 'hex')
FROM labels AS l JOIN threads AS t ON t.num = l.thread
WHERE l.label = $6 AND (l.created_at, l.id) < ($1, $2)
      AND ($3::text IS NULL OR agent = $3) AND ($5::text IS NULL OR status = $5)
      AND json_array_length($7::json) = (
          SELECT count(*) FROM json_array_elements_text($7::json) AS other
          JOIN labels AS o ON (o.label, o.created_at, o.id) = (other, l.created_at, l.id))
ORDER BY l.created_at DESC, l.id DESC LIMIT $4;
