//! Reads the metrics that a service exposes at `/metrics`.

use std::time::Duration;

use anyhow::ensure;

use crate::client::Client;

/// The text of one answer of `/metrics`.
#[derive(Debug)]
pub(crate) struct Exposition(String);

impl Exposition {
    /// Reads the metrics of the service at this address.
    pub(crate) async fn of(address: &str) -> anyhow::Result<Self> {
        Self::over(&mut Client::connect(address).await?).await
    }

    /// Reads the metrics over a connection.
    pub(crate) async fn over(client: &mut Client) -> anyhow::Result<Self> {
        let (status, text) = client.get("/metrics").await?;
        ensure!(status == 200, "/metrics: status {status}");
        Ok(Self(String::from_utf8(text.to_vec())?))
    }

    /// Whether the text contains the line `sample`, written as `name value`.
    fn has(&self, sample: &str) -> bool {
        self.0.lines().any(|line| line == sample)
    }

    /// The sum of all samples of a metric. 0 without samples.
    ///
    /// If `name` has labels, such as `m{a="b"}`, the value of this sample.
    pub(crate) fn sum(&self, name: &str) -> f64 {
        let of_name = |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        let samples = self.0.lines().filter(|line| of_name(line));
        samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

/// Waits until a service exposes these samples.
pub(crate) async fn wait(address: &str, samples: &[&str]) -> anyhow::Result<()> {
    wait_until(address, |found| samples.iter().all(|sample| found.has(sample))).await
}

/// Waits until the metrics of a service meet a condition.
pub(crate) async fn wait_until(address: &str, is_met: impl Fn(&Exposition) -> bool) -> anyhow::Result<()> {
    let mut client = Client::connect(address).await?;
    loop {
        if is_met(&Exposition::over(&mut client).await?) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until tidegauge has stored everything.
pub(crate) async fn settle(address: &str) -> anyhow::Result<()> {
    wait(address, &["tidegauge_readings_pending 0"]).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_the_sum_of_its_samples() {
        let text =
            "# HELP a_total Help\n# TYPE a_total counter\na_total{x=\"1\"} 2\na_total{x=\"2\"} 3.5\na_totals 7\nb 1\n";
        let found = Exposition(text.to_owned());
        for (name, expected) in [("a_total", 5.5), ("a_total{x=\"2\"}", 3.5), ("b", 1.0), ("c", 0.0)] {
            assert!((found.sum(name) - expected).abs() < 1e-9, "{name}");
        }
        assert!(found.has("b 1") && !found.has("b"));
    }
}
