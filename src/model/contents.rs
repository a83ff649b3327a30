//! The contents of one bucket, and their merge.
//!
//! The identity of a value is (device, instant, series). Inside a bucket the device and the hour are fixed,
//! so an identity is (offset into the hour, series). [`Contents`] holds each identity once, in that order.
//! Every merge of readings, in stores and in queries, is [`Contents::merge`].

mod bucket_write;

use std::collections::HashSet;

pub use self::bucket_write::{Arrivals, BucketWrite};
use super::{Fold, Hour, HourOffset, Metric, MetricTable, Stats};

/// The value of one metric at one instant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// The value, finite.
    pub value: f64,
    /// The instant, in milliseconds since the start of the hour.
    pub offset: HourOffset,
    /// The metric, as an index into the table of metrics that is kept beside the samples.
    pub metric: u32,
}

impl Sample {
    /// Orders samples by identity: first by time, then by metric.
    #[must_use]
    pub const fn key(&self) -> (HourOffset, u32) {
        (self.offset, self.metric)
    }
}

/// All values of a bucket at one instant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading<'a> {
    /// The instant, in milliseconds since the start of the hour.
    pub offset: HourOffset,
    /// The values: one per metric, and at least one.
    pub samples: &'a [Sample],
}

/// Which value stays if several have the same identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keep {
    /// The first value, for a store that cannot change stored values.
    First,
    /// The last value.
    #[default]
    Last,
}

impl Keep {
    /// Sorts values by identity, and keeps one value of each identity.
    ///
    /// `values` are in the order of their arrival. `key` returns the identity of a value. `set(kept, later)`
    /// overwrites the kept value with a later one.
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
    /// Which of two values with the same identity stays when these contents are merged into older ones.
    keep: Keep,
}

impl Contents {
    /// Makes contents of samples in any order. If several have the same identity, the last one stays.
    ///
    /// # Panics
    /// In debug builds, when a sample's metric is not in `metrics` or `metrics` names a metric twice.
    #[must_use]
    pub fn new(metrics: Vec<Metric>, samples: Vec<Sample>) -> Self {
        Self::keeping(Keep::Last, metrics, samples)
    }

    /// Makes contents of samples in the order of their arrival. `keep` says which of several samples with the
    /// same identity stays, here and in a later merge into older contents.
    ///
    /// # Panics
    /// As [`Contents::new`].
    #[must_use]
    pub fn keeping(keep: Keep, metrics: Vec<Metric>, mut samples: Vec<Sample>) -> Self {
        debug_assert!(samples.iter().all(|sample| (sample.metric as usize) < metrics.len()));
        debug_assert!(metrics.iter().collect::<HashSet<_>>().len() == metrics.len(), "a metric twice");
        keep.one_of_each(&mut samples, Sample::key, |kept, later| kept.value = later.value);
        if samples.len() < samples.capacity() / 2 {
            samples.shrink_to_fit(); // most samples were repetitions
        }
        Self { metrics, samples, keep }
    }

    /// Which of two values with the same identity stays when these contents are merged into older ones.
    #[must_use]
    pub const fn keep(&self) -> Keep {
        self.keep
    }

    /// The same contents, with another rule for merges into older contents.
    #[must_use]
    pub fn with_keep(self, keep: Keep) -> Self {
        Self { keep, ..self }
    }

    /// The table of metrics. It may have metrics without a sample.
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

    /// The number of instants that have a value.
    #[must_use]
    pub fn reading_count(&self) -> usize {
        self.readings().count()
    }

    /// The offsets of the first and the last reading; `None` if there is none.
    #[must_use]
    pub fn span(&self) -> Option<(HourOffset, HourOffset)> {
        Some((self.samples.first()?.offset, self.samples.last()?.offset))
    }

    /// The stats of each metric that has a value, in the order of [`Contents::metrics`]. `hour` is the hour
    /// of these contents.
    #[must_use]
    pub fn stats(&self, hour: Hour) -> Vec<(Metric, Stats)> {
        let mut folds: Vec<Option<Fold>> = vec![None; self.metrics.len()];
        for sample in &self.samples {
            match &mut folds[sample.metric as usize] {
                Some(fold) => fold.add(sample.offset, sample.value),
                empty => *empty = Some(Fold::of(sample.offset, sample.value)),
            }
        }
        let named = self.metrics.iter().zip(folds);
        named.filter_map(|(metric, fold)| Some((metric.clone(), fold?.finish(hour)))).collect()
    }

    /// Returns these contents with `newer` added. If both have an identity, the value of `newer` stays,
    /// unless `newer` keeps first values ([`Keep::First`]).
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

    /// Returns contents with only the samples for which `is_wanted` holds.
    #[must_use]
    pub fn filter(&self, mut is_wanted: impl FnMut(&Metric, HourOffset) -> bool) -> Self {
        let samples = self.samples.iter().filter(|sample| is_wanted(self.metric_of(sample), sample.offset));
        Self { metrics: self.metrics.clone(), samples: samples.copied().collect(), keep: self.keep }
    }

    /// Splits the samples into those for which `is_in_first` holds, and the others.
    #[must_use]
    pub fn partition(&self, is_in_first: impl FnMut(&Sample) -> bool) -> (Self, Self) {
        let (first, other) = self.samples.iter().copied().partition(is_in_first);
        let of = |samples| Self { metrics: self.metrics.clone(), samples, keep: self.keep };
        (of(first), of(other))
    }

    /// Returns contents with only the samples whose identities `other` does not have.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let others = other.values_for(&self.metrics);
        let samples = self.samples.iter().filter(|sample| others.of(sample).is_none()).copied().collect();
        Self { metrics: self.metrics.clone(), samples, keep: self.keep }
    }

    /// Prepares lookups of values of these contents, by samples of other contents.
    ///
    /// `metrics` is the table of the other contents: [`Sample::metric`] of their samples is an index into it.
    #[must_use]
    pub fn values_for(&self, metrics: &[Metric]) -> Values<'_> {
        let mut own = MetricTable::new(self.metrics.clone());
        Values { samples: &self.samples, places: metrics.iter().map(|metric| own.find(metric)).collect() }
    }

    /// The value of a metric at an instant. Each call compares all names, so it is for tests only.
    #[cfg(test)]
    pub fn value(&self, offset: HourOffset, metric: &str) -> Option<f64> {
        self.values_for(&[metric.into()]).of(&Sample { value: 0.0, offset, metric: 0 })
    }
}

/// Looks up values of contents by samples of other contents.
///
/// The samples have another table of metrics. The names of both tables are compared once, and not for each
/// sample.
#[derive(Debug)]
pub struct Values<'a> {
    samples: &'a [Sample],
    /// For each metric of the other table, its index in the table of the contents.
    places: Vec<Option<u32>>,
}

impl Values<'_> {
    /// The value with the identity of `sample`; `None` if the contents lack it.
    #[must_use]
    pub fn of(&self, sample: &Sample) -> Option<f64> {
        let key = (sample.offset, self.places[sample.metric as usize]?);
        let at = self.samples.binary_search_by_key(&key, Sample::key).ok()?;
        Some(self.samples[at].value)
    }

    /// Whether the contents have `sample`, with the same bits of the value.
    ///
    /// 0.0 and -0.0 differ.
    #[must_use]
    pub fn has(&self, sample: &Sample) -> bool {
        self.of(sample).is_some_and(|value| value.to_bits() == sample.value.to_bits())
    }
}

/// Compares identities and the bits of values: 0.0 and -0.0 differ. The order of the metric tables does not
/// matter.
impl PartialEq for Contents {
    fn eq(&self, other: &Self) -> bool {
        if self.samples.len() != other.samples.len() {
            return false;
        }
        if self.metrics == other.metrics {
            let is_same = |(a, b): (&Sample, &Sample)| a.key() == b.key() && a.value.to_bits() == b.value.to_bits();
            return self.samples.iter().zip(&other.samples).all(is_same);
        }
        let others = other.values_for(&self.metrics);
        self.samples.iter().all(|sample| others.has(sample))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::counting::counted;
    use crate::model::ValueAt;

    pub(super) fn sample(offset: u32, metric: u32, value: f64) -> Sample {
        Sample { value, offset, metric }
    }

    pub(super) fn table(names: &[&str]) -> Vec<Metric> {
        names.iter().map(|&name| name.into()).collect()
    }

    #[test]
    fn of_one_identity_the_last_value_stays() {
        let contents = Contents::new(table(&["a"]), vec![sample(5, 0, 1.0), sample(3, 0, 2.0), sample(5, 0, 3.0)]);
        assert_eq!(contents.samples(), [sample(3, 0, 2.0), sample(5, 0, 3.0)]);
        let [first, last] = [(3, 2.0), (5, 3.0)].map(|(ts_ms, value)| ValueAt { ts_ms, value });
        let stats = Stats { count: 2, min: 2.0, max: 3.0, sum: 5.0, first, last };
        assert_eq!(contents.stats(Hour(0)), [("a".into(), stats)]);
    }

    #[test]
    fn contents_hold_no_memory_of_repetitions() {
        let (contents, allocated) = counted(|| Contents::new(table(&["a"]), vec![sample(5, 0, 1.0); 10_000]));
        assert_eq!(contents.samples().len(), 1);
        assert!(allocated.kept < 1_000, "{allocated:?}");
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
    fn values_are_compared_to_the_bit() {
        let of = |value| Contents::new(table(&["a"]), vec![sample(1, 0, value)]);
        let with_another_table = Contents::new(table(&["b", "a"]), vec![sample(1, 1, -0.0)]);
        assert_eq!(of(-0.0), with_another_table);
        assert!(of(0.0) != of(-0.0) && of(0.0) != with_another_table);
        let (table, positive) = (table(&["a"]), of(0.0));
        let stored = positive.values_for(&table);
        assert!(stored.has(&sample(1, 0, 0.0)) && !stored.has(&sample(1, 0, -0.0)));
    }

    #[test]
    fn the_first_value_stays_in_a_merge_that_keeps_it() {
        let arrived = [sample(5, 0, 1.0), sample(3, 0, 2.0), sample(5, 0, 3.0)];
        let first = Contents::keeping(Keep::First, table(&["a"]), arrived.to_vec());
        assert_eq!((first.value(5, "a"), first.value(3, "a")), (Some(1.0), Some(2.0)));
        let stored = Contents::new(table(&["b", "a"]), vec![sample(5, 1, 9.0), sample(5, 0, 7.0)]);
        let merged = stored.merge(&first);
        assert_eq!([5, 3].map(|offset| merged.value(offset, "a")), [Some(9.0), Some(2.0)]);
        assert_eq!(
            Contents::default().merge(&first).merge(&stored).value(5, "a"),
            Some(9.0),
            "the newer contents decide"
        );
    }
}
