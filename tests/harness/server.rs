//! The real `tidegauge serve`, on a free port, with a temporary data folder.
//!
//! Dropping a running server ends it, and fails the test when its counters of readings do not add up. What it
//! logged is printed when the test fails.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::header::HeaderMap;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::clock::Clock;
use super::disk::Disk;
use super::mongod::leash::Leash;
use super::mongod::{blocking, signal};
use super::process::binary;
use super::{Metrics, Setup, client, secret_of, wait_until};

const START_DEADLINE: Duration = Duration::from_secs(120);
/// How long the counters may take to add up: they are read one after the other while flushes go on.
const BALANCE_DEADLINE: Duration = Duration::from_secs(60);

/// A server, running or not.
#[derive(Debug)]
pub(crate) struct Server {
    running: Option<Running>,
    setup: Setup,
    disk: Option<Disk>,
    clock: Option<Clock>,
    /// The soft and the hard limit of open files, where it has its own.
    open_files: Option<[u32; 2]>,
    data: TempDir,
    log: Arc<Mutex<String>>,
    client: reqwest::Client,
}

#[derive(Debug)]
struct Running {
    child: Child,
    url: String,
    first_line: String,
    _leash: Leash,
}

/// An answer, whole.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The status code.
    pub(crate) status: u16,
    /// The headers.
    pub(crate) headers: HeaderMap,
    /// The body.
    pub(crate) body: Bytes,
}

impl Server {
    /// Starts a server and waits until it listens.
    pub(crate) async fn start(setup: Setup) -> Self {
        let mut server = Self::prepare(setup);
        server.start_again().await;
        server
    }

    /// A server whose log is on a disk of its own.
    pub(crate) async fn start_with_disk_of_log(setup: Setup, mebibytes: usize) -> Self {
        let mut server = Self::prepare(setup);
        server.disk = Some(Disk::mount(&server.data_dir().join("log"), mebibytes));
        server.start_again().await;
        server
    }

    /// A server whose data folder, with log and SQLite file, is on a disk of its own.
    pub(crate) async fn start_with_disk_of_data(setup: Setup, mebibytes: usize) -> Self {
        let mut server = Self::prepare(setup);
        server.disk = Some(Disk::mount(&server.data_dir(), mebibytes));
        server.start_again().await;
        server
    }

    /// The disk of the log, where it has one of its own.
    pub(crate) fn disk(&self) -> &Disk {
        self.disk.as_ref().expect("it was started with one")
    }

    /// A server whose clock of the world can be set.
    pub(crate) async fn start_with_clock(setup: Setup) -> Self {
        let mut server = Self::prepare(setup);
        server.clock = Some(Clock::new());
        server.start_again().await;
        server
    }

    /// The clock, where it has one of its own.
    pub(crate) fn clock(&self) -> &Clock {
        self.clock.as_ref().expect("it was started with one")
    }

    /// A server with a limit of open files of its own, soft and hard.
    pub(crate) async fn start_with_open_files(setup: Setup, limits: [u32; 2]) -> Self {
        let mut server = Self::prepare(setup);
        server.open_files = Some(limits);
        server.start_again().await;
        server
    }

    fn prepare(setup: Setup) -> Self {
        let data = tempfile::Builder::new().prefix("tidegauge-data-").tempdir().expect("a temporary folder");
        let client = client_for(&setup);
        Self { running: None, setup, disk: None, clock: None, open_files: None, data, log: Arc::default(), client }
    }

    /// Starts the server again after it ended, on the same data folder.
    pub(crate) async fn start_again(&mut self) {
        assert!(self.running.is_none(), "it is running");
        let config = self.data.path().join("config.toml");
        std::fs::write(&config, self.setup.clone().or("udp.listen", "127.0.0.1:0").to_toml())
            .expect("the folder is writable");
        let mut command = match (&self.disk, self.open_files) {
            (Some(disk), _) => disk.run(&binary()),
            (None, Some([soft, hard])) => {
                let mut command = Command::new("prlimit"); // of util-linux; it becomes the program
                command.arg(format!("--nofile={soft}:{hard}")).arg(binary());
                command
            }
            (None, None) => Command::new(binary()),
        };
        command.args(["serve", "--http", "127.0.0.1:0"]);
        if let Some(clock) = &self.clock {
            clock.show(&mut command);
        }
        command.arg("--config").arg(&config).arg("--data-dir").arg(self.data.path().join("data"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().expect("the binary runs");
        let leash = Leash::tie(&child, self.data.path());
        keep_log(child.stderr.take().expect("piped"), Arc::clone(&self.log));
        let first_line = first_line(child.stdout.take().expect("piped"));
        let first_line = match tokio::time::timeout(START_DEADLINE, first_line).await {
            Ok(Ok(line)) => line,
            Ok(Err(_)) => panic!("the server ended with {:?}; it logged:\n{}", child.wait(), self.log()),
            Err(elapsed) => panic!("the server says nothing, {elapsed}; it logged:\n{}", self.log()),
        };
        let url = url_in(&first_line).unwrap_or_else(|| panic!("no address in {first_line:?}"));
        self.running = Some(Running { child, url, first_line, _leash: leash });
    }

    /// Starts the server again after it ended, on the same data folder, set up in another way.
    pub(crate) async fn start_again_with(&mut self, setup: Setup) {
        self.setup = setup;
        self.start_again().await;
    }

    /// Ends the server the hard way.
    pub(crate) fn kill9(&mut self) {
        let mut running = self.running.take().expect("it is running");
        running.child.kill().expect("our child");
        running.child.wait().expect("our child");
    }

    /// Asks the server to end, and waits until it did.
    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM");
        let mut running = self.running.take().expect("it is running");
        wait_until("the server ends after SIGTERM", async || running.child.try_wait().expect("our child")).await
    }

    /// Sends a signal, such as `HUP`.
    pub(crate) fn signal(&self, name: &str) {
        signal(&self.running().child, name);
    }

    /// Replaces the config file of the running server by this text.
    pub(crate) fn write_config(&self, text: &str) {
        std::fs::write(self.data.path().join("config.toml"), text).expect("the folder is writable");
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.running().child.id()
    }

    /// Where the server listens, such as `http://127.0.0.1:40123`.
    pub(crate) fn url(&self) -> &str {
        &self.running().url
    }

    /// Where the server listens for HTTP.
    pub(crate) fn http_addr(&self) -> SocketAddr {
        let address = word_of(self.first_line(), "http=").and_then(|address| address.parse().ok());
        address.unwrap_or_else(|| panic!("no address in {:?}", self.first_line()))
    }

    /// Where the server listens for datagrams.
    pub(crate) fn udp_addr(&self) -> SocketAddr {
        let address = word_of(self.first_line(), "udp=").and_then(|address| address.parse().ok());
        address.unwrap_or_else(|| panic!("no UDP address in {:?}", self.first_line()))
    }

    /// The first line it printed on stdout.
    pub(crate) fn first_line(&self) -> &str {
        &self.running().first_line
    }

    /// Where its log and embedded database live.
    pub(crate) fn data_dir(&self) -> std::path::PathBuf {
        let data_dir = self.data.path().join("data");
        match &self.disk {
            Some(disk) if disk.folder() == data_dir => disk.seen(&data_dir),
            _ => data_dir,
        }
    }

    /// Limits the file descriptors of the running server.
    pub(crate) fn limit_files(&self, files: usize) {
        let status = Command::new("prlimit")
            .args(["--pid", &self.id().to_string(), &format!("--nofile={files}:")])
            .status()
            .expect("prlimit of util-linux is there");
        assert!(status.success());
    }

    /// What it logged so far, over all its starts.
    pub(crate) fn log(&self) -> String {
        self.log.lock().expect("no panic while it was held").clone()
    }

    /// What it logged so far, as soon as this is among it: a line comes through a pipe, later than the deed
    /// it tells of.
    pub(crate) async fn logged(&self, said: &str) -> String {
        wait_until(&format!("it logs: {said}"), async || Some(self.log()).filter(|log| log.contains(said))).await
    }

    /// `GET`s a path.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.get_as(path, "*/*").await
    }

    /// `GET`s a path with an `Accept` header.
    pub(crate) async fn get_as(&self, path: &str, accept: &str) -> Answer {
        let request = self.request(reqwest::Method::GET, path).header("accept", accept);
        Answer::of(request.send().await).await.expect("an answer")
    }

    /// `GET`s a path and expects JSON with status 200. While the store does not answer it is asked again.
    pub(crate) async fn get_json(&self, path: &str) -> Value {
        let answer = wait_until(path, async || Some(self.get(path).await).filter(Answer::is_final)).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    /// `POST`s a body.
    pub(crate) async fn post(&self, path: &str, content_type: &str, body: impl Into<Bytes>) -> Answer {
        let request = self.request(reqwest::Method::POST, path).header("content-type", content_type);
        Answer::of(request.body(body.into()).send().await).await.expect("an answer")
    }

    /// `POST`s readings as JSON to `/v1/readings`.
    pub(crate) async fn ingest(&self, readings: &Value) -> Answer {
        self.post("/v1/readings", "application/json", readings.to_string()).await
    }

    /// `POST`s readings as JSON; `None` when the server went away before it answered.
    pub(crate) async fn try_ingest(client: &reqwest::Client, url: &str, readings: &Value) -> Option<Answer> {
        let request = client.post(format!("{url}/v1/readings")).header("content-type", "application/json");
        Answer::of(request.body(readings.to_string()).send().await).await.ok()
    }

    /// The readings of a device from 2021 to 2029, as `{"ts", "values"}`.
    pub(crate) async fn readings(&self, device: &str) -> Value {
        let range = "from=2021-01-01T00:00:00Z&to=2030-01-01T00:00:00Z&limit=10000";
        let device = device.replace('/', "%2F");
        self.get_json(&format!("/v1/devices/{device}/readings?{range}")).await["readings"].take()
    }

    /// A request to the server, for what the helpers do not cover.
    pub(crate) fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url()))
    }

    /// Sends a request made with [`Server::request`].
    pub(crate) async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        Answer::of(request.send().await).await.expect("an answer")
    }

    /// The metrics of now. Where there are tokens, one of them is named `operator`.
    pub(crate) async fn metrics(&self) -> Metrics {
        let request = self.request(reqwest::Method::GET, "/metrics").bearer_auth(secret_of("operator"));
        let answer = self.send(request).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        Metrics::parse(answer.text())
    }

    /// Waits until nothing is pending, for as long as it gets less.
    pub(crate) async fn settled(&self) -> Metrics {
        let mut left = u64::MAX;
        loop {
            let (pending, metrics) = wait_until("less is pending", async || {
                let metrics = self.metrics().await;
                let pending = metrics.count("tidegauge_readings_pending");
                let is_better = if pending == 0 { metrics.balance().is_ok() } else { pending < left };
                is_better.then_some((pending, metrics))
            })
            .await;
            if pending == 0 {
                return metrics;
            }
            left = pending;
        }
    }

    /// Waits until every reading is accounted for.
    ///
    /// # Panics
    /// With the sum that is off, when the deadline passes first.
    pub(crate) async fn assert_balanced(&self) {
        let deadline = Instant::now() + BALANCE_DEADLINE;
        while let Err(reason) = self.metrics().await.balance() {
            assert!(Instant::now() < deadline, "the counters do not add up: {reason}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("the server is running")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let failing = thread::panicking();
        let balanced = failing || self.running.is_none() || {
            self.client = client_for(&self.setup); // the old one belongs to the runtime of the test
            let check = std::panic::AssertUnwindSafe(|| blocking(self.assert_balanced()));
            std::panic::catch_unwind(check).is_ok()
        };
        if self.running.is_some() {
            self.kill9();
        }
        if failing || !balanced {
            eprintln!("--- the server logged:\n{}---", self.log());
        }
        assert!(balanced, "the counters of readings do not add up, see above");
    }
}

impl Answer {
    async fn of(response: Result<reqwest::Response, reqwest::Error>) -> Result<Self, reqwest::Error> {
        let response = response?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Self { status, headers, body: response.bytes().await? })
    }

    /// Whether it is more than the wish to be asked again when the store answers.
    pub(crate) fn is_final(&self) -> bool {
        self.status != 503 || self.json()["code"] != "store_unavailable"
    }

    /// The body as text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("UTF-8")
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.text()))
    }

    /// A header, or nothing.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("ASCII"))
    }
}

/// A client that trusts `ca.pem` where the server speaks TLS, and shows `operator.pem` there if it exists.
fn client_for(setup: &Setup) -> reqwest::Client {
    let folder = setup.tls_folder();
    let authority = folder.map(|folder| std::fs::read(folder.join("ca.pem")).expect("the authority of the server"));
    let shown = folder.and_then(|folder| std::fs::read(folder.join("operator.pem")).ok());
    let client = client(authority.as_deref()).timeout(Duration::from_secs(60));
    let identity = |pem: Vec<u8>| reqwest::Identity::from_pem(&pem).expect("a certificate and its key");
    let client = shown.map(identity).into_iter().fold(client, reqwest::ClientBuilder::identity);
    client.build().expect("a client")
}

fn keep_log(stderr: ChildStderr, log: Arc<Mutex<String>>) {
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let mut log = log.lock().expect("no panic while it was held");
            log.push_str(&line);
            log.push('\n');
        }
    });
}

/// The first line of `stdout`; the rest is read and dropped, so that the server never waits for us.
fn first_line(stdout: ChildStdout) -> oneshot::Receiver<String> {
    let (send, receive) = oneshot::channel();
    thread::spawn(move || {
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        if let Some(line) = lines.next() {
            drop(send.send(line)); // nobody waits any more when the test has failed meanwhile
            lines.for_each(drop);
        }
    });
    receive
}

fn url_in(first_line: &str) -> Option<String> {
    let scheme = if word_of(first_line, "tls=")? == "on" { "https" } else { "http" };
    Some(format!("{scheme}://{}", word_of(first_line, "http=")?))
}

/// What follows `key` in a line of words.
fn word_of<'l>(line: &'l str, key: &str) -> Option<&'l str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(key))
}
