//! A plain HTTP/1.1 client that keeps its connection, and costs little beside the server it measures. It shows the token in
//! the variable `TIDEGAUGE_TOKEN`, if there is one.

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) struct Client {
    stream: TcpStream,
    /// The header that shows the token, if there is one.
    authorization: String,
    request: Vec<u8>,
    answer: Vec<u8>,
}

/// How an answer says where it ends.
enum Length {
    Bytes(usize),
    Chunked,
}

impl Client {
    pub(crate) async fn connect(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true)?;
        let token = std::env::var("TIDEGAUGE_TOKEN");
        let authorization = token.map_or_else(|_| String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
        Ok(Self { stream, authorization, request: Vec::new(), answer: Vec::new() })
    }

    /// Posts a body and returns the status and the answer's body.
    pub(crate) async fn post(&mut self, path: &str, content_type: &str, body: &[u8]) -> anyhow::Result<(u16, &[u8])> {
        self.request.clear();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: loadtest\r\n{}Content-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
            self.authorization,
            body.len()
        );
        self.request.extend_from_slice(head.as_bytes());
        self.request.extend_from_slice(body);
        self.exchange().await
    }

    /// Gets a path and returns the status and the answer's body, chunks and all.
    pub(crate) async fn get(&mut self, path: &str) -> anyhow::Result<(u16, &[u8])> {
        self.request.clear();
        let head = format!("GET {path} HTTP/1.1\r\nHost: loadtest\r\n{}\r\n", self.authorization);
        self.request.extend_from_slice(head.as_bytes());
        self.exchange().await
    }

    async fn exchange(&mut self) -> anyhow::Result<(u16, &[u8])> {
        self.stream.write_all(&self.request).await?;
        self.answer.clear();
        let head = loop {
            self.read_more().await?;
            if let Some(head) = self.answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break head;
            }
        };
        let (status, length) = parse_head(std::str::from_utf8(&self.answer[..head])?)?;
        let start = head + 4;
        match length {
            Length::Bytes(length) => {
                while self.answer.len() < start + length {
                    self.read_more().await?;
                }
            }
            Length::Chunked => {
                while !self.answer[start..].ends_with(b"0\r\n\r\n") {
                    self.read_more().await?;
                }
            }
        }
        Ok((status, &self.answer[start..]))
    }

    async fn read_more(&mut self) -> anyhow::Result<()> {
        if self.stream.read_buf(&mut self.answer).await? == 0 {
            bail!("the server closed the connection");
        }
        Ok(())
    }
}

fn parse_head(head: &str) -> anyhow::Result<(u16, Length)> {
    let head = head.to_ascii_lowercase();
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let length = match (field("content-length:"), field("transfer-encoding:")) {
        (_, Some("chunked")) => Length::Chunked,
        (length, _) => Length::Bytes(length.map_or(Ok(0), str::parse)?),
    };
    Ok((status, length))
}
