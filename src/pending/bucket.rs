//! An open bucket: readings of one device and hour in the order in which they were accepted.

use std::sync::Arc;

use super::names::Names;
use super::snapshot::BucketSnapshot;
use super::{Hour, Index, Position};
use crate::model::{HourOffset, Keep};

/// Memory that a bucket and its device take besides the readings and the metadata: the structs, their places
/// in slabs, queues and tables, and the allocator's share.
const FIXED_BYTES: u64 = 230;

/// A chunk of values is full, and is shared from then on, when it has so many: 64 KiB.
pub(super) const CHUNK_VALUES: usize = 4_096;

/// Set in [`Arrived::place`] of the first value of a reading. Offsets into the hour need 22 bits.
pub(super) const STARTS_READING: u32 = 1 << 31;

/// Values in the order in which they were accepted.
pub(super) type Chunk = Arc<Vec<Arrived>>;

#[derive(Debug)]
pub(super) struct OpenBucket {
    pub(super) device: Index,
    pub(super) hour: Hour,
    /// Tells this bucket from others that had its place before.
    pub(super) serial: u32,
    /// How many readings came.
    pub(super) accepted: u32,
    /// Where the first reading stands in the log.
    pub(super) position: Position,
    /// When it came.
    pub(super) since_ms: u64,
    /// What the values' metrics are called.
    pub(super) names: Arc<Names>,
    /// The first and the last instant.
    pub(super) span: (HourOffset, HourOffset),
    pub(super) metadata: Option<Arc<str>>,
    /// Full chunks, which a snapshot shares. Most buckets have none.
    full: Option<Box<FullChunks>>,
    /// The values behind those of the full chunks, which a snapshot copies.
    arrived: Vec<Arrived>,
}

#[derive(Debug, Default)]
struct FullChunks(Vec<Chunk>);

/// One value as it came: 16 bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub(super) value: f64,
    /// The offset into the hour, and [`STARTS_READING`].
    pub(super) place: u32,
    /// The metric's id in [`Names`].
    pub(super) metric: u32,
}

impl OpenBucket {
    pub(super) const fn new(
        device: Index,
        hour: Hour,
        names: Arc<Names>,
        position: Position,
        since_ms: u64,
        serial: u32,
    ) -> Self {
        Self {
            device,
            hour,
            serial,
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

    pub(super) fn push(&mut self, metadata: Option<&str>, offset: u32, values: impl Iterator<Item = (u32, f64)>) {
        let mut flag = STARTS_READING;
        for (metric, value) in values {
            if self.arrived.len() == self.arrived.capacity() {
                self.grow();
            }
            self.arrived.push(Arrived { value, place: offset | flag, metric });
            flag = 0;
        }
        self.accepted += 1;
        self.span = (self.span.0.min(offset), self.span.1.max(offset));
        if metadata.is_some() && metadata != self.metadata.as_deref() {
            self.metadata = metadata.map(Into::into);
        }
    }

    fn grow(&mut self) {
        let len = self.arrived.len();
        if len >= CHUNK_VALUES {
            let chunk = Arc::new(std::mem::take(&mut self.arrived));
            self.full.get_or_insert_default().0.push(chunk);
        } else {
            // Half again, not double: most of the memory of the process is here.
            self.arrived.reserve_exact((len / 2).max(2).min(CHUNK_VALUES - len));
        }
    }

    fn full_chunks(&self) -> &[Chunk] {
        self.full.as_ref().map_or(&[], |full| &full.0)
    }

    /// What a [`Self::snapshot`] costs: how many values and chunks are touched.
    pub(super) fn snapshot_items(&self) -> usize {
        self.full_chunks().len() + self.arrived.len()
    }

    /// The bucket as it is now. Full chunks are shared, and not copied.
    pub(super) fn snapshot(&self, keep: Keep) -> BucketSnapshot {
        let mut chunks = self.full_chunks().to_vec();
        chunks.push(Arc::new(self.arrived.clone()));
        self.snapshot_of(chunks, keep)
    }

    /// The bucket as it is in the end.
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
