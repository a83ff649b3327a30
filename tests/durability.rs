//! Nothing that was acknowledged is lost: over `kill -9` under load, a clean stop, and a store that goes
//! away.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::sync::{Arc, Mutex};

use bson::doc;
use serde_json::json;

use crate::harness::{Database, Mongod, Server, Setup, client, wait_until};

const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z
const CLIENTS: usize = 8;

/// Readings that were acknowledged: client and instant.
type Acked = Arc<Mutex<BTreeSet<(usize, i64)>>>;

#[tokio::test]
async fn every_acknowledged_reading_survives_kills_under_load_with_sqlite() {
    killed_under_load(Setup::sqlite()).await;
}

#[tokio::test]
async fn every_acknowledged_reading_survives_kills_under_load_with_mongodb() {
    let database = Database::new();
    killed_under_load(Setup::mongodb(&database)).await;
}

#[tokio::test]
async fn every_acknowledged_reading_survives_kills_under_load_with_a_timeseries_collection() {
    let database = Database::new();
    killed_under_load(Setup::timeseries(&database)).await;
}

async fn killed_under_load(setup: Setup) {
    let acked = Acked::default();
    let mut server = Server::start(setup).await;
    for round in 0..5 {
        let before = count(&acked);
        let clients = load(&server, round, &acked);
        wait_until("readings are acknowledged", async || (count(&acked) >= before + 100).then_some(())).await;
        server.kill9();
        for client in clients {
            client.await.expect("the client ends when the server is gone");
        }
        server.start_again().await;
    }
    server.settled().await;
    assert_all_there(&server, &acked).await;
}

#[tokio::test]
async fn a_clean_stop_under_load_stores_everything_and_exits_with_0() {
    let acked = Acked::default();
    let mut server = Server::start(Setup::sqlite().all_pending()).await;
    let clients = load(&server, 0, &acked);
    wait_until("readings are acknowledged", async || (count(&acked) >= 200).then_some(())).await;
    let status = server.terminate().await;
    assert_eq!((status.code(), status.signal()), (Some(0), None), "{}", server.log());
    for client in clients {
        client.await.expect("the client ends when the server is gone");
    }
    server.start_again().await;
    let metrics = server.metrics().await;
    assert_eq!(metrics.count("tidegauge_readings_recovered_total"), 0, "nothing was left in the log");
    assert_all_there(&server, &acked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readings_are_taken_while_mongodb_is_away_and_stored_when_it_is_back() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    let server = Server::start(Setup::mongodb(&database).set("mongodb.timeout", "2s")).await;
    post_ten(&server, 0).await;
    server.settled().await;

    mongod.kill9();
    for round in 1..10 {
        post_ten(&server, round).await;
    }
    wait_until("the store is reported as down", async || {
        (server.metrics().await.count("tidegauge_store_up") == 0).then_some(())
    })
    .await;
    assert_eq!(server.metrics().await.count("tidegauge_readings_pending"), 90);

    tokio::task::block_in_place(|| mongod.start_again());
    let metrics = server.settled().await;
    assert_eq!(metrics.taken(), 100);
    let count = doc! { "$group": { "_id": null, "count": { "$sum": { "$size": "$readings" } } } };
    let counted = database.aggregate("buckets", vec![count]).await;
    assert_eq!(counted, [doc! { "_id": null, "count": 100 }]);
}

/// Ten readings, acknowledged.
async fn post_ten(server: &Server, round: i64) {
    let readings: Vec<_> =
        (0..10).map(|at| json!({ "ts": START_MS + (round * 10 + at) * 1_000, "value": at })).collect();
    let answer = server.ingest(&json!({ "deviceId": "a", "readings": readings })).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Clients that post one reading after the other until the server is gone.
fn load(server: &Server, round: i64, acked: &Acked) -> Vec<tokio::task::JoinHandle<()>> {
    let client = |number: usize| {
        let (url, acked, http) = (server.url().to_owned(), Arc::clone(acked), client(None).build().expect("a client"));
        tokio::spawn(async move {
            for at in 0.. {
                let ts = START_MS + round * 1_000_000 + at;
                let reading = json!({ "deviceId": format!("client-{number}"), "ts": ts, "value": at });
                match Server::try_ingest(&http, &url, &reading).await {
                    Some(answer) if answer.status == 200 => {
                        acked.lock().expect("no panic while it was held").insert((number, ts));
                    }
                    Some(answer) if answer.status != 503 => panic!("{}: {}", answer.status, answer.text()),
                    _ => break,
                }
            }
        })
    };
    (0..CLIENTS).map(client).collect()
}

fn count(acked: &Acked) -> usize {
    acked.lock().expect("no panic while it was held").len()
}

async fn assert_all_there(server: &Server, acked: &Acked) {
    let mut found = BTreeSet::new();
    for number in 0..CLIENTS {
        let path = format!(
            "/v1/devices/client-{number}/readings?from=2024-01-01T00:00:00Z&to=2025-01-01T00:00:00Z&limit=1000"
        );
        let mut page = server.get_json(&path).await;
        loop {
            for reading in page["readings"].as_array().expect("readings") {
                let ts: jiff::Timestamp = reading["ts"].as_str().expect("a time").parse().expect("RFC 3339");
                assert!(found.insert((number, ts.as_millisecond())), "twice: {reading}");
            }
            let Some(cursor) = page["next"].as_str() else { break };
            page = server.get_json(&format!("{path}&cursor={cursor}")).await;
        }
    }
    let acked = acked.lock().expect("no panic while it was held");
    let lost: Vec<_> = acked.difference(&found).take(10).collect();
    assert!(lost.is_empty(), "of {} acknowledged readings some are lost: {lost:?} ...", acked.len());
}
