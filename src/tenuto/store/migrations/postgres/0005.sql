-- A claim marks the thread as `decided` until it is given back: so when its holder dies, it goes before all others, and
-- waits neither behind a backlog nor behind what people decided meanwhile.
CREATE OR REPLACE FUNCTION tenuto_lease(thread_num bigint, owner text, lease_ms bigint, now_ms bigint)
RETURNS json LANGUAGE sql AS $$
    UPDATE threads
    SET lease_owner = owner, lease_until = now_ms + lease_ms, epoch = epoch + 1, status = 'running', decided = true,
        deaths = deaths + (lease_owner IS NOT NULL)::integer
    WHERE num = thread_num
    RETURNING json_build_object(
        'thread_id', id, 'agent', agent, 'epoch', epoch, 'head_seq', head_seq, 'deaths', deaths)
$$;

-- As before; what is given back is no longer marked.
CREATE OR REPLACE FUNCTION tenuto_release(op tenuto_op) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    head threads;
BEGIN
    SELECT * INTO head FROM threads WHERE id = op.thread_id FOR UPDATE;
    IF head.epoch IS DISTINCT FROM op.epoch THEN
        RETURN tenuto_refused('LeaseLost',
            format('thread %s is no longer held at epoch %s', op.thread_id, op.epoch));
    ELSIF head.head_seq <= op.head_seq THEN
        UPDATE threads
        SET lease_owner = NULL, lease_until = 0, ready_at = op.wake_at_ms, decided = false, status = op.status,
            deaths = deaths * (op.status = 'running')::integer
        WHERE num = head.num;
    END IF;
    RETURN json_build_object('value', head.head_seq <= op.head_seq);
END $$;

CREATE OR REPLACE FUNCTION tenuto_grow(head threads, op tenuto_op, bodies bytea[], salts bytea[], now_ms bigint)
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
        new.decided := false;
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

-- As before; what was left behind by a holder whose lease has ended comes first of all.
CREATE OR REPLACE FUNCTION tenuto_claim(op json) RETURNS json LANGUAGE plpgsql SET enable_seqscan = off AS $$
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
                (SELECT num, CASE WHEN lease_owner IS NULL THEN ready_at - 10000 ELSE 0 END AS at FROM threads
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
