//! An open bucket: readings of one device and hour, in the order in which they were accepted.

use std::collections::HashMap;
use std::sync::Arc;

use super::names::Names;
use super::slots::Key;
use super::snapshot::BucketSnapshot;
use super::stream::{Arrived, Stream};
use super::{Hour, Position};
use crate::model::{Deletion, HourOffset, Keep};

/// The memory of a bucket and its device without the readings and the metadata.
///
/// It counts the structs and their places in slabs, indexes and queues.
pub(super) const FIXED_BYTES: u64 = 224;

/// The work of copying a piece of a stream, in the unit of [`super::ITEMS_PER_TURN`].
const ITEMS_PER_PIECE: usize = 8;

/// An open bucket: two cache lines. A reading changes the stream and some of the fields after it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct OpenBucket {
    stream: Stream,
    /// The names that the values refer to.
    pub(super) names: Arc<Names>,
    /// The first and the last instant of the readings.
    pub(super) span: (HourOffset, HourOffset),
    /// The number of readings that were accepted, repetitions included.
    pub(super) accepted: u32,
    /// Whether a write of the same device and hour is in flight, or a deletion is to be executed first. If
    /// not, the bucket is in the age queue.
    pub(super) is_blocked: bool,
    /// Whether it was opened after its hour had ended by the wall clock.
    pub(super) is_late: bool,
    pub(super) hour: Hour,
    pub(super) device: Key,
    pub(super) metadata: Option<Arc<str>>,
    /// The position of the first reading in the log.
    pub(super) position: Position,
    /// When the first reading was inserted.
    pub(super) since_ms: u64,
    /// The neighbours of the bucket in a list of the age queue.
    pub(super) older: Option<Key>,
    pub(super) newer: Option<Key>,
}

/// The readings of a bucket that a deletion leaves.
#[derive(Debug)]
pub(super) struct Remaining {
    stream: Stream,
    span: (HourOffset, HourOffset),
    pub(super) accepted: u32,
    /// The instants that lose a value, ascending, each once.
    pub(super) erased: Vec<HourOffset>,
}

impl BucketSnapshot {
    /// The readings that a deletion leaves; `None` if it removes no value.
    pub(super) fn without(&self, deletion: &Deletion) -> Option<Remaining> {
        let mut selected: HashMap<Key, bool> = HashMap::new();
        // Whether the next value that stays is the first of its reading, and whether the reading lost a
        // value.
        let (mut left, mut starts_reading, mut has_lost) = (Remaining::default(), false, false);
        self.stream.each(|Arrived { value, offset, metric, starts_reading: starts }| {
            starts_reading |= starts;
            has_lost &= !starts;
            let of_series =
                *selected.entry(metric).or_insert_with(|| deletion.series.matches(&self.names.name(metric).0));
            if of_series && deletion.has_instant(self.hour.instant_ms(offset)) {
                if !std::mem::replace(&mut has_lost, true) {
                    left.erased.push(offset);
                }
                return;
            }
            left.stream.push(offset, starts_reading, metric, value);
            left.accepted += u32::from(starts_reading);
            left.span = (left.span.0.min(offset), left.span.1.max(offset));
            starts_reading = false;
        });
        left.erased.sort_unstable();
        left.erased.dedup(); // a reading may be sent again
        (!left.erased.is_empty()).then_some(left)
    }
}

impl Default for Remaining {
    fn default() -> Self {
        Self { stream: Stream::default(), span: (HourOffset::MAX, 0), accepted: 0, erased: Vec::new() }
    }
}

impl OpenBucket {
    pub(super) fn new(
        device: Key,
        hour: Hour,
        names: Arc<Names>,
        position: Position,
        since_ms: u64,
        is_blocked: bool,
    ) -> Self {
        Self {
            stream: Stream::default(),
            names,
            span: (HourOffset::MAX, 0),
            accepted: 0,
            is_blocked,
            is_late: false,
            hour,
            device,
            metadata: None,
            position,
            since_ms,
            older: None,
            newer: None,
        }
    }

    /// Replaces the readings of the bucket. Returns the memory of the old ones, to be dropped without a lock.
    pub(super) fn replace(&mut self, with: Remaining) -> Stream {
        let Remaining { stream, span, accepted, .. } = with;
        (self.span, self.accepted) = (span, accepted);
        std::mem::replace(&mut self.stream, stream)
    }

    pub(super) fn bytes(&self) -> u64 {
        let metadata = self.metadata.as_ref().map_or(0, |text| text.len());
        FIXED_BYTES + (self.stream.bytes() + metadata) as u64
    }

    /// Reads the parts that [`Self::push`] changes, for the processor's caches.
    #[inline]
    pub(super) const fn touch(&self) -> usize {
        self.stream.pieces() + self.span.0 as usize
    }

    /// Reads the end of the stream, for the processor's caches.
    #[inline]
    pub(super) fn touch_values(&self) -> usize {
        self.stream.touch()
    }

    /// Adds a reading, and returns by how many bytes the bucket has grown.
    #[inline]
    pub(super) fn push(
        &mut self,
        metadata: Option<&str>,
        offset: HourOffset,
        values: impl Iterator<Item = (Key, f64)>,
    ) -> i64 {
        let (mut added, mut starts_reading) = (0, true);
        for (metric, value) in values {
            added += self.stream.push(offset, starts_reading, metric, value);
            starts_reading = false;
        }
        self.accepted += 1;
        self.span = (self.span.0.min(offset), self.span.1.max(offset));
        added as i64 + metadata.map_or(0, |metadata| self.set_metadata(metadata))
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

    /// Returns the work of [`Self::snapshot`], in the unit of [`super::ITEMS_PER_TURN`].
    pub(super) const fn snapshot_items(&self) -> usize {
        self.stream.pieces() * ITEMS_PER_PIECE
    }

    /// Returns the readings so far. Shares the sealed part of the stream and copies the rest.
    pub(super) fn snapshot(&self, keep: Keep) -> BucketSnapshot {
        BucketSnapshot {
            hour: self.hour,
            accepted: self.accepted,
            metadata: self.metadata.clone(),
            span: self.span,
            names: Arc::clone(&self.names),
            stream: self.stream.copy(),
            keep,
        }
    }

    /// Closes the bucket and returns its readings.
    pub(super) fn into_snapshot(self, keep: Keep) -> BucketSnapshot {
        let Self { hour, accepted, metadata, span, names, stream, .. } = self;
        BucketSnapshot { hour, accepted, metadata, span, names, stream: stream.into_packed(), keep }
    }
}
