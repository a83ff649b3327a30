//! Time zones: found by name, and their offsets from UTC.

use jiff::Timestamp;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};

/// The time zone of this name in the IANA database.
///
/// An empty name is UTC. `None`: there is no such zone.
pub(super) fn find(name: &str) -> Option<TimeZone> {
    if name.is_empty() { Some(TimeZone::UTC) } else { TimeZone::get(name).ok() }
}

/// How far the zone is ahead of UTC at an instant, in nanoseconds.
pub(super) fn offset_ns(zone: &TimeZone, at_ns: i64) -> i64 {
    nanoseconds(zone.to_offset(timestamp(at_ns)))
}

/// The last change of a zone's clock at or before an instant: its instant, and the offset before it.
pub(super) fn last_change(zone: &TimeZone, at_ns: i64) -> Option<(i64, i64)> {
    let next_second = Timestamp::from_second(at_ns.div_euclid(1_000_000_000) + 1).ok()?;
    let change_ns = i64::try_from(zone.preceding(next_second).next()?.timestamp().as_nanosecond()).ok()?;
    Some((change_ns, offset_ns(zone, change_ns.saturating_sub(1_000_000_000))))
}

/// The first instant at which the clock of a zone shows a local time or a later one.
///
/// The local time is nanoseconds of this clock since it showed the start of 1970.
pub(super) fn first_instant(zone: &TimeZone, local_ns: i64) -> i64 {
    let local = Offset::UTC.to_datetime(timestamp(local_ns));
    match zone.to_ambiguous_timestamp(local).offset() {
        AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
            local_ns.saturating_sub(nanoseconds(offset))
        }
        AmbiguousOffset::Gap { before, .. } => {
            let after_gap = local_ns.saturating_sub(nanoseconds(before));
            last_change(zone, after_gap).map_or(after_gap, |(change_ns, _)| change_ns)
        }
    }
}

fn nanoseconds(offset: Offset) -> i64 {
    i64::from(offset.seconds()) * 1_000_000_000
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
