//! Sends batches of lines to a running server, and finds the lines that it rejects.
//!
//! A batch is retried after a transient failure ([`tidegauge::client`]), and while a rate limit of the server
//! rejects some of its readings. A retry is safe, because the store identifies a reading by device, time and
//! series. Any other refusal ends the import.

use std::time::Duration;

use anyhow::{Context, anyhow};
use indicatif::HumanCount;
use tidegauge::client::{Answer, Body, Client, Counts, Listed, Trouble, retry};

use super::super::client::ClientArgs;
use super::super::counted;
use super::batch::Batch;

/// The path to which dead letters are sent.
pub(in crate::cli) const DEAD_LETTERS: &str = "/v1/dead-letters";

/// The most bytes of an answer of `/version`.
const VERSION_MAX_BYTES: usize = 64 << 10;

/// The counts besides accepted and rejected readings, as words: `3 fields ignored`.
///
/// Zeros are left out.
pub(in crate::cli) fn remarks(counts: &Counts) -> impl Iterator<Item = String> {
    let all = [
        (counts.rejected_values, "value", "rejected"),
        (counts.older, "reading", "older than what the server has"),
        (counts.older_values, "value", "older than what the server has"),
        (counts.overwritten, "reading", "overwrote another one of the same device, time and series"),
        (counts.ignored, "field", "ignored"),
    ];
    all.into_iter().filter(|(count, ..)| *count > 0).map(|(count, what, how)| format!("{} {how}", counted(count, what)))
}

/// The reasons of rejections, as words: `2 invalid_value`.
pub(super) fn reasons(counts: &Counts) -> impl Iterator<Item = String> {
    let listed: u64 = counts.by_code.values().sum();
    let unlisted = counts.rejected.saturating_add(counts.rejected_values).saturating_sub(listed);
    let by_code = counts.by_code.iter().map(|(code, count)| (*count, *code));
    let all = by_code.chain([(unlisted, "not listed by the server")]).filter(|(count, _)| *count > 0);
    all.map(|(count, code)| format!("{} {code}", HumanCount(count)))
}

/// The answer to a batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::cli) struct Receipt {
    pub(in crate::cli) counts: Counts,
    /// The rejections that the server listed: of readings and of single values.
    pub(in crate::cli) rejections: Vec<Rejection>,
}

/// A reading, or a single value of a reading, that the server rejected.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct Rejection {
    /// The line of the reading in the file.
    pub(in crate::cli) line: u64,
    /// The code and the detail.
    pub(in crate::cli) why: String,
}

/// The server takes no batch of this size.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(in crate::cli) struct TooLarge(String);

/// Sends batches to one server.
pub(in crate::cli) struct Sender {
    client: Client,
    path: &'static str,
    retry_for: Duration,
}

impl Sender {
    /// A sender to a path of the server that the flags name.
    ///
    /// It retries each batch for `retry_for` after the first failure.
    pub(in crate::cli) fn to(server: &ClientArgs, path: &'static str, retry_for: Duration) -> anyhow::Result<Self> {
        Ok(Self::new(Client::new(server.options()?)?, path, retry_for))
    }

    /// A sender to a path of a server.
    pub(in crate::cli) const fn new(client: Client, path: &'static str, retry_for: Duration) -> Self {
        Self { client, path, retry_for }
    }

    /// Sends a batch until the server answers.
    ///
    /// `on_trouble` gets each failure that a retry follows.
    ///
    /// The error is [`TooLarge`] if the server takes no batch of this size.
    pub(in crate::cli) async fn send(&self, batch: &Batch, on_trouble: impl Fn(&str)) -> anyhow::Result<Receipt> {
        let body = Body::of(&batch.body, batch.readings);
        let on_trouble = |trouble: &Trouble| on_trouble(&trouble.to_string());
        let trouble = match retry(self.retry_for, on_trouble, || self.attempt(&body)).await {
            Ok(answer) => return Receipt::of(answer, batch),
            Err(trouble) => trouble,
        };
        let Batch { lines, file, .. } = batch;
        let refused = format!("{} lines from {file}:{}: {trouble}", lines.len(), lines[0]);
        Err(if trouble.is_too_large() { TooLarge(refused).into() } else { anyhow!(refused) })
    }

    /// The ID of the store of the server. `None` if the server does not tell it, or not yet.
    ///
    /// # Errors
    /// If the server does not answer.
    pub(super) async fn store_id(&self) -> Result<Option<String>, Trouble> {
        let answer = self.client.get("/version", &[]).await?.whole(VERSION_MAX_BYTES).await?;
        let version: serde_json::Value = serde_json::from_slice(&answer).unwrap_or_default();
        Ok(version.get("storeId").and_then(serde_json::Value::as_str).map(str::to_owned))
    }

    async fn attempt(&self, body: &Body) -> Result<Answer, Trouble> {
        match self.client.post(self.path, body).await? {
            Answer { rate_limited: Some(trouble), .. } => Err(trouble),
            answer => Ok(answer),
        }
    }
}

impl Receipt {
    fn of(answer: Answer, batch: &Batch) -> anyhow::Result<Self> {
        let Answer { counts, listed, .. } = answer;
        let rejection = |Listed { index, line, code, detail }: Listed| {
            let at = line.map_or(index, |line| line.wrapping_sub(1));
            let line =
                batch.lines.get(at).with_context(|| format!("the server lists an error at line {at} of the body"))?;
            Ok(Rejection { line: *line, why: format!("{code}: {detail}") })
        };
        let rejections = listed.into_iter().map(rejection).collect::<anyhow::Result<_>>()?;
        Ok(Self { counts, rejections })
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use tidegauge::client::{Options, READINGS};
    use tokio::net::TcpListener;

    use super::*;

    /// Sends three lines to a server with this answer.
    async fn send(status: u16, answer: &'static str) -> (String, anyhow::Result<Receipt>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = axum::Router::new().fallback(move || async move { (StatusCode::from_u16(status).unwrap(), answer) });
        tokio::spawn(async move { axum::serve(listener, app).await });
        let sender = Sender::new(Client::new(Options::new(&url)).unwrap(), READINGS, Duration::from_secs(60));
        let (body, lines) = ("{}\n{}\n{}\n".into(), vec![2, 4, 7]);
        let batch = Batch { file: "f.csv".into(), body, lines, done: None, readings: Some(3) };
        (format!("{url}/v1/readings"), sender.send(&batch, |_| ()).await)
    }

    #[tokio::test]
    async fn rejected_readings_are_reported_by_the_line_of_the_file() {
        let body = r#"{"code":"partially_rejected","accepted":1,"rejected":2,"rejectedValues":3,"overwritten":4,
            "ignored":1000,"errors":[{"index":1,"code":"timestamp_in_future","detail":"a"},
            {"index":9,"line":3,"code":"invalid_json","detail":"b"}]}"#;
        let answer = send(400, body).await.1.unwrap();
        let rejections = vec![
            Rejection { line: 4, why: "timestamp_in_future: a".into() },
            Rejection { line: 7, why: "invalid_json: b".into() },
        ];
        assert_eq!((answer.counts.accepted, answer.counts.rejected, &answer.rejections), (1, 2, &rejections));
        let words = |words: &mut dyn Iterator<Item = String>| words.collect::<Vec<_>>().join(", ");
        let same = "overwrote another one of the same device, time and series";
        let expected = format!("3 values rejected, 4 readings {same}, 1,000 fields ignored");
        assert_eq!(words(&mut remarks(&answer.counts)), expected);
        let expected = "1 invalid_json, 1 timestamp_in_future, 3 not listed by the server";
        assert_eq!(words(&mut reasons(&answer.counts)), expected);
        let older = "1 reading older than what the server has, 2 values older than what the server has";
        assert_eq!(words(&mut remarks(&Counts { older: 1, older_values: 2, ..Counts::default() })), older);
    }

    #[tokio::test]
    async fn a_refusal_names_the_lines_and_the_server() {
        let (url, sent) = send(413, r#"{"code":"body_too_large","detail":"at most 9 bytes"}"#).await;
        let error = sent.unwrap_err();
        let expected =
            format!("3 lines from f.csv:2: {url} answered 413 Payload Too Large: body_too_large: at most 9 bytes");
        assert!(error.is::<TooLarge>() && error.to_string() == expected, "{error}");
        let (url, sent) = send(200, r#"{"accepted":4}"#).await;
        let error = sent.unwrap_err().to_string();
        assert!(error.starts_with(&format!("3 lines from f.csv:2: {url} answered 200 OK: of 3 readings")), "{error}");
    }
}
