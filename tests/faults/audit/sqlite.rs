//! Reads the tables of SQLite, chunk by chunk.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, Row};

use super::{Findings, Fold, Found, HOUR_MS, Identity, Stored, add, chunk, fold, known};

/// All chunks.
const CHUNKS: &str = "SELECT device, hour, data FROM buckets JOIN first_chunks ON id = first_chunk
    UNION ALL SELECT device, hour, data FROM chunks";

/// The database file in a data folder.
pub(super) fn file_in(data_dir: &Path) -> PathBuf {
    data_dir.join("tidegauge.sqlite")
}

/// Reads the chunks and the rollups. The row of each bucket must have the number of its instants.
pub(super) fn read(data_dir: &Path, findings: &mut Findings) -> Stored {
    let connection = Connection::open(file_in(data_dir)).expect("the file is there");
    let mut stored = Stored::default();
    for (device, hour_ms, bytes) in all(&connection, CHUNKS, |row| row.get(2)) {
        let bytes: Vec<u8> = bytes;
        for chunk::Sample { offset, metric, value } in chunk::decode(&bytes) {
            let identity = (Arc::clone(&device), hour_ms + i64::from(offset), known(&metric));
            add(identity, value, &mut stored.readings, findings);
        }
    }
    let rollups = "SELECT device, hour, metric, count, min, max, sum, first_at, first_value, last_at, last_value
        FROM rollups";
    let stats_of = |row: &Row<'_>| {
        let metric: String = row.get(2)?;
        let ends = Some([(row.get(7)?, row.get(8)?), (row.get(9)?, row.get(10)?)]);
        let count = row.get::<_, i64>(3)? as u64;
        Ok((metric, Fold { count, min: row.get(4)?, max: row.get(5)?, sum: row.get(6)?, ends }))
    };
    for (device, hour_ms, (metric, stats)) in all(&connection, rollups, stats_of) {
        stored.rollups.insert((device, hour_ms, known(&metric)), stats);
    }
    for (device, hour_ms, said) in all(&connection, "SELECT device, hour, readings FROM buckets", |row| row.get(2)) {
        let instants = instants(&stored.readings, &device, hour_ms);
        let said: i64 = said;
        if said != instants as i64 {
            findings.wrong.push(format!("the row of {device} {hour_ms} says {said} readings, there are {instants}"));
        }
    }
    without_rollups(&stored, findings);
    stored
}

fn all<T>(
    connection: &Connection,
    sql: &str,
    rest: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
) -> Vec<(Arc<str>, i64, T)> {
    let mut statement = connection.prepare(sql).expect("the tables are there");
    let rows = statement.query_map([], |row| {
        let device: String = row.get(0)?;
        Ok((Arc::from(device), row.get(1)?, rest(row)?))
    });
    rows.and_then(Iterator::collect).expect("rows")
}

fn instants(readings: &Found, device: &Arc<str>, hour_ms: i64) -> usize {
    let range: std::ops::Range<Identity> =
        (Arc::clone(device), hour_ms, "")..(Arc::clone(device), hour_ms + HOUR_MS, "");
    readings.range(range).map(|((_, ts_ms, _), _)| ts_ms).collect::<BTreeSet<_>>().len()
}

/// SQLite has the stats of an hour as soon as it has its readings.
fn without_rollups(stored: &Stored, findings: &mut Findings) {
    let folded = fold(&stored.readings);
    for hour in folded.keys().filter(|hour| !stored.rollups.contains_key(*hour)) {
        findings.wrong.push(format!("{hour:?} has readings and no rollup"));
    }
}
