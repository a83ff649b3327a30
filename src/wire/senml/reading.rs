//! The grouping of measurements into readings.

use std::{borrow::Cow, hash::BuildHasher};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use smallvec::SmallVec;

use super::{resolve::Measurement, units::DeviceTable};
use crate::{
    model::{is_usual_metric_name, series},
    wire::{Ignored, Incoming, Rejection, Sink, work},
};

/// Readings of up to this many values are passed on without an allocation.
const USUAL_VALUES: usize = 16;

/// Groups consecutive measurements with the same device and time, and passes them on as one reading.
///
/// A measurement that the sink might reject for its metric name or value is passed on alone, so that it
/// affects no other record. A repeated metric begins another reading: both have the same identity, so the
/// last one wins.
#[derive(Debug)]
pub(super) struct Readings<'p, S> {
    devices: &'p DeviceTable,
    max_metrics: usize,
    sink: &'p mut S,
    device: String,
    /// The number and the metadata of the device.
    owner: (Option<u32>, Option<&'p str>),
    ts_ms: Option<i64>,
    values: Values,
}

impl<'p, S: Sink> Readings<'p, S> {
    pub(super) fn new(devices: &'p DeviceTable, max_metrics: usize, sink: &'p mut S) -> Self {
        let (device, owner, values) = (String::new(), (None, None), Values::default());
        Self { devices, max_metrics, sink, device, owner, ts_ms: None, values }
    }

    pub(super) fn add(&mut self, measurement: &Measurement<'_>) {
        work::count(measurement.device.len());
        if self.device != measurement.device || self.ts_ms != measurement.ts_ms {
            self.emit();
            self.ts_ms = measurement.ts_ms;
        }
        if self.device != measurement.device {
            measurement.device.clone_into(&mut self.device);
            self.owner = self.devices.find(measurement.device);
        }
        let Measurement { metric, labels, .. } = measurement;
        if let Some(value) = measurement.value {
            if labels.is_empty() {
                self.push(metric, value);
            } else {
                self.push(&format!("{metric}{labels}"), value);
            }
        }
        if let Some(sum) = measurement.sum {
            self.push(&format!("{metric}_sum{labels}"), sum);
        }
    }

    pub(super) fn reject(&mut self, rejection: Rejection) {
        self.sink.reject(rejection);
    }

    /// Counts the unknown fields of a record.
    pub(super) fn ignore(&mut self, labels: &[Cow<'_, str>]) {
        for label in labels {
            self.sink.ignore(Ignored::UnknownKey, label);
        }
    }

    /// Whether the pack is refused in any case.
    pub(super) fn is_over(&self) -> bool {
        self.sink.is_over()
    }

    pub(super) fn finish(mut self) {
        self.emit();
    }

    fn push(&mut self, metric: &str, value: f64) {
        work::count(metric.len());
        let stands_alone =
            !value.is_finite() || !is_usual_metric_name(metric) && series::Series::parse(metric).is_err();
        if stands_alone || self.values.ends.len() >= self.max_metrics || !self.values.push(metric, value) {
            self.emit();
            self.values.push(metric, value);
        }
        if stands_alone {
            self.emit();
        }
    }

    fn emit(&mut self) {
        if self.values.ends.is_empty() {
            return;
        }
        let (owner, metadata) = self.owner;
        let values: SmallVec<[_; USUAL_VALUES]> =
            self.values.iter().map(|(name, value)| (Cow::Borrowed(name), value)).collect();
        self.sink.reading(Incoming {
            device: &self.device,
            metadata,
            owner,
            ts_ms: self.ts_ms,
            values: &values,
            measurement_bytes: 0,
        });
        drop(values);
        self.values.clear();
    }
}

/// Up to this many names are compared with each other; more are hashed.
const FEW: usize = 8;

/// The values of a reading, each metric once.
#[derive(Debug, Default)]
struct Values {
    /// The names of the metrics, concatenated.
    names: String,
    /// The end of each name, and its value.
    ends: Vec<(usize, f64)>,
    /// The indexes of the names, if there are more than [`FEW`].
    table: HashTable<usize>,
    hasher: RandomState,
}

impl Values {
    /// Adds a value unless its metric has one already.
    fn push(&mut self, name: &str, value: f64) -> bool {
        let count = self.ends.len();
        if count < FEW {
            work::count(self.names.len());
            if self.iter().any(|(other, _)| other == name) {
                return false;
            }
        } else {
            let places = if count == FEW { 0..count } else { count..count };
            for place in places {
                self.index(place);
            }
            if self.table.find(self.hasher.hash_one(name), |&place| self.name(place) == name).is_some() {
                return false;
            }
        }
        self.names.push_str(name);
        self.ends.push((self.names.len(), value));
        if count >= FEW {
            self.index(count);
        }
        true
    }

    fn index(&mut self, place: usize) {
        let Self { names, ends, table, hasher } = self;
        let hash = |place: usize| hasher.hash_one(slice(names, ends, place));
        table.insert_unique(hash(place), place, |&place| hash(place));
    }

    fn clear(&mut self) {
        self.names.clear();
        self.ends.clear();
        if !self.table.is_empty() {
            self.table.clear();
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        (0..).zip(&self.ends).map(|(place, &(_, value))| (self.name(place), value))
    }

    fn name(&self, place: usize) -> &str {
        slice(&self.names, &self.ends, place)
    }
}

fn slice<'a>(names: &'a str, ends: &[(usize, f64)], place: usize) -> &'a str {
    let start = if place == 0 { 0 } else { ends[place - 1].0 };
    &names[start..ends[place].0]
}
