//! Options of the connection string, against a real server that requires them: TLS, passwords, client
//! certificates, compression.

use std::path::Path;
use std::process::{Command, Stdio};

use bson::doc;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use serde_json::json;
use tempfile::TempDir;

use crate::harness::mongod::kill_on_exit::KillOnExit;
use crate::harness::{Database, Killed, Server, Setup, mongod, run, wait_until};

const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z

/// A server that requires TLS and authentication.
pub(crate) struct Guarded {
    _child: Killed,
    _kill_on_exit: KillOnExit,
    folder: TempDir,
    port: u16,
}

impl Guarded {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("tidegauge-guarded-").tempdir().expect("a temporary folder");
        write_certificates(folder.path());
        let file = |name: &str| folder.path().join(name).display().to_string();
        let port = mongod::free_port();
        let mut command = Command::new(mongod::binary());
        command.args(["--auth", "--bind_ip", "127.0.0.1", "--nounixsocket", "--port", &port.to_string()]);
        command.args(["--dbpath", &folder.path().display().to_string(), "--wiredTigerCacheSizeGB", "0.25"]);
        command.args(["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", &file("server.pem")]);
        command.args(["--tlsCAFile", &file("ca.pem"), "--tlsAllowConnectionsWithoutCertificates"]);
        command.args(["--logpath", &file("log")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = Killed(command.spawn().expect("mongod runs"));
        let kill_on_exit = KillOnExit::new(&child.0, folder.path());
        let guarded = Self { _child: child, _kill_on_exit: kill_on_exit, folder, port };
        guarded.make_users().await;
        guarded
    }

    /// A connection string with `who` before the host and `more` at the end.
    pub(crate) fn uri(&self, who: &str, more: &str) -> String {
        let ca = self.folder.path().join("ca.pem").display().to_string();
        format!("mongodb://{who}127.0.0.1:{}/?tls=true&tlsCAFile={ca}{more}", self.port)
    }

    fn client_certificate(&self) -> String {
        self.folder.path().join("client.pem").display().to_string()
    }

    /// Creates a user. Until one exists, the server allows any local client to do so.
    async fn make_users(&self) {
        let client = mongodb::Client::with_uri_str(self.uri("", "")).await.expect("a well-formed URI");
        let roles = || bson::bson!([{ "role": "root", "db": "admin" }]);
        let user = doc! { "createUser": "ann", "pwd": "hunter2", "roles": roles() };
        wait_until("the server takes a user", async || client.database("admin").run_command(user.clone()).await.ok())
            .await;
        let user = doc! { "createUser": "CN=tidegauge", "roles": roles() };
        self.ann().await.database("$external").run_command(user).await.expect("ann may do that");
    }

    /// A client of the user `ann`, who may do everything.
    async fn ann(&self) -> mongodb::Client {
        mongodb::Client::with_uri_str(self.uri("ann:hunter2@", "")).await.expect("a well-formed URI")
    }

    /// The `admin` database, for a user who may do everything.
    pub(crate) async fn admin(&self) -> mongodb::Database {
        self.ann().await.database("admin")
    }
}

/// `ca.pem`, and `server.pem` and `client.pem` with their keys.
fn write_certificates(folder: &Path) {
    let named = |name: &str| {
        let mut params = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()]).expect("names");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params
    };
    let key = || KeyPair::generate().expect("a key");
    let (ca_key, mut ca) = (key(), named("authority"));
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.extended_key_usages.clear();
    std::fs::write(folder.join("ca.pem"), ca.self_signed(&ca_key).expect("a certificate").pem()).expect("writable");
    let issuer = Issuer::new(ca, ca_key);
    for (file, name) in [("server.pem", "server"), ("client.pem", "tidegauge")] {
        let of = key();
        let certificate = named(name).signed_by(&of, &issuer).expect("a certificate").pem();
        std::fs::write(folder.join(file), certificate + &of.serialize_pem()).expect("writable");
    }
}

/// Asserts that readings are stored and can be queried.
async fn stores_with(uri: &str) {
    let server = Server::start(Setup::sqlite().set("mongodb.uri", uri)).await;
    let readings: Vec<_> = (0..50).map(|at| json!({ "ts": START_MS + at, "value": at })).collect();
    assert_eq!(server.ingest(&json!({ "deviceId": "a", "readings": readings })).await.status, 200);
    let metrics = server.settled().await;
    let known = metrics.taken();
    assert_eq!(known, 50);
    assert_eq!(server.readings("a").await.as_array().map(Vec::len), Some(50));
}

#[tokio::test]
async fn the_connection_string_sets_credentials_and_compression() {
    let guarded = Guarded::start().await;
    stores_with(&guarded.uri("ann:hunter2@", "&compressors=zstd")).await;
    let status = guarded.admin().await.run_command(doc! { "serverStatus": 1 }).await.expect("ann may ask");
    let zstd = status.get_document("network").and_then(|of| of.get_document("compression")?.get_document("zstd"));
    let zstd = zstd.and_then(|of| of.get_document("decompressor")).expect("the server's compressors").clone();
    assert!(zstd.get_i64("bytesIn").expect("a count") > 0, "{zstd}");

    let certificate = guarded.client_certificate();
    stores_with(&guarded.uri("", &format!("&tlsCertificateKeyFile={certificate}&authMechanism=MONGODB-X509"))).await;
}

/// The reason in `/readyz` for an unreachable store. Asserts that it and the log line are short and contain
/// no password.
async fn trouble_with(uri: &str) -> String {
    let server = Server::start(Setup::sqlite().set("mongodb.uri", uri).set("mongodb.timeout", "5s")).await;
    assert_eq!(server.ingest(&json!({ "deviceId": "a", "value": 1 })).await.status, 200);
    let reason = wait_until("what is wrong with the servers is known", async || {
        let ready = server.get_json("/readyz").await;
        ready["reason"].as_str().filter(|reason| !reason.ends_with("no answer yet")).map(str::to_owned)
    })
    .await;
    let log = server.logged("the store is away").await;
    let line = log.lines().find(|line| line.contains("the store is away")).expect("a log line");
    for text in [line, &reason] {
        assert!(!text.contains("hunter") && !text.contains(['{', '\n']) && text.len() < 500, "{text}");
    }
    assert!(line.contains("127.0.0.1:"), "{line}");
    reason
}

#[tokio::test]
async fn what_has_to_be_mended_is_said() {
    let free = mongod::free_port();
    let nobody = trouble_with(&format!("mongodb://127.0.0.1:{free}/?replicaSet=rs0")).await;
    assert_eq!(nobody, format!("the store is away: 127.0.0.1:{free}: Connection refused"));
    let other_set = trouble_with(&mongod::uri().replace("replicaSet=tests", "replicaSet=rs0")).await;
    assert!(other_set.contains("is in replica set tests, but mongodb.uri says replicaSet=rs0"), "{other_set}");
    let guarded = Guarded::start().await;
    let standalone = trouble_with(&guarded.uri("ann:hunter2@", "&replicaSet=rs0")).await;
    assert!(standalone.contains("is a standalone server") && standalone.contains("--replSet rs0"), "{standalone}");
}

#[tokio::test]
async fn the_database_that_the_connection_string_names_is_used() {
    let database = Database::new();
    let uri = mongod::uri().replace("/?", &format!("/{}?", database.name));
    stores_with(&uri).await;
    assert_eq!(database.aggregate("buckets", vec![doc! { "$count": "n" }]).await, [doc! { "n": 1 }]);
}

#[tokio::test]
async fn an_invalid_connection_string_is_refused_with_the_reason() {
    for command in ["check", "serve"] {
        let refused = run(&[command, "--mongodb-uri", "mongodb://ann:hunter2@h/?replcaSet=rs0"]).await;
        assert_eq!(refused.code, Some(64), "{refused:?}");
        let said = refused.stderr.trim();
        assert!(said.starts_with("tidegauge: mongodb.uri: replcaset is an invalid option"), "{said}");
        assert!(!said.contains(['\n', '{']) && !said.contains("hunter2"), "{said}");
    }
    let good = run(&["check", "--mongodb-uri", "mongodb+srv://ann:hunter2@no-such-host.example.net/plant?w=1"]).await;
    assert_eq!(good.code, Some(0), "{good:?}");
    let shown = ["uri = \"mongodb+srv://ann:***@no-such-host.example.net/plant?w=1\"", "database = \"plant\""];
    assert!(shown.iter().all(|line| good.stdout.contains(line)), "{good:?}");
}

#[tokio::test]
async fn a_wrong_password_is_reported_and_readings_stay_pending() {
    let guarded = Guarded::start().await;
    let setup = Setup::sqlite().set("mongodb.uri", guarded.uri("ann:hunter3@", "")).set("mongodb.timeout", "5s");
    let mut server = Server::start(setup).await;
    assert_eq!(server.ingest(&json!({ "deviceId": "a", "value": 1 })).await.status, 200);
    let ready = wait_until("the store is said to be away for the password", async || {
        let ready = server.get_json("/readyz").await;
        let is_for_it = ready["reason"].as_str().is_some_and(|why| why.contains("auth"));
        (ready["status"] == "degraded" && is_for_it).then_some(ready)
    })
    .await;
    assert!(!server.logged("the store is away").await.contains("hunter3") && !ready.to_string().contains("hunter3"));
    server.kill9();
    server.start_again_with(Setup::sqlite().set("mongodb.uri", guarded.uri("ann:hunter2@", ""))).await;
    assert_eq!(server.settled().await.count("tidegauge_readings_stored_total"), 1);
}

/// Starts a server that may not write to its database. Waits until it says so, with a reading that it has
/// accepted.
async fn without_rights(uri: &str) -> Server {
    let server = Server::start(Setup::sqlite().set("mongodb.uri", uri)).await;
    assert_eq!(server.ingest(&json!({ "deviceId": "a", "value": 1 })).await.status, 200);
    wait_until("the store is said to be away for the rights", async || {
        let ready = server.get_json("/readyz").await;
        let mend = "auth: grant readWrite and dbAdmin on tidegauge to the user of mongodb.uri: ";
        let is_for_them = ready["reason"].as_str().is_some_and(|why| why.contains(mend));
        (ready["status"] == "degraded" && is_for_them).then_some(())
    })
    .await;
    assert_eq!(server.metrics().await.count("tidegauge_store_up"), 0);
    server.logged("the store is away").await;
    server
}

#[tokio::test]
async fn missing_rights_are_reported_and_readings_stay_pending_until_they_are_granted() {
    let guarded = Guarded::start().await;
    without_rights(&guarded.uri("", "")).await;
    let admin = guarded.admin().await;
    let resource = doc! { "db": "tidegauge", "collection": "" };
    let documents_only = doc! { "resource": resource, "actions": ["find", "insert", "update", "remove"] };
    let role = doc! { "createRole": "documents", "privileges": [documents_only], "roles": [] };
    admin.run_command(role).await.expect("ann may do that");
    let user = doc! { "createUser": "bob", "pwd": "hunter4", "roles": ["documents"] };
    admin.run_command(user).await.expect("ann may do that");
    without_rights(&guarded.uri("bob:hunter4@", "")).await; // who creates no collection
    let user = doc! { "createUser": "eve", "pwd": "hunter4", "roles": [{ "role": "read", "db": "tidegauge" }] };
    admin.run_command(user).await.expect("ann may do that");
    let server = without_rights(&guarded.uri("eve:hunter4@", "")).await;
    let grant = doc! { "grantRolesToUser": "eve", "roles": [{ "role": "readWrite", "db": "tidegauge" }] };
    admin.run_command(grant).await.expect("ann may do that");
    assert_eq!(server.settled().await.count("tidegauge_readings_stored_total"), 1);
    assert_eq!(server.get_json("/readyz").await["status"], "ok");
}
