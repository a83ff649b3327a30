//! The making of a command by itself, to be measured.

use std::sync::Arc;

use super::bucket;
use super::encode::Encoder;
use crate::model::BucketWrite;

/// The statements of an `update` command that append these writes to their buckets, and how many bytes that
/// makes.
#[must_use]
pub fn encode(writes: &[Arc<BucketWrite>]) -> usize {
    let statements = Encoder::build(|command| {
        for (at, write) in writes.iter().enumerate() {
            command.document(at, |statement| bucket::bench::append_one(statement, at, write));
        }
    });
    statements.as_bytes().len()
}
