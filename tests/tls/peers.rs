//! Client certificates that the server accepts for a connection.

use rustls::HandshakeKind;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::authority::Authority;
use super::{BOTH, Folder, connect, failed, health, open};
use crate::harness::{Connection, Server, now_ms, secret_of, wait_until};

#[tokio::test]
async fn an_optional_certificate_must_be_valid_if_presented() {
    let folder = Folder::new();
    let server = Server::start(folder.with_clients("")).await;
    let (good, expired) = (folder.authority.client("pump-1", &[]), folder.authority.expired_client("pump-1"));
    let forged = Authority::new().client("pump-1", &[]);
    let other = Authority::named("another").client("pump-1", &[]);
    for version in BOTH {
        let outcome = async |shown| health(&server, &folder.client(&[version], shown)).await;
        outcome(None).await.expect("none is shown");
        outcome(Some(&good)).await.expect("a good one is shown");
        for (bad, said) in [(&expired, "xpired"), (&forged, "Decrypt"), (&other, "CA")] {
            let refused = outcome(Some(bad)).await.expect_err("a bad one is shown").to_string();
            assert!(refused.contains("alert") && refused.contains(said), "{version:?} {refused}");
            server.logged("connections are refused").await; // the line has the first refusal, the expired one
        }
    }
    wait_until("each is counted", async || (failed(&server, "certificate").await == 6).then_some(())).await;
    let log = server.log();
    assert!(log.contains(r#"sender=127.0.0.1 code="certificate" "#), "{log}");
    assert!(log.contains("no valid client certificate: ") && log.contains("xpired"), "{log}");
}

#[tokio::test]
async fn a_required_certificate_must_be_presented() {
    let folder = Folder::new();
    std::fs::write(folder.path().join("operator.pem"), folder.authority.client("operator", &[]).both())
        .expect("writable");
    let server = Server::start(folder.with_clients("client_certificates = 'required'")).await;
    for version in BOTH {
        let refused = health(&server, &folder.client(&[version], None)).await.expect_err("nothing is shown");
        assert!(refused.to_string().contains("alert"), "{version:?} {refused}");
        let shown = folder.authority.client("pump-1", &[]);
        health(&server, &folder.client(&[version], Some(&shown))).await.expect("a good one is shown");
    }
    wait_until("each is counted", async || (failed(&server, "certificate").await == 2).then_some(())).await;
}

#[tokio::test]
async fn a_certificate_that_has_expired_is_refused_on_open_and_resumed_connections() {
    const IN_2100_S: i64 = 4_102_531_200;
    let folder = Folder::new();
    std::fs::write(folder.path().join("operator.pem"), folder.authority.client("operator", &[]).both())
        .expect("writable");
    let setup = folder.with_clients("client_certificates = 'required'").token("operator", "scopes = ['admin']");
    let server = Server::start_with_clock(setup.token("reader", "scopes = ['query']")).await;
    let shown = folder.authority.client_until("pump-1", 2100);
    let client = folder.client(&BOTH, Some(&shown));
    let mut connection = open(&server, &client).await;
    let of_reader = format!("authorization: Bearer {}\r\n", secret_of("reader"));
    let requests = [("/version", &*of_reader), ("/healthz", ""), ("/", "")]
        .map(|(path, more)| format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{more}\r\n"));
    for request in &requests {
        assert_eq!(connection.ask(request.as_bytes()).await.0, 200, "{request}");
    }
    server.clock().set(IN_2100_S - now_ms() / 1_000);
    refused_as_expired(connection, &requests[0]).await;
    for request in &requests {
        let resumed = connect(&server, &client).await.expect("a connection");
        assert_eq!(resumed.get_ref().1.handshake_kind(), Some(HandshakeKind::Resumed));
        refused_as_expired(Connection::over(resumed), request).await;
    }
    health(&server, &folder.client(&BOTH, Some(&shown))).await.expect_err("its handshake fails");
}

/// Asserts that a request is refused for its certificate, and that its connection ends.
async fn refused_as_expired(mut connection: Connection<TlsStream<TcpStream>>, request: &str) {
    let (status, head, body) = connection.ask(request.as_bytes()).await;
    let body = String::from_utf8_lossy(&body);
    assert!(status == 401 && body.contains("the client certificate has expired"), "{request}{status} {body}");
    assert!(head.contains("connection: close"), "a renewed certificate needs a new connection: {head}");
}

#[tokio::test]
async fn revoked_certificates_and_expired_lists_refuse_clients() {
    let folder = Folder::new();
    let [kept, lost] = [1, 2].map(|serial| folder.authority.numbered_client("pump-1", serial));
    let list = folder.path().join("list.pem");
    std::fs::write(&list, folder.authority.revoke(2, 2099)).expect("writable");
    let keys = format!("client_crl_file = '{}'", folder.file("list.pem"));
    let server = Server::start(folder.with_clients(&keys)).await;
    let outcome = async |shown| health(&server, &folder.client(&BOTH, Some(shown))).await;
    outcome(&kept).await.expect("it is not on the list");
    for version in BOTH {
        let client = folder.client(&[version], Some(&kept));
        for _ in 0..2 {
            let stream = connect(&server, &client).await.expect("a connection");
            assert_eq!(
                stream.get_ref().1.handshake_kind(),
                Some(HandshakeKind::Full),
                "each one is held against the list"
            );
            let answer =
                crate::harness::Connection::over(stream).ask(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await;
            assert_eq!(answer.0, 200);
        }
    }
    let refused = outcome(&lost).await.expect_err("it is on the list").to_string();
    assert!(refused.contains("evoked"), "{refused}");

    std::fs::write(&list, folder.authority.revoke(1, 2099)).expect("writable");
    crate::auth::reload::reload_says(&server, "were reloaded").await;
    outcome(&lost).await.expect("it is not on the new list");
    outcome(&kept).await.expect_err("it is on the new list");

    std::fs::write(&list, folder.authority.revoke(1, 2025)).expect("writable");
    crate::auth::reload::reload_says(&server, "past its next update").await;
    outcome(&lost).await.expect_err("nobody knows what has been revoked since");
}
