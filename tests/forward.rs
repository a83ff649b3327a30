//! Forwarding between two real processes: exactness, outages, bandwidth, refusals, rights. `faults` has the
//! kills, and `tls` the certificates.

pub(crate) mod relay;

use std::io::{Read, Write};
use std::time::Instant;

use serde_json::{Value, json};

use crate::harness::{Database, Finished, Server, Setup, now_ms, run, secret_of, wait_until};
use relay::Relay;

/// 2024-04-20T14:00:00Z.
const START_MS: i64 = 1_713_621_600_000;
const HOUR_S: i64 = 3_600;

/// A server that forwards to a URL.
pub(crate) fn to(url: &str) -> Setup {
    Setup::sqlite().set("forward.url", url)
}

/// Waits until a server has forwarded all that it has accepted, or that was refused.
pub(crate) async fn forwarded(server: &Server) {
    wait_until("all is forwarded", async || {
        let metrics = server.metrics().await;
        let passed =
            metrics.count("tidegauge_forward_readings_total") + metrics.count("tidegauge_forward_refused_total");
        let is_behind = metrics.count("tidegauge_forward_lag_bytes") > 0;
        (!is_behind && passed >= metrics.count("tidegauge_readings_accepted_total")).then_some(())
    })
    .await;
}

/// Readings of a device, one a second from `from_s` after the start.
fn readings(device: &str, from_s: i64, count: i64) -> Value {
    let reading = |second| json!({ "ts": START_MS + second * 1_000, "value": second });
    json!({ "deviceId": device, "readings": (from_s..from_s + count).map(reading).collect::<Vec<_>>() })
}

async fn number_of_readings(server: &Server, device: &str) -> usize {
    let range = "from=2023-01-01T00:00:00Z&to=2033-01-01T00:00:00Z&limit=10000";
    let answer = server.get(&format!("/v1/devices/{device}/readings?{range}")).await;
    if answer.status == 404 { 0 } else { answer.json()["readings"].as_array().map_or(0, Vec::len) }
}

#[tokio::test]
async fn the_centre_has_each_reading_exactly_as_it_was_accepted() {
    let centre = Server::start(Setup::sqlite()).await;
    let tenant = "scopes = ['ingest', 'query']\ndevice_prefix = 'acme/'";
    let all = "scopes = ['ingest', 'query', 'admin']";
    let edge = Server::start(to(centre.url()).token("tenant", tenant).token("operator", all)).await;
    let bodies = [
        r#"{"deviceId":"S1","ts":1713621600000,"value":-0.0,"metadata":{"floor":2,"é":["x",1e2]}}"#,
        r#"{"deviceId":"S1","ts":1713621600001,"values":{"temp":0.1,"tiny":5e-324,"huge":1.7976931348623157e308}}"#,
        r#"{"deviceId":"s1","ts":1713621600003,"values":{"odd \"name\"":9007199254740993}}"#,
        r#"{"deviceId":"S1","ts":1713621600002,"value":1,"labels":{"axis":"x,y","p":"C:\\"},"unit":"°C"}"#,
        r#"{"deviceId":"S2","metadata":{"floor":3},"readings":[{"ts":1713621600000,"value":1},
            {"ts":1713621600000,"value":2}]}"#,
    ];
    for body in bodies {
        for token in ["operator", "tenant"] {
            let request = edge.request(reqwest::Method::POST, "/v1/readings").bearer_auth(secret_of(token));
            let answer = edge.send(request.header("content-type", "application/json").body(body)).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }
    let lines = "cpu,host=S3,core=0 idle=1.5,busy=-0 1713621600000\n";
    let request = edge.request(reqwest::Method::POST, "/api/v2/write?precision=ms").bearer_auth(secret_of("operator"));
    assert_eq!(edge.send(request.body(lines)).await.status, 204);
    forwarded(&edge).await;
    edge.settled().await;
    centre.settled().await;

    let range = "from=2024-04-20T00:00:00Z&to=2024-04-21T00:00:00Z";
    let of_device = |device: &str| format!("/v1/devices/{device}/readings?{range}");
    let influxql = "/query?db=plant&q=SELECT+mean(idle)+FROM+cpu";
    let of_all = ["/v1/devices".to_owned(), format!("/v1/rollups?prefix=&{range}"), influxql.to_owned()];
    let devices = ["S1", "s1", "S2", "S3", "acme%2FS1", "acme%2Fs1", "acme%2FS2"];
    for path in devices.map(of_device).into_iter().chain(of_all) {
        let request = edge.request(reqwest::Method::GET, &path).bearer_auth(secret_of("operator"));
        let (here, there) = (edge.send(request).await, centre.get(&path).await);
        assert_eq!((here.status, there.status), (200, 200), "{path}: {} {}", here.text(), there.text());
        assert_eq!(here.text(), there.text(), "{path}");
    }
    let answer = centre.get(&of_device("S1")).await;
    assert!(answer.text().contains("-0.0") && answer.text().contains(r"value{axis=x\\,y"), "{}", answer.text());
    let answer = centre.get(influxql).await;
    assert!(answer.text().contains(r#""name":"cpu""#) && answer.text().contains("1.5"), "{}", answer.text());
}

#[tokio::test]
async fn the_log_keeps_hours_of_an_outage_and_the_centre_catches_up() {
    let relay = Relay::start().await;
    let setup = to(relay.url()).set("log.segment_bytes", "64KiB").set("ingest.max_future", "1d");
    let mut edge = Server::start_with_clock(setup).await;
    let mut sent = 0;
    for hour in 0..6 {
        edge.clock().set(hour * HOUR_S);
        for part in 0..5 {
            edge.accepts(&readings("S1", hour * HOUR_S + part * 700, 700)).await;
            sent += 700;
        }
        if hour == 3 {
            assert_eq!(edge.terminate().await.code(), Some(0)); // it stores all, and forwards nothing
            edge.start_again().await;
        }
    }
    edge.settled().await;
    // After a start the lag grows with the monotonic clock, which stays real here.
    let metrics = wait_until("the lag is that of the outage before the restart, and covers the log", async || {
        let metrics = edge.metrics().await;
        let has_failed = metrics.count_where("tidegauge_forward_errors_total", &[("reason", "connection")]) > 0;
        let lag_s = metrics.value("tidegauge_forward_lag_seconds")?;
        let covers_log = metrics.count("tidegauge_forward_lag_bytes") > 300 << 10;
        (has_failed && covers_log && lag_s >= 3.0 * HOUR_S as f64).then_some(metrics)
    })
    .await;
    let kept = metrics.count("tidegauge_log_bytes");
    assert!(kept > 300 << 10, "{kept} bytes are kept");
    assert_eq!(metrics.count("tidegauge_readings_recovered_total"), 0, "the store does not get them again");
    assert_eq!(edge.get_json("/readyz").await["status"], "ok", "the edge is ready");

    let centre = Server::start(Setup::sqlite()).await;
    relay.lead_to(Some(centre.http_addr()));
    forwarded_to(&edge, &centre, "S1", sent).await;
    wait_until("the log is cut", async || {
        (edge.metrics().await.count("tidegauge_log_bytes") < 100 << 10).then_some(())
    })
    .await;
    edge.logged("readings are forwarded again").await;
    assert_eq!(edge.metrics().await.value("tidegauge_forward_lag_seconds"), Some(0.0));
}

#[tokio::test]
async fn a_site_whose_position_file_is_removed_forwards_all_that_its_log_has() {
    let mut edge = Server::start(to("http://127.0.0.1:9").set("log.segment_bytes", "64KiB")).await;
    for part in 0..4 {
        edge.accepts(&readings("S1", part * 2_000, 2_000)).await;
    }
    edge.settled().await;
    assert_eq!(edge.terminate().await.code(), Some(0)); // it stores all, and forwards nothing
    std::fs::remove_file(edge.data_dir().join("log/follower")).expect("the forwarder has a position");
    let centre = Server::start(Setup::sqlite()).await;
    edge.start_again_with(to(centre.url()).set("log.segment_bytes", "64KiB")).await;
    forwarded_to(&edge, &centre, "S1", 8_000).await;
    assert_eq!(edge.metrics().await.count("tidegauge_readings_recovered_total"), 0, "the store has them already");
}

/// Waits until the lag is over, and checks the number of readings at the centre.
async fn forwarded_to(edge: &Server, centre: &Server, device: &str, count: usize) {
    wait_until("the lag is over", async || {
        (edge.metrics().await.count("tidegauge_forward_lag_bytes") == 0).then_some(())
    })
    .await;
    let metrics = centre.settled().await;
    assert_eq!(metrics.count("tidegauge_readings_stored_total"), count as u64);
    let mut found = 0;
    for hour in 0..24 {
        let (from, to) = (START_MS + hour * HOUR_S * 1_000, START_MS + (hour + 1) * HOUR_S * 1_000);
        let path = format!("/v1/devices/{device}/readings?from={from}&to={to}&limit=10000");
        found += centre.get_json(&path).await["readings"].as_array().map_or(0, Vec::len);
    }
    assert_eq!(found, count);
}

#[tokio::test]
async fn the_bodies_stay_within_the_bandwidth() {
    const RATE: f64 = 100_000.0;
    let centre = Server::start(Setup::sqlite()).await;
    let setup = to(centre.url()).set("forward.max_bytes_per_second", "100kB").set("forward.max_batch_bytes", "16KiB");
    let edge = Server::start(setup).await;
    let began = Instant::now();
    for batch in 0..10 {
        let reading = |at: i64| json!({ "ts": START_MS + batch * 10_000 + at, "value": rand::random::<f64>() });
        edge.accepts(&json!({ "deviceId": "S1", "readings": (0..3_000).map(reading).collect::<Vec<_>>() })).await;
    }
    forwarded(&edge).await;
    let (took, bytes) = (began.elapsed(), edge.metrics().await.count("tidegauge_forward_bytes_total") as f64);
    assert!(bytes > 3.0 * RATE, "{bytes} bytes are too few for this test");
    let at_once = RATE + 16_384.0; // the bytes of a second, and a body
    assert!(bytes <= RATE * took.as_secs_f64() + at_once, "{bytes} bytes in {took:?}");
    assert_eq!(centre.settled().await.count("tidegauge_readings_stored_total"), 30_000);
}

#[tokio::test]
async fn readings_that_the_centre_refuses_for_good_hold_up_no_others() {
    let mut centre =
        Server::start(Setup::sqlite().set("retention.readings", "1d").set("retention.rollups", "1d")).await;
    let relay = Relay::start().await;
    relay.lead_to(Some(centre.http_addr()));
    let edge = Server::start(to(relay.url())).await;
    let now_ms = now_ms(); // the centre accepts readings of the last day only
    let reading = |at: i64| json!({ "ts": if at % 6 == 0 { now_ms - at } else { START_MS + at }, "value": at });
    edge.accepts(&json!({ "deviceId": "S1", "readings": (0..600).map(reading).collect::<Vec<_>>() })).await;
    edge.accepts(&readings("S2", 0, 7)).await;
    forwarded(&edge).await;
    let metrics = edge.metrics().await;
    let refused = |reason| metrics.count_where("tidegauge_forward_refused_total", &[("reason", reason)]);
    assert_eq!((refused("timestamp_too_old"), metrics.count("tidegauge_forward_refused_total")), (507, 507));
    assert_eq!(metrics.count("tidegauge_readings_dead_lettered_total"), 0, "the store has refused nothing");
    assert_eq!(centre.settled().await.count("tidegauge_readings_stored_total"), 100);
    edge.logged("readings are refused where they are forwarded to").await;

    let listed = dead_letters(&edge, &["list", "--forward"]).await;
    assert!(
        listed.stdout.ends_with(" with 507 readings\n") && listed.stdout.contains("timestamp_too_old"),
        "{listed:?}"
    );
    assert_eq!(dead_letters(&edge, &["list"]).await.stdout, "0 dead letters with 0 readings\n");

    // A deletion removes dead letters too, also while the centre is away and readings before it are not sent.
    relay.lead_to(None);
    edge.accepts(&readings("S3", 0, 1)).await;
    let deleted = edge.send(edge.request(reqwest::Method::DELETE, "/v1/devices/S2")).await;
    assert_eq!((deleted.status, deleted.json()), (200, json!({ "deleted": 7 })));
    let listed = dead_letters(&edge, &["list", "--forward"]).await;
    assert!(listed.stdout.ends_with(" with 500 readings\n"), "{listed:?}");

    // Once the centre accepts them, they are sent again.
    centre.kill9();
    centre.start_again_with(Setup::sqlite()).await;
    relay.lead_to(Some(centre.http_addr()));
    let retried = dead_letters(&edge, &["retry", "--forward", "--url", edge.url()]).await;
    assert_eq!(retried.code, Some(0), "{retried:?}");
    wait_until("the centre has all", async || (number_of_readings(&centre, "S1").await == 600).then_some(())).await;
    edge.settled().await;
}

#[tokio::test]
async fn a_site_that_no_longer_forwards_deletes_its_old_dead_letters() {
    let letter = |device: &str| {
        let head =
            format!(r#""refusedAt":"2024-04-20T14:00:00.000Z","reason":"internal","detail":"","deviceId":"{device}""#);
        format!("{{{head},\"readings\":[{{\"ts\":{START_MS},\"values\":{{\"value\":1}}}}]}}\n")
    };
    let fill = |data_dir: &std::path::Path| {
        std::fs::create_dir_all(data_dir).expect("our folder");
        std::fs::write(data_dir.join("forward-dead-letters.ndjson"), letter("S1") + &letter("S2")).expect("our folder");
    };
    let site = Server::start_with_data(Setup::sqlite(), fill).await;
    let deleted = site.send(site.request(reqwest::Method::DELETE, "/v1/devices/S1")).await;
    assert_eq!((deleted.status, deleted.json()), (200, json!({ "deleted": 0 })));
    let listed = dead_letters(&site, &["list", "--forward"]).await;
    assert!(
        listed.stdout.contains(" S2 1 reading internal") && listed.stdout.ends_with("1 dead letter with 1 reading\n")
    );
}

/// The value of the device `S1` at the start.
async fn value_at_start(server: &Server) -> Option<f64> {
    let readings = server.readings("S1").await;
    assert!(readings.as_array().is_some_and(|readings| readings.len() == 1), "{readings}");
    readings[0]["values"]["value"].as_f64()
}

/// A value that the centre refused at first, and one or two that devices send afterwards, of which the last
/// one stays at a site with this configuration.
async fn repeats(site: Setup, values: &[f64], last: f64) {
    let mut centre =
        Server::start(Setup::sqlite().set("retention.readings", "1d").set("retention.rollups", "1d")).await;
    let relay = Relay::start().await;
    relay.lead_to(Some(centre.http_addr()));
    let edge = Server::start(site.set("forward.url", relay.url())).await;
    let send = async |value: f64| {
        let body = json!({"deviceId": "S1", "metadata": {"sent": value}, "ts": START_MS, "value": value});
        edge.accepts(&body).await;
        forwarded(&edge).await;
        edge.settled().await;
    };
    send(values[0]).await;
    assert_eq!(edge.metrics().await.count("tidegauge_forward_refused_total"), 1);
    centre.kill9();
    centre.start_again_with(Setup::sqlite()).await;
    relay.lead_to(Some(centre.http_addr()));
    for value in &values[1..] {
        send(*value).await;
    }
    let retried = dead_letters(&edge, &["retry", "--forward", "--url", edge.url()]).await;
    let is_older = last.to_bits() != values[0].to_bits();
    let told =
        if is_older { "0 readings accepted, 1 reading older" } else { "1 reading accepted, 0 dead letters kept" };
    assert!(retried.code == Some(0) && retried.stdout.starts_with(told), "{values:?}: {retried:?}");
    forwarded(&edge).await;
    for server in [&edge, &centre] {
        server.settled().await;
        assert_eq!(value_at_start(server).await, Some(last), "{values:?}");
    }
    let metadata = edge.get_json("/v1/devices/S1").await["metadata"].take();
    assert_eq!(centre.get_json("/v1/devices/S1").await["metadata"], metadata, "{values:?}");
}

#[tokio::test]
async fn a_repeated_letter_replaces_no_later_value_at_the_site_and_at_the_centre() {
    let [readable, packed, series] = [Database::new(), Database::new(), Database::new()];
    let sites = [Setup::sqlite(), Setup::mongodb(&readable), Setup::packed(&packed)];
    for site in sites {
        repeats(site.clone(), &[1.0, 2.0], 2.0).await;
    }
    repeats(Setup::sqlite(), &[1.0], 1.0).await;
    repeats(Setup::sqlite(), &[1.0, 2.0, 1.0], 1.0).await;
    repeats(Setup::timeseries(&series), &[1.0], 1.0).await;
}

async fn dead_letters(server: &Server, args: &[&str]) -> Finished {
    let data_dir = server.data_dir().display().to_string();
    run(&[&["dead-letters"], args, &["--data-dir", &data_dir]].concat()).await
}

/// The URL of a server that answers each request with one `100 Continue` after the other.
///
/// An answer before the request would end the connection.
fn endless_answers() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.expect("a connection");
            let many = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1_000);
            std::thread::spawn(move || {
                let asked = connection.read_exact(&mut [0]);
                while asked.is_ok() && connection.write_all(&many).is_ok() {}
            });
        }
    });
    url
}

/// The processor time of the threads of a server with this name, in hundredths of a second.
fn ticks_of(server: &Server, name: &str) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.id())).expect("our child");
    let of_thread = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(thread.ok()?.path().join("stat")).ok()?;
        let (start, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<u64> = rest.split(' ').skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
        start.ends_with(&format!("({name}")).then(|| fields.iter().sum::<u64>())
    };
    threads.filter_map(of_thread).sum()
}

#[tokio::test]
async fn an_endless_answer_keeps_no_thread_busy_but_that_of_forwarding() {
    let server = Server::start(to(&endless_answers())).await;
    let since_start = ["forward", "tokio-rt-worker"].map(|name| (name, ticks_of(&server, name)));
    server.accepts(&readings("a", 0, 10)).await;
    let busy = wait_until("a thread is busy", async || {
        since_start.into_iter().find(|(name, before)| ticks_of(&server, name) >= before + 50)
    })
    .await;
    assert_eq!(busy.0, "forward");
    assert_eq!(server.get("/readyz").await.status, 200);
    assert_eq!(number_of_readings(&server, "a").await, 10);
    assert_eq!(server.metrics().await.count("tidegauge_forward_readings_total"), 0);
}

#[tokio::test]
async fn a_wrong_token_loses_nothing_and_a_right_one_writes_below_its_prefix() {
    let keys = "scopes = ['ingest']\ndevice_prefix = 'site-7/'";
    let setup = Setup::sqlite().token("edge", keys).token("reader", "scopes = ['query']");
    let centre = Server::start(setup.token("operator", "scopes = ['query', 'admin']")).await;
    let mut edge = Server::start(to(centre.url()).set("forward.token", "tg_wrong")).await;
    edge.accepts(&readings("S1", 0, 10)).await;
    let unauthorized = async || {
        let errors = edge.metrics().await;
        errors.count_where("tidegauge_forward_errors_total", &[("reason", "unauthorized")])
    };
    wait_until("the token is refused twice", async || (unauthorized().await >= 2).then_some(())).await;
    let log = edge.logged("readings cannot be forwarded; they wait in the log").await;
    assert!(log.contains("401") && log.contains("reason=\"unauthorized\"") && !log.contains("tg_wrong"), "{log}");
    let metrics = edge.metrics().await;
    assert_eq!(metrics.count("tidegauge_forward_refused_total"), 0);
    assert!(metrics.count("tidegauge_forward_lag_bytes") > 0);

    // A token without the scope is no better. A stop does not wait for any of this.
    edge.start_again_after_stop(to(centre.url()).set("forward.token", secret_of("reader"))).await;
    wait_until("the token is refused", async || {
        let errors = edge.metrics().await;
        (errors.count_where("tidegauge_forward_errors_total", &[("reason", "unauthorized")]) > 0).then_some(())
    })
    .await;

    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("token");
    std::fs::write(&file, secret_of("edge") + "\n").expect("writable");
    let mut token = toml::Table::new();
    token.insert("file".to_owned(), file.display().to_string().into());
    edge.start_again_after_stop(to(centre.url()).set("forward.token", token)).await;
    wait_until("the lag is over", async || {
        (edge.metrics().await.count("tidegauge_forward_lag_bytes") == 0).then_some(())
    })
    .await;
    assert_eq!(centre.settled().await.count("tidegauge_readings_stored_total"), 10);
    let request = centre.request(reqwest::Method::GET, "/v1/devices").bearer_auth(secret_of("operator"));
    assert_eq!(centre.send(request).await.json()["devices"][0]["deviceId"], "site-7/S1");
}

/// The relay is another address of the server.
#[tokio::test]
async fn a_server_that_forwards_to_itself_refuses_its_requests_and_loses_nothing() {
    let relay = Relay::start().await;
    let mut server = Server::start(to(relay.url())).await;
    relay.lead_to(Some(server.http_addr()));
    server.accepts(&readings("S1", 0, 10)).await;
    let log = server.logged("readings cannot be forwarded; they wait in the log").await;
    assert!(log.contains("forward_loop: this server has sent the request itself"), "{log}");
    assert!(log.contains("reason=\"unexpected\""), "{log}");
    let name = server.request(reqwest::Method::PATCH, "/v1/devices/S1/metadata");
    let name = name.header("content-type", "application/json").body(r#"{"name":"Press"}"#);
    assert_eq!(server.send(name).await.status, 200);
    let count_of = async |metric: &str, reason: &str| server.metrics().await.count_where(metric, &[("reason", reason)]);
    wait_until("it is refused again", async || {
        (count_of("tidegauge_forward_errors_total", "unexpected").await >= 3).then_some(())
    })
    .await;
    assert!(count_of("tidegauge_readings_rejected_total", "forward_loop").await >= 3);
    let metrics = server.metrics().await;
    assert_eq!(metrics.count("tidegauge_readings_accepted_total"), 10);
    assert_eq!(metrics.count("tidegauge_forward_readings_total"), 0);
    assert_eq!(metrics.count("tidegauge_forward_refused_total"), 0);

    let centre = Server::start(Setup::sqlite()).await;
    server.start_again_after_stop(to(centre.url())).await;
    wait_until("the metadata arrives, which follows the readings", async || {
        let device = centre.get("/v1/devices/S1").await.json();
        (device["metadata"] == json!({ "name": "Press" })).then_some(())
    })
    .await;
    assert_eq!(number_of_readings(&centre, "S1").await, 10);
}

#[tokio::test]
async fn a_stop_forwards_what_is_left_and_a_start_without_a_url_releases_the_log() {
    let centre = Server::start(Setup::sqlite()).await;
    let mut edge = Server::start(to(centre.url())).await;
    edge.accepts(&readings("S1", 0, 5)).await;
    assert_eq!(edge.terminate().await.code(), Some(0));
    assert_eq!(number_of_readings(&centre, "S1").await, 5);

    let setup = to("http://127.0.0.1:9").set("log.segment_bytes", "64KiB");
    edge.start_again_with(setup.clone()).await;
    for part in 0..4 {
        edge.accepts(&readings("S1", part * 2_000, 2_000)).await;
    }
    edge.settled().await;
    assert_eq!(edge.terminate().await.code(), Some(0));
    let checked = run(&["check", "--log", "--data-dir", &edge.data_dir().display().to_string()]).await;
    assert!(checked.stdout.contains("follower: position"), "{checked:?}");
    edge.start_again_with(Setup::sqlite().set("log.segment_bytes", "64KiB")).await;
    edge.logged("forward.url is no longer set").await;
    wait_until("the log is cut", async || {
        (edge.metrics().await.count("tidegauge_log_bytes") < 100 << 10).then_some(())
    })
    .await;
    assert_eq!(edge.metrics().await.count("tidegauge_forward_lag_bytes"), 0);
}
