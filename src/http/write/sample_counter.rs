//! Counts of samples, for the answers to remote write and OTLP.
//!
//! Their senders count samples. Admission counts readings, and a reading may have many samples.

use crate::ingest::Admission;
use crate::wire::{Ignored, Incoming, Limits, Rejection, Sink};

/// The samples of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SampleCounts {
    /// The samples of accepted readings.
    pub(super) accepted: u64,
    /// The rejected samples, by themselves or with their reading.
    pub(super) rejected: u64,
}

/// Passes on what a parser finds, and counts its samples.
///
/// The parser has checked each series and value, so admission rejects a whole reading or nothing of it.
#[derive(Debug)]
pub(super) struct SampleCounter<'a, 'r> {
    admission: &'a mut Admission<'r>,
    counts: SampleCounts,
}

impl<'a, 'r> SampleCounter<'a, 'r> {
    pub(super) fn new(admission: &'a mut Admission<'r>) -> Self {
        Self { admission, counts: SampleCounts::default() }
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
        let (before, samples) = (self.admission.accepted(), incoming.values.len() as u64);
        self.admission.reading(incoming);
        let is_accepted = self.admission.accepted() > before;
        *(if is_accepted { &mut self.counts.accepted } else { &mut self.counts.rejected }) += samples;
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
