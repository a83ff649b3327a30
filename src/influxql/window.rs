//! Windows of `GROUP BY time(...)`.

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
        let start = self.floor(at_ns.saturating_add(ahead));
        // At the start of the window, the zone may have another offset than at the instant.
        let guess = start.saturating_sub(ahead);
        let ahead_at_start = zone::offset_ns(zone, guess);
        if ahead_at_start == ahead {
            return guess;
        }
        let start = start.saturating_sub(ahead_at_start);
        if start <= at_ns { start } else { guess }
    }

    /// The start of the window after the one that begins at `start_ns`.
    pub(super) fn after(&self, start_ns: i64) -> i64 {
        let next = start_ns.saturating_add(self.every_ns);
        if self.zone.is_none() {
            return next;
        }
        // A change of the offset makes a window shorter or longer.
        let aligned = self.start_of(next);
        if aligned > start_ns {
            return aligned;
        }
        self.start_of(next.saturating_add(self.every_ns.min(7_200_000_000_000)))
    }

    fn floor(&self, at_ns: i64) -> i64 {
        let shifted = at_ns.saturating_sub(self.offset_ns);
        at_ns.saturating_sub(shifted.rem_euclid(self.every_ns))
    }
}
