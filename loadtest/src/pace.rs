//! When the next message is due: in a closed or an open loop.
//!
//! In a closed loop, a message is due as soon as the message before is answered. In an open loop, a schedule
//! fixes the time of each message beforehand, whether the server keeps up or not. The latency counts from
//! this time. So if the server stalls, every message that was due meanwhile has a long latency (no
//! coordinated omission).

use std::time::{Duration, Instant};

/// A burst has this many times the rate, for this many seconds of each minute.
const BURST: f64 = 5.0;
const BURST_SECONDS: f64 = 10.0;
const MINUTE: f64 = 60.0;

/// The schedule of one connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    start: Instant,
    /// Seconds between two messages, and seconds before the first one.
    ///
    /// `None`: closed loop.
    steps: Option<(f64, f64)>,
    bursts: bool,
}

impl Pace {
    pub(crate) const fn closed(start: Instant) -> Self {
        Self { start, steps: None, bursts: false }
    }

    /// The schedule of connection `nth` of `connections`, in an open loop.
    ///
    /// All connections together send `messages_per_second`, in turn and evenly spread.
    pub(crate) fn open(start: Instant, messages_per_second: f64, nth: u64, connections: u64, bursts: bool) -> Self {
        let step = connections as f64 / messages_per_second;
        Self { start, steps: Some((step, step * nth as f64 / connections as f64)), bursts }
    }

    /// When message `nth` of this connection is due. `None`: at once.
    pub(crate) fn due(&self, nth: u64) -> Option<Instant> {
        let (step, offset) = self.steps?;
        let even = offset + step * nth as f64;
        let seconds = if self.bursts { bent(even) } else { even };
        Some(self.start + Duration::from_secs_f64(seconds))
    }
}

/// Turns a time of an even schedule into the time of a schedule with bursts.
///
/// Both are seconds from the start. If the even schedule sends message `n` at `even`, the schedule with
/// bursts sends it at the result. Its rate is [`BURST`] times the even rate at the beginning of each minute,
/// and the even rate for the rest of the minute.
fn bent(even: f64) -> f64 {
    let a_minute = BURST * BURST_SECONDS + (MINUTE - BURST_SECONDS);
    let (minutes, rest) = ((even / a_minute).floor(), even % a_minute);
    let within = if rest < BURST * BURST_SECONDS { rest / BURST } else { rest - (BURST - 1.0) * BURST_SECONDS };
    minutes * MINUTE + within
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_turns() {
        let start = Instant::now();
        let dues: Vec<_> = (0..4).map(|nth| Pace::open(start, 8.0, nth, 4, false).due(2).unwrap() - start).collect();
        assert_eq!(dues, [1_000, 1_125, 1_250, 1_375].map(Duration::from_millis));
        assert_eq!(Pace::closed(start).due(5), None);
    }

    #[test]
    fn a_burst_sends_five_times_as_much_for_ten_seconds_of_each_minute() {
        for (even, expected) in [(0.0, 0.0), (25.0, 5.0), (50.0, 10.0), (51.0, 11.0), (100.0, 60.0), (105.0, 61.0)] {
            assert!((bent(even) - expected).abs() < 1e-9, "{even}");
        }
    }
}
