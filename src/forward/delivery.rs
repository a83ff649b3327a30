//! The delivery of a batch: until each of its readings is accepted, or refused for good.
//!
//! **A reading on which the other server fails.** A server that answers `500` in the form of this API, a few
//! times in a row, may fail on one of the readings. If it takes a reading then that it has taken before, it
//! fails on these. So they are sent again by device and in halves, the largest parts first, down to one
//! reading, which is refused. A device that fails in [`REFUSALS_IN_A_ROW`] parts is not split any further.
//! A server that fails on everything is away: the readings wait.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::answer::{INTERNAL, Judged, Refused, Verdict};
use super::batch::Batch;
use super::progress::Progress;
use super::requests::{Parts, READINGS_THAT_ARE_LISTED, split};
use super::upstream::{Answer, Body, Trouble, Upstream};
use crate::common::backoff::Backoff;
use crate::common::once_per_change::OncePerChange;
use crate::flush::{DeadLetters, Letter, REFUSALS_IN_A_ROW};
use crate::model::Deletion;
use crate::telemetry::Metrics;
use crate::wire::Code;

/// The waits before retries: the first one to the longest.
const RETRY: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(10);

/// How often a request is sent on which the server fails.
const FAILURES_IN_A_ROW: u32 = 3;

/// Sends batches to the other server.
pub(super) struct Delivery {
    upstream: Upstream,
    dead_letters: DeadLetters,
    metrics: Arc<Metrics>,
    draining: CancellationToken,
    stopped: CancellationToken,
    backoff: Backoff,
    failing: OncePerChange,
    letters_are_lost: OncePerChange,
    /// The size up to which bodies are probably not too large for the other server.
    max_body_bytes: usize,
    /// A reading that the other server has taken.
    taken: Option<Body>,
}

impl Delivery {
    /// After `draining` is cancelled, failed requests are not retried; after `stopped`, nothing is sent.
    pub(super) fn new(
        upstream: Upstream,
        dead_letters: DeadLetters,
        metrics: Arc<Metrics>,
        [draining, stopped]: [CancellationToken; 2],
    ) -> Self {
        Self {
            upstream,
            dead_letters,
            metrics,
            draining,
            stopped,
            backoff: Backoff::new(RETRY),
            failing: OncePerChange::default(),
            letters_are_lost: OncePerChange::default(),
            max_body_bytes: usize::MAX,
            taken: None,
        }
    }

    /// Delivers a batch. Breaks if forwarding is stopped before the end.
    pub(super) async fn deliver(&mut self, batch: &Batch, progress: &mut Progress) -> ControlFlow<()> {
        let mut parts = Parts::from([(0..batch.len()).collect()]);
        let mut failed_in_a_row = 0;
        while let Some(part) = parts.pop_back() {
            let text = batch.body(&part);
            if part.len() > 1 && text.len() > self.max_body_bytes {
                split(&part, part.len().div_ceil(2), &mut parts);
                continue;
            }
            let Answer { verdict, retry_after } = match self.send(&Body::of(&text, part.len()), progress).await? {
                Ok(answer) => answer,
                Err(failure) => {
                    failed_in_a_row += 1;
                    self.narrow(batch, part, failure, failed_in_a_row, &mut parts, progress).await?;
                    continue;
                }
            };
            match verdict {
                Verdict::Judged(judged) => {
                    failed_in_a_row = 0;
                    // One large reading must not make all further requests small.
                    self.max_body_bytes = self.max_body_bytes.saturating_add(self.max_body_bytes / 16);
                    self.take(batch, &part, judged, &mut parts, retry_after, progress).await?;
                }
                Verdict::TooLarge(detail) if part.len() == 1 => {
                    let refused = [Refused { at: 0, reason: Code::RequestTooLarge.as_str(), detail }];
                    self.refuse(batch, &part, &refused).await;
                }
                Verdict::TooLarge(_) => {
                    self.max_body_bytes = text.len() / 2;
                    split(&part, part.len().div_ceil(2), &mut parts);
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Removes the dead letters that a deletion selects.
    pub(super) async fn delete(&self, deletion: &Deletion) {
        if let Err(error) = self.dead_letters.delete(deletion).await {
            tracing::warn!(%error, "cannot remove deleted readings from the dead letters of forwarding");
        }
    }

    /// Takes the verdict on a part of a batch. Adds to `parts` what has to be sent again.
    async fn take(
        &mut self,
        batch: &Batch,
        part: &[usize],
        judged: Judged,
        parts: &mut Parts,
        retry_after: Option<Duration>,
        progress: &mut Progress,
    ) -> ControlFlow<()> {
        let Judged { known, refused, later } = judged;
        let is_taken = |at: &usize| !later.contains(at) && refused.iter().all(|refused| refused.at != *at);
        if let Some(at) = (0..known).find(is_taken) {
            self.taken = Some(Body::of(&batch.body(&[part[at]]), 1));
        }
        self.metrics.forward_readings_total.increment((known - refused.len() - later.len()) as u64);
        self.refuse(batch, part, &refused).await;
        split(&part[known..], READINGS_THAT_ARE_LISTED, parts);
        if later.is_empty() {
            self.backoff.reset();
            return ControlFlow::Continue(());
        }
        self.metrics.forward_errors_total.with("rate_limited").increment(1);
        parts.push_back(later.into_iter().map(|at| part[at]).collect());
        self.wait(retry_after, progress).await
    }

    /// Handles a part on which the server fails: adds what has to be sent again to `parts`, or refuses it.
    async fn narrow(
        &mut self,
        batch: &Batch,
        part: Vec<usize>,
        failure: Trouble,
        failed_in_a_row: u32,
        parts: &mut Parts,
        progress: &mut Progress,
    ) -> ControlFlow<()> {
        let takes_others = self.takes_others(progress).await?;
        let splits_devices = takes_others.is_none() || failed_in_a_row <= REFUSALS_IN_A_ROW;
        match (takes_others, halves(batch, &part, splits_devices)) {
            (None | Some(true), Some(halves)) => halves.into_iter().for_each(|half| parts.push_front(half)),
            (Some(true), None) => {
                let refused = |at| Refused { at, reason: INTERNAL, detail: failure.detail.clone() };
                self.refuse(batch, &part, &(0..part.len()).map(refused).collect::<Vec<_>>()).await;
            }
            (Some(false), _) | (None, None) => {
                parts.push_back(part);
                self.note(&failure);
                self.wait(failure.retry_after, progress).await?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Whether the server takes a reading again that it has taken before; `None` if there is none.
    async fn takes_others(&mut self, progress: &mut Progress) -> ControlFlow<(), Option<bool>> {
        let Some(body) = self.taken.take() else { return ControlFlow::Continue(None) };
        let takes = self.post(&body, progress).await?.is_ok();
        self.taken = Some(body);
        if takes {
            self.backoff.reset();
        }
        ControlFlow::Continue(Some(takes))
    }

    /// Sends a body until there is a verdict. An error: the server has failed on it several times in a row.
    async fn send(&mut self, body: &Body, progress: &mut Progress) -> ControlFlow<(), Result<Answer, Trouble>> {
        let mut failures = 0;
        loop {
            let trouble = match self.post(body, progress).await? {
                Ok(answer) => return ControlFlow::Continue(Ok(answer)),
                Err(trouble) => trouble,
            };
            failures = if trouble.is_failure() { failures + 1 } else { 0 };
            if failures >= FAILURES_IN_A_ROW {
                return ControlFlow::Continue(Err(trouble));
            }
            if failures == 0 {
                self.note(&trouble);
            }
            self.wait(trouble.retry_after, progress).await?;
        }
    }

    /// Sends a body once, within the bandwidth.
    async fn post(&mut self, body: &Body, progress: &mut Progress) -> ControlFlow<(), Result<Answer, Trouble>> {
        while let Err(wait) = self.upstream.charge(body) {
            self.or_stop(progress, tokio::time::sleep(wait)).await?;
        }
        self.metrics.forward_bytes_total.increment(body.size() as u64);
        let answer = self.or_stop(progress, self.upstream.post(body)).await?;
        match &answer {
            Ok(_) if self.failing.ends() => {
                tracing::info!(url = self.upstream.url(), "readings are forwarded again");
            }
            Ok(_) => {}
            Err(trouble) => self.metrics.forward_errors_total.with(trouble.reason).increment(1),
        }
        ControlFlow::Continue(answer)
    }

    /// Logs a trouble that all readings have, once.
    fn note(&mut self, Trouble { reason, detail, .. }: &Trouble) {
        if self.failing.begins() {
            let url = self.upstream.url();
            tracing::warn!(url, reason, detail, "readings cannot be forwarded; they wait in the log");
        }
    }

    /// Waits before a retry. Breaks if there is none.
    async fn wait(&mut self, retry_after: Option<Duration>, progress: &mut Progress) -> ControlFlow<()> {
        // Both waits are random, so that many senders do not send again at the same moment.
        let own = self.backoff.next_wait();
        let wait = retry_after.map_or(own, |told| told.mul_f64(rand::random_range(1.0..1.1)));
        if self.draining.is_cancelled() {
            return ControlFlow::Break(());
        }
        let draining = self.draining.clone();
        let waited = async { tokio::time::timeout(wait, draining.cancelled()).await };
        self.or_stop(progress, waited).await.map_continue(|_| ())
    }

    /// Waits for `work`, and breaks if forwarding is stopped meanwhile. Keeps the metrics up to date.
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

    /// Sets readings aside that the other server refuses for good.
    async fn refuse(&mut self, batch: &Batch, part: &[usize], refused: &[Refused]) {
        let Some(first) = refused.first() else { return };
        for refused in refused {
            self.metrics.forward_refused_total.with(refused.reason).increment(1);
        }
        let (readings, reason, detail) = (refused.len(), first.reason, &first.detail);
        tracing::warn!(readings, reason, detail, "readings are refused where they are forwarded to");
        let alike =
            |one: &Refused, next: &Refused| one.reason == next.reason && batch.share_owner(part[one.at], part[next.at]);
        let letter = |alike: &[Refused]| {
            let mut object = Vec::new();
            let numbers: Vec<usize> = alike.iter().map(|refused| part[refused.at]).collect();
            batch.append_object(&mut object, &numbers);
            Letter { reason: alike[0].reason, detail: alike[0].detail.clone(), object }
        };
        let letters = refused.chunk_by(alike).map(letter).collect();
        match self.dead_letters.append_letters(letters).await {
            Ok(()) => _ = self.letters_are_lost.ends(),
            Err(error) if self.letters_are_lost.begins() => {
                tracing::warn!(%error, "refused readings are in the store, but not in the dead letters of forwarding");
            }
            Err(_) => {}
        }
    }
}

/// Two parts of some readings: of several devices those of whole devices, of one device its halves if
/// `splits_devices`. `None`: there are none.
fn halves(batch: &Batch, part: &[usize], splits_devices: bool) -> Option<[Vec<usize>; 2]> {
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
        middle
    };
    let is_between_devices = start > 0 || end < part.len();
    (at > 0 && (is_between_devices || splits_devices)).then(|| [by_device[..at].to_vec(), by_device[at..].to_vec()])
}
