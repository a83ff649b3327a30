//! The window around the server's clock that the instant of a reading must be in.

use std::time::Duration;

use crate::common::clock::rfc3339;
use crate::wire::{Code, Format, Rejection, Source};

/// The earliest instant that has an RFC 3339 form: 0000-01-01T00:00:00Z, in Unix milliseconds.
const YEAR_0_MS: i64 = -62_167_219_200_000;

/// The greatest age at which a rejected time is plausible in another unit: ten years.
const PLAUSIBLE_AGE_MS: i64 = 10 * 366 * 86_400_000;

/// The first instant that is plausible in another unit if readings may have any age: in September 2001.
const FIRST_PLAUSIBLE_MS: i64 = 1_000_000_000_000;

/// The window of a request.
///
/// It depends on the clock at the start of the request. All instants are Unix milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    now: i64,
    /// The arrival, which is before `now` if a message has waited.
    arrival: i64,
    /// `None`: any time since year 0, but none of January 1970 that is plausible in a larger unit.
    earliest: Option<i64>,
    latest: i64,
    /// Whether the times of lines over HTTP are taken for nanoseconds.
    has_nanoseconds: bool,
}

impl Window {
    pub(super) fn new(now_ms: i64, max_age: Option<Duration>, max_future: Duration) -> Self {
        Self {
            now: now_ms,
            arrival: now_ms,
            earliest: max_age.map(|age| now_ms.saturating_sub(millis(age))),
            latest: now_ms.saturating_add(millis(max_future)),
            has_nanoseconds: true,
        }
    }

    pub(super) const fn arrival_ms(&self) -> i64 {
        self.arrival
    }

    /// Learns that the times of lines are not taken for nanoseconds.
    pub(super) const fn set_other_unit(&mut self) {
        self.has_nanoseconds = false;
    }

    /// Sets how long the current datagram or message has waited since its arrival.
    pub(super) fn set_waited(&mut self, waited: Duration) {
        self.arrival = self.now.saturating_sub(millis(waited));
    }

    /// Returns the instant of a reading: its own, or the arrival if it has none. It must be in the window.
    pub(super) fn check(&self, ts_ms: Option<i64>, source: Source) -> Result<i64, Rejection> {
        let ts_ms = ts_ms.unwrap_or(self.arrival);
        let (code, detail) = if ts_ms < self.earliest.unwrap_or(YEAR_0_MS) {
            let detail = self.earliest.map_or_else(
                || "times begin with year 0".to_owned(),
                |earliest| format!("older than retention.readings allows: the earliest is {} now", rfc3339(earliest)),
            );
            (Code::TimestampTooOld, detail)
        } else if ts_ms > self.latest {
            let latest = rfc3339(self.latest);
            let detail =
                format!("further ahead of the server's clock than ingest.max_future: the latest is {latest} now");
            (Code::TimestampInFuture, detail)
        } else if self.earliest.is_none() && self.in_larger_unit(ts_ms, source.format).is_some() {
            (Code::TimestampTooOld, format!("{} is probably a time in another unit", rfc3339(ts_ms)))
        } else {
            return Ok(ts_ms);
        };
        Err(Rejection { code, detail: detail + &self.unit_hint(ts_ms, source) })
    }

    /// Returns a hint if the number of a rejected instant would be plausible in another unit; otherwise an
    /// empty text.
    fn unit_hint(&self, ts_ms: i64, source: Source) -> String {
        if source == Source::http(Format::LineProtocol) && self.has_nanoseconds {
            // The whole milliseconds of nanoseconds are exact enough to recognize the unit.
            let is_meant = |factor: i64| self.times(ts_ms, factor).is_some();
            if is_meant(1_000_000_000) {
                return " (the time looks like seconds, and is taken for nanoseconds: add precision=s)".to_owned();
            }
            let units = [("milliseconds", "ms", 1_000_000), ("microseconds", "us", 1_000)];
            if let Some((unit, precision, _)) = units.into_iter().find(|(_, _, factor)| is_meant(*factor)) {
                return format!(" (is the time in {unit}? precision={precision} says so)");
            }
        }
        let larger = self.in_larger_unit(ts_ms, source.format);
        let divided = |divisor: i64| Some(ts_ms / divisor).filter(|ms| self.is_plausible(*ms));
        let units = [("seconds", larger), ("microseconds", divided(1_000)), ("nanoseconds", divided(1_000_000))];
        let Some((unit, meant_ms)) = units.into_iter().find_map(|(unit, meant)| Some((unit, meant?))) else {
            return String::new();
        };
        match source.format {
            Format::Json => format!(" ({ts_ms} looks like {unit}; a number here is Unix milliseconds)"),
            _ => format!(" (in another unit of time it would be {})", rfc3339(meant_ms)),
        }
    }

    /// Returns the instant that the number of a time means in a larger unit, if it is plausible there.
    ///
    /// Numbers in JSON and remote write are milliseconds, so that only seconds are a larger unit. In the
    /// other formats they may be nanoseconds.
    fn in_larger_unit(&self, ts_ms: i64, format: Format) -> Option<i64> {
        let factors: &[i64] = match format {
            Format::Json | Format::RemoteWrite => &[1_000],
            _ => &[1_000, 1_000_000, 1_000_000_000],
        };
        factors.iter().find_map(|factor| self.times(ts_ms, *factor))
    }

    /// Returns the instant times a factor, if that is plausible.
    fn times(&self, ts_ms: i64, factor: i64) -> Option<i64> {
        ts_ms.checked_mul(factor).filter(|ms| self.is_plausible(*ms))
    }

    fn is_plausible(&self, ms: i64) -> bool {
        let first =
            if self.earliest.is_some() { self.now.saturating_sub(PLAUSIBLE_AGE_MS) } else { FIRST_PLAUSIBLE_MS };
        (first..=self.latest).contains(&ms)
    }
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: i64 = 1_776_693_610_000;
    const JSON: Source = Source::http(Format::Json);
    const HOUR: Duration = Duration::from_secs(3600);
    const TEN_MINUTES: Duration = Duration::from_secs(600);

    #[test]
    fn the_window_is_inclusive_at_both_ends() {
        let at = |max_age, ts_ms| {
            let checked = Window::new(NOW_MS, max_age, TEN_MINUTES).check(Some(ts_ms), JSON);
            checked.map_err(|rejection| rejection.code)
        };
        for (ts_ms, refused) in [
            (NOW_MS - 3_600_000, None),
            (NOW_MS - 3_600_001, Some(Code::TimestampTooOld)),
            (NOW_MS + 600_000, None),
            (NOW_MS + 600_001, Some(Code::TimestampInFuture)),
            (i64::MIN, Some(Code::TimestampTooOld)),
            (i64::MAX, Some(Code::TimestampInFuture)),
        ] {
            assert_eq!(at(Some(HOUR), ts_ms), refused.map_or(Ok(ts_ms), Err));
        }
        assert_eq!(at(None, YEAR_0_MS), Ok(YEAR_0_MS));
        assert_eq!(at(None, YEAR_0_MS - 1), Err(Code::TimestampTooOld));
    }

    #[test]
    fn a_reading_without_a_time_gets_that_of_its_arrival() {
        let mut window = Window::new(NOW_MS, Some(HOUR), TEN_MINUTES);
        for (waited_ms, expected) in [
            (0, Ok(NOW_MS)),
            (3_600_000, Ok(NOW_MS - 3_600_000)),
            (3_600_001, Err(Code::TimestampTooOld)),
            (u64::MAX, Err(Code::TimestampTooOld)),
        ] {
            window.set_waited(Duration::from_millis(waited_ms));
            assert_eq!(window.check(None, JSON).map_err(|rejection| rejection.code), expected);
            assert!(window.check(Some(NOW_MS + 600_000), JSON).is_ok(), "the window does not move");
        }
    }

    #[test]
    fn a_number_in_another_unit_is_recognized() {
        let detail =
            |source, ts_ms| Window::new(NOW_MS, Some(HOUR), TEN_MINUTES).check(Some(ts_ms), source).unwrap_err().detail;
        for (ts_ms, unit) in [
            (NOW_MS / 1_000, "seconds"),
            (NOW_MS / 1_000 - 31_536_000, "seconds"), // too old in its own unit as well
            (NOW_MS * 1_000, "microseconds"),
            (NOW_MS * 1_000_000, "nanoseconds"),
        ] {
            let hint = format!(" ({ts_ms} looks like {unit}; a number here is Unix milliseconds)");
            for source in [JSON, Source::udp(Format::Json)] {
                assert!(detail(source, ts_ms).ends_with(&hint), "{}", detail(source, ts_ms));
            }
        }
        for source in [Source::http(Format::Senml), Source::udp(Format::LineProtocol)] {
            let detail = detail(source, NOW_MS / 1_000);
            assert!(detail.ends_with(" (in another unit of time it would be 2026-04-20T14:00:10.000Z)"), "{detail}");
        }
        for far in [NOW_MS - 86_400_000, NOW_MS + 86_400_000, 0, i64::MIN, i64::MAX] {
            assert!(detail(JSON, far).ends_with(" now"), "{}", detail(JSON, far));
        }
    }

    #[test]
    fn without_a_limit_of_age_a_time_that_is_plausible_in_a_larger_unit_is_too_old() {
        let check = |source, ts_ms| Window::new(NOW_MS, None, TEN_MINUTES).check(Some(ts_ms), source);
        let (lines, datagram) = (Source::http(Format::LineProtocol), Source::udp(Format::LineProtocol));
        for (source, ts_ms, hint) in [
            (JSON, NOW_MS / 1_000, "unit (1776693610 looks like seconds; a number here is Unix milliseconds)"),
            (JSON, 1_000_000_000, "(1000000000 looks like seconds; a number here is Unix milliseconds)"),
            (lines, NOW_MS / 1_000_000_000, "and is taken for nanoseconds: add precision=s)"),
            (lines, NOW_MS / 1_000_000, "(is the time in milliseconds? precision=ms says so)"),
            (lines, NOW_MS / 1_000, "(is the time in microseconds? precision=us says so)"),
            (datagram, 1_776, "(in another unit of time it would be 2026-04-12T13:20:00.000Z)"),
        ] {
            let Rejection { code, detail } = check(source, ts_ms).unwrap_err();
            assert_eq!(code, Code::TimestampTooOld);
            assert!(detail.starts_with("1970-01-") && detail.ends_with(hint), "{detail}");
        }
        for (source, accepted) in [
            (JSON, &[YEAR_0_MS, -NOW_MS / 1_000, 0, 1_776, 999_999_999, NOW_MS / 1_000 + 601, NOW_MS - 86_400_000][..]),
            (lines, &[-1_776, 0, 999, 1_777, 999_999, 1_777_294, 999_999_999, NOW_MS / 1_000 + 601, NOW_MS]),
        ] {
            for ts_ms in accepted {
                assert_eq!(check(source, *ts_ms), Ok(*ts_ms));
            }
        }
    }

    #[test]
    fn a_line_with_a_time_in_another_unit_is_advised_the_precision() {
        let detail = |ts_ms| {
            let checked =
                Window::new(NOW_MS, Some(HOUR), TEN_MINUTES).check(Some(ts_ms), Source::http(Format::LineProtocol));
            checked.unwrap_err().detail
        };
        for (unix_time, hint) in [
            (NOW_MS / 1_000, " (the time looks like seconds, and is taken for nanoseconds: add precision=s)"),
            (NOW_MS, " (is the time in milliseconds? precision=ms says so)"),
            (NOW_MS * 1_000, " (is the time in microseconds? precision=us says so)"),
        ] {
            let taken_for_nanoseconds = unix_time / 1_000_000;
            assert!(detail(taken_for_nanoseconds).ends_with(hint), "{}", detail(taken_for_nanoseconds));
        }
        let mut window = Window::new(NOW_MS, Some(HOUR), TEN_MINUTES);
        window.set_other_unit();
        let detail_of_microseconds = |unix_time: i64| {
            window.check(Some(unix_time / 1_000), Source::http(Format::LineProtocol)).unwrap_err().detail
        };
        for (unix_time, meant) in [(NOW_MS / 1_000, "13:50:00.000Z)"), (NOW_MS, "14:00:10.000Z)")] {
            let detail = detail_of_microseconds(unix_time);
            assert!(detail.ends_with(&format!(" (in another unit of time it would be 2026-04-20T{meant}")), "{detail}");
        }
        let seconds_as_milliseconds = NOW_MS * 1_000;
        assert!(detail(seconds_as_milliseconds).contains("(in another unit of time it would be 2026-04-20T14:00:10"));
        assert!(detail(NOW_MS - 86_400_000).ends_with(" now"));
    }
}
