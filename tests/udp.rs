//! UDP ingest: accepted datagrams are stored, and lost ones are counted.

use std::net::{SocketAddr, UdpSocket};

use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Metrics, Server, Setup, run, wait_until};

const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z
const DATAGRAMS: &str = "tidegauge_udp_datagrams_total";
const MALFORMED: &str = "tidegauge_udp_malformed_total";
const GAPS: &str = "tidegauge_udp_sequence_gaps_total";

/// As many small datagrams as the buffer of a socket keeps on any machine, however late the server reads.
pub(crate) const BUFFERED: usize = 200;

#[tokio::test]
async fn json_and_line_protocol_become_readings_that_queries_see() {
    let server = Server::start(Setup::sqlite()).await;
    let sender = Sender::to(server.udp_addr());
    sender.send(json!({ "deviceId": "a", "ts": START_MS, "values": { "temp": 1, "hum": 40 } }).to_string());
    sender.send(json!([{ "deviceId": "a", "ts": START_MS + 1, "values": { "temp": 2 } }]).to_string());
    sender.send(format!("temp,deviceId=a value=3 {}000000\n", START_MS + 2));
    sender.send(r#"{"deviceId":"clock","value":1}"#);
    received(&server, 4).await;
    assert_eq!(values(&server, "a", "temp").await, [1.0, 2.0, 3.0]);
    assert_eq!(values(&server, "a", "hum").await, [40.0]);
    assert_eq!(server.get("/v1/devices/clock/latest").await.status, 200);
    let metrics = server.settled().await;
    let udp = [("protocol", "udp")];
    assert_eq!(metrics.count_where("tidegauge_readings_accepted_total", &udp), 4);
    assert_eq!(metrics.count("tidegauge_udp_bytes_total"), sender.sent_bytes());
    assert_eq!((metrics.count(MALFORMED), dropped(&metrics, "kernel")), (0, 0));
}

#[tokio::test]
async fn a_datagram_may_have_several_lines() {
    let server = Server::start(Setup::sqlite()).await;
    let sender = Sender::to(server.udp_addr());
    let line = |at: i64| json!({ "deviceId": "a", "ts": START_MS + at, "value": at }).to_string();
    sender.send((0..10).map(line).collect::<Vec<_>>().join("\n"));
    let line = |at: i64| format!("value,device=a value={at} {}000000", START_MS + at);
    sender.send((10..20).map(line).collect::<Vec<_>>().join("\n"));
    received(&server, 2).await;
    assert_eq!(values(&server, "a", "value").await, (0..20).map(f64::from).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_rejected_datagram_is_counted_and_affects_no_other() {
    let server = Server::start(Setup::sqlite()).await;
    let sender = Sender::to(server.udp_addr());
    for malformed in ["nonsense", "", "{", r#"{"deviceId":"a","value":"high"}"#, "t,device=a value=high", "\u{0}"] {
        sender.send(malformed);
    }
    sender.send(format!("{{\n{}", json!({ "deviceId": "a", "ts": START_MS, "value": 1 })));
    let metrics = received(&server, 7).await;
    assert_eq!(metrics.count(MALFORMED), 6);
    assert_eq!(values(&server, "a", "value").await, [1.0]);
    let rejected = |reason| metrics.count_where("tidegauge_readings_rejected_total", &[("reason", reason)]);
    assert_eq!((rejected("invalid_json"), rejected("invalid_value")), (2, 2));
}

#[tokio::test]
async fn a_datagram_that_is_too_large_is_dropped_and_counted() {
    let server = Server::start(Setup::sqlite().set("udp.max_datagram_bytes", "100B")).await;
    let sender = Sender::to(server.udp_addr());
    let line = json!({ "deviceId": "a", "ts": START_MS, "value": 1 }).to_string();
    sender.send(format!("{line:100}"));
    sender.send(format!("{line:101}"));
    sender.send(format!("{line}\n{line}\n{line}\n"));
    let metrics = received(&server, 3).await;
    assert_eq!(dropped(&metrics, "truncated"), 2);
    assert_eq!(metrics.count("tidegauge_readings_received_total"), 1);
    assert_eq!(metrics.count("tidegauge_udp_bytes_total"), sender.sent_bytes());
}

#[tokio::test]
async fn in_a_flood_each_datagram_is_received_or_counted_as_dropped() {
    let server = Server::start(Setup::sqlite().set("udp.receive_buffer", "4KiB")).await;
    let senders: Vec<Sender> = (0..8).map(|_| Sender::to(server.udp_addr())).collect();
    let mut ts = START_MS;
    wait_until("the kernel drops datagrams", async || {
        for _ in 0..1_000 {
            for sender in &senders {
                ts += 1;
                sender.send(format!("{{\"deviceId\":\"a\",\"ts\":{ts},\"value\":1}}"));
            }
        }
        (dropped(&server.metrics().await, "kernel") > 0).then_some(())
    })
    .await;
    let sent: u64 = senders.iter().map(Sender::sent).sum();
    wait_until("every datagram is accounted for", async || {
        let metrics = server.metrics().await;
        (metrics.count(DATAGRAMS) + dropped(&metrics, "kernel") == sent).then_some(())
    })
    .await;
    let metrics = server.metrics().await;
    assert_eq!(metrics.count("tidegauge_readings_accepted_total"), metrics.count(DATAGRAMS));
    assert_eq!((metrics.count(MALFORMED), dropped(&metrics, "overload")), (0, 0));
    server.logged("the kernel dropped datagrams").await;
}

#[tokio::test]
async fn datagrams_refused_by_a_full_log_are_counted() {
    let full_soon = Setup::sqlite().all_pending().set("log.segment_bytes", "64KiB").set("log.max_bytes", "128KiB");
    let server = Server::start(full_soon).await;
    let sender = Sender::to(server.udp_addr());
    wait_until("the log is full", async || {
        for _ in 0..100 {
            let device = sender.sent();
            sender.send(format!("{{\"deviceId\":\"device-{device}\",\"ts\":{START_MS},\"value\":1}}"));
        }
        let metrics = received(&server, sender.sent()).await;
        (dropped(&metrics, "overload") > 0).then_some(())
    })
    .await;
    // A batch counts when its append is settled, which is a moment after its datagrams count.
    let metrics = wait_until("every datagram is accepted or dropped", async || {
        let metrics = server.metrics().await;
        let accepted = metrics.count_where("tidegauge_readings_accepted_total", &[("protocol", "udp")]);
        (accepted + dropped(&metrics, "overload") == sender.sent()).then_some(metrics)
    })
    .await;
    let overload = dropped(&metrics, "overload");
    let rejected = [("protocol", "udp"), ("reason", "overloaded")];
    assert_eq!(metrics.count_where("tidegauge_readings_rejected_total", &rejected), overload);
}

#[tokio::test]
async fn gaps_in_the_numbers_of_a_device_are_counted() {
    let server = Server::start(Setup::sqlite()).await;
    let sender = Sender::to(server.udp_addr());
    for (device, numbers) in [("a", &[1, 2, 5, 6, 69][..]), ("b", &[110, 111, 111, 3, 5, 4, 7, 69])] {
        for seq in numbers {
            sender.send(json!({ "deviceId": device, "seq": seq, "ts": START_MS, "value": 1 }).to_string());
        }
    }
    sender.send("value,device=a seq=100,value=1");
    let metrics = received(&server, 14).await;
    assert_eq!(metrics.count(GAPS), 2, "3 and 4 of a; b has restarted, and its 4 came late");
}

#[tokio::test]
async fn ipv6_is_served_too() {
    if UdpSocket::bind("[::1]:0").is_err() {
        eprintln!("this machine has no IPv6");
        return;
    }
    let server = Server::start(Setup::sqlite().set("udp.listen", "[::1]:0")).await;
    let sender = Sender::to(server.udp_addr());
    sender.send(json!({ "deviceId": "a", "ts": START_MS, "value": 1 }).to_string());
    received(&server, 1).await;
    assert_eq!(values(&server, "a", "value").await, [1.0]);
}

#[tokio::test]
async fn datagrams_received_before_a_clean_stop_are_stored() {
    const COUNT: u64 = BUFFERED as u64;
    let mut server = Server::start(Setup::sqlite()).await;
    let sender = Sender::to(server.udp_addr());
    for at in 0..COUNT {
        let ts = START_MS + i64::try_from(at).expect("small");
        sender.send(json!({ "deviceId": "a", "ts": ts, "value": 1 }).to_string());
    }
    let status = server.terminate().await;
    assert_eq!(status.code(), Some(0), "{}", server.log());
    server.start_again().await;
    assert_eq!(server.metrics().await.count("tidegauge_readings_recovered_total"), 0);
    let path = format!("/v1/devices/a/rollups?from={START_MS}&to={}", START_MS + 3_600_000);
    assert_eq!(server.get_json(&path).await["metrics"]["value"][0]["count"], COUNT);
}

#[tokio::test]
async fn udp_can_be_off_and_does_not_share_its_address() {
    let off = Server::start(Setup::sqlite().set("udp.listen", "off")).await;
    assert!(off.first_line().contains(" udp=off "), "{}", off.first_line());

    let server = Server::start(Setup::sqlite()).await;
    let data = TempDir::new().expect("a temporary folder");
    let (address, data) = (server.udp_addr().to_string(), data.path().to_str().expect("UTF-8"));
    let second = run(&["serve", "--http", "127.0.0.1:0", "--udp", &address, "--data-dir", data]).await;
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.stderr.contains("udp.listen") && second.stderr.contains(&address), "{second:?}");
}

/// A socket that counts what it sends.
pub(crate) struct Sender {
    socket: UdpSocket,
    sent: std::cell::Cell<u64>,
    sent_bytes: std::cell::Cell<u64>,
}

impl Sender {
    pub(crate) fn to(address: SocketAddr) -> Self {
        let local = SocketAddr::new(address.ip(), 0);
        let socket = UdpSocket::bind(local).expect("a free port");
        socket.connect(address).expect("a local address");
        Self { socket, sent: 0.into(), sent_bytes: 0.into() }
    }

    pub(crate) fn send(&self, datagram: impl AsRef<[u8]>) {
        let datagram = datagram.as_ref();
        self.socket.send(datagram).expect("the loopback takes it");
        self.sent.update(|sent| sent + 1);
        self.sent_bytes.update(|bytes| bytes + datagram.len() as u64);
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent.get()
    }

    fn sent_bytes(&self) -> u64 {
        self.sent_bytes.get()
    }
}

fn dropped(metrics: &Metrics, reason: &str) -> u64 {
    metrics.count_where("tidegauge_udp_dropped_total", &[("reason", reason)])
}

/// Waits until the server has received this many datagrams and counted their readings.
pub(crate) async fn received(server: &Server, datagrams: u64) -> Metrics {
    wait_until("the datagrams are received", async || {
        (server.metrics().await.count(DATAGRAMS) == datagrams).then_some(())
    })
    .await;
    // Datagrams count last. An answer of /metrics is no snapshot, so only the next one has all that came
    // before.
    server.metrics().await
}

/// The values of a metric of a device in the first hour, by time.
async fn values(server: &Server, device: &str, metric: &str) -> Vec<f64> {
    let path = format!("/v1/devices/{device}/readings?from={START_MS}&to={}&metric={metric}", START_MS + 3_600_000);
    let readings = server.get_json(&path).await;
    let readings = readings["readings"].as_array().expect("readings");
    readings.iter().map(|reading| reading["values"][metric].as_f64().expect("a number")).collect()
}
