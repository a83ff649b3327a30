//! Snapshots of pending readings, to be read without the lock of pending.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use foldhash::fast::FixedState;

use super::bucket::OpenBucket;
use super::names::Names;
use super::slots::Key;
use super::stream::{self, Packed};
use super::{HourSlot, ITEMS_PER_BUCKET, ITEMS_PER_TURN, Pending};
use crate::model::{Arrivals, BucketWrite, Contents, Hour, HourOffset, Keep, Metric, Sample};

/// The readings of one bucket at one moment, in the order in which they were accepted.
///
/// It is cheap to make. Its methods do the sorting and merging.
#[derive(Debug)]
pub struct BucketSnapshot {
    /// The hour of the readings.
    pub hour: Hour,
    /// The number of readings that were accepted.
    pub accepted: u32,
    pub(super) metadata: Option<Arc<str>>,
    pub(super) span: (HourOffset, HourOffset),
    pub(super) names: Arc<Names>,
    pub(super) stream: Packed,
    /// Which of several values of one identity is kept.
    pub(super) keep: Keep,
}

impl BucketSnapshot {
    /// The number of values, repetitions included.
    #[must_use]
    pub const fn values(&self) -> usize {
        self.stream.values()
    }

    /// Returns the readings, each identity once.
    #[must_use]
    pub fn contents(&self) -> Contents {
        let (mut table, mut samples) = (Numbering::new(&self.names), Vec::with_capacity(self.values()));
        self.stream.each(|arrived| samples.push(table.sample(&arrived)));
        Contents::keeping(self.keep, table.metrics, samples)
    }

    /// Makes the write that stores the readings.
    #[must_use]
    pub fn to_write(&self, device: Arc<str>) -> BucketWrite {
        let (mut table, mut arrived) = (Numbering::new(&self.names), Arrivals::with_capacity(self.values()));
        self.stream.each(|value| arrived.push(table.sample(&value), value.starts_reading));
        BucketWrite::keeping(self.keep, device, self.hour, self.metadata.clone(), table.metrics, arrived)
    }

    /// The metrics that have values.
    fn metrics(&self) -> Vec<Metric> {
        let mut table = Numbering::new(&self.names);
        self.stream.each(|arrived| _ = table.sample(&arrived));
        table.metrics
    }
}

/// The pending readings of one device and hour at one moment.
#[derive(Debug, Clone)]
pub struct PendingHour {
    /// The hour of the readings.
    pub hour: Hour,
    /// The readings of the write in flight.
    pub(super) in_flight: Option<Arc<BucketSnapshot>>,
    /// The readings that were accepted after those in flight.
    pub(super) open: Option<Arc<BucketSnapshot>>,
}

impl PendingHour {
    /// The number of values, repetitions included.
    #[cfg(test)]
    #[must_use]
    pub fn values(&self) -> usize {
        self.parts().map(BucketSnapshot::values).sum()
    }

    /// Returns the readings, those in flight included, each identity once.
    #[must_use]
    pub fn contents(&self) -> Contents {
        match (&self.in_flight, &self.open) {
            (Some(in_flight), Some(open)) => in_flight.contents().merge(&open.contents()),
            (Some(only), None) | (None, Some(only)) => only.contents(),
            (None, None) => Contents::default(),
        }
    }

    /// Returns the metrics that have values, sorted by name.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics: Vec<Metric> = self.parts().flat_map(BucketSnapshot::metrics).collect();
        metrics.sort_unstable_by(|a, b| a.cmp(b).then_with(|| b.measurement().cmp(&a.measurement())));
        metrics.dedup(); // keeps the first metric of each text: the one with a measurement
        metrics
    }

    /// The first and the last instant, in Unix milliseconds.
    #[must_use]
    pub fn span_ms(&self) -> (i64, i64) {
        let first = self.parts().map(|part| part.span.0).min().unwrap_or_default();
        let last = self.parts().map(|part| part.span.1).max().unwrap_or_default();
        (self.hour.instant_ms(first), self.hour.instant_ms(last))
    }

    /// Returns the metadata that was accepted last.
    #[must_use]
    pub fn metadata(&self) -> Option<&Arc<str>> {
        self.parts().filter_map(|part| part.metadata.as_ref()).last()
    }

    fn parts(&self) -> impl Iterator<Item = &BucketSnapshot> {
        self.in_flight.iter().chain(&self.open).map(|part| &**part)
    }
}

impl Pending {
    /// Returns the pending hours of a device in a range, ascending: as many as one turn allows, at least one.
    ///
    /// If the turn ended before the range, the second value is the hour from which the caller goes on.
    pub fn hours(&self, device: &str, hours: Range<Hour>) -> (Vec<PendingHour>, Option<Hour>) {
        let Some(device) = self.find_device(device) else { return (Vec::new(), None) };
        let slots = &self.devices[device].hours;
        let (mut found, mut items) = (Vec::new(), 0);
        for slot in slots.from(hours.start).take_while(|slot| slot.hour < hours.end) {
            if items >= ITEMS_PER_TURN {
                return (found, Some(slot.hour));
            }
            let (hour, touched) = self.snapshot(slot);
            items += touched;
            found.push(hour);
        }
        (found, None)
    }

    /// Returns whether a device has pending readings in a range.
    pub fn has_hours(&self, device: &str, hours: &Range<Hour>) -> bool {
        let Some(device) = self.find_device(device) else { return false };
        let slots = &self.devices[device].hours;
        slots.from(hours.start).next().is_some_and(|slot| slot.hour < hours.end)
    }

    /// Takes a snapshot of an hour, and returns it with the work that it took.
    pub(super) fn snapshot(&self, slot: &HourSlot) -> (PendingHour, usize) {
        let open = slot.open.map(|bucket| &self.open[bucket]);
        let hour = PendingHour {
            hour: slot.hour,
            in_flight: slot.in_flight.map(|taken| Arc::clone(&self.in_flight[taken].bucket)),
            open: open.map(|bucket| Arc::new(bucket.snapshot(self.keep))),
        };
        (hour, ITEMS_PER_BUCKET + open.map_or(0, OpenBucket::snapshot_items))
    }
}

/// The most metrics among which a search takes less time than a table.
const FEW_METRICS: usize = 8;

/// Numbers the metrics of one bucket from 0.
struct Numbering<'a> {
    names: &'a Names,
    /// The id in [`Names`] of each number.
    ids: Vec<Key>,
    /// Numbers by id, if there are more than a few.
    numbers: HashMap<Key, u32, FixedState>,
    metrics: Vec<Metric>,
    /// The numbers of the metrics whose text several ids have.
    shared: HashMap<Metric, u32, FixedState>,
    /// The same numbers, by all ids of these texts but the first.
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

    fn sample(&mut self, arrived: &stream::Arrived) -> Sample {
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

    /// Numbers a new id. Ids with the same text share a number. The first id with a measurement decides the
    /// metric's measurement.
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
