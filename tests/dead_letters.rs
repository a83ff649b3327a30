//! Dead letters: readings that the store refuses for good are kept, listed and sent again, and block no
//! others.

mod order;

use std::fs::File;

use bson::doc;
use serde_json::json;

use crate::harness::{Database, Server, Setup, run, wait_until};

const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z

/// Makes the collection refuse buckets of devices whose IDs begin with `bad`, or none.
async fn refuse_bad(database: &Database, refuse: bool) {
    let validator = if refuse {
        doc! { "deviceId": { "$not": { "$regex": "^bad" } } }
    } else {
        doc! {}
    };
    let command = doc! { "collMod": "buckets", "validator": validator };
    database.handle().await.run_command(command).await.expect("the collection is there");
}

async fn send(server: &Server, device: &str, count: i64) {
    let readings: Vec<_> = (0..count).map(|at| json!({ "ts": START_MS + at * 1_000, "value": at })).collect();
    server.accepts(&json!({ "deviceId": device, "readings": readings })).await;
}

async fn wait_for(server: &Server, name: &str, count: u64) {
    wait_until(&format!("{name} is {count}"), async || (server.metrics().await.count(name) == count).then_some(()))
        .await;
}

async fn dead_letters(server: &Server, args: &[&str]) -> (Option<i32>, String) {
    let data_dir = server.data_dir();
    let mut all = vec!["dead-letters", args[0], "--data-dir", data_dir.to_str().expect("UTF-8")];
    all.extend(&args[1..]);
    let finished = run(&all).await;
    (finished.code, finished.stdout + &finished.stderr)
}

async fn retry(server: &Server) -> (Option<i32>, String) {
    dead_letters(server, &["retry", "--url", server.url()]).await
}

/// Retries with a configuration file that has the address of the server and these lines.
async fn retry_by_config(server: &Server, lines: &str) -> (Option<i32>, String) {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let config = folder.path().join("tidegauge.toml");
    std::fs::write(&config, format!("http.listen = \"{}\"\n{lines}", server.http_addr())).expect("our folder");
    dead_letters(server, &["retry", "--config", config.to_str().expect("UTF-8")]).await
}

async fn a_server_with_dead_letters(database: &Database) -> Server {
    let server = Server::start(Setup::mongodb(database)).await;
    send(&server, "good", 3).await;
    wait_for(&server, "tidegauge_readings_stored_total", 3).await;
    refuse_bad(database, true).await;
    send(&server, "bad-1", 5).await;
    send(&server, "bad-2", 4).await;
    send(&server, "good-2", 2).await;
    wait_for(&server, "tidegauge_readings_stored_total", 5).await;
    wait_for(&server, "tidegauge_readings_dead_lettered_total", 9).await;
    server
}

#[tokio::test]
async fn dead_letters_are_listed_retried_and_then_stored_once() {
    let database = Database::new();
    let server = a_server_with_dead_letters(&database).await;
    let log = server.logged("the store refused readings for good").await;
    let told = log.lines().find(|line| line.contains("the store refused readings for good")).expect("a line");
    let example = ["device=\"bad-", "hour=\"2024-04-20T14:00:00Z\"", "reason=\"validation\"", "detail="];
    assert!(example.iter().all(|part| told.contains(part)), "{told}");
    let (code, listed) = dead_letters(&server, &["list"]).await;
    assert_eq!(code, Some(0), "{listed}");
    assert!(
        listed.contains("bad-1 5 readings validation: ") && listed.contains("2 dead letters with 9 readings"),
        "{listed}"
    );
    let (_, one) = dead_letters(&server, &["list", "--device", "bad-2", "--reason", "validation"]).await;
    assert!(one.contains("1 dead letter with 4 readings"), "{one}");
    let (_, json) = dead_letters(&server, &["list", "--format", "json", "--device", "bad-1"]).await;
    let line: serde_json::Value = serde_json::from_str(json.trim()).expect("one JSON object");
    assert_eq!((&line["deviceId"], &line["reason"]), (&json!("bad-1"), &json!("validation")));
    let metrics = server.metrics().await;
    assert!(metrics.count("tidegauge_dead_letter_bytes") > 0);

    refuse_bad(&database, false).await;
    let (code, retried) = retry(&server).await;
    assert_eq!((code, retried.contains("9 readings accepted, 0 dead letters kept")), (Some(0), true), "{retried}");
    let metrics = server.settled().await;
    assert_eq!(metrics.count("tidegauge_readings_stored_total"), 14);
    let (_, listed) = dead_letters(&server, &["list"]).await;
    assert!(listed.contains("0 dead letters with 0 readings"), "{listed}");
    assert_eq!(server.readings("bad-1").await.as_array().map(Vec::len), Some(5));
    assert_eq!(retry(&server).await, (Some(0), "0 dead letters\n".to_owned()));
}

#[tokio::test]
async fn a_series_with_labels_survives_a_dead_letter() {
    let database = Database::new();
    let server = a_server_with_dead_letters(&database).await;
    let values = json!({ r"disk{host=a.b,path=C:\\}": 1.5, "disk": 2.0 });
    server.accepts(&json!({ "deviceId": "bad-3", "ts": START_MS, "values": values })).await;
    wait_for(&server, "tidegauge_readings_dead_lettered_total", 10).await;
    refuse_bad(&database, false).await;
    let (code, told) = retry_by_config(&server, "").await;
    assert_eq!(code, Some(0), "{told}");
    server.settled().await;
    let expected = json!([{ "ts": "2024-04-20T14:00:00.000Z", "values": values }]);
    assert_eq!(server.readings("bad-3").await, expected);
}

#[tokio::test]
async fn an_interrupted_retry_is_finished_by_the_next_one() {
    let database = Database::new();
    let server = a_server_with_dead_letters(&database).await;
    let file = server.data_dir().join("dead-letters.ndjson");
    std::fs::rename(&file, file.with_extension("retrying.ndjson")).expect("as a retry does first");
    send(&server, "bad-3", 1).await;
    wait_for(&server, "tidegauge_readings_dead_lettered_total", 10).await;
    let (_, listed) = dead_letters(&server, &["list"]).await;
    assert!(listed.contains("3 dead letters with 10 readings"), "{listed}");

    refuse_bad(&database, false).await;
    for _ in 0..2 {
        assert_eq!(retry(&server).await.0, Some(0));
    }
    assert_eq!(server.settled().await.count("tidegauge_readings_stored_total"), 15);
}

#[tokio::test]
async fn dead_letters_that_the_server_rejects_are_kept() {
    let database = Database::new();
    let server = a_server_with_dead_letters(&database).await;
    let file = server.data_dir().join("dead-letters.ndjson");
    let text = std::fs::read_to_string(&file).expect("dead letters");
    std::fs::write(&file, text.replace("\"bad-2\"", "\"bad-2 \"")).expect("dead letters"); // no device id
    refuse_bad(&database, false).await;
    let (code, told) = retry(&server).await;
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("invalid_device_id") && told.contains("1 dead letter kept"), "{told}");
    let (_, listed) = dead_letters(&server, &["list"]).await;
    assert!(listed.contains("bad-2  4 readings") && listed.contains("1 dead letter with 4 readings"), "{listed}");
    server.settled().await;
}

#[tokio::test]
async fn a_full_file_blocks_only_the_refused_readings() {
    let database = Database::new();
    let server = Server::start(Setup::mongodb(&database).set("flush.max_dead_letter_bytes", "1KiB")).await;
    send(&server, "good", 1).await;
    wait_for(&server, "tidegauge_readings_stored_total", 1).await;
    refuse_bad(&database, true).await;
    for nth in 0..12 {
        send(&server, &format!("bad-{nth}"), 1).await;
    }
    for nth in 0..20 {
        send(&server, &format!("good-{nth}"), 1).await;
    }
    wait_for(&server, "tidegauge_readings_stored_total", 21).await;
    server.logged("cannot dead-letter refused readings").await;
    let aside = wait_until("what is not put aside is all that is pending", async || {
        let metrics = server.metrics().await;
        let aside = metrics.count("tidegauge_readings_dead_lettered_total");
        (metrics.count("tidegauge_readings_pending") == 12 - aside).then_some(aside)
    })
    .await;
    assert!((1..12).contains(&aside), "{aside}");
    assert!((1..=1_024).contains(&server.metrics().await.count("tidegauge_dead_letter_bytes")));
    assert_eq!(server.get_json("/readyz").await["status"], "ok", "the store is there");

    refuse_bad(&database, false).await;
    wait_until("all are put aside or stored", async || {
        retry(&server).await;
        (server.metrics().await.count("tidegauge_readings_pending") == 0).then_some(())
    })
    .await;
    retry(&server).await;
    server.settled().await;
    let stored = doc! { "$count": "n" };
    assert_eq!(database.aggregate("buckets", vec![stored]).await, [doc! { "n": 33 }]);
}

#[tokio::test]
async fn a_deletion_removes_what_waits_for_a_full_file_and_does_not_wait_for_it() {
    let database = Database::new();
    let server = Server::start(Setup::mongodb(&database).set("flush.max_dead_letter_bytes", "1KiB")).await;
    send(&server, "good", 1).await;
    wait_for(&server, "tidegauge_readings_stored_total", 1).await;
    refuse_bad(&database, true).await;
    let delete = async |path: &str| {
        let answer = server.send(server.request(reqwest::Method::DELETE, path)).await;
        (answer.status, answer.json())
    };
    let parked = async |buckets: usize| {
        let found = || server.log().matches("cannot dead-letter refused readings").count();
        wait_until("the readings wait for the file", async || (found() == buckets).then_some(())).await;
    };

    send(&server, "bad-1", 100).await; // their letter is larger than the file may be
    parked(1).await;
    let first = format!("/v1/devices/bad-1/readings?from={START_MS}&to={}", START_MS + 99_000);
    assert_eq!(delete(&format!("{first}&dry_run=true")).await, (200, json!({ "deleted": 99, "dryRun": true })));
    assert_eq!(delete(&first).await, (200, json!({ "deleted": 99 })));
    wait_for(&server, "tidegauge_readings_dead_lettered_total", 1).await;
    let metrics = server.settled().await;
    assert_eq!(metrics.count("tidegauge_readings_deleted_total"), 99);
    let (_, listed) = dead_letters(&server, &["list"]).await;
    assert!(listed.contains("bad-1 1 reading validation: "), "{listed}");

    send(&server, "bad-2", 100).await;
    parked(2).await;
    assert_eq!(delete("/v1/devices/good").await, (200, json!({ "deleted": 1 })));
    send(&server, "good", 1).await;
    wait_for(&server, "tidegauge_readings_stored_total", 2).await;
    wait_for(&server, "tidegauge_readings_pending", 100).await;
    assert_eq!(delete("/v1/devices/bad-2").await, (200, json!({ "deleted": 100 })));
    assert_eq!(delete("/v1/devices/bad-1").await, (200, json!({ "deleted": 1 })));
    assert_eq!(server.settled().await.count("tidegauge_readings_deleted_total"), 199);
}

#[tokio::test]
async fn a_letter_with_more_values_of_an_instant_than_a_reading_has_is_retried() {
    let values = (0..400_i32).map(|nth| (format!("m{nth}"), json!(f64::from(nth) + 0.5)));
    let values: serde_json::Map<String, serde_json::Value> = values.collect();
    let letter = json!({
        "refusedAt": "2024-04-20T14:00:00.000Z", "reason": "validation", "detail": "", "deviceId": "wide",
        "readings": [{ "ts": START_MS, "values": values }],
    });
    for (max, readings) in [(400, 2), (100, 4)] {
        let server = Server::start(Setup::sqlite().set("ingest.max_metrics_per_reading", max)).await;
        std::fs::write(server.data_dir().join("dead-letters.ndjson"), format!("{letter}\n")).expect("our folder");
        let (code, told) = retry_by_config(&server, &format!("ingest.max_metrics_per_reading = {max}")).await;
        let all = format!("{readings} readings accepted, 0 dead letters kept");
        assert!(code == Some(0) && told.contains(&all), "{max}: {told}");
        let expected = json!([{ "ts": "2024-04-20T14:00:00.000Z", "values": values }]);
        assert_eq!(server.readings("wide").await, expected);
    }
}

#[tokio::test]
async fn an_answer_that_counts_other_readings_deletes_no_dead_letter() {
    for answer in [r#"{"accepted":1000}"#, r#"{"accepted":5}"#, r#"{"accepted":3}"#, r#"{"accepted":4,"rejected":1}"#] {
        let folder = tempfile::TempDir::new().expect("a temporary folder");
        let letter = |device: &str| {
            let readings = [1, 2].map(|at| json!({"ts": START_MS + at, "values": {"value": at}}));
            let of_store = json!({"refusedAt": "2024-04-20T14:00:00.000Z", "reason": "validation", "detail": ""});
            let mut letter = json!({"deviceId": device, "readings": readings});
            letter.as_object_mut().expect("an object").extend(of_store.as_object().expect("an object").clone());
            format!("{letter}\n")
        };
        std::fs::write(folder.path().join("dead-letters.ndjson"), letter("a") + &letter("b")).expect("our folder");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let app = axum::Router::new().fallback(move || async move { answer });
        let server = tokio::spawn(async move { axum::serve(listener, app).await });
        let data_dir = ["--data-dir", folder.path().to_str().expect("UTF-8")];
        let retried = run(&[&["dead-letters", "retry", "--url", &url], &data_dir[..]].concat()).await;
        let is_named = ["of 4 readings, ", answer].iter().any(|text| retried.stderr.contains(text));
        assert!(retried.code == Some(1) && is_named, "{answer}: {retried:?}");
        let listed = run(&[&["dead-letters", "list"], &data_dir[..]].concat()).await;
        assert!(listed.stdout.contains("2 dead letters with 4 readings"), "{answer}: {listed:?}");
        server.abort();
    }
}

#[tokio::test]
async fn a_retry_with_faulty_flags_leaves_the_file_in_its_place() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let (file, data_dir) = (folder.path().join("dead-letters.ndjson"), folder.path().to_str().expect("UTF-8"));
    std::fs::write(&file, "{}\n").expect("our folder");
    let missing = folder.path().join("no-token");
    let token = ["--token-file", missing.to_str().expect("UTF-8")];
    let refused = run(&[&["dead-letters", "retry", "--data-dir", data_dir], &token[..]].concat()).await;
    assert!(refused.code == Some(1) && refused.stderr.contains("no-token"), "{refused:?}");
    assert!(file.exists());
}

#[tokio::test]
async fn what_an_interrupted_retry_has_left_is_in_the_metric() {
    let server = Server::start(Setup::sqlite()).await;
    let taken = server.data_dir().join("dead-letters.retrying.ndjson");
    std::fs::write(taken, "{}\n").expect("our folder");
    assert_eq!(server.metrics().await.count("tidegauge_dead_letter_bytes"), 3);
}

/// Makes the collection refuse the buckets that match this condition.
async fn refuse_where(database: &Database, what: bson::Document) {
    let command = doc! { "collMod": "buckets", "validator": { "$nor": [what] } };
    database.handle().await.run_command(command).await.expect("the collection is there");
}

#[tokio::test]
async fn refused_metadata_loses_no_reading() {
    let database = Database::new();
    let server = Server::start(Setup::mongodb(&database)).await;
    send(&server, "a", 1).await;
    server.settled().await;
    refuse_where(&database, doc! { "metadata.bad": { "$exists": true } }).await;
    for (nth, device) in (1..).zip(["a", "b", "a", "b"]) {
        let readings: Vec<_> = (0..3).map(|at| json!({ "ts": START_MS + nth * 10_000 + at, "value": at })).collect();
        let sent = json!({ "deviceId": device, "metadata": { "bad": true }, "readings": readings });
        assert_eq!(server.ingest(&sent).await.status, 200);
        server.settled().await;
    }
    let metrics = server.metrics().await;
    assert_eq!(metrics.count("tidegauge_readings_stored_total"), 13);
    assert_eq!(metrics.count("tidegauge_readings_dead_lettered_total"), 0);
    assert_eq!(metrics.count("tidegauge_metadata_refused_total"), 2, "once for each device");
    assert_eq!(server.readings("b").await.as_array().map(Vec::len), Some(6));
    let log = server.logged("the store refused the metadata of a device for good").await;
    assert_eq!(log.matches("the store refused the metadata of a device for good").count(), 2, "{log}");

    refuse_where(&database, doc! { "deviceId": "none" }).await;
    let sent = json!({ "deviceId": "a", "metadata": { "floor": 2 }, "ts": START_MS + 90_000, "value": 1 });
    assert_eq!(server.ingest(&sent).await.status, 200);
    server.settled().await;
    assert_eq!(server.get_json("/v1/devices").await["devices"][0]["metadata"], json!({ "floor": 2 }));
}

#[tokio::test]
async fn one_refused_reading_loses_no_other() {
    let database = Database::new();
    let server = Server::start(Setup::mongodb(&database)).await;
    send(&server, "a", 1).await;
    server.settled().await;
    refuse_where(&database, doc! { "stats.value.max": { "$gt": 1_000.0 } }).await;
    let readings: Vec<_> = (0..100)
        .map(|at| json!({ "ts": START_MS + 10_000 + at, "value": if at == 61 { 9_999 } else { at } }))
        .collect();
    let sent = json!({ "deviceId": "a", "metadata": { "floor": 2 }, "readings": readings });
    assert_eq!(server.ingest(&sent).await.status, 200);
    server.settled().await;
    let metrics = server.metrics().await;
    assert_eq!(metrics.count("tidegauge_readings_stored_total"), 100);
    assert_eq!(metrics.count("tidegauge_readings_dead_lettered_total"), 1);
    assert_eq!(metrics.count("tidegauge_metadata_refused_total"), 0);
    assert_eq!(server.get_json("/v1/devices").await["devices"][0]["metadata"], json!({ "floor": 2 }));
    let (_, listed) = dead_letters(&server, &["list"]).await;
    assert!(listed.contains("a 1 readings validation: ") || listed.contains("a 1 reading validation: "), "{listed}");

    let (code, told) = retry(&server).await; // it is refused again, and nothing else
    assert_eq!(code, Some(0), "{told}");
    server.settled().await;
    let (_, listed) = dead_letters(&server, &["list"]).await;
    assert!(listed.contains("1 dead letter with 1 reading"), "{listed}");
    refuse_where(&database, doc! { "deviceId": "none" }).await;
    retry(&server).await;
    server.settled().await;
    assert_eq!(server.readings("a").await.as_array().map(Vec::len), Some(101));
}

#[tokio::test]
async fn a_line_that_is_too_long_is_named_and_kept() {
    let server = Server::start(Setup::sqlite()).await;
    let path = server.data_dir().join("dead-letters.ndjson");
    let head = r#""refusedAt":"2024-04-20T14:00:00.000Z","reason":"validation","detail":"","deviceId":"a""#;
    let readings = json!([{"ts": START_MS, "values": {"value": 1}}]);
    std::fs::write(&path, format!("{{{head},\"readings\":{readings}}}\n")).expect("our folder");
    let file = File::options().write(true).open(&path).expect("it is there");
    file.set_len(300 << 20).expect("a sparse file"); // one line of zeros
    let (code, listed) = dead_letters(&server, &["list"]).await;
    assert_eq!(code, Some(0), "{listed}");
    assert!(listed.contains("line 2 of ") && listed.contains("1 dead letter with 1 reading"), "{listed}");
    let (code, told) = retry(&server).await;
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("line 2 of ") && told.contains("1 reading accepted, 1 dead letter kept"), "{told}");
    assert_eq!(server.settled().await.count("tidegauge_readings_stored_total"), 1);
}

#[tokio::test]
async fn a_line_that_a_deletion_has_removed_in_place_is_no_dead_letter() {
    let server = Server::start(Setup::sqlite()).await;
    let path = server.data_dir().join("dead-letters.ndjson");
    let rest = r#""refusedAt":"2024-04-20T14:00:00.000Z","reason":"validation","detail":"","deviceId":"a","readings":"#;
    let readings = json!([{"ts": START_MS, "values": {"value": 1}}]);
    let blanks = " ".repeat(90);
    std::fs::write(&path, format!("{blanks}\n{{{rest}{readings}}}\n {rest}{readings}}}\n")).expect("our folder");
    let (code, listed) = dead_letters(&server, &["list"]).await;
    assert_eq!(code, Some(0), "{listed}");
    assert!(listed.contains("1 dead letter with 1 reading") && !listed.contains("cut off"), "{listed}");
    let (code, told) = retry(&server).await;
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("1 reading accepted, 0 dead letters kept"), "{told}");
    assert_eq!(server.settled().await.count("tidegauge_readings_stored_total"), 1);
}

#[tokio::test]
async fn a_retry_fits_its_requests_to_the_limits_of_the_server() {
    let setup = Setup::sqlite().set("ingest.max_readings_per_request", 7).set("http.max_body_bytes", "4KiB");
    let server = Server::start(setup).await;
    let path = server.data_dir().join("dead-letters.ndjson");
    let letter = |device: &str, readings: i64, detail: &str| {
        let reading = |nth: i64| json!({ "ts": START_MS + nth, "values": { "value": 1 } });
        let readings: Vec<_> = (0..readings).map(reading).collect();
        let head = format!(r#""refusedAt":"2024-04-20T14:00:00.000Z","reason":"validation","detail":"{detail}""#);
        format!("{{{head},\"deviceId\":\"{device}\",\"readings\":{}}}\n", json!(readings))
    };
    let mut lines: Vec<String> = (0..30).map(|nth| letter(&format!("d{nth}"), 1 + nth % 5, "")).collect();
    lines.insert(9, letter("too-many", 8, ""));
    lines.insert(20, letter("too-long", 1, &"x".repeat(5_000)));
    std::fs::write(&path, lines.concat()).expect("our folder");
    let (code, told) = retry(&server).await;
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("90 readings accepted, 2 dead letters kept"), "{told}");
    assert!(told.contains("max_readings_per_request") && told.contains("max_body_bytes"), "{told}");
    let kept = std::fs::read_to_string(&path).expect("the kept lines");
    assert_eq!(kept, [&*lines[9], &lines[20]].concat(), "in their order");
    assert_eq!(server.settled().await.count("tidegauge_readings_stored_total"), 90);
}
