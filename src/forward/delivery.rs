//! Delivers a batch: sends its readings until each one is accepted or refused.
//!
//! **If the other server fails on a reading.** A tidegauge that answers `500` several times in a row to the
//! same request may fail on one of its readings. To find this reading, the request is divided: first between
//! devices, then the readings of one device into halves, down to one reading. The first half is delivered
//! before the second half is sent, so the readings of a device keep their order.
//!
//! After each failed part the server is tested: it gets once more the last reading that it has accepted. If
//! the server fails on that reading too, it fails on everything, and the part waits. If it accepts that
//! reading, the failed part is divided, and a part of a single reading counts as refused. Before the server
//! has accepted any reading, failed parts are divided without a test; a part of a single reading is refused
//! when the server accepts another reading of the batch. After [`MAX_FAILED_PARTS`] failed parts of one
//! device, further failed parts of this device are refused as a whole, like single readings.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::batch::Batch;
use super::progress::Progress;
use super::requests::{Outcome, Request, Requests};
use super::verdict::{self, Answer, Refused};
use crate::client::{Body, Client, METADATA, Trouble};
use crate::common::backoff::Backoff;
use crate::common::once_per_change::OncePerChange;
use crate::flush::{DeadLetters, Letter, READINGS_PER_LINE};
use crate::log::MetadataRecord;
use crate::model::Deletion;
use crate::telemetry::Metrics;

/// How many failures in a row show that the server fails on a request.
const FAILURES_IN_A_ROW: u32 = 3;

/// The most failed parts of one device in a batch that are divided.
///
/// They are enough to find two readings among 50,000, or four among 256.
const MAX_FAILED_PARTS: u32 = 32;

/// Delivers batches, and changes of metadata, to the other server.
pub(super) struct Delivery {
    client: Client,
    dead_letters: DeadLetters,
    metrics: Arc<Metrics>,
    draining: CancellationToken,
    stopped: CancellationToken,
    pub(super) backoff: Backoff,
    failing: OncePerChange,
    letters_are_lost: OncePerChange,
    requests: Requests,
    /// The last reading that the other server has accepted, as a body.
    ///
    /// It is sent again to test the server, which changes nothing there.
    taken: Option<Body>,
    /// The number of the reading that [`Self::takes_another`] tried last.
    next_tried: usize,
}

/// The last device with a failed part, and the number of its failed parts.
#[derive(Default)]
struct FailedParts {
    device: Vec<u8>,
    count: u32,
}

impl Delivery {
    /// Makes a delivery that two tokens can stop.
    ///
    /// When `draining` is cancelled, failed requests are no longer retried. When `stopped` is cancelled,
    /// nothing more is sent.
    pub(super) fn new(
        client: Client,
        dead_letters: DeadLetters,
        metrics: Arc<Metrics>,
        [draining, stopped]: [CancellationToken; 2],
    ) -> Self {
        Self {
            client,
            dead_letters,
            metrics,
            draining,
            stopped,
            backoff: Backoff::default(),
            failing: OncePerChange::default(),
            letters_are_lost: OncePerChange::default(),
            requests: Requests::default(),
            taken: None,
            next_tried: 0,
        }
    }

    /// Delivers a batch. Breaks if forwarding stops before the end of the batch.
    pub(super) async fn deliver(&mut self, batch: &Batch, progress: &mut Progress) -> ControlFlow<()> {
        let mut failed = FailedParts::default();
        self.requests.begin(batch);
        while let Some(request) = self.requests.next(batch) {
            let answer = match self.send(&request.body, progress, verdict::send, |_| false).await? {
                Ok(answer) => answer,
                Err(failure) => {
                    self.narrow(batch, request.readings, failure, &mut failed, progress).await?;
                    continue;
                }
            };
            self.take(batch, request, answer, progress).await?;
        }
        ControlFlow::Continue(())
    }

    /// Removes the dead letters of readings that a deletion selects, and repeats it until that succeeds.
    pub(super) async fn delete(&mut self, deletion: &Deletion, progress: &mut Progress) -> ControlFlow<()> {
        while let Err(error) = self.dead_letters.delete(deletion).await {
            tracing::error!(%error, "cannot remove deleted readings from the dead letters of forwarding");
            self.wait(None, progress).await?;
        }
        self.backoff.reset();
        ControlFlow::Continue(())
    }

    /// Sends an operator's change of metadata until the other server has it.
    ///
    /// If the server refuses the change for good, it is only logged and counted, so that readings do not
    /// wait.
    pub(super) async fn set_metadata(
        &mut self,
        MetadataRecord { device, change, .. }: &MetadataRecord,
        progress: &mut Progress,
    ) -> ControlFlow<()> {
        let line = json!({ "deviceId": device, "change": change }).to_string();
        let body = Body::of(line.as_bytes(), Some(1));
        let post = async |client: &Client, body: &Body| client.post(METADATA, body).await;
        if let Err(trouble) = self.send(&body, progress, post, Trouble::is_refusal).await? {
            self.metrics.forward_metadata_refused_total.increment(1);
            let (url, detail) = (self.client.url(), trouble.detail());
            tracing::warn!(
                url,
                device = &**device,
                detail,
                line,
                "metadata is refused where it is forwarded to: remove the reason, then send what GET /v1/metadata \
                 lists here to POST /v1/metadata there"
            );
        }
        ControlFlow::Continue(())
    }

    /// Handles the answer to a request. Waits if a rate limit refused readings.
    async fn take(
        &mut self,
        batch: &Batch,
        request: Request,
        answer: Answer,
        progress: &mut Progress,
    ) -> ControlFlow<()> {
        let retry_after = answer.retry_after;
        let Outcome { accepted, last_accepted, refused, is_limited } = self.requests.take(batch, request, answer);
        if let Some(last) = last_accepted {
            self.taken = Some(Body::of(&batch.body(&[last]), Some(1)));
        }
        self.metrics.forward_readings_total.increment(accepted as u64);
        self.refuse(batch, &refused).await;
        if !is_limited {
            self.backoff.reset();
            return ControlFlow::Continue(());
        }
        self.metrics.forward_errors_total.with("rate_limited").increment(1);
        self.wait(retry_after, progress).await
    }

    /// Handles a part on which the server fails: divides, refuses or repeats it.
    async fn narrow(
        &mut self,
        batch: &Batch,
        part: Vec<usize>,
        failure: Trouble,
        failed: &mut FailedParts,
        progress: &mut Progress,
    ) -> ControlFlow<()> {
        let takes_others = self.takes_others(progress).await?;
        if takes_others != Some(false)
            && let Some(halves) = halves(batch, &part, failed)
        {
            self.requests.send_next(halves.iter().map(Vec::as_slice));
            return ControlFlow::Continue(());
        }
        if takes_others == Some(true) || (takes_others.is_none() && self.takes_another(batch, &part, progress).await?) {
            let refused = |at| Refused { at, reason: Trouble::INTERNAL, detail: failure.detail() };
            self.refuse(batch, &part.into_iter().map(refused).collect::<Vec<_>>()).await;
            return ControlFlow::Continue(());
        }
        self.requests.send_next(std::iter::once(&*part));
        self.note(&failure);
        self.wait(failure.retry_after, progress).await
    }

    /// Whether the server accepts the last accepted reading again; `None` without one.
    async fn takes_others(&mut self, progress: &mut Progress) -> ControlFlow<(), Option<bool>> {
        let Some(body) = self.taken.take() else { return ControlFlow::Continue(None) };
        let takes = self.post(&body, progress, verdict::send).await?.is_ok();
        self.taken = Some(body);
        if takes {
            self.backoff.reset();
        }
        ControlFlow::Continue(Some(takes))
    }

    /// Whether the server accepts some reading of the batch that is not in `part`.
    ///
    /// Each call tries another reading. The tried reading does not count as sent: it is sent again in its
    /// turn.
    async fn takes_another(&mut self, batch: &Batch, part: &[usize], progress: &mut Progress) -> ControlFlow<(), bool> {
        self.next_tried = (self.next_tried + 1) % batch.len();
        if part.contains(&self.next_tried) {
            return ControlFlow::Continue(false);
        }
        let body = Body::of(&batch.body(&[self.next_tried]), Some(1));
        let takes = self.post(&body, progress, verdict::send).await?.is_ok();
        if takes {
            self.taken = Some(body);
        }
        ControlFlow::Continue(takes)
    }

    /// Sends a body with `send`, and retries until the server answers with a verdict.
    ///
    /// The result is an error if the server fails on the body several times in a row, or if `is_final` says
    /// that a retry cannot help.
    async fn send<T>(
        &mut self,
        body: &Body,
        progress: &mut Progress,
        send: impl AsyncFn(&Client, &Body) -> Result<T, Trouble>,
        is_final: impl Fn(&Trouble) -> bool,
    ) -> ControlFlow<(), Result<T, Trouble>> {
        let mut failures = 0;
        loop {
            let trouble = match self.post(body, progress, &send).await? {
                Ok(answer) => return ControlFlow::Continue(Ok(answer)),
                Err(trouble) => trouble,
            };
            failures = if trouble.is_internal_error() { failures + 1 } else { 0 };
            if is_final(&trouble) || failures >= FAILURES_IN_A_ROW {
                return ControlFlow::Continue(Err(trouble));
            }
            if failures == 0 {
                self.note(&trouble);
            }
            self.wait(trouble.retry_after, progress).await?;
        }
    }

    /// Sends a body with `send` once, as soon as the bandwidth limit allows it.
    async fn post<T>(
        &mut self,
        body: &Body,
        progress: &mut Progress,
        send: impl AsyncFn(&Client, &Body) -> Result<T, Trouble>,
    ) -> ControlFlow<(), Result<T, Trouble>> {
        while let Err(wait) = self.client.charge(body) {
            self.or_stop(progress, tokio::time::sleep(wait)).await?;
        }
        self.metrics.forward_bytes_total.increment(body.size() as u64);
        let answer = self.or_stop(progress, send(&self.client, body)).await?;
        match &answer {
            Ok(_) if self.failing.ends() => {
                tracing::info!(url = self.client.url(), "readings are forwarded again");
            }
            Ok(_) => {}
            Err(trouble) => self.metrics.forward_errors_total.with(trouble.reason).increment(1),
        }
        ControlFlow::Continue(answer)
    }

    /// Logs why readings cannot be forwarded, unless this is already logged.
    fn note(&mut self, trouble: &Trouble) {
        if self.failing.begins() {
            let (url, reason, detail) = (self.client.url(), trouble.reason, trouble.detail());
            tracing::warn!(url, reason, detail, "readings cannot be forwarded; they wait in the log");
        }
    }

    /// Waits before a retry. Breaks if failed requests are no longer retried.
    async fn wait(&mut self, retry_after: Option<Duration>, progress: &mut Progress) -> ControlFlow<()> {
        let wait = self.backoff.next_wait_or(retry_after);
        if self.draining.is_cancelled() {
            return ControlFlow::Break(());
        }
        let draining = self.draining.clone();
        let waited = async { tokio::time::timeout(wait, draining.cancelled()).await };
        self.or_stop(progress, waited).await.map_continue(|_| ())
    }

    /// Waits until forwarding drains or stops, and keeps the metrics up to date.
    pub(super) async fn wait_for_drain(&self, progress: &mut Progress) {
        let _ = self.or_stop(progress, self.draining.cancelled()).await;
    }

    /// Waits for `work`, and keeps the metrics up to date. Breaks if forwarding stops.
    pub(super) async fn or_stop<T>(
        &self,
        progress: &mut Progress,
        work: impl Future<Output = T>,
    ) -> ControlFlow<(), T> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return ControlFlow::Continue(done),
                () = self.stopped.cancelled() => return ControlFlow::Break(()),
                () = progress.tick() => {}
            }
        }
    }

    /// Writes readings that the other server refuses for good to the dead-letter file.
    async fn refuse(&mut self, batch: &Batch, refused: &[Refused]) {
        let Some(first) = refused.first() else { return };
        for refused in refused {
            self.metrics.forward_refused_total.with(refused.reason).increment(1);
        }
        let (readings, reason, detail) = (refused.len(), first.reason, &first.detail);
        tracing::warn!(readings, reason, detail, "readings are refused where they are forwarded to");
        let alike = |one: &Refused, next: &Refused| one.reason == next.reason && batch.share_owner(one.at, next.at);
        let letter = |alike: &[Refused]| {
            let mut object = Vec::new();
            let numbers: Vec<usize> = alike.iter().map(|refused| refused.at).collect();
            batch.append_object(&mut object, &numbers);
            Letter { reason: alike[0].reason, detail: alike[0].detail.clone(), object }
        };
        let letters = refused.chunk_by(alike).flat_map(|alike| alike.chunks(READINGS_PER_LINE)).map(letter).collect();
        match self.dead_letters.append_letters(letters).await {
            Ok(()) => _ = self.letters_are_lost.ends(),
            Err(error) if self.letters_are_lost.begins() => {
                tracing::warn!(%error, "refused readings are in the store, but not in the dead letters of forwarding");
            }
            Err(_) => {}
        }
    }
}

/// Divides readings into two parts. `None`: they cannot or must not be divided.
///
/// Readings of several devices are divided between two devices. Readings of one device are halved, unless too
/// many parts of this device have failed.
fn halves(batch: &Batch, part: &[usize], failed: &mut FailedParts) -> Option<[Vec<usize>; 2]> {
    let mut by_device = part.to_vec();
    by_device.sort_by_key(|&reading| batch.device(reading)); // those of one device stay in their order
    let middle = part.len() / 2;
    let device = batch.device(*by_device.get(middle)?);
    let start = by_device.partition_point(|&reading| batch.device(reading) < device);
    let end = by_device.partition_point(|&reading| batch.device(reading) <= device);
    let at = if start > 0 {
        start
    } else if end < part.len() {
        end
    } else {
        if failed.device != device {
            *failed = FailedParts { device: device.to_vec(), count: 0 };
        }
        failed.count += 1;
        if failed.count > MAX_FAILED_PARTS { 0 } else { middle }
    };
    (at > 0).then(|| [by_device[..at].to_vec(), by_device[at..].to_vec()])
}
