//! The programs in `docs/protocols.md` work: the server accepts what each of them sends.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::harness::{Database, Server, Setup, binary, wait_until};
use crate::udp::Sender;

#[tokio::test]
async fn each_program_sends_what_the_server_accepts() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/protocols.md");
    let page = std::fs::read_to_string(file).expect("there is a page");
    let server = Server::start(Setup::default_config()).await;
    let (http, udp) = (server.url().replace("http://", ""), server.udp_addr());
    let mut accepted = 0;
    for (language, readings) in [("sh", 2), ("python", 1)] {
        let programs: Vec<&str> = blocks(&page, language).collect();
        assert!(!programs.is_empty(), "no program in {language}");
        for program in programs {
            let program = program
                .replace("127.0.0.1:8080", &http)
                .replace("127.0.0.1 8089", &format!("127.0.0.1 {}", udp.port()));
            let program = program.replace("8089", &udp.port().to_string());
            let folder = tempfile::tempdir().expect("a temporary folder");
            run(language, &program, folder.path()).await;
        }
        accepted += readings;
        let what = format!("{accepted} readings, those of the programs in {language} among them");
        let count = async || {
            let metrics = server.metrics().await;
            assert_eq!(metrics.count("tidegauge_readings_rejected_total"), 0, "{language}");
            (metrics.count("tidegauge_readings_accepted_total") == accepted).then_some(())
        };
        wait_until(&what, count).await;
    }
}

/// Clients remove `.` and `..` from paths, so devices with these IDs could not be asked for.
#[tokio::test]
async fn devices_named_by_dots_are_rejected_in_every_format_that_can_name_them() {
    let hooks = ["path = \"/hooks/body\"\ndevice = \"id\"", "path = \"/hooks/query\"\ndevice = \"?id\""];
    let hook = |setup: Setup, keys: &str| setup.webhook(&format!("{keys}\nmetrics = \"value\""));
    let setup = hooks.into_iter().fold(Setup::sqlite(), hook);
    let server = Server::start(hook(setup, "path = \"/hooks/dot\"\ndevice = \"id\"\ndevice_prefix = \".\"")).await;
    let mut count = 0;
    for id in [".", ".."] {
        let json = json!({ "deviceId": id, "value": 1 }).to_string();
        let otlp = json!({ "resourceMetrics": [{
            "resource": { "attributes": [{ "key": "device.id", "value": { "stringValue": id } }] },
            "scopeMetrics": [{ "metrics": [{
                "name": "temp", "gauge": { "dataPoints": [{ "asInt": 1, "timeUnixNano": "1713621610000000000" }] },
            }] }],
        }] });
        for (path, content_type, body) in [
            ("/v1/readings", "application/json", json.clone()),
            ("/v1/readings", "application/x-ndjson", json),
            ("/write", "text/plain", format!("m,device={id} value=1")),
            ("/api/v2/write", "text/plain", format!("m,device={id} value=1")),
            ("/v1/metrics", "application/json", otlp.to_string()),
            ("/hooks/body", "application/json", json!({ "id": id, "value": 1 }).to_string()),
            (&format!("/hooks/query?id={id}"), "application/json", json!({ "value": 1 }).to_string()),
        ] {
            let answer = server.post(path, content_type, body).await;
            assert!([200, 400].contains(&answer.status), "{path}: {}", answer.text());
            assert!(answer.text().contains("must not be"), "{path}: {}", answer.text());
            count += 1;
        }
    }
    let joined = server.post("/hooks/dot", "application/json", json!({ "id": ".", "value": 1 }).to_string()).await;
    assert!(joined.text().contains("must not be"), "{}", joined.text());
    let sender = Sender::to(server.udp_addr());
    sender.send(json!({ "deviceId": "..", "value": 1 }).to_string());
    sender.send("m,device=. value=1");
    let rejected = async || {
        let reason = [("reason", "invalid_device_id")];
        let metrics = server.metrics().await;
        (metrics.count_where("tidegauge_readings_rejected_total", &reason) == count + 3).then_some(metrics)
    };
    let metrics = wait_until("all readings are rejected", rejected).await;
    assert_eq!(metrics.count("tidegauge_readings_accepted_total"), 0);
    let answer = server.get("/v1/devices?device=..").await;
    assert_eq!((answer.status, &answer.json()["code"]), (400, &json!("invalid_parameter")));
    assert_eq!(server.get("/v1/devices?prefix=.").await.status, 200, "IDs may begin with a dot");
}

#[tokio::test]
async fn a_write_with_an_invalid_parameter_counts_as_a_rejected_reading() {
    let hook = "path = \"/hooks/body\"\ndevice = \"id\"\nmetrics = \"value\"";
    let in_path = "path = \"/hooks/of/{deviceId}\"\nmetrics = \"*\"";
    let server = Server::start(Setup::sqlite().webhook(hook).webhook(in_path)).await;
    let paths = [
        ("/v1/readings?partial=x", "application/json"),
        ("/v1/readings?other=x", "application/senml+json"),
        ("/write?precision=sec", "text/plain"),
        ("/api/v2/write?precision=sec", "text/plain"),
        ("/api/v3/write_lp?accept_partial=x", "text/plain"),
        ("/api/v1/write?other=x", "application/x-protobuf"),
        ("/v1/metrics?other=x", "application/json"),
        ("/hooks/body?partial=x", "application/json"),
    ];
    for (path, content_type) in paths {
        let answer = server.post(path, content_type, "m value=1").await;
        assert_eq!(answer.status, 400, "{path}");
    }
    let answer = server.post("/hooks/of/K%FCche", "application/json", "{}").await; // not UTF-8
    assert_eq!((answer.status, &answer.json()["code"]), (400, &json!("invalid_parameter")), "{}", answer.text());
    let metrics = server.metrics().await;
    let rejected = |labels: &[(&str, &str)]| metrics.count_where("tidegauge_readings_rejected_total", labels);
    assert_eq!(rejected(&[("reason", "invalid_parameter")]), 9);
    assert_eq!(rejected(&[("reason", "invalid_parameter"), ("protocol", "influx")]), 3);
    assert_eq!(metrics.count("tidegauge_readings_received_total"), 9);
}

#[tokio::test]
async fn readings_that_overwrite_others_of_their_request_are_counted_and_named() {
    let server = Server::start(Setup::sqlite()).await;
    let at = "2024-04-20T14:00:10.000Z";
    let reading = |device: &str, values: serde_json::Value| json!({ "deviceId": device, "ts": at, "values": values });
    let body = json!([
        reading("a", json!({ "x": 1, "y": 1 })),
        reading("b", json!({ "x": 2 })),
        reading("a", json!({ "y": 1 })), // the same value
        reading("a", json!({ "z": 1, "y": 2 })),
        reading("a", json!({ "y": 3 })),
    ]);
    let answer = server.post("/v1/readings", "application/json", body.to_string()).await;
    let named = json!({ "deviceId": "a", "ts": at, "metric": "y" });
    assert_eq!(answer.json(), json!({ "accepted": 5, "overwritten": 2, "overwrittenReadings": [named, named] }));
    assert_eq!(server.readings("a").await[0]["values"], json!({ "x": 1.0, "y": 3.0, "z": 1.0 }));
    let answer = server.post("/v1/readings", "application/json", reading("a", json!({ "y": 4 })).to_string()).await;
    assert_eq!(answer.json(), json!({ "accepted": 1 }), "an earlier request is not meant");
    let lines = "m,host=c value=1 5\nm,host=c value=2 5\nm,host=c,l=1 value=3 5\n";
    assert_eq!(server.post("/write?precision=s", "text/plain", lines.to_owned()).await.status, 204);
    let joined = "a,host=c b_c=1 5\na_b,host=c c=2 5\na_b_c,host=c value=3 5\na,host=c,l=1 b_c=4 5\n";
    assert_eq!(server.post("/write?precision=s", "text/plain", joined.to_owned()).await.status, 204);
    let metrics = server.metrics().await;
    let overwritten = |protocol| metrics.count_where("tidegauge_readings_overwritten_total", &[("protocol", protocol)]);
    assert_eq!((overwritten("http"), overwritten("influx")), (2, 3), "measurement and field are one name");
}

#[tokio::test]
async fn later_values_of_a_request_are_ignored_in_time_series_mode() {
    let database = Database::new();
    let server = Server::start(Setup::timeseries(&database)).await;
    let reading = |value: u32| json!({ "deviceId": "a", "ts": "2024-04-20T14:00:10Z", "values": { "y": value } });
    let answer = server.ingest(&json!([reading(1), reading(2)])).await;
    assert_eq!(answer.json(), json!({ "accepted": 2, "ignored": 1, "ignoredFields": ["y"] }));
    assert_eq!(server.readings("a").await[0]["values"], json!({ "y": 1.0 }));
    let metrics = server.metrics().await;
    assert_eq!(metrics.count_where("tidegauge_fields_ignored_total", &[("reason", "later_value")]), 1);
    assert_eq!(metrics.count("tidegauge_readings_overwritten_total"), 0);
}

pub(crate) fn blocks<'p>(page: &'p str, language: &str) -> impl Iterator<Item = &'p str> {
    let start = format!("```{language}\n");
    page.match_indices(&start)
        .map(|(at, _)| at + start.len())
        .map(|at| page[at..].split("```").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .into_iter()
}

/// Runs a program, and fails if it does.
pub(crate) async fn run(language: &str, program: &str, folder: &Path) {
    // Without nc, bash sends the datagrams itself. `tidegauge` is the binary under test.
    let nc = "command -v nc >/dev/null || nc() { cat > \"/dev/udp/$3/$4\"; }\ntidegauge() { \"$TIDEGAUGE\" \"$@\"; }";
    let (file, script) = match language {
        "sh" => ("program.sh", format!("{nc}\n. ./program.sh")),
        _ => ("program.py", "python3 program.py".to_owned()),
    };
    std::fs::write(folder.join(file), program).expect("the folder is writable");
    let mut bash = Command::new("bash");
    bash.args(["-ec", &script]).current_dir(folder).env("TIDEGAUGE", binary());
    let output = tokio::task::spawn_blocking(move || bash.output()).await.expect("no panic").expect("bash is there");
    assert!(output.status.success(), "{program}\n{}", String::from_utf8_lossy(&output.stderr));
}
