//! An open bucket: readings of one device and hour in the order in which they were accepted.

use std::sync::Arc;

use super::names::Names;
use super::{Hour, Index, Position};
use crate::model::{BucketWrite, Contents, Keep, Metric, Sample};

/// Memory that a bucket and its device take besides the readings and the metadata: the structs, their places in slabs,
/// queues and tables, and the allocator's share.
const FIXED_BYTES: u64 = 200;

/// Set in [`Arrived::place`] of the first value of a reading. Offsets into the hour need 22 bits.
const STARTS_READING: u32 = 1 << 31;

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
    metadata: Option<Arc<str>>,
    arrived: Vec<Arrived>,
}

/// One value as it came: 16 bytes.
#[derive(Debug, Clone, Copy)]
struct Arrived {
    value: f64,
    /// The offset into the hour, and [`STARTS_READING`].
    place: u32,
    /// The metric's id in [`Names`].
    metric: u32,
}

impl OpenBucket {
    pub(super) const fn new(device: Index, hour: Hour, position: Position, since_ms: u64, serial: u32) -> Self {
        Self { device, hour, serial, accepted: 0, position, since_ms, metadata: None, arrived: Vec::new() }
    }

    pub(super) fn bytes(&self) -> u64 {
        let metadata = self.metadata.as_ref().map_or(0, |text| text.len());
        FIXED_BYTES + (self.arrived.capacity() * size_of::<Arrived>() + metadata) as u64
    }

    pub(super) fn push(&mut self, metadata: Option<&str>, offset: u32, values: impl Iterator<Item = (u32, f64)>) {
        let mut flag = STARTS_READING;
        for (metric, value) in values {
            if self.arrived.len() == self.arrived.capacity() {
                // Half again, not double: most of the memory of the process is here.
                self.arrived.reserve_exact((self.arrived.len() / 2).max(2));
            }
            self.arrived.push(Arrived { value, place: offset | flag, metric });
            flag = 0;
        }
        self.accepted += 1;
        if metadata.is_some() && metadata != self.metadata.as_deref() {
            self.metadata = metadata.map(Into::into);
        }
    }

    /// The metric ids in use.
    pub(super) fn metric_ids(&self) -> impl Iterator<Item = u32> {
        self.arrived.iter().map(|arrived| arrived.metric)
    }

    pub(super) fn contents(&self, names: &Names, keep: Keep) -> (Contents, Option<Arc<str>>) {
        let mut table = MetricTable::new(names);
        let samples = self.arrived.iter().map(|arrived| table.sample(arrived)).collect();
        (Contents::keeping(keep, table.metrics, samples), self.metadata.clone())
    }

    pub(super) fn to_write(&self, device: Arc<str>, names: &Names, keep: Keep) -> BucketWrite {
        let mut table = MetricTable::new(names);
        let arrived: Vec<_> =
            self.arrived.iter().map(|arrived| (table.sample(arrived), arrived.place & STARTS_READING != 0)).collect();
        BucketWrite::keeping(keep, device, self.hour, self.metadata.clone(), table.metrics, arrived)
    }
}

/// Numbers the metrics of one bucket from 0.
struct MetricTable<'a> {
    names: &'a Names,
    ids: Vec<u32>,
    metrics: Vec<Metric>,
    /// Where the metric after the last one stands: readings of one kind carry the same metrics in the same order.
    guess: usize,
}

impl<'a> MetricTable<'a> {
    const fn new(names: &'a Names) -> Self {
        Self { names, ids: Vec::new(), metrics: Vec::new(), guess: 0 }
    }

    fn sample(&mut self, arrived: &Arrived) -> Sample {
        let at =
            if self.ids.get(self.guess) == Some(&arrived.metric) { self.guess } else { self.number(arrived.metric) };
        self.guess = if at + 1 < self.ids.len() { at + 1 } else { 0 };
        Sample { value: arrived.value, offset: arrived.place & !STARTS_READING, metric: at as u32 }
    }

    fn number(&mut self, id: u32) -> usize {
        self.ids.iter().position(|&known| known == id).unwrap_or_else(|| {
            self.ids.push(id);
            self.metrics.push(self.names.name(id).clone());
            self.ids.len() - 1
        })
    }
}
