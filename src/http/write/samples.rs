//! Counts and answers for senders of samples: remote write and OTLP.
//!
//! These senders count samples. Admission counts readings, and a reading may have many samples. The paths of
//! `InfluxDB` use only `failed`.

use axum::http::StatusCode;
use axum::response::Response;

use crate::http::problem::{MOMENT, Problem, set_retry_after};
use crate::ingest::{Admission, Listed, Receipt};
use crate::wire::{Ignored, Incoming, Limits, Rejection, Sink};

/// The number of rejections that an answer describes.
const MAX_DESCRIBED: usize = 5;

/// The numbers of samples in a request. A histogram or summary counts as one sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SampleCounts {
    /// The samples of accepted readings.
    pub(super) accepted: u64,
    /// The samples that were rejected, alone or with their whole reading.
    pub(super) rejected: u64,
    /// The accepted samples that are histograms.
    pub(super) histograms: u64,
}

/// A sink that counts samples, and passes everything on to admission.
///
/// The parser has checked each series and value. So admission accepts or rejects a reading with all its
/// samples.
#[derive(Debug)]
pub(super) struct SampleCounter<'a, 'r> {
    admission: &'a mut Admission<'r>,
    pub(super) counts: SampleCounts,
    /// The number of histograms in the next reading, and the number of their values.
    histograms: (u64, u64),
}

impl<'a, 'r> SampleCounter<'a, 'r> {
    pub(super) fn new(admission: &'a mut Admission<'r>) -> Self {
        Self { admission, counts: SampleCounts::default(), histograms: (0, 0) }
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

/// Answers a refused request. `answer` makes the answer from a status and a text.
///
/// Senders do not repeat a request after 408. So a request whose body was too slow gets 503.
pub(super) fn failed(problem: &Problem, answer: impl FnOnce(StatusCode, &str) -> Response) -> Response {
    let is_slow = problem.status() == StatusCode::REQUEST_TIMEOUT;
    let status = if is_slow { StatusCode::SERVICE_UNAVAILABLE } else { problem.status() };
    let mut response = answer(status, problem.detail());
    problem.mark(&mut response);
    if is_slow {
        set_retry_after(&mut response, Some(MOMENT));
    }
    response
}

/// Describes the number of rejected samples and the first rejections.
pub(super) fn described(receipt: &Receipt, counts: SampleCounts) -> String {
    let SampleCounts { accepted, rejected, .. } = counts;
    let others = if receipt.accepted > 0 { ", the others are stored" } else { "" };
    let describe = |listed: &Listed| match &listed.device {
        Some(device) => format!("device {device}: {}", listed.rejection.detail),
        None => listed.rejection.detail.clone(),
    };
    let listed: Vec<_> = receipt.listed.iter().take(MAX_DESCRIBED).map(describe).collect();
    format!("{rejected} of {} samples are rejected{others}: {}", accepted + rejected, listed.join("; "))
}
