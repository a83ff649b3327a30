//! The delivery of a batch: until each of its readings is accepted, or refused for good.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::answer::{Judged, Refused, Verdict};
use super::batch::Batch;
use super::progress::Progress;
use super::upstream::{Answer, Body, Trouble, Upstream};
use crate::common::backoff::Backoff;
use crate::common::once_per_change::OncePerChange;
use crate::flush::{DeadLetters, Letter};
use crate::model::Deletion;
use crate::telemetry::Metrics;
use crate::wire::Code;

/// The waits before retries: the first one to the longest.
const RETRY: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(10);

/// The readings of a request whose answer certainly lists each of them that is refused.
const READINGS_THAT_ARE_LISTED: usize = 100;

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
        }
    }

    /// Delivers a batch. Breaks if forwarding is stopped before the end.
    pub(super) async fn deliver(&mut self, batch: &Batch, progress: &mut Progress) -> ControlFlow<()> {
        let mut parts: Vec<Vec<usize>> = vec![(0..batch.len()).collect()]; // the next one is the last
        while let Some(part) = parts.pop() {
            let text = batch.body(&part);
            if part.len() > 1 && text.len() > self.max_body_bytes {
                split(&part, part.len().div_ceil(2), &mut parts);
                continue;
            }
            let body = Body::of(&text, part.len()).expect("a body in memory is compressed");
            let (verdict, retry_after) = self.send(&body, progress).await?;
            match verdict {
                Verdict::Judged(judged) => {
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
        parts: &mut Vec<Vec<usize>>,
        retry_after: Option<Duration>,
        progress: &mut Progress,
    ) -> ControlFlow<()> {
        let Judged { known, refused, later } = judged;
        self.metrics.forward_readings_total.increment((known - refused.len() - later.len()) as u64);
        self.refuse(batch, part, &refused).await;
        split(&part[known..], READINGS_THAT_ARE_LISTED, parts);
        if later.is_empty() {
            self.backoff.reset();
            return ControlFlow::Continue(());
        }
        self.metrics.forward_errors_total.with("rate_limited").increment(1);
        parts.push(later.into_iter().map(|at| part[at]).collect());
        self.wait(retry_after, progress).await
    }

    /// Sends a body until there is a verdict.
    async fn send(&mut self, body: &Body, progress: &mut Progress) -> ControlFlow<(), Answer> {
        loop {
            while let Err(wait) = self.upstream.charge(body) {
                self.or_stop(progress, tokio::time::sleep(wait)).await?;
            }
            let attempt = self.upstream.post(body);
            match self.or_stop(progress, attempt).await? {
                Ok(answer) => {
                    if self.failing.ends() {
                        tracing::info!(url = self.upstream.url(), "readings are forwarded again");
                    }
                    return ControlFlow::Continue(answer);
                }
                Err(Trouble { reason, detail, retry_after }) => {
                    self.metrics.forward_errors_total.with(reason).increment(1);
                    if self.failing.begins() {
                        let url = self.upstream.url();
                        tracing::warn!(url, reason, detail, "readings cannot be forwarded; they wait in the log");
                    }
                    self.wait(retry_after, progress).await?;
                }
            }
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

/// Adds pieces of this many readings to `parts`, the first one last.
fn split(readings: &[usize], size: usize, parts: &mut Vec<Vec<usize>>) {
    parts.extend(readings.chunks(size.max(1)).rev().map(<[usize]>::to_vec));
}
