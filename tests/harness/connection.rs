//! Sends raw HTTP requests, which an HTTP client would normalize.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Server;

/// A connection to a server, encrypted or not.
#[derive(Debug)]
pub(crate) struct Connection<S>(S);

impl Connection<TcpStream> {
    /// Connects without TLS.
    pub(crate) async fn open(server: &Server) -> Self {
        Self(TcpStream::connect(server.http_addr()).await.expect("the server listens"))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// A connection over this stream.
    pub(crate) const fn over(stream: S) -> Self {
        Self(stream)
    }

    /// Sends bytes and reads one answer: its status, head and body.
    ///
    /// The answer must have a `Content-Length`.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> (u16, String, Vec<u8>) {
        self.send(request).await;
        self.answer().await
    }

    /// Sends bytes.
    pub(crate) async fn send(&mut self, request: &[u8]) {
        self.0.write_all(request).await.expect("the connection is open");
        self.0.flush().await.expect("the connection is open");
    }

    async fn answer(&mut self) -> (u16, String, Vec<u8>) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.unwrap_or_else(|error| panic!("{error} after {head:?}")));
        }
        let head = String::from_utf8(head).expect("ASCII").to_ascii_lowercase();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        self.0.read_exact(&mut body).await.expect("the body");
        (status, head, body)
    }
}
