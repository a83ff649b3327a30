//! Clients that do not keep to the protocol, or come in great numbers.

use std::net::TcpStream;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Device, START_MS, TOKEN, TOPICS, at, connect, packet, publish, readings, setup, text};
use crate::harness::{Server, Setup, secret_of, wait_until};
use crate::tls::{BOTH, Folder, secured};

/// The memory of an idle connection, with the state of its task.
const CONNECTION_MAX_BYTES: usize = 16 << 10;

/// The memory of an idle connection with TLS, with the state of its task.
const TLS_CONNECTION_MAX_BYTES: usize = 32 << 10;

/// The connections before the memory is measured: the first ones make the server take memory for all.
const FIRST: usize = 200;

#[tokio::test]
async fn packets_that_no_device_sends_end_their_connection_only() {
    let server = Server::start(setup()).await;
    let mut good = Device::connected(&server, true, "good");
    let with = |properties: &[u8]| {
        let mut body = [text("MQTT"), vec![5, 0xc2, 0, 60]].concat();
        body.push(u8::try_from(properties.len()).expect("few"));
        packet(0x10, &[&body[..], properties, &text("bad"), &text("any"), &text(&secret_of(TOKEN))].concat())
    };
    let connected = with(&[]);
    let topic = "plant/north/a/temp";
    let alias = packet(0x32, &[&text("")[..], &[0, 1, 3, 0x23, 0, 1], b"1"].concat());
    // The first byte of each packet of the server: CONNACK, and DISCONNECT.
    let (nothing, refused, ended): (&[u8], &[u8], &[u8]) = (&[], &[0x20], &[0x20, 0xe0]);
    for (name, bytes, expected) in [
        ("HTTP", b"GET / HTTP/1.1\r\n\r\n".to_vec(), nothing),
        ("TLS", vec![22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3], nothing),
        ("no CONNECT", publish(true, 1, topic, "1"), nothing),
        ("a long CONNECT", packet(0x10, &vec![b'x'; 20_000]), nothing),
        ("a length of five bytes", vec![0x10, 0xff, 0xff, 0xff, 0xff, 1], nothing),
        ("two CONNECTs", [connected.clone(), connected.clone()].concat(), ended),
        ("an answer", [connected.clone(), vec![0x40, 2, 0, 1]].concat(), ended),
        ("reserved flags", [connected.clone(), vec![0x82 & 0xf0, 2, 0, 1]].concat(), ended),
        ("a topic with a wildcard", [connected.clone(), publish(true, 1, "plant/+/a", "1")].concat(), ended),
        ("a topic alias", [connected.clone(), alias].concat(), ended),
        (
            "a packet ID of 0",
            [connected.clone(), packet(0x32, &[&text(topic)[..], &[0, 0, 0, b'1']].concat())].concat(),
            ended,
        ),
        (
            "a CONNECT with a reserved flag",
            packet(0x10, &[text("MQTT"), vec![5, 3, 0, 60, 0], text("bad")].concat()),
            refused,
        ),
        (
            "quality of service 0, sent before",
            [connected.clone(), packet(0x38, &[&text(topic)[..], &[0, b'1']].concat())].concat(),
            ended,
        ),
        (
            "a subscription ID",
            [connected.clone(), packet(0x32, &[&text(topic)[..], &[0, 1, 2, 0x0b, 1, b'1']].concat())].concat(),
            ended,
        ),
        ("no text", [connected.clone(), packet(0x30, &[0, 1, 0xff, 0, b'1'])].concat(), ended),
        ("a tiny maximum", with(&[0x27, 0, 0, 0, 4]), nothing),
        ("an AUTH method", with(&[0x15, 0, 1, b'x']), refused),
        ("a client ID of 300 bytes", connect(true, &"x".repeat(300), Some(&secret_of(TOKEN)), 0), refused),
    ] {
        let mut device = Device::open(server.mqtt_addr(), true);
        let _ = std::io::Write::write_all(&mut device.stream, &bytes); // the server may have closed it
        let last = device.rest();
        assert_eq!(last.iter().map(|packet| packet[0]).collect::<Vec<_>>(), expected, "{name}: {last:?}");
    }
    // MQTT 5 allows a topic alias maximum of 0, a short session and many user properties.
    let mut device = Device::open(server.mqtt_addr(), true);
    device.send(&with(&[0x22, 0, 0, 0x11, 0, 0, 1, 0, 0x26, 0, 1, b'k', 0, 1, b'v']));
    let answer = device.packet().expect("CONNACK");
    assert_eq!((answer[0], answer[3]), (0x20, 0), "{answer:?}");
    assert!(answer.windows(5).any(|property| property == [0x11, 0, 0, 0, 0]), "no session is kept: {answer:?}");
    good.publish(1, topic, &at(0, 1));
    assert_eq!(good.acknowledgement(), (1, 0));
    assert_eq!(readings(&server, "a").await.len(), 1);
}

/// A bridge asks for the version 0x84, and old devices speak 3.1: both are told to try another version. A
/// version after 5 is answered as 5.
#[tokio::test]
async fn other_versions_are_refused_in_words_that_they_know() {
    let server = Server::start(setup()).await;
    for (name, level, is_v5) in
        [("MQTT", 0x84, false), ("MQTT", 3, false), ("MQIsdp", 3, false), ("MQTT", 6, true), ("MQTT", 0x7f, true)]
    {
        let mut device = Device::open(server.mqtt_addr(), false);
        device.send(&packet(0x10, &[text(name), vec![level, 2, 0, 60], text("d1")].concat()));
        let last = device.rest();
        if is_v5 {
            assert_eq!(
                (last.len(), last[0][0], last[0][2], last[0][3]),
                (1, 0x20, 0, 0x84),
                "{name} {level}: {last:?}"
            );
        } else {
            assert_eq!(last, [[0x20, 2, 0, 1]], "{name} {level}");
        }
    }
}

/// Version 3.1.1 has no code for it.
#[tokio::test]
async fn a_malformed_connect_of_version_5_is_answered_before_the_end() {
    let server = Server::start(setup()).await;
    let whole = connect(true, "d1", Some(&secret_of(TOKEN)), 0);
    let bad = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut body = whole[2..].to_vec();
        change(&mut body);
        packet(0x10, &body)
    };
    for (name, bytes, code) in [
        ("a reserved flag", bad(&|body| body[7] |= 1), 0x81),
        ("no end", bad(&|body| body.truncate(body.len() - 1)), 0x81),
        ("bytes behind it", bad(&|body| body.push(0)), 0x81),
        ("an unknown property", bad(&|body| drop(body.splice(10..11, [2, 0x7f, 0]))), 0x81),
        ("a client ID that is no text", bad(&|body| body[13] = 0xff), 0x81),
        ("packets of 16 bytes at most", bad(&|body| drop(body.splice(10..11, [5, 0x27, 0, 0, 0, 16]))), 0x83),
    ] {
        let mut device = Device::open(server.mqtt_addr(), true);
        device.send(&bytes);
        let last = device.rest();
        assert_eq!((last.len(), last[0][0], last[0][2], last[0][3]), (1, 0x20, 0, code), "{name}: {last:?}");
    }
    let mut device = Device::open(server.mqtt_addr(), false);
    let old = connect(false, "d1", Some(&secret_of(TOKEN)), 0);
    device.send(&packet(0x10, &old[2..old.len() - 1]));
    assert!(device.rest().is_empty());
}

#[tokio::test]
async fn a_topic_with_a_null_character_is_malformed_and_one_with_a_wildcard_invalid() {
    let server = Server::start(setup()).await;
    for (topic, code, reason) in [("plant/\0/a", 0x81, "U+0000"), ("plant/+/a", 0x90, "wildcards")] {
        let mut device = Device::connected(&server, true, "d1");
        device.publish(1, topic, "1");
        let last = device.rest();
        assert_eq!((last.len(), last[0][0], last[0][2]), (1, 0xe0, code), "{last:?}");
        assert!(String::from_utf8_lossy(&last[0]).contains(reason), "{last:?}");
        server.logged(reason).await;
    }
}

/// A client may send its messages behind CONNECT without waiting for the answer.
#[tokio::test]
async fn messages_behind_connect_wait_for_its_answer() {
    let server = Server::start(setup()).await;
    for (password, expected) in [(secret_of(TOKEN), 50), ("wrong".to_owned(), 0)] {
        let mut device = Device::open(server.mqtt_addr(), true);
        let all: Vec<u8> = (1..=50).flat_map(|n| publish(true, n, "plant/north/a/temp", &at(n.into(), n))).collect();
        device.send(&[connect(true, "d1", Some(&password), 0), all].concat());
        let answer = device.packet().expect("CONNACK");
        assert_eq!(answer[3] == 0, expected > 0);
        let acknowledged = (0..expected).map(|_| device.acknowledgement()).filter(|(_, code)| *code == 0).count();
        assert_eq!(acknowledged, expected);
    }
    assert_eq!(readings(&server, "a").await.len(), 50);
}

/// Opens as many connections as this machine allows, up to two thousand.
#[tokio::test]
async fn idle_connections_take_little_memory() {
    let limits = std::fs::read_to_string("/proc/self/limits").expect("limits");
    let open_files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    let soft: usize = open_files.split_whitespace().nth(3).expect("a number").parse().unwrap_or(usize::MAX);
    let count = 2_000.min(soft.saturating_sub(300) / 4); // other tests of this process need files too
    assert!(count >= 100, "{soft} open files are too few to measure connections: use ulimit -n 1024");
    let setup = Setup::sqlite().set("http.max_connections", 100);
    let server = Server::start(setup.mqtt_listener(&format!("max_connections = 20000\n{TOPICS}"))).await;
    let (mut idle, mut before): (Vec<Device>, usize) = (Vec::new(), 0);
    for n in 0..count + FIRST {
        if n == FIRST {
            before = resident_bytes(server.id());
        }
        let mut device = Device::open(server.mqtt_addr(), true);
        device.send(&connect(true, &format!("device-{n}"), None, 0));
        // Each has sent a message once.
        device.publish(1, "own/x", &format!("{{\"deviceId\":\"d\",\"ts\":{START_MS},\"value\":1}}"));
        assert_eq!(device.packet().expect("CONNACK")[3], 0);
        assert_eq!(device.acknowledgement(), (1, 0));
        idle.push(device);
    }
    let metrics = server.metrics().await;
    assert_eq!(metrics.count("tidegauge_mqtt_listener_connections"), (count + FIRST) as u64);
    let of_each = resident_bytes(server.id()).saturating_sub(before) / count;
    println!("{count} idle connections, {of_each} bytes each");
    assert!(of_each <= CONNECTION_MAX_BYTES, "{of_each} bytes for each of {count} connections");
    let mut last = Device::open(server.mqtt_addr(), true);
    last.send(&connect(true, "last", None, 0));
    assert_eq!(last.packet().expect("CONNACK")[3], 0);
    drop(idle);
    wait_until("they are gone", async || {
        (server.metrics().await.count("tidegauge_mqtt_listener_connections") == 1).then_some(())
    })
    .await;
}

/// TLS keeps the keys, the state and a small buffer of each connection.
#[tokio::test]
async fn idle_connections_with_tls_take_little_memory() {
    const COUNT: usize = 400;
    let folder = Folder::new();
    for version in BOTH {
        let setup = folder.setup("").mqtt_listener(&format!("max_connections = 20000\n{TOPICS}"));
        let server = Server::start(setup.token(TOKEN, "scopes = ['ingest', 'query', 'admin']")).await;
        let client = folder.client(&[version], None);
        let (mut idle, mut before) = (Vec::new(), 0);
        for n in 0..COUNT + FIRST {
            if n == FIRST {
                before = resident_bytes(server.id());
            }
            let stream = tokio::net::TcpStream::connect(server.mqtt_addr()).await.expect("the server listens");
            let mut stream = secured(stream, &client).await.expect("a handshake");
            let connect = connect(true, &format!("device-{n}"), Some(&secret_of(TOKEN)), 0);
            let message = publish(true, 1, "own/x", &format!("{{\"deviceId\":\"d\",\"ts\":{START_MS},\"value\":1}}"));
            stream.write_all(&[connect, message].concat()).await.expect("the server reads");
            stream.flush().await.expect("the server reads");
            let mut connack = [0; 2];
            stream.read_exact(&mut connack).await.expect("CONNACK");
            let mut rest = vec![0; usize::from(connack[1]) + 4];
            stream.read_exact(&mut rest).await.expect("PUBACK");
            assert_eq!((connack[0], rest[1], rest[rest.len() - 4]), (0x20, 0, 0x40), "{rest:?}");
            idle.push(stream);
        }
        let of_each = resident_bytes(server.id()).saturating_sub(before) / COUNT;
        println!("{COUNT} idle connections with {version:?}, {of_each} bytes each");
        assert!(of_each <= TLS_CONNECTION_MAX_BYTES, "{of_each} bytes for each with {version:?}");
    }
}

/// Connections that never authenticate cost less than those that do.
#[tokio::test]
async fn connections_without_connect_take_little_memory() {
    let server = Server::start(setup()).await;
    let open = async |silent: &mut Vec<TcpStream>, count: usize| {
        while silent.len() < count {
            let mut device = Device::open(server.mqtt_addr(), true);
            device.send(&packet(0x10, &vec![b'x'; 16_000])[..15_000]);
            silent.push(device.stream);
        }
        wait_until("they are open", async || {
            let metrics = server.metrics().await;
            let held = metrics.count("tidegauge_http_bytes_in_flight");
            let open = metrics.count("tidegauge_mqtt_listener_connections");
            (open == count as u64 && held >= 15_000 * count as u64).then_some(resident_bytes(server.id()))
        })
        .await
    };
    let mut silent = Vec::new();
    let before = open(&mut silent, FIRST).await;
    let after = open(&mut silent, 5 * FIRST).await;
    let of_each = after.saturating_sub(before) / (4 * FIRST);
    assert!(of_each <= 48 << 10, "{of_each} bytes for each");
}

/// The memory of a process that is in use.
fn resident_bytes(process: u32) -> usize {
    let statm = std::fs::read_to_string(format!("/proc/{process}/statm")).expect("the process runs");
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number") * 4_096
}
