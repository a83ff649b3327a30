//! On a sharded cluster tidegauge shards its collections, keeps each device on one shard, survives the loss
//! of a mongos, and reports a missing privilege. The cluster is that of `harness/mongos`: real mongods and a
//! simulated mongos.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use bson::{Bson, Document, doc};
use mongodb::Client;
use serde_json::{Value, json};

use crate::harness::mongod::mongos::{Cluster, SHARDS, Sharding, Verb, uri_of};
use crate::harness::{Database, Server, Setup, wait_until};

const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z
const DAY: &str = "from=2024-04-20T00:00:00Z&to=2024-04-21T00:00:00Z&limit=10000";
const DEVICES: usize = 40;

fn cluster() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(Cluster::start)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_device_is_on_one_shard_and_a_mongos_may_fail() {
    let cluster = tokio::task::block_in_place(cluster);
    let (one, other) = (cluster.start_mongos(Sharding::Allowed), cluster.start_mongos(Sharding::Allowed));
    let database = Database::at(&uri_of([&one, &other]));
    let server = Server::start(Setup::mongodb(&database).set("mongodb.timeout", "5s")).await;
    post_from_each_device(&server, 0).await;
    server.settled().await;
    drop(one);
    post_from_each_device(&server, 1).await;
    let metrics = server.settled().await;
    assert_eq!(metrics.taken(), 2 * DEVICES as u64);
    for device in 0..DEVICES {
        let readings = server.readings(&format!("device-{device}")).await;
        assert_eq!(readings.as_array().map(Vec::len), Some(2));
    }

    let record = cluster.record_of(&database.name);
    let of_devices = record.iter().filter(|at| !["buckets_instances", "buckets_metadata"].contains(&&*at.collection));
    let writes: Vec<_> = of_devices.filter(|at| at.verb == Verb::Write).collect();
    assert!(writes.iter().all(|write| write.sharded && write.shards.len() == 1), "{writes:#?}");
    let used: BTreeSet<usize> = writes.iter().flat_map(|write| write.shards.clone()).collect();
    assert_eq!(used.len(), SHARDS);
    let by_device = record.iter().filter(|at| at.verb == Verb::Read && at.filter.get_str("deviceId").is_ok());
    let by_device: Vec<_> = by_device.filter(|read| read.collection == "buckets").collect();
    assert!(by_device.len() >= DEVICES && by_device.iter().all(|read| read.shards.len() == 1));
    for shard in 0..SHARDS {
        let client = Client::with_uri_str(cluster.shard_uri(shard)).await.expect("a well-formed URI");
        let buckets = client.database(&database.name).collection::<Document>("buckets");
        assert!(buckets.count_documents(doc! {}).await.expect("a count") > 0, "shard {shard} is empty");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_shard_blocks_its_own_devices_only() {
    let mut cluster = tokio::task::block_in_place(Cluster::start);
    let mongos = cluster.start_mongos(Sharding::Allowed);
    let database = Database::at(&uri_of([&mongos]));
    let server = Server::start(Setup::mongodb(&database).set("mongodb.timeout", "2s")).await;
    post_from_each_device(&server, 0).await;
    server.settled().await;
    let record = cluster.record_of(&database.name);
    let on_first = record.iter().filter(|at| at.verb == Verb::Write && at.collection == "buckets" && at.shards == [0]);
    let on_first: BTreeSet<&str> = on_first.filter_map(|at| at.filter.get_str("deviceId").ok()).collect();
    assert!(!on_first.is_empty() && on_first.len() < DEVICES);

    cluster.shard_mut(1).kill9();
    post_from_each_device(&server, 1).await;
    let stored = async || server.metrics().await.taken();
    let expected = (DEVICES + on_first.len()) as u64;
    wait_until("the devices of the other shard are stored", async || (stored().await == expected).then_some(())).await;
    wait_until("the store is away", async || server.get_json("/readyz").await["storeAwaySeconds"].as_u64()).await;
    assert_eq!(server.readings(on_first.first().expect("one")).await.as_array().map(Vec::len), Some(2));
    let on_other = (0..DEVICES).map(|device| format!("device-{device}")).find(|device| !on_first.contains(&**device));
    let path = format!("/v1/devices/{}/readings?from=2024-04-20T00:00:00Z", on_other.expect("one"));
    let partial = server.get_json(&path).await;
    assert_eq!(
        (partial["readings"].as_array().map(Vec::len), &partial["partial"]),
        (Some(1), &json!(true)),
        "{partial}"
    );

    tokio::task::block_in_place(|| cluster.shard_mut(1).start_again());
    let metrics = server.settled().await;
    assert_eq!(metrics.taken(), 2 * DEVICES as u64);
    assert_eq!(metrics.count("tidegauge_readings_dead_lettered_total"), 0);
}

/// All devices send one after the other, so that writes of either shard alternate.
#[tokio::test(flavor = "multi_thread")]
async fn devices_of_the_other_shard_are_stored_and_answered_under_traffic() {
    let mut cluster = tokio::task::block_in_place(Cluster::start);
    let mongos = cluster.start_mongos(Sharding::Allowed);
    let database = Database::at(&uri_of([&mongos]));
    let server = Server::start(Setup::mongodb(&database).set("mongodb.timeout", "2s")).await;
    post_from_each_device(&server, 0).await;
    server.settled().await;
    let record = cluster.record_of(&database.name);
    let on_first = record.iter().filter(|at| at.verb == Verb::Write && at.collection == "buckets" && at.shards == [0]);
    let on_first: BTreeSet<&str> = on_first.filter_map(|at| at.filter.get_str("deviceId").ok()).collect();
    assert!(!on_first.is_empty() && on_first.len() < DEVICES);

    cluster.shard_mut(1).kill9();
    let is_over = AtomicBool::new(false);
    let rounds = AtomicI64::new(0);
    let traffic = async {
        while !is_over.load(Ordering::Relaxed) {
            let round = rounds.load(Ordering::Relaxed) + 1;
            for device in 0..DEVICES {
                assert_eq!(server.ingest(&reading_of(device, round)).await.status, 200);
            }
            rounds.store(round, Ordering::Relaxed);
        }
    };
    let queries = async {
        let stored = async || server.metrics().await.taken();
        let (before, per_round) = (stored().await, on_first.len() as u64);
        wait_until("many writes of either shard were sent", async || {
            for device in &on_first {
                let sent = rounds.load(Ordering::Relaxed) + 1; // and the one from before
                let answer = server.get(&format!("/v1/devices/{device}/readings?{DAY}")).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
                let answer = answer.json();
                assert_eq!(answer.get("partial"), None, "{answer}");
                assert!(answer["readings"].as_array().is_some_and(|found| found.len() as i64 >= sent), "{answer}");
            }
            let metrics = server.metrics().await;
            let is_refused_often = metrics.count("tidegauge_flush_retries_total") > 100;
            let is_stored_often = metrics.taken() > before + 20 * per_round;
            (is_refused_often && is_stored_often).then_some(())
        })
        .await;
        is_over.store(true, Ordering::Relaxed);
    };
    tokio::join!(traffic, queries);
    let log = server.log();
    assert_eq!((log.matches("the store is away").count(), log.matches("the store is back").count()), (1, 0), "{log}");

    tokio::task::block_in_place(|| cluster.shard_mut(1).start_again());
    let all = (rounds.load(Ordering::Relaxed) + 1) as u64 * DEVICES as u64;
    assert_eq!(server.settled().await.taken(), all);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_privilege_readings_are_stored_with_a_warning() {
    let cluster = tokio::task::block_in_place(cluster);
    let mongos = cluster.start_mongos(Sharding::Forbidden);
    let database = Database::at(&uri_of([&mongos]));
    let server = Server::start(Setup::mongodb(&database)).await;
    for round in 0..3 {
        post_from_each_device(&server, round).await;
        server.settled().await;
    }
    for collection in ["buckets", "rollups", "devices"] {
        let command = format!(r#"sh.shardCollection("{}.{collection}", {{ "deviceId": "hashed" }})"#, database.name);
        let log = server.logged(&command).await;
        assert!(log.lines().any(|line| line.contains(&command) && line.contains("not authorized")), "{log}");
    }
    let log = server.log();
    let warnings = log.matches("the collection stays on one shard").count();
    assert_eq!(warnings, 3, "once for each collection: {log}");
}

/// The behavior of the simulator on which the tests of the store rely.
#[tokio::test(flavor = "multi_thread")]
async fn the_simulator_refuses_what_a_mongos_refuses() {
    let cluster = tokio::task::block_in_place(cluster);
    let mongos = cluster.start_mongos(Sharding::Allowed);
    let name = Database::at("").name.clone();
    let client = Client::with_uri_str(uri_of([&mongos])).await.expect("a well-formed URI");
    let (database, admin) = (client.database(&name), client.database("admin"));
    let shard = doc! { "shardCollection": format!("{name}.c"), "key": { "k": "hashed" } };
    let run = async |command: Document| database.run_command(command).await.expect("an answer");

    run(doc! { "insert": "c", "documents": [{ "_id": 0, "k": "early" }] }).await;
    let code = async |command: Document| match *admin.run_command(command).await.expect_err("refused").kind {
        mongodb::error::ErrorKind::Command(refusal) => refusal.code,
        other => panic!("{other}"),
    };
    assert_eq!(code(shard.clone()).await, 72, "there is data, and no index");
    run(doc! { "createIndexes": "c", "indexes": [{ "key": { "k": "hashed" }, "name": "k" }] }).await;
    let mut presplit = shard.clone();
    presplit.insert("numInitialChunks", 8);
    assert_eq!(code(presplit).await, 40415);
    for _ in 0..2 {
        admin.run_command(shard.clone()).await.expect("the same again is no error");
    }

    let documents: Vec<Document> = (1..20).map(|at| doc! { "_id": at, "k": format!("k{at}"), "x": at % 3 }).collect();
    let inserted = run(doc! { "insert": "c", "documents": documents }).await;
    assert_eq!(inserted.get_i32("n").ok(), Some(19), "{inserted}");
    let found = run(doc! { "find": "c", "sort": { "_id": -1 }, "skip": 2, "limit": 5, "projection": { "k": 0 } }).await;
    let batch = found.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch")).expect("a batch");
    let ids: Vec<i32> = batch.iter().filter_map(|found| found.as_document()?.get_i32("_id").ok()).collect();
    assert_eq!(ids, [17, 16, 15, 14, 13]);
    let mut cursor = database.collection::<Document>("c").find(doc! {}).batch_size(3).await.expect("a cursor");
    let mut seen = BTreeSet::new();
    while cursor.advance().await.expect("the next batch") {
        assert!(seen.insert(cursor.deserialize_current().expect("a document").get_i32("_id").expect("an id")));
    }
    assert_eq!(seen.len(), 20);
    let group = doc! { "$group": { "_id": "$x", "n": { "$sum": 1 } } };
    let counted = run(
        doc! { "aggregate": "c", "pipeline": [{ "$match": { "_id": { "$gt": 0 } } }, group, { "$sort": { "_id": 1 } }],
        "cursor": {} },
    )
    .await;
    let counted =
        counted.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch")).expect("a batch").clone();
    assert_eq!(counted, [(0, 6), (1, 7), (2, 6)].map(|(x, n)| Bson::from(doc! { "_id": x, "n": n })));

    let set = |q: Document, upsert: bool, multi: bool| {
        doc! { "q": q, "u": { "$set": { "y": 1 } }, "upsert": upsert, "multi": multi }
    };
    let statements = [
        set(doc! { "_id": 50, "k": "new" }, true, false),
        set(doc! { "_id": 51 }, true, false),
        set(doc! { "x": 1 }, false, false),
        set(doc! { "_id": 1, "k": "k1" }, false, false),
        set(doc! { "x": 1 }, false, true),
    ];
    let reply = run(doc! { "update": "c", "ordered": false, "updates": statements.to_vec() }).await;
    let errors = reply.get_array("writeErrors").expect("errors").iter().filter_map(Bson::as_document);
    let codes: Vec<(i32, i32)> = errors
        .map(|error| (error.get_i32("index").expect("a place"), error.get_i32("code").expect("a code")))
        .collect();
    assert_eq!(codes, [(1, 61), (2, 72)], "{reply}");
    let upserted = reply.get_array("upserted").expect("one")[0].as_document().expect("a document").clone();
    assert_eq!(upserted, doc! { "index": 0, "_id": 50 });
    let deleted = run(doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0 }] }).await;
    assert!(deleted.get_i32("n").expect("a count") >= 21, "{deleted}");
    database.drop().await.expect("dropped");
}

fn reading_of(device: usize, round: i64) -> Value {
    json!({ "deviceId": format!("device-{device}"), "ts": START_MS + round, "value": round })
}

async fn post_from_each_device(server: &Server, round: i64) {
    let readings: Vec<Value> = (0..DEVICES).map(|device| reading_of(device, round)).collect();
    server.accepts(&json!(readings)).await;
}
