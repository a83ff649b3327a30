//! Two instances that share a database receive, flush and delete, and `kill -9` of either in the middle,
//! against a plain map.
//!
//! Readings go to both instances at the same time. A deletion goes to one of them, and is sent again to the
//! same one until it is complete, while both receive readings of other devices. In time-series mode each
//! device has one writer.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::deletions::{DEVICES, Deletion, METRICS, Model, compare, random_batch, random_deletion, reading, value};
use super::fault_test::seed;
use super::store::{Store, on_stores};
use crate::harness::{Database, Server, wait_until};

on_stores!(kill_9_of_either, super::killed, [mongodb, packed, timeseries]);

const KILLS: u32 = 4;
const STEPS_PER_LIFE: u32 = 8;

/// A kill in the middle of a request.
#[derive(Debug, Clone, Copy)]
struct Kill {
    victim: usize,
    after: Duration,
}

async fn killed(store: Store<'_>) {
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let (one, other) = tokio::join!(Server::start(store.setup()), Server::start(store.setup()));
    let (mut servers, mut model) = ([one, other], Model::new());
    for life in 0..=KILLS {
        for step in 0..STEPS_PER_LIFE {
            let is_killed = life < KILLS && step + 1 == STEPS_PER_LIFE;
            let after = Duration::from_millis(random.random_range(0..400));
            let kill = is_killed.then(|| Kill { victim: random.random_range(0..2), after });
            if is_killed || random.random_range(0..3) == 0 {
                let deletion = random_deletion(&mut random, store);
                delete(&mut servers, random.random_range(0..2), &deletion, kill).await;
                model.retain(|identity, _| !deletion.selects(identity));
            } else {
                ingest(&servers, &mut random, store, &mut model).await;
            }
        }
        if life == KILLS || random.random() {
            for server in &servers {
                server.settled().await;
            }
            for server in &servers {
                compare(server, &model, seed).await;
            }
        }
    }
    for server in &servers {
        server.assert_balanced().await;
    }
}

/// It runs again before it counts as down.
#[tokio::test]
async fn a_deletion_waits_for_an_instance_that_does_not_answer_and_says_so() {
    let database = Database::new();
    let store = Store::Mongodb(&database);
    let setup = store.setup_all_pending().set("mongodb.timeout", "60s"); // it does not count as down for a minute
    let (one, other) = tokio::join!(Server::start(store.setup()), Server::start(setup));
    let [sent, kept] = [("d", 7, &METRICS[..]), ("d1", 7, &METRICS[..])];
    assert_eq!(other.ingest(&json!([reading(&sent), reading(&kept)])).await.status, 200);
    other.signal("STOP");
    let deletion = Deletion { device: "d", range: None, metric: None };
    let answer = one.send(deletion.request(&one)).await;
    assert_eq!((answer.status, &answer.json()["pending"]), (202, &json!(true)), "{}", answer.text());
    assert_eq!(answer.json()["waitsFor"].as_array().map(Vec::len), Some(1), "{}", answer.text());
    other.signal("CONT");
    let mut servers = [one, other];
    delete(&mut servers, 0, &deletion, None).await;
    let model = METRICS.iter().map(|metric| (("d1", 7, *metric), value(7))).collect();
    compare(&servers[1], &model, 0).await;
}

/// Sends readings to both instances at the same time.
async fn ingest(servers: &[Server; 2], random: &mut StdRng, store: Store<'_>, model: &mut Model) {
    let mut batches = [random_batch(random), random_batch(random)];
    if matches!(store, Store::Timeseries(_)) {
        for (at, batch) in batches.iter_mut().enumerate() {
            batch.retain(|(device, ..)| writer_of(device) == at);
        }
    }
    let bodies = batches.each_ref().map(|batch| json!(batch.iter().map(reading).collect::<Vec<Value>>()));
    let (one, other) = tokio::join!(servers[0].ingest(&bodies[0]), servers[1].ingest(&bodies[1]));
    assert_eq!((one.status, other.status), (200, 200), "{} {}", one.text(), other.text());
    for (device, minute, metrics) in batches.into_iter().flatten() {
        model.extend(metrics.iter().map(|metric| ((device, minute, *metric), value(minute))));
    }
}

/// The one instance that receives a device.
fn writer_of(device: &str) -> usize {
    DEVICES.iter().position(|other| *other == device).expect("one of the devices") % 2
}

/// Deletes through one instance, and repeats that until all have executed it.
async fn delete(servers: &mut [Server; 2], through: usize, deletion: &Deletion, kill: Option<Kill>) {
    if let Some(Kill { victim, after }) = kill {
        let interrupted = tokio::spawn(deletion.request(&servers[through]).send());
        tokio::time::sleep(after).await;
        servers[victim].kill9();
        servers[victim].start_again().await;
        let _ = interrupted.await;
    }
    wait_until("the deletion is complete", async || {
        let answer = servers[through].send(deletion.request(&servers[through])).await;
        assert!(matches!(answer.status, 200 | 202), "{}: {}", answer.status, answer.text());
        (answer.status == 200).then_some(())
    })
    .await;
}
