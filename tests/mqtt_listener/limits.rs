//! Each limit of a connection, and what a client is told at it.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{Device, START_MS, TOKEN, TOPICS, at, connect, ended, publish, readings, setup};
use crate::harness::{Server, Setup, secret_of, wait_until};

/// The only packet before the server closed the connection: DISCONNECT with a reason, or none before MQTT 5.
#[track_caller]
fn disconnected(device: &mut Device, reason: u8) {
    let last = device.rest();
    let reasons: Vec<(u8, u8)> = last.iter().map(|packet| (packet[0], packet[2])).collect();
    assert_eq!(reasons, if device.is_v5 { vec![(0xe0, reason)] } else { Vec::new() }, "{last:?}");
}

#[tokio::test]
async fn connections_above_the_limit_are_closed_and_counted() {
    let server = Server::start(setup().mqtt_listener(&format!("max_connections = 2\n{TOPICS}"))).await;
    let (one, _two) = (Device::connected(&server, true, "1"), Device::connected(&server, false, "2"));
    let mut third = Device::open(server.mqtt_addr(), true);
    assert!(third.rest().is_empty());
    let metrics = ended(&server, "limit", 1).await;
    let limited = [("limit", "mqtt_listener.max_connections")];
    assert_eq!(metrics.count_where("tidegauge_limited_total", &limited), 1);
    drop(one);
    ended(&server, "network", 1).await;
    Device::connected(&server, true, "3");
}

#[tokio::test]
async fn slow_clients_lose_their_connection() {
    let server = Server::start(setup().mqtt_listener(&format!("packet_timeout = '3s'\n{TOPICS}"))).await;
    // These have no packet under way, and one has sent a message without waiting for CONNACK.
    let (mut idle, mut eager) = (Device::connected(&server, true, "idle"), Device::open(server.mqtt_addr(), true));
    let first = publish(true, 1, "plant/north/a/temp", &at(0, 1));
    eager.send(&[connect(true, "eager", Some(&secret_of(TOKEN)), 0), first].concat());
    assert_eq!(eager.packet().expect("CONNACK")[3], 0);
    assert_eq!(eager.acknowledgement(), (1, 0));
    let mut silent = Device::open(server.mqtt_addr(), true);
    let (mut half, mut slow) = (Device::connected(&server, true, "half"), Device::connected(&server, true, "slow"));
    half.send(&publish(true, 1, "plant/north/a/temp", &at(0, 1))[..20]);
    slow.send(&[0x30]);
    assert!(silent.rest().is_empty(), "no CONNECT");
    disconnected(&mut half, 0x82);
    disconnected(&mut slow, 0x82);
    ended(&server, "timeout", 3).await;
    for device in [&mut idle, &mut eager] {
        device.publish(2, "plant/north/a/temp", &at(1, 1));
        assert_eq!(device.acknowledgement(), (2, 0), "a client without a packet under way is not slow");
    }
}

#[tokio::test]
async fn a_client_that_is_silent_for_longer_than_its_keep_alive_is_gone() {
    let server = Server::start(setup()).await;
    for is_v5 in [true, false] {
        let mut device = Device::open(server.mqtt_addr(), is_v5);
        device.send(&connect(is_v5, "d1", Some(&secret_of(TOKEN)), 1));
        assert_eq!(device.packet().expect("CONNACK")[3], 0);
        let began = Instant::now();
        disconnected(&mut device, 0x8d);
        assert!(began.elapsed() >= Duration::from_secs(1));
    }
    ended(&server, "keep_alive", 2).await;
}

#[tokio::test]
async fn quality_of_service_2_is_refused() {
    let server = Server::start(setup()).await;
    for is_v5 in [true, false] {
        let mut device = Device::connected(&server, is_v5, "d1");
        device.publish(1, "plant/north/a/temp", &at(0, 1));
        assert_eq!(device.acknowledgement(), (1, 0));
        let mut exactly_once = publish(is_v5, 2, "plant/north/a/temp", &at(1, 1));
        exactly_once[0] = 0x34;
        device.send(&exactly_once);
        disconnected(&mut device, 0x9b);
    }
    ended(&server, "qos", 2).await;
    server.logged("quality of service 2; the server takes 0 and 1").await;
}

#[tokio::test]
async fn messages_beyond_the_window_wait_and_are_acknowledged() {
    let server = Server::start(setup().mqtt_listener(&format!("receive_maximum = 2\n{TOPICS}"))).await;
    for is_v5 in [true, false] {
        let mut device = Device::connected(&server, is_v5, "d1");
        let all = (1..=2_000).flat_map(|n| publish(is_v5, n, "plant/north/a/temp", &at(n.into(), n)));
        device.send(&all.collect::<Vec<_>>());
        for n in 1..=2_000 {
            assert_eq!(device.acknowledgement(), (n, 0));
        }
    }
}

#[tokio::test]
async fn a_client_with_a_full_window_is_answered_and_its_end_is_seen() {
    let slow = setup().token("slow", "scopes = ['ingest']\nreadings_per_second = 1").set("limits.burst", "1s");
    let server = Server::start(slow.mqtt_listener(&format!("receive_maximum = 5\n{TOPICS}"))).await;
    let (mut device, _) = Device::connect(&server, false, "d1", &secret_of("slow"));
    // A thousand readings put the token into debt for many minutes, in which later messages wait.
    let many: Vec<String> =
        (0..1_000).map(|n| json!({ "deviceId": "many", "ts": START_MS + n, "value": n }).to_string()).collect();
    device.publish(1, "own/x", &many.join("\n"));
    assert_eq!(device.acknowledgement(), (1, 0));
    for n in 2..=6 {
        device.publish(n, "plant/north/a/temp", &at(n.into(), n));
    }
    for _ in 0..3 {
        device.send(&[0xc0, 0]);
        assert_eq!(device.packet().expect("PINGRESP"), [0xd0, 0]);
    }
    assert_eq!(server.metrics().await.count("tidegauge_mqtt_listener_unacknowledged"), 5);
    drop(device);
    wait_until("its end is seen", async || {
        (server.metrics().await.count("tidegauge_mqtt_listener_connections") == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_token_that_has_reached_its_rate_is_told_so_or_waits() {
    let slow = "scopes = ['ingest']\nreadings_per_second = 5";
    let limited = setup().token("greedy", slow).token("bursty", slow);
    let server = Server::start(limited.set("limits.burst", "1s")).await;
    let (mut device, _) = Device::connect(&server, true, "d1", &secret_of("greedy"));
    let all: Vec<u8> = (1..=20).flat_map(|n| publish(true, n, "plant/north/five/temp", &at(n.into(), n))).collect();
    device.send(&all);
    let are_refused: Vec<bool> = (1..=20)
        .map(|n| {
            let (id, code) = device.acknowledgement();
            assert!(id == n && [0, 0x97].contains(&code), "{id} {code}");
            code != 0
        })
        .collect();
    assert!(!are_refused[0] && are_refused.contains(&true), "{are_refused:?}");
    let metrics = server.metrics().await;
    let refused = metrics.count_where("tidegauge_mqtt_refused_total", &[("reason", "rate")]);
    assert_eq!(refused, are_refused.into_iter().filter(|is_refused| *is_refused).count() as u64);
    // Version 3.1.1 cannot tell a client why, so its messages wait.
    let (mut device, _) = Device::connect(&server, false, "d2", &secret_of("greedy"));
    for n in 1..=10 {
        device.publish(n, "plant/north/three/temp", &at(n.into(), n));
    }
    assert_eq!((1..=10).map(|_| device.acknowledgement().0).collect::<Vec<_>>(), (1..=10).collect::<Vec<u16>>());
    assert_eq!(readings(&server, "three").await.len(), 10);
    // Ten readings put the token into debt before the next message, which arrives with them, is judged.
    let (mut device, _) = Device::connect(&server, false, "d3", &secret_of("bursty"));
    let ten: Vec<String> =
        (0..10).map(|n| json!({ "deviceId": "ten", "ts": START_MS + n, "value": n }).to_string()).collect();
    let both = [publish(false, 1, "own/x", &ten.join("\n")), publish(false, 2, "plant/north/one/temp", &at(0, 1))];
    device.send(&both.concat());
    assert_eq!((device.acknowledgement(), device.acknowledgement()), ((1, 0), (2, 0)));
    assert_eq!((readings(&server, "ten").await.len(), readings(&server, "one").await.len()), (10, 1));
    let metrics = server.metrics().await;
    let rejected = metrics.count_where("tidegauge_readings_rejected_total", &[("reason", "rate_limited")]);
    assert_eq!(rejected, refused, "a message that waits is not counted as refused");
}

#[tokio::test]
async fn a_device_with_too_many_metrics_is_told_of_a_quota() {
    let server = Server::start(setup().set("limits.device_metrics_per_hour", 1)).await;
    let mut device = Device::connected(&server, true, "d1");
    for (id, metric, reason) in [(1, "x", 0), (2, "y", 0x97)] {
        device.publish(id, "own/x", &json!({ "deviceId": "a", "values": { metric: 1 } }).to_string());
        assert_eq!(device.acknowledgement(), (id, reason));
    }
}

/// Their sender does not send them again.
#[tokio::test]
async fn messages_of_quality_0_wait_for_the_rate_although_their_sender_has_left() {
    let slow = setup().token("slow", "scopes = ['ingest']\nreadings_per_second = 5");
    let server = Server::start(slow.set("limits.burst", "1s")).await;
    let (mut device, _) = Device::connect(&server, false, "d1", &secret_of("slow"));
    let all = (0..100).flat_map(|n| publish(false, 0, "plant/north/a/temp", &at(n, n)));
    device.send(&all.chain([0xe0, 0]).collect::<Vec<_>>());
    let metrics = wait_until("each message is stored or counted as lost", async || {
        let metrics = server.metrics().await;
        let stored = metrics.count("tidegauge_readings_accepted_total");
        (stored + metrics.count("tidegauge_mqtt_refused_total") == 100).then_some(metrics)
    })
    .await;
    let stored = metrics.count("tidegauge_readings_accepted_total");
    assert!(stored >= 10, "only {stored} are stored, and five of them at once");
    let refused = metrics.count_where("tidegauge_mqtt_refused_total", &[("reason", "rate")]);
    assert_eq!(stored + refused, 100, "the log has room");
}

#[tokio::test]
async fn a_token_connects_as_often_as_it_may_send_requests() {
    let setup = setup()
        .set("limits.token_requests_per_second", 1)
        .set("limits.burst", "1s")
        .token("eager", "scopes = ['ingest']");
    let server = Server::start(setup).await;
    let code = |n: u32| Device::connect(&server, true, &format!("d{n}"), &secret_of("eager")).1[3];
    assert_eq!(code(0), 0);
    // On a slow machine, a second may pass between two of them.
    assert!((1..100).map(code).any(|code| code == 0x97));
    let limited = [("limit", "limits.token_requests_per_second")];
    assert!(server.metrics().await.count_where("tidegauge_limited_total", &limited) >= 1);
}

/// The memory of the bodies of HTTP and of the messages is one, and so is the share of a token.
#[tokio::test]
async fn messages_that_are_under_way_count_to_the_memory_of_bodies() {
    let topics = format!("max_packet_bytes = '64KiB'\npacket_timeout = '1h'\n{TOPICS}");
    for (setup, password, key) in [
        (Setup::sqlite(), None, "http.max_bytes_in_flight"),
        (setup(), Some(secret_of(TOKEN)), "limits.token_bytes_in_flight"),
    ] {
        let setup = setup.mqtt_listener(&topics).set("http.max_body_bytes", "64KiB");
        let server = Server::start(setup.set(key, "64KiB")).await;
        let connected = || {
            let mut device = Device::open(server.mqtt_addr(), true);
            device.send(&connect(true, "", password.as_deref(), 0));
            assert_eq!(device.packet().expect("CONNACK")[3], 0);
            device
        };
        let (mut first, mut second) = (connected(), connected());
        let large = publish(true, 1, "own/x", &"x".repeat(65_266));
        assert_eq!(large.len(), 65_280, "with its 256 bytes of overhead, the message takes all memory");
        first.send(&large[..65_279]);
        let in_flight = async |bytes: std::ops::Range<u64>| {
            wait_until("the bytes are in flight", async || {
                let held = server.metrics().await.count("tidegauge_http_bytes_in_flight");
                bytes.contains(&held).then_some(())
            })
            .await;
        };
        in_flight(65_279..65_537).await;
        second.send(&[0x30, 3, 0, 1, b't']); // lacks the length of its properties, which counts all the same
        second.publish(2, "plant/north/a/temp", &at(0, 1));
        wait_until("the second one waits for memory", async || {
            (server.metrics().await.count("tidegauge_limited_total") > 0).then_some(())
        })
        .await;
        let limited = server.metrics().await.count_where("tidegauge_limited_total", &[("limit", key)]);
        assert!(limited > 0, "another limit is named");
        drop(first);
        assert_eq!(second.acknowledgement(), (2, 0), "the first one has ended");
        in_flight(0..1).await;
    }
}
