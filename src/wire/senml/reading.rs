//! Putting what records measure together as readings.

use std::borrow::Cow;

use super::{resolve::Measured, units::Metadata};
use crate::{
    model::check_metric_name,
    wire::{Incoming, Rejection, Sink},
};

/// Gathers measurements in a row that share device and time, and hands them on as one reading.
///
/// What the sink might refuse because of a metric's name or value is handed on by itself, so that it takes no other
/// record with it. A metric that comes again begins another reading: the identity is the same, so the last one wins.
#[derive(Debug)]
pub(super) struct Readings<'p, S> {
    metadata: &'p Metadata,
    max_metrics: usize,
    sink: &'p mut S,
    device: String,
    ts_ms: Option<i64>,
    values: Vec<(Cow<'static, str>, f64)>,
}

impl<'p, S: Sink> Readings<'p, S> {
    pub(super) const fn new(metadata: &'p Metadata, max_metrics: usize, sink: &'p mut S) -> Self {
        Self { metadata, max_metrics, sink, device: String::new(), ts_ms: None, values: Vec::new() }
    }

    pub(super) fn add(&mut self, measured: Measured<'_>) {
        if self.device != measured.device || self.ts_ms != measured.ts_ms {
            self.hand_on();
            self.device = measured.device;
            self.ts_ms = measured.ts_ms;
        }
        let sum = measured.sum.map(|sum| (format!("{}_sum", measured.metric), sum));
        if let Some(value) = measured.value {
            self.push(measured.metric, value);
        }
        if let Some((metric, sum)) = sum {
            self.push(metric, sum);
        }
    }

    pub(super) fn reject(&mut self, rejection: Rejection) {
        self.sink.reject(rejection);
    }

    pub(super) fn finish(mut self) {
        self.hand_on();
    }

    fn push(&mut self, metric: String, value: f64) {
        let stands_alone = !value.is_finite() || check_metric_name(&metric).is_err();
        let is_full = self.values.len() >= self.max_metrics;
        if stands_alone || is_full || self.values.iter().any(|(other, _)| *other == metric) {
            self.hand_on();
        }
        self.values.push((Cow::Owned(metric), value));
        if stands_alone {
            self.hand_on();
        }
    }

    fn hand_on(&mut self) {
        if self.values.is_empty() {
            return;
        }
        let metadata = self.metadata.get(&self.device).map(String::as_str);
        self.sink.reading(Incoming { device: &self.device, metadata, ts_ms: self.ts_ms, values: &self.values });
        self.values.clear();
    }
}
