//! Queries over a store, without pending readings.

use std::path::Path;

use super::*;
use crate::common::clock::Clock;
use crate::flush::{self, DeadLetters};
use crate::log::{self, Log, MinFree};
use crate::store::sqlite::SqliteStore;
use crate::telemetry::Metrics;

/// Answers from `store`. The log and the other files are in `dir`.
pub(crate) fn over(store: Arc<dyn Store>, dir: &Path, limits: Limits) -> Queries {
    let log = log::Options {
        dir: dir.join("log"),
        sync: log::Sync::Always,
        group_window: Duration::ZERO,
        segment_bytes: 1 << 20,
        max_bytes: 1 << 30,
        min_free: MinFree::Bytes(0),
    };
    let (log, recovery) = Log::open(log, log::Instruments::default()).unwrap();
    let second = Duration::from_secs(1);
    let options = flush::Options {
        limits: crate::pending::Limits { max_bytes: 1 << 20, max_readings: 1_000, max_age: second },
        gather: second,
        max_in_flight: 1,
        max_buckets_per_write: 1,
        max_write_bytes: 1 << 20,
        closing: flush::Closing::Daily,
        rollup_delay: second,
        rollup_progress: dir.join("rollups.json"),
        closed_hours: dir.join("closed-hours"),
        instance: dir.join("instance"),
        retry: second..=second,
        clock: Clock::system(),
    };
    let letters = DeadLetters::new(dir.join("dead-letters.ndjson"), 1 << 20, Clock::system());
    let metrics = Arc::new(Metrics::new().0);
    let pipeline = Pipeline::new(options, Arc::new(log), &recovery, Arc::clone(&store), letters, metrics).unwrap();
    Queries::new(store, pipeline, limits)
}

/// Limits that few queries reach.
pub(crate) const fn limits() -> Limits {
    Limits {
        max_hours: 100_000,
        max_points: 10_000_000,
        max_values_read: u64::MAX,
        catch_up: Duration::ZERO,
        timeout: Duration::from_secs(600),
        kept: None,
    }
}

#[tokio::test(start_paused = true)]
async fn the_queries_of_one_request_have_one_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("tidegauge.sqlite")).unwrap();
    let queries = over(Arc::new(store), folder.path(), limits());
    let together = queries.with_one_deadline();
    let (own, shared) = (queries.deadline(), together.deadline());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!([together.deadline(), together.clone().deadline()], [shared; 2]);
    assert!(queries.deadline() > own, "another request has its own time");
}
