//! Judges whether a disk has space for a store until its first readings expire. Pure.

use std::time::Duration;

use crate::common::finding::{Finding, Part, size, span};

/// The shortest time from which growth is estimated.
const COVERED_MIN: Duration = Duration::from_secs(86_400);

/// Without expiry, a disk that is full earlier than this is a warning.
const FOREVER_MIN: Duration = Duration::from_secs(30 * 86_400);

/// The size of a store, and the time that its readings cover.
#[derive(Debug, Clone, Copy)]
pub(super) struct Growth {
    /// The bytes that the store takes on disk.
    pub(super) bytes: u64,
    /// The time from its oldest reading until now.
    pub(super) covered: Duration,
    /// How long readings are kept; `None`: forever.
    pub(super) retention: Option<Duration>,
    /// The bytes that the disk has free.
    pub(super) free: u64,
}

/// Judges whether the disk has space for `what`, if it grows as it did.
pub(super) fn outlook(part: Part, what: &str, growth: &Growth) -> Finding {
    let Growth { bytes, covered, retention, free } = *growth;
    let now =
        format!("{what} takes {} for {} of readings, and its disk has {} free", size(bytes), span(covered), size(free));
    if covered < COVERED_MIN {
        return Finding::ok(part, format!("{now}; that is too short to tell how it grows"));
    }
    let per_second = bytes as f64 / covered.as_secs_f64();
    let full_in = Duration::try_from_secs_f64(free as f64 / per_second).unwrap_or(Duration::MAX);
    let mend = "enlarge the disk of the store, or shorten retention.readings";
    let Some(retention) = retention else {
        let message = format!("{now}; readings are kept forever, so the disk is full in about {}", span(full_in));
        return if full_in < FOREVER_MIN {
            Finding::warning(part, message, "enlarge the disk of the store, or set retention.readings")
        } else {
            Finding::ok(part, message)
        };
    };
    let at_the_end = (per_second * retention.as_secs_f64()).max(bytes as f64);
    let message = format!("{now}; with {} of readings it takes {}", span(retention), size(at_the_end as u64));
    let more = (at_the_end - bytes as f64) as u64;
    if more > free {
        return Finding::warning(part, format!("{message}, so the disk is full in about {}", span(full_in)), mend);
    }
    Finding::ok(part, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::finding::Severity;

    #[test]
    fn a_disk_that_is_full_before_the_first_readings_expire_is_a_warning() {
        const DAY: Duration = Duration::from_secs(86_400);
        let severity = |days: u32, kept: Option<u32>, free: u64| {
            let growth = Growth { bytes: 1_000, covered: DAY * days, retention: kept.map(|kept| DAY * kept), free };
            outlook(Part::ServerGrowth, "it", &growth).severity
        };
        assert_eq!(severity(10, Some(90), 8_001), Severity::Ok);
        assert_eq!(severity(10, Some(90), 7_999), Severity::Warning);
        assert_eq!(severity(90, Some(90), 0), Severity::Ok, "it does not grow any more");
        assert_eq!(severity(0, Some(90), 0), Severity::Ok, "it is too early to tell");
        assert_eq!((severity(10, None, 2_999), severity(10, None, 3_001)), (Severity::Warning, Severity::Ok));
        let empty = Growth { bytes: 0, covered: DAY, retention: None, free: u64::MAX };
        assert_eq!(outlook(Part::ServerGrowth, "it", &empty).severity, Severity::Ok);
    }
}
