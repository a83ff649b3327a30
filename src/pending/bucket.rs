//! Buckets: the readings of one device and hour, in the order in which they were accepted.
//!
//! Readings are pushed into an [`OpenBucket`]. A query copies it, and a write closes it. Both get a
//! [`BucketSnapshot`], which shares the memory of most values and is read without the lock of pending.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;

use super::names::Names;
use super::slots::Key;
use super::stream::{Arrived, Packed, Stream};
use crate::log::Position;
use crate::model::{Arrivals, BucketWrite, Contents, Deletion, Hour, HourOffset, Keep, Metric, Sample};

/// The memory of a bucket and its device without the readings and the metadata.
///
/// It counts the structs and their places in slabs, indexes and queues.
pub(super) const FIXED_BYTES: u64 = 224;

/// The work of copying a piece of a stream, in the unit of [`super::ITEMS_PER_TURN`].
const ITEMS_PER_PIECE: usize = 8;

/// An open bucket: two cache lines.
///
/// A reading changes the stream and some of the fields after it.
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
    /// Whether the bucket was opened after its hour had ended by the wall clock.
    pub(super) is_late: bool,
    pub(super) hour: Hour,
    pub(super) device: Key,
    pub(super) metadata: Option<Arc<str>>,
    /// The position of the first reading in the log.
    pub(super) position: Position,
    /// When the first reading was inserted, in milliseconds of a monotonic clock.
    pub(super) since_ms: u64,
    /// The neighbours of the bucket in a list of the age queue.
    pub(super) older: Option<Key>,
    pub(super) newer: Option<Key>,
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

    /// Sets the metadata, and returns by how many bytes the bucket has grown.
    fn set_metadata(&mut self, metadata: &str) -> i64 {
        let before = self.metadata.as_deref();
        if before == Some(metadata) {
            return 0;
        }
        let added = metadata.len() as i64 - before.map_or(0, str::len) as i64;
        self.metadata = Some(metadata.into());
        added
    }

    /// Returns the readings so far.
    ///
    /// Shares the sealed part of the stream and copies the rest.
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

    /// Returns the work of [`Self::snapshot`], in the unit of [`super::ITEMS_PER_TURN`].
    pub(super) const fn snapshot_items(&self) -> usize {
        self.stream.pieces() * ITEMS_PER_PIECE
    }

    /// Replaces the readings of the bucket.
    ///
    /// Returns the old readings. The caller drops them without the lock of pending.
    pub(super) fn replace(&mut self, with: Remaining) -> Stream {
        let Remaining { stream, span, accepted, .. } = with;
        (self.span, self.accepted) = (span, accepted);
        std::mem::replace(&mut self.stream, stream)
    }

    /// The number of values, repetitions included.
    #[inline]
    pub(super) const fn values(&self) -> u32 {
        self.stream.values()
    }

    pub(super) fn bytes(&self) -> u64 {
        let metadata = self.metadata.as_ref().map_or(0, |text| text.len());
        FIXED_BYTES + (self.stream.bytes() + metadata) as u64
    }

    /// Reads the parts that [`Self::push`] changes, so that they are in the processor's caches.
    #[inline]
    pub(super) const fn touch(&self) -> usize {
        self.stream.pieces() + self.span.0 as usize
    }

    /// Reads the end of the stream, so that it is in the processor's caches.
    #[inline]
    pub(super) fn touch_values(&self) -> usize {
        self.stream.touch()
    }
}

/// The readings of one bucket at one moment, in the order in which they were accepted.
///
/// It is cheap to make. Its methods do the sorting and merging.
#[derive(Debug)]
pub(super) struct BucketSnapshot {
    /// The hour of the readings.
    hour: Hour,
    /// The number of readings that were accepted.
    pub(super) accepted: u32,
    pub(super) metadata: Option<Arc<str>>,
    pub(super) span: (HourOffset, HourOffset),
    names: Arc<Names>,
    stream: Packed,
    /// Which of several values of one identity is kept.
    keep: Keep,
}

impl BucketSnapshot {
    /// The number of values, repetitions included.
    pub(super) const fn values(&self) -> usize {
        self.stream.values()
    }

    /// Returns the readings, each identity once.
    pub(super) fn contents(&self) -> Contents {
        let (mut table, mut samples) = (Numbering::new(&self.names), Vec::with_capacity(self.values()));
        self.stream.each(|arrived| samples.push(table.sample(&arrived)));
        Contents::keeping(self.keep, table.metrics, samples)
    }

    /// Makes the write that stores the readings.
    pub(super) fn to_write(&self, device: Arc<str>) -> BucketWrite {
        let (mut table, mut arrived) = (Numbering::new(&self.names), Arrivals::with_capacity(self.values()));
        self.stream.each(|value| arrived.push(table.sample(&value), value.starts_reading));
        BucketWrite::keeping(self.keep, device, self.hour, self.metadata.clone(), table.metrics, arrived)
    }

    /// The metrics that have values.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let mut table = Numbering::new(&self.names);
        self.stream.each(|arrived| _ = table.sample(&arrived));
        table.metrics
    }

    /// The same bucket with the readings that a deletion leaves.
    pub(super) fn with(&self, left: Remaining) -> Self {
        let Remaining { stream, span, accepted, .. } = left;
        let (metadata, names, stream) = (self.metadata.clone(), Arc::clone(&self.names), stream.into_packed());
        Self { hour: self.hour, accepted, metadata, span, names, stream, keep: self.keep }
    }

    /// The readings that a deletion leaves; `None` if it removes no value.
    pub(super) fn without(&self, deletion: &Deletion) -> Option<Remaining> {
        let mut selected: HashMap<Key, bool> = HashMap::new();
        // `starts_reading`: the next value that stays is the first of its reading. `has_lost`: this reading
        // has lost a value.
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

/// The readings of a bucket that a deletion leaves.
#[derive(Debug)]
pub(super) struct Remaining {
    stream: Stream,
    span: (HourOffset, HourOffset),
    pub(super) accepted: u32,
    /// The instants that lose a value, ascending, each once.
    pub(super) erased: Vec<HourOffset>,
}

impl Default for Remaining {
    fn default() -> Self {
        Self { stream: Stream::default(), span: (HourOffset::MAX, 0), accepted: 0, erased: Vec::new() }
    }
}

/// Up to this many metrics, a search of the list takes less time than a hash table.
const FEW_METRICS: usize = 8;

/// Numbers the metrics of one bucket from 0.
struct Numbering<'a> {
    names: &'a Names,
    /// The id in [`Names`] of each number.
    ids: Vec<Key>,
    /// The numbers by id, if there are more than [`FEW_METRICS`].
    numbers: HashMap<Key, u32, FixedState>,
    metrics: Vec<Metric>,
    /// The numbers of the metrics whose text has several ids.
    shared: HashMap<Metric, u32, FixedState>,
    /// The numbers of these metrics by the second id of a text and by further ones. The first id is in `ids`.
    others: HashMap<Key, u32, FixedState>,
    /// The number to try first: readings of one kind have the same metrics in the same order.
    guess: usize,
}

impl<'a> Numbering<'a> {
    fn new(names: &'a Names) -> Self {
        Self {
            names,
            ids: Vec::new(),
            numbers: HashMap::default(),
            metrics: Vec::new(),
            shared: HashMap::default(),
            others: HashMap::default(),
            guess: 0,
        }
    }

    fn sample(&mut self, arrived: &Arrived) -> Sample {
        let at =
            if self.ids.get(self.guess) == Some(&arrived.metric) { self.guess } else { self.number(arrived.metric) };
        self.guess = if at + 1 < self.ids.len() { at + 1 } else { 0 };
        Sample { value: arrived.value, offset: arrived.offset, metric: at as u32 }
    }

    fn number(&mut self, id: Key) -> usize {
        let known = if self.ids.len() <= FEW_METRICS {
            self.ids.iter().position(|known| *known == id)
        } else {
            self.numbers.get(&id).map(|number| *number as usize)
        };
        known.or_else(|| self.others.get(&id).map(|number| *number as usize)).unwrap_or_else(|| self.add(id))
    }

    /// Numbers a new id.
    ///
    /// Ids with the same text share a number. The first id with a measurement decides the metric's
    /// measurement.
    fn add(&mut self, id: Key) -> usize {
        let (number, (metric, has_other_measurements)) = (self.ids.len(), self.names.name(id));
        if has_other_measurements {
            if let Some(&known) = self.shared.get(&metric) {
                self.others.insert(id, known);
                let first = &mut self.metrics[known as usize];
                if first.measurement().is_none() {
                    *first = metric;
                }
                return known as usize;
            }
            self.shared.insert(metric.clone(), number as u32);
        }
        self.ids.push(id);
        self.metrics.push(metric);
        if number >= FEW_METRICS {
            let new = self.numbers.len()..; // all of them when the table begins
            self.numbers.extend(self.ids[new.clone()].iter().copied().zip(new.start as u32..));
        }
        number
    }
}
