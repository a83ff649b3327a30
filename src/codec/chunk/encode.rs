//! Encodes contents as chunks.

use std::borrow::Cow;

use zstd::bulk::Compressor;

use super::{MAX_BODY_BYTES, PLAIN, VERSION, ZSTD};
use crate::codec::{BlockEncoder, numbers};
use crate::model::{Contents, Sample};

/// Bodies with fewer bytes of names stay plain: blocks do not compress further.
const MIN_NAMES_BYTES: usize = 256;

/// The fastest level of zstd.
const ZSTD_LEVEL: i32 = 1;

/// Encodes contents as chunks. The grammar is on [`super::Chunk`].
pub struct ChunkEncoder {
    blocks: BlockEncoder,
    zstd: Compressor<'static>,
}

impl ChunkEncoder {
    /// Makes an encoder, which reuses its memory.
    ///
    /// # Errors
    /// When the compressor gets no memory.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { blocks: BlockEncoder::default(), zstd: Compressor::new(ZSTD_LEVEL)? })
    }

    /// Encodes `contents` as a chunk.
    pub fn encode(&mut self, contents: &Contents) -> Vec<u8> {
        let mut chunk = vec![VERSION, PLAIN];
        let body = chunk.len();
        let samples = put_names(contents, &mut chunk);
        let names_bytes = chunk.len() - body;
        self.blocks.encode(&samples, &mut chunk);
        // A longer body stays plain, so that the store refuses to write it. If it was compressed, the store
        // might take it, and no reader could decompress it.
        let is_compressible = names_bytes >= MIN_NAMES_BYTES && chunk.len() - body <= MAX_BODY_BYTES;
        let frame = is_compressible.then(|| self.zstd.compress(&chunk[body..]).ok()).flatten();
        match frame {
            Some(frame) if frame.len() < chunk.len() - body => {
                let mut compressed = vec![VERSION, ZSTD];
                numbers::put(&mut compressed, (chunk.len() - body) as u64);
                compressed.extend_from_slice(&frame);
                compressed
            }
            _ => chunk,
        }
    }
}

/// Appends the names of the metrics that have samples. In the returned samples, metrics are indexes into
/// these names.
fn put_names<'c>(contents: &'c Contents, out: &mut Vec<u8>) -> Cow<'c, [Sample]> {
    let metrics = contents.metrics();
    let mut is_used = vec![false; metrics.len()];
    contents.samples().iter().for_each(|sample| is_used[sample.metric as usize] = true);
    let mut places = Vec::with_capacity(metrics.len());
    let mut used = 0;
    for is_used in &is_used {
        places.push(used);
        used += u32::from(*is_used);
    }
    numbers::put(out, used.into());
    for (metric, _) in metrics.iter().zip(&is_used).filter(|(_, is_used)| **is_used) {
        numbers::put(out, metric.len() as u64);
        out.extend_from_slice(metric.as_bytes());
    }
    if used as usize == metrics.len() {
        return Cow::Borrowed(contents.samples());
    }
    contents.samples().iter().map(|sample| Sample { metric: places[sample.metric as usize], ..*sample }).collect()
}
