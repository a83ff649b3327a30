//! A cache of what the device index has of each device, so that a bucket that brings nothing new costs no
//! write to the index.
//!
//! The table is bounded: a device that was forgotten is written to the index again, to no effect. It never
//! holds more than what was written, so it may be cleared at any time.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::device_index::{DeviceNote, DeviceSummary};
use crate::common::clock::Clock;
use crate::common::generations::Generations;
use crate::common::interner::Interner;
use crate::model::{BucketWrite, Day, Hour, Metric};

/// The number of shards. Each has a lock of its own.
const SHARDS: usize = 16;

/// A device takes as much memory as this many of its series.
const DEVICE_WEIGHT: usize = 8;

/// The weight of a generation in all shards.
///
/// A million devices with a few series each have this weight.
///
/// All generations take 140 MB. They take up to 450 MB if no device has the series of another, and all have
/// metadata.
const MAX_WEIGHT: usize = 12 << 20;

/// The most series that devices share. This bounds the memory of series that no device has any more.
const SHARED_MAX: usize = 64;

/// A record of what was written to the index of each device, by the hash of its ID.
#[derive(Debug)]
pub(super) struct NotedDevices {
    hasher: RandomState,
    shards: Box<[Mutex<Generations<u64, Noted>>]>,
    /// The series that devices share.
    shared: Interner<DaySeries>,
    /// Counts how often the table was cleared.
    cleared: AtomicU64,
    /// The number of the last [`Day`], by the clock, on which there were other instances; `i32::MAX` while
    /// there are others. Until the end of that day, the index may have other metadata than the cache, of the
    /// same hour or a newer one.
    shared_until: AtomicI32,
    clock: Clock,
}

/// A record of what was written to the index of one device.
#[derive(Debug)]
struct Noted {
    first_ts_ms: i64,
    /// The newest day of which readings were written, with its series. Most devices share it with others.
    newest: Option<Arc<DaySeries>>,
    /// The metadata, and the record since a deletion.
    ///
    /// Boxed, because many devices have neither.
    rest: Option<Box<Rest>>,
}

/// The series of a device with readings of a day.
#[derive(Debug, PartialEq, Eq, Hash)]
struct DaySeries {
    day: Day,
    /// The hashes of the series, ascending.
    series: SmallVec<[u64; 2]>,
}

#[derive(Debug, Default)]
struct Rest {
    metadata: Option<NotedMetadata>,
    /// All that was noted since the first deletion of some readings of the device.
    since_deletion: Option<Box<DeviceSummary>>,
}

#[derive(Debug)]
struct NotedMetadata {
    hash: u64,
    /// The newest hour that brought this metadata, whether or not it was written to the index.
    hour: Hour,
    /// The day of the hour that was written to the index.
    day: Day,
    /// The day, by the clock, on which this cache first saw metadata of the device. On that day the index may
    /// have newer metadata than the cache, so each newer hour is written.
    since: Day,
}

/// Notes that are to be written to the index.
#[derive(Debug)]
pub(super) struct Notes {
    /// A note for each device that has changed.
    pub(super) notes: Vec<DeviceNote>,
    cleared: u64,
}

impl Default for NotedDevices {
    fn default() -> Self {
        Self::new(Clock::system())
    }
}

impl NotedDevices {
    fn new(clock: Clock) -> Self {
        let shard = |_| Mutex::new(Generations::new(MAX_WEIGHT / SHARDS, Noted::weight));
        let shards = (0..SHARDS).map(shard).collect();
        let (hasher, shared) = (RandomState::default(), Interner::default());
        let shared_until = AtomicI32::new(i32::MIN);
        Self { hasher, shards, shared, cleared: AtomicU64::new(0), shared_until, clock }
    }
}

/// A device of which nothing was written.
impl Default for Noted {
    fn default() -> Self {
        Self { first_ts_ms: i64::MAX, newest: None, rest: None }
    }
}

impl NotedDevices {
    /// Returns what the index needs before these buckets are written.
    pub(super) fn changes(&self, writes: &[Arc<BucketWrite>]) -> Notes {
        let cleared = self.cleared.load(Ordering::SeqCst);
        let mut notes: Vec<DeviceNote> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (at, write) in writes.iter().enumerate() {
            let Some((first, last)) = write.contents.span() else { continue };
            let first_ts_ms = write.hour.instant_ms(first);
            if self.has(write, first_ts_ms) {
                continue;
            }
            let summary = summary_of(write, (first_ts_ms, write.hour.instant_ms(last)));
            if let Some(&place) = places.get(&*write.device) {
                notes[place].summary.merge(summary);
                notes[place].writes.push(at);
            } else {
                places.insert(&write.device, notes.len());
                notes.push(DeviceNote { summary, writes: vec![at] });
            }
        }
        Notes { notes, cleared }
    }

    /// Remembers that `note`, one of the notes of `of`, is in the index. `metadata` says whether its metadata
    /// is in the index too.
    pub(super) fn confirm(&self, of: &Notes, note: &DeviceNote, metadata: bool) {
        if self.cleared.load(Ordering::SeqCst) != of.cleared {
            return; // it may have been written to an index that is gone
        }
        let DeviceSummary { device, series, first_ts_ms, .. } = &note.summary;
        let Some(day) = series.iter().map(|series| series.last_day).max() else { return };
        let of_day = series.iter().filter(|series| series.last_day == day);
        let hashes: Vec<u64> = of_day.map(|series| self.hash_series(&series.metric)).collect();
        let metadata = note.summary.metadata.as_ref().filter(|_| metadata).map(|metadata| NotedMetadata {
            hash: self.hash(&metadata.text),
            hour: metadata.hour,
            day: Day::of(metadata.hour),
            since: self.today(),
        });
        let id = self.hash(device);
        let mut shard = self.shard(id);
        let update = |noted: &mut Noted| {
            if let Some(since_deletion) = noted.since_deletion() {
                since_deletion.merge(DeviceSummary { metadata: None, ..note.summary.clone() });
            }
            noted.update(*first_ts_ms, metadata);
            noted.add_series(day, &hashes, &self.shared);
        };
        shard.insert(id, Noted::default());
        shard.update(&id, update);
    }

    /// Forgets a device: its entry has been removed from the index.
    pub(super) fn forget(&self, device: &str) {
        let id = self.hash(device);
        self.shard(id).update(&id, |noted| *noted = Noted::default());
    }

    /// Forgets a device, and returns what was noted of it since the first call. Another instance that
    /// executes a deletion later may have removed this from the index. The first call returns `None`, and
    /// starts to collect what is noted.
    pub(super) fn forget_and_collect(&self, device: &Arc<str>) -> Option<DeviceSummary> {
        let id = self.hash(device);
        let mut shard = self.shard(id);
        shard.insert(id, Noted::default());
        let since = shard.update(&id, |noted| {
            let since = noted.rest.take().and_then(|rest| rest.since_deletion);
            let since = since.unwrap_or_else(|| Box::new(DeviceSummary::nothing_of(Arc::clone(device))));
            let rest = Rest { metadata: None, since_deletion: Some(since.clone()) };
            *noted = Noted { rest: Some(Box::new(rest)), ..Noted::default() };
            since
        })?;
        (!since.series.is_empty()).then_some(*since)
    }

    /// Removes from what is collected of a device the series (sorted), and the instants before `first_ts_ms`,
    /// that a deletion has removed from its entry.
    pub(super) fn note_removed(&self, device: &str, series: &[Metric], first_ts_ms: Option<i64>) {
        let id = self.hash(device);
        self.shard(id).update(&id, |noted| {
            if let Some(since) = noted.since_deletion() {
                since.series.retain(|of| series.binary_search(&of.metric).is_err());
                since.first_ts_ms = since.first_ts_ms.max(first_ts_ms.unwrap_or(i64::MIN));
            }
        });
    }

    /// Forgets all devices: another index is in use, or another process has changed it.
    pub(super) fn clear(&self) {
        self.cleared.fetch_add(1, Ordering::SeqCst);
        for shard in &*self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.rotate();
            shard.rotate();
        }
    }

    /// Notes whether other instances write to the index.
    pub(super) fn note_others(&self, are_there: bool) {
        if are_there {
            self.shared_until.store(i32::MAX, Ordering::SeqCst);
        } else {
            self.shared_until.fetch_min(self.today().0, Ordering::SeqCst);
        }
    }

    fn today(&self) -> Day {
        Day::of(Hour::of(self.clock.now_ms()))
    }

    /// Whether the index has all that a write brings.
    fn has(&self, write: &BucketWrite, first_ts_ms: i64) -> bool {
        let (id, day) = (self.hash(&write.device), Day::of(write.hour));
        let metadata = write.metadata.as_deref().map(|metadata| self.hash(metadata));
        let shared_until = Day(self.shared_until.load(Ordering::SeqCst));
        let has_all = |noted: &mut Noted| {
            first_ts_ms >= noted.first_ts_ms
                && noted.has_series(day, write.contents.metrics().iter().map(|metric| self.hash_series(metric)))
                && metadata.is_none_or(|hash| noted.has_metadata(hash, write.hour, shared_until))
        };
        self.shard(id).update(&id, has_all).unwrap_or(false)
    }

    fn hash(&self, text: &str) -> u64 {
        self.hasher.hash_one(text)
    }

    /// The hash of a series and its measurement.
    fn hash_series(&self, metric: &Metric) -> u64 {
        self.hash(metric).wrapping_add(metric.measurement().map_or(0, str::len) as u64)
    }

    fn shard(&self, id: u64) -> MutexGuard<'_, Generations<u64, Noted>> {
        self.shards[id as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Noted {
    fn weight(&self) -> usize {
        let since_deletion = self.rest.as_ref().and_then(|rest| rest.since_deletion.as_ref());
        let since_deletion = since_deletion.map_or(0, |summary| DEVICE_WEIGHT * (1 + summary.series.len()));
        DEVICE_WEIGHT + self.newest.as_ref().map_or(0, |newest| newest.series.len()) + since_deletion
    }

    fn since_deletion(&mut self) -> Option<&mut DeviceSummary> {
        self.rest.as_mut()?.since_deletion.as_deref_mut()
    }

    /// Whether the index needs no write for readings of these series of a day.
    fn has_series(&self, day: Day, mut hashes: impl Iterator<Item = u64>) -> bool {
        let newest = self.newest.as_ref().filter(|newest| day <= newest.day);
        newest.is_some_and(|newest| hashes.all(|hash| newest.series.binary_search(&hash).is_ok()))
    }

    /// Whether the index needs no write for metadata of an hour: it has other metadata of a later hour, or
    /// the same for this hour. The same metadata is written once a day, and at each newer hour up to the day
    /// [`NotedMetadata::since`] and the day `shared_until`. Up to `shared_until` it is written again for the
    /// same hour too: another instance may have written other metadata in between.
    fn has_metadata(&mut self, hash: u64, hour: Hour, shared_until: Day) -> bool {
        let Some(noted) = self.rest.as_mut().and_then(|rest| rest.metadata.as_mut()) else { return false };
        if noted.hash != hash {
            return hour < noted.hour;
        }
        let unsure_until = noted.since.max(shared_until);
        let is_noted = hour < noted.hour
            || hour == noted.hour && noted.day > shared_until
            || Day::of(hour) <= noted.day && noted.day > unsure_until;
        if is_noted {
            noted.hour = noted.hour.max(hour);
        }
        is_noted
    }

    /// Adds series with readings of a day. They count if no newer day is known.
    fn add_series(&mut self, day: Day, hashes: &[u64], shared: &Interner<DaySeries>) {
        let known = self.newest.as_ref().filter(|newest| newest.day >= day);
        if known.is_some_and(|newest| newest.day > day) {
            return;
        }
        let mut series = known.map_or_else(SmallVec::new, |newest| newest.series.clone());
        series.extend_from_slice(hashes);
        series.sort_unstable();
        series.dedup();
        let newest = self.newest.insert(Arc::new(DaySeries { day, series }));
        if newest.series.len() <= SHARED_MAX {
            shared.share(newest);
        }
    }

    fn update(&mut self, first_ts_ms: i64, metadata: Option<NotedMetadata>) {
        self.first_ts_ms = self.first_ts_ms.min(first_ts_ms);
        let Some(newer) = metadata else { return };
        let known = &mut self.rest.get_or_insert_default().metadata;
        if known.as_ref().is_none_or(|known| newer.hour >= known.hour) {
            let since = known.as_ref().map_or(newer.since, |known| known.since);
            *known = Some(NotedMetadata { since, ..newer });
        }
    }
}

/// The summary of one write.
fn summary_of(write: &BucketWrite, span_ms: (i64, i64)) -> DeviceSummary {
    let contents = &write.contents;
    let mut has_values = vec![false; contents.metrics().len()];
    contents.samples().iter().for_each(|sample| has_values[sample.metric as usize] = true);
    let with_values = contents.metrics().iter().zip(has_values).filter(|(_, has_values)| *has_values);
    let metrics = with_values.map(|(metric, _)| metric.clone());
    let summary = DeviceSummary::of_hour(Arc::clone(&write.device), write.hour, span_ms, metrics);
    summary.with_metadata(write.metadata.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::counting::counted;
    use crate::model::Sample;
    use crate::store::DeviceSeries;

    /// 2026-04-20T14:00:00Z.
    const HOUR: i32 = 493_526;

    fn write(device: &str, hour: i32, metrics: &[&str], metadata: Option<&str>) -> Arc<BucketWrite> {
        let metrics: Vec<Metric> = metrics.iter().map(|name| (*name).into()).collect();
        let samples = (0..metrics.len()).map(|at| Sample { value: 1.0, offset: 7, metric: at as u32 });
        let samples: Vec<_> = samples.map(|sample| (sample, sample.metric == 0)).collect();
        BucketWrite::new(device.into(), Hour(hour), metadata.map(Arc::from), metrics, samples).into()
    }

    /// Whether the write needs a note, which is then confirmed.
    fn is_noted(noted: &NotedDevices, write: Arc<BucketWrite>) -> bool {
        let changes = noted.changes(&[write]);
        changes.notes.iter().for_each(|note| noted.confirm(&changes, note, true));
        !changes.notes.is_empty()
    }

    #[test]
    fn only_changes_are_noted() {
        let noted = NotedDevices::new(Clock::fixed(Hour(HOUR - 48).start_ms()));
        let day = HOUR - 14;
        for (nth, (hour, metrics, metadata, expected)) in [
            (HOUR, &["a", "b"][..], None, true),
            (HOUR + 1, &["b"], None, false),
            (HOUR + 2, &["a", "b", "c"], None, true), // a new series
            (HOUR + 2, &["c", "a"], None, false),
            (HOUR + 2, &["a"], Some("{}"), true), // metadata
            (HOUR + 3, &["a"], Some("{}"), false),
            (HOUR + 3, &["a"], Some("{1}"), true), // other metadata
            (HOUR + 2, &["a"], Some("{}"), false), // of an older hour
            (HOUR - 1, &["a"], None, true),        // an earlier reading
            (HOUR - 1, &["a"], None, false),
            (day + 24, &["a"], None, true),         // a new day
            (day + 24, &["a"], Some("{1}"), true),  // the first repetition of the day
            (day + 30, &["a"], Some("{1}"), false), // the second one
            (day + 27, &["a"], Some("{2}"), false), // of an hour before the second one
            (day + 30, &["b"], None, true),         // a series that is new to the day
            (HOUR, &["a", "b"], None, false),       // of the day before
            (HOUR, &["a", "c"], None, true),        // of the day before, and not of this day
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(is_noted(&noted, write("d", hour, metrics, metadata)), expected, "step {nth}");
            assert!(nth > 0 || is_noted(&noted, write("e", hour, metrics, metadata)), "another device");
        }
        noted.forget("d");
        assert!(is_noted(&noted, write("d", HOUR, &["a"], None)));
        assert!(!is_noted(&noted, write("e", HOUR, &["a"], None)));
        noted.clear();
        assert!(is_noted(&noted, write("e", HOUR, &["a"], None)));
    }

    #[test]
    fn after_a_deletion_the_notes_are_collected_without_what_later_deletions_remove() {
        let noted = NotedDevices::default();
        let device: Arc<str> = "d".into();
        let collected = || {
            let since = noted.forget_and_collect(&device)?;
            let series: Vec<_> = since.series.iter().map(|series| series.metric.to_string()).collect();
            Some((series.join(" "), since.first_ts_ms, since.metadata))
        };
        let (first, second) = (Hour(HOUR).instant_ms(7), Hour(HOUR + 24).instant_ms(7));
        assert!(is_noted(&noted, write("d", HOUR, &["a"], None)));
        assert_eq!(collected(), None, "nothing since");
        assert!(is_noted(&noted, write("d", HOUR, &["a", "b"], Some("{}"))));
        assert!(is_noted(&noted, write("d", HOUR + 24, &["c"], None)));
        for _ in 0..2 {
            assert_eq!(collected(), Some(("a b c".to_owned(), first, None)));
        }
        assert!(is_noted(&noted, write("d", HOUR, &["a"], None)), "it is forgotten");
        noted.note_removed("d", &["a".into(), "b".into()], Some(second));
        assert_eq!(collected(), Some(("c".to_owned(), second, None)));
        noted.forget("d");
        assert_eq!(collected(), None);
    }

    #[test]
    fn on_its_first_day_the_table_notes_metadata_of_each_newer_hour() {
        let noted = NotedDevices::new(Clock::fixed(Hour(HOUR).start_ms()));
        let is_noted = |hour, metadata| is_noted(&noted, write("d", hour, &["a"], Some(metadata)));
        // An earlier process may have written other metadata of an hour between the two.
        assert!(is_noted(HOUR - 2, "{2}") && is_noted(HOUR, "{2}") && is_noted(HOUR + 1, "{2}"));
        assert!(!is_noted(HOUR + 1, "{2}") && !is_noted(HOUR - 1, "{2}"));
        assert!(is_noted(HOUR + 24, "{2}") && !is_noted(HOUR + 25, "{2}"));
    }

    #[test]
    fn while_others_write_and_on_the_day_when_they_leave_the_table_notes_metadata_of_the_newest_hour_each_time() {
        let clock = Clock::fixed(Hour(HOUR - 24).start_ms());
        let noted = NotedDevices::new(clock.clone());
        let is_noted = |hour| is_noted(&noted, write("d", hour, &["a"], Some("{1}")));
        assert!(is_noted(HOUR - 24));
        clock.set(Hour(HOUR).start_ms());
        noted.note_others(false);
        assert!(is_noted(HOUR) && !is_noted(HOUR + 1), "it was never shared");
        noted.note_others(true);
        assert!(is_noted(HOUR + 1), "others may have written other metadata of this hour");
        assert!(is_noted(HOUR + 2) && is_noted(HOUR + 2) && is_noted(HOUR + 3) && !is_noted(HOUR + 2));
        noted.note_others(false);
        assert!(is_noted(HOUR + 3) && is_noted(HOUR + 4), "they may have done so before they left");
        clock.set(Hour(HOUR + 24).start_ms());
        noted.note_others(false);
        assert!(is_noted(HOUR + 24) && !is_noted(HOUR + 24) && !is_noted(HOUR + 25));
    }

    #[test]
    fn the_writes_of_a_device_are_one_note() {
        let noted = NotedDevices::default();
        let writes = [
            write("d", HOUR + 24, &["b"], Some("{1}")),
            write("e", HOUR, &["a"], None),
            write("d", HOUR, &["b", "a"], Some("{0}")),
        ];
        let changes = noted.changes(&writes);
        assert_eq!(changes.notes.iter().map(|note| note.writes.clone()).collect::<Vec<_>>(), [vec![0, 2], vec![1]]);
        let DeviceSummary { metadata, series, first_ts_ms, last_ts_ms, .. } = &changes.notes[0].summary;
        let day = Day::of(Hour(HOUR));
        let of = |name: &str, last_day| DeviceSeries { metric: name.into(), last_day };
        assert_eq!(*series, [of("a", day), of("b", Day(day.0 + 1))]);
        assert_eq!(metadata.as_ref().map(|metadata| &*metadata.text), Some("{1}"));
        assert_eq!((*first_ts_ms, *last_ts_ms), (Hour(HOUR).instant_ms(7), Hour(HOUR + 24).instant_ms(7)));
    }

    #[test]
    fn a_device_of_a_fleet_takes_at_most_60_bytes() {
        let writes: Vec<_> = (0..10_000).map(|nth| write(&format!("d{nth}"), HOUR, &["a", "b", "c"], None)).collect();
        let (noted, allocated) = counted(|| {
            let noted = NotedDevices::default();
            assert!(writes.iter().all(|one| is_noted(&noted, Arc::clone(one))));
            noted
        });
        assert!(writes.into_iter().all(|one| !is_noted(&noted, one)));
        assert!(allocated.kept / 10_000 <= 60, "{} bytes", allocated.kept / 10_000);
    }

    #[test]
    fn what_was_written_to_an_index_that_is_gone_is_not_remembered() {
        let noted = NotedDevices::default();
        let one = || write("d", HOUR, &["a"], Some("{}"));
        let changes = noted.changes(&[one()]);
        noted.clear();
        noted.confirm(&changes, &changes.notes[0], true);
        assert!(is_noted(&noted, one()) && !is_noted(&noted, one()));
    }

    #[test]
    fn metadata_that_the_index_did_not_take_is_noted_again() {
        let noted = NotedDevices::default();
        let changes = noted.changes(&[write("d", HOUR, &["a"], Some("{}"))]);
        noted.confirm(&changes, &changes.notes[0], false);
        assert!(!is_noted(&noted, write("d", HOUR, &["a"], None)));
        assert!(is_noted(&noted, write("d", HOUR, &["a"], Some("{}"))));
    }
}
