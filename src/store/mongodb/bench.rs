//! The encoding of a command by itself, for `benches`.

use std::sync::Arc;

use super::bucket;
use super::encode::Encoder;
use crate::model::BucketWrite;

/// Encodes the statements of an `update` command that append these writes, and returns their length in bytes.
#[must_use]
pub fn encode(writes: &[Arc<BucketWrite>]) -> usize {
    let statements = Encoder::build(|command| {
        for (at, write) in writes.iter().enumerate() {
            command.document(at, |statement| bucket::bench::append_one(statement, at, write));
        }
    });
    statements.as_bytes().len()
}
