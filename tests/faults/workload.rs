//! The readings of one client's devices: a sequence of batches that a seed determines.

use std::collections::VecDeque;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::history::{Identity, METRICS};

const DEVICES: usize = 4;
/// The span of the readings in milliseconds: two hours and the first minutes of the current one.
const SPAN_MS: i64 = 2 * 3_600_000 + 5 * 60_000;
/// Further ahead of the clock than the server accepts.
const TOO_FAR_MS: i64 = 30 * 24 * 3_600_000;
const MAX_READINGS: usize = 40;
/// The number of recent batches from which one is chosen to be sent again.
const REMEMBERED: usize = 8;

/// A reading as a client sends it.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) device: Arc<str>,
    pub(crate) ts_ms: i64,
    /// The values of the first metrics of [`METRICS`].
    pub(crate) values: Vec<f64>,
    /// Whether the server must reject it.
    pub(crate) bad: bool,
}

impl Sent {
    /// Its values with their identities.
    pub(crate) fn identities(&self) -> impl Iterator<Item = (Identity, f64)> {
        let identity = |metric: &'static str| (Arc::clone(&self.device), self.ts_ms, metric);
        METRICS.into_iter().zip(&self.values).map(move |(metric, value)| (identity(metric), *value))
    }
}

/// The readings of one request.
pub(crate) type Batch = Arc<Vec<Sent>>;

/// The body of the request.
pub(crate) fn body(batch: &Batch) -> Value {
    let reading = |sent: &Sent| {
        let values: serde_json::Map<String, Value> =
            METRICS.into_iter().zip(&sent.values).map(|(metric, value)| (metric.to_owned(), json!(value))).collect();
        json!({ "deviceId": &*sent.device, "ts": sent.ts_ms, "values": values })
    };
    batch.iter().map(reading).collect()
}

/// The devices of one client.
#[derive(Debug)]
pub(crate) struct Workload {
    rng: StdRng,
    start_ms: i64,
    devices: Vec<Device>,
    /// The next value. Values of two clients are never equal.
    next_value: f64,
    remembered: VecDeque<Batch>,
}

#[derive(Debug)]
struct Device {
    name: Arc<str>,
    /// Its current time, from the start.
    at_ms: i64,
    /// The instant of its last reading.
    last_ms: i64,
}

impl Workload {
    /// The devices of the client with this number. Their readings begin at `start_ms`, at least two hours
    /// ago.
    pub(crate) fn new(seed: u64, client: usize, start_ms: i64) -> Self {
        let device = |number| Device {
            name: format!("client-{client}/device-{number}").into(),
            at_ms: 3_600_000 / 2 * (number as i64 % 4),
            last_ms: start_ms,
        };
        Self {
            rng: StdRng::seed_from_u64(seed ^ (client as u64) << 32),
            start_ms,
            devices: (0..DEVICES).map(device).collect(),
            next_value: (client as f64) * f64::from(1 << 26) + 1.0, // all sums are integers below 2^53
            remembered: VecDeque::new(),
        }
    }

    /// The devices' names.
    pub(crate) fn devices(&self) -> impl Iterator<Item = Arc<str>> {
        self.devices.iter().map(|device| Arc::clone(&device.name))
    }

    /// The next request: mostly new readings, sometimes a batch that was sent before.
    pub(crate) fn next(&mut self) -> Batch {
        if !self.remembered.is_empty() && self.rng.random_bool(0.1) {
            let which = self.rng.random_range(0..self.remembered.len());
            return Arc::clone(&self.remembered[which]);
        }
        let readings = self.rng.random_range(1..=MAX_READINGS);
        let mut batch: Vec<Sent> = (0..readings).map(|_| self.reading()).collect();
        if self.rng.random_bool(0.2) {
            for at in (1..batch.len()).rev() {
                batch.swap(at, self.rng.random_range(0..=at));
            }
        }
        let batch = Arc::new(batch);
        self.remembered.push_back(Arc::clone(&batch));
        if self.remembered.len() > REMEMBERED {
            self.remembered.pop_front();
        }
        batch
    }

    fn reading(&mut self) -> Sent {
        let which = self.rng.random_range(0..self.devices.len());
        let kind = self.rng.random_range(0..100);
        let step_ms = self.rng.random_range(1..2_000);
        let device = &mut self.devices[which];
        let ts_ms = match kind {
            0..78 => {
                device.at_ms = (device.at_ms + step_ms) % SPAN_MS;
                self.start_ms + device.at_ms
            }
            78..88 => self.start_ms + self.rng.random_range(0..=device.at_ms),
            88..98 => device.last_ms,
            _ => self.start_ms + TOO_FAR_MS + step_ms,
        };
        let bad = kind >= 98;
        if !bad {
            device.last_ms = ts_ms;
        }
        let device = Arc::clone(&device.name);
        let metrics = self.rng.random_range(1..=METRICS.len());
        let values = (0..metrics).map(|_| self.value()).collect();
        Sent { device, ts_ms, values, bad }
    }

    fn value(&mut self) -> f64 {
        self.next_value += 1.0;
        self.next_value
    }
}

#[test]
fn a_seed_determines_a_workload_with_every_kind_of_reading() {
    let batches = |seed| {
        let mut workload = Workload::new(seed, 1, 0);
        (0..200).map(|_| workload.next()).collect::<Vec<_>>()
    };
    let first = batches(7);
    assert_eq!(format!("{first:?}"), format!("{:?}", batches(7)));
    assert_ne!(format!("{first:?}"), format!("{:?}", batches(8)));
    let repeated =
        first.iter().enumerate().any(|(at, batch)| first[..at].iter().any(|other| Arc::ptr_eq(batch, other)));
    let mut instants = std::collections::BTreeMap::new();
    for sent in first.iter().flat_map(|batch| batch.iter()).filter(|sent| !sent.bad) {
        instants.entry((&sent.device, sent.ts_ms)).or_insert_with(Vec::new).push(sent.values[0]);
    }
    let rewritten = instants.values().any(|values| values.iter().any(|value| value.to_bits() != values[0].to_bits()));
    let refused = first.iter().any(|batch| batch.iter().any(|sent| sent.bad));
    let late = first.iter().any(|batch| batch.windows(2).any(|two| two[1].ts_ms < two[0].ts_ms));
    assert!(repeated && rewritten && refused && late);
}
