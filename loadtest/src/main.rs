//! Puts load on tidegauge and other systems, and prints throughput and cost.
//!
//! ```text
//! loadtest ingest --url 127.0.0.1:8080 --workload fleet --devices 100000 --rate 0 --days-ago 0 --verify 100
//! loadtest ingest --url 127.0.0.1:8080 --format lines --process tidegauge="$(pgrep -x tidegauge)"
//! loadtest ingest --url 127.0.0.1:8080 --udp 127.0.0.1:8089 --rate 200000 --batch 1 --format lines
//! loadtest ingest --url 127.0.0.1:8080 --mqtt 127.0.0.1:1883 --window 50 --batch 1 --connections 16
//! loadtest query --url 127.0.0.1:8080 --path '/v1/devices/device-00000001/rollups' --requests 500
//! loadtest steady --store mongodb --mongod "$(tests/get-mongod)" --speed 60    hours, in minutes
//! loadtest bare --listen 127.0.0.1:8090        an axum handler that only reads the body, to compare with
//! loadtest naive --way push --listen 127.0.0.1:8091 --mongodb-uri mongodb://localhost
//! loadtest bench --mongod "$(tests/get-mongod)" --runs 3     all of them side by side; `make bench`
//! ```

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Parser, Subcommand};

mod bare;
mod bench;
mod client;
mod format;
mod http;
mod ingest;
mod latency;
mod metrics;
mod mqtt;
mod naive;
mod pace;
mod process;
mod query;
mod steady;
mod systems;
mod target;
mod udp;
mod verify;
mod workload;

#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Send readings
    Ingest(ingest::Args),
    /// Repeat one query
    Query(query::Args),
    /// Measure hours of ordinary operation by a fast clock
    Steady(steady::Args),
    /// Measure tidegauge beside `VictoriaMetrics`, `InfluxDB` and the naive service
    Bench(bench::Args),
    /// Serve a handler that only reads the body
    Bare {
        /// The address to listen on
        #[arg(long)]
        listen: SocketAddr,
    },
    /// Serve the naive service, one MongoDB command per request
    Naive(naive::Args),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Ingest(args) => ingest::run(&args).await,
        Command::Steady(args) => steady::run(&args).await,
        Command::Query(args) => query::run(&args).await,
        Command::Bench(args) => bench::run(&args).await,
        Command::Bare { listen } => bare::serve(listen).await,
        Command::Naive(args) => naive::serve(&args).await,
    }
}

/// The current time, in Unix milliseconds.
#[expect(clippy::disallowed_methods, reason = "the readings that are sent are dated")]
fn now_ms() -> anyhow::Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(u64::try_from(now.as_millis())?)
}
