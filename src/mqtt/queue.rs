//! The queue of one connection: its messages on their way into the log.
//!
//! When a record is durable, the waiting messages become the next record, up to `MAX_BATCH_BYTES` of them. So
//! a slow disk leads to larger records. A message is acknowledged when its record is durable, in the order of
//! arrival. If the log refuses a record, its messages wait again. Meanwhile they and those that arrive are
//! charged to their rates, so that a sender that keeps its rate is not refused when the log has room again.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::message::{Message, MessageReceipt, Outcome};
use super::payload::{Readings, place};
use super::{Formats, Topic};
use crate::access::DeviceScope;
use crate::ingest::{Admission, Charged, Ingest, IngestError, RateLimitedError, Receipt, RefusalReason};
use crate::limits::Quota;
use crate::telemetry::{Metrics, RefusalEntry, RefusalLog, Sender, What};
use crate::wire::{Code, Protocol, Source};

/// The most bytes of messages in one record.
///
/// The metric names of so few messages always fit into one record. So no reading is rejected because other
/// messages are in its record.
const MAX_BATCH_BYTES: usize = 256 << 10;

/// The most bytes in a record for each byte of a message, metric names included.
const RECORD_BYTES_PER_BYTE: usize = 8;

/// The wait before the next append after the log has refused one.
const LOG_PAUSE: Duration = Duration::from_millis(500);

/// The longest wait before a message that waits for the rate is judged again.
///
/// Meanwhile the configuration may give its sender another rate, or no rights any more.
const RATE_PAUSE: Duration = Duration::from_secs(1);

/// The rooms and options that bring messages into the log.
#[derive(Debug, Clone)]
pub(super) struct Intake {
    pub(super) topics: Arc<[Topic]>,
    pub(super) formats: Formats,
    pub(super) ingest: Ingest,
    pub(super) metrics: Arc<Metrics>,
    pub(super) refusals: Arc<RefusalLog>,
}

/// The rights and limits of the client that sends the messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Author<'a> {
    pub(super) scope: &'a DeviceScope,
    pub(super) quota: &'a Quota,
    /// Whether messages wait while their sender is over its rate of readings.
    ///
    /// MQTT 3.1.1 cannot refuse them.
    pub(super) waits_for_rate: bool,
}

/// The messages of a connection whose readings are not durable yet, oldest first.
#[derive(Default)]
pub(super) struct Queue {
    messages: VecDeque<Message>,
    bytes: usize,
    /// The number of messages that need an acknowledgement, submitted ones included.
    unacknowledged: u32,
    /// The messages on their way into the log.
    submitted: Option<Submitted>,
    /// The end of a pause: the log has refused a record, or the rate is reached.
    try_at: Option<Instant>,
    /// When the rate has room for the message that waits for it, if the rate stays the same.
    rate_at: Option<Instant>,
    /// Whether the log has refused the last append.
    is_log_full: bool,
}

/// Messages on their way into the log.
struct Submitted {
    durable: Pin<Box<dyn Future<Output = Result<Receipt, IngestError>> + Send>>,
    messages: Vec<(Message, Verdict)>,
}

/// The outcome of admission for a message.
#[derive(Default)]
struct Verdict {
    outcome: Outcome,
    /// The reason in the metrics, if nothing of the message is stored.
    refused: Option<&'static str>,
    readings: Readings,
    /// The log lines about the message.
    refusals: Vec<RefusalEntry>,
}

impl Verdict {
    /// The outcome for a message of which nothing is stored.
    fn refused(outcome: Outcome, reason: &'static str, code: &'static str, example: String) -> Self {
        let refusals = vec![RefusalEntry { what: What::Messages, code, count: 1, example }];
        Self { outcome, refused: Some(reason), refusals, ..Self::default() }
    }

    /// The rates that the admission has charged.
    ///
    /// If a device was over its limits, the devices are charged and judged again.
    fn charged(&self) -> Charged {
        if self.refusals.iter().any(|refusal| is_for_now(refusal.code)) {
            Charged::Sender
        } else {
            Charged::SenderAndDevices
        }
    }
}

impl Queue {
    /// Appends a message to the queue.
    pub(super) fn take(&mut self, message: Message, intake: &Intake) {
        self.bytes += message.bytes;
        self.unacknowledged += u32::from(message.receipt.is_some());
        if message.is_again {
            intake.metrics.mqtt_redelivered_total.increment(1);
        }
        self.messages.push_back(message);
    }

    /// Whether a message waits, no record is on its way, and no pause lasts.
    pub(super) fn can_submit(&self) -> bool {
        let is_pausing = self.try_at.is_some_and(|at| at > Instant::now());
        !self.is_submitted() && !self.messages.is_empty() && !is_pausing
    }

    /// The end of the wait for the rate, if a message waits that its sender will not send again.
    pub(super) fn rate_pause(&self) -> Option<Instant> {
        let can_be_lost = self.messages.iter().any(|message| message.receipt.is_none());
        self.rate_at.filter(|_| can_be_lost && !self.is_log_full)
    }

    /// Drops the waiting messages, and counts those that are lost.
    ///
    /// The sender still has the messages that need an acknowledgement, so these are not lost.
    pub(super) fn give_up(self, metrics: &Metrics) {
        let reason = if self.rate_pause().is_some() { "rate" } else { "overloaded" };
        let lost = self.messages.iter().filter(|message| message.receipt.is_none()).count();
        metrics.mqtt_refused_total.with(reason).increment(lost as u64);
    }

    /// Submits waiting messages to the log as one record, if [`Self::can_submit`].
    pub(super) fn submit(&mut self, intake: &Intake, author: Author<'_>) {
        if !self.can_submit() {
            return;
        }
        if self.is_log_full && intake.ingest.is_log_refusing() {
            self.charge(intake, author);
            self.try_at = Some(Instant::now() + LOG_PAUSE);
            return;
        }
        (self.try_at, self.rate_at, self.is_log_full) = (None, None, false);
        let max_batch_bytes = MAX_BATCH_BYTES.min(intake.ingest.max_record_bytes() / RECORD_BYTES_PER_BYTE);
        let (mut bytes, mut messages) = (0, Vec::new());
        let now = Instant::now();
        let mut admission = intake.ingest.admission_of_batch();
        while let Some(mut message) = self.messages.pop_front() {
            if bytes > 0 && bytes + message.bytes > max_batch_bytes {
                self.messages.push_front(message);
                break;
            }
            let verdict = match intake.admit(&message, author, &mut admission, now) {
                Ok(verdict) => {
                    message.charged = message.charged.max(verdict.charged());
                    verdict
                }
                Err(RateLimitedError { retry_after }) if author.waits_for_rate => {
                    self.messages.push_front(message);
                    let now = Instant::now();
                    self.rate_at = Some(now + retry_after);
                    self.try_at = Some(now + retry_after.min(RATE_PAUSE));
                    break;
                }
                Err(error) => {
                    let code = RefusalReason::RateLimited.as_str();
                    Verdict::refused(Outcome::OverQuota, "rate", code, error.to_string())
                }
            };
            bytes += message.bytes;
            messages.push((message, verdict));
        }
        if !messages.is_empty() {
            let submission = intake.ingest.finish(admission.end(), true).kept_by_sender();
            self.submitted = Some(Submitted { durable: Box::pin(submission.durable()), messages });
        }
    }

    /// Charges the messages that wait for the log to their rates, in the order of their arrival.
    ///
    /// Their readings are admitted again when the log has room. If the rate of the sender has no room for a
    /// message, it and the later ones are charged after another pause, or when the log has room.
    fn charge(&mut self, intake: &Intake, author: Author<'_>) {
        let (mut bytes, now) = (0, Instant::now());
        for message in self.messages.iter_mut().filter(|message| message.charged == Charged::Nothing) {
            let mut admission = intake.ingest.admission_of_batch();
            let Ok(verdict) = intake.admit(message, author, &mut admission, now) else { return };
            message.charged = verdict.charged();
            drop(admission.end()); // charges the readings after the first
            bytes += message.bytes;
            if bytes >= MAX_BATCH_BYTES {
                return; // the others follow after the next pause
            }
        }
    }

    /// Waits until the submitted record is durable; forever if there is none.
    pub(super) async fn durable(&mut self) -> Result<Receipt, IngestError> {
        match &mut self.submitted {
            Some(submitted) => submitted.durable.as_mut().await,
            None => std::future::pending().await,
        }
    }

    /// Acknowledges the messages of a durable record, in the order of their arrival.
    ///
    /// If the log has refused the record, its messages wait again.
    pub(super) fn settle<E>(
        &mut self,
        result: Result<Receipt, IngestError>,
        intake: &Intake,
        sender: &Sender,
        mut acknowledge: impl FnMut(MessageReceipt, Outcome, Option<&str>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(Submitted { messages, .. }) = self.submitted.take() else { return Ok(()) };
        if let Err(error) = result {
            for (message, _) in messages.into_iter().rev() {
                self.messages.push_front(message);
            }
            (self.try_at, self.is_log_full) = (Some(Instant::now() + LOG_PAUSE), true);
            let (code, count) = (RefusalReason::Overloaded.as_str(), self.messages.len() as u64);
            let example = format!("{error}; the messages stay unacknowledged");
            intake.refusals.record(Sender::All, RefusalEntry { what: What::Messages, code, count, example }, None);
            return Ok(());
        }
        for (message, Verdict { outcome, refused, readings, refusals }) in messages {
            self.bytes -= message.bytes;
            if let Some(reason) = refused {
                intake.metrics.mqtt_refused_total.with(reason).increment(1);
                if reason == "rate" {
                    intake.ingest.count_rate_limited(Protocol::Mqtt);
                }
            }
            if message.is_again {
                intake.metrics.mqtt_redelivered_untimed_total.increment(readings.untimed.into());
            }
            if let Some(receipt) = message.receipt {
                acknowledge(receipt, outcome, refusals.first().map(|refusal| refusal.example.as_str()))?;
                self.unacknowledged -= 1;
            }
            for mut refusal in refusals {
                refusal.example = format!("{}: {}", topic_for_people(&message.topic), refusal.example);
                intake.refusals.record(sender.clone(), refusal, None);
            }
        }
        Ok(())
    }

    /// Whether a record is on its way into the log.
    pub(super) const fn is_submitted(&self) -> bool {
        self.submitted.is_some()
    }

    /// The memory of all messages in bytes, submitted ones included.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of messages that need an acknowledgement.
    pub(super) const fn unacknowledged(&self) -> u32 {
        self.unacknowledged
    }

    /// When to submit again after a pause. `None` while a record is on its way: its end comes first.
    pub(super) fn try_at(&self) -> Option<Instant> {
        self.try_at.filter(|_| !self.is_submitted())
    }

    /// The arrival of the oldest message that needs an acknowledgement.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let submitted = self.submitted.iter().flat_map(|submitted| &submitted.messages).map(|(message, _)| message);
        let oldest = submitted.chain(&self.messages).find(|message| message.receipt.is_some());
        oldest.map(|message| message.arrived)
    }
}

impl Intake {
    /// Admits the readings of a message into a batch, which began at `now`.
    ///
    /// Fails if the rate of the author has no room for the message. Then nothing is charged.
    fn admit<'a>(
        &'a self,
        message: &Message,
        author: Author<'a>,
        admission: &mut Admission<'a>,
        now: Instant,
    ) -> Result<Verdict, RateLimitedError> {
        let refuse = |reason, code, example| Ok(Verdict::refused(Outcome::Invalid, reason, code, example));
        let Some(payload) = &message.payload else {
            let why = "the message is larger than max_packet_bytes".to_owned();
            return refuse("size", "too_large", why);
        };
        let place = match place(&self.topics, &message.topic) {
            Ok(place) => place,
            Err(why) => return refuse("topic", "unknown_topic", why),
        };
        let (Author { scope, quota, .. }, payload) = (author, payload.as_slice());
        let source = Source::mqtt(place.format(payload));
        let waited = now.saturating_duration_since(message.arrived);
        admission.begin_datagram(source, (scope, quota), waited, message.charged)?;
        let (accepted, rejected) = (admission.accepted(), admission.rejected());
        let readings = place.admit(payload, message.is_retained, &self.formats, admission);
        let has_rejected = admission.rejected() > rejected;
        // Rejected values of accepted readings have log lines too.
        let refusals = if admission.listed().is_empty() { Vec::new() } else { admission.take_refusals() };
        let too_many_metrics = Code::TooManyDeviceMetrics.as_str();
        let is_over_quota = refusals.iter().any(|refusal| is_for_now(refusal.code) || refusal.code == too_many_metrics);
        let is_stored = admission.accepted() > accepted;
        let refused = match (is_stored, has_rejected) {
            (true, _) => None,
            (false, true) => Some("payload"),
            (false, false) => (readings.retained > 0).then_some("retained"),
        };
        let outcome = match refused {
            Some("payload") if is_over_quota => Outcome::OverQuota,
            Some("payload") => Outcome::Invalid,
            _ => Outcome::Done,
        };
        Ok(Verdict { outcome, refused, readings, refusals })
    }
}

/// Whether a code means that a limit refuses a reading for now.
fn is_for_now(code: &str) -> bool {
    [Code::DeviceRateLimited, Code::TooManyNewDevices].iter().any(|known| known.as_str() == code)
}

/// A topic in a log line: its first 100 characters, in quotes.
pub(super) fn topic_for_people(topic: &str) -> String {
    let shown: String = topic.chars().take(100).map(|c| if c.is_control() { '?' } else { c }).collect();
    format!("topic {shown:?}")
}

#[cfg(test)]
mod tests;
