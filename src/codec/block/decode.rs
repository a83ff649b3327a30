//! Decodes blocks into samples.

use std::ops::Range;

use super::BLOCK_INSTANTS;
use super::integers::Integers;
use super::values::Values;
use crate::codec::error::TOO_MANY_VALUES;
use crate::codec::{ChunkError, VALUES_MAX, numbers};
use crate::common::cursor::Cursor;
use crate::model::{HourOffset, MS_PER_HOUR};

/// An iterator over consecutive blocks. It ends after an error.
#[derive(Debug)]
pub struct Blocks<'a> {
    bytes: &'a [u8],
}

impl<'a> Blocks<'a> {
    /// Reads the blocks in some bytes.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }
}

impl<'a> Iterator for Blocks<'a> {
    type Item = Result<Block<'a>, ChunkError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let mut cursor = Cursor::new(self.bytes);
        let block = Block::read(&mut cursor);
        self.bytes = if block.is_ok() { cursor.rest() } else { &[] };
        Some(block)
    }
}

/// The samples of at most 512 instants of an hour, by series.
///
/// # Grammar
/// Bytes of numbers are little-endian; bits are packed from the lowest of the first byte on.
/// ```text
/// blocks   = block{}                         the instants of a block follow those of the block before
/// block    = count:number series{count}      at least one series
/// series   = metric:number times column      metric: the difference to the metric of the series before
/// times    = number integers                 even: 2 * (count - 1), and the offsets, ascending
///          | number                          odd: 2 * place + 1: the times of the earlier series at this
///                                            place, which has times of its own
/// column   = scale:u8 raw? integers          scale 0 to 14: value = integer / 10^scale
///                                            scale 16 to 79: integers are the bits of the values without the
///                                            lowest scale - 16 bits, which are 0; in negative values, all
///                                            bits after the sign bit are inverted
///                                            + 128: with `raw`
/// raw      = count:number (distance:number f64){count}       the values at these places of the column
/// integers = shape:u8 start:signed step:signed patches? bits
///                                            shape: width of the residuals, 63 for 64 bits; + 64: the
///                                            prediction is a line; + 128: with `patches`
/// patches  = count:number (distance:number number){count}    the residuals at these places
/// bits     = width bits for each residual, and zeros to the next byte
/// distance = the number of places between this place and the one before, or the start
/// signed   = number in zigzag order (0, -1, 1, -2, ...)
/// number   = unsigned LEB128 of at most 64 bits
/// ```
/// An integer is its prediction plus its residual, which is in zigzag order. The first prediction is `start`.
/// Each further prediction is the integer before it plus `step`, or, for a line, the prediction before it
/// plus `step`. All sums are modulo 2^64.
#[derive(Debug)]
pub struct Block<'a> {
    /// The times of all series with times of their own, concatenated.
    offsets: Vec<HourOffset>,
    series: Vec<Encoded<'a>>,
}

#[derive(Debug)]
struct Encoded<'a> {
    metric: u32,
    /// The range of its times in [`Block::offsets`].
    times: Range<usize>,
    has_own_times: bool,
    values: Values<'a>,
}

impl<'a> Block<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Self, ChunkError> {
        let count = numbers::read(cursor)?;
        if count == 0 || count > cursor.rest().len() as u64 {
            return Err(ChunkError::Invalid("a block does not have as many series as it claims"));
        }
        let mut block = Self { offsets: Vec::new(), series: Vec::with_capacity((count as usize).min(64)) };
        for place in 0..count {
            block.read_series(cursor, place)?;
        }
        Ok(block)
    }

    fn read_series(&mut self, cursor: &mut Cursor<'a>, place: u64) -> Result<(), ChunkError> {
        let invalid = ChunkError::Invalid;
        let before = self.series.last().map_or(0, |series| series.metric);
        let difference = u32::try_from(numbers::read(cursor)?).ok().filter(|difference| place == 0 || *difference > 0);
        let metric = difference.and_then(|difference| before.checked_add(difference));
        let metric = metric.ok_or(invalid("the metrics of a block do not ascend"))?;
        let times = numbers::read(cursor)?;
        let has_own_times = times % 2 == 0;
        let times = if has_own_times {
            let count = times / 2 + 1;
            if count > BLOCK_INSTANTS as u64 {
                return Err(invalid("a series has too many values for a block"));
            }
            self.read_offsets(cursor, count as usize)?
        } else {
            let earlier = usize::try_from(times / 2).ok().and_then(|place| self.series.get(place));
            let earlier = earlier.filter(|earlier| earlier.has_own_times);
            earlier.ok_or(invalid("a series has the times of an unknown one"))?.times.clone()
        };
        let values = Values::read(cursor, times.len())?;
        self.series.push(Encoded { metric, times, has_own_times, values });
        Ok(())
    }

    fn read_offsets(&mut self, cursor: &mut Cursor<'a>, count: usize) -> Result<Range<usize>, ChunkError> {
        let start = self.offsets.len();
        if start + count > VALUES_MAX {
            return Err(TOO_MANY_VALUES);
        }
        let mut next = 0;
        self.offsets.reserve(count);
        for offset in Integers::read(cursor, count)? {
            if offset < next || offset >= MS_PER_HOUR {
                return Err(ChunkError::Invalid("its offsets do not ascend inside the hour"));
            }
            self.offsets.push(offset as HourOffset);
            next = offset + 1;
        }
        Ok(start..self.offsets.len())
    }

    /// The series, ascending by [`Series::metric`].
    pub fn series(&self) -> impl ExactSizeIterator<Item = Series<'_>> {
        self.series.iter().map(|encoded| Series { encoded, offsets: &self.offsets[encoded.times.clone()] })
    }
}

/// The samples of one series in a block.
#[derive(Debug, Clone, Copy)]
pub struct Series<'b> {
    encoded: &'b Encoded<'b>,
    offsets: &'b [HourOffset],
}

impl<'b> Series<'b> {
    /// The number of the series: [`Sample::metric`](crate::model::Sample::metric).
    #[must_use]
    pub const fn metric(&self) -> u32 {
        self.encoded.metric
    }

    /// The instants of the series, ascending.
    #[must_use]
    pub const fn offsets(&self) -> &'b [HourOffset] {
        self.offsets
    }

    /// The values of the series, one for each instant.
    pub fn values(&self) -> impl ExactSizeIterator<Item = f64> + use<'b> {
        self.encoded.values.clone()
    }

    /// The instants of the series with their values.
    pub fn samples(&self) -> impl ExactSizeIterator<Item = (HourOffset, f64)> + use<'b> {
        self.offsets.iter().copied().zip(self.values())
    }
}
