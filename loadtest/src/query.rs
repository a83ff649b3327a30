//! `loadtest query`: repeats one query, and prints its latency.

use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::client::Client;
use crate::latency::{self, Latency};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    url: String,
    /// The path of the query
    #[arg(long)]
    path: String,
    /// The number of requests
    #[arg(long, default_value_t = 500)]
    requests: u64,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let (latency, bytes) = ask(&args.url, std::slice::from_ref(&args.path), args.requests, Duration::MAX).await?;
    println!(
        "{} requests, {bytes} bytes an answer: p50 {:.2} ms, p99 {:.2} ms",
        args.requests, latency.p50, latency.p99
    );
    Ok(())
}

/// Sends queries to these paths in turn. Returns the latencies.
///
/// It ends after `requests` requests, or after the time `patience`. It also returns the size of the last
/// answer.
pub(crate) async fn ask(
    address: &str,
    paths: &[String],
    requests: u64,
    patience: Duration,
) -> anyhow::Result<(Latency, usize)> {
    let start = Instant::now();
    let mut client = Client::connect(address).await?;
    let mut histogram = latency::histogram();
    let mut bytes = 0;
    for path in paths.iter().cycle().take(requests as usize) {
        let asked = Instant::now();
        let (status, answer) = client.get(path).await?;
        ensure!(status == 200, "{path}: status {status}: {}", String::from_utf8_lossy(answer));
        bytes = answer.len();
        histogram.record(latency::micros(asked.elapsed()))?;
        if start.elapsed() > patience {
            break;
        }
    }
    Ok((Latency::of(&histogram), bytes))
}
