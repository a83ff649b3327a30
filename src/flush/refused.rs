//! Refused readings, which are dead-lettered, and refused metadata.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use super::Pipeline;
use super::attempts::Attempts;
use super::bisection::BucketOutcome;
use super::hour_text;
use super::write::complete;
use crate::model::{BucketWrite, Contents, Deletion, Hour, Sample, SeriesFilter};
use crate::pending::HourErasure;
use crate::store::{FirstReadings, ReadingsQuery, StoreError};

/// The longest detail of a refusal in a log line, in characters.
///
/// The dead-letter file has the whole detail.
const SHOWN_MAX_CHARS: usize = 200;

/// The number of stored values that are compared with refused ones at once.
const VALUES_PER_LOOK: usize = 1 << 16;

/// The number of devices whose last refused metadata is remembered.
const REMEMBERED_DEVICES: usize = 10_000;

/// The letters of parked buckets, by device and hour: they wait until the dead-letter file or its disk has
/// space.
///
/// Locked while a waiting letter is appended, so that a deletion finds each of them here or in the file.
pub(super) type WaitingLetters = tokio::sync::Mutex<BTreeMap<(Arc<str>, Hour), Letter>>;

/// Readings for the dead-letter file.
pub(super) struct Letter {
    /// The bucket of these readings. Only its device and its hour count.
    bucket: Arc<BucketWrite>,
    /// The refused readings.
    refused: Arc<BucketWrite>,
    /// The stored values that the refused readings were to replace.
    replaced: Arc<Contents>,
    /// Why the store refuses the readings.
    error: StoreError,
}

/// Writes the refused readings of buckets to the dead-letter file.
///
/// Returns the buckets that are done.
///
/// If the file is full, retries in the background; the buckets with refused readings stay pending meanwhile.
pub(super) async fn dead_letter(pipeline: &Arc<Pipeline>, outcomes: Vec<BucketOutcome>) -> Vec<Arc<BucketWrite>> {
    let (mut done, mut letters) = (Vec::new(), Vec::new());
    for BucketOutcome { write: bucket, refused, .. } in outcomes {
        let Some((refused, error)) = refused else {
            done.push(bucket);
            continue;
        };
        let replaced = replaced_by(pipeline, &refused, &error).await.into();
        letters.push(Letter { bucket, refused: refused.into(), replaced, error });
    }
    log_refusals(&letters);
    for letter in letters {
        match append(pipeline, &letter).await {
            Ok(()) => done.push(letter.bucket),
            Err(error) => {
                tracing::error!(%error, "cannot dead-letter refused readings; they stay pending");
                park(pipeline, letter).await;
            }
        }
    }
    done
}

async fn append(pipeline: &Pipeline, Letter { refused, replaced, error, .. }: &Letter) -> std::io::Result<()> {
    let reason = error.cause.as_label();
    pipeline.dead_letters.append(refused, replaced, reason, &error.detail).await?;
    pipeline.metrics.readings_dead_lettered_total.with(reason).increment(refused.accepted.into());
    Ok(())
}

/// Has a letter wait for space.
///
/// The bucket meanwhile does not count as a write in flight to the store. Neither a stop nor a deletion waits
/// for it.
async fn park(pipeline: &Arc<Pipeline>, letter: Letter) {
    let place = (Arc::clone(&letter.bucket.device), letter.bucket.hour);
    let mut waiting = pipeline.waiting_letters.lock().await;
    pipeline.lock().pending.park(&letter.bucket);
    waiting.insert(place.clone(), letter);
    drop(waiting);
    pipeline.completed.notify_waiters();
    tokio::spawn(retry(Arc::clone(pipeline), place));
}

/// Writes a waiting letter once the dead-letter file or its disk has space again.
async fn retry(pipeline: Arc<Pipeline>, place: (Arc<str>, Hour)) {
    let mut attempts = Attempts::new(&pipeline);
    while attempts.next().await.is_ok() {
        let mut waiting = pipeline.waiting_letters.lock().await;
        let Some(letter) = waiting.get(&place) else { return }; // a deletion has removed all of its readings
        if append(&pipeline, letter).await.is_ok() {
            if let Some(letter) = waiting.remove(&place) {
                complete(&pipeline, &[letter.bucket]);
            }
            return;
        }
    }
}

/// Removes the readings that a deletion selects from the waiting letters and their buckets.
///
/// Returns their number. The caller deletes in the dead-letter file afterwards, because a letter may be
/// written before this.
pub(super) async fn delete_waiting(pipeline: &Pipeline, deletion: &Deletion) -> u64 {
    let (hours, mut deleted, mut done) = (deletion.hours(), 0, Vec::new());
    let mut waiting = pipeline.waiting_letters.lock().await;
    waiting.retain(|(device, hour), Letter { bucket, refused, replaced, .. }| {
        if *device != deletion.device || !hours.contains(hour) {
            return true;
        }
        let (gone, left) = deletion.split(*hour, &refused.contents);
        deleted += gone.reading_count() as u64;
        if left.is_empty() {
            pipeline.metrics.readings_deleted_total.increment(refused.accepted.into());
            done.push(Arc::clone(bucket));
            return false;
        }
        let removed = refused.contents.reading_count() - left.reading_count();
        pipeline.metrics.readings_deleted_total.increment(removed as u64);
        let refused = Arc::make_mut(refused);
        refused.accepted -= removed as u32;
        refused.contents = left;
        *replaced = deletion.split(*hour, replaced).1.into();
        for parked in pipeline.pending_hours(device, *hour..Hour(hour.0 + 1)) {
            let erasure = HourErasure::of_parked(&parked, deletion);
            let before = pipeline.lock().pending.erase_parked(bucket, erasure);
            drop(before); // without the lock
        }
        true
    });
    complete(pipeline, &done);
    deleted
}

/// Returns the stored values that refused readings were to replace.
///
/// If the store does not answer, values are missing, and a retry of the readings does not replace them.
async fn replaced_by(pipeline: &Pipeline, refused: &BucketWrite, error: &StoreError) -> Contents {
    let (hour, samples) = (refused.hour, refused.contents.samples());
    let mut replaced = Vec::new();
    if let (Some((first, last)), true) = (refused.contents.span(), error.cause.may_pass_in_part()) {
        let mut query = ReadingsQuery {
            device: Arc::clone(&refused.device),
            range_ms: hour.instant_ms(first)..hour.instant_ms(last) + 1,
            series: SeriesFilter::ALL,
            max_instants: usize::MAX,
            max_values: VALUES_PER_LOOK,
        };
        let mut at = 0;
        while query.range_ms.start < query.range_ms.end {
            let Ok(FirstReadings { hours, complete_until_ms }) = pipeline.store.readings(&query).await else { break };
            let end = samples.partition_point(|sample| hour.instant_ms(sample.offset) < complete_until_ms);
            for (_, stored) in hours {
                let stored = stored.values_for(refused.contents.metrics());
                let others = samples[at..end].iter().filter(|sample| !stored.has(sample));
                replaced.extend(others.filter_map(|sample| Some(Sample { value: stored.of(sample)?, ..*sample })));
            }
            (at, query.range_ms.start) = (end, complete_until_ms);
        }
    }
    Contents::new(refused.contents.metrics().to_vec(), replaced)
}

/// Logs one line for all buckets of a write.
fn log_refusals(letters: &[Letter]) {
    let Some(Letter { refused, error, .. }) = letters.first() else { return };
    tracing::error!(
        buckets = letters.len(),
        device = &*refused.device,
        hour = hour_text::encode(refused.hour).unwrap_or_default(),
        reason = error.cause.as_label(),
        detail = shortened(&error.detail),
        "the store refused readings for good, such as those of this device; list them with tidegauge dead-letters"
    );
}

/// The first words of a text. Dots say that there are more.
fn shortened(text: &str) -> String {
    let Some((end, _)) = text.char_indices().nth(SHOWN_MAX_CHARS) else { return text.to_owned() };
    let kept = text[..end].rsplit_once(' ').map_or(&text[..end], |(words, _)| words);
    format!("{kept} ...")
}

/// The last refused metadata of each device.
#[derive(Debug, Default)]
pub(super) struct RefusedMetadata(Mutex<HashMap<Arc<str>, Arc<str>>>);

impl RefusedMetadata {
    /// Logs metadata that the store refuses, once for each change.
    ///
    /// Returns whether it has logged a line.
    pub(super) fn note(&self, BucketOutcome { write, refused_metadata, .. }: &BucketOutcome) -> bool {
        let (device, Some(metadata), Some(error)) = (&write.device, &write.metadata, refused_metadata) else {
            return false;
        };
        let is_noted = self.is_new(device, metadata);
        if is_noted {
            tracing::warn!(
                device = &**device,
                reason = error.cause.as_label(),
                detail = shortened(&error.detail),
                "the store refused the metadata of a device for good; its readings are stored without it"
            );
        }
        is_noted
    }

    /// Remembers refused metadata.
    ///
    /// Returns whether it differs from the last one of the device.
    fn is_new(&self, device: &Arc<str>, metadata: &Arc<str>) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= REMEMBERED_DEVICES {
            last.clear();
        }
        last.insert(Arc::clone(device), Arc::clone(metadata)).as_ref() != Some(metadata)
    }
}
