//! Filters on `ts`.
//!
//! The `_id`s of the server's own buckets have the seconds since 1970 in 32 bits. From a bound on `ts`, the
//! server derives a bound on these `_id`s. Server 6.0.5 does so as long as nothing before 1970 or after 2038
//! is stored. If a bound does not fit into 32 bits, it skips buckets that it should read:
//!
//! - It subtracts the span of a bucket from a lower bound. If the result is before 1970, it takes its minimum
//!   date instead. The lower 32 bits of that date mean 2017-11-28T00:21:29Z, so it skips all buckets before
//!   then.
//! - It takes the lower 32 bits of an upper bound. After 2106-02-07T06:28:15Z they mean some earlier time,
//!   which may be as early as 1970, so it skips all buckets after that time.
//!
//! From a negated bound on `ts` it derives no bound on the `_id`s, and compares each measurement.

use std::ops::Range;

use bson::{DateTime, Document, doc};

use crate::model::Hour;

/// The first lower bound that works: a bucket of the server's coarsest granularity spans 30 days. (Larger
/// spans need server 6.3.)
const BOUND_WORKS_FROM_MS: i64 = 30 * 86_400_000;

/// The last upper bound that is known to work: half of the seconds that 32 bits count.
const BOUND_WORKS_UNTIL_MS: i64 = (1 << 31) * 1_000;

/// Matches this instant and all later ones.
fn since(from_ms: i64) -> Document {
    let from = DateTime::from_millis(from_ms);
    let later = if from_ms >= BOUND_WORKS_FROM_MS {
        doc! { "$gte": from }
    } else {
        doc! { "$not": { "$lt": from } }
    };
    doc! { "ts": later }
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
    let [from, to] = [range_ms.start, range_ms.end].map(DateTime::from_millis);
    match (range_ms.start >= BOUND_WORKS_FROM_MS, range_ms.end <= BOUND_WORKS_UNTIL_MS) {
        (true, true) => doc! { "ts": { "$gte": from, "$lt": to } },
        (false, true) => doc! { "ts": { "$not": { "$lt": from }, "$lt": to } },
        (true, false) => doc! { "ts": { "$gte": from, "$not": { "$gte": to } } },
        (false, false) => doc! { "$nor": [{ "ts": { "$lt": from } }, { "ts": { "$gte": to } }] },
    }
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
            let expected = doc! { "ts": { "$gte": day(from.into()), "$lt": day(20_564) } };
            assert_eq!(during_hours(&hours).to_string(), expected.to_string());
        }
        let expected = doc! { "ts": { "$not": { "$lt": day(29) }, "$lt": day(30) } };
        assert_eq!(during_hours(&(Hour(29 * 24)..Hour(30 * 24))).to_string(), expected.to_string());
    }
}
