//! The samples of one hour, gathered step by step in bounded memory.

use std::collections::HashMap;
use std::ops::Range;

use crate::codec::{Chunk, ChunkError, VALUES_MAX};
use crate::model::{self, Contents, Hour, HourOffset, MS_PER_HOUR, Metric, Sample, SeriesFilter};

/// The offsets of a whole hour.
const WHOLE_HOUR: Range<HourOffset> = 0..MS_PER_HOUR as HourOffset;

/// The least number of samples for an early compaction. Sorting fewer costs more than it saves.
const COMPACT_FROM: usize = 64;

/// Which samples of an hour are kept.
#[derive(Debug, Clone, Copy)]
enum Keep {
    All,
    /// The samples of the first instants: at most this many instants and values, but at least one instant.
    First {
        instants: usize,
        values: usize,
    },
    LastOfEachMetric,
}

/// Gathers samples of one hour in any order, and drops those early that the caller does not need.
///
/// It holds at most twice the samples that it returns. If an identity arrives twice, the lower value stays.
#[derive(Debug)]
pub struct HourSamples {
    hour: Hour,
    /// Only samples inside this window are kept.
    ///
    /// Its end moves back to the first dropped instant.
    window: Range<HourOffset>,
    is_cut: bool,
    wanted: SeriesFilter,
    keep: Keep,
    /// The stored keys, each with its index in `metrics`; `None`: the metric is not wanted.
    keys: Vec<(Box<str>, Option<u32>)>,
    /// The index of each key in `keys`.
    places: HashMap<Box<str>, usize>,
    /// The index of the expected next key: readings of one kind have the same metrics in the same order.
    next_key: usize,
    metrics: Vec<Metric>,
    samples: Vec<Sample>,
    /// The number of instants in `samples`, or more if they arrive out of time order.
    instants: usize,
    compact_at: usize,
    /// Which values stay when the contents are merged into older ones.
    stays: model::Keep,
}

impl HourSamples {
    /// Starts to gather every sample of an hour.
    #[must_use]
    pub fn all(hour: Hour) -> Self {
        Self::new(hour, WHOLE_HOUR, SeriesFilter::ALL, Keep::All, 0)
    }

    /// Starts to gather the last sample of each metric in an hour.
    #[must_use]
    pub fn last_of_each_metric(hour: Hour) -> Self {
        Self::new(hour, WHOLE_HOUR, SeriesFilter::ALL, Keep::LastOfEachMetric, COMPACT_FROM)
    }

    /// Keeps the samples of the first `instants` instants (at least 1) inside `window` whose metric matches
    /// `wanted`. Keeps fewer instants, but at least one, if they have more than `values` values.
    pub(super) fn first(
        hour: Hour,
        window: Range<HourOffset>,
        wanted: SeriesFilter,
        (instants, values): (usize, usize),
    ) -> Self {
        Self::new(hour, window, wanted, Keep::First { instants, values }, 0)
    }

    fn new(hour: Hour, window: Range<HourOffset>, wanted: SeriesFilter, keep: Keep, compact_at: usize) -> Self {
        Self {
            hour,
            window,
            is_cut: false,
            wanted,
            keep,
            keys: Vec::new(),
            places: HashMap::new(),
            next_key: 0,
            metrics: Vec::new(),
            samples: Vec::new(),
            instants: 0,
            compact_at,
            stays: model::Keep::default(),
        }
    }

    /// The hour of the samples.
    #[must_use]
    pub const fn hour(&self) -> Hour {
        self.hour
    }

    /// The number of samples, repetitions included.
    pub(super) const fn len(&self) -> usize {
        self.samples.len()
    }

    /// The offsets of the samples that are still needed. The end moves back as samples arrive.
    #[must_use]
    pub const fn window(&self) -> &Range<HourOffset> {
        &self.window
    }

    /// Whether samples inside the original window were dropped.
    ///
    /// All samples that were kept are before the end of [`Self::window`].
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The index of the metric with the stored key `key` and the name `name(key)`.
    ///
    /// `None`: the metric is not wanted.
    pub fn metric<'k, N: AsRef<str>>(&mut self, key: &'k str, name: impl FnOnce(&'k str) -> N) -> Option<u32> {
        let guess = self.keys.get(self.next_key).is_some_and(|(known, _)| **known == *key).then_some(self.next_key);
        let at = match guess.or_else(|| self.places.get(key).copied()) {
            Some(at) => at,
            None => self.add_metric(key, name(key).as_ref()),
        };
        self.next_key = if at + 1 < self.keys.len() { at + 1 } else { 0 };
        self.keys[at].1
    }

    fn add_metric(&mut self, key: &str, name: &str) -> usize {
        let is_wanted = self.wanted.matches(name);
        let index = is_wanted.then(|| {
            self.metrics.push(name.into());
            u32::try_from(self.metrics.len() - 1).expect("memory ends far below 2^32 metrics")
        });
        self.keys.push((key.into(), index));
        self.places.insert(key.into(), self.keys.len() - 1);
        self.keys.len() - 1
    }

    /// Adds a sample. Its metric is an index from [`Self::metric`].
    pub fn push(&mut self, offset: HourOffset, metric: u32, value: f64) {
        if !self.window.contains(&offset) {
            return;
        }
        if self.samples.last().is_none_or(|last| last.offset != offset) {
            self.instants += 1;
        }
        self.samples.push(Sample { value, offset, metric });
        if self.samples.len() >= self.compact_at && self.may_hold_too_much() {
            self.compact();
        }
    }

    /// Adds the samples of contents of the same hour.
    pub fn extend(&mut self, contents: &Contents) {
        self.stays = contents.keep();
        let indices: Vec<_> = contents.metrics().iter().map(|metric| self.metric(metric, str::to_owned)).collect();
        for sample in contents.samples() {
            if sample.offset >= self.window.end {
                break; // the end moves back while samples arrive
            }
            if let Some(metric) = indices[sample.metric as usize] {
                self.push(sample.offset, metric, sample.value);
            }
        }
    }

    /// Adds the samples of a chunk of the same hour, or none if the chunk is damaged.
    ///
    /// # Errors
    /// When the bytes are not a chunk.
    pub fn add_chunk(&mut self, bytes: &[u8]) -> Result<(), ChunkError> {
        let samples = Chunk::decompress(bytes)?.samples(|name| self.metric(name, str::to_owned))?;
        if matches!(self.keep, Keep::All) && self.samples.len() + samples.len() > VALUES_MAX {
            return Err(ChunkError::Invalid("its hour has too many values"));
        }
        for sample in samples {
            if sample.offset >= self.window.end {
                break; // the end moves back while samples arrive
            }
            self.push(sample.offset, sample.metric, sample.value);
        }
        Ok(())
    }

    fn may_hold_too_much(&self) -> bool {
        match self.keep {
            Keep::All => false,
            Keep::First { instants, values } => self.instants > instants || self.samples.len() > values,
            Keep::LastOfEachMetric => true,
        }
    }

    /// Drops the samples that are not kept. The next compaction follows when the number of samples has
    /// doubled, so that all compactions together cost as much as one sort.
    fn compact(&mut self) {
        sort(&mut self.samples);
        match self.keep {
            Keep::All => {}
            Keep::First { instants, values } => self.cut_after(instants, values),
            Keep::LastOfEachMetric => {
                let mut last = vec![None; self.metrics.len()];
                for sample in &self.samples {
                    last[sample.metric as usize] = Some(*sample);
                }
                self.samples = last.into_iter().flatten().collect();
                sort(&mut self.samples);
            }
        }
        self.compact_at = (self.samples.len() * 2).max(COMPACT_FROM);
    }

    fn cut_after(&mut self, instants: usize, values: usize) {
        let mut kept = 0;
        self.instants = 0;
        for reading in self.samples.chunk_by(|a, b| a.offset == b.offset) {
            if self.instants > 0 && (self.instants >= instants || kept + reading.len() > values) {
                (self.window.end, self.is_cut) = (reading[0].offset, true);
                break;
            }
            self.instants += 1;
            kept += reading.len();
        }
        self.samples.truncate(kept);
    }

    /// The contents, and the offset up to which they are complete.
    #[must_use]
    pub fn finish(mut self) -> (Contents, HourOffset) {
        if self.may_hold_too_much() {
            self.compact();
        } else {
            sort(&mut self.samples);
        }
        (Contents::new(self.metrics, self.samples).with_keep(self.stays), self.window.end)
    }
}

/// Sorts samples by identity, and keeps the lowest value of each.
fn sort(samples: &mut Vec<Sample>) {
    if !samples.is_sorted_by(|a, b| a.key() < b.key()) {
        samples.sort_unstable_by(|a, b| a.key().cmp(&b.key()).then(a.value.total_cmp(&b.value)));
        samples.dedup_by(|later, kept| later.key() == kept.key());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use proptest::prelude::*;

    use super::*;
    use crate::codec::ChunkEncoder;

    /// Offset, metric, value.
    type Values = Vec<(HourOffset, usize, i32)>;

    const NAMES: [&str; 4] = ["a", "b", "c", "d"];

    fn gather(mut samples: HourSamples, values: &Values) -> (BTreeMap<(HourOffset, String), f64>, HourOffset, usize) {
        let mut most = 0;
        for &(offset, metric, value) in values {
            if let Some(place) = samples.metric(NAMES[metric], str::to_owned) {
                samples.push(offset, place, value.into());
            }
            most = most.max(samples.samples.len());
        }
        let (contents, until) = samples.finish();
        let named = contents.samples().iter().map(|sample| {
            let metric = contents.metric_of(sample).to_string();
            ((sample.offset, metric), sample.value)
        });
        (named.collect(), until, most)
    }

    fn any_values() -> impl Strategy<Value = Values> {
        prop::collection::vec((0..40u32, 0..4usize, -3..3i32), 0..300)
    }

    proptest! {
        #[test]
        fn the_first_instants_are_whole_and_complete(
            values in any_values(), instants in 1..12usize, max_values in 1..40usize, only_b in any::<bool>(),
        ) {
            let wanted = if only_b { SeriesFilter::new(["b"], []).unwrap() } else { SeriesFilter::ALL };
            let window = 5..35;
            let samples = HourSamples::first(Hour(0), window.clone(), wanted, (instants, max_values));
            let (found, until, most) = gather(samples, &values);

            let mut model: BTreeMap<(HourOffset, String), f64> = BTreeMap::new();
            for &(offset, metric, value) in &values {
                if (5..until).contains(&offset) && (!only_b || metric == 1) {
                    let known = model.entry((offset, NAMES[metric].to_owned())).or_insert(value.into());
                    *known = known.min(value.into());
                }
            }
            prop_assert_eq!(&found, &model);
            let found_instants: HashSet<_> = found.keys().map(|(offset, _)| *offset).collect();
            prop_assert!(found_instants.len() <= instants);
            prop_assert!(found.len() <= max_values || found_instants.len() == 1);
            prop_assert!(until == window.end || !found.is_empty(), "the next query makes progress");
            prop_assert!(most <= (8 * instants).max(COMPACT_FROM), "{} at once", most);
        }

        #[test]
        fn the_last_sample_of_each_metric_stays(values in any_values()) {
            let (found, ..) = gather(HourSamples::last_of_each_metric(Hour(0)), &values);
            let mut model: BTreeMap<usize, (HourOffset, i32)> = BTreeMap::new();
            for &(offset, metric, value) in &values {
                let last = model.entry(metric).or_insert((offset, value));
                if offset > last.0 || (offset == last.0 && value < last.1) {
                    *last = (offset, value);
                }
            }
            let named = |(metric, (offset, value)): (usize, (HourOffset, i32))| {
                ((offset, NAMES[metric].to_owned()), f64::from(value))
            };
            prop_assert_eq!(found, model.into_iter().map(named).collect::<BTreeMap<_, _>>());
        }
    }

    #[test]
    fn chunks_are_gathered_by_metric_name() {
        let contents = |metrics: &[&str], samples: &[(HourOffset, u32, f64)]| {
            let samples = samples.iter().map(|&(offset, metric, value)| Sample { value, offset, metric });
            Contents::new(metrics.iter().map(|&name| name.into()).collect(), samples.collect())
        };
        let (mut samples, mut encoder) = (HourSamples::all(Hour(0)), ChunkEncoder::new().unwrap());
        samples.add_chunk(&encoder.encode(&contents(&["a", "b"], &[(1, 0, 1.0), (1, 1, 2.0)]))).unwrap();
        samples.add_chunk(&encoder.encode(&contents(&["b", "c"], &[(2, 0, 3.0), (3, 1, 4.0)]))).unwrap();
        let expected = contents(&["a", "b", "c"], &[(1, 0, 1.0), (1, 1, 2.0), (2, 1, 3.0), (3, 2, 4.0)]);
        assert_eq!(samples.finish().0, expected);
    }

    #[test]
    fn a_damaged_chunk_adds_no_sample() {
        let contents = Contents::new(vec!["a".into()], vec![Sample { value: 1.0, offset: 1, metric: 0 }]);
        let mut chunk = ChunkEncoder::new().unwrap().encode(&contents);
        chunk.push(0);
        let mut samples = HourSamples::all(Hour(0));
        samples.add_chunk(&chunk).unwrap_err();
        assert!(samples.finish().0.is_empty());
    }

    #[test]
    fn an_hour_of_three_million_readings_is_never_held_whole() {
        let window = 0..MS_PER_HOUR as HourOffset;
        let mut samples = HourSamples::first(Hour(0), window, SeriesFilter::ALL, (2, 100_000));
        let mut most = 0;
        for offset in 0..3_000_000 {
            let place = samples.metric("a", str::to_owned).expect("all are wanted");
            samples.push(offset, place, 1.0);
            most = most.max(samples.samples.len());
        }
        assert!(most <= COMPACT_FROM, "{most}");
        assert_eq!((samples.is_cut(), samples.finish().1), (true, 2));
    }
}
