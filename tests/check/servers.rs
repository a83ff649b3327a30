//! Servers that are away, alone, or whose clock differs; and connection strings that ask for less than
//! tidegauge.

use std::process::{Command, Stdio};

use bson::doc;

use crate::check::{check, check_with, small};
use crate::harness::mongod::{self, free_port};
use crate::harness::{Clock, Database, Setup, binary, wait_until};
use crate::mongodb_connection::Guarded;

#[tokio::test]
async fn a_server_that_does_not_answer_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let port = free_port();
    let setup = small(Setup::sqlite())
        .set("mongodb.uri", format!("mongodb://127.0.0.1:{port}"))
        .set("mongodb.timeout", "500ms");
    let found = check(&setup, folder.path()).await;
    found.has("error", "server-reach", &format!("127.0.0.1:{port}: Connection refused"));
}

#[tokio::test]
async fn a_standalone_server_is_a_warning() {
    let (folder, port) = (tempfile::tempdir().expect("a temporary folder"), free_port());
    let mut mongod = Command::new(mongod::binary());
    mongod
        .args(["--bind_ip", "127.0.0.1", "--nounixsocket", "--port", &port.to_string(), "--dbpath"])
        .arg(folder.path());
    let mut child = mongod.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a mongod that runs");
    let setup =
        small(Setup::sqlite()).set("mongodb.uri", format!("mongodb://127.0.0.1:{port}")).set("mongodb.timeout", "10s");
    let answers = async || {
        let checked = check(&setup, &folder.path().join("data")).await;
        (!checked.report.to_string().contains("server-reach")).then_some(checked)
    };
    let found = wait_until("the server answers", answers).await;
    child.kill().expect("our child");
    child.wait().expect("our child");
    let mend = found.has("warning", "server-topology", "the server is a standalone one");
    assert!(mend.contains("rs.initiate()"), "{mend}");
    assert_eq!(found.code, Some(2), "{found:#?}");
}

#[tokio::test]
async fn a_user_that_is_unknown_or_may_not_write_is_an_error() {
    let (guarded, folder) = (Guarded::start().await, tempfile::tempdir().expect("a temporary folder"));
    let record = r#"{"version":1,"store":"mongodb","id":"another","writes":0}"#;
    std::fs::write(folder.path().join("store.json"), record).expect("our folder");
    let admin = guarded.admin().await;
    for (name, role) in [("reader", "read"), ("writer", "readWrite")] {
        let roles = vec![doc! { "role": role, "db": "tidegauge" }];
        let user = doc! { "createUser": name, "pwd": "hunter4", "roles": roles };
        admin.run_command(user).await.expect("ann may do that");
    }
    let checked = async |uri: String| check(&small(Setup::sqlite()).set("mongodb.uri", uri), folder.path()).await;
    for who in ["", "reader:hunter4@"] {
        let found = checked(guarded.uri(who, "")).await;
        let mend = found.has("error", "collection", "MongoDB refuses a command of tidegauge: ");
        assert_eq!(mend, "grant readWrite and dbAdmin on tidegauge to the user of mongodb.uri");
        let mend = found.has("note", "server-cache", "not checked: ");
        assert!(mend.contains("clusterMonitor"), "{mend}");
        if !who.is_empty() {
            found.has("warning", "store-record", "is not the database that the service has used");
        }
    }
    let uri = guarded.uri("writer:hunter4@", "");
    let found = checked(uri.clone()).await;
    assert!(!found.report.to_string().contains("grant readWrite"), "{found:#?}");
    let found = checked(uri.replace("/?", "/tidegauge?")).await; // which is the database of its users too
    let mend = found.has("error", "server-reach", "MongoDB does not answer: ");
    assert!(mend.contains("authSource=admin"), "{mend}");
}

#[tokio::test]
async fn a_write_concern_of_the_connection_string_that_has_no_effect_is_found() {
    let (database, folder) = (Database::new(), tempfile::tempdir().expect("a temporary folder"));
    for (w, severity) in [("0", "error"), ("1", "warning")] {
        let separator = if database.uri.contains('?') { '&' } else { '?' };
        let setup = small(Setup::mongodb(&database)).set("mongodb.uri", format!("{}{separator}w={w}", database.uri));
        let mend =
            check(&setup, folder.path()).await.has(severity, "server-write-concern", &format!("w={w}")).to_owned();
        assert!(mend.starts_with(&format!("remove w={w} from mongodb.uri")), "{mend}");
    }
}

#[tokio::test]
async fn a_clock_that_differs_from_that_of_the_server_is_found() {
    let (database, folder, clock) = (Database::new(), tempfile::tempdir().expect("a temporary folder"), Clock::new());
    let setup = small(Setup::mongodb(&database));
    for (offset_seconds, severity, found) in
        [(-20, "warning", "s ahead of the clock of this machine"), (120, "error", "s behind the clock of this machine")]
    {
        clock.set(offset_seconds);
        let mut command = Command::new(binary());
        clock.apply_to(&mut command);
        let checked = check_with(&setup, folder.path(), command).await;
        let mend = checked.has(severity, "server-clock", found);
        assert!(mend.contains("timedatectl"), "{mend}");
    }
}
