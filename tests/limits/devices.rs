//! Limits of one device, and the rate limit of new devices.

use std::net::UdpSocket;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tidegauge::access::sign;
use tidegauge::telemetry::Limit;

use super::{first_code, ingest, limited, readings, refused, setup, wait_for_retry_after};
use crate::harness::{Server, key_of, secret_of, wait_until};

#[tokio::test]
async fn readings_of_a_device() {
    let server = Server::start(setup().set("limits.device_readings_per_second", 2).set("limits.burst", "1s")).await;
    assert_eq!(ingest(&server, "greedy", &readings("fast", 1_000)).await.status, 200);
    let mut mixed = readings("fast", 2);
    mixed.as_array_mut().expect("a list").push(readings("slow", 1)[0].take());
    let answer = ingest(&server, "greedy", &mixed).await;
    refused(&answer, 429, "rate_limited");
    assert_eq!((&answer.json()["accepted"], &answer.json()["rejected"]), (&json!(1), &json!(2)));
    assert_eq!(first_code(&answer), "device_rate_limited");

    // Requests of one moment owe little, so the wait is short.
    let with_another = |nth: u64| json!([readings("busy", 1)[0], readings(&format!("idle-{nth}"), 1)[0]]);
    let requests: Vec<Value> = (0..20).map(with_another).collect();
    let answers = join_all(requests.iter().map(|one| ingest(&server, "greedy", one))).await;
    let late: Vec<_> = requests.iter().zip(&answers).filter(|(_, answer)| answer.status != 200).collect();
    for (_, answer) in &late {
        refused(answer, 429, "rate_limited");
    }
    let (request, answer) = late.last().expect("two a second are admitted");
    wait_for_retry_after(answer).await;
    let (mut again, mut refusals) = (ingest(&server, "greedy", request).await, late.len() as u64);
    // Requests charge the device at their end: one may have ended after this answer. By now all have.
    if again.status == 429 {
        refusals += 1;
        wait_for_retry_after(&again).await;
        again = ingest(&server, "greedy", request).await;
    }
    assert_eq!(again.status, 200, "all of it, and what was accepted is there once");
    let stored = server.settled().await.count("tidegauge_readings_stored_total");
    assert_eq!(stored, 1_000 + 1 + 20 + (20 - late.len() as u64) + 1);
    assert_eq!(limited(&server.metrics().await, Limit::DeviceReadings), 2 + refusals);
}

#[tokio::test]
async fn influx_clients_resend_temporarily_refused_readings() {
    let server = Server::start(setup().set("limits.device_readings_per_second", 10).set("limits.burst", "1s")).await;
    assert_eq!(ingest(&server, "greedy", &readings("fast", 600)).await.status, 200);
    for (path, status) in [("/write", 503), ("/api/v2/write", 429), ("/api/v3/write_lp", 429)] {
        let request = server.request(reqwest::Method::POST, path).bearer_auth(secret_of("greedy"));
        let answer = server.send(request.body("m,device=fast v=1\nm,device=slow v=1")).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        assert!(!answer.header("retry-after").is_empty(), "{path}");
    }
}

#[tokio::test]
async fn datagrams_obey_the_same_limits() {
    let server = Server::start(setup().set("limits.device_readings_per_second", 10).set("limits.burst", "1s")).await;
    assert_eq!(ingest(&server, "greedy", &readings("fast", 1_000)).await.status, 200);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.send_to(readings("fast", 3).to_string().as_bytes(), server.udp_addr()).expect("loopback");
    let reason = [("protocol", "udp"), ("reason", "device_rate_limited")];
    wait_until("three readings are refused", async || {
        (server.metrics().await.count_where("tidegauge_readings_rejected_total", &reason) == 3).then_some(())
    })
    .await;
}

#[tokio::test]
async fn datagrams_of_a_key() {
    let setup = setup().set("limits.burst", "1s").set("limits.token_readings_per_second", 10).key("paying", "");
    let server =
        Server::start(setup.key("slow", "readings_per_second = 1").key("fast", "readings_per_second = 0")).await;
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let send = |key: &str, count: u64| {
        let content = readings(key, count).to_string().into_bytes();
        let datagram = [sign(key, &key_of(key), &content).into_bytes(), content].concat();
        socket.send_to(&datagram, server.udp_addr()).expect("loopback");
    };
    let accepted = async |count: u64| {
        wait_until(&format!("{count} readings are accepted"), async || {
            (server.metrics().await.count("tidegauge_readings_accepted_total") >= count).then_some(())
        })
        .await;
    };
    send("slow", 150);
    accepted(150).await;
    send("slow", 1);
    send("fast", 100);
    accepted(250).await;
    wait_until("a datagram is refused", async || {
        let dropped = [("reason", "rate_limited")];
        (server.metrics().await.count_where("tidegauge_udp_dropped_total", &dropped) == 1).then_some(())
    })
    .await;
    let metrics = server.metrics().await;
    assert_eq!(limited(&metrics, Limit::TokenReadings), 1);
    assert_eq!(metrics.count("tidegauge_readings_accepted_total"), 250);
    server.logged("the token or key has reached its rate of readings").await;

    send("paying", 50);
    accepted(300).await;
    wait_until("what is owed is paid off", async || {
        send("paying", 1);
        (server.metrics().await.count("tidegauge_readings_accepted_total") > 300).then_some(())
    })
    .await;
    server.assert_balanced().await;
}

#[tokio::test]
async fn different_metrics_of_a_device() {
    let server = Server::start(setup().set("limits.device_metrics_per_hour", 3)).await;
    let reading = |metric: &str| json!({ "deviceId": "d", "values": { metric: 1 } });
    assert_eq!(ingest(&server, "greedy", &json!([reading("a"), reading("b"), reading("c")])).await.status, 200);
    let answer = ingest(&server, "greedy", &json!([reading("d"), reading("a")])).await;
    // A new hour allows two more; the next two exceed the limit again.
    let answer = match answer.status {
        200 => ingest(&server, "greedy", &json!([reading("e"), reading("f")])).await,
        _ => answer,
    };
    refused(&answer, 400, "partially_rejected");
    assert_eq!((first_code(&answer), answer.header("retry-after")), ("too_many_device_metrics".to_owned(), ""));
    let other = json!({ "deviceId": "other", "values": { "x": 1, "y": 1, "z": 1 } });
    assert_eq!(ingest(&server, "greedy", &other).await.status, 200);
    assert_eq!(limited(&server.metrics().await, Limit::DeviceMetrics), 1);
}

/// A client bug that makes a new device ID for each reading.
#[tokio::test]
async fn new_devices_are_limited_and_known_ones_are_not() {
    let server = Server::start(setup().set("limits.new_devices_per_minute", 60)).await;
    let known: Value = (0..100).map(|nth| json!({ "deviceId": format!("known-{nth}"), "value": 1 })).collect();
    assert_eq!(ingest(&server, "other", &known).await.status, 200);
    for request in 0..3 {
        let flood: Value =
            (0..10_000).map(|nth| json!({ "deviceId": format!("typo-{request}-{nth}"), "value": 1 })).collect();
        let answer = ingest(&server, "greedy", &flood).await;
        refused(&answer, 429, "rate_limited");
        assert_eq!(first_code(&answer), "too_many_new_devices");
        assert_eq!(answer.header("retry-after"), "600", "as long as the whole burst takes");
        assert_eq!(ingest(&server, "other", &known).await.status, 200);
    }
    let late = json!({ "deviceId": "late", "value": 1 });
    let answer = ingest(&server, "other", &late).await;
    if answer.status == 429 {
        wait_for_retry_after(&answer).await;
        assert_eq!(ingest(&server, "other", &late).await.status, 200);
    }
    let metrics = server.metrics().await;
    let devices = metrics.count("tidegauge_known_devices");
    assert!((600..5_000).contains(&devices), "{devices}");
    assert!(limited(&metrics, Limit::NewDevices) > 29_000);
}

#[tokio::test]
async fn a_device_that_is_stored_is_not_new_after_a_restart() {
    let fleet: Value = (0..200).map(|nth| readings(&format!("pump-{nth}"), 1)[0].take()).collect();
    let mut server = Server::start(setup()).await;
    assert_eq!(ingest(&server, "greedy", &fleet).await.status, 200);
    server.settled().await;
    assert!(server.terminate().await.success());
    server.start_again_with(setup().set("limits.new_devices_per_minute", 1)).await;
    let answer = ingest(&server, "greedy", &fleet).await;
    refused(&answer, 429, "rate_limited");
    assert_eq!(answer.json()["accepted"], 10, "as many as may come at once");
    wait_until("the store has told who is known", async || {
        (ingest(&server, "greedy", &fleet).await.status == 200).then_some(())
    })
    .await;
    refused(&ingest(&server, "greedy", &readings("unknown", 1)).await, 429, "rate_limited");
}
