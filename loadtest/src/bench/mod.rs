//! `loadtest bench`: tidegauge with each of its stores, beside what people use today, in one run on one machine.
//!
//! A run starts each system afresh and asks it the same questions; the order of the systems changes from run to run, so
//! that none always has the machine when it is warmest. What is printed are the medians, and the ratios to the first
//! column.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use clap::ValueEnum;

use crate::format::Format;
use crate::http::{self, Sending, Until};
use crate::latency::Latency;
use crate::process::Process;
use crate::target::Target;
use crate::workload::{Kind, Workload};
use crate::{now_ms, query};

mod servers;
mod table;

use servers::{Programs, Server, System};
use table::Table;

const DAY_MS: u64 = 86_400_000;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    programs: Programs,
    /// Which systems, the one first that the others are compared with; all of them if none is named
    #[arg(long, value_enum, value_delimiter = ',')]
    systems: Vec<System>,
    /// How often everything is done
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// How long each load lasts
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Days of history, of 50 devices with a reading every 10 seconds, that queries are asked about
    #[arg(long, default_value_t = 30)]
    days: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let mut table = Table::default();
    let systems = if args.systems.is_empty() { System::value_variants() } else { &args.systems };
    for run in 0..args.runs {
        for at in 0..systems.len() {
            let at = (at + run) % systems.len();
            let mut bench = Bench { args, system: systems[at], at, table: &mut table };
            eprintln!("run {} of {}: {}", run + 1, args.runs, bench.system.name());
            bench.loads().await?;
            bench.history().await?;
        }
    }
    let systems: Vec<&str> = systems.iter().map(|system| system.name()).collect();
    if args.json {
        println!("{}", serde_json::to_string(&table.cells(&systems))?);
    } else {
        print!("{}", table.markdown(&systems));
    }
    Ok(())
}

/// One system in one run.
struct Bench<'a> {
    args: &'a Args,
    system: System,
    at: usize,
    table: &'a mut Table,
}

/// A load: format, readings a message, connections.
const LOADS: [(Format, u64, u64); 6] = [
    (Format::Lines, 1_000, 4),
    (Format::Lines, 100, 16),
    (Format::Lines, 1, 64),
    (Format::Json, 1_000, 4),
    (Format::Json, 100, 16),
    (Format::Json, 1, 64),
];

impl Bench<'_> {
    fn add(&mut self, question: &str, figure: f64) {
        self.table.add(question, self.at, figure);
    }

    /// How much it takes, and what that costs once all is stored.
    async fn loads(&mut self) -> anyhow::Result<()> {
        for (format, batch, connections) in LOADS {
            let target = self.system.target();
            // The naive service has no notion of a batch that is worth measuring: one message, one reading.
            if !target.reads(format) || (target == Target::Naive && batch > 1) {
                continue;
            }
            let mut server = Server::start(self.system, &self.args.programs).await?;
            reset(&mut server.processes)?;
            let sending = self.sending(&server, format, batch, connections, Until::Seconds(self.args.seconds))?;
            let sent = http::send(sending, Arc::new(AtomicU64::new(0))).await?;
            server.settle().await?;
            let what = format!("{format:?} x {batch}");
            self.add(&format!("{what}: readings/s"), sent.readings as f64 / sent.took.as_secs_f64());
            self.add(&format!("{what}: p99 ms"), Latency::of(&sent.latencies).p99);
            let millions = sent.readings as f64 / 1e6;
            for (process, whose) in server.processes.iter().zip(["service", "mongod"]) {
                let usage = process.usage()?;
                self.add(&format!("{what}: cpu-s per million, {whose}"), usage.cpu_seconds / millions);
                self.add(&format!("{what}: peak MiB, {whose}"), usage.peak_mib);
            }
        }
        Ok(())
    }

    /// What a month of history takes on disk, and how fast it is read.
    async fn history(&mut self) -> anyhow::Result<()> {
        let target = self.system.target();
        if target == Target::Naive {
            return Ok(()); // it has no rollups to ask for
        }
        let server = Server::start(self.system, &self.args.programs).await?;
        let format = Format::Lines;
        let messages = self.args.days * DAY_MS / 10_000 * 50 / 4 / 1_000;
        let sending = self.sending(&server, format, 1_000, 4, Until::Messages(messages))?;
        let (first_ms, last_ms) = (sending.workload.first_ms, sending.workload.first_ms + self.args.days * DAY_MS);
        let sent = http::send(sending, Arc::new(AtomicU64::new(0))).await?;
        server.settle().await?;
        let one: Vec<String> = (0..50).map(|device| target.rollup_path(&[device], first_ms, last_ms)).collect();
        let (latency, _) = query::ask(&server.address, &one, 200).await?;
        self.add("one device, 30 days: p50 ms", latency.p50);
        self.add("one device, 30 days: p99 ms", latency.p99);
        let all: Vec<u64> = (0..50).collect();
        let (latency, _) = query::ask(&server.address, &[target.rollup_path(&all, first_ms, last_ms)], 20).await?;
        self.add("50 devices, 30 days: p50 ms", latency.p50);
        self.add("50 devices, 30 days: p99 ms", latency.p99);
        self.add("bytes per reading on disk", server.stored_bytes().await? as f64 / sent.readings as f64);
        Ok(())
    }

    fn sending(
        &self,
        server: &Server,
        format: Format,
        batch: u64,
        connections: u64,
        until: Until,
    ) -> anyhow::Result<Sending> {
        // A load is of now: no hour is over, and a device has some hundred readings at each flush. History is of a month.
        let (devices, step_ms, back_ms) = match until {
            Until::Messages(_) => (50, 10_000, 60 * DAY_MS),
            Until::Seconds(_) => (10_000, 1, 60_000),
        };
        let workload = Workload {
            kind: Kind::Factory,
            devices,
            step_ms,
            batch,
            late_percent: 0,
            resent_percent: 0,
            first_ms: now_ms()? - back_ms,
        };
        let (address, target) = (server.address.clone(), self.system.target());
        Ok(Sending { address, target, format, workload, connections, rate: None, until })
    }
}

fn reset(processes: &mut [Process]) -> anyhow::Result<()> {
    processes.iter_mut().try_for_each(Process::reset)
}
