//! How the readings of a bucket become bytes, and bytes become readings again.
//!
//! A bucket is stored as one or more chunks: each flush appends one. This room knows bytes and [`Contents`],
//! nothing of tables. Whatever bytes it is handed, it answers with contents or an error.

use std::io::Read;

use zstd::bulk::Compressor;

use crate::model::{Contents, HourOffset, MS_PER_HOUR, Metric};
use crate::store::hour_samples::HourSamples;

/// The format that [`Packer`] writes.
const VERSION: u8 = 1;
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;
const ON_EVERY_READING: u8 = 0;
const ON_SOME_READINGS: u8 = 1;

/// Bodies below this many bytes stay plain: there is little to win, and most chunks of a quiet device are
/// that small.
const PACK_FROM_BYTES: usize = 256;
/// The fastest level. Values are floating point numbers: higher levels cost several times more and win a few
/// percent.
const ZSTD_LEVEL: i32 = 1;
/// No chunk is larger than this when unpacked; SQLite keeps no larger value either.
const BODY_MAX_BYTES: u32 = 1_000_000_000;

/// Why bytes are not a chunk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ChunkError {
    #[error("version {0} is not known to this program")]
    Version(u8),
    #[error("it ends too early")]
    Truncated,
    #[error("{0}")]
    Invalid(&'static str),
}

/// Turns contents into chunks.
///
/// # Format, version 1
/// A version byte (1), a packing byte, then the body. Packing 0: the body as it is. Packing 1: the length of
/// the body as a number, then the body as one zstd frame. A *number* is an unsigned LEB128 of at most 32
/// bits.
///
/// The body:
/// 1. The number of metrics, then for each metric the length of its name and the name in UTF-8.
/// 2. The number of readings, then for each reading its offset into the hour in milliseconds, less that of
///    the reading before it. The first is counted from the start of the hour; all others are at least 1.
/// 3. For each metric a presence byte. 0: every reading has a value. 1: a bitmap follows, one bit per
///    reading, lowest bit first, in as many bytes as it takes. Then the values that are there, in time order,
///    as little-endian IEEE 754 doubles. All of them are finite.
pub(super) struct Packer {
    zstd: Compressor<'static>,
}

impl Packer {
    /// # Errors
    /// When there is no memory for the compressor.
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { zstd: Compressor::new(ZSTD_LEVEL)? })
    }

    /// The chunk that holds `contents`.
    pub(super) fn pack(&mut self, contents: &Contents) -> Vec<u8> {
        let body = body_of(contents);
        let packed = (body.len() >= PACK_FROM_BYTES).then(|| self.zstd.compress(&body).ok()).flatten();
        match packed {
            Some(packed) if packed.len() < body.len() => {
                let mut chunk = vec![VERSION, ZSTD];
                put_number(&mut chunk, body.len());
                chunk.extend_from_slice(&packed);
                chunk
            }
            _ => [&[VERSION, PLAIN], body.as_slice()].concat(),
        }
    }
}

fn body_of(contents: &Contents) -> Vec<u8> {
    let columns = columns_of(contents);
    let readings = contents.reading_count();
    let mut body = Vec::with_capacity(32 + contents.samples().len() * 10);
    put_number(&mut body, columns.len());
    for (metric, _) in &columns {
        put_number(&mut body, metric.len());
        body.extend_from_slice(metric.as_bytes());
    }
    put_number(&mut body, readings);
    let mut before = 0;
    for reading in contents.readings() {
        put_number(&mut body, (reading.offset - before) as usize);
        before = reading.offset;
    }
    for (_, column) in &columns {
        if column.values.len() == readings {
            body.push(ON_EVERY_READING);
        } else {
            body.push(ON_SOME_READINGS);
            body.extend_from_slice(&column.presence);
        }
        body.extend(column.values.iter().flat_map(|value| value.to_le_bytes()));
    }
    body
}

/// The values of one metric, and which readings have one.
#[derive(Clone)]
struct Column {
    presence: Vec<u8>,
    values: Vec<f64>,
}

/// The columns of the metrics that have values.
fn columns_of(contents: &Contents) -> Vec<(&Metric, Column)> {
    let empty = Column { presence: vec![0; contents.reading_count().div_ceil(8)], values: Vec::new() };
    let mut columns: Vec<_> = contents.metrics().iter().map(|metric| (metric, empty.clone())).collect();
    for (at, reading) in contents.readings().enumerate() {
        for sample in reading.samples {
            let (_, column) = &mut columns[sample.metric as usize];
            column.presence[at / 8] |= 1 << (at % 8);
            column.values.push(sample.value);
        }
    }
    columns.retain(|(_, column)| !column.values.is_empty());
    columns
}

fn put_number(out: &mut Vec<u8>, number: usize) {
    let mut rest = u32::try_from(number).expect("a bucket has far fewer than 2^32 of anything");
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Adds the samples of a chunk to those of its hour.
///
/// Takes as much memory as the chunk does when unpacked, and what `into` keeps.
///
/// # Errors
/// When `chunk` is not what [`Packer`] describes. Nothing of it was added then.
pub(super) fn unpack(chunk: &[u8], into: &mut HourSamples) -> Result<(), ChunkError> {
    let mut chunk = Cursor(chunk);
    match chunk.byte()? {
        VERSION => {}
        unknown => return Err(ChunkError::Version(unknown)),
    }
    match chunk.byte()? {
        PLAIN => unpack_body(chunk, into),
        ZSTD => {
            let length = chunk.number()?;
            unpack_body(Cursor(&unzstd(chunk.0, length)?), into)
        }
        _ => Err(ChunkError::Invalid("its packing is not known")),
    }
}

fn unpack_body(mut body: Cursor<'_>, into: &mut HourSamples) -> Result<(), ChunkError> {
    let metrics = read_metrics(&mut body, into)?;
    let offsets = read_offsets(&mut body)?;
    let mut columns = Vec::with_capacity(metrics.len());
    for metric in metrics {
        let column = PackedColumn::read(&mut body, metric.unwrap_or_default(), offsets.len())?;
        columns.extend(metric.map(|_| column));
    }
    if !body.0.is_empty() {
        return Err(ChunkError::Invalid("something follows its last column"));
    }
    for column in &columns {
        column.clone().check()?;
    }
    for (at, &offset) in offsets.iter().enumerate() {
        if offset >= into.window().end {
            break; // it moves back while samples arrive
        }
        for column in columns.iter_mut().filter(|column| column.is_present(at)) {
            into.push(offset, column.metric, column.next_value()?);
        }
    }
    Ok(())
}

/// The index of each metric of a body; `None`: it is not wanted.
fn read_metrics(body: &mut Cursor<'_>, into: &mut HourSamples) -> Result<Vec<Option<u32>>, ChunkError> {
    let count = body.count()?;
    let mut metrics = Vec::with_capacity(count);
    for _ in 0..count {
        let length = body.count()?;
        let name = std::str::from_utf8(body.take(length)?);
        let name = name.map_err(|_| ChunkError::Invalid("a metric name is not UTF-8"))?;
        metrics.push(into.metric(name, str::to_owned));
    }
    Ok(metrics)
}

fn read_offsets(body: &mut Cursor<'_>) -> Result<Vec<HourOffset>, ChunkError> {
    let count = body.count()?;
    let mut offsets: Vec<HourOffset> = Vec::with_capacity(count);
    for _ in 0..count {
        let delta = body.number()?;
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

#[derive(Clone)]
struct PackedColumn<'a> {
    metric: u32,
    /// `None` when every reading has a value.
    presence: Option<&'a [u8]>,
    values: std::slice::ChunksExact<'a, u8>,
}

impl<'a> PackedColumn<'a> {
    fn read(body: &mut Cursor<'a>, metric: u32, readings: usize) -> Result<Self, ChunkError> {
        let presence = match body.byte()? {
            ON_EVERY_READING => None,
            ON_SOME_READINGS => Some(body.take(readings.div_ceil(8))?),
            _ => return Err(ChunkError::Invalid("a presence byte is not known")),
        };
        let present = presence.map_or(readings, |bitmap| bitmap.iter().map(|byte| byte.count_ones() as usize).sum());
        let values = body.take(present * size_of::<f64>())?.chunks_exact(size_of::<f64>());
        Ok(Self { metric, presence, values })
    }

    /// Looks at every value.
    fn check(mut self) -> Result<(), ChunkError> {
        (0..self.values.len()).try_for_each(|_| self.next_value().map(drop))
    }

    fn is_present(&self, at: usize) -> bool {
        self.presence.is_none_or(|bitmap| bitmap[at / 8] & (1 << (at % 8)) != 0)
    }

    fn next_value(&mut self) -> Result<f64, ChunkError> {
        let bytes = self.values.next().ok_or(ChunkError::Truncated)?;
        let value = f64::from_le_bytes(bytes.try_into().map_err(|_| ChunkError::Truncated)?);
        if value.is_finite() { Ok(value) } else { Err(ChunkError::Invalid("a value is not finite")) }
    }
}

/// Unpacks a frame that claims to hold `length` bytes. The memory taken follows what really comes out of the
/// frame.
fn unzstd(frame: &[u8], length: u32) -> Result<Vec<u8>, ChunkError> {
    let damaged = |_| ChunkError::Invalid("its zstd frame is damaged");
    if length > BODY_MAX_BYTES {
        return Err(ChunkError::Invalid("it claims to be larger than a chunk can be"));
    }
    let decoder = zstd::stream::read::Decoder::with_buffer(frame).map_err(damaged)?;
    let mut body = Vec::new();
    decoder.take(u64::from(length) + 1).read_to_end(&mut body).map_err(damaged)?;
    if body.len() == length as usize { Ok(body) } else { Err(ChunkError::Invalid("its length is not what it claims")) }
}

/// What is left to read.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], ChunkError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(ChunkError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, ChunkError> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> Result<u32, ChunkError> {
        let mut number = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return u32::try_from(number).map_err(|_| ChunkError::Invalid("a number has more than 32 bits"));
            }
        }
        Err(ChunkError::Invalid("a number has more than 32 bits"))
    }

    /// The number of things that follow, each of at least one byte: a lie is found before memory is taken for
    /// it.
    fn count(&mut self) -> Result<usize, ChunkError> {
        let count = self.number()? as usize;
        if count <= self.0.len() { Ok(count) } else { Err(ChunkError::Truncated) }
    }
}

#[cfg(test)]
mod tests;
