//! A simple HTTP/1.1 client that costs little CPU time beside the measured server.
//!
//! It keeps its connection. It sends the token in the variable `TIDEGAUGE_TOKEN`, if there is one.

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) struct Client {
    stream: TcpStream,
    /// The header line with the token; empty without a token.
    authorization: String,
    request: Vec<u8>,
    answer: Vec<u8>,
    /// The body of an answer in chunks, joined.
    body: Vec<u8>,
}

/// How the body of an answer is framed.
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
        Ok(Self { stream, authorization, request: Vec::new(), answer: Vec::new(), body: Vec::new() })
    }

    /// Sends a POST. Returns the status and the body of the answer.
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

    /// Sends a GET. Returns the status and the body of the answer.
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
                self.read_up_to(start + length).await?;
                Ok((status, &self.answer[start..]))
            }
            Length::Chunked => {
                self.put_together(start).await?;
                Ok((status, &self.body))
            }
        }
    }

    /// Reads all chunks into `body`. The first one begins at `at`.
    async fn put_together(&mut self, mut at: usize) -> anyhow::Result<()> {
        self.body.clear();
        loop {
            let size = loop {
                if let Some(end) = self.answer[at..].windows(2).position(|bytes| bytes == b"\r\n") {
                    let line = std::str::from_utf8(&self.answer[at..at + end])?;
                    at += end + 2;
                    break usize::from_str_radix(line, 16).with_context(|| format!("{line:?} is no chunk's size"))?;
                }
                self.read_more().await?;
            };
            self.read_up_to(at + size + 2).await?;
            self.body.extend_from_slice(&self.answer[at..at + size]);
            at += size + 2;
            if size == 0 {
                return Ok(());
            }
        }
    }

    async fn read_up_to(&mut self, end: usize) -> anyhow::Result<()> {
        while self.answer.len() < end {
            self.read_more().await?;
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Answers each request with these bytes, a few at a time.
    async fn answered(answers: &'static [&'static str]) -> anyhow::Result<Vec<(u16, String)>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for answer in answers {
                let mut request = [0; 1_000];
                assert!(stream.read(&mut request).await.unwrap() > 0);
                for piece in answer.as_bytes().chunks(7) {
                    stream.write_all(piece).await.unwrap();
                    stream.flush().await.unwrap();
                    tokio::task::yield_now().await;
                }
            }
        });
        let mut client = Client::connect(&address).await?;
        let mut found = Vec::new();
        for _ in answers {
            let (status, body) = client.get("/").await?;
            found.push((status, String::from_utf8(body.to_vec())?));
        }
        Ok(found)
    }

    #[tokio::test]
    async fn answers_are_read_whole_whether_they_name_a_length_or_come_in_chunks() {
        let found = answered(&[
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n0\r\n\r\nhi\r\nA\r\n and more.\r\n0\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n\r\n",
        ]);
        let expected = [(200, "hello"), (503, "0\r\n\r\nhi and more."), (204, "")];
        assert_eq!(found.await.unwrap(), expected.map(|(status, body)| (status, body.to_owned())));
    }

    #[tokio::test]
    async fn an_answer_that_breaks_off_is_an_error() {
        assert!(answered(&["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell"]).await.is_err());
        assert!(answered(&["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"]).await.is_err());
    }
}
