//! Records by themselves, to be measured.

use super::{Batch, Position, record};

/// The record of a batch.
#[must_use]
pub fn encode(batch: &Batch) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(record::encoded_bytes(batch.payload()));
    record::encode(&mut bytes, Position(64), Position(64), batch.readings(), batch.payload());
    bytes
}

/// Checks a record and finds its payload, which is so long.
#[must_use]
pub fn decode(bytes: &[u8]) -> usize {
    record::decode(bytes, Position(64)).expect("whole").1.len()
}
