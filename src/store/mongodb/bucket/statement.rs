//! The fast path's statement: append a flush to its bucket's document, or do nothing at all.
//!
//! The filter holds only when every reading of the flush is later than all that the bucket has, there is room for it, and
//! the bucket has no other part. When it does not hold, the upsert tries to insert, and the `_id` being taken makes that
//! a duplicate key error.

use std::borrow::Cow;

use bson::RawDocumentBuf;
use serde_json::{Map, Value};

use super::super::encode::Encoder;
use super::super::{metadata, names};
use super::document::{encode_birth, encode_readings};
use crate::model::{BucketWrite, HourOffset};

/// A write, ready to be sent.
#[derive(Debug)]
pub(super) struct Job<'a> {
    /// Where the write stands in its call.
    pub(super) at: usize,
    pub(super) write: &'a BucketWrite,
    pub(super) metadata: Option<Map<String, Value>>,
    /// How many instants the write has, at least 1.
    pub(super) readings: usize,
    /// Its first and its last instant.
    pub(super) span: (HourOffset, HourOffset),
}

/// The most bytes of a command's statements. The server takes 16 MiB + 16 KiB for a whole command; the margin holds all
/// that stands around the statements, what the driver adds included.
const STATEMENTS_MAX_BYTES: usize = 16_000_000;

/// The most statements of a command: the server's `maxWriteBatchSize`.
const STATEMENTS_MAX: usize = 100_000;

/// An `update` command for as many of the jobs, in order, as fit into one, and how many those are: at least one.
pub(super) fn append_command(
    collection: &str,
    concern: impl Fn(&mut Encoder),
    jobs: &[Job<'_>],
    capacity: usize,
) -> (RawDocumentBuf, usize) {
    let mut taken = 0;
    let command = Encoder::build(|command| {
        command.string("update", collection);
        command.boolean("ordered", false);
        concern(command);
        command.array("updates", |statements| {
            for job in jobs.iter().take(STATEMENTS_MAX) {
                let before = statements.len();
                statements.document(taken, |statement| append(statement, job, capacity));
                if statements.len() > STATEMENTS_MAX_BYTES && taken > 0 {
                    statements.truncate(before);
                    break;
                }
                taken += 1;
            }
        });
    });
    (command, taken)
}

fn append(statement: &mut Encoder, job: &Job<'_>, capacity: usize) {
    let BucketWrite { device, hour, .. } = job.write;
    let room_before = capacity.saturating_sub(job.readings);
    statement.document("q", |filter| {
        filter.string("_id", &names::document_id(device, *hour, 0));
        filter.string("deviceId", device);
        filter.document("lastTs", |is| is.datetime("$lt", hour.instant_ms(job.span.0)));
        filter.document("readingCount", |is| is.int64("$lte", room_before as i64));
        filter.document("full", |is| is.boolean("$exists", false));
    });
    statement.document("u", |update| operators(update, job));
    statement.boolean("upsert", true);
}

fn operators(update: &mut Encoder, job: &Job<'_>) {
    let BucketWrite { device, hour, contents, .. } = job.write;
    let (first_ms, last_ms) = (hour.instant_ms(job.span.0), hour.instant_ms(job.span.1));
    let stats = contents.stats();
    let stats: Vec<(Cow<'_, str>, _)> = stats.iter().map(|(metric, fold)| (names::stored(metric), fold)).collect();

    update.document("$push", |push| {
        push.document("readings", |readings| encode_readings(readings, "$each", *hour, contents));
    });
    update.document("$inc", |inc| {
        inc.int64("rev", 1);
        inc.int64("readingCount", job.readings as i64);
        for (metric, fold) in &stats {
            inc.int64(["stats.", metric, ".count"], fold.count as i64);
            inc.double(["stats.", metric, ".sum"], fold.sum);
        }
    });
    update.document("$min", |min| {
        min.datetime("firstTs", first_ms);
        for (metric, fold) in &stats {
            min.double(["stats.", metric, ".min"], fold.min);
        }
    });
    update.document("$max", |max| {
        for (metric, fold) in &stats {
            max.double(["stats.", metric, ".max"], fold.max);
        }
    });
    update.document("$set", |set| {
        set.datetime("lastTs", last_ms);
        if let Some(object) = &job.metadata {
            metadata::encode(set, "metadata", object);
        }
    });
    update.document("$setOnInsert", |set| encode_birth(set, device, *hour, 0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Hour, Sample};

    fn write(readings: u32) -> BucketWrite {
        let samples = (0..readings).map(|offset| (Sample { value: 1.0, offset, metric: 0 }, true));
        BucketWrite::new("d".into(), Hour(0), None, vec!["a".into()], samples)
    }

    fn job(at: usize, write: &BucketWrite) -> Job<'_> {
        let span = write.contents.span().unwrap();
        Job { at, write, metadata: None, readings: write.contents.reading_count(), span }
    }

    fn taken_by_each_command(jobs: &[Job<'_>]) -> Vec<usize> {
        let mut rest = jobs;
        let mut sizes = Vec::new();
        while !rest.is_empty() {
            let (command, taken) = append_command("c", |_| {}, rest, 1_000_000);
            assert!(taken == 1 || command.as_bytes().len() < 16_793_600);
            sizes.push(taken);
            rest = &rest[taken..];
        }
        sizes
    }

    #[test]
    fn commands_are_split_by_bytes() {
        let (large, small) = (write(200_000), write(1));
        let jobs: Vec<Job<'_>> =
            [&large, &large, &large, &small].into_iter().enumerate().map(|(at, w)| job(at, w)).collect();
        assert_eq!(taken_by_each_command(&jobs), [2, 2]);
    }

    #[test]
    fn commands_are_split_by_statements_and_hold_at_least_one() {
        let (huge, small) = (write(700_000), write(1));
        assert_eq!(taken_by_each_command(&[job(0, &huge), job(1, &small)]), [1, 1]);
        let jobs: Vec<Job<'_>> = (0..100_001).map(|at| job(at, &small)).collect();
        let sizes = taken_by_each_command(&jobs);
        assert_eq!(sizes.iter().sum::<usize>(), jobs.len());
        assert!(sizes.iter().all(|&size| size <= STATEMENTS_MAX));
    }
}
