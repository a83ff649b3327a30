//! Starts and stops the processes of a system under test, with its data in a temporary folder.

use std::fs::File;
use std::io::ErrorKind;
use std::net::{SocketAddrV4, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bson::doc;

use super::{Programs, System};
use crate::client::Client;
use crate::metrics::{self, Exposition};
use crate::process::Process;
use crate::target::Target;

/// The time limit of a start, until the system answers.
const START: Duration = Duration::from_secs(60);

/// The time limit until the files of a system no longer change.
const MERGE: Duration = Duration::from_secs(300);

/// How long files must be unchanged to count as compacted.
const STANDS_STILL: Duration = Duration::from_secs(8);

/// A running system. Dropping it stops the system and deletes its data.
pub(crate) struct Server {
    pub(crate) address: String,
    /// The address for datagrams.
    pub(crate) udp: SocketAddrV4,
    /// The process of the service, then that of its mongod, if it has one.
    pub(crate) processes: Vec<Process>,
    /// The connection string of its mongod, if it has one.
    pub(crate) mongodb: Option<String>,
    system: System,
    children: Vec<Child>,
    folder: tempfile::TempDir,
}

/// The environment variables of the processes of a system.
#[derive(Debug, Clone, Default)]
pub(crate) struct Environment {
    /// Variables of the service alone, such as keys of its configuration.
    pub(crate) service: Vec<(String, String)>,
    /// Variables of the service and of its mongod.
    pub(crate) all: Vec<(String, String)>,
}

impl Environment {
    /// The variables that set these keys of tidegauge: `("flush.max_age", "2s")`.
    pub(crate) fn of_config<'a>(keys: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let variable = |(key, value): (&str, &str)| {
            (format!("TIDEGAUGE_{}", key.replace('.', "__").to_uppercase()), value.to_owned())
        };
        Self { service: keys.into_iter().map(variable).collect(), all: Vec::new() }
    }
}

impl Server {
    /// Starts a system without data, and waits until it answers.
    pub(crate) async fn start(system: System, programs: &Programs, environment: &Environment) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("loadtest-").tempdir()?;
        let (port, udp_port) = (free_port()?, free_port()?);
        let mut server = Self {
            address: format!("127.0.0.1:{port}"),
            udp: format!("127.0.0.1:{udp_port}").parse()?,
            processes: Vec::new(),
            system,
            mongodb: None,
            children: Vec::new(),
            folder,
        };
        if system.needs_mongod() {
            server.mongodb = Some(server.start_mongod(programs, &environment.all).await?);
        }
        let mut command = server.command(programs)?;
        command.envs(environment.service.iter().cloned());
        server.spawn(system.name(), command, &environment.all)?;
        server.processes.rotate_right(1); // the service is first, mongod second
        server.wait(system).await?;
        Ok(server)
    }

    /// Waits until all acknowledged readings are stored, or visible to queries.
    pub(crate) async fn settle(&self) -> anyhow::Result<()> {
        match self.system.target() {
            Target::Tidegauge => metrics::settle(&self.address).await,
            Target::VictoriaMetrics => {
                Client::connect(&self.address).await?.get("/internal/force_flush").await?;
                Ok(())
            }
            Target::Influxdb | Target::Naive | Target::Bare => Ok(()), // nothing to wait for
        }
    }

    /// The number of received readings, as the system counts them.
    pub(crate) async fn taken(&self) -> anyhow::Result<u64> {
        let name = match self.system.target() {
            Target::Tidegauge => "tidegauge_readings_accepted_total",
            Target::VictoriaMetrics => "vm_rows_inserted_total{type=\"influx\"}",
            Target::Influxdb => return self.points_written().await,
            Target::Naive | Target::Bare => bail!("{} does not count", self.system.name()),
        };
        Ok(Exposition::of(&self.address).await?.sum(name) as u64)
    }

    async fn points_written(&self) -> anyhow::Result<u64> {
        let mut client = Client::connect(&self.address).await?;
        let (status, variables) = client.get("/debug/vars").await?;
        ensure!(status == 200, "/debug/vars: status {status}");
        let variables: serde_json::Value = serde_json::from_slice(variables)?;
        variables["write"]["values"]["pointReqLocal"].as_u64().context("no write.values.pointReqLocal in /debug/vars")
    }

    /// The number of received readings, once it has not changed for `stands_still`.
    pub(crate) async fn taken_at_last(&self, stands_still: Duration) -> anyhow::Result<u64> {
        let (mut taken, mut since) = (self.taken().await?, Instant::now());
        while since.elapsed() < stands_still {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let now = self.taken().await?;
            if now != taken {
                (taken, since) = (now, Instant::now());
            }
        }
        Ok(taken)
    }

    /// Waits until tidegauge has exactly this many pending readings.
    pub(crate) async fn fed(&self, readings: u64) -> anyhow::Result<()> {
        let pending = format!("tidegauge_readings_pending {readings}");
        let fed = tokio::time::timeout(START, metrics::wait(&self.address, &[pending.as_str()])).await;
        fed.with_context(|| format!("{readings} readings are not pending"))?
    }

    /// The disk space of the stored data, without logs and journals.
    ///
    /// If the system compacts its data in the background, it waits until that is done.
    pub(crate) async fn stored_bytes(mut self) -> anyhow::Result<u64> {
        let data = self.folder.path().join("data");
        match self.system {
            System::TidegaugeSqlite => {
                self.terminate()?; // SQLite then leaves a single file
                Ok(std::fs::metadata(data.join("tidegauge.sqlite"))?.blocks() * 512)
            }
            System::TidegaugeMongodb
            | System::TidegaugePacked
            | System::TidegaugeTimeseries
            | System::NaiveInsert
            | System::NaivePush => {
                let uri = self.mongodb.as_deref().context("a store in MongoDB")?;
                let client = mongodb::Client::with_uri_str(uri).await?;
                client.database("admin").run_command(doc! { "fsync": 1 }).await?;
                let database = if self.system.target() == Target::Naive { "naive" } else { "tidegauge" };
                let stats = client.database(database).run_command(doc! { "dbStats": 1 }).await?;
                Ok(["storageSize", "indexSize"].iter().filter_map(|field| stats.get_f64(field).ok()).sum::<f64>()
                    as u64)
            }
            System::VictoriaMetrics => {
                let mut client = Client::connect(&self.address).await?;
                client.get("/internal/force_merge").await?;
                settled_bytes(&data).await
            }
            System::Influxdb => settled_bytes(&data.join("data/loadtest")).await, // without its own metrics
            System::Bare => Ok(0),
        }
    }

    /// Stops the service with SIGTERM, and waits until it has ended.
    fn terminate(&mut self) -> anyhow::Result<()> {
        let child = self.children.last_mut().context("nothing was started")?;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGTERM)?;
        child.wait()?;
        Ok(())
    }

    fn command(&self, programs: &Programs) -> anyhow::Result<Command> {
        let data = self.folder.path().join("data");
        std::fs::create_dir(&data)?;
        let Self { address, udp, system, mongodb, .. } = self;
        Ok(match *system {
            System::TidegaugeSqlite
            | System::TidegaugeMongodb
            | System::TidegaugePacked
            | System::TidegaugeTimeseries => {
                let mut command = Command::new(&programs.tidegauge);
                command.args(["serve", "--http", address, "--udp", &udp.to_string(), "--data-dir"]).arg(data);
                if let Some(uri) = mongodb {
                    let store = if *system == System::TidegaugeTimeseries { "mongodb-timeseries" } else { "mongodb" };
                    command.args(["--store", store, "--mongodb-uri", uri]);
                }
                if *system == System::TidegaugePacked {
                    command.env("TIDEGAUGE_MONGODB__LAYOUT", "packed");
                }
                command
            }
            System::VictoriaMetrics => {
                let mut command = Command::new(&programs.victoria_metrics);
                command.arg(format!("-httpListenAddr={address}")).arg(format!("-influxListenAddr={udp}"));
                command.arg("-storageDataPath").arg(data).args(["-retentionPeriod=10y", "-search.disableCache"]);
                command
            }
            System::Influxdb => {
                let config = self.folder.path().join("influxdb.conf");
                std::fs::write(&config, influxdb_config(&data, address, *udp)?)?;
                let mut command = Command::new(&programs.influxd);
                command.arg("run").arg("-config").arg(config);
                command
            }
            System::NaiveInsert | System::NaivePush => {
                let way = if *system == System::NaiveInsert { "insert" } else { "push" };
                let mut command = Command::new(std::env::current_exe()?);
                let uri = mongodb.as_deref().context("naive needs MongoDB")?;
                command.args(["naive", "--way", way, "--listen", address, "--mongodb-uri", uri]);
                command
            }
            System::Bare => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["bare", "--listen", address]);
                command
            }
        })
    }

    fn spawn(&mut self, name: &str, mut command: Command, environment: &[(String, String)]) -> anyhow::Result<()> {
        let log = File::create(self.folder.path().join(format!("{name}.log")))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).envs(environment.iter().cloned());
        let child = command.spawn().with_context(|| format!("start {}", command.get_program().display()))?;
        self.processes.push(Process::watch(name, child.id())?);
        self.children.push(child);
        Ok(())
    }

    /// Starts a mongod as a replica set of one member. Returns its connection string.
    async fn start_mongod(&mut self, programs: &Programs, environment: &[(String, String)]) -> anyhow::Result<String> {
        let data = self.folder.path().join("mongod");
        std::fs::create_dir(&data)?;
        let port = free_port()?;
        let mut command = Command::new(&programs.mongod);
        command.args(["--replSet", "bench", "--bind_ip", "127.0.0.1", "--port", &port.to_string(), "--dbpath"]);
        command.arg(data).args(["--wiredTigerCacheSizeGB", &programs.mongod_cache_gb.to_string()]);
        if !environment.is_empty() {
            command.args(["--slowms", "100000"]); // by a fast clock, each write would be logged as a slow one
        }
        self.spawn("mongod", command, environment)?;
        let uri = format!("mongodb://127.0.0.1:{port}/?directConnection=true&serverSelectionTimeoutMS=1000");
        let admin = mongodb::Client::with_uri_str(&uri).await?.database("admin");
        let deadline = Instant::now() + START;
        loop {
            let hello = admin.run_command(doc! { "hello": 1 }).await.unwrap_or_default();
            if hello.get_bool("isWritablePrimary").unwrap_or(false) {
                // A connection may take long by the clock of a service with a fast clock.
                return Ok(format!("mongodb://127.0.0.1:{port}/?replicaSet=bench&connectTimeoutMS=600000"));
            }
            if hello.contains_key("isreplicaset") {
                let member = doc! { "_id": 0, "host": format!("127.0.0.1:{port}") };
                admin.run_command(doc! { "replSetInitiate": { "_id": "bench", "members": [member] } }).await?;
            }
            ensure!(Instant::now() < deadline, "mongod did not start: {}", self.log("mongod"));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn wait(&mut self, system: System) -> anyhow::Result<()> {
        let path = match system.target() {
            Target::Tidegauge => "/readyz",
            Target::VictoriaMetrics => "/health",
            Target::Influxdb => "/query?q=CREATE%20DATABASE%20loadtest",
            Target::Naive | Target::Bare => "/",
        };
        let deadline = Instant::now() + START;
        loop {
            if let Some(ended) = self.children.last_mut().context("nothing was started")?.try_wait()? {
                bail!("{} ended with {ended}: {}", system.name(), self.log(system.name()));
            }
            if let Ok(mut client) = Client::connect(&self.address).await {
                let answered = if system == System::Influxdb {
                    client.post(path, "text/plain", b"").await
                } else {
                    client.get(path).await
                };
                if answered.is_ok_and(|(status, _)| status == 200 || path == "/") {
                    return Ok(());
                }
            }
            ensure!(Instant::now() < deadline, "{} did not start: {}", system.name(), self.log(system.name()));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Keeps the folder with the data when the system is stopped.
    pub(crate) fn keep(&mut self) {
        self.folder.disable_cleanup(true);
    }

    /// The addresses of the service and its mongod, and the folder: text for people.
    pub(crate) fn places(&self) -> String {
        let database = self.mongodb.as_ref().map(|uri| format!(", {uri}")).unwrap_or_default();
        format!("{}: http://{}{database}, files in {}", self.system.name(), self.address, self.folder.path().display())
    }

    /// The number of lines in the service's log that contain `text`.
    pub(crate) fn times_logged(&self, text: &str) -> anyhow::Result<u64> {
        let log = std::fs::read_to_string(self.folder.path().join(format!("{}.log", self.system.name())))?;
        Ok(log.lines().filter(|line| line.contains(text)).count() as u64)
    }

    /// The last lines of the service's log.
    pub(crate) fn last_lines(&self) -> String {
        self.log(self.system.name())
    }

    fn log(&self, name: &str) -> String {
        let log = std::fs::read_to_string(self.folder.path().join(format!("{name}.log"))).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Waits until the size of a folder no longer changes, and returns it.
///
/// The systems merge files in the background.
///
/// # Errors
/// If the size still changes after [`MERGE`].
async fn settled_bytes(folder: &Path) -> anyhow::Result<u64> {
    let (mut bytes, mut since) = (folder_bytes(folder)?, Instant::now());
    let deadline = Instant::now() + MERGE;
    while since.elapsed() < STANDS_STILL {
        ensure!(Instant::now() < deadline, "{} does not stand still", folder.display());
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = folder_bytes(folder)?;
        if now != bytes {
            (bytes, since) = (now, Instant::now());
        }
    }
    Ok(bytes)
}

fn folder_bytes(folder: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        bytes += match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path())?,
            Ok(metadata) => metadata.blocks() * 512,
            Err(error) if error.kind() == ErrorKind::NotFound => 0, // the file was merged into another one meanwhile
            Err(error) => return Err(error.into()),
        };
    }
    Ok(bytes)
}

/// The configuration of `InfluxDB`.
///
/// Besides paths and ports, it differs from the defaults in the index, the limits of bodies and of the UDP
/// buffer, the logs of requests and queries, which no other system writes, and the delays until idle data is
/// compacted.
fn influxdb_config(data: &Path, address: &str, udp: SocketAddrV4) -> anyhow::Result<String> {
    let rpc = free_port()?;
    let folder = |name: &str| data.join(name).display().to_string();
    Ok(format!(
        "reporting-disabled = true\nbind-address = \"127.0.0.1:{rpc}\"\n\
         [meta]\ndir = {:?}\n\
         [data]\ndir = {:?}\nwal-dir = {:?}\nindex-version = \"tsi1\"\nquery-log-enabled = false\n\
         cache-snapshot-write-cold-duration = \"2s\"\ncompact-full-write-cold-duration = \"3s\"\n\
         [http]\nbind-address = {address:?}\nlog-enabled = false\nmax-body-size = 0\n\
         [[udp]]\nenabled = true\nbind-address = \"{udp}\"\ndatabase = \"loadtest\"\nread-buffer = 8388608\n",
        folder("meta"),
        folder("data"),
        folder("wal")
    ))
}
