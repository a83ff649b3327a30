//! The log names senders of bad data, once a minute for each sender and code.

use std::time::Instant;

use reqwest::Method;
use serde_json::json;

use crate::harness::{Database, Mongod, Server, Setup, secret_of, wait_until};

/// The log lines about refusals with this sender and code.
fn lines<'l>(log: &'l str, sender: &str, code: &str) -> Vec<&'l str> {
    let (sender, code) = (format!(" sender={sender} "), format!(" code=\"{code}\" "));
    log.lines().filter(|line| line.contains(&sender) && line.contains(&code)).collect()
}

/// The maximum number of lines about one sender and code.
fn minutes_since(start: Instant) -> usize {
    1 + (start.elapsed().as_secs() / 60) as usize
}

#[tokio::test]
async fn a_sender_of_bad_readings_is_logged_once_a_minute() {
    let setup = Setup::sqlite().token("operator", "scopes = ['admin']").token("gateway-1", "scopes = ['ingest']");
    let (server, start) = (Server::start(setup).await, Instant::now());
    let send = async |token: &str, path: &str, body: String| {
        let request = server.request(Method::POST, path).bearer_auth(secret_of(token));
        server.send(request.header("content-type", "application/json").body(body)).await.status
    };
    for nth in 0..20 {
        let readings = json!([{ "deviceId": "pump-1", "value": nth }, { "deviceId": "pump-2 ", "value": 1 }]);
        assert_eq!(send("gateway-1", "/v1/readings", readings.to_string()).await, 400);
        assert_eq!(send("gateway-1", "/v1/readings", "{".to_owned()).await, 400);
        assert_eq!(send("gateway-1", "/write", "climate temp".to_owned()).await, 400);
        assert_eq!(send("unknown", "/v1/readings", "{}".to_owned()).await, 401);
    }
    for (sender, code, said) in [
        ("gateway-1", "invalid_device_id", "readings are rejected"),
        ("gateway-1", "invalid_device_id", "example=\"index 1, device pump-2 : a device id must not"),
        ("gateway-1", "invalid_json", "requests are refused"),
        ("gateway-1", "invalid_line", "example=\"line 1: "),
        ("127.0.0.1", "unauthorized", "requests are refused"),
    ] {
        let log = server.logged(&format!("code=\"{code}\"")).await;
        let found = lines(&log, sender, code);
        assert!(found.iter().all(|line| line.contains(said) && line.contains("WARN")), "{found:?}");
        assert!((1..=minutes_since(start)).contains(&found.len()), "{sender} {code} in:\n{log}");
    }
    assert!(!server.log().contains(&secret_of("unknown")));
}

#[tokio::test]
async fn a_sender_of_bad_datagrams_is_logged_once_a_minute() {
    let setup = Setup::sqlite().key("gateway-1", "");
    for (setup, sender) in [(Setup::sqlite(), "127.0.0.1"), (setup, "gateway-1")] {
        let (server, start) = (Server::start(setup).await, Instant::now());
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let key = crate::harness::key_of("gateway-1");
        for _ in 0..20 {
            let lines = b"climate,deviceId=pump-1 temp=22\nclimate temp";
            let signed = [tidegauge::access::sign("gateway-1", &key, lines).as_bytes(), lines].concat();
            socket.send_to(&signed, server.udp_addr()).expect("sent");
        }
        wait_until("all are received", async || {
            (server.metrics().await.count("tidegauge_udp_datagrams_total") == 20).then_some(())
        })
        .await;
        let log = server.logged("readings are rejected").await;
        let found = lines(&log, sender, "invalid_line");
        assert!((1..=minutes_since(start)).contains(&found.len()), "{log}");
        assert!(found[0].contains("example=\"line 2: "), "{log}");
    }
}

#[tokio::test]
async fn a_rejected_value_of_a_datagram_is_logged_under_its_own_sender() {
    let server = Server::start(Setup::sqlite().key("gateway-1", "")).await;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let (key, reading) = (crate::harness::key_of("gateway-1"), br#"{"deviceId":"a","values":{"t":1,"h":"high"}}"#);
    let signed = [tidegauge::access::sign("gateway-1", &key, reading).as_bytes(), reading].concat();
    socket.send_to(&signed, server.udp_addr()).expect("sent");
    let log = server.logged("readings are rejected").await;
    let found = lines(&log, "gateway-1", "invalid_value");
    assert!(found.len() == 1 && found[0].contains("device a: "), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_while_the_store_is_away_are_not_logged_one_by_one() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    let server = Server::start(Setup::mongodb(&database).set("mongodb.timeout", "1s")).await;
    let start = Instant::now();
    mongod.kill9();
    let reading = json!({ "deviceId": "d", "ts": 1_713_621_600_000_i64, "value": 1 });
    assert_eq!(server.ingest(&reading).await.status, 200);
    server.logged("the store is away").await;
    for _ in 0..50 {
        assert_eq!(server.get("/v1/devices/other/latest").await.status, 503);
    }
    let log = server.log();
    assert!(log.matches("queries are not answered").count() <= minutes_since(start), "{log}");
    assert_eq!(log.matches("the store is away").count(), 1, "{log}");
    tokio::task::block_in_place(|| mongod.start_again());
    server.settled().await;
}

#[tokio::test]
async fn the_log_has_why_the_store_failed_a_statement_and_the_answer_has_not() {
    let server = Server::start(Setup::sqlite()).await;
    let file = rusqlite::Connection::open(server.data_dir().join("tidegauge.sqlite")).expect("the file of the server");
    let rename = "PRAGMA busy_timeout = 60000; ALTER TABLE devices RENAME TO hidden";
    file.execute_batch(rename).expect("nobody else writes for long");
    let answer = server.get_json("/query?q=SHOW+MEASUREMENTS").await;
    assert_eq!(answer["results"][0]["error"], "the store does not answer; try again later", "{answer}");
    let log = server.logged("queries are not answered").await;
    let found = lines(&log, "all", "store_unavailable");
    assert!(found.len() == 1 && found[0].contains("no such table") && found[0].contains("request_id="), "{log}");
}

#[tokio::test]
async fn a_request_has_the_id_of_its_traceparent_in_the_answer_and_in_the_log() {
    const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    let server = Server::start(Setup::sqlite().set("telemetry.log_level", "tidegauge::http=debug")).await;
    let valid = format!("00-{ID}-00f067aa0ba902b7-01");
    let ask = async |traceparents: &[&str]| {
        let mut request = server.request(Method::POST, "/v1/readings").header("content-type", "application/json");
        for traceparent in traceparents {
            request = request.header("traceparent", *traceparent);
        }
        let answer = request.body("{").send().await.expect("an answer");
        assert_eq!(answer.status(), 400);
        answer.headers()["x-request-id"].to_str().expect("text").to_owned()
    };
    assert_eq!(ask(&[&valid]).await, ID);
    server.logged(&format!("request_id=\"{ID}\"")).await;
    let log = server.logged("a request was answered").await;
    assert!(lines(&log, "127.0.0.1", "invalid_json")[0].contains(&format!("request_id=\"{ID}\"")), "{log}");
    let long = format!("{valid}-{}", "x".repeat(30_000));
    let mut given = std::collections::BTreeSet::from([ID.to_owned()]);
    for traceparents in [&[][..], &["nonsense"], &[&valid, &valid], &[&long]] {
        let id = ask(traceparents).await;
        assert!(id.len() == 32 && id.bytes().all(|digit| digit.is_ascii_hexdigit()), "{id}");
        assert!(given.insert(id), "a new one each time: {given:?}");
    }
    let answered = server.get("/healthz").await;
    assert!(answered.headers.contains_key("x-request-id"), "{answered:?}");
}
