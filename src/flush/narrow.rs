//! Finds the readings that a store refuses for good, by bisection. Only those are dead-lettered.
//!
//! A refused bucket is written again without its metadata. If the store refuses that too, the readings are
//! written in halves, quarters and so on, the largest parts first, down to parts of one instant. The
//! bisection of a bucket ends after [`REFUSALS_IN_A_ROW`], or a store that refuses everything of many
//! devices would get a write per reading; the parts that remain are dead-lettered as they are. A single bad
//! reading in a bucket is always found.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use super::Pipeline;
use super::store_state::{note_away, note_back};
use super::write::{Letter, attempt, count_written, dead_letter};
use crate::common::backoff::Backoff;
use crate::model::BucketWrite;
use crate::store::WriteError;

/// How many parts may be refused in a row before no part is split any further: all halves, quarters and
/// eighths of the readings.
pub const REFUSALS_IN_A_ROW: u32 = 2 + 4 + 8;

/// The longest detail of a refusal in a log line, in characters. The dead-letter file has the whole detail.
const SHOWN_MAX_CHARS: usize = 200;

/// The number of devices whose last refused metadata is remembered.
const REMEMBERED_DEVICES: usize = 10_000;

/// A bucket that the store refused for good.
#[derive(Debug)]
pub(super) struct RefusedWrite {
    pub(super) write: Arc<BucketWrite>,
    pub(super) error: WriteError,
}

/// Stores the readings that the store accepts, and dead-letters the others.
///
/// Returns the buckets that are done. The others wait until the dead-letter file has space.
pub(super) async fn narrow(pipeline: &Arc<Pipeline>, refused: Vec<RefusedWrite>) -> Vec<Arc<BucketWrite>> {
    let mut bisections: Vec<Bisection> = refused.into_iter().map(Bisection::new).collect();
    let mut backoff = Backoff::new(pipeline.options.retry.clone());
    loop {
        let parts = bisections.iter().map(|bisection| bisection.next.front().cloned());
        let (at, parts): (Vec<usize>, Vec<_>) = parts.enumerate().filter_map(|(at, part)| Some((at, part?))).unzip();
        if parts.is_empty() {
            break;
        }
        let outcomes = attempt(pipeline, &parts).await;
        let is_available = outcomes.iter().any(|outcome| outcome.as_ref().err().is_none_or(WriteError::is_permanent));
        let mut transient = None;
        for (at, outcome) in at.into_iter().zip(outcomes) {
            match outcome {
                Ok(written) => {
                    if bisections[at].accept() {
                        count_written(pipeline, written);
                    }
                }
                Err(error) if error.is_permanent() => bisections[at].refuse(error),
                Err(error) => {
                    pipeline.metrics.flush_retries_total.with(error.cause.as_label()).increment(1);
                    transient = Some(error);
                }
            }
        }
        match transient {
            Some(error) if !is_available => {
                note_away(pipeline, &error);
                tokio::time::sleep(backoff.next_wait()).await;
            }
            Some(_) => tokio::time::sleep(backoff.next_wait()).await,
            None => {
                note_back(pipeline);
                backoff.reset();
            }
        }
    }
    bisections
        .iter()
        .filter(|bisection| bisection.metadata_is_refused)
        .for_each(|bisection| note_metadata(pipeline, bisection));
    let mut done = Vec::new();
    let mut letters = Vec::new();
    for Bisection { write, refused, error, .. } in bisections {
        match BucketWrite::join(refused) {
            None => done.push(write),
            Some(refused) => letters.push(Letter { bucket: write, refused: refused.into(), error }),
        }
    }
    log_refusals(&letters);
    for letter in letters {
        done.extend(dead_letter(pipeline, letter).await);
    }
    done
}

/// Logs one line for all buckets of a write.
fn log_refusals(letters: &[Letter]) {
    let Some(Letter { refused, error, .. }) = letters.first() else { return };
    let (reason, detail) = shown(error);
    let hour = jiff::Timestamp::from_millisecond(refused.hour.start_ms());
    let hour = hour.map_or_else(|_| refused.hour.0.to_string(), |hour| hour.to_string());
    let (device, buckets) = (&*refused.device, letters.len());
    tracing::error!(
        buckets,
        device,
        hour,
        reason,
        detail,
        "the store refused readings for good, such as those of this device; list them with tidegauge dead-letters"
    );
}

/// The label and the shortened detail of an error, for a log line.
fn shown(error: &WriteError) -> (&'static str, String) {
    (error.cause.as_label(), shortened(&error.detail))
}

/// The first words of a text. Dots say that there are more.
fn shortened(text: &str) -> String {
    let Some((end, _)) = text.char_indices().nth(SHOWN_MAX_CHARS) else { return text.to_owned() };
    let kept = text[..end].rsplit_once(' ').map_or(&text[..end], |(words, _)| words);
    format!("{kept} ...")
}

/// The bisection of one bucket.
struct Bisection {
    /// The bucket that was refused.
    write: Arc<BucketWrite>,
    /// The parts to write, the next one first.
    next: VecDeque<Arc<BucketWrite>>,
    /// The parts that were refused and cannot be split.
    refused: Vec<BucketWrite>,
    /// The last part that was accepted, without the metadata.
    accepted: Option<Arc<BucketWrite>>,
    /// The last refusal.
    error: WriteError,
    refusals_in_a_row: u32,
    stage: Stage,
    metadata_is_refused: bool,
}

/// The question that the next write answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Does the store accept the bucket without its metadata?
    WithoutMetadata,
    /// Which readings does the store accept, without the metadata?
    Readings,
    /// Does the store accept the metadata, with readings that it has accepted?
    Metadata,
}

impl Bisection {
    fn new(RefusedWrite { write, error }: RefusedWrite) -> Self {
        let mut bisection = Self {
            next: VecDeque::new(),
            refused: Vec::new(),
            accepted: None,
            error,
            refusals_in_a_row: 0,
            stage: if write.metadata.is_some() { Stage::WithoutMetadata } else { Stage::Readings },
            metadata_is_refused: false,
            write,
        };
        let whole = (*bisection.write).clone().with_metadata(None);
        match bisection.stage {
            Stage::WithoutMetadata => bisection.next.push_back(whole.into()),
            _ => bisection.split(whole),
        }
        bisection
    }

    /// Handles the acceptance of the next part. Returns whether its readings count as written.
    fn accept(&mut self) -> bool {
        let part = self.next.pop_front().expect("the part that was accepted");
        self.refusals_in_a_row = 0;
        match self.stage {
            Stage::WithoutMetadata => self.metadata_is_refused = true,
            Stage::Metadata => return false, // they were counted when they were accepted without it
            Stage::Readings => self.accepted = Some(part),
        }
        self.then_metadata();
        true
    }

    /// Handles the refusal of the next part for good.
    fn refuse(&mut self, error: WriteError) {
        let part = self.next.pop_front().expect("the part that was refused");
        if self.stage == Stage::Metadata {
            self.metadata_is_refused = true;
            return;
        }
        self.error = error;
        self.stage = Stage::Readings;
        self.refusals_in_a_row += 1;
        self.split(Arc::unwrap_or_clone(part));
        if self.refusals_in_a_row > REFUSALS_IN_A_ROW {
            self.refused.extend(self.next.drain(..).map(Arc::unwrap_or_clone));
        }
        self.then_metadata();
    }

    /// After the last of the readings, queues an accepted part again, with the metadata.
    fn then_metadata(&mut self) {
        if self.stage != Stage::Readings || !self.next.is_empty() || self.write.metadata.is_none() {
            return;
        }
        if let Some(part) = self.accepted.take() {
            self.stage = Stage::Metadata;
            let metadata = self.write.metadata.clone();
            self.next.push_back(Arc::unwrap_or_clone(part).with_metadata(metadata).into());
        }
    }

    /// Queues the halves of a part. A part of one instant has none: it is refused.
    fn split(&mut self, part: BucketWrite) {
        match part.halves() {
            Some(halves) => self.next.extend(halves.map(Arc::new)),
            None => self.refused.push(part),
        }
    }
}

/// The last refused metadata of each device.
#[derive(Debug, Default)]
pub(super) struct RefusedMetadata(Mutex<HashMap<Arc<str>, Arc<str>>>);

impl RefusedMetadata {
    /// Remembers refused metadata. Returns whether it differs from the last one of the device.
    fn is_new(&self, device: &Arc<str>, metadata: &Arc<str>) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= REMEMBERED_DEVICES {
            last.clear();
        }
        last.insert(Arc::clone(device), Arc::clone(metadata)).as_ref() != Some(metadata)
    }
}

/// Counts and logs refused metadata, once for each change.
fn note_metadata(pipeline: &Pipeline, bisection: &Bisection) {
    let (device, Some(metadata)) = (&bisection.write.device, &bisection.write.metadata) else { return };
    if pipeline.refused_metadata.is_new(device, metadata) {
        pipeline.metrics.metadata_refused_total.increment(1);
        let device = &**device;
        let (reason, detail) = shown(&bisection.error);
        tracing::warn!(
            device,
            reason,
            detail,
            "the store refused the metadata of a device for good; its readings are stored without it"
        );
    }
}
