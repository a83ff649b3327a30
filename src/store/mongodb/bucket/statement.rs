//! The fast path's statement: append a flush to its bucket's document, or do nothing at all.
//!
//! The filter holds only when every reading of the flush is later than all that the bucket has, there is room for it, and
//! the bucket has no other part. When it does not hold, the upsert tries to insert, and the `_id` being taken makes that
//! a duplicate key error.

use std::borrow::Cow;

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

/// The statement of a job, for documents that hold `capacity` readings.
pub(super) fn append(statement: &mut Encoder, job: &Job<'_>, capacity: usize) {
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
