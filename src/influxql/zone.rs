//! Time zones: found by name, and their offsets from UTC.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The time zone of this name in the IANA database.
///
/// An empty name is UTC. `None`: there is no such zone.
pub(super) fn find(name: &str) -> Option<TimeZone> {
    if name.is_empty() { Some(TimeZone::UTC) } else { TimeZone::get(name).ok() }
}

/// How far the zone is ahead of UTC at an instant, in nanoseconds.
pub(super) fn offset_ns(zone: &TimeZone, at_ns: i64) -> i64 {
    i64::from(zone.to_offset(timestamp(at_ns)).seconds()) * 1_000_000_000
}

/// Whether each hour of a zone is also an hour of UTC, in a range of instants.
///
/// The offsets must be whole hours, and must change only at whole hours.
pub(super) fn has_whole_hours(zone: &TimeZone, min_ns: i64, max_ns: i64) -> bool {
    let is_whole = |seconds: i32| seconds % 3600 == 0;
    is_whole(zone.to_offset(timestamp(min_ns)).seconds())
        && zone
            .following(timestamp(min_ns))
            .take_while(|change| change.timestamp() <= timestamp(max_ns))
            .all(|change| is_whole(change.offset().seconds()) && change.timestamp().as_second() % 3600 == 0)
}

pub(super) fn timestamp(at_ns: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(at_ns)).unwrap_or(Timestamp::UNIX_EPOCH)
}
