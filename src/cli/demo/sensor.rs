//! The values that a sensor measures at an instant: a pure function of seeds and time.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::calendar::{DAY_MS, HOUR_MS, MINUTE_MS, day_curve, is_work, worked_ms};
use super::random::{curve, noise, uniform};

/// The values of a reading by metric.
pub(super) type Values = BTreeMap<&'static str, f64>;

/// The quantities that a device measures.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sensor {
    /// The light of a zone, with or without a window.
    Light { window: bool },
    /// Temperature and humidity in the factory.
    Climate,
    /// Temperature, humidity and wind outside.
    Weather,
    /// Vibration and bearing temperature of a compressor, which may fail.
    Compressor { fails_at_ms: Option<i64> },
    /// An energy counter, replaced by a new one that began at zero.
    Meter { replaced_at_ms: i64 },
    /// The level of a tank, filled again when it is low.
    Tank,
    /// The weight on a scale.
    Scale,
}

/// The time from a failure of a compressor to the next.
const FAILURE_CYCLE_MS: i64 = 8 * DAY_MS;
/// The time of a repair.
const REPAIR_MS: i64 = 30 * MINUTE_MS;
/// The time between a full tank and the next.
const TANK_CYCLE_MS: i64 = 31 * HOUR_MS;
const BASE_KW: f64 = 18.0;
const WORK_KW: f64 = 64.0;

impl Sensor {
    /// The metrics with their units.
    pub(super) const fn units(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Light { .. } => &[("lux", "lx")],
            Self::Climate => &[("hum", "%"), ("temp", "°C")],
            Self::Weather => &[("hum", "%"), ("temp", "°C"), ("wind", "m/s")],
            Self::Compressor { .. } => &[("temp", "°C"), ("vibration", "mm/s")],
            Self::Meter { .. } => &[("energy", "kWh"), ("power", "kW")],
            Self::Tank => &[("level", "%")],
            Self::Scale => &[("weight", "kg")],
        }
    }

    /// The metrics that are counters.
    pub(super) const fn counters(self) -> &'static [&'static str] {
        if matches!(self, Self::Meter { .. }) { &["energy"] } else { &[] }
    }

    /// The limits of the values, if there are any.
    pub(super) fn limits(self) -> Option<Value> {
        match self {
            Self::Climate => Some(json!({ "temp": { "min": 10, "max": 30 } })),
            Self::Compressor { .. } => Some(json!({ "temp": { "max": 75 }, "vibration": { "max": 7.1 } })),
            Self::Tank => Some(json!({ "level": { "min": 20 } })),
            Self::Light { .. } | Self::Weather | Self::Meter { .. } | Self::Scale => None,
        }
    }

    /// The values at an instant.
    ///
    /// `seed` is the seed of the device, `weather` the seed of the weather.
    pub(super) fn values(self, seed: u64, weather: u64, ts_ms: i64) -> Values {
        let jitter = |metric: u64| noise(seed ^ metric, ts_ms);
        match self {
            Self::Light { window } => Values::from([("lux", round(lux(window, seed, weather, ts_ms), 0))]),
            Self::Climate => {
                let warmth = if is_work(ts_ms) { 1.0 } else { 0.0 } + curve(seed, ts_ms, 3 * HOUR_MS);
                let temp = 19.5 + 0.15 * (outside(weather, ts_ms) - 10.0) + 0.8 * warmth + 0.1 * jitter(1);
                let hum = 46.0 - 1.5 * (temp - 20.0) + 5.0 * curve(weather ^ 2, ts_ms, 18 * HOUR_MS) + 0.4 * jitter(2);
                Values::from([("hum", round(hum, 1)), ("temp", round(temp, 1))])
            }
            Self::Weather => {
                let temp = outside(weather, ts_ms);
                let hum =
                    (72.0 - 2.4 * (temp - 11.0) + 9.0 * curve(weather ^ 2, ts_ms, 18 * HOUR_MS)).clamp(20.0, 100.0);
                let gust = 1.0 + 0.6 * curve(seed ^ 3, ts_ms, 5 * MINUTE_MS);
                let wind = (4.0 + 3.5 * curve(weather ^ 3, ts_ms, 12 * HOUR_MS)) * gust;
                Values::from([("hum", round(hum, 1)), ("temp", round(temp, 1)), ("wind", round(wind, 1))])
            }
            Self::Compressor { fails_at_ms } => {
                let (wear, running) = wear(fails_at_ms, ts_ms);
                let vibration = (2.1 + 9.0 * wear + (0.15 + wear) * jitter(1)) * running + 0.02 * (1.0 + jitter(3));
                let room = 21.0 + 2.0 * day_curve(ts_ms, 15);
                let temp = room + (27.0 + 34.0 * wear) * running + 0.3 * jitter(2);
                Values::from([("temp", round(temp, 1)), ("vibration", round(vibration, 2))])
            }
            Self::Meter { replaced_at_ms } => {
                let installed_at_ms =
                    if ts_ms < replaced_at_ms { replaced_at_ms - 400 * DAY_MS } else { replaced_at_ms };
                let work = if is_work(ts_ms) { WORK_KW } else { 0.0 };
                let energy = kilowatt_hours(ts_ms) - kilowatt_hours(installed_at_ms);
                let power = (BASE_KW + work) * (1.0 + 0.08 * jitter(1));
                Values::from([("energy", round(energy, 2)), ("power", round(power, 1))])
            }
            Self::Tank => {
                let used = ts_ms.rem_euclid(TANK_CYCLE_MS) as f64 / TANK_CYCLE_MS as f64;
                Values::from([("level", round(96.0 - 78.0 * used + 0.3 * jitter(1), 1))])
            }
            Self::Scale => {
                let load = uniform(seed, ts_ms.div_euclid(7 * MINUTE_MS));
                let is_empty = !is_work(ts_ms) || load < 0.3;
                Values::from([("weight", round(if is_empty { 0.0 } else { 1_200.0 * load } + 0.2 * jitter(1), 1))])
            }
        }
    }
}

/// The light of a zone: lamps while people are in it, and daylight at windows.
fn lux(window: bool, seed: u64, weather: u64, ts_ms: i64) -> f64 {
    let is_occupied = uniform(seed, ts_ms.div_euclid(4 * MINUTE_MS)) < if is_work(ts_ms) { 0.9 } else { 0.02 };
    let lamps = if is_occupied { 316.0 + 6.0 * noise(seed ^ 1, ts_ms) } else { 3.0 };
    let clouds = 0.65 + 0.35 * curve(weather ^ 4, ts_ms, HOUR_MS);
    let daylight = if window { 260.0 * day_curve(ts_ms, 12).max(0.0) * clouds } else { 0.0 };
    lamps + daylight
}

/// The temperature outside: the course of the day, and fronts of a day or two.
fn outside(weather: u64, ts_ms: i64) -> f64 {
    11.0 + 5.0 * day_curve(ts_ms, 15) + 6.0 * curve(weather, ts_ms, 36 * HOUR_MS) + 0.1 * noise(weather, ts_ms)
}

/// The wear of a compressor, from 0 to 1, and 1 if the compressor runs, else 0.
///
/// The bearing wears for days, and steeply in the last minutes. Then the compressor stops, and is repaired.
fn wear(fails_at_ms: Option<i64>, ts_ms: i64) -> (f64, f64) {
    let Some(fails_at_ms) = fails_at_ms else { return (0.0, 1.0) };
    let left_ms = (fails_at_ms - ts_ms - 1).rem_euclid(FAILURE_CYCLE_MS) as f64;
    if left_ms >= (FAILURE_CYCLE_MS - REPAIR_MS) as f64 {
        return (0.0, 0.0);
    }
    let slowly = (-left_ms / (20 * HOUR_MS) as f64).exp();
    let steeply = (-left_ms / (3 * MINUTE_MS) as f64).exp();
    (0.5 * slowly + 0.5 * steeply, 1.0)
}

/// The energy used since a time long ago.
fn kilowatt_hours(ts_ms: i64) -> f64 {
    (BASE_KW * ts_ms as f64 + WORK_KW * worked_ms(ts_ms) as f64) / HOUR_MS as f64
}

/// Rounds a value to this number of decimals, as a sensor sends it.
fn round(value: f64, decimals: i32) -> f64 {
    let unit = 10_f64.powi(decimals);
    (value * unit).round() / unit
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-04-20T00:00:00Z, a Monday.
    const MONDAY: i64 = 1_776_643_200_000;

    fn value(sensor: Sensor, metric: &str, ts_ms: i64) -> f64 {
        sensor.values(5, 6, ts_ms)[metric]
    }

    fn mean(sensor: Sensor, metric: &str, hour: i64) -> f64 {
        let values = (0..360).map(|nth| value(sensor, metric, MONDAY + hour * HOUR_MS + nth * 10_000));
        values.sum::<f64>() / 360.0
    }

    #[test]
    fn each_metric_has_a_unit_and_a_plausible_range() {
        for (sensor, ranges) in [
            (Sensor::Light { window: true }, &[("lux", 0.0..600.0)][..]),
            (Sensor::Climate, &[("hum", 20.0..80.0), ("temp", 10.0..35.0)]),
            (Sensor::Weather, &[("hum", 20.0..100.1), ("temp", -10.0..35.0), ("wind", 0.0..15.0)]),
            (Sensor::Compressor { fails_at_ms: Some(MONDAY) }, &[("temp", 15.0..90.0), ("vibration", 0.0..13.0)]),
            (Sensor::Meter { replaced_at_ms: MONDAY }, &[("energy", 0.0..500_000.0), ("power", 15.0..90.0)]),
            (Sensor::Tank, &[("level", 10.0..100.0)]),
            (Sensor::Scale, &[("weight", -1.0..1_201.0)]),
        ] {
            for nth in -10_000..10_000 {
                let values = sensor.values(5, 6, MONDAY + nth * 61_000);
                assert!(values.keys().eq(sensor.units().iter().map(|(metric, _)| metric)), "{sensor:?}");
                for (metric, range) in ranges {
                    assert!(range.contains(&values[metric]), "{sensor:?} {values:?}");
                }
            }
        }
    }

    #[test]
    fn lights_follow_the_hours_of_work_and_the_day() {
        let dark = Sensor::Light { window: false };
        let bright = Sensor::Light { window: true };
        assert!(mean(dark, "lux", 2) < 60.0 && mean(dark, "lux", 12) > 200.0);
        assert!(mean(bright, "lux", 12) > mean(dark, "lux", 12) + 50.0);
    }

    #[test]
    fn it_is_warmer_in_the_afternoon_than_in_the_night() {
        let days = (0..30).map(|day| {
            let [night, afternoon] = [3, 15].map(|hour| mean(Sensor::Weather, "temp", 24 * day + hour));
            afternoon - night
        });
        assert!(days.sum::<f64>() / 30.0 > 5.0);
    }

    #[test]
    fn a_compressor_vibrates_more_until_it_fails_and_is_repaired() {
        let compressor = Sensor::Compressor { fails_at_ms: Some(MONDAY) };
        let around = |ms: i64| {
            let values = (0..50).map(|nth| value(compressor, "vibration", MONDAY + ms - 25_000 + nth * 1_000));
            values.sum::<f64>() / 50.0
        };
        let levels = [-7 * DAY_MS, -DAY_MS, -HOUR_MS, -5 * MINUTE_MS, -MINUTE_MS].map(around);
        assert!(levels.is_sorted() && levels[0] < 2.5 && levels[4] > 8.0, "{levels:?}");
        assert!(value(compressor, "vibration", MONDAY) < 0.1);
        assert!(around(REPAIR_MS / 2) < 0.1 && (1.5..2.5).contains(&around(REPAIR_MS + HOUR_MS)));
        let healthy = Sensor::Compressor { fails_at_ms: None };
        assert!((1.5..2.5).contains(&value(healthy, "vibration", MONDAY - 1)));
    }

    #[test]
    fn an_energy_counter_only_grows_until_it_is_replaced() {
        let meter = Sensor::Meter { replaced_at_ms: MONDAY };
        let counters: Vec<f64> =
            (-5_000..5_000).map(|minute| value(meter, "energy", MONDAY + minute * MINUTE_MS)).collect();
        let falls: Vec<usize> = (1..counters.len()).filter(|&nth| counters[nth] < counters[nth - 1]).collect();
        assert_eq!((falls, counters[5_000]), (vec![5_000], 0.0));
        let of_day = value(meter, "energy", MONDAY + DAY_MS);
        assert!((of_day - (24.0 * BASE_KW + 16.0 * WORK_KW)).abs() < 1e-6, "{of_day}");
    }
}
