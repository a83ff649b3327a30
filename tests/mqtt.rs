//! MQTT ingest with a real broker: an acknowledged message is on disk, and stored once.

mod other_broker;
mod page;
mod security;

use std::time::Instant;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::mongod::deadline::deadline;
use crate::harness::{Broker, Database, Metrics, Mongod, Server, Setup, encoded, mqtt_js, wait_until};
use crate::mqtt_listener::publish;

const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z
const CLIENT: &str = "tidegauge";
const TOPICS: &str =
    "[[topics]]\ntopic = 'plant/{site}/{deviceId}/{metric}'\ntime = 'ts'\n[[topics]]\ntopic = 'own/#'\n";

/// Waits until the client is connected and has all its subscriptions.
async fn connected(server: &Server) -> Metrics {
    wait_until("the client is connected", async || {
        let metrics = server.metrics().await;
        (metrics.count("tidegauge_mqtt_connected") == 1).then_some(metrics)
    })
    .await
}

/// Waits until this many messages have arrived and all are acknowledged.
async fn received(server: &Server, messages: u64) -> Metrics {
    wait_until("the messages are received and acknowledged", async || {
        let metrics = server.metrics().await;
        let has_all = metrics.count("tidegauge_mqtt_messages_total") >= messages;
        (has_all && metrics.count("tidegauge_mqtt_unacknowledged") == 0).then_some(metrics)
    })
    .await
}

/// Waits until the broker has this many acknowledgements of good messages.
async fn acknowledged(broker: &Broker, messages: usize) {
    wait_until("the broker has the acknowledgements", async || {
        (broker.acknowledged_by(CLIENT).len() >= messages).then_some(())
    })
    .await;
}

fn at(n: i64, value: impl Into<Value>) -> String {
    json!({ "ts": START_MS + n, "value": value.into() }).to_string()
}

async fn readings(server: &Server, device: &str) -> Vec<Value> {
    server.settled().await;
    server.readings(device).await.as_array().cloned().unwrap_or_default()
}

#[tokio::test]
async fn constants_and_ids_of_the_configuration_describe_devices_of_a_topic() {
    let broker = Broker::start().await;
    let topics = "[[topics]]\npreset = 'zigbee2mqtt'\nconstants = { hall = '2', name = 'Window' }\n\
                  device_ids = { 0x00158d0001 = 'Küche Fenster' }\n";
    let server = Server::start(broker.subscribed(Setup::sqlite(), topics)).await;
    connected(&server).await;
    broker.publish("zigbee2mqtt/0x00158d0001", r#"{"temperature":21.5}"#);
    broker.publish("zigbee2mqtt/0x00158d0002", "22.5");
    acknowledged(&broker, 2).await;
    server.settled().await;
    for device in ["Küche Fenster", "0x00158d0002"] {
        let found = server.get_json(&format!("/v1/devices/{}", encoded(device))).await;
        assert_eq!(found["metadata"], json!({ "hall": "2", "name": "Window" }), "{found}");
    }
    assert_eq!(readings(&server, "Küche Fenster").await[0]["values"], json!({ "temperature": 21.5 }));
    assert_eq!(server.get("/v1/devices/0x00158d0001/latest").await.status, 404);
}

#[tokio::test]
async fn messages_of_mqtt_js_arrive_through_a_broker() {
    let broker = Broker::start().await;
    let server = Server::start(broker.subscribed(Setup::sqlite(), TOPICS)).await;
    connected(&server).await;
    mqtt_js(broker.port(), &[]).await;
    received(&server, 600).await;
    for device in ["mqtt-js-5", "mqtt-js-311"] {
        assert_eq!(readings(&server, device).await.len(), 300, "{device}");
    }
}

async fn become_readings(keys: &str) {
    let broker = Broker::start().await;
    let server = Server::start(broker.subscribed(Setup::sqlite(), &format!("{keys}{TOPICS}"))).await;
    connected(&server).await;
    broker.publish("plant/north/pump-7/temp", &at(0, 21.5));
    broker.publish("plant/north/pump-7/temp", "22.5");
    broker.publish("own/a", &json!({ "deviceId": "S1", "ts": START_MS, "values": { "hum": 40 } }).to_string());
    broker.publish("own/b", &format!("cpu,host=S2 idle=7 {START_MS}000000"));
    acknowledged(&broker, 4).await;
    let metrics = received(&server, 4).await;
    assert_eq!(metrics.count_where("tidegauge_readings_accepted_total", &[("protocol", "mqtt")]), 4);
    assert_eq!(metrics.count("tidegauge_mqtt_refused_total"), 0);
    let pump = readings(&server, "pump-7").await;
    assert_eq!(pump[0]["values"], json!({ "temp": 21.5 }), "{pump:?}");
    let latest = server.get_json("/v1/devices/pump-7/latest").await;
    assert!(latest.to_string().contains("22.5"), "{latest}");
    assert_eq!(readings(&server, "S1").await[0]["values"], json!({ "hum": 40.0 }));
    assert_eq!(readings(&server, "S2").await[0]["values"], json!({ "cpu_idle": 7.0 }));
    let devices = server.get_json("/v1/devices?meta.site=north").await;
    assert_eq!(devices["devices"][0]["deviceId"], "pump-7", "{devices}");
}

#[tokio::test]
async fn messages_become_readings_and_are_acknowledged_with_mqtt_5() {
    become_readings("version = '5'\n").await;
}

#[tokio::test]
async fn messages_become_readings_and_are_acknowledged_with_mqtt_3_1_1() {
    become_readings("version = '3.1.1'\n").await;
}

#[tokio::test]
async fn a_message_that_cannot_be_stored_is_named_and_does_not_block_others() {
    for version in ["5", "3.1.1"] {
        let broker = Broker::start().await;
        let keys = format!("version = '{version}'\nmax_packet_bytes = '1KiB'\nreceive_maximum = 1\n{TOPICS}");
        let server = Server::start(broker.subscribed(Setup::sqlite(), &keys)).await;
        connected(&server).await;
        broker.publish("own/a", "nonsense");
        broker.publish("plant/north/pump-7/temp", "{\"ts\":");
        broker.publish("plant/north/pump-7/temp", "unavailable");
        broker.publish("own/large", &"x".repeat(5_000));
        broker.publish("plant/north/pump-7/temp", &at(0, 1));
        wait_until("the last message is stored", async || {
            (server.metrics().await.count("tidegauge_readings_accepted_total") == 1).then_some(())
        })
        .await;
        let metrics = server.metrics().await;
        let refused = |reason| metrics.count_where("tidegauge_mqtt_refused_total", &[("reason", reason)]);
        assert_eq!((refused("payload"), refused("topic")), (2, 0));
        assert_eq!(refused("size"), 1, "{version}");
        server.logged("topic \\\"own/a\\\"").await;
        let has_code = broker.log().contains("RC:153");
        assert_eq!(has_code, version == "5", "the reason 0x99 exists in MQTT 5 only");
    }
}

#[tokio::test]
async fn a_retained_message_is_stored_again_only_if_it_has_its_own_time() {
    let broker = Broker::start().await;
    let aged = r#"{"deviceId":"a","ageMs":0,"value":3}"#.to_owned();
    let retained = [("plant/north/a/temp", "1".to_owned()), ("own/a", aged), ("plant/north/b/temp", at(0, 2))];
    for (topic, payload) in &retained {
        broker.publish_with(&["-r", "-q", "1", "-t", topic, "-m", payload]);
    }
    let setup = broker.subscribed(Setup::sqlite(), &format!("version = '3.1.1'\n{TOPICS}"));
    let mut server = Server::start(setup).await;
    for round in 0..2 {
        received(&server, 3).await;
        wait_until("the messages without a time are refused", async || {
            let metrics = server.metrics().await;
            (metrics.count_where("tidegauge_mqtt_refused_total", &[("reason", "retained")]) == 2).then_some(())
        })
        .await;
        assert_eq!((readings(&server, "a").await.len(), readings(&server, "b").await.len()), (0, 1), "{round}");
        server.terminate().await; // the last server has the same client ID
        if round == 0 {
            server.start_again().await;
        }
    }
    let with_5 = broker.subscribed(Setup::sqlite(), &format!("version = '5'\n{TOPICS}"));
    let server = Server::start(with_5).await;
    connected(&server).await;
    broker.publish("plant/north/c/temp", "3");
    assert_eq!(received(&server, 1).await.count("tidegauge_mqtt_messages_total"), 1, "MQTT 5 sends none of them");
}

#[tokio::test]
async fn messages_published_while_the_server_is_away_are_stored_once() {
    let broker = Broker::start().await;
    let mut server = Server::start(broker.subscribed(Setup::sqlite(), TOPICS)).await;
    connected(&server).await;
    let began = Instant::now();
    assert_eq!(server.terminate().await.code(), Some(0));
    assert!(began.elapsed() < deadline(60), "a stop does not wait for the broker");
    let messages: Vec<_> = (0..500).map(|n| ("plant/north/a/temp".to_owned(), at(n, n))).collect();
    broker.publish_all(&messages).expect("the broker is there");
    server.start_again().await;
    let metrics = received(&server, 500).await;
    assert_eq!(metrics.count("tidegauge_mqtt_sessions_lost_total"), 0);
    assert_eq!(readings(&server, "a").await.len(), 500);
}

#[tokio::test]
async fn a_lost_session_is_counted_and_subscribed_again() {
    let mut broker = Broker::start().await;
    let server = Server::start(broker.subscribed(Setup::sqlite(), TOPICS)).await;
    connected(&server).await;
    broker.kill9();
    wait_until("the client notices", async || {
        (server.metrics().await.count("tidegauge_mqtt_connected") == 0).then_some(())
    })
    .await;
    broker.forget_sessions();
    broker.start_again().await;
    connected(&server).await;
    let metrics = wait_until("the lost session is counted", async || {
        let metrics = server.metrics().await;
        (metrics.count("tidegauge_mqtt_sessions_lost_total") == 1).then_some(metrics)
    })
    .await;
    assert!(metrics.count("tidegauge_mqtt_disconnects_total") >= 1);
    broker.publish("plant/north/a/temp", &at(0, 1));
    received(&server, 1).await;
    assert_eq!(readings(&server, "a").await.len(), 1);
}

#[tokio::test]
async fn a_broker_that_keeps_the_session_for_a_shorter_time_is_named_once() {
    let broker = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = broker.local_addr().expect("it listens");
    let keys = format!("url = 'mqtt://{address}'\nclient_id = '{CLIENT}'\nversion = '5'\nkeep_alive = '18h'\n");
    let server = Server::start(Setup::sqlite().mqtt(&format!("{keys}{TOPICS}"))).await;
    for _ in 0..2 {
        let (mut client, _) = broker.accept().await.expect("the client connects");
        assert_eq!(packet(&mut client).await[0], 0x10, "CONNECT");
        client.write_all(&[0x20, 8, 0, 0, 5, 0x11, 0, 0, 0, 60]).await.expect("the client reads");
        let subscribe = packet(&mut client).await;
        assert_eq!(subscribe[0], 0x82, "SUBSCRIBE to both topics");
        client.write_all(&[0x90, 5, subscribe[2], subscribe[3], 0, 1, 1]).await.expect("the client reads");
        connected(&server).await;
    }
    let warning = "keeps the session for a shorter time than mqtt.session_expiry";
    let log = server.logged(warning).await;
    assert_eq!(log.matches(warning).count(), 1, "{log}");
}

/// The next ping is due long before the answer to a ping is overdue.
#[tokio::test]
async fn a_broker_that_hangs_is_noticed_although_pings_are_frequent() {
    let broker = Broker::start().await;
    let server = Server::start(broker.subscribed(Setup::sqlite(), &format!("keep_alive = '1s'\n{TOPICS}"))).await;
    connected(&server).await;
    broker.freeze();
    wait_until("the client notices", async || {
        let metrics = server.metrics().await;
        let is_over = metrics.count_where("tidegauge_mqtt_disconnects_total", &[("reason", "timeout")]) > 0;
        (is_over && metrics.count("tidegauge_mqtt_connected") == 0).then_some(())
    })
    .await;
    let log = server.logged("no connection to the MQTT broker").await;
    assert!(log.contains("did not answer a ping in time"), "{log}");
}

#[tokio::test]
async fn a_topic_that_the_configuration_no_longer_has_is_unsubscribed() {
    let broker = Broker::start().await;
    let setup = |topic: &str| broker.subscribed(Setup::sqlite(), &format!("[[topics]]\ntopic = '{topic}'\n"));
    let mut server = Server::start(setup("old/{deviceId}")).await;
    connected(&server).await;
    server.start_again_after_stop(setup("new/{deviceId}")).await;
    connected(&server).await;
    wait_until("the old topic is unsubscribed", async || {
        broker.log().contains("Received UNSUBSCRIBE from tidegauge").then_some(())
    })
    .await;
    broker.publish("old/a", "1");
    broker.publish("new/a", "2");
    let metrics = received(&server, 1).await;
    assert_eq!(metrics.count("tidegauge_mqtt_messages_total"), 1);
}

#[tokio::test]
async fn clients_that_share_an_id_are_named() {
    let broker = Broker::start().await;
    let setup = broker.subscribed(Setup::sqlite(), TOPICS);
    let one = Server::start(setup.clone()).await;
    connected(&one).await;
    let _other = Server::start(setup).await;
    one.logged("each needs its own mqtt.client_id").await;
    assert!(one.metrics().await.count("tidegauge_mqtt_disconnects_total") >= 1);
}

fn with_small_log(database: &Database) -> Setup {
    let setup = Setup::mongodb(database).set("mongodb.timeout", "2s");
    setup.set("log.max_bytes", "256KiB").set("log.segment_bytes", "64KiB")
}

/// A message of distinct series with long names, so that few such messages fill the log.
fn large(n: i64) -> (String, String) {
    let name = "n".repeat(100);
    let values: Vec<String> = (0..200).map(|m| format!("\"{name}{n}_{m}\":{m}")).collect();
    let (ts, values) = (START_MS + n, values.join(","));
    (format!("own/{n}"), format!("{{\"deviceId\":\"a{n}\",\"ts\":{ts},\"values\":{{{values}}}}}"))
}

/// While the store is away and the log is full, nothing is acknowledged and nothing is lost, and the
/// connection stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_log_stops_the_window_and_recovers_by_itself() {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    let broker = Broker::start().await;
    let keys = format!("version = '5'\nreceive_maximum = 50\nkeep_alive = '5s'\n{TOPICS}");
    let server = Server::start(broker.subscribed(with_small_log(&database), &keys)).await;
    connected(&server).await;
    mongod.freeze();
    let messages: Vec<_> = (0..20).map(large).collect();
    broker.publish_all(&messages).expect("the broker is there");
    server.logged("the log is full").await;
    let waiting = wait_until("messages are unacknowledged for longer than a ping", async || {
        let metrics = server.metrics().await;
        let age = metrics.value("tidegauge_mqtt_oldest_unacknowledged_seconds").unwrap_or_default();
        let has_pinged = broker.log().contains("Received PINGREQ from tidegauge");
        (age > 6.0 && has_pinged).then_some(metrics)
    })
    .await;
    assert!(waiting.count("tidegauge_mqtt_unacknowledged") > 0);
    assert_eq!(waiting.count("tidegauge_mqtt_connected"), 1);
    assert_eq!(waiting.count_where("tidegauge_readings_rejected_total", &[("reason", "overloaded")]), 0, "kept there");
    assert_eq!(waiting.count("tidegauge_mqtt_disconnects_total"), 0, "the connection stays");
    assert!(broker.acknowledged_by(CLIENT).len() < messages.len());
    mongod.thaw();
    acknowledged(&broker, messages.len()).await;
    let metrics = received(&server, messages.len() as u64).await;
    assert_eq!(metrics.count("tidegauge_readings_accepted_total"), messages.len() as u64);
    assert_eq!(metrics.count("tidegauge_mqtt_redelivered_total"), 0);
    for n in 0..messages.len() {
        assert_eq!(readings(&server, &format!("a{n}")).await.len(), 1, "{n}");
    }
}

/// A broker does not send messages of quality of service 0 again.
#[tokio::test]
async fn messages_of_quality_0_that_wait_for_a_full_log_are_counted_when_the_connection_ends() {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    let broker = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = broker.local_addr().expect("it listens");
    let keys = format!("url = 'mqtt://{address}'\nclient_id = '{CLIENT}'\nversion = '3.1.1'\nkeep_alive = '18h'\n");
    let server = Server::start(with_small_log(&database).mqtt(&format!("{keys}{TOPICS}"))).await;
    let (mut client, _) = broker.accept().await.expect("the client connects");
    assert_eq!(packet(&mut client).await[0], 0x10, "CONNECT");
    client.write_all(&[0x20, 2, 0, 0]).await.expect("the client reads");
    let subscribe = packet(&mut client).await;
    assert_eq!(subscribe[0], 0x82, "SUBSCRIBE to both topics");
    client.write_all(&[0x90, 4, subscribe[2], subscribe[3], 1, 1]).await.expect("the client reads");
    connected(&server).await;
    mongod.freeze();
    for (topic, payload) in (0..20).map(large) {
        client.write_all(&publish(false, 0, &topic, &payload)).await.expect("the client reads");
    }
    server.logged("the log is full").await;
    received(&server, 20).await;
    drop(client);
    let metrics = wait_until("the client notices", async || {
        let metrics = server.metrics().await;
        (metrics.count("tidegauge_mqtt_disconnects_total") > 0).then_some(metrics)
    })
    .await;
    mongod.thaw();
    let lost = metrics.count_where("tidegauge_mqtt_refused_total", &[("reason", "overloaded")]);
    assert_eq!(metrics.count("tidegauge_readings_accepted_total") + lost, 20);
}

/// The next packet of a client, which has less than 128 bytes.
async fn packet(client: &mut TcpStream) -> Vec<u8> {
    let mut packet = vec![0; 2];
    client.read_exact(&mut packet).await.expect("a packet");
    packet.resize(2 + usize::from(packet[1]), 0);
    client.read_exact(&mut packet[2..]).await.expect("a packet");
    packet
}
