//! A client: sends for its devices, one request after the other, until an order stops it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use tokio::sync::watch;

use super::history::{Attempt, History};
use super::workload::{Batch, Sent, Workload, body};
use crate::harness::client;
use crate::harness::mongod::deadline::deadline;

/// How many seconds an answer may take: whichever part fails, the server accepts the readings or refuses
/// them.
const ANSWER_SECONDS: u32 = 60;
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// The pause of a client after a batch, except in a soak. Without it, clients that send until a primary is
/// elected take the CPU of other tests, and the audit reads all that they have sent.
pub(crate) const WAIT_AFTER_BATCH: Duration = Duration::from_millis(10);

/// The address of a server; `None` while it does not run.
pub(crate) type Address = watch::Receiver<Option<String>>;

/// An order to clients, which they follow between batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Send,
    Wait,
    Stop,
}

/// A client of one or several servers.
pub(crate) struct Client {
    pub(crate) workload: Workload,
    pub(crate) servers: Vec<Address>,
    pub(crate) history: Arc<History>,
    order: watch::Receiver<Order>,
    pause: Duration,
    http: reqwest::Client,
    rng: StdRng,
}

/// The outcome of a request.
enum Answer {
    /// The server accepted its valid readings.
    Acked,
    /// The server refused it temporarily.
    Refused,
    /// The connection broke before an answer.
    None,
}

impl Client {
    /// A client whose seed determines what it does.
    pub(crate) fn new(
        seed: u64,
        workload: Workload,
        servers: Vec<Address>,
        history: &Arc<History>,
        order: watch::Receiver<Order>,
        pause: Duration,
    ) -> Self {
        let http = client(None).timeout(deadline(ANSWER_SECONDS)).build().expect("a client");
        let history = Arc::clone(history);
        Self { workload, servers, history, order, pause, http, rng: StdRng::seed_from_u64(!seed) }
    }

    /// Sends until an order stops it. It completes the last request.
    pub(crate) async fn run(mut self) {
        while self.may_send().await {
            let batch = self.workload.next();
            let server = self.rng.random_range(0..self.servers.len());
            self.deliver(&batch, server).await;
            if self.servers.len() > 1 && self.rng.random_bool(0.5) {
                self.deliver(&batch, (server + 1) % self.servers.len()).await;
            }
            tokio::time::sleep(self.pause).await;
        }
    }

    /// Waits while the order is `Wait`. Returns whether the client goes on.
    async fn may_send(&mut self) -> bool {
        let order = self.order.wait_for(|order| *order != Order::Wait).await;
        order.is_ok_and(|order| *order == Order::Send)
    }

    /// Sends a batch until the server acknowledges it. After one failed attempt in ten it gives up.
    async fn deliver(&mut self, batch: &Batch, mut server: usize) {
        let first_try = Instant::now();
        loop {
            let url = url_of(&mut self.servers[server]).await;
            let attempt = self.history.begin(batch);
            match self.post(&url, batch).await {
                Answer::Acked => return self.acked(&attempt, batch, &url, first_try.elapsed()).await,
                Answer::Refused => self.history.refused(&attempt),
                Answer::None => self.history.unanswered(),
            }
            if self.rng.random_bool(0.1) {
                return;
            }
            server = self.rng.random_range(0..self.servers.len());
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    async fn post(&self, url: &str, batch: &Batch) -> Answer {
        let request = self.http.post(format!("{url}/v1/readings")).header("content-type", "application/json");
        let response = match request.body(body(batch).to_string()).send().await {
            Ok(response) => response,
            Err(error) if error.is_timeout() => panic!("no answer within {:?}: {error}", deadline(ANSWER_SECONDS)),
            Err(_) => return Answer::None,
        };
        let status = response.status().as_u16();
        let Ok(text) = response.text().await else { return Answer::None };
        let answer: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {status} {text}"));
        let bad = batch.iter().filter(|sent| sent.bad).count();
        match (status, answer["code"].as_str()) {
            (200, None) if bad == 0 => {}
            (400, Some("partially_rejected" | "rejected")) if bad > 0 => assert_eq!(answer["rejected"], bad, "{text}"),
            (503, Some("overloaded")) => return Answer::Refused,
            _ => panic!("{bad} invalid readings of {} are answered with {status} {text}", batch.len()),
        }
        assert_eq!(answer["accepted"], batch.len() - bad, "{text}");
        Answer::Acked
    }

    async fn acked(&mut self, attempt: &Attempt, batch: &Batch, url: &str, stall: Duration) {
        let good: Vec<&Sent> = batch.iter().filter(|sent| !sent.bad).collect();
        self.history.acked(attempt, good.len(), stall);
        if !good.is_empty() && self.rng.random_bool(0.05) {
            let which = self.rng.random_range(0..good.len());
            self.read_back(good[which], url).await;
        }
    }

    /// A query returns the reading that was just acknowledged, unless its answer is lagging or partial.
    async fn read_back(&self, sent: &Sent, url: &str) {
        let device = sent.device.replace('/', "%2F");
        let range = format!("from={}&to={}", sent.ts_ms, sent.ts_ms + 1);
        let request = self.http.get(format!("{url}/v1/devices/{device}/readings?{range}"));
        let Ok(response) = request.send().await else { return };
        if response.status() != 200 {
            return;
        }
        let Ok(text) = response.text().await else { return };
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        if !answer["laggingSeconds"].is_null() || answer["partial"] == true {
            return;
        }
        for (identity, _) in sent.identities() {
            let found = answer["readings"][0]["values"][identity.2].as_f64();
            let allowed = self.history.allowed(&identity);
            assert!(
                allowed.contains(&found),
                "{identity:?} was acknowledged as {allowed:?}, but a query returns {text}"
            );
        }
    }
}

async fn url_of(server: &mut Address) -> String {
    let url = server.wait_for(Option::is_some).await.expect("the test keeps the address while clients run");
    url.clone().expect("wait_for returned an address")
}
