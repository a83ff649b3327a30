//! The thread of a socket: it receives datagrams and appends them to the log.
//!
//! It waits for the disk only if no more datagrams have arrived, or if too many bytes are on their way.

use std::collections::VecDeque;
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::Counter;
use tokio_util::sync::CancellationToken;

use super::error::DatagramError;
use super::inbox::{Datagram, Inbox};
use super::sequences::{Numbering, Sequences};
use super::{Options, datagram};
use crate::access::{Gate, Keys, Verified};
use crate::ingest::{Admission, Charged, Ingest, RefusalReason, Submission};
use crate::telemetry::{Metrics, RefusalEntry, RefusalLog, Sender, What};
use crate::wire::{Protocol, Source};

/// The pause after a failed system call: usually the system is out of memory.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// The longest time for which datagrams are received after the shutdown.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// The memory of a batch besides its readings, in bytes.
const BATCH_OVERHEAD_BYTES: usize = 1 << 10;

/// The counters of the threads.
#[derive(Clone)]
pub(super) struct Counters {
    datagrams: Counter,
    bytes: Counter,
    malformed: Counter,
    overload: Counter,
    truncated: Counter,
    rate_limited: Counter,
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
        }
    }
}

/// The sender of a datagram for log lines: the key that it is signed with, or its address.
fn sender(datagram: &Datagram<'_>, signer: Option<&Arc<str>>) -> Sender {
    let address = datagram.from.map(|from| Sender::Address(from.ip().to_canonical()));
    signer.map(|signer| Sender::Named(Arc::clone(signer))).or(address).unwrap_or(Sender::All)
}

/// The thread of one socket.
pub(super) struct Worker {
    pub(super) socket: UdpSocket,
    pub(super) options: Options,
    pub(super) ingest: Ingest,
    pub(super) counters: Counters,
    pub(super) sequences: Arc<Sequences>,
    pub(super) refusals: Arc<RefusalLog>,
    pub(super) gate: Arc<Gate>,
    pub(super) shutdown: CancellationToken,
    /// A socket whose other end is closed after the shutdown has begun.
    ///
    /// The close wakes an idle thread.
    pub(super) wakes_at_shutdown: Arc<UnixStream>,
}

/// A batch on its way into the log.
struct Unsettled {
    submission: Submission,
    datagrams: u64,
    /// How many datagrams have an accepted reading.
    with_readings: u64,
    bytes: usize,
}

/// Batches on their way into the log, oldest first.
#[derive(Default)]
struct Backlog {
    batches: VecDeque<Unsettled>,
    bytes: usize,
}

impl Worker {
    /// Receives until the shutdown, and then the datagrams that have arrived by then.
    ///
    /// When this returns, all of them are in the log or counted as lost.
    pub(super) fn run(self) {
        let mut inbox = Inbox::new(&self.socket, self.options.udp.max_datagram_bytes.as_usize());
        let mut backlog = Backlog::default();
        let (mut is_stopping, mut stop_at) = (false, None);
        loop {
            is_stopping |= self.shutdown.is_cancelled();
            if is_stopping && Instant::now() >= *stop_at.get_or_insert_with(|| Instant::now() + DRAIN_LIMIT) {
                break;
            }
            let has_received = inbox.receive().unwrap_or_else(|error| self.pause_after(error));
            if has_received {
                backlog.push(self.submit(&inbox));
                while backlog.bytes > self.options.udp.receive_buffer.as_usize() {
                    self.settle_oldest(&mut backlog);
                }
            } else if !backlog.batches.is_empty() {
                self.settle_oldest(&mut backlog);
            } else if is_stopping {
                break;
            } else {
                is_stopping = inbox.wait(&self.wakes_at_shutdown).unwrap_or_else(|error| self.pause_after(error));
            }
        }
        while !backlog.batches.is_empty() {
            self.settle_oldest(&mut backlog);
        }
    }

    /// Submits the received datagrams to the log as one batch.
    fn submit(&self, inbox: &Inbox<'_>) -> Unsettled {
        let tokens = self.gate.tokens();
        let mut admission = self.ingest.admission_of_batch();
        let (mut with_readings, mut bytes) = (0, 0);
        for datagram in inbox.datagrams() {
            bytes += datagram.bytes;
            match self.admit(&datagram, &tokens.keys, &mut admission) {
                Ok(has_reading) => with_readings += u64::from(has_reading),
                Err(error) => self.count_refused(&datagram, &error),
            }
        }
        let datagrams = inbox.datagrams().len() as u64;
        let submission = self.ingest.finish(admission.end(), true);
        Unsettled { submission, datagrams, with_readings, bytes }
    }

    /// Admits the readings of a datagram.
    ///
    /// Returns whether at least one of them is accepted.
    fn admit<'k>(
        &'k self,
        datagram: &Datagram<'_>,
        keys: &'k Keys,
        admission: &mut Admission<'k>,
    ) -> Result<bool, DatagramError> {
        let content = datagram.content.ok_or(DatagramError::TooLarge(datagram.bytes))?;
        let Verified { signer, content, scope, quota } = keys.verify(content, admission.now_ms())?;
        let format = datagram::format_of(content);
        // All datagrams of one call get its time: how long each has waited in the kernel is not known.
        let begun = admission.begin_datagram(Source::udp(format), (scope, quota), Duration::ZERO, Charged::Nothing);
        begun.inspect_err(|_| self.ingest.count_rate_limited(Protocol::Udp))?;
        let numbering = Numbering { sequences: &self.sequences, scope };
        let accepted = admission.accepted();
        let json = self.options.json.at(admission.now_ms());
        datagram::parse(content, format, &json, &self.options.line_protocol, numbering, admission);
        if !admission.listed().is_empty() {
            let from = datagram.from.map(tracing::field::display);
            for rejected in admission.listed() {
                let (code, detail) = (rejected.rejection.code.as_str(), &rejected.rejection.detail);
                tracing::debug!(from, line = rejected.line, code, detail, "a reading is rejected");
            }
            for refusal in admission.take_refusals() {
                self.refusals.record(sender(datagram, signer), refusal, None);
            }
        }
        let has_reading = admission.accepted() > accepted;
        if !has_reading {
            self.counters.malformed.increment(1);
        }
        Ok(has_reading)
    }

    fn count_refused(&self, datagram: &Datagram<'_>, error: &DatagramError) {
        match error {
            DatagramError::TooLarge(_) => self.counters.truncated.increment(1),
            DatagramError::Signature(_) => self.counters.malformed.increment(1),
            DatagramError::RateLimited(_) => self.counters.rate_limited.increment(1),
        }
        if let Some(reason) = error.uncounted_reason() {
            self.ingest.count_refused_request(Protocol::Udp, reason);
        }
        tracing::debug!(from = datagram.from.map(tracing::field::display), %error, "a datagram is refused");
        let entry = RefusalEntry { what: What::Datagrams, code: error.code(), count: 1, example: error.to_string() };
        self.refusals.record(sender(datagram, None), entry, None);
    }

    /// Waits until the oldest batch is logged or refused, and counts its datagrams.
    ///
    /// The readings are counted at the same time, so that the metrics show all of a datagram or nothing.
    fn settle_oldest(&self, backlog: &mut Backlog) {
        let Some(Unsettled { submission, datagrams, with_readings, bytes }) = backlog.pop() else { return };
        if let Err(error) = submission.wait() {
            let (code, example) = (RefusalReason::Overloaded.as_str(), error.to_string());
            let entry = RefusalEntry { what: What::Datagrams, code, count: with_readings, example };
            self.refusals.record(Sender::All, entry, None);
            self.counters.overload.increment(with_readings);
        }
        self.counters.bytes.increment(bytes as u64);
        self.counters.datagrams.increment(datagrams);
    }

    /// Logs a failed system call and pauses.
    ///
    /// Returns false, as a call that found nothing does.
    fn pause_after(&self, error: nix::Error) -> bool {
        tracing::warn!(%error, "the UDP socket cannot receive; trying again");
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
