//! The working hours of the factory and the course of a day, both in UTC.

use std::f64::consts::TAU;

pub(super) const SECOND_MS: i64 = 1_000;
pub(super) const MINUTE_MS: i64 = 60 * SECOND_MS;
pub(super) const HOUR_MS: i64 = 60 * MINUTE_MS;
pub(super) const DAY_MS: i64 = 24 * HOUR_MS;
pub(super) const WEEK_MS: i64 = 7 * DAY_MS;

/// The working hours from Monday to Sunday.
///
/// `(6, 22)` is from 06:00 to 22:00; `(0, 0)` is a day without work.
const WORK: [(i64, i64); 7] = [(6, 22), (6, 22), (6, 22), (6, 22), (6, 22), (6, 14), (0, 0)];
/// A Monday, 1970-01-05.
const MONDAY_MS: i64 = 4 * DAY_MS;

/// Whether the factory works at an instant.
pub(super) fn is_work(ts_ms: i64) -> bool {
    let of_week = (ts_ms - MONDAY_MS).rem_euclid(WEEK_MS);
    let (first, end) = WORK[(of_week / DAY_MS) as usize];
    (first * HOUR_MS..end * HOUR_MS).contains(&(of_week % DAY_MS))
}

/// The time for which the factory has worked since a Monday long ago.
pub(super) fn worked_ms(ts_ms: i64) -> i64 {
    let (weeks, of_week) = ((ts_ms - MONDAY_MS).div_euclid(WEEK_MS), (ts_ms - MONDAY_MS).rem_euclid(WEEK_MS));
    let of_day = |(day, (first, end)): (i64, (i64, i64))| {
        let begin = day * DAY_MS + first * HOUR_MS;
        (of_week - begin).clamp(0, (end - first) * HOUR_MS)
    };
    let whole_week: i64 = WORK.iter().map(|(first, end)| (end - first) * HOUR_MS).sum();
    weeks * whole_week + (0..).zip(WORK).map(of_day).sum::<i64>()
}

/// The course of a day: 1 at the hour of its peak, -1 twelve hours later.
pub(super) fn day_curve(ts_ms: i64, peak_hour: i64) -> f64 {
    let part = (ts_ms - peak_hour * HOUR_MS).rem_euclid(DAY_MS) as f64 / DAY_MS as f64;
    (part * TAU).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-04-20, a Monday.
    const MONDAY: i64 = 1_776_643_200_000;

    #[test]
    fn the_factory_works_from_monday_to_saturday() {
        for (day, hour, works) in [
            (0, 5, false),
            (0, 6, true),
            (0, 21, true),
            (0, 22, false),
            (4, 21, true),
            (5, 13, true),
            (5, 14, false),
            (6, 12, false),
            (7, 12, true),
        ] {
            assert_eq!(is_work(MONDAY + day * DAY_MS + hour * HOUR_MS), works, "day {day}, hour {hour}");
        }
    }

    #[test]
    fn the_time_worked_is_the_sum_of_the_hours_of_work() {
        let mut worked = worked_ms(-WEEK_MS);
        for hour in -7 * 24..14 * 24 {
            let ts_ms = hour * HOUR_MS;
            assert_eq!(worked_ms(ts_ms), worked, "hour {hour}");
            worked += if is_work(ts_ms) { HOUR_MS } else { 0 };
        }
        let (noon, minute) = (MONDAY + 12 * HOUR_MS, MINUTE_MS);
        assert_eq!(worked_ms(noon + minute) - worked_ms(noon), minute);
    }

    #[test]
    fn a_day_has_its_peak_at_the_hour() {
        assert!((day_curve(MONDAY + 15 * HOUR_MS, 15) - 1.0).abs() < 1e-12);
        assert!((day_curve(MONDAY + 3 * HOUR_MS, 15) + 1.0).abs() < 1e-12);
    }
}
