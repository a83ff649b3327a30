//! How large readings are as BSON, and how much a document takes. Pure.
//!
//! Sizes are what the elements of `readings` and `stats` take at most: positions in the array count with as
//! many digits as any may have. A document that was appended to counts the stats of each append, though they
//! share fields; so what it says of itself (`bytes`) is never too low.

use super::super::names;
use crate::model::{Contents, Sample};

/// What a document holds besides readings and stats: metadata, which is at most 64 KiB as JSON, and the fixed
/// fields.
const RESERVED_BYTES: usize = 66 * 1024;

/// An element of `readings` without its values: its type, its position and a zero, the length and the end of
/// a document, and `ts`.
const READING_BYTES: usize = 1 + 8 + 5 + (1 + 3 + 8);

/// A value without its key: its type, a zero, and the number.
const VALUE_BYTES: usize = 1 + 1 + 8;

/// An element of `stats` without its key.
const STATS_BYTES: usize = 1 + 1 + 5 + (1 + 6 + 8) + 3 * (1 + 4 + 8);

/// How much a document takes before its bucket gets another one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Capacity {
    readings: usize,
    bytes: usize,
}

/// The size of readings, and their number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) readings: usize,
    pub(super) bytes: usize,
}

/// What each metric of some contents takes.
pub(super) struct Keys(Vec<usize>);

impl Capacity {
    /// At least one reading, however large.
    pub(super) fn new(max_readings: u32, max_document_bytes: usize) -> Self {
        Self { readings: max_readings.max(1) as usize, bytes: max_document_bytes.saturating_sub(RESERVED_BYTES) }
    }

    /// Whether a document takes that much.
    pub(super) const fn fits(self, size: Size) -> bool {
        size.readings <= self.readings && size.bytes <= self.bytes
    }

    /// The same, whatever the number of readings.
    pub(super) const fn has_bytes_for(self, size: Size) -> bool {
        size.bytes <= self.bytes
    }

    /// The largest document that takes that much more.
    pub(super) const fn largest_before(self, size: Size) -> Size {
        Size { readings: self.readings.saturating_sub(size.readings), bytes: self.bytes.saturating_sub(size.bytes) }
    }
}

impl Size {
    pub(super) fn of(contents: &Contents) -> Self {
        let keys = Keys::of(contents);
        let readings: Self = contents.readings().map(|reading| keys.reading(reading.samples)).sum();
        Self { bytes: readings.bytes + keys.stats_bytes(), ..readings }
    }
}

impl std::ops::Add for Size {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self { readings: self.readings + more.readings, bytes: self.bytes + more.bytes }
    }
}

impl std::iter::Sum for Size {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::default(), std::ops::Add::add)
    }
}

impl Keys {
    pub(super) fn of(contents: &Contents) -> Self {
        Self(contents.metrics().iter().map(|metric| names::stored(metric).len()).collect())
    }

    /// The size of one reading.
    pub(super) fn reading(&self, samples: &[Sample]) -> Size {
        let values: usize = samples.iter().map(|sample| VALUE_BYTES + self.0[sample.metric as usize]).sum();
        Size { readings: 1, bytes: READING_BYTES + values }
    }

    /// What a value takes that joins a reading, with its stats.
    pub(super) fn joining_bytes(&self, sample: &Sample) -> usize {
        let key = self.0[sample.metric as usize];
        VALUE_BYTES + key + STATS_BYTES + key
    }

    /// The size of the stats of all the metrics.
    pub(super) fn stats_bytes(&self) -> usize {
        self.0.iter().map(|key| STATS_BYTES + key).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Hour;
    use crate::store::mongodb::bucket::document::encode_readings;
    use crate::store::mongodb::encode::Encoder;
    use crate::store::mongodb::stats::encode_stats;

    #[test]
    fn a_size_is_what_the_bson_takes_or_a_little_more() {
        for count in [1_u32, 10, 1_000] {
            let samples = (0..count).flat_map(|offset| [0, 1].map(|metric| Sample { value: 1.5, offset, metric }));
            let contents = Contents::new(vec!["a.b".into(), "temperature".into()], samples.collect());
            let encoded = Encoder::build(|fields| {
                encode_stats(fields, "stats", &contents.stats());
                encode_readings(fields, "readings", Hour(0), &contents);
            });
            let (size, exact) = (Size::of(&contents), encoded.as_bytes().len());
            assert_eq!(size.readings, count as usize);
            assert!(size.bytes + 32 >= exact && size.bytes < exact + 7 * size.readings, "{size:?} for {exact}");
        }
    }
}
