//! The memory of idle devices, of pending readings, and of idle connections: the growth of the resident
//! memory of the service, divided by their number.
//!
//! As many are there before. They have filled the buffers and tables that all of them share.

use super::devices::{NOTHING_IS_DUE, hour_ahead_ms};
use super::history::{BATCH, CONNECTIONS};
use super::loads::workload;
use super::{Bench, Section};
use crate::client::Client;
use crate::format::Format;
use crate::now_ms;
use crate::systems::{Environment, Server, System};
use crate::target::Target;
use crate::workload::Workload;

/// Devices that are known and have nothing pending; pending device-hours.
const DEVICES: u64 = 100_000;

/// The readings of a pending device-hour.
const READINGS: u64 = 60;

/// Connections, within the usual limit of open files.
const IDLE: usize = 400;

impl Bench<'_> {
    /// Measures the memory of devices, of pending and of connections.
    pub(super) async fn memory(&mut self) -> anyhow::Result<()> {
        if self.system.target() != Target::Tidegauge {
            return Ok(());
        }
        if self.system != System::TidegaugeSqlite {
            return self.idle_devices().await; // the cache of SQLite would count too
        }
        // The others are the same whatever the store.
        self.pending_hours().await?;
        self.idle_connections().await
    }

    async fn idle_devices(&mut self) -> anyhow::Result<()> {
        // All readings of a half are pending before the first is stored: both halves need as much memory.
        let config = [("flush.max_age", "10s"), ("limits.new_devices_per_minute", "0")];
        let server = Server::start(self.system, &self.args.programs, &Environment::of_config(config)).await?;
        let mut resident = [0.0; 2];
        for (nth, after) in (0..).zip(&mut resident) {
            let one_each = Workload { first_device: nth * DEVICES, ..workload(DEVICES, 1_000, BATCH, now_ms()?) };
            self.fill(&server, Format::Lines, one_each, DEVICES / CONNECTIONS / BATCH).await?;
            server.settle().await?;
            *after = bytes_of(&server)?;
        }
        self.add(Section::Memory, "bytes of an idle device", (resident[1] - resident[0]) / DEVICES as f64);
        Ok(())
    }

    async fn pending_hours(&mut self) -> anyhow::Result<()> {
        // Without this limit, the devices are in pending only.
        let config = NOTHING_IS_DUE.into_iter().chain([("limits.device_metrics_per_hour", "0")]);
        let server = Server::start(self.system, &self.args.programs, &Environment::of_config(config)).await?;
        let mut resident = [0.0; 2];
        for (nth, after) in (0..).zip(&mut resident) {
            let hour = Workload { first_device: nth * DEVICES, ..workload(DEVICES, 60_000, BATCH, hour_ahead_ms()?) };
            self.fill(&server, Format::Lines, hour, DEVICES * READINGS / CONNECTIONS / BATCH).await?;
            server.fed((nth + 1) * DEVICES * READINGS).await?;
            *after = bytes_of(&server)?;
        }
        let question = format!("bytes of a pending device-hour of {READINGS} readings");
        self.add(Section::Memory, &question, (resident[1] - resident[0]) / DEVICES as f64);
        Ok(())
    }

    async fn idle_connections(&mut self) -> anyhow::Result<()> {
        let server = self.start().await?;
        let (mut clients, mut resident) = (Vec::new(), [0.0; 2]);
        for after in &mut resident {
            for _ in 0..IDLE {
                let mut client = Client::connect(&server.address).await?;
                client.get("/healthz").await?;
                clients.push(client);
            }
            *after = bytes_of(&server)?;
        }
        self.add(Section::Memory, "bytes of an idle HTTP connection", (resident[1] - resident[0]) / IDLE as f64);
        Ok(())
    }
}

/// The resident memory of the service, in bytes.
fn bytes_of(server: &Server) -> anyhow::Result<f64> {
    Ok(server.processes[0].usage()?.resident_mib * f64::from(1 << 20))
}
