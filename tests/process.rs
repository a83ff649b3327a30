//! The process: its files, its log lines, its signals, its metrics.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::mongod::signal;
use crate::harness::{Database, Killed, Server, Setup, binary, run, wait_until};

#[tokio::test]
async fn files_are_private_with_any_umask() {
    let folder = TempDir::new().expect("a temporary folder");
    let data = folder.path().join("data");
    fs::create_dir(&data).expect("the folder is writable");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).expect("our folder");
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 000; exec \"$0\" \"$@\""]).arg(binary());
    let mut server = Spawned::start(shell, &data, &[]);
    let url = format!("http://{}/v1/readings", server.word("http="));
    let reading = json!({"deviceId": "a", "value": 1}).to_string();
    let request = crate::harness::client(None).build().expect("a client").post(url).body(reading);
    let answer = request.header("content-type", "application/json").send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let mut found = Vec::new();
    collect(&data, &mut found);
    for name in ["tidegauge.sqlite", "tidegauge.sqlite-wal", "tidegauge.sqlite-shm", "checkpoint", "lock", "log"] {
        assert!(found.iter().any(|(path, _)| path.ends_with(name)), "no {name} among {found:?}");
    }
    for (path, mode) in found {
        assert_eq!(mode & 0o077, 0, "{path} has {mode:o}");
    }
    server.end();
}

#[tokio::test]
async fn with_the_json_format_every_log_line_is_json() {
    let data = TempDir::new().expect("a temporary folder");
    let errors = data.path().join("stderr");
    let mut command = Command::new(binary());
    command.stderr(fs::File::create(&errors).expect("the folder is writable"));
    let mut server = Spawned::start(command, &data.path().join("data"), &["--log-format", "json"]);
    let first: Value = serde_json::from_str(&server.first_line).expect("a JSON object");
    assert_eq!(
        (&first["message"], &first["level"], &first["store"]),
        (&json!("listening"), &json!("INFO"), &json!("sqlite"))
    );
    assert!(first["http"].as_str().is_some_and(|address| address.starts_with("127.0.0.1:")), "{first}");
    signal(&server.child.0, "USR1");
    let logged = || fs::read_to_string(&errors).expect("text");
    wait_until("it tells of the signal", async || logged().contains("SIGUSR1").then_some(())).await;
    server.end();
    let text = logged();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert!(lines.iter().any(|line| line["message"] == "started" && line["store"] == "sqlite"), "{text}");
    let last = lines.last().expect("lines");
    assert_eq!((&last["message"], &last["pending_readings"]), (&json!("stopped"), &json!(0)), "{text}");

    let refused = run(&["serve", "--log-format", "json", "--http", "nowhere"]).await;
    let error: Value = serde_json::from_str(&refused.stderr).expect("a JSON object");
    assert!(refused.code == Some(64) && error["level"] == "ERROR", "{refused:?}");
    assert!(error["message"].as_str().is_some_and(|message| message.starts_with("--http: ")), "{refused:?}");
}

#[tokio::test]
async fn signals_of_habit_do_not_end_it() {
    let server = Server::start(Setup::sqlite()).await;
    for name in ["USR1", "USR2"] {
        server.signal(name);
        server.logged(&format!("SIG{name}")).await;
    }
    server.signal("PIPE");
    assert_eq!(server.get("/healthz").await.status, 200);
}

/// `systemctl reload` may come while the log is being opened. The signal is sent as soon as the process
/// handles SIGUSR1.
#[tokio::test]
async fn a_reload_during_the_start_does_not_end_it() {
    let data = TempDir::new().expect("a temporary folder");
    let errors = data.path().join("stderr");
    let script = r#"caught() { sed -n 's/^SigCgt:[[:space:]]*/0x/p' /proc/$$/status; }
        (until [ $(($(caught) & 0x200)) -ne 0 ]; do :; done; kill -HUP $$) >/dev/null & exec "$0" "$@""#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(binary()).stderr(fs::File::create(&errors).expect("the folder is writable"));
    let mut server = Spawned::start(shell, &data.path().join("data"), &[]);
    let logged = || fs::read_to_string(&errors).expect("text");
    wait_until("it reloads", async || logged().contains("[auth] was reloaded").then_some(())).await;
    server.end();
}

#[tokio::test]
async fn a_reload_that_fails_shows_in_the_metrics() {
    const SUCCESSFUL: &str = "tidegauge_config_last_reload_successful";
    const TIMESTAMP: &str = "tidegauge_config_last_reload_success_timestamp_seconds";
    let server = Server::start(Setup::sqlite()).await;
    let value = async |name| server.metrics().await.value(name).expect(name);
    let started = value(TIMESTAMP).await;
    assert_eq!(Some(value(SUCCESSFUL).await), Some(1.0));
    server.write_config("[auth]\ntokens = 1\n");
    server.signal("HUP");
    server.logged("nothing was reloaded").await;
    assert_eq!((value(SUCCESSFUL).await, value(TIMESTAMP).await), (0.0, started));
    server.write_config(&Setup::sqlite().set("udp.listen", "127.0.0.1:0").to_toml());
    server.signal("HUP");
    wait_until("a reload is successful", async || (value(SUCCESSFUL).await > 0.5).then_some(())).await;
    assert!(value(TIMESTAMP).await > started);
}

#[tokio::test]
async fn a_reload_changes_the_log_level() {
    let level = |level: &str| Setup::sqlite().set("udp.listen", "127.0.0.1:0").set("telemetry.log_level", level);
    let server = Server::start(level("error")).await;
    let reloads = async || server.metrics().await.value("tidegauge_config_last_reload_success_timestamp_seconds");
    let change_to = async |filter: &str| {
        let before = reloads().await;
        server.write_config(&level(filter).to_toml());
        server.signal("HUP");
        wait_until("it is reloaded", async || (reloads().await != before).then_some(())).await;
    };
    change_to("info").await;
    server.signal("USR2");
    server.logged("SIGUSR2").await;
    change_to("off,tidegauge::cli=warn").await;
    server.logged("telemetry.log_level changes before=info now=off,tidegauge::cli=warn").await;
    change_to("tidegauge::cli=info").await;
    server.signal("USR2");
    wait_until("it logs again", async || (server.log().matches("SIGUSR2").count() == 2).then_some(())).await;
    // The line about a change obeys the level before it.
    let log = server.log();
    assert!(!log.contains("before=error") && !log.contains("before=off"), "{log}");
}

#[tokio::test]
async fn the_size_of_the_store_shows_in_the_metrics() {
    let mongodb = Database::new();
    for setup in [Setup::sqlite(), Setup::mongodb(&mongodb)] {
        let mut server = Server::start(setup).await;
        assert_eq!(server.ingest(&json!([{"deviceId": "a", "value": 1}])).await.status, 200);
        server.terminate().await; // stores what is pending
        server.start_again().await;
        wait_until("the size is known", async || {
            server.metrics().await.value("tidegauge_store_bytes").filter(|bytes| *bytes > 4096.0)
        })
        .await;
    }
}

#[tokio::test]
async fn a_restart_shows_in_the_start_time() {
    let mut server = Server::start(Setup::sqlite()).await;
    let started = async |server: &Server| server.metrics().await.value("process_start_time_seconds").expect("a time");
    let first = started(&server).await;
    assert_eq!(Some(started(&server).await), Some(first));
    server.terminate().await;
    server.start_again().await;
    assert!(started(&server).await > first);
}

#[tokio::test]
async fn version_and_revision_are_the_same_everywhere() {
    let server = Server::start(Setup::sqlite()).await;
    let version = server.get_json("/version").await;
    let (number, revision) = (version["version"].as_str().expect("text"), version["revision"].as_str().expect("text"));
    assert_eq!(number, env!("CARGO_PKG_VERSION"));
    assert_eq!(run(&["--version"]).await.stdout, format!("tidegauge {number} ({revision})\n"));
    let page = server.get("/metrics").await;
    let info = format!("tidegauge_build_info{{version=\"{number}\",revision=\"{revision}\",");
    assert!(page.text().contains(&info), "no {info}");
}

/// A server that is started without the harness.
struct Spawned {
    child: Killed,
    first_line: String,
    _out: BufReader<ChildStdout>,
}

impl Spawned {
    fn start(mut command: Command, data: &Path, flags: &[&str]) -> Self {
        command.args(["serve", "--http", "127.0.0.1:0", "--udp", "off", "--data-dir"]).arg(data).args(flags);
        let mut child = Killed(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it runs"));
        let mut out = BufReader::new(child.0.stdout.take().expect("piped"));
        let mut first_line = String::new();
        out.read_line(&mut first_line).expect("text");
        Self { child, first_line, _out: out }
    }

    fn word(&self, key: &str) -> &str {
        let found = self.first_line.split_whitespace().find_map(|word| word.strip_prefix(key));
        found.unwrap_or_else(|| panic!("no {key} in {}", self.first_line))
    }

    fn end(&mut self) {
        signal(&self.child.0, "TERM");
        assert!(self.child.0.wait().expect("our child").success());
    }
}

/// Everything below a folder, with its mode.
fn collect(folder: &Path, found: &mut Vec<(String, u32)>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("a file");
        let mode = entry.metadata().expect("a file").permissions().mode();
        found.push((entry.path().display().to_string(), mode));
        if entry.file_type().expect("a type").is_dir() {
            collect(&entry.path(), found);
        }
    }
}
