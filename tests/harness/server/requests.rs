//! HTTP requests to a server, and waiting for its metrics.

use std::time::{Duration, Instant};

use bytes::Bytes;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::super::mongod::deadline::deadline;
use super::super::{Metrics, Setup, client, secret_of, wait_for, wait_until};
use super::{Answer, Server};

/// How many seconds the counters may take to add up.
///
/// The server reads them one after the other while flushes continue.
const BALANCE_SECONDS: u32 = 60;

/// How many seconds an answer may take.
const ANSWER_SECONDS: u32 = 60;

/// The time between two looks at counters that change all the time.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

impl Server {
    /// `GET`s a path.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.get_as(path, "*/*").await
    }

    /// `GET`s a path with an `Accept` header.
    pub(crate) async fn get_as(&self, path: &str, accept: &str) -> Answer {
        let request = self.request(reqwest::Method::GET, path).header("accept", accept);
        Answer::of(request.send().await).await.expect("an answer")
    }

    /// `GET`s a path and expects JSON with status 200.
    ///
    /// It repeats the request while the store is unavailable, or readings wait for pending.
    pub(crate) async fn get_json(&self, path: &str) -> Value {
        let answer = wait_for(path, async || self.get(path).await.unless_unavailable()).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    /// `POST`s a body.
    pub(crate) async fn post(&self, path: &str, content_type: &str, body: impl Into<Bytes>) -> Answer {
        let request = self.request(reqwest::Method::POST, path).header("content-type", content_type);
        Answer::of(request.body(body.into()).send().await).await.expect("an answer")
    }

    /// `POST`s readings as JSON to `/v1/readings`.
    pub(crate) async fn ingest(&self, readings: &Value) -> Answer {
        self.post("/v1/readings", "application/json", readings.to_string()).await
    }

    /// Sends readings as [`Server::ingest`] does, and asserts that the server accepts all of them.
    pub(crate) async fn accepts(&self, readings: &Value) {
        let answer = self.ingest(readings).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// The readings of a device from 2023 to 2032 (a query may have ten years), as `{"ts", "values"}`.
    pub(crate) async fn readings(&self, device: &str) -> Value {
        let range = "from=2023-01-01T00:00:00Z&to=2033-01-01T00:00:00Z&limit=10000";
        self.get_json(&format!("/v1/devices/{}/readings?{range}", encoded(device))).await["readings"].take()
    }

    /// A request that the other functions do not cover.
    pub(crate) fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url()))
    }

    /// Sends a request made with [`Server::request`].
    pub(crate) async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        Answer::of(request.send().await).await.expect("an answer")
    }

    /// The current metrics. A server with tokens must have one named `operator`.
    pub(crate) async fn metrics(&self) -> Metrics {
        let request = self.request(reqwest::Method::GET, "/metrics").bearer_auth(secret_of("operator"));
        let answer = self.send(request).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        Metrics::parse(answer.text())
    }

    /// Waits until no reading is pending. Each decrease restarts the deadline.
    pub(crate) async fn settled(&self) -> Metrics {
        let mut left = u64::MAX;
        loop {
            let (pending, metrics) = wait_until("less is pending", async || {
                let metrics = self.metrics().await;
                let pending = metrics.count("tidegauge_readings_pending");
                let is_better = if pending == 0 { metrics.balance().is_ok() } else { pending < left };
                is_better.then_some((pending, metrics))
            })
            .await;
            if pending == 0 {
                return metrics;
            }
            left = pending;
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Waits until the counters of readings balance.
    ///
    /// # Panics
    /// If the deadline passes first; the message has the sum that is wrong.
    pub(crate) async fn assert_balanced(&self) {
        let give_up_at = Instant::now() + deadline(BALANCE_SECONDS);
        while let Err(reason) = self.metrics().await.balance() {
            assert!(Instant::now() < give_up_at, "the counters do not balance: {reason}");
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }
}

/// A text, percent-encoded for a path or a query.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// A client of the server. With TLS it trusts `ca.pem`, and presents `operator.pem` if that exists.
pub(super) fn client_for(setup: &Setup) -> reqwest::Client {
    let folder = setup.tls_folder();
    let authority = folder.map(|folder| std::fs::read(folder.join("ca.pem")).expect("the authority of the server"));
    let shown = folder.and_then(|folder| std::fs::read(folder.join("operator.pem")).ok());
    let client = client(authority.as_deref()).timeout(deadline(ANSWER_SECONDS));
    let identity = |pem: Vec<u8>| reqwest::Identity::from_pem(&pem).expect("a certificate and its key");
    let client = shown.map(identity).into_iter().fold(client, reqwest::ClientBuilder::identity);
    client.build().expect("a client")
}
