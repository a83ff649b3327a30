//! The arithmetic of a GCRA rate.

use std::time::Duration;

/// A count per period, with a burst.
///
/// The state of a rate is one instant, up to which the rate is used (the "theoretical arrival time" of the
/// generic cell rate algorithm, ITU-T I.371). Each unit moves it on by the interval between two units. It may
/// be ahead of the clock by the burst. Instants are nanoseconds since a start of the caller's choice; 0 is
/// the state of an unused rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    interval_ns: u64,
    burst_ns: u64,
}

impl Rate {
    /// A rate of `count` units per `period`. As many units as fall into the time `burst` are admitted at
    /// once, and at least one. `None` if `count` is 0: no limit.
    #[must_use]
    pub fn new(count: u64, period: Duration, burst: Duration) -> Option<Self> {
        let interval_ns = nanos(period).checked_div(count)?.max(1);
        Some(Self { interval_ns, burst_ns: nanos(burst).max(interval_ns) })
    }

    /// The number of units that are admitted at once.
    #[must_use]
    pub const fn burst(self) -> u64 {
        self.burst_ns / self.interval_ns
    }

    /// The time until a rate used up to `used_ns` has room for `count` units, one after the other. `None` if
    /// it has room now. More units than the burst never fit, so the time is that of the burst.
    #[must_use]
    pub fn wait(self, count: u64, used_ns: u64, now_ns: u64) -> Option<Duration> {
        let fits_ns = now_ns.saturating_add(self.burst_ns);
        let wanted_ns = self.taken(count.min(self.burst()), used_ns, now_ns);
        (wanted_ns > fits_ns).then(|| Duration::from_nanos(wanted_ns - fits_ns))
    }

    /// The state of the rate after `count` more units.
    #[must_use]
    pub fn taken(self, count: u64, used_ns: u64, now_ns: u64) -> u64 {
        used_ns.max(now_ns).saturating_add(self.interval_ns.saturating_mul(count))
    }
}

pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const NS: u64 = 1_000_000_000;

    #[test]
    fn the_burst_fits_at_once_and_then_one_per_interval() {
        let rate = Rate::new(10, SECOND, SECOND / 2).unwrap();
        assert_eq!(rate.burst(), 5);
        let mut used = 0;
        for _ in 0..5 {
            assert_eq!(rate.wait(1, used, NS), None);
            used = rate.taken(1, used, NS);
        }
        assert_eq!(rate.wait(1, used, NS), Some(SECOND / 10));
        assert_eq!(rate.wait(1, used, NS + NS / 10), None);
    }

    #[test]
    fn units_beyond_the_burst_are_debt() {
        let rate = Rate::new(10, SECOND, SECOND).unwrap();
        let used = rate.taken(100, 0, NS);
        assert_eq!(rate.wait(1, used, NS), Some(SECOND * 9 + SECOND / 10));
        assert_eq!(rate.wait(1, used, used - NS + NS / 10), None);
    }

    #[test]
    fn several_units_wait_for_the_last_and_at_most_for_the_burst() {
        let rate = Rate::new(1, SECOND, SECOND * 10).unwrap();
        let used = rate.taken(10, 0, 0);
        for (count, seconds) in [(1, 1), (4, 4), (10, 10), (1_000, 10)] {
            assert_eq!(rate.wait(count, used, 0), Some(SECOND * seconds), "{count}");
        }
    }

    #[test]
    fn unused_time_is_saved_up_to_the_burst_only() {
        let rate = Rate::new(10, SECOND, SECOND).unwrap();
        let used = rate.taken(10, 0, 0);
        assert_eq!(rate.wait(10, used, 100 * NS), None);
        let used = rate.taken(10, used, 100 * NS);
        assert!(rate.wait(1, used, 100 * NS).is_some());
    }

    #[test]
    fn a_count_of_zero_is_no_limit_and_a_burst_has_room_for_one() {
        assert_eq!(Rate::new(0, SECOND, SECOND), None);
        assert_eq!(Rate::new(1, SECOND * 60, Duration::ZERO).unwrap().burst(), 1);
    }
}
