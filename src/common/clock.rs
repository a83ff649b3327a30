//! The wall clock, and dates as text.
//!
//! [`Clock::now_ms`] is the only place that reads the wall clock of the system. The wall clock may jump. So
//! rooms measure durations with `Instant`, and use the [`Clock`] only for dates: the window in which readings
//! are accepted, the end of hours, and the expiry of tokens, certificates and stored readings.

use std::ops::RangeInclusive;
#[cfg(test)]
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

const MS_PER_DAY: i64 = 86_400_000;

/// The wall clock of the system or, in tests, one that the test sets.
#[derive(Debug, Clone)]
pub struct Clock {
    #[cfg(test)]
    set: Option<Arc<AtomicI64>>,
}

impl Clock {
    /// The wall clock of the system.
    #[must_use]
    pub const fn system() -> Self {
        Self {
            #[cfg(test)]
            set: None,
        }
    }

    /// A clock for tests, which shows `now_ms` until [`Self::set`] changes it.
    ///
    /// All its clones show the same time.
    #[cfg(test)]
    #[must_use]
    pub fn fixed(now_ms: i64) -> Self {
        Self { set: Some(Arc::new(AtomicI64::new(now_ms))) }
    }

    /// Sets a clock for tests, and all its clones.
    #[cfg(test)]
    pub fn set(&self, now_ms: i64) {
        self.set.as_ref().expect("a clock for tests").store(now_ms, Ordering::SeqCst);
    }

    /// The date in Unix milliseconds, negative before 1970.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        #[cfg(test)]
        if let Some(set) = &self.set {
            return set.load(Ordering::SeqCst);
        }
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_millis() as i64,
            Err(before) => -(before.duration().as_millis() as i64),
        }
    }
}

/// An instant as RFC 3339 in UTC with milliseconds.
///
/// An instant that jiff cannot show, such as one in the last 26 hours of the year 9999, becomes its number of
/// milliseconds.
#[must_use]
pub fn rfc3339(ts_ms: i64) -> String {
    let mut text = Vec::with_capacity(24);
    write_rfc3339(&mut text, ts_ms);
    String::from_utf8(text).expect("ASCII")
}

/// The instants from the year 0 to the last one that jiff can show.
///
/// Their texts have 24 characters.
const USUAL_MS: RangeInclusive<i64> = -62_167_219_200_000..=253_402_207_199_999;

/// Appends an instant in the form of [`rfc3339`].
///
/// It does not use jiff, which is slower: an answer has tens of thousands of instants.
pub fn write_rfc3339(text: &mut Vec<u8>, ts_ms: i64) {
    if !USUAL_MS.contains(&ts_ms) {
        let unusual = jiff::Timestamp::from_millisecond(ts_ms)
            .map_or_else(|_| ts_ms.to_string(), |instant| format!("{instant:.3}"));
        text.extend_from_slice(unusual.as_bytes());
        return;
    }
    let (year, month, day) = civil_date(ts_ms.div_euclid(MS_PER_DAY) as i32);
    let of_day = ts_ms.rem_euclid(MS_PER_DAY) as i32;
    let mut form = *b"0000-00-00T00:00:00.000Z";
    for (number, place) in [
        (year, 0..4),
        (month, 5..7),
        (day, 8..10),
        (of_day / 3_600_000, 11..13),
        (of_day / 60_000 % 60, 14..16),
        (of_day / 1_000 % 60, 17..19),
        (of_day % 1_000, 20..23),
    ] {
        let mut rest = number as u32;
        for digit in form[place].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }
    text.extend_from_slice(&form);
}

/// The instant of `now`, or of a time before now such as `-24h`.
///
/// Other texts are `None`. A time that is too long ago for an `i64` is close to `i64::MIN`.
#[must_use]
pub fn relative_ms(text: &str, now_ms: i64) -> Option<i64> {
    if text == "now" {
        return Some(now_ms);
    }
    let length = text.strip_prefix('-')?;
    let unit = length.char_indices().next_back()?;
    let unit_ms = match unit.1 {
        's' => 1_000,
        'm' => 60_000,
        'h' => 3_600_000,
        'd' => MS_PER_DAY,
        'w' => 7 * MS_PER_DAY,
        _ => return None,
    };
    let number = &length[..unit.0];
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let before = number.parse::<i64>().map_or(i64::MAX, |number| number.saturating_mul(unit_ms));
    Some(now_ms.saturating_sub(before))
}

/// Writes instants as text, fast for full hours of the same day in succession.
///
/// The texts of two hours of one day differ in two digits, so only these digits are written again.
#[derive(Debug, Default)]
pub struct HourTexts {
    /// The text of the instant that was asked for last.
    text: Vec<u8>,
    /// The day of the last instant, in days since 1970-01-01.
    ///
    /// `None` if the instant was no full hour, or not in [`USUAL_MS`].
    day: Option<i64>,
}

impl HourTexts {
    /// The text of an instant in the form of [`rfc3339`].
    pub fn text_of(&mut self, ts_ms: i64) -> &[u8] {
        let (day, of_day) = (ts_ms.div_euclid(MS_PER_DAY), ts_ms.rem_euclid(MS_PER_DAY));
        let is_full_hour = of_day % 3_600_000 == 0;
        if is_full_hour && self.day == Some(day) {
            let hour = (of_day / 3_600_000) as u8;
            self.text[11..13].copy_from_slice(&[b'0' + hour / 10, b'0' + hour % 10]);
        } else {
            self.text.clear();
            write_rfc3339(&mut self.text, ts_ms);
            self.day = (is_full_hour && USUAL_MS.contains(&ts_ms)).then_some(day);
        }
        &self.text
    }
}

/// Writes instants of one hour as text, fast for files with millions of them.
#[derive(Debug)]
pub struct HourInstants {
    /// The text of the instant that was asked for last.
    text: Vec<u8>,
    start_ms: i64,
    is_usual: bool,
}

impl HourInstants {
    /// Writes instants of the hour that begins at `start_ms`.
    #[must_use]
    pub fn new(start_ms: i64) -> Self {
        let mut text = Vec::with_capacity(24);
        write_rfc3339(&mut text, start_ms);
        let is_usual = start_ms % 3_600_000 == 0 && USUAL_MS.contains(&start_ms);
        Self { text, start_ms, is_usual: is_usual && USUAL_MS.contains(&(start_ms + 3_599_999)) }
    }

    /// The text of the instant `offset_ms` after the start of the hour.
    ///
    /// The offset is less than an hour. The form is that of [`rfc3339`].
    pub fn text_of(&mut self, offset_ms: u32) -> &[u8] {
        if !self.is_usual {
            self.text.clear();
            write_rfc3339(&mut self.text, self.start_ms + i64::from(offset_ms));
            return &self.text;
        }
        let (seconds, ms) = (offset_ms / 1_000, offset_ms % 1_000);
        let two = |number: u32| [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        self.text[14..16].copy_from_slice(&two(seconds / 60));
        self.text[17..19].copy_from_slice(&two(seconds % 60));
        self.text[20] = b'0' + (ms / 100) as u8;
        self.text[21..23].copy_from_slice(&two(ms % 100));
        &self.text
    }
}

/// The year, month and day of a number of days since 1970-01-01.
///
/// It does not use jiff, whose dates end with the year 9999: an hour may be later. Source:
/// <https://howardhinnant.github.io/date_algorithms.html#civil_from_days>.
pub fn civil_date(days: i32) -> (i32, i32, i32) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + i32::from(month <= 2), month, day)
}

/// The number of days from 1970-01-01 to a date: the inverse of [`civil_date`].
pub fn days_since_1970(year: i32, month: i32, day: i32) -> i32 {
    let year = year - i32::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let from_march = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
}

/// Appends an instant as RFC 3339 with an offset from UTC, such as `+02:00`.
///
/// RFC 3339 has offsets of whole minutes, so the seconds of historical offsets are left out.
pub fn write_local_rfc3339(text: &mut Vec<u8>, ts_ms: i64, offset_ms: i64) {
    let minutes = offset_ms / 60_000;
    write_rfc3339(text, ts_ms + minutes * 60_000);
    if text.pop_if(|last| *last == b'Z').is_some() {
        let sign = if minutes < 0 { '-' } else { '+' };
        let (hours, minutes) = (minutes.abs() / 60, minutes.abs() % 60);
        text.extend_from_slice(format!("{sign}{hours:02}:{minutes:02}").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_clones_of_a_clock_for_tests_show_what_was_set() {
        let clock = Clock::fixed(-1);
        let other = clock.clone();
        assert_eq!(other.now_ms(), -1);
        clock.set(1_776_693_610_000);
        assert_eq!(other.now_ms(), 1_776_693_610_000);
    }

    #[test]
    fn hours_that_follow_each_other_have_the_text_of_each() {
        let mut texts = HourTexts::default();
        let hours = (-50..50).map(|hour| hour * 3_600_000);
        let days = [i64::MIN, *USUAL_MS.start(), *USUAL_MS.end(), 253_402_207_200_000, 253_402_210_800_000, i64::MAX];
        for ts_ms in hours.chain([1, 3_600_000, 3_600_001, 7_200_000]).chain(days) {
            assert_eq!(texts.text_of(ts_ms), rfc3339(ts_ms).as_bytes());
        }
    }

    #[test]
    fn instants_of_an_hour_have_the_text_of_each() {
        let ends = [*USUAL_MS.start(), 253_402_203_600_000, 253_402_207_200_000, -377_705_116_800_000, 1];
        for start_ms in ends.into_iter().chain([-3_600_000, 0, 1_776_693_600_000]) {
            let mut instants = HourInstants::new(start_ms);
            for offset in (0..3_600_000).step_by(7_919).chain([3_599_999, 0, 999, 1_000]) {
                assert_eq!(instants.text_of(offset), rfc3339(start_ms + i64::from(offset)).as_bytes());
            }
        }
    }

    #[test]
    fn an_instant_without_a_form_becomes_its_number() {
        assert_eq!(rfc3339(1_776_693_610_000), "2026-04-20T14:00:10.000Z");
        assert_eq!(rfc3339(-62_167_219_200_000), "0000-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(i64::MIN), i64::MIN.to_string());
    }

    #[test]
    fn the_own_form_of_an_instant_is_that_of_jiff() {
        let (first, last) = (*USUAL_MS.start(), *USUAL_MS.end());
        let steps = (first..=last).step_by(123_456_789_123).chain((first..=last).step_by(86_400_000 * 3_659));
        for ts_ms in steps.chain([first - 1, first, -1, 0, 951_782_400_000, 4_107_542_400_000, last, last + 1]) {
            let jiff = jiff::Timestamp::from_millisecond(ts_ms).map(|instant| format!("{instant:.3}"));
            assert_eq!(rfc3339(ts_ms), jiff.unwrap_or_else(|_| ts_ms.to_string()));
        }
    }

    #[test]
    fn days_are_counted_back_from_their_dates() {
        for days in (-800_000..3_000_000).step_by(97).chain(-1_500..1_500) {
            let (year, month, day) = civil_date(days);
            assert_eq!(days_since_1970(year, month, day), days);
        }
    }

    #[test]
    fn a_local_instant_has_the_offset_of_its_clock() {
        let local = |offset_ms| {
            let mut text = Vec::new();
            write_local_rfc3339(&mut text, 1_776_693_610_000, offset_ms);
            String::from_utf8(text).unwrap()
        };
        assert_eq!(local(20_700_000), "2026-04-20T19:45:10.000+05:45");
        assert_eq!(local(-12_600_000), "2026-04-20T10:30:10.000-03:30");
        assert_eq!(local(-2_670_000), "2026-04-20T13:16:10.000-00:44", "of Liberia until 1972");
        assert_eq!(local(0), "2026-04-20T14:00:10.000+00:00");
    }
}
