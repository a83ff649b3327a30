//! The encoding of a command by itself, for `benches`.

use std::sync::Arc;

use super::bucket;
use super::encode::Encoder;
use crate::model::BucketWrite;
use crate::store::noted_devices::NotedDevices;

/// The part of a store that a flush of known devices needs.
#[derive(Debug)]
pub struct Flush(NotedDevices);

impl Flush {
    /// The device index has all that these writes bring.
    #[must_use]
    pub fn after(writes: &[Arc<BucketWrite>]) -> Self {
        let noted = NotedDevices::default();
        let changes = noted.changes(writes);
        changes.notes.iter().for_each(|note| noted.confirm(&changes, note, true));
        Self(noted)
    }

    /// Checks that the device index has all that these writes bring, and encodes the statements of an
    /// `update` command that append them. Returns their length in bytes.
    ///
    /// # Panics
    /// If the index lacks anything.
    #[must_use]
    pub fn encode(&self, writes: &[Arc<BucketWrite>]) -> usize {
        assert!(self.0.changes(writes).notes.is_empty());
        let statements = Encoder::build(|command| {
            for (at, write) in writes.iter().enumerate() {
                command.document(at, |statement| bucket::bench::append_one(statement, at, write));
            }
        });
        statements.as_bytes().len()
    }
}
