//! A fleet of any number of devices, for `benches/devices.rs`.

use std::hash::BuildHasher as _;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;

use super::{HOUR_MS, id};
use crate::log::{Batch, Position};
use crate::pending::{Limits, Pending, Reason, Take};
use crate::{ingest, log, store};

/// The number of lines in a request.
const LINES: usize = 1_000;

/// The number of buckets in a write command.
const BUCKETS: usize = 1_000;

/// A reading's time is less than this many milliseconds after its round's start.
const LATE_MS: i64 = 20;

/// Devices that send one reading each in a round. The values have one decimal.
///
/// Their order is different in each round.
#[derive(Debug)]
pub struct Fleet {
    order: Vec<u32>,
    pending: Pending,
    flush: store::mongodb::bench::Flush,
    readings: u64,
    now_ms: i64,
}

/// A request in line protocol, and when it arrives.
#[derive(Debug)]
pub struct Request {
    body: String,
    now_ms: i64,
}

impl Fleet {
    /// Creates the devices.
    #[must_use]
    pub fn new(devices: u32) -> Self {
        let limits = Limits { max_bytes: 1 << 40, max_readings: 3_600, max_age: Duration::from_secs(3_600) };
        Self {
            order: (0..devices).collect(),
            pending: Pending::new(limits),
            flush: <_>::default(),
            readings: 0,
            now_ms: HOUR_MS,
        }
    }

    /// Begins a round this long after the first one, with the devices in another order.
    pub fn begin_round(&mut self, offset: Duration) {
        self.now_ms = HOUR_MS + offset.as_millis() as i64;
        let hasher = FixedState::with_seed(self.now_ms as u64);
        self.order.sort_by_cached_key(|device| hasher.hash_one(device));
    }

    /// Returns a request of the round; `None` after the last one.
    #[must_use]
    pub fn request(&self, nth: usize) -> Option<Request> {
        let devices = self.order.chunks(LINES).nth(nth)?;
        let hasher = FixedState::with_seed(self.now_ms as u64);
        let line = |&device: &u32| {
            let random = hasher.hash_one(!device);
            let (tenths, ts_ms) = (200 + random % 40, self.now_ms + (random >> 32) as i64 % LATE_MS);
            format!("temp,deviceId={} value={}.{} {ts_ms}000000\n", id(device.into()), tenths / 10, tenths % 10)
        };
        Some(Request { body: devices.iter().map(line).collect(), now_ms: self.now_ms })
    }

    /// Inserts the readings of a record. Returns the bytes of all pending readings.
    pub fn insert(&mut self, batch: &Batch) -> u64 {
        self.pending.insert(batch.payload(), Position(self.readings), 0).expect("a payload");
        self.readings += u64::from(batch.readings());
        self.pending.bytes()
    }

    /// Takes the buckets of one write command, encodes and completes them.
    ///
    /// Returns whether there was any.
    pub fn flush(&mut self) -> bool {
        let taken = self.pending.take(Take::All(Reason::Drain), BUCKETS);
        let writes: Vec<_> = taken.iter().map(|taken| Arc::new(taken.to_write())).collect();
        black_box(self.flush.note_and_encode(&writes));
        for write in &writes {
            self.pending.complete(write);
        }
        !writes.is_empty()
    }
}

impl Request {
    /// Parses and admits the readings, and encodes and decodes their record.
    #[must_use]
    pub fn admit(&self) -> Batch {
        let batch = ingest::bench::admit_lines(self.now_ms, &self.body);
        black_box(log::bench::decode(&log::bench::encode(&batch)));
        batch
    }
}
