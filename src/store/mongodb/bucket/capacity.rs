//! The size of readings as BSON, and the capacity of a document. Pure.
//!
//! Sizes are upper bounds of the elements of `readings` and `stats`: an index of the array counts with the
//! most digits that any index may have. Each append adds the size of its own stats to that of the document,
//! though the stats of all appends share fields. So the field `bytes` of a document is never too low.

use super::super::names;
use crate::model::{Contents, Sample};

/// The size of a document without readings and stats: metadata, at most 64 KiB as JSON, and the fixed fields.
const RESERVED_BYTES: usize = 66 * 1024;

/// The size of an element of `readings` without its values: its type, its index and a zero, the length and
/// the end of a document, and `ts`.
const READING_BYTES: usize = 1 + 8 + 5 + (1 + 3 + 8);

/// The size of a value without its key: its type, a zero, and the number.
const VALUE_BYTES: usize = 1 + 1 + 8;

/// The size of a value with its instant, without its key: its type, a zero, and the document.
const VALUE_AT_BYTES: usize = 1 + 1 + 5 + (1 + 3 + 8) + (1 + 6 + 8);

/// The size of an element of `stats` without its key.
const STATS_BYTES: usize = 1 + 1 + 5 + (1 + 6 + 8) + 3 * (1 + 4 + 8) + (5 + 4 + 2 * VALUE_AT_BYTES);

/// The most readings and bytes of a document. A bucket with more gets another part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Capacity {
    readings: usize,
    bytes: usize,
}

/// A number of readings, and their size in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) readings: usize,
    pub(super) bytes: usize,
}

/// The lengths of the keys of the metrics of some contents.
pub(super) struct Keys(Vec<usize>);

impl Capacity {
    /// A capacity of at least one reading.
    pub(super) fn new(max_readings: u32, max_document_bytes: usize) -> Self {
        Self { readings: max_readings.max(1) as usize, bytes: max_document_bytes.saturating_sub(RESERVED_BYTES) }
    }

    /// Whether readings of this size fit into a document.
    pub(super) const fn fits(self, size: Size) -> bool {
        size.readings <= self.readings && size.bytes <= self.bytes
    }

    /// Whether readings of this size fit into a document by their bytes, whatever their number.
    pub(super) const fn has_bytes_for(self, size: Size) -> bool {
        size.bytes <= self.bytes
    }

    /// The largest size of a document into which readings of this size still fit.
    pub(super) const fn largest_before(self, size: Size) -> Size {
        Size { readings: self.readings.saturating_sub(size.readings), bytes: self.bytes.saturating_sub(size.bytes) }
    }
}

impl Size {
    pub(super) fn of(contents: &Contents) -> Self {
        let keys = Keys::of(contents);
        let sizes = contents.readings().map(|reading| keys.reading(reading.samples));
        let readings = sizes.fold(Self::default(), |all, one| all + one);
        Self { bytes: readings.bytes + keys.stats_bytes(), ..readings }
    }
}

impl std::ops::Add for Size {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self { readings: self.readings + more.readings, bytes: self.bytes + more.bytes }
    }
}

impl Keys {
    pub(super) fn of(contents: &Contents) -> Self {
        Self(contents.metrics().iter().map(|metric| names::stored(metric).len()).collect())
    }

    /// The size of the reading with these samples.
    pub(super) fn reading(&self, samples: &[Sample]) -> Size {
        let values: usize = samples.iter().map(|sample| VALUE_BYTES + self.0[sample.metric as usize]).sum();
        Size { readings: 1, bytes: READING_BYTES + values }
    }

    /// The size of a value that is added to a stored reading, with its stats.
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
    fn a_size_is_that_of_the_bson_or_a_little_more() {
        for count in [1_u32, 10, 1_000] {
            let samples = (0..count).flat_map(|offset| [0, 1].map(|metric| Sample { value: 1.5, offset, metric }));
            let contents = Contents::new(vec!["a.b".into(), "temperature".into()], samples.collect());
            let encoded = Encoder::build(|fields| {
                encode_stats(fields, "stats", &contents.stats(Hour(0)));
                encode_readings(fields, "readings", Hour(0), &contents);
            });
            let (size, exact) = (Size::of(&contents), encoded.as_bytes().len());
            assert_eq!(size.readings, count as usize);
            assert!(size.bytes + 32 >= exact && size.bytes < exact + 7 * size.readings, "{size:?} for {exact}");
        }
    }
}
