//! Pending behind its lock, and what others may see of it.

use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use metrics::Histogram;

use super::{Pipeline, State};
use crate::model::Hour;
use crate::pending::{Pending, PendingDevice, PendingHour};

/// The lock, held. How long is measured.
pub(super) struct Locked<'a> {
    /// `None` once it was given back.
    state: Option<MutexGuard<'a, State>>,
    since: Instant,
    held: &'a Histogram,
    #[cfg(feature = "bench")]
    cpu: super::bench::CpuClock,
}

impl Pipeline {
    #[cfg_attr(feature = "bench", track_caller)]
    pub(super) fn lock(&self) -> Locked<'_> {
        let state = Some(self.state.lock().unwrap_or_else(PoisonError::into_inner));
        Locked {
            state,
            since: Instant::now(),
            held: &self.metrics.pending_lock_seconds,
            #[cfg(feature = "bench")]
            cpu: super::bench::CpuClock::start(),
        }
    }

    /// Looks at what is pending. Nothing is fed meanwhile, so `look` must take a bounded time, whatever is
    /// pending.
    #[cfg_attr(feature = "bench", track_caller)]
    pub fn with_pending<T>(&self, look: impl FnOnce(&Pending) -> T) -> T {
        look(&self.lock().pending)
    }

    /// What is pending of a device in a range of hours, ascending. Taken in turns: of each hour the state at
    /// one moment.
    pub fn pending_hours(&self, device: &str, hours: Range<Hour>) -> Vec<PendingHour> {
        let (mut found, mut rest) = self.with_pending(|pending| pending.hours(device, hours.clone()));
        while let Some(next) = rest {
            let more;
            (more, rest) = self.with_pending(|pending| pending.hours(device, next..hours.end));
            found.extend(more);
        }
        found
    }

    /// Up to `limit` devices with something pending whose id starts with `prefix` and comes after `after`,
    /// ascending, each as `see` sees it, which is called without the lock. Taken in turns, like
    /// [`Self::pending_hours`].
    pub fn pending_devices<T>(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        see: impl Fn(PendingDevice) -> T,
    ) -> Vec<T> {
        let (mut found, mut after) = (Vec::new(), after.map(Arc::<str>::from));
        loop {
            let room = limit - found.len();
            let (turn, is_cut) = self.with_pending(|pending| pending.devices(prefix, after.as_deref(), room));
            if let Some(last) = turn.last() {
                after = Some(Arc::clone(&last.device));
            }
            found.extend(turn.into_iter().map(&see));
            if !is_cut {
                return found;
            }
        }
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("held until it is dropped")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("held until it is dropped")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let held = self.since.elapsed();
        #[cfg(feature = "bench")]
        let hold = self.cpu.stop(held);
        self.state = None;
        #[cfg(feature = "bench")]
        super::bench::record(hold);
        self.held.record(held.as_secs_f64());
    }
}
