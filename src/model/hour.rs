//! UTC hours, offsets inside them, and UTC days.

use std::ops::Range;

/// Milliseconds in an hour.
pub const MS_PER_HOUR: i64 = 3_600_000;

/// Hours in a day.
const HOURS_PER_DAY: i32 = 24;

/// Milliseconds since the start of an hour: 0 to 3,599,999.
pub type HourOffset = u32;

/// A UTC hour, counted from 1970-01-01T00:00:00Z. The bucket of a reading is its device and its hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hour(pub i32);

impl Hour {
    /// All hours that a device may have.
    pub const ALL: Range<Self> = Self(i32::MIN)..Self(i32::MAX);

    /// An hour in the year 13,377. It is near enough that a walk over all hours until then ends.
    pub(crate) const FARTHEST: i32 = 100_000_000;

    /// The hour of the instant `ts_ms` (Unix milliseconds).
    ///
    /// The clock window of admission limits instants to the years 0 to 9999. A stored document of another
    /// program may have an instant that no hour has: it counts as one far in the future or in the past.
    #[must_use]
    pub const fn of(ts_ms: i64) -> Self {
        let hours = ts_ms.div_euclid(MS_PER_HOUR);
        let hour = hours as i32;
        if hour as i64 == hours {
            Self(hour)
        } else if hours > 0 {
            Self(Self::FARTHEST)
        } else {
            Self(-Self::FARTHEST)
        }
    }

    /// The first hour that starts at or after `ts_ms`.
    #[must_use]
    pub const fn at_or_after(ts_ms: i64) -> Self {
        Self::of(ts_ms + MS_PER_HOUR - 1)
    }

    /// The start of the hour, in Unix milliseconds.
    #[must_use]
    pub const fn start_ms(self) -> i64 {
        self.0 as i64 * MS_PER_HOUR
    }

    /// The start of the next hour, in Unix milliseconds.
    #[must_use]
    pub const fn end_ms(self) -> i64 {
        self.start_ms() + MS_PER_HOUR
    }

    /// The instant `offset` into the hour, in Unix milliseconds.
    #[must_use]
    pub const fn instant_ms(self, offset: HourOffset) -> i64 {
        self.start_ms() + offset as i64
    }

    /// The offset of the instant `ts_ms` into its hour.
    #[must_use]
    pub const fn offset_of(ts_ms: i64) -> HourOffset {
        ts_ms.rem_euclid(MS_PER_HOUR) as HourOffset
    }
}

/// A UTC day, counted from 1970-01-01.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(pub i32);

impl Day {
    /// The day of an hour.
    #[must_use]
    pub const fn of(hour: Hour) -> Self {
        Self(hour.0.div_euclid(HOURS_PER_DAY))
    }

    /// The hours of the day.
    #[must_use]
    pub const fn hours(self) -> Range<Hour> {
        let first = self.0 * HOURS_PER_DAY;
        Hour(first)..Hour(first + HOURS_PER_DAY)
    }

    /// The start of the day, in Unix milliseconds.
    #[must_use]
    pub const fn start_ms(self) -> i64 {
        self.hours().start.start_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_has_its_hours_before_and_after_1970() {
        for hour in [Hour(0), Hour(23), Hour(24), Hour(-1), Hour(-24), Hour(-25), Hour(493_526)] {
            assert!(Day::of(hour).hours().contains(&hour), "{hour:?}");
        }
        assert_eq!((Day::of(Hour(-1)), Day(1).start_ms()), (Day(-1), 86_400_000));
    }

    #[test]
    fn an_instant_is_its_hour_and_its_offset_before_and_after_1970() {
        let year_200_000 = 6_249_000_000_000_001;
        for ts_ms in [0, 1, -1, 3_599_999, 3_600_000, -3_600_000, -3_600_001, 1_776_693_610_000, year_200_000] {
            let hour = Hour::of(ts_ms);
            assert!(hour.start_ms() <= ts_ms && ts_ms < hour.end_ms(), "{ts_ms}");
            assert_eq!(hour.instant_ms(Hour::offset_of(ts_ms)), ts_ms);
        }
        assert_eq!(Hour::at_or_after(MS_PER_HOUR), Hour(1));
        assert_eq!(Hour::at_or_after(MS_PER_HOUR + 1), Hour(2));
    }

    #[test]
    fn an_instant_that_no_hour_has_is_far_away_on_the_same_side() {
        let [year_0, year_10_000] = [-62_167_219_200_000, 253_402_300_800_000].map(Hour::of);
        for far_ms in [8_640_000_000_000_000, i64::MAX] {
            assert!(Hour::of(far_ms) > year_10_000 && Hour::of(-far_ms) < year_0, "{far_ms}");
            assert!(Day::of(Hour::of(far_ms)).hours().contains(&Hour::of(far_ms)), "{far_ms}");
        }
        for hour in [Hour::ALL.start, Hour::ALL.end] {
            assert_eq!(Hour::of(hour.start_ms()), hour);
        }
    }
}
