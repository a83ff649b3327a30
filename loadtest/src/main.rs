//! Sends readings as fast as a server takes them, and prints how fast that was and what it cost.
//!
//! ```text
//! loadtest ingest --url 127.0.0.1:8080 --connections 64 --batch 1 --seconds 10 --pid "$(pgrep -x tidegauge)"
//! loadtest query --url 127.0.0.1:8080 --path '/v1/devices/device-000001/rollups' --requests 500
//! loadtest bare --listen 127.0.0.1:8090        an axum handler that only reads the body, to compare with
//! ```
//! Each connection has one request under way at a time (closed loop), so latencies are those of a server at its limit.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Parser, Subcommand};

mod bare;
mod client;
mod fill;
mod ingest;
mod process;
mod query;

#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Send readings for some seconds
    Ingest(ingest::Args),
    /// Send so many readings of each device, up to now, and stop
    Fill(fill::Args),
    /// Print the time so many days ago, in Unix milliseconds
    DaysAgo {
        /// How many
        days: u64,
    },
    /// Ask one question again and again
    Query(query::Args),
    /// Serve a handler that only reads the body
    Bare {
        /// The address to listen on
        #[arg(long)]
        listen: SocketAddr,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Ingest(args) => ingest::run(&args).await,
        Command::Fill(args) => fill::run(&args).await,
        Command::DaysAgo { days } => {
            println!("{}", now_ms()? - days * 86_400_000);
            Ok(())
        }
        Command::Query(args) => query::run(&args).await,
        Command::Bare { listen } => bare::serve(listen).await,
    }
}

/// Latencies in microseconds, up to a minute.
fn latencies() -> anyhow::Result<hdrhistogram::Histogram<u64>> {
    Ok(hdrhistogram::Histogram::new_with_max(60_000_000, 3)?)
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

/// The time, in Unix milliseconds.
#[expect(clippy::disallowed_methods, reason = "the readings that are sent are dated")]
fn now_ms() -> anyhow::Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(u64::try_from(now.as_millis())?)
}

fn milliseconds(micros: u64) -> f64 {
    micros as f64 / 1_000.0
}
