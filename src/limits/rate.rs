//! The arithmetic of GCRA, the generic cell rate algorithm (ITU-T I.371).

use std::time::Duration;

/// A number of units per period, with a burst.
///
/// The caller keeps the state of a rate: `used_ns`, the instant up to which the rate is used. (GCRA calls it
/// the "theoretical arrival time".) Each unit moves this instant forward by the interval between two units. A
/// unit is admitted if the instant is then ahead of the clock by at most the burst. Instants are nanoseconds
/// since a start of the caller's choice; 0 is the state of an unused rate.
///
/// For example, with one unit a second and a burst of three seconds, three units at once move the instant to
/// three seconds ahead of the clock. A fourth unit has to wait for one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    interval_ns: u64,
    burst_ns: u64,
}

impl Rate {
    /// A rate of `count` units per `period`. `None` if `count` is 0: no limit.
    ///
    /// After a quiet time it admits as many units at once as fall into the time `burst`, but at least one.
    #[must_use]
    pub fn new(count: u64, period: Duration, burst: Duration) -> Option<Self> {
        let interval_ns = nanos(period).checked_div(count)?.max(1);
        Some(Self { interval_ns, burst_ns: nanos(burst).max(interval_ns) })
    }

    /// The most units that the rate admits at once.
    #[must_use]
    pub const fn burst(self) -> u64 {
        self.burst_ns / self.interval_ns
    }

    /// The time until the rate admits `count` units. `None`: it admits them now.
    ///
    /// `used_ns` is the state. If `count` is more than the burst, this is the time until the whole burst is
    /// free, because the rate never admits more at once.
    #[must_use]
    pub fn wait(self, count: u64, used_ns: u64, now_ns: u64) -> Option<Duration> {
        let fits_ns = now_ns.saturating_add(self.burst_ns);
        let wanted_ns = self.taken(count.min(self.burst()), used_ns, now_ns);
        (wanted_ns > fits_ns).then(|| Duration::from_nanos(wanted_ns - fits_ns))
    }

    /// Returns the state after `count` more units at `now_ns`, from the state before.
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
