//! A replica set of three loses its primary, in each of the ways in which that happens: nothing that was acknowledged is
//! lost, and nothing is stored twice.

use bson::doc;
use serde_json::json;

use crate::harness::{Database, ReplicaSet, Server, Setup};

const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_around_a_failover_is_stored_once() {
    let mut set = tokio::task::block_in_place(ReplicaSet::start);
    let database = Database::at(set.uri());
    let server = Server::start(Setup::mongodb(&database).set("mongodb.timeout", "2s")).await;
    post_ten(&server, 0).await;
    server.settled().await;

    let stepped_down = tokio::task::block_in_place(|| set.step_down());
    post_ten(&server, 1).await;
    server.settled().await;
    let killed = tokio::task::block_in_place(|| set.wait_for_another_primary(stepped_down));
    set.kill9(killed);
    post_ten(&server, 2).await;
    server.settled().await;
    tokio::task::block_in_place(|| set.start_again(killed));

    let frozen = tokio::task::block_in_place(|| set.primary());
    set.freeze(frozen);
    post_ten(&server, 3).await;
    server.settled().await;
    set.thaw(frozen);
    tokio::task::block_in_place(|| set.wait_for_another_primary(frozen));
    post_ten(&server, 4).await;

    let metrics = server.settled().await;
    assert_eq!(metrics.count("tidegauge_readings_dead_lettered_total"), 0);
    let count = doc! { "$group": { "_id": null, "count": { "$sum": { "$size": "$readings" } } } };
    assert_eq!(database.aggregate("buckets", vec![count]).await, [doc! { "_id": null, "count": 50 }]);
}

/// Ten readings, acknowledged.
async fn post_ten(server: &Server, round: i64) {
    let readings: Vec<_> =
        (0..10).map(|at| json!({ "ts": START_MS + (round * 10 + at) * 1_000, "value": at })).collect();
    let answer = server.ingest(&json!({ "deviceId": "a", "readings": readings })).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}
