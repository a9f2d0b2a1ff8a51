-- The tables of a file of tasks.

CREATE TABLE tasks (
    number INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    scope BLOB NOT NULL,
    place INTEGER NOT NULL,
    kept_until INTEGER,
    epoch INTEGER NOT NULL,
    version INTEGER NOT NULL,
    mark BLOB NOT NULL,
    form BLOB NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX by_age ON tasks (scope, place, id);
CREATE INDEX by_end ON tasks (kept_until) WHERE kept_until IS NOT NULL;

-- One narrow row for each task that some process has to run: all leases of a process are renewed in one statement. No
-- index has the end of a lease, or each renewal would cost twice as much; a claim looks at the leases of its tools.
CREATE TABLE leases (
    number INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    name TEXT NOT NULL,
    form BLOB NOT NULL,
    holder TEXT,
    leased_until INTEGER NOT NULL
);
CREATE INDEX by_name ON leases (name, form);
CREATE INDEX by_holder ON leases (holder) WHERE holder IS NOT NULL;

-- Ids that no record may have.
CREATE TABLE void (id BLOB PRIMARY KEY, until INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX void_by_end ON void (until);

-- How many records there are, for the bounds of `create`.
CREATE TABLE total (records INTEGER NOT NULL);
INSERT INTO total VALUES (0);
CREATE TABLE scopes (scope BLOB PRIMARY KEY, records INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER count_in AFTER INSERT ON tasks BEGIN
    UPDATE total SET records = records + 1;
    INSERT INTO scopes VALUES (new.scope, 1) ON CONFLICT (scope) DO UPDATE SET records = records + 1;
END;
CREATE TRIGGER count_out AFTER DELETE ON tasks BEGIN
    DELETE FROM leases WHERE number = old.number;
    UPDATE total SET records = records - 1;
    UPDATE scopes SET records = records - 1 WHERE scope = old.scope;
    DELETE FROM scopes WHERE scope = old.scope AND records = 0;
END;
CREATE TRIGGER count_over AFTER UPDATE OF scope ON tasks WHEN new.scope <> old.scope BEGIN
    INSERT INTO scopes VALUES (new.scope, 1) ON CONFLICT (scope) DO UPDATE SET records = records + 1;
    UPDATE scopes SET records = records - 1 WHERE scope = old.scope;
    DELETE FROM scopes WHERE scope = old.scope AND records = 0;
END;

-- The latest changes, for other processes that watch. Numbers only grow, since the last row is never deleted.
CREATE TABLE changes (number INTEGER PRIMARY KEY, id BLOB NOT NULL, writer BLOB NOT NULL);
