//! `tidegauge token`, and `tidegauge import` with a token.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use super::{devices, get, setup};
use crate::harness::{Server, Setup, binary, run, run_with, secret_of};

const USAGE: Option<i32> = Some(64);

#[tokio::test]
async fn a_new_token_works_with_the_table_that_is_printed_below_it() {
    let line = ["token", "new", "--name", "acme", "--scope", "ingest", "--scope", "query", "--devices", "LIGHT-*"];
    let more = ["--device-prefix", "acme/", "--expires", "90d"];
    let [one, two] = [run(&[&line[..], &more].concat()).await, run(&[&line[..], &more].concat()).await];
    assert_eq!(one.code, Some(0), "{one:?}");
    let (token, table) = one.stdout.split_once("\n\n").expect("a token and a table");
    assert!(token.starts_with("tg_") && token.len() == 46 && !two.stdout.contains(token), "{one:?}");
    assert!(!table.contains(token) && !one.stderr.contains(token), "{one:?}");

    let folder = TempDir::new().expect("a temporary folder");
    let config = folder.path().join("tidegauge.toml");
    fs::write(&config, table).expect("the folder is writable");
    let check = ["token", "check", "--config", config.to_str().expect("UTF-8")];
    let known = run_with(&check, &format!("{token}\n")).await;
    assert_eq!(known.code, Some(0), "{known:?}");
    for said in
        ["name      acme\n", "scopes    ingest, query\n", "devices   LIGHT-*\n", "prefix    acme/\n", "expires   2"]
    {
        assert!(known.stdout.contains(said), "{said} in {known:?}");
    }
    let unknown = run_with(&check, &format!("{token}x")).await;
    assert!(unknown.code == Some(1) && unknown.stderr.contains("the token is not known"), "{unknown:?}");
    assert!(!format!("{known:?}{unknown:?}").contains(token), "it is not repeated");

    let server = Server::start(setup()).await;
    server.write_config(&format!("{}\n{table}", setup().or("udp.listen", "127.0.0.1:0").to_toml()));
    super::reload::reload_says(&server, "[auth] was reloaded").await;
    let answer = server.request(reqwest::Method::GET, "/v1/devices").bearer_auth(token);
    assert_eq!(server.send(answer).await.status, 200);
}

#[tokio::test]
async fn a_given_token_is_hashed_unless_it_is_weak() {
    let hash = run_with(&["token", "hash"], "  tg_some-token-of-my-own\r\n").await;
    let expected = tidegauge::config::TokenHash::of("tg_some-token-of-my-own").to_string();
    assert_eq!((hash.code, hash.stdout.trim_end()), (Some(0), expected.as_str()));
    for bad in ["", "short", "two words of some length here", "user:tg_some-token-of-my-own", &"x".repeat(257)] {
        let refused = run_with(&["token", "hash"], bad).await;
        assert_eq!((refused.code, refused.stdout.as_str()), (USAGE, ""), "{refused:?}");
    }
}

#[tokio::test]
async fn an_invalid_token_is_not_created() {
    for (args, about) in [
        (&["--name", "a"][..], "--scope"),
        (&["--name", "a b", "--scope", "query"], "auth.tokens.name"),
        (&["--name", "a", "--scope", "all"], "ingest, query, metadata or admin"),
        (&["--name", "a", "--scope", "query", "--devices", "a "], "--devices"),
        (&["--name", "a", "--scope", "query", "--device-prefix", "a*"], "auth.tokens.device_prefix"),
        (&["--name", "a", "--scope", "query", "--expires", "soon"], "--expires"),
        (&["--name", "a", "--scope", "query", "--expires", "2020-01-01T00:00:00Z"], "is in the past"),
    ] {
        let refused = run(&[&["token", "new"], args].concat()).await;
        assert!(refused.code == USAGE && refused.stderr.contains(about), "{refused:?}");
        assert_eq!(refused.stdout, "", "{args:?}");
    }
}

#[tokio::test]
async fn an_expired_token_differs_from_an_unknown_one() {
    let folder = TempDir::new().expect("a temporary folder");
    let config = folder.path().join("tidegauge.toml");
    let expired = Setup::default_config().token("gateway", "scopes = ['query']\nexpires = 2020-01-01T00:00:00Z");
    fs::write(&config, expired.to_toml()).expect("the folder is writable");
    let check = ["token", "check", "--config", config.to_str().expect("UTF-8")];
    let finished = run_with(&check, &secret_of("gateway")).await;
    assert!(finished.code == Some(1) && finished.stderr.contains("the token has expired"), "{finished:?}");
    let open = run_with(&["token", "check"], &secret_of("gateway")).await;
    assert!(open.code == Some(1) && open.stderr.contains("no tokens"), "{open:?}");
}

#[tokio::test]
async fn an_import_shows_the_token_of_a_file() {
    let token = "scopes = ['ingest', 'query']\ndevices = ['LIGHT-*']";
    let server = Server::start(setup().token("lights", token)).await;
    let folder = TempDir::new().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (rows, secret) = (path("rows.csv"), path("token"));
    fs::write(&rows, "deviceId,time,lux\nLIGHT-1,2024-04-20T14:00:00Z,1\nPUMP-1,2024-04-20T14:00:00Z,2\n")
        .expect("writable");
    fs::write(&secret, secret_of("lights") + "\n").expect("writable");
    let without = run(&["import", &rows, "--url", server.url()]).await;
    assert!(without.code == Some(1) && without.stderr.contains("401 Unauthorized: unauthorized"), "{without:?}");
    let with = run(&["import", &rows, "--url", server.url(), "--token-file", &secret]).await;
    assert!(with.code == Some(1) && format!("{with:?}").contains("device_forbidden"), "{with:?}");
    assert_eq!(devices(&server, "lights", "").await, ["LIGHT-1"]);
    assert!(!format!("{without:?}{with:?}").contains(&secret_of("lights")), "it is not repeated");
    assert_eq!(get(&server, "lights", "/v1/devices/LIGHT-1/latest").await.json()["metrics"]["lux"]["value"], 1.0);
    let absent = run(&["import", &rows, "--url", server.url(), "--token-file", "no-such-file"]).await;
    assert!(absent.code == Some(1) && absent.stderr.contains("no-such-file (--token-file)"), "{absent:?}");
    let with_file = async |text: String| {
        fs::write(&secret, text).expect("writable");
        run(&["import", &rows, "--url", server.url(), "--token-file", &secret]).await
    };
    let marked = with_file(format!("\u{feff}{}\r\n", secret_of("lights"))).await;
    assert!(marked.code == Some(1) && format!("{marked:?}").contains("device_forbidden"), "{marked:?}");
    for text in ["", "\u{feff}\n", "tg_secret\n\n[[auth.tokens]]\nname = \"secret\"\n", "tg_secrät\n"] {
        let refused = with_file(text.to_owned()).await;
        let is_named = refused.stderr.contains("token (--token-file): it must have one token and nothing else");
        assert!(refused.code == Some(1) && is_named && !refused.stderr.contains("secr"), "{text}: {refused:?}");
    }
    let mut with_header = Command::new(binary());
    with_header.args(["import", &rows, "--url", server.url()]).env("TIDEGAUGE_TOKEN", "Bearer tg_secret");
    let refused = with_header.output().expect("the binary runs");
    let said = String::from_utf8_lossy(&refused.stderr);
    let is_named = said.contains("TIDEGAUGE_TOKEN: it must have one token") && said.contains("without the word Bearer");
    assert!(refused.status.code() == Some(1) && is_named && !said.contains("secret"), "{refused:?}");
}
