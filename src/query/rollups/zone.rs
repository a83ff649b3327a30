//! Local time: the offsets of a time zone from UTC.

use std::ops::Range;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone, TimeZoneDatabase};

/// A time zone of the IANA database. The database is part of the program, so it is the same on each machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Zone(TimeZone);

impl Zone {
    /// Coordinated universal time.
    pub const UTC: Self = Self(TimeZone::UTC);

    /// Returns the zone of an IANA name, such as `Europe/Berlin`, in any case.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        TimeZoneDatabase::bundled().get(name).ok().map(Self)
    }

    /// Returns the instants of a local time. The text is `YYYY-MM-DDTHH:MM[:SS[.fff]]`, without an offset.
    /// `None`: it has another form.
    #[must_use]
    pub fn instant(&self, text: &str) -> Option<LocalInstant> {
        let local = local(text)?;
        let at = |offset: Offset| offset.to_timestamp(local).ok().map(Timestamp::as_millisecond);
        Some(match self.0.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => LocalInstant::Once(at(offset)?),
            AmbiguousOffset::Fold { before, after } => LocalInstant::Twice([at(before)?, at(after)?]),
            AmbiguousOffset::Gap { before, after } => LocalInstant::Never([at(after)?, at(before)?]),
        })
    }

    /// Returns the offset from UTC at an instant, in milliseconds.
    #[must_use]
    pub fn offset_ms_at(&self, ts_ms: i64) -> i64 {
        Timestamp::from_millisecond(ts_ms).map_or(0, |instant| offset_ms(self.0.to_offset(instant)))
    }

    /// Returns the offsets from UTC within a range of instants (Unix milliseconds).
    #[must_use]
    pub fn local_time(&self, range_ms: Range<i64>) -> LocalTime {
        let end_of_time = |ms: i64| if ms < 0 { Timestamp::MIN } else { Timestamp::MAX };
        let timestamp = |ms: i64| Timestamp::from_millisecond(ms).unwrap_or_else(|_| end_of_time(ms));
        let [start, end] = [range_ms.start, range_ms.end].map(timestamp);
        let mut periods = vec![(i64::MIN, offset_ms(self.0.to_offset(start)))];
        for transition in self.0.following(start).take_while(|transition| transition.timestamp() < end) {
            let offset_ms = offset_ms(transition.offset());
            if periods.last().is_some_and(|(_, before)| *before != offset_ms) {
                periods.push((transition.timestamp().as_millisecond(), offset_ms));
            }
        }
        LocalTime { periods }
    }
}

/// The instants of a local time, in Unix milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalInstant {
    /// One instant.
    Once(i64),
    /// Two instants, because the clock is set back and shows the time twice.
    Twice([i64; 2]),
    /// No instant, because the clock is set forward and skips the time. The two instants, ascending, are what
    /// the time would be with the offset after the change, and with the offset before it.
    Never([i64; 2]),
}

/// Whether a text is a date and a time without an offset.
#[must_use]
pub fn is_local_time(text: &str) -> bool {
    local(text).is_some()
}

fn local(text: &str) -> Option<DateTime> {
    let (date, time) = (text.get(..10)?, text.get(11..)?);
    let is = |part: &str, marks: &[u8]| part.bytes().all(|byte| byte.is_ascii_digit() || marks.contains(&byte));
    let is_local = is(date, b"-") && matches!(text.as_bytes()[10], b'T' | b't' | b' ') && is(time, b":.");
    if is_local && time.contains(':') { text.parse().ok() } else { None }
}

fn offset_ms(offset: Offset) -> i64 {
    i64::from(offset.seconds()) * 1_000
}

/// The local time of a range: periods, each with one offset from UTC.
#[derive(Debug, Clone)]
pub struct LocalTime {
    /// The start of each period (Unix milliseconds), and its offset (milliseconds).
    ///
    /// There is at least one period. They ascend, and the first one starts at `i64::MIN`.
    periods: Vec<(i64, i64)>,
}

impl LocalTime {
    /// Returns the start, the end and the offset of each period.
    pub(super) fn periods(&self) -> impl Iterator<Item = (i64, i64, i64)> + '_ {
        let ends = self.periods.iter().skip(1).map(|(start_ms, _)| *start_ms).chain([i64::MAX]);
        self.periods.iter().zip(ends).map(|(&(start_ms, offset_ms), end_ms)| (start_ms, end_ms, offset_ms))
    }

    /// Returns the time of a clock that is `by_ms` behind the local one.
    pub(super) fn behind(&self, by_ms: i64) -> Self {
        Self { periods: self.periods.iter().map(|(start_ms, offset_ms)| (*start_ms, offset_ms - by_ms)).collect() }
    }

    /// Returns the offset from UTC at an instant, in milliseconds.
    #[must_use]
    pub fn offset_ms_at(&self, ts_ms: i64) -> i64 {
        let after = self.periods.partition_point(|(start_ms, _)| *start_ms <= ts_ms);
        self.periods[after.saturating_sub(1)].1
    }

    /// Returns the time that the local clock shows at an instant. If the clock was set back, it is the latest
    /// time that it has shown before.
    pub(super) fn shown_before(&self, ts_ms: i64) -> i64 {
        let after = self.periods.partition_point(|(start_ms, _)| *start_ms < ts_ms).max(1);
        let (start_ms, offset_ms) = self.periods[after - 1];
        let end_before = after.checked_sub(2).map_or(i64::MIN, |nth| start_ms + self.periods[nth].1);
        (ts_ms + offset_ms).max(end_before)
    }

    /// Returns the first instant when the local clock shows `local_ms` or a later time.
    pub(super) fn first_instant(&self, local_ms: i64) -> i64 {
        // No clock is ahead of UTC by `MAX_OFFSET_MS`. So none shows `local_ms` more than this time before
        // the instant `local_ms`, and earlier periods are skipped.
        let from = self.periods.partition_point(|(start_ms, _)| *start_ms <= local_ms.saturating_sub(MAX_OFFSET_MS));
        for (nth, (start_ms, offset_ms)) in self.periods.iter().enumerate().skip(from.saturating_sub(1)) {
            let instant_ms = (local_ms - offset_ms).max(*start_ms);
            if self.periods.get(nth + 1).is_none_or(|(end_ms, _)| instant_ms < *end_ms) {
                return instant_ms;
            }
        }
        local_ms // not reached: the last period has no end
    }
}

/// More than any clock is ahead of UTC: 26 hours.
const MAX_OFFSET_MS: i64 = 26 * 3_600_000;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn zone(name: &str) -> Zone {
        Zone::named(name).expect(name)
    }

    fn ms(text: &str) -> i64 {
        text.parse::<Timestamp>().expect(text).as_millisecond()
    }

    #[test]
    fn zones_have_names_in_any_case_and_nothing_else() {
        assert_eq!(Zone::named("europe/berlin"), Zone::named("Europe/Berlin"));
        for name in ["", "Mars/Olympus", "../../etc/passwd", "+01:00", "Europe/Berlin\0", &"a".repeat(100_000)] {
            assert_eq!(Zone::named(name), None, "{name:.40}");
        }
        assert!(jiff_database_is_bundled());
    }

    fn jiff_database_is_bundled() -> bool {
        TimeZoneDatabase::bundled().available().count() > 400
    }

    #[test]
    fn offsets_change_at_the_transitions_within_the_range() {
        let berlin = zone("Europe/Berlin").local_time(ms("2024-01-01T00:00:00Z")..ms("2025-01-01T00:00:00Z"));
        let hours: Vec<i64> = berlin.periods().map(|(.., offset_ms)| offset_ms / 3_600_000).collect();
        assert_eq!(hours, [1, 2, 1]);
        let change = ms("2024-03-31T01:00:00Z");
        assert_eq!((berlin.offset_ms_at(change - 1), berlin.offset_ms_at(change)), (3_600_000, 7_200_000));
        let all = zone("America/New_York").local_time(-62_167_219_200_000..253_402_300_800_000);
        assert!(all.periods().count() > 16_000, "by the rule of the zone: {}", all.periods().count());
        assert_eq!(Zone::UTC.local_time(i64::MIN..i64::MAX).periods().count(), 1);
    }

    #[test]
    fn the_first_instant_of_a_local_time_is_that_of_a_clock() {
        for (name, year) in [("Australia/Lord_Howe", 2024), ("America/Sao_Paulo", 2018), ("Pacific/Apia", 2011)] {
            let range = ms(&format!("{year}-01-01T00:00:00Z"))..ms(&format!("{}-01-02T00:00:00Z", year + 1));
            let local = zone(name).local_time(range.clone());
            let mut shown = i64::MIN; // the latest time that the clock has shown
            for ts_ms in range.step_by(900_000) {
                let now = ts_ms + local.offset_ms_at(ts_ms);
                if now > shown {
                    assert_eq!(local.first_instant(now), ts_ms, "{name}");
                    shown = now;
                }
            }
        }
    }
}
