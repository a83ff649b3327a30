//! Writes buckets as measurements: new readings at once, other readings after a read of what is stored.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde_json::Map;

use super::Timeseries;
use super::document::{Measurement, Measurements};
use super::known::WriteGuard;
use crate::model::{BucketWrite, Contents, HourOffset, Metric};
use crate::store::mongodb::collection::Deployment;
use crate::store::mongodb::encode::Encoder;
use crate::store::mongodb::metadata;
use crate::store::mongodb::statements::{self, Verb};
use crate::store::{WriteError, Written};

/// How many reads of what is stored run at the same time.
const MAX_CONCURRENT_READS: usize = 16;

type Outcome = Result<Written, WriteError>;

/// The measurements of one write that are to be inserted.
struct Insert {
    /// The index of the write in its call.
    at: usize,
    measurements: Measurements,
}

impl Timeseries {
    /// Writes buckets; see [`crate::store::Store::write`].
    ///
    /// If the server does not take one measurement, it refuses the whole command, after it may have executed
    /// a part of it. So buckets that were refused for good are written again in halves, until the bucket to
    /// blame is alone. As before any repetition, the store first reads what is stored.
    pub(super) async fn write_buckets(&self, writes: &[Arc<BucketWrite>], deployment: Deployment) -> Vec<Outcome> {
        let mut outcomes = self.write_together(writes, deployment).await;
        if writes.len() > 1 {
            let is_refused = |at: &usize| outcomes[*at].as_ref().is_err_and(WriteError::is_permanent);
            let refused: Vec<usize> = (0..writes.len()).filter(is_refused).collect();
            for half in refused.chunks(refused.len().div_ceil(2).max(1)) {
                let again: Vec<_> = half.iter().map(|&at| Arc::clone(&writes[at])).collect();
                for (&at, outcome) in half.iter().zip(Box::pin(self.write_buckets(&again, deployment)).await) {
                    outcomes[at] = outcome;
                }
            }
        }
        outcomes
    }

    async fn write_together(&self, writes: &[Arc<BucketWrite>], deployment: Deployment) -> Vec<Outcome> {
        let guards: Vec<WriteGuard<'_>> = writes.iter().map(|write| self.known.begin_write(&write.device)).collect();
        let new = match self.find_new(writes, &guards).await {
            Ok(new) => new,
            Err(error) => return vec![Err(error); writes.len()],
        };
        let (mut outcomes, mut inserts) = (Vec::with_capacity(writes.len()), Vec::new());
        let mut found_stored = false;
        for (at, ((write, device), new)) in writes.iter().zip(&guards).zip(new).enumerate() {
            let stored =
                write.count_stored(|sample| new.value(sample.offset, write.contents.metric_of(sample)).is_some());
            outcomes.push(Ok(Written { stored, duplicate: write.accepted - stored }));
            found_stored |= new.samples().len() < write.contents.samples().len();
            if !new.is_empty() {
                match measurements(write, device, new) {
                    Ok(measurements) => inserts.push(Insert { at, measurements }),
                    Err(error) => outcomes[at] = Err(error),
                }
            }
        }
        self.insert(&inserts, deployment, &mut outcomes).await;
        if found_stored {
            self.make_durable(&mut outcomes).await;
        }
        outcomes
    }

    /// The part of each write that is not stored yet.
    async fn find_new(
        &self,
        writes: &[Arc<BucketWrite>],
        guards: &[WriteGuard<'_>],
    ) -> Result<Vec<Contents>, WriteError> {
        if guards.iter().any(WriteGuard::is_unknown) {
            self.sessions.fence().await?;
            let unknown = guards.iter().zip(writes).filter(|(device, _)| device.is_unknown());
            let reads = unknown.map(|(device, write)| async move {
                device.learn(self.read_newest(&write.device).await?);
                Ok::<(), WriteError>(())
            });
            stream::iter(reads.collect::<Vec<_>>()).buffer_unordered(MAX_CONCURRENT_READS).try_collect::<()>().await?;
        }
        let is_new: Vec<bool> = writes.iter().zip(guards).map(|(write, device)| is_surely_new(write, device)).collect();
        if is_new.contains(&false) {
            self.sessions.fence().await?;
        }
        let reads = writes.iter().zip(is_new).map(|(write, is_new)| async move {
            if is_new { Ok(write.contents.clone()) } else { self.without_stored(write).await }
        });
        stream::iter(reads.collect::<Vec<_>>()).buffered(MAX_CONCURRENT_READS).try_collect().await
    }

    /// The contents of a write without the values that are stored already.
    async fn without_stored(&self, write: &BucketWrite) -> Result<Contents, WriteError> {
        let Some((first, last)) = write.contents.span() else { return Ok(Contents::default()) };
        let stored = self.read_span(&write.device, write.hour, first, last).await?;
        let stored: HashSet<(&Metric, HourOffset)> =
            stored.samples().iter().map(|sample| (stored.metric_of(sample), sample.offset)).collect();
        Ok(write.contents.filter(|metric, offset| !stored.contains(&(metric, offset))))
    }

    /// Inserts measurements, and replaces the outcomes of the writes of which one failed.
    async fn insert(&self, inserts: &[Insert], deployment: Deployment, outcomes: &mut [Outcome]) {
        let sessions = (deployment != Deployment::Standalone).then_some(&self.sessions);
        let measurements: Vec<(usize, Measurement<'_>)> = inserts
            .iter()
            .flat_map(|insert| insert.measurements.iter().map(|measurement| (insert.at, measurement)))
            .collect();
        let encode = |fields: &mut Encoder, (_, measurement): &(usize, Measurement<'_>)| measurement.encode(fields);
        let mut settled = 0;
        let settle = |&(at, _): &(usize, _), outcome| {
            settled += 1; // in their order: no command is repeated in parts
            if let statements::Outcome::Failed(error) = outcome {
                outcomes[at] = Err(error);
            }
        };
        let verb = Verb::InsertMeasurements(sessions);
        let sent = self.commands.write_all(verb, &self.collection, &measurements, encode, settle).await;
        if let Err(error) = sent {
            measurements[settled..].iter().for_each(|(at, _)| outcomes[*at] = Err(error.clone()));
        }
    }

    /// Returns when a majority has the stored values that were found, which it may not have had before. If
    /// that fails, the writes fail.
    async fn make_durable(&self, outcomes: &mut [Outcome]) {
        if let Err(error) = self.sessions.wait_for_majority().await {
            for outcome in outcomes.iter_mut().filter(|outcome| outcome.is_ok()) {
                *outcome = Err(error.clone());
            }
        }
    }
}

/// Whether all readings of the write are later than everything that may be stored of the device. A write
/// without readings counts as new.
fn is_surely_new(write: &BucketWrite, device: &WriteGuard<'_>) -> bool {
    let span = write.contents.span();
    span.is_none_or(|(first, last)| device.advance(write.hour.instant_ms(first), write.hour.instant_ms(last)))
}

fn measurements(write: &BucketWrite, device: &WriteGuard<'_>, new: Contents) -> Result<Measurements, WriteError> {
    let metadata = match device.metadata(write.metadata.as_ref()) {
        Some(text) => metadata::parse(&text)?,
        None => Map::new(),
    };
    Ok(Measurements::new(&write.device, write.hour, &metadata, new))
}
