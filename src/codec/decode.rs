//! Chunks to columns.

use std::borrow::Cow;
use std::io::Read;

use super::{MAX_BODY_BYTES, ON_EVERY_READING, ON_SOME_READINGS, PLAIN, VERSION, ZSTD};
use crate::common::cursor::{Cursor, EndOfBytes};
use crate::model::{HourOffset, MS_PER_HOUR};

/// The largest window of a zstd frame, as a power of two: 8 MiB. The decoder allocates the window that a
/// frame claims. [`super::ChunkEncoder`] writes frames with a window of at most 512 KiB.
const MAX_WINDOW_LOG: u32 = 23;

/// The bytes are not a chunk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// A newer program wrote the chunk.
    #[error("version {0} is not known to this program")]
    Version(u8),
    /// The chunk, or one of its parts, is cut off.
    #[error("it ends too early")]
    Truncated,
    /// The chunk breaks its grammar.
    #[error("{0}")]
    Invalid(&'static str),
}

impl From<EndOfBytes> for ChunkError {
    fn from(_: EndOfBytes) -> Self {
        Self::Truncated
    }
}

/// A chunk, with its body decompressed.
///
/// # Grammar
/// Version 1; values are little-endian.
/// ```text
/// chunk  = version:u8 packing:u8 data      version: 1
/// data   = body                            packing 0: plain
///        | len:number frame                packing 1: a zstd frame of the body, which has `len` bytes
/// body   = metrics:number name{metrics} readings:number delta{readings} column{metrics}
/// name   = len:number bytes{len}           a metric name in UTF-8
/// delta  = number                          milliseconds since the previous reading, at least 1;
///                                          for the first reading, since the start of the hour
/// column = 0:u8 value{readings}            every reading has a value of the metric
///        | 1:u8 bitmap value{}             one value for each bit that is set
/// bitmap = u8{readings / 8, rounded up}    one bit for each reading, lowest bit first
/// value  = f64                             finite
/// number = u8{1,5}                         unsigned LEB128 of at most 32 bits
/// ```
/// The columns are in the order of the names, and readings and values are in time order.
#[derive(Debug)]
pub struct Chunk<'a> {
    body: Cow<'a, [u8]>,
}

impl<'a> Chunk<'a> {
    /// Decompresses a chunk. A plain chunk is not copied.
    ///
    /// # Errors
    /// When the version or packing is unknown, or the frame is damaged.
    pub fn decompress(bytes: &'a [u8]) -> Result<Self, ChunkError> {
        let mut cursor = Cursor::new(bytes);
        let [version] = cursor.array()?;
        if version != VERSION {
            return Err(ChunkError::Version(version));
        }
        let body = match cursor.array()? {
            [PLAIN] => Cow::Borrowed(cursor.rest()),
            [ZSTD] => {
                let len = number(&mut cursor)?;
                Cow::Owned(decompress(cursor.rest(), len)?)
            }
            _ => return Err(ChunkError::Invalid("its packing is not known")),
        };
        Ok(Self { body })
    }

    /// The length of the body.
    #[cfg(any(test, fuzzing))]
    pub(super) fn bytes(&self) -> usize {
        self.body.len()
    }

    /// The readings of the chunk. Every length and value is checked.
    ///
    /// # Errors
    /// When the body breaks the grammar.
    pub fn readings(&self) -> Result<Readings<'_>, ChunkError> {
        let mut body = Cursor::new(&self.body);
        let metrics = read_metrics(&mut body)?;
        let offsets = read_offsets(&mut body)?;
        let columns = metrics.into_iter().map(|metric| Column::read(&mut body, metric, offsets.len()));
        let columns = columns.collect::<Result<_, _>>()?;
        if body.rest().is_empty() {
            Ok(Readings { offsets, columns })
        } else {
            Err(ChunkError::Invalid("something follows its last column"))
        }
    }
}

/// The readings of a chunk by metric.
#[derive(Debug)]
pub struct Readings<'a> {
    offsets: Vec<HourOffset>,
    columns: Vec<Column<'a>>,
}

impl<'a> Readings<'a> {
    /// The instants of the readings, ascending.
    pub fn offsets(&self) -> &[HourOffset] {
        &self.offsets
    }

    /// The columns, one for each metric.
    pub fn columns(&self) -> &[Column<'a>] {
        &self.columns
    }
}

/// The values of one metric.
#[derive(Debug)]
pub struct Column<'a> {
    metric: &'a str,
    readings: usize,
    /// `None`: every reading has a value.
    presence: Option<&'a [u8]>,
    values: &'a [[u8; 8]],
}

impl<'a> Column<'a> {
    fn read(body: &mut Cursor<'a>, metric: &'a str, readings: usize) -> Result<Self, ChunkError> {
        let presence = match body.array()? {
            [ON_EVERY_READING] => None,
            [ON_SOME_READINGS] => Some(body.take(readings.div_ceil(8))?),
            _ => return Err(ChunkError::Invalid("a presence byte is not known")),
        };
        let present = presence.map_or(readings, |bitmap| bitmap.iter().map(|byte| byte.count_ones() as usize).sum());
        let bytes = present.checked_mul(size_of::<f64>()).ok_or(ChunkError::Truncated)?;
        let (values, _) = body.take(bytes)?.as_chunks();
        if values.iter().all(|value| f64::from_le_bytes(*value).is_finite()) {
            Ok(Self { metric, readings, presence, values })
        } else {
            Err(ChunkError::Invalid("a value is not finite"))
        }
    }

    /// The name of the metric.
    pub const fn metric(&self) -> &'a str {
        self.metric
    }

    /// The value of each reading in turn; `None`: the reading has no value of this metric.
    pub fn values(&self) -> impl Iterator<Item = Option<f64>> + use<'a> {
        let presence = self.presence;
        let mut values = self.values.iter().map(|value| f64::from_le_bytes(*value));
        (0..self.readings).map(move |at| {
            let is_present = presence.is_none_or(|bitmap| bitmap[at / 8] & (1 << (at % 8)) != 0);
            if is_present { values.next() } else { None }
        })
    }
}

fn read_metrics<'a>(body: &mut Cursor<'a>) -> Result<Vec<&'a str>, ChunkError> {
    let count = count(body)?;
    let mut metrics = Vec::with_capacity(count);
    for _ in 0..count {
        let len = self::count(body)?;
        let name = std::str::from_utf8(body.take(len)?);
        metrics.push(name.map_err(|_| ChunkError::Invalid("a metric name is not UTF-8"))?);
    }
    Ok(metrics)
}

fn read_offsets(body: &mut Cursor<'_>) -> Result<Vec<HourOffset>, ChunkError> {
    let count = count(body)?;
    let mut offsets: Vec<HourOffset> = Vec::with_capacity(count);
    for _ in 0..count {
        let delta = number(body)?;
        let offset = match offsets.last() {
            None => Some(delta),
            Some(before) => before.checked_add(delta).filter(|offset| offset > before),
        };
        match offset {
            Some(offset) if i64::from(offset) < MS_PER_HOUR => offsets.push(offset),
            _ => return Err(ChunkError::Invalid("its offsets do not ascend inside the hour")),
        }
    }
    Ok(offsets)
}

fn number(cursor: &mut Cursor<'_>) -> Result<u32, ChunkError> {
    let mut number = 0;
    for shift in (0..35).step_by(7) {
        let [byte] = cursor.array()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return u32::try_from(number).map_err(|_| ChunkError::Invalid("a number has more than 32 bits"));
        }
    }
    Err(ChunkError::Invalid("a number has more than 32 bits"))
}

/// Reads how many items follow, each of at least one byte. A count beyond the bytes fails before it takes
/// memory.
fn count(cursor: &mut Cursor<'_>) -> Result<usize, ChunkError> {
    let count = usize::try_from(number(cursor)?).map_err(|_| ChunkError::Truncated)?;
    if count <= cursor.rest().len() { Ok(count) } else { Err(ChunkError::Truncated) }
}

/// Decompresses a frame that claims a body of `len` bytes. The memory follows the decompressed bytes, not the
/// claim.
fn decompress(frame: &[u8], len: u32) -> Result<Vec<u8>, ChunkError> {
    let damaged = |_| ChunkError::Invalid("its zstd frame is damaged");
    let len = usize::try_from(len).ok().filter(|len| *len <= MAX_BODY_BYTES);
    let len = len.ok_or(ChunkError::Invalid("it claims to be larger than a chunk can be"))?;
    let mut decoder = zstd::stream::read::Decoder::with_buffer(frame).map_err(damaged)?;
    decoder.window_log_max(MAX_WINDOW_LOG).map_err(damaged)?;
    let mut body = Vec::new();
    decoder.take(len as u64 + 1).read_to_end(&mut body).map_err(damaged)?;
    if body.len() == len { Ok(body) } else { Err(ChunkError::Invalid("its length is not what it claims")) }
}
