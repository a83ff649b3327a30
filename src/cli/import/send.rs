//! Sends batches to a running server over HTTP.
//!
//! A batch is retried after a failed connection and after 429, 502, 503 and 504. A retry is safe, because the
//! store identifies a reading by device, time and metric. Any other refusal ends the import.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use indicatif::HumanCount;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, ClientBuilder, RequestBuilder, StatusCode};
use serde::Deserialize;
use strum::IntoEnumIterator;
use tidegauge::common::backoff::Backoff;
use tidegauge::forward::is_untrusted;
use tidegauge::wire::Code;
use tokio::time::Instant;

use super::super::client::ClientArgs;
use super::super::client::answer::{MAX_ANSWER_BYTES, is_temporary, read_at_most, refusal_text, retry_after};
use super::super::counted;
use super::batch::Batch;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// The path to which readings are sent.
pub(in crate::cli) const READINGS: &str = "/v1/readings";

/// The path to which dead letters are sent.
pub(in crate::cli) const DEAD_LETTERS: &str = "/v1/dead-letters";

/// The answer of the server to a batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::cli) struct Answer {
    /// The counts.
    pub(in crate::cli) counts: Counts,
    /// The rejections that the server listed: of readings and of single values.
    pub(in crate::cli) rejections: Vec<Rejection>,
}

/// All that an answer counts, or that several answers count together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::cli) struct Counts {
    /// The accepted readings.
    pub(in crate::cli) accepted: u64,
    /// The rejected readings.
    pub(in crate::cli) rejected: u64,
    /// The rejected values of accepted readings.
    pub(in crate::cli) rejected_values: u64,
    /// The readings that replaced a value of an earlier reading of their request.
    pub(in crate::cli) overwritten: u64,
    /// The parts of readings that were dropped.
    pub(in crate::cli) ignored: u64,
    /// The repeated readings that are older than others that the server has.
    pub(in crate::cli) older: u64,
    /// The older values of other repeated readings.
    pub(in crate::cli) older_values: u64,
    /// The listed rejections by code. A server may not list all.
    by_code: BTreeMap<&'static str, u64>,
}

impl Counts {
    /// Readings that were accepted, and nothing else.
    pub(in crate::cli) fn of_accepted(accepted: u64) -> Self {
        Self { accepted, ..Self::default() }
    }

    /// Adds the counts of another answer.
    pub(in crate::cli) fn add(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.rejected += other.rejected;
        self.rejected_values += other.rejected_values;
        self.overwritten += other.overwritten;
        self.ignored += other.ignored;
        self.older += other.older;
        self.older_values += other.older_values;
        for (code, count) in other.by_code {
            *self.by_code.entry(code).or_default() += count;
        }
    }

    /// The other counts than those of accepted and rejected readings, as words, without those that are 0.
    pub(in crate::cli) fn remarks(&self) -> impl Iterator<Item = String> {
        let all = [
            (self.rejected_values, "value", "rejected"),
            (self.older, "reading", "older than what the server has"),
            (self.older_values, "value", "older than what the server has"),
            (self.overwritten, "reading", "overwrote another one of the same device, time and metric"),
            (self.ignored, "field", "ignored"),
        ];
        all.into_iter()
            .filter(|(count, ..)| *count > 0)
            .map(|(count, what, how)| format!("{} {how}", counted(count, what)))
    }

    /// The reasons of rejections, as words: `2 invalid_value`.
    pub(in crate::cli) fn reasons(&self) -> impl Iterator<Item = String> {
        let listed: u64 = self.by_code.values().sum();
        let unlisted = (self.rejected + self.rejected_values).saturating_sub(listed);
        let by_code = self.by_code.iter().map(|(code, count)| (*count, *code));
        let all = by_code.chain([(unlisted, "not listed")]).filter(|(count, _)| *count > 0);
        all.map(|(count, code)| format!("{} {code}", HumanCount(count)))
    }
}

/// A reading that the server rejected.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct Rejection {
    /// The line of the file.
    pub(in crate::cli) line: u64,
    /// The code and the detail.
    pub(in crate::cli) why: String,
}

/// Sends batches to one server.
pub(in crate::cli) struct Sender {
    client: Client,
    url: String,
    token: Option<String>,
    retry_for: Duration,
}

impl Sender {
    /// A sender to a path of the server of these flags. It retries each batch for `retry_for` after the first
    /// failure.
    pub(in crate::cli) fn to(server: &ClientArgs, path: &str, retry_for: Duration) -> anyhow::Result<Self> {
        Self::new(server.http()?, (server.url(), path), server.token()?, retry_for)
    }

    /// A sender to a path of the server with this URL.
    pub(in crate::cli) fn new(
        http: ClientBuilder,
        (url, path): (&str, &str),
        token: Option<String>,
        retry_for: Duration,
    ) -> anyhow::Result<Self> {
        let client = http.connect_timeout(CONNECT_TIMEOUT).timeout(REQUEST_TIMEOUT).build()?;
        Ok(Self { client, url: format!("{}{path}", url.trim_end_matches('/')), token, retry_for })
    }

    /// Sends a batch until the server answers. `on_trouble` gets each failure that a retry follows. The error
    /// is [`TooLarge`] if the server takes no batch of this size.
    pub(in crate::cli) async fn send(&self, batch: &Batch, on_trouble: impl Fn(&str)) -> anyhow::Result<Answer> {
        let mut backoff = Backoff::new(FIRST_BACKOFF..=MAX_BACKOFF);
        let mut give_up_at = None;
        loop {
            let Trouble { what, retry_after } = match self.attempt(batch).await? {
                Attempt::Answered(answer) => return Ok(answer),
                Attempt::Failed(trouble) => trouble,
            };
            let now = Instant::now();
            let left = give_up_at.get_or_insert(now + self.retry_for).saturating_duration_since(now);
            if left.is_zero() {
                bail!("{what}; gave up after trying for {:?}", self.retry_for);
            }
            on_trouble(&what);
            // Both waits are random, so that several imports do not send again at the same moment.
            let wait = match retry_after {
                Some(told) => told.mul_f64(rand::random_range(1.0..1.1)),
                None => backoff.next_wait(),
            };
            tokio::time::sleep(wait.min(left)).await;
        }
    }

    async fn attempt(&self, batch: &Batch) -> anyhow::Result<Attempt> {
        let request = self.client.post(&self.url).header(CONTENT_TYPE, "application/x-ndjson").body(batch.body.clone());
        let request = self.token.iter().fold(request, RequestBuilder::bearer_auth);
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_builder() || is_untrusted(&error) => return Err(error.into()),
            Err(error) => return Ok(Attempt::Failed(Trouble { what: chain(error), retry_after: None })),
        };
        let status = response.status();
        let retry_after = retry_after(&response);
        let body = match read_at_most(MAX_ANSWER_BYTES, response).await {
            Ok(body) => body,
            Err(error) => return Ok(Attempt::Failed(Trouble { what: chain(error), retry_after: None })),
        };
        if matches!(status, StatusCode::OK | StatusCode::BAD_REQUEST)
            && let Ok(verdict) = serde_json::from_slice::<Verdict>(&body)
        {
            return Ok(Attempt::Answered(verdict.of(batch).with_context(|| self.url.clone())?));
        }
        let what = refusal_text(&self.url, status, &body);
        if is_temporary(status) {
            return Ok(Attempt::Failed(Trouble { what, retry_after }));
        }
        let refused = format!("{} lines from {}:{}: {what}", batch.lines.len(), batch.file, batch.lines[0]);
        Err(if status == StatusCode::PAYLOAD_TOO_LARGE { TooLarge(refused).into() } else { anyhow!(refused) })
    }
}

/// The server takes no batch of this size.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(in crate::cli) struct TooLarge(String);

enum Attempt {
    Answered(Answer),
    Failed(Trouble),
}

/// A temporary failure.
struct Trouble {
    what: String,
    retry_after: Option<Duration>,
}

/// The body of a 200, and of a 400 with some accepted readings.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Verdict {
    accepted: u64,
    #[serde(default)]
    rejected: u64,
    #[serde(default)]
    rejected_values: u64,
    #[serde(default)]
    overwritten: u64,
    #[serde(default)]
    ignored: u64,
    #[serde(default)]
    older: u64,
    #[serde(default)]
    older_values: u64,
    #[serde(default)]
    errors: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    /// The reading in the body, from 0.
    index: usize,
    /// The line in the body, from 1. It differs from `index + 1` if a line contains several readings.
    line: Option<usize>,
    code: String,
    detail: String,
}

impl Verdict {
    fn of(self, batch: &Batch) -> anyhow::Result<Answer> {
        let Self { accepted, rejected, rejected_values, overwritten, ignored, older, older_values, errors } = self;
        let answered = [accepted, rejected, older].into_iter().fold(0, u64::saturating_add);
        let is_of_batch = batch.readings.map_or(answered > 0, |readings| answered == readings);
        if !is_of_batch {
            let sent = match batch.readings {
                Some(readings) => format!("{readings} readings"),
                None => format!("the readings in {} lines", batch.lines.len()),
            };
            bail!(
                "of {sent}, the server has accepted {accepted} and rejected {rejected}: this is not the answer of a \
                 tidegauge to them"
            );
        }
        let mut by_code = BTreeMap::new();
        let rejection = |listed: Listed| {
            let at = listed.line.map_or(listed.index, |line| line.wrapping_sub(1));
            let line =
                batch.lines.get(at).with_context(|| format!("the server lists an error at line {at} of the body"))?;
            let code = Code::iter().map(Code::as_str).find(|code| *code == listed.code).unwrap_or("other");
            *by_code.entry(code).or_default() += 1;
            Ok(Rejection { line: *line, why: format!("{}: {}", listed.code, listed.detail) })
        };
        let rejections = errors.into_iter().map(rejection).collect::<anyhow::Result<_>>()?;
        let counts = Counts { accepted, rejected, rejected_values, overwritten, ignored, older, older_values, by_code };
        Ok(Answer { counts, rejections })
    }
}

/// An error with its causes. Without them, reqwest only reports that the request failed.
fn chain(error: reqwest::Error) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use axum::http::StatusCode;
    use axum::response::IntoResponse;
    use axum::routing::post;
    use tokio::net::TcpListener;
    use tokio::sync::Notify;

    use super::*;
    use crate::cli::client::plain_http;

    const MINUTE: Duration = Duration::from_secs(60);

    fn batch() -> Batch {
        Batch { file: "f.csv".into(), body: "{}\n{}\n{}\n".into(), lines: vec![2, 4, 7], readings: Some(3) }
    }

    fn serve(
        listener: TcpListener,
        answer: impl Fn(usize, String) -> (StatusCode, &'static str) + Send + Sync + 'static,
    ) {
        let (requests, answer) = (AtomicUsize::new(0), Arc::new(answer));
        let handler = Arc::new(move |body| answer(requests.fetch_add(1, Ordering::Relaxed), body));
        let route = post(move |body: String| {
            let handler = Arc::clone(&handler);
            async move {
                let (status, body) = handler(body);
                ([("retry-after", "1")], (status, body)).into_response()
            }
        });
        let app = axum::Router::new().route("/v1/readings", route);
        tokio::spawn(async move { axum::serve(listener, app).await });
    }

    async fn listen() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    fn sender(address: SocketAddr, retry_for: Duration) -> Sender {
        Sender::new(plain_http(), (&format!("http://{address}/"), READINGS), None, retry_for).unwrap()
    }

    #[tokio::test]
    async fn an_overloaded_server_is_given_the_time_it_asks_for_and_the_same_bytes_again() {
        let (listener, address) = listen().await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        serve(listener, move |request, body| {
            log.lock().unwrap().push(body);
            match request {
                0 => (StatusCode::SERVICE_UNAVAILABLE, r#"{"code":"overloaded","detail":"the log is full"}"#),
                _ => (StatusCode::OK, r#"{"accepted":3}"#),
            }
        });
        let started = Instant::now();
        let troubles = Mutex::new(Vec::new());
        let answer =
            sender(address, MINUTE).send(&batch(), |what| troubles.lock().unwrap().push(what.to_owned())).await;
        assert_eq!(answer.unwrap(), Answer { counts: Counts::of_accepted(3), rejections: Vec::new() });
        assert!(started.elapsed() >= Duration::from_secs(1));
        let expected =
            format!("http://{address}/v1/readings answered 503 Service Unavailable: overloaded: the log is full");
        assert_eq!(*troubles.lock().unwrap(), [expected]);
        assert_eq!(*seen.lock().unwrap(), ["{}\n{}\n{}\n", "{}\n{}\n{}\n"]);
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_yet_is_waited_for() {
        let (listener, address) = listen().await;
        drop(listener);
        let refused = Arc::new(Notify::new());
        let told = Arc::clone(&refused);
        let sending = tokio::spawn(async move { sender(address, MINUTE).send(&batch(), |_| told.notify_one()).await });
        refused.notified().await;
        serve(TcpListener::bind(address).await.unwrap(), |_, _| (StatusCode::OK, r#"{"accepted":3}"#));
        assert_eq!(sending.await.unwrap().unwrap().counts.accepted, 3);
    }

    #[tokio::test]
    async fn a_server_that_stays_away_is_given_up_with_an_error() {
        let (listener, address) = listen().await;
        drop(listener);
        let error = sender(address, Duration::from_millis(50)).send(&batch(), |_| ()).await.unwrap_err().to_string();
        assert!(error.contains("Connection refused") && error.ends_with("gave up after trying for 50ms"), "{error}");
    }

    #[tokio::test]
    async fn rejected_readings_are_reported_by_the_line_of_the_file() {
        let (listener, address) = listen().await;
        serve(listener, |_, _| {
            let body = r#"{"code":"partially_rejected","accepted":1,"rejected":2,"rejectedValues":3,"overwritten":4,
                "ignored":1000,"errors":[{"index":1,"code":"timestamp_in_future","detail":"a"},
                {"index":9,"line":3,"code":"invalid_json","detail":"b"}]}"#;
            (StatusCode::BAD_REQUEST, body)
        });
        let answer = sender(address, MINUTE).send(&batch(), |_| ()).await.unwrap();
        let rejections = vec![
            Rejection { line: 4, why: "timestamp_in_future: a".into() },
            Rejection { line: 7, why: "invalid_json: b".into() },
        ];
        assert_eq!((answer.counts.accepted, answer.counts.rejected, &answer.rejections), (1, 2, &rejections));
        let words = |words: &mut dyn Iterator<Item = String>| words.collect::<Vec<_>>().join(", ");
        let same = "overwrote another one of the same device, time and metric";
        let remarks = format!("3 values rejected, 4 readings {same}, 1,000 fields ignored");
        assert_eq!(words(&mut answer.counts.remarks()), remarks);
        let reasons = "1 invalid_json, 1 timestamp_in_future, 3 not listed";
        assert_eq!(words(&mut answer.counts.reasons()), reasons);
        let mut both = Counts::default();
        both.add(answer.counts);
        both.add(Counts { older: 1, older_values: 2, ..Counts::of_accepted(5) });
        assert_eq!((both.accepted, both.rejected), (6, 2));
        let older = "1 reading older than what the server has, 2 values older than what the server has";
        assert!(words(&mut both.remarks()).contains(older), "{}", words(&mut both.remarks()));
        assert_eq!(words(&mut both.reasons()), reasons);
    }

    #[tokio::test]
    async fn a_refusal_that_is_not_temporary_is_not_retried() {
        let (listener, address) = listen().await;
        serve(listener, |request, _| {
            assert_eq!(request, 0);
            (StatusCode::PAYLOAD_TOO_LARGE, r#"{"code":"body_too_large","detail":"at most 9 bytes"}"#)
        });
        let error = sender(address, MINUTE).send(&batch(), |_| ()).await.unwrap_err().to_string();
        let url = format!("http://{address}/v1/readings");
        let expected =
            format!("3 lines from f.csv:2: {url} answered 413 Payload Too Large: body_too_large: at most 9 bytes");
        assert_eq!(error, expected);
    }

    #[tokio::test]
    async fn an_answer_that_is_not_about_the_readings_is_an_error() {
        for (answer, readings) in [
            (r#"{"accepted":0}"#, Some(3)),
            (r#"{"accepted":2}"#, Some(3)),
            (r#"{"accepted":1000000}"#, Some(3)),
            (r#"{"accepted":18446744073709551615,"rejected":4}"#, Some(3)),
            (r#"{"accepted":0}"#, None),
        ] {
            let (listener, address) = listen().await;
            serve(listener, move |_, _| (StatusCode::OK, answer));
            let sent = sender(address, MINUTE).send(&Batch { readings, ..batch() }, |_| ()).await;
            let error = format!("{:#}", sent.unwrap_err());
            assert!(error.contains("not the answer of a tidegauge to them"), "{answer}: {error}");
        }
    }
}
