//! Signed datagrams: the server accepts them and no others.

use std::time::Instant;

use serde_json::{Value, json};
use tidegauge::access::sign;

use super::reload::reload_says;
use super::{devices, reading, setup};
use crate::harness::{Metrics, Server, Setup, key_of, secret_of};
use crate::udp::{BUFFERED, Sender, received};

const TS_MS: i64 = 1_713_621_610_000;

/// A server with a key for all devices and a token for queries.
fn signed() -> Setup {
    setup().token("all", "scopes = ['ingest', 'query']").key("gw-1", "")
}

/// The datagram, signed with the key of this ID.
fn with_key(id: &str, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    [sign(id, &key_of(id), content).as_bytes(), content].concat()
}

fn one(device: &str, value: f64) -> String {
    reading(device, value).to_string()
}

fn rejected(metrics: &Metrics, reason: &str) -> u64 {
    metrics.count_where("tidegauge_readings_rejected_total", &[("protocol", "udp"), ("reason", reason)])
}

fn accepted(metrics: &Metrics) -> u64 {
    metrics.count_where("tidegauge_readings_accepted_total", &[("protocol", "udp")])
}

/// The latest value of a device.
async fn latest(server: &Server, device: &str) -> Value {
    let path = format!("/v1/devices/{}/latest", device.replace('/', "%2F"));
    super::get_json(server, "all", &path).await["metrics"]["value"]["value"].take()
}

#[tokio::test]
async fn signed_datagrams_are_accepted_and_unsigned_ones_are_not() {
    let server = Server::start(signed()).await;
    let sender = Sender::to(server.udp_addr());
    sender.send(with_key("gw-1", one("json", 1.0)));
    sender.send(with_key("gw-1", json!([reading("a", 1.0), reading("b", 2.0)]).to_string()));
    sender.send(with_key("gw-1", format!("{}\n{}\n", one("c", 1.0), one("d", 1.0))));
    sender.send(with_key("gw-1", format!("value,deviceId=line value=3 {TS_MS}000000\n")));
    sender.send(with_key("gw-1", ""));
    for unsigned in [one("e", 1.0), format!("value,deviceId=e value=3 {TS_MS}000000"), String::new()] {
        sender.send(unsigned);
    }
    sender.send(with_key("gw-1", with_key("gw-1", "value,deviceId=twice value=1")));
    let metrics = received(&server, 9).await;
    assert_eq!((accepted(&metrics), rejected(&metrics, "signature_required")), (7, 3));
    assert_eq!(
        metrics.count("tidegauge_udp_malformed_total"),
        4,
        "those, and the one with nothing behind the signature"
    );
    assert_eq!(devices(&server, "all", "").await, ["a", "b", "c", "d", "json", "line", "twice"]);
}

#[tokio::test]
async fn changed_cut_and_forged_datagrams_are_refused() {
    let server = Server::start(signed().key("gw-2", "").key("old", "expires = 2020-01-01T00:00:00Z")).await;
    let sender = Sender::to(server.udp_addr());
    let lines = format!("value,deviceId=a value=1 {TS_MS}000000\n");
    let mut forged = Vec::new();
    for good in [with_key("gw-1", one("a", 1.0)), with_key("gw-1", &lines)] {
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut flipped = good.clone();
                flipped[at] ^= 1 << bit;
                forged.push(flipped);
            }
            forged.push(good[..at].to_vec());
        }
        forged.push([&good[..], b"\n"].concat());
    }
    let line = |id: &str, secret: &str| sign(id, &key_of(secret), lines.as_bytes());
    forged.extend(
        [
            line("gw-1", "gw-2"),             // the secret of another key
            line("gw-2", "gw-1"),             // the id of another key
            line("gw-3", "gw-1"),             // an id that is not known
            line(&"x".repeat(33), "gw-1"),    // longer than any id
            line(&"x".repeat(5_000), "gw-1"), // much longer
            line("old", "old"),               // good once
            line("old", "gw-1"),              // never
            line("gw-1", "gw-1").replace("#tg1", "#tg2"),
            line("gw-1", "gw-1").replace(' ', "\t"),
            line("gw-1", "gw-1").replace('\n', "\r\n"),
            line("gw-1", "gw-1").to_uppercase(),
            format!("{}{}", line("gw-1", "gw-1"), line("gw-1", "gw-1")),
            "#tg1".to_owned(),
            "#tg1\n".to_owned(),
            "#tg1 gw-1 \n".to_owned(),
            "#tg1 gw-1 \u{0}\u{ff}\n".to_owned(),
            format!("#tg1 gw-1 {}\n", "A".repeat(43)),
        ]
        .map(|line| [line.as_bytes(), lines.as_bytes()].concat()),
    );
    let started = Instant::now();
    for chunk in forged.chunks(BUFFERED / 2) {
        for datagram in chunk {
            sender.send(datagram);
        }
        received(&server, sender.sent()).await;
    }
    let metrics = received(&server, sender.sent()).await;
    let by_reason =
        ["signature_required", "bad_signature", "unknown_key", "expired_key"].map(|reason| rejected(&metrics, reason));
    assert_eq!(by_reason.iter().sum::<u64>(), sender.sent(), "{by_reason:?}");
    assert_eq!(by_reason[3], 1, "only who has the secret is told from others");
    assert!(by_reason.iter().all(|&count| count > 0), "{by_reason:?}");
    assert_eq!((accepted(&metrics), metrics.count("tidegauge_readings_received_total")), (0, sender.sent()));
    assert_eq!(metrics.count("tidegauge_udp_malformed_total"), sender.sent());
    assert_eq!(devices(&server, "all", "").await, [""; 0]);
    let log = server.logged("datagrams are refused").await;
    let minutes = 1 + started.elapsed().as_secs() / 60;
    let told = log.matches("datagrams are refused").count() as u64;
    assert!(told <= minutes * by_reason.len() as u64, "once a minute for each reason: {log}");

    sender.send(with_key("gw-1", &lines));
    received(&server, sender.sent()).await;
    assert_eq!(devices(&server, "all", "").await, ["a"], "what was changed above is good as it is");
}

#[tokio::test]
async fn a_key_writes_only_devices_of_its_patterns_and_prefix() {
    let setup = signed().key("lights", "devices = ['LIGHT-*']").key("acme", "device_prefix = 'acme/'");
    let server = Server::start(setup.token("acme", "scopes = ['query']\ndevice_prefix = 'acme/'")).await;
    let sender = Sender::to(server.udp_addr());
    let line = |device: &str| format!("value,deviceId={device} value=3 {TS_MS}000000");
    sender.send(with_key("lights", [one("LIGHT-1", 1.0), one("PUMP-1", 1.0), one("LIGHT-2", 1.0)].join("\n")));
    sender.send(with_key("lights", [line("PUMP-2"), line("LIGHT-3")].join("\n")));
    sender.send(with_key("lights", one("acme/LIGHT-1", 1.0)));
    sender.send(with_key("acme", [one("LIGHT-1", 7.0), one("../LIGHT-1", 8.0), one("acme/x", 9.0)].join("\n")));
    sender.send(with_key("gw-1", one("PUMP-1", 2.0)));
    let metrics = received(&server, 5).await;
    assert_eq!((accepted(&metrics), rejected(&metrics, "device_forbidden")), (7, 3));
    let all = ["LIGHT-1", "LIGHT-2", "LIGHT-3", "PUMP-1", "acme/../LIGHT-1", "acme/LIGHT-1", "acme/acme/x"];
    assert_eq!(devices(&server, "all", "").await, all);
    assert_eq!(devices(&server, "acme", "").await, ["../LIGHT-1", "LIGHT-1", "acme/x"], "tokens and keys agree");
    assert_eq!((latest(&server, "LIGHT-1").await, latest(&server, "acme/LIGHT-1").await), (json!(1.0), json!(7.0)));
}

#[tokio::test]
async fn a_replay_is_stored_once_and_counts_as_duplicates() {
    const TIMES: u64 = BUFFERED as u64;
    let server = Server::start(signed()).await;
    let sender = Sender::to(server.udp_addr());
    let recorded = with_key("gw-1", one("a", 1.0));
    for _ in 0..TIMES {
        sender.send(&recorded);
    }
    received(&server, TIMES).await;
    let metrics = server.settled().await;
    assert_eq!(accepted(&metrics), TIMES);
    let [stored, duplicates] =
        ["stored", "duplicate"].map(|what| metrics.count(&format!("tidegauge_readings_{what}_total")));
    assert_eq!((stored, duplicates), (1, TIMES - 1));

    sender.send(with_key("gw-1", one("a", 2.0)));
    received(&server, TIMES + 1).await;
    assert_eq!(latest(&server, "a").await, json!(2.0));
    sender.send(&recorded);
    received(&server, TIMES + 2).await;
    assert_eq!(latest(&server, "a").await, json!(1.0), "the value received last stays, as the documentation says");
}

#[tokio::test]
async fn keys_are_replaced_on_sighup_without_a_gap() {
    let server = Server::start(signed()).await;
    let sender = Sender::to(server.udp_addr());
    let send_all = async |value: f64| {
        for id in ["gw-1", "gw-2"] {
            sender.send(with_key(id, one(&format!("by-{id}"), value)));
        }
        received(&server, sender.sent()).await
    };
    let metrics = send_all(1.0).await;
    assert_eq!((accepted(&metrics), rejected(&metrics, "unknown_key")), (1, 1));

    let reload = async |setup: Setup| {
        server.write_config(&setup.or("udp.listen", "127.0.0.1:0").to_toml());
        reload_says(&server, "[auth] was reloaded").await;
    };
    reload(signed().key("gw-2", "")).await;
    let metrics = send_all(2.0).await;
    assert_eq!((accepted(&metrics), rejected(&metrics, "unknown_key")), (3, 1), "both are good");

    let only_new = setup().token("all", "scopes = ['ingest', 'query']").key("gw-2", "");
    reload(only_new).await;
    let metrics = send_all(3.0).await;
    assert_eq!((accepted(&metrics), rejected(&metrics, "unknown_key")), (4, 2));

    let broken = signed().key("gw-1", "").or("udp.listen", "127.0.0.1:0").to_toml();
    server.write_config(&broken);
    reload_says(&server, "auth.keys.id is used by an earlier key").await;
    let metrics = send_all(4.0).await;
    assert_eq!((accepted(&metrics), rejected(&metrics, "unknown_key")), (5, 3), "it changed nothing");
    assert_eq!((latest(&server, "by-gw-1").await, latest(&server, "by-gw-2").await), (json!(2.0), json!(4.0)));
}

#[tokio::test]
async fn a_bad_signature_is_refused_with_anonymous_access_too() {
    let setup = signed().key("acme", "device_prefix = 'acme/'").set("auth.allow_anonymous", true);
    let server = Server::start(setup).await;
    let sender = Sender::to(server.udp_addr());
    sender.send(one("a", 1.0));
    sender.send(with_key("acme", one("b", 1.0)));
    let mut mistyped = with_key("acme", one("c", 1.0));
    *mistyped.last_mut().expect("not empty") = b' ';
    sender.send(mistyped);
    let metrics = received(&server, 3).await;
    assert_eq!((accepted(&metrics), rejected(&metrics, "bad_signature")), (2, 1));
    assert_eq!(devices(&server, "all", "").await, ["a", "acme/b"]);
    server.logged("auth.allow_anonymous admits every client").await;
}

#[tokio::test]
async fn without_keys_signatures_are_neither_needed_nor_checked() {
    let open = Server::start(Setup::sqlite()).await;
    let sender = Sender::to(open.udp_addr());
    sender.send(one("a", 1.0));
    sender.send(with_key("gw-1", one("b", 1.0)));
    sender.send(with_key("gw-1", format!("value,deviceId=c value=3 {TS_MS}000000")));
    sender.send(format!("#tg1 nonsense\n{}", one("d", 1.0)));
    assert_eq!(accepted(&received(&open, 4).await), 4);

    let tokens = Server::start(setup().token("all", "scopes = ['query']")).await;
    let sender = Sender::to(tokens.udp_addr());
    sender.send(one("a", 1.0));
    sender.send(with_key("gw-1", one("b", 1.0)));
    let metrics = received(&tokens, 2).await;
    assert_eq!((accepted(&metrics), rejected(&metrics, "unknown_key")), (1, 1));
    assert_eq!(devices(&tokens, "all", "").await, ["a"]);
}

#[tokio::test]
async fn gaps_are_counted_in_signed_datagrams_by_stored_id() {
    let server =
        Server::start(signed().key("acme", "device_prefix = 'acme/'").key("pumps", "devices = ['PUMP-*']")).await;
    let sender = Sender::to(server.udp_addr());
    let numbered = |seq: u64| json!({ "deviceId": "a", "seq": seq, "ts": TS_MS, "value": 1 }).to_string();
    sender.send(with_key("gw-1", numbered(1)));
    sender.send(numbered(100));
    sender.send(with_key("pumps", numbered(200)));
    sender.send([sign("gw-1", &key_of("acme"), b"").into_bytes(), numbered(300).into_bytes()].concat());
    sender.send(with_key("acme", numbered(400)));
    sender.send(with_key("gw-1", numbered(2)));
    sender.send(with_key("acme", numbered(402)));
    sender.send(with_key("acme", numbered(466)));
    let metrics = received(&server, 8).await;
    assert_eq!(metrics.count("tidegauge_udp_sequence_gaps_total"), 1, "401, of acme's device");
}

#[tokio::test]
async fn no_log_line_holds_a_secret_or_what_a_stranger_wrote_instead() {
    let server = Server::start(signed().set("telemetry.log_level", "tidegauge=trace")).await;
    let sender = Sender::to(server.udp_addr());
    sender.send(with_key("gw-1", one("a", 1.0)));
    sender.send(with_key("gw-2", one("a", 1.0)));
    sender.send(format!("#tg1 {} x\n", key_of("gw-1").expose()));
    received(&server, 3).await;
    reload_says(&server, "[auth] was reloaded").await;
    server.write_config(&format!("[auth]\nkeys = {:?}\n", key_of("gw-1").expose()));
    reload_says(&server, "nothing was reloaded").await;
    server.logged("a datagram is refused").await;
    assert!(!server.log().contains(key_of("gw-1").expose()) && !server.log().contains(&secret_of("all")));
}
