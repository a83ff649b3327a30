//! Contents to chunks.

use zstd::bulk::Compressor;

use super::{MAX_BODY_BYTES, ON_EVERY_READING, ON_SOME_READINGS, PLAIN, VERSION, ZSTD};
use crate::model::{Contents, Metric};

/// Shorter bodies stay plain: compression would save little, and most chunks of a quiet device are that
/// short.
const MIN_COMPRESSED_BYTES: usize = 256;

/// The fastest level. Values are floating-point numbers: higher levels cost several times the work and save a
/// few percent.
const ZSTD_LEVEL: i32 = 1;

/// Encodes contents as chunks. The grammar is on [`super::Chunk`].
pub struct ChunkEncoder {
    zstd: Compressor<'static>,
}

impl ChunkEncoder {
    /// Makes an encoder, which reuses the memory of its compressor.
    ///
    /// # Errors
    /// When the compressor gets no memory.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { zstd: Compressor::new(ZSTD_LEVEL)? })
    }

    /// The chunk that holds `contents`.
    pub fn encode(&mut self, contents: &Contents) -> Vec<u8> {
        let body = encode_body(contents);
        // A longer body stays plain, so that a store refuses it at once and not each reader later.
        let is_compressible = (MIN_COMPRESSED_BYTES..=MAX_BODY_BYTES).contains(&body.len());
        let frame = is_compressible.then(|| self.zstd.compress(&body).ok()).flatten();
        match frame {
            Some(frame) if frame.len() < body.len() => {
                let mut chunk = vec![VERSION, ZSTD];
                put_number(&mut chunk, body.len());
                chunk.extend_from_slice(&frame);
                chunk
            }
            _ => [&[VERSION, PLAIN], body.as_slice()].concat(),
        }
    }
}

fn encode_body(contents: &Contents) -> Vec<u8> {
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
    let mut rest = u32::try_from(number).expect("an hour has 3,600,000 instants, and metrics have 32-bit indexes");
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80); // the lowest eight bits
        rest >>= 7;
    }
    out.push(rest as u8);
}
