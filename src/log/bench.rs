//! Encoding and decoding of records, for benchmarks.

use super::{Batch, Position, record};

/// Encodes the record of a batch.
#[must_use]
pub fn encode(batch: &Batch) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(record::encoded_bytes(batch.payload()));
    record::encode(&mut bytes, Position(64), Position(64), batch.kind(), batch.readings(), batch.payload());
    bytes
}

/// Checks a record, and returns the length of its payload.
#[must_use]
pub fn decode(bytes: &[u8]) -> usize {
    record::decode(bytes, Position(64)).expect("whole").1.len()
}
