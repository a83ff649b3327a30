//! The series and its hourly stats, computed without any code of the crate.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

const HOUR_MS: i64 = 3_600_000;
const STEP_MS: i64 = 300_000;

/// Readings of one metric in the order of the file: Unix milliseconds and values. Some instants are there
/// twice, an hour after each other, as when a clock is set back; the later value counts.
#[derive(Debug, Clone)]
pub(crate) struct Series(Vec<(i64, f64)>);

/// The expected stats of one hour.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hourly {
    pub(crate) count: u64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) sum: f64,
}

impl Series {
    /// The temperature of a machine from the Numenta anomaly benchmark when that file lies beside the
    /// project, else a series of the same shape.
    pub(crate) fn load() -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/machine_temperature.csv");
        std::fs::read_to_string(file).map_or_else(|_| Self::similar(), |text| Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let rows = text.lines().skip(1).map(|line| {
            let (time, value) = line.split_once(',').expect("two columns");
            let time: DateTime = time.parse().expect("a civil time");
            let time = time.to_zoned(TimeZone::UTC).expect("in range").timestamp();
            (time.as_millisecond(), value.parse().expect("a number"))
        });
        Self(rows.collect())
    }

    fn similar() -> Self {
        let start = 1_386_018_900_000; // 2013-12-02T21:15:00Z
        let set_back = 10_149; // after so many readings the clock goes back by an hour
        let time = |at: i64| start + (if at < set_back { at } else { at - 12 }) * STEP_MS;
        let value = |at: i64| 85.0 + 15.0 * (at as f64 / 288.0).sin() + ((at * 7_919) % 1_000) as f64 / 300.0;
        Self((0..22_695).map(|at| (time(at), value(at))).collect())
    }

    /// The number of readings, including repetitions.
    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// The number of instants.
    pub(crate) fn identities(&self) -> u64 {
        self.by_instant().len() as u64
    }

    /// The series without the values that were replaced, in time order.
    pub(crate) fn last_values(&self) -> Self {
        Self(self.by_instant().into_iter().collect())
    }

    /// The first readings.
    pub(crate) fn first(mut self, readings: usize) -> Self {
        self.0.truncate(readings);
        self
    }

    /// The readings: Unix milliseconds and values.
    pub(crate) fn values(&self) -> impl Iterator<Item = (i64, f64)> {
        self.0.iter().copied()
    }

    /// The same readings in another order, the same for the same seed.
    pub(crate) fn shuffled(mut self, seed: u64) -> Self {
        let mut state = seed;
        for at in (1..self.0.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.0.swap(at, (state >> 33) as usize % (at + 1));
        }
        self
    }

    /// Writes the series as a CSV file with the header `timestamp,value`.
    pub(crate) fn write(&self, file: &Path) {
        let mut text = "timestamp,value\n".to_owned();
        for (ts_ms, value) in &self.0 {
            let time = jiff::Timestamp::from_millisecond(*ts_ms).expect("in range");
            writeln!(text, "{},{value}", time.strftime("%Y-%m-%d %H:%M:%S")).expect("a String takes all");
        }
        std::fs::write(file, text).expect("the file is writable");
    }

    /// The hours that have readings, by their start in Unix milliseconds.
    pub(crate) fn hours(&self) -> BTreeMap<i64, Hourly> {
        let mut hours: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
        for (ts_ms, value) in self.by_instant() {
            hours.entry(ts_ms.div_euclid(HOUR_MS) * HOUR_MS).or_default().push(value);
        }
        hours.into_iter().map(|(hour, values)| (hour, Hourly::of(&values))).collect()
    }

    fn by_instant(&self) -> BTreeMap<i64, f64> {
        self.0.iter().copied().collect()
    }
}

impl Hourly {
    fn of(values: &[f64]) -> Self {
        Self {
            count: values.len() as u64,
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            sum: values.iter().sum(),
        }
    }

    pub(crate) fn avg(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// Fails unless count, minimum and maximum are exactly, and sum and average nearly, as expected.
    pub(crate) fn assert_is(&self, expected: &Self, hour: i64) {
        let exact = (self.count, self.min, self.max) == (expected.count, expected.min, expected.max);
        let near = (self.avg() - expected.avg()).abs() < 1e-9;
        assert!(exact && near, "hour {hour}: {self:?}, expected {expected:?}");
    }
}
