//! Finds the readings that a store refuses for good, by [`Bisection`]. Only those are dead-lettered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::Pipeline;
use super::attempts::Attempts;
use super::bisection::{Bisection, Narrowed};
use super::hour_text;
use super::write::{Letter, Outcome, attempt, count_written, dead_letter, is_available};
use crate::model::{BucketWrite, Contents, Sample, SeriesFilter};
use crate::store::{FirstReadings, ReadingsQuery, StoreError};

/// The longest detail of a refusal in a log line, in characters. The dead-letter file has the whole detail.
const SHOWN_MAX_CHARS: usize = 200;

/// The number of stored values that are compared with refused ones at once.
const VALUES_PER_LOOK: usize = 1 << 16;

/// The number of devices whose last refused metadata is remembered.
const REMEMBERED_DEVICES: usize = 10_000;

/// Stores the readings of refused buckets that the store accepts, and dead-letters the others.
///
/// Returns the buckets that are done. The others wait until the dead-letter file has space, or for the next
/// start.
pub(super) async fn narrow(
    pipeline: &Arc<Pipeline>,
    refused: Vec<(Arc<BucketWrite>, StoreError)>,
) -> Vec<Arc<BucketWrite>> {
    let mut bisections: Vec<_> = refused.into_iter().map(|(write, error)| Bisection::new(write, error)).collect();
    let mut attempts = Attempts::new(pipeline);
    loop {
        let parts = bisections.iter().map(|bisection| bisection.next().cloned());
        let (at, parts): (Vec<usize>, Vec<_>) = parts.enumerate().filter_map(|(at, part)| Some((at, part?))).unzip();
        if parts.is_empty() {
            return conclude(pipeline, bisections).await;
        }
        let outcomes = attempt(pipeline, &parts).await;
        let is_available = is_available(&outcomes);
        let transient = settle(pipeline, &mut bisections, at.into_iter().zip(outcomes));
        if is_available {
            attempts.succeed();
        }
        let Some(error) = transient else { continue };
        if !is_available {
            attempts.fail(&error);
        }
        if attempts.next().await.is_err() {
            return Vec::new();
        }
    }
}

/// Tells each bisection the outcome of its part. Returns a transient error, if there was one.
fn settle(
    pipeline: &Pipeline,
    bisections: &mut [Bisection],
    outcomes: impl Iterator<Item = (usize, Outcome)>,
) -> Option<StoreError> {
    let mut transient = None;
    for (at, outcome) in outcomes {
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
    transient
}

/// Dead-letters what the store refuses of the buckets. Returns those that are done.
async fn conclude(pipeline: &Arc<Pipeline>, bisections: Vec<Bisection>) -> Vec<Arc<BucketWrite>> {
    let mut done = Vec::new();
    let mut letters = Vec::new();
    for narrowed in bisections.into_iter().map(Bisection::finish) {
        if pipeline.refused_metadata.note(&narrowed) {
            pipeline.metrics.metadata_refused_total.increment(1);
        }
        let Narrowed { write, refused, error, .. } = narrowed;
        match refused {
            None => done.push(write),
            Some(refused) => {
                let replaced = replaced_by(pipeline, &refused, &error).await.into();
                letters.push(Letter { bucket: write, refused: refused.into(), replaced, error });
            }
        }
    }
    log_refusals(&letters);
    for letter in letters {
        done.extend(dead_letter(pipeline, letter).await);
    }
    done
}

/// Returns the stored values that refused readings were to replace. If the store does not answer, values are
/// missing, and a retry of the readings does not replace them.
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
pub struct RefusedMetadata(Mutex<HashMap<Arc<str>, Arc<str>>>);

impl RefusedMetadata {
    /// Logs metadata that the store refuses, once for each change. Returns whether it did.
    pub fn note(&self, narrowed: &Narrowed) -> bool {
        let Narrowed { write, error, metadata_is_refused, .. } = narrowed;
        let (device, Some(metadata)) = (&write.device, &write.metadata) else { return false };
        let is_noted = *metadata_is_refused && self.is_new(device, metadata);
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

    /// Remembers refused metadata. Returns whether it differs from the last one of the device.
    fn is_new(&self, device: &Arc<str>, metadata: &Arc<str>) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= REMEMBERED_DEVICES {
            last.clear();
        }
        last.insert(Arc::clone(device), Arc::clone(metadata)).as_ref() != Some(metadata)
    }
}
