//! Writes to the documents of devices what the next buckets need.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::super::metadata;
use super::super::statements::{Outcome, Verb};
use super::DeviceIndex;
use super::document::put;
use crate::model::{BucketWrite, Hour};
use crate::store::{Cause, DeviceSummary, StoreError, WriteError};

/// A note with its metadata, parsed.
struct Job<'a> {
    note: &'a DeviceSummary,
    metadata: Option<(Hour, Map<String, Value>)>,
}

/// The outcome of a note.
#[derive(Debug, Clone)]
enum Noted {
    /// It is durable; the flag says whether its metadata is too, or newer metadata was there.
    Done {
        metadata: bool,
    },
    Failed(WriteError),
}

impl DeviceIndex {
    /// Writes what the index needs before these buckets are written. Returns for each bucket why it must not
    /// be written, if there is a reason.
    pub(in super::super) async fn note(&self, writes: &[Arc<BucketWrite>]) -> Vec<Option<WriteError>> {
        let mut failed = vec![None; writes.len()];
        let changes = self.noted.changes(writes);
        let notes: Vec<&DeviceSummary> = changes.notes.iter().map(|note| &note.summary).collect();
        for (note, outcome) in changes.notes.iter().zip(self.put_all(&notes).await) {
            match outcome {
                Noted::Done { metadata } => self.noted.confirm(&changes, note, metadata),
                Noted::Failed(error) => note.writes.iter().for_each(|&at| failed[at] = Some(error.clone())),
            }
        }
        failed
    }

    /// Adds devices to the index that were stored without it.
    pub(super) async fn add(&self, summaries: &[DeviceSummary]) -> Result<(), StoreError> {
        let outcomes = self.put_all(&summaries.iter().collect::<Vec<_>>()).await;
        for (summary, outcome) in summaries.iter().zip(outcomes) {
            match outcome {
                Noted::Failed(error) if error.is_permanent() => {
                    let device = &*summary.device;
                    tracing::warn!(device, %error, "a device cannot be added to the device index");
                }
                Noted::Failed(error) => return Err(StoreError::new(error.cause, error.detail)),
                Noted::Done { .. } => {}
            }
        }
        Ok(())
    }

    async fn put_all(&self, notes: &[&DeviceSummary]) -> Vec<Noted> {
        let mut outcomes: Vec<Option<Noted>> = vec![None; notes.len()];
        let mut jobs = Vec::with_capacity(notes.len());
        for (at, note) in notes.iter().enumerate() {
            let parsed = note.metadata.as_ref().map(|of| Ok((of.hour, metadata::parse(&of.text)?))).transpose();
            match parsed {
                Ok(metadata) => jobs.push((at, Job { note, metadata })),
                Err(error) => outcomes[at] = Some(Noted::Failed(error)),
            }
        }
        let mut reached = Ok(());
        // A duplicate key may be due to another instance, which was a moment quicker to insert the document.
        // When the document exists, it can only mean that its metadata is newer.
        for with_metadata in [true, true, false] {
            let mut unmet = Vec::new();
            let statement = |encoder: &mut _, (_, job): &(usize, Job<'_>)| {
                let metadata = job.metadata.as_ref().filter(|_| with_metadata);
                put(encoder, job.note, metadata.map(|(hour, object)| (*hour, object)));
            };
            let settle = |(at, job): &(usize, Job<'_>), outcome| match outcome {
                Outcome::Unmet => unmet.push(*at),
                Outcome::Done => {
                    outcomes[*at] = Some(Noted::Done { metadata: with_metadata || job.metadata.is_none() });
                }
                Outcome::Failed(error) => outcomes[*at] = Some(Noted::Failed(error)),
            };
            reached = self.commands.write_all(Verb::Update, &self.managed.name, &jobs, statement, settle).await;
            if reached.is_err() {
                break;
            }
            unmet.sort_unstable();
            jobs.retain(|(at, _)| unmet.binary_search(at).is_ok());
        }
        let contended = || WriteError::new(Cause::Contention, "other writers of the device were quicker".to_owned());
        let unsettled = || Noted::Failed(reached.clone().err().unwrap_or_else(contended));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unsettled)).collect()
    }
}
