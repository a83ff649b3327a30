//! The stages of a reading, each by itself, for `benches`.
//!
//! A [`Stage`] prepares its input, which is not measured, and returns the [`Work`], which is. The input is
//! that of the load test: requests of 1,000 readings, each of another device, and hours of 60 readings. No
//! stage waits for a disk or a server.

use std::any::Any;
use std::borrow::Cow;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use crate::config::LineProtocol;
use crate::log::{Batch, Position};
use crate::model::{BucketWrite, Hour};
use crate::pending::{Limits, Pending, Reason, Take};
use crate::wire::line_protocol::{self, Options, Precision};
use crate::wire::{Ignored, Incoming, Rejection, Sink, json};
use crate::{ingest, log, query, store};

mod fleet;

pub use fleet::{Fleet, Request};

/// Readings in a request, and devices in all.
const DEVICES: u64 = 1_000;

/// Readings of a device in the hour.
const ROUNDS: u64 = 60;

/// Hours in the answer to a query: 30 days.
const HOURS: i32 = 720;

/// When the hour begins, in Unix milliseconds: 2026-04-20T14:00:00Z.
const HOUR_MS: i64 = 1_776_693_600_000;

/// One stage.
#[derive(Debug)]
pub struct Stage {
    /// The name.
    pub name: &'static str,
    /// The unit of the result: `reading` or `hour`.
    pub per: &'static str,
    /// The number of units in the work.
    pub count: u64,
    /// Prepares the work, which is done once.
    pub prepare: fn() -> Work,
}

/// The measured work. It returns all its input and output, so that nothing is freed during the measurement.
pub type Work = Box<dyn FnOnce() -> Box<dyn Any>>;

/// All stages, in the order in which a reading meets them.
pub const STAGES: [Stage; 9] = [
    Stage { name: "parse_json", per: "reading", count: DEVICES, prepare: parse_json },
    Stage { name: "parse_line_protocol", per: "reading", count: DEVICES, prepare: parse_line_protocol },
    Stage { name: "admit", per: "reading", count: DEVICES, prepare: admit },
    Stage { name: "log_encode", per: "reading", count: DEVICES, prepare: log_encode },
    Stage { name: "log_decode", per: "reading", count: DEVICES, prepare: log_decode },
    Stage { name: "pending_insert", per: "reading", count: DEVICES * ROUNDS, prepare: pending_insert },
    Stage { name: "pending_take", per: "reading", count: DEVICES * ROUNDS, prepare: pending_take },
    Stage { name: "flush_encode", per: "reading", count: DEVICES * ROUNDS, prepare: flush_encode },
    Stage { name: "rollup_merge", per: "hour", count: HOURS as u64, prepare: rollup_merge },
];

/// An admitted request: the readings of one round.
#[must_use]
pub fn request(round: u64) -> Batch {
    let ids: Vec<String> = (0..DEVICES).map(id).collect();
    let values: Vec<_> = (0..DEVICES).map(|device| [(Cow::Borrowed("temp"), value(device, round))]).collect();
    let incoming = ids.iter().zip(&values).map(|(id, values)| Incoming {
        device: id,
        metadata: None,
        owner: None,
        ts_ms: Some(ts_ms(round)),
        values,
        measurement_bytes: 0,
    });
    ingest::bench::admit(ts_ms(round), incoming)
}

fn work<T: 'static>(work: impl FnOnce() -> T + 'static) -> Work {
    Box::new(|| Box::new(work()))
}

fn parse_json() -> Work {
    let object = |device| format!(r#"{{"deviceId":"{}","ts":{},"value":{}}}"#, id(device), ts_ms(0), value(device, 0));
    let body = format!("[{}]", (0..DEVICES).map(object).collect::<Vec<_>>().join(","));
    work(move || {
        let mut counter = Counter::default();
        json::parse(body.as_bytes(), &json::Options::default(), &mut counter).expect("JSON");
        (counter.check(), body)
    })
}

fn parse_line_protocol() -> Work {
    let line = |device| format!("temp,deviceId={} value={} {}000000\n", id(device), value(device, 0), ts_ms(0));
    let body: String = (0..DEVICES).map(line).collect();
    let mapping = LineProtocol::default();
    work(move || {
        let options = Options { precision: Precision::Nanoseconds, device: None, mapping: &mapping };
        let mut counter = Counter::default();
        line_protocol::parse(body.as_bytes(), &options, &mut counter);
        (counter.check(), body)
    })
}

/// Admits readings and encodes them as the payload of a record.
fn admit() -> Work {
    let ids: Vec<String> = (0..DEVICES).map(id).collect();
    work(move || {
        let values = [(Cow::Borrowed("temp"), 21.25)];
        let incoming = ids.iter().map(|id| Incoming {
            device: id,
            metadata: None,
            owner: None,
            ts_ms: Some(ts_ms(0)),
            values: black_box(&values),
            measurement_bytes: 0,
        });
        (ingest::bench::admit(ts_ms(0), incoming), ids)
    })
}

/// Encodes a record with its checksum.
fn log_encode() -> Work {
    let batch = request(0);
    work(move || (log::bench::encode(&batch), batch))
}

/// Decodes a record, as the feeder does.
fn log_decode() -> Work {
    let bytes = log::bench::encode(&request(0));
    work(move || (log::bench::decode(&bytes), bytes))
}

/// Inserts an hour of devices that send a reading every minute.
fn pending_insert() -> Work {
    let rounds: Vec<Batch> = (0..ROUNDS).map(request).collect();
    work(move || (filled(&rounds), rounds))
}

/// Takes buckets and sorts them for the store.
fn pending_take() -> Work {
    let mut pending = filled(&(0..ROUNDS).map(request).collect::<Vec<_>>());
    work(move || (writes_of(&mut pending), pending))
}

/// Encodes the BSON statements that append an hour of each device to its document. The devices are in the
/// device index.
fn flush_encode() -> Work {
    let mut pending = filled(&(0..ROUNDS).map(request).collect::<Vec<_>>());
    let writes = writes_of(&mut pending);
    let flush = store::mongodb::bench::Flush::after(&writes);
    work(move || (flush.encode(&writes), flush, writes))
}

/// Merges the stored stats of a device by hour with a pending last hour.
fn rollup_merge() -> Work {
    let last = Hour::of(HOUR_MS);
    let merge = query::bench::Merge::new(Hour(last.0 - HOURS + 1)..Hour(last.0 + 1));
    work(move || merge.run())
}

fn writes_of(pending: &mut Pending) -> Vec<Arc<BucketWrite>> {
    pending.take(Take::All(Reason::Drain), usize::MAX).iter().map(|taken| Arc::new(taken.to_write())).collect()
}

fn filled(rounds: &[Batch]) -> Pending {
    let limits = Limits { max_bytes: 1 << 30, max_readings: 3_600, max_age: Duration::from_secs(60) };
    let mut pending = Pending::new(limits);
    for batch in rounds {
        pending.insert(batch.payload(), Position(0), 0).expect("a payload");
    }
    pending
}

fn id(device: u64) -> String {
    format!("device-{device:08}")
}

/// Quarters of a degree, as sensors send them.
fn value(device: u64, round: u64) -> f64 {
    20.0 + ((device * 7 + round * 3) % 32) as f64 / 4.0
}

fn ts_ms(round: u64) -> i64 {
    HOUR_MS + round as i64 * 60_000
}

/// Counts readings.
#[derive(Default)]
struct Counter {
    readings: u64,
    rejections: u64,
}

impl Counter {
    /// Returns the number of readings. Asserts that all were parsed.
    fn check(&self) -> u64 {
        assert_eq!((self.readings, self.rejections), (DEVICES, 0));
        self.readings
    }
}

impl Sink for Counter {
    fn reading(&mut self, incoming: Incoming<'_>) {
        black_box(&incoming);
        self.readings += 1;
    }

    fn reject(&mut self, _: Rejection) {
        self.rejections += 1;
    }

    fn reject_value(&mut self, _: Rejection) {
        self.rejections += 1;
    }

    fn ignore(&mut self, _: Ignored, _: &str) {
        self.rejections += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_does_its_work() {
        for stage in STAGES {
            drop((stage.prepare)()()); // each checks what it has made
        }
    }

    #[test]
    fn a_fleet_sends_and_is_flushed() {
        let mut fleet = Fleet::new(1_500);
        for round in 0..3 {
            fleet.begin_round(round * Duration::from_secs(1_800));
            let batches: Vec<Batch> =
                (0..).map_while(|nth| fleet.request(nth)).map(|request| request.admit()).collect();
            assert_eq!(batches.iter().map(Batch::readings).collect::<Vec<_>>(), [1_000, 500]);
            assert!(batches.iter().all(|batch| fleet.insert(batch) > 0));
        }
        assert_eq!((0..5).map(|_| fleet.flush()).collect::<Vec<_>>(), [true, true, true, false, false]);
    }
}
