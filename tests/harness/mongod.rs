//! Real mongods for tests: a replica set of one member, on a free port, with a temporary folder; and of three
//! ([`replica_set`]).
//!
//! [`uri`] is one server for all tests of a process; tests keep apart by database name. A test that stops its
//! server takes a [`Mongod`] of its own. `TEST_MONGODB_URI` names a running server to use for [`uri`]
//! instead.
//!
//! This file and the modules in it stand alone, because the unit tests of the store include them too.

#[path = "leash.rs"]
pub(crate) mod leash;
#[path = "replica_set.rs"]
pub(crate) mod replica_set;
#[path = "router/mod.rs"]
pub(crate) mod router;

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
use leash::Leash;
use mongodb::Client;
use tempfile::TempDir;

/// How long a mongod may take until it can be written to, on a busy machine.
const START_DEADLINE: Duration = Duration::from_secs(180);

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
        match std::env::var("TEST_MONGODB_URI") {
            Ok(uri) => Self::Given(uri),
            Err(_) => Self::Started(Mongod::start()),
        }
    }
}

/// A mongod of our own: the only member of its replica set, unless it is one of a [`ReplicaSet`]. It ends
/// when this is dropped, or with this process.
#[derive(Debug)]
pub(crate) struct Mongod {
    running: Option<(Child, Leash)>,
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
        let mut mongod = Self::start_uninitiated(parameters);
        mongod.wait_until(|hello| hello.contains_key("isreplicaset"));
        initiate(&[&mongod], doc! {});
        mongod.wait_until(is_primary);
        mongod
    }

    /// Starts a server that waits for a replica set to be made.
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

    /// Ends the server the hard way.
    pub(crate) fn kill9(&mut self) {
        if let Some((mut child, _leash)) = self.running.take() {
            child.kill().expect("mongod is our child");
            child.wait().expect("mongod is our child");
        }
    }

    /// Stops the server in its tracks: its connections stay open, and nothing is answered.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
        let (child, _) = self.running.as_ref().expect("it is running");
        let status = format!("/proc/{}/status", child.id());
        while !std::fs::read_to_string(&status).expect("our child").contains("State:\tT") {
            std::thread::yield_now(); // the signal is on its way
        }
    }

    /// Lets a frozen server go on.
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
        let leash = Leash::tie(&child, self.folder.path());
        self.running = Some((child, leash));
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Waits until what the server says to `hello` is as it should be.
    fn wait_until(&mut self, is_ready: fn(&Document) -> bool) {
        let deadline = Instant::now() + START_DEADLINE;
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
                if Instant::now() > deadline {
                    return Err(format!("not ready after {START_DEADLINE:?}: {hello}"));
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        if let Err(reason) = waited {
            panic!("mongod did not start: {reason}; its log ends with:\n{}", log_tail(self.folder.path()));
        }
    }

    /// For what is asked once, and must be answered however busy the machine is.
    async fn patient_admin(&self) -> mongodb::Database {
        client(&format!("mongodb://{}/?directConnection=true", self.address())).await.database("admin")
    }

    /// The URI of this server alone, whatever its role, for what is asked again and again: with short waits.
    fn own_uri(&self) -> String {
        let patience = "serverSelectionTimeoutMS=500&connectTimeoutMS=500";
        format!("mongodb://{}/?directConnection=true&{patience}", self.address())
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
    let initiated =
        blocking(async { members[0].patient_admin().await.run_command(doc! { "replSetInitiate": config }).await });
    initiated.expect("fresh servers");
}

async fn client(uri: &str) -> Client {
    Client::with_uri_str(uri).await.expect("a well-formed URI")
}

/// What the server says of itself; nothing, when it does not answer.
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

/// The path of the server. Fetches it when it is not there yet.
pub(crate) fn binary() -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/get-mongod");
    let output = Command::new("python3").arg(script).stdin(Stdio::null()).output().expect("python3 is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim_end())
}

/// A port that nobody listens on and that this process did not hand out yet, below the range from which the
/// system hands out ports: a restart of the server on its port cannot find it taken by some outgoing
/// connection.
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

/// Runs `work` to its end on a thread of its own: callable where a runtime is running already, and from
/// `Drop`.
pub(crate) fn blocking<T: Send>(work: impl Future<Output = T> + Send) -> T {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(work)
    };
    std::thread::scope(|scope| scope.spawn(run).join()).expect("the work panicked, and said so")
}
