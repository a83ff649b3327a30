//! Decodes chunks into samples.

use std::borrow::Cow;
use std::io::Read;

use super::{MAX_BODY_BYTES, PLAIN, VERSION, ZSTD};
use crate::codec::error::TOO_MANY_VALUES;
use crate::codec::{Blocks, ChunkError, VALUES_MAX, numbers};
use crate::common::cursor::Cursor;
use crate::model::Sample;

/// The largest window of a zstd frame, as a power of two: 8 MiB. The decoder allocates the window that a
/// frame claims. [`super::ChunkEncoder`] writes frames with a window of at most 512 KiB.
const MAX_WINDOW_LOG: u32 = 23;

/// A chunk, with its body decompressed.
///
/// # Grammar
/// The grammar of blocks is on [`crate::codec::Block`].
/// ```text
/// chunk  = version:u8 packing:u8 data                    version: 1
/// data   = body                                          packing 0: plain
///        | len:number frame                              packing 1: a zstd frame of the body of `len` bytes
/// body   = metrics:number name{metrics} blocks           the metric of a series is an index into them
/// name   = len:number bytes{len}                         a metric name in UTF-8
/// number = unsigned LEB128 of at most 64 bits
/// ```
/// All values are finite.
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
                let len = numbers::read(&mut cursor)?;
                Cow::Owned(decompress(cursor.rest(), len)?)
            }
            _ => return Err(ChunkError::Invalid("its packing is not known")),
        };
        Ok(Self { body })
    }

    /// The length of the decompressed body.
    #[cfg(any(test, fuzzing))]
    pub(in crate::codec) fn bytes(&self) -> usize {
        self.body.len()
    }

    /// The samples in time order. `metric_of` returns the number for the samples of a metric, or `None` to
    /// leave these samples out. All lengths and all returned values are checked.
    ///
    /// # Errors
    /// When the body breaks the grammar.
    pub fn samples(&self, metric_of: impl FnMut(&str) -> Option<u32>) -> Result<Vec<Sample>, ChunkError> {
        let mut body = Cursor::new(&self.body);
        let metrics: Vec<_> = read_names(&mut body)?.into_iter().map(metric_of).collect();
        samples_of_blocks(Blocks::new(body.rest()), &metrics)
    }
}

fn samples_of_blocks(blocks: Blocks<'_>, metrics: &[Option<u32>]) -> Result<Vec<Sample>, ChunkError> {
    let (mut samples, mut end) = (Vec::new(), 0);
    let mut values = 0;
    for block in blocks {
        let block = block?;
        values += block.series().map(|series| series.offsets().len()).sum::<usize>();
        if values > VALUES_MAX {
            return Err(TOO_MANY_VALUES);
        }
        let (start, start_offset) = (samples.len(), end);
        for series in block.series() {
            let metric = metrics.get(series.metric() as usize);
            let metric = metric.ok_or(ChunkError::Invalid("a series is of no metric of the chunk"))?;
            let offsets = series.offsets();
            if offsets.first().is_some_and(|first| *first < start_offset) {
                return Err(ChunkError::Invalid("its blocks are not in time order"));
            }
            end = offsets.last().map_or(end, |last| end.max(*last + 1));
            let Some(metric) = *metric else { continue };
            samples.extend(series.samples().map(|(offset, value)| Sample { value, offset, metric }));
        }
        if !samples[start..].iter().all(|sample| sample.value.is_finite()) {
            return Err(ChunkError::Invalid("a value is not finite"));
        }
        if block.series().len() > 1 {
            samples[start..].sort_by_key(Sample::key); // merges the runs of the series
        }
    }
    Ok(samples)
}

fn read_names<'b>(body: &mut Cursor<'b>) -> Result<Vec<&'b str>, ChunkError> {
    let metrics = count(body)?;
    let mut names = Vec::with_capacity(metrics);
    for _ in 0..metrics {
        let len = count(body)?;
        let name = std::str::from_utf8(body.take(len)?);
        names.push(name.map_err(|_| ChunkError::Invalid("a metric name is not UTF-8"))?);
    }
    Ok(names)
}

/// Reads how many items follow, each of at least one byte. A count beyond the bytes fails before it takes
/// memory.
fn count(cursor: &mut Cursor<'_>) -> Result<usize, ChunkError> {
    let count = usize::try_from(numbers::read(cursor)?).map_err(|_| ChunkError::Truncated)?;
    if count <= cursor.rest().len() { Ok(count) } else { Err(ChunkError::Truncated) }
}

/// Decompresses a frame that claims a body of `len` bytes. The memory follows the decompressed bytes, not the
/// claim.
fn decompress(frame: &[u8], len: u64) -> Result<Vec<u8>, ChunkError> {
    let damaged = |_| ChunkError::Invalid("its zstd frame is damaged");
    let len = usize::try_from(len).ok().filter(|len| *len <= MAX_BODY_BYTES);
    let len = len.ok_or(ChunkError::Invalid("it claims to be larger than a chunk can be"))?;
    let mut decoder = zstd::stream::read::Decoder::with_buffer(frame).map_err(damaged)?;
    decoder.window_log_max(MAX_WINDOW_LOG).map_err(damaged)?;
    let mut body = Vec::new();
    decoder.take(len as u64 + 1).read_to_end(&mut body).map_err(damaged)?;
    if body.len() == len { Ok(body) } else { Err(ChunkError::Invalid("its length is not what it claims")) }
}
