use tempfile::TempDir;

use super::*;
use crate::model::{MS_PER_HOUR, Sample, SeriesFilter, Stats, ValueAt};
use crate::store::scenarios::{Expiry, store_scenarios};

mod file;

store_scenarios!(two_handles);
store_scenarios!(@indexed two_handles);
store_scenarios!(@deleting two_handles);

fn two_handles() -> impl Future<Output = (TempDir, SqliteStore, SqliteStore)> {
    let folder = tempfile::tempdir().unwrap();
    let open = || SqliteStore::open_with(&file_in(&folder), Duration::from_secs(60)).unwrap();
    let (store, other) = (open(), open());
    std::future::ready((folder, store, other))
}

impl Expiry for TempDir {
    async fn expire_readings(&self, store: &dyn Store, _device: &str) {
        store.expire_readings(i64::MAX).await.unwrap();
    }
}

fn file_in(folder: &TempDir) -> std::path::PathBuf {
    folder.path().join("tidegauge.db")
}

fn new_store() -> (TempDir, SqliteStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open_with(&file_in(&folder), Duration::from_millis(20)).unwrap();
    (folder, store)
}

/// A connection of another program to the same file.
fn visitor(folder: &TempDir) -> Connection {
    Connection::open(file_in(folder)).unwrap()
}

fn one<T: rusqlite::types::FromSql>(connection: &Connection, sql: &str) -> T {
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// A write of the metric `a` at each of these offsets.
fn write_at(device: &str, hour: Hour, values: impl IntoIterator<Item = (u32, f64)>) -> Arc<BucketWrite> {
    let samples = values.into_iter().map(|(offset, value)| (Sample { value, offset, metric: 0 }, true));
    BucketWrite::new(device.into(), hour, None, vec!["a".into()], samples).into()
}

async fn written(store: &SqliteStore, write: Arc<BucketWrite>) -> Written {
    store.write(&[write]).await.remove(0).unwrap()
}

async fn stats(store: &SqliteStore, device: &str) -> Stats {
    store.hour_stats(&[device.into()], Hour(0)..Hour(9), &SeriesFilter::ALL, StatsNeeds::All).await.unwrap()[0][0].stats
        [0]
    .1
}

#[tokio::test]
async fn the_file_can_be_read_with_plain_sql() {
    let (folder, store) = new_store();
    let hour = Hour::of(1_776_693_610_000);
    let mut write = write_at("LIGHT-FL02-ZONE4", hour, [(10_000, 320.0), (20_000, 310.0)]);
    Arc::make_mut(&mut write).metadata = Some(r#"{"floor":2}"#.into());
    written(&store, write).await;
    let row = visitor(&folder)
        .query_row(
            "SELECT datetime(b.hour / 1000, 'unixepoch'), datetime(last_ts / 1000, 'unixepoch'), readings,
                metadata ->> 'floor', metric, count, min, max, sum / count
             FROM buckets b JOIN rollups r USING (device, hour) WHERE device = 'LIGHT-FL02-ZONE4'",
            [],
            |row| (0..9).map(|at| row.get::<_, rusqlite::types::Value>(at)).collect::<Result<Vec<_>, _>>(),
        )
        .unwrap();
    let expected: [rusqlite::types::Value; 9] = [
        "2026-04-20 14:00:00".to_owned().into(),
        "2026-04-20 14:00:20".to_owned().into(),
        2.into(),
        2.into(),
        "a".to_owned().into(),
        2.into(),
        310.0.into(),
        320.0.into(),
        315.0.into(),
    ];
    assert_eq!(row, expected);
}

#[tokio::test]
async fn written_readings_are_there_after_a_reopening() {
    let (folder, store) = new_store();
    let write = write_at("d", Hour(1), [(1, 1.0), (2, 2.0)]);
    written(&store, write.clone()).await;
    drop(store);
    let store = SqliteStore::open(&file_in(&folder)).unwrap();
    assert_eq!(store.contents("d", Hour(0)..Hour(9)).await.unwrap(), [(Hour(1), write.contents.clone())]);
    assert_eq!(written(&store, write).await, Written { stored: 0, duplicate: 2 });
}

#[tokio::test]
async fn a_device_leaves_the_index_with_its_last_rollup_and_comes_back() {
    let (_folder, store) = new_store();
    for hour in [1, 30] {
        let mut write = write_at("d", Hour(hour), [(1, 1.0)]);
        Arc::make_mut(&mut write).metadata = Some(r#"{"floor":2}"#.into());
        written(&store, write).await;
    }
    store.expire_readings(Hour(40).start_ms()).await.unwrap();
    store.expire_rollups(Hour(2).start_ms()).await.unwrap();
    let known = store.device("d").await.unwrap().unwrap();
    assert_eq!((known.last_ts_ms, known.series.len()), (Hour(30).instant_ms(1), 1));
    store.expire_rollups(Hour(40).start_ms()).await.unwrap();
    assert_eq!(store.device("d").await.unwrap(), None);
    let mut again = write_at("d", Hour(30), [(1, 1.0)]);
    Arc::make_mut(&mut again).metadata = Some(r#"{"floor":2}"#.into());
    written(&store, again).await;
    let back = store.device("d").await.unwrap().unwrap();
    assert_eq!(back, DeviceSummary { first_ts_ms: Hour(30).instant_ms(1), ..known });
}

#[tokio::test]
async fn a_device_that_another_process_has_removed_comes_back() {
    let (folder, store) = new_store();
    written(&store, write_at("d", Hour(1), [(1, 1.0)])).await;
    visitor(&folder).execute_batch("DELETE FROM devices; DELETE FROM series").unwrap();
    assert_eq!(store.device("d").await.unwrap(), None);
    written(&store, write_at("d", Hour(1), [(2, 1.0)])).await;
    assert_eq!(store.device("d").await.unwrap().unwrap().series.len(), 1);
}

#[tokio::test]
async fn a_resent_write_touches_no_row() {
    let (_folder, store) = new_store();
    let mut write = write_at("d", Hour(1), [(1, 1.0), (2, 2.0)]);
    Arc::make_mut(&mut write).metadata = Some("{}".into());
    written(&store, write.clone()).await;
    let changes = store.writer.lock().await.connection.total_changes();
    written(&store, write).await;
    assert_eq!(store.writer.lock().await.connection.total_changes(), changes);
}

#[tokio::test]
async fn rollups_are_the_fold_but_for_one_rounding_an_append() {
    let (_folder, store) = new_store();
    for step in 0..40 {
        let late = if step % 5 == 4 { 3 } else { 0 };
        let values =
            (0..7).map(|at| ((step - late) * 10 + late + at, 0.1 * f64::from(step + at) + 1e9 / f64::from(step + 1)));
        written(&store, write_at("d", Hour(1), values)).await;
        let contents = store.contents("d", Hour(1)..Hour(2)).await.unwrap().remove(0).1;
        let (found, fold) = (stats(&store, "d").await, contents.stats(Hour(1))[0].1);
        assert_eq!(Stats { sum: fold.sum, ..found }, fold, "step {step}");
        assert!((found.sum - fold.sum).abs() <= f64::EPSILON * f64::from(step) * fold.sum, "step {step}");
    }
}

#[tokio::test]
async fn a_sum_beyond_a_double_is_infinite() {
    let (_folder, store) = new_store();
    written(&store, write_at("d", Hour(1), [(1, f64::MAX), (2, f64::MAX)])).await;
    written(&store, write_at("d", Hour(1), [(3, f64::MIN), (4, 1.0)])).await;
    written(&store, write_at("d", Hour(1), [(5, f64::MAX)])).await;
    let at = |offset| ValueAt { ts_ms: Hour(1).instant_ms(offset), value: f64::MAX };
    let expected = Stats { count: 5, min: f64::MIN, max: f64::MAX, sum: f64::INFINITY, first: at(1), last: at(5) };
    assert_eq!(stats(&store, "d").await, expected);
}

#[tokio::test]
async fn many_appends_leave_few_chunks_and_large_ones_alone() {
    let (folder, store) = new_store();
    let noise = |at: u32| (at, f64::from(at).sin()); // does not compress
    written(&store, write_at("d", Hour(1), (0..3000).map(noise))).await;
    let visitor = visitor(&folder);
    let large = || one::<i64>(&visitor, "SELECT length(data) FROM buckets JOIN first_chunks ON id = first_chunk");
    let before = large();
    for step in 0..200 {
        written(&store, write_at("d", Hour(1), (0..2).map(|at| noise(3000 + step * 2 + at)))).await;
    }
    let chunks: i64 = one(&visitor, "SELECT count(*) FROM chunks");
    assert!(chunks <= bucket::COMPACT_EVERY + 1, "{chunks}");
    assert_eq!(large(), before);
    assert_eq!(one::<i64>(&visitor, "SELECT readings FROM buckets"), 3400);
    let contents = store.contents("d", Hour(1)..Hour(2)).await.unwrap().remove(0).1;
    assert_eq!(contents, write_at("d", Hour(1), (0..3400).map(noise)).contents);
}

#[tokio::test]
async fn one_refused_bucket_does_not_block_the_others() {
    let (folder, store) = new_store();
    // the trigger fails the write of the bucket after that of its rollups
    let refuse =
        "CREATE TRIGGER refuse BEFORE INSERT ON buckets WHEN new.device = 'bad' BEGIN SELECT raise(ABORT, 'no'); END";
    visitor(&folder).execute_batch(refuse).unwrap();
    let writes = ["a", "bad", "z"].map(|device| write_at(device, Hour(1), [(1, 1.0)]));
    let outcomes = store.write(&writes).await;
    assert!(matches!(&outcomes[1], Err(StoreError { cause: Cause::Constraint, detail }) if detail.contains("no")));
    for nth in [0, 2] {
        assert_eq!(outcomes[nth].as_ref().unwrap(), &Written { stored: 1, duplicate: 0 });
    }
    assert_eq!(one::<i64>(&visitor(&folder), "SELECT count(*) FROM rollups WHERE device = 'bad'"), 0);
    assert_eq!(one::<i64>(&visitor(&folder), "SELECT count(*) FROM buckets"), 2);
}

#[tokio::test]
async fn a_damaged_chunk_refuses_its_late_readings_only() {
    let (folder, store) = new_store();
    let writes = ["a", "bad"].map(|device| write_at(device, Hour(1), [(1, 1.0)]));
    store.write(&writes).await.into_iter().for_each(|outcome| assert!(outcome.is_ok()));
    let damage = "UPDATE first_chunks SET data = x'010007'
        WHERE id = (SELECT first_chunk FROM buckets WHERE device = 'bad')";
    visitor(&folder).execute_batch(damage).unwrap();
    let outcomes = store.write(&["a", "bad"].map(|device| write_at(device, Hour(1), [(0, 1.0)]))).await;
    assert!(outcomes[0].is_ok());
    assert!(matches!(&outcomes[1], Err(StoreError { cause: Cause::UnreadableChunk, .. })), "{outcomes:?}");
    assert!(store.contents("bad", Hour(0)..Hour(9)).await.unwrap().is_empty(), "reads skip it");
    assert_eq!(stats(&store, "bad").await.count, 1);
}

#[tokio::test]
async fn a_damaged_chunk_keeps_only_its_own_hour_from_a_deletion() {
    let (folder, store) = new_store();
    let writes: Vec<_> = (0..150).map(|hour| write_at("d", Hour(hour), [(1, 1.0), (2, 2.0)])).collect();
    store.write(&writes).await.into_iter().for_each(|outcome| assert!(outcome.is_ok()));
    for hour in [1, 2] {
        let damage = format!(
            "UPDATE first_chunks SET data = x'010007' WHERE id = (SELECT first_chunk FROM buckets WHERE hour = {})",
            hour * MS_PER_HOUR
        );
        visitor(&folder).execute_batch(&damage).unwrap();
    }
    let series = SeriesFilter::new(["a"], []).unwrap();
    let of_series = Deletion { device: "d".into(), range_ms: None, series };
    let left = || one::<i64>(&visitor(&folder), "SELECT count(*) FROM buckets");
    for _ in 0..2 {
        let deleted = store.delete(&of_series, &BTreeSet::new()).await.unwrap();
        let kept: Vec<_> = deleted.kept.iter().map(|(hour, error)| (*hour, error.cause)).collect();
        assert_eq!(kept, [(Hour(1), Cause::UnreadableChunk)]);
        assert_eq!((left(), store.device("d").await.unwrap().unwrap().series.len()), (2, 1));
    }
    store.delete(&Deletion::of_device("d".into()), &BTreeSet::new()).await.unwrap();
    assert_eq!((left(), store.device("d").await.unwrap()), (0, None));
}

#[tokio::test]
async fn a_deletion_of_all_times_reads_no_rollups_of_sound_hours_again() {
    let (_folder, store) = new_store();
    let samples = [0, 1].map(|metric| (Sample { value: 1.0, offset: 1, metric }, metric == 0));
    let metrics = vec!["a".into(), "b".into()];
    written(&store, BucketWrite::new("d".into(), Hour(1), None, metrics, samples).into()).await;
    let series = SeriesFilter::new(["a"], []).unwrap();
    let of_series = Deletion { device: "d".into(), range_ms: None, series };
    assert_eq!(store.delete(&of_series, &BTreeSet::new()).await.unwrap().readings, 1);
    assert_eq!(store.device("d").await.unwrap().unwrap().series.len(), 1);
    let writer = store.writer.lock().await;
    let walk = writer.connection.prepare_cached(read::ROLLUPS_FROM_LAST).unwrap();
    assert_eq!(walk.get_status(rusqlite::StatementStatus::Run), 0);
}

/// Three hours of 600 devices: more than one batch.
async fn three_hours_of_many(store: &SqliteStore) {
    let of = |nth: u32| (0..3).map(move |hour| write_at(&format!("d{nth}"), Hour(hour), [(1, 1.0), (2, 2.0)]));
    let writes: Vec<_> = (0..600).flat_map(of).collect();
    store.write(&writes).await.into_iter().for_each(|outcome| assert!(outcome.is_ok()));
}

#[tokio::test]
async fn hours_that_ended_before_are_deleted_and_no_others() {
    let (folder, store) = new_store();
    three_hours_of_many(&store).await;
    assert_eq!(store.expire_rollups(MS_PER_HOUR - 1).await.unwrap(), 0);
    let end_of_the_second = 2 * MS_PER_HOUR;
    assert_eq!(store.expire_rollups(end_of_the_second).await.unwrap(), 1_200);
    assert_eq!(store.expire_rollups(end_of_the_second).await.unwrap(), 0);
    assert_eq!(one::<u32>(&visitor(&folder), "SELECT count(*) FROM first_chunks"), 600);
    for table in ["buckets", "rollups"] {
        let left = format!("SELECT count(*) FROM {table} WHERE hour = {end_of_the_second}");
        assert_eq!(one::<u32>(&visitor(&folder), &left), 600, "{table}");
        assert_eq!(one::<u32>(&visitor(&folder), &format!("SELECT count(*) FROM {table}")), 600, "{table}");
    }
}

#[tokio::test]
async fn rollups_outlive_their_readings() {
    let (folder, store) = new_store();
    three_hours_of_many(&store).await;
    let all = Hour(0)..Hour(9);
    let devices = ["d7".into(), "d8".into()];
    let before = store.hour_stats(&devices, all.clone(), &SeriesFilter::ALL, StatsNeeds::All).await.unwrap();
    assert_eq!(store.expire_readings(MS_PER_HOUR - 1).await.unwrap(), 0);
    for (end, gone, left) in [(2, 1_200, 600), (2, 0, 600), (3, 600, 0)] {
        assert_eq!(store.expire_readings(end * MS_PER_HOUR).await.unwrap(), gone);
        assert_eq!(one::<u32>(&visitor(&folder), "SELECT count(*) FROM first_chunks"), left);
        assert_eq!(store.hour_stats(&devices, all.clone(), &SeriesFilter::ALL, StatsNeeds::All).await.unwrap(), before);
        let last = store.last_hour("d7").await.unwrap();
        assert_eq!(last, (left > 0).then_some(Hour(2)), "an hour without readings is not the last hour");
    }
    assert!(store.contents("d7", all.clone()).await.unwrap().is_empty());
    assert_eq!(store.expire_rollups(3 * MS_PER_HOUR).await.unwrap(), 1_800);
    assert_eq!(store.hour_stats(&devices, all, &SeriesFilter::ALL, StatsNeeds::All).await.unwrap(), [vec![], vec![]]);
}

#[tokio::test]
async fn late_readings_replace_rollups_only_if_they_may_include_those_that_expired() {
    let (_folder, store) = new_store();
    let values = |range: Range<u32>| range.map(|at| (at, f64::from(at)));
    written(&store, write_at("d", Hour(1), values(0..10))).await;
    let before = stats(&store, "d").await;
    store.expire_readings(3 * MS_PER_HOUR).await.unwrap();
    for (late, stays) in [(20..24, true), (24..26, true), (3..5, true), (30..33, true), (0..1, false), (40..41, false)]
    {
        let count = late.len() as u32;
        assert_eq!(
            written(&store, write_at("d", Hour(1), values(late))).await,
            Written { stored: count, duplicate: 0 }
        );
        let contents = store.contents("d", Hour(1)..Hour(2)).await.unwrap().remove(0).1;
        let expected = if stays { before } else { contents.stats(Hour(1))[0].1 };
        assert_eq!(stats(&store, "d").await, expected, "with {} left", contents.reading_count());
    }
    assert_eq!(store.expire_readings(3 * MS_PER_HOUR).await.unwrap(), 1, "the late ones expire too");
    assert!(store.contents("d", Hour(1)..Hour(2)).await.unwrap().is_empty());
    assert_eq!(stats(&store, "d").await.count, 13);
}

#[tokio::test]
async fn the_sign_of_a_rewritten_zero_is_stored() {
    let (_folder, store) = new_store();
    for value in [0.0, -0.0, 0.0] {
        written(&store, write_at("d", Hour(7), [(5, value)])).await;
        let contents = store.contents("d", Hour(7)..Hour(8)).await.unwrap();
        assert_eq!(contents[0].1.value(5, "a").map(f64::to_bits), Some(f64::to_bits(value)));
    }
}
