//! Requests to servers that answer as the test says.

use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use axum::body::Body as Stream;
use axum::http::StatusCode as Status;
use axum::response::{IntoResponse, Redirect};
use futures_util::stream;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A socket that keeps its port and does not listen, so that connections are refused.
fn refusing() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// A server that says in plain text, on each connection, that it does not understand.
async fn without_tls() -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
            open.push(stream);
        }
    });
    address
}

/// A server whose certificate no authority has issued.
async fn with_own_certificate() -> SocketAddr {
    let (listener, address) = listen().await;
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![own.cert.der().clone()], own.signing_key.into());
    let acceptor = TlsAcceptor::from(Arc::new(config.unwrap()));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = acceptor.accept(stream).await; // the client refuses the certificate
        }
    });
    address
}

/// `answer` gets the number of the request and its body.
fn serve<A: IntoResponse>(listener: TcpListener, answer: impl Fn(usize, String) -> A + Clone + Send + Sync + 'static) {
    let requests = Arc::new(AtomicUsize::new(0));
    let handler = move |body: Bytes| {
        let body = if body.is_empty() { Vec::new() } else { zstd::decode_all(&*body).unwrap() };
        let answer = answer(requests.fetch_add(1, Ordering::Relaxed), String::from_utf8(body).unwrap()).into_response();
        async move { answer }
    };
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(handler)).await });
}

fn client(address: SocketAddr) -> Client {
    Client::new(Options::new(&format!("http://{address}/"))).unwrap()
}

async fn send(client: &Client, retry_for: Duration, on_trouble: impl Fn(&Trouble)) -> Result<Answer, Trouble> {
    let body = Body::of(b"{}\n{}\n{}\n", Some(3));
    retry(retry_for, on_trouble, || client.post(READINGS, &body)).await
}

#[tokio::test]
async fn an_overloaded_server_is_given_the_time_it_asks_for_and_the_same_bytes_again() {
    let (listener, address) = listen().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    serve(listener, move |request, body| {
        log.lock().unwrap().push(body);
        let (status, body) = match request {
            0 => (Status::SERVICE_UNAVAILABLE, r#"{"code":"overloaded","detail":"the log is full"}"#),
            _ => (Status::OK, r#"{"accepted":3}"#),
        };
        (status, [("retry-after", "1")], body)
    });
    let (started, troubles) = (Instant::now(), Mutex::new(Vec::new()));
    let answer = send(&client(address), MINUTE, |trouble| troubles.lock().unwrap().push(trouble.to_string())).await;
    assert_eq!(answer.unwrap().counts, Counts { accepted: 3, ..Counts::default() });
    assert!(started.elapsed() >= Duration::from_secs(1));
    let expected =
        format!("http://{address}/v1/readings answered 503 Service Unavailable: overloaded: the log is full");
    assert_eq!(*troubles.lock().unwrap(), [expected]);
    assert_eq!(*seen.lock().unwrap(), ["{}\n{}\n{}\n", "{}\n{}\n{}\n"]);
}

#[tokio::test]
async fn a_server_that_is_not_there_yet_is_waited_for() {
    let (socket, address) = refusing();
    let refused = Arc::new(Notify::new());
    let told = Arc::clone(&refused);
    let sending = tokio::spawn(async move { send(&client(address), MINUTE, |_| told.notify_one()).await });
    refused.notified().await;
    serve(socket.listen(16).unwrap(), |_, _| r#"{"accepted":3}"#);
    assert_eq!(sending.await.unwrap().unwrap().counts.accepted, 3);
}

#[tokio::test]
async fn a_server_that_stays_away_is_given_up_with_an_error() {
    let (_socket, address) = refusing();
    let error = send(&client(address), Duration::from_millis(50), |_| ()).await.unwrap_err().to_string();
    assert!(error.contains("Connection refused") && error.ends_with("gave up after trying for 50ms"), "{error}");
}

#[tokio::test]
async fn a_server_without_tls_is_not_asked_over_tls_again() {
    let address = without_tls().await;
    let options = Options { is_local: true, ..Options::new(&format!("https://{address}")) };
    let trouble = send(&Client::new(options).unwrap(), MINUTE, |_| ()).await.unwrap_err();
    assert!(trouble.is_for_good && trouble.to_string().contains("speaks no TLS at this address"), "{trouble}");
}

#[tokio::test]
async fn a_server_that_has_answered_before_is_asked_over_tls_again() {
    let plain = (without_tls().await, "speaks no TLS at this address");
    let untrusted = (with_own_certificate().await, "if its authority is a private one");
    for (other, said) in [plain, untrusted] {
        let (listener, address) = listen().await;
        serve(listener, move |request, _| match request {
            1 => r#"{"accepted":3}"#.into_response(),
            _ => Redirect::temporary(&format!("https://{other}/")).into_response(),
        });
        let (client, body) = (client(address), Body::of(b"{}\n{}\n{}\n", Some(3)));
        for has_answered in [false, true] {
            let trouble = client.post(READINGS, &body).await.unwrap_err();
            assert!(trouble.to_string().contains(said), "{trouble}");
            assert_eq!(trouble.is_for_good, !has_answered, "{trouble}");
            if !has_answered {
                assert_eq!(client.post(READINGS, &body).await.unwrap().counts.accepted, 3);
            }
        }
    }
}

#[tokio::test]
async fn a_refusal_that_is_not_temporary_is_not_retried() {
    for status in [401, 403, 404, 413, 500, 501] {
        let (listener, address) = listen().await;
        serve(listener, move |request, _| {
            assert_eq!(request, 0);
            Status::from_u16(status).unwrap()
        });
        let trouble = send(&client(address), MINUTE, |_| ()).await.unwrap_err();
        assert!(trouble.is_for_good && trouble.to_string().contains(&status.to_string()), "{trouble}");
        assert_eq!(trouble.is_too_large(), status == 413);
    }
}

#[tokio::test]
async fn only_a_body_without_an_object_may_have_no_readings() {
    let (listener, address) = listen().await;
    serve(listener, |_, _| r#"{"accepted":0}"#);
    let client = client(address);
    let answer = client.post(READINGS, &Body::of(b"[]\n[ ]\n", None)).await.unwrap();
    assert_eq!(answer.counts, Counts::default());
    let trouble = client.post(READINGS, &Body::of(b"[]\n{}\n", None)).await.unwrap_err();
    assert!(trouble.is_for_good && trouble.to_string().contains("not the answer of a tidegauge"), "{trouble}");
}

#[tokio::test]
async fn neither_the_size_of_an_answer_nor_the_wait_that_it_asks_for_is_without_bounds() {
    let (listener, address) = listen().await;
    serve(listener, |_, _| {
        let endless = stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 1 << 16]));
        (Status::SERVICE_UNAVAILABLE, [("retry-after", u64::MAX.to_string())], Stream::from_stream(endless))
    });
    let client = client(address);
    let refused = client.get("/v1/devices", &[]).await.unwrap_err();
    assert_eq!((refused.reason, refused.retry_after), ("unavailable", Some(5 * MINUTE)));
    let refused = client.post(READINGS, &Body::of(b"", Some(0))).await.unwrap_err();
    assert_eq!((refused.reason, refused.retry_after), ("unavailable", Some(5 * MINUTE)));

    let (listener, address) = listen().await;
    serve(listener, |_, _| Stream::from_stream(stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 1 << 16]))));
    let client = Client::new(Options::new(&format!("http://{address}"))).unwrap();
    let page = client.get("/v1/devices", &[("prefix", "é&=")]).await.unwrap().whole(1 << 20).await.unwrap_err();
    assert!(page.to_string().ends_with("/v1/devices: the answer has more than 1048576 bytes"), "{page}");
}

/// A server that sends a byte of its answer each minute, which is no silence.
#[tokio::test(start_paused = true)]
async fn an_answer_that_drips_is_given_up() {
    for status in [Status::OK, Status::SERVICE_UNAVAILABLE] {
        let (listener, address) = listen().await;
        serve(listener, move |_, _| {
            let drip = stream::unfold((), async |()| {
                tokio::time::sleep(MINUTE).await;
                Some((Ok::<_, std::io::Error>(" "), ()))
            });
            (status, Stream::from_stream(drip))
        });
        let options =
            Options { time_limit: TimeLimit::Silence(2 * MINUTE), ..Options::new(&format!("http://{address}")) };
        let client = Client::new(options).unwrap();
        let began = tokio::time::Instant::now();
        let trouble = match client.get("/v1/devices", &[]).await {
            Ok(page) => page.whole(1 << 20).await.unwrap_err(),
            Err(trouble) => trouble,
        };
        assert_eq!(trouble.is_answer(), status != Status::OK, "{trouble}");
        assert!(!trouble.is_for_good && began.elapsed() < 6 * MINUTE, "{trouble} after {:?}", began.elapsed());
    }
}

#[test]
fn a_url_has_its_scheme() {
    for url in ["http://h", "https://h:1/path"] {
        assert_eq!(check_url(url), Ok(()));
    }
    for (url, said) in
        [("h:1", "write http://h:1, or https://h:1"), ("ftp://h", "ftp:// is not supported"), ("http://[", "")]
    {
        assert!(check_url(url).unwrap_err().contains(said), "{url}");
    }
}
