//! Which readings are rejected, and why.

use super::*;
use crate::model::DeviceIdCase;
use crate::wire::Format;

const NOW_MS: i64 = 1_776_693_610_000;
const RULES: Rules = Rules { max_age: Some(Duration::from_secs(3600)), max_readings: 1_000, ..Rules::OF_TEST };

/// The admission of a JSON request.
fn admission<'r>(rules: &'r Rules, scope: &'r DeviceScope, now_ms: i64) -> Admission<'r> {
    let sender = (scope, Quota::unlimited());
    Admission::new(rules, Kind::Request, Source::http(Format::Json), sender, None, now_ms, 1 << 20)
}

fn code_of(
    rules: &Rules,
    device: &str,
    metadata: Option<&str>,
    ts_ms: Option<i64>,
    values: &[(&str, f64)],
) -> Option<Code> {
    let values: Vec<_> = values.iter().map(|&(name, value)| (Cow::Borrowed(name), value)).collect();
    let mut admission = admission(rules, DeviceScope::all(), NOW_MS);
    admission.reading(Incoming { device, metadata, owner: None, ts_ms, values: &values, measurement_bytes: 0 });
    let (batch, receipt) = admission.finish();
    assert_eq!(batch.readings(), receipt.accepted);
    assert_eq!(receipt.received, receipt.accepted + receipt.rejected);
    receipt.listed.first().map(|listed| listed.rejection.code)
}

#[test]
fn each_rule_rejects_with_its_code() {
    let x = &[("x", 1.0)][..];
    assert_eq!(code_of(&RULES, "d", None, None, x), None);
    assert_eq!(code_of(&RULES, "d\u{7}", None, None, x), Some(Code::InvalidDeviceId));
    assert_eq!(code_of(&RULES, "d", Some("{\"a\":1234567}"), None, x), Some(Code::MetadataTooLarge));
    assert_eq!(code_of(&RULES, "d", None, None, &[("a", 1.0), ("b", 1.0), ("c", 1.0)]), Some(Code::TooManyMetrics));
    assert_eq!(code_of(&RULES, "d", None, None, &[("ts", 1.0)]), Some(Code::InvalidMetricName));
    assert_eq!(code_of(&RULES, "d", None, None, &[("x", f64::INFINITY)]), Some(Code::NonFiniteValue));
    assert_eq!(code_of(&RULES, "d", None, None, &[("x", f64::NAN)]), Some(Code::NonFiniteValue));
}

#[test]
fn the_log_lines_of_a_datagram_tell_rejected_values_too() {
    let mut admission = admission(&RULES, DeviceScope::all(), NOW_MS);
    let values = [(Cow::Borrowed("x"), 1.0), (Cow::Borrowed("y"), f64::NAN)];
    let (owner, measurement_bytes) = (None, 0);
    let incoming = Incoming { device: "d", metadata: None, owner, ts_ms: None, values: &values, measurement_bytes };
    admission.reading(incoming);
    let refusals = admission.take_refusals();
    assert_eq!((refusals.len(), refusals[0].code, refusals[0].count), (1, "non_finite_value", 1));
    assert!(refusals[0].example.contains("device d: the value of \"y\""), "{}", refusals[0].example);
    assert_eq!(admission.take_refusals(), []);
}

#[test]
fn a_series_that_two_texts_name_is_duplicated() {
    let twice = &[("x{a=1,b=2}", 1.0), ("x{b=2,a=1}", 1.0)][..];
    assert_eq!(code_of(&RULES, "d", None, None, twice), Some(Code::DuplicateKey));
    assert_eq!(code_of(&RULES, "d", None, None, &[("x{b=2,a=1}", 1.0), ("x{b=1,a=1}", 1.0)]), None);
}

#[test]
fn a_device_outside_the_scope_is_rejected() {
    let patterns = vec!["light-*".parse().unwrap()];
    let scope = DeviceScope::new(DeviceIdCase::Lower, "acme/".to_owned(), Some(patterns));
    let mut admission = admission(&RULES, &scope, NOW_MS);
    let long = format!("light-{}", "x".repeat(118));
    for device in ["LIGHT-1", "light-2", "pump-1", "acme/light-1", "../light-1", "light-1 ", &long] {
        let values = [(Cow::Borrowed("x"), 1.0)];
        admission.reading(Incoming {
            device,
            metadata: None,
            owner: None,
            ts_ms: None,
            values: &values,
            measurement_bytes: 0,
        });
    }
    let (batch, receipt) = admission.finish();
    assert_eq!((batch.readings(), receipt.accepted), (2, 2));
    let codes: Vec<_> = receipt.listed.iter().map(|listed| (listed.index, listed.rejection.code)).collect();
    let (forbidden, invalid) = (Code::DeviceForbidden, Code::InvalidDeviceId);
    assert_eq!(codes, [(2, forbidden), (3, forbidden), (4, forbidden), (5, invalid), (6, invalid)]);
    let details: Vec<_> = receipt.listed.iter().map(|listed| listed.rejection.detail.as_str()).collect();
    assert!(details[0].contains("\"pump-1\"") && details[4].contains("too long: it has 124 bytes"), "{details:?}");
}

#[test]
fn each_request_is_checked_against_the_clock_of_its_arrival() {
    const DAY_MS: i64 = 86_400_000;
    let checked = |now_ms, ts_ms| {
        let mut admission = admission(&RULES, DeviceScope::all(), now_ms);
        let values = [(Cow::Borrowed("x"), 1.0)];
        admission.reading(Incoming {
            device: "d",
            metadata: None,
            owner: None,
            ts_ms,
            values: &values,
            measurement_bytes: 0,
        });
        let (batch, receipt) = admission.finish();
        (batch, receipt.listed.first().map(|listed| listed.rejection.code))
    };
    let of_now = |now_ms| {
        let mut batch = BatchBuilder::default();
        batch.push("d", None, now_ms, [("x", 1.0)].into_iter()).unwrap();
        batch.finish()
    };
    for now_ms in [NOW_MS, NOW_MS + DAY_MS, NOW_MS - DAY_MS, NOW_MS] {
        assert_eq!(checked(now_ms, Some(now_ms)).1, None);
        assert_eq!(checked(now_ms, None).0, of_now(now_ms), "without a time, the clock is used");
    }
    assert_eq!(checked(NOW_MS + DAY_MS, Some(NOW_MS)).1, Some(Code::TimestampTooOld));
    assert_eq!(checked(NOW_MS - DAY_MS, Some(NOW_MS)).1, Some(Code::TimestampInFuture));
}

#[test]
fn rejections_are_counted_beyond_those_listed() {
    let mut admission = admission(&RULES, DeviceScope::all(), NOW_MS);
    admission.line(7);
    for _ in 0..150 {
        admission.reject(Rejection { code: Code::InvalidValue, detail: String::new() });
    }
    let (_, receipt) = admission.finish();
    assert_eq!((receipt.rejected, receipt.listed.len()), (150, 100));
    assert_eq!((receipt.listed[99].index, receipt.listed[99].line), (99, Some(7)));
}
