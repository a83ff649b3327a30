//! TLS versions, and clients without valid TLS.

use rustls::HandshakeKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{BOTH, Connection, Folder, HEALTH, connect, failed, health};
use crate::harness::mongod::deadline::deadline;
use crate::harness::{Server, wait_until};

async fn tcp(server: &Server) -> TcpStream {
    TcpStream::connect(server.http_addr()).await.expect("the server listens")
}

/// All bytes until the server closes the connection.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let ended = tokio::time::timeout(deadline(60), stream.read_to_end(&mut bytes)).await;
    assert!(ended.is_ok(), "neither answered nor closed: {bytes:?}");
    bytes
}

/// A hello of a client that speaks TLS up to this version (RFC 5246, section 7.4.1.2), in a record.
fn hello(version: [u8; 2]) -> Vec<u8> {
    let signatures = [0, 13, 0, 4, 0, 2, 4, 3];
    let groups = [0, 10, 0, 4, 0, 2, 0, 23];
    let extensions = [signatures, groups].concat();
    let mut body = version.to_vec();
    body.extend([7; 32]); // the random
    body.push(0); // no session
    body.extend([0, 4, 0xc0, 0x2b, 0xc0, 0x13]); // ECDHE with ECDSA and AES-128-GCM, with RSA and AES-128-CBC
    body.extend([1, 0]); // no compression
    body.extend([0, extensions.len() as u8]);
    body.extend(extensions);
    let handshake = [&[1, 0, 0, body.len() as u8], body.as_slice()].concat();
    [&[22, 3, 1, 0, handshake.len() as u8], handshake.as_slice()].concat()
}

#[tokio::test]
async fn versions_1_2_and_1_3_are_spoken_with_http_1_1_on_them() {
    let folder = Folder::new();
    let server = Server::start(folder.setup("")).await;
    assert!(server.first_line().contains(" tls=on "), "{}", server.first_line());
    for version in BOTH {
        let stream = connect(&server, &folder.client(&[version], None)).await.expect("a connection");
        let session = stream.get_ref().1;
        assert_eq!(session.protocol_version(), Some(version.version));
        assert_eq!(session.alpn_protocol(), Some(&b"http/1.1"[..]), "of h2 and http/1.1");
        let (status, head, _) = Connection::over(stream).ask(HEALTH).await;
        assert_eq!(status, 200);
        assert!(!head.contains("strict-transport-security"), "other ports of the host may have no TLS: {head}");
    }
}

#[tokio::test]
async fn older_versions_are_refused_with_an_alert() {
    let folder = Folder::new();
    let server = Server::start(folder.setup("")).await;
    let mut current = tcp(&server).await;
    current.write_all(&hello([3, 3])).await.expect("open");
    assert_eq!(current.read_u8().await.expect("an answer"), 22, "this hello is good with version 1.2");
    drop(current);
    for version in [[3, 2], [3, 1], [3, 0]] {
        let mut stream = tcp(&server).await;
        stream.write_all(&hello(version)).await.expect("open");
        let answer = rest(&mut stream).await;
        assert_eq!((answer[0], &answer[5..]), (21, &[2, 70][..]), "the alert protocol_version: {answer:?}");
    }
    wait_until("they are counted", async || (failed(&server, "protocol").await == 3).then_some(())).await;
}

#[tokio::test]
async fn silent_clients_are_disconnected_and_others_are_served() {
    let folder = Folder::new();
    let server = Server::start(folder.setup("handshake_timeout = '5s'")).await;
    let mut silent = Vec::new();
    for at in 0..20 {
        let mut stream = tcp(&server).await;
        stream.write_all(&hello([3, 3])[..at]).await.expect("open");
        silent.push(stream);
    }
    assert_eq!(server.get("/healthz").await.status, 200);
    for mut stream in silent {
        assert_eq!(rest(&mut stream).await, b"");
    }
    wait_until("they are counted", async || (failed(&server, "timeout").await >= 20).then_some(())).await;
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_handshake_counts_as_a_connection() {
    let folder = Folder::new();
    let setup = folder.setup("handshake_timeout = '1h'").set("http.max_connections", 3);
    let server = Server::start(setup).await;
    let silent = [tcp(&server).await, tcp(&server).await];
    wait_until("all are open", async || {
        (server.metrics().await.count("tidegauge_http_connections") == 3).then_some(())
    })
    .await;
    assert_eq!(rest(&mut tcp(&server).await).await, b"", "the fourth is closed");
    drop(silent);
    wait_until("there is room again", async || health(&server, &folder.client(&BOTH, None)).await.ok()).await;
    wait_until("they are counted", async || (failed(&server, "closed").await == 2).then_some(())).await;
}

#[tokio::test]
async fn plain_http_gets_an_explanation_and_garbage_is_disconnected() {
    let folder = Folder::new();
    let server = Server::start(folder.setup("")).await;
    let mut stream = tcp(&server).await;
    let body = vec![b'x'; 100_000];
    stream.write_all(b"POST /v1/readings HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n").await.expect("open");
    let _ = stream.write_all(&body).await; // it may be closed by then
    let answer = String::from_utf8(rest(&mut stream).await).expect("text");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.ends_with("speaks HTTPS, not HTTP.\n"), "{answer}");
    for garbage in [&b"\0\x01\x02\x03"[..], b"\x16garbage-garbage", b"\x16\x03\x01\0\x05abcde", b"\xff\xff"] {
        let mut stream = tcp(&server).await;
        stream.write_all(garbage).await.expect("open");
        stream.shutdown().await.expect("open");
        let answer = rest(&mut stream).await;
        assert!(answer.is_empty() || answer[0] == 21, "nothing or an alert: {answer:?}");
    }
    for (reason, times) in [("foreign", 3), ("protocol", 2)] {
        wait_until("they are counted", async || (failed(&server, reason).await == times).then_some(())).await;
    }
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_returning_client_resumes_its_session() {
    let folder = Folder::new();
    let server = Server::start(folder.setup("")).await;
    for version in BOTH {
        let client = folder.client(&[version], None);
        health(&server, &client).await.expect("an answer");
        let again = connect(&server, &client).await.expect("a connection");
        assert_eq!(again.get_ref().1.handshake_kind(), Some(HandshakeKind::Resumed), "{version:?}");
    }
}
