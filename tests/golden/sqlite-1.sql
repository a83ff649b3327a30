PRAGMA application_id = 1416193125;
PRAGMA user_version = 1;
CREATE TABLE buckets (
    device   TEXT    NOT NULL,
    hour     INTEGER NOT NULL,
    first_ts INTEGER NOT NULL,
    last_ts  INTEGER NOT NULL,
    readings INTEGER NOT NULL,
    metadata TEXT,
    PRIMARY KEY (device, hour)
) WITHOUT ROWID;
CREATE TABLE rollups (
    device TEXT    NOT NULL,
    hour   INTEGER NOT NULL,
    metric TEXT    NOT NULL,
    count  INTEGER NOT NULL,
    min    REAL    NOT NULL,
    max    REAL    NOT NULL,
    sum    REAL    NOT NULL,
    PRIMARY KEY (device, hour, metric)
) WITHOUT ROWID;
CREATE TABLE chunks (
    device TEXT    NOT NULL,
    hour   INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    data   BLOB    NOT NULL,
    PRIMARY KEY (device, hour, seq)
);
CREATE INDEX buckets_by_hour ON buckets (hour);
INSERT INTO buckets VALUES ('golden', 1713621600000, 1713621600000, 1713621620500, 3, '{"floor":2,"zone":"Zone 4"}');
INSERT INTO rollups VALUES ('golden', 1713621600000, 'cpu{core=0}', 1, 7.0, 7.0, 7.0);
INSERT INTO rollups VALUES ('golden', 1713621600000, 'hum', 1, 40.0, 40.0, 40.0);
INSERT INTO rollups VALUES ('golden', 1713621600000, 'temp', 3, -1.25, 1.0e+300, 1.0e+300);
INSERT INTO chunks VALUES ('golden', 1713621600000, 0, X'0100030B6370757B636F72653D307D0368756D0474656D700300904E845201040000000000001C4001010000000000004440000000000000803640000000000000F4BF9C7500883CE4377E');
