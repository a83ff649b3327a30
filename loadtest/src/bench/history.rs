//! Measures disk space and queries of stored days.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::loads::workload;
use super::queries::Queries;
use super::{Bench, Section};
use crate::format::Format;
use crate::http::{self, Sending, Sent, Until};
use crate::now_ms;
use crate::systems::{Server, System};
use crate::target::Target;
use crate::workload::Workload;

pub(super) const DAY_MS: u64 = 86_400_000;

/// The number of devices with history. Each has a reading every [`STEP_MS`].
pub(super) const DEVICES: u64 = 50;
const STEP_MS: u64 = 10_000;

/// The number of connections, and of readings per request.
pub(super) const CONNECTIONS: u64 = 4;
pub(super) const BATCH: u64 = 1_000;

impl Bench<'_> {
    /// Stores days of history. Then measures its disk space and the speed of queries.
    pub(super) async fn history(&mut self) -> anyhow::Result<()> {
        let days = match self.system {
            System::Bare | System::NaivePush => return Ok(()), // bare stores nothing, and naive push would take hours
            System::NaiveInsert => 1,
            _ => self.args.days,
        };
        let server = self.start().await?;
        let first_ms = now_ms()? - 60 * DAY_MS;
        let sent = self.fill_history(&server, first_ms, days).await?;
        self.queries(&Queries { server: &server, target: self.system.target(), first_ms, days }).await?;
        let bytes = server.stored_bytes().await?;
        self.add(Section::Disk, "bytes per reading, logs and journals aside", bytes as f64 / sent.readings as f64);
        Ok(())
    }

    /// Sends days of history, and waits until all readings are stored.
    pub(super) async fn fill_history(&mut self, server: &Server, first_ms: u64, days: u64) -> anyhow::Result<Sent> {
        let format = if self.system.target() == Target::Naive { Format::Json } else { Format::Lines };
        let messages = (days * DAY_MS / STEP_MS * DEVICES / CONNECTIONS).div_ceil(BATCH);
        let sent = self.fill(server, format, workload(DEVICES, STEP_MS, BATCH, first_ms), messages).await?;
        server.settle().await?;
        Ok(sent)
    }

    pub(super) async fn fill(
        &mut self,
        server: &Server,
        format: Format,
        workload: Workload,
        messages: u64,
    ) -> anyhow::Result<Sent> {
        let (address, target) = (server.address.clone(), self.system.target());
        let until = Until::Messages(messages);
        let sending = Sending { address, target, format, workload, connections: CONNECTIONS, rate: None, until };
        let sent = http::send(sending, Arc::new(AtomicU64::new(0))).await?;
        if sent.again > 0 {
            self.note(&format!("history: {} times", sent.again));
        }
        Ok(sent)
    }
}
