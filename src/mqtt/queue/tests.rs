//! The rates count each message once while it waits for the log: with a real log and the real metrics.

use std::borrow::Cow;
use std::convert::Infallible;

use mqtt_protocol_core::mqtt::common::IntoPayload as _;
use tempfile::TempDir;

use super::*;
use crate::common::clock::Clock;
use crate::config::{LineProtocol, MqttTopic, Senml};
use crate::ingest::Rules;
use crate::ingest::devices::{DeviceLimits, Devices};
use crate::limits::{Limiter, Rate};
use crate::log::{AppendError, Instruments, Log, Options};
use crate::telemetry::Exposition;
use crate::wire::senml::NameSplit;
use crate::wire::{Incoming, Sink as _, json};

/// The way of messages into a log.
struct Edge {
    _folder: TempDir,
    intake: Intake,
    exposition: Exposition,
}

impl Edge {
    fn new(device_rate: Option<Rate>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { max_bytes: 20_000, ..Options::of_test(folder.path()) };
        let log = Arc::new(Log::open(options, Instruments::default()).unwrap().0);
        let limits = DeviceLimits {
            readings: device_rate,
            metrics_per_hour: None,
            new_devices: None,
            start_grace: Duration::ZERO,
            max_known: 1_000,
        };
        let devices = Devices::new(limits).map(|(devices, _)| devices);
        let (metrics, exposition) = Metrics::new();
        let metrics = Arc::new(metrics);
        let intake = Intake {
            topics: Topic::all(&toml::from_str::<MqttTopic>("topic = 'own/#'").unwrap()).into(),
            formats: Formats {
                line_protocol: LineProtocol::default(),
                json: json::Options::default(),
                senml_names: NameSplit::at(Senml::default().separators.as_str()),
            },
            ingest: Ingest::new(log, Rules::OF_TEST, devices, Arc::clone(&metrics), Clock::system()),
            metrics,
            refusals: Arc::default(),
        };
        Self { _folder: folder, intake, exposition }
    }

    /// Appends readings until the log is full.
    fn fill(&self) {
        for n in 0.. {
            if self.intake.ingest.is_log_refusing() {
                return;
            }
            let mut admission = self.intake.ingest.admission_of_batch();
            admission.reading(Incoming {
                device: &format!("filler-{n}"),
                metadata: None,
                owner: None,
                ts_ms: None,
                values: &[(Cow::Borrowed("m"), 1.0)],
                measurement_bytes: 0,
            });
            drop(self.intake.ingest.finish(admission.end(), true));
        }
    }

    /// Settles the submitted messages. Returns the outcomes of those that are acknowledged.
    fn settle(&self, queue: &mut Queue, result: Result<Receipt, IngestError>) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        let Ok(()) = queue.settle(result, &self.intake, &Sender::All, |_, outcome, _| {
            outcomes.push(outcome);
            Ok::<_, Infallible>(())
        });
        outcomes
    }
}

/// One reading in a thousand seconds.
fn slow() -> Option<Rate> {
    Rate::new(1, Duration::from_secs(1_000), Duration::ZERO)
}

fn quota_of(rate: Option<Rate>) -> Quota {
    Quota { readings: rate.map(|rate| Limiter::new(rate, Instant::now())), ..Quota::default() }
}

fn author(quota: &Quota) -> Author<'_> {
    Author { scope: DeviceScope::all(), quota, waits_for_rate: false }
}

/// A message with a reading of each device.
fn message(devices: &[&str]) -> Message {
    let lines: Vec<_> =
        devices.iter().zip(1..).map(|(id, ts)| format!(r#"{{"deviceId":"{id}","ts":{ts},"value":1}}"#)).collect();
    let payload = lines.join("\n");
    Message {
        topic: "own/x".into(),
        bytes: payload.len(),
        payload: Some(payload.into_payload()),
        receipt: Some(MessageReceipt { packet_id: 1, is_exactly_once: false }),
        is_retained: false,
        is_again: false,
        arrived: Instant::now(),
        charged: Charged::Nothing,
    }
}

#[tokio::test]
async fn a_message_that_the_log_has_refused_is_charged_and_counted_once() {
    for (of_sender, of_device) in [(slow(), None), (None, slow())] {
        let (edge, quota, mut queue) = (Edge::new(of_device), quota_of(of_sender), Queue::default());
        for devices in [&["a", "a", "a"][..], &["a"]] {
            queue.take(message(devices), &edge.intake);
            queue.submit(&edge.intake, author(&quota));
            let refused = Err(IngestError::Overloaded(AppendError::DiskFull));
            assert_eq!(edge.settle(&mut queue, refused), []);
            queue.try_at = None; // the pause is over
        }
        let mut outcomes = Vec::new();
        while queue.bytes() > 0 {
            queue.submit(&edge.intake, author(&quota));
            let result = queue.durable().await;
            outcomes.extend(edge.settle(&mut queue, result));
        }
        assert_eq!(outcomes, [Outcome::Done, Outcome::OverQuota], "the second one is over the rate");
        let text = edge.exposition.render();
        let received = "tidegauge_readings_received_total{protocol=\"mqtt\"} 4";
        assert!(text.lines().any(|line| line == received), "{text}");
    }
}

#[test]
fn messages_are_charged_to_their_sender_while_they_wait_for_a_full_log() {
    let (edge, quota, mut queue) = (Edge::new(None), quota_of(slow()), Queue::default());
    edge.fill();
    let limiter = quota.readings.as_ref().unwrap();
    let (now, second) = (Instant::now(), Duration::from_secs(1));
    queue.is_log_full = true; // it has refused an append
    queue.take(message(&["a", "a", "a"]), &edge.intake);
    for _ in 0..2 {
        queue.submit(&edge.intake, author(&quota));
        assert!(!queue.is_submitted());
        let wait = limiter.wait(1, now).unwrap_or_default();
        assert!(wait > 2_500 * second && wait < 3_500 * second, "it has three readings, and is charged once: {wait:?}");
        queue.try_at = None; // the pause is over
    }
    queue.is_log_full = false;
    let before = limiter.wait(1, now);
    queue.submit(&edge.intake, author(&quota));
    let submitted = queue.submitted.as_ref().map(|submitted| submitted.messages[0].1.outcome);
    assert_eq!((submitted, limiter.wait(1, now)), (Some(Outcome::Done), before));
}

#[test]
fn messages_are_charged_to_their_devices_while_they_wait_for_a_full_log() {
    let (edge, quota, mut queue) = (Edge::new(slow()), Quota::default(), Queue::default());
    edge.fill();
    queue.is_log_full = true; // it has refused an append
    for device in ["a", "a", "b"] {
        queue.take(message(&[device]), &edge.intake);
    }
    queue.submit(&edge.intake, author(&quota));
    assert!(!queue.is_submitted());
    (queue.try_at, queue.is_log_full) = (None, false);
    queue.submit(&edge.intake, author(&quota));
    let messages = queue.submitted.map(|submitted| submitted.messages).unwrap_or_default();
    let outcomes: Vec<_> = messages.iter().map(|(_, verdict)| verdict.outcome).collect();
    assert_eq!(outcomes, [Outcome::Done, Outcome::OverQuota, Outcome::Done], "the second one came too early");
}
