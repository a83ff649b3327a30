//! The memory of one idle device, one pending device-hour and one idle connection.
//!
//! Each measurement adds the same number of items twice, of idle devices more often. It divides the growth of
//! the service's resident memory after the first time by the number of items. The first items have filled the
//! buffers and tables that all items share.

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

/// How many devices, or pending device-hours, are added each time.
const DEVICES: u64 = 100_000;

/// How often idle devices are added after the first time.
///
/// The allocator keeps some memory of each flush. It differs by some 10 MB: 100 bytes for each device of one
/// flush. With 700,000 devices the tables are two thirds full, as they are on average.
const FURTHER: u64 = 6;

/// The readings of a pending device-hour.
const READINGS: u64 = 60;

/// How many connections each half adds.
///
/// All of them fit into the usual limit of open files.
const IDLE: usize = 400;

impl Bench<'_> {
    /// Measures the memory of devices, of pending and of connections.
    pub(super) async fn memory(&mut self) -> anyhow::Result<()> {
        if self.system.target() != Target::Tidegauge {
            return Ok(());
        }
        if self.system != System::TidegaugeSqlite {
            return self.idle_devices().await; // with SQLite, its cache would count too
        }
        // The store does not matter for pending hours and connections, so one store is measured.
        self.pending_hours().await?;
        self.idle_connections().await
    }

    async fn idle_devices(&mut self) -> anyhow::Result<()> {
        // The readings of one time arrive within these 10 s, so all of them are pending at once. Thus pending
        // memory reaches the same peak each time.
        let config = [("flush.max_age", "10s"), ("limits.new_devices_per_minute", "0")];
        let server = Server::start(self.system, &self.args.programs, &Environment::of_config(config)).await?;
        let mut resident = [0.0; 2];
        for nth in 0..=FURTHER {
            let one_each = Workload { first_device: nth * DEVICES, ..workload(DEVICES, 1_000, BATCH, now_ms()?) };
            self.fill(&server, Format::Lines, one_each, DEVICES / CONNECTIONS / BATCH).await?;
            server.settle().await?;
            resident[usize::from(nth > 0)] = bytes_of(&server)?;
        }
        let growth = resident[1] - resident[0];
        self.add(Section::Memory, "bytes of an idle device", growth / (FURTHER * DEVICES) as f64);
        Ok(())
    }

    async fn pending_hours(&mut self) -> anyhow::Result<()> {
        // This turns off a limit for which the service would keep memory for each device outside of pending.
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
