//! The peak after the hours: for a while each device sends five readings a minute, in real time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::ensure;

use super::clock::Clock;
use crate::http::{self, Sending, Sent, Until};
use crate::latency::Latency;
use crate::process::Process;
use crate::systems::Server;

/// Seconds between two readings of a device.
const STEP_SECONDS: u64 = 12;

/// A peak that was sent.
pub(super) struct Peak {
    pub(super) sending: Sending,
    pub(super) sent: Sent,
    pub(super) figures: Figures,
}

/// How the service handled the peak.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Figures {
    /// Acknowledged readings a second.
    rate: f64,
    seconds: f64,
    /// Messages that were refused for now and sent again.
    again: u64,
    /// The time from the instant when a message was due until its answer, in milliseconds.
    latency: Latency,
    /// Processors used by the service and by mongod.
    cores: Vec<f64>,
    /// Memory of the service and of mongod at the end.
    resident_mib: Vec<f64>,
}

impl Peak {
    /// Sends for so many seconds, by a clock that it slows down to real time.
    ///
    /// # Errors
    /// If the seconds are no multiple of the step, or if a message fails.
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
