//! `loadtest query`

use std::time::Instant;

use anyhow::ensure;

use crate::client::Client;
use crate::{latencies, micros, milliseconds};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    url: String,
    /// What to ask for
    #[arg(long)]
    path: String,
    /// How often
    #[arg(long, default_value_t = 500)]
    requests: u64,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let mut client = Client::connect(&args.url).await?;
    let mut latencies = latencies()?;
    let mut bytes = 0;
    for _ in 0..args.requests {
        let asked = Instant::now();
        let (status, answer) = client.get(&args.path).await?;
        ensure!(status == 200, "status {status}: {}", String::from_utf8_lossy(answer));
        bytes = answer.len();
        latencies.record(micros(asked.elapsed()))?;
    }
    let at = |quantile| milliseconds(latencies.value_at_quantile(quantile));
    println!("{} requests, {bytes} bytes an answer: p50 {:.2} ms, p99 {:.2} ms", args.requests, at(0.5), at(0.99));
    Ok(())
}
