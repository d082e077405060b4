-- Keys, reservations (leases) and the ledger. Times are Unix milliseconds, amounts are whole numbers.
CREATE TABLE api_key (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    purpose TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('active', 'revoked')),
    created_ms INTEGER NOT NULL,
    hint TEXT NOT NULL,
    digest BLOB NOT NULL,
    limit_tokens INTEGER,
    last_used_ms INTEGER,
    -- What settled requests were charged: the sum of the key's ledger rows, kept here so that a reserve reads one row.
    used_tokens INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE UNIQUE INDEX api_key_by_digest ON api_key (digest);

CREATE TABLE reservation (
    request_id TEXT NOT NULL PRIMARY KEY,
    key_id TEXT NOT NULL,
    tokens INTEGER NOT NULL CHECK (tokens >= 0),
    expires_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX reservation_by_key ON reservation (key_id, expires_ms, tokens);
CREATE INDEX reservation_by_expiry ON reservation (expires_ms);

CREATE TABLE ledger (
    seq INTEGER PRIMARY KEY,
    request_id TEXT NOT NULL UNIQUE,
    key_id TEXT NOT NULL,
    purpose TEXT NOT NULL,
    model TEXT NOT NULL,
    worker TEXT NOT NULL,
    route TEXT NOT NULL,
    input_tokens INTEGER NOT NULL CHECK (input_tokens >= 0),
    cached_tokens INTEGER NOT NULL CHECK (cached_tokens >= 0),
    output_tokens INTEGER NOT NULL CHECK (output_tokens >= 0),
    device_ms INTEGER NOT NULL,
    ttft_ms INTEGER,
    duration_ms INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('completed', 'client_closed', 'upstream_error', 'refused', 'timed_out')),
    estimated INTEGER NOT NULL CHECK (estimated IN (0, 1)),
    started_ms INTEGER NOT NULL,
    http_status INTEGER NOT NULL,
    settled_ms INTEGER NOT NULL
);
CREATE INDEX ledger_by_key ON ledger (key_id, seq);
CREATE INDEX ledger_by_start ON ledger (started_ms);
