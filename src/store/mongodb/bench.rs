//! The encoding of a command by itself, for `benches`.

use std::sync::Arc;

use super::bucket;
use super::encode::Encoder;
use crate::model::BucketWrite;
use crate::store::noted_devices::NotedDevices;

/// The part of a store that a flush of known devices needs.
#[derive(Debug, Default)]
pub struct Flush(NotedDevices);

impl Flush {
    /// Makes the part with a device index that has all that these writes bring.
    #[must_use]
    pub fn after(writes: &[Arc<BucketWrite>]) -> Self {
        let flush = Self::default();
        flush.note(writes);
        flush
    }

    /// Brings the device index up to date, and encodes the statements.
    #[must_use]
    pub fn note_and_encode(&self, writes: &[Arc<BucketWrite>]) -> usize {
        self.note(writes);
        statements(writes)
    }

    fn note(&self, writes: &[Arc<BucketWrite>]) {
        let changes = self.0.changes(writes);
        changes.notes.iter().for_each(|note| self.0.confirm(&changes, note, true));
    }

    /// Checks that the device index has all that these writes bring, and encodes the statements of an
    /// `update` command that append them. Returns their length in bytes.
    ///
    /// # Panics
    /// If the index lacks anything.
    #[must_use]
    pub fn encode(&self, writes: &[Arc<BucketWrite>]) -> usize {
        assert!(self.0.changes(writes).notes.is_empty());
        statements(writes)
    }
}

fn statements(writes: &[Arc<BucketWrite>]) -> usize {
    let statements = Encoder::build(|command| {
        for (at, write) in writes.iter().enumerate() {
            command.document(at, |statement| bucket::bench::append_one(statement, at, write));
        }
    });
    statements.as_bytes().len()
}
