//! A plain HTTP/1.1 client that keeps its connection, and costs little beside the server it measures.

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) struct Client {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, request: Vec::new(), answer: Vec::new() })
    }

    /// Posts a body and returns the status and the answer's body.
    pub(crate) async fn post(&mut self, path: &str, content_type: &str, body: &[u8]) -> anyhow::Result<(u16, &[u8])> {
        self.request.clear();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: loadtest\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.request.extend_from_slice(head.as_bytes());
        self.request.extend_from_slice(body);
        self.exchange().await
    }

    /// Gets a path and returns the status and the answer's body.
    pub(crate) async fn get(&mut self, path: &str) -> anyhow::Result<(u16, &[u8])> {
        self.request.clear();
        self.request.extend_from_slice(format!("GET {path} HTTP/1.1\r\nHost: loadtest\r\n\r\n").as_bytes());
        self.exchange().await
    }

    async fn exchange(&mut self) -> anyhow::Result<(u16, &[u8])> {
        self.stream.write_all(&self.request).await?;
        self.answer.clear();
        loop {
            if self.stream.read_buf(&mut self.answer).await? == 0 {
                bail!("the server closed the connection");
            }
            let Some(head_bytes) = self.answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { continue };
            let head = std::str::from_utf8(&self.answer[..head_bytes])?.to_ascii_lowercase();
            let status = head.split(' ').nth(1).context("no status")?.parse()?;
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(Ok(0), str::parse)?;
            let start = head_bytes + 4;
            while self.answer.len() < start + length {
                if self.stream.read_buf(&mut self.answer).await? == 0 {
                    bail!("the server closed the connection within an answer");
                }
            }
            return Ok((status, &self.answer[start..start + length]));
        }
    }
}
