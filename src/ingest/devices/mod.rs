//! Limits per device: its rate of readings, its metrics per hour, and the rate of new devices.
//!
//! A device that sent lately is known, with what it has used of its limits. Any other device may be new, or
//! may be in the store only, above all after a restart. The rate of new devices counts both, for each token
//! and key by itself. If the rate is used up, the readings of such a device are rejected for now, and the
//! device is queued for a lookup in the store ([`UnknownDeviceLookup`]). If the store has the device, its
//! next reading is admitted. So no reading waits for the store, and a flood of IDs can create only a bounded
//! number of devices, also while the store is away. After a start no device is known, so for a while new
//! devices are admitted without limit.
//!
//! The rate of a device counts the readings that it sends, accepted or not. If the rate admits one more
//! reading, it admits all readings of the device in the request, and charges the others as debt, as
//! [`limits`](crate::limits) describes.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use tokio::sync::mpsc;

use crate::common::interner::Interner;
use crate::limits::{Limiter, Quota, Rate};
use crate::model::{METRIC_MAX_BYTES, MS_PER_HOUR};
use crate::wire::{Code, Rejection};

mod admission_cache;
mod known;
#[cfg(test)]
mod tests;
mod unknown;

use admission_cache::{AdmissionCache, Admitted, CacheKey};
use known::{HourMetrics, Known, KnownDevices};
pub use unknown::UnknownDeviceLookup;

/// The limits per device. `None` is no limit.
#[derive(Debug, Clone)]
pub struct DeviceLimits {
    /// The rate of readings of one device.
    pub readings: Option<Rate>,
    /// The most different series that one device may send within an hour of the clock.
    ///
    /// A series counts once for each [`METRIC_MAX_BYTES`] of its text, rounded up: a text of 300 bytes counts
    /// as three. So the document of a day stays within the limit of MongoDB.
    pub metrics_per_hour: Option<usize>,
    /// The rate of new devices, shared by all senders that have no such rate of their own.
    pub new_devices: Option<Rate>,
    /// The time after the start in which up to `max_known` new devices are admitted without limit.
    pub start_grace: Duration,
    /// At least this many devices are known before one is forgotten.
    pub max_known: usize,
}

/// The devices that sent lately, and their limits.
#[derive(Debug)]
pub struct Devices {
    limits: DeviceLimits,
    known: KnownDevices,
    /// The metrics that known devices share.
    shared: Interner<HourMetrics>,
    hasher: RandomState,
    start: Instant,
    new_device_limiter: Option<Limiter>,
    /// How many new devices were admitted in the grace after the start.
    admitted_in_grace: AtomicUsize,
    /// The devices that need no full check in this hour.
    ///
    /// `None` if devices have a rate, which must count each reading.
    cache: Option<AdmissionCache>,
    lookups: mpsc::Sender<Box<str>>,
}

/// Why a reading is rejected for its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeviceLimitError {
    RateLimited(Duration),
    TooManyMetrics,
    TooManyNewDevices,
}

/// Checks the readings of one request, or of a batch of datagrams, against the limits of their devices.
#[derive(Debug)]
pub(super) struct RequestCheck<'d> {
    devices: &'d Devices,
    /// The limiter of new devices that applies to the sender.
    new_device_limiter: Option<&'d Limiter>,
    now: Instant,
    hour: u32,
    /// The table of the cache that this request uses.
    ///
    /// `None` if devices have a rate, which must count each reading.
    admitted: Option<Arc<Admitted>>,
    /// The hash of the device, the hash of the metrics, and the result of the last reading. The next reading
    /// usually has the same hashes.
    last: Option<(u64, u64, Result<(), DeviceLimitError>)>,
    /// Whether an earlier admission has charged the readings to their devices.
    ///
    /// The rates of the devices then neither count nor refuse them again.
    is_charged: bool,
    /// The number of readings by device, if devices have a rate.
    sent: Vec<(u64, u64)>,
    rejected_as_new: HashSet<u64>,
    rate_limited_for: Option<Duration>,
}

impl Devices {
    /// Creates the limits, which know no device yet, and the lookup, which the caller must run. `None`:
    /// nothing is limited.
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
            shared: Interner::default(),
            hasher: RandomState::default(),
            start,
            new_device_limiter: new_devices.map(|rate| Limiter::new(rate, start)),
            admitted_in_grace: AtomicUsize::new(0),
            cache: readings.is_none().then(|| AdmissionCache::new(max_known)),
            lookups: sender,
        };
        Some((Arc::new(devices), unknown_devices))
    }

    /// The number of known devices.
    #[must_use]
    pub fn count(&self) -> usize {
        self.known.count()
    }

    pub(super) fn check_request<'d>(&'d self, sender: &'d Quota, now: Instant, now_ms: i64) -> RequestCheck<'d> {
        RequestCheck {
            devices: self,
            new_device_limiter: self.new_device_limiter_of(sender),
            now,
            hour: now_ms.div_euclid(MS_PER_HOUR) as u32,
            admitted: self.cache.as_ref().map(AdmissionCache::admitted),
            last: None,
            is_charged: false,
            sent: Vec::new(),
            rejected_as_new: HashSet::new(),
            rate_limited_for: None,
        }
    }

    /// Makes devices known that an operator names.
    ///
    /// If the rate admits one more device, it admits all of them, and charges the others as debt.
    ///
    /// # Errors
    /// The time until the sender may make another device known.
    pub(super) fn admit_named(&self, sender: &Quota, devices: &[Arc<str>], now: Instant) -> Result<(), Duration> {
        let new: Vec<u64> = devices.iter().map(|device| self.hash(device)).collect();
        let is_new = |id: &&u64| self.known.update(**id, |_| ()).is_none() && !self.takes_grace(now);
        let charged = new.iter().filter(is_new).count() as u64;
        if let Some(limiter) = self.new_device_limiter_of(sender).filter(|_| charged > 0) {
            limiter.take(now)?;
            limiter.owe(charged - 1, now);
        }
        for id in new {
            self.known.insert(id);
        }
        Ok(())
    }

    fn hash(&self, device: &str) -> u64 {
        self.hasher.hash_one(device)
    }

    /// Makes a stored device known.
    fn mark_known(&self, device: &str) {
        self.known.insert(self.hash(device));
    }

    fn new_device_limiter_of<'d>(&'d self, sender: &'d Quota) -> Option<&'d Limiter> {
        sender.new_devices.as_ref().or(self.new_device_limiter.as_ref())
    }

    /// Returns whether one more new device is admitted without limit, because the start was a short time ago.
    fn takes_grace(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.start) < self.limits.start_grace
            && self.admitted_in_grace.fetch_add(1, Ordering::Relaxed) < self.limits.max_known
    }

    /// A hash of the metric names of a reading that does not depend on their order.
    fn metric_set_hash(&self, values: &[(Cow<'_, str>, f64)]) -> u64 {
        if self.limits.metrics_per_hour.is_none() {
            return 0;
        }
        values.iter().fold(0, |hash, (name, _)| hash.wrapping_add(self.hasher.hash_one(&**name)))
    }

    fn since_start_ns(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }
}

impl<'d> RequestCheck<'d> {
    pub(super) fn set_sender(&mut self, sender: &'d Quota) {
        self.new_device_limiter = self.devices.new_device_limiter_of(sender);
        self.last.take_if(|(_, _, result)| result.is_err()); // this sender may create the device
    }

    /// Sets whether an earlier admission has charged the next readings to their devices.
    pub(super) fn set_charged(&mut self, is_charged: bool) {
        if std::mem::replace(&mut self.is_charged, is_charged) != is_charged {
            self.last = None;
        }
    }

    /// A hash of a stored ID, for [`Self::check`].
    #[inline]
    pub(super) fn hash(&self, device: &str) -> u64 {
        self.devices.hash(device)
    }

    /// Prefetches the cache entry of the device with this stored ID for the check of its reading. The metrics
    /// are assumed to be those of the last reading.
    #[inline]
    pub(super) fn expect(&self, device: &str) {
        if let (Some(admitted), Some((_, metrics, _))) = (&self.admitted, self.last) {
            admitted.prefetch(CacheKey::of(self.hash(device), metrics, self.hour));
        }
    }

    /// Checks an otherwise valid reading of the device with this stored ID, whose hash is `id`.
    pub(super) fn check(&mut self, id: u64, device: &str, values: &[(Cow<'_, str>, f64)]) -> Result<(), Rejection> {
        let metrics = self.devices.metric_set_hash(values);
        let result = match self.last {
            Some((last_id, last_metrics, result)) if (last_id, last_metrics) == (id, metrics) => result,
            _ => self.check_cached(id, metrics, values),
        };
        self.last = Some((id, metrics, result));
        match result {
            Ok(()) => self.count(id),
            Err(DeviceLimitError::RateLimited(wait)) => self.rate_limited_for = self.rate_limited_for.max(Some(wait)),
            Err(DeviceLimitError::TooManyNewDevices) if self.rejected_as_new.insert(id) => {
                let _ = self.devices.lookups.try_send(device.into()); // or at the next try, if the queue is full
            }
            Err(_) => {}
        }
        result.map_err(|error| error.rejection(&self.devices.limits))
    }

    /// Ends the check, and charges the readings to their devices.
    ///
    /// Returns the time until all rejected readings are admitted; `None` if waiting does not help.
    pub(super) fn end(self) -> Option<Duration> {
        if let (Some(cache), Some(used)) = (&self.devices.cache, &self.admitted) {
            cache.fit(used);
        }
        if let Some(rate) = self.devices.limits.readings {
            let now_ns = self.devices.since_start_ns(self.now);
            for (id, count) in self.sent {
                self.devices.known.update(id, |known| known.used_ns = rate.taken(count, known.used_ns, now_ns));
            }
        }
        let new_devices = self.rejected_as_new.len() as u64;
        let wait_of_new =
            self.new_device_limiter.filter(|_| new_devices > 0).and_then(|limiter| limiter.wait(new_devices, self.now));
        self.rate_limited_for.max(wait_of_new)
    }

    fn check_cached(&self, id: u64, metrics: u64, values: &[(Cow<'_, str>, f64)]) -> Result<(), DeviceLimitError> {
        let Some(admitted) = &self.admitted else { return self.check_uncached(id, metrics, values) };
        let key = CacheKey::of(id, metrics, self.hour);
        if !admitted.has(key) {
            self.check_uncached(id, metrics, values)?;
            admitted.insert(key);
        }
        Ok(())
    }

    fn check_uncached(&self, id: u64, metrics: u64, values: &[(Cow<'_, str>, f64)]) -> Result<(), DeviceLimitError> {
        let check = |known: &mut Known| self.check_limits(known, metrics, values);
        if let Some(result) = self.devices.known.update(id, check) {
            return result;
        }
        self.admit_new(id)?;
        self.devices.known.update(id, check).unwrap_or(Ok(()))
    }

    fn admit_new(&self, id: u64) -> Result<(), DeviceLimitError> {
        if let Some(limiter) = self.new_device_limiter.filter(|_| !self.devices.takes_grace(self.now)) {
            limiter.take(self.now).map_err(|_| DeviceLimitError::TooManyNewDevices)?;
        }
        self.devices.known.insert(id);
        Ok(())
    }

    fn check_limits(
        &self,
        known: &mut Known,
        metrics: u64,
        values: &[(Cow<'_, str>, f64)],
    ) -> Result<(), DeviceLimitError> {
        let DeviceLimits { readings, metrics_per_hour, .. } = self.devices.limits;
        if let Some(rate) = readings
            && !self.is_charged
            && let Some(wait) = rate.wait(1, known.used_ns, self.devices.since_start_ns(self.now))
        {
            return Err(DeviceLimitError::RateLimited(wait));
        }
        if let Some(max) = metrics_per_hour {
            let names = values.iter().flat_map(|(name, _)| {
                let hash = self.devices.hasher.hash_one(&**name) as u32;
                (0..name.len().div_ceil(METRIC_MAX_BYTES) as u32).map(move |nth| hash.wrapping_add(nth))
            });
            if !known.add_metrics(&self.devices.shared, (self.hour, metrics), names, max) {
                return Err(DeviceLimitError::TooManyMetrics);
            }
        }
        Ok(())
    }

    fn count(&mut self, id: u64) {
        if self.is_charged || self.devices.limits.readings.is_none() {
            return;
        }
        match self.sent.last_mut() {
            Some((last, count)) if *last == id => *count += 1,
            _ => self.sent.push((id, 1)),
        }
    }
}

impl DeviceLimitError {
    fn rejection(self, limits: &DeviceLimits) -> Rejection {
        let (code, detail) = match self {
            Self::RateLimited(_) => (
                Code::DeviceRateLimited,
                "the device sends more than limits.device_readings_per_second allows".to_owned(),
            ),
            Self::TooManyMetrics => {
                let max = limits.metrics_per_hour.unwrap_or_default();
                let detail = format!(
                    "a device has at most {max} different series an hour (limits.device_metrics_per_hour); one of \
                     more than {METRIC_MAX_BYTES} bytes counts as several"
                );
                (Code::TooManyDeviceMetrics, detail)
            }
            Self::TooManyNewDevices => (
                Code::TooManyNewDevices,
                "too many devices have appeared lately (limits.new_devices_per_minute)".to_owned(),
            ),
        };
        Rejection { code, detail }
    }
}
