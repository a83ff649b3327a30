//! The contents of one bucket, and what a flush adds to them.
//!
//! A reading's identity is (device, instant, metric). Inside a bucket the device and the hour are fixed, so
//! an identity is (offset into the hour, metric). [`Contents`] holds each identity once, in that order; every
//! merge in the system, in stores and in queries, is [`Contents::merge`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::stats::Fold;
use super::{Hour, HourOffset, Metric, MetricTable, Stats};

/// One value: when in the hour, of which metric, how much. The metric is an index into a table kept beside
/// the samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// The value, finite.
    pub value: f64,
    /// When, in milliseconds since the start of the hour.
    pub offset: HourOffset,
    /// Which metric: an index into the table that goes with the samples.
    pub metric: u32,
}

impl Sample {
    /// Orders samples by identity: first by time, then by metric.
    #[must_use]
    pub const fn key(&self) -> (HourOffset, u32) {
        (self.offset, self.metric)
    }
}

/// All the values of a bucket at one instant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading<'a> {
    /// When, in milliseconds since the start of the hour.
    pub offset: HourOffset,
    /// The values, one per metric, at least one.
    pub samples: &'a [Sample],
}

/// Which of several values of one identity stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keep {
    /// The first one: a store that cannot change what it holds keeps it.
    First,
    /// The last one.
    #[default]
    Last,
}

impl Keep {
    /// Sorts values by identity, and keeps one of each. `key` tells the identity, `set` gives a value to the
    /// one that is kept; values of one identity stand in the order in which they arrived.
    fn one_of_each<T, K: Ord>(self, values: &mut Vec<T>, key: impl Fn(&T) -> K, set: impl Fn(&mut T, &T)) {
        if values.is_sorted_by(|a, b| key(a) < key(b)) {
            return;
        }
        values.sort_by_key(&key); // stable
        values.dedup_by(|later, kept| {
            let is_same = key(later) == key(kept);
            if is_same && self == Self::Last {
                set(kept, later);
            }
            is_same
        });
    }
}

/// The readings of one bucket in time order, each identity once.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    metrics: Vec<Metric>,
    samples: Vec<Sample>,
    /// What stays where these readings meet older ones.
    keep: Keep,
}

impl Contents {
    /// Makes contents of samples in any order. Of samples with the same identity the last one stays.
    ///
    /// # Panics
    /// In debug builds, when a sample's metric is not in `metrics` or `metrics` names a metric twice.
    #[must_use]
    pub fn new(metrics: Vec<Metric>, samples: Vec<Sample>) -> Self {
        Self::keeping(Keep::Last, metrics, samples)
    }

    /// Makes contents of samples in the order in which they arrived. `keep` says which of those with the same
    /// identity stays, here and where these contents are merged into older ones.
    ///
    /// # Panics
    /// As [`Contents::new`] does.
    #[must_use]
    pub fn keeping(keep: Keep, metrics: Vec<Metric>, mut samples: Vec<Sample>) -> Self {
        debug_assert!(samples.iter().all(|sample| (sample.metric as usize) < metrics.len()));
        debug_assert!(metrics.iter().collect::<HashSet<_>>().len() == metrics.len(), "a metric twice");
        keep.one_of_each(&mut samples, Sample::key, |kept, later| kept.value = later.value);
        Self { metrics, samples, keep }
    }

    /// What stays where these readings meet older ones.
    #[must_use]
    pub const fn keep(&self) -> Keep {
        self.keep
    }

    /// The same readings, that meet older ones as `keep` says.
    #[must_use]
    pub fn with_keep(self, keep: Keep) -> Self {
        Self { keep, ..self }
    }

    /// The metrics that the samples' `metric` points into. May name metrics that have no sample.
    #[must_use]
    pub fn metrics(&self) -> &[Metric] {
        &self.metrics
    }

    /// The samples, ascending by [`Sample::key`].
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Whether there is no reading.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The name of a sample's metric.
    #[must_use]
    pub fn metric_of(&self, sample: &Sample) -> &Metric {
        &self.metrics[sample.metric as usize]
    }

    /// The samples grouped by instant, in time order.
    pub fn readings(&self) -> impl Iterator<Item = Reading<'_>> {
        self.samples.chunk_by(|a, b| a.offset == b.offset).map(|samples| Reading { offset: samples[0].offset, samples })
    }

    /// How many instants have a value.
    #[must_use]
    pub fn reading_count(&self) -> usize {
        self.readings().count()
    }

    /// The first and the last instant, unless empty.
    #[must_use]
    pub fn span(&self) -> Option<(HourOffset, HourOffset)> {
        Some((self.samples.first()?.offset, self.samples.last()?.offset))
    }

    /// The stats of each metric that has a value, in the order of [`Contents::metrics`].
    #[must_use]
    pub fn stats(&self) -> Vec<(Metric, Stats)> {
        let mut folds: Vec<Option<Fold>> = vec![None; self.metrics.len()];
        for sample in &self.samples {
            match &mut folds[sample.metric as usize] {
                Some(fold) => fold.add(sample.value),
                empty => *empty = Some(Fold::of(sample.value)),
            }
        }
        let named = self.metrics.iter().zip(folds);
        named.filter_map(|(metric, fold)| Some((metric.clone(), fold?.finish()))).collect()
    }

    /// Takes `newer` in: identities that are there already get the newer value, unless `newer` keeps the
    /// first one; the others are added.
    #[must_use]
    pub fn merge(&self, newer: &Self) -> Self {
        if self.is_empty() {
            return newer.clone();
        }
        let mut metrics = MetricTable::new(self.metrics.clone());
        let indices: Vec<u32> = newer.metrics.iter().map(|metric| metrics.place_of(metric)).collect();
        let mut samples = Vec::with_capacity(self.samples.len() + newer.samples.len());
        samples.extend_from_slice(&self.samples);
        samples
            .extend(newer.samples.iter().map(|sample| Sample { metric: indices[sample.metric as usize], ..*sample }));
        Self::keeping(newer.keep, metrics.into_metrics(), samples)
    }

    /// Only the samples that `keep` wants.
    #[must_use]
    pub fn filter(&self, mut keep: impl FnMut(&Metric, HourOffset) -> bool) -> Self {
        let samples = self.samples.iter().filter(|sample| keep(self.metric_of(sample), sample.offset));
        Self { metrics: self.metrics.clone(), samples: samples.copied().collect(), keep: self.keep }
    }

    /// The value of an identity.
    #[must_use]
    pub fn value(&self, offset: HourOffset, metric: &str) -> Option<f64> {
        let metric = self.metrics.iter().position(|known| &**known == metric)?;
        let key = (offset, u32::try_from(metric).ok()?);
        let at = self.samples.binary_search_by_key(&key, Sample::key).ok()?;
        Some(self.samples[at].value)
    }
}

/// Equal when they hold the same values of the same identities, however their metric tables are ordered.
impl PartialEq for Contents {
    fn eq(&self, other: &Self) -> bool {
        self.samples.len() == other.samples.len()
            && self
                .samples
                .iter()
                .all(|sample| other.value(sample.offset, self.metric_of(sample)) == Some(sample.value))
    }
}

/// What a flush brings to one bucket.
#[derive(Debug, Clone)]
pub struct BucketWrite {
    /// The device.
    pub device: Arc<str>,
    /// The hour.
    pub hour: Hour,
    /// The newest metadata that came with the readings: the text of a JSON object.
    pub metadata: Option<Arc<str>>,
    /// The readings, each identity once.
    pub contents: Contents,
    /// How many readings were accepted into this write, repetitions included.
    pub accepted: u32,
    /// For each of the contents' samples, which of the accepted readings brought that identity first.
    arrivals: Vec<u32>,
}

impl BucketWrite {
    /// Makes the write of what arrived. `arrived` holds the samples in the order in which they were accepted;
    /// `starts_reading` says of each sample whether it is the first of its reading. Of two values with the
    /// same identity the later stays.
    #[must_use]
    pub fn new(
        device: Arc<str>,
        hour: Hour,
        metadata: Option<Arc<str>>,
        metrics: Vec<Metric>,
        arrived: impl IntoIterator<Item = (Sample, bool)>,
    ) -> Self {
        Self::keeping(Keep::Last, device, hour, metadata, metrics, arrived)
    }

    /// The same, where `keep` says which of two values with the same identity stays.
    #[must_use]
    pub fn keeping(
        keep: Keep,
        device: Arc<str>,
        hour: Hour,
        metadata: Option<Arc<str>>,
        metrics: Vec<Metric>,
        arrived: impl IntoIterator<Item = (Sample, bool)>,
    ) -> Self {
        let mut accepted = 0;
        let numbered = arrived.into_iter().map(|(sample, starts_reading)| {
            accepted += u32::from(starts_reading);
            (sample, accepted - 1)
        });
        let mut numbered: Vec<(Sample, u32)> = numbered.collect();
        keep.one_of_each(&mut numbered, |(sample, _)| sample.key(), |kept, later| kept.0.value = later.0.value);
        let (samples, arrivals) = numbered.into_iter().unzip();
        Self { device, hour, metadata, contents: Contents::keeping(keep, metrics, samples), accepted, arrivals }
    }

    /// The same readings with other metadata, or none.
    #[must_use]
    pub fn with_metadata(self, metadata: Option<Arc<str>>) -> Self {
        Self { metadata, ..self }
    }

    /// Cuts the write in two parts of about as many instants, the earlier one first; `None` when it has one
    /// instant. The accepted readings of the parts add up to those of the whole.
    #[must_use]
    pub fn halves(&self) -> Option<[Self; 2]> {
        let middle = self.contents.readings().nth(self.contents.reading_count() / 2)?.offset;
        let at = self.contents.samples.partition_point(|sample| sample.offset < middle);
        if at == 0 {
            return None;
        }
        let earlier = self.part(0..at);
        let mut later = self.part(at..self.arrivals.len());
        later.accepted = self.accepted - earlier.accepted; // with those that brought nothing
        Some([earlier, later])
    }

    /// The write of some of the samples.
    fn part(&self, range: std::ops::Range<usize>) -> Self {
        let mut numbers = HashMap::new();
        let mut number = |arrival: &u32| {
            let next = u32::try_from(numbers.len()).expect("at most `accepted`");
            *numbers.entry(*arrival).or_insert(next)
        };
        let arrivals: Vec<u32> = self.arrivals[range.clone()].iter().map(&mut number).collect();
        let accepted = u32::try_from(numbers.len()).expect("at most `accepted`");
        let Contents { ref metrics, ref samples, keep } = self.contents;
        let contents = Contents { metrics: metrics.clone(), samples: samples[range].to_vec(), keep };
        Self {
            device: Arc::clone(&self.device),
            metadata: self.metadata.clone(),
            contents,
            accepted,
            arrivals,
            ..*self
        }
    }

    /// Makes one write of parts of one write, in any order; `None` of no parts.
    #[must_use]
    pub fn join(mut parts: Vec<Self>) -> Option<Self> {
        parts.sort_unstable_by_key(|part| part.contents.span());
        parts.into_iter().reduce(|mut joined, part| {
            joined.contents.samples.extend(part.contents.samples);
            joined.arrivals.extend(part.arrivals.into_iter().map(|arrival| arrival + joined.accepted));
            joined.accepted += part.accepted;
            joined
        })
    }

    /// How many of the accepted readings brought at least one identity for which `is_new` holds. The others
    /// are duplicates: all that they carry was there before.
    #[must_use]
    pub fn count_stored(&self, mut is_new: impl FnMut(&Sample) -> bool) -> u32 {
        let mut brought = vec![false; self.accepted as usize];
        for (sample, &arrival) in self.contents.samples().iter().zip(&self.arrivals) {
            if !brought[arrival as usize] && is_new(sample) {
                brought[arrival as usize] = true;
            }
        }
        u32::try_from(brought.iter().filter(|&&new| new).count()).expect("at most `accepted`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(offset: u32, metric: u32, value: f64) -> Sample {
        Sample { value, offset, metric }
    }

    fn table(names: &[&str]) -> Vec<Metric> {
        names.iter().map(|&name| name.into()).collect()
    }

    #[test]
    fn of_one_identity_the_last_value_stays() {
        let contents = Contents::new(table(&["a"]), vec![sample(5, 0, 1.0), sample(3, 0, 2.0), sample(5, 0, 3.0)]);
        assert_eq!(contents.samples(), [sample(3, 0, 2.0), sample(5, 0, 3.0)]);
        assert_eq!(contents.stats(), [("a".into(), Stats { count: 2, min: 2.0, max: 3.0, sum: 5.0 })]);
    }

    #[test]
    fn a_merge_matches_metrics_by_name_and_the_newer_value_wins() {
        let old = Contents::new(table(&["a", "b"]), vec![sample(1, 0, 1.0), sample(1, 1, 2.0)]);
        let new = Contents::new(table(&["b", "c"]), vec![sample(1, 0, 9.0), sample(0, 1, 7.0)]);
        let merged = old.merge(&new);
        assert_eq!(merged.value(1, "a"), Some(1.0));
        assert_eq!(merged.value(1, "b"), Some(9.0));
        assert_eq!(merged.value(0, "c"), Some(7.0));
        assert_eq!((merged.samples().len(), merged.reading_count(), merged.span()), (3, 2, Some((0, 1))));
    }

    #[test]
    fn contents_are_equal_whatever_the_order_of_their_metric_tables() {
        let one = Contents::new(table(&["a", "b"]), vec![sample(1, 0, 1.0), sample(1, 1, 2.0)]);
        let two = Contents::new(table(&["b", "a"]), vec![sample(1, 0, 2.0), sample(1, 1, 1.0)]);
        assert_eq!(one, two);
        assert_ne!(one, Contents::new(table(&["a", "b"]), vec![sample(1, 0, 1.0), sample(1, 1, 3.0)]));
    }

    #[test]
    fn a_reading_counts_as_stored_when_it_brings_one_new_identity() {
        // reading 0: a at 1; reading 1: the same again; reading 2: a and b at 1; reading 3: a at 2
        let arrived = [
            (sample(1, 0, 1.0), true),
            (sample(1, 0, 1.5), true),
            (sample(1, 0, 2.0), true),
            (sample(1, 1, 2.0), false),
            (sample(2, 0, 3.0), true),
        ];
        let write = BucketWrite::new("d".into(), Hour(0), None, table(&["a", "b"]), arrived);
        assert_eq!(write.accepted, 4);
        assert_eq!(write.contents.value(1, "a"), Some(2.0));
        assert_eq!(write.count_stored(|_| true), 3, "reading 1 brought nothing");
        assert_eq!(write.count_stored(|sample| sample.offset == 2), 1);
        assert_eq!(write.count_stored(|_| false), 0);
    }
    #[test]
    fn where_the_first_value_stays_it_stays_in_a_write_and_in_a_merge() {
        let arrived = [sample(5, 0, 1.0), sample(3, 0, 2.0), sample(5, 0, 3.0)];
        let first = Contents::keeping(Keep::First, table(&["a"]), arrived.to_vec());
        assert_eq!((first.value(5, "a"), first.value(3, "a")), (Some(1.0), Some(2.0)));
        let arrived = arrived.map(|sample| (sample, true));
        let write = BucketWrite::keeping(Keep::First, "d".into(), Hour(0), None, table(&["a"]), arrived);
        assert_eq!((&write.contents, write.accepted, write.count_stored(|_| true)), (&first, 3, 2));
        let stored = Contents::new(table(&["b", "a"]), vec![sample(5, 1, 9.0), sample(5, 0, 7.0)]);
        let merged = stored.merge(&first);
        assert_eq!([5, 3].map(|offset| merged.value(offset, "a")), [Some(9.0), Some(2.0)]);
        assert_eq!(Contents::default().merge(&first).merge(&stored).value(5, "a"), Some(9.0), "it is the newer's say");
    }

    #[test]
    fn halves_of_a_write_add_up_to_the_whole() {
        // reading 0: a at 1; reading 1: the same again; reading 2: a and b at 2; reading 3: b at 2; reading
        // 4: a at 3
        let arrived = [
            (sample(1, 0, 1.0), true),
            (sample(1, 0, 1.5), true),
            (sample(2, 0, 2.0), true),
            (sample(2, 1, 2.5), false),
            (sample(2, 1, 3.0), true),
            (sample(3, 0, 4.0), true),
        ];
        let whole = BucketWrite::new("d".into(), Hour(0), None, table(&["a", "b"]), arrived);
        let [earlier, later] = whole.halves().unwrap();
        assert_eq!((earlier.contents.span(), later.contents.span()), (Some((1, 1)), Some((2, 3))));
        assert_eq!((earlier.accepted, later.accepted), (1, 4));
        let stored = [&earlier, &later, &whole].map(|write| write.count_stored(|_| true));
        assert_eq!(stored, [1, 2, 3]);
        assert!(earlier.halves().is_none(), "one instant");
        let joined = BucketWrite::join(vec![later, earlier]).unwrap();
        assert_eq!((joined.accepted, &joined.contents), (5, &whole.contents));
        assert_eq!(joined.count_stored(|sample| sample.offset == 2), 1);
        assert!(BucketWrite::join(Vec::new()).is_none());
    }
}
