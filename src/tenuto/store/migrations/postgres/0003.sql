-- The verbs that stand alone: each is a transaction of its own, takes one JSON object and gives {"value": ...}, or a
-- refusal, with "changes" where logs are to be looked at.

-- Ready threads that no live lease holds. The agents take turns, so that the backlog of one does not starve another;
-- within an agent, what has been ready for longest comes first, and what a person decided has a head start of ten
-- seconds, so that the rest is not starved; of each at most as many as `agents` says. More are looked at than are wanted, because others may claim just now.
CREATE FUNCTION tenuto_claim(op json) RETURNS json LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    now_ms CONSTANT bigint := tenuto_now();
    wanted CONSTANT integer := op ->> 'limit';
    lease_ms CONSTANT bigint := op ->> 'lease_ms';
    claims json[] := '{}';
    taken text[] := '{}';
    looked_at integer := 0;
    candidate record;
    found bigint;
    next_ready bigint;
BEGIN
    FOR candidate IN
        SELECT ready.num, name, most::bigint FROM json_each_text(op -> 'agents') AS agents (name, most)
        CROSS JOIN LATERAL (
            SELECT num, at, row_number() OVER (ORDER BY at, num) AS turn
            FROM (
                (SELECT num, ready_at - 10000 AS at FROM threads
                 WHERE agent = name AND decided AND ready_at <= now_ms AND lease_until <= now_ms
                 ORDER BY ready_at LIMIT 4 * wanted + 4)
                UNION ALL
                (SELECT num, ready_at AS at FROM threads
                 WHERE agent = name AND NOT decided AND ready_at <= now_ms AND lease_until <= now_ms
                 ORDER BY ready_at LIMIT 4 * wanted + 4)
            ) AS of_agent
        ) AS ready
        ORDER BY ready.turn, ready.at, ready.num
    LOOP
        CONTINUE WHEN cardinality(array_positions(taken, candidate.name)) >= candidate.most;
        looked_at := looked_at + 1;
        EXIT WHEN cardinality(claims) >= wanted;
        SELECT num INTO found FROM threads
        WHERE num = candidate.num AND ready_at <= now_ms AND lease_until <= now_ms FOR UPDATE SKIP LOCKED;
        IF found IS NOT NULL THEN
            claims := claims || tenuto_lease(found, op ->> 'owner', lease_ms, now_ms);
            taken := taken || candidate.name;
        END IF;
    END LOOP;
    IF looked_at > cardinality(claims) THEN
        next_ready := now_ms;
    ELSE
        SELECT min(at) INTO next_ready FROM json_object_keys(op -> 'agents') AS name CROSS JOIN LATERAL (
            (SELECT ready_at AS at FROM threads
             WHERE agent = name AND decided AND ready_at > now_ms ORDER BY ready_at LIMIT 1)
            UNION ALL
            (SELECT ready_at FROM threads
             WHERE agent = name AND NOT decided AND ready_at > now_ms ORDER BY ready_at LIMIT 1)
            UNION ALL
            SELECT min(lease_until) FROM threads
            WHERE agent = name AND decided IN (false, true) AND ready_at <= now_ms
                  AND lease_until > now_ms AND lease_owner <> op ->> 'owner'
        ) AS times;
    END IF;
    RETURN json_build_object('value', json_build_object('claims', array_to_json(claims), 'next_ready_ms', next_ready));
END $$;

-- The head of each thread that is still held under its claim, whose lease goes on.
CREATE FUNCTION tenuto_renew(op json) RETURNS json LANGUAGE sql SET enable_seqscan = off AS $$
    WITH held AS (
        SELECT t.num FROM json_to_recordset(op -> 'claims') AS c (thread_id text, epoch bigint)
        JOIN threads AS t ON t.id = c.thread_id
        WHERE t.epoch = c.epoch AND t.lease_owner = op ->> 'owner' ORDER BY t.num FOR UPDATE OF t
    ), renewed AS (
        UPDATE threads SET lease_until = tenuto_now() + (op ->> 'lease_ms')::bigint
        FROM held WHERE threads.num = held.num RETURNING threads.id, threads.head_seq
    )
    SELECT json_build_object('value', coalesce(json_object_agg(id, head_seq), '{}')) FROM renewed
$$;

CREATE FUNCTION tenuto_add_worker(op json) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    now_ms CONSTANT bigint := tenuto_now();
BEGIN
    INSERT INTO workers (owner, agents, pid, host, started_at, alive_until)
    VALUES (op ->> 'owner', op ->> 'agents', (op ->> 'pid')::integer, op ->> 'host', now_ms,
            now_ms + (op ->> 'alive_ms')::bigint)
    ON CONFLICT (owner) DO UPDATE
    SET agents = excluded.agents, pid = excluded.pid, host = excluded.host, started_at = excluded.started_at,
        alive_until = excluded.alive_until
    WHERE workers.alive_until <= now_ms OR (op ->> 'again')::boolean;
    IF NOT FOUND THEN
        RETURN tenuto_refused('Conflict', format('worker %s is alive already', op ->> 'owner'));
    END IF;
    RETURN '{"value": null}';
END $$;

-- Frees what it held, and tells which threads those were.
CREATE FUNCTION tenuto_remove_worker(op json) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    changes json;
BEGIN
    WITH held AS (
        SELECT num FROM threads WHERE lease_owner = op ->> 'owner' ORDER BY num FOR UPDATE
    ), freed AS (
        UPDATE threads SET lease_owner = NULL, lease_until = 0, deaths = deaths + 1
        FROM held WHERE threads.num = held.num
        RETURNING threads.id, threads.head_seq
    )
    SELECT json_agg(json_build_array(id, head_seq, true)) INTO changes FROM freed;
    DELETE FROM workers WHERE owner = op ->> 'owner';
    RETURN json_build_object('value', NULL, 'changes', coalesce(changes, '[]'));
END $$;

-- What a store asks every few seconds: it says that its workers live, and looks at the threads that somebody follows.
CREATE FUNCTION tenuto_look(op json) RETURNS json LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    now_ms CONSTANT bigint := tenuto_now();
    changes json;
BEGIN
    UPDATE workers SET alive_until = now_ms + (op ->> 'alive_ms')::bigint
    WHERE owner IN (SELECT json_array_elements_text(op -> 'owners'));
    IF FOUND THEN
        DELETE FROM workers WHERE alive_until < now_ms - 3600000;
    END IF;
    SELECT json_agg(json_build_array(t.id, t.head_seq, true)) INTO changes
    FROM json_array_elements_text(op -> 'watched') AS w JOIN threads AS t ON t.id = w;
    RETURN json_build_object('value', now_ms, 'changes', coalesce(changes, '[]'));
END $$;

CREATE FUNCTION tenuto_put_blobs(op json) RETURNS json LANGUAGE sql AS $$
    INSERT INTO blobs (digest, body)
    SELECT key, decode(value, 'base64') FROM json_each_text(op -> 'blobs') ORDER BY key
    ON CONFLICT (digest) DO NOTHING;
    SELECT '{"value": null}'::json
$$;

CREATE FUNCTION tenuto_put_record(op json) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    now_ms CONSTANT bigint := tenuto_now();
    kept bytea;
BEGIN
    DELETE FROM records WHERE (kind, key) IN (
        SELECT kind, key FROM records WHERE expires_at <= now_ms ORDER BY expires_at
        LIMIT (op ->> 'most')::integer FOR UPDATE SKIP LOCKED);
    INSERT INTO records AS r (kind, key, body, expires_at)
    VALUES (op -> 'place' ->> 0, op -> 'place' ->> 1, decode(op ->> 'body', 'base64'), (op ->> 'expires_at_ms')::bigint)
    ON CONFLICT (kind, key) DO UPDATE
    SET body = CASE WHEN (op ->> 'replace')::boolean OR r.expires_at <= now_ms THEN excluded.body ELSE r.body END,
        expires_at = CASE
            WHEN (op ->> 'replace')::boolean OR r.expires_at <= now_ms THEN excluded.expires_at ELSE r.expires_at END
    RETURNING r.body INTO kept;
    RETURN json_build_object('value', translate(encode(kept, 'base64'), E'\n', ''));
END $$;

CREATE FUNCTION tenuto_drop_record(op json) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM records WHERE kind = op -> 'place' ->> 0 AND key = op -> 'place' ->> 1
        AND coalesce(expires_at > tenuto_now(), true);
    RETURN json_build_object('value', FOUND);
END $$;

-- Whole threads go, with all that hangs on them.
CREATE FUNCTION tenuto_prune(op json) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    now_ms CONSTANT bigint := tenuto_now();
    nums bigint[];
BEGIN
    SELECT array_agg(num) INTO nums FROM (
        SELECT num FROM threads
        WHERE status IN ('completed', 'failed', 'halted', 'cancelled')
              AND created_at < (op ->> 'ended_before_ms')::bigint  -- indexed, which updated_at must not be
              AND updated_at < (op ->> 'ended_before_ms')::bigint AND lease_until <= now_ms
        ORDER BY created_at LIMIT (op ->> 'limit')::integer FOR UPDATE SKIP LOCKED) AS ended;
    DELETE FROM events WHERE thread = ANY (nums);
    DELETE FROM interrupts WHERE thread = ANY (nums);
    DELETE FROM labels WHERE thread = ANY (nums);
    DELETE FROM threads WHERE num = ANY (nums);
    RETURN json_build_object('value', coalesce(cardinality(nums), 0));
END $$;
