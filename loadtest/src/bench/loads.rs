//! Measures throughput, and CPU time until all readings are stored.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::{Bench, Section};
use crate::format::Format;
use crate::http::{self, Sending, Until};
use crate::latency::Latency;
use crate::process::Process;
use crate::systems::{Server, System};
use crate::target::Target;
use crate::workload::{Kind, Workload};
use crate::{now_ms, udp};

/// How long the server's count of readings must be unchanged after a flood.
const STANDS_STILL: Duration = Duration::from_secs(2);

/// A load on a system: by which protocol readings are sent, and how many at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    way: Way,
    format: Format,
    /// Readings per message.
    batch: u64,
    /// Connections, or sockets.
    connections: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Http,
    Udp,
}

impl Load {
    const fn http(format: Format, batch: u64, connections: u64) -> Self {
        Self { way: Way::Http, format, batch, connections }
    }

    const fn udp(format: Format, batch: u64) -> Self {
        Self { way: Way::Udp, format, batch, connections: 2 }
    }
}

/// All loads.
///
/// A datagram has one reading or, in line protocol, up to 100, because networks carry no larger datagrams.
pub(super) const LOADS: [Load; 9] = [
    Load::http(Format::Json, 1, 64),
    Load::http(Format::Json, 100, 16),
    Load::http(Format::Json, 1_000, 4),
    Load::http(Format::Lines, 1, 64),
    Load::http(Format::Lines, 100, 16),
    Load::http(Format::Lines, 1_000, 4),
    Load::udp(Format::Json, 1),
    Load::udp(Format::Lines, 1),
    Load::udp(Format::Lines, 100),
];

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = if self.format == Format::Lines { "line protocol" } else { "JSON" };
        match self.way {
            Way::Http => write!(f, "{format}, {} a request, {} connections", self.batch, self.connections),
            Way::Udp => write!(f, "UDP, {format}, {} a datagram", self.batch),
        }
    }
}

impl Load {
    pub(super) fn suits(self, system: System) -> bool {
        let takes = match system {
            System::Bare | System::NaivePush => self.batch == 1 && self.way == Way::Http,
            System::NaiveInsert => self.way == Way::Http,
            _ => true,
        };
        takes && system.target().reads(self.format)
    }
}

impl Bench<'_> {
    pub(super) async fn load(&mut self, load: Load) -> anyhow::Result<()> {
        let mut server = self.start().await?;
        server.processes.iter_mut().try_for_each(Process::reset)?;
        let started = Instant::now();
        let readings = match load.way {
            Way::Http => self.requests(&server, load).await?,
            Way::Udp => self.flood(&server, load).await?,
        };
        server.settle().await?;
        if self.system.target() == Target::Tidegauge && load.way == Way::Http {
            self.add(Section::Stored, &load.to_string(), readings as f64 / started.elapsed().as_secs_f64());
        }
        self.costs(&server, load, readings)
    }

    /// Sends requests in a closed loop. Returns the number of acknowledged readings.
    async fn requests(&mut self, server: &Server, load: Load) -> anyhow::Result<u64> {
        let Load { format, batch, connections, .. } = load;
        let sending = Sending {
            address: server.address.clone(),
            target: self.system.target(),
            format,
            workload: of_now(batch)?,
            connections,
            rate: None,
            until: Until::Seconds(self.args.seconds),
        };
        let sent = http::send(sending, Arc::new(AtomicU64::new(0))).await?;
        let what = load.to_string();
        self.add(Section::Readings, &what, sent.readings as f64 / sent.took.as_secs_f64());
        self.add(Section::Latency, &what, Latency::of(&sent.latencies).p99);
        if sent.again > 0 {
            self.note(&format!("{what}: {} times", sent.again));
        }
        Ok(sent.readings)
    }

    /// Sends more datagrams than the system can receive.
    ///
    /// Returns the number of received readings.
    async fn flood(&mut self, server: &Server, load: Load) -> anyhow::Result<u64> {
        let before = server.taken().await?;
        let sending = udp::Sending {
            address: server.udp,
            format: load.format,
            workload: of_now(load.batch)?,
            sockets: load.connections,
            rate: f64::INFINITY,
            until: Until::Seconds(self.args.seconds),
        };
        let start = Instant::now();
        let datagrams = tokio::task::spawn_blocking(move || udp::send(&sending, &AtomicU64::new(0))).await??;
        let sent = datagrams.iter().sum::<u64>() * load.batch;
        let during = server.taken().await? - before; // without readings that still wait in buffers
        let took = start.elapsed().as_secs_f64();
        let taken = server.taken_at_last(STANDS_STILL).await? - before;
        ensure!(taken > 0, "none of {sent} readings was taken");
        let what = load.to_string();
        self.add(Section::Readings, &what, during as f64 / took);
        self.add(Section::Lost, &what, (1.0 - taken as f64 / sent as f64) * 100.0);
        Ok(taken)
    }

    fn costs(&mut self, server: &Server, load: Load, readings: u64) -> anyhow::Result<()> {
        let what = load.to_string();
        for (at, process) in server.processes.iter().enumerate() {
            let usage = process.usage()?;
            self.add(Section::CPU[at], &what, usage.cpu_seconds / readings as f64 * 1e6);
            self.peaks_mib[at] = self.peaks_mib[at].max(usage.peak_mib);
        }
        Ok(())
    }
}

/// A workload of readings in the current hour.
///
/// The readings of a device are 1 ms apart, so they span about a second, which rarely has the end of an hour.
/// At each flush, a device has some hundred readings.
fn of_now(batch: u64) -> anyhow::Result<Workload> {
    Ok(workload(10_000, 1, batch, now_ms()? - 60_000))
}

/// The workload of [`Kind::Factory`] with these numbers.
pub(super) const fn workload(devices: u64, step_ms: u64, batch: u64, first_ms: u64) -> Workload {
    Workload::steady(Kind::Factory, devices, step_ms, batch, first_ms)
}
