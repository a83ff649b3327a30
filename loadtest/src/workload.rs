//! The readings that the devices send.
//!
//! A reading is computed from its number. So the sent readings can be computed again, to compare them with
//! what the server has.
//!
//! Each connection has its own devices, as a gateway has. It cycles through its `n` devices: reading `i` is
//! that of device `i % n` at tick `i / n`. In some workloads, some readings are held back, or sent a second
//! time. Then they follow [`LAG`] readings later.

use std::sync::Arc;

use clap::ValueEnum;

/// A connection sends a late or repeated reading this many readings later.
const LAG: u64 = 20_000;

/// A kind of workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Machines in a hall: each device every 10 seconds, batched by gateways
    Factory,
    /// Devices far apart: each once a minute, one reading a message
    Fleet,
    /// As factory; five times as much in 10 seconds of each minute (open loop only)
    Burst,
    /// As factory; a tenth of the readings come late and a tenth come twice
    Late,
}

/// How the values of readings are made.
#[derive(Debug, Clone, Default)]
pub(crate) enum Values {
    /// A temperature in tenths of a degree that drifts, with noise.
    ///
    /// It is as hard to compress as the values of a sensor.
    #[default]
    Decimal,
    /// An integer that grows by 1 to 9 at each tick.
    Counter,
    /// 0 or 1, which may change every 180 ticks: half an hour of 10-second steps.
    Switch,
    /// Random doubles from 0 to 100, with all 53 bits random.
    Noise,
    /// These values in turn. Each device begins at another place.
    Series(Arc<[f64]>),
}

/// The parameters of the readings of all devices.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Workload {
    pub(crate) kind: Kind,
    /// The number of the first device.
    pub(crate) first_device: u64,
    /// The number of devices.
    pub(crate) devices: u64,
    /// The time between two readings of a device.
    pub(crate) step_ms: u64,
    /// The number of readings in a message.
    pub(crate) batch: u64,
    /// The percentage of readings that are sent late, after [`LAG`] others.
    pub(crate) late_percent: u64,
    /// The percentage of readings that are sent twice.
    pub(crate) resent_percent: u64,
    /// The time of the first tick, in Unix milliseconds.
    pub(crate) first_ms: u64,
    #[serde(skip)]
    pub(crate) values: Values,
}

/// A reading with one value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reading {
    pub(crate) device: u64,
    pub(crate) ts_ms: u64,
    pub(crate) value: f64,
}

/// The part of the workload that one connection sends: some of the devices.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    workload: Workload,
    first_device: u64,
    devices: u64,
}

impl Kind {
    /// The parameters of a kind, unless the command line sets others.
    ///
    /// They are the step in milliseconds, the readings per message, and the percentages of late and of resent
    /// readings.
    pub(crate) const fn habits(self) -> (u64, u64, u64, u64) {
        match self {
            Self::Factory | Self::Burst => (10_000, 1_000, 0, 0),
            Self::Fleet => (60_000, 1, 0, 0),
            Self::Late => (10_000, 1_000, 10, 10),
        }
    }
}

impl Workload {
    /// A steady load without late or resent readings.
    pub(crate) const fn steady(kind: Kind, devices: u64, step_ms: u64, batch: u64, first_ms: u64) -> Self {
        let values = Values::Decimal;
        Self { kind, first_device: 0, devices, step_ms, batch, late_percent: 0, resent_percent: 0, first_ms, values }
    }

    /// The share of connection `nth` of `connections`. Each device is in one share.
    pub(crate) fn share(&self, nth: u64, connections: u64) -> Share {
        let (first, end) = (self.devices * nth / connections, self.devices * (nth + 1) / connections);
        Share { workload: self.clone(), first_device: self.first_device + first, devices: end - first }
    }

    /// Readings per second if every device keeps its step.
    pub(crate) fn natural_rate(&self) -> f64 {
        self.devices as f64 * 1_000.0 / self.step_ms as f64
    }
}

impl Share {
    pub(crate) fn devices(&self) -> std::ops::Range<u64> {
        self.first_device..self.first_device + self.devices
    }

    /// Replaces the content of `message` by the readings of message `nth`.
    pub(crate) fn message(&self, nth: u64, message: &mut Vec<Reading>) {
        message.clear();
        for i in nth * self.workload.batch..(nth + 1) * self.workload.batch {
            if !self.is_late(i) {
                message.push(self.reading(i));
            }
            if let Some(earlier) =
                i.checked_sub(LAG).filter(|&earlier| self.is_late(earlier) || self.is_resent(earlier))
            {
                message.push(self.reading(earlier));
            }
        }
    }

    /// The readings of a device in the first `messages` messages, in time order.
    ///
    /// A reading that was sent twice is returned once.
    pub(crate) fn sent(&self, device: u64, messages: u64) -> impl Iterator<Item = Reading> + '_ {
        let end = messages * self.workload.batch;
        let first = device - self.first_device;
        let all = (0..).map(move |tick| first + tick * self.devices).take_while(move |&i| i < end);
        all.filter(move |&i| !self.is_late(i) || i + LAG < end).map(|i| self.reading(i))
    }

    /// The time of the last tick of the first `messages` messages.
    pub(crate) fn last_ms(&self, messages: u64) -> u64 {
        self.reading((messages * self.workload.batch).saturating_sub(1)).ts_ms
    }

    fn reading(&self, i: u64) -> Reading {
        let (device, tick) = (self.first_device + i % self.devices, i / self.devices);
        // Each device has its own phase, so that the readings in a message are measured shortly before it is
        // due.
        let phase_ms = i % self.devices * self.workload.step_ms / self.devices;
        let ts_ms = self.workload.first_ms + tick * self.workload.step_ms + phase_ms;
        Reading { device, ts_ms, value: self.workload.values.of(device, tick) }
    }

    fn is_late(&self, i: u64) -> bool {
        lot(i) < self.workload.late_percent
    }

    fn is_resent(&self, i: u64) -> bool {
        !self.is_late(i) && lot(!i) < self.workload.resent_percent
    }
}

impl Values {
    /// The value of a device at a tick.
    fn of(&self, device: u64, tick: u64) -> f64 {
        let random = |tick| mixed(device << 32 ^ tick);
        match self {
            Self::Decimal => {
                let drift = (device + tick / 360) % 24 * 2;
                (200 + drift + random(tick) % 8) as f64 / 10.0
            }
            Self::Counter => (tick * 5 + random(tick) % 5) as f64,
            Self::Switch => (random(tick / 180) % 2) as f64,
            Self::Noise => (random(tick) >> 11) as f64 / (1_u64 << 53) as f64 * 100.0,
            Self::Series(values) => values[(device * 601 + tick) as usize % values.len()],
        }
    }
}

/// A pseudorandom number from 0 to 99, which follows from `i`.
fn lot(i: u64) -> u64 {
    mixed(i) % 100
}

/// Mixes the bits of a number: the finalizer of `SplitMix64`.
fn mixed(i: u64) -> u64 {
    let mixed = (i ^ (i >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn workload(late_percent: u64, resent_percent: u64) -> Workload {
        Workload {
            kind: Kind::Late,
            first_device: 0,
            devices: 7,
            step_ms: 10,
            batch: 500,
            late_percent,
            resent_percent,
            first_ms: 1_000,
            values: Values::Decimal,
        }
    }

    #[test]
    fn shares_have_each_device_once() {
        let workload = Workload { first_device: 5, ..workload(0, 0) };
        let all: Vec<u64> = (0..3).flat_map(|nth| workload.share(nth, 3).devices()).collect();
        assert_eq!(all, (5..12).collect::<Vec<_>>());
    }

    #[test]
    fn values_are_of_their_kind() {
        let of = |values: Values| (0..1_000).map(move |tick| values.of(3, tick)).collect::<Vec<_>>();
        assert!(of(Values::Decimal).iter().all(|value| (value * 10.0).fract() < 1e-9));
        assert!(of(Values::Counter).windows(2).all(|pair| (1.0..=9.0).contains(&(pair[1] - pair[0]))));
        let changes = of(Values::Switch).windows(2).filter(|pair| pair[0].to_bits() != pair[1].to_bits()).count();
        assert!((1..=5).contains(&changes), "{changes}");
        assert!(of(Values::Noise).iter().all(|value| (0.0..100.0).contains(value) && value.fract() > 0.0));
        let series = of(Values::Series([1.5, 2.5, 3.5].into()));
        assert_eq!(series[..4], [1.5, 2.5, 3.5, 1.5]);
    }

    #[test]
    fn what_was_sent_can_be_told_again() {
        for (late, resent) in [(0, 0), (10, 10), (60, 30)] {
            let share = workload(late, resent).share(1, 2);
            let mut sent: BTreeMap<(u64, u64), f64> = BTreeMap::new();
            let (mut message, mut count) = (Vec::new(), 0);
            for nth in 0..100 {
                share.message(nth, &mut message);
                count += message.len();
                sent.extend(message.iter().map(|reading| ((reading.device, reading.ts_ms), reading.value)));
            }
            let told = share.devices().flat_map(|device| share.sent(device, 100));
            assert!(told.map(|reading| ((reading.device, reading.ts_ms), reading.value)).eq(sent.clone()));
            assert_eq!(count > sent.len(), resent > 0);
        }
    }
}
