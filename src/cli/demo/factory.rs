//! The devices of the simulated factory, and their readings as requests and datagrams.
//!
//! The readings of a range of time depend only on the seed and on the start of the demo. So history and live
//! readings meet without a gap or an overlap.

use std::ops::Range;

use serde::Serialize;
use serde_json::{Value, json};

use super::calendar::{DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, WEEK_MS};
use super::random::mix;
use super::sensor::{Sensor, Values};

const FLOORS: usize = 4;
const ZONES: usize = 4;

/// The devices, and the instant at which live readings begin.
#[derive(Debug)]
pub(super) struct Factory {
    pub(super) start_ms: i64,
    pub(super) devices: Vec<Device>,
}

/// A simulated device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) id: String,
    metadata: Value,
    sensor: Sensor,
    seed: u64,
    weather: u64,
    interval_ms: i64,
    fault: Fault,
    pub(super) delivery: Delivery,
}

/// The fault of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The device sends nothing from this instant on.
    Silent {
        since_ms: i64,
    },
    /// The clock of the device is ahead from this instant on.
    ClockAhead {
        since_ms: i64,
        by_ms: i64,
    },
}

/// How the live readings of a device are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    /// Over HTTP, each reading at once.
    Http,
    /// Over HTTP, each reading twice, like a sender that missed the first answer.
    HttpTwice,
    /// Over HTTP, the readings of two minutes together.
    HttpLate,
    /// As datagrams, each reading at once.
    Udp,
}

/// The time for which a device with [`Delivery::HttpLate`] collects readings.
const LATE_MS: i64 = 2 * MINUTE_MS;

/// Readings of a device as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Message<'d> {
    device_id: &'d str,
    metadata: &'d Value,
    readings: Vec<Reading>,
}

#[derive(Serialize)]
struct Reading {
    ts: i64,
    values: Values,
}

impl Factory {
    /// The factory of a demo that starts at an instant.
    pub(super) fn new(seed: u64, start_ms: i64) -> Self {
        let mut devices = Vec::new();
        let mut add = |id: &str, place: Value, sensor: Sensor, delivery: Delivery| {
            devices.push(Device::new(id, place, sensor, delivery, (seed, devices.len())));
        };
        for (floor, zone) in (1..=FLOORS).flat_map(|floor| (1..=ZONES).map(move |zone| (floor, zone))) {
            let place = json!({ "floor": floor, "zone": format!("Zone {zone}"), "type": "light" });
            let delivery = if floor == FLOORS { Delivery::Udp } else { Delivery::Http };
            add(&format!("LIGHT-FL{floor:02}-ZONE{zone}"), place, Sensor::Light { window: zone == 1 }, delivery);
        }
        for floor in 1..=FLOORS {
            let place = json!({ "floor": floor, "type": "climate" });
            add(&format!("CLIMATE-FL{floor:02}"), place, Sensor::Climate, Delivery::Http);
        }
        let fails_at_ms = start_ms + 10 * MINUTE_MS;
        for (id, fails_at_ms) in [("COMPRESSOR-1", None), ("COMPRESSOR-2", Some(fails_at_ms))] {
            let place = json!({ "floor": 1, "type": "compressor" });
            add(id, place, Sensor::Compressor { fails_at_ms }, Delivery::Udp);
        }
        let meter = Sensor::Meter { replaced_at_ms: start_ms - 3 * DAY_MS };
        add("METER-MAIN", json!({ "floor": 1, "type": "meter" }), meter, Delivery::Http);
        add("WEATHER-ROOF", json!({ "type": "weather" }), Sensor::Weather, Delivery::Http);
        add("TANK-1", json!({ "floor": 1, "type": "tank" }), Sensor::Tank, Delivery::Http);
        let dock = Sensor::Light { window: true };
        add("LIGHT-DOCK", json!({ "floor": 1, "zone": "Dock", "type": "light" }), dock, Delivery::Http);
        add("TRUCK-1", json!({ "type": "climate" }), Sensor::Climate, Delivery::HttpLate);
        add("SCALE-1", json!({ "floor": 1, "type": "scale" }), Sensor::Scale, Delivery::HttpTwice);
        for device in &mut devices {
            device.fault = match device.id.as_str() {
                "TANK-1" => Fault::Silent { since_ms: start_ms - 5 * HOUR_MS },
                "LIGHT-DOCK" => Fault::ClockAhead { since_ms: start_ms - 20 * HOUR_MS, by_ms: 2 * HOUR_MS },
                _ => Fault::None,
            };
        }
        Self { start_ms, devices }
    }

    /// The parts of the history, the most useful first.
    ///
    /// They are the last day of each device, then the rest of the week of each. A part is the index of a
    /// device and a range of time.
    pub(super) fn history(&self) -> impl Iterator<Item = (usize, Range<i64>)> + use<> {
        let (count, start_ms) = (self.devices.len(), self.start_ms);
        let ranges = [start_ms - DAY_MS..start_ms, start_ms - WEEK_MS..start_ms - DAY_MS];
        ranges.into_iter().flat_map(move |range| (0..count).map(move |nth| (nth, range.clone())))
    }
}

impl Device {
    fn new(id: &str, place: Value, sensor: Sensor, delivery: Delivery, (seed, nth): (u64, usize)) -> Self {
        let mut metadata = place;
        metadata["units"] = sensor.units().iter().copied().collect();
        if !sensor.counters().is_empty() {
            metadata["kind"] = sensor.counters().iter().map(|metric| (*metric, "counter")).collect();
        }
        if let Some(limits) = sensor.limits() {
            metadata["limits"] = limits;
        }
        let is_fast = matches!(sensor, Sensor::Light { .. } | Sensor::Compressor { .. });
        Self {
            id: id.to_owned(),
            metadata,
            sensor,
            seed: mix(seed, nth as i64),
            weather: mix(seed, -1),
            interval_ms: if is_fast { 10 * SECOND_MS } else { MINUTE_MS },
            fault: Fault::None,
            delivery,
        }
    }

    /// The readings of a past range of time, as one line of JSON, if there are any.
    ///
    /// If the clock of the device is ahead, the range ends at the instant from which it is ahead: a server
    /// would have rejected later readings.
    pub(super) fn past(&self, range: Range<i64>) -> Option<Vec<u8>> {
        let end = match self.fault {
            Fault::ClockAhead { since_ms, .. } => range.end.min(since_ms),
            _ => range.end,
        };
        self.line(range.start..end)
    }

    /// The readings from `from_ms` on that the device sends now, as lines of JSON.
    ///
    /// Also returns the instant up to which the readings reach. The next call continues there.
    pub(super) fn due(&self, from_ms: i64, now_ms: i64) -> (Vec<Vec<u8>>, i64) {
        let collected = self.delivery == Delivery::HttpLate;
        let until_ms = if collected { now_ms - now_ms.rem_euclid(LATE_MS) } else { now_ms };
        let until_ms = until_ms.max(from_ms);
        let lines = if collected {
            self.line(from_ms..until_ms).into_iter().collect()
        } else {
            self.instants(from_ms..until_ms).filter_map(|ts_ms| self.line(ts_ms..ts_ms + 1)).collect()
        };
        (lines, until_ms)
    }

    fn line(&self, range: Range<i64>) -> Option<Vec<u8>> {
        let readings: Vec<Reading> = self.instants(range).map(|ts_ms| self.reading(ts_ms)).collect();
        let message = Message { device_id: &self.id, metadata: &self.metadata, readings };
        let mut line = (!message.readings.is_empty()).then(|| serde_json::to_vec(&message))?.ok()?;
        line.push(b'\n');
        Some(line)
    }

    /// The instants at which the device measures.
    fn instants(&self, range: Range<i64>) -> impl Iterator<Item = i64> + use<> {
        let end = match self.fault {
            Fault::Silent { since_ms } => range.end.min(since_ms),
            _ => range.end,
        };
        // Devices measure at different seconds.
        let offset = self.seed as i64 % (self.interval_ms / SECOND_MS) * SECOND_MS;
        let first = range.start + (offset - range.start).rem_euclid(self.interval_ms);
        (first..end).step_by(self.interval_ms as usize)
    }

    fn reading(&self, ts_ms: i64) -> Reading {
        let ahead_ms = match self.fault {
            Fault::ClockAhead { since_ms, by_ms } if ts_ms >= since_ms => by_ms,
            _ => 0,
        };
        Reading { ts: ts_ms + ahead_ms, values: self.sensor.values(self.seed, self.weather, ts_ms) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-04-20T14:00:07Z.
    const START: i64 = 1_776_693_607_000;

    fn device<'f>(factory: &'f Factory, id: &str) -> &'f Device {
        factory.devices.iter().find(|device| device.id == id).unwrap()
    }

    fn instants_in(lines: &[Vec<u8>]) -> Vec<i64> {
        let readings = lines.iter().flat_map(|line| {
            let message: Value = serde_json::from_slice(line).unwrap();
            message["readings"].as_array().unwrap().clone()
        });
        readings.map(|reading| reading["ts"].as_i64().unwrap()).collect()
    }

    #[test]
    fn one_seed_makes_the_same_readings_and_another_one_others() {
        let hour = |seed| -> Vec<_> {
            Factory::new(seed, START).devices.iter().map(|device| device.past(START - HOUR_MS..START)).collect()
        };
        assert!(hour(1) == hour(1) && hour(1) != hour(2));
    }

    #[test]
    fn a_line_names_the_device_its_metadata_and_its_units() {
        let factory = Factory::new(1, START);
        let line = device(&factory, "LIGHT-FL02-ZONE3").past(START - 20_000..START).unwrap();
        let message: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(message["deviceId"], "LIGHT-FL02-ZONE3");
        let expected = json!({ "floor": 2, "zone": "Zone 3", "type": "light", "units": { "lux": "lx" } });
        assert_eq!(message["metadata"], expected);
        assert!(message["readings"][1]["values"]["lux"].is_f64());
    }

    #[test]
    fn history_and_live_readings_meet_at_the_start() {
        let factory = Factory::new(1, START);
        for device in factory.devices.iter().filter(|device| device.fault == Fault::None) {
            let mut sent = vec![device.past(START - HOUR_MS..START).unwrap()];
            let mut from_ms = START;
            for now_ms in (START - 5_000..START + HOUR_MS).step_by(3_333) {
                let (lines, until_ms) = device.due(from_ms, now_ms);
                assert!(until_ms >= from_ms && until_ms <= now_ms.max(START));
                sent.extend(lines);
                from_ms = until_ms;
            }
            let expected: Vec<i64> = device.instants(START - HOUR_MS..from_ms).collect();
            assert_eq!(instants_in(&sent), expected, "{}", device.id);
            assert!(expected.len() > 110);
        }
    }

    #[test]
    fn history_has_each_instant_of_the_week_once() {
        let factory = Factory::new(1, START);
        let nth = factory.devices.iter().position(|device| device.id == "METER-MAIN").unwrap();
        let parts = factory.history().filter(|(device, _)| *device == nth);
        let lines: Vec<_> = parts.filter_map(|(device, range)| factory.devices[device].past(range)).collect();
        let mut instants = instants_in(&lines);
        instants.sort_unstable();
        let expected: Vec<i64> = factory.devices[nth].instants(START - WEEK_MS..START).collect();
        assert_eq!((instants, expected.len()), (expected, 7 * 24 * 60));
    }

    #[test]
    fn a_silent_device_sends_nothing_and_a_clock_ahead_sends_times_to_come() {
        let factory = Factory::new(1, START);
        let silent = device(&factory, "TANK-1");
        assert!(silent.past(START - DAY_MS..START).is_some() && silent.past(START - 5 * HOUR_MS..START).is_none());
        assert!(silent.due(START, START + DAY_MS).0.is_empty());

        let ahead = device(&factory, "LIGHT-DOCK");
        assert!(ahead.past(START - 2 * DAY_MS..START).is_some() && ahead.past(START - 20 * HOUR_MS..START).is_none());
        let (lines, _) = ahead.due(START, START + 10_000);
        let instants = instants_in(&lines);
        assert!(instants.len() == 1 && instants[0] >= START + 2 * HOUR_MS);
    }

    #[test]
    fn a_late_device_collects_its_readings() {
        let factory = Factory::new(1, START);
        let late = device(&factory, "TRUCK-1");
        let (lines, until_ms) = late.due(START, START + 30_000);
        assert!(lines.is_empty() && until_ms == START);
        let (lines, until_ms) = late.due(START, START + 2 * LATE_MS);
        assert!(lines.len() == 1 && until_ms % LATE_MS == 0 && instants_in(&lines).len() >= 3);
    }
}
