//! Histograms of latencies, and their quantiles.

use std::time::Duration;

use hdrhistogram::Histogram;

/// An empty histogram of microseconds, up to ten minutes, with three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(600_000_000, 3).expect("good bounds")
}

/// A time in microseconds, at most the maximum of the histogram.
pub(crate) fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX).min(600_000_000)
}

/// The quantiles in reports, in milliseconds.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

impl Latency {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1_000.0;
        Self { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: at(1.0) }
    }
}
