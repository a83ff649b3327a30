//! Sends messages over HTTP, one at a time on each connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use crate::client::Client;
use crate::format::Format;
use crate::latency;
use crate::pace::Pace;
use crate::target::Target;
use crate::workload::Workload;

/// The wait before a message that was refused for now is sent again.
const RETRY: Duration = Duration::from_millis(50);

/// The messages to send, and when to send them.
#[derive(Debug, Clone)]
pub(crate) struct Sending {
    pub(crate) address: String,
    pub(crate) target: Target,
    pub(crate) format: Format,
    pub(crate) workload: Workload,
    pub(crate) connections: u64,
    /// Readings per second, by a schedule (open loop).
    ///
    /// `None`: each message follows the answer to the one before (closed loop).
    pub(crate) rate: Option<f64>,
    pub(crate) until: Until,
}

/// When to stop sending.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    Seconds(f64),
    /// After this many messages on each connection.
    Messages(u64),
}

/// The results of sending.
#[derive(Debug)]
pub(crate) struct Sent {
    /// The number of acknowledged messages by connection.
    pub(crate) messages: Vec<u64>,
    /// The number of acknowledged readings, with those that the workload sends twice.
    pub(crate) readings: u64,
    /// How often a message was sent again.
    ///
    /// The server had refused the message for now (429, 503), or the connection had broken.
    pub(crate) again: u64,
    pub(crate) took: Duration,
    pub(crate) latencies: Histogram<u64>,
}

/// Sends messages until [`Until`]. Adds the acknowledged readings to `progress`.
///
/// # Errors
/// If a message is refused permanently.
pub(crate) async fn send(sending: Sending, progress: Arc<AtomicU64>) -> anyhow::Result<Sent> {
    let (start, sending) = (Instant::now(), Arc::new(sending));
    let connection = |nth| connection(Arc::clone(&sending), nth, start, Arc::clone(&progress));
    join(sending.connections, start, connection).await
}

/// Runs all connections at once, and adds up their results.
pub(crate) async fn join<C>(connections: u64, start: Instant, connection: impl Fn(u64) -> C) -> anyhow::Result<Sent>
where
    C: Future<Output = anyhow::Result<OfConnection>> + Send + 'static,
{
    let mut running: JoinSet<_> = (0..connections).map(connection).collect();
    let (mut messages, mut readings, mut again) = (vec![0; connections as usize], 0, 0);
    let mut latencies = latency::histogram();
    while let Some(one) = running.join_next().await {
        let one = one??;
        messages[one.nth as usize] = one.messages;
        readings += one.readings;
        again += one.again;
        latencies.add(one.latencies)?;
    }
    Ok(Sent { messages, readings, again, took: start.elapsed(), latencies })
}

/// The results of one connection.
pub(crate) struct OfConnection {
    pub(crate) nth: u64,
    pub(crate) messages: u64,
    pub(crate) readings: u64,
    pub(crate) again: u64,
    pub(crate) latencies: Histogram<u64>,
}

async fn connection(
    sending: Arc<Sending>,
    nth: u64,
    start: Instant,
    progress: Arc<AtomicU64>,
) -> anyhow::Result<OfConnection> {
    let share = sending.workload.share(nth, sending.connections);
    let pace = sending.pace(start, nth);
    let mut link = Link { sending: &sending, client: None, again: 0 };
    let mut of = OfConnection { nth, messages: 0, readings: 0, again: 0, latencies: latency::histogram() };
    let (mut readings, mut body) = (Vec::new(), String::new());
    while !share.devices().is_empty() && sending.until.goes_on(start, of.messages) {
        share.message(of.messages, &mut readings);
        sending.format.write(&mut body, &readings);
        let due = pace.due(of.messages);
        if let Some(due) = due {
            tokio::time::sleep_until(due.into()).await;
        }
        let from = due.unwrap_or_else(Instant::now);
        if !readings.is_empty() {
            link.deliver(&body).await?;
        }
        of.latencies.record(latency::micros(from.elapsed()))?;
        of.messages += 1;
        of.readings += readings.len() as u64;
        progress.fetch_add(readings.len() as u64, Ordering::Relaxed);
    }
    of.again = link.again;
    Ok(of)
}

impl Sending {
    fn pace(&self, start: Instant, nth: u64) -> Pace {
        match self.rate {
            None => Pace::closed(start),
            Some(rate) => {
                let bursts = self.workload.kind == crate::workload::Kind::Burst;
                Pace::open(start, rate / self.workload.batch as f64, nth, self.connections, bursts)
            }
        }
    }
}

impl Until {
    /// Whether a connection that has sent `messages` sends another one.
    pub(crate) fn goes_on(self, start: Instant, messages: u64) -> bool {
        match self {
            Self::Seconds(seconds) => start.elapsed().as_secs_f64() < seconds,
            Self::Messages(limit) => messages < limit,
        }
    }

    /// How many messages a connection that has sent `messages` may still send.
    pub(crate) const fn left(self, messages: u64) -> u64 {
        match self {
            Self::Seconds(_) => u64::MAX,
            Self::Messages(limit) => limit.saturating_sub(messages),
        }
    }
}

/// A connection that is made again when it breaks.
struct Link<'a> {
    sending: &'a Sending,
    client: Option<Client>,
    again: u64,
}

impl Link<'_> {
    /// Sends a message again and again until it is acknowledged.
    async fn deliver(&mut self, body: &str) -> anyhow::Result<()> {
        loop {
            match self.post(body).await? {
                Some(200..=299) => return Ok(()),
                Some(429 | 503) | None => {
                    self.again += 1;
                    tokio::time::sleep(RETRY).await;
                }
                Some(status) => bail!("a message was refused with status {status}"),
            }
        }
    }

    /// Sends a message once. Returns the status; `None` if the connection broke.
    async fn post(&mut self, body: &str) -> anyhow::Result<Option<u16>> {
        let Sending { address, target, format, .. } = self.sending;
        let client = match &mut self.client {
            Some(client) => client,
            None => self.client.insert(Client::connect(address).await?),
        };
        let content_type = match format {
            Format::Json => "application/json",
            Format::Ndjson => "application/x-ndjson",
            Format::Lines => "text/plain",
        };
        let posted = client.post(target.write_path(*format), content_type, body.as_bytes()).await;
        let status = posted.ok().map(|(status, _)| status);
        if status.is_none() {
            self.client = None;
        }
        Ok(status)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::post;
    use tokio::net::TcpListener;

    use super::*;
    use crate::workload::Kind;

    /// Serves these answers, each after its delay, and from then on 200 at once.
    async fn server(answers: impl IntoIterator<Item = (u16, Duration)>) -> String {
        let answers = Arc::new(Mutex::new(answers.into_iter().collect::<VecDeque<_>>()));
        let answer = async move || {
            let next = answers.lock().unwrap().pop_front();
            let (status, delay) = next.unwrap_or((200, Duration::ZERO));
            tokio::time::sleep(delay).await;
            StatusCode::from_u16(status).unwrap()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(axum::serve(listener, Router::new().route("/v1/readings", post(answer))).into_future());
        address
    }

    async fn sent(address: String, rate: Option<f64>, messages: u64) -> anyhow::Result<Sent> {
        let workload = Workload::steady(Kind::Fleet, 10, 1_000, 1, 0);
        let (target, format, until) = (Target::Tidegauge, Format::Json, Until::Messages(messages));
        let sending = Sending { address, target, format, workload, connections: 1, rate, until };
        send(sending, Arc::new(AtomicU64::new(0))).await
    }

    #[tokio::test]
    async fn a_stall_is_charged_to_every_message_that_was_due_meanwhile() {
        const STALL: Duration = Duration::from_millis(500);
        let stalls = || server([(200, STALL)]);
        let open = sent(stalls().await, Some(200.0), 200).await.unwrap();
        // 100 of the 200 messages were due within the stall, and waited for half of it on average.
        let late = open.latencies.count_between(100_000, u64::MAX);
        assert!((70..=200).contains(&late), "{late} messages were more than 100 ms late");
        let closed = sent(stalls().await, None, 200).await.unwrap();
        assert!(closed.latencies.max() >= 490_000, "the one message that met it shows");
        assert!(closed.latencies.value_at_quantile(0.5) < 100_000, "a closed loop hides the stall from its median");
    }

    #[tokio::test]
    async fn what_is_refused_for_now_is_counted_and_sent_again() {
        let answers = [429, 503, 200, 503].map(|status| (status, Duration::ZERO));
        let sent = sent(server(answers).await, None, 5).await.unwrap();
        assert_eq!((sent.again, sent.readings, sent.messages, sent.latencies.len()), (3, 5, vec![5], 5));
    }

    #[tokio::test]
    async fn any_other_refusal_ends_the_load() {
        for status in [301, 400, 401, 413, 500] {
            let answers = [200, status].map(|status| (status, Duration::ZERO));
            let error = sent(server(answers).await, None, 5).await.unwrap_err();
            assert_eq!(error.to_string(), format!("a message was refused with status {status}"));
        }
    }
}
