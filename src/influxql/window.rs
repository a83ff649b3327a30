//! Windows of `GROUP BY time(...)`.

use std::ops::Range;

use jiff::tz::TimeZone;

use super::zone;

/// The windows of a `SELECT`, half-open.
///
/// They are aligned to the Unix epoch, and then shifted by the offset and the time zone.
#[derive(Debug, Clone)]
pub(super) struct Windows {
    /// The length, in nanoseconds. 0: one window has all instants.
    pub(super) every_ns: i64,
    pub(super) offset_ns: i64,
    pub(super) zone: Option<TimeZone>,
}

impl Windows {
    /// The start of the window that contains an instant.
    ///
    /// It is 0 if one window has all instants.
    pub(super) fn start_of(&self, at_ns: i64) -> i64 {
        if self.every_ns == 0 {
            return 0;
        }
        let Some(zone) = &self.zone else { return self.floor(at_ns) };
        let ahead = zone::offset_ns(zone, at_ns);
        let start = self.floor(at_ns.saturating_add(ahead)).saturating_sub(ahead);
        let Some((change, before)) = zone::last_change(zone, at_ns) else { return start };
        // The local start of the window that ends at the change, or goes on over it. A clock that is set back
        // shows times again. They belong to this window too, if it is longer than the change.
        let last = self.floor(change.saturating_add(before).saturating_sub(1));
        let is_longer = self.every_ns > (ahead - before).abs();
        let goes_on = if is_longer { start.saturating_add(ahead) <= last } else { start < change };
        if goes_on { zone::first_instant(zone, last) } else { start.max(change) }
    }

    /// The start of the window that contains an instant, as [`Self::start_of`] finds it.
    ///
    /// `last` is the known part of the window of the instant before. It saves searches for clock changes.
    pub(super) fn start_in(&self, last: &mut Range<i64>, at_ns: i64) -> i64 {
        if !last.contains(&at_ns) {
            let start = self.start_of(at_ns);
            // The end takes as long to find as the start. A window of one instant does not need it.
            let end = if start == last.start { self.after(start) } else { at_ns.saturating_add(1) };
            *last = start..end;
        }
        last.start
    }

    /// The start of the window after the one that begins at `start_ns`.
    pub(super) fn after(&self, start_ns: i64) -> i64 {
        let next = start_ns.saturating_add(self.every_ns);
        if self.zone.is_none() {
            return next;
        }
        // A change of the offset makes a window shorter, or longer by at most a day and less than its length.
        let aligned = self.start_of(next);
        if aligned > start_ns {
            return aligned;
        }
        self.start_of(next.saturating_add((self.every_ns - 1).min(86_400_000_000_000)))
    }

    fn floor(&self, at_ns: i64) -> i64 {
        let shifted = at_ns.saturating_sub(self.offset_ns);
        at_ns.saturating_sub(shifted.rem_euclid(self.every_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000_000_000;
    const QUARTER: i64 = 15 * MINUTE;
    const DAY: i64 = 96 * QUARTER;

    fn ns(text: &str) -> i64 {
        i64::try_from(text.parse::<jiff::Timestamp>().unwrap().as_nanosecond()).unwrap()
    }

    #[test]
    fn windows_are_those_of_a_clock() {
        for (name, change) in [
            ("Europe/Vienna", "2026-10-25T01:00:00Z"),
            ("Europe/Vienna", "2026-03-29T01:00:00Z"),
            ("Europe/London", "2026-10-25T01:00:00Z"),
            ("Atlantic/Azores", "2026-10-25T01:00:00Z"),
            ("Atlantic/Azores", "2026-03-29T01:00:00Z"),
            ("America/Havana", "2026-11-01T05:00:00Z"),
            ("America/Havana", "2026-03-08T05:00:00Z"),
            ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
            ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
            ("Antarctica/Casey", "2022-03-12T13:00:00Z"),
        ] {
            for minutes in [30, 60, 120, 360, 1_440] {
                for offset in [0, 30, 60, 90].into_iter().filter(|offset| *offset < minutes) {
                    let zone = zone::find(name);
                    let windows = Windows { every_ns: minutes * MINUTE, offset_ns: offset * MINUTE, zone };
                    compare(&windows, ns(change), &format!("{name}, {change}: time({minutes}m, {offset}m)"));
                }
            }
        }
    }

    #[test]
    fn a_window_between_two_changes_is_not_skipped() {
        // The clock went back by an hour in the first window, and ahead by 25 hours in the second.
        let windows = Windows { every_ns: 200 * DAY, offset_ns: 0, zone: zone::find("Pacific/Apia") };
        assert_eq!(windows.after(ns("2011-01-26T00:00:00-10:00")), ns("2011-08-14T00:00:00-11:00"));
    }

    /// Compares windows around a change with those of a clock that is read every quarter of an hour.
    ///
    /// A window longer than the change begins when the clock first shows its start or a later time. Any other
    /// begins whenever the clock shows a start.
    fn compare(windows: &Windows, change: i64, name: &str) {
        let zone = windows.zone.as_ref().expect("a zone");
        let by = zone::offset_ns(zone, change) - zone::offset_ns(zone, change - 1);
        assert_ne!(by, 0, "{name}");
        let (mut latest, mut start): (Option<i64>, Option<i64>) = (None, None);
        let mut last = 0..0;
        let around = 2 * windows.every_ns.max(DAY / 4);
        for at in (change - around..change + around).step_by(QUARTER as usize) {
            let shown = at + zone::offset_ns(zone, at) - windows.offset_ns;
            let nth = shown.div_euclid(windows.every_ns);
            let begins = match latest {
                Some(latest) if windows.every_ns > by.abs() => nth > latest,
                _ => shown % windows.every_ns == 0,
            };
            latest = latest.max(Some(nth));
            if begins && let Some(before) = start.replace(at) {
                assert_eq!(windows.after(before), at, "after {before}, {name}");
                assert_eq!(last, before..at, "{name}");
            }
            if let Some(start) = start {
                let found = [at, at + QUARTER - 1].map(|at| (windows.start_of(at), windows.start_in(&mut last, at)));
                assert_eq!(found, [(start, start); 2], "at {at}, {name}");
            }
        }
    }
}
