//! Each reading of a request is counted once, whatever its outcome: with a real log and the real metrics.

use std::borrow::Cow;

use tempfile::TempDir;

use super::*;
use crate::limits::{Limiter, Rate};
use crate::log::{Instruments, Options};
use crate::telemetry::Exposition;
use crate::wire::{Incoming, Sink};

/// Admission with its log and metrics.
struct Edge {
    _folder: TempDir,
    log: Arc<Log>,
    ingest: Ingest,
    exposition: Exposition,
}

impl Edge {
    fn new(log_bytes: u64) -> Self {
        Self::with_rules(log_bytes, Rules::OF_TEST)
    }

    fn with_rules(log_bytes: u64, rules: Rules) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { max_bytes: log_bytes, ..Options::of_test(folder.path()) };
        let log = Arc::new(Log::open(options, Instruments::default()).unwrap().0);
        let (metrics, exposition) = Metrics::new();
        let ingest = Ingest::new(Arc::clone(&log), rules, None, Arc::new(metrics), Clock::system());
        Self { _folder: folder, log, ingest, exposition }
    }

    /// Sends a request with remarks of each kind: readings that overwrite each other, a value that is not
    /// finite, and a field that is ignored.
    async fn send_with_remarks(&self, readings: usize, partial: bool) -> Result<Receipt, IngestError> {
        let quota = Quota::unlimited();
        let permit = self.ingest.begin(Source::http(Format::Json), quota)?;
        let mut admission = self.ingest.admission(permit, DeviceScope::all(), quota);
        let ts_ms = Some(self.ingest.clock.now_ms());
        for nth in 0..readings {
            let values = &[(Cow::Borrowed("m"), nth as f64), (Cow::Borrowed("n"), f64::NAN)];
            let device = "good";
            admission.reading(Incoming { device, metadata: None, owner: None, ts_ms, values, measurement_bytes: 0 });
            admission.ignore(crate::wire::Ignored::UnknownKey, "x");
        }
        self.ingest.finish(admission.end(), partial).durable().await
    }

    /// The remarks on accepted readings: those that overwrote others, rejected values, ignored fields.
    fn remarks(&self) -> [u64; 3] {
        let text = self.exposition.render();
        ["readings_overwritten", "values_rejected", "fields_ignored"].map(|what| {
            let start = format!("tidegauge_{what}_total{{protocol=\"http\"");
            let samples = text.lines().filter(|line| line.starts_with(&start));
            samples.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
        })
    }

    /// Sends a request of `good` and `bad` readings.
    async fn send(&self, good: usize, bad: usize, partial: bool) -> Result<Receipt, IngestError> {
        self.send_as(Quota::unlimited(), good, bad, partial).await
    }

    async fn send_as(&self, quota: &Quota, good: usize, bad: usize, partial: bool) -> Result<Receipt, IngestError> {
        let permit = self.ingest.begin(Source::http(Format::Json), quota)?;
        let mut admission = self.ingest.admission(permit, DeviceScope::all(), quota);
        let values = [(Cow::Borrowed("m"), 1.0)];
        for number in 0..good + bad {
            let device = if number < good { "good" } else { "not good " };
            admission.reading(Incoming {
                device,
                metadata: None,
                owner: None,
                ts_ms: None,
                values: &values,
                measurement_bytes: 0,
            });
        }
        self.ingest.finish(admission.end(), partial).durable().await
    }

    fn count(&self, metric: &str, labels: &str) -> u64 {
        let start = format!("tidegauge_readings_{metric}{{protocol=\"http\"{labels}}} ");
        let text = self.exposition.render();
        text.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok()).unwrap()
    }

    /// The readings received, accepted, rejected with their request, and rejected by themselves.
    fn accounts(&self, reason: &str) -> [u64; 4] {
        let rejected = |reason| self.count("rejected_total", &format!(",reason=\"{reason}\""));
        let [received, accepted] = ["received_total", "accepted_total"].map(|metric| self.count(metric, ""));
        [received, accepted, rejected(reason), rejected("invalid_device_id")]
    }
}

#[tokio::test]
async fn good_readings_are_accepted_and_bad_ones_rejected() {
    let edge = Edge::new(1 << 20);
    let receipt = edge.send(3, 2, true).await.unwrap();
    assert_eq!((receipt.received, receipt.accepted, receipt.rejected), (5, 3, 2));
    assert_eq!(edge.send(0, 2, true).await.unwrap().rejected, 2);
    assert_eq!(edge.accounts("overloaded"), [7, 3, 0, 4]);
    assert_eq!(edge.log.usage().appended_readings, 3);
}

#[tokio::test]
async fn a_request_is_appended_and_counted_though_its_client_disconnects() {
    let edge = Edge::new(1 << 20);
    let mut requests = 0;
    loop {
        requests += 1;
        let was_dropped = tokio::select! {
            biased;
            receipt = edge.send(2, 1, true) => receipt.is_err(),
            () = std::future::ready(()) => true, // the request is dropped before the sync
        };
        if was_dropped {
            break;
        }
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while edge.accounts("overloaded") != [3 * requests, 2 * requests, 0, requests] {
        assert!(tokio::time::Instant::now() < deadline, "{requests} requests: {:?}", edge.accounts("overloaded"));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(edge.log.usage().appended_readings, 2 * requests);
}

#[tokio::test]
async fn a_full_log_refuses_valid_readings_only_as_overloaded() {
    let edge = Edge::new(500);
    let mut requests = 1;
    let refused = loop {
        match edge.send(2, 1, true).await {
            Ok(_) => requests += 1,
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, IngestError::Overloaded(AppendError::Full(500))), "{refused}");
    assert_eq!(edge.accounts("overloaded"), [3 * requests, 2 * requests - 2, 2, requests]);
}

#[tokio::test]
async fn a_closed_log_refuses_readings() {
    let edge = Edge::new(1 << 20);
    edge.log.close();
    let refused = edge.send(2, 0, true).await.unwrap_err();
    assert!(matches!(refused, IngestError::Failed(AppendError::Closed)), "{refused}");
    assert_eq!(edge.accounts("overloaded"), [2, 0, 2, 0]);
}

#[tokio::test]
async fn all_or_nothing_accepts_nothing_beside_a_bad_reading() {
    let edge = Edge::new(1 << 20);
    match edge.send(3, 1, false).await.unwrap_err() {
        IngestError::NotPartial(receipt) => {
            assert_eq!((receipt.received, receipt.accepted, receipt.rejected, receipt.listed.len()), (4, 0, 4, 1));
        }
        other => panic!("{other}"),
    }
    assert_eq!(edge.accounts("not_partial"), [4, 0, 3, 1]);
    assert_eq!(edge.log.usage().appended_readings, 0);
    assert_eq!(edge.send(3, 0, false).await.unwrap().accepted, 3);
    assert_eq!(edge.accounts("not_partial"), [7, 3, 3, 1]);
}

#[tokio::test]
async fn a_request_larger_than_a_record_is_refused_whole() {
    let edge = Edge::new(160);
    let limit = edge.log.max_payload_bytes();
    let refused = edge.send(6, 1, true).await.unwrap_err();
    assert!(matches!(refused, IngestError::TooLarge(bytes) if bytes == limit), "{refused}");
    assert_eq!((edge.count("received_total", ""), edge.count("accepted_total", "")), (7, 0));
    assert_eq!(edge.count("rejected_total", ",reason=\"request_too_large\""), 6);
    assert_eq!(edge.count("rejected_total", ",reason=\"invalid_device_id\""), 1);
    assert_eq!(edge.log.usage().appended_readings, 0);
    assert_eq!(edge.send(2, 0, true).await.unwrap().accepted, 2);
}

#[tokio::test]
async fn remarks_count_only_what_is_appended() {
    let edge = Edge::new(160);
    let receipt = edge.send_with_remarks(2, true).await.unwrap();
    assert_eq!((receipt.accepted, receipt.overwritten.readings, receipt.rejected_values()), (2, 1, 2));
    assert_eq!(edge.remarks(), [1, 2, 2]);
    for (readings, partial) in [(6, true), (2, false), (11, true)] {
        let refused = edge.send_with_remarks(readings, partial).await.unwrap_err();
        if let IngestError::NotPartial(receipt) = &refused {
            assert_eq!(receipt.overwritten, Overwritten::default());
        }
        assert_eq!(edge.remarks(), [1, 2, 2], "{refused}");
    }
    edge.log.close();
    let refused = edge.send_with_remarks(2, true).await.unwrap_err();
    assert!(matches!(refused, IngestError::Failed(AppendError::Closed)), "{refused}");
    assert_eq!(edge.remarks(), [1, 2, 2]);
}

#[tokio::test]
async fn later_values_are_ignored_if_the_store_keeps_the_first() {
    let edge = Edge::with_rules(1 << 20, Rules { keep: Keep::First, ..Rules::OF_TEST });
    let receipt = edge.send_with_remarks(3, true).await.unwrap();
    assert_eq!((receipt.accepted, &receipt.overwritten), (3, &Overwritten::default()));
    assert_eq!(receipt.ignored.names(), ["x", "m"].map(Box::<str>::from));
    assert_eq!(edge.remarks(), [0, 3, 5], "3 unknown keys and 2 later values");
    match edge.send_with_remarks(2, false).await.unwrap_err() {
        IngestError::NotPartial(receipt) => {
            assert_eq!(receipt.ignored.names(), ["x"].map(Box::<str>::from));
            assert_eq!(receipt.ignored.count(), 2, "2 unknown keys");
            assert_eq!(receipt.overwritten, Overwritten::default());
        }
        other => panic!("{other}"),
    }
    assert_eq!(edge.remarks(), [0, 3, 5]);
}

#[tokio::test]
async fn a_request_with_too_many_readings_is_refused_whole() {
    let edge = Edge::new(1 << 20);
    let refused = edge.send(11, 0, true).await.unwrap_err();
    assert!(matches!(refused, IngestError::TooManyReadings(10)), "{refused}");
    assert_eq!(edge.accounts("too_many_readings"), [11, 0, 11, 0]);
}

#[test]
fn a_protocol_starts_with_the_reasons_that_it_can_have() {
    let edge = Edge::new(1 << 20);
    let text = edge.exposition.render();
    for (protocol, reason, is_there) in [
        ("http", "invalid_json", true),
        ("http", "invalid_line", false),
        ("http", "not_partial", true),
        ("influx", "invalid_line", true),
        ("influx", "bad_signature", false),
        ("senml", "unsupported_senml", true),
        ("senml", "invalid_json", false),
        ("webhook", "invalid_json", true),
        ("webhook", "invalid_line", false),
        ("udp", "invalid_json", true),
        ("udp", "invalid_senml", false),
        ("udp", "bad_signature", true),
        ("udp", "not_partial", false),
        ("udp", "overloaded", true),
    ] {
        let line = format!("tidegauge_readings_rejected_total{{protocol=\"{protocol}\",reason=\"{reason}\"}} 0\n");
        assert_eq!(text.contains(&line), is_there, "{line} in\n{text}");
    }
}

/// A sender that may send one reading in ten seconds.
fn slow_sender() -> Quota {
    let rate = Rate::new(1, Duration::from_secs(10), Duration::ZERO).unwrap();
    Quota { readings: Some(Limiter::new(rate, Instant::now())), ..Quota::default() }
}

#[tokio::test]
async fn a_request_is_charged_for_all_its_readings_and_the_next_refused() {
    let (edge, quota) = (Edge::new(1 << 20), slow_sender());
    assert_eq!(edge.send_as(&quota, 4, 1, true).await.unwrap().accepted, 4);
    match edge.send_as(&quota, 1, 0, true).await.unwrap_err() {
        IngestError::RateLimited(error) => {
            assert!(error.retry_after > Duration::from_secs(40), "{:?}", error.retry_after);
        }
        other => panic!("{other}"),
    }
    assert_eq!(edge.accounts("rate_limited"), [6, 4, 1, 1]);
}

#[test]
fn each_datagram_of_a_batch_is_charged_to_its_own_sender() {
    let (edge, one, other) = (Edge::new(1 << 20), slow_sender(), slow_sender());
    let source = Source::udp(Format::Json);
    let mut batch = edge.ingest.admission_of_batch();
    for (quota, readings) in [(&one, 5), (&other, 1)] {
        batch.begin_datagram(source, (DeviceScope::all(), quota), Duration::ZERO, Charged::Nothing).unwrap();
        for _ in 0..readings {
            let values = [(Cow::Borrowed("m"), 1.0)];
            batch.reading(Incoming {
                device: "d",
                metadata: None,
                owner: None,
                ts_ms: None,
                values: &values,
                measurement_bytes: 0,
            });
        }
    }
    let in_debt = batch.begin_datagram(source, (DeviceScope::all(), &one), Duration::ZERO, Charged::Nothing);
    assert!(in_debt.is_err_and(|error| error.retry_after > Duration::from_secs(40)), "charged within the batch");
    edge.ingest.finish(batch.end(), true).wait().unwrap();
    let wait = |quota: &Quota| quota.readings.as_ref().and_then(|limiter| limiter.wait(1, Instant::now()));
    let (one, other) = (wait(&one).unwrap_or_default(), wait(&other).unwrap_or_default());
    assert!(one > Duration::from_secs(40) && other <= Duration::from_secs(10), "{one:?} {other:?}");
}
