//! What is pending at one moment, to be read without the lock of pending.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use foldhash::fast::FixedState;

use super::bucket::{Arrived, Chunk, STARTS_READING};
use super::names::Names;
use super::{HourSlot, ITEMS_PER_TURN, Pending, key};
use crate::model::{BucketWrite, Contents, Hour, HourOffset, Keep, Metric, Sample};

/// The readings of one bucket at one moment, in the order in which they were accepted. Cheap to make; what is
/// asked of it is computed then.
#[derive(Debug)]
pub struct BucketSnapshot {
    /// The hour.
    pub hour: Hour,
    /// How many readings were accepted.
    pub accepted: u32,
    pub(super) metadata: Option<Arc<str>>,
    pub(super) span: (HourOffset, HourOffset),
    pub(super) names: Arc<Names>,
    pub(super) chunks: Vec<Chunk>,
    /// Which of several values of one identity stays.
    pub(super) keep: Keep,
}

impl BucketSnapshot {
    /// How many values there are, repetitions included.
    #[must_use]
    pub fn values(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.len()).sum()
    }

    /// The readings, each identity once.
    #[must_use]
    pub fn contents(&self) -> Contents {
        let mut table = Numbering::new(&self.names);
        let samples = self.arrived().map(|arrived| table.sample(arrived)).collect();
        Contents::keeping(self.keep, table.metrics, samples)
    }

    /// The write that brings the readings to the store.
    #[must_use]
    pub fn to_write(&self, device: Arc<str>) -> BucketWrite {
        let mut table = Numbering::new(&self.names);
        let arrived: Vec<_> =
            self.arrived().map(|arrived| (table.sample(arrived), arrived.place & STARTS_READING != 0)).collect();
        BucketWrite::keeping(self.keep, device, self.hour, self.metadata.clone(), table.metrics, arrived)
    }

    /// The metrics that have values.
    fn metrics(&self) -> Vec<Metric> {
        let mut table = Numbering::new(&self.names);
        self.arrived().for_each(|arrived| _ = table.sample(arrived));
        table.metrics
    }

    fn arrived(&self) -> impl Iterator<Item = &Arrived> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }
}

/// What is pending of one hour of a device at one moment.
#[derive(Debug, Clone)]
pub struct PendingHour {
    /// The hour.
    pub hour: Hour,
    /// What is on its way to the store.
    pub(super) flying: Option<Arc<BucketSnapshot>>,
    /// What came after that.
    pub(super) open: Option<Arc<BucketSnapshot>>,
}

impl PendingHour {
    /// How many values there are, repetitions included.
    #[must_use]
    pub fn values(&self) -> usize {
        self.parts().map(BucketSnapshot::values).sum()
    }

    /// The readings, those in flight included.
    #[must_use]
    pub fn contents(&self) -> Contents {
        match (&self.flying, &self.open) {
            (Some(flying), Some(open)) => flying.contents().merge(&open.contents()),
            (Some(only), None) | (None, Some(only)) => only.contents(),
            (None, None) => Contents::default(),
        }
    }

    /// The metrics that have values, sorted by name.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics: Vec<Metric> = self.parts().flat_map(BucketSnapshot::metrics).collect();
        metrics.sort_unstable();
        metrics.dedup();
        metrics
    }

    /// The first and the last instant, in Unix milliseconds.
    #[must_use]
    pub fn span_ms(&self) -> (i64, i64) {
        let first = self.parts().map(|part| part.span.0).min().unwrap_or_default();
        let last = self.parts().map(|part| part.span.1).max().unwrap_or_default();
        (self.hour.instant_ms(first), self.hour.instant_ms(last))
    }

    /// For each write that the hour becomes, in their order: its last instant, in Unix milliseconds, and its
    /// metadata.
    pub fn metadata(&self) -> impl Iterator<Item = (i64, Option<&Arc<str>>)> {
        self.parts().map(|part| (self.hour.instant_ms(part.span.1), part.metadata.as_ref()))
    }

    fn parts(&self) -> impl Iterator<Item = &BucketSnapshot> {
        self.flying.iter().chain(&self.open).map(|part| &**part)
    }
}

impl Pending {
    /// What is pending of a device in a range of hours, ascending: as much as one turn allows, at least one
    /// hour. The rest is to be asked for from the hour on that is returned.
    pub fn hours(&self, device: &str, hours: Range<Hour>) -> (Vec<PendingHour>, Option<Hour>) {
        let Some(device) = self.find_device(device) else { return (Vec::new(), None) };
        let slots = &self.devices[device].hours;
        let from = slots.partition_point(|slot| slot.hour < hours.start);
        let (mut found, mut items) = (Vec::new(), 0);
        for slot in slots[from..].iter().take_while(|slot| slot.hour < hours.end) {
            if items >= ITEMS_PER_TURN {
                return (found, Some(slot.hour));
            }
            let (hour, touched) = self.snapshot(slot);
            items += touched;
            found.push(hour);
        }
        (found, None)
    }

    /// The last hour of a device that has something pending.
    pub fn last_hour(&self, device: &str) -> Option<Hour> {
        self.devices[self.find_device(device)?].hours.last().map(|slot| slot.hour)
    }

    /// What is pending of an hour, and how many values and chunks were touched to tell.
    pub(super) fn snapshot(&self, slot: &HourSlot) -> (PendingHour, usize) {
        let open = slot.open.map(|bucket| &self.open[key(bucket)]);
        let hour = PendingHour {
            hour: slot.hour,
            flying: slot.flight.map(|flight| Arc::clone(&self.flights[key(flight)].bucket)),
            open: open.map(|bucket| Arc::new(bucket.snapshot(self.keep))),
        };
        (hour, 1 + open.map_or(0, super::bucket::OpenBucket::snapshot_items))
    }
}

/// Numbers the metrics of one bucket from 0.
struct Numbering<'a> {
    names: &'a Names,
    /// Ids in [`Names`], by number.
    ids: Vec<u32>,
    /// Numbers by id.
    numbers: HashMap<u32, u32, FixedState>,
    metrics: Vec<Metric>,
    /// The number after the last one: readings of one kind carry the same metrics in the same order.
    guess: usize,
}

impl<'a> Numbering<'a> {
    fn new(names: &'a Names) -> Self {
        Self { names, ids: Vec::new(), numbers: HashMap::default(), metrics: Vec::new(), guess: 0 }
    }

    fn sample(&mut self, arrived: &Arrived) -> Sample {
        let at =
            if self.ids.get(self.guess) == Some(&arrived.metric) { self.guess } else { self.number(arrived.metric) };
        self.guess = if at + 1 < self.ids.len() { at + 1 } else { 0 };
        Sample { value: arrived.value, offset: arrived.place & !STARTS_READING, metric: at as u32 }
    }

    fn number(&mut self, id: u32) -> usize {
        let number = *self.numbers.entry(id).or_insert_with(|| {
            self.ids.push(id);
            self.metrics.push(self.names.name(id));
            self.ids.len() as u32 - 1
        });
        number as usize
    }
}
