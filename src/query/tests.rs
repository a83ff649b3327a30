//! Queries over a store, without pending readings.

use std::path::Path;

use tokio::runtime::Handle;

use super::*;
use crate::access::DeviceScope;
use crate::common::clock::Clock;
use crate::flush::{self, DeadLetters};
use crate::log::{self, BatchBuilder, Log, MinFree};
use crate::model::{BucketWrite, MS_PER_HOUR, Metric, Sample, SeriesFilter};
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

/// A store with one value of each metric in each hour of each device: the number of the hour.
pub(super) async fn store_of(dir: &Path, devices: &[&str], hours: i32, metrics: &[Metric]) -> Arc<SqliteStore> {
    let store = SqliteStore::open(&dir.join("tidegauge.sqlite")).unwrap();
    let sample = |hour: i32, metric: u32| (Sample { value: f64::from(hour), offset: 5, metric }, metric == 0);
    for device in devices {
        let write = |hour: i32| {
            let samples = (0..).take(metrics.len()).map(|metric| sample(hour, metric));
            Arc::new(BucketWrite::new((*device).into(), Hour(hour), None, metrics.to_vec(), samples))
        };
        let writes: Vec<_> = (0..hours).map(write).collect();
        for outcome in store.write(&writes).await {
            outcome.unwrap();
        }
    }
    Arc::new(store)
}

#[tokio::test]
async fn a_device_with_many_series_is_read_in_windows_and_refused_early() {
    let folder = tempfile::tempdir().unwrap();
    let metrics: Vec<Metric> = (0..1_000).map(|nth| Metric::from(&*format!("m{nth:03}"))).collect();
    let store = store_of(folder.path(), &["d"], 72, &metrics).await;
    let request = RollupsRequest {
        devices: vec!["d".into()],
        known_series: None,
        from_ms: Some(0),
        to_ms: 72 * MS_PER_HOUR,
        series: SeriesFilter::ALL,
        step: Step::HOUR,
        zone: Zone::UTC,
        columns: Columns::default(),
        fill: Fill::None,
        compare: None,
    };
    let mut queries = over(store, folder.path(), limits());
    let found = queries.rollups(DeviceScope::all(), &request, |_, found, _| found.now.clone()).await.unwrap();
    let sums = |series: &Series| series.iter().map(|point| point.stats.sum).collect::<Vec<f64>>();
    let expected: Vec<f64> = (0..72).map(f64::from).collect();
    assert_eq!(found.body[0].len(), 1_000);
    assert!(found.body[0].values().all(|series| sums(series) == expected));

    queries.limits.max_points = 2_500;
    let refused = queries.rollups(DeviceScope::all(), &request, |_, _, _| ()).await.unwrap_err().to_string();
    let of_two_days = "the answer has 48000 points or more";
    assert!(refused.contains(of_two_days) && refused.contains("such as 1w"), "a day would be too short: {refused}");
}

/// The device is read in windows of 13 hours. Each has hours in which a step begins.
#[tokio::test]
async fn the_last_hour_without_readings_is_that_of_all_windows() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_of(folder.path(), &["d"], 48, &["m".into()]).await;
    assert_eq!(store.expire_readings(100 * MS_PER_HOUR).await.unwrap(), 48);
    let step: Step = "2h".parse().unwrap();
    let request = RollupsRequest {
        devices: vec!["d".into()],
        known_series: Some(vec![5_000]),
        from_ms: Some(0),
        to_ms: 48 * MS_PER_HOUR,
        series: SeriesFilter::ALL,
        step: step.beginning_later(MS_PER_HOUR / 2).unwrap(),
        zone: Zone::UTC,
        columns: Columns::default(),
        fill: Fill::None,
        compare: None,
    };
    let queries = over(store, folder.path(), limits());
    let refused = queries.rollups(DeviceScope::all(), &request, |_, _, _| ()).await.unwrap_err().to_string();
    assert!(refused.starts_with("the readings of the hour from 1970-01-02T22:00:00.000Z have expired"), "{refused}");
}

/// The device `b` is read in windows of six hours. It takes values of two windows before it is refused.
#[tokio::test]
async fn a_device_that_does_not_fit_leaves_the_comparison_of_another_its_values() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_of(folder.path(), &["a", "b"], 36, &["m".into()]).await;
    let request = RollupsRequest {
        devices: vec!["a".into(), "b".into()],
        known_series: Some(vec![1, 5_000]),
        from_ms: Some(12 * MS_PER_HOUR),
        to_ms: 36 * MS_PER_HOUR,
        series: SeriesFilter::ALL,
        step: "30m".parse().unwrap(),
        zone: Zone::UTC,
        columns: Columns::default(),
        fill: Fill::None,
        compare: Some(Earlier::Days(1)),
    };
    let mut queries = over(store, folder.path(), limits());
    queries.limits.max_values_read = 24 + 12; // of the steps of `a`, and of the earlier ones
    let found = queries.rollups(DeviceScope::all(), &request, |at, _, _| at).await.unwrap();
    assert_eq!(found.body, [0], "the page has `a`, and ends before `b`");
}

#[tokio::test]
async fn a_slice_that_is_read_ahead_is_short_and_the_next_one_has_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let queries = over(store_of(folder.path(), &["d"], 2_500, &["m".into()]).await, folder.path(), limits());
    let read = async |hours: i64| {
        let (device, series, limit) = ("d".to_owned(), SeriesFilter::ALL, usize::MAX);
        let request = ReadingsRequest { device, from_ms: 0, to_ms: hours * MS_PER_HOUR, series, limit };
        let mut slices = queries.reading_slices(DeviceScope::all(), &request).unwrap();
        slices.read_ahead(&Handle::current());
        let (mut counts, mut values) = (Vec::new(), Vec::new());
        while let Some(slice) = slices.next().await.unwrap() {
            let before = values.len();
            values.extend(slice.hours().flat_map(|hour| hour.samples).map(|sample| sample.value));
            counts.push(values.len() - before);
        }
        (counts, values, slices.is_short())
    };
    let expected: Vec<f64> = (0..2_500).map(f64::from).collect();
    assert_eq!(read(2_500).await, (vec![2_048, 452], expected.clone(), false));
    assert_eq!(read(2_048).await, (vec![2_048], expected[..2_048].to_vec(), true));
    assert_eq!(read(0).await, (Vec::new(), Vec::new(), true));
}

#[tokio::test]
async fn few_slices_of_all_queries_are_read_ahead_at_a_time_and_the_others_do_not_wait() {
    let folder = tempfile::tempdir().unwrap();
    let queries = over(store_of(folder.path(), &["d"], 3, &["m".into()]).await, folder.path(), limits());
    let (device, series, limit) = ("d".to_owned(), SeriesFilter::ALL, usize::MAX);
    let request = ReadingsRequest { device, from_ms: 0, to_ms: 3 * MS_PER_HOUR, series, limit };
    let begin = || {
        let mut slices = queries.clone().reading_slices(DeviceScope::all(), &request).unwrap();
        slices.read_ahead(&Handle::current());
        slices
    };
    let hours = async |mut slices: ReadingSlices| slices.next().await.unwrap().unwrap().hours().count();
    let free = || queries.reads_ahead.available_permits();
    let all_turns = Arc::clone(&queries.reads_ahead).try_acquire_many_owned(READS_AHEAD as u32).unwrap();
    assert_eq!(hours(begin()).await, 3);
    drop(all_turns);
    let mut begun = Vec::new();
    for left in (0..READS_AHEAD).rev().chain([0, 0]) {
        begun.push(begin());
        assert_eq!(free(), left);
    }
    for slices in begun {
        assert_eq!(hours(slices).await, 3);
    }
    assert_eq!(free(), READS_AHEAD, "a turn ends with its read");
}

#[tokio::test]
async fn a_page_of_named_devices_ends_early_if_they_have_many_series() {
    let folder = tempfile::tempdir().unwrap();
    let metrics: Vec<Metric> = (0..2_100).map(|nth| Metric::from(&*format!("m{{l={nth:0480}}}"))).collect();
    let ids = ["a", "b", "c"];
    let store = store_of(folder.path(), &ids, 1, &metrics).await;
    let queries = over(store, folder.path(), limits());
    let all: Vec<Arc<str>> = ids.iter().map(|id| (*id).into()).collect();
    for named in [None, Some(all)] {
        let mut request = DevicesRequest::of_each(named, 0);
        for (expected, next) in [(&ids[..2], Some("b")), (&ids[2..], None)] {
            let page = queries.devices(DeviceScope::all(), &request).await.unwrap().body;
            assert_eq!(page.devices.iter().map(|device| &*device.id).collect::<Vec<_>>(), expected);
            assert_eq!(page.next.as_deref(), next);
            request.after = next.map(str::to_owned);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_queries_of_one_request_have_one_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let queries = over(store_of(folder.path(), &[], 0, &[]).await, folder.path(), limits());
    let together = queries.with_one_deadline();
    let (own, shared) = (queries.deadline(), together.deadline());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!([together.deadline(), together.clone().deadline()], [shared; 2]);
    assert!(queries.deadline() > own, "another request has its own time");
}

#[tokio::test(start_paused = true)]
async fn one_query_at_a_time_has_the_readings_of_large_pending_hours() {
    let folder = tempfile::tempdir().unwrap();
    let mut queries = over(store_of(folder.path(), &[], 0, &[]).await, folder.path(), limits());
    queries.large_hour = 2;
    let mut batch = BatchBuilder::default();
    for (device, ts_ms) in [("small", 0), ("small", 1), ("large", 0), ("large", 1), ("large", 2)] {
        batch.push(device, None, ts_ms, [("m", 1.0)].into_iter()).unwrap();
    }
    for hour in 0..17 {
        batch.push("long", None, hour * MS_PER_HOUR, [("m", 1.0)].into_iter()).unwrap();
    }
    queries.pipeline.insert(batch.finish().payload());
    let devices: [Arc<str>; 2] = ["small".into(), "large".into()];
    let (found, turn) = queries.pending(queries.deadline(), &devices, Hour::ALL).await.unwrap();
    let values = |found: &[Vec<(Hour, Contents)>]| found.iter().map(|of| of[0].1.samples().len()).collect::<Vec<_>>();
    assert_eq!((values(&found), turn.is_some()), (vec![2, 3], true));
    let (found, other_turn) = queries.pending(queries.deadline(), &devices[..1], Hour::ALL).await.unwrap();
    assert_eq!((values(&found), other_turn.is_none()), (vec![2], true), "it does not wait");

    let (scope, all, second) = (DeviceScope::all(), SeriesFilter::ALL, Duration::from_secs(1));
    let request = ReadingsRequest {
        device: "large".to_owned(),
        from_ms: 0,
        to_ms: MS_PER_HOUR,
        series: SeriesFilter::ALL,
        limit: 10,
    };
    let hurried = Queries { limits: Limits { timeout: second, ..limits() }, ..queries.clone() };
    let latest = tokio::time::timeout(2 * second, hurried.latest(scope, "large", &all)).await;
    assert!(matches!(latest, Ok(Err(QueryError::Timeout(_)))), "it waits for its turn: {latest:?}");
    let readings = tokio::time::timeout(2 * second, hurried.readings(scope, &request)).await;
    assert!(matches!(readings, Ok(Err(QueryError::Timeout(_)))), "{readings:?}");
    let long: [Arc<str>; 1] = ["long".into()];
    let many: [Arc<str>; 9] = std::array::from_fn(|_| "small".into());
    for devices in [&long[..], &many[..]] {
        let found = hurried.pending(hurried.deadline(), devices, Hour::ALL).await;
        assert!(matches!(found, Err(QueryError::Timeout(_))), "{devices:?} have much together");
    }
    let latest = queries.latest(scope, "long", &all).await.unwrap().body.unwrap();
    assert_eq!(latest.values.into_values().collect::<Vec<_>>(), [(16 * MS_PER_HOUR, 1.0)], "one hour after the other");
    drop(turn);
    let latest = queries.latest(scope, "large", &all).await.unwrap().body.unwrap();
    assert_eq!(latest.values.into_values().collect::<Vec<_>>(), [(2, 1.0)]);
    assert_eq!(queries.readings(scope, &request).await.unwrap().body.readings.len(), 3);
}
