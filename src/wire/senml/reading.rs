//! The grouping of measurements into readings.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::{resolve::Measurement, units::DeviceTable};
use crate::{
    common::work,
    model::{is_usual_metric_name, series},
    wire::{Ignored, Incoming, Rejection, Sink, values::Values},
};

/// Readings of up to this many values are passed on without an allocation.
const USUAL_VALUES: usize = 16;

/// Passes on consecutive measurements with the same device and time as one reading.
///
/// A measurement that the sink might reject for its metric name or value is passed on alone, so that it
/// affects no other record. A repeated metric begins another reading. Both readings have the same identity,
/// so the last value wins.
#[derive(Debug)]
pub(super) struct Readings<'p, S> {
    devices: &'p DeviceTable,
    max_metrics: usize,
    sink: &'p mut S,
    device: String,
    /// The number and the metadata of the device.
    owner: (Option<u32>, Option<&'p str>),
    /// The time, and whether it counts from now.
    time: (Option<i64>, bool),
    values: Values,
}

impl<'p, S: Sink> Readings<'p, S> {
    pub(super) fn new(devices: &'p DeviceTable, max_metrics: usize, sink: &'p mut S) -> Self {
        let (device, owner, values) = (String::new(), (None, None), Values::default());
        Self { devices, max_metrics, sink, device, owner, time: (None, false), values }
    }

    pub(super) fn add(&mut self, measurement: &Measurement<'_>) {
        work::count(measurement.device.len());
        let time = (measurement.ts_ms, measurement.is_relative);
        if self.device != measurement.device || self.time != time {
            self.emit();
            self.time = time;
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
        if stands_alone || self.values.len() >= self.max_metrics || !self.values.push(metric, value) {
            self.emit();
            self.values.push(metric, value);
        }
        if stands_alone {
            self.emit();
        }
    }

    fn emit(&mut self) {
        if self.values.len() == 0 {
            return;
        }
        let ((owner, metadata), (ts_ms, is_relative)) = (self.owner, self.time);
        let values: SmallVec<[_; USUAL_VALUES]> =
            self.values.iter().map(|(name, value)| (Cow::Borrowed(name), value)).collect();
        if is_relative {
            self.sink.relative_time();
        }
        self.sink.reading(Incoming {
            device: &self.device,
            metadata,
            owner,
            ts_ms,
            values: &values,
            measurement_bytes: 0,
        });
        drop(values);
        self.values.clear();
    }
}
