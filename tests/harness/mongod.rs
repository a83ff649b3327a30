//! A real mongod for tests: a replica set of one member, on a free port, with a temporary folder.
//!
//! [`uri`] is one server for all tests of a process; tests keep apart by database name. A test that stops its server
//! takes a [`Mongod`] of its own. `TIDEGAUGE_TEST_MONGODB_URI` names a running server to use for [`uri`] instead.
//!
//! This file and `leash.rs` stand alone, because the unit tests of the store include them too.

#[path = "leash.rs"]
pub(crate) mod leash;

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use bson::doc;
use leash::Leash;
use tempfile::TempDir;

/// How long a mongod may take until it can be written to, on a busy machine.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// The URI, without a database name, of the server that the tests of this process share.
pub(crate) fn uri() -> &'static str {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    match SHARED.get_or_init(Shared::find) {
        Shared::Given(uri) => uri,
        Shared::Started(mongod) => mongod.uri(),
    }
}

enum Shared {
    Given(String),
    Started(Mongod),
}

impl Shared {
    fn find() -> Self {
        match std::env::var("TIDEGAUGE_TEST_MONGODB_URI") {
            Ok(uri) => Self::Given(uri),
            Err(_) => Self::Started(Mongod::start()),
        }
    }
}

/// A mongod of our own. It ends when this is dropped, or with this process.
#[derive(Debug)]
pub(crate) struct Mongod {
    pub(crate) running: Option<(Child, Leash)>,
    uri: String,
    port: u16,
    folder: TempDir,
    parameters: &'static [&'static str],
}

impl Mongod {
    /// Starts a server, makes it the primary of its replica set, and waits until it takes writes.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same, with server parameters as `name=value`.
    pub(crate) fn start_with(parameters: &'static [&'static str]) -> Self {
        let port = free_port();
        let folder = tempfile::Builder::new().prefix("tidegauge-mongod-").tempdir().expect("a temporary folder");
        let uri = format!("mongodb://127.0.0.1:{port}/?replicaSet=tests");
        let mut mongod = Self { running: None, uri, port, folder, parameters };
        mongod.start_again();
        mongod
    }

    /// The URI, without a database name.
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// Starts the server again after [`Mongod::kill9`], with its port and its data.
    pub(crate) fn start_again(&mut self) {
        assert!(self.running.is_none(), "it is running");
        let child = spawn(self.port, self.folder.path(), self.parameters);
        let leash = Leash::tie(&child, self.folder.path());
        let (child, _) = self.running.insert((child, leash));
        if let Err(reason) = wait_until_primary(child, self.port) {
            panic!("mongod did not start: {reason}; its log ends with:\n{}", log_tail(self.folder.path()));
        }
    }

    /// Ends the server the hard way.
    pub(crate) fn kill9(&mut self) {
        if let Some((mut child, _leash)) = self.running.take() {
            child.kill().expect("mongod is our child");
            child.wait().expect("mongod is our child");
        }
    }
}

impl Drop for Mongod {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// Starts the process, and does not wait for anything.
pub(super) fn spawn(port: u16, folder: &Path, parameters: &[&str]) -> Child {
    let log = File::options().create(true).append(true).open(folder.join("log")).expect("the folder is writable");
    let mut command = Command::new(binary());
    command.args(["--replSet", "tests", "--bind_ip", "127.0.0.1", "--nounixsocket", "--port", &port.to_string()]);
    command.arg("--dbpath").arg(folder);
    command.args(["--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "64"]);
    command.args(["--setParameter", "diagnosticDataCollectionEnabled=false"]);
    command.args(["--setParameter", "enableTestCommands=1"]); // allows configureFailPoint
    command.args(parameters.iter().flat_map(|parameter| ["--setParameter", parameter]));
    command.stdin(Stdio::null()).stderr(log.try_clone().expect("an open file")).stdout(log);
    command.process_group(0).spawn().expect("get-mongod names a mongod that runs")
}

/// The path of the server. Fetches it when it is not there yet.
pub(crate) fn binary() -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/get-mongod");
    let output = Command::new("python3").arg(script).stdin(Stdio::null()).output().expect("python3 is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim_end())
}

/// A port that nobody listens on, below the range from which the system hands out ports: a restart of the server on
/// its port cannot find it taken by some outgoing connection.
pub(crate) fn free_port() -> u16 {
    let start = RandomState::new().hash_one(std::process::id());
    let candidates = (0..8_000).map(|step| 20_000 + (start.wrapping_add(step) % 8_000) as u16);
    candidates.into_iter().find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}

fn log_tail(folder: &Path) -> String {
    let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Waits until the server can be written to, and makes a fresh one the only member of its replica set on the way.
fn wait_until_primary(child: &mut Child, port: u16) -> Result<(), String> {
    let deadline = Instant::now() + START_DEADLINE;
    blocking(async {
        let uri = format!("mongodb://127.0.0.1:{port}/?directConnection=true&serverSelectionTimeoutMS=500");
        let client = mongodb::Client::with_uri_str(uri).await.expect("a well-formed URI");
        let admin = client.database("admin");
        loop {
            let hello = admin.run_command(doc! { "hello": 1 }).await.unwrap_or_default();
            if hello.get_bool("isWritablePrimary").unwrap_or(false) {
                return Ok(());
            }
            if hello.contains_key("isreplicaset") {
                let member = doc! { "_id": 0, "host": format!("127.0.0.1:{port}") };
                let config = doc! { "_id": "tests", "members": [member] };
                admin.run_command(doc! { "replSetInitiate": config }).await.map_err(|error| error.to_string())?;
            }
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("it ended with {status}"));
            }
            if Instant::now() > deadline {
                return Err(format!("no primary after {START_DEADLINE:?}: {hello}"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
}

/// Runs `work` to its end on a thread of its own: callable where a runtime is running already, and from `Drop`.
pub(crate) fn blocking<T: Send>(work: impl Future<Output = T> + Send) -> T {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(work)
    };
    std::thread::scope(|scope| scope.spawn(run).join()).expect("the work panicked, and said so")
}
