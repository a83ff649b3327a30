//! A record of how long the lock of pending was held, each time, for `benches/pending_lock.rs`.

use std::panic::Location;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

static HOLDS: Mutex<Vec<Hold>> = Mutex::new(Vec::new());

/// One hold of the lock.
#[derive(Debug, Clone, Copy)]
pub struct Hold {
    /// From locking to unlocking.
    pub wall: Duration,
    /// The processor time of the thread in between: without the time in which another process ran.
    pub cpu: Duration,
    /// The line that took the lock.
    pub place: &'static Location<'static>,
}

/// Returns the holds since the last call.
pub fn take_holds() -> Vec<Hold> {
    std::mem::take(&mut HOLDS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Measures one hold in processor time.
pub(super) struct CpuClock {
    start: Duration,
    place: &'static Location<'static>,
}

impl CpuClock {
    #[track_caller]
    pub(super) fn start() -> Self {
        Self { start: thread_cpu(), place: Location::caller() }
    }

    /// Ends the hold. [`record`] it after unlocking.
    pub(super) fn stop(&self, wall: Duration) -> Hold {
        Hold { wall, cpu: thread_cpu().saturating_sub(self.start), place: self.place }
    }
}

pub(super) fn record(hold: Hold) {
    HOLDS.lock().unwrap_or_else(PoisonError::into_inner).push(hold);
}

fn thread_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
