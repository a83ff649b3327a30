//! Pending behind its lock, and the access of queries to it.

use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use metrics::Histogram;

use super::{Pipeline, State};
use crate::model::Hour;
use crate::pending::{Pending, PendingDevice, PendingHour};

/// A held lock. It records how long it was held.
pub(super) struct Locked<'a> {
    /// `None` once the lock is released.
    state: Option<MutexGuard<'a, State>>,
    since: Instant,
    held: &'a Histogram,
    #[cfg(feature = "bench")]
    cpu: super::bench::CpuClock,
}

impl Pipeline {
    #[cfg_attr(feature = "bench", track_caller)]
    pub(super) fn lock(&self) -> Locked<'_> {
        self.locked(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn locked<'a>(&'a self, state: MutexGuard<'a, State>) -> Locked<'a> {
        Locked {
            state: Some(state),
            since: Instant::now(),
            held: &self.metrics.pending_lock_seconds,
            #[cfg(feature = "bench")]
            cpu: super::bench::CpuClock::start(),
        }
    }

    /// Calls `look` with the lock held. It must take a bounded time, however many readings are pending.
    #[cfg_attr(feature = "bench", track_caller)]
    pub(super) fn with_pending<T>(&self, look: impl FnOnce(&Pending) -> T) -> T {
        look(&self.lock().pending)
    }

    /// Returns whether one of a few devices has pending readings in a range; `None` if the lock is in use.
    #[cfg_attr(feature = "bench", track_caller)]
    pub fn try_is_pending(&self, devices: &[Arc<str>], hours: &Range<Hour>) -> Option<bool> {
        let state = self.locked(self.state.try_lock().ok()?);
        Some(devices.iter().any(|device| state.pending.has_hours(device, hours)))
    }

    /// Returns the pending hours of a device in a range, ascending.
    pub fn pending_hours(&self, device: &str, hours: Range<Hour>) -> Vec<PendingHour> {
        let mut found = Vec::new();
        self.each_pending_hour(device, hours, |hour| found.push(hour));
        found
    }

    /// Calls `visit`, without the lock, with the pending hours of a device in a range, ascending.
    ///
    /// Locks once per turn: each hour is a snapshot, the hours together are not.
    pub fn each_pending_hour(&self, device: &str, hours: Range<Hour>, mut visit: impl FnMut(PendingHour)) {
        let mut rest = Some(hours.start);
        while let Some(next) = rest {
            let found;
            (found, rest) = self.with_pending(|pending| pending.hours(device, next..hours.end));
            found.into_iter().for_each(&mut visit);
        }
    }

    /// Returns up to `limit` pending devices whose ID starts with `prefix` and follows `after`, ascending.
    ///
    /// Locks once per turn, like [`Self::pending_hours`], and calls `convert` without the lock.
    pub fn pending_devices<T>(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        convert: impl Fn(PendingDevice) -> T,
    ) -> Vec<T> {
        let (mut found, mut after) = (Vec::new(), after.map(Arc::<str>::from));
        loop {
            let room = limit - found.len();
            let (turn, is_cut) = self.with_pending(|pending| pending.devices(prefix, after.as_deref(), room));
            if let Some(last) = turn.last() {
                after = Some(Arc::clone(&last.device));
            }
            found.extend(turn.into_iter().map(&convert));
            if !is_cut {
                return found;
            }
        }
    }

    /// Returns the first instant of the readings that are accepted and not stored yet, in Unix milliseconds:
    /// `i64::MAX` if there are none, `None` if some of them stay in the log for longer than a minute.
    pub async fn first_unstored_ms(self: &Arc<Self>) -> Option<i64> {
        if self.catch_up(Duration::from_secs(60)).await.is_some() {
            return None;
        }
        let pipeline = Arc::clone(self);
        let first_ms = move || pipeline.pending_devices("", None, usize::MAX, |device| device.first_ts_ms);
        let pending = tokio::task::spawn_blocking(first_ms).await.ok()?;
        Some(pending.into_iter().min().unwrap_or(i64::MAX))
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
