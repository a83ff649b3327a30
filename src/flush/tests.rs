//! From a real log to a real store, over everything that may go wrong on the way.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use tempfile::TempDir;

use super::*;
use crate::log::{AppendError, BatchBuilder, Instruments, MetadataRecord};
use crate::model::{BucketWrite, Contents, Deletion, Hour, Metric, OperatorMetadata, SeriesFilter};
use crate::store::sqlite::SqliteStore;
use crate::store::{
    Cause, Deleted, Deletions, DeviceList, DeviceSet, DeviceSummary, FirstReadings, History, HourStats, Instances,
    OperatorMetadataStore, ReadingsQuery, RolledUp, Rollups, StatsNeeds, StoreError, Written,
};
use crate::telemetry::Exposition;

mod deleting;
pub(super) mod kept;
pub(super) mod notes;
mod refused_writes;
mod rolling;

use kept::Kept;
use notes::KeptNotes;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Buckets are due at once.
const EAGER: Limits = Limits { max_bytes: 1 << 20, max_readings: 5, max_age: Duration::from_millis(10) };

/// Buckets are due only when memory is short.
const PATIENT: Limits = Limits { max_bytes: 1 << 20, max_readings: 1 << 20, max_age: MINUTE };

/// The log refuses a larger record.
const MAX_LOG_BYTES: u64 = 1 << 24;

/// Returns the error of a write that the store is to refuse.
pub(super) type Fault = Box<dyn Fn(&BucketWrite) -> Option<StoreError> + Send + std::marker::Sync>;

fn sound() -> Fault {
    Box::new(|_| None)
}

pub(super) fn away() -> StoreError {
    StoreError::new(Cause::Network, "connection refused")
}

/// A real store behind a connection that may fail and may take time.
pub(super) struct Faulty {
    pub(super) store: SqliteStore,
    pub(super) fault: Fault,
    pub(super) takes: Duration,
    /// The rollups, if this is a store that keeps rollups of their own.
    pub(super) rollups: Option<Arc<Kept>>,
    /// The notes of instances, if the store is shared.
    pub(super) notes: Option<Arc<KeptNotes>>,
}

#[async_trait]
impl Store for Faulty {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn causes(&self) -> &'static [Cause] {
        self.store.causes()
    }

    async fn write(&self, writes: &[Arc<BucketWrite>]) -> Vec<Result<Written, StoreError>> {
        if let Some(kept) = &self.rollups {
            kept.writes.lock().unwrap().extend(writes.iter().map(Arc::downgrade));
        }
        let faults: Vec<_> = writes.iter().map(|write| (self.fault)(write)).collect();
        tokio::time::sleep(self.takes).await;
        let arriving: Vec<_> = writes.iter().zip(&faults).filter(|(_, fault)| fault.is_none()).collect();
        let arriving: Vec<_> = arriving.into_iter().map(|(write, _)| Arc::clone(write)).collect();
        let mut outcomes = self.store.write(&arriving).await.into_iter();
        faults.into_iter().map(|fault| fault.map_or_else(|| outcomes.next().unwrap(), Err)).collect()
    }

    async fn hour_stats(
        &self,
        d: &[Arc<str>],
        h: Range<Hour>,
        m: &SeriesFilter,
        n: StatsNeeds,
    ) -> Result<Vec<Vec<HourStats>>, StoreError> {
        self.store.hour_stats(d, h, m, n).await
    }

    async fn readings(&self, query: &ReadingsQuery) -> Result<FirstReadings, StoreError> {
        self.store.readings(query).await
    }

    async fn latest(&self, device: &str, hour: Hour) -> Result<Contents, StoreError> {
        self.store.latest(device, hour).await
    }

    async fn last_hour(&self, device: &str) -> Result<Option<Hour>, StoreError> {
        self.store.last_hour(device).await
    }

    async fn last_hour_with(
        &self,
        device: &str,
        series: &BTreeSet<Metric>,
        hours: Range<Hour>,
    ) -> Result<Option<Hour>, StoreError> {
        self.store.last_hour_with(device, series, hours).await
    }

    async fn entries(&self, prefix: &str, after: Option<&str>, max: usize) -> Result<DeviceList, StoreError> {
        self.store.entries(prefix, after, max).await
    }

    async fn entries_of(&self, devices: &[Arc<str>]) -> Result<DeviceList, StoreError> {
        self.store.entries_of(devices).await
    }

    async fn last_instants(&self, entries: &[DeviceSummary], now: Hour) -> Result<Vec<i64>, StoreError> {
        self.store.last_instants(entries, now).await
    }

    async fn count_silent(&self, since_ms: i64, active: DeviceSet) -> Result<u64, StoreError> {
        self.store.count_silent(since_ms, active).await
    }

    async fn bytes(&self) -> Result<u64, StoreError> {
        self.store.bytes().await
    }

    async fn history(&self) -> Result<Option<History>, StoreError> {
        self.store.history().await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.store.ping().await
    }

    fn operator_metadata(&self) -> &dyn OperatorMetadataStore {
        self
    }

    fn deletions(&self) -> &dyn Deletions {
        self
    }

    fn rollups(&self) -> Option<&dyn Rollups> {
        self.rollups.as_ref().map(|_| self as &dyn Rollups)
    }

    fn instances(&self) -> Option<&dyn Instances> {
        self.notes.as_deref().map(|notes| notes as &dyn Instances)
    }

    async fn expire_readings(&self, oldest_ms: i64) -> Result<u64, StoreError> {
        self.store.expire_readings(oldest_ms).await
    }

    async fn add_expired(&self, device: &DeviceSummary, hours: &[HourStats]) -> Result<(), StoreError> {
        self.store.add_expired(device, hours).await
    }

    async fn expire_rollups(&self, oldest_ms: i64) -> Result<u64, StoreError> {
        self.store.expire_rollups(oldest_ms).await
    }
}

#[async_trait]
impl OperatorMetadataStore for Faulty {
    async fn merge_metadata(&self, changes: &[(Arc<str>, OperatorMetadata)]) -> Result<(), StoreError> {
        for (device, _) in changes {
            let none = BucketWrite::new(Arc::clone(device), Hour(0), None, Vec::new(), []);
            (self.fault)(&none).map_or(Ok(()), Err)?;
        }
        self.store.operator_metadata().merge_metadata(changes).await
    }

    async fn metadata_of(&self, devices: &[Arc<str>]) -> Result<HashMap<Arc<str>, OperatorMetadata>, StoreError> {
        self.store.operator_metadata().metadata_of(devices).await
    }

    async fn list_metadata(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(Arc<str>, OperatorMetadata)>, StoreError> {
        self.store.operator_metadata().list_metadata(prefix, after, limit).await
    }
}

#[async_trait]
impl Deletions for Faulty {
    async fn delete(&self, deletion: &Deletion, unanswered: &BTreeSet<Hour>) -> Result<Deleted, StoreError> {
        tokio::time::sleep(self.takes).await;
        let none = BucketWrite::new(Arc::clone(&deletion.device), Hour(0), None, Vec::new(), []);
        (self.fault)(&none).map_or(Ok(()), Err)?;
        self.store.delete(deletion, unanswered).await
    }
}

/// One run of the log, the pipeline and the store.
///
/// The next run may use the same folder.
struct Life {
    folder: Arc<TempDir>,
    log: Arc<Log>,
    pipeline: Arc<Pipeline>,
    running: Running,
    store: Arc<Faulty>,
    exposition: Exposition,
}

impl Life {
    fn begin(folder: &Arc<TempDir>, limits: Limits, fault: Fault) -> Self {
        Self::begin_with(folder, limits, fault, None)
    }

    fn begin_with(folder: &Arc<TempDir>, limits: Limits, fault: Fault, rollups: Option<Arc<Kept>>) -> Self {
        Self::begin_changed(folder, limits, fault, rollups, |_| {})
    }

    /// Changes pending before the feeder reads the log.
    fn begin_changed(
        folder: &Arc<TempDir>,
        limits: Limits,
        fault: Fault,
        rollups: Option<Arc<Kept>>,
        change: impl FnOnce(&mut Pending),
    ) -> Self {
        let folder = Arc::clone(folder);
        let log = crate::log::Options::of_test(folder.path().join("log"));
        let log = crate::log::Options { segment_bytes: 1000, max_bytes: MAX_LOG_BYTES, ..log };
        let (log, recovery) = Log::open(log, Instruments::default()).unwrap();
        let log = Arc::new(log);
        let store = SqliteStore::open(&folder.path().join("tidegauge.sqlite")).unwrap();
        let store = Arc::new(Faulty { store, fault, takes: Duration::ZERO, rollups, notes: None });
        let (metrics, exposition) = Metrics::new();
        let (clock, closing) = match &store.rollups {
            Some(kept) => (kept.clock.clone(), kept.closing),
            None => (Clock::system(), Closing::Daily),
        };
        let options = Options {
            limits,
            gather: Duration::from_secs(1),
            max_in_flight: 2,
            max_buckets_per_write: 4,
            max_write_bytes: 1 << 20,
            closing,
            rollup_delay: MINUTE,
            rollup_progress: folder.path().join("rollups.json"),
            closed_hours: folder.path().join("closed-hours"),
            instance: folder.path().join("instance"),
            retry: Duration::from_millis(1)..=Duration::from_millis(5),
            clock,
        };
        let dead_letters = DeadLetters::new(folder.path().join("dead-letters.ndjson"), 1 << 20, Clock::system());
        let to: Arc<dyn Store> = Arc::<Faulty>::clone(&store);
        let pipeline =
            Pipeline::new(options, Arc::clone(&log), &recovery, to, dead_letters, Arc::new(metrics)).unwrap();
        change(&mut pipeline.lock().pending);
        let running = pipeline.start().unwrap();
        Self { folder, log, pipeline, running, store, exposition }
    }

    /// Appends this many batches of three readings, of ten devices in turn. No two readings are of the same
    /// instant.
    async fn append(&self, batches: Range<i64>) {
        for number in batches {
            let mut batch = BatchBuilder::default();
            for reading in 0..3 {
                let device = format!("device-{}", number % 10);
                batch.push(&device, None, number * 10_000 + reading, [("m", number as f64)].into_iter()).unwrap();
            }
            self.log.append(batch.finish()).unwrap().durable().await.unwrap();
        }
    }

    fn count(&self, metric: &str) -> u64 {
        let text = self.exposition.render();
        let value = text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_default()
    }

    /// The number of readings that the store returns.
    async fn stored(&self) -> usize {
        let mut readings = 0;
        for device in self.store.devices("", None, 100).await.unwrap().devices {
            let hours = self.store.contents(&device.device, Hour(0)..Hour(1000)).await.unwrap();
            readings += hours.iter().map(|(_, contents)| contents.reading_count()).sum::<usize>();
        }
        readings
    }

    async fn settled(&self) {
        until("nothing is pending", || self.pipeline.status().pending_readings == 0).await;
    }

    /// Ends this life: stores readings for at most `grace`.
    ///
    /// Returns the number of readings that stay in the log.
    async fn end(self, grace: Duration) -> u64 {
        self.log.close();
        self.running.drain(grace).await.left
    }
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + MINUTE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn folder() -> Arc<TempDir> {
    Arc::new(tempfile::tempdir().unwrap())
}

#[tokio::test]
async fn everything_appended_is_stored_and_the_log_is_cut_behind_it() {
    let life = Life::begin(&folder(), EAGER, sound());
    life.append(0..100).await;
    life.settled().await;
    assert_eq!((life.stored().await, life.count("tidegauge_readings_stored_total")), (300, 300));
    assert_eq!(life.pipeline.store_away(), None);
    until("the log is cut", || life.log.usage().bytes <= 1500).await;
    assert_eq!(life.end(MINUTE).await, 0);
}

#[tokio::test]
async fn a_store_that_fails_for_a_while_loses_nothing_and_each_retry_is_counted() {
    let failures = AtomicU64::new(0);
    let fault = move |_: &BucketWrite| (failures.fetch_add(1, Ordering::Relaxed) < 7).then(away);
    let life = Life::begin(&folder(), EAGER, Box::new(fault));
    life.append(0..20).await;
    life.settled().await;
    assert_eq!((life.stored().await, life.count("tidegauge_readings_stored_total")), (60, 60));
    let retries = life.count(r#"tidegauge_flush_retries_total{reason="network"}"#);
    assert!(
        (2..=7).contains(&retries),
        "{retries} commands of one to four buckets, seven of which the store did not take"
    );
    assert_eq!((life.count("tidegauge_readings_duplicate_total"), life.count("tidegauge_store_up")), (0, 1));
}

#[tokio::test]
async fn what_the_store_refuses_for_good_goes_to_the_dead_letters_and_blocks_nothing() {
    let fault = |write: &BucketWrite| {
        let refuse = || StoreError::new(Cause::Validation, "no");
        (&*write.device == "device-3").then(refuse)
    };
    let life = Life::begin(&folder(), EAGER, Box::new(fault));
    life.append(0..40).await;
    life.settled().await;
    assert_eq!((life.stored().await, life.count("tidegauge_readings_stored_total")), (108, 108));
    assert_eq!(life.count(r#"tidegauge_readings_dead_lettered_total{reason="validation"}"#), 12);
    let letters = std::fs::read_to_string(life.folder.path().join("dead-letters.ndjson")).unwrap();
    let letters: Vec<serde_json::Value> = letters.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(letters.iter().all(|letter| letter["deviceId"] == "device-3" && letter["reason"] == "validation"));
    assert_eq!(letters.iter().map(|letter| letter["readings"].as_array().unwrap().len()).sum::<usize>(), 12);
    until("the log is cut", || life.log.usage().bytes <= 1500).await;
}

#[tokio::test]
async fn what_an_orderly_end_cannot_store_in_time_stays_in_the_log_for_the_next_start() {
    let folder = folder();
    let life = Life::begin(&folder, EAGER, Box::new(|_| Some(away())));
    life.append(0..20).await;
    assert_eq!(life.end(HOUR).await, 60, "no waiting for a store that takes nothing");
    let life = Life::begin(&folder, PATIENT, sound());
    assert_eq!(life.pipeline.status().pending_readings, 60);
    life.append(20..30).await;
    assert_eq!(life.end(MINUTE).await, 0);
    let life = Life::begin(&folder, EAGER, sound());
    assert_eq!((life.pipeline.status().pending_readings, life.stored().await), (0, 90));
}

#[tokio::test]
async fn an_end_while_pending_is_full_counts_what_waits_in_the_log_as_well() {
    let folder = folder();
    let full = Limits { max_bytes: 2000, ..EAGER };
    for (life, batches) in [0..50, 50..60].into_iter().enumerate() {
        let left = batches.end as u64 * 3;
        let life_now = Life::begin(&folder, full, Box::new(|_| Some(away())));
        life_now.append(batches).await;
        until("pending is full", || life_now.pipeline.with_pending(Pending::is_full)).await;
        assert!(life_now.pipeline.with_pending(Pending::readings) < left);
        assert_eq!(life_now.end(HOUR).await, left, "in life {life}");
    }
    let life = Life::begin(&folder, EAGER, sound());
    assert_eq!(life.end(MINUTE).await, 0);
    assert_eq!(Life::begin(&folder, EAGER, sound()).stored().await, 180);
}

#[tokio::test]
async fn while_pending_is_full_readings_wait_in_the_log_and_queries_are_told_and_then_everything_arrives() {
    let gone = Arc::new(AtomicBool::new(true));
    let is_gone = Arc::clone(&gone);
    let fault = move |_: &BucketWrite| is_gone.load(Ordering::Relaxed).then(away);
    let life = Life::begin(&folder(), Limits { max_bytes: 2000, ..PATIENT }, Box::new(fault));
    life.append(0..2).await;
    assert_eq!(life.pipeline.catch_up(MINUTE).await, None);
    life.append(2..100).await;
    until("pending is full", || life.pipeline.with_pending(Pending::is_full)).await;
    let lagging = life.pipeline.catch_up(Duration::from_millis(20)).await;
    assert!(lagging.is_some(), "caught up while pending is full");
    until("the lag grows", || life.pipeline.lock().stalled_since.is_some_and(|since| since.elapsed().as_millis() > 30))
        .await;
    assert!(life.pipeline.catch_up(Duration::from_millis(1)).await > Some(Duration::from_millis(30)));
    until("the store is known to be away", || life.pipeline.store_away().is_some()).await;
    let status = life.pipeline.status();
    assert!(status.pending_bytes < 3000 && status.pending_readings == 300, "{status:?}");

    gone.store(false, Ordering::Relaxed);
    assert_eq!(life.pipeline.catch_up(MINUTE).await, None);
    assert_eq!(life.end(MINUTE).await, 0);
}

#[tokio::test]
async fn what_follows_very_many_values_of_one_hour_waits_in_the_log_until_the_store_takes_them() {
    let folder = folder();
    let gone = Arc::new(AtomicBool::new(true));
    let begin = |gone: &Arc<AtomicBool>| {
        let is_gone = Arc::clone(gone);
        let fault = move |_: &BucketWrite| is_gone.load(Ordering::Relaxed).then(away);
        Life::begin_changed(&folder, PATIENT, Box::new(fault), None, |pending| pending.max_values = 50)
    };
    let life = begin(&gone);
    for number in 0..6 {
        let mut batch = BatchBuilder::default();
        for value in number * 30..(number + 1) * 30 {
            batch.push("a", None, 5, [("m", f64::from(value))].into_iter()).unwrap();
        }
        life.log.append(batch.finish()).unwrap().durable().await.unwrap();
    }
    // Two records in the bucket that is in flight, and two in the one that it blocks.
    let waits = |pending: &Pending| (pending.readings(), pending.is_full()) == (120, true);
    until("pending is full again", || life.pipeline.with_pending(waits)).await;
    assert!(life.pipeline.catch_up(Duration::from_millis(1)).await.is_some());
    until("it is logged", || life.pipeline.lock().full.holds()).await;
    assert_eq!(life.pipeline.status().pending_readings, 180);
    assert_eq!(life.end(HOUR).await, 180, "a stop does not wait for what cannot be inserted");

    let life = begin(&gone);
    until("a replay stops too", || life.pipeline.with_pending(waits)).await;
    gone.store(false, Ordering::Relaxed);
    assert_eq!(life.pipeline.catch_up(MINUTE).await, None, "and goes on");
    assert_eq!(life.end(MINUTE).await, 0);
    let life = begin(&gone);
    let hours = life.store.contents("a", Hour(0)..Hour(1)).await.unwrap();
    assert_eq!((hours.len(), hours[0].1.value(5, "m")), (1, Some(179.0)));
}

#[tokio::test]
async fn pending_is_full_until_half_of_it_is_free_again() {
    let taken = Arc::new(AtomicU64::new(0)); // the number of devices that the store takes
    let takes = Arc::clone(&taken);
    let number = |device: &str| device.strip_prefix("device-").unwrap().parse::<u64>().unwrap();
    let fault = move |write: &BucketWrite| (number(&write.device) >= takes.load(Ordering::Relaxed)).then(away);
    let life = Life::begin(&folder(), Limits { max_bytes: 2000, ..PATIENT }, Box::new(fault));
    let is_logged = || life.pipeline.lock().full.holds();
    life.append(0..2).await;
    assert_eq!(life.pipeline.catch_up(MINUTE).await, None);
    assert!(!is_logged());
    let mut last = 2;
    while !life.pipeline.with_pending(Pending::is_full) {
        life.append(last..last + 1).await;
        last += 1;
        assert_eq!(life.pipeline.catch_up(MINUTE).await, None);
    }
    assert!(last < 10, "a batch for each device");
    life.append(last..last + 1).await;
    until("it is logged that pending is full", is_logged).await;

    taken.store(1, Ordering::Relaxed);
    assert_eq!(life.pipeline.catch_up(MINUTE).await, None, "there is room for what waits in the log");
    assert!(!life.pipeline.with_pending(Pending::is_half_free));
    assert!(is_logged());

    taken.store(10, Ordering::Relaxed);
    until("the end of it is logged", || !is_logged()).await;
}

#[tokio::test]
async fn while_many_changes_of_metadata_wait_for_the_store_queries_are_told_for_how_long_readings_wait() {
    let life = Life::begin(&folder(), PATIENT, sound());
    let lock = rusqlite::Connection::open(life.folder.path().join("tidegauge.sqlite")).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    life.append(0..1).await;
    let record = |nth: u32| {
        let change = OperatorMetadata::replacement(serde_json::Map::new(), 7);
        MetadataRecord { device: format!("described-{nth}").into(), by: "ops".into(), change }
    };
    let acks: Vec<_> = (0..1_001).map(|nth| life.log.append(record(nth).to_batch()).unwrap()).collect();
    for mut ack in acks {
        ack.durable().await.unwrap(); // nothing counts them, as after a start
    }
    assert!(life.pipeline.catch_up(Duration::from_millis(1)).await.is_some());
    until("the lag grows", || life.pipeline.lock().stalled_since.is_some_and(|since| since.elapsed().as_millis() > 30))
        .await;
    assert!(life.pipeline.catch_up(Duration::from_millis(1)).await > Some(Duration::from_millis(30)));
    assert_eq!(life.pipeline.with_pending(Pending::readings), 3, "the reading before them is known");

    drop(lock);
    assert_eq!(life.pipeline.catch_up(MINUTE).await, None);
    assert!(life.pipeline.lock().stalled_since.is_none());
    assert_eq!(life.end(MINUTE).await, 0);
}

#[tokio::test]
async fn changes_of_metadata_beside_a_refused_one_are_audited() {
    let life = Life::begin(&folder(), PATIENT, sound());
    let path = life.folder.path().join("audit");
    let lines = tracing_subscriber::fmt().with_ansi(false);
    let lines = lines.with_writer(Mutex::new(std::fs::File::create(&path).unwrap())).finish();
    let _lines_of_this_thread = tracing::subscriber::set_default(lines);
    let record = |device: &str, bytes: u64| {
        let name = serde_json::Value::from("x".repeat(bytes as usize));
        let object = [("name".to_owned(), name)].into_iter().collect();
        MetadataRecord { device: device.into(), by: "ops".into(), change: OperatorMetadata::replacement(object, 7) }
    };
    let records = vec![record("first", 1), record("too-large", MAX_LOG_BYTES), record("last", 1)];
    let refused = life.pipeline.change_metadata(records).await;
    assert_eq!(refused, Err(ChangeError::Log(AppendError::Full(MAX_LOG_BYTES))));
    let text = std::fs::read_to_string(path).unwrap();
    let audited: Vec<&str> = text.lines().filter(|line| line.contains("set metadata of a device")).collect();
    assert!(matches!(audited[..], [one, other] if one.contains("first") && other.contains("last")), "{text}");
}
