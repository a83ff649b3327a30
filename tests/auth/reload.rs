//! Reloads by SIGHUP.

use reqwest::Method;

use super::{get, setup};
use crate::harness::{Connection, Server, Setup, secret_of, wait_until};

fn with(name: &str) -> Setup {
    setup().token(name, "scopes = ['query']").or("udp.listen", "127.0.0.1:0")
}

/// Sends SIGHUP, waits for the last log line of the reload, and asserts that the log contains `said`.
pub(crate) async fn reload_says(server: &Server, said: &str) {
    let before = server.log().len();
    server.signal("HUP");
    let logged = wait_until("SIGHUP has had its effect", async || {
        let log = server.log();
        log[before..].contains("reloaded").then(|| log[before..].to_owned())
    })
    .await;
    assert!(logged.contains(said), "{said} is not in {logged}");
}

#[tokio::test]
async fn tokens_are_reloaded_and_connections_stay_open() {
    let server = Server::start(with("old")).await;
    assert_eq!(get(&server, "old", "/v1/devices").await.status, 200);
    let mut connection = Connection::open(&server).await;
    let request = |name: &str| {
        format!("GET /v1/devices HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n", secret_of(name))
    };
    assert_eq!(connection.ask(request("old").as_bytes()).await.0, 200);

    server.write_config(&with("new").to_toml());
    reload_says(&server, "[auth] was reloaded").await;
    assert_eq!(get(&server, "old", "/v1/devices").await.status, 401);
    assert_eq!(get(&server, "new", "/v1/devices").await.status, 200);
    assert_eq!(connection.ask(request("old").as_bytes()).await.0, 401, "the same connection, the next request");
    assert_eq!(connection.ask(request("new").as_bytes()).await.0, 200);
}

#[tokio::test]
async fn an_invalid_configuration_is_logged_and_changes_nothing() {
    let server = Server::start(with("old")).await;
    let duplicate = setup().token("old", "scopes = []").to_toml();
    for (bad, said) in [
        ("[auth]\nallow_anonymus = true\n", "config.toml:2:1: auth.allow_anonymus"),
        ("[auth\n", "config.toml:1"),
        (duplicate.as_str(), "auth.tokens.scopes is an empty list"),
    ] {
        server.write_config(bad);
        reload_says(&server, said).await;
        assert_eq!(get(&server, "old", "/v1/devices").await.status, 200, "{bad}");
        assert_eq!(server.send(server.request(Method::GET, "/v1/devices")).await.status, 401, "{bad}");
    }
}

#[tokio::test]
async fn an_emptied_configuration_does_not_open_the_server() {
    let setup = with("old").key("gw-1", "");
    let server = Server::start(setup).await;
    for emptied in [Setup::default().key("gw-1", ""), with("old"), Setup::default()] {
        server.write_config(&emptied.or("udp.listen", "127.0.0.1:0").to_toml());
        reload_says(&server, "would remove protection").await;
        let log = server.log();
        let last = log.lines().last().expect("a line");
        assert!(
            last.contains("ERROR") && last.contains("set auth.allow_anonymous = true or restart the server"),
            "{last}"
        );
        assert_eq!(get(&server, "old", "/v1/devices").await.status, 200);
        assert_eq!(server.send(server.request(Method::GET, "/v1/devices")).await.status, 401);
    }
    let decided = Setup::default().set("auth.allow_anonymous", true).set("udp.listen", "127.0.0.1:0");
    server.write_config(&decided.to_toml());
    reload_says(&server, "every client that can connect may do everything").await;
    assert_eq!(server.send(server.request(Method::GET, "/v1/devices")).await.status, 200);
}

#[tokio::test]
async fn changes_outside_of_auth_are_logged_as_needing_a_restart() {
    let server = Server::start(with("old")).await;
    server.write_config(&with("new").set("query.max_devices", 7).to_toml());
    let said = "have changed: restart the server to apply them keys=\"query.max_devices\"";
    reload_says(&server, said).await;
    assert_eq!(get(&server, "new", "/v1/devices?limit=8").await.status, 200, "the limit is the old one");
}
