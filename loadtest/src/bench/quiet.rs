//! Measures what a reading costs at a low rate: some hundred POSTs a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::table::short;
use super::{Bench, Section};
use crate::format::Format;
use crate::http::{self, Sending, Until};
use crate::latency::Latency;
use crate::now_ms;
use crate::process::Process;
use crate::systems::{Environment, Server, System};
use crate::workload::{Kind, Workload};

/// The number of devices. Each has a reading a minute, so 333 a second in all.
const DEVICES: u64 = 20_000;
const STEP_MS: u64 = 60_000;

/// The number of connections that the devices share.
const CONNECTIONS: u64 = 64;

/// A configuration with which the fleet is measured.
struct Variation {
    name: &'static str,
    config: &'static [(&'static str, &'static str)],
    /// Seconds before the measurement, until flushes are steady. `None`: the default.
    warm_up: Option<f64>,
}

/// The configuration with which all systems are measured.
const DEFAULT: Variation = Variation { name: "default configuration", config: &[], warm_up: None };

/// Further configurations, each with the systems that it is for. Only a run with `--long` measures them.
const VARIATIONS: [(Variation, &[System]); 2] = [
    (
        Variation { name: "flush.max_age = \"60s\"", config: &[("flush.max_age", "60s")], warm_up: Some(70.0) },
        &[System::TidegaugeMongodb, System::TidegaugeTimeseries],
    ),
    (
        Variation { name: "log.group_window = \"20ms\"", config: &[("log.group_window", "20ms")], warm_up: None },
        &[System::TidegaugeSqlite],
    ),
];

impl Bench<'_> {
    /// Measures the fleet with each configuration.
    pub(super) async fn quiet(&mut self) -> anyhow::Result<()> {
        self.quiet_with(&DEFAULT).await?;
        for (variation, systems) in &VARIATIONS {
            if self.args.long && systems.contains(&self.system) {
                self.quiet_with(variation).await?;
            }
        }
        Ok(())
    }

    async fn quiet_with(&mut self, variation: &Variation) -> anyhow::Result<()> {
        let seconds = if self.args.long { 90.0 } else { self.args.seconds * 3.0 };
        let warm_up = variation.warm_up.unwrap_or(self.args.seconds);
        let environment = Environment::of_config(variation.config.iter().copied());
        let mut server = Server::start(self.system, &self.args.programs, &environment).await?;
        let target = self.system.target();
        let workload = Workload::steady(Kind::Fleet, DEVICES, STEP_MS, 1, now_ms()?);
        let sending = Sending {
            address: server.address.clone(),
            target,
            format: if target.reads(Format::Lines) { Format::Lines } else { Format::Json },
            connections: CONNECTIONS,
            rate: Some(workload.natural_rate()),
            until: Until::Seconds(warm_up + seconds),
            workload,
        };
        let progress = Arc::new(AtomicU64::new(0));
        let sender = tokio::spawn(http::send(sending, Arc::clone(&progress)));
        tokio::time::sleep(Duration::from_secs_f64(warm_up)).await;
        server.processes.iter_mut().try_for_each(Process::reset)?;
        let before = progress.load(Ordering::Relaxed);
        let sent = sender.await??;
        let readings = sent.readings - before;
        for (at, process) in server.processes.iter().enumerate() {
            let us = process.usage()?.cpu_seconds / readings as f64 * 1e6;
            self.add(Section::QUIET_CPU[at], variation.name, us);
        }
        let question = format!("{} devices, single POSTs, {}", short(DEVICES as f64), variation.name);
        self.add(Section::Latency, &question, Latency::of(&sent.latencies).p99);
        Ok(())
    }
}
