PRAGMA application_id = 1416193125;
PRAGMA user_version = 1;
CREATE TABLE buckets (
    device   TEXT    NOT NULL,
    hour     INTEGER NOT NULL,
    first_ts INTEGER NOT NULL,
    last_ts  INTEGER NOT NULL,
    readings INTEGER NOT NULL,
    metadata TEXT,
    readings_state INTEGER NOT NULL DEFAULT 0,
    first_chunk    INTEGER,
    PRIMARY KEY (device, hour)
) WITHOUT ROWID;
CREATE INDEX readings_by_hour ON buckets (hour) WHERE readings_state <> 1;
CREATE INDEX expired_by_hour ON buckets (hour) WHERE readings_state = 1;
CREATE TABLE first_chunks (
    id   INTEGER PRIMARY KEY,
    data BLOB    NOT NULL
);
CREATE TABLE rollups (
    device TEXT    NOT NULL,
    hour   INTEGER NOT NULL,
    metric TEXT    NOT NULL,
    count  INTEGER NOT NULL,
    min    REAL    NOT NULL,
    max    REAL    NOT NULL,
    sum    REAL    NOT NULL,
    first_at    INTEGER NOT NULL,
    first_value REAL    NOT NULL,
    last_at     INTEGER NOT NULL,
    last_value  REAL    NOT NULL,
    PRIMARY KEY (device, hour, metric)
) WITHOUT ROWID;
CREATE TABLE chunks (
    device TEXT    NOT NULL,
    hour   INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    data   BLOB    NOT NULL,
    PRIMARY KEY (device, hour, seq)
);
CREATE TABLE devices (
    device        TEXT    NOT NULL PRIMARY KEY,
    metadata      TEXT,
    metadata_hour INTEGER,
    first_ts      INTEGER NOT NULL,
    last_ts       INTEGER NOT NULL,
    more_series   INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE series (
    device      TEXT    NOT NULL,
    series      TEXT    NOT NULL,
    last_day    INTEGER NOT NULL,
    measurement INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (device, series)
) WITHOUT ROWID;
CREATE TABLE operator_metadata (
    device   TEXT NOT NULL PRIMARY KEY,
    metadata TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE history (id TEXT NOT NULL, writes INTEGER NOT NULL);
INSERT INTO buckets VALUES ('golden', 1713621600000, 1713621600000, 1713621620500, 3, '{"floor":2,"zone":"Zone 4"}', 0, 1);
INSERT INTO first_chunks VALUES (1, X'0100030368756D0474656D700B6370757B636F72653D307D03000000000000005000010448F90194A001FAF9FA1280808080808080D08D20D0F580A0E4C3FC8A5F0101D1F580A0E4C3CC959F01010000A8C0020000000E00');
INSERT INTO rollups VALUES ('golden', 1713621600000, 'cpu{core=0}', 1, 7.0, 7.0, 7.0, 1713621620500, 7.0, 1713621620500, 7.0);
INSERT INTO rollups VALUES ('golden', 1713621600000, 'hum', 1, 40.0, 40.0, 40.0, 1713621600000, 40.0, 1713621600000, 40.0);
INSERT INTO rollups VALUES ('golden', 1713621600000, 'temp', 3, -1.25, 1.0e+300, 1.0e+300, 1713621600000, 22.5, 1713621620500, 1.0e+300);
INSERT INTO devices VALUES ('golden', '{"floor":2,"zone":"Zone 4"}', 1713621600000, 1713621600000, 1713621620500, 0);
INSERT INTO series VALUES ('golden', 'cpu{core=0}', 1713571200000, 0);
INSERT INTO series VALUES ('golden', 'hum', 1713571200000, 0);
INSERT INTO series VALUES ('golden', 'temp', 1713571200000, 0);
INSERT INTO operator_metadata VALUES ('golden', '{"replacedMs":1713621600000,"keys":{"a.b":{"atMs":1713621600001,"value":[1,0.5]},"name":{"atMs":1713621600000,"value":"Press 3"},"old":{"atMs":1713621600002}}}');
