//! MQTT: devices publish with quality of service 1 while tidegauge, the broker, the connection between them
//! or the store ends at random moments.
//!
//! The log of the broker has each acknowledgement that it got, so it is the ledger: what tidegauge has
//! acknowledged is stored, once. While the broker itself is not killed, that is all that was published.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use super::fault_test::{duration, seed};
use super::report::say;
use super::store::{Store, on_stores};
use crate::harness::{Broker, Database, Mongod, Server, wait_until};

pub(super) const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z
const DEVICES: usize = 5;
/// The messages of one publication.
const MESSAGES: usize = 200;
const CLIENT: &str = "tidegauge";
const TOPICS: &str = "receive_maximum = 100\n[[topics]]\ntopic = 'ledger/{deviceId}/{_}'\ntime = 'ts'\n";

on_stores!(kill_9_of_tidegauge_with_messages, super::tidegauge_killed, [sqlite, mongodb, packed]);
on_stores!(any_fault_between_devices_and_store, super::any_fault, [sqlite, mongodb, packed]);

/// The messages published so far: the number of each is the level behind its device, its time and its value.
struct Ledger {
    rng: StdRng,
    published: usize,
}

impl Ledger {
    fn new() -> Self {
        Self { rng: StdRng::seed_from_u64(seed()), published: 0 }
    }

    /// The next messages.
    fn next(&mut self) -> Vec<(String, String)> {
        let numbers = self.published..self.published + MESSAGES;
        self.published += MESSAGES;
        let message = |n: usize| (topic(n), json!({ "ts": START_MS + n as i64, "value": n }).to_string());
        numbers.map(message).collect()
    }

    async fn pause(&mut self) {
        let ms = self.rng.random_range(0..200);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

fn device(n: usize) -> String {
    format!("d{}", n % DEVICES)
}

pub(super) fn topic(n: usize) -> String {
    format!("ledger/{}/{n}", device(n))
}

fn number(topic: &str) -> usize {
    topic.rsplit('/').next().and_then(|n| n.parse().ok()).expect("a number")
}

/// Checks that all of `expected` are stored, nothing that was never published, and each once.
pub(super) async fn audit(server: &Server, expected: &BTreeSet<usize>, published: usize) {
    server.settled().await;
    let mut stored: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for n in 0..DEVICES {
        let device = device(n);
        let range = "from=2024-04-20T00:00:00Z&to=2024-04-21T00:00:00Z";
        let path = format!("/v1/devices/{device}/readings?{range}&limit=10000");
        let (mut numbers, mut page) = (Vec::new(), server.get_json(&path).await);
        loop {
            let readings = page["readings"].as_array().into_iter().flatten();
            numbers.extend(readings.map(|it| it["values"]["value"].as_f64().expect("a value") as usize));
            let Some(next) = page["next"].as_str() else { break };
            page = server.get_json(&format!("{path}&cursor={next}")).await;
        }
        let distinct: BTreeSet<usize> = numbers.iter().copied().collect();
        assert_eq!(numbers.len(), distinct.len(), "{device} has a reading twice");
        // The stats count what was written, so a reading that was written twice would show here.
        let rollups = server.get_json(&format!("/v1/devices/{device}/rollups?{range}")).await;
        let hours = rollups["metrics"]["value"].as_array().into_iter().flatten();
        let count: f64 = hours.map(|hour| hour["count"].as_f64().expect("a count")).sum();
        assert_eq!(count as usize, distinct.len(), "the stats of {device}: {rollups}");
        stored.insert(device, distinct);
    }
    let all: BTreeSet<usize> = stored.into_values().flatten().collect();
    let lost: Vec<_> = expected.difference(&all).collect();
    assert!(lost.is_empty(), "{} acknowledged messages are not stored: {:?}", lost.len(), &lost[..lost.len().min(10)]);
    assert!(all.iter().all(|n| *n < published), "a message is stored that was never published");
    server.assert_balanced().await;
}

async fn tidegauge_killed(store: Store<'_>) {
    let (broker, mut ledger) = (Broker::start().await, Ledger::new());
    let mut server = Server::start(broker.subscribed(store.setup(), TOPICS)).await;
    subscribed(&server).await;
    let until = Instant::now() + duration();
    let mut kills = 0;
    while kills < 5 || Instant::now() < until {
        broker.publish_all(&ledger.next()).expect("the broker is there");
        ledger.pause().await;
        server.kill9();
        broker.publish_all(&ledger.next()).expect("the broker is there");
        server.start_again().await;
        kills += 1;
    }
    all_acknowledged(&broker, ledger.published).await;
    audit(&server, &(0..ledger.published).collect(), ledger.published).await;
    let (name, count) = (store.name(), ledger.published);
    say(&format!("fault test | MQTT, kill -9 | {name} | kills {kills} | acknowledged {count} | lost 0"));
}

/// Faults of each kind in random order. The broker loses messages when it is killed, and some faults remove
/// its session too: so only what tidegauge has acknowledged counts.
async fn any_fault(store: Store<'_>) {
    let (mut broker, mut ledger) = (Broker::start().await, Ledger::new());
    let mut server = Server::start(broker.subscribed(store.setup(), TOPICS)).await;
    subscribed(&server).await;
    let until = Instant::now() + duration();
    // The count of each kind: tidegauge, the broker, the broker with its session, the connection.
    let mut faults = [0; 4];
    while faults.contains(&0) || Instant::now() < until {
        broker.publish_all(&ledger.next()).expect("the broker is there");
        ledger.pause().await;
        let missing = faults.iter().position(|count| *count == 0);
        let kind = missing.unwrap_or_else(|| ledger.rng.random_range(0..faults.len()));
        match kind {
            0 => server.kill9(),
            1 | 2 => broker.kill9(),
            _ => broker.take_over(CLIENT),
        }
        match kind {
            0 => {
                broker.publish_all(&ledger.next()).expect("the broker is there");
                server.start_again().await;
            }
            1 | 2 => {
                if kind == 2 {
                    broker.forget_sessions();
                }
                broker.start_again().await;
            }
            _ => {}
        }
        subscribed(&server).await;
        faults[kind] += 1;
    }
    broker.publish_all(&ledger.next()).expect("the broker is there");
    let last = ledger.published - 1;
    wait_until("the last message is acknowledged", async || {
        broker.acknowledged_by(CLIENT).iter().any(|topic| number(topic) == last).then_some(())
    })
    .await;
    let acknowledged: BTreeSet<usize> = broker.acknowledged_by(CLIENT).iter().map(|topic| number(topic)).collect();
    assert!(acknowledged.len() >= MESSAGES, "{}", acknowledged.len());
    audit(&server, &acknowledged, ledger.published).await;
    let (name, count) = (store.name(), acknowledged.len());
    say(&format!("fault test | MQTT, any fault | {name} | faults {faults:?} | acknowledged {count} | lost 0"));
}

/// The store is away until the log is full, and tidegauge is killed meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_while_the_store_is_away_and_the_log_full() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    let (broker, mut ledger) = (Broker::start().await, Ledger::new());
    let setup = Store::Mongodb(&database).setup().set("log.max_bytes", "256KiB").set("pending.max_bytes", "1MiB");
    let mut server = Server::start(broker.subscribed(setup, TOPICS)).await;
    subscribed(&server).await;
    mongod.kill9();
    let until_full = async |ledger: &mut Ledger| {
        for _ in 0..200 {
            broker.publish_all(&ledger.next()).expect("the broker is there");
            if server.log().contains("the log is full") {
                return;
            }
        }
        panic!("the log is not full after {} messages", ledger.published);
    };
    until_full(&mut ledger).await;
    server.kill9();
    server.start_again().await;
    broker.publish_all(&ledger.next()).expect("the broker is there");
    tokio::task::block_in_place(|| mongod.start_again());
    all_acknowledged(&broker, ledger.published).await;
    audit(&server, &(0..ledger.published).collect(), ledger.published).await;
}

async fn subscribed(server: &Server) {
    wait_until("the client is connected", async || {
        (server.metrics().await.count("tidegauge_mqtt_connected") == 1).then_some(())
    })
    .await;
}

/// Waits until tidegauge has acknowledged each published message.
async fn all_acknowledged(broker: &Broker, published: usize) {
    wait_until("all messages are acknowledged", async || {
        let acknowledged: BTreeSet<usize> = broker.acknowledged_by(CLIENT).iter().map(|topic| number(topic)).collect();
        (acknowledged.len() == published).then_some(())
    })
    .await;
}
