//! Which documents are understood, and how.

use std::collections::{BTreeMap, BTreeSet};

use bson::oid::ObjectId;
use bson::raw::cstr;
use bson::{Bson, DateTime, Decimal128, Document, RawDocumentBuf, Timestamp, doc, rawdoc};

use super::*;
use crate::model::Sample;

/// 2026-04-20T14:00:00Z.
const HOUR: Hour = Hour(493_526);

pub(super) fn rules() -> ShapeRules {
    ShapeRules {
        ignored: BTreeSet::new(),
        metadata: BTreeSet::new(),
        device_id_case: DeviceIdCase::Preserve,
        limits: wire::Limits { max_metrics: 4, max_metadata_bytes: 100 },
    }
}

fn ignoring(fields: &[&str]) -> ShapeRules {
    ShapeRules { ignored: fields.iter().map(|field| (*field).to_owned()).collect(), ..rules() }
}

pub(super) fn at(second: i64) -> DateTime {
    DateTime::from_millis(HOUR.start_ms() + second * 1_000)
}

fn understand_with(document: &Document, rules: &ShapeRules) -> Result<OlderBucket, Remark> {
    shape::understand(&RawDocumentBuf::try_from(document).unwrap(), rules)
}

fn understand(document: &Document) -> Result<OlderBucket, Remark> {
    understand_with(document, &rules())
}

/// The values by second of the hour and metric.
fn values(bucket: &OlderBucket) -> BTreeMap<(i64, String), f64> {
    let of_hour = |(hour, contents): &(Hour, Contents)| {
        let start_ms = hour.start_ms() - HOUR.start_ms();
        let value =
            |sample: &Sample| ((start_ms + i64::from(sample.offset)) / 1_000, contents.metric_of(sample).to_string());
        contents.samples().iter().map(|sample| (value(sample), sample.value)).collect::<Vec<_>>()
    };
    bucket.hours.iter().flat_map(of_hour).collect()
}

fn expect(document: &Document, expected: &[(i64, &str, f64)]) -> OlderBucket {
    expect_with(document, &rules(), expected)
}

fn expect_with(document: &Document, rules: &ShapeRules, expected: &[(i64, &str, f64)]) -> OlderBucket {
    let bucket = understand_with(document, rules).unwrap_or_else(|why| panic!("{document}: {why:?}"));
    let expected = expected.iter().map(|(second, metric, value)| ((*second, (*metric).to_owned()), *value)).collect();
    assert_eq!((values(&bucket), &bucket.rejected), (expected, &None), "{document}");
    bucket
}

/// Why a document is not understood, or the first of its readings.
fn why_not(document: &Document) -> String {
    let why = match understand(document) {
        Err(why) => why,
        Ok(bucket) => bucket.rejected.unwrap_or_else(|| panic!("{document} is understood")).1,
    };
    format!("{}: {}", why.about, why.detail)
}

#[test]
fn the_shapes_of_the_guides_are_understood() {
    let expected = [(10, "value", 22.5), (3_590, "value", 21.0)];
    let readings = [doc! { "ts": at(10), "value": 22.5 }, doc! { "ts": at(3_590), "value": 21 }].to_vec();
    for device in ["deviceId", "sensorId", "sensor_id"] {
        for (field, hour) in [
            ("bucket", Bson::from("2026-04-20-14")),
            ("bucket", "2026-04-20T14".into()),
            ("bucket", "2026-04-20 14:00".into()),
            ("hour", "2026-04-20T16:00:00+02:00".into()),
            ("hour", at(0).into()),
            ("timestamp", at(1_234).into()),
            ("timestamp", HOUR.start_ms().into()),
        ] {
            for count in ["readingCount", "count"] {
                let stats = doc! { "min": 21, "max": 22.5, "sum": 43.5, "avg": 21.8 };
                let document =
                    doc! { "_id": 7, device: "S1", field: &hour, "readings": &readings, count: 2, "stats": stats };
                let bucket = expect(&document, &expected);
                assert_eq!((&*bucket.device, &bucket.findings[..]), ("S1", &[][..]), "{document}");
            }
        }
    }
    let minutes = [doc! { "minute": 0, "temp": 22.5, "hum": 40 }, doc! { "minute": 59.0, "second": 30, "temp": 21 }];
    let bucket = expect(
        &doc! { "deviceId": 12345, "hour": at(0), "readings": minutes.to_vec(), "stats": { "temp": { "max": 22.5 } } },
        &[(0, "temp", 22.5), (0, "hum", 40.0), (3_570, "temp", 21.0)],
    );
    assert_eq!(&*bucket.device, "12345");
    assert_eq!(bucket.shape.to_string(), "{ deviceId, hour: date, readings: [{ minute, ... }] }");
    let of_the_manual = doc! {
        "_id": 1, "sensor_id": 12345, "start_date": at(0), "end_date": at(3_599),
        "measurements": [{ "timestamp": at(0), "temperature": 40 }, { "timestamp": at(60), "temperature": 41 }],
        "transaction_count": 2, "sum_temperature": 81,
    };
    let bucket = expect(&of_the_manual, &[(0, "temperature", 40.0), (60, "temperature", 41.0)]);
    assert_eq!(bucket.findings, []);
    let empty = expect(&doc! { "device": "a", "bucket": "2026-04-20-14", "readings": [], "schemaVersion": 0 }, &[]);
    assert_eq!(empty.shape.to_string(), "{ device, bucket: string, readings: [] }");
}

#[test]
fn values_and_instants_may_have_any_type_that_means_them() {
    let of = |ts: Bson, value: Bson| {
        doc! { "deviceId": "a", "bucket": "2026-04-20-14", "readings": [{ "ts": ts, "value": value }] }
    };
    let decimal = |text: &str| Bson::Decimal128(text.parse::<Decimal128>().unwrap());
    let ms = HOUR.start_ms() + 10_000;
    for ts in [
        at(10).into(),
        ms.into(),
        Bson::Double(ms as f64),
        decimal(&ms.to_string()),
        Bson::Int32((ms / 1_000) as i32),
        "2026-04-20T14:00:10Z".into(),
        "2026-04-20T16:00:10.000+02:00".into(),
    ] {
        expect(&of(ts, 1.into()), &[(10, "value", 1.0)]);
    }
    for (value, expected) in [
        (Bson::Int32(-7), -7.0),
        (Bson::Int64(1 << 53), 9_007_199_254_740_992.0),
        (Bson::Int64(-(1 << 60)), -((1_u64 << 60) as f64)),
        (decimal("9007199254740994"), 9_007_199_254_740_994.0),
        (Bson::Double(0.1), 0.1),
        (decimal("22.4"), 22.4),
        (decimal("1E+3"), 1_000.0),
        (Bson::Boolean(true), 1.0),
    ] {
        expect(&of(at(10).into(), value), &[(10, "value", expected)]);
    }
    let with_null = doc! {
        "deviceId": "a", "bucket": "2026-04-20-14", "readings": [{ "ts": at(10), "temp": Bson::Null, "hum": 40 }],
    };
    expect(&with_null, &[(10, "hum", 40.0)]);
}

#[test]
fn fractions_of_a_millisecond_are_cut_off() {
    let last_ms = HOUR.start_ms() + 3_599_999;
    for ts in [last_ms as f64 / 1_000.0, (last_ms as f64 + 0.6) / 1_000.0, last_ms as f64 + 0.6] {
        assert_eq!(instant::instant_of(RawBsonRef::Double(ts)), Ok(last_ms), "{ts}");
        let readings = [doc! { "ts": ts, "value": 1 }].to_vec();
        expect(&doc! { "deviceId": "a", "bucket": "2026-04-20-14", "readings": readings }, &[(3_599, "value", 1.0)]);
    }
}

#[test]
fn devices_metrics_and_metadata_have_their_rules() {
    let of = |fields: Document| {
        let mut document =
            doc! { "deviceId": "Pump-1", "bucket": "2026-04-20-14", "readings": [{ "ts": at(10), "value": 1 }] };
        document.extend(fields);
        document
    };
    let lower = ShapeRules { device_id_case: DeviceIdCase::Lower, ..rules() };
    assert_eq!(&*understand_with(&of(doc! {}), &lower).unwrap().device, "pump-1");
    let id = ObjectId::from_bytes([7; 12]);
    assert_eq!(&*expect(&of(doc! { "deviceId": id }), &[(10, "value", 1.0)]).device, id.to_hex());
    expect(&of(doc! { "metric": "temp" }), &[(10, "temp", 1.0)]);
    let in_values = doc! { "readings": [{ "ts": at(10), "values": { "b{y=2,x=1}": 1, "temp": 2 } }] };
    expect(&of(in_values), &[(10, "b{x=1,y=2}", 1.0), (10, "temp", 2.0)]);
    let keeping = ShapeRules { metadata: BTreeSet::from(["location".to_owned()]), ..rules() };
    let bucket = understand_with(&of(doc! { "location": "roof", "metadata": { "floor": 2 } }), &keeping).unwrap();
    assert_eq!(bucket.metadata.as_deref(), Some(r#"{"floor":2,"location":"roof"}"#));
    for (metadata, why) in [
        (doc! { "at": at(0) }, "its key \"at\" has the type DateTime"),
        (doc! { "a": { "b": f64::NAN } }, "its key \"b\" is NaN"),
        (doc! { "a": [f64::NEG_INFINITY] }, "its key \"a\" is -inf"),
        (doc! { "a\u{FF0E}b": 1 }, "U+FF0E"),
        (doc! { "": 1 }, "must not be empty"),
        (doc! { "a": "x".repeat(100) }, "max_metadata_bytes is 100"),
        (doc! { "a": [[[[[[[[1]]]]]]]] }, "at most 8 levels"),
    ] {
        let why_not = why_not(&of(doc! { "metadata": metadata }));
        assert!(why_not.contains(why), "{why_not}");
    }
}

#[test]
fn metadata_that_would_lose_a_value_is_refused() {
    let of = |fields: Document| {
        let mut document =
            doc! { "deviceId": "a", "bucket": "2026-04-20-14", "readings": [{ "ts": at(10), "value": 1 }] };
        document.extend(fields);
        document
    };
    let twice = why_not(&of(doc! { "metadata": { "floor": 1 }, "meta": { "floor": 2 } }));
    assert!(twice.contains("it has the key \"floor\" twice"), "{twice}");
    let alone = why_not(&of(doc! { "readings": [], "metadata": { "floor": 1 } }));
    assert!(alone.contains("(--ignore FIELD skips it): it is stored with a reading, and there is none"), "{alone}");
    let keeping = ShapeRules { metadata: BTreeSet::from(["floor".to_owned()]), ..rules() };
    let why = understand_with(&of(doc! { "floor": 1, "metadata": { "floor": 2 } }), &keeping).unwrap_err();
    assert!(why.detail.contains("it has the key \"floor\" twice"), "{why:?}");
    let mut object = rawdoc! { "a": 1 };
    object.append(cstr!("a"), 2);
    let mut document = RawDocumentBuf::try_from(&of(doc! {})).unwrap();
    document.append(cstr!("metadata"), object);
    let why = shape::understand(&document, &rules()).unwrap_err();
    assert!(why.detail.contains("it has the key \"a\" twice"), "{why:?}");
}

#[test]
fn a_document_that_is_not_understood_says_why_and_what_to_do() {
    let of = |fields: Document| {
        let mut document =
            doc! { "deviceId": "a", "bucket": "2026-04-20-14", "readings": [{ "ts": at(10), "value": 1 }] };
        document.extend(fields);
        document
    };
    let without = |field: &str| {
        let mut document = of(doc! {});
        document.remove(field);
        document
    };
    let readings = |reading: Bson| of(doc! { "readings": [{ "ts": at(20), "value": 1 }, reading] });
    let reading = |fields: Document| readings(fields.into());
    for (document, expected) in [
        (without("deviceId"), "the document has no device: deviceId, "),
        (without("bucket"), "no hour: bucket, "),
        (without("readings"), "no readings: readings, "),
        (doc! {}, "no device"),
        (of(doc! { "location": "roof" }), "--metadata location keeps it, --ignore location skips it"),
        (of(doc! { "schemaVersion": 1 }), "the field schemaVersion has no known meaning"),
        (of(doc! { "stats": { "p95": 3 } }), "the field stats.p95 has no known meaning (--ignore"),
        (of(doc! { "stats": { "value": { "min": "low" } } }), "stats.value.min"),
        (of(doc! { "stats": 3 }), "the field stats has no"),
        (of(doc! { "sensorId": "b" }), "deviceId and sensorId (--metadata or --ignore"),
        (of(doc! { "samples": [] }), "readings and samples"),
        (of(doc! { "deviceId": "a " }), "deviceId is no device ID: \"a \""),
        (of(doc! { "deviceId": true }), "is boolean, and no text"),
        (of(doc! { "deviceId": 0.5 }), "is number, and no text, whole number"),
        (of(doc! { "bucket": "20.4.2026" }), "bucket is not understood: is \"20.4.2026\""),
        (of(doc! { "bucket": "2026-02-30-14" }), "is \"2026-02-30-14\""),
        (of(doc! { "bucket": "2026-04-20-25" }), "hour of this timestamp does not exist"),
        (of(doc! { "hour": 14 }), "hour is not understood: is 14, which is no Unix time"),
        (of(doc! { "hour": at(3_600) }), "bucket and hour are of different hours (--ignore"),
        (of(doc! { "bucket": Bson::Timestamp(Timestamp { time: 1, increment: 1 }) }), "is timestamp, and no instant"),
        (of(doc! { "bucket": i64::MAX }), "does not hold"),
        (of(doc! { "bucket": 1e300 }), "outside of the years 0 to 9999"),
        (of(doc! { "bucket": f64::NAN }), "is not finite"),
        (of(doc! { "readings": { "0": 1 } }), "is document, and no array"),
        (of(doc! { "readingCount": "two" }), "is string, and no number"),
        (of(doc! { "metric": "a{" }), "the field metric is not understood"),
        (readings(5.into()), "a reading is no document: readings[1] is number"),
        (reading(doc! { "value": 1 }), "a reading has no time"),
        (reading(doc! { "ts": at(10) }), "a reading has no value"),
        (reading(doc! { "ts": at(10), "value": Bson::Null }), "a reading has no value"),
        (reading(doc! { "ts": at(10), "value": f64::NAN }), "readings[1] value is NaN, which is not finite"),
        (reading(doc! { "ts": at(10), "value": f64::NEG_INFINITY }), "is -inf"),
        (reading(doc! { "ts": at(10), "value": "high" }), "readings.value is not understood (--ignore readings.value"),
        (reading(doc! { "ts": at(10), "value": { "x": 1 } }), "is document, and no number"),
        (reading(doc! { "ts": at(10), "value": i64::MAX }), "which a 64-bit float does not hold"),
        (
            reading(doc! { "ts": at(10), "value": Bson::Decimal128("-9007199254740993".parse().unwrap()) }),
            "is -9007199254740993, which a 64-bit float does not hold",
        ),
        (
            reading(doc! { "ts": at(10), "value": Bson::Decimal128("NaN".parse().unwrap()) }),
            "value is NaN, which is not finite",
        ),
        (
            reading(doc! { "ts": at(10), "value": Bson::Decimal128("1E+6000".parse().unwrap()) }),
            "is inf, which is not finite",
        ),
        (reading(doc! { "ts": at(10), "a": 1, "b": 1, "c": 1, "d": 1, "e": 1 }), "one of more than 4 metrics"),
        (reading(doc! { "ts": at(10), "": 1 }), "is no metric"),
        (reading(doc! { "ts": at(10), "a{": 1 }), "is no metric"),
        (reading(doc! { "ts": at(3_600), "value": 1 }), "2026-04-20T15:00:00.000Z, and bucket is 2026-04-20T14:00"),
        (reading(doc! { "ts": at(-1), "value": 1 }), "outside of the hour of its bucket (--ignore bucket: ts alone"),
        (reading(doc! { "ts": "2026-04-20T14:00:10", "value": 1 }), "ends with its offset from UTC"),
        (reading(doc! { "ts": at(10), "time": at(10), "value": 1 }), "a reading has several times"),
        (reading(doc! { "ts": at(10), "second": 1, "value": 1 }), "a reading has several times"),
        (reading(doc! { "minute": 60, "value": 1 }), "minute is 60, and no whole number from 0 to 59"),
        (reading(doc! { "minute": -1, "value": 1 }), "minute is -1"),
        (reading(doc! { "minute": 0.5, "value": 1 }), "minute is 0.5"),
        (reading(doc! { "minute": true, "value": 1 }), "minute is boolean"),
        (reading(doc! { "minute": 1e300, "value": 1 }), "and no whole number"),
        (reading(doc! { "minute": 1, "ms": 5, "value": 1 }), "readings.ms may be a part of the time"),
    ] {
        let why = why_not(&document);
        assert!(why.contains(expected), "{document}\n{why}\nlacks {expected}");
    }
}

#[test]
fn a_field_that_is_ignored_is_not_read() {
    let document = doc! {
        "deviceId": "a", "bucket": "2026-04-20-16", "location": "roof",
        "readings": [{ "ts": at(10), "value": 1, "status": "ok" }, { "ts": at(3_700), "value": 2, "status": "ok" }],
    };
    let rules = ignoring(&["bucket", "location", "readings.status"]);
    let bucket = expect_with(&document, &rules, &[(10, "value", 1.0), (3_700, "value", 2.0)]);
    assert_eq!(bucket.hours.iter().map(|(hour, _)| hour.0 - HOUR.0).collect::<Vec<_>>(), [0, 1]);
    let minutes = doc! { "deviceId": "a", "bucket": "x", "readings": [{ "minute": 0, "value": 1 }] };
    let rejected = understand_with(&minutes, &ignoring(&["bucket"])).unwrap().rejected.unwrap();
    assert_eq!((rejected.0, &*rejected.1.about), (1, "a minute without the hour of a bucket"));
}

#[test]
fn counts_and_stats_that_disagree_are_findings() {
    let of = |fields: Document| {
        let readings = [doc! { "ts": at(10), "temp": 1 }, doc! { "ts": at(20), "temp": 2, "hum": 5 }].to_vec();
        let mut document = doc! { "deviceId": "a", "bucket": "2026-04-20-14", "readings": readings };
        document.extend(fields);
        document
    };
    for fields in [
        doc! { "readingCount": 2, "count": 2.0 },
        doc! { "stats": { "temp": { "min": 1, "max": 2, "sum": 3, "count": 2, "avg": 99 }, "hum": { "max": 5 } } },
        doc! { "stats": { "count": 2, "min": 77 } }, // which of two metrics?
        doc! { "stats": { "temp": { "min": Bson::Null } } },
        doc! { "sum_temp": 3.000_000_000_1 },
        doc! {
            "readings": [{ "ts": at(10), "temp": 1_i64 << 54 }, { "ts": at(20), "temp": 1 }],
            "sum_temp": (1_i64 << 54) + 1, // no float holds it
        },
    ] {
        let bucket = understand(&of(fields)).unwrap();
        assert_eq!(bucket.findings, []);
    }
    for (fields, expected) in [
        (doc! { "readingCount": 3 }, "readingCount is 3, and there are 2"),
        (doc! { "count": 1.5 }, "count is 1.5, and there are 2"),
        (doc! { "stats": { "temp": { "max": 3 } } }, "stats.temp.max is 3, and of the readings it is 2"),
        (doc! { "stats": { "temp": { "count": 3 } } }, "stats.temp.count is 3"),
        (doc! { "stats": { "lux": { "max": 3 } } }, "no reading has \"lux\""),
        (doc! { "sum_temp": 3.1 }, "sum_temp is 3.1, and of the readings it is 3"),
    ] {
        let bucket = understand(&of(fields.clone())).unwrap();
        assert_eq!((values(&bucket).len(), bucket.findings.len()), (3, 1), "{fields}");
        assert!(bucket.findings[0].detail.contains(expected), "{:?}", bucket.findings);
    }
    let twice = [(10, 1), (10, 2), (20, 3), (20, 3)].map(|(second, temp)| doc! { "ts": at(second), "temp": temp });
    let bucket = expect(&of(doc! { "readings": twice.to_vec() }), &[(10, "temp", 2.0), (20, "temp", 3.0)]);
    assert_eq!(bucket.findings[0].detail, "1 of them in readings");
}

#[test]
fn the_good_readings_of_a_document_are_read_beside_bad_ones() {
    let readings = [
        doc! { "minute": 0, "temp": 1 },
        doc! { "minute": 60, "temp": 2 },
        doc! { "minute": 1, "temp": 3, "x{": 4 },
        doc! { "minute": 2, "temp": 5 },
    ];
    let document = doc! { "deviceId": "a", "hour": at(0), "readings": readings.to_vec(), "count": 4 };
    let bucket = understand(&document).unwrap();
    assert_eq!(values(&bucket), BTreeMap::from([((0, "temp".to_owned()), 1.0), ((120, "temp".to_owned()), 5.0)]));
    let (count, first) = bucket.rejected.unwrap();
    assert_eq!((count, &*first.detail), (2, "readings[1] minute is 60, and no whole number from 0 to 59"));
}

#[test]
fn documents_with_very_many_items_are_read_once() {
    let million = vec![Bson::Null; 1_000_000];
    let bucket = understand(&doc! { "deviceId": "a", "bucket": "2026-04-20-14", "readings": million }).unwrap();
    assert_eq!((bucket.hours.len(), bucket.rejected.unwrap().0), (0, 1_000_000));
    let many: Vec<Bson> = (0..60_000).map(|at| doc! { "minute": at % 60, "a": at }.into()).collect();
    let bucket = understand(&doc! { "deviceId": "a", "bucket": "2026-04-20-14", "readings": many }).unwrap();
    assert_eq!((values(&bucket).len(), &*bucket.findings[0].detail), (60, "59940 of them in readings"));
    let name = |at: i32| format!("m{at}");
    let many: Vec<Bson> = (0..30_000).map(|at| doc! { "ts": 1_000_000_000 + at * 3_600, name(at): 1 }.into()).collect();
    let document = doc! { "deviceId": "a", "bucket": 0, "readings": many };
    let bucket = understand_with(&document, &ignoring(&["bucket"])).unwrap();
    assert_eq!(bucket.hours.len(), 30_000, "an hour and a metric each");
}

#[test]
fn the_page_of_the_command_has_all_names() {
    let page = include_str!("../../../../docs/migrate.md");
    for name in shape::names().into_iter().chain(readings::INSTANTS) {
        assert!(page.contains(&format!("`{name}`")), "docs/migrate.md lacks {name}");
    }
}
