//! Narrows down what a store refuses for good, so that only the part to blame goes to the dead-letter file.
//!
//! A refused bucket is written again without its metadata. When that is refused too, its readings are written
//! in halves, quarters and so on, the largest parts first, until a part of one instant is refused. The search
//! of a bucket ends after [`REFUSALS_IN_A_ROW`], or else a store that refuses everything of many devices
//! would be asked for each reading: what was not narrowed down by then is put aside as it is. One bad reading
//! in a bucket is always found.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use super::Pipeline;
use super::store_state::{note_away, note_back};
use super::write::{Letter, attempt, count_written, put_aside};
use crate::common::backoff::Backoff;
use crate::model::BucketWrite;
use crate::store::WriteError;

/// How many parts of a bucket the store may refuse without taking one in between: halves, quarters and
/// eighths.
const REFUSALS_IN_A_ROW: u32 = 2 + 4 + 8;

/// The longest detail of a refusal in a log line, in characters; the dead-letter file has all of it.
const SHOWN_MAX_CHARS: usize = 200;

/// How many devices are remembered with the metadata that was refused last.
const REMEMBERED_DEVICES: usize = 10_000;

/// A bucket that the store refused for good.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) write: Arc<BucketWrite>,
    pub(super) error: WriteError,
}

/// Stores what the store takes of these buckets, and puts the rest aside. Returns the buckets that are done;
/// the others wait until the dead-letter file has room.
pub(super) async fn narrow(pipeline: &Arc<Pipeline>, refused: Vec<Refused>) -> Vec<Arc<BucketWrite>> {
    let mut searches: Vec<Search> = refused.into_iter().map(Search::new).collect();
    let mut backoff = Backoff::new(pipeline.options.retry.clone());
    loop {
        let parts = searches.iter().map(|search| search.next.front().cloned());
        let (at, parts): (Vec<usize>, Vec<_>) = parts.enumerate().filter_map(|(at, part)| Some((at, part?))).unzip();
        if parts.is_empty() {
            break;
        }
        let outcomes = attempt(pipeline, &parts).await;
        let is_there = outcomes.iter().any(|outcome| outcome.as_ref().err().is_none_or(WriteError::is_permanent));
        let mut transient = None;
        for (at, outcome) in at.into_iter().zip(outcomes) {
            match outcome {
                Ok(written) => {
                    if searches[at].taken() {
                        count_written(pipeline, written);
                    }
                }
                Err(error) if error.is_permanent() => searches[at].refuse(error),
                Err(error) => {
                    pipeline.metrics.flush_retries_total.with(error.cause.as_label()).increment(1);
                    transient = Some(error);
                }
            }
        }
        match transient {
            Some(error) if !is_there => {
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
    searches.iter().filter(|search| search.metadata_is_refused).for_each(|search| note_metadata(pipeline, search));
    let mut done = Vec::new();
    let mut letters = Vec::new();
    for Search { write, refused, error, .. } in searches {
        match BucketWrite::join(refused) {
            None => done.push(write),
            Some(refused) => letters.push(Letter { bucket: write, refused: refused.into(), error }),
        }
    }
    tell(&letters);
    for letter in letters {
        done.extend(put_aside(pipeline, letter).await);
    }
    done
}

/// One line for all buckets of a write.
fn tell(letters: &[Letter]) {
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
        "the store refuses readings of buckets for good, this one among them; see tidegauge dead-letters"
    );
}

/// The label and the shortened detail of an error, for a log line.
fn shown(error: &WriteError) -> (&'static str, String) {
    (error.cause.as_label(), error.detail.chars().take(SHOWN_MAX_CHARS).collect())
}

/// The search in one bucket.
struct Search {
    /// The bucket as it was refused.
    write: Arc<BucketWrite>,
    /// The parts that are to be written, the next one first.
    next: VecDeque<Arc<BucketWrite>>,
    /// The parts that are refused for good.
    refused: Vec<BucketWrite>,
    /// The part that was taken last, without the metadata.
    taken: Option<Arc<BucketWrite>>,
    /// What the store said last.
    error: WriteError,
    refusals_in_a_row: u32,
    stage: Stage,
    metadata_is_refused: bool,
}

/// What is being found out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Whether the bucket is taken without its metadata.
    WithoutMetadata,
    /// Which readings are taken, without the metadata.
    Readings,
    /// Whether the metadata is taken with readings that were taken.
    Metadata,
}

impl Search {
    fn new(Refused { write, error }: Refused) -> Self {
        let mut search = Self {
            next: VecDeque::new(),
            refused: Vec::new(),
            taken: None,
            error,
            refusals_in_a_row: 0,
            stage: if write.metadata.is_some() { Stage::WithoutMetadata } else { Stage::Readings },
            metadata_is_refused: false,
            write,
        };
        let whole = (*search.write).clone().with_metadata(None);
        match search.stage {
            Stage::WithoutMetadata => search.next.push_back(whole.into()),
            _ => search.cut(whole),
        }
        search
    }

    /// The store has taken the next part. Returns whether its readings count as written.
    fn taken(&mut self) -> bool {
        let part = self.next.pop_front().expect("the part that was taken");
        self.refusals_in_a_row = 0;
        match self.stage {
            Stage::WithoutMetadata => self.metadata_is_refused = true,
            Stage::Metadata => return false, // they counted when they were taken without it
            Stage::Readings => self.taken = Some(part),
        }
        self.go_on();
        true
    }

    /// The store has refused the next part for good.
    fn refuse(&mut self, error: WriteError) {
        let part = self.next.pop_front().expect("the part that was refused");
        if self.stage == Stage::Metadata {
            self.metadata_is_refused = true;
            return;
        }
        self.error = error;
        self.stage = Stage::Readings;
        self.refusals_in_a_row += 1;
        self.cut(Arc::unwrap_or_clone(part));
        if self.refusals_in_a_row > REFUSALS_IN_A_ROW {
            self.refused.extend(self.next.drain(..).map(Arc::unwrap_or_clone));
        }
        self.go_on();
    }

    /// Behind the last of the readings, has some that were taken written with the metadata.
    fn go_on(&mut self) {
        if self.stage != Stage::Readings || !self.next.is_empty() || self.write.metadata.is_none() {
            return;
        }
        if let Some(part) = self.taken.take() {
            self.stage = Stage::Metadata;
            let metadata = self.write.metadata.clone();
            self.next.push_back(Arc::unwrap_or_clone(part).with_metadata(metadata).into());
        }
    }

    /// Has the halves of a part written, unless it has none.
    fn cut(&mut self, part: BucketWrite) {
        match part.halves() {
            Some(halves) => self.next.extend(halves.map(Arc::new)),
            None => self.refused.push(part),
        }
    }
}

/// The metadata that was refused last, by device.
#[derive(Debug, Default)]
pub(super) struct RefusedMetadata(Mutex<HashMap<Arc<str>, Arc<str>>>);

impl RefusedMetadata {
    /// Whether this metadata of the device was not refused just before.
    fn is_news(&self, device: &Arc<str>, metadata: &Arc<str>) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= REMEMBERED_DEVICES {
            last.clear();
        }
        last.insert(Arc::clone(device), Arc::clone(metadata)).as_ref() != Some(metadata)
    }
}

/// Counts and logs refused metadata, once for each change.
fn note_metadata(pipeline: &Pipeline, search: &Search) {
    let (device, Some(metadata)) = (&search.write.device, &search.write.metadata) else { return };
    if pipeline.refused_metadata.is_news(device, metadata) {
        pipeline.metrics.metadata_refused_total.increment(1);
        let device = &**device;
        let (reason, detail) = shown(&search.error);
        tracing::warn!(
            device,
            reason,
            detail,
            "the store refuses the metadata of a device for good; its readings are stored without it"
        );
    }
}
