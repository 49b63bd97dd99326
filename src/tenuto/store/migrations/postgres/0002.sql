-- The verbs that write to logs, many in one round trip and one commit.
--
-- Each verb checks all that it has to check before its first write. So a refusal is a value like any other outcome,
-- and the verbs of other callers in the same transaction are not undone. Refusals carry the name of an error class
-- and its text. An outcome is {"value": ...} or {"refused": ..., "says": ...}, with "change": [id, head, external]
-- when a log grew.
--
-- Locks: a batch locks the rows of all its threads first, in the order of `num`, and waits for no other lock while
-- it holds them but for the unique id of a thread that is created twice at once. So batches do not wait for each other in a
-- circle; claims skip what is locked.

-- What one caller asks. `key` (base64) stands for its append id; `first` is the place of its first event in the
-- arrays of bodies and salts that all callers of a batch share; `events` has what the projections need.
CREATE TYPE tenuto_op AS (
    verb text,
    thread_id text,
    key text,
    epoch bigint,
    head_seq bigint,
    version integer,
    first integer,
    events json,
    agent text,
    metadata text,
    labels json,
    digest text,
    expiry_key text,
    owner text,
    lease_ms bigint,
    wake_at_ms bigint,
    status text
);

CREATE TYPE tenuto_event AS (
    type text,
    id text,
    word text,
    digest text,
    expires_at bigint
);

CREATE FUNCTION tenuto_refused(kind text, says text) RETURNS json LANGUAGE sql IMMUTABLE AS
$$ SELECT json_build_object('refused', kind, 'says', says) $$;

CREATE FUNCTION tenuto_appended(first_seq bigint, head_seq bigint, at_ms bigint) RETURNS json LANGUAGE sql IMMUTABLE AS
$$ SELECT json_build_object('first_seq', first_seq, 'head_seq', head_seq, 'at_ms', at_ms) $$;

-- Where an earlier append of the same id landed; null when there was none.
CREATE FUNCTION tenuto_first_outcome(thread_num bigint, key text) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    began bigint;
    result json;
BEGIN
    SELECT seq INTO began FROM events WHERE thread = thread_num AND append_id = decode(key, 'base64');
    IF began IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT tenuto_appended(began, e.seq, e.at) INTO result FROM events AS e
    WHERE e.thread = thread_num AND e.seq < coalesce(
        (SELECT min(n.seq) FROM events AS n
         WHERE n.thread = thread_num AND n.seq > began AND n.append_id IS NOT NULL), 1::bigint << 62)
    ORDER BY e.seq DESC LIMIT 1;
    RETURN result;
END $$;

-- The events at the end of a locked log, and the projections in step with them.
CREATE FUNCTION tenuto_grow(head threads, op tenuto_op, bodies bytea[], salts bytea[], now_ms bigint)
RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    external CONSTANT boolean := op.epoch IS NULL;
    at_ms CONSTANT bigint := greatest(now_ms, head.updated_at);
    key bytea := decode(op.key, 'base64');
    place integer := op.first;
    seq bigint := head.head_seq;
    previous bytea := head.head_hash;
    new threads := head;
    event tenuto_event;
    ended text;
BEGIN
    FOR event IN SELECT * FROM json_populate_recordset(NULL::tenuto_event, op.events) LOOP
        seq := seq + 1;
        previous := sha256(
            previous
            || convert_to(
                E'\n' || head.id || E'\n' || seq || E'\n' || op.version || E'\n' || event.type || E'\n' || at_ms || E'\n',
                'UTF8')
            || sha256(salts[place] || bodies[place]));
        INSERT INTO events (thread, seq, version, type, at, append_id, hash, salt, body)
        VALUES (head.num, seq, op.version, event.type, at_ms, key, previous, salts[place], bodies[place]);
        key := NULL;
        place := place + 1;
        ended := NULL;
        CASE event.type
            WHEN 'interrupt_raised' THEN
                -- Without an id when the same append resolves it: see rows.inbox_of.
                IF event.id IS NOT NULL THEN
                    INSERT INTO interrupts (id, thread, kind, digest, raised_seq, raised_at, expires_at)
                    VALUES (event.id, head.num, event.word, event.digest, seq, at_ms, event.expires_at);
                END IF;
            WHEN 'interrupt_resolved' THEN
                IF event.id IS NOT NULL THEN
                    UPDATE interrupts SET outcome = event.word, resolved_seq = seq, resolved_at = at_ms
                    WHERE id = event.id AND outcome IS NULL;
                    new.decided := new.decided OR external;
                END IF;
            WHEN 'model_replied', 'call_finished' THEN new.deaths := 0;
            WHEN 'thread_completed' THEN ended := 'completed';
            WHEN 'thread_failed' THEN ended := 'failed';
            WHEN 'thread_halted' THEN ended := 'halted';
            WHEN 'thread_cancelled' THEN ended := 'cancelled';
            ELSE NULL;
        END CASE;
        new.status := coalesce(ended, new.status);
    END LOOP;
    IF external AND head.head_seq > 0 THEN
        new.status := 'running';
        new.ready_at := least(head.ready_at, now_ms);
    ELSIF ended IS NOT NULL AND op.head_seq IS NOT NULL THEN
        -- The holder has seen all of it, and gives it back.
        new.ready_at := CASE WHEN ended = 'cancelled' THEN now_ms END;
        new.lease_owner := NULL;
        new.lease_until := 0;
        new.deaths := 0;
    END IF;
    UPDATE threads
    SET head_seq = seq, head_hash = previous, updated_at = at_ms, status = new.status, ready_at = new.ready_at,
        decided = new.decided, lease_owner = new.lease_owner, lease_until = new.lease_until, deaths = new.deaths
    WHERE num = head.num;
    RETURN json_build_object(
        'value', tenuto_appended(head.head_seq + 1, seq, at_ms), 'change', json_build_array(head.id, seq, external));
END $$;

CREATE FUNCTION tenuto_create(op tenuto_op, bodies bytea[], salts bytea[], now_ms bigint)
RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    head threads;
    outcome json;
BEGIN
    INSERT INTO threads (id, agent, status, ready_at, created_at, updated_at, metadata)
    VALUES (op.thread_id, op.agent, 'running', now_ms, now_ms, now_ms, op.metadata)
    ON CONFLICT (id) DO NOTHING RETURNING * INTO head;
    IF head.num IS NULL THEN
        SELECT * INTO head FROM threads WHERE id = op.thread_id;
        outcome := tenuto_first_outcome(head.num, op.key);
        IF (outcome ->> 'first_seq')::bigint = 1 THEN
            RETURN json_build_object('value', outcome);
        END IF;
        RETURN tenuto_refused('Conflict', format('thread %s exists already', op.thread_id));
    END IF;
    INSERT INTO labels (label, created_at, id, thread)
    SELECT label, now_ms, op.thread_id, head.num FROM json_array_elements_text(op.labels) AS label;
    RETURN tenuto_grow(head, op, bodies, salts, now_ms);
END $$;

CREATE FUNCTION tenuto_append(op tenuto_op, bodies bytea[], salts bytea[], now_ms bigint)
RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    head threads;
    event tenuto_event;
    interrupt interrupts;
    outcome json;
BEGIN
    SELECT * INTO head FROM threads WHERE id = op.thread_id FOR UPDATE;
    IF head.num IS NULL THEN
        RETURN tenuto_refused('ThreadNotFound', format('there is no thread %s', op.thread_id));
    END IF;
    outcome := tenuto_first_outcome(head.num, op.key);
    IF outcome IS NOT NULL THEN
        RETURN json_build_object('value', outcome);
    ELSIF op.epoch <> head.epoch THEN
        RETURN tenuto_refused('LeaseLost',
            format('thread %s is at epoch %s; this holder''s was %s', head.id, head.epoch, op.epoch));
    ELSIF head.head_seq > op.head_seq THEN
        RETURN tenuto_refused('Stale',
            format('thread %s has grown to event %s; %s was the last one seen', head.id, head.head_seq, op.head_seq));
    END IF;
    FOR event IN SELECT * FROM json_populate_recordset(NULL::tenuto_event, op.events) LOOP
        IF event.type = 'interrupt_resolved' AND event.id IS NOT NULL THEN
            SELECT * INTO interrupt FROM interrupts WHERE id = event.id;
            IF interrupt.thread IS DISTINCT FROM head.num THEN
                RETURN tenuto_refused('InterruptNotFound',
                    format('there is no interrupt %s in thread %s', event.id, head.id));
            ELSIF interrupt.outcome IS NOT NULL THEN
                RETURN tenuto_refused('AlreadyDecided', event.id);
            END IF;
        END IF;
    END LOOP;
    RETURN tenuto_grow(head, op, bodies, salts, now_ms);
END $$;

-- `events` has the decision, and behind it the expiry that is written in its place when it comes too late.
CREATE FUNCTION tenuto_resolve(op tenuto_op, bodies bytea[], salts bytea[], now_ms bigint)
RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    wanted CONSTANT text := op.events -> 0 ->> 'id';
    head threads;
    interrupt interrupts;
    outcome json;
BEGIN
    SELECT t.* INTO head FROM threads AS t JOIN interrupts AS i ON i.thread = t.num WHERE i.id = wanted FOR UPDATE OF t;
    IF head.num IS NULL THEN
        RETURN tenuto_refused('InterruptNotFound', format('there is no interrupt %s', wanted));
    END IF;
    SELECT * INTO interrupt FROM interrupts WHERE id = wanted;
    outcome := tenuto_first_outcome(head.num, op.key);
    IF outcome IS NOT NULL THEN
        RETURN json_build_object('value', json_build_array(head.id, outcome));
    ELSIF interrupt.outcome IS NOT NULL THEN
        RETURN tenuto_refused('AlreadyDecided', wanted);
    ELSIF op.digest <> interrupt.digest THEN
        RETURN tenuto_refused('Stale', format('interrupt %s is about another call than the one that was seen', wanted));
    ELSIF op.events -> 0 ->> 'word' = 'expired' OR interrupt.expires_at <= 0 OR interrupt.expires_at > now_ms THEN
        op.events := json_build_array(op.events -> 0);
        outcome := tenuto_grow(head, op, bodies, salts, now_ms);
        RETURN json_build_object('value', json_build_array(head.id, outcome -> 'value'), 'change', outcome -> 'change');
    END IF;
    -- A key of its own: the caller's stands for a decision that was not written.
    op.events := json_build_array(op.events -> 1);
    op.first := op.first + 1;
    op.key := op.expiry_key;
    outcome := tenuto_grow(head, op, bodies, salts, now_ms);
    RETURN json_build_object('refused', 'AlreadyDecided', 'says', wanted, 'change', outcome -> 'change');
END $$;

CREATE FUNCTION tenuto_lease(thread_num bigint, owner text, lease_ms bigint, now_ms bigint)
RETURNS json LANGUAGE sql AS $$
    UPDATE threads
    SET lease_owner = owner, lease_until = now_ms + lease_ms, epoch = epoch + 1, status = 'running', decided = false,
        deaths = deaths + (lease_owner IS NOT NULL)::integer
    WHERE num = thread_num
    RETURNING json_build_object(
        'thread_id', id, 'agent', agent, 'epoch', epoch, 'head_seq', head_seq, 'deaths', deaths)
$$;

CREATE FUNCTION tenuto_take(op tenuto_op, now_ms bigint) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    found bigint;
BEGIN
    SELECT num INTO found FROM threads
    WHERE id = op.thread_id AND ready_at <= now_ms AND lease_until <= now_ms FOR UPDATE;
    RETURN json_build_object('value', tenuto_lease(found, op.owner, op.lease_ms, now_ms));
END $$;

CREATE FUNCTION tenuto_release(op tenuto_op) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    head threads;
BEGIN
    SELECT * INTO head FROM threads WHERE id = op.thread_id FOR UPDATE;
    IF head.epoch IS DISTINCT FROM op.epoch THEN
        RETURN tenuto_refused('LeaseLost',
            format('thread %s is no longer held at epoch %s', op.thread_id, op.epoch));
    ELSIF head.head_seq <= op.head_seq THEN
        UPDATE threads
        SET lease_owner = NULL, lease_until = 0, ready_at = op.wake_at_ms, status = op.status,
            deaths = deaths * (op.status = 'running')::integer
        WHERE num = head.num;
    END IF;
    RETURN json_build_object('value', head.head_seq <= op.head_seq);
END $$;

-- The outcomes of all of them, in their order. How many JSON has, no planner knows: it takes it for a hundred and, with
-- some thousand threads, reads them all. So this and what is like it (0003.sql) may not.
CREATE FUNCTION tenuto_batch(ops json, bodies bytea[], salts bytea[]) RETURNS json LANGUAGE plpgsql
SET enable_seqscan = off AS $$
DECLARE
    now_ms bigint;
    op tenuto_op;
    outcomes json[] := '{}';
BEGIN
    IF json_array_length(ops) > 1 THEN
        PERFORM 1 FROM threads WHERE num IN (
            SELECT t.num FROM json_populate_recordset(NULL::tenuto_op, ops) AS o JOIN threads AS t ON t.id = o.thread_id
            UNION ALL
            SELECT i.thread FROM json_populate_recordset(NULL::tenuto_op, ops) AS o
            JOIN interrupts AS i ON i.id = o.events -> 0 ->> 'id' WHERE o.verb = 'resolve'
        ) ORDER BY num FOR UPDATE;
    END IF;
    now_ms := tenuto_now();
    FOR op IN SELECT * FROM json_populate_recordset(NULL::tenuto_op, ops) LOOP
        outcomes := outcomes || CASE op.verb
            WHEN 'append' THEN tenuto_append(op, bodies, salts, now_ms)
            WHEN 'create' THEN tenuto_create(op, bodies, salts, now_ms)
            WHEN 'take' THEN tenuto_take(op, now_ms)
            WHEN 'release' THEN tenuto_release(op)
            WHEN 'resolve' THEN tenuto_resolve(op, bodies, salts, now_ms)
        END;
    END LOOP;
    RETURN array_to_json(outcomes);
END $$;
