//! Another server as the target of a move. It gets readings in the requests of a server that forwards, and
//! its queries tell what it has.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use tidegauge::config::{self, Bytes};
use tidegauge::forward::{Answer, Batch, Body, Outcome, Refused, Requests, Upstream, is_untrusted};
use tidegauge::model::{BucketWrite, Contents, Hour};
use tidegauge::store::HourStats;
use tokio::sync::Mutex;

use super::super::client::Credentials;
use super::super::client::answer::{MAX_ANSWER_BYTES, read_at_most};
use super::super::export::{Refusal, Requests as Queries};
use super::super::serve;
use super::super::target::{HourCheck, Patience, folded};
use super::answers::{OfDevice, Page, Version, contents_in, instant};

/// The devices that one query names. Their IDs must fit into a URL that proxies take, too.
const DEVICES_PER_QUERY: usize = 30;

/// The largest answer with the readings of an hour.
const HOUR_MAX_BYTES: usize = 1 << 30;

const AWAY: &str = "the server does not take or answer requests";

/// A server that a move writes to.
pub(super) struct Server {
    upstream: Upstream,
    max_batch_bytes: usize,
    requests: Mutex<Requests>,
    queries: Queries,
    /// The ID of its store, if the server shows it.
    pub(super) store_id: Option<String>,
}

/// The answers of the server to readings.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub(super) accepted: u64,
    /// The size of the compressed bodies, those that were sent again included.
    pub(super) bytes: u64,
    /// The refused readings by code.
    pub(super) refused: BTreeMap<&'static str, u64>,
    /// The first refused reading of each code, with the text of the server.
    pub(super) examples: BTreeMap<&'static str, String>,
}

impl Server {
    /// Asks the server for one device, so that a wrong URL, certificate or token is found before the start.
    pub(super) async fn open(url: &str, credentials: &Credentials, max_rate: Bytes) -> anyhow::Result<Self> {
        let token = credentials.token()?;
        let limits = config::Forward { max_bytes_per_second: max_rate, ..config::Forward::default() };
        let (upstream, max_batch_bytes) = serve::upstream(credentials.http(url)?, url, token.clone(), &limits)?;
        let queries = Queries::new(credentials.http(url)?, url, token)?;
        queries.devices(&[("limit", "1")], None).await.map_err(explained)?;
        let store_id = store_id(&queries).await;
        Ok(Self { upstream, max_batch_bytes, requests: Mutex::default(), queries, store_id })
    }

    /// Sends the readings of buckets, until the server has answered for each of them.
    pub(super) async fn send(&self, writes: &[Arc<BucketWrite>]) -> anyhow::Result<Sent> {
        let mut requests = self.requests.lock().await;
        let (mut batch, mut sent) = (Batch::default(), Sent::default());
        for write in writes {
            let contents = &write.contents;
            for reading in contents.readings() {
                let values = reading.samples.iter().map(|sample| (&**contents.metric_of(sample), sample.value));
                let ts_ms = write.hour.instant_ms(reading.offset);
                batch.push(&write.device, write.metadata.as_deref(), ts_ms, values);
                if batch.is_full(self.max_batch_bytes) {
                    self.deliver(&mut requests, &batch, &mut sent).await?;
                    batch.clear();
                }
            }
        }
        self.deliver(&mut requests, &batch, &mut sent).await?;
        Ok(sent)
    }

    async fn deliver(&self, requests: &mut Requests, batch: &Batch, sent: &mut Sent) -> anyhow::Result<()> {
        let mut patience = Patience::new(AWAY);
        requests.begin(batch);
        while let Some(request) = requests.next(batch) {
            let answer = self.post(&request.body, &mut sent.bytes).await?;
            let retry_after = answer.retry_after;
            let Outcome { accepted, refused, is_limited, .. } = requests.take(batch, request, answer);
            sent.accepted += accepted as u64;
            for refused in &refused {
                sent.add(batch, refused);
            }
            if !is_limited || accepted > 0 {
                patience = Patience::new(AWAY);
            }
            if is_limited {
                patience.wait_for("its limits refuse readings of some devices for now", retry_after).await?;
            }
        }
        Ok(())
    }

    /// Sends a body until there is a verdict. A rate of the server is waited for as long as it takes.
    async fn post(&self, body: &Body, bytes: &mut u64) -> anyhow::Result<Answer> {
        let mut patience = Patience::new(AWAY);
        loop {
            while let Err(wait) = self.upstream.charge(body) {
                tokio::time::sleep(wait).await;
            }
            *bytes += body.size() as u64;
            let trouble = match self.upstream.post(body).await {
                Ok(answer) => return Ok(answer),
                Err(trouble) => trouble,
            };
            let what = format!("{} answered {}", self.upstream.url(), trouble.detail);
            match trouble.reason {
                "unauthorized" => bail!("{RIGHTS}: {what}"),
                _ if trouble.is_for_good => bail!("{}: {}", self.upstream.url(), trouble.detail),
                "rate_limited" => patience.prolong(),
                _ => {}
            }
            patience.wait_for(&what, trouble.retry_after).await?;
        }
    }

    /// The stats of devices by hour.
    pub(super) async fn hour_stats(
        &self,
        devices: &[Arc<str>],
        hours: Range<Hour>,
    ) -> anyhow::Result<Vec<Vec<HourStats>>> {
        let mut all = Vec::with_capacity(devices.len());
        for some in devices.chunks(DEVICES_PER_QUERY) {
            let mut of_some = vec![Vec::new(); some.len()];
            let mut ranges = vec![hours.clone()]; // the next one is the last
            while let Some(hours) = ranges.pop() {
                let half = Hour(hours.start.0 + (hours.end.0 - hours.start.0) / 2);
                match self.rollups(some, hours.clone()).await {
                    Ok(found) => of_some.iter_mut().zip(found).for_each(|(all, found)| all.extend(found)),
                    Err(error) if is_too_long(&error) && half > hours.start => {
                        ranges.extend([half..hours.end, hours.start..half]);
                    }
                    Err(error) => return Err(error),
                }
            }
            all.extend(of_some);
        }
        Ok(all)
    }

    /// The rollups of some devices, in their order.
    async fn rollups(&self, devices: &[Arc<str>], hours: Range<Hour>) -> anyhow::Result<Vec<Vec<HourStats>>> {
        let [from, to] = [hours.start, hours.end].map(|hour| instant(hour.start_ms()));
        let mut asked = vec![("step", "1h"), ("fn", "count,min,max,sum"), ("from", &*from), ("to", &*to)];
        asked.extend(devices.iter().map(|device| ("device", &**device)));
        let (mut found, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let params: Vec<_> = asked.iter().copied().chain(cursor.as_deref().map(|at| ("cursor", at))).collect();
            let page = self.ask("/v1/rollups", &params, |_, body| {
                let page: Page = serde_json::from_slice(body)?;
                Ok(page.is_complete().then_some(page))
            });
            let Page { devices, next, .. } = page.await?;
            ensure!(!devices.is_empty() || next.is_none(), "the server answers with a page of no rollups");
            found.extend(devices.into_iter().map(OfDevice::hours));
            cursor = next;
            if cursor.is_none() {
                break;
            }
        }
        ensure!(found.len() == devices.len(), "the server answers with {} of {} devices", found.len(), devices.len());
        Ok(found)
    }

    /// Compares the readings of an hour one by one, and its stats with its readings. It may have more.
    pub(super) async fn check_hour(
        &self,
        device: &Arc<str>,
        hour: Hour,
        expected: &Contents,
    ) -> anyhow::Result<HourCheck> {
        let stored = self.contents(device, hour).await?;
        let hours = hour..Hour(hour.0 + 1);
        let stats = async || Ok(folded(self.hour_stats(std::slice::from_ref(device), hours.clone()).await?));
        HourCheck::of(hour, expected, &stored, stats).await
    }

    /// The readings of an hour.
    async fn contents(&self, device: &str, hour: Hour) -> anyhow::Result<Contents> {
        let [from, to] = [hour.start_ms(), hour.end_ms()].map(instant);
        let asked = [("format", "ndjson"), ("device", device), ("from", &from), ("to", &to)];
        self.ask("/v1/readings", &asked, |headers, body| {
            if headers.contains_key("tidegauge-lagging-seconds") {
                return Ok(None);
            }
            contents_in(body, hour).map(Some)
        })
        .await
    }

    /// Asks until the answer is complete. `read` returns `None` if it is not.
    async fn ask<T>(
        &self,
        path: &str,
        params: &[(&str, &str)],
        read: impl Fn(&HeaderMap, &[u8]) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let mut patience = Patience::new(AWAY);
        loop {
            let answered = async {
                let mut answer = self.queries.get(path, params).await?;
                let headers = answer.headers().clone();
                let mut body = Vec::new();
                while let Some(piece) = answer.chunk().await? {
                    body.extend_from_slice(&piece);
                    ensure!(body.len() <= HOUR_MAX_BYTES, "the server answers with more than {HOUR_MAX_BYTES} bytes");
                }
                anyhow::Ok((headers, body))
            };
            match answered.await {
                Ok((headers, body)) => match read(&headers, &body).with_context(|| format!("the answer to {path}"))? {
                    Some(answer) => return Ok(answer),
                    None => patience.wait("its store is away or behind, so its answers are not complete").await?,
                },
                Err(error) if may_pass(&error) => patience.wait(&format!("{error:#}")).await?,
                Err(error) => return Err(explained(error)),
            }
        }
    }
}

impl Sent {
    fn add(&mut self, batch: &Batch, refused: &Refused) {
        const SHOWN_CHARS: usize = 200;
        *self.refused.entry(refused.reason).or_default() += 1;
        self.examples.entry(refused.reason).or_insert_with(|| {
            let mut object = Vec::new();
            batch.append_object(&mut object, &[refused.at]);
            let object: String = String::from_utf8_lossy(&object).chars().take(SHOWN_CHARS).collect();
            format!("{}, such as {object}", refused.detail)
        });
    }
}

/// The ID of the store of a server. Versions before this one have none, and a proxy may not pass the path on.
async fn store_id(queries: &Queries) -> Option<String> {
    let answer = queries.get("/version", &[]).await.ok()?;
    let body = read_at_most(MAX_ANSWER_BYTES, answer).await.ok()?;
    serde_json::from_slice(&body).ok().and_then(|Version { store_id }| store_id)
}

const RIGHTS: &str = "the token (--token-file, or the variable TIDEGAUGE_TOKEN) must be one of the server, with the \
                      scopes ingest and query";

/// Adds to a refusal what the person has to change.
fn explained(error: anyhow::Error) -> anyhow::Error {
    let status = error.downcast_ref::<Refusal>().map(|refusal| refusal.status);
    if matches!(status, Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)) {
        return error.context(RIGHTS);
    }
    error
}

/// Whether a failed query may succeed later.
fn may_pass(error: &anyhow::Error) -> bool {
    let of_connection = error.chain().find_map(|cause| cause.downcast_ref::<reqwest::Error>());
    of_connection.is_some_and(|error| !error.is_builder() && !is_untrusted(error))
}

/// Whether a query asks for too many hours at once.
fn is_too_long(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(Refusal::is_too_long)
}
