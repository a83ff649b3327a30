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
const FIXED_BYTES: u64 = 200;

/// The values of the first piece: a cache line.
const FIRST_PIECE_VALUES: usize = 4;

/// The most values of a piece: 64 KiB.
const PIECE_VALUES_MAX: usize = 4_096;

/// The memory of a full piece without its values.
const PIECE_BYTES: usize = size_of::<Piece>() + 2 * size_of::<usize>();

/// The bit in [`Arrived::place`] of the first value of a reading. Offsets into the hour need 22 bits.
pub(super) const STARTS_READING: u32 = 1 << 31;

/// An open bucket. A reading changes the fields at the beginning, which are in one or two cache lines.
#[derive(Debug)]
#[repr(C)]
pub(super) struct OpenBucket {
    /// The values after those of the full pieces. A snapshot copies them.
    arrived: Vec<Arrived>,
    /// The names that the values refer to.
    pub(super) names: Arc<Names>,
    /// The first and the last instant of the readings.
    pub(super) span: (HourOffset, HourOffset),
    /// The number of readings.
    pub(super) accepted: u32,
    /// Whether a write of the same device and hour is in flight. If not, the bucket is in the age queue.
    pub(super) is_blocked: bool,
    /// Whether it was opened before its hour began by the wall clock.
    pub(super) is_ahead: bool,
    pub(super) hour: Hour,
    pub(super) device: Key,
    /// The values before those in `arrived`.
    full: Option<Arc<Piece>>,
    pub(super) metadata: Option<Arc<str>>,
    /// The position of the first reading in the log.
    pub(super) position: Position,
    /// When the first reading was inserted.
    pub(super) since_ms: u64,
    /// The neighbours in the list of the age queue.
    pub(super) older: Option<Key>,
    pub(super) newer: Option<Key>,
}

/// A full piece of the values of a bucket, which snapshots share.
///
/// Each piece has twice as many values as the one before, up to a limit. So values never move, and no memory
/// is freed while a bucket grows.
#[derive(Debug)]
pub(super) struct Piece {
    values: Box<[Arrived]>,
    /// The piece before.
    before: Option<Arc<Self>>,
}

impl Piece {
    /// Returns this piece and those before it, the newest first.
    pub(super) fn chain(this: Option<&Arc<Self>>) -> impl Iterator<Item = &Self> {
        std::iter::successors(this.map(|piece| &**piece), |piece| piece.before.as_deref())
    }

    pub(super) const fn values(&self) -> &[Arrived] {
        &self.values
    }
}

impl Drop for Piece {
    /// Frees a long chain without recursion.
    fn drop(&mut self) {
        let mut next = self.before.take();
        while let Some(mut piece) = next.and_then(Arc::into_inner) {
            next = piece.before.take();
        }
    }
}

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
            arrived: Vec::new(),
            names,
            span: (HourOffset::MAX, 0),
            accepted: 0,
            is_blocked,
            is_ahead: false,
            hour,
            device,
            full: None,
            metadata: None,
            position,
            since_ms,
            older: None,
            newer: None,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        let metadata = self.metadata.as_ref().map_or(0, |text| text.len());
        let full: usize = Piece::chain(self.full.as_ref()).map(|piece| size_of_val(piece.values()) + PIECE_BYTES).sum();
        FIXED_BYTES + (full + self.arrived.capacity() * size_of::<Arrived>() + metadata) as u64
    }

    /// Reads the parts that [`Self::push`] changes, for the processor's caches.
    #[inline]
    pub(super) fn touch(&self) -> usize {
        self.arrived.len() + self.span.0 as usize
    }

    /// Reads the last value, for the processor's caches.
    #[inline]
    pub(super) fn touch_values(&self) -> usize {
        self.arrived.last().map_or(0, |value| value.place as usize)
    }

    /// Adds a reading, and returns by how many bytes the bucket has grown.
    #[inline]
    pub(super) fn push(
        &mut self,
        metadata: Option<&str>,
        offset: u32,
        values: impl Iterator<Item = (Key, f64)>,
    ) -> i64 {
        let (mut added, mut flag) = (0, STARTS_READING);
        for (metric, value) in values {
            if self.arrived.len() == self.arrived.capacity() {
                added += self.grow();
            }
            self.arrived.push(Arrived { value, place: offset | flag, metric });
            flag = 0;
        }
        self.accepted += 1;
        self.span = (self.span.0.min(offset), self.span.1.max(offset));
        added + metadata.map_or(0, |metadata| self.set_metadata(metadata))
    }

    /// Begins the next piece, and returns its memory in bytes.
    #[cold]
    fn grow(&mut self) -> i64 {
        let capacity = (2 * self.arrived.len()).clamp(FIRST_PIECE_VALUES, PIECE_VALUES_MAX);
        let arrived = std::mem::replace(&mut self.arrived, Vec::with_capacity(capacity));
        let bytes = capacity * size_of::<Arrived>();
        if arrived.is_empty() {
            return bytes as i64;
        }
        self.full = Some(Arc::new(Piece { values: arrived.into_boxed_slice(), before: self.full.take() }));
        (bytes + PIECE_BYTES) as i64
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

    /// Returns how many values [`Self::snapshot`] copies.
    pub(super) const fn snapshot_items(&self) -> usize {
        self.arrived.len()
    }

    /// Returns the readings so far. Shares full pieces and copies the other values.
    pub(super) fn snapshot(&self, keep: Keep) -> BucketSnapshot {
        BucketSnapshot {
            hour: self.hour,
            accepted: self.accepted,
            metadata: self.metadata.clone(),
            span: self.span,
            names: Arc::clone(&self.names),
            full: self.full.clone(),
            arrived: self.arrived.clone(),
            keep,
        }
    }

    /// Closes the bucket and returns its readings.
    pub(super) fn into_snapshot(self, keep: Keep) -> BucketSnapshot {
        let Self { hour, accepted, metadata, span, names, full, arrived, .. } = self;
        BucketSnapshot { hour, accepted, metadata, span, names, full, arrived, keep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_chain_is_freed_without_recursion() {
        let mut full = None;
        for _ in 0..200_000 {
            full = Some(Arc::new(Piece { values: Box::default(), before: full.take() }));
        }
        let shared = full.clone();
        drop(full);
        assert_eq!(Piece::chain(shared.as_ref()).count(), 200_000);
    }
}
