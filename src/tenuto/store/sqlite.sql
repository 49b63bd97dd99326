-- thread_head: Where a thread's log ends, and where an earlier append of the same id began in it.
SELECT num, CAST(head_seq AS INTEGER), head_hash, updated_at, CAST(epoch AS INTEGER),
       (SELECT seq FROM events WHERE thread = threads.num AND append_id = ?1)
FROM threads WHERE id = ?2;

-- append_end: The place and time of the last event of the append that began at this seq.
SELECT seq, at FROM events
WHERE thread = ?1 AND seq < coalesce(
    (SELECT min(seq) FROM events WHERE thread = ?1 AND seq > ?2 AND append_id IS NOT NULL), 1 << 62)
ORDER BY seq DESC LIMIT 1;

-- create_thread: A thread with no events yet; its first append follows at once.
INSERT INTO threads (id, agent, status, ready_at, created_at, updated_at, metadata)
VALUES (?1, ?2, 'running', ?3, ?3, ?3, ?4);

-- add_label: By which metadata a thread is found.
INSERT INTO labels (label, thread, created_at, id) VALUES (?, ?, ?, ?);

-- add_event: One event at the end of a log. The body comes as bytes and is kept as text for people.
INSERT INTO events (thread, seq, version, type, at, append_id, hash, salt, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, CAST(? AS TEXT));

-- grow: The log has a new head; ?4 = 0 when the holder got somewhere. The hot path: it touches no indexed column.
UPDATE threads SET head_seq = ?1, head_hash = ?2, updated_at = ?3, deaths = deaths * ?4 WHERE num = ?5;

-- set_status: The holder ended the thread.
UPDATE threads SET status = ? WHERE num = ?;

-- end: The holder ended the thread, having seen all of it, and gives it back.
UPDATE threads SET status = ?, ready_at = ?, decided = 0, lease_owner = NULL, lease_until = 0, deaths = 0 WHERE num = ?;

-- make_ready: An external event came: the thread is ready now, or was so before.
UPDATE threads
SET status = 'running', ready_at = min(coalesce(ready_at, ?1), ?1), decided = max(decided, ?3) WHERE num = ?2;

-- add_interrupt: A pause begins.
INSERT INTO interrupts (id, thread, kind, raised_seq, raised_at, expires_at) VALUES (?, ?, ?, ?, ?, ?);

-- decide_interrupt: A pause ends, once: no row changes when somebody else was first.
UPDATE interrupts SET outcome = ?, resolved_seq = ?, resolved_at = ? WHERE id = ? AND outcome IS NULL;

-- interrupt: One interrupt with the events that raised and resolved it.
SELECT * FROM interrupt_rows WHERE id = ?;

-- interrupts_pending: Interrupts that wait for a person, in the order in which they were raised.
SELECT * FROM interrupt_rows
WHERE outcome IS NULL AND num > coalesce((SELECT num FROM interrupts WHERE id = ?1), 0)
      AND (?2 IS NULL OR agent = ?2)
ORDER BY num LIMIT ?3;

-- interrupts_pending_of_kind: The same, of one kind (?4).
SELECT r.* FROM interrupts AS i INDEXED BY interrupts_pending_of_kind CROSS JOIN interrupt_rows AS r ON r.num = i.num
WHERE i.outcome IS NULL AND i.kind = ?4 AND i.num > coalesce((SELECT num FROM interrupts WHERE id = ?1), 0)
      AND (?2 IS NULL OR r.agent = ?2)
ORDER BY i.num LIMIT ?3;

-- interrupts_any: All interrupts, or (?5 = 0) the decided ones, in the same order.
SELECT * FROM interrupt_rows
WHERE num > coalesce((SELECT num FROM interrupts WHERE id = ?1), 0) AND (?2 IS NULL OR agent = ?2)
      AND (?4 IS NULL OR kind = ?4) AND (?5 IS NULL OR (outcome IS NULL) = ?5)
ORDER BY num LIMIT ?3;

-- interrupts_of_thread: The same within one thread (?6).
SELECT * FROM interrupt_rows
WHERE thread = (SELECT num FROM threads WHERE id = ?6)
      AND num > coalesce((SELECT num FROM interrupts WHERE id = ?1), 0)
      AND (?2 IS NULL OR agent = ?2) AND (?4 IS NULL OR kind = ?4)
      AND (?5 IS NULL OR (outcome IS NULL) = ?5)
ORDER BY num LIMIT ?3;

-- interrupt_heads: The same of any thread, without what the events say.
SELECT i.id, t.id, t.agent, i.kind, i.raised_seq, i.raised_at, i.expires_at, i.outcome, i.resolved_at
FROM interrupts AS i JOIN threads AS t ON t.num = i.thread
WHERE i.num > coalesce((SELECT num FROM interrupts WHERE id = ?1), 0) AND (?2 IS NULL OR t.agent = ?2)
      AND (?4 IS NULL OR i.kind = ?4) AND (?5 IS NULL OR (i.outcome IS NULL) = ?5) AND (?6 IS NULL OR t.id = ?6)
ORDER BY i.num LIMIT ?3;

-- doubtful: Threads, or that one (?2), that are ready without a live lease, in which a call started since the last
-- reply; of the oldest such threads only, so that a long queue costs no more.
SELECT t.id FROM (
    SELECT num, id FROM threads
    WHERE status = 'running' AND ready_at IS NOT NULL AND epoch > 0 AND lease_until <= ?1 AND (?2 IS NULL OR id = ?2)
    ORDER BY created_at LIMIT ?3 * 10
) AS t
WHERE EXISTS (
    SELECT 1 FROM events AS e
    WHERE e.thread = t.num AND e.type = 'call_started' AND e.seq > (
        SELECT seq FROM events WHERE thread = t.num AND type = 'model_replied' ORDER BY seq DESC LIMIT 1))
LIMIT ?3;

-- strays: In words, what no log and no list shows, of one thread (?1) or anywhere.
SELECT 'thread ' || coalesce(t.id, 'number ' || e.thread || ', whose row is gone,') || ' has ' || count(*)
       || ' events out of their place, the first of them event ' || min(e.seq)
FROM events AS e LEFT JOIN threads AS t ON t.num = e.thread
WHERE (t.num IS NULL OR e.seq NOT BETWEEN 1 AND t.head_seq)
      AND e.thread BETWEEN coalesce((SELECT num FROM threads WHERE id = ?1), -1 << 62)
                       AND coalesce((SELECT num FROM threads WHERE id = ?1), 1 << 62)
GROUP BY e.thread
UNION ALL
SELECT 'interrupt ' || id || ' is of thread number ' || thread || ', whose row is gone'
FROM interrupts WHERE ?1 IS NULL AND thread NOT IN (SELECT num FROM threads)
UNION ALL
SELECT 'thread ' || id || ' is in no list, for its created_at is ' || quote(created_at)
FROM threads WHERE ?1 IS NULL AND typeof(created_at) <> 'integer';

-- waiting: What waits, how many, since when: pending interrupts by kind, threads that anybody could advance now.
SELECT kind, count(*), min(raised_at) FROM interrupts WHERE outcome IS NULL GROUP BY kind
UNION ALL
SELECT 'runnable', count(*), min(ready_at) FROM threads WHERE ready_at <= ?1 AND lease_until <= ?1
UNION ALL
SELECT 'abandoned', count(*), min(lease_until) FROM threads WHERE lease_owner IS NOT NULL AND lease_until <= ?1;

-- claimable: Ready threads of one agent that no live lease holds, of those marked as decided or of the others, longest
-- ready first; the first have a head start of ten seconds, and what a holder left whose lease has ended comes first of all.
SELECT iif(lease_owner IS NULL, ready_at - 10000 * decided, 0), ready_at, num, id, agent, CAST(epoch AS INTEGER), CAST(head_seq AS INTEGER),
       deaths + (lease_owner IS NOT NULL) FROM threads
WHERE agent = ? AND decided = ? AND ready_at <= ? AND lease_until <= ?
ORDER BY ready_at LIMIT ?;

-- claimable_one: One given thread, if it is ready and no live lease holds it.
SELECT num, id, agent, CAST(epoch AS INTEGER), CAST(head_seq AS INTEGER), deaths + (lease_owner IS NOT NULL) FROM threads
WHERE id = ? AND ready_at <= ? AND lease_until <= ?;

-- next_ready: When the next thread of an agent becomes claimable: by its own time, or as another's lease ends.
SELECT min(at) FROM (
    SELECT min(ready_at) AS at FROM threads WHERE agent = ?1 AND decided = 0 AND ready_at > ?2
    UNION ALL
    SELECT min(ready_at) FROM threads WHERE agent = ?1 AND decided = 1 AND ready_at > ?2
    UNION ALL
    SELECT min(lease_until) FROM threads
    WHERE agent = ?1 AND decided IN (0, 1) AND ready_at <= ?2 AND lease_until > ?2 AND lease_owner <> ?3
);

-- lease: A claim: the new epoch fences off whoever held the thread before, and a holder that is still there died. The
-- thread is marked as decided until it is given back, so that it goes before others when this holder dies.
UPDATE threads SET lease_owner = ?, lease_until = ?, epoch = epoch + 1, status = 'running', decided = 1, deaths = ?
WHERE num = ?;

-- held: A thread still held under this claim.
SELECT num, CAST(head_seq AS INTEGER) FROM threads WHERE id = ? AND epoch = ? AND lease_owner = ?;

-- renew: A lease goes on.
UPDATE threads SET lease_until = ? WHERE num = ?;

-- release: The holder gives the thread back, at rest or to be gone on with by another.
UPDATE threads
SET lease_owner = NULL, lease_until = 0, ready_at = ?1, decided = 0, status = ?2, deaths = deaths * (?2 = 'running')
WHERE num = ?3;

-- leases_of: What a worker holds.
SELECT num, id, CAST(head_seq AS INTEGER) FROM threads WHERE lease_owner = ?;

-- end_leases: A worker is dead: what it held is free at once.
UPDATE threads SET lease_owner = NULL, lease_until = 0, deaths = deaths + 1 WHERE lease_owner = ?;

-- add_worker: A worker announces itself.
INSERT OR REPLACE INTO workers (owner, agents, pid, started_at) VALUES (?, ?, ?, ?);

-- remove_worker: A worker has gone.
DELETE FROM workers WHERE owner = ?;

-- owners: All that announced themselves, by name.
SELECT owner FROM workers;

-- workers: All that announced themselves; some may have died since.
SELECT owner, agents, pid, started_at,
       (SELECT count(*) FROM threads WHERE lease_owner = owner AND lease_until > ?1)
FROM workers ORDER BY started_at, owner;

-- add_blob: A body under its digest; the same digest is the same body.
INSERT OR IGNORE INTO blobs (digest, body) VALUES (?, ?);

-- blob: A body by its digest.
SELECT body FROM blobs WHERE digest = ?;

-- put_record: Keep a body; the one that is there stays unless it is to be replaced (?5) or has expired.
INSERT INTO records (kind, key, body, expires_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (kind, key) DO UPDATE SET body = excluded.body, expires_at = excluded.expires_at
WHERE ?5 OR expires_at <= ?6;

-- kept: What is there now, just after it was put.
SELECT body FROM records WHERE kind = ? AND key = ?;

-- drop_record: Forget one that has not expired.
DELETE FROM records WHERE kind = ? AND key = ? AND coalesce(expires_at > ?, 1);

-- drop_expired: In passing, some of those that have.
DELETE FROM records WHERE (kind, key) IN (SELECT kind, key FROM records WHERE expires_at <= ? LIMIT ?);

-- record: A body that has not expired.
SELECT body FROM records WHERE kind = ? AND key = ? AND coalesce(expires_at > ?, 1);

-- records: Those of a kind, by key.
SELECT key, body FROM records
WHERE kind = ? AND key > ? AND coalesce(expires_at > ?, 1) ORDER BY key LIMIT ?;

-- prunable: Threads that ended before then and that nobody holds. The one with the newest event of all stays: were
-- that event deleted, its number would be given again, and other processes would miss what comes next.
SELECT num FROM threads
WHERE status IN ('completed', 'failed', 'halted', 'cancelled') AND updated_at < ?1 AND lease_until <= ?2
      AND num <> (SELECT thread FROM events ORDER BY num DESC LIMIT 1)
LIMIT ?3;

-- prune_events: A whole log goes.
DELETE FROM events WHERE thread = ?;

-- prune_interrupts: ... with its pauses ...
DELETE FROM interrupts WHERE thread = ?;

-- prune_labels: ... with what it is found by ...
DELETE FROM labels WHERE thread = ?;

-- prune_thread: ... and its row.
DELETE FROM threads WHERE num = ?;

-- events: A part of a log, each row with the head; one row without an event when there is none after ?2.
SELECT CAST(t.head_seq AS INTEGER), e.seq, e.version, e.at, CAST(e.body AS BLOB)
FROM threads AS t LEFT JOIN events AS e ON e.thread = t.num AND e.seq > ?2
WHERE t.id = ?1 ORDER BY e.seq LIMIT ?3;

-- stored: The same with all that the chain is made of.
SELECT CAST(t.head_seq AS INTEGER), e.seq, e.version, e.type, e.at, CAST(e.salt AS BLOB), CAST(e.body AS BLOB),
       CAST(e.body_hash AS BLOB), CAST(e.hash AS BLOB)
FROM threads AS t LEFT JOIN events AS e ON e.thread = t.num AND e.seq > ?2
WHERE t.id = ?1 ORDER BY e.seq LIMIT ?3;

-- thread: One thread at a glance.
SELECT id, agent, status, head_seq, created_at, updated_at, ready_at, lease_owner, metadata, lower(hex(head_hash))
FROM threads WHERE id = ?;

-- threads: Threads, newest first.
SELECT id, agent, status, head_seq, created_at, updated_at, ready_at, lease_owner, metadata, lower(hex(head_hash))
FROM threads WHERE (created_at, id) < (?1, ?2) AND (?3 IS NULL OR agent = ?3)
ORDER BY created_at DESC, id DESC LIMIT ?4;

-- threads_by_status: The same, of one status (?5).
SELECT id, agent, status, head_seq, created_at, updated_at, ready_at, lease_owner, metadata, lower(hex(head_hash))
FROM threads WHERE status = ?5 AND (created_at, id) < (?1, ?2) AND (?3 IS NULL OR agent = ?3)
ORDER BY created_at DESC, id DESC LIMIT ?4;

-- threads_by_label: The same, of any status or one (?5), found by a label (?6) and having the others (?7, JSON).
SELECT t.id, agent, status, head_seq, t.created_at, updated_at, ready_at, lease_owner, metadata, lower(hex(head_hash))
FROM labels AS l CROSS JOIN threads AS t ON t.num = l.thread
WHERE l.label = ?6 AND (l.created_at, l.id) < (?1, ?2)
      AND (?3 IS NULL OR agent = ?3) AND (?5 IS NULL OR status = ?5)
      AND json_array_length(?7) = (
          SELECT count(*) FROM json_each(?7) AS other
          CROSS JOIN labels AS o ON (o.label, o.created_at, o.id) = (other.value, l.created_at, l.id))
ORDER BY l.created_at DESC, l.id DESC LIMIT ?4;

-- newest_event: How far the feed of all commits goes.
SELECT max(num) FROM events;

-- feed: Which threads grew within this part of the feed, and to where.
SELECT t.id, max(e.seq), max(e.num) FROM events AS e JOIN threads AS t ON t.num = e.thread
WHERE e.num > ? AND e.num < ? GROUP BY e.thread;
