-- Small bodies beside the log, such as what an access token may do. An expired one counts as absent.
CREATE TABLE records (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    body BLOB NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID;

CREATE INDEX records_expiring ON records (expires_at) WHERE expires_at IS NOT NULL;

-- By which metadata a thread is found: digests, in the order of the pages of threads.
CREATE TABLE labels (
    label TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    id TEXT NOT NULL,
    thread INTEGER NOT NULL,
    PRIMARY KEY (label, created_at, id)
) WITHOUT ROWID;

CREATE INDEX labels_thread ON labels (thread);

INSERT INTO labels
SELECT label_of(texts.key, texts.value), t.created_at, t.id, t.num
FROM threads AS t, json_each(iif(json_valid(t.metadata), t.metadata, '{}')) AS texts WHERE texts.type = 'text';

CREATE INDEX interrupts_pending_of_kind ON interrupts (kind, num) WHERE outcome IS NULL;
