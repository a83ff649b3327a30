//! The real `tidegauge serve`, on a free port, with a temporary data folder.
//!
//! Dropping a running server ends it, and fails the test if its counters of readings do not balance. A
//! failing test prints the log of its server.

mod answer;
mod requests;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;
use tokio::sync::oneshot;

use super::clock::{Clock, now_ms};
use super::disk::Disk;
use super::mongod::deadline::deadline;
use super::mongod::kill_on_exit::KillOnExit;
use super::mongod::{blocking, signal};
use super::process::{Finished, binary, remove_settings, run};
use super::{Setup, wait_until};
pub(crate) use answer::Answer;
use requests::client_for;
pub(crate) use requests::encoded;

/// How many seconds a server may take until it listens.
const START_SECONDS: u32 = 120;

/// A server, running or not.
#[derive(Debug)]
pub(crate) struct Server {
    running: Option<Running>,
    setup: Setup,
    disk: Option<Disk>,
    clock: Option<Clock>,
    /// The soft and the hard limit of open files, if the test sets them.
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
    _kill_on_exit: KillOnExit,
}

impl Server {
    /// Starts a server and waits until it listens.
    pub(crate) async fn start(setup: Setup) -> Self {
        let mut server = Self::prepare(setup);
        server.start_again().await;
        server
    }

    /// Starts a server on a data folder that `fill` has written.
    pub(crate) async fn start_with_data(setup: Setup, fill: impl FnOnce(&std::path::Path)) -> Self {
        let mut server = Self::prepare(setup);
        fill(&server.data_dir());
        server.start_again().await;
        server
    }

    /// Starts a server whose log is on a small disk of this size.
    pub(crate) async fn start_with_disk_of_log(setup: Setup, mebibytes: usize) -> Self {
        let mut server = Self::prepare(setup);
        server.disk = Some(Disk::mount(&server.data_dir().join("log"), mebibytes));
        server.start_again().await;
        server
    }

    /// Starts a server whose data folder, with log and SQLite file, is on a small disk.
    pub(crate) async fn start_with_disk_of_data(setup: Setup, mebibytes: usize) -> Self {
        let mut server = Self::prepare(setup);
        server.disk = Some(Disk::mount(&server.data_dir(), mebibytes));
        server.start_again().await;
        server
    }

    /// The disk of the log or the data folder.
    pub(crate) fn disk(&self) -> &Disk {
        self.disk.as_ref().expect("it was started with one")
    }

    /// Starts a server whose wall clock the test can set.
    pub(crate) async fn start_with_clock(setup: Setup) -> Self {
        let mut server = Self::prepare(setup);
        server.clock = Some(Clock::new());
        server.start_again().await;
        server
    }

    /// The wall clock of the server.
    pub(crate) fn clock(&self) -> &Clock {
        self.clock.as_ref().expect("it was started with one")
    }

    /// Starts a server whose wall clock shows this time, in Unix seconds.
    pub(crate) async fn start_at(setup: Setup, now_s: i64) -> Self {
        let mut server = Self::prepare(setup);
        let clock = Clock::new();
        clock.set(now_s - now_ms() / 1_000);
        server.clock = Some(clock);
        server.start_again().await;
        server
    }

    /// Starts a server with these limits of open files, soft and hard.
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

    /// Starts the server again on the same data folder.
    pub(crate) async fn start_again(&mut self) {
        assert!(self.running.is_none(), "it is running");
        let config = self.data.path().join("config.toml");
        std::fs::write(&config, self.setup.clone().or("udp.listen", "127.0.0.1:0").to_toml())
            .expect("the folder is writable");
        let mut command = match (&self.disk, self.open_files) {
            (Some(disk), _) => disk.run(&binary()),
            (None, Some([soft, hard])) => {
                let mut command = Command::new("prlimit"); // of util-linux; it executes the program in its own process
                command.arg(format!("--nofile={soft}:{hard}")).arg(binary());
                command
            }
            (None, None) => Command::new(binary()),
        };
        remove_settings(&mut command);
        command.args(["serve", "--http", "127.0.0.1:0"]);
        if let Some(clock) = &self.clock {
            clock.apply_to(&mut command);
        }
        command.arg("--config").arg(&config).arg("--data-dir").arg(self.data.path().join("data"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().expect("the binary runs");
        let kill_on_exit = KillOnExit::new(&child, self.data.path());
        keep_log(child.stderr.take().expect("piped"), Arc::clone(&self.log));
        let first_line = first_line(child.stdout.take().expect("piped"));
        let first_line = match tokio::time::timeout(deadline(START_SECONDS), first_line).await {
            Ok(Ok(line)) => line,
            Ok(Err(_)) => panic!("the server ended with {:?}; it logged:\n{}", child.wait(), self.log()),
            Err(elapsed) => panic!("the server did not listen in time, {elapsed}; it logged:\n{}", self.log()),
        };
        let url = url_in(&first_line).unwrap_or_else(|| panic!("no address in {first_line:?}"));
        self.running = Some(Running { child, url, first_line, _kill_on_exit: kill_on_exit });
    }

    /// Starts the server again on the same data folder with another configuration.
    pub(crate) async fn start_again_with(&mut self, setup: Setup) {
        self.setup = setup;
        self.start_again().await;
    }

    /// Ends the server with SIGTERM, and starts it again with another configuration.
    pub(crate) async fn start_again_after_stop(&mut self, setup: Setup) {
        let status = self.terminate().await;
        assert_eq!(status.code(), Some(0), "{status}: {}", self.log());
        self.start_again_with(setup).await;
    }

    /// Kills the server with SIGKILL.
    pub(crate) fn kill9(&mut self) {
        let mut running = self.running.take().expect("it is running");
        running.child.kill().expect("our child");
        running.child.wait().expect("our child");
    }

    /// Sends SIGTERM and waits until the server has ended.
    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM");
        let mut running = self.running.take().expect("it is running");
        wait_until("the server ends after SIGTERM", async || running.child.try_wait().expect("our child")).await
    }

    /// Sends a signal, such as `HUP`.
    pub(crate) fn signal(&self, name: &str) {
        signal(&self.running().child, name);
    }

    /// Replaces the configuration file of the running server.
    pub(crate) fn write_config(&self, text: &str) {
        std::fs::write(self.data.path().join("config.toml"), text).expect("the folder is writable");
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.running().child.id()
    }

    /// The URL of the server, such as `http://127.0.0.1:40123`.
    pub(crate) fn url(&self) -> &str {
        &self.running().url
    }

    /// The address on which the server listens for HTTP.
    pub(crate) fn http_addr(&self) -> SocketAddr {
        let address = word_of(self.first_line(), "http=").and_then(|address| address.parse().ok());
        address.unwrap_or_else(|| panic!("no address in {:?}", self.first_line()))
    }

    /// The address on which the server listens for datagrams.
    pub(crate) fn udp_addr(&self) -> SocketAddr {
        let address = word_of(self.first_line(), "udp=").and_then(|address| address.parse().ok());
        address.unwrap_or_else(|| panic!("no UDP address in {:?}", self.first_line()))
    }

    /// The address on which the server listens for MQTT devices.
    pub(crate) fn mqtt_addr(&self) -> SocketAddr {
        let address = word_of(self.first_line(), "mqtt=").and_then(|address| address.parse().ok());
        address.unwrap_or_else(|| panic!("no MQTT address in {:?}", self.first_line()))
    }

    /// The first line that the server printed on stdout.
    pub(crate) fn first_line(&self) -> &str {
        &self.running().first_line
    }

    /// Runs `tidegauge check` with these arguments on the data of the server.
    pub(crate) async fn check(&self, args: &[&str]) -> Finished {
        let args = self.args_of_check(args);
        run(&args.iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    /// The arguments of `tidegauge check` with its configuration.
    pub(crate) fn args_of_check(&self, more: &[&str]) -> Vec<String> {
        let (config, data) = (self.data.path().join("config.toml"), self.data_dir());
        let paths = [&config, &data].map(|path| path.to_str().expect("its path is text"));
        let args = ["check", "--config", paths[0], "--data-dir", paths[1]].into_iter().chain(more.iter().copied());
        args.map(str::to_owned).collect()
    }

    /// The folder of its log and embedded database.
    pub(crate) fn data_dir(&self) -> std::path::PathBuf {
        let data_dir = self.data.path().join("data");
        match &self.disk {
            Some(disk) if disk.folder() == data_dir => disk.seen(&data_dir),
            _ => data_dir,
        }
    }

    /// Sets the soft limit of file descriptors of the running server.
    pub(crate) fn limit_files(&self, files: usize) {
        let status = Command::new("prlimit")
            .args(["--pid", &self.id().to_string(), &format!("--nofile={files}:")])
            .status()
            .expect("prlimit of util-linux is there");
        assert!(status.success());
    }

    /// The log lines of all its starts so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().expect("no panic while it was held").clone()
    }

    /// Waits until the log has this text, and returns the log.
    ///
    /// A line arrives through a pipe, later than the event.
    pub(crate) async fn logged(&self, said: &str) -> String {
        wait_until(&format!("it logs: {said}"), async || Some(self.log()).filter(|log| log.contains(said))).await
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("the server is running")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let failing = thread::panicking();
        let balanced = failing || self.running.is_none() || {
            self.client = client_for(&self.setup); // the connections of the old one belong to the test's runtime
            let check = std::panic::AssertUnwindSafe(|| blocking(self.assert_balanced()));
            std::panic::catch_unwind(check).is_ok()
        };
        if self.running.is_some() {
            self.kill9();
        }
        if failing || !balanced {
            eprintln!("--- the server logged:\n{}---", self.log());
        }
        assert!(balanced, "the counters of readings do not balance, see above");
    }
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

/// The first line of `stdout`. A thread reads and drops the rest, so that the server never blocks on the
/// pipe.
fn first_line(stdout: ChildStdout) -> oneshot::Receiver<String> {
    let (send, receive) = oneshot::channel();
    thread::spawn(move || {
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        if let Some(line) = lines.next() {
            drop(send.send(line)); // the receiver is gone if the test has failed
            lines.for_each(drop);
        }
    });
    receive
}

fn url_in(first_line: &str) -> Option<String> {
    let scheme = if word_of(first_line, "tls=")? == "on" { "https" } else { "http" };
    Some(format!("{scheme}://{}", word_of(first_line, "http=")?))
}

/// The rest of the word that starts with `key`.
fn word_of<'l>(line: &'l str, key: &str) -> Option<&'l str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(key))
}
