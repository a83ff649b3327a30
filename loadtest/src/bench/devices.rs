//! Measures what a reading costs with different numbers of devices.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::loads::workload;
use super::table::short;
use super::{Bench, Section};
use crate::format::Format;
use crate::http::{self, Sending, Until};
use crate::now_ms;
use crate::systems::{Environment, Server, System};
use crate::target::Target;

/// The number of readings that are sent, whatever the number of devices.
const READINGS: u64 = 10_000_000;

const CONNECTIONS: u64 = 4;
const BATCH: u64 = 1_000;
const HOUR_MS: u64 = 3_600_000;

/// The configuration with which tidegauge keeps all readings pending.
///
/// `VictoriaMetrics`, with which it is compared, keeps readings in memory at first too.
pub(super) const NOTHING_IS_DUE: [(&str, &str); 5] = [
    ("flush.max_age", "1d"),
    ("flush.max_readings", "100000"),
    ("pending.max_bytes", "4GiB"),
    ("limits.new_devices_per_minute", "0"),
    ("ingest.max_future", "3h"),
];

/// The start of the next hour, as Unix milliseconds.
///
/// Buckets of the current hour might end, and so be due, during the measurement.
pub(super) fn hour_ahead_ms() -> anyhow::Result<u64> {
    Ok((now_ms()? / HOUR_MS + 1) * HOUR_MS)
}

impl Bench<'_> {
    /// Measures fleets of several sizes.
    ///
    /// It measures tidegauge only with SQLite, because the store makes no difference here.
    pub(super) async fn devices(&mut self) -> anyhow::Result<()> {
        if !matches!(self.system, System::TidegaugeSqlite | System::VictoriaMetrics) {
            return Ok(());
        }
        let sizes: &[u64] = if self.args.long { &[1_000, 10_000, 100_000, 1_000_000] } else { &[10_000, 100_000] };
        for &devices in sizes {
            self.fleet_of(devices).await?;
        }
        Ok(())
    }

    async fn fleet_of(&mut self, devices: u64) -> anyhow::Result<()> {
        let server = Server::start(self.system, &self.args.programs, &Environment::of_config(NOTHING_IS_DUE)).await?;
        let each = READINGS / devices;
        let sending = Sending {
            address: server.address.clone(),
            target: self.system.target(),
            format: Format::Lines,
            workload: workload(devices, HOUR_MS / each.max(60), BATCH, hour_ahead_ms()?),
            connections: CONNECTIONS,
            rate: None,
            until: Until::Messages(READINGS / CONNECTIONS / BATCH),
        };
        let sent = http::send(sending, Arc::new(AtomicU64::new(0))).await?;
        match self.system.target() {
            Target::Tidegauge => server.fed(sent.readings).await?,
            _ => server.settle().await?,
        }
        let cpu_seconds = server.processes[0].usage()?.cpu_seconds;
        let question = format!("{} devices, line protocol, {BATCH} a request", short(devices as f64));
        self.add(Section::DevicesCpu, &question, cpu_seconds / sent.readings as f64 * 1e6);
        Ok(())
    }
}
