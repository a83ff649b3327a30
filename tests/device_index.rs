//! The device index: it is never behind the stored readings, a lost one is rebuilt, and all
//! stores answer the same from it.

use std::process::{Command, Stdio};

use bson::{Document, doc};
use serde_json::{Value, json};

use crate::harness::{Answer, Database, Mongod, Server, Setup, binary, wait_until};

const HOUR_MS: i64 = 3_600_000;
const START_MS: i64 = 1_713_571_200_000; // 2024-04-20T00:00:00Z

/// Three devices over three days, with metadata in some hours, and metrics that end.
async fn ingest_days(server: &Server) {
    for hour in [0, 5, 23, 24, 30, 60] {
        let ts = START_MS + hour * HOUR_MS;
        let of = |device: &str, values: Value| json!({ "deviceId": device, "ts": ts, "values": values });
        let mut described = of("described", json!({ "temp": hour, format!("only-{hour}"): 1 }));
        if [5, 24].contains(&hour) {
            described["metadata"] = json!({ "hour": hour, "a.b": ["$c"] });
        }
        let silent =
            if hour < 30 { of("silent", json!({ "battery": hour })) } else { of("other", json!({ "x": hour })) };
        assert_eq!(
            server
                .ingest(&json!([described, silent, of("labels", json!({ "cpu": hour, "cpu{n=0}": 1 }))]))
                .await
                .status,
            200
        );
    }
}

/// The answers from the index.
async fn answers(server: &Server) -> Vec<Value> {
    let mut answers = vec![server.get_json("/v1/devices").await];
    for device in ["described", "silent", "other", "labels"] {
        answers.push(server.get_json(&format!("/v1/devices/{device}/latest")).await);
    }
    answers
}

fn expect_days(answers: &[Value]) {
    let listed = &answers[0]["devices"];
    let metrics = ["only-0", "only-23", "only-24", "only-30", "only-5", "only-60", "temp"];
    assert_eq!(listed[0]["metrics"], json!(metrics));
    assert_eq!(listed[0]["metadata"], json!({ "hour": 24, "a.b": ["$c"] }));
    assert_eq!(listed[0]["firstSeen"], "2024-04-20T00:00:00.000Z");
    assert_eq!(listed[0]["lastSeen"], "2024-04-22T12:00:00.000Z");
    assert_eq!(listed[3]["lastSeen"], "2024-04-21T00:00:00.000Z", "{listed}");
    let latest = &answers[1]["metrics"];
    assert_eq!(latest["only-5"], json!({ "ts": "2024-04-20T05:00:00.000Z", "value": 1.0 }));
    assert_eq!(latest["temp"], json!({ "ts": "2024-04-22T12:00:00.000Z", "value": 60.0 }));
    assert_eq!(answers[2]["metrics"], json!({ "battery": { "ts": "2024-04-21T00:00:00.000Z", "value": 24.0 } }));
}

async fn answers_before_and_after_a_flush(setup: Setup) -> Vec<Value> {
    let mut server = Server::start(setup.clone().all_pending()).await;
    ingest_days(&server).await;
    let pending = answers(&server).await;
    expect_days(&pending);
    assert!(server.terminate().await.success());
    server.start_again_with(setup).await;
    server.settled().await;
    assert_eq!(answers(&server).await, pending, "stored");
    pending
}

#[tokio::test]
async fn all_stores_answer_the_same_before_and_after_a_flush() {
    let expected = answers_before_and_after_a_flush(Setup::sqlite()).await;
    let [buckets, timeseries] = [Database::new(), Database::new()];
    assert_eq!(answers_before_and_after_a_flush(Setup::mongodb(&buckets)).await, expected);
    assert_eq!(answers_before_and_after_a_flush(Setup::timeseries(&timeseries)).await, expected);
}

const REBUILD: &str = "tidegauge check --rebuild-device-index";

/// The answers while the index lacks devices. Those about named devices are as before.
async fn expect_incomplete(server: &Server, readings: &Value) {
    for path in ["/v1/devices", "/v1/latest", "/v1/rollups?metric=temp&step=1d", "/v1/devices/described/latest"] {
        let answer = server.get_json(path).await;
        let reason = answer["partialReason"].as_str().unwrap_or_default();
        assert!(answer["partial"] == true && reason.contains(REBUILD), "{path}: {answer}");
    }
    assert_eq!(server.get_json(READINGS).await, *readings);
    let show = |format: &str| format!("/query?db=tidegauge&q=SHOW%20SERIES{format}");
    let shown = server.get_json(&show("")).await;
    assert!(shown["results"][0]["messages"][0]["text"].as_str().is_some_and(|text| text.contains(REBUILD)), "{shown}");
    for path in ["/v1/devices/described", "/v1/devices?format=csv", "/v1/readings?prefix=desc"] {
        let refused = server.get(path).await;
        let problem = refused.json();
        assert_eq!((refused.status, &problem["code"]), (503, &json!("device_index_incomplete")), "{path}: {problem}");
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(REBUILD)), "{problem}");
    }
    let counted = server.send(server.request(reqwest::Method::DELETE, "/v1/devices/described?dry_run=true")).await;
    assert_eq!((counted.status, &counted.json()["code"]), (503, &json!("device_index_incomplete")));
    let check = server.check(&["--full"]).await;
    assert!(check.stdout.contains(&format!("run: {REBUILD}")), "{}", check.stdout);
}

/// All readings of a named device.
const READINGS: &str = "/v1/devices/described/readings?from=2024-04-20T00:00:00Z&to=2024-04-23T00:00:00Z";

/// Drops the index while tidegauge runs, and while it does not.
async fn is_rebuilt(database: &Database, setup: Setup) {
    let mut server = Server::start(setup).await;
    ingest_days(&server).await;
    server.settled().await;
    let (before, readings) = (answers(&server).await, server.get_json(READINGS).await);
    expect_days(&before);
    for is_running in [true, false] {
        if !is_running {
            assert!(server.terminate().await.success());
        }
        database.handle().await.collection::<Document>("devices").drop().await.expect("dropped");
        if !is_running {
            server.start_again().await;
        }
        expect_incomplete(&server, &readings).await;
        let rebuilt = server.check(&["--rebuild-device-index"]).await;
        assert!(rebuilt.stdout.ends_with("has all devices: 4 devices\n"), "{}{}", rebuilt.stdout, rebuilt.stderr);
        assert_eq!(answers(&server).await, before, "dropped while the service runs: {is_running}");
        let check = server.check(&["--full"]).await;
        assert!(!check.stdout.contains(REBUILD), "{}", check.stdout);
    }
    let logged = |text: &str| server.log().matches(text).count();
    wait_until("both rebuilds are in the log", async || {
        (logged("the device index has all devices again") == 2).then_some(())
    })
    .await;
    assert_eq!(logged("the device index lacks devices"), 2, "once per loss: {}", server.log());
    // The entry of a known device is written again, with all that it had.
    let more = json!({ "deviceId": "silent", "ts": START_MS + 24 * HOUR_MS + 1, "value": 1 });
    assert_eq!(server.ingest(&more).await.status, 200);
    server.settled().await;
    let silent = server.get_json("/v1/devices?prefix=silent").await["devices"][0].take();
    assert_eq!(silent["metrics"], json!(["battery", "value"]));
}

/// Two instances get new devices while the index is dropped and rebuilt.
async fn rebuilt_while_two_instances_write(database: &Database, setup: Setup) {
    let setup = setup.set("flush.max_age", "100ms");
    let servers = [Server::start(setup.clone()).await, Server::start(setup).await];
    let ingest = async |server: &Server, of: &str| {
        for nth in 0..100 {
            let reading = json!({ "deviceId": format!("{of}{nth:02}"), "ts": START_MS, "values": { of: nth } });
            assert_eq!(server.ingest(&reading).await.status, 200);
        }
    };
    let drop_and_rebuild = async {
        for _ in 0..2 {
            database.handle().await.collection::<Document>("devices").drop().await.expect("dropped");
            servers[0].check(&["--rebuild-device-index"]).await;
        }
    };
    ingest(&servers[0], "old").await;
    tokio::join!(ingest(&servers[0], "a"), ingest(&servers[1], "b"), drop_and_rebuild);
    for server in &servers {
        server.settled().await;
    }
    let rebuilt = servers[0].check(&["--rebuild-device-index"]).await;
    assert!(rebuilt.stdout.ends_with("has all devices: 300 devices\n"), "{}{}", rebuilt.stdout, rebuilt.stderr);
    for server in &servers {
        let listed = server.get_json("/v1/devices?limit=1000").await;
        assert_eq!((listed["devices"].as_array().map(Vec::len), listed.get("partial")), (Some(300), None));
        for device in listed["devices"].as_array().expect("a list") {
            let name = device["deviceId"].as_str().expect("an ID");
            assert_eq!(device["metrics"], json!([name.trim_end_matches(|of: char| of.is_ascii_digit())]));
        }
    }
}

#[tokio::test]
async fn an_index_of_buckets_is_rebuilt_while_two_instances_write() {
    let database = Database::new();
    rebuilt_while_two_instances_write(&database, Setup::mongodb(&database)).await;
}

#[tokio::test]
async fn an_index_of_a_time_series_is_rebuilt_while_two_instances_write() {
    let database = Database::new();
    rebuilt_while_two_instances_write(&database, Setup::timeseries(&database)).await;
}

/// Rebuilds are killed after ever more entries. Then a list is refused as incomplete, or it has all devices.
async fn a_killed_rebuild_is_repeated(database: &Database, setup: Setup) {
    const DEVICES: usize = 300;
    let has_all = |listed: &Answer| listed.status == 200 && listed.text().lines().count() == DEVICES + 1;
    let server = Server::start(setup).await;
    let readings = (0..DEVICES).map(|nth| json!({ "deviceId": format!("d{nth}"), "ts": START_MS, "value": nth }));
    assert_eq!(server.ingest(&readings.collect::<Value>()).await.status, 200);
    server.settled().await;
    let index = database.handle().await.collection::<Document>("devices");
    let mut killed_midway = 0;
    for entries in [0, 100, 200] {
        index.drop().await.expect("dropped");
        let mut rebuild = Command::new(binary());
        rebuild.args(server.args_of_check(&["--rebuild-device-index"])).stdout(Stdio::null()).stderr(Stdio::null());
        let mut rebuild = rebuild.spawn().expect("the binary runs");
        wait_until("the rebuild has come so far", async || {
            let has_ended = rebuild.try_wait().expect("our child").is_some();
            (has_ended || index.count_documents(doc! {}).await.expect("a number") > entries).then_some(())
        })
        .await;
        rebuild.kill().expect("our child");
        rebuild.wait().expect("our child");
        let listed = server.get("/v1/devices?format=csv").await;
        let is_refused = listed.status == 503 && listed.json()["code"] == "device_index_incomplete";
        assert!(is_refused || has_all(&listed), "{}", listed.text());
        killed_midway += usize::from(is_refused);
        let rebuilt = server.check(&["--rebuild-device-index"]).await;
        let says = "has all devices: 300 devices\n";
        assert!(rebuilt.stdout.ends_with(says), "{}{}", rebuilt.stdout, rebuilt.stderr);
        let listed = server.get("/v1/devices?format=csv").await;
        assert!(has_all(&listed), "{}", listed.text());
    }
    assert!(killed_midway > 0, "each rebuild was complete before its kill");
}

#[tokio::test]
async fn a_killed_rebuild_of_an_index_of_buckets_is_repeated() {
    let database = Database::new();
    a_killed_rebuild_is_repeated(&database, Setup::mongodb(&database)).await;
}

#[tokio::test]
async fn a_killed_rebuild_of_an_index_of_a_time_series_is_repeated() {
    let database = Database::new();
    a_killed_rebuild_is_repeated(&database, Setup::timeseries(&database)).await;
}

#[tokio::test]
async fn a_dropped_index_of_buckets_is_rebuilt_by_one_command() {
    let database = Database::new();
    is_rebuilt(&database, Setup::mongodb(&database)).await;
}

#[tokio::test]
async fn a_dropped_index_of_a_time_series_is_rebuilt_by_one_command() {
    let database = Database::new();
    is_rebuilt(&database, Setup::timeseries(&database)).await;
}

/// The queries that a server has answered.
async fn queries_of(mongod: &Mongod) -> i64 {
    let client = mongodb::Client::with_uri_str(mongod.uri()).await.expect("a URI");
    let status = client.database("admin").run_command(doc! { "serverStatus": 1 }).await.expect("an answer");
    let counters = status.get_document("opcounters").expect("counters");
    counters.get_i64("query").or_else(|_| counters.get_i32("query").map(i64::from)).expect("a number")
}

/// The readings arrive at once, while the database has neither collections nor an index.
#[tokio::test]
async fn a_new_database_gets_ten_thousand_devices_without_a_query_for_each() {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    let before = queries_of(&mongod).await;
    let server = Server::start(Setup::mongodb(&database)).await;
    for some in (0..10_000).collect::<Vec<_>>().chunks(1_000) {
        let readings = some.iter().map(|nth| json!({ "deviceId": format!("d{nth}"), "ts": START_MS, "value": nth }));
        assert_eq!(server.ingest(&readings.collect::<Value>()).await.status, 200);
    }
    server.settled().await;
    let queries = queries_of(&mongod).await - before;
    assert!(queries < 1_000, "{queries} queries for 10,000 devices");
    let listed = server.get_json("/v1/devices?limit=100").await;
    assert_eq!((listed["devices"].as_array().map(Vec::len), listed.get("partial")), (Some(100), None));
}

/// The insert of the readings fails after the index was written, and tidegauge is killed before it tries
/// again: the second attempt is an update, which would succeed.
async fn killed_in_between(mongod: &Mongod, database: &Database, setup: Setup, collection: &str) {
    let setup = setup.set("flush.retry_initial", "1m").set("flush.retry_max", "1m");
    let mut server = Server::start(setup).await;
    let admin = mongodb::Client::with_uri_str(mongod.uri()).await.expect("a URI").database("admin");
    let fail_point = |mode: bson::Bson| {
        let namespace = format!("{}.{collection}", database.name);
        let data = doc! { "failCommands": ["insert"], "namespace": namespace, "errorCode": 11_602 };
        admin.run_command(doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data })
    };
    fail_point("alwaysOn".into()).await.expect("the fail point is there");
    let reading =
        json!({ "deviceId": "d", "metadata": { "floor": 2 }, "ts": START_MS, "values": { "temp": 1, "hum": 2 } });
    assert_eq!(server.ingest(&reading).await.status, 200);
    wait_until("the index has the device", async || {
        let of_device = doc! { "$match": { "_id": "d", "series.temp": { "$exists": true } } };
        (!database.aggregate("devices", vec![of_device]).await.is_empty()).then_some(())
    })
    .await;
    let expected = json!([{
        "deviceId": "d", "metadata": { "floor": 2 }, "metrics": ["hum", "temp"],
        "firstSeen": "2024-04-20T00:00:00.000Z", "lastSeen": "2024-04-20T00:00:00.000Z",
    }]);
    assert_eq!(database.aggregate(collection, vec![doc! { "$match": {} }]).await, []);
    assert_eq!(server.get_json("/v1/devices").await["devices"], expected);
    server.kill9();
    fail_point("off".into()).await.expect("the fail point is there");
    server.start_again().await;
    let metrics = server.settled().await;
    assert_eq!(metrics.count("tidegauge_readings_stored_total"), 1);
    assert_eq!(server.get_json("/v1/devices").await["devices"], expected);
    let latest = server.get_json("/v1/devices/d/latest").await;
    assert_eq!(latest["metrics"]["temp"], json!({ "ts": "2024-04-20T00:00:00.000Z", "value": 1.0 }));
}

#[tokio::test]
async fn a_kill_between_the_index_and_the_bucket_leaves_both_right() {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    killed_in_between(&mongod, &database, Setup::mongodb(&database), "buckets").await;
}

#[tokio::test]
async fn a_kill_between_the_index_and_the_measurements_leaves_both_right() {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    killed_in_between(&mongod, &database, Setup::timeseries(&database), "readings").await;
}

#[tokio::test]
async fn two_instances_share_one_index() {
    let database = Database::new();
    let servers = [Server::start(Setup::mongodb(&database)).await, Server::start(Setup::mongodb(&database)).await];
    for (nth, server) in servers.iter().cycle().take(6).enumerate() {
        let ts = START_MS + nth as i64 * 30 * HOUR_MS;
        let reading =
            json!({ "deviceId": "d", "ts": ts, "metadata": { "nth": nth }, "values": { format!("m{nth}"): nth } });
        assert_eq!(server.ingest(&reading).await.status, 200);
        server.settled().await;
        // Metadata of an older hour, through the other one.
        let late = json!({ "deviceId": "d", "ts": ts - 1, "metadata": { "late": nth }, "values": { "late": nth } });
        let other = &servers[(nth + 1) % 2];
        assert_eq!(other.ingest(&late).await.status, 200);
        other.settled().await;
        let answers = [server.get_json("/v1/devices").await, other.get_json("/v1/devices").await];
        assert_eq!(answers[0], answers[1]);
        let device = &answers[0]["devices"][0];
        assert_eq!(device["metadata"], json!({ "nth": nth }));
        let metrics: Vec<String> =
            ["late".to_owned()].into_iter().chain((0..=nth).map(|nth| format!("m{nth}"))).collect();
        assert_eq!(device["metrics"], json!(metrics));
        let latest = [server.get_json("/v1/devices/d/latest").await, other.get_json("/v1/devices/d/latest").await];
        assert_eq!(latest[0], latest[1]);
        assert_eq!(latest[0]["metrics"].as_object().map(serde_json::Map::len), Some(nth + 2));
    }
}
