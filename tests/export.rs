//! `tidegauge export` writes what the server has, `tidegauge import` brings it back to the bit, and an
//! interrupted export or import continues.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::http::{HeaderMap, HeaderValue, Uri};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Database, Finished, Server, Setup, binary, encoded, now_ms, run, secret_of, wait_until};

/// Values that lose bits in careless hands.
const VALUES: [f64; 8] = [0.1, -0.0, 5e-324, f64::MAX, -1.7e-300, 1e21, 1.0 / 3.0, 9_007_199_254_740_991.0];

/// Readings of three devices with labels and metadata.
fn readings() -> Value {
    let mut all = Vec::new();
    for (nth, device) in ["a", "a/1", "b"].into_iter().enumerate() {
        for (at, value) in VALUES.into_iter().enumerate() {
            let ts = 1_776_693_600_000_i64 + 1_700_001 * at as i64;
            let series = format!("x{{core={nth},name=a b}}");
            all.push(json!({"deviceId": device, "ts": ts, "values": {"t": value, (series): -value}}));
        }
    }
    let metadata = json!({"note": "x, \"y\"", "n": [1, 2.5]});
    all.push(json!({"deviceId": "a", "ts": 1_776_710_000_000_i64, "value": 1, "metadata": metadata}));
    json!(all)
}

async fn server_with_readings(setup: Setup) -> Server {
    let server = Server::start(setup).await;
    assert_eq!(server.ingest(&readings()).await.status, 200);
    server
}

async fn export(server: &Server, file: &Path, more: &[&str]) -> Finished {
    let fixed = ["export", "--url", server.url(), "--output", file.to_str().expect("UTF-8")];
    run(&[&fixed[..], more].concat()).await
}

/// The text of a whole export.
async fn exported(server: &Server, format: &str) -> String {
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("out");
    let done = export(server, &file, &["--format", format]).await;
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    fs::read_to_string(&file).expect("it was written")
}

#[tokio::test]
async fn an_export_comes_back_to_the_bit() {
    let server = server_with_readings(Setup::sqlite().all_pending()).await; // pending readings are exported too
    for format in ["ndjson", "csv"] {
        let text = exported(&server, format).await;
        let folder = TempDir::new().expect("a temporary folder");
        let file = folder.path().join(format!("all.{format}"));
        fs::write(&file, &text).expect("the folder is writable");
        let other = Server::start(Setup::sqlite()).await;
        for pass in 1..=2 {
            let done = run(&["import", file.to_str().expect("UTF-8"), "--url", other.url()]).await;
            assert_eq!(done.code, Some(0), "{}", done.stderr);
            let metrics = other.settled().await;
            let rows = text.lines().count() as u64 - u64::from(format == "csv");
            assert_eq!(metrics.count("tidegauge_readings_accepted_total"), pass * rows);
            assert_eq!(exported(&other, format).await, text, "{format}, pass {pass}");
        }
        let metadata = other.get_json("/v1/devices/a").await["metadata"].take();
        assert_eq!(metadata, json!({"n": [1, 2.5], "note": "x, \"y\""}));
    }
}

/// Stores expire whole hours, so the oldest reading of an export is often too old for another server.
#[tokio::test]
async fn a_server_that_refuses_the_oldest_reading_of_a_device_takes_its_metadata() {
    let server = Server::start(Setup::sqlite()).await;
    let metadata = json!({ "name": "Press 3" });
    let readings = [2 * 86_400_000, 1_000].map(|age_ms| json!({ "ts": now_ms() - age_ms, "value": 1 }));
    let body = json!({ "deviceId": "a", "metadata": metadata, "readings": readings });
    assert_eq!(server.ingest(&body).await.status, 200);
    for format in ["ndjson", "csv"] {
        let folder = TempDir::new().expect("a temporary folder");
        let file = folder.path().join("out");
        let done = export(&server, &file, &["--format", format]).await;
        assert_eq!(done.code, Some(0), "{done:?}");
        let other = Server::start(Setup::sqlite().set("retention.readings", "1d")).await;
        let done = run(&["import", file.to_str().expect("UTF-8"), "--url", other.url()]).await;
        let said = "1 rejected (1 timestamp_too_old)";
        assert!(done.code == Some(1) && done.stdout.contains(said), "{done:?}");
        assert_eq!(other.get_json("/v1/devices/a").await["metadata"], metadata, "{format}");
    }
}

#[tokio::test]
async fn an_interrupted_export_continues_to_the_same_bytes() {
    let server = server_with_readings(Setup::sqlite()).await;
    server.settled().await;
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("out");
    for format in ["ndjson", "csv"] {
        let whole = exported(&server, format).await;
        for bytes in [0, 5, 60, whole.len() / 3, whole.len() / 2, whole.len() - 1, whole.len()] {
            fs::write(&file, &whole[..bytes]).expect("the folder is writable");
            let done = export(&server, &file, &["--format", format, "--resume"]).await;
            assert_eq!(done.code, Some(0), "{}", done.stderr);
            assert_eq!(fs::read_to_string(&file).expect("a file"), whole, "{format} from byte {bytes}");
        }
    }
    let done = export(&server, &file, &[]).await;
    assert_eq!(done.code, Some(64), "{}", done.stderr);
    assert!(done.stderr.contains("--resume"), "{}", done.stderr);
}

#[tokio::test]
async fn a_refused_export_says_why_first_and_leaves_no_file() {
    let server = server_with_readings(Setup::sqlite()).await;
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("out");
    for format in ["ndjson", "csv"] {
        let refused = export(&server, &file, &["--from", "yesterday", "--format", format]).await;
        let (said, code) = (refused.stderr.trim_start_matches("tidegauge: "), refused.code);
        assert!(
            said.starts_with("http://") && said.contains("from: expected RFC 3339") && code == Some(64),
            "{refused:?}"
        );
        assert!(!file.exists() && !said.contains("--resume"), "{said}");
    }
    let done = export(&server, &file, &[]).await;
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let refused = export(&server, &file, &["--resume", "--to", "tomorrow"]).await;
    assert_eq!((refused.code, file.exists()), (Some(64), true), "{refused:?}");
    let server = Server::start(Setup::sqlite().token("operator", "scopes = ['query', 'admin']")).await;
    let other = folder.path().join("other");
    let refused = export(&server, &other, &[]).await;
    let said = refused.stderr.trim_start_matches("tidegauge: ");
    assert!(said.contains("401") && said.starts_with("http://") && refused.code == Some(1), "{refused:?}");
    assert!(!other.exists(), "it would block the corrected command");
}

#[tokio::test]
async fn an_export_has_what_was_asked_for() {
    let server = server_with_readings(Setup::sqlite()).await;
    let rows = async |flags: &[&str]| {
        let done = run(&[&["export", "--url", server.url()], flags].concat()).await;
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        done.stdout.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(rows(&["--device", "b", "--device", "a/1"]).await.len(), 2 * VALUES.len());
    assert_eq!(rows(&["--prefix", "a/"]).await.len(), VALUES.len());
    assert_eq!(rows(&["--meta", "note=x, \"y\""]).await.len(), VALUES.len() + 1);
    assert_eq!(rows(&["--metric", "value"]).await.len(), 1);
    let range = ["--from", "2026-04-20T14:00:00.001Z", "--to", "1776697000003", "--device", "b"];
    assert_eq!(rows(&range).await.len(), 2);
    let done = run(&["export", "--url", server.url(), "--from", "soon"]).await;
    assert_eq!((done.code, done.stderr.contains("from")), (Some(64), true), "{}", done.stderr);
}

#[tokio::test]
async fn devices_that_the_server_does_not_have_are_named() {
    let server = server_with_readings(Setup::sqlite()).await;
    let export = async |flags: &[&str]| run(&[&["export", "--url", server.url()], flags].concat()).await;
    let done = export(&["--device", "b", "--device", "unknown", "--device", "TYPO"]).await;
    assert_eq!((done.code, done.stdout.lines().count()), (Some(0), VALUES.len()), "{done:?}");
    let named = ["unknown", "TYPO"].map(|device| format!("the server has no device {device}\n"));
    assert!(named.iter().all(|named| done.stderr.contains(named)), "{done:?}");
    assert!(!done.stderr.contains("no device b"), "{done:?}");
    let done = export(&["--device", "b", "--meta", "note=other"]).await;
    assert_eq!((done.code, &*done.stdout), (Some(0), ""), "{done:?}");
    assert!(done.stderr.contains("the server has no device b with this metadata\n"), "{done:?}");
}

#[tokio::test]
async fn an_export_that_selects_no_device_says_so() {
    let server = server_with_readings(Setup::sqlite()).await;
    let folder = TempDir::new().expect("a temporary folder");
    for (nth, selection) in [["--prefix", "TYPO"], ["--meta", "n=7"]].iter().enumerate() {
        let done = export(&server, &folder.path().join(nth.to_string()), selection).await;
        let said = "tidegauge: the server has no device that --prefix and --meta select\n";
        assert!(done.code == Some(0) && done.stderr.contains(said), "{done:?}");
    }
    let empty = Server::start(Setup::sqlite()).await;
    let done = export(&empty, &folder.path().join("empty"), &[]).await;
    assert!(done.code == Some(0) && done.stderr.contains("tidegauge: the server has no device\n"), "{done:?}");
    let done = export(&server, &folder.path().join("some"), &["--prefix", "a"]).await;
    assert!(done.code == Some(0) && !done.stderr.contains("no device"), "{done:?}");
}

/// A device and an operator may each set as much metadata as a reading may have.
#[tokio::test]
async fn metadata_of_two_authors_keeps_its_authors() {
    let server = Server::start(Setup::sqlite()).await;
    let patch = async |server: &Server, path: &str, change: &Value| {
        let request = server.request(reqwest::Method::PATCH, path).header("content-type", "application/json");
        assert_eq!(server.send(request.body(change.to_string())).await.status, 200);
    };
    let own = json!({ "sent": "s".repeat(4_000) });
    let set = json!({ "limits": { "value": { "max": 30 } }, "set": "o".repeat(4_000) });
    let paths = ["Line 3 / Press", "silent"].map(|device| format!("/v1/devices/{}/metadata", encoded(device)));
    let readings = json!([
        { "deviceId": "Line 3 / Press", "ts": 1_776_693_600_000_i64, "value": 1, "metadata": own },
        { "deviceId": "silent", "ts": 1_776_693_600_000_i64, "value": 40 },
    ]);
    assert_eq!(server.ingest(&readings).await.status, 200);
    for path in &paths {
        patch(&server, path, &set).await;
    }
    for format in ["ndjson", "csv"] {
        let folder = TempDir::new().expect("a temporary folder");
        let file = folder.path().join("out");
        let done = export(&server, &file, &["--format", format]).await;
        assert_eq!((done.code, done.stderr.matches("GET and POST /v1/metadata").count()), (Some(0), 1), "{done:?}");
        let other = Server::start(Setup::sqlite()).await;
        let done = run(&["import", file.to_str().expect("UTF-8"), "--url", other.url()]).await;
        assert_eq!(done.code, Some(0), "{done:?}");
        let lines = server.get("/v1/metadata").await.text().to_owned();
        assert_eq!(other.post("/v1/metadata", "application/x-ndjson", lines).await.status, 200);
        other.settled().await;
        for (path, own) in paths.iter().zip([&own, &Value::Null]) {
            let [here, there] = [server.get_json(path).await, other.get_json(path).await];
            assert_eq!(here, there);
            assert_eq!(there["sentByDevice"], *own);
        }
        patch(&other, &paths[1], &json!({ "limits": null, "set": null })).await;
        assert_eq!(other.get_json(&paths[1]).await["metadata"], json!({}), "{format}");
    }
}

#[tokio::test]
async fn an_export_to_a_full_disk_fails_and_one_to_dev_null_does_not() {
    let server = server_with_readings(Setup::sqlite()).await;
    let export = |to: &str| {
        let command = format!("exec \"$0\" export --url {} {to}", server.url());
        Command::new("sh").args(["-c", &command]).arg(binary()).output().expect("a shell")
    };
    let done = export(">/dev/full");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(1) && said.contains("No space left on device"), "{said}");
    for to in [">/dev/null", "1<>/dev/null"] {
        assert!(export(to).status.success(), "{to}");
    }
}

/// The server answers queries while acknowledged readings wait in the log, because pending is full.
#[tokio::test]
async fn an_export_waits_for_readings_that_are_not_in_pending_yet() {
    let setup = Setup::sqlite().set("pending.max_bytes", "16KiB").set("query.catch_up_timeout", "100ms");
    let server = Server::start(setup).await;
    let send = async |device: &str| {
        let reading = |at: i64| json!({ "deviceId": device, "ts": 1_776_693_600_000_i64 + at, "value": at });
        assert_eq!(server.ingest(&(0..5_000).map(reading).collect()).await.status, 200);
    };
    send("a").await;
    server.settled().await;
    let store = rusqlite::Connection::open(server.data_dir().join("tidegauge.sqlite")).expect("the file of the server");
    store.execute_batch("PRAGMA busy_timeout = 60000; BEGIN IMMEDIATE").expect("nobody else writes for long");
    for device in ["b", "c", "d"] {
        send(device).await;
    }
    server.logged("pending is full (pending.max_bytes)").await;
    let folder = TempDir::new().expect("a temporary folder");
    let [file, stderr] = ["out", "stderr"].map(|name| folder.path().join(name));
    let mut command = Command::new(binary());
    command.args(["export", "--url", server.url(), "--output"]).arg(&file).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(fs::File::create(&stderr).expect("the folder is writable"));
    let mut child = command.spawn().expect("the binary runs");
    let said = wait_until("the export prints a line", async || {
        fs::read_to_string(&stderr).ok().filter(|said| said.ends_with('\n'))
    })
    .await;
    assert!(said.contains("/v1/devices: readings of the last ") && said.contains("may be missing; trying"), "{said}");
    store.execute_batch("ROLLBACK").expect("it has begun");
    let status = wait_until("the export ends", async || child.try_wait().expect("our child")).await;
    assert_eq!(status.code(), Some(0), "{}", fs::read_to_string(&stderr).unwrap_or_default());
    assert_eq!(fs::read_to_string(&file).expect("it was written").lines().count(), 20_000);
}

/// Pending may be full again after the list of devices.
#[tokio::test]
async fn an_export_asks_again_for_a_file_that_may_lack_readings() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let has_lagged = Arc::new(AtomicBool::new(false));
    let answer = move |uri: Uri| {
        let mut headers = HeaderMap::new();
        let body = match uri.path() {
            "/v1/devices" => r#"{"devices":[{"deviceId":"a","metadata":null}],"next":null}"#,
            _ if has_lagged.swap(true, Ordering::Relaxed) => "{\"deviceId\":\"a\",\"ts\":1}\n",
            _ => {
                headers.insert("tidegauge-lagging-seconds", HeaderValue::from_static("2.5"));
                ""
            }
        };
        async move { (headers, body) }
    };
    let server = tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(answer)).await });
    let done = run(&["export", "--url", &url]).await;
    assert!(done.stderr.contains("/v1/readings: readings of the last 2.5 s may be missing; trying"), "{done:?}");
    assert_eq!((done.code, &*done.stdout), (Some(0), "{\"deviceId\":\"a\",\"ts\":1}\n"), "{done:?}");
    server.abort();
}

/// Each page of devices is a request of its own.
#[tokio::test]
async fn a_time_before_now_is_one_instant_for_all_devices() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    let answer = move |uri: Uri| {
        let query = uri.query().unwrap_or_default();
        let body = match uri.path() {
            "/v1/devices" if query.contains("cursor") => r#"{"devices":[{"deviceId":"b"}],"next":null}"#.to_owned(),
            "/v1/devices" => r#"{"devices":[{"deviceId":"a"}],"next":"a"}"#.to_owned(),
            _ => {
                let params: HashMap<String, String> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
                log.lock().expect("no panic").push(params["from"].clone());
                format!("{{\"deviceId\":\"{}\",\"ts\":\"1\"}}\n", params["device"])
            }
        };
        async move { body }
    };
    let server = tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(answer)).await });
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("out").display().to_string();
    let args = ["export", "--url", &url, "--output", &file, "--from", "-24h"];
    let done = run(&args).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let asked = asked.lock().expect("no panic").clone();
    let [first, second] = &asked[..] else { panic!("{asked:?}") };
    assert!(first == second && first.parse::<jiff::Timestamp>().is_ok(), "{asked:?}");
    assert!(done.stderr.contains(&format!("--from -24h is {first}; --resume needs --from {first}\n")), "{done:?}");
    let again = run(&args).await;
    let said = "exists: continue it with --resume";
    assert!(again.code == Some(64) && again.stderr.contains(said) && !again.stderr.contains("-24h"), "{again:?}");
    let resumed = [&args[..], &["--resume"]].concat();
    let refused = run(&resumed).await;
    assert!(
        refused.code == Some(64) && refused.stderr.contains("--resume needs an instant in place of --from -24h"),
        "{refused:?}"
    );
    for without_row in ["", "{\"deviceId\""] {
        fs::write(&file, without_row).expect("the folder is writable");
        let done = run(&resumed).await;
        assert!(done.code == Some(0) && done.stderr.contains("--from -24h is "), "{without_row}: {done:?}");
    }
    server.abort();
}

/// The commands of docs/operations.md, "Fill in a centre".
#[tokio::test]
async fn a_pipe_fills_in_a_centre_and_its_statistics_are_those_of_the_site() {
    const SCRIPT: &str = r#"set -e -o pipefail
fill() { "$TIDEGAUGE" export --url $SITE | "$TIDEGAUGE" import - --url $CENTRE --token-file $TOKEN --retry-for 1h; }
sum() { curl -sG "$1/v1/rollups" -H "Authorization: Bearer $(cat $2)" -d prefix= -d step=1d -d fn=count,min,max \
  -d from=2024-01-01T00:00:00Z -d to=2026-05-01T00:00:00Z -d format=csv | sort; }
fill && fill
sum $SITE $TOKEN
diff <(sum $SITE $TOKEN) <(sum $CENTRE $TOKEN)"#;
    let site = server_with_readings(Setup::sqlite()).await;
    let setup = Setup::sqlite().token("site", "scopes = ['ingest', 'query']\ndevice_prefix = 'site-7/'");
    let centre = Server::start(setup.token("operator", "scopes = ['query', 'admin']")).await;
    let folder = TempDir::new().expect("a temporary folder");
    let token = folder.path().join("token");
    fs::write(&token, secret_of("site")).expect("the folder is writable");
    let mut bash = Command::new("bash");
    bash.args(["-c", SCRIPT]).env("TIDEGAUGE", binary()).env("TOKEN", &token);
    bash.env("SITE", site.url()).env("CENTRE", centre.url());
    let done = tokio::task::spawn_blocking(move || bash.output()).await.expect("no panic").expect("bash");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("a/1,"), "{done:?}");
    let request = centre.request(reqwest::Method::GET, "/v1/devices").bearer_auth(secret_of("operator"));
    assert_eq!(centre.send(request).await.json()["devices"][0]["deviceId"], "site-7/a");
}

#[tokio::test]
async fn a_hostile_file_is_refused_with_its_lines() {
    let server = Server::start(Setup::sqlite()).await;
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("in");
    let good = "a,2026-04-20T14:00:00.000Z,t,1,\r\n";
    let csv = format!(
        "deviceId,ts,series,value,metadata\r\n{good}{good}a,2026-04-20T14:00:00.000Z,t,NaN,\r\n\
         a,2026-04-20T14:00:00.000Z,t,one,\r\na,2026-04-20T14:00:00.000Z,t,1,[]\r\na,b\r\n"
    );
    let ndjson = concat!(
        "{\"deviceId\":\"a\",\"ts\":\"2026-04-20T14:00:00Z\",\"values\":{\"t\":1}}\n",
        "{\"deviceId\":\"a\",\"ts\":\"2026-04-20T14:00:00Z\",\"values\":{\"t\":NaN}}\n",
        "{\"deviceId\":\"a\",\"ts\":\"2026-04-20T14:00:00Z\",\"values\":{\"t\":\"x\"}}\n",
        "{\"deviceId\":\"a\",\"ts\":\"2026-04-20T14:00:00Z\",\"colour\":1,\"values\":{\"t\":1}}\n"
    );
    let long = format!("deviceId,ts,series,value\r\n{good}\"{}", "x".repeat(3 << 20));
    let other = format!("deviceId,ts,series,value,unit\r\n{good}");
    for (text, code, lines) in [
        (csv.as_str(), 1, &[":4: ", ":5: ", ":6: ", ":7: "][..]),
        (ndjson, 1, &[":2: ", ":3: ", ":4: "]),
        (&long, 1, &["line 3: the row is longer than"]),
        (&other, 64, &["\"unit\""]),
    ] {
        fs::write(&file, text).expect("the folder is writable");
        let done = run(&["import", file.to_str().expect("UTF-8"), "--url", server.url()]).await;
        assert_eq!(done.code, Some(code), "{}", done.stderr);
        for line in lines {
            assert!(done.stderr.contains(line), "{line}: {}", done.stderr);
        }
    }
    assert_eq!(server.settled().await.count("tidegauge_readings_stored_total"), 1);
}

/// It was killed in the second of three files.
#[tokio::test]
async fn an_import_that_was_killed_continues_where_it_was() {
    const ROWS: i64 = 4_000;
    let folder = TempDir::new().expect("a temporary folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let mut files = Vec::new();
    for (nth, name) in ["a.csv", "b.ndjson", "c.csv"].into_iter().enumerate() {
        let ts = |at: i64| 1_776_693_600_000 + at * 1_000;
        let rows: Vec<String> = match name.split_once('.') {
            Some((device, "csv")) => (0..ROWS).map(|at| format!("{device},{},{nth}\n", ts(at))).collect(),
            _ => (0..ROWS).map(|at| format!("{{\"deviceId\":\"b\",\"ts\":{},\"value\":1}}\n", ts(at))).collect(),
        };
        let header = if name.ends_with("csv") { "device,time,value\n" } else { "" };
        fs::write(file(name), format!("{header}{}", rows.concat())).expect("writable");
        files.push(file(name));
    }
    let server = Server::start(Setup::sqlite()).await;
    let progress = file("progress.json");
    let rest = ["--url", server.url(), "--batch", "20", "--progress", &progress];
    let args: Vec<&str> = ["import"].into_iter().chain(files.iter().map(String::as_str)).chain(rest).collect();
    let mut command = Command::new(binary());
    let mut child = command.args(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs");
    let accepted = async || server.metrics().await.count("tidegauge_readings_accepted_total");
    wait_until("the import is in the second file", async || {
        let noted = fs::read_to_string(&progress).unwrap_or_default();
        noted.contains("b.ndjson\",\"line").then_some(())
    })
    .await;
    child.kill().expect("our child");
    assert_eq!(child.wait().expect("our child").code(), None, "it was killed before its end");
    let before = accepted().await;

    let other = run(&["import", &files[0], "--url", server.url(), "--progress", &progress]).await;
    assert!(other.code == Some(64) && other.stderr.contains("is of a copy from"), "{other:?}");
    let done = run(&args).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stderr.contains("continuing after line ") && done.stderr.contains("b.ndjson"), "{done:?}");
    assert!(!Path::new(&progress).exists(), "the import is complete");
    let sent = accepted().await - before;
    assert!(sent <= 2 * ROWS as u64, "{sent} readings were sent again: the first file too");
    assert_eq!(server.settled().await.count("tidegauge_readings_stored_total"), 3 * ROWS as u64);
}

#[tokio::test]
async fn the_summary_of_an_import_has_each_count_of_the_server() {
    let server = Server::start(Setup::sqlite()).await;
    let folder = TempDir::new().expect("a temporary folder");
    let import = async |name: &str, text: &str, more: &[&str]| {
        let file = folder.path().join(name);
        fs::write(&file, text).expect("the folder is writable");
        run(&[&["import", file.to_str().expect("UTF-8"), "--url", server.url()], more].concat()).await
    };
    // The hour from 02:00 exists twice in this night, and each of its rows is stored.
    let row = |hour: i64, minute: i64, value: i64| format!("2025-10-26 0{hour}:{minute:02},{value}\n");
    let rows =
        (0..240).map(|at| (at / 60, at % 60, at)).map(|(nth, minute, at)| row([1, 2, 2, 3][nth as usize], minute, at));
    let csv: String = std::iter::once("time,temp\n".to_owned()).chain(rows).collect();
    let done = import("night.csv", &csv, &["--device", "meter", "--tz", "Europe/Berlin"]).await;
    assert!(done.code == Some(0) && done.stdout.contains("240 readings accepted, 0 rejected, "), "{done:?}");
    assert!(!done.stdout.contains("overwrote"), "{done:?}");
    assert_eq!(server.settled().await.count("tidegauge_readings_stored_total"), 240);
    let done = import("twice.csv", "time,temp\n1776693610,1\n1776693610,2\n", &["--device", "meter"]).await;
    let expected = "2 readings accepted, 0 rejected, 1 reading overwrote another one";
    assert!(done.code == Some(0) && done.stdout.contains(expected), "{done:?}");
    let csv = "time,temp,hum\n1776693610,1,40\n1776693620,2,ERR\n1776693630,3,41\n";
    let done = import("bad.csv", csv, &["--device", "meter"]).await;
    let expected = "3 readings accepted, 0 rejected, 1 values not converted, ";
    assert!(done.code == Some(1) && done.stdout.contains(expected), "{done:?}");
    assert!(done.stderr.contains("bad.csv:3: column \"hum\": \"ERR\": not a number"), "{done:?}");
    assert!(done.stderr.contains("1 value rejected"), "{done:?}");

    let lines = [
        r#"{"deviceId":"a","ts":1776693610000,"values":{"t":1,"u":1e999}}"#,
        r#"{"deviceId":"a","ts":1776693610001,"value":"x"}"#,
        r#"{"deviceId":"a ","ts":1776693610002,"value":1}"#,
        r#"{"deviceId":"a","ts":"tomorrow","value":1}"#,
        r#"{"deviceId":"a","seq":"x","ts":1776693610003,"value":1}"#,
    ];
    let done = import("odd.ndjson", &lines.join("\n"), &[]).await;
    assert_eq!(done.code, Some(1), "{done:?}");
    let rejected = "2 readings accepted, 3 rejected (1 invalid_device_id, 1 invalid_timestamp, 1 invalid_value, \
                    1 non_finite_value), 1 value rejected, 1 field ignored";
    assert!(done.stdout.contains(rejected), "{done:?}");
    let done = import("value.ndjson", lines[0], &[]).await;
    assert!(done.code == Some(1) && done.stderr.contains("1 value rejected"), "{done:?}");
}

/// An export of an older value, imported after a newer one was accepted.
async fn an_old_export_comes_back(setup: Setup) {
    let server = Server::start(setup).await;
    let send = async |value: f64| {
        let body = json!({"deviceId": "a", "ts": 1_776_693_600_000_i64, "value": value});
        assert_eq!(server.ingest(&body).await.status, 200);
        server.settled().await;
    };
    send(1.0).await;
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("old.ndjson");
    assert_eq!(export(&server, &file, &["--format", "ndjson"]).await.code, Some(0));
    send(2.0).await;
    let done = run(&["import", file.to_str().expect("UTF-8"), "--url", server.url()]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    server.settled().await;
    assert_eq!(server.readings("a").await[0]["values"]["value"], json!(1.0));
}

#[tokio::test]
async fn an_imported_value_replaces_a_newer_one_except_in_time_series() {
    let databases = [Database::new(), Database::new(), Database::new()];
    for setup in Setup::of_each_store(&databases) {
        an_old_export_comes_back(setup).await; // in time series, the first value was never replaced
    }
}

/// The address stays the same, as when the data folder of a server is lost.
#[tokio::test]
async fn an_import_does_not_continue_in_another_store() {
    let folder = TempDir::new().expect("a temporary folder");
    let [a, b, progress] = ["a.csv", "b.csv", "progress"].map(|name| folder.path().join(name).display().to_string());
    fs::write(&a, "time,temp\n1776693610,1\n").expect("writable");
    fs::write(&b, "time,hum\n1776693620,2\n").expect("writable");
    let [first, other] = [Server::start(Setup::sqlite()).await, Server::start(Setup::sqlite()).await];
    for server in [&first, &other] {
        let id = async || server.get_json("/version").await["storeId"].as_str().map(str::to_owned);
        wait_until("the ID of the store is known", id).await;
    }
    let relay = crate::forward::relay::Relay::start().await;
    let args = ["import", &a, &b, "--url", relay.url(), "--device", "d", "--progress", &progress];

    relay.lead_to(Some(first.http_addr()));
    let interrupted = run(&[&args[..], &["--metric", "temp=temp"]].concat()).await;
    assert!(interrupted.code == Some(64) && interrupted.stderr.contains("no column \"temp\""), "{interrupted:?}");
    let noted = fs::read_to_string(&progress).expect("the first file is imported");

    relay.lead_to(Some(other.http_addr()));
    let refused = run(&args).await;
    let said = "is of another store than that of the server: remove it to begin again";
    assert!(refused.code == Some(64) && refused.stderr.contains(said), "{refused:?}");
    assert_eq!(fs::read_to_string(&progress).expect("it stays"), noted);

    relay.lead_to(Some(first.http_addr()));
    let done = run(&args).await;
    assert!(done.code == Some(0) && done.stderr.contains("continuing after line 2 of"), "{done:?}");
    assert!(!Path::new(&progress).exists(), "the import is complete");
    assert_eq!(first.settled().await.count("tidegauge_readings_stored_total"), 2);
}
