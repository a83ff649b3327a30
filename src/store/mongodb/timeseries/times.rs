//! Filters on `ts`.
//!
//! The server derives from a lower bound on `ts` a bound on the `_id`s of its own buckets: the bound less the
//! span of a bucket, in seconds since 1970. If that is before 1970, server 6.0.5 takes its minimum date,
//! whose lower 32 bits mean 2017-11-28T00:21:29Z, and skips all buckets before that. It does so while nothing
//! before 1970 is stored. It derives no bound on the `_id`s from a negated bound, and compares each
//! measurement.

use std::ops::Range;

use bson::{DateTime, Document, doc};

use crate::model::Hour;

/// The first lower bound that works: a bucket of the server's coarsest granularity spans 30 days. (Larger
/// spans need server 6.3.)
const BOUND_WORKS_FROM_MS: i64 = 30 * 86_400_000;

/// Matches this instant and all later ones.
pub(super) fn since(from_ms: i64) -> Document {
    let from = DateTime::from_millis(from_ms);
    if from_ms >= BOUND_WORKS_FROM_MS {
        doc! { "$gte": from }
    } else {
        doc! { "$not": { "$lt": from } }
    }
}

/// Matches this instant and all later ones, in parts that follow one another. The server finds each of them
/// by a bound. The first part has measurements only where clocks are wrong.
pub(super) fn parts_since(from_ms: i64) -> Vec<Document> {
    if from_ms >= BOUND_WORKS_FROM_MS {
        vec![since(from_ms)]
    } else {
        vec![during(&(from_ms..BOUND_WORKS_FROM_MS)), since(BOUND_WORKS_FROM_MS)]
    }
}

/// Matches the instants of a range.
pub(super) fn during(range_ms: &Range<i64>) -> Document {
    let mut filter = since(range_ms.start);
    filter.insert("$lt", DateTime::from_millis(range_ms.end));
    filter
}

/// Matches the instants of hours.
pub(super) fn during_hours(hours: &Range<Hour>) -> Document {
    during(&(hours.start.start_ms()..hours.end.start_ms()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_that_works_stays_as_it_is() {
        let day = |day: i64| DateTime::from_millis(day * 86_400_000);
        for from in [30, 31, 20_563] {
            let hours = Hour(from * 24)..Hour(20_564 * 24);
            let expected = doc! { "$gte": day(from.into()), "$lt": day(20_564) };
            assert_eq!(during_hours(&hours).to_string(), expected.to_string());
        }
        let expected = doc! { "$not": { "$lt": day(29) }, "$lt": day(30) };
        assert_eq!(during_hours(&(Hour(29 * 24)..Hour(30 * 24))).to_string(), expected.to_string());
    }
}
