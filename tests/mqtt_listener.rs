//! MQTT devices that publish to the server without a broker.

mod clients;
mod hostile;
mod limits;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::mongod::deadline::deadline;
use crate::harness::{Database, Metrics, Mongod, Server, Setup, secret_of, wait_until};
use crate::tls::authority::Authority;

const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z
const TOPICS: &str =
    "[[topics]]\ntopic = 'plant/{site}/{deviceId}/{metric}'\ntime = 'ts'\n[[topics]]\ntopic = 'own/#'\n";

/// The token with which devices connect, and the harness asks.
const TOKEN: &str = "operator";

fn setup() -> Setup {
    Setup::sqlite().mqtt_listener(TOPICS).token(TOKEN, "scopes = ['ingest', 'query', 'admin']")
}

fn at(n: i64, value: impl Into<Value>) -> String {
    json!({ "ts": START_MS + n, "value": value.into() }).to_string()
}

/// A device that writes its packets itself, so that a test decides about each byte.
#[derive(Debug)]
struct Device {
    stream: TcpStream,
    is_v5: bool,
}

impl Device {
    fn open(address: SocketAddr, is_v5: bool) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(deadline(60))).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        Self { stream, is_v5 }
    }

    /// Connects with a password, and returns the answer too.
    fn connect(server: &Server, is_v5: bool, client_id: &str, password: &str) -> (Self, Vec<u8>) {
        let mut device = Self::open(server.mqtt_addr(), is_v5);
        device.send(&connect(is_v5, client_id, Some(password), 0));
        let answer = device.packet().expect("an answer");
        (device, answer)
    }

    /// A device that is connected.
    fn connected(server: &Server, is_v5: bool, client_id: &str) -> Self {
        let (device, answer) = Self::connect(server, is_v5, client_id, &secret_of(TOKEN));
        assert_eq!((answer[0], answer[3]), (0x20, 0), "{answer:?}");
        device
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    fn publish(&mut self, id: u16, topic: &str, payload: &str) {
        let packet = publish(self.is_v5, id, topic, payload);
        self.send(&packet);
    }

    /// The next packet; an error if the connection ends.
    fn packet(&mut self) -> io::Result<Vec<u8>> {
        let mut packet = vec![0; 2];
        self.stream.read_exact(&mut packet)?;
        let mut length = usize::from(packet[1] & 0x7f);
        if packet[1] & 0x80 != 0 {
            packet.push(0);
            self.stream.read_exact(&mut packet[2..])?;
            length |= usize::from(packet[2]) << 7;
        }
        let head = packet.len();
        packet.resize(head + length, 0);
        self.stream.read_exact(&mut packet[head..])?;
        Ok(packet)
    }

    /// The packet ID of the next acknowledgement, and its reason.
    fn acknowledgement(&mut self) -> (u16, u8) {
        let packet = self.packet().expect("an acknowledgement");
        assert_eq!(packet[0], 0x40, "{packet:?}");
        // With a reason in words, the length takes two bytes.
        let begin = 2 + packet[1..].iter().position(|byte| *byte < 0x80).expect("a length");
        let body = &packet[begin..];
        (u16::from_be_bytes([body[0], body[1]]), body.get(2).copied().unwrap_or_default())
    }

    /// The packets until the server closes the connection.
    fn rest(&mut self) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        loop {
            match self.packet() {
                Ok(packet) => packets.push(packet),
                Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                    return packets;
                }
                Err(error) => panic!("the server does not close the connection: {error}"),
            }
        }
    }
}

fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let (mut packet, mut length) = (vec![first], body.len());
    loop {
        let more = if length >= 128 { 0x80 } else { 0 };
        packet.push(u8::try_from(length % 128).expect("below 128") | more);
        length /= 128;
        if length == 0 {
            break;
        }
    }
    [packet, body.to_vec()].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&u16::try_from(text.len()).expect("a short text").to_be_bytes()[..], text.as_bytes()].concat()
}

/// A CONNECT for a clean session. A password comes with a user.
pub(crate) fn connect(is_v5: bool, client_id: &str, password: Option<&str>, keep_alive: u16) -> Vec<u8> {
    let flags = if password.is_some() { 0xc2 } else { 2 };
    let mut body = [text("MQTT"), vec![if is_v5 { 5 } else { 4 }, flags]].concat();
    body.extend(keep_alive.to_be_bytes());
    if is_v5 {
        body.push(0);
    }
    body.extend(text(client_id));
    if let Some(password) = password {
        body.extend([text("any"), text(password)].concat());
    }
    packet(0x10, &body)
}

/// A message with quality of service 1, or 0 without a packet ID.
pub(crate) fn publish(is_v5: bool, id: u16, topic: &str, payload: &str) -> Vec<u8> {
    let mut body = text(topic);
    if id > 0 {
        body.extend(id.to_be_bytes());
    }
    if is_v5 {
        body.push(0);
    }
    body.extend(payload.bytes());
    packet(if id > 0 { 0x32 } else { 0x30 }, &body)
}

async fn readings(server: &Server, device: &str) -> Vec<Value> {
    server.settled().await;
    let path = format!("/v1/devices/{device}/readings?from=2024-04-01T00:00:00Z&to=2034-01-01T00:00:00Z&limit=10000");
    let answer = server.send(server.request(Method::GET, &path).bearer_auth(secret_of(TOKEN))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["readings"].as_array().cloned().unwrap_or_default()
}

/// Waits until connections have ended for this reason.
async fn ended(server: &Server, reason: &str, count: u64) -> Metrics {
    wait_until(&format!("{count} connections ended: {reason}"), async || {
        let metrics = server.metrics().await;
        (metrics.count_where("tidegauge_mqtt_listener_ended_total", &[("reason", reason)]) >= count).then_some(metrics)
    })
    .await
}

#[tokio::test]
async fn messages_become_readings_and_are_acknowledged_in_order() {
    for is_v5 in [true, false] {
        let server = Server::start(setup()).await;
        let mut device = Device::connected(&server, is_v5, "d1");
        device.publish(7, "plant/north/pump-7/temp", &at(0, 21.5));
        assert_eq!(device.acknowledgement(), (7, 0));
        let all: Vec<u8> =
            (1..=100).flat_map(|n| publish(is_v5, n, "plant/north/pump-7/temp", &at(n.into(), n))).collect();
        device.send(&all);
        let acknowledged: Vec<u16> = (0..100).map(|_| device.acknowledgement().0).collect();
        assert_eq!(acknowledged, (1..=100).collect::<Vec<u16>>());
        device.publish(8, "own/a", &json!({ "deviceId": "S1", "ts": START_MS, "values": { "hum": 40 } }).to_string());
        device.publish(9, "own/b", &format!("cpu,host=S2 idle=7 {START_MS}000000"));
        assert_eq!((device.acknowledgement(), device.acknowledgement()), ((8, 0), (9, 0)));
        device.send(&[0xc0, 0]);
        assert_eq!(device.packet().expect("PINGRESP"), [0xd0, 0]);
        let pump = readings(&server, "pump-7").await;
        assert_eq!((pump.len(), &pump[0]["values"]), (101, &json!({ "temp": 21.5 })), "{pump:?}");
        assert_eq!(readings(&server, "S1").await[0]["values"], json!({ "hum": 40.0 }));
        assert_eq!(readings(&server, "S2").await[0]["values"], json!({ "cpu_idle": 7.0 }));
        let request = server.request(Method::GET, "/v1/devices?meta.site=north").bearer_auth(secret_of(TOKEN));
        let devices = server.send(request).await.json();
        assert_eq!(devices["devices"][0]["deviceId"], "pump-7", "{devices}");
        let metrics = server.metrics().await;
        assert_eq!(metrics.count("tidegauge_mqtt_listener_messages_total"), 103);
        assert_eq!(metrics.count_where("tidegauge_readings_accepted_total", &[("protocol", "mqtt")]), 103);
        assert_eq!(metrics.count("tidegauge_mqtt_listener_connections"), 1);
        assert_eq!(metrics.count("tidegauge_mqtt_listener_unacknowledged"), 0);
        device.send(&[0xe0, 0]);
        assert!(device.rest().is_empty());
        ended(&server, "client", 1).await;
        wait_until("the connection is gone", async || {
            (server.metrics().await.count("tidegauge_mqtt_listener_connections") == 0).then_some(())
        })
        .await;
    }
}

/// `mosquitto_pub` sends a message of quality of service 0 and disconnects in the same moment.
#[tokio::test]
async fn a_message_of_quality_0_is_stored_although_its_sender_disconnects_at_once() {
    let server = Server::start(setup()).await;
    for (n, last) in [&[0xe0, 0][..], &[]].into_iter().enumerate() {
        let mut device = Device::open(server.mqtt_addr(), false);
        let connect = connect(false, "d1", Some(&secret_of(TOKEN)), 0);
        let publish = publish(false, 0, "plant/north/a/temp", &at(n as i64, 1));
        device.send(&[&connect, &publish[..], last].concat());
        drop(device);
    }
    wait_until("both are stored", async || (readings(&server, "a").await.len() == 2).then_some(())).await;
}

#[tokio::test]
async fn version_5_says_why_nothing_of_a_message_is_stored() {
    let server = Server::start(setup().set("limits.device_readings_per_second", 1).set("limits.burst", "1s")).await;
    for (is_v5, invalid, over_quota) in [(true, 0x99, 0x97), (false, 0, 0)] {
        let mut device = Device::connected(&server, is_v5, "d1");
        let mut answer_to = |topic: &str, payload: &str| {
            device.publish(3, topic, payload);
            device.packet().expect("an acknowledgement")
        };
        let code = |answer: &[u8]| answer.get(4).copied().unwrap_or_default();
        let nonsense = answer_to("own/a", "nonsense");
        assert_eq!(code(&nonsense), invalid, "{nonsense:?}");
        assert_eq!(String::from_utf8_lossy(&nonsense).contains("line 1"), is_v5, "the reason is a text too");
        assert_eq!(code(&answer_to("nobody/knows", "1")), invalid);
        for no_number in ["1e400", "nan", "22,5"] {
            assert_eq!(code(&answer_to("plant/north/a/temp", no_number)), invalid, "{no_number}");
        }
        assert_eq!(code(&answer_to("own/a", &"x".repeat(300_000))), invalid, "larger than max_packet_bytes");
        let fast = format!("dev{is_v5}");
        let codes: Vec<u8> =
            (0..20).map(|n| code(&answer_to(&format!("plant/north/{fast}/temp"), &at(n, 1)))).collect();
        assert_eq!(codes[0], 0);
        assert!(codes.contains(&over_quota), "{codes:?}");
    }
    let metrics = server.metrics().await;
    let refused = |reason| metrics.count_where("tidegauge_mqtt_refused_total", &[("reason", reason)]);
    assert_eq!((refused("topic"), refused("size")), (2, 2));
    assert!(refused("payload") >= 4);
    server.logged("topic \\\"own/a\\\"").await;
}

#[tokio::test]
async fn a_value_that_is_rejected_alone_is_logged_with_its_topic() {
    let server = Server::start(setup()).await;
    let mut device = Device::connected(&server, true, "d1");
    device.publish(3, "own/values", r#"{"deviceId":"a","values":{"temp":22.4,"hum":1e999}}"#);
    let answer = device.packet().expect("an acknowledgement");
    assert_eq!(answer.get(4).copied().unwrap_or_default(), 0, "the other value is stored: {answer:?}");
    let log = server.logged("topic \\\"own/values\\\"").await;
    assert!(log.contains("hum"), "{log}");
}

#[tokio::test]
async fn subscriptions_are_refused_and_the_connection_stays() {
    let server = Server::start(setup()).await;
    for (is_v5, code) in [(true, 0x87), (false, 0x80)] {
        let mut device = Device::connected(&server, is_v5, "d1");
        let properties: &[u8] = if is_v5 { &[0] } else { &[] };
        device.send(&packet(0x82, &[&[0, 5], properties, &text("a/#"), &[1], &text("b"), &[0]].concat()));
        let answer = device.packet().expect("SUBACK");
        assert_eq!((answer[0], &answer[2..4], &answer[answer.len() - 2..]), (0x90, &[0, 5][..], &[code, code][..]));
        device.send(&packet(0xa2, &[&[0, 6], properties, &text("a/#")].concat()));
        assert_eq!(device.packet().expect("UNSUBACK")[0], 0xb0);
        device.publish(1, "plant/north/a/temp", &at(0, 1));
        assert_eq!(device.acknowledgement(), (1, 0));
    }
}

#[tokio::test]
async fn a_second_connection_with_the_same_client_id_ends_the_first() {
    let server = Server::start(setup().token("other", "scopes = ['ingest']")).await;
    let mut first = Device::connected(&server, true, "pump");
    let (mut of_other, answer) = Device::connect(&server, true, "pump", &secret_of("other"));
    assert_eq!(answer[3], 0);
    let mut second = Device::connected(&server, true, "pump");
    let last = first.rest();
    assert_eq!((last.len(), last[0][0], last[0][2]), (1, 0xe0, 0x8e), "{last:?}");
    for device in [&mut second, &mut of_other] {
        device.send(&[0xc0, 0]);
        assert_eq!(device.packet().expect("PINGRESP"), [0xd0, 0]);
    }
    ended(&server, "taken_over", 1).await;
}

#[tokio::test]
async fn a_client_without_an_id_gets_one() {
    let server = Server::start(setup()).await;
    let (_one, answer) = Device::connect(&server, true, "", &secret_of(TOKEN));
    assert!(answer[3] == 0 && String::from_utf8_lossy(&answer).contains("tidegauge-"), "{answer:?}");
    let (_two, answer) = Device::connect(&server, false, "", &secret_of(TOKEN));
    assert_eq!(answer, [0x20, 2, 0, 0]);
    let mut persistent = Device::open(server.mqtt_addr(), false);
    let mut connect = connect(false, "", Some(&secret_of(TOKEN)), 0);
    connect[9] &= !2; // no clean session
    persistent.send(&connect);
    assert_eq!(persistent.packet().expect("CONNACK"), [0x20, 2, 0, 2]);
}

#[tokio::test]
async fn tokens_scopes_and_tenants_are_those_of_http() {
    let setup = setup()
        .token("reader", "scopes = ['query']")
        .token("old", "scopes = ['ingest']\nexpires = 2020-01-01T00:00:00Z")
        .token("acme", "scopes = ['ingest', 'query']\ndevice_prefix = 'acme/'\ndevices = ['pump-*']");
    let server = Server::start(setup).await;
    for (password, v5, v3) in [
        (Some("reader".to_owned()), 0x87, 5),
        (Some("old".to_owned()), 0x87, 5),
        (Some("nobody".to_owned()), 0x86, 4),
        (None, 0x87, 5),
    ] {
        for (is_v5, code) in [(true, v5), (false, v3)] {
            let mut device = Device::open(server.mqtt_addr(), is_v5);
            device.send(&connect(is_v5, "d1", password.as_deref().map(secret_of).as_deref(), 0));
            let answer = device.packet().expect("CONNACK");
            assert_eq!((answer[0], answer[3]), (0x20, code), "{password:?} {answer:?}");
            assert!(device.rest().is_empty());
        }
    }
    let metrics = ended(&server, "unauthorized", 6).await;
    assert_eq!(metrics.count_where("tidegauge_mqtt_listener_ended_total", &[("reason", "forbidden")]), 2);
    server.logged("MQTT: the token lacks the scope").await;

    let (mut acme, _) = Device::connect(&server, true, "d1", &secret_of("acme"));
    acme.publish(1, "plant/north/pump-7/temp", &at(0, 1));
    acme.publish(2, "plant/north/valve-7/temp", &at(0, 1));
    assert_eq!((acme.acknowledgement(), acme.acknowledgement()), ((1, 0), (2, 0x99)));
    assert_eq!(readings(&server, "acme%2Fpump-7").await.len(), 1);
}

#[tokio::test]
async fn a_token_that_is_removed_ends_its_connections_at_their_next_message() {
    let both = setup().token("leaver", "scopes = ['ingest']");
    let server = Server::start(both).await;
    let (mut leaver, answer) = Device::connect(&server, true, "d1", &secret_of("leaver"));
    assert_eq!(answer[3], 0);
    server.write_config(&setup().or("udp.listen", "127.0.0.1:0").to_toml());
    server.signal("HUP");
    server.logged("[auth] was reloaded").await;
    leaver.publish(1, "plant/north/a/temp", &at(0, 1));
    let last = leaver.rest();
    assert_eq!((last.len(), last[0][0], last[0][2]), (1, 0xe0, 0x87), "{last:?}");
    assert!(readings(&server, "a").await.is_empty());
}

/// Version 3.1.1 lets messages wait for the rate.
#[tokio::test]
async fn a_token_that_is_removed_ends_its_connections_although_a_message_waits_for_its_rate() {
    let setup = || setup().set("limits.burst", "1s");
    let server = Server::start(setup().token("leaver", "scopes = ['ingest']\nreadings_per_second = 1")).await;
    let (mut leaver, _) = Device::connect(&server, false, "d1", &secret_of("leaver"));
    // A thousand readings put the token into debt for many minutes.
    let many: Vec<String> =
        (0..1_000).map(|n| json!({ "deviceId": "many", "ts": START_MS + n, "value": n }).to_string()).collect();
    leaver.publish(1, "own/x", &many.join("\n"));
    assert_eq!(leaver.acknowledgement(), (1, 0));
    leaver.publish(2, "plant/north/a/temp", &at(0, 1));
    leaver.send(&[0xc0, 0]);
    assert_eq!(leaver.packet().expect("PINGRESP"), [0xd0, 0]);
    server.write_config(&setup().or("udp.listen", "127.0.0.1:0").to_toml());
    server.signal("HUP");
    server.logged("[auth] was reloaded").await;
    assert!(leaver.rest().is_empty());
    assert!(readings(&server, "a").await.is_empty());
}

#[tokio::test]
async fn tls_and_client_certificates_are_those_of_http() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().expect("a temporary folder"));
    authority.write_server(folder.path());
    authority.client("pump-7", &[]).write(folder.path(), "client");
    Authority::new().client("pump-7", &[]).write(folder.path(), "forged");
    let path = folder.path().display();
    let setup = Setup::sqlite()
        .mqtt_listener(TOPICS)
        .tls(folder.path(), &format!("client_ca_file = '{path}/ca.pem'"))
        .set("auth.client_certificate", "device")
        .token(TOKEN, "scopes = ['query', 'admin']");
    let server = Server::start(setup).await;
    let (port, cafile) = (server.mqtt_addr().port().to_string(), format!("{path}/ca.pem"));
    let files = |name: &str| {
        ["--cert", &format!("{path}/{name}.pem"), "--key", &format!("{path}/{name}.key")].map(str::to_owned)
    };
    let publish = |device: &str, files: &[String]| {
        let (topic, payload) = (format!("plant/north/{device}/temp"), at(0, 1));
        let mut command = std::process::Command::new(crate::harness::publisher());
        command.args(["-V", "5", "-h", "localhost", "-p", &port, "--cafile", &cafile, "-q", "1", "-d"]);
        let output = command.args(["-t", &topic, "-m", &payload]).args(files).output().expect("mosquitto_pub runs");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (is_connected, _) = publish("pump-7", &files("client"));
    assert!(is_connected);
    let (_, said) = publish("pump-8", &files("client"));
    assert!(said.contains("RC:153"), "a device writes its own readings only: {said}");
    assert!(!publish("pump-7", &[]).0, "neither a certificate nor a token");
    assert!(!publish("pump-7", &files("forged")).0, "the certificate of another authority");
    server.logged("MQTT: no valid client certificate: ").await;
    let mut plain = TcpStream::connect(server.mqtt_addr()).expect("the server listens");
    plain.write_all(&connect(true, "d1", None, 0)).expect("the server reads");
    assert!(matches!(plain.read(&mut [0; 8]), Ok(0) | Err(_)));
}

/// While the store is away and the log is full, nothing is acknowledged and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_log_acknowledges_nothing_and_recovers_by_itself() {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    let setup = Setup::mongodb(&database).set("mongodb.timeout", "2s").set("log.max_bytes", "256KiB");
    let server = Server::start(setup.set("log.segment_bytes", "64KiB").mqtt_listener(TOPICS)).await;
    mongod.freeze();
    let mut device = Device::open(server.mqtt_addr(), true);
    device.send(&connect(true, "d1", None, 60));
    assert_eq!(device.packet().expect("CONNACK")[3], 0);
    // Distinct series with long names, so that few messages fill the log.
    let name = "n".repeat(100);
    for n in 0..20_u16 {
        let values: Vec<String> = (0..200).map(|m| format!("\"{name}{n}_{m}\":{m}")).collect();
        let ts = START_MS + i64::from(n);
        let payload = format!("{{\"deviceId\":\"a{n}\",\"ts\":{ts},\"values\":{{{}}}}}", values.join(","));
        device.publish(n + 1, "own/x", &payload);
    }
    server.logged("the log is full").await;
    let mut acknowledged: Vec<u16> = Vec::new();
    for n in 0..10_u16 {
        device.publish(21 + 2 * n, "plant/north/timeless/temp", &n.to_string());
        device.publish(22 + 2 * n, "own/x", &json!({ "deviceId": "aged", "ageMs": 0, "value": n }).to_string());
        // The answer to a ping comes at once, and it is the last thing that comes.
        device.send(&[0xc0, 0]);
        while let Ok(packet) = device.packet() {
            match packet[0] {
                0x40 => acknowledged.push(u16::from_be_bytes([packet[2], packet[3]])),
                _ => break,
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await; // the next messages arrive at another millisecond
    }
    assert!(acknowledged.len() < 20, "{acknowledged:?}");
    let metrics = server.metrics().await;
    assert!(metrics.count("tidegauge_mqtt_listener_unacknowledged") > 0);
    assert_eq!(metrics.count_where("tidegauge_readings_rejected_total", &[("reason", "overloaded")]), 0, "kept here");
    mongod.thaw();
    while acknowledged.len() < 40 {
        acknowledged.push(device.acknowledgement().0);
    }
    assert_eq!(acknowledged, (1..=40).collect::<Vec<u16>>());
    for n in 0..20 {
        assert_eq!(readings(&server, &format!("a{n}")).await.len(), 1, "{n}");
    }
    // Each reading without a time of its own has the time at which its message arrived.
    for (device, metric) in [("timeless", "temp"), ("aged", "value")] {
        let stored = readings(&server, device).await;
        let values: Vec<_> = stored.iter().filter_map(|reading| reading["values"][metric].as_f64()).collect();
        assert_eq!(values, (0..10).map(f64::from).collect::<Vec<_>>(), "{device}: {stored:?}");
    }
}

#[tokio::test]
async fn a_stop_acknowledges_what_has_arrived_and_disconnects() {
    for is_v5 in [true, false] {
        let mut server = Server::start(setup()).await;
        let (mut device, mut idle) = (Device::connected(&server, is_v5, "d1"), Device::connected(&server, is_v5, "d2"));
        for n in 1..=50 {
            device.publish(n, "plant/north/a/temp", &at(n.into(), n));
        }
        assert_eq!(device.acknowledgement().0, 1);
        assert_eq!(server.terminate().await.code(), Some(0));
        let (last, of_idle) = (device.rest(), idle.rest());
        let acknowledged = 1 + last.iter().filter(|packet| packet[0] == 0x40).count();
        if is_v5 {
            assert_eq!(last.last().map(|last| (last[0], last[2])), Some((0xe0, 0x8b)), "{last:?}");
            assert_eq!((of_idle.len(), of_idle[0][2]), (1, 0x8b), "{of_idle:?}");
        } else {
            assert!(of_idle.is_empty(), "{of_idle:?}");
        }
        server.start_again().await;
        let stored = readings(&server, "a").await.len();
        assert!(stored >= acknowledged, "{stored} are stored, and {acknowledged} acknowledged");
    }
}
