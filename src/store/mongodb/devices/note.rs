//! Writes to the documents of devices what the next buckets need.
//!
//! A read of the documents costs the server a twentieth of an update. So it comes first, and only what a
//! document lacks is written: most new devices are inserted, and after a restart most need no write.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bson::{RawDocument, doc};

use super::super::by_device::of_devices;
use super::super::encode::Encoder;
use super::super::metadata;
use super::super::statements::{Outcome, Verb};
use super::DeviceIndex;
use super::change::{Difference, Given, Group, Lacking};
use super::document::{decode, insert, is_empty, put};
use crate::model::BucketWrite;
use crate::store::{Cause, DeviceSummary, StoreError};

/// The most notes whose documents are read at once.
const NOTES_AT_ONCE: usize = 5_000;

/// A note with its metadata, parsed.
struct Job<'a> {
    /// The index of the note among the notes of its call.
    at: usize,
    note: &'a DeviceSummary,
    given: Option<Given>,
}

/// The outcome of a note. Ok means that the note is durable: `true` if its metadata is durable too, `false`
/// if the document has newer metadata.
type Noted = Result<bool, StoreError>;

impl DeviceIndex {
    /// Writes what the index needs before these buckets are written. Returns for each bucket why it must not
    /// be written, if there is a reason.
    pub(in super::super) async fn note(&self, writes: &[Arc<BucketWrite>]) -> Vec<Option<StoreError>> {
        let mut failed = vec![None; writes.len()];
        let changes = self.noted.changes(writes);
        let notes: Vec<&DeviceSummary> = changes.notes.iter().map(|note| &note.summary).collect();
        for (note, outcome) in changes.notes.iter().zip(self.put_all(&notes).await) {
            match outcome {
                Ok(metadata) => self.noted.confirm(&changes, note, metadata),
                Err(error) => note.writes.iter().for_each(|&at| failed[at] = Some(error.clone())),
            }
        }
        failed
    }

    /// Adds summaries of devices to the index.
    pub(in super::super) async fn add(&self, summaries: &[DeviceSummary]) -> Result<(), StoreError> {
        let outcomes = self.put_all(&summaries.iter().collect::<Vec<_>>()).await;
        for (summary, outcome) in summaries.iter().zip(outcomes) {
            match outcome {
                Err(error) if error.is_permanent() => {
                    let device = &*summary.device;
                    tracing::warn!(device, %error, "a device cannot be added to the device index");
                }
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    async fn put_all(&self, notes: &[&DeviceSummary]) -> Vec<Noted> {
        let mut outcomes: Vec<Option<Noted>> = vec![None; notes.len()];
        let mut jobs = Vec::with_capacity(notes.len());
        for (at, note) in notes.iter().enumerate() {
            match given(note) {
                Ok(given) => jobs.push(Job { at, note, given }),
                Err(error) => outcomes[at] = Some(Err(error)),
            }
        }
        jobs.sort_unstable_by(|a, b| a.note.device.cmp(&b.note.device)); // the order of the documents
        let mut reached = Ok(());
        let mut rest = Vec::new();
        while !jobs.is_empty() {
            let some = jobs.split_off(jobs.len().saturating_sub(NOTES_AT_ONCE));
            reached = self.put_difference(some, &mut outcomes, &mut rest).await;
            if reached.is_err() {
                break;
            }
        }
        if reached.is_ok() {
            reached = self.put_slowly(rest, &mut outcomes).await;
        }
        let contended = || StoreError::new(Cause::Contention, "other writers of the device were quicker");
        let unsettled = || Err(reached.clone().err().unwrap_or_else(contended));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unsettled)).collect()
    }

    /// Reads the documents of some devices, inserts those that are missing, and updates those that lack
    /// something. Adds to `rest` what has to be written in another way: another instance was quicker, a
    /// document cannot be read, or it has too many series.
    async fn put_difference<'n>(
        &self,
        mut jobs: Vec<Job<'n>>,
        outcomes: &mut [Option<Noted>],
        rest: &mut Vec<Job<'n>>,
    ) -> Result<(), StoreError> {
        let is_sharded = self.is_sharded.load(Ordering::SeqCst);
        let differences = self.differences(&jobs).await?;
        let (mut changes, mut inserts, mut known) = (Vec::new(), Vec::new(), Vec::new());
        let mut is_slow = vec![false; jobs.len()];
        for (nth, (job, difference)) in jobs.iter().zip(differences).enumerate() {
            let Some(Difference { lacking, has_newer_metadata }) = difference else {
                inserts.push(nth);
                continue;
            };
            known.push((job.at, Ok(!has_newer_metadata)));
            match lacking {
                Lacking::Nothing => {}
                Lacking::Some(change) => changes.push((nth, change)),
                Lacking::TooManySeries => is_slow[nth] = true,
            }
        }
        let name = &self.managed.name;
        let encode = |document: &mut Encoder, nth: &usize| {
            let Job { note, given, .. } = &jobs[*nth];
            insert(document, note, given.as_ref().map(|given| (given.hour, &given.object)));
        };
        let settle = |nth: &usize, outcome| match outcome {
            Outcome::Unmet => is_slow[*nth] = true,
            Outcome::Done => outcomes[jobs[*nth].at] = Some(Ok(true)),
            Outcome::Failed(error) => outcomes[jobs[*nth].at] = Some(Err(error)),
        };
        self.commands.write_all(Verb::Insert, name, &inserts, encode, settle).await?;

        let groups = Group::all(changes, is_sharded);
        let devices = groups.iter().map(|group| group.of.len()).sum::<usize>();
        let encode = |statement: &mut Encoder, group: &Group| {
            group.statement(statement, is_sharded, |nth| &jobs[nth].note.device);
        };
        let mut failed = Vec::new();
        let settle = |group: &Group, outcome| {
            if !matches!(outcome, Outcome::Done) {
                failed.extend_from_slice(&group.of);
            }
        };
        let matched = self.commands.write_all(Verb::UpdateMatching, name, &groups, encode, settle).await?;
        if matched + (failed.len() as u64) < devices as u64 {
            failed.extend(groups.into_iter().flat_map(|group| group.of)); // the reply does not say which
        }
        for nth in failed {
            is_slow[nth] = true;
        }
        for (at, done) in known {
            outcomes[at] = Some(done); // `put_slowly` sets those of `rest` again
        }
        let mut is_slow = is_slow.into_iter();
        rest.extend(jobs.extract_if(.., |_| is_slow.next() == Some(true)));
        Ok(())
    }

    /// Finds what the document of each device lacks; `None` if there is no document that can be read.
    ///
    /// It reads what a majority of the members has: a document may be complete because of a write that is not
    /// durable yet.
    async fn differences(&self, jobs: &[Job<'_>]) -> Result<Vec<Option<Difference>>, StoreError> {
        let mut differences: Vec<Option<Difference>> = jobs.iter().map(|_| None).collect();
        let devices: Vec<&str> = jobs.iter().map(|job| &*job.note.device).collect();
        let find = self.durable.find(doc! { "_id": of_devices(&devices), "deviceId": of_devices(&devices) });
        let visit = |document: &RawDocument| {
            if is_empty(document) {
                return Ok(());
            }
            let entry = decode(document)?;
            if let Ok(nth) = devices.binary_search(&&*entry.device) {
                differences[nth] = Some(Difference::of(&entry, jobs[nth].note, jobs[nth].given.as_ref()));
            }
            Ok(())
        };
        self.commands.all_documents(find.batch_size(NOTES_AT_ONCE as u32), visit).await?;
        Ok(differences)
    }

    /// Writes each note with a statement that does not depend on what the document has.
    async fn put_slowly(&self, mut jobs: Vec<Job<'_>>, outcomes: &mut [Option<Noted>]) -> Result<(), StoreError> {
        for job in &jobs {
            outcomes[job.at] = None;
        }
        // A duplicate key may be due to another instance, which was a moment quicker to insert the document.
        // When the document exists, a duplicate key can only mean that its metadata is newer.
        for with_metadata in [true, true, false] {
            let mut unmet = Vec::new();
            let statement = |encoder: &mut _, job: &Job<'_>| {
                let given = job.given.as_ref().filter(|_| with_metadata);
                put(encoder, job.note, given.map(|given| (given.hour, &given.object)), true);
            };
            let settle = |job: &Job<'_>, outcome| match outcome {
                Outcome::Unmet => unmet.push(job.at),
                Outcome::Done => outcomes[job.at] = Some(Ok(with_metadata || job.given.is_none())),
                Outcome::Failed(error) => outcomes[job.at] = Some(Err(error)),
            };
            self.commands.write_all(Verb::Update, &self.managed.name, &jobs, statement, settle).await?;
            unmet.sort_unstable();
            jobs.retain(|job| unmet.binary_search(&job.at).is_ok());
        }
        Ok(())
    }
}

/// Parses the metadata of a note.
fn given(note: &DeviceSummary) -> Result<Option<Given>, StoreError> {
    let Some(of) = &note.metadata else { return Ok(None) };
    let object = metadata::parse(&of.text)?;
    let text = metadata::to_text(object.clone());
    Ok(Some(Given { hour: of.hour, object, text }))
}
