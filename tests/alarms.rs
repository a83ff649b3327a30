//! Alarms: limits in the metadata of devices, `GET /metrics/latest`, and the rules of `deploy` in a real
//! Prometheus.

use std::io::Write;
use std::process::{Command, Stdio};

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Database, Metrics, Server, Setup, fetched, now_ms, secret_of, wait_until};

/// The metrics of `/metrics/latest` with their labels. `hall` and `side` are those of examples.
pub(crate) const LATEST_METRICS: [(&str, &[&str]); 5] = [
    ("tidegauge_latest_value", &["device", "metric", "series", "hall", "side"]),
    ("tidegauge_latest_age_seconds", &["device", "metric", "series", "hall", "side"]),
    ("tidegauge_latest_limit", &["device", "metric", "bound"]),
    ("tidegauge_latest_limits_invalid", &["device"]),
    ("tidegauge_latest_more_metrics", &["device"]),
];

#[tokio::test]
async fn values_beyond_the_limits_of_their_device_say_so_in_every_store() {
    let databases = [Database::new(), Database::new(), Database::new()];
    for setup in Setup::of_each_store(&databases) {
        let server = Server::start(setup).await;
        let limits = json!({ "level": { "min": 20 }, "temp": { "min": -5, "max": 80 }, "typo": { "hihg": 1 },
                             "temp{side=left}": { "max": 1 } });
        let metadata = json!({ "hall": 3, "at": { "row": "A" }, "limits": limits });
        let values = json!({ "level": 12.5, "temp": 81, "temp{side=left}": 80, "typo": 2, "free": -1e9 });
        let reading = json!({ "deviceId": "TANK-1", "ts": now_ms() - 60_000, "metadata": metadata, "values": values });
        assert_eq!(server.ingest(&reading).await.json(), json!({ "accepted": 1 }), "a typo loses no reading");
        assert_eq!(server.ingest(&json!({ "deviceId": "other", "level": 1 })).await.status, 400);
        for is_stored in [false, true] {
            if is_stored {
                server.settled().await;
            }
            let one = server.get_json("/v1/devices/TANK-1/latest").await;
            let list = server.get_json("/v1/latest").await;
            assert_eq!(list["devices"][0]["metrics"], one["metrics"], "stored: {is_stored}");
            let beyond =
                ["level", "temp", "temp{side=left}", "typo", "free"].map(|name| &one["metrics"][name]["beyond"]);
            assert_eq!(beyond, [&json!("min"), &json!("max"), &json!(null), &json!(null), &json!(null)]);

            let page = server.get("/metrics/latest?label=hall&label=at.row&metric=level&metric=temp").await;
            let text = page.text();
            for line in [
                r#"tidegauge_latest_value{device="TANK-1",metric="level",hall="3",at_row="A"} 12.5"#,
                r#"tidegauge_latest_value{device="TANK-1",metric="temp",side="left",hall="3",at_row="A"} 80.0"#,
                r#"tidegauge_latest_limit{device="TANK-1",metric="level",bound="min"} 20.0"#,
                r#"tidegauge_latest_limit{device="TANK-1",metric="temp",bound="max"} 80.0"#,
                r#"tidegauge_latest_limits_invalid{device="TANK-1"} 2.0"#,
            ] {
                assert!(text.lines().any(|known| known == line), "{line}: {text}");
            }
            assert_eq!(text.lines().filter(|line| line.starts_with("tidegauge_")).count(), 10, "{text}");
            let age = Metrics::parse(text).value("tidegauge_latest_age_seconds").expect("ages of one instant");
            assert!((60.0..3_600.0).contains(&age), "{age}");
        }
    }
}

/// A store keeps the metadata of a device longer than its readings.
#[tokio::test]
async fn the_first_value_after_a_long_silence_is_compared_with_the_limits_of_its_device() {
    let mut server = Server::start(Setup::sqlite()).await;
    let metadata = json!({ "limits": { "level": { "min": 20 } } });
    let days_ago = now_ms() - 40 * 86_400_000;
    server
        .accepts(&json!({ "deviceId": "TANK-1", "ts": days_ago, "metadata": metadata, "values": { "level": 30 } }))
        .await;
    server.settled().await;
    assert!(server.terminate().await.success());
    server.start_again_with(Setup::sqlite().all_pending().set("retention.readings", "30d")).await;
    wait_until("the reading has expired", async || (server.readings("TANK-1").await == json!([])).then_some(())).await;
    assert_eq!(server.get_json("/v1/devices/TANK-1/latest").await, json!({ "deviceId": "TANK-1", "metrics": {} }));
    server.accepts(&json!({ "deviceId": "TANK-1", "values": { "level": 10 } })).await;
    let one = server.get_json("/v1/devices/TANK-1/latest").await;
    assert_eq!(one["metrics"]["level"]["beyond"], "min", "{one}");
    assert_eq!(server.get_json("/v1/latest").await["devices"][0]["metrics"], one["metrics"]);
}

/// All devices of a list, from its pages, and the number of the pages.
async fn listed(server: &Server, token: &str, query: &str) -> (Vec<String>, usize) {
    let (mut found, mut pages, mut cursor) = (Vec::new(), 0, String::new());
    loop {
        let request = server.request(Method::GET, &format!("/v1/devices?beyond=limits&{query}{cursor}"));
        let answer = server.send(request.bearer_auth(secret_of(token))).await;
        assert_eq!(answer.status, 200, "{query}: {}", answer.text());
        let page = answer.json();
        let devices = page["devices"].as_array().expect("a list").iter();
        found.extend(devices.map(|device| device["deviceId"].as_str().expect("an ID").to_owned()));
        pages += 1;
        let Some(next) = page["next"].as_str() else { return (found, pages) };
        cursor = format!("&cursor={next}");
    }
}

/// Every 700th of 3,500 devices with limits, and one of a tenant, has a value beyond them.
async fn devices_beyond_their_limits_are_listed_in_pages(setup: Setup) {
    let setup = setup
        .token("operator", "scopes = ['admin', 'ingest', 'query', 'metadata']")
        .token("tenant", "scopes = ['query']\ndevice_prefix = 'n-07'");
    let server = Server::start(setup).await;
    let now = now_ms();
    let devices: Vec<Value> = (0..3_500)
        .map(|nth| {
            let limits = json!({ "t": { "max": 10 }, "hum": { "min": nth % 2 } });
            let value = if nth % 700 == 7 { 11 } else { 10 };
            json!({ "deviceId": format!("n-{nth:04}"), "ts": now, "metadata": { "limits": limits, "odd": nth % 2 },
                    "values": { "t{side=left}": value, "t": 1, "free": 100 } })
        })
        .collect();
    let send = async |method: Method, path: &str, body: &Value| {
        let request = server.request(method, path).bearer_auth(secret_of("operator"));
        server.send(request.header("content-type", "application/json").body(body.to_string())).await
    };
    for some in devices.chunks(500) {
        let answer = send(Method::POST, "/v1/readings", &json!(some)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let all = ["n-0007", "n-0707", "n-1407", "n-2107", "n-2807"].map(str::to_owned).to_vec();
    for is_stored in [false, true] {
        if is_stored {
            server.settled().await;
        }
        let (found, pages) = listed(&server, "operator", "limit=50").await;
        assert_eq!(found, all, "stored: {is_stored}");
        assert_eq!(pages, 2, "one page reads the values of 2,000 to 3,000 devices");
        assert_eq!(listed(&server, "operator", "limit=1").await.0, all);
        assert_eq!(listed(&server, "operator", "prefix=n-1").await, (vec![all[2].clone()], 1));
        assert_eq!(listed(&server, "operator", "prefix=n-1&meta.odd=0").await, (Vec::new(), 1));
        assert_eq!(listed(&server, "operator", "device=n-0707&device=n-0708").await, (vec![all[1].clone()], 1));
        assert_eq!(listed(&server, "operator", "silent_for=1h").await.0, Vec::<String>::new());
        assert_eq!(listed(&server, "tenant", "limit=50").await, (vec!["07".to_owned()], 1));
        let request = server.request(Method::GET, "/v1/latest?beyond=limits&format=csv&metric=t");
        let file = server.send(request.bearer_auth(secret_of("operator"))).await;
        let rows: Vec<&str> = file.text().lines().collect();
        assert_eq!(rows.len(), 1 + 2 * all.len(), "a file has all pages: {}", file.text());
        let ends = [",t,1.0,,false", ",t{side=left},11.0,max,false"];
        assert!(rows[1].ends_with(ends[0]) && rows[2].ends_with(ends[1]), "{}", file.text());
    }
    // An operator decides: another limit, or none.
    let patch = json!({ "limits": { "t": { "max": 12 } } });
    assert_eq!(send(Method::PATCH, "/v1/devices/n-0707/metadata", &patch).await.status, 200);
    let patch = json!({ "limits": { "t": { "max": 12 }, "free": { "max": 99 } } });
    assert_eq!(send(Method::PATCH, "/v1/devices/n-0708/metadata", &patch).await.status, 200);
    let expected = ["n-0007", "n-0708", "n-1407", "n-2107", "n-2807"].map(str::to_owned).to_vec();
    assert_eq!(listed(&server, "operator", "limit=50").await.0, expected);
}

#[tokio::test]
async fn devices_beyond_their_limits_are_listed_in_pages_in_sqlite() {
    devices_beyond_their_limits_are_listed_in_pages(Setup::sqlite()).await;
}

#[tokio::test]
async fn devices_beyond_their_limits_are_listed_in_pages_in_mongodb() {
    let databases = [Database::new(), Database::new(), Database::new()];
    devices_beyond_their_limits_are_listed_in_pages(Setup::mongodb(&databases[0])).await;
    devices_beyond_their_limits_are_listed_in_pages(Setup::packed(&databases[1])).await;
    devices_beyond_their_limits_are_listed_in_pages(Setup::timeseries(&databases[2])).await;
}

#[tokio::test]
async fn another_word_than_limits_is_refused() {
    let server = Server::start(Setup::sqlite()).await;
    for path in ["/v1/devices", "/v1/latest"] {
        let refused = server.get(&format!("{path}?beyond=max")).await;
        assert_eq!((refused.status, &refused.json()["detail"]), (400, &json!("beyond: expected limits")));
    }
}

#[tokio::test]
async fn promtool_accepts_the_latest_values_whatever_their_names() {
    let server = Server::start(Setup::sqlite().set("query.max_devices", 2)).await;
    let values = json!({ "plain": 1, "a\"b\\c": 2, "größe in °C": 3, "v{a.b=1}": 4, "v{a_b=1}": 5, "v{device=\"\\}}": 6,
                         "v{__name__=x}": 7 });
    let metadata = json!({ "note": "a \"quoted\"\nline \\ é", "limits": [1] });
    for device in ["a:1", "a:2", "b"] {
        let reading = json!({ "deviceId": device, "metadata": metadata, "values": values });
        assert_eq!(server.ingest(&reading).await.json()["accepted"], 1);
    }
    let page = server.get("/metrics/latest?label=note").await;
    assert_eq!((page.status, page.header("content-type")), (200, "text/plain; version=0.0.4; charset=utf-8"));
    let text = page.text();
    assert_eq!(text.lines().filter(|line| line.starts_with("tidegauge_latest_value{")).count(), 3 * 7, "{text}");
    let mut samples: Vec<&str> = text.lines().filter_map(|line| line.rsplit_once(' ')).map(|(name, _)| name).collect();
    samples.sort_unstable();
    assert!(samples.is_sorted_by(|a, b| a != b), "two samples of one series: {text}");
    for (name, labels) in LATEST_METRICS {
        assert!(text.contains(&format!("# TYPE {name} gauge\n")) && !labels.is_empty(), "{name}: {text}");
    }
    assert_eq!(text.matches("# TYPE ").count(), LATEST_METRICS.len());

    let mut promtool = Command::new(fetched("get promtool"));
    let promtool =
        promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = promtool.spawn().expect("promtool runs");
    child.stdin.take().expect("piped").write_all(&page.body).expect("promtool reads");
    let output = child.wait_with_output().expect("our child");
    assert!(output.status.success(), "{}{}", text, String::from_utf8_lossy(&output.stderr));

    let devices = async |query: &str| {
        let page = server.get(&format!("/metrics/latest?{query}")).await;
        page.text().lines().filter(|line| line.starts_with("tidegauge_latest_limits_invalid{")).count()
    };
    assert_eq!((devices("prefix=a:").await, devices("device=b").await, devices("meta.note=none").await), (2, 1, 0));
    for (query, why) in [
        ("label=device", "cannot be the name of a label"),
        ("label=a.b&label=a_b", "is the name of another label too"),
        ("limit=1", "no such parameter"),
    ] {
        let refused = server.get(&format!("/metrics/latest?{query}")).await;
        assert!(refused.status == 400 && refused.text().contains(why), "{query}: {}", refused.text());
    }
}

/// Without some devices, an answer would end their alerts. Values and ages alone have fewer bytes.
#[tokio::test]
async fn latest_values_with_more_text_than_300_bytes_for_each_point_are_refused() {
    let server = Server::start(Setup::sqlite().set("query.max_points", 1)).await;
    for device in ["d", "e"] {
        server.accepts(&json!({ "deviceId": device, "ts": now_ms() - 10_000, "value": 1 })).await;
    }
    let refused = server.get("/metrics/latest").await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("more than 300 bytes (300 for each of query.max_points)"), "{}", refused.text());
    assert_eq!(server.get("/metrics/latest?prefix=d").await.status, 200);
}

/// Eleven pages of the devices that are looked at have no device of the hall.
#[tokio::test]
async fn a_device_is_found_by_its_metadata_among_a_hundred_thousand() {
    let setup = Setup::sqlite().all_pending().set("query.timeout", "1h").set("query.catch_up_timeout", "1m");
    let server = Server::start(setup).await;
    for first in [0, 56_000] {
        let reading = |nth: usize| format!(r#"{{"deviceId":"n-{nth:06}","value":1}}"#);
        let readings: Vec<String> = (first..first + 56_000).map(reading).collect();
        let answer = server.post("/v1/readings", "application/x-ndjson", readings.join("\n")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    server.accepts(&json!({ "deviceId": "z", "metadata": { "hall": 3 }, "value": 2 })).await;
    let page = server.get("/metrics/latest?meta.hall=3").await;
    assert_eq!(page.status, 200, "{}", page.text());
    assert!(page.text().contains("tidegauge_latest_value{device=\"z\",metric=\"value\"} 2.0\n"), "{}", page.text());
    assert_eq!(server.get_json("/v1/rollups?combine=true&meta.hall=3").await["devices"], 1);
}

#[tokio::test]
async fn without_its_store_a_server_answers_no_latest_values() {
    let database = Database::new();
    let server = Server::start(Setup::mongodb(&database)).await;
    assert_eq!(server.ingest(&json!({ "deviceId": "stored", "value": 1 })).await.status, 200);
    server.settled().await;
    assert_eq!(server.get("/metrics/latest").await.status, 200);
    drop(database);
    assert_eq!(server.ingest(&json!({ "deviceId": "pending", "value": 1 })).await.status, 200);
    wait_until("the answer says that the store is away", async || {
        let answer = server.get("/metrics/latest").await;
        assert!(answer.status == 503 || answer.text().contains("\"stored\""), "{}", answer.text());
        (answer.status == 503).then_some(())
    })
    .await;
}

/// The newest values that it would have are older than those that were acknowledged.
#[tokio::test]
async fn while_readings_wait_for_pending_a_server_answers_no_latest_values() {
    let setup = Setup::sqlite().set("pending.max_bytes", "16KiB").set("query.catch_up_timeout", "100ms");
    let server = Server::start(setup).await;
    let first_ms = now_ms() - 20_000;
    let send = async |batch: i64| {
        let readings =
            (0..5_000).map(|at| json!({ "deviceId": "d", "ts": first_ms + batch * 5_000 + at, "value": batch }));
        assert_eq!(server.ingest(&readings.collect()).await.status, 200);
    };
    send(0).await;
    server.settled().await;
    let file = rusqlite::Connection::open(server.data_dir().join("tidegauge.sqlite")).expect("the file of the server");
    file.execute_batch("PRAGMA busy_timeout = 60000; BEGIN IMMEDIATE").expect("nobody else writes for long");
    for batch in 1..4 {
        send(batch).await;
    }
    server.logged("pending is full (pending.max_bytes)").await;
    server.accepts(&json!({ "deviceId": "new", "value": 1 })).await;
    let dry_run = server.request(Method::DELETE, "/v1/devices/d?dry_run=true");
    for refused in [
        server.get("/metrics/latest").await,
        server.get("/v1/devices/new").await,
        server.get("/v1/devices/d/metadata").await,
        server.get("/v1/metadata").await,
        server.send(dry_run).await,
    ] {
        // The store answers.
        assert_eq!((refused.status, &refused.json()["code"]), (503, &json!("overloaded")), "{}", refused.text());
    }

    file.execute_batch("ROLLBACK").expect("it has begun");
    server.settled().await;
    assert_eq!(server.get("/v1/devices/new").await.status, 200);
    let page = server.get("/metrics/latest").await;
    assert_eq!(page.status, 200, "{}", page.text());
    assert!(page.text().contains("tidegauge_latest_value{device=\"d\",metric=\"value\"} 3.0\n"), "{}", page.text());
}
