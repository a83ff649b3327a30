//! Invariants fuzzed on the bytes of chunks, blocks and columns of MongoDB.

use std::collections::HashSet;

use super::bson_column::{ColumnEncoder, Dates, Doubles};
use super::{Block, BlockEncoder, Blocks, Chunk, ChunkEncoder, ChunkError};
use crate::model::{Contents, Metric, Sample};

/// Checks a chunk: its contents stay the same when they are encoded and decoded again.
pub fn chunk(bytes: &[u8]) {
    if let Ok(contents) = decode(bytes) {
        let again = ChunkEncoder::new().expect("memory").encode(&contents);
        assert_eq!(decode(&again), Ok(contents), "encoded and decoded again");
    }
}

/// Checks blocks: samples stay the same when they are encoded and decoded again, and a byte stands for a
/// bounded number of samples.
pub fn blocks(bytes: &[u8]) {
    let (mut encoder, mut count) = (BlockEncoder::default(), 0);
    for block in Blocks::new(bytes).map_while(Result::ok) {
        let (samples, mut encoded) = (samples_of(&block), Vec::new());
        encoder.encode(&samples, &mut encoded);
        let again: Vec<Sample> = Blocks::new(&encoded).flat_map(|block| samples_of(&block.expect("a block"))).collect();
        assert!(same_bits(&samples, &again), "encoded and decoded again");
        count += samples.len();
    }
    assert!(count <= 100 * bytes.len(), "{count} samples of {} bytes", bytes.len());
}

/// Checks a column of MongoDB: values stay the same when they are encoded and decoded again, and a byte
/// stands for a bounded number of values.
pub fn bson_column(bytes: &[u8]) {
    let (mut encoder, most) = (ColumnEncoder::new(), 256 * bytes.len());
    let (mut dates, mut again) = (Vec::new(), Vec::new());
    dates.extend(Dates::new(bytes).map_while(Result::ok).flatten());
    assert!(dates.len() <= most, "{} dates of {} bytes", dates.len(), bytes.len());
    encoder.dates(dates.iter().copied(), &mut again);
    assert_eq!(Dates::new(&again).collect::<Result<Option<Vec<_>>, _>>(), Ok(Some(dates)));
    let (mut doubles, mut again) = (Vec::new(), Vec::new());
    doubles.extend(Doubles::new(bytes).map_while(Result::ok));
    assert!(doubles.len() <= most, "{} doubles of {} bytes", doubles.len(), bytes.len());
    encoder.doubles(doubles.iter().copied(), &mut again);
    let bits = |value: Option<f64>| value.map(f64::to_bits);
    let decoded = Doubles::new(&again).map(|value| bits(value.expect("a double")));
    assert!(decoded.eq(doubles.into_iter().map(bits)), "encoded and decoded again");
}

/// The samples of a block, ascending by [`Sample::key`].
pub(super) fn samples_of(block: &Block<'_>) -> Vec<Sample> {
    let mut samples = Vec::new();
    for series in block.series() {
        let metric = series.metric();
        samples.extend(series.samples().map(|(offset, value)| Sample { value, offset, metric }));
    }
    samples.sort_by_key(Sample::key);
    samples
}

/// Whether samples have the same identities and the same bits of values.
pub(super) fn same_bits(one: &[Sample], other: &[Sample]) -> bool {
    let is_same =
        |(one, other): (&Sample, &Sample)| one.key() == other.key() && one.value.to_bits() == other.value.to_bits();
    one.len() == other.len() && one.iter().zip(other).all(is_same)
}

/// Decodes a chunk, and checks that its samples are in proportion to its body. If the chunk names a metric
/// twice, this returns the samples of the first.
pub(super) fn decode(bytes: &[u8]) -> Result<Contents, ChunkError> {
    let chunk = Chunk::decompress(bytes)?;
    let (mut known, mut names) = (HashSet::new(), Vec::new());
    let samples = chunk.samples(|name| {
        let metric = u32::try_from(names.len()).expect("fewer than the bytes");
        known.insert(name.to_owned()).then(|| names.push(Metric::from(name)))?;
        Some(metric)
    })?;
    assert!(samples.is_sorted_by(|a, b| a.key() < b.key()), "samples ascend");
    assert!(samples.len() <= 100 * chunk.bytes(), "{} samples of {} bytes", samples.len(), chunk.bytes());
    Ok(Contents::new(names, samples))
}
