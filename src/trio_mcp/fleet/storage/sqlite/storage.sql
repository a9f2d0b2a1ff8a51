-- The tables that replicas add to the file of a task store.

-- The servers that share this path. The first one uses this file, and the others have files with their numbers.
CREATE TABLE servers (number INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE);
CREATE TABLE secret (number INTEGER PRIMARY KEY CHECK (number = 1), secret BLOB NOT NULL);

CREATE TABLE sessions (
    number INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    caller BLOB NOT NULL,
    facts BLOB NOT NULL,
    mark BLOB NOT NULL,
    until INTEGER NOT NULL,
    is_used INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX sessions_by_end ON sessions (until);
CREATE INDEX sessions_by_caller ON sessions (caller, is_used, until);
CREATE INDEX unused_sessions ON sessions (until) WHERE NOT is_used;
-- The number of sessions, for the shares of callers. Expired sessions count until they are deleted.
CREATE TABLE session_total (sessions INTEGER NOT NULL);
INSERT INTO session_total VALUES (0);
CREATE TABLE callers (caller BLOB PRIMARY KEY, sessions INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX callers_by_sessions ON callers (sessions);
CREATE TRIGGER session_in AFTER INSERT ON sessions BEGIN
    UPDATE session_total SET sessions = sessions + 1;
    INSERT INTO callers VALUES (new.caller, 1) ON CONFLICT (caller) DO UPDATE SET sessions = sessions + 1;
END;
CREATE TRIGGER session_out AFTER DELETE ON sessions BEGIN
    UPDATE session_total SET sessions = sessions - 1;
    UPDATE callers SET sessions = sessions - 1 WHERE caller = old.caller;
    DELETE FROM callers WHERE caller = old.caller AND sessions = 0;
END;

CREATE TABLE logs (
    number INTEGER PRIMARY KEY,
    session BLOB NOT NULL UNIQUE,
    size INTEGER NOT NULL DEFAULT 0,
    until INTEGER NOT NULL
);
CREATE INDEX logs_by_end ON logs (until);
CREATE TABLE streams (
    number INTEGER PRIMARY KEY,
    log INTEGER NOT NULL,
    name BLOB NOT NULL,
    holder BLOB NOT NULL,
    request_id BLOB NOT NULL,
    last INTEGER NOT NULL DEFAULT 0,
    dropped INTEGER NOT NULL DEFAULT 0,
    note BLOB NOT NULL DEFAULT x'',
    finished INTEGER,
    kept_until INTEGER,
    UNIQUE (log, name)
);
CREATE INDEX streams_by_finish ON streams (log, finished) WHERE finished IS NOT NULL;
CREATE INDEX streams_by_end ON streams (log, kept_until) WHERE kept_until IS NOT NULL;
-- Numbers are in the order of appending, at least within a session.
CREATE TABLE events (
    number INTEGER PRIMARY KEY,
    log INTEGER NOT NULL,
    stream INTEGER NOT NULL,
    place INTEGER NOT NULL,
    line BLOB NOT NULL
);
CREATE INDEX events_by_log ON events (log);
CREATE INDEX events_by_place ON events (stream, place);
CREATE TRIGGER event_in AFTER INSERT ON events BEGIN
    UPDATE logs SET size = size + length(new.line) WHERE number = new.log;
END;
CREATE TRIGGER event_out AFTER DELETE ON events BEGIN
    UPDATE logs SET size = size - length(old.line) WHERE number = old.log;
    UPDATE streams SET dropped = dropped + 1 WHERE number = old.stream;
END;
CREATE TRIGGER stream_out AFTER DELETE ON streams BEGIN
    DELETE FROM events WHERE stream = old.number;
END;
CREATE TRIGGER log_out AFTER DELETE ON logs BEGIN
    DELETE FROM streams WHERE log = old.number;
END;

-- The table of task changes also has the changes of sessions and of their streams.
ALTER TABLE changes ADD COLUMN kind TEXT NOT NULL DEFAULT 'task';
ALTER TABLE changes ADD COLUMN stream BLOB;

-- For each thing, the number of its last record. Records up to the number in `forgotten` may be incomplete.
CREATE TABLE change_log (
    file BLOB NOT NULL, last INTEGER NOT NULL, forgotten INTEGER NOT NULL, things INTEGER NOT NULL
);
INSERT INTO change_log VALUES (randomblob(8), 0, 0, 0);
CREATE TABLE things (name BLOB PRIMARY KEY, note INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX things_by_note ON things (note);
CREATE TRIGGER thing_in AFTER INSERT ON things BEGIN UPDATE change_log SET things = things + 1; END;
CREATE TRIGGER thing_out AFTER DELETE ON things BEGIN UPDATE change_log SET things = things - 1; END;

CREATE TABLE letters (number INTEGER PRIMARY KEY, replica BLOB NOT NULL, letter BLOB, until INTEGER NOT NULL);
CREATE INDEX letters_by_replica ON letters (replica, number);
CREATE INDEX letters_by_end ON letters (until);
CREATE TABLE replicas (id BLOB PRIMARY KEY, until INTEGER NOT NULL);
CREATE INDEX replicas_by_end ON replicas (until);

CREATE TABLE seen (digest BLOB PRIMARY KEY, until INTEGER NOT NULL);
CREATE INDEX seen_by_end ON seen (until);
-- The time at which a token bucket is full again.
CREATE TABLE buckets (key BLOB PRIMARY KEY, until REAL NOT NULL);
CREATE INDEX buckets_by_end ON buckets (until);
