//! `loadtest bench`: compares tidegauge, with each store, with other systems.
//!
//! A run starts each system without data, and measures the same loads and queries. The order of the systems
//! changes from run to run, so that no system always runs last, on the warmest machine. The output has the
//! medians of all runs, and their ratios to the first system. It also names systems that are not installed,
//! systems that failed, and messages that were refused and sent again.

use anyhow::{Context, ensure};
use clap::ValueEnum;

mod devices;
mod history;
mod hours;
mod kinds;
mod loads;
mod memory;
mod queries;
mod quiet;
mod table;

use loads::LOADS;
use table::{Section, Table};

use crate::systems::{Environment, Programs, Server, System};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    programs: Programs,
    /// The systems; the others are compared with the first. Default: all installed ones
    #[arg(long, value_enum, value_delimiter = ',')]
    systems: Vec<System>,
    /// The number of runs
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// How long each load lasts
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Days of history for the queries, of 50 devices with a reading every 10 seconds
    #[arg(long, default_value_t = 30)]
    days: u64,
    /// The number of runs that measure other parts than loads, which take longest and vary least
    #[arg(long, default_value_t = 1)]
    history_runs: usize,
    /// A CSV file with a number in the second column, as the fifth kind of data. Default: none
    #[arg(long, value_name = "FILE")]
    series: Option<std::path::PathBuf>,
    /// The parts to measure. Default: all
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Measure more devices, a million at most, and the quiet fleet and the hours for longer
    #[arg(long)]
    long: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A part of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// As many readings as the system accepts, in requests and datagrams of several sizes
    Loads,
    /// Fleets of several sizes
    Devices,
    /// A fleet with a few hundred single readings a second
    Quiet,
    /// Three hours of a fleet with a reading a minute, by a fast clock
    Hours,
    /// Queries and disk space
    History,
    /// Queries of a large fleet, by themselves and while readings arrive
    Fleet,
    /// CPU and disk space for several kinds of data
    Kinds,
    /// The memory of idle devices, pending readings and idle connections
    Memory,
}

/// The results of all runs so far.
#[derive(Debug, Default)]
struct Findings {
    table: Table,
    /// Notes about messages that were refused for now and sent again.
    notes: Vec<String>,
    /// Measurements that failed, and why.
    failures: Vec<String>,
}

/// Measures all systems in each run, and prints the tables.
///
/// # Errors
/// If a named system is not installed and, after the tables, if a measurement has failed.
pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let (systems, absent) = choose(args)?;
    for why in &absent {
        eprintln!("left out: {why}");
    }
    let mut findings = Findings::default();
    for run in 0..args.runs {
        for at in 0..systems.len() {
            let at = (at + run) % systems.len();
            let system = systems[at];
            eprintln!("run {} of {}: {}", run + 1, args.runs, system.name());
            let bench = Bench { args, system, at, findings: &mut findings, peaks_mib: [0.0; 2] };
            bench.all(run < args.history_runs).await;
        }
    }
    print(args, &systems, &absent, &findings);
    ensure!(findings.failures.is_empty(), "not everything could be measured: {} failures", findings.failures.len());
    Ok(())
}

/// The systems to measure, and why each of the others is left out.
fn choose(args: &Args) -> anyhow::Result<(Vec<System>, Vec<String>)> {
    if !args.systems.is_empty() {
        for &system in &args.systems {
            args.programs.missing(system).map_or(Ok(()), |why| Err(anyhow::anyhow!("{}: {why}", system.name())))?;
        }
        return Ok((args.systems.clone(), Vec::new()));
    }
    let (mut systems, mut absent) = (Vec::new(), Vec::new());
    for &system in System::value_variants() {
        match args.programs.missing(system) {
            None => systems.push(system),
            Some(why) => absent.push(format!("{}: {why}", system.name())),
        }
    }
    let first = systems.first().context("nothing is installed that could be measured")?;
    ensure!(*first == System::TidegaugeSqlite, "{}", absent[0]);
    Ok((systems, absent))
}

/// The measurement of one system in one run.
struct Bench<'a> {
    args: &'a Args,
    system: System,
    at: usize,
    findings: &'a mut Findings,
    /// The peak memory under any load: of the service, and of its mongod.
    peaks_mib: [f64; 2],
}

impl Bench<'_> {
    /// Measures all parts, or only the loads, and records failures.
    async fn all(mut self, not_only_loads: bool) {
        for &part in Part::value_variants() {
            if !(self.args.only.is_empty() || self.args.only.contains(&part))
                || !(part == Part::Loads || not_only_loads)
            {
                continue;
            }
            let done = match part {
                Part::Loads => {
                    self.loads().await;
                    Ok(())
                }
                Part::Devices => self.devices().await,
                Part::Quiet => self.quiet().await,
                Part::Hours => self.hours().await,
                Part::History => self.history().await,
                Part::Fleet => self.queries_of_a_fleet().await,
                Part::Kinds => self.kinds().await,
                Part::Memory => self.memory().await,
            };
            self.see_to(part.to_possible_value().expect("no part is hidden").get_name(), done);
        }
    }

    async fn loads(&mut self) {
        for load in LOADS {
            if load.suits(self.system) {
                let done = self.load(load).await;
                self.see_to(&load.to_string(), done);
            }
        }
        for (peak_mib, whose) in self.peaks_mib.into_iter().zip(["service", "mongod"]) {
            if peak_mib > 0.0 {
                self.add(Section::Memory, &format!("{whose}, the most under any load"), peak_mib);
            }
        }
    }

    fn see_to(&mut self, what: &str, done: anyhow::Result<()>) {
        if let Err(error) = done {
            let failure = format!("{}, {what}: {error:#}", self.system.name());
            eprintln!("FAILED: {failure}");
            self.findings.failures.push(failure);
        }
    }

    fn add(&mut self, section: Section, question: &str, figure: f64) {
        self.findings.table.add(section, question, self.at, figure);
    }

    fn note(&mut self, note: &str) {
        self.findings.notes.push(format!("{}, {note}", self.system.name()));
    }

    async fn start(&self) -> anyhow::Result<Server> {
        Server::start(self.system, &self.args.programs, &Environment::of_config([("flush.max_age", "2s")])).await
    }
}

fn print(args: &Args, systems: &[System], absent: &[String], findings: &Findings) {
    let names: Vec<&str> = systems.iter().map(|system| system.name()).collect();
    let command: Vec<String> = std::env::args().collect();
    let machine = machine();
    if args.json {
        let promises: std::collections::BTreeMap<_, _> =
            systems.iter().map(|system| (system.name(), system.promise())).collect();
        let report = serde_json::json!({
            "command": command, "machine": machine, "runs": args.runs, "cells": findings.table.cells(&names),
            "promises": promises, "leftOut": absent, "notes": findings.notes, "failures": findings.failures,
        });
        println!("{report}");
        return;
    }
    println!(
        "`{}`\n\n{machine}. Medians of {} runs; in brackets the ratio to {}.\n",
        command.join(" "),
        args.runs,
        names[0]
    );
    println!("{}", findings.table.markdown(&names));
    println!("What an answer over HTTP means (UDP has none):\n");
    for system in systems {
        println!("- {}: {}.", system.name(), system.promise());
    }
    println!();
    list("Left out", absent);
    list("Refused for now and sent again", &findings.notes);
    list("FAILED", &findings.failures);
}

fn list(what: &str, lines: &[String]) {
    if lines.is_empty() {
        println!("{what}: nothing.");
    }
    for line in lines {
        println!("{what}: {line}.");
    }
}

/// A description of this machine: processor, kernel and load average.
pub(crate) fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let model =
        read("/proc/cpuinfo").lines().find_map(|line| Some(line.strip_prefix("model name")?.replace(['\t', ':'], "")));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let load = read("/proc/loadavg").split(' ').next().unwrap_or("?").to_owned();
    let model = model.as_deref().map_or("unknown processor", str::trim).to_owned();
    format!(
        "{cores} cores of {model}, Linux {}, load average at the end {load}",
        read("/proc/sys/kernel/osrelease").trim()
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn chosen(more: &[&str]) -> anyhow::Result<(Vec<System>, Vec<String>)> {
        let nowhere = ["bench", "--mongod", "/no/mongod", "--victoria-metrics", "/no/vm", "--influxd", "/no/influxd"];
        choose(&Cli::parse_from(nowhere.iter().chain(more)).args)
    }

    #[test]
    fn what_is_not_installed_is_left_out_by_name_unless_it_was_asked_for() {
        let (systems, absent) = chosen(&["--tidegauge", "sh"]).unwrap();
        assert_eq!(systems, [System::TidegaugeSqlite, System::Bare]);
        assert_eq!(absent.len(), 7, "{absent:?}");
        let refused = chosen(&["--tidegauge", "sh", "--systems", "influxdb"]).unwrap_err().to_string();
        assert!(refused.starts_with("InfluxDB 1.x: /no/influxd is not installed"), "{refused}");
        assert!(
            chosen(&["--tidegauge", "/no/tidegauge"]).is_err(),
            "without tidegauge there is nothing to compare with"
        );
    }
}
