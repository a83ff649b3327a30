//! Deliveries to servers that answer as the test says.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::post;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::Followed;
use super::batch::Batch;
use super::delivery::Delivery;
use super::follower::Follower;
use super::progress::Progress;
use crate::client::{Client, Options};
use crate::common::backoff::Backoff;
use crate::common::clock::Clock;
use crate::flush::DeadLetters;
use crate::log::batch::BadPayload;
use crate::log::{BatchBuilder, Instruments, Log};
use crate::model::Deletion;
use crate::telemetry::{Exposition, Metrics};

mod order;

/// An answer: status, seconds of `Retry-After`, body.
type Answer = (u16, u32, Value);

/// A delivery to a server, and what that server was sent.
struct Case {
    delivery: Delivery,
    progress: Progress,
    draining: CancellationToken,
    log: Arc<Log>,
    exposition: Exposition,
    /// The instants of the readings in each request.
    requests: Arc<Mutex<Vec<Vec<i64>>>>,
    folder: TempDir,
}

impl Case {
    /// `answer` gets the number of the request and the instants of its readings.
    async fn new(answer: impl Fn(usize, &[i64]) -> Answer + Send + std::marker::Sync + 'static) -> Self {
        Self::answering(move |number, body| answer(number, &instants_in(body))).await
    }

    /// `answer` gets the number of the request and its body.
    async fn answering(answer: impl Fn(usize, &[u8]) -> Answer + Send + std::marker::Sync + 'static) -> Self {
        let requests: Arc<Mutex<Vec<Vec<i64>>>> = Arc::default();
        let (seen, answer) = (Arc::clone(&requests), Arc::new(answer));
        let handler = move |body: Bytes| {
            let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
            async move {
                let body = zstd::decode_all(&*body).unwrap();
                let number = {
                    let mut seen = seen.lock().unwrap();
                    seen.push(instants_in(&body));
                    seen.len() - 1
                };
                let (status, retry_after, body) = answer(number, &body);
                let text = body.as_str().map_or_else(|| body.to_string(), str::to_owned);
                (StatusCode::from_u16(status).unwrap(), [("retry-after", retry_after.to_string())], text)
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = axum::Router::new().route("/v1/readings", post(handler));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self::to(address, requests)
    }

    fn to(address: SocketAddr, requests: Arc<Mutex<Vec<Vec<i64>>>>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (metrics, exposition) = Metrics::new();
        let metrics = Arc::new(metrics);
        let client = Options { forwards: true, ..Options::new(&format!("http://{address}/")) };
        let client = Client::new(client).unwrap();
        let log = crate::log::Options::of_test(folder.path().join("log"));
        let (log, recovery) = Log::open(log, Instruments::default()).unwrap();
        let followed = log.follow(Followed { position: recovery.start, as_of_ms: 0 }).unwrap();
        let log = Arc::new(log);
        let progress = Progress::new(Arc::clone(&log), followed, 0, Arc::clone(&metrics));
        let letters = DeadLetters::new(folder.path().join("letters.ndjson"), 1 << 20, Clock::fixed(0));
        let draining = CancellationToken::new();
        let stops = [draining.clone(), CancellationToken::new()];
        let mut delivery = Delivery::new(client, letters, metrics, stops);
        delivery.backoff = Backoff::new(Duration::from_millis(1)..=Duration::from_millis(10));
        Self { delivery, progress, draining, log, exposition, requests, folder }
    }

    async fn deliver(&mut self, readings: i64) -> ControlFlow<()> {
        self.delivery.deliver(&batch(readings), &mut self.progress).await
    }

    fn requests(&self) -> Vec<Vec<i64>> {
        self.requests.lock().unwrap().clone()
    }

    /// The value of a line of the metrics.
    fn count(&self, line: &str) -> u64 {
        let text = self.exposition.render();
        let found = text.lines().find_map(|rendered| rendered.strip_prefix(line)?.trim().parse().ok());
        found.unwrap_or_else(|| panic!("{line} in\n{text}"))
    }

    /// The instants of the readings in the dead letters, and their reasons.
    fn letters(&self) -> Vec<(String, Vec<i64>)> {
        let text = std::fs::read_to_string(self.folder.path().join("letters.ndjson")).unwrap_or_default();
        let letter = |line: &str| {
            let reason = serde_json::from_str::<Value>(line).unwrap()["reason"].as_str().unwrap().to_owned();
            (reason, instants_in(line.as_bytes()))
        };
        text.lines().map(letter).collect()
    }
}

/// Readings of two devices in turn, at the instants from 0.
fn batch(readings: i64) -> Batch {
    let mut builder = BatchBuilder::default();
    for ts_ms in 0..readings {
        let device = if is_of_b(ts_ms) { "b" } else { "a" };
        builder.push(device, None, ts_ms, [("m", 1.0)].into_iter()).unwrap();
    }
    let mut batch = Batch::default();
    let full = |_: &mut Batch| -> Result<(), BadPayload> { panic!("it is not full") };
    batch.push_record(builder.finish().payload(), usize::MAX, full).unwrap();
    batch
}

fn instants_in(body: &[u8]) -> Vec<i64> {
    let lines = std::str::from_utf8(body).unwrap().lines();
    let lines = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.flat_map(|line| line["readings"].as_array().unwrap().clone()).map(|it| it["ts"].as_i64().unwrap()).collect()
}

fn accepted(instants: &[i64]) -> Answer {
    (200, 0, json!({ "accepted": instants.len() }))
}

/// Refuses the readings at these places with a code, and lists at most a hundred.
fn refused(instants: &[i64], code: &str, is_refused: impl Fn(i64) -> bool) -> Answer {
    let error = |(index, _)| json!({ "index": index, "code": code, "detail": "why" });
    let errors: Vec<Value> = instants.iter().enumerate().filter(|(_, ts)| is_refused(**ts)).map(error).collect();
    let (rejected, listed) = (errors.len(), &errors[..errors.len().min(100)]);
    (400, 0, json!({ "accepted": instants.len() - rejected, "rejected": rejected, "errors": listed }))
}

#[tokio::test]
async fn a_failure_or_an_answer_of_something_else_is_retried_with_the_same_readings() {
    let answers: [Answer; 7] = [
        (503, 1, json!({ "code": "overloaded", "detail": "full" })),
        (500, 0, json!("<html>proxy</html>")),
        (500, 0, json!({ "code": "internal", "detail": "see its log" })),
        (200, 0, json!("<html>Welcome to the wireless network</html>")),
        (404, 0, json!("no such page")),
        (302, 0, json!("")),
        (401, 0, json!({ "code": "unauthorized", "detail": "who?" })),
    ];
    let mut case =
        Case::new(move |request, instants| answers.get(request).cloned().unwrap_or_else(|| accepted(instants))).await;
    let began = Instant::now();
    assert!(case.deliver(4).await.is_continue());
    assert!(began.elapsed() >= Duration::from_secs(1), "Retry-After");
    assert_eq!(case.requests(), vec![vec![0, 1, 2, 3]; 8]);
    for (reason, count) in [("unavailable", 2), ("internal", 1), ("unexpected", 3), ("unauthorized", 1)] {
        assert_eq!(case.count(&format!("tidegauge_forward_errors_total{{reason=\"{reason}\"}}")), count, "{reason}");
    }
    assert_eq!((case.count("tidegauge_forward_readings_total"), case.letters()), (4, vec![]));
}

#[tokio::test]
async fn a_request_that_is_too_large_is_halved_and_the_next_ones_are_smaller() {
    let too_large = (413, 0, json!("<html>proxy</html>"));
    let mut case = Case::new(move |_, instants| match instants {
        [5] => (413, 0, json!({ "code": "request_too_large", "detail": "one reading" })),
        [_, _, _, ..] => too_large.clone(),
        few if few.contains(&5) => too_large.clone(),
        few => accepted(few),
    })
    .await;
    assert!(case.deliver(8).await.is_continue());
    let delivered: Vec<i64> = case.requests().into_iter().filter(|request| request.len() < 3).flatten().collect();
    assert_eq!(delivered, [0, 1, 2, 3, 4, 5, 4, 5, 6, 7]);
    assert_eq!(case.letters(), [("request_too_large".to_owned(), vec![5])]);
    assert_eq!(case.count("tidegauge_forward_refused_total{reason=\"request_too_large\"}"), 1);
    let before = case.requests().len();
    assert!(case.deliver(4).await.is_continue());
    assert!(case.requests()[before..].iter().all(|request| request.len() < 3), "{:?}", case.requests());
}

/// The answer of a server that has failed.
fn failed() -> Answer {
    (500, 0, json!({ "code": "internal", "detail": "the server failed" }))
}

/// The device of the reading at an instant of [`batch`].
const fn is_of_b(ts_ms: i64) -> bool {
    ts_ms / 3 % 2 == 1
}

#[tokio::test]
async fn a_reading_on_which_the_server_fails_is_refused_and_holds_up_no_other() {
    let mut case = Case::new(|_, instants| if instants.contains(&5) { failed() } else { accepted(instants) }).await;
    assert!(case.deliver(8).await.is_continue());
    assert_eq!(case.letters(), [("internal".to_owned(), vec![5])]);
    assert_eq!(case.count("tidegauge_forward_refused_total{reason=\"internal\"}"), 1);
    assert_eq!(case.count("tidegauge_forward_readings_total"), 7);
    let delivered: BTreeSet<i64> =
        case.requests().into_iter().filter(|request| !request.contains(&5)).flatten().collect();
    assert_eq!(delivered.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 6, 7]);
}

#[tokio::test]
async fn a_device_on_which_the_server_fails_is_refused_without_a_request_for_each_reading() {
    let is_bad = |instants: &[i64]| instants.iter().copied().any(is_of_b);
    let mut case = Case::new(move |_, instants| if is_bad(instants) { failed() } else { accepted(instants) }).await;
    assert!(case.deliver(600).await.is_continue());
    let refused: BTreeSet<i64> = case.letters().into_iter().flat_map(|(_, instants)| instants).collect();
    assert_eq!(refused, (0..600).filter(|&ts_ms| is_of_b(ts_ms)).collect());
    assert_eq!(case.count("tidegauge_forward_readings_total"), 300);
    assert!(case.requests().len() < 200, "{} requests", case.requests().len());
}

#[tokio::test]
async fn a_bad_reading_before_all_others_holds_up_none() {
    for readings in [2, 40] {
        let mut case = Case::new(|_, instants| if instants.contains(&0) { failed() } else { accepted(instants) }).await;
        let delivered = tokio::time::timeout(Duration::from_secs(60), case.deliver(readings)).await;
        assert!(delivered.is_ok_and(|delivered| delivered.is_continue()), "{:?}", case.requests());
        assert_eq!(case.letters(), [("internal".to_owned(), vec![0])]);
        assert_eq!(case.count("tidegauge_forward_readings_total"), readings.cast_unsigned() - 1);
    }
}

/// Waits until the metrics of a follower are as they should be: the bytes and the seconds that it is behind.
async fn lag_is(exposition: &Exposition, is_right: impl Fn(f64, f64) -> bool) {
    let value = |name: &str| {
        let text = exposition.render();
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(-1.0)
    };
    let begun = Instant::now();
    loop {
        let (bytes, seconds) = (value("tidegauge_forward_lag_bytes"), value("tidegauge_forward_lag_seconds"));
        if is_right(bytes, seconds) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{bytes} bytes, {seconds} s");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn the_lag_grows_after_a_record_that_cannot_be_read() {
    let case = Case::new(|_, instants| accepted(instants)).await;
    let Case { delivery, progress, log, exposition, draining, folder, .. } = case;
    let mut builder = BatchBuilder::default();
    builder.push("a", None, 0, [("m", 1.0)].into_iter()).unwrap();
    log.append(builder.finish()).unwrap().durable().await.unwrap();
    let segments = std::fs::read_dir(folder.path().join("log")).unwrap().map(|entry| entry.unwrap().path());
    let segment = segments.into_iter().find(|path| path.extension().is_some_and(|end| end == "log")).unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let (follower, runtime) = (Follower::new(log, progress, delivery, 1 << 20), tokio::runtime::Handle::current());
    let thread = std::thread::spawn(move || follower.run(&runtime));
    lag_is(&exposition, |bytes, seconds| bytes > 0.0 && seconds > 0.0).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    lag_is(&exposition, |bytes, seconds| bytes > 0.0 && seconds >= 60.0).await;
    draining.cancel();
    tokio::task::spawn_blocking(|| thread.join()).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_lag_of_a_position_without_a_possible_time_counts_from_the_start() {
    const START_MS: u64 = 1_776_693_610_000;
    let Case { log, folder: _folder, .. } = Case::new(|_, instants| accepted(instants)).await;
    let mut builder = BatchBuilder::default();
    builder.push("a", None, 0, [("m", 1.0)].into_iter()).unwrap();
    log.append(builder.finish()).unwrap().durable().await.unwrap();
    let (end, in_the_future) = (log.usage().readable, START_MS + 3_600_000);
    for as_of_ms in [0, in_the_future] {
        let (metrics, exposition) = Metrics::new();
        let saved = Followed { position: crate::log::Position::default(), as_of_ms };
        let mut progress = Progress::new(Arc::clone(&log), saved, START_MS, metrics.into());
        tokio::time::advance(Duration::from_secs(90)).await;
        progress.note_end(end);
        lag_is(&exposition, |bytes, seconds| bytes > 0.0 && (seconds - 90.0).abs() < 0.001).await;
        if as_of_ms == in_the_future {
            progress.pass(end);
            progress.save();
            let now = Followed { position: end, as_of_ms: in_the_future + 90_000 };
            assert_eq!(log.follow(saved).unwrap(), now, "the clock was behind at the start");
        }
    }
}

#[tokio::test]
async fn a_server_that_fails_on_everything_refuses_nothing() {
    let mut case =
        Case::new(|request, instants| if (1..6).contains(&request) { failed() } else { accepted(instants) }).await;
    assert!(case.deliver(3).await.is_continue());
    assert!(case.deliver(8).await.is_continue());
    let whole: Vec<i64> = (0..8).collect();
    let expected = [vec![0, 1, 2], whole.clone(), whole.clone(), whole.clone(), vec![2], whole.clone(), whole];
    assert_eq!(case.requests(), expected, "the reading that was taken last is sent too");
    assert_eq!((case.count("tidegauge_forward_readings_total"), case.letters()), (11, vec![]));
}

#[tokio::test]
async fn each_of_many_refused_readings_is_found_although_a_list_has_a_hundred() {
    let is_refused = |ts_ms: i64| ts_ms % 5 != 0;
    let mut case = Case::new(move |_, instants| refused(instants, "timestamp_too_old", is_refused)).await;
    assert!(case.deliver(1_000).await.is_continue());
    let refused: Vec<i64> = case.letters().into_iter().flat_map(|(_, instants)| instants).collect();
    assert_eq!(refused, (0..1_000).filter(|&ts_ms| is_refused(ts_ms)).collect::<Vec<_>>());
    assert_eq!(case.count("tidegauge_forward_readings_total"), 200);
    assert_eq!(case.count("tidegauge_forward_refused_total{reason=\"timestamp_too_old\"}"), 800);
    assert!(case.requests().len() <= 10, "{} requests", case.requests().len());
}

#[tokio::test]
async fn readings_beyond_a_rate_are_sent_again_and_no_others() {
    let mut case = Case::new(|request, instants| match request {
        0 => {
            let (_, _, body) = refused(instants, "too_many_new_devices", |ts_ms| ts_ms / 3 % 2 == 1);
            (429, 1, body)
        }
        _ => accepted(instants),
    })
    .await;
    assert!(case.deliver(8).await.is_continue());
    assert_eq!(case.requests(), [vec![0, 1, 2, 3, 4, 5, 6, 7], vec![3, 4, 5]]);
    assert_eq!((case.count("tidegauge_forward_readings_total"), case.letters()), (8, vec![]));
}

#[tokio::test]
async fn a_deletion_is_repeated_until_the_dead_letters_can_be_changed() {
    let mut case = Case::new(|_, instants| refused(instants, "timestamp_too_old", |_| true)).await;
    assert!(case.deliver(8).await.is_continue());
    let count = |case: &Case| case.letters().into_iter().map(|(_, instants)| instants.len()).sum::<usize>();
    assert_eq!(count(&case), 8);
    let lock = case.folder.path().join("letters.lock");
    std::fs::remove_file(&lock).unwrap();
    std::fs::create_dir(&lock).unwrap(); // cannot be locked
    tokio::time::pause(); // the time goes on when an attempt has failed, and not before
    {
        let deletion = Deletion::of_device("a".into());
        let mut deleting = std::pin::pin!(case.delivery.delete(&deletion, &mut case.progress));
        tokio::time::timeout(Duration::from_millis(100), &mut deleting).await.unwrap_err();
        std::fs::remove_dir(&lock).unwrap();
        assert!(deleting.await.is_continue());
    }
    let left = case.letters().into_iter().flat_map(|(_, instants)| instants);
    assert_eq!(left.collect::<Vec<_>>(), (0..8).filter(|&ts_ms| is_of_b(ts_ms)).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_drain_tries_once_and_leaves_the_rest_in_the_log() {
    let mut case = Case::new(|_, _| (503, 60, json!("away"))).await;
    case.draining.cancel();
    assert!(case.deliver(3).await.is_break());
    assert_eq!(case.requests().len(), 1);
}

#[tokio::test]
async fn a_server_that_refuses_an_empty_batch_as_too_large_takes_no_readings() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = axum::Router::new().fallback(|| async { (StatusCode::PAYLOAD_TOO_LARGE, "at most 0 bytes") });
    tokio::spawn(async move { axum::serve(listener, app).await });
    let refusal = super::probe(&Client::new(Options::new(&url)).unwrap()).await.unwrap_err();
    assert!(refusal.reason == "unexpected" && refusal.detail().contains("at most 0 bytes"), "{refusal:?}");
}
