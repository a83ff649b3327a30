//! The peak after the hours: five readings a minute of each device, in real time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::ensure;

use super::clock::Clock;
use crate::http::{self, Sending, Sent, Until};
use crate::latency::Latency;
use crate::process::Process;
use crate::systems::Server;

/// Seconds between two readings of a device during the peak.
const STEP_SECONDS: u64 = 12;

/// A peak: what was sent, and its figures.
pub(super) struct Peak {
    pub(super) sending: Sending,
    pub(super) sent: Sent,
    pub(super) figures: Figures,
}

/// The figures of a peak.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Figures {
    /// Acknowledged readings a second.
    rate: f64,
    seconds: f64,
    /// How often a message was refused for now and sent again.
    again: u64,
    /// The time from the instant at which a message was due to its answer.
    latency: Latency,
    /// CPU seconds per second: of the service, and of mongod.
    cores: Vec<f64>,
    /// The memory at the end of the peak: of the service, and of mongod.
    resident_mib: Vec<f64>,
}

impl Peak {
    /// Slows the clock down to real time, and sends messages for `seconds`.
    ///
    /// `hours` has the messages of the hours before. The peak has the same devices and format, and a higher
    /// rate.
    ///
    /// # Errors
    /// If `seconds` is no multiple of [`STEP_SECONDS`], or if a message fails.
    pub(super) async fn send(
        seconds: u64,
        hours: &Sending,
        clock: &mut Clock,
        server: &Server,
    ) -> anyhow::Result<Self> {
        ensure!(seconds.is_multiple_of(STEP_SECONDS), "the seconds of the peak are not a multiple of {STEP_SECONDS}");
        clock.slow_down()?;
        let mut sending = hours.clone();
        sending.workload.step_ms = STEP_SECONDS * 1_000;
        sending.workload.first_ms = clock.now_ms()?;
        sending.rate = Some(sending.workload.natural_rate());
        let devices = sending.workload.devices / sending.connections;
        sending.until = Until::Messages(seconds / STEP_SECONDS * devices / sending.workload.batch);
        let usages = || server.processes.iter().map(Process::usage).collect::<anyhow::Result<Vec<_>>>();
        let before = usages()?;
        let sent = http::send(sending.clone(), Arc::new(AtomicU64::new(0))).await?;
        let after = usages()?;
        let took = sent.took.as_secs_f64();
        let figures = Figures {
            rate: sent.readings as f64 / took,
            seconds: took,
            again: sent.again,
            latency: Latency::of(&sent.latencies),
            cores: after.iter().zip(&before).map(|(now, then)| (now.cpu_seconds - then.cpu_seconds) / took).collect(),
            resident_mib: after.iter().map(|usage| usage.resident_mib).collect(),
        };
        Ok(Self { sending, sent, figures })
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, seconds, again, latency, cores, resident_mib } = self;
        write!(
            f,
            "The peak: {rate:.0} readings a second for {seconds:.1} s; answered within {:.1} ms (p50), {:.1} ms (p99), \
            {:.1} ms (max); {again} messages sent again; processors used by the service, mongod: {cores:.2?}; \
            MiB: {resident_mib:.0?}",
            latency.p50, latency.p99, latency.max
        )
    }
}
