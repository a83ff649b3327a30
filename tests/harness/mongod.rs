//! Real mongods for tests, each on a free port and with a temporary folder.
//!
//! A [`Mongod`] is a replica set of one member. [`replica_set`] has one of three members.
//!
//! All tests of a process share one server, [`uri`], and each test has its own database there. A test that
//! stops its server starts its own [`Mongod`]. `TEST_MONGODB_URI` names a running server for [`uri`] instead.
//!
//! This file and its modules use nothing else of the harness, because the unit tests of the store include
//! them too.

#[path = "deadline.rs"]
pub(crate) mod deadline;
#[path = "kill_on_exit.rs"]
pub(crate) mod kill_on_exit;
#[path = "mongos/mod.rs"]
pub(crate) mod mongos;
#[path = "replica_set.rs"]
pub(crate) mod replica_set;

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bson::{Document, doc};
use deadline::deadline;
use kill_on_exit::KillOnExit;
use mongodb::Client;
use tempfile::TempDir;

/// How many seconds a mongod may take until it accepts writes on a busy machine.
const START_SECONDS: u32 = 180;

/// The URI of the server that all tests of this process share.
///
/// It has no database name.
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
        match std::env::var("TEST_MONGODB_URI") {
            Ok(uri) => Self::Given(uri),
            Err(_) => Self::Started(Mongod::start()),
        }
    }
}

/// A mongod: the only member of its replica set, or one of a [`ReplicaSet`]. It ends when this is dropped or
/// this process ends.
#[derive(Debug)]
pub(crate) struct Mongod {
    running: Option<(Child, KillOnExit)>,
    uri: String,
    port: u16,
    folder: TempDir,
    parameters: &'static [&'static str],
}

impl Mongod {
    /// Starts a replica set of one member, and waits until it accepts writes.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts it with server parameters, each as `name=value`.
    pub(crate) fn start_with(parameters: &'static [&'static str]) -> Self {
        let mut mongod = Self::start_uninitiated(parameters);
        mongod.wait_until(|hello| hello.contains_key("isreplicaset"));
        initiate(&[&mongod], doc! {});
        mongod.wait_until(is_primary);
        mongod
    }

    /// Starts a server without initiating its replica set.
    fn start_uninitiated(parameters: &'static [&'static str]) -> Self {
        let port = free_port();
        let folder = tempfile::Builder::new().prefix("tidegauge-mongod-").tempdir().expect("a temporary folder");
        let uri = format!("mongodb://127.0.0.1:{port}/?replicaSet=tests");
        let mut mongod = Self { running: None, uri, port, folder, parameters };
        mongod.spawn();
        mongod
    }

    /// The URI, without a database name.
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// Starts the server again after [`Mongod::kill9`], with its port and its data.
    pub(crate) fn start_again(&mut self) {
        self.spawn();
        self.wait_until(is_primary);
    }

    /// Kills the server with SIGKILL.
    pub(crate) fn kill9(&mut self) {
        if let Some((mut child, _kill_on_exit)) = self.running.take() {
            child.kill().expect("mongod is our child");
            child.wait().expect("mongod is our child");
        }
    }

    /// Stops the server with SIGSTOP: its connections stay open and it does not answer.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
        let (child, _) = self.running.as_ref().expect("it is running");
        let status = format!("/proc/{}/status", child.id());
        while !std::fs::read_to_string(&status).expect("our child").contains("State:\tT") {
            std::thread::yield_now(); // the signal is not delivered yet
        }
    }

    /// Continues a frozen server.
    pub(crate) fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let (child, _) = self.running.as_ref().expect("it is running");
        signal(child, name);
    }

    fn spawn(&mut self) {
        assert!(self.running.is_none(), "it is running");
        let child = spawn(self.port, self.folder.path(), self.parameters);
        let kill_on_exit = KillOnExit::new(&child, self.folder.path());
        self.running = Some((child, kill_on_exit));
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Waits until the answer of the server to `hello` satisfies `is_ready`.
    fn wait_until(&mut self, is_ready: fn(&Document) -> bool) {
        let limit = deadline(START_SECONDS);
        let give_up_at = Instant::now() + limit;
        let uri = self.own_uri();
        let (child, _) = self.running.as_mut().expect("it is running");
        let waited = blocking(async {
            let client = client(&uri).await;
            loop {
                let hello = hello(&client).await;
                if is_ready(&hello) {
                    return Ok(());
                }
                if let Some(status) = child.try_wait().expect("mongod is our child") {
                    return Err(format!("it ended with {status}"));
                }
                if Instant::now() > give_up_at {
                    return Err(format!("not ready after {limit:?}: {hello}"));
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        if let Err(reason) = waited {
            panic!("mongod did not start: {reason}; its log ends with:\n{}", log_tail(self.folder.path()));
        }
    }

    /// The `admin` database for single commands, with the driver's default timeouts.
    async fn admin(&self) -> mongodb::Database {
        client(&format!("mongodb://{}/?directConnection=true", self.address())).await.database("admin")
    }

    /// The URI of this server in any role, with short timeouts for polling.
    fn own_uri(&self) -> String {
        let timeouts = "serverSelectionTimeoutMS=500&connectTimeoutMS=500";
        format!("mongodb://{}/?directConnection=true&{timeouts}", self.address())
    }
}

impl Drop for Mongod {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// Makes these servers the members of a replica set, in this order.
fn initiate(members: &[&Mongod], settings: Document) {
    let address = |(id, member): (usize, &&Mongod)| doc! { "_id": id as i32, "host": member.address() };
    let addresses: Vec<Document> = members.iter().enumerate().map(address).collect();
    let config = doc! { "_id": "tests", "members": addresses, "settings": settings };
    let initiated = blocking(async { members[0].admin().await.run_command(doc! { "replSetInitiate": config }).await });
    initiated.expect("fresh servers");
}

async fn client(uri: &str) -> Client {
    Client::with_uri_str(uri).await.expect("a well-formed URI")
}

/// The answer of the server to `hello`; empty if it does not answer.
async fn hello(client: &Client) -> Document {
    let admin = client.database("admin");
    let answer = tokio::time::timeout(Duration::from_secs(2), async { admin.run_command(doc! { "hello": 1 }).await });
    answer.await.map_or_else(|_| Document::new(), Result::unwrap_or_default)
}

fn is_primary(hello: &Document) -> bool {
    hello.get_bool("isWritablePrimary").unwrap_or(false)
}

/// Sends a signal, such as `TERM`.
pub(crate) fn signal(child: &Child, name: &str) {
    let status = Command::new("sh").args(["-c", "kill -\"$0\" \"$1\"", name, &child.id().to_string()]).status();
    assert!(status.expect("sh is there").success(), "SIG{name} was not sent");
}

fn spawn(port: u16, folder: &Path, parameters: &[&str]) -> Child {
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

/// The path of mongod, which is fetched first if it is missing.
pub(crate) fn binary() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/get-mongod");
        let output = Command::new("python3").arg(script).stdin(Stdio::null()).output().expect("python3 is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim_end())
    })
}

/// A free port that this process has not returned before.
///
/// It lies below the system's ephemeral ports, so that no outgoing connection takes it before a restart of
/// the server.
pub(crate) fn free_port() -> u16 {
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU64::new(RandomState::new().hash_one(std::process::id()) >> 1));
    let candidates = std::iter::repeat_with(|| 20_000 + (next.fetch_add(1, Ordering::Relaxed) % 8_000) as u16);
    let mut free = candidates.take(8_000).filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().expect("a free port")
}

fn log_tail(folder: &Path) -> String {
    let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Runs `work` to its end on a new thread.
///
/// Callers may be inside of a runtime, or in `Drop`.
pub(crate) fn blocking<T: Send>(work: impl Future<Output = T> + Send) -> T {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(work)
    };
    std::thread::scope(|scope| scope.spawn(run).join()).expect("the work does not panic")
}
