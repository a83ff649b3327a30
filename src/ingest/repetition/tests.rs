//! Repetitions beside other requests, with a real log. The values of the server are the fold of the log.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use tempfile::TempDir;

use super::*;
use crate::access::DeviceScope;
use crate::common::clock::Clock;
use crate::ingest::{Receipt, Rules};
use crate::limits::Quota;
use crate::log::{Instruments, Options, Position};
use crate::telemetry::Metrics;
use crate::wire::{Format, Incoming, Limits, Sink, Source};

/// A value in the log: device, metadata, instant, series, value.
type Found = (String, Option<String>, i64, String, f64);

struct Edge {
    _folder: TempDir,
    log: Arc<Log>,
    start: Position,
    ingest: Ingest,
}

impl Edge {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (log, recovery) = Log::open(Options::of_test(folder.path()), Instruments::default()).unwrap();
        let (log, metrics) = (Arc::new(log), Arc::new(Metrics::new().0));
        let rules = Rules { limits: Limits { max_metrics: 9, max_metadata_bytes: 99 }, ..Rules::OF_TEST };
        let ingest = Ingest::new(Arc::clone(&log), rules, None, metrics, Clock::system());
        Self { _folder: folder, log, start: recovery.start, ingest }
    }

    /// Readings of the device `d`, each with the values of `m`, `n`, ...
    fn admitted(&self, metadata: Option<&str>, readings: &[(i64, &[f64])]) -> Admitted {
        let quota = Quota::unlimited();
        let permit = self.ingest.begin(Source::http(Format::Json), quota).unwrap();
        let mut admission = self.ingest.admission(permit, DeviceScope::all(), quota);
        for (ts_ms, values) in readings {
            let values: Vec<_> = ["m", "n"].map(Cow::Borrowed).into_iter().zip(values.iter().copied()).collect();
            let (device, ts_ms) = ("d", Some(*ts_ms));
            admission.reading(Incoming { device, metadata, owner: None, ts_ms, values: &values, measurement_bytes: 0 });
        }
        admission.end()
    }

    async fn send(&self, metadata: Option<&str>, readings: &[(i64, &[f64])]) {
        self.ingest.finish(self.admitted(metadata, readings), true).durable().await.unwrap();
    }

    /// The values in the log, in its order.
    fn found(&self) -> Vec<Found> {
        self.found_since(self.start)
    }

    fn found_since(&self, start: Position) -> Vec<Found> {
        let (mut reader, readable) = (self.log.reader(start), self.log.usage().readable);
        let mut found = Vec::new();
        while let Some(record) = reader.next(readable).unwrap() {
            let BatchView { names, steps } = BatchView::new(record.payload).unwrap();
            let mut owner = (String::new(), None);
            for step in steps {
                match step.unwrap() {
                    Step::Group { device, metadata } => {
                        owner = (device.as_str().to_owned(), metadata.map(str::to_owned));
                    }
                    Step::Reading { ts_ms, values } => found.extend(values.map(|(name, value)| {
                        (owner.0.clone(), owner.1.clone(), ts_ms, names[usize::from(name)].text.to_owned(), value)
                    })),
                }
            }
        }
        found
    }

    /// The values of the server, as a query would return them.
    fn known(&self) -> Known {
        self.known_since(self.start)
    }

    fn known_since(&self, start: Position) -> Known {
        let mut known = Known::default();
        for (device, metadata, ts_ms, series, value) in self.found_since(start) {
            known.values.insert(&device, ts_ms, &series, value);
            if let Some(metadata) = metadata {
                known.metadata.insert(device.into(), metadata.into());
            }
        }
        known
    }

    async fn repeat(&self, metadata: Option<&str>, readings: &[(i64, &[f64])], replaced: &KnownValues) -> Receipt {
        let repetition = self.ingest.repeat(self.admitted(metadata, readings)).await.unwrap();
        let known = self.known();
        repetition.finish(&known, replaced).durable().await.unwrap()
    }
}

#[tokio::test]
async fn a_value_is_older_if_the_server_has_another_one_that_it_was_not_to_replace() {
    let edge = Edge::new();
    edge.send(None, &[(1, &[1.0, 2.0]), (2, &[3.0]), (3, &[4.0, -0.0])]).await;
    let mut replaced = KnownValues::default();
    replaced.insert("d", 2, "m", 3.0);
    replaced.insert("d", 3, "m", 9.0); // it was replaced since
    let before = edge.found().len();
    let repeated: [(i64, &[f64]); 5] = [(1, &[7.0, 2.0]), (2, &[8.0, 9.0]), (3, &[5.0, 0.0]), (4, &[6.0]), (4, &[7.0])];
    let receipt = edge.repeat(None, &repeated, &replaced).await;
    assert_eq!((receipt.received, receipt.accepted, receipt.older, receipt.older_values), (4, 4, 1, 1));
    let appended: Vec<_> = edge.found()[before..].iter().map(|found| (found.2, found.3.clone(), found.4)).collect();
    let (m, n) = ("m".to_owned(), "n".to_owned());
    let expected = [(1, n.clone(), 2.0), (2, m.clone(), 8.0), (2, n, 9.0), (4, m.clone(), 6.0), (4, m, 7.0)];
    assert_eq!(appended, expected);
    assert!(edge.ingest.watches.0.read().unwrap().is_empty(), "the watch has ended");
}

#[tokio::test]
async fn what_others_append_meanwhile_is_newer() {
    let edge = Edge::new();
    let repetition = edge.ingest.repeat(edge.admitted(Some("{}"), &[(1, &[1.0, 2.0]), (2, &[3.0])])).await.unwrap();
    assert!(repetition.has_metadata());
    assert_eq!(repetition.instants(), &BTreeMap::from([("d".into(), BTreeSet::from([1, 2]))]));
    let known = edge.known();
    edge.send(Some(r#"{"a":1}"#), &[(2, &[5.0]), (9, &[6.0])]).await;
    let receipt = repetition.finish(&known, &KnownValues::default()).durable().await.unwrap();
    assert_eq!((receipt.accepted, receipt.older), (1, 1));
    let last = edge.found().split_off(2);
    let of = |series: &str, value| ("d".to_owned(), None, 1, series.to_owned(), value);
    assert_eq!(last, [of("m", 1.0), of("n", 2.0)], "without the metadata");
}

#[tokio::test]
async fn metadata_that_is_not_the_newest_is_left_out() {
    let edge = Edge::new();
    edge.send(Some(r#"{"a":1,"b":2}"#), &[(1, &[1.0])]).await;
    for (metadata, is_kept) in [(r#"{ "b":2, "a":1 }"#, true), (r#"{"a":1}"#, false)] {
        edge.repeat(Some(metadata), &[(2, &[1.0])], &KnownValues::default()).await;
        let last = edge.found().pop().unwrap();
        assert_eq!(last.1.as_deref(), is_kept.then_some(metadata));
    }
}

#[tokio::test]
async fn too_many_readings_are_refused_as_ever() {
    let edge = Edge::new();
    let readings: Vec<(i64, &[f64])> = (0..11).map(|ts_ms| (ts_ms, &[1.0][..])).collect();
    edge.send(None, &[(0, &[2.0]), (1, &[2.0])]).await;
    let repetition = edge.ingest.repeat(edge.admitted(None, &readings)).await.unwrap();
    let known = edge.known();
    let refused = repetition.finish(&known, &KnownValues::default()).durable().await.unwrap_err();
    assert!(matches!(refused, IngestError::TooManyReadings(10)), "{refused}");
}

/// Senders append positive values while others repeat negative ones of the same new identities.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_repeated_value_follows_another_one_of_its_identity() {
    const ROUNDS: i64 = 200;
    const SENT_IN_A_ROUND: usize = 4;
    let edge = Arc::new(Edge::new());
    let (round, is_over) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicBool::new(false)));
    let sender = |nth: i64| {
        let (edge, round, is_over) = (Arc::clone(&edge), Arc::clone(&round), Arc::clone(&is_over));
        async move {
            let (mut value, mut of_round, mut sent) = (1.0, -1, 0);
            while !is_over.load(Ordering::Relaxed) {
                let number = round.load(Ordering::Relaxed);
                if number != of_round {
                    (of_round, sent) = (number, 0);
                }
                if sent == SENT_IN_A_ROUND {
                    tokio::task::yield_now().await;
                    continue;
                }
                sent += 1;
                let ts_ms = 10 * number + rand::random_range(0..6);
                value += 1.0;
                edge.send(None, &[(ts_ms, &[10.0 * value + nth as f64][..])]).await;
            }
        }
    };
    let mut start = edge.start; // before the values of the round, which have instants of their own
    let senders: Vec<_> = (0..2).map(|nth| tokio::spawn(sender(nth))).collect();
    let mut counts = (0, 0);
    for number in 0..ROUNDS {
        round.store(number, Ordering::Relaxed);
        let value = -1.0 - number as f64;
        let readings: Vec<(i64, &[f64])> = (0..6).map(|at| (10 * number + at, std::slice::from_ref(&value))).collect();
        let repetition = edge.ingest.repeat(edge.admitted(None, &readings)).await.unwrap();
        let known = edge.known_since(start);
        let receipt = repetition.finish(&known, &KnownValues::default()).durable().await.unwrap();
        counts.0 += receipt.accepted;
        counts.1 += receipt.older;
        start = edge.log.usage().readable;
    }
    is_over.store(true, Ordering::Relaxed);
    for sender in senders {
        sender.await.unwrap();
    }
    assert!(counts.0 > 0 && counts.1 > 0, "{counts:?}");
    let mut state: BTreeMap<i64, f64> = BTreeMap::new();
    for (_, _, ts_ms, _, value) in edge.found() {
        let before = state.insert(ts_ms, value);
        assert!(value > 0.0 || before.is_none(), "{value} follows {before:?} at {ts_ms}");
    }
}
