//! Columns of MongoDB as a real server reads and writes them: it unpacks ours from a plain collection, and we
//! read those of buckets that it compressed. Values come back to the bit.

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, DateTime, Document, doc};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tidegauge::codec::bson_column::{ColumnEncoder, Dates, Doubles};

use crate::harness::Database;

const HOUR_MS: i64 = 1_776_693_600_000; // 2026-04-20T14:00:00Z
const SERIES: usize = 6;

/// The readings of an hour: instants, and the values of each series.
struct Readings {
    instants: Vec<i64>,
    series: Vec<Vec<Option<f64>>>,
}

impl Readings {
    fn random(dice: &mut StdRng) -> Self {
        let count = if dice.random_range(0..6) == 0 { dice.random_range(150..800) } else { dice.random_range(1..70) };
        let (step, jitter) = (dice.random_range(1..3_000), [1, 5, 900][dice.random_range(0..3)]);
        let instants = (0..count).map(|at| HOUR_MS + at as i64 * step + dice.random_range(0..jitter.min(step)));
        let instants = instants.collect();
        Self { instants, series: (0..SERIES).map(|_| random_values(dice, count)).collect() }
    }

    fn values_at(&self, at: usize) -> Vec<Option<u64>> {
        self.series.iter().map(|values| values[at].map(f64::to_bits)).collect()
    }
}

fn random_values(dice: &mut StdRng, count: usize) -> Vec<Option<f64>> {
    let (kind, digits, width) = (dice.random_range(0..6), dice.random_range(0..9), 1 << dice.random_range(1..30));
    let (missing, odd) = (dice.random_range(0..2) * dice.random_range(0..30), dice.random_range(0..2) * 5);
    let (mut level, mut value) = (dice.random_range(-1_000..100_000_i64), 0.0);
    let mut next = || {
        if dice.random_range(0..100) < missing {
            return None;
        }
        if dice.random_range(0..100) < odd {
            let odd = [-0.0, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE, 0.1 + 0.2];
            return Some(*odd.get(dice.random_range(0..8)).unwrap_or(&f64::from_bits(0x7ff8_0000_dead_beef)));
        }
        match kind {
            0..=2 => {
                level += dice.random_range(-width..=width);
                value = level as f64 / 10_f64.powi(digits);
            }
            3 if dice.random_range(0..100) > 0 => {}
            3 => value = f64::from(dice.random_range(0..100)) / 10.0,
            4 => value = dice.random_range(20.0..21.0),
            _ => value = f64::from_bits(dice.random()),
        }
        Some(value)
    };
    (0..count).map(|_| next()).collect()
}

fn column(bytes: Vec<u8>) -> Bson {
    Bson::Binary(Binary { subtype: BinarySubtype::Column, bytes })
}

/// The bytes of a column, or none if the document has no such column.
fn bytes_of<'a>(columns: &'a Document, name: &str) -> Option<&'a [u8]> {
    match columns.get(name)? {
        Bson::Binary(Binary { subtype: BinarySubtype::Column, bytes }) => Some(bytes),
        other => panic!("{name} is a column, not {other}"),
    }
}

fn names() -> impl Iterator<Item = String> {
    (0..SERIES).map(|nth| format!("s{nth}"))
}

fn values_of(reading: &Document) -> Vec<Option<u64>> {
    names().map(|name| reading.get_f64(&name).ok().map(f64::to_bits)).collect()
}

#[tokio::test]
async fn a_server_unpacks_our_columns() {
    let (database, mut dice, mut encoder) = (Database::new(), StdRng::seed_from_u64(1), ColumnEncoder::new());
    let hours: Vec<_> = (0..200).map(|_| Readings::random(&mut dice)).collect();
    let mut packed = Vec::new();
    for (id, hour) in (0_i32..).zip(&hours) {
        let mut bytes = Vec::new();
        encoder.dates(hour.instants.iter().copied(), &mut bytes);
        let mut data = doc! { "t": column(bytes) };
        for (name, values) in names().zip(&hour.series) {
            let mut bytes = Vec::new();
            encoder.doubles(values.iter().copied(), &mut bytes);
            data.insert(name, column(bytes));
        }
        let (begin, count) = (DateTime::from_millis(HOUR_MS), hour.instants.len() as i32);
        let control = doc! { "version": 2, "min": { "t": begin }, "max": { "t": begin }, "count": count };
        packed.push(doc! { "_id": id, "control": control, "meta": id, "data": data });
    }
    database.handle().await.collection::<Document>("packed").insert_many(packed).await.expect("an insert");
    let unpack = doc! { "$_unpackBucket": { "timeField": "t", "metaField": "meta" } };
    let readings = database.aggregate("packed", vec![doc! { "$sort": { "_id": 1 } }, unpack]).await;
    let mut readings = readings.iter();
    for (id, hour) in (0_i32..).zip(&hours) {
        for (at, instant) in hour.instants.iter().enumerate() {
            let reading = readings.next().expect("a reading");
            assert_eq!(reading["meta"], Bson::Int32(id));
            assert_eq!(reading["t"], Bson::DateTime(DateTime::from_millis(*instant)), "{id}, {at}");
            assert_eq!(values_of(reading), hour.values_at(at), "{id}, {at}");
        }
    }
    assert!(readings.next().is_none());
}

#[tokio::test]
async fn we_read_the_columns_of_a_server() {
    let (database, mut dice) = (Database::new(), StdRng::seed_from_u64(2));
    let handle = database.handle().await;
    let create = doc! { "create": "series", "timeseries": { "timeField": "t", "metaField": "meta" } };
    handle.run_command(create).await.expect("a time-series collection");
    let hours: Vec<_> = (0..60).map(|_| Readings::random(&mut dice)).collect();
    let mut measurements = Vec::new();
    for (id, hour) in (0_i32..).zip(&hours) {
        for (at, instant) in hour.instants.iter().enumerate() {
            let mut measurement = doc! { "t": DateTime::from_millis(*instant), "meta": id, "_id": at as i32 };
            let values = names().zip(&hour.series).filter_map(|(name, values)| Some((name, values[at]?)));
            measurement.extend(values.map(|(name, value)| (name, Bson::Double(value))));
            measurements.push(measurement);
        }
        // A measurement far away closes the bucket, and the server compresses it.
        measurements.push(doc! { "t": DateTime::from_millis(HOUR_MS + 200_000_000), "meta": id });
    }
    handle.collection::<Document>("series").insert_many(measurements).await.expect("an insert");
    let compressed = doc! { "$match": { "control.version": 2 } };
    let buckets = database.aggregate("system.buckets.series", vec![compressed]).await;
    let mut read = 0;
    for bucket in &buckets {
        let hour = &hours[bucket.get_i32("meta").expect("an ID") as usize];
        let data = bucket.get_document("data").expect("columns");
        let dates: Result<Option<Vec<_>>, _> = Dates::new(bytes_of(data, "t").expect("times")).collect();
        let dates = dates.expect("a column").expect("no date is missing");
        let first = hour.instants.iter().position(|instant| *instant == dates[0]).expect("a known instant");
        assert_eq!(dates, hour.instants[first..first + dates.len()]);
        for (name, expected) in names().zip(&hour.series) {
            let column = bytes_of(data, &name);
            let values: Result<Vec<_>, _> = column.map_or(Ok(Vec::new()), |column| Doubles::new(column).collect());
            let mut values = values.expect("a column");
            values.resize(dates.len(), None); // values that are missing at the end may be left out
            let bits = |values: &[Option<f64>]| values.iter().map(|value| value.map(f64::to_bits)).collect::<Vec<_>>();
            assert_eq!(bits(&values), bits(&expected[first..first + dates.len()]), "{name}");
            read += values.len();
        }
    }
    assert!(read > 10_000, "{read} values in {} compressed buckets", buckets.len());
}
