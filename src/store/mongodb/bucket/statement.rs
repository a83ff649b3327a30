//! The statements of the fast path: create a bucket's document, or append a flush to it, or do nothing.
//!
//! The filter of an append matches only if every reading of the flush is later than all readings of the
//! bucket, the document has room and is of this schema version, and it is the bucket's last part. If it does
//! not match, the upsert tries to insert. For part 0 that is a duplicate key error, because the `_id` exists.
//! Only the slow path creates other parts: an append to one of them asks for another `_id` on insert, which
//! makes every insert an error (66, immutable field), and never takes effect.
//!
//! Alternatives, by the CPU of mongod 6.0.5 relative to this append (one reading to a document of 15, 500 in
//! a command): 0.9 if a remembered `rev` replaces the conditions beside `lastTs`; 0.95 for a pipeline with
//! the condition in a `$cond` and only the `_id` in its filter; 0.5 for that filter without any condition,
//! which stores a resend twice. The insert of a document of its own for each flush costs 0.15, but people
//! would find as many documents of an hour as there were flushes, and each is one more to remove.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::super::encode::Encoder;
use super::super::stats::encode_value_at;
use super::super::{metadata, names};
use super::capacity::{Capacity, Size};
use super::document::{Body, SCHEMA_VERSION, encode_constant_fields, encode_readings};
use crate::config::BucketLayout;
use crate::model::{BucketWrite, Hour, HourOffset};

/// A write with all that its statement needs.
#[derive(Debug)]
pub(super) struct Job<'a> {
    /// The index of the write in its call.
    pub(super) at: usize,
    pub(super) write: &'a Arc<BucketWrite>,
    pub(super) metadata: Option<Map<String, Value>>,
    /// The size of the write, at least one reading.
    pub(super) size: Size,
    /// The first and the last instant of the write.
    pub(super) span: (HourOffset, HourOffset),
    /// The part that the fast path writes to.
    pub(super) part: i32,
}

/// Writes the statement that inserts a job as a part of its bucket.
pub(super) fn insert(statement: &mut Encoder, job: &Job<'_>, layout: BucketLayout) {
    let BucketWrite { device, hour, contents, .. } = &**job.write;
    let metadata = job.metadata.as_ref();
    let body = Body { layout, rev: 1, full: false, last: job.span.1, metadata, size: job.size, contents };
    insert_document(statement, device, *hour, job.part, &body);
}

/// Writes the statement that inserts a part of a bucket.
pub(super) fn insert_document(statement: &mut Encoder, device: &str, hour: Hour, part: i32, body: &Body<'_>) {
    statement.string("_id", &names::document_id(device, hour, part));
    statement.string("deviceId", device);
    encode_constant_fields(statement, device, hour, part);
    body.encode(statement, hour);
}

/// Writes the statement that appends a job to its part.
pub(super) fn append(statement: &mut Encoder, job: &Job<'_>, capacity: Capacity) {
    let (BucketWrite { device, hour, .. }, part) = (&**job.write, job.part);
    let before = capacity.largest_before(job.size);
    statement.document("q", |filter| {
        filter.string("_id", &names::document_id(device, *hour, part));
        filter.string("deviceId", device);
        filter.int32("schemaVersion", SCHEMA_VERSION);
        filter.document("lastTs", |is| is.datetime("$lt", hour.instant_ms(job.span.0)));
        filter.document("readingCount", |is| is.int64("$lte", before.readings as i64));
        // A packed document has no bytes.
        filter.document("bytes", |is| is.int64("$lte", before.bytes as i64));
        filter.document("full", |is| is.boolean("$exists", false));
    });
    statement.document("u", |update| operators(update, job, part));
    statement.boolean("upsert", true);
}

fn operators(update: &mut Encoder, job: &Job<'_>, part: i32) {
    let BucketWrite { device, hour, contents, .. } = &**job.write;
    let (first_ms, last_ms) = (hour.instant_ms(job.span.0), hour.instant_ms(job.span.1));
    let stats = contents.stats(*hour);
    let stats: Vec<(Cow<'_, str>, _)> = stats.iter().map(|(metric, fold)| (names::stored(metric), fold)).collect();

    update.document("$push", |push| {
        push.document("readings", |readings| encode_readings(readings, "$each", *hour, contents));
    });
    update.document("$inc", |inc| {
        inc.int64("rev", 1);
        inc.int64("readingCount", job.size.readings as i64);
        inc.int64("bytes", job.size.bytes as i64);
        for (metric, fold) in &stats {
            inc.int64(["stats.", metric, ".count"], fold.count as i64);
            inc.double(["stats.", metric, ".sum"], fold.sum);
        }
    });
    update.document("$min", |min| {
        for (metric, fold) in &stats {
            min.double(["stats.", metric, ".min"], fold.min);
            encode_value_at(min, ["stats.", metric, ".first"], fold.first);
        }
    });
    update.document("$max", |max| {
        for (metric, fold) in &stats {
            max.double(["stats.", metric, ".max"], fold.max);
            encode_value_at(max, ["stats.", metric, ".last"], fold.last);
        }
    });
    update.document("$set", |set| {
        set.datetime("lastTs", last_ms);
        if let Some(object) = &job.metadata {
            metadata::encode(set, "metadata", object);
        }
    });
    update.document("$setOnInsert", |set| match part {
        0 => {
            encode_constant_fields(set, device, *hour, 0);
            set.datetime("firstTs", first_ms); // an append is later than all that is stored
        }
        _ => set.string("_id", ""),
    });
}
