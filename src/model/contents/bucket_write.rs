//! Bucket writes: the unit of a flush.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Contents, Keep, Sample};
use crate::model::{Hour, Metric};

/// The readings that a flush writes to one bucket.
#[derive(Debug, Clone)]
pub struct BucketWrite {
    /// The stored ID of the device.
    pub device: Arc<str>,
    /// The hour of the readings.
    pub hour: Hour,
    /// The newest metadata of the readings: the text of a JSON object.
    pub metadata: Option<Arc<str>>,
    /// The readings, each identity once.
    pub contents: Contents,
    /// The number of accepted readings in this write. A reading that adds no identity counts too.
    pub accepted: u32,
    /// For each sample of the contents, the number (from 0) of the first accepted reading with its identity.
    arrivals: Vec<u32>,
}

impl BucketWrite {
    /// Makes a write of samples in the order of their arrival. The flag of a sample says whether it is the
    /// first sample of its reading. If two samples have the same identity, the later value stays.
    #[cfg(test)]
    #[must_use]
    pub fn new(
        device: Arc<str>,
        hour: Hour,
        metadata: Option<Arc<str>>,
        metrics: Vec<Metric>,
        arrived: impl IntoIterator<Item = (Sample, bool)>,
    ) -> Self {
        let mut all = Arrivals::default();
        for (sample, starts_reading) in arrived {
            all.push(sample, starts_reading);
        }
        Self::keeping(Keep::Last, device, hour, metadata, metrics, all)
    }

    /// Makes a write of samples. `keep` says which of two values with the same identity stays.
    #[must_use]
    pub fn keeping(
        keep: Keep,
        device: Arc<str>,
        hour: Hour,
        metadata: Option<Arc<str>>,
        metrics: Vec<Metric>,
        arrived: Arrivals,
    ) -> Self {
        let Arrivals { mut samples, readings: mut arrivals, accepted, is_unsorted } = arrived;
        if is_unsorted {
            let mut numbered: Vec<(Sample, u32)> = samples.into_iter().zip(arrivals).collect();
            keep.one_of_each(&mut numbered, |(sample, _)| sample.key(), |kept, later| kept.0.value = later.0.value);
            (samples, arrivals) = numbered.into_iter().unzip();
        }
        debug_assert!(samples.is_sorted_by(|a, b| a.key() < b.key()), "each identity once, ascending");
        Self { device, hour, metadata, contents: Contents { metrics, samples, keep }, accepted, arrivals }
    }

    /// The same write with other metadata, or none.
    #[must_use]
    pub fn with_metadata(self, metadata: Option<Arc<str>>) -> Self {
        Self { metadata, ..self }
    }

    /// The same bucket and number of accepted readings, without the readings and their metadata.
    #[must_use]
    pub fn without_readings(&self) -> Self {
        let (device, contents, arrivals) = (Arc::clone(&self.device), Contents::default(), Vec::new());
        Self { device, metadata: None, contents, arrivals, ..*self }
    }

    /// Splits the write into an earlier and a later part with about the same number of instants.
    ///
    /// The accepted readings of the parts add up to those of the whole. `None` if the write has one instant.
    #[must_use]
    pub fn halves(&self) -> Option<[Self; 2]> {
        let middle = self.contents.readings().nth(self.contents.reading_count() / 2)?.offset;
        let at = self.contents.samples.partition_point(|sample| sample.offset < middle);
        if at == 0 {
            return None;
        }
        let earlier = self.part(0..at);
        let mut later = self.part(at..self.arrivals.len());
        later.accepted = self.accepted - earlier.accepted; // includes the readings that add nothing
        Some([earlier, later])
    }

    /// Makes a write of the samples at these indexes of the contents.
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

    /// Joins parts of one write, in any order; `None` if there is no part.
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

    /// The number of accepted readings with at least one identity for which `is_new` holds. The other
    /// readings are duplicates.
    #[must_use]
    pub fn count_stored(&self, mut is_new: impl FnMut(&Sample) -> bool) -> u32 {
        let mut is_stored = vec![false; self.accepted as usize];
        for (sample, &arrival) in self.contents.samples().iter().zip(&self.arrivals) {
            if !is_stored[arrival as usize] && is_new(sample) {
                is_stored[arrival as usize] = true;
            }
        }
        u32::try_from(is_stored.iter().filter(|&&stored| stored).count()).expect("at most `accepted`")
    }
}

/// Samples in the order of their arrival, each with the number of its reading.
#[derive(Debug, Default)]
pub struct Arrivals {
    samples: Vec<Sample>,
    readings: Vec<u32>,
    accepted: u32,
    /// Whether a sample is out of order: its [`Sample::key`] is not greater than the key before it.
    is_unsorted: bool,
}

impl Arrivals {
    /// Makes an empty list with memory for this many samples.
    #[must_use]
    pub fn with_capacity(samples: usize) -> Self {
        let (samples, readings) = (Vec::with_capacity(samples), Vec::with_capacity(samples));
        Self { samples, readings, accepted: 0, is_unsorted: false }
    }

    /// Adds a sample. The flag says whether it is the first of its reading.
    #[inline]
    pub fn push(&mut self, sample: Sample, starts_reading: bool) {
        self.accepted += u32::from(starts_reading);
        self.is_unsorted |= self.samples.last().is_some_and(|last| last.key() >= sample.key());
        self.samples.push(sample);
        self.readings.push(self.accepted - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{sample, table};
    use super::*;

    #[test]
    fn a_reading_counts_as_stored_if_it_has_one_new_identity() {
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
        assert_eq!(write.count_stored(|_| true), 3, "reading 1 adds nothing");
        assert_eq!(write.count_stored(|sample| sample.offset == 2), 1);
        assert_eq!(write.count_stored(|_| false), 0);
    }

    #[test]
    fn the_first_value_stays_in_a_write_that_keeps_it() {
        let arrived = [sample(5, 0, 1.0), sample(3, 0, 2.0), sample(5, 0, 3.0)];
        let first = Contents::keeping(Keep::First, table(&["a"]), arrived.to_vec());
        let arrived = arrived.map(|sample| (sample, true));
        let mut all = Arrivals::default();
        for (sample, starts_reading) in arrived {
            all.push(sample, starts_reading);
        }
        let write = BucketWrite::keeping(Keep::First, "d".into(), Hour(0), None, table(&["a"]), all);
        assert_eq!((&write.contents, write.accepted, write.count_stored(|_| true)), (&first, 3, 2));
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
