//! Statements that each stretch one thing, such as the number of fields.

use super::Case;
use crate::model::{BucketWrite, Hour, Metric, Sample};

/// The first instant of all data: 2026-04-20T00:00:00Z.
pub(super) const START_MS: i64 = 1_776_643_200_000;

/// The number of values of a metric in an hour, unless a case has others.
const VALUES: u32 = 4;

/// A range of whole hours that has all data.
const WHOLE: &str = "time >= '2026-04-20T00:00:00Z' AND time < '2026-05-20T00:00:00Z'";

/// A range that begins and ends inside of hours.
const PARTIAL: &str = "time >= '2026-04-20T00:20:00Z' AND time < '2026-04-20T01:40:00Z'";

fn case(
    name: &'static str,
    data: fn(usize) -> Vec<BucketWrite>,
    statement: impl Fn(usize) -> String + 'static,
) -> Case {
    Case { name, data, statement: Box::new(statement), is_in_parts: false }
}

/// A case whose statement does not depend on the number.
fn fixed(name: &'static str, data: fn(usize) -> Vec<BucketWrite>, statement: &str) -> Case {
    let statement = statement.replace("WHOLE", WHOLE).replace("PARTIAL", PARTIAL);
    case(name, data, move |_| statement.clone())
}

fn in_parts(name: &'static str, data: fn(usize) -> Vec<BucketWrite>, statement: &str) -> Case {
    Case { is_in_parts: true, ..fixed(name, data, statement) }
}

/// Joins the texts of the numbers below `count`.
pub(super) fn list(count: usize, between: &str, item: impl Fn(usize) -> String) -> String {
    (0..count).map(item).collect::<Vec<_>>().join(between)
}

/// Makes a bucket in which each metric has a value at each of `offsets`.
///
/// The offsets of each further metric are `shift_ms` later.
fn bucket(
    device: &str,
    hour: i32,
    metrics: Vec<Metric>,
    offsets: impl Iterator<Item = u32>,
    shift_ms: u32,
) -> BucketWrite {
    let offsets: Vec<u32> = offsets.collect();
    let of_metric = |metric: u32| {
        let sample =
            move |offset: &u32| Sample { value: f64::from(metric), offset: offset + metric * shift_ms, metric };
        offsets.iter().map(sample).collect::<Vec<_>>()
    };
    let mut samples: Vec<Sample> = (0..u32::try_from(metrics.len()).unwrap()).flat_map(of_metric).collect();
    samples.sort_by_key(Sample::key);
    let mut before = None;
    let arrived = samples.into_iter().map(|sample| (sample, before.replace(sample.offset) != Some(sample.offset)));
    let hour = Hour(Hour::of(START_MS).0 + hour);
    BucketWrite::new(device.into(), hour, Some(r#"{"room":"r"}"#.into()), metrics, arrived.collect::<Vec<_>>())
}

/// Returns the offsets of a metric with few values in an hour.
fn few() -> impl Iterator<Item = u32> {
    (0..VALUES).map(|at| at * 600_000)
}

/// Makes two hours of one device with these metrics.
fn of_metrics(metrics: &[Metric], shift_ms: u32) -> Vec<BucketWrite> {
    (0..2).map(|hour| bucket("d", hour, metrics.to_vec(), few(), shift_ms)).collect()
}

fn metrics(count: usize, metric: impl Fn(usize) -> Metric) -> Vec<Metric> {
    (0..count).map(metric).collect()
}

/// A device with `count` measurements.
fn many_measurements(count: usize) -> Vec<BucketWrite> {
    of_metrics(&metrics(count, |at| format!("m{at}").into()), 0)
}

/// A device with `count` fields of one measurement.
fn many_fields(count: usize) -> Vec<BucketWrite> {
    of_metrics(&metrics(count, |at| Metric::of_measurement(&format!("plc_f{at}"), 3)), 0)
}

/// Like `many_fields`, but no two fields have a value at one instant.
fn fields_by_turns(count: usize) -> Vec<BucketWrite> {
    of_metrics(&metrics(count, |at| Metric::of_measurement(&format!("plc_f{at}"), 3)), 7)
}

/// A device with `count` label sets of one metric.
fn many_label_sets(count: usize) -> Vec<BucketWrite> {
    of_metrics(&metrics(count, |at| format!("m{{nr={at}}}").into()), 0)
}

/// Like `many_label_sets`, but each label set has a field of its own.
fn label_sets_with_own_fields(count: usize) -> Vec<BucketWrite> {
    of_metrics(&metrics(count, |at| Metric::of_measurement(&format!("plc_f{at}{{nr={at}}}"), 3)), 0)
}

/// `count` devices with two measurements each.
pub(super) fn many_devices(count: usize) -> Vec<BucketWrite> {
    let of_device =
        |at: usize| (0..2).map(move |hour| bucket(&format!("d{at}"), hour, vec!["m".into(), "n".into()], few(), 0));
    (0..count).flat_map(of_device).collect()
}

/// `count` devices, each with a measurement of its own.
fn devices_with_own_measurements(count: usize) -> Vec<BucketWrite> {
    (0..count).map(|at| bucket(&format!("d{at}"), 0, vec![format!("m{at}").into()], few(), 0)).collect()
}

/// `count` devices with the same `count` label sets, each with a value in each hour of a day.
pub(super) fn devices_with_the_same_label_sets(count: usize) -> Vec<BucketWrite> {
    let all = metrics(count, |at| format!("m{{nr={at}}}").into());
    let of_hour = |at: usize| bucket(&format!("d{}", at / 24), (at % 24) as i32, all.clone(), 0..1, 0);
    (0..count * 24).map(of_hour).collect()
}

/// `count` devices, each with `sets` label sets that no other device has, and with a value of each in `hours`
/// hours.
pub(super) fn devices_with_their_own_label_sets(count: usize, sets: usize, hours: usize) -> Vec<BucketWrite> {
    let own = |device: usize| metrics(sets, |at| format!("m{{nr={}}}", sets * device + at).into());
    let of_hour = |at: usize| bucket(&format!("d{}", at / hours), (at % hours) as i32, own(at / hours), 0..1, 0);
    (0..count * hours).map(of_hour).collect()
}

/// A device with about `count` values of one metric, one a minute.
fn many_values(count: usize) -> Vec<BucketWrite> {
    let hours = 0..count.div_ceil(60);
    let of_hour = |hour: usize| bucket("d", hour as i32, vec!["m".into()], (0..60).map(|at| at * 60_000), 0);
    hours.map(of_hour).collect()
}

/// A device with `count` measurements, each an hour younger than the one before.
///
/// Each measurement has values in one hour only.
pub(super) fn measurements_of_each_age(count: usize) -> Vec<BucketWrite> {
    let of_hour = |hour: usize| bucket("d", hour as i32, vec![format!("m{hour}").into()], few(), 0);
    (0..count).map(of_hour).collect()
}

/// The same data for each `count`.
fn same(_: usize) -> Vec<BucketWrite> {
    many_values(60)
}

pub(super) fn measurements() -> Vec<Case> {
    let of = many_measurements;
    vec![
        fixed("all measurements", of, "SELECT * FROM /.*/ WHERE device_id = 'd'"),
        fixed("all measurements of all devices", of, "SELECT value FROM /m/"),
        case("a list of measurements", of, |count| {
            format!("SELECT value FROM {}", list(count, ",", |at| format!("m{at}")))
        }),
        case("a list of measurements and tags", of, |count| {
            format!("SELECT * FROM {} GROUP BY *", list(count, ",", |at| format!("m{at}")))
        }),
        fixed("stats of all measurements", of, "SELECT mean(value) FROM /.*/ WHERE WHOLE"),
        fixed(
            "hours of all measurements",
            of,
            "SELECT last(value), max(value) FROM /.*/ WHERE WHOLE GROUP BY time(1d)",
        ),
        fixed("a function of all measurements", of, "SELECT median(value) FROM /.*/"),
        fixed("the first value of each measurement", of, "SELECT value FROM /.*/ LIMIT 1"),
        fixed("the last value of each measurement", of, "SELECT value FROM /.*/ ORDER BY time DESC LIMIT 1"),
        fixed("conditions on the fields of all measurements", of, "SELECT value FROM /.*/ WHERE value >= 0"),
    ]
}

pub(super) fn ranges() -> Vec<Case> {
    let of = many_measurements;
    let ages = measurements_of_each_age;
    vec![
        fixed("edges of all measurements", of, "SELECT mean(value) FROM /.*/ WHERE PARTIAL"),
        fixed("a part of all measurements", of, "SELECT value FROM /.*/ WHERE PARTIAL"),
        fixed("all measurements of different ages", ages, "SELECT value FROM /.*/"),
        fixed("stats of measurements of different ages", ages, "SELECT mean(value) FROM /.*/ WHERE WHOLE"),
        fixed("the maximum of each age", ages, "SELECT max(value) FROM /.*/"),
        fixed("the first value of each age", ages, "SELECT value FROM /.*/ LIMIT 1"),
        fixed("the last value of each age", ages, "SELECT value FROM /.*/ ORDER BY time DESC LIMIT 1"),
        fixed("many last values of each age", ages, "SELECT value FROM /.*/ ORDER BY time DESC LIMIT 100"),
        case("the last values of a subquery for each age", ages, |count| {
            let inner = |at| format!("(SELECT value FROM m{at} ORDER BY time DESC LIMIT 1)");
            format!("SELECT value FROM {} ORDER BY time DESC", list(count, ",", inner))
        }),
    ]
}

pub(super) fn subqueries() -> Vec<Case> {
    let of = many_measurements;
    let each = |count: usize, clauses: &'static str| {
        let inner = |at: usize| format!("(SELECT value FROM m{at}{})", clauses.replace("AT", &at.to_string()));
        format!("SELECT value FROM {}", list(count, ",", inner))
    };
    vec![
        case("a subquery for each measurement", of, move |count| each(count, "")),
        case("a subquery for each measurement of a device", of, move |count| each(count, " WHERE device_id = 'd'")),
        case("a subquery with its own range for each measurement", of, move |count| {
            each(count, " WHERE time >= 1776643200000000000 + ATs")
        }),
        case("a subquery with its own end for each measurement", of, move |count| {
            each(count, " WHERE time < 1776643200000000000 + 3h - ATs")
        }),
        case("a subquery with its own hours for each age", measurements_of_each_age, move |count| {
            each(count, " WHERE time >= 1776643200000000000 + ATh AND time < 1776643200000000000 + ATh + 5h")
        }),
        case("a subquery of stats for each measurement", of, |count| {
            let inner = |at| format!("(SELECT mean(value) AS value FROM m{at})");
            format!("SELECT value FROM {}", list(count, ",", inner))
        }),
        case("a subquery of edges for each measurement", of, |count| {
            let inner = |at| format!("(SELECT mean(value) AS value FROM m{at} WHERE {PARTIAL})");
            format!("SELECT value FROM {}", list(count, ",", inner))
        }),
        fixed(
            "a subquery of all measurements",
            of,
            "SELECT mean(value) FROM (SELECT value FROM /.*/) GROUP BY device_id",
        ),
        fixed(
            "a subquery of windows",
            many_values,
            "SELECT max(v) FROM (SELECT mean(value) AS v FROM m WHERE WHOLE GROUP BY time(2m))",
        ),
        fixed(
            "subqueries around each other",
            many_values,
            "SELECT v FROM (SELECT v FROM (SELECT v FROM (SELECT value AS v FROM m)))",
        ),
        fixed("all columns of a subquery", many_fields, "SELECT * FROM (SELECT * FROM plc)"),
    ]
}

pub(super) fn fields() -> Vec<Case> {
    let of = many_fields;
    let turns = fields_by_turns;
    vec![
        fixed("all fields", of, "SELECT * FROM plc"),
        case("a list of fields", of, |count| format!("SELECT {} FROM plc", list(count, ",", |at| format!("f{at}")))),
        fixed("stats of all fields", of, "SELECT mean(*) FROM plc"),
        fixed("hours of all fields", of, "SELECT max(*) FROM plc WHERE WHOLE GROUP BY time(10d)"),
        fixed("minutes of all fields", of, "SELECT mean(*) FROM plc WHERE PARTIAL GROUP BY time(30m)"),
        fixed("a function of all fields", of, "SELECT median(*) FROM plc"),
        fixed("differences of all fields", of, "SELECT difference(*) FROM plc"),
        fixed("the last row of all fields", of, "SELECT * FROM plc ORDER BY time DESC LIMIT 1"),
        fixed("a selected row of all fields", of, "SELECT max(f0), * FROM plc"),
        fixed("all fields by turns", turns, "SELECT * FROM plc"),
        fixed("stats of fields by turns", turns, "SELECT mean(*) FROM plc WHERE PARTIAL"),
        fixed("a function of fields by turns", turns, "SELECT median(*) FROM plc"),
        fixed("one of the fields by turns", turns, "SELECT f0 FROM plc"),
        fixed("a few rows of fields by turns", turns, "SELECT * FROM plc LIMIT 3"),
    ]
}

pub(super) fn label_sets() -> Vec<Case> {
    let of = many_label_sets;
    let own = label_sets_with_own_fields;
    vec![
        fixed("all label sets", of, "SELECT * FROM m"),
        fixed("label sets as groups", of, "SELECT value FROM m GROUP BY nr"),
        fixed("stats of label sets", of, "SELECT mean(value) FROM m GROUP BY *"),
        fixed("a function of label sets", of, "SELECT percentile(value, 50) FROM m GROUP BY nr"),
        fixed("the best label sets", of, "SELECT top(value, nr, 5) FROM m"),
        fixed("one group of many", of, "SELECT value FROM m GROUP BY nr SLIMIT 1 SOFFSET 3"),
        fixed("conditions on labels", of, "SELECT value FROM m WHERE nr =~ /[0-9]/ OR nr != '3'"),
        in_parts("label sets as groups in parts", of, "SELECT value FROM m GROUP BY nr"),
        in_parts(
            "label sets as groups in parts with a condition",
            of,
            "SELECT value FROM m WHERE value >= 0 GROUP BY nr",
        ),
        in_parts("a row of each label set in parts", of, "SELECT value FROM m GROUP BY nr LIMIT 1"),
        in_parts("label sets in parts", of, "SELECT * FROM m"),
        fixed("stats of label sets with their own fields", own, "SELECT mean(*) FROM plc"),
        fixed("a function of label sets with their own fields", own, "SELECT median(*) FROM plc"),
        fixed("all label sets with their own fields", own, "SELECT * FROM plc"),
    ]
}

pub(super) fn devices() -> Vec<Case> {
    let of = many_devices;
    let own = devices_with_own_measurements;
    vec![
        fixed("all devices", of, "SELECT * FROM m"),
        fixed("all devices and measurements", of, "SELECT * FROM /.*/"),
        fixed("stats of all devices", of, "SELECT mean(value) FROM m WHERE WHOLE GROUP BY device_id"),
        fixed("edges of all devices", of, "SELECT mean(value) FROM m WHERE PARTIAL GROUP BY device_id"),
        fixed("the last value of each device", of, "SELECT value FROM m GROUP BY device_id ORDER BY time DESC LIMIT 1"),
        fixed("the first value of each device", of, "SELECT value FROM m GROUP BY device_id LIMIT 1"),
        case("a list of devices", of, |count| {
            let count = count / 4; // a regular expression has a limit
            format!("SELECT value FROM m WHERE device_id =~ /^({})$/", list(count, "|", |at| format!("d{at}")))
        }),
        fixed("conditions on all devices", of, "SELECT value FROM m WHERE device_id != 'd0' AND room =~ /r/"),
        case("a subquery for each device", of, |count| {
            let inner = |at| format!("(SELECT value FROM m WHERE device_id = 'd{at}')");
            format!("SELECT value FROM {}", list(count, ",", inner))
        }),
        case("a subquery of stats for each device", of, |count| {
            let inner = |at| format!("(SELECT mean(value) AS value FROM m WHERE device_id = 'd{at}')");
            format!("SELECT value FROM {}", list(count, ",", inner))
        }),
        in_parts("devices as groups in parts", of, "SELECT value FROM m GROUP BY device_id"),
        in_parts("all devices in parts", of, "SELECT value FROM m"),
        fixed("devices with their own measurements", own, "SELECT * FROM /.*/"),
        fixed("stats of devices with their own measurements", own, "SELECT mean(value) FROM /.*/"),
        fixed("edges of devices with their own measurements", own, "SELECT mean(value) FROM /.*/ WHERE PARTIAL"),
        fixed(
            "the last value of each measurement of a device",
            own,
            "SELECT value FROM /.*/ ORDER BY time DESC LIMIT 1",
        ),
    ]
}

pub(super) fn windows() -> Vec<Case> {
    let of = many_values;
    let windows = |statement: &'static str| {
        move |count: usize| {
            let range = format!("time >= 1776643200s AND time < {}s", 1_776_643_200 + count * 10);
            format!("{statement} FROM m WHERE {range} GROUP BY time(1s)")
        }
    };
    vec![
        case("windows", same, windows("SELECT mean(value)")),
        case("filled windows", same, move |count| format!("{} fill(previous)", windows("SELECT mean(value)")(count))),
        case("windows on a line", same, move |count| format!("{} fill(linear)", windows("SELECT max(value)")(count))),
        case(
            "several functions of windows",
            same,
            windows("SELECT mean(value), max(value), count(value), mode(value)"),
        ),
        case("an average of windows", same, move |count| {
            format!("{} fill(previous)", windows("SELECT moving_average(mean(value), 10)")(count))
        }),
        case("windows of subqueries", same, move |count| {
            format!("SELECT max(v) FROM ({}) GROUP BY time(5s)", windows("SELECT mean(value) AS v")(count))
        }),
        fixed("values", of, "SELECT value FROM m"),
        fixed("newest values", of, "SELECT value FROM m ORDER BY time DESC"),
        fixed("hours", of, "SELECT mean(value) FROM m WHERE WHOLE GROUP BY time(1h)"),
        fixed("minutes", of, "SELECT mean(value) FROM m WHERE WHOLE GROUP BY time(7m) fill(none)"),
        fixed("all values in one window", of, "SELECT mode(value), median(value), stddev(value) FROM m"),
        fixed("different values", of, "SELECT distinct(value) FROM m"),
        fixed("an average of values", of, "SELECT moving_average(value, 50) FROM m"),
        fixed("a sum of values", of, "SELECT cumulative_sum(value) FROM m"),
        case("the largest values", of, |count| format!("SELECT top(value, {count}) FROM m")),
        case("far rows", of, |count| format!("SELECT value FROM m LIMIT 10 OFFSET {}", count - 10)),
        in_parts("values in parts", of, "SELECT value FROM m"),
    ]
}

pub(super) fn conditions() -> Vec<Case> {
    let pattern = |count: usize| list(count / 4, "", |at| format!("|x{at}"));
    vec![
        case("conditions on a field", same, |count| {
            format!("SELECT value FROM m WHERE {}", list(count, " OR ", |at| format!("value = {at}")))
        }),
        case("conditions on a tag", same, |count| {
            format!("SELECT value FROM m WHERE {}", list(count, " OR ", |at| format!("room != 'a{at}'")))
        }),
        case("conditions that all hold", same, |count| {
            format!("SELECT value FROM m WHERE {}", list(count, " AND ", |at| format!("value >= -{at}")))
        }),
        case("conditions on time", same, |count| {
            format!("SELECT value FROM m WHERE {}", list(count, " AND ", |at| format!("time > {at}")))
        }),
        case("a regular expression for measurements", same, move |count| {
            format!("SELECT value FROM /m{}/ LIMIT 1", pattern(count))
        }),
        case("a regular expression for tags", same, move |count| {
            format!("SELECT value FROM m WHERE room =~ /r{}/ LIMIT 1", pattern(count))
        }),
        case("a regular expression for fields", same, move |count| {
            format!("SELECT /value{}/ FROM m LIMIT 1", pattern(count))
        }),
        case("a list of columns", same, |count| {
            format!("SELECT {} FROM m LIMIT 1", list(count, ",", |at| format!("value + {at}")))
        }),
        case("a list of functions", same, |count| {
            format!("SELECT {} FROM m", list(count, ",", |at| format!("percentile(value, {})", 2.0 + at as f64 / 50.0)))
        }),
        case("a list of tags", same, |count| {
            format!("SELECT value FROM m GROUP BY {} LIMIT 1", list(count, ",", |at| format!("t{at}")))
        }),
    ]
}

pub(super) fn shows() -> Vec<Case> {
    let of_fields = many_fields;
    vec![
        fixed("all series", many_label_sets, "SHOW SERIES"),
        fixed("values of a tag", many_label_sets, "SHOW TAG VALUES WITH KEY = nr"),
        fixed("all measurements", many_measurements, "SHOW MEASUREMENTS"),
        fixed("measurements by name", many_measurements, "SHOW FIELD KEYS FROM /m/"),
        case("measurements of a list", many_measurements, |count| {
            format!("SHOW TAG KEYS FROM {}", list(count, ",", |at| format!("m{at}")))
        }),
        fixed("all fields", of_fields, "SHOW FIELD KEYS"),
        fixed("series of devices", many_devices, "SHOW SERIES WHERE device_id =~ /d/"),
        fixed("devices", many_devices, "SHOW TAG VALUES FROM m WITH KEY IN (device_id, room)"),
        fixed("number of series", many_devices, "SHOW SERIES EXACT CARDINALITY"),
    ]
}
