//! A client: sends for its devices, one request after the other, until it is told to stop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use tokio::sync::watch;

use super::ledger::{Attempt, Ledger};
use super::workload::{Batch, Sent, Workload, body};
use crate::harness::client;

/// How long an answer may take at most: whatever fails behind it, the server takes readings or refuses them.
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// Where a server listens; `None` while it is gone.
pub(crate) type Address = watch::Receiver<Option<String>>;

/// What clients are told to do when they have delivered a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Send,
    Wait,
    Stop,
}

/// Sends for its devices.
pub(crate) struct Client {
    pub(crate) workload: Workload,
    pub(crate) servers: Vec<Address>,
    pub(crate) ledger: Arc<Ledger>,
    order: watch::Receiver<Order>,
    http: reqwest::Client,
    rng: StdRng,
}

/// What became of a request.
enum Answer {
    /// Its good readings are accepted.
    Acked,
    /// It was refused for now.
    Refused,
    /// The server went away.
    None,
}

impl Client {
    /// A client that behaves as its seed says.
    pub(crate) fn new(
        seed: u64,
        workload: Workload,
        servers: Vec<Address>,
        ledger: &Arc<Ledger>,
        order: watch::Receiver<Order>,
    ) -> Self {
        let http = client(None).timeout(ANSWER_DEADLINE).build().expect("a client");
        let ledger = Arc::clone(ledger);
        Self { workload, servers, ledger, order, http, rng: StdRng::seed_from_u64(!seed) }
    }

    /// Sends until it is told to stop. The last request is brought to its end.
    pub(crate) async fn run(mut self) {
        while self.may_send().await {
            let batch = self.workload.next();
            let server = self.rng.random_range(0..self.servers.len());
            self.deliver(&batch, server).await;
            if self.servers.len() > 1 && self.rng.random_bool(0.5) {
                self.deliver(&batch, (server + 1) % self.servers.len()).await;
            }
        }
    }

    /// Whether there is more to send, as soon as nobody holds it back.
    async fn may_send(&mut self) -> bool {
        let order = self.order.wait_for(|order| *order != Order::Wait).await;
        order.is_ok_and(|order| *order == Order::Send)
    }

    /// Sends a batch until it is acknowledged. Now and then it gives up before.
    async fn deliver(&mut self, batch: &Batch, mut server: usize) {
        let first_try = Instant::now();
        loop {
            let url = url_of(&mut self.servers[server]).await;
            let attempt = self.ledger.begin(batch);
            match self.post(&url, batch).await {
                Answer::Acked => return self.acked(&attempt, batch, &url, first_try.elapsed()).await,
                Answer::Refused => self.ledger.refused(&attempt),
                Answer::None => self.ledger.unanswered(),
            }
            if self.rng.random_bool(0.1) {
                return;
            }
            server = self.rng.random_range(0..self.servers.len());
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn post(&self, url: &str, batch: &Batch) -> Answer {
        let request = self.http.post(format!("{url}/v1/readings")).header("content-type", "application/json");
        let response = match request.body(body(batch).to_string()).send().await {
            Ok(response) => response,
            Err(error) if error.is_timeout() => panic!("no answer within {ANSWER_DEADLINE:?}: {error}"),
            Err(_) => return Answer::None,
        };
        let status = response.status().as_u16();
        let Ok(text) = response.text().await else { return Answer::None };
        let answer: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {status} {text}"));
        let bad = batch.iter().filter(|sent| sent.bad).count();
        match (status, answer["code"].as_str()) {
            (200, None) if bad == 0 => {}
            (400, Some("partially_rejected")) if bad > 0 => assert_eq!(answer["rejected"], bad, "{text}"),
            (503, Some("overloaded")) => return Answer::Refused,
            _ => panic!("{bad} bad readings of {} are answered with {status} {text}", batch.len()),
        }
        assert_eq!(answer["accepted"], batch.len() - bad, "{text}");
        Answer::Acked
    }

    async fn acked(&mut self, attempt: &Attempt, batch: &Batch, url: &str, stall: Duration) {
        let good: Vec<&Sent> = batch.iter().filter(|sent| !sent.bad).collect();
        self.ledger.acked(attempt, good.len(), stall);
        if !good.is_empty() && self.rng.random_bool(0.05) {
            let which = self.rng.random_range(0..good.len());
            self.read_back(good[which], url).await;
        }
    }

    /// What was just acknowledged is in the next answer, unless that says that it lags, or there is none.
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
            let allowed = self.ledger.allowed(&identity);
            assert!(allowed.contains(&found), "{identity:?} was just acknowledged as {allowed:?} and reads {text}");
        }
    }
}

async fn url_of(server: &mut Address) -> String {
    let url = server.wait_for(Option::is_some).await.expect("the siege goes on");
    url.clone().expect("it was waited for")
}
