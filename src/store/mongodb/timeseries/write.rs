//! Writes buckets as measurements: what is new for sure at once, the rest after a look at what is stored.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde_json::Map;

use super::TimeseriesStore;
use super::document::{Measurement, Measurements};
use super::known::WriteGuard;
use crate::model::{BucketWrite, Contents, HourOffset, Metric};
use crate::store::mongodb::collection::Deployment;
use crate::store::mongodb::command::Reply;
use crate::store::mongodb::encode::Encoder;
use crate::store::mongodb::metadata;
use crate::store::{Cause, WriteError, Written};

/// How many looks at the store are taken at the same time.
const MAX_CONCURRENT_READS: usize = 16;

/// The most bytes of a command's documents; see `statements`.
const DOCUMENTS_MAX_BYTES: usize = 16_000_000;

/// The most documents of a command: the server's `maxWriteBatchSize`.
const DOCUMENTS_MAX: usize = 100_000;

type Outcome = Result<Written, WriteError>;

/// A write of which something is to be inserted.
struct Insert {
    /// Where the write stands in its call.
    at: usize,
    measurements: Measurements,
}

/// A document to be inserted.
struct Document<'a> {
    /// Where the write that it belongs to stands in its call.
    at: usize,
    measurement: Measurement<'a>,
}

impl TimeseriesStore {
    /// Writes buckets; see [`crate::store::Store::write`].
    ///
    /// For one measurement that it does not take, the server refuses a whole command, of which it may have
    /// done a part. So what was refused for good is written again in halves, until what is to blame is alone.
    /// As with any repetition, a look at what is stored comes first.
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
            self.sessions.resolve().await?;
            let unknown = guards.iter().zip(writes).filter(|(device, _)| device.is_unknown());
            let looks = unknown.map(|(device, write)| async move {
                device.learn(self.read_newest(&write.device).await?);
                Ok::<(), WriteError>(())
            });
            stream::iter(looks.collect::<Vec<_>>()).buffer_unordered(MAX_CONCURRENT_READS).try_collect::<()>().await?;
        }
        let sure: Vec<bool> = writes.iter().zip(guards).map(|(write, device)| is_surely_new(write, device)).collect();
        if sure.contains(&false) {
            self.sessions.resolve().await?;
        }
        let looks = writes.iter().zip(sure).map(|(write, sure)| async move {
            if sure { Ok(write.contents.clone()) } else { self.without_stored(write).await }
        });
        stream::iter(looks.collect::<Vec<_>>()).buffered(MAX_CONCURRENT_READS).try_collect().await
    }

    /// The contents of a write without what is stored already.
    async fn without_stored(&self, write: &BucketWrite) -> Result<Contents, WriteError> {
        let Some((first, last)) = write.contents.span() else { return Ok(Contents::default()) };
        let stored = self.read_span(&write.device, write.hour, first, last).await?;
        let stored: HashSet<(&Metric, HourOffset)> =
            stored.samples().iter().map(|sample| (stored.metric_of(sample), sample.offset)).collect();
        Ok(write.contents.filter(|metric, offset| !stored.contains(&(metric, offset))))
    }

    async fn insert(&self, inserts: &[Insert], deployment: Deployment, outcomes: &mut [Outcome]) {
        let numbered = deployment != Deployment::Standalone;
        let documents = documents(inserts);
        let mut waiting = &documents[..];
        while !waiting.is_empty() {
            let mut taken = 0;
            let fill = |command: &mut Encoder| taken = self.insert_command(command, waiting);
            let answer = self.sessions.send(numbered, fill).await;
            let (sent, rest) = waiting.split_at(taken);
            match settle(answer, sent, outcomes) {
                Ok(()) => waiting = rest,
                Err(error) => return fail(rest, &error, outcomes),
            }
        }
    }

    /// Writes an `insert` of as many of the documents, in order, as fit into one, and returns how many: at
    /// least one.
    fn insert_command(&self, command: &mut Encoder, waiting: &[Document<'_>]) -> usize {
        let mut taken = 0;
        command.string("insert", &self.collection);
        command.boolean("ordered", false);
        self.commands.write_concern(command);
        command.array("documents", |documents| {
            for document in waiting.iter().take(DOCUMENTS_MAX) {
                let before = documents.len();
                documents.document(taken, |fields| document.measurement.encode(fields));
                if documents.len() > DOCUMENTS_MAX_BYTES && taken > 0 {
                    documents.truncate(before);
                    break;
                }
                taken += 1;
            }
        });
        taken
    }

    /// What was found stored may not be with a majority yet. It is when this returns, or its writes have
    /// failed.
    async fn make_durable(&self, outcomes: &mut [Outcome]) {
        if let Err(error) = self.sessions.wait_for_majority().await {
            for outcome in outcomes.iter_mut().filter(|outcome| outcome.is_ok()) {
                *outcome = Err(error.clone());
            }
        }
    }
}

/// Whether all of the write comes after everything that may be stored of the device; a write without readings
/// does.
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

fn documents(inserts: &[Insert]) -> Vec<Document<'_>> {
    let mut documents = Vec::new();
    for insert in inserts {
        documents.extend(insert.measurements.iter().map(|measurement| Document { at: insert.at, measurement }));
    }
    documents
}

/// Turns the answer to an insert into outcomes.
///
/// # Errors
/// When the server is out of reach.
fn settle(
    answer: Result<Reply, WriteError>,
    sent: &[Document<'_>],
    outcomes: &mut [Outcome],
) -> Result<(), WriteError> {
    let reply = match answer {
        Ok(reply) if reply.accounts_for(sent.len()) => reply,
        Ok(reply) => {
            let detail = format!("{} documents were inserted, of {} that were sent", reply.n, sent.len());
            fail(sent, &WriteError::new(Cause::Other, detail), outcomes);
            return Ok(());
        }
        Err(error) => {
            fail(sent, &error, outcomes);
            return if error.cause.is_unreachable() { Err(error) } else { Ok(()) };
        }
    };
    for refusal in &reply.errors {
        if let Some(document) = sent.get(refusal.statement) {
            outcomes[document.at] = Err(refusal.to_error());
        }
    }
    Ok(())
}

fn fail(sent: &[Document<'_>], error: &WriteError, outcomes: &mut [Outcome]) {
    for document in sent {
        outcomes[document.at] = Err(error.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Hour, Sample};
    use crate::store::mongodb::command::StatementError;

    #[test]
    fn a_document_that_was_refused_is_that_of_its_write() {
        let samples = (0..2).map(|offset| Sample { value: 0.5, offset, metric: 0 }).collect();
        let contents = Contents::new(vec!["lux".into()], samples);
        let insert_of =
            |at| Insert { at, measurements: Measurements::new("d", Hour(0), &Map::new(), contents.clone()) };
        let inserts = [insert_of(0), insert_of(1), insert_of(2)];
        let sent = documents(&inserts);
        let mut outcomes = vec![Ok(Written { stored: 2, duplicate: 0 }); 3];
        let errors = vec![StatementError { statement: 3, code: 121, message: "no".to_owned() }];
        settle(Ok(Reply { n: 5, errors }), &sent, &mut outcomes).unwrap();
        let refused: Vec<bool> = outcomes.iter().map(Result::is_err).collect();
        assert_eq!(refused, [false, true, false]);
    }
}
