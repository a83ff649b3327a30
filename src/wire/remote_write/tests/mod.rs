//! Bodies that an independent library encodes, in both versions.

mod messages;
mod random;

use prost::Message;

use self::messages::{Count, Histogram, Other, Sample, v1, v2};
use super::{Options, STALE_BITS, Version, parse};
use crate::wire::recording_sink::RecordingSink;

/// A series: labels, and samples of a time and a value.
type Series<'l> = (Vec<(&'l str, &'l str)>, Vec<(i64, f64)>);

fn samples(samples: &[(i64, f64)]) -> Vec<Sample> {
    samples.iter().map(|&(timestamp, value)| Sample { value, timestamp }).collect()
}

fn in_v1(all: &[Series<'_>]) -> v1::WriteRequest {
    let label = |&(name, value): &(&str, &str)| v1::Label { name: name.to_owned(), value: value.to_owned() };
    let series = |(labels, of): &Series<'_>| v1::TimeSeries {
        labels: labels.iter().map(label).collect(),
        samples: samples(of),
        ..v1::TimeSeries::default()
    };
    v1::WriteRequest { timeseries: all.iter().map(series).collect(), metadata: Vec::new() }
}

fn in_v2(all: &[Series<'_>]) -> v2::Request {
    let mut symbols = vec![String::new()];
    let mut refer = |symbol: &str| {
        let at = symbols.iter().position(|known| known == symbol).unwrap_or_else(|| {
            symbols.push(symbol.to_owned());
            symbols.len() - 1
        });
        u32::try_from(at).unwrap()
    };
    let timeseries = all.iter().map(|(labels, of)| v2::TimeSeries {
        labels_refs: labels.iter().flat_map(|(name, value)| [refer(name), refer(value)]).collect(),
        samples: samples(of),
        ..v2::TimeSeries::default()
    });
    let timeseries = timeseries.collect();
    v2::Request { symbols, timeseries }
}

fn parsed_as(version: Version, body: &[u8]) -> Result<Vec<String>, String> {
    let device_labels = ["deviceId", "instance"].map(str::to_owned);
    let metadata_labels = ["site", "deviceId"].map(str::to_owned);
    let options = Options { version, device_labels: &device_labels, metadata_labels: &metadata_labels };
    let mut sink = RecordingSink::default();
    parse(body, &options, &mut sink).map_err(|error| error.to_string())?;
    Ok(sink.0)
}

/// The entries of series, the same in both versions.
fn parsed(all: &[Series<'_>]) -> Vec<String> {
    let first = parsed_as(Version::V1, &in_v1(all).encode_to_vec()).unwrap();
    let second = parsed_as(Version::V2, &in_v2(all).encode_to_vec()).unwrap();
    assert_eq!(first, second);
    first
}

#[test]
fn samples_of_one_device_and_time_are_one_reading() {
    let up = vec![("__name__", "up"), ("instance", "a:9100"), ("job", "node")];
    let cpu = |cpu| vec![("__name__", "cpu"), ("cpu", cpu), ("instance", "a:9100")];
    let other = vec![("__name__", "up"), ("instance", "b:9100"), ("job", "")];
    let all = [
        (up, vec![(1_000, 1.0), (2_000, 0.0)]),
        (cpu("0"), vec![(2_000, 5.0)]),
        (cpu("1"), vec![(2_000, 6.0)]),
        (other, vec![(2_000, 1.0)]),
    ];
    assert_eq!(
        parsed(&all),
        ["a:9100 1000 up{job=node}=1", "a:9100 2000 up{job=node}=0 cpu{cpu=0}=5 cpu{cpu=1}=6", "b:9100 2000 up=1"]
    );
}

#[test]
fn a_repeated_series_begins_another_reading() {
    let up = || vec![("__name__", "up"), ("instance", "a")];
    assert_eq!(
        parsed(&[(up(), vec![(1, 1.0), (1, 2.0)]), (up(), vec![(1, 3.0)])]),
        ["a 1 up=1", "a 1 up=2", "a 1 up=3"]
    );
}

#[test]
fn labels_that_describe_the_device_are_its_metadata() {
    let labels = vec![("__name__", "up"), ("instance", "a"), ("site", "north \"1\"")];
    assert_eq!(parsed(&[(labels, vec![(1, 1.0)])]), [r#"a 1 up=1 {"site":"north \"1\""}"#]);
    let long = "x".repeat(129);
    for site in ["a\nb", &long] {
        let labels = vec![("__name__", "up"), ("instance", "a"), ("site", site)];
        assert_eq!(parsed(&[(labels, vec![(1, 1.0)])]), ["ignored Metadata site", "a 1 up=1"]);
    }
}

#[test]
fn values_that_are_not_finite_are_ignored() {
    let labels = vec![("__name__", "up"), ("instance", "a")];
    let values = [f64::from_bits(STALE_BITS), f64::NAN, f64::INFINITY, 1.0];
    assert_eq!(
        parsed(&[(labels, values.map(|value| (1, value)).to_vec())]),
        ["ignored Stale up", "ignored NonFinite up", "ignored NonFinite up", "a 1 up=1"]
    );
}

#[test]
fn series_that_prometheus_derives_from_readings_are_ignored_with_a_device_or_without() {
    let up = |value| (vec![("__name__", "up"), ("instance", "a")], vec![(1, value)]);
    let with_device = vec![("__name__", "ALERTS"), ("instance", "silent"), ("site", "x")];
    let stale = vec![(1, 1.0), (1, f64::from_bits(STALE_BITS))];
    let without = |metric| (vec![("__name__", metric), ("alertname", "Silent")], vec![(1, 1.0)]);
    let all = [without("ALERTS_FOR_STATE"), up(1.0), (with_device, stale), without("tidegauge_latest_value"), up(2.0)];
    let ignored = ["Derived ALERTS_FOR_STATE", "Derived ALERTS", "Stale ALERTS", "Derived tidegauge_latest_value"];
    let mut expected = ignored.map(|what| format!("ignored {what}")).to_vec();
    expected.extend(["a 1 up=1", "a 1 up=2"].map(str::to_owned));
    assert_eq!(parsed(&all), expected);
    for metric in ["ALERTS_TOTAL", "tidegauge_log_bytes"] {
        let labels = vec![("__name__", metric), ("instance", "a")];
        assert_eq!(parsed(&[(labels, vec![(1, 1.0)])]), [format!("a 1 {metric}=1")]);
    }
}

#[test]
fn an_invalid_series_rejects_its_samples_and_no_others() {
    let good = || (vec![("__name__", "up"), ("instance", "a")], vec![(1, 1.0)]);
    let long = "v".repeat(513);
    let many: Vec<String> = (0..40).map(|key| format!("k{key}")).collect();
    let mut of_many: Vec<_> = many.iter().map(|key| (&**key, "v")).collect();
    of_many.extend([("__name__", "m"), ("instance", "a")]);
    for (labels, rejected) in [
        (vec![("instance", "a"), ("job", "x")], "value invalid_metric_name: a series has no label __name__"),
        (vec![("__name__", "m{}"), ("instance", "a")], "value invalid_metric_name: "),
        (vec![("__name__", "m"), ("instance", "a"), ("l", "a\nb")], "value invalid_label: "),
        (vec![("__name__", "m"), ("instance", "a"), ("", "x")], "value invalid_label: "),
        (vec![("__name__", "m"), ("instance", "a"), ("l", "1"), ("l", "2")], "value invalid_label: "),
        (vec![("__name__", "m"), ("instance", "a"), ("l", &*long)], "value series_too_long: "),
        (vec![("__name__", &*long), ("instance", "a")], "value series_too_long: "),
    ] {
        let entries = parsed(&[good(), (labels.clone(), vec![(1, 2.0)])]);
        assert!(entries.len() == 2 && entries[0].starts_with(rejected), "{labels:?}: {entries:?}");
        assert_eq!(entries[1], "a 1 up=1");
        let alone = parsed(&[(labels, vec![(1, 2.0)])]);
        assert_eq!(alone, [entries[0].trim_start_matches("value ")], "a reading without a value is rejected");
    }
    for (labels, rejected) in [
        (
            vec![("__name__", "m"), ("job", "x")],
            "missing_device_id: no label of \"m\" names the device (looked for deviceId, instance)",
        ),
        (vec![("__name__", "m"), ("instance", &*long)], "invalid_device_id: "),
        (vec![("__name__", "m"), ("instance", &long[..129])], "invalid_device_id: "),
        (of_many, "too_many_labels: a series has at most 32 labels, this has 42"),
    ] {
        let entries = parsed(&[good(), (labels.clone(), vec![(1, 2.0)]), good()]);
        let found = entries[1].trim_start_matches("value ");
        assert!(entries.len() == 3 && found.starts_with(rejected), "{labels:?}: {entries:?}");
    }
}

/// A histogram with buckets.
fn histogram(timestamp: i64, count: Count, sum: f64) -> Histogram {
    let (count, positive_spans) = (Some(count), vec![Other { content: 1 }]);
    Histogram { count, sum, schema: 3, positive_spans, positive_deltas: vec![1, -1], timestamp, ..Histogram::default() }
}

/// The entries of one series of histograms, the same in both versions.
fn parsed_histograms(labels: &[(&str, &str)], histograms: &[Histogram]) -> Vec<String> {
    let all = [(labels.to_vec(), Vec::new())];
    let (mut first, mut second) = (in_v1(&all), in_v2(&all));
    first.timeseries[0].histograms = histograms.to_vec();
    second.timeseries[0].histograms = histograms.to_vec();
    let first = parsed_as(Version::V1, &first.encode_to_vec()).unwrap();
    assert_eq!(first, parsed_as(Version::V2, &second.encode_to_vec()).unwrap());
    first
}

#[test]
fn a_native_histogram_is_a_count_and_a_sum() {
    let labels = [("__name__", "m"), ("instance", "a"), ("job", "x")];
    let stale = histogram(4, Count::Whole(0), f64::from_bits(STALE_BITS));
    let of_floats = Histogram { positive_counts: vec![0.5], ..histogram(2, Count::Fractional(2.5), -1.5) };
    let without_buckets = Histogram { timestamp: 3, count: Some(Count::Whole(0)), ..Histogram::default() };
    let all = [histogram(1, Count::Whole(7), 3.25), of_floats, without_buckets, stale];
    assert_eq!(
        parsed_histograms(&labels, &all),
        [
            "ignored Histogram m",
            "ignored Histogram m",
            "a 1 m_count{job=x}=7 m_sum{job=x}=3.25",
            "a 2 m_count{job=x}=2.5 m_sum{job=x}=-1.5",
            "ignored Stale m",
            "a 3 m_count{job=x}=0 m_sum{job=x}=0",
        ]
    );
}

#[test]
fn values_of_a_histogram_that_are_not_finite_are_ignored() {
    let labels = [("__name__", "m"), ("instance", "a")];
    let all = [
        Histogram { positive_spans: Vec::new(), ..histogram(1, Count::Whole(7), f64::NAN) },
        Histogram { positive_spans: Vec::new(), ..histogram(2, Count::Fractional(f64::INFINITY), 1.0) },
    ]
    .map(|histogram| Histogram { positive_deltas: Vec::new(), ..histogram });
    assert_eq!(parsed_histograms(&labels, &all), ["ignored NonFinite m", "ignored NonFinite m", "a 1 m_count=7"]);
    let derived = [("__name__", "ALERTS"), ("instance", "a")];
    assert_eq!(parsed_histograms(&derived, &all[..1]), ["ignored Derived ALERTS"]);
}

#[test]
fn a_histogram_of_an_invalid_series_is_rejected_once() {
    let labels = [("__name__", "m"), ("instance", "a")];
    let empty = parsed_histograms(&labels, &[Histogram::default()]);
    assert_eq!(empty, ["invalid_value: a histogram of \"m\" has no count"]);
    let long = "m".repeat(123);
    for (labels, rejected) in [
        (vec![("__name__", "m{"), ("instance", "a")], "invalid_metric_name: "),
        (vec![("__name__", &*long), ("instance", "a")], "invalid_metric_name: "),
        (vec![("__name__", "m"), ("job", "a")], "missing_device_id: "),
    ] {
        let all = [1, 2].map(|ts| Histogram { timestamp: ts, count: Some(Count::Whole(1)), ..Histogram::default() });
        let entries = parsed_histograms(&labels, &all);
        assert!(entries.len() == 2 && entries.iter().all(|entry| entry.starts_with(rejected)), "{entries:?}");
    }
}

#[test]
fn buckets_exemplars_and_metadata_are_ignored() {
    let other = || vec![Other { content: 1 }];
    let mut request = in_v1(&[(vec![("__name__", "up"), ("instance", "a")], vec![(1, 1.0)])]);
    request.metadata = other();
    let of_histograms = || vec![histogram(1, Count::Whole(2), 3.0)];
    (request.timeseries[0].exemplars, request.timeseries[0].histograms) = (other(), of_histograms());
    let stored = "a 1 up=1 up_count=2 up_sum=3";
    let expected = ["ignored Exemplar up", "ignored Histogram up", "ignored Metadata metadata", stored];
    assert_eq!(parsed_as(Version::V1, &request.encode_to_vec()).unwrap(), expected);
    let mut request = in_v2(&[(vec![("__name__", "up"), ("instance", "a")], vec![(1, 1.0)])]);
    let series = &mut request.timeseries[0];
    (series.exemplars, series.histograms, series.metadata) = (other(), of_histograms(), Some(Other { content: 1 }));
    series.created_timestamp = 5;
    let expected = ["ignored Histogram up", "ignored Exemplar up", "ignored Metadata up", stored];
    assert_eq!(parsed_as(Version::V2, &request.encode_to_vec()).unwrap(), expected);
}

#[test]
fn references_to_no_symbol_are_rejected() {
    let mut request = in_v2(&[(vec![("__name__", "up"), ("instance", "a")], vec![(1, 1.0)])]);
    request.timeseries[0].labels_refs[3] = 99;
    let entries = parsed_as(Version::V2, &request.encode_to_vec()).unwrap();
    assert_eq!(entries, ["invalid_label: a label refers to symbol 99 of 5"]);
    request.timeseries[0].labels_refs.truncate(3);
    let entries = parsed_as(Version::V2, &request.encode_to_vec()).unwrap();
    assert_eq!(entries, ["invalid_label: the label \"instance\" has no value"]);
}

#[test]
fn symbols_may_follow_their_series_and_references_need_not_be_packed() {
    let request = in_v2(&[(vec![("__name__", "up"), ("instance", "a")], vec![(1, 1.0)])]);
    let series = v2::Request { symbols: Vec::new(), ..request.clone() };
    let symbols = v2::Request { timeseries: Vec::new(), ..request };
    let body = [series.encode_to_vec(), symbols.encode_to_vec()].concat();
    assert_eq!(parsed_as(Version::V2, &body).unwrap(), ["a 1 up=1"]);
    let unpacked = [0x08, 1, 0x08, 2, 0x08, 3, 0x08, 4, 0x12, 2, 0x10, 1];
    let body = [symbols.encode_to_vec(), vec![0x2A, unpacked.len() as u8], unpacked.to_vec()].concat();
    assert_eq!(parsed_as(Version::V2, &body).unwrap(), ["a 1 up=0"]);
}

#[test]
fn a_body_of_the_other_version_is_refused() {
    let all = [(vec![("__name__", "up"), ("instance", "a")], vec![(1, 1.0)])];
    let error = parsed_as(Version::V1, &in_v2(&all).encode_to_vec()).unwrap_err();
    assert_eq!(error, "the body is not a prometheus.WriteRequest, which its content type names: it has field 4");
    let error = parsed_as(Version::V2, &in_v1(&all).encode_to_vec()).unwrap_err();
    assert_eq!(error, "the body is not a io.prometheus.write.v2.Request, which its content type names: it has field 1");
    assert_eq!(parsed_as(Version::V1, b""), Ok(vec![]));
    assert!(parsed_as(Version::V1, b"not protobuf").is_err());
}
