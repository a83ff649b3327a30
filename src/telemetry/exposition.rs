//! The text of all metrics, as `/metrics` returns it to Prometheus.

use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use super::instrument::Definition;
use super::process::Process;

/// How often recorded values are moved into their histograms.
///
/// A scrape moves them too. Without either, the recorder would keep each recorded value in memory.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Renders the metrics in the text format of Prometheus.
#[derive(Debug, Clone)]
pub struct Exposition {
    handle: PrometheusHandle,
    process: Process,
}

impl Exposition {
    /// The media type of the text that [`Exposition::render`] returns.
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// Makes a recorder for the metrics of `table`, and their exposition.
    pub(super) fn of(table: &[Definition]) -> (PrometheusRecorder, Self) {
        let histograms = table.iter().filter(|definition| !definition.buckets.is_empty());
        let builder = histograms.fold(PrometheusBuilder::new(), |builder, Definition { name, buckets, .. }| {
            let matcher = Matcher::Full((*name).to_owned());
            builder.set_buckets_for_metric(matcher, buckets).expect("there are buckets")
        });
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        (recorder, Self { handle, process: Process::new() })
    }

    /// Renders the metrics of the table and those of the process.
    ///
    /// They are sorted by name and labels, so that two texts can be compared.
    #[must_use]
    pub fn render(&self) -> String {
        let mut page = self.handle.render();
        self.process.write(&mut page);
        sorted(&page)
    }

    /// Moves recorded values into histograms every few seconds. It never returns.
    pub async fn upkeep(&self) {
        let mut ticks = tokio::time::interval(UPKEEP_INTERVAL);
        loop {
            ticks.tick().await;
            self.handle.run_upkeep();
        }
    }
}

/// Sorts metrics by name, and the samples of each metric by labels.
///
/// The buckets of a histogram keep their order.
fn sorted(page: &str) -> String {
    let mut metrics: Vec<Vec<&str>> = Vec::new();
    for line in page.lines().filter(|line| !line.is_empty()) {
        match metrics.last_mut() {
            Some(metric) if !line.starts_with("# HELP ") => metric.push(line),
            _ => metrics.push(vec![line]),
        }
    }
    metrics.sort_unstable_by_key(|metric| metric[0]);
    let mut sorted = String::with_capacity(page.len());
    for metric in &mut metrics {
        let samples = metric.iter().take_while(|line| line.starts_with('#')).count();
        metric[samples..].sort_by_key(|sample| labels_of(sample)); // stable
        for line in metric {
            sorted.push_str(line);
            sorted.push('\n');
        }
    }
    sorted
}

/// The labels of a sample, without the label `le` at their end.
///
/// The value of a label may contain `}`, so the last `}` of the sample ends the labels.
fn labels_of(sample: &str) -> &str {
    let (Some(open), Some(close)) = (sample.find('{'), sample.rfind('}')) else { return "" };
    let labels = &sample[open + 1..close];
    labels.rfind("le=\"").map_or(labels, |le| labels[..le].trim_end_matches(','))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_sorted_and_buckets_stay_in_their_order() {
        let page = "# HELP b Two.\n# TYPE b histogram\nb_bucket{route=\"/{id}\",le=\"5\"} 1\n\
                    b_bucket{route=\"/{id}\",le=\"10\"} 2\nb_sum{route=\"/{id}\"} 7\nb_count{route=\"/{id}\"} 2\n\
                    b_bucket{route=\"/\",le=\"5\"} 1\nb_bucket{route=\"/\",le=\"10\"} 1\nb_sum{route=\"/\"} 1\n\n\
                    # HELP a One.\n# TYPE a counter\na{reason=\"z\"} 1\na{reason=\"y\"} 2\n";
        let expected = "# HELP a One.\n# TYPE a counter\na{reason=\"y\"} 2\na{reason=\"z\"} 1\n\
                        # HELP b Two.\n# TYPE b histogram\nb_bucket{route=\"/\",le=\"5\"} 1\n\
                        b_bucket{route=\"/\",le=\"10\"} 1\nb_sum{route=\"/\"} 1\nb_bucket{route=\"/{id}\",le=\"5\"} 1\n\
                        b_bucket{route=\"/{id}\",le=\"10\"} 2\nb_sum{route=\"/{id}\"} 7\nb_count{route=\"/{id}\"} 2\n";
        assert_eq!(sorted(page), expected);
    }
}
