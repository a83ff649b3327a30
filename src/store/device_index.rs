//! The device index: what a store keeps of each device beside its readings.
//!
//! A store writes the entry of a device when it changes: a new series, other metadata, readings of a new day,
//! readings before the first ones. `NotedDevices` remembers what was written, so that a bucket of an
//! unchanged device costs no write. The entry is written before its bucket, or together with it.
//!
//! **Bounds, not facts.** The entry covers all readings that are stored: it never lacks a series, its first
//! instant is never too late, and no last day is too early. It may cover more than is stored: readings that
//! are about to be stored, that the store refused, or that were deleted or have expired since. Several
//! instances write one entry, and each relies on what it remembers of it, so nothing but a deletion makes the
//! entry narrower. A query that finds nothing on a last day looks at the days before
//! ([`Store::last_hour_with`](super::Store::last_hour_with)).

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::quality::RandomState;
use hashbrown::HashTable;

use super::HourStats;
use crate::model::{Day, Hour, Metric};

/// The most series of a device in the index. If a device has more, those without a reading for longest are
/// left out.
pub const MAX_SERIES: usize = 4_096;

/// The command that rebuilds a device index that lacks devices.
pub const REBUILD: &str = "tidegauge check --rebuild-device-index";

/// The bytes of series after which a list of devices ends early.
const LIST_SERIES_BYTES: usize = 2 << 20;

/// The entry of a device in the device index.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceSummary {
    /// The stored ID of the device.
    pub device: Arc<str>,
    /// The metadata of the device, if it has sent any.
    pub metadata: Option<DeviceMetadata>,
    /// The series of the device, sorted by name, at most [`MAX_SERIES`].
    pub series: Vec<DeviceSeries>,
    /// Whether the device has or had other series, which are left out.
    pub has_more_series: bool,
    /// The first instant that was ever noted, in Unix milliseconds. It stays when readings expire.
    pub first_ts_ms: i64,
    /// The last instant, in Unix milliseconds, or an instant of the same day if its readings and rollups have
    /// expired. If [`Self::is_last_day_exact`] is false, the last reading may be of an earlier day.
    pub last_ts_ms: i64,
    /// The last day of which readings were removed after the entry had covered them: deleted, or refused by
    /// the store.
    pub removed_until: Option<Day>,
}

/// The metadata of a device.
///
/// Metadata of a newer hour replaces metadata of an older hour. Of two of the same hour, the one that was
/// written last stays. Metadata stays until it is replaced, however long ago it was sent. If a device repeats
/// its metadata unchanged, a store notes the hour of the first repetition in each day only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMetadata {
    /// The hour of the readings with which the metadata was sent.
    pub hour: Hour,
    /// The metadata: the text of a JSON object.
    pub text: Arc<str>,
}

/// A series of a device, as its entry has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSeries {
    /// The metric with its labels, and with its measurement if that is known.
    pub metric: Metric,
    /// The last day with a reading of it, or a later day.
    pub last_day: Day,
}

/// Some entries, in the order of the device IDs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceList {
    /// The entries, ascending by device ID.
    pub devices: Vec<DeviceSummary>,
    /// Whether the list ended before its limit because the devices have many series. More devices may follow.
    pub is_cut: bool,
    /// Whether the index may lack devices, or series and metadata of listed devices: its collection was
    /// dropped or was not restored.
    pub is_incomplete: bool,
}

impl DeviceSeries {
    /// A series whose last reading is in this hour.
    #[must_use]
    pub const fn of(metric: Metric, hour: Hour) -> Self {
        Self { metric, last_day: Day::of(hour) }
    }
}

impl DeviceMetadata {
    /// Stands for an unknown hour of metadata.
    ///
    /// It is the first hour of the year 0, before the hour of any reading.
    pub const UNKNOWN_HOUR: Hour = Hour::of(-62_167_219_200_000);

    /// Returns the one of two metadata that stays, if `newer` is written last.
    pub fn newest(older: Option<Self>, newer: Option<Self>) -> Option<Self> {
        match (older, newer) {
            (Some(older), Some(newer)) => Some(if newer.hour >= older.hour { newer } else { older }),
            (older, newer) => newer.or(older),
        }
    }
}

impl DeviceSummary {
    /// The summary of readings of one hour: their first and last instant, in Unix milliseconds, and their
    /// metrics.
    pub fn of_hour(
        device: Arc<str>,
        hour: Hour,
        (first_ts_ms, last_ts_ms): (i64, i64),
        metrics: impl IntoIterator<Item = Metric>,
    ) -> Self {
        let last_day = Day::of(hour);
        let mut series = metrics.into_iter().map(|metric| DeviceSeries { metric, last_day }).collect();
        sort_series(&mut series);
        let has_more_series = limit_series(&mut series);
        Self { device, metadata: None, series, has_more_series, first_ts_ms, last_ts_ms, removed_until: None }
    }

    /// The summary of no readings.
    pub(super) const fn nothing_of(device: Arc<str>) -> Self {
        let (first_ts_ms, last_ts_ms) = (i64::MAX, i64::MIN);
        let (metadata, removed_until) = (None, None);
        Self { device, metadata, series: Vec::new(), has_more_series: false, first_ts_ms, last_ts_ms, removed_until }
    }

    /// Whether the last reading is on the day of `last_ts_ms`, unless it has expired.
    ///
    /// The reading is then at the instant `last_ts_ms` or later on that day.
    #[must_use]
    pub fn is_last_day_exact(&self) -> bool {
        self.removed_until.is_none_or(|day| day < Day::of(Hour::of(self.last_ts_ms)))
    }

    /// The same summary with this metadata.
    ///
    /// The hour of the metadata is that of the last instant.
    #[must_use]
    pub fn with_metadata(self, text: Option<Arc<str>>) -> Self {
        let hour = Hour::of(self.last_ts_ms);
        Self { metadata: text.map(|text| DeviceMetadata { hour, text }), ..self }
    }

    /// The same summary without its series.
    #[must_use]
    pub fn without_series(&self) -> Self {
        Self {
            device: Arc::clone(&self.device),
            metadata: self.metadata.clone(),
            series: Vec::new(),
            has_more_series: self.has_more_series,
            first_ts_ms: self.first_ts_ms,
            last_ts_ms: self.last_ts_ms,
            removed_until: self.removed_until,
        }
    }

    /// A summary of these hours of the device, made from their stats; `None` without hours.
    #[must_use]
    pub(super) fn of_stats(&self, hours: &[HourStats]) -> Option<Self> {
        let of_hour = |of: &HourStats| {
            let span = (of.first_ts_ms(), of.last_ts_ms);
            let metrics = of.stats.iter().map(|(metric, _)| self.known(metric));
            Self::of_hour(Arc::clone(&self.device), of.hour, span, metrics)
        };
        let mut all = hours.iter().map(of_hour).reduce(|mut all, more| {
            all.merge(more);
            all
        })?;
        all.metadata.clone_from(&self.metadata);
        Some(all)
    }

    /// Returns the metric with the measurement that this entry knows.
    ///
    /// If the entry lacks the metric, returns it as it is.
    #[must_use]
    pub fn known(&self, metric: &Metric) -> Metric {
        let known = self.series.binary_search_by(|series| series.metric.cmp(metric));
        known.map_or_else(|_| metric.clone(), |at| self.series[at].metric.clone())
    }

    /// Adds another summary of the same device.
    ///
    /// The metadata of `newer` counts as written last.
    pub fn merge(&mut self, newer: Self) {
        self.metadata = DeviceMetadata::newest(self.metadata.take(), newer.metadata);
        self.series.extend(newer.series);
        sort_series(&mut self.series);
        self.has_more_series |= newer.has_more_series | limit_series(&mut self.series);
        self.first_ts_ms = self.first_ts_ms.min(newer.first_ts_ms);
        self.last_ts_ms = self.last_ts_ms.max(newer.last_ts_ms);
        self.removed_until = self.removed_until.max(newer.removed_until);
    }
}

/// Sorts series by name. Of several entries of a series, one stays: with the newest day, and with a
/// measurement if any entry has one.
fn sort_series(series: &mut Vec<DeviceSeries>) {
    series.sort_unstable_by(|a, b| a.metric.cmp(&b.metric).then(b.last_day.cmp(&a.last_day)));
    series.dedup_by(|later, kept| {
        let is_same = later.metric == kept.metric;
        if is_same && kept.metric.measurement().is_none() {
            kept.metric = later.metric.clone();
        }
        is_same
    });
}

/// Leaves out the series without a reading for longest if there are too many series. Returns whether there
/// were too many.
fn limit_series(series: &mut Vec<DeviceSeries>) -> bool {
    let is_too_long = series.len() > MAX_SERIES;
    if is_too_long {
        series.sort_by_key(|series| std::cmp::Reverse(series.last_day)); // stable
        series.truncate(MAX_SERIES);
        sort_series(series);
    }
    is_too_long
}

impl DeviceList {
    /// Adds an entry, and the size of its series to `bytes`.
    ///
    /// Returns whether the list may take another entry.
    pub fn push(&mut self, summary: DeviceSummary, bytes: &mut usize) -> bool {
        *bytes += summary.series.iter().map(|series| size_of::<DeviceSeries>() + series.metric.len()).sum::<usize>();
        self.devices.push(summary);
        self.is_cut = *bytes > LIST_SERIES_BYTES;
        !self.is_cut
    }
}

/// A set of device IDs. It holds a hash of 64 bits for each ID. The chance that any two of a million devices
/// share a hash is one in 30 million.
#[derive(Debug, Default)]
pub struct DeviceSet {
    hasher: RandomState,
    hashes: HashTable<u64>,
}

impl DeviceSet {
    /// Adds a device.
    pub fn insert(&mut self, device: &str) {
        let hash = self.hasher.hash_one(device);
        self.hashes.entry(hash, |known| *known == hash, |known| *known).or_insert(hash);
    }

    /// Whether the set has the device, or another one with the same hash.
    #[must_use]
    pub fn contains(&self, device: &str) -> bool {
        let hash = self.hasher.hash_one(device);
        self.hashes.find(hash, |known| *known == hash).is_some()
    }
}

/// An addition to the entry of a device, by one call of [`Store::write`](super::Store::write).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DeviceNote {
    /// The summary of its readings and metadata.
    pub(super) summary: DeviceSummary,
    /// The indices of the writes that need the addition, ascending.
    pub(super) writes: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(series: impl IntoIterator<Item = (String, i32)>, metadata: Option<(i32, &str)>) -> DeviceSummary {
        let series = series.into_iter().map(|(name, day)| DeviceSeries { metric: (*name).into(), last_day: Day(day) });
        DeviceSummary {
            device: "d".into(),
            metadata: metadata.map(|(hour, text)| DeviceMetadata { hour: Hour(hour), text: text.into() }),
            series: series.collect(),
            has_more_series: false,
            first_ts_ms: 5,
            last_ts_ms: 9,
            removed_until: None,
        }
    }

    #[test]
    fn summaries_are_merged() {
        let one = |names: &[(&str, i32)], metadata| {
            summary(names.iter().map(|(name, day)| ((*name).to_owned(), *day)), metadata)
        };
        let mut merged = one(&[("b", 4), ("a", 7)], Some((3, "{}")));
        merged.merge(DeviceSummary { first_ts_ms: 7, last_ts_ms: 11, ..one(&[("a", 6), ("c", 1)], None) });
        let expected = one(&[("a", 7), ("b", 4), ("c", 1)], Some((3, "{}")));
        assert_eq!(merged, DeviceSummary { last_ts_ms: 11, ..expected });
    }

    #[test]
    fn metadata_of_a_newer_hour_stays_and_of_one_hour_the_last() {
        for (older, newer, expected) in [(3, 2, 'o'), (3, 3, 'n'), (3, 4, 'n')] {
            let of = |hour, text: &str| Some(DeviceMetadata { hour: Hour(hour), text: text.into() });
            let stays = DeviceMetadata::newest(of(older, "o"), of(newer, "n")).unwrap();
            assert_eq!(*stays.text, *expected.to_string(), "{older} {newer}");
            assert_eq!(DeviceMetadata::newest(of(older, "o"), None), of(older, "o"));
            assert_eq!(DeviceMetadata::newest(None, of(older, "o")), of(older, "o"));
        }
    }

    #[test]
    fn the_series_without_a_reading_for_longest_are_left_out() {
        let of = |days: std::ops::Range<i32>| days.map(|day| (format!("s{day:05}"), day));
        let max = i32::try_from(MAX_SERIES).unwrap();
        let mut merged = summary(of(2..max), None);
        merged.merge(summary(of(0..2), None));
        assert!(merged.series.len() == MAX_SERIES && !merged.has_more_series);
        merged.merge(summary(of(max..max + 2), None));
        assert_eq!((merged.series.len(), &*merged.series[0].metric), (MAX_SERIES, "s00002"));
        assert!(merged.has_more_series);
    }

    #[test]
    fn a_list_of_devices_with_many_series_ends_early() {
        let (mut list, mut bytes) = (DeviceList::default(), 0);
        while list.push(summary((0..3_000).map(|nth| (format!("{nth:0500}"), 1)), None), &mut bytes) {}
        assert_eq!((list.devices.len(), list.is_cut), (2, true));
    }
}
