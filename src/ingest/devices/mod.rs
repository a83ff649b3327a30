//! What one device may do: how fast it may send, under how many metrics, and how fast devices may appear.
//!
//! Each device that was heard of lately is known, with what it used of its limits. One that is not known may
//! be new, or known to the store only, after a restart above all. The limit of new devices counts both, for
//! each token and key by itself, and mostly that does not matter: there is room. When there is none, its
//! readings are refused for now, and the store is asked about it in the background ([`UnknownDeviceLookup`]):
//! a device that is stored is let in at the next try. So no reading waits for the store, and while the store
//! is away, what a flood can create stays bounded. For a while after a start nobody is known, and whoever
//! comes is let in.
//!
//! A device's readings count when they are sent, whatever becomes of them. If there is room for one, all that
//! the request has of that device are taken, and the rest is owed, as [`limits`](crate::limits) tells.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use tokio::sync::mpsc;

use crate::limits::{Limiter, Quota, Rate};
use crate::model::MS_PER_HOUR;
use crate::wire::{Code, Rejection};

mod known;
mod recent;
#[cfg(test)]
mod tests;
mod unknown;

use known::{Known, KnownDevices};
use recent::{Kind, Recent};
pub use unknown::UnknownDeviceLookup;

/// What devices obey. What is `None` has no limit.
#[derive(Debug, Clone)]
pub struct DeviceLimits {
    /// Readings of one device.
    pub readings: Option<Rate>,
    /// Different metrics of one device that arrive within an hour of the clock.
    pub metrics_per_hour: Option<usize>,
    /// Devices that are not known, of all senders together who have no such limit of their own.
    pub new_devices: Option<Rate>,
    /// For how long after the start they come without that limit, as many as are known at least.
    pub start_grace: Duration,
    /// How many devices are known at least before the first of them is forgotten.
    pub max_known: usize,
}

/// The devices that were heard of lately, and their limits.
#[derive(Debug)]
pub struct Devices {
    limits: DeviceLimits,
    known: KnownDevices,
    hasher: RandomState,
    start: Instant,
    newcomers: Option<Limiter>,
    /// How many came without limit.
    came_at_start: AtomicUsize,
    /// `None` where each reading has to be counted.
    recent: Option<Recent>,
    lookups: mpsc::Sender<Box<str>>,
}

/// Why a reading is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    TooFast(Duration),
    TooManyMetrics,
    New,
}

/// What one request brings.
#[derive(Debug)]
pub(super) struct Visit<'d> {
    devices: &'d Devices,
    /// Of who sends the readings.
    newcomers: Option<&'d Limiter>,
    now: Instant,
    hour: u32,
    /// The device and the metrics of the last reading, and what was said to it: mostly the next one is alike.
    last: Option<(u64, u64, Result<(), Refusal>)>,
    /// How many readings of which device; only where that has a limit.
    sent: Vec<(u64, u64)>,
    refused_as_new: HashSet<u64>,
    too_fast_for: Option<Duration>,
}

impl Devices {
    /// Knows no device yet. `None` when there is no limit. The second part is to be run beside it.
    #[must_use]
    pub fn new(limits: DeviceLimits) -> Option<(Arc<Self>, UnknownDeviceLookup)> {
        let DeviceLimits { readings, metrics_per_hour, new_devices, max_known, .. } = limits;
        if readings.is_none() && metrics_per_hour.is_none() && new_devices.is_none() {
            return None;
        }
        let (sender, unknown_devices) = UnknownDeviceLookup::new();
        let start = Instant::now();
        let devices = Self {
            limits,
            known: KnownDevices::new(max_known),
            hasher: RandomState::default(),
            start,
            newcomers: new_devices.map(|rate| Limiter::new(rate, start)),
            came_at_start: AtomicUsize::new(0),
            recent: readings.is_none().then(|| Recent::new(max_known)),
            lookups: sender,
        };
        Some((Arc::new(devices), unknown_devices))
    }

    /// How many are known.
    #[must_use]
    pub fn count(&self) -> usize {
        self.known.count()
    }

    pub(super) fn visit<'d>(&'d self, sender: &'d Quota, now: Instant, now_ms: i64) -> Visit<'d> {
        Visit {
            devices: self,
            newcomers: self.newcomers_of(sender),
            now,
            hour: now_ms.div_euclid(MS_PER_HOUR) as u32,
            last: None,
            sent: Vec::new(),
            refused_as_new: HashSet::new(),
            too_fast_for: None,
        }
    }

    fn id(&self, device: &str) -> u64 {
        self.hasher.hash_one(device)
    }

    /// A device that is no newcomer, because it is stored.
    fn introduce(&self, device: &str) {
        self.known.insert(self.id(device));
    }

    fn newcomers_of<'d>(&'d self, sender: &'d Quota) -> Option<&'d Limiter> {
        sender.new_devices.as_ref().or(self.newcomers.as_ref())
    }

    /// Whether nobody is known yet, and so one more may come who is not.
    fn is_starting(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.start) < self.limits.start_grace
            && self.came_at_start.fetch_add(1, Ordering::Relaxed) < self.limits.max_known
    }

    /// The metrics of a reading as one number, whatever their order.
    fn shape(&self, values: &[(Cow<'_, str>, f64)]) -> u64 {
        if self.limits.metrics_per_hour.is_none() {
            return 0;
        }
        values.iter().fold(0, |shape, (name, _)| shape.wrapping_add(self.hasher.hash_one(&**name)))
    }

    fn since_start_ns(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }
}

impl<'d> Visit<'d> {
    pub(super) fn set_sender(&mut self, sender: &'d Quota) {
        self.newcomers = self.devices.newcomers_of(sender);
    }

    /// Judges a reading, which is good otherwise, of the device that is kept under this id.
    pub(super) fn judge(&mut self, device: &str, values: &[(Cow<'_, str>, f64)]) -> Result<(), Rejection> {
        let (id, shape) = (self.devices.id(device), self.devices.shape(values));
        let verdict = match self.last {
            Some((last, of_shape, verdict)) if (last, of_shape) == (id, shape) => verdict,
            _ => self.look(id, shape, values),
        };
        self.last = Some((id, shape, verdict));
        match verdict {
            Ok(()) => self.count(id),
            Err(Refusal::TooFast(wait)) => self.too_fast_for = self.too_fast_for.max(Some(wait)),
            Err(Refusal::New) if self.refused_as_new.insert(id) => {
                let _ = self.devices.lookups.try_send(device.into()); // where there are too many, it comes again
            }
            Err(_) => {}
        }
        verdict.map_err(|refusal| refusal.rejection(&self.devices.limits))
    }

    /// Ends the request. Returns how long to wait until everything that was refused may come, if waiting
    /// helps.
    pub(super) fn end(self) -> Option<Duration> {
        if let Some(rate) = self.devices.limits.readings {
            let now_ns = self.devices.since_start_ns(self.now);
            for (id, count) in self.sent {
                self.devices.known.look(id, |known| known.used_ns = rate.taken(count, known.used_ns, now_ns));
            }
        }
        let unknown_devices = self.refused_as_new.len() as u64;
        let new = self
            .newcomers
            .filter(|_| unknown_devices > 0)
            .and_then(|newcomers| newcomers.wait(unknown_devices, self.now));
        self.too_fast_for.max(new)
    }

    fn look(&self, id: u64, shape: u64, values: &[(Cow<'_, str>, f64)]) -> Result<(), Refusal> {
        let Some(recent) = &self.devices.recent else { return self.look_up(id, shape, values) };
        let kind = Kind::of(id, shape, self.hour);
        if !recent.has(kind) {
            self.look_up(id, shape, values)?;
            recent.note(kind);
        }
        Ok(())
    }

    fn look_up(&self, id: u64, shape: u64, values: &[(Cow<'_, str>, f64)]) -> Result<(), Refusal> {
        let look = |known: &mut Known| self.look_at(known, shape, values);
        if let Some(verdict) = self.devices.known.look(id, look) {
            return verdict;
        }
        self.admit(id)?;
        self.devices.known.look(id, look).unwrap_or(Ok(()))
    }

    /// Whether somebody may come in who is not known.
    fn admit(&self, id: u64) -> Result<(), Refusal> {
        if let Some(newcomers) = self.newcomers.filter(|_| !self.devices.is_starting(self.now)) {
            newcomers.take(self.now).map_err(|_| Refusal::New)?;
        }
        self.devices.known.insert(id);
        Ok(())
    }

    fn look_at(&self, known: &mut Known, shape: u64, values: &[(Cow<'_, str>, f64)]) -> Result<(), Refusal> {
        let DeviceLimits { readings, metrics_per_hour, .. } = self.devices.limits;
        if let Some(rate) = readings
            && let Some(wait) = rate.wait(1, known.used_ns, self.devices.since_start_ns(self.now))
        {
            return Err(Refusal::TooFast(wait));
        }
        if let Some(max) = metrics_per_hour {
            let names = values.iter().map(|(name, _)| self.devices.hasher.hash_one(&**name) as u32);
            if !known.metrics.take(self.hour, shape, names, max) {
                return Err(Refusal::TooManyMetrics);
            }
        }
        Ok(())
    }

    fn count(&mut self, id: u64) {
        if self.devices.limits.readings.is_none() {
            return;
        }
        match self.sent.last_mut() {
            Some((last, count)) if *last == id => *count += 1,
            _ => self.sent.push((id, 1)),
        }
    }
}

impl Refusal {
    fn rejection(self, limits: &DeviceLimits) -> Rejection {
        let (code, detail) = match self {
            Self::TooFast(_) => (
                Code::DeviceRateLimited,
                "the device sends more than limits.device_readings_per_second allows".to_owned(),
            ),
            Self::TooManyMetrics => {
                let max = limits.metrics_per_hour.unwrap_or_default();
                (Code::TooManyDeviceMetrics, format!("a device has at most {max} different metrics an hour"))
            }
            Self::New => (
                Code::TooManyNewDevices,
                "too many devices have appeared lately (limits.new_devices_per_minute)".to_owned(),
            ),
        };
        Rejection { code, detail }
    }
}
