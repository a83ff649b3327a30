//! The files of `[http.tls]` at the start and on SIGHUP.

use std::fs;

use super::{BOTH, Folder, HEALTH, open, shown_by};
use crate::auth::reload::reload_says;
use crate::harness::{Server, run};

#[tokio::test]
async fn invalid_files_refuse_the_start_and_are_named() {
    for (break_it, key, file, problem) in BREAKS {
        let folder = Folder::new();
        write(&folder, "list.pem", &folder.authority.revoke(7, 2099));
        break_it(&folder);
        let setup = folder.with_clients(&format!("client_crl_file = '{}'", folder.file("list.pem")));
        fs::write(folder.path().join("config.toml"), setup.to_toml()).expect("writable");
        for command in ["serve", "check"] {
            let (config, data) = (folder.file("config.toml"), folder.file("data"));
            let ended = run(&[command, "--config", &config, "--data-dir", &data, "--http", "127.0.0.1:0"]).await;
            assert_eq!(ended.code, Some(64), "{ended:?}");
            let said = format!("{} ({key})", folder.file(file));
            assert!(ended.stderr.contains(&said) && ended.stderr.contains(problem), "{said} {problem}: {ended:?}");
            assert!(!ended.stderr.contains("PRIVATE KEY") && !ended.stderr.contains("secret"), "{ended:?}");
        }
    }
}

type Break = (fn(&Folder), &'static str, &'static str, &'static str);

/// A list of `openssl ca -gencrl` without `crlnumber`.
const LIST_OF_VERSION_1: &str = "-----BEGIN X509 CRL-----
MIGSMDowCgYIKoZIzj0EAwIwDDEKMAgGA1UEAwwBYRcNMjYxMTI4MDcxMDI4WhgP
MjEyNjExMDQwNzEwMjhaMAoGCCqGSM49BAMCA0gAMEUCIQDhXUUiUIwt4K1HVkPc
JGFSH1HCAo2VqM9VSiXIibLBxgIgdGRot8ruofOKoiQ0wGcqbJaeeBuzvcPa0vpC
F2hDX/Y=
-----END X509 CRL-----
";

const BREAKS: [Break; 14] = [
    (|folder| remove(folder, "server.pem"), "http.tls.cert_file", "server.pem", "No such file"),
    (|folder| remove(folder, "server.key"), "http.tls.key_file", "server.key", "No such file"),
    (|folder| write(folder, "server.pem", "garbage"), "http.tls.cert_file", "server.pem", "holds no certificate"),
    (|folder| write(folder, "server.key", "garbage"), "http.tls.key_file", "server.key", "holds no private key"),
    (
        |folder| write(folder, "server.key", "-----BEGIN PRIVATE KEY-----\nsecret%secret\n-----END PRIVATE KEY-----\n"),
        "http.tls.key_file",
        "server.key",
        "is no PEM with a private key",
    ),
    (
        |folder| {
            let key = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
            write(folder, "server.key", key);
        },
        "http.tls.key_file",
        "server.key",
        "holds an encrypted private key: decrypt it with openssl pkey",
    ),
    (
        |folder| write(folder, "server.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        "http.tls.cert_file",
        "server.pem",
        "holds a bad certificate",
    ),
    (
        |folder| write(folder, "server.key", &folder.authority.server().key),
        "http.tls.key_file",
        "server.key",
        "is not the key of the first certificate",
    ),
    (
        |folder| {
            let authority = String::from_utf8_lossy(folder.authority.pem()).into_owned();
            let server = fs::read_to_string(folder.path().join("server.pem")).expect("PEM");
            write(folder, "server.pem", &(authority + &server));
        },
        "http.tls.key_file",
        "server.key",
        "which must be that of the server",
    ),
    (
        |folder| {
            remove(folder, "server.key");
            let made = std::process::Command::new("mkfifo").arg(folder.path().join("server.key")).status();
            assert!(made.expect("mkfifo").success());
        },
        "http.tls.key_file",
        "server.key",
        "this is a FIFO",
    ),
    (|folder| write(folder, "ca.pem", ""), "http.tls.client_ca_file", "ca.pem", "holds no certificate"),
    (
        |folder| write(folder, "ca.pem", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"),
        "http.tls.client_ca_file",
        "ca.pem",
        "holds a certificate that cannot be decoded",
    ),
    (|folder| write(folder, "list.pem", ""), "http.tls.client_crl_file", "list.pem", "holds no revocation list"),
    (
        |folder| write(folder, "list.pem", LIST_OF_VERSION_1),
        "http.tls.client_crl_file",
        "list.pem",
        "of version 1: version 2 is needed",
    ),
];

fn write(folder: &Folder, file: &str, text: &str) {
    fs::write(folder.path().join(file), text).expect("writable");
}

fn remove(folder: &Folder, file: &str) {
    fs::remove_file(folder.path().join(file)).expect("there");
}

#[tokio::test]
async fn a_readable_key_and_an_expired_certificate_are_warned_about() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    folder.authority.expired_server().write(folder.path(), "server");
    write(&folder, "config.toml", &folder.setup("").to_toml());
    let key = folder.path().join("server.key");
    for (mode, is_public) in [(0o600, false), (0o640, false), (0o644, true)] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).expect("ours");
        let ended = run(&["check", "--config", &folder.file("config.toml")]).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(ended.stderr.contains("other users of this machine"), is_public, "{mode:o} {ended:?}");
        assert!(ended.stderr.contains("the server's certificate has expired"), "{ended:?}");
        assert!(!format!("{ended:?}").contains("PRIVATE KEY"), "{ended:?}");
    }
}

#[tokio::test]
async fn files_with_a_byte_order_mark_are_read() {
    let folder = Folder::new();
    write(&folder, "config.toml", &folder.setup("").to_toml());
    for file in ["server.pem", "server.key"] {
        let text = fs::read_to_string(folder.path().join(file)).expect("PEM");
        write(&folder, file, &format!("\u{feff}{text}"));
    }
    let ended = run(&["check", "--config", &folder.file("config.toml")]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[tokio::test]
async fn a_certificate_without_names_is_warned_about() {
    let folder = Folder::new();
    write(&folder, "config.toml", &folder.setup("").to_toml());
    for is_named in [true, false] {
        if !is_named {
            folder.authority.client("localhost", &[]).write(folder.path(), "server");
        }
        let ended = run(&["check", "--config", &folder.file("config.toml")]).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(ended.stderr.contains("has no names (subjectAltName)"), !is_named, "{ended:?}");
    }
}

#[tokio::test]
async fn sighup_changes_the_certificate_of_new_connections_only() {
    let folder = Folder::new();
    let server = Server::start(folder.setup("")).await;
    let before = shown_by(&server, &folder).await;
    let mut connection = open(&server, &folder.client(&BOTH, None)).await;
    assert_eq!(connection.ask(HEALTH).await.0, 200);

    folder.authority.server().write(folder.path(), "server");
    reload_says(&server, "[auth] and the files of [http.tls] were reloaded").await;
    assert_eq!(connection.ask(HEALTH).await.0, 200, "the same connection, the next request");
    let after = shown_by(&server, &folder).await;
    assert_ne!(before, after);
    assert!(server.metrics().await.count("tidegauge_tls_certificate_expiry_timestamp_seconds") > 4_000_000_000);
    assert!(!server.log().contains("PRIVATE KEY"));
}

#[tokio::test]
async fn on_sighup_invalid_files_are_named_and_change_nothing() {
    let folder = Folder::new();
    let setup = folder.with_clients(&format!("client_crl_file = '{}'", folder.file("list.pem")));
    let good = ["server.pem", "server.key", "ca.pem", "list.pem"];
    write(&folder, "list.pem", &folder.authority.revoke(7, 2099));
    let good = good.map(|file| (file, fs::read(folder.path().join(file)).expect("there")));
    let server = Server::start(setup).await;
    let before = shown_by(&server, &folder).await;
    for (break_it, key, file, _) in BREAKS {
        break_it(&folder);
        reload_says(&server, &format!("{} ({key})", folder.file(file))).await;
        assert!(server.log().contains("tokens, keys and certificates are unchanged"));
        assert_eq!(shown_by(&server, &folder).await, before, "{file}");
        for (file, bytes) in &good {
            drop(fs::remove_file(folder.path().join(file))); // it may be a FIFO
            fs::write(folder.path().join(file), bytes).expect("writable");
        }
    }
    reload_says(&server, "were reloaded").await;
}

#[tokio::test]
async fn tls_is_not_turned_off_by_sighup() {
    let folder = Folder::new();
    let server = Server::start(folder.setup("").or("udp.listen", "127.0.0.1:0")).await;
    server.write_config(&crate::harness::Setup::sqlite().or("udp.listen", "127.0.0.1:0").to_toml());
    reload_says(&server, "restart the server to apply them").await;
    assert_eq!(server.get("/healthz").await.status, 200, "over TLS");
}
