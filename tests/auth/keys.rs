//! `tidegauge key`, and the documented ways to sign.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use super::setup;
use crate::harness::{Server, run, run_with, wait_until};
use crate::protocols::blocks;
use crate::udp::{Sender, received};

const USAGE: Option<i32> = Some(64);

/// A folder with a new key: its secret in `gateway-1.key`, its table in `tidegauge.toml`.
async fn new_key() -> (TempDir, String, String) {
    let line = ["key", "new", "--id", "gateway-1", "--devices", "LIGHT-*", "--expires", "90d"];
    let made = run(&line).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let (secret, table) = made.stdout.split_once("\n\n").expect("a secret and a table");
    let folder = TempDir::new().expect("a temporary folder");
    fs::write(folder.path().join("gateway-1.key"), format!("{secret}\n")).expect("the folder is writable");
    fs::write(folder.path().join("tidegauge.toml"), table).expect("the folder is writable");
    assert!(!made.stderr.contains(secret), "{made:?}");
    (folder, secret.to_owned(), table.to_owned())
}

#[tokio::test]
async fn a_server_accepts_datagrams_signed_with_a_new_key() {
    let (folder, secret, table) = new_key().await;
    let (_other, other, _) = new_key().await;
    assert!(secret.len() == 43 && secret != other, "32 random bytes");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let check = run(&["check", "--config", &path("tidegauge.toml")]).await;
    assert!(check.code == Some(0) && check.stdout.contains("id = \"gateway-1\""), "{check:?}");
    assert!(!format!("{check:?}").contains(&secret), "{check:?}");

    let setup = setup().or("udp.listen", "127.0.0.1:0");
    let server = Server::start(setup.clone()).await;
    server.write_config(&format!("{}\n{table}", setup.to_toml()));
    super::reload::reload_says(&server, "[auth] was reloaded").await;
    let content = "value,deviceId=LIGHT-1 value=1\n";
    let sign = ["key", "sign", "--id", "gateway-1", "--secret-file", &path("gateway-1.key")];
    let signed = run_with(&sign, content).await;
    assert!(signed.code == Some(0) && signed.stdout.ends_with(content), "{signed:?}");
    let sender = Sender::to(server.udp_addr());
    sender.send(&signed.stdout);
    sender.send(content);
    let metrics = received(&server, 2).await;
    assert_eq!(metrics.count("tidegauge_readings_accepted_total"), 1);
}

#[tokio::test]
async fn datagrams_from_other_machines_need_a_key() {
    let (folder, _, table) = new_key().await;
    let file = folder.path().join("public.toml");
    let tokens = setup().set("udp.listen", "0.0.0.0:8089").to_toml();
    let check = async |config: &str| {
        fs::write(&file, config).expect("the folder is writable");
        run(&["check", "--config", file.to_str().expect("UTF-8")]).await
    };
    let refused = check(&tokens).await;
    assert_eq!(refused.code, USAGE, "{refused:?}");
    for way_out in ["tidegauge key new", "udp.listen = \"off\"", "127.0.0.1:8089", "auth.allow_anonymous = true"] {
        assert!(refused.stderr.contains(way_out), "{way_out} in {refused:?}");
    }
    let signed = check(&format!("{tokens}\n{table}")).await;
    assert_eq!(signed.code, Some(0), "{signed:?}");
}

#[tokio::test]
async fn an_invalid_key_is_neither_created_nor_used() {
    for (args, about) in [
        (&[][..], "--id"),
        (&["--id", "a b"], "auth.keys.id"),
        (&["--id", "a", "--devices", "a "], "--devices"),
        (&["--id", "a", "--device-prefix", "a*"], "auth.keys.device_prefix"),
        (&["--id", "a", "--expires", "soon"], "--expires"),
        (&["--id", "a", "--expires", "2020-01-01T00:00:00Z"], "is in the past"),
    ] {
        let refused = run(&[&["key", "new"], args].concat()).await;
        assert!(refused.code == USAGE && refused.stderr.contains(about), "{refused:?}");
        assert_eq!(refused.stdout, "", "{args:?}");
    }
    let (folder, secret, _) = new_key().await;
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    fs::write(path("cut.key"), &secret[..42]).expect("the folder is writable");
    for (id, file, input, about) in [
        ("a b", "gateway-1.key", "x".to_owned(), "--id"),
        ("gateway-1", "none.key", "x".to_owned(), "none.key (--secret-file)"),
        ("gateway-1", "cut.key", "x".to_owned(), "43 to 256"),
        ("gateway-1", "gateway-1.key", "x".repeat(65_507), "at most 65507 bytes"),
    ] {
        let refused = run_with(&["key", "sign", "--id", id, "--secret-file", &path(file)], &input).await;
        assert!(refused.code != Some(0) && refused.stderr.contains(about), "{refused:?}");
        assert!(refused.stdout.is_empty() && !refused.stderr.contains(&secret[..42]), "{refused:?}");
    }
}

#[tokio::test]
async fn the_server_accepts_what_the_documented_programs_sign() {
    let (folder, _, table) = new_key().await;
    let setup = setup().or("udp.listen", "127.0.0.1:0");
    let server = Server::start(setup.clone()).await;
    server.write_config(&format!("{}\n{table}", setup.to_toml()));
    super::reload::reload_says(&server, "[auth] was reloaded").await;
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/security.md")).expect("there is a page");
    for (accepted, language) in (1..).zip(["python", "sh"]) {
        let programs: Vec<&str> = blocks(&page, language).filter(|block| block.contains("8089")).collect();
        assert_eq!(programs.len(), 1, "one program in {language}");
        let program = programs[0].replace("8089", &server.udp_addr().port().to_string());
        crate::protocols::run(language, &program, folder.path()).await;
        wait_until(&format!("what the program in {language} has sent"), async || {
            let metrics = server.metrics().await;
            assert_eq!(metrics.count("tidegauge_readings_rejected_total"), 0, "{language}");
            (metrics.count("tidegauge_readings_accepted_total") == accepted).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn openssl_and_tidegauge_make_the_documented_datagram() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/protocols.md")).expect("there is a page");
    let secret = page.split_once("With the secret").and_then(|(_, rest)| rest.split('`').nth(1)).expect("a secret");
    let datagram = page.split("```\n").find(|block| block.starts_with("#tg1 ")).expect("a datagram").trim_end();
    let (line, content) = datagram.split_once('\n').expect("a signature and its content");
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("gateway-1.key");
    fs::write(&file, secret).expect("the folder is writable");
    let sign = ["key", "sign", "--id", "gateway-1", "--secret-file", file.to_str().expect("UTF-8")];
    assert_eq!(run_with(&sign, content).await.stdout, datagram);
    let script = r#"printf %s "$1" | openssl dgst -sha256 -hmac "$2" -binary | base64 | tr '+/' '-_' | tr -d ="#;
    let openssl = Command::new("sh").args(["-c", script, "sh", content, secret]).output().expect("sh is there");
    assert_eq!(format!("#tg1 gateway-1 {}", String::from_utf8_lossy(&openssl.stdout).trim_end()), line);
}
