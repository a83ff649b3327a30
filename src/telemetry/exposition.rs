//! Exporting metrics to Prometheus.

use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use super::instrument::Definition;

/// How often recorded values are folded into their histograms when nobody asks for the metrics.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// The metrics as Prometheus reads them.
#[derive(Debug, Clone)]
pub struct Exposition {
    handle: PrometheusHandle,
}

impl Exposition {
    /// The media type of [`Exposition::render`].
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// A recorder for the metrics of a table, and their exposition.
    pub(super) fn of(table: &[Definition]) -> (PrometheusRecorder, Self) {
        let histograms = table.iter().filter(|definition| !definition.buckets.is_empty());
        let builder = histograms.fold(PrometheusBuilder::new(), |builder, Definition { name, buckets, .. }| {
            let matcher = Matcher::Full((*name).to_owned());
            builder.set_buckets_for_metric(matcher, buckets).expect("there are buckets")
        });
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        (recorder, Self { handle })
    }

    /// All metrics in the text format of Prometheus.
    #[must_use]
    pub fn render(&self) -> String {
        self.handle.render()
    }

    /// Keeps the memory of the histograms bounded, for as long as it is polled: it never returns.
    pub async fn upkeep(&self) {
        let mut ticks = tokio::time::interval(UPKEEP_INTERVAL);
        loop {
            ticks.tick().await;
            self.handle.run_upkeep();
        }
    }
}
