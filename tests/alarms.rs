//! Alarms: limits in the metadata of devices, `GET /metrics/latest`, and the rules of `deploy` in a real
//! Prometheus.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::harness::{Database, Metrics, Server, Setup, now_ms, wait_until};

/// The metrics of `/metrics/latest` with their labels. `hall` and `side` are those of examples.
pub(crate) const LATEST_METRICS: [(&str, &[&str]); 4] = [
    ("tidegauge_latest_value", &["device", "metric", "series", "hall", "side"]),
    ("tidegauge_latest_age_seconds", &["device", "metric", "series", "hall", "side"]),
    ("tidegauge_latest_limit", &["device", "metric", "bound"]),
    ("tidegauge_latest_limits_invalid", &["device"]),
];

#[tokio::test]
async fn values_beyond_the_limits_of_their_device_say_so_in_every_store() {
    let databases = [Database::new(), Database::new(), Database::new()];
    let setups = [
        Setup::sqlite(),
        Setup::mongodb(&databases[0]),
        Setup::packed(&databases[1]),
        Setup::timeseries(&databases[2]),
    ];
    for setup in setups {
        let server = Server::start(setup).await;
        let limits = json!({ "level": { "min": 20 }, "temp": { "min": -5, "max": 80 }, "typo": { "hihg": 1 } });
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
                r#"tidegauge_latest_limits_invalid{device="TANK-1"} 1.0"#,
            ] {
                assert!(text.lines().any(|known| known == line), "{line}: {text}");
            }
            assert_eq!(text.lines().filter(|line| line.starts_with("tidegauge_")).count(), 10, "{text}");
            let age = Metrics::parse(text).value("tidegauge_latest_age_seconds").expect("ages of one instant");
            assert!((60.0..3_600.0).contains(&age), "{age}");
        }
    }
}

#[tokio::test]
async fn promtool_accepts_the_latest_values_whatever_their_names() {
    let server = Server::start(Setup::sqlite().set("query.max_devices", 3)).await;
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

    let mut promtool = Command::new(crate::deploy::promtool_path());
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
    assert_eq!(server.ingest(&json!({ "deviceId": "c", "value": 1 })).await.status, 200);
    let refused = server.get("/metrics/latest").await;
    assert_eq!(refused.status, 400, "an answer without some devices would end their alerts: {}", refused.text());
    assert!(refused.text().contains("more than 3 devices match (query.max_devices)"), "{}", refused.text());
    assert_eq!(devices("prefix=a:").await, 2);
    for (query, why) in [
        ("label=device", "cannot be the name of a label"),
        ("label=a.b&label=a_b", "is the name of another label too"),
        ("limit=1", "no such parameter"),
    ] {
        let refused = server.get(&format!("/metrics/latest?{query}")).await;
        assert!(refused.status == 400 && refused.text().contains(why), "{query}: {}", refused.text());
    }
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
