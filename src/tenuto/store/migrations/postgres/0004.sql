-- An interrupt is listed even where the event that raised it is gone: nothing vanishes from an inbox.
CREATE OR REPLACE VIEW interrupt_rows AS
SELECT i.id AS id, t.id AS thread_id, t.agent AS agent, i.kind AS kind,
       i.raised_seq AS raised_seq, i.raised_at AS raised_at, i.expires_at AS expires_at,
       i.outcome AS outcome, i.resolved_at AS resolved_at, i.thread AS thread,
       raised.version AS raised_version, raised.body AS raised_body,
       resolved.version AS resolved_version, resolved.body AS resolved_body, i.num AS num
FROM interrupts AS i
JOIN threads AS t ON t.num = i.thread
LEFT JOIN events AS raised ON raised.thread = i.thread AND raised.seq = i.raised_seq
LEFT JOIN events AS resolved ON resolved.thread = i.thread AND resolved.seq = i.resolved_seq;

-- As before; of a body that cannot be read there is nothing, and the rest is seen.
CREATE OR REPLACE FUNCTION tenuto_field(body bytea, field text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN regexp_replace(convert_from(body, 'UTF8'), '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ufffd', 'g')::json ->> field;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;
