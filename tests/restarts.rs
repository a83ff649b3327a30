//! A restart refuses nothing if another process holds the sockets, as systemd does with
//! `deploy/activation/tidegauge.socket`.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::mongod::signal;
use crate::harness::{Metrics, Setup, binary, client, wait_until};
use crate::pages::in_repository;

/// 2024-01-01T00:00:00Z.
const START_MS: u64 = 1_704_067_200_000;

/// Makes the descriptors of the standard streams those of the protocol, and becomes the server.
const PASS_BOTH: &str =
    r#"exec 3<&0 4<&2 </dev/null 2>>"$LOG"; LISTEN_PID=$$ LISTEN_FDS=2; export LISTEN_PID LISTEN_FDS; exec "$@""#;

/// A parent that holds the sockets of a server.
struct Parent {
    http: TcpListener,
    udp: UdpSocket,
    folder: TempDir,
    child: Option<Child>,
}

impl Parent {
    fn new() -> Self {
        let http = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        Self { http, udp, folder: TempDir::new().expect("a temporary folder"), child: None }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn start(&mut self, setup: &Setup) {
        self.child = Some(self.spawn(PASS_BOTH, setup));
    }

    fn spawn(&self, script: &str, setup: &Setup) -> Child {
        let path = self.folder.path();
        fs::write(path.join("config.toml"), setup.to_toml()).expect("our folder");
        let http: OwnedFd = self.http.try_clone().expect("a socket").into();
        let udp: OwnedFd = self.udp.try_clone().expect("a socket").into();
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(binary()).arg("serve").arg("--config").arg(path.join("config.toml"));
        command.arg("--data-dir").arg(path.join("data")).env("LOG", path.join("log"));
        command.stdin(Stdio::from(http)).stdout(Stdio::null()).stderr(Stdio::from(udp));
        command.spawn().expect("sh runs")
    }

    /// Stops the server in order.
    async fn stop(&mut self) {
        let mut child = self.child.take().expect("it is running");
        signal(&child, "TERM");
        let ended = wait_until("it ends", async || child.try_wait().expect("our child")).await;
        assert!(ended.success(), "{ended}: {}", self.log());
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
        if std::thread::panicking() {
            eprintln!("--- the server logged:\n{}---", self.log());
        }
    }
}

/// The number of readings of a device, by its rollups.
async fn count(http: SocketAddr, device: &str) -> u64 {
    let range = "from=2024-01-01T00:00:00Z&to=2024-01-02T00:00:00Z&step=1d";
    let url = format!("http://{http}/v1/devices/{device}/rollups?{range}");
    let answer = client(None).build().expect("a client").get(url).send().await.expect("an answer");
    let rollups: Value = serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON");
    rollups["metrics"]["value"][0]["count"].as_u64().unwrap_or_else(|| panic!("{rollups}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_refuse_no_request_and_lose_no_datagram_while_the_sockets_are_held() {
    let setup = Setup::sqlite();
    let mut parent = Parent::new();
    let (http, udp) = (parent.http.local_addr().expect("bound"), parent.udp.local_addr().expect("bound"));
    parent.start(&setup);
    let stopped = AtomicBool::new(false);
    let (numbers, stopped) = (AtomicU64::new(0), &stopped);
    let post = async || {
        let client = client(None).pool_max_idle_per_host(0).build().expect("a client"); // a connection for each
        let (mut accepted, mut refused) = (0, Vec::new());
        while !stopped.load(Ordering::SeqCst) {
            let number = numbers.fetch_add(1, Ordering::SeqCst);
            let reading = json!({"deviceId": "posts", "ts": START_MS + number, "value": 1}).to_string();
            let request = client.post(format!("http://{http}/v1/readings")).header("content-type", "application/json");
            match request.body(reading).send().await {
                Ok(answer) if answer.status() == 200 => accepted += 1,
                Ok(answer) => refused.push(answer.status().to_string()),
                Err(error) => refused.push(format!("{error:?}")),
            }
        }
        (accepted, refused)
    };
    // As many datagrams as the smallest buffer of a socket keeps, however long a restart takes.
    let (allowed, allowed_per_restart) = (AtomicU64::new(0), 100);
    let send = async || {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let mut sent = 0;
        while !stopped.load(Ordering::SeqCst) {
            if sent < allowed.load(Ordering::SeqCst) {
                let reading = json!({"deviceId": "datagrams", "ts": START_MS + sent, "value": 1}).to_string();
                socket.send_to(reading.as_bytes(), udp).await.expect("the parent holds the socket");
                sent += 1;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        sent
    };
    let restart = async {
        for _ in 0..3 {
            let before = numbers.load(Ordering::SeqCst);
            let more = async || (numbers.load(Ordering::SeqCst) > before + 30).then_some(());
            wait_until("requests are answered", more).await;
            allowed.fetch_add(allowed_per_restart, Ordering::SeqCst);
            parent.stop().await;
            parent.start(&setup);
        }
        stopped.store(true, Ordering::SeqCst);
    };
    let ([posted, other], sent, ()) = {
        let (a, b, c, d) = tokio::join!(post(), post(), send(), restart);
        ([a, b], c, d)
    };
    let accepted = posted.0 + other.0;
    let refused = [posted.1, other.1].concat();
    assert_eq!(refused, Vec::<String>::new(), "beside {accepted} accepted ones");
    assert_eq!(count(http, "posts").await, accepted);
    wait_until("all datagrams are there", async || (count(http, "datagrams").await == sent).then_some(())).await;
    let said = "HTTP uses the socket that was passed to this process, and not http.listen";
    assert_eq!(parent.log().matches(said).count(), 4, "{}", parent.log());
    parent.stop().await;
}

/// The parent keeps the socket, and so the kernel its number of drops.
#[tokio::test]
async fn a_start_does_not_count_what_the_kernel_dropped_before() {
    let mut parent = Parent::new();
    let (http, udp) = (parent.http.local_addr().expect("bound"), parent.udp.local_addr().expect("bound"));
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    for _ in 0..20_000 {
        sender.send_to(&[b'x'; 1_000], udp).expect("the parent holds the socket"); // more than its buffer keeps
    }
    parent.start(&Setup::sqlite());
    let client = client(None).build().expect("a client");
    let metrics = wait_until("it receives the others", async || {
        let answer = client.get(format!("http://{http}/metrics")).send().await.expect("an answer");
        let metrics = Metrics::parse(&answer.text().await.expect("text"));
        (metrics.count("tidegauge_udp_datagrams_total") > 0).then_some(metrics)
    })
    .await;
    assert_eq!(metrics.count_where("tidegauge_udp_dropped_total", &[("reason", "kernel")]), 0);
    parent.stop().await;
}

#[tokio::test]
async fn sockets_that_do_not_fit_are_refused() {
    let mut parent = Parent::new();
    let setup = Setup::sqlite();
    for (pass, setup, said) in [
        ("exec 3</dev/null 4<&2 2>>\"$LOG\"", setup.clone(), "descriptor 3 (LISTEN_FDS=2): it is not an open socket"),
        ("exec 3<&0 4<&0 2>>\"$LOG\"", setup.clone(), "descriptor 4 (LISTEN_FDS=2): it is a second TCP socket"),
        ("exec 3<&0 4<&2 2>>\"$LOG\"", setup.set("udp.listen", "off"), "udp.listen is off, and a UDP socket"),
    ] {
        let script =
            format!("{pass} </dev/null; LISTEN_PID=$$ LISTEN_FDS=2; export LISTEN_PID LISTEN_FDS; exec \"$@\"");
        parent.child = Some(parent.spawn(&script, &setup));
        let child = parent.child.as_mut().expect("just started");
        let ended = wait_until("it ends", async || child.try_wait().expect("our child")).await;
        assert!(!ended.success() && parent.log().contains(said), "{said}: {}", parent.log());
    }
}

#[test]
fn a_passed_socket_that_other_machines_can_reach_needs_authentication() {
    let folder = TempDir::new().expect("a temporary folder");
    let everywhere: OwnedFd = TcpListener::bind("0.0.0.0:0").expect("a free port").into();
    let log = folder.path().join("log");
    let script = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1; export LISTEN_PID LISTEN_FDS; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(binary()).args(["serve", "--udp", "off", "--data-dir"]).arg(folder.path());
    command.stdin(Stdio::from(everywhere)).stdout(Stdio::null()).stderr(File::create(&log).expect("our folder"));
    assert_eq!(command.status().expect("sh runs").code(), Some(64));
    let said = fs::read_to_string(log).expect("text");
    assert!(said.contains("http.listen is 0.0.0.0:") && said.contains("clients need not authenticate"), "{said}");
}

#[tokio::test]
async fn a_reload_leaves_no_passed_socket_without_authentication() {
    let mut parent = Parent::new();
    parent.http = TcpListener::bind("0.0.0.0:0").expect("a free port");
    parent.start(&Setup::sqlite().set("auth.allow_anonymous", true));
    wait_until("it is started", async || parent.log().contains("started").then_some(())).await;
    fs::write(parent.folder.path().join("config.toml"), Setup::sqlite().to_toml()).expect("our folder");
    signal(parent.child.as_ref().expect("it is running"), "HUP");
    let said = wait_until("the reload ends", async || {
        let log = parent.log();
        log.contains("reloaded").then_some(log)
    })
    .await;
    assert!(said.contains("nothing was reloaded") && said.contains("http.listen is 0.0.0.0:"), "{said}");
    parent.stop().await;
}

/// The directives of a file of `deploy` with this key.
fn directives(path: &str, key: &str) -> Vec<String> {
    let text = fs::read_to_string(in_repository(path)).expect("a unit");
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.filter(|(name, _)| *name == key).map(|(_, value)| value.to_owned()).collect()
}

#[test]
fn the_socket_unit_has_the_default_addresses_and_the_name_of_the_service() {
    let unit = "deploy/activation/tidegauge.socket";
    assert_eq!(Path::new(unit).file_stem(), Path::new("deploy/tidegauge.service").file_stem());
    let config = tidegauge::config::Config::default();
    assert_eq!(directives(unit, "ListenStream"), [config.http.listen.to_string()]);
    assert_eq!(directives(unit, "ListenDatagram"), [config.udp.listen.address().expect("on").to_string()]);
}
