//! Counts of samples, for the answers to remote write and OTLP.
//!
//! Their senders count samples. Admission counts readings, and a reading may have many samples.

use crate::ingest::Admission;
use crate::wire::{Ignored, Incoming, Limits, Rejection, Sink};

/// The samples of a request. A histogram is one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SampleCounts {
    /// The samples of accepted readings.
    pub(super) accepted: u64,
    /// The rejected samples, by themselves or with their reading.
    pub(super) rejected: u64,
    /// The accepted samples that are histograms.
    pub(super) histograms: u64,
}

/// Passes on what a parser finds, and counts its samples.
///
/// The parser has checked each series and value, so admission rejects a whole reading or nothing of it.
#[derive(Debug)]
pub(super) struct SampleCounter<'a, 'r> {
    admission: &'a mut Admission<'r>,
    counts: SampleCounts,
    /// The histograms of the next reading, and those of its values that are theirs.
    histograms: (u64, u64),
}

impl<'a, 'r> SampleCounter<'a, 'r> {
    pub(super) fn new(admission: &'a mut Admission<'r>) -> Self {
        Self { admission, counts: SampleCounts::default(), histograms: (0, 0) }
    }

    pub(super) const fn counts(&self) -> SampleCounts {
        self.counts
    }
}

impl Sink for SampleCounter<'_, '_> {
    fn limits(&self) -> Limits {
        self.admission.limits()
    }

    fn is_over(&self) -> bool {
        self.admission.is_over()
    }

    fn reading(&mut self, incoming: Incoming<'_>) {
        let (before, values) = (self.admission.accepted(), incoming.values.len() as u64);
        self.admission.reading(incoming);
        let (histograms, of_histograms) = std::mem::take(&mut self.histograms);
        let samples = values - of_histograms + histograms;
        if self.admission.accepted() > before {
            self.counts.accepted += samples;
            self.counts.histograms += histograms;
        } else {
            self.counts.rejected += samples;
        }
    }

    fn histograms(&mut self, histograms: u64, values: u64) {
        self.histograms = (histograms, values);
    }

    fn reject(&mut self, rejection: Rejection) {
        self.counts.rejected += 1;
        self.admission.reject(rejection);
    }

    fn reject_value(&mut self, rejection: Rejection) {
        self.counts.rejected += 1;
        self.admission.reject_value(rejection);
    }

    fn ignore(&mut self, what: Ignored, name: &str) {
        self.admission.ignore(what, name);
    }
}
