//! Bodies of version 1, which earlier versions of the program wrote.

use super::decode::{NOT_FINITE, count};
use crate::codec::{ChunkError, numbers};
use crate::common::cursor::Cursor;
use crate::model::{HourOffset, MS_PER_HOUR, Sample};

pub(super) const VERSION: u8 = 1;

/// Every reading has a value of the metric.
const ON_EVERY_READING: u8 = 0;
/// A bitmap says which readings have a value of the metric.
const ON_SOME_READINGS: u8 = 1;

/// Reads the samples of the metrics that have a number. `body` is after the names of the metrics.
///
/// # Grammar
/// Values are little-endian.
/// ```text
/// body   = metrics:number name{metrics} readings:number delta{readings} column{metrics}
/// delta  = number                          milliseconds since the previous reading, at least 1;
///                                          for the first reading, since the start of the hour
/// column = 0:u8 value{readings}            every reading has a value of the metric
///        | 1:u8 bitmap value{}             one value for each bit that is set
/// bitmap = u8{readings / 8, rounded up}    one bit for each reading, lowest bit first
/// value  = f64                             finite
/// ```
/// The columns are in the order of the names, and readings and values are in time order.
pub(super) fn samples(body: &mut Cursor<'_>, metrics: &[Option<u32>]) -> Result<Vec<Sample>, ChunkError> {
    let offsets = read_offsets(body)?;
    let mut samples = Vec::new();
    for metric in metrics {
        let column = Column::read(body, offsets.len())?;
        let Some(metric) = *metric else { continue };
        let values = offsets.iter().zip(column.values());
        samples.extend(values.filter_map(|(&offset, value)| Some(Sample { value: value?, offset, metric })));
    }
    if !body.rest().is_empty() {
        return Err(ChunkError::Invalid("something follows its last column"));
    }
    samples.sort_by_key(Sample::key); // merges the runs of the columns
    Ok(samples)
}

/// The values of one metric.
struct Column<'a> {
    readings: usize,
    /// `None`: every reading has a value.
    presence: Option<&'a [u8]>,
    values: &'a [[u8; 8]],
}

impl<'a> Column<'a> {
    fn read(body: &mut Cursor<'a>, readings: usize) -> Result<Self, ChunkError> {
        let presence = match body.array()? {
            [ON_EVERY_READING] => None,
            [ON_SOME_READINGS] => Some(body.take(readings.div_ceil(8))?),
            _ => return Err(ChunkError::Invalid("a presence byte is not known")),
        };
        let present = presence.map_or(readings, |bitmap| bitmap.iter().map(|byte| byte.count_ones() as usize).sum());
        let bytes = present.checked_mul(size_of::<f64>()).ok_or(ChunkError::Truncated)?;
        let (values, _) = body.take(bytes)?.as_chunks();
        if values.iter().all(|value| f64::from_le_bytes(*value).is_finite()) {
            Ok(Self { readings, presence, values })
        } else {
            Err(NOT_FINITE)
        }
    }

    /// The value of each reading in turn; `None`: the reading has no value of this metric.
    fn values(&self) -> impl Iterator<Item = Option<f64>> + use<'a> {
        let presence = self.presence;
        let mut values = self.values.iter().map(|value| f64::from_le_bytes(*value));
        (0..self.readings).map(move |at| {
            let is_present = presence.is_none_or(|bitmap| bitmap[at / 8] & (1 << (at % 8)) != 0);
            if is_present { values.next() } else { None }
        })
    }
}

fn read_offsets(body: &mut Cursor<'_>) -> Result<Vec<HourOffset>, ChunkError> {
    let count = count(body)?;
    let mut offsets: Vec<HourOffset> = Vec::with_capacity(count);
    for _ in 0..count {
        let delta = numbers::read(body)?;
        let offset = match offsets.last() {
            None => Some(delta),
            Some(before) if delta > 0 => delta.checked_add(u64::from(*before)),
            Some(_) => None,
        };
        match offset {
            Some(offset) if offset < MS_PER_HOUR.cast_unsigned() => offsets.push(offset as HourOffset),
            _ => return Err(ChunkError::Invalid("its offsets do not ascend inside the hour")),
        }
    }
    Ok(offsets)
}
