//! The grouping of samples into readings, for formats that send each sample by itself.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::{Code, Incoming, Rejection, Sink, problem::rejection, values::Values};
use crate::common::work;
use crate::model::{DEVICE_ID_MAX_BYTES, DeviceIdError};

/// Readings of up to this many values are passed on without an allocation.
const USUAL_VALUES: usize = 16;

/// Passes on consecutive samples with the same device and time as one reading.
///
/// A rejected sample is a rejected value of its reading. A repeated series begins another reading. Both
/// readings have the same identity, so the last value wins.
#[derive(Debug)]
pub(super) struct Grouping<'s, S> {
    sink: &'s mut S,
    max_metrics: usize,
    device: String,
    /// The device's metadata; empty without metadata.
    metadata: String,
    /// Whether [`Self::set_device`] was called.
    has_device: bool,
    /// The number of owners so far. An owner is a device with its metadata.
    owners: u32,
    ts_ms: Option<i64>,
    values: Values,
    /// The number of histograms in the reading, and of the values in them.
    histograms: (u64, u64),
    /// The rejected samples of the reading.
    rejected: Vec<Rejection>,
}

/// Why the samples of a series are rejected.
#[derive(Debug)]
pub(super) enum SampleRejection {
    /// No device is known, so each sample is a rejected reading.
    NoDevice(Rejection),
    /// The series is invalid, so each sample is a rejected value.
    Series(Rejection),
}

/// Checks the length of a device ID before it is copied.
///
/// Admission checks the ID itself.
pub(super) fn check_device_length(device: &str) -> Result<(), SampleRejection> {
    if device.len() <= DEVICE_ID_MAX_BYTES {
        return Ok(());
    }
    let what = DeviceIdError::TooLong(device.len()).to_string();
    Err(SampleRejection::NoDevice(rejection(Code::InvalidDeviceId, what)))
}

impl<'s, S: Sink> Grouping<'s, S> {
    pub(super) fn new(sink: &'s mut S) -> Self {
        let max_metrics = sink.limits().max_metrics;
        Self {
            sink,
            max_metrics,
            device: String::new(),
            metadata: String::new(),
            has_device: false,
            owners: 0,
            ts_ms: None,
            values: Values::default(),
            histograms: (0, 0),
            rejected: Vec::new(),
        }
    }

    /// Sets the device and the metadata of the samples that follow.
    ///
    /// Empty metadata is no metadata.
    pub(super) fn set_device(&mut self, device: &str, metadata: &str) {
        work::count(device.len() + metadata.len());
        if self.has_device && self.device == device && self.metadata == metadata {
            return;
        }
        self.emit();
        device.clone_into(&mut self.device);
        metadata.clone_into(&mut self.metadata);
        self.has_device = true;
        self.owners += 1;
    }

    /// Adds a sample: its canonical series and value, or its rejection.
    pub(super) fn add(&mut self, ts_ms: Option<i64>, sample: Result<(&str, f64), &Rejection>) {
        if self.ts_ms != ts_ms || self.values.len() + self.rejected.len() >= self.max_metrics {
            self.emit();
            self.ts_ms = ts_ms;
        }
        match sample {
            Ok((series, value)) => {
                work::count(series.len());
                if !self.values.push(series, value) {
                    self.emit();
                    self.values.push(series, value);
                }
            }
            Err(rejection) => self.rejected.push(rejection.clone()),
        }
    }

    /// Adds a value of a valid histogram.
    ///
    /// `begins` says whether it is the first value of its histogram.
    pub(super) fn add_of_histogram(&mut self, ts_ms: Option<i64>, series: &str, value: f64, begins: bool) {
        self.add(ts_ms, Ok((series, value)));
        self.histograms.0 += u64::from(begins);
        self.histograms.1 += 1;
    }

    /// Rejects a sample.
    pub(super) fn reject(&mut self, ts_ms: Option<i64>, rejection: &SampleRejection) {
        match rejection {
            SampleRejection::NoDevice(rejection) => {
                self.emit();
                self.sink.reject(rejection.clone());
            }
            SampleRejection::Series(rejection) => self.add(ts_ms, Err(rejection)),
        }
    }

    /// The sink, for reports other than readings and rejections.
    pub(super) const fn sink(&mut self) -> &mut S {
        self.sink
    }

    /// Whether the request is refused in any case.
    pub(super) fn is_over(&self) -> bool {
        self.sink.is_over()
    }

    /// Passes on the last reading.
    pub(super) fn finish(mut self) {
        self.emit();
    }

    fn emit(&mut self) {
        let mut rejected = self.rejected.drain(..);
        // If no value is left, the reading is rejected as a whole.
        let whole = if self.values.len() == 0 { rejected.next() } else { None };
        rejected.for_each(|rejection| self.sink.reject_value(rejection));
        if let Some(whole) = whole {
            self.sink.reject(whole);
        }
        if self.values.len() == 0 {
            return;
        }
        let (histograms, of_histograms) = std::mem::take(&mut self.histograms);
        if of_histograms > 0 {
            self.sink.histograms(histograms, of_histograms);
        }
        let values: SmallVec<[_; USUAL_VALUES]> =
            self.values.iter().map(|(name, value)| (Cow::Borrowed(name), value)).collect();
        self.sink.reading(Incoming {
            device: &self.device,
            metadata: Some(&*self.metadata).filter(|text| !text.is_empty()),
            owner: Some(self.owners - 1),
            ts_ms: self.ts_ms,
            values: &values,
            measurement_bytes: 0,
        });
        drop(values);
        self.values.clear();
    }
}
