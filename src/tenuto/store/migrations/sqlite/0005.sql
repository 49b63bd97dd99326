-- An interrupt is listed even where the event that raised it is gone: nothing vanishes from an inbox.
DROP VIEW interrupt_rows;

CREATE VIEW interrupt_rows AS
SELECT i.id AS id, t.id AS thread_id, t.agent AS agent, i.kind AS kind,
       i.raised_seq AS raised_seq, i.raised_at AS raised_at, i.expires_at AS expires_at,
       i.outcome AS outcome, i.resolved_at AS resolved_at, i.thread AS thread,
       raised.version AS raised_version, CAST(raised.body AS BLOB) AS raised_body,
       resolved.version AS resolved_version, CAST(resolved.body AS BLOB) AS resolved_body, i.num AS num
FROM interrupts AS i
JOIN threads AS t ON t.num = i.thread
LEFT JOIN events AS raised ON raised.thread = i.thread AND raised.seq = i.raised_seq
LEFT JOIN events AS resolved ON resolved.thread = i.thread AND resolved.seq = i.resolved_seq;

-- As before; one body that cannot be read does not keep the rest from being seen.
DROP VIEW task_events;

CREATE VIEW task_events (rowid, task_id, event, steps, at) AS
SELECT seq, task_id, event, steps,
       strftime('%Y-%m-%dT%H:%M:%S', at_ms / 1000, 'unixepoch') || printf('.%03dZ', at_ms % 1000)
FROM (
    SELECT e.seq AS seq, t.id AS task_id, e.at AS at_ms,
           sum(e.type = 'model_replied') OVER (PARTITION BY t.id ORDER BY e.seq) AS steps,
           CASE e.type
               WHEN 'thread_started' THEN 'started'
               WHEN 'interrupt_raised' THEN
                   CASE json_extract(iif(json_valid(e.body), e.body, '{}'), '$.kind')
                       WHEN 'approval' THEN 'awaiting_approval'
                       WHEN 'review' THEN 'awaiting_review'
                   END
               WHEN 'interrupt_resolved' THEN
                   CASE json_extract(iif(json_valid(e.body), e.body, '{}'), '$.outcome')
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
                   CASE json_extract(iif(json_valid(e.body), e.body, '{}'), '$.limit') WHEN 'steps' THEN 'step_limit' ELSE 'halted' END
               WHEN 'thread_cancelled' THEN 'cancelled'
           END AS event
    FROM threads AS t
    JOIN events AS e ON e.thread = t.num
)
WHERE event IS NOT NULL;
