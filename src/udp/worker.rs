//! The thread of a socket: receive, append, and wait for the disk only when there is nothing better to do.

use std::collections::VecDeque;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::Counter;
use tokio_util::sync::CancellationToken;

use super::inbox::{Datagram, Inbox};
use super::refusal::Refusal;
use super::sequences::{Numbering, Sequences};
use super::{Options, datagram};
use crate::access::{Gate, Keys, Verified};
use crate::ingest::{Admission, Ingest, RefusalReason, Submission};
use crate::telemetry::{Limit, Metrics, RefusalEntry, RefusalLog, Sender, What};
use crate::wire::{Protocol, Source};

/// How long an idle thread waits before it looks whether it should end.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long to wait after the system refused to receive: it is out of memory, mostly.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// How long datagrams are still taken after the shutdown, if they do not end before.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// What a batch takes in memory besides its readings.
const BATCH_OVERHEAD_BYTES: usize = 1 << 10;

/// What the threads count.
#[derive(Clone)]
pub(super) struct Counters {
    datagrams: Counter,
    bytes: Counter,
    malformed: Counter,
    overload: Counter,
    truncated: Counter,
    rate_limited: Counter,
    at_limit: Counter,
}

impl Counters {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            datagrams: metrics.udp_datagrams_total.clone(),
            bytes: metrics.udp_bytes_total.clone(),
            malformed: metrics.udp_malformed_total.clone(),
            overload: metrics.udp_dropped_total.with("overload"),
            truncated: metrics.udp_dropped_total.with("truncated"),
            rate_limited: metrics.udp_dropped_total.with("rate_limited"),
            at_limit: metrics.limited_total.of(Limit::TokenReadings).clone(),
        }
    }
}

/// Who sent a datagram, for the log: the owner of the key that it is signed with, or an address.
fn sender(datagram: &Datagram<'_>, signer: Option<&Arc<str>>) -> Sender {
    let address = datagram.from.map(|from| Sender::Address(from.ip().to_canonical()));
    signer.map(|signer| Sender::Named(Arc::clone(signer))).or(address).unwrap_or(Sender::All)
}

/// All that a thread needs.
pub(super) struct Worker {
    pub(super) socket: UdpSocket,
    pub(super) options: Options,
    pub(super) ingest: Ingest,
    pub(super) counters: Counters,
    pub(super) sequences: Arc<Sequences>,
    pub(super) refusals: Arc<RefusalLog>,
    pub(super) gate: Arc<Gate>,
    pub(super) shutdown: CancellationToken,
}

/// A batch on its way into the log.
struct Unsettled {
    submission: Submission,
    datagrams: u64,
    /// How many of them have a reading in it.
    fruitful: u64,
    bytes: usize,
}

/// Batches on their way into the log, oldest first.
#[derive(Default)]
struct Backlog {
    batches: VecDeque<Unsettled>,
    bytes: usize,
}

impl Worker {
    /// Receives until the shutdown and takes what has arrived by then. All of it is in the log when this
    /// returns.
    pub(super) fn run(self) {
        let mut inbox = Inbox::new(&self.socket, self.options.max_datagram_bytes);
        let mut backlog = Backlog::default();
        let mut stop_at = None;
        loop {
            let is_stopping = self.shutdown.is_cancelled();
            if is_stopping && Instant::now() >= *stop_at.get_or_insert_with(|| Instant::now() + DRAIN_LIMIT) {
                break;
            }
            let has_received = inbox.receive().unwrap_or_else(|error| self.tell(error));
            if has_received {
                backlog.push(self.submit(&inbox));
                while backlog.bytes > self.options.receive_buffer_bytes {
                    self.settle_oldest(&mut backlog);
                }
            } else if !backlog.batches.is_empty() {
                self.settle_oldest(&mut backlog);
            } else if is_stopping {
                break;
            } else if let Err(error) = inbox.wait(PATIENCE) {
                self.tell(error);
            }
        }
        while !backlog.batches.is_empty() {
            self.settle_oldest(&mut backlog);
        }
    }

    /// Sends what was received on its way, as one batch.
    fn submit(&self, inbox: &Inbox<'_>) -> Unsettled {
        let tokens = self.gate.tokens();
        let mut admission = self.ingest.admission_of_batch();
        let (mut fruitful, mut bytes) = (0, 0);
        for datagram in inbox.datagrams() {
            bytes += datagram.bytes;
            match self.admit(&datagram, tokens.keys(), &mut admission) {
                Ok(is_fruitful) => fruitful += u64::from(is_fruitful),
                Err(why) => self.log_refused(sender(&datagram, None), why.code(), &why),
            }
        }
        let datagrams = inbox.datagrams().len() as u64;
        Unsettled { submission: self.ingest.submit(admission), datagrams, fruitful, bytes }
    }

    /// Returns whether the datagram holds an acceptable reading, unless it may not be read at all.
    fn admit<'k>(
        &'k self,
        datagram: &Datagram<'_>,
        keys: &'k Keys,
        admission: &mut Admission<'k>,
    ) -> Result<bool, Refusal> {
        let from = datagram.from.map(tracing::field::display);
        let Some(content) = datagram.content else {
            self.counters.truncated.increment(1);
            return Err(Refusal::TooLarge(datagram.bytes));
        };
        let verified = self.let_in(content, keys, admission.now_ms()).inspect_err(|why| {
            tracing::debug!(from, %why, "a datagram is refused");
            if let Some(reason) = why.reason() {
                self.ingest.count_refused_request(Protocol::Udp, reason);
            }
        })?;
        let format = datagram::format_of(verified.content);
        admission.set_sender(Source::udp(format), verified.scope, verified.quota);
        let case = admission.rules().device_id_case;
        let numbering = Numbering { sequences: &self.sequences, scope: verified.scope, case };
        let (accepted, received, rejected) = (admission.accepted(), admission.received(), admission.rejected());
        datagram::parse(verified.content, format, &self.options.device_tags, numbering, admission);
        if let Some(readings) = &verified.quota.readings {
            let more = (admission.received() - received).saturating_sub(1);
            readings.owe(more.into(), Instant::now());
        }
        if admission.rejected() > rejected {
            for rejected in admission.listed() {
                let (code, detail) = (rejected.rejection.code.as_str(), &rejected.rejection.detail);
                tracing::debug!(from, line = rejected.line, code, detail, "a reading is rejected");
            }
            for refusal in admission.take_refusals() {
                self.refusals.record(sender(datagram, verified.signer), refusal);
            }
        }
        if admission.accepted() == accepted {
            self.counters.malformed.increment(1);
            return Ok(false);
        }
        Ok(true)
    }

    /// The content of a datagram that may be read, for the first reading of which there was room in the rate
    /// of its key.
    fn let_in<'k, 'd>(&self, datagram: &'d [u8], keys: &'k Keys, now_ms: i64) -> Result<Verified<'k, 'd>, Refusal> {
        let verified = keys.verify(datagram, now_ms).inspect_err(|_| self.counters.malformed.increment(1))?;
        if let Some(readings) = &verified.quota.readings
            && readings.take(Instant::now()).is_err()
        {
            self.counters.rate_limited.increment(1);
            self.counters.at_limit.increment(1);
            return Err(Refusal::RateLimited);
        }
        Ok(verified)
    }

    /// Datagrams count as received when the readings in them count, so that at any time all or nothing of
    /// them is seen.
    fn settle_oldest(&self, backlog: &mut Backlog) {
        let Some(Unsettled { submission, datagrams, fruitful, bytes }) = backlog.pop() else { return };
        if let Err(error) = submission.settle() {
            let (code, example) = (RefusalReason::Overloaded.as_str(), error.to_string());
            let entry = RefusalEntry { what: What::Datagrams, code, count: fruitful, example };
            self.refusals.record(Sender::All, entry);
            self.counters.overload.increment(fruitful);
        }
        self.counters.bytes.increment(bytes as u64);
        self.counters.datagrams.increment(datagrams);
    }

    fn log_refused(&self, sender: Sender, code: &'static str, why: &Refusal) {
        self.refusals.record(sender, RefusalEntry { what: What::Datagrams, code, count: 1, example: why.to_string() });
    }

    fn tell(&self, error: nix::Error) -> bool {
        tracing::warn!(%error, "nothing is received from the UDP socket");
        if !self.shutdown.is_cancelled() {
            std::thread::sleep(ERROR_PAUSE);
        }
        false
    }
}

impl Backlog {
    fn push(&mut self, batch: Unsettled) {
        self.bytes += batch.bytes + BATCH_OVERHEAD_BYTES;
        self.batches.push_back(batch);
    }

    fn pop(&mut self) -> Option<Unsettled> {
        let oldest = self.batches.pop_front()?;
        self.bytes -= oldest.bytes + BATCH_OVERHEAD_BYTES;
        Some(oldest)
    }
}
