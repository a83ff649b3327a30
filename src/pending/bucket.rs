//! An open bucket: readings of one device and hour, in the order in which they were accepted.

use std::sync::Arc;

use super::names::Names;
use super::slots::Key;
use super::snapshot::BucketSnapshot;
use super::{Hour, Position};
use crate::model::{HourOffset, Keep};

/// The memory of a bucket and its device without the readings and the metadata.
///
/// It counts the structs, their places in slabs, indexes and queues, and the allocator's share.
const FIXED_BYTES: u64 = 230;

/// The values of a full chunk: 64 KiB. Snapshots share full chunks.
pub(super) const CHUNK_VALUES: usize = 4_096;

/// The bit in [`Arrived::place`] of the first value of a reading. Offsets into the hour need 22 bits.
pub(super) const STARTS_READING: u32 = 1 << 31;

/// Values in the order in which they were accepted.
pub(super) type Chunk = Arc<Vec<Arrived>>;

#[derive(Debug)]
pub(super) struct OpenBucket {
    pub(super) device: Key,
    pub(super) hour: Hour,
    /// Whether a write of the same device and hour is in flight. If not, the bucket is in the age queue.
    pub(super) is_blocked: bool,
    /// The neighbours in the list of the age queue.
    pub(super) older: Option<Key>,
    pub(super) newer: Option<Key>,
    /// The number of readings.
    pub(super) accepted: u32,
    /// The position of the first reading in the log.
    pub(super) position: Position,
    /// When the first reading was inserted.
    pub(super) since_ms: u64,
    /// The names that the values refer to.
    pub(super) names: Arc<Names>,
    /// The first and the last instant of the readings.
    pub(super) span: (HourOffset, HourOffset),
    pub(super) metadata: Option<Arc<str>>,
    /// Full chunks, which a snapshot shares. Most buckets have none.
    full: Option<Box<FullChunks>>,
    /// The values after those of the full chunks. A snapshot copies them.
    arrived: Vec<Arrived>,
}

#[derive(Debug, Default)]
struct FullChunks(Vec<Chunk>);

/// One value as it was accepted: 16 bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub(super) value: f64,
    /// The offset into the hour, and [`STARTS_READING`].
    pub(super) place: u32,
    /// The metric's id in [`Names`].
    pub(super) metric: Key,
}

impl OpenBucket {
    pub(super) const fn new(
        device: Key,
        hour: Hour,
        names: Arc<Names>,
        position: Position,
        since_ms: u64,
        is_blocked: bool,
    ) -> Self {
        Self {
            device,
            hour,
            is_blocked,
            older: None,
            newer: None,
            accepted: 0,
            position,
            since_ms,
            names,
            span: (HourOffset::MAX, 0),
            metadata: None,
            full: None,
            arrived: Vec::new(),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        let metadata = self.metadata.as_ref().map_or(0, |text| text.len());
        let values = self.full_chunks().len() * CHUNK_VALUES + self.arrived.capacity();
        FIXED_BYTES + (values * size_of::<Arrived>() + metadata) as u64
    }

    /// Adds a reading, and returns by how many bytes the bucket has grown.
    #[inline]
    pub(super) fn push(
        &mut self,
        metadata: Option<&str>,
        offset: u32,
        values: impl Iterator<Item = (Key, f64)>,
    ) -> i64 {
        let before = self.arrived.capacity();
        let (mut chunked, mut flag) = (0, STARTS_READING);
        for (metric, value) in values {
            if self.arrived.len() == self.arrived.capacity() {
                chunked += self.grow();
            }
            self.arrived.push(Arrived { value, place: offset | flag, metric });
            flag = 0;
        }
        self.accepted += 1;
        self.span = (self.span.0.min(offset), self.span.1.max(offset));
        let metadata_bytes = metadata.map_or(0, |metadata| self.set_metadata(metadata));
        let values = (chunked + self.arrived.capacity()) as i64 - before as i64;
        values * size_of::<Arrived>() as i64 + metadata_bytes
    }

    /// Makes room for a value, and returns how many values moved into a full chunk.
    #[cold]
    fn grow(&mut self) -> usize {
        let len = self.arrived.len();
        if len >= CHUNK_VALUES {
            let chunk = Arc::new(std::mem::take(&mut self.arrived));
            self.full.get_or_insert_default().0.push(chunk);
            CHUNK_VALUES
        } else {
            // By a half, not to the double: most of the memory of the process is here.
            self.arrived.reserve_exact((len / 2).max(2).min(CHUNK_VALUES - len));
            0
        }
    }

    /// Sets the metadata, and returns by how many bytes it has added.
    fn set_metadata(&mut self, metadata: &str) -> i64 {
        let before = self.metadata.as_deref();
        if before == Some(metadata) {
            return 0;
        }
        let added = metadata.len() as i64 - before.map_or(0, str::len) as i64;
        self.metadata = Some(metadata.into());
        added
    }

    fn full_chunks(&self) -> &[Chunk] {
        self.full.as_ref().map_or(&[], |full| &full.0)
    }

    /// Returns how many values and chunks [`Self::snapshot`] touches.
    pub(super) fn snapshot_items(&self) -> usize {
        self.full_chunks().len() + self.arrived.len()
    }

    /// Returns the readings so far. Shares full chunks and copies the other values.
    pub(super) fn snapshot(&self, keep: Keep) -> BucketSnapshot {
        let mut chunks = self.full_chunks().to_vec();
        chunks.push(Arc::new(self.arrived.clone()));
        self.snapshot_of(chunks, keep)
    }

    /// Closes the bucket and returns its readings.
    pub(super) fn into_snapshot(mut self, keep: Keep) -> BucketSnapshot {
        let mut chunks = self.full.take().unwrap_or_default().0;
        chunks.push(Arc::new(std::mem::take(&mut self.arrived)));
        self.snapshot_of(chunks, keep)
    }

    fn snapshot_of(&self, chunks: Vec<Chunk>, keep: Keep) -> BucketSnapshot {
        BucketSnapshot {
            hour: self.hour,
            accepted: self.accepted,
            metadata: self.metadata.clone(),
            span: self.span,
            names: Arc::clone(&self.names),
            chunks,
            keep,
        }
    }
}
