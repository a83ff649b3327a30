//! Devices within their limits, on a clock that the tests set.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const HOUR_MS: i64 = MS_PER_HOUR;

const NONE: DeviceLimits = DeviceLimits {
    readings: None,
    metrics_per_hour: None,
    new_devices: None,
    start_grace: Duration::ZERO,
    max_known: 1_000,
};

fn devices(limits: DeviceLimits) -> (Arc<Devices>, UnknownDeviceLookup) {
    Devices::new(limits).expect("there is a limit")
}

/// Sends a request this long `after` the start. Returns the code of each reading, and how long to wait.
fn send(devices: &Devices, after: Duration, readings: &[(&str, &[&str])]) -> (Vec<Option<Code>>, Option<Duration>) {
    send_as(Quota::unlimited(), devices, after, readings)
}

fn send_as(
    sender: &Quota,
    devices: &Devices,
    after: Duration,
    readings: &[(&str, &[&str])],
) -> (Vec<Option<Code>>, Option<Duration>) {
    let mut request = devices.check_request(sender, devices.start + after, after.as_millis() as i64);
    let check = |(device, metrics): &(&str, &[&str])| {
        let values: Vec<_> = metrics.iter().map(|&name| (Cow::Borrowed(name), 1.0)).collect();
        request.expect(device); // the prefetch changes no result
        request.expect("expected, but never sent");
        request.check(request.hash(device), device, &values).err().map(|rejection| rejection.code)
    };
    (readings.iter().map(check).collect(), request.end())
}

#[test]
fn without_limits_devices_are_not_tracked() {
    assert!(Devices::new(NONE).is_none());
}

#[test]
fn a_device_in_debt_is_rejected_until_it_is_paid_off_alone() {
    let (devices, _lookup) = devices(DeviceLimits { readings: Rate::new(10, SECOND, SECOND), ..NONE });
    let fast = [("fast", &["x"][..]); 30];
    assert_eq!(send(&devices, SECOND, &fast), (vec![None; 30], None), "a request is admitted whole");
    let mixed = [("fast", &["x"][..]), ("slow", &["x"]), ("fast", &["x"])];
    let refused = Some(Code::DeviceRateLimited);
    let wait = SECOND * 21 / 10;
    assert_eq!(send(&devices, SECOND, &mixed), (vec![refused, None, refused], Some(wait)));
    assert_eq!(send(&devices, SECOND + wait, &mixed), (vec![None; 3], None));
}

#[test]
fn readings_of_a_device_count_wherever_they_are_in_a_request() {
    let (devices, _lookup) = devices(DeviceLimits { readings: Rate::new(10, SECOND, SECOND), ..NONE });
    let apart: Vec<_> = (0..20).map(|nth| (["a", "b"][nth % 2], &["x"][..])).collect();
    assert_eq!(send(&devices, SECOND, &apart).1, None);
    assert_eq!(send(&devices, SECOND, &apart[..2]).1, Some(SECOND / 10), "ten of each");
}

#[test]
fn new_devices_are_limited_and_known_devices_are_not() {
    let (devices, _lookup) = devices(DeviceLimits { new_devices: Rate::new(1, SECOND, SECOND * 3), ..NONE });
    let x = &["x"][..];
    let three = [("a", x), ("b", x), ("c", x)];
    assert_eq!(send(&devices, SECOND, &three), (vec![None; 3], None));
    let refused = Some(Code::TooManyNewDevices);
    let (codes, wait) = send(&devices, SECOND, &[("d", x), ("a", x), ("e", x), ("d", x)]);
    assert_eq!(codes, [refused, None, refused, refused]);
    assert_eq!(wait, Some(SECOND * 2), "for two devices");
    assert_eq!(send(&devices, SECOND * 3, &[("d", x), ("e", x), ("c", x)]), (vec![None; 3], None));
    assert_eq!(devices.count(), 5);
}

#[test]
fn each_sender_has_its_own_rate_of_new_devices() {
    let rate = Rate::new(1, SECOND, SECOND).unwrap();
    let (devices, _lookup) = devices(DeviceLimits { new_devices: Some(rate), ..NONE });
    let sender = || Quota { new_devices: Some(Limiter::new(rate, devices.start)), ..Quota::default() };
    let (one, other) = (sender(), sender());
    let refused = Some(Code::TooManyNewDevices);
    let x = &["x"][..];
    assert_eq!(send_as(&one, &devices, SECOND, &[("a", x), ("b", x)]).0, [None, refused]);
    assert_eq!(send_as(&other, &devices, SECOND, &[("c", x), ("d", x)]).0, [None, refused]);
    assert_eq!(send(&devices, SECOND, &[("e", x), ("f", x)]).0, [None, refused], "senders without a rate share one");
}

#[test]
fn a_device_that_one_sender_of_a_batch_may_not_create_another_may() {
    let rate = Rate::new(1, SECOND, SECOND).unwrap();
    let (devices, _lookup) = devices(DeviceLimits { new_devices: Some(rate), ..NONE });
    let sender = || Quota { new_devices: Some(Limiter::new(rate, devices.start)), ..Quota::default() };
    let (one, other) = (sender(), sender());
    let mut batch = devices.check_request(&one, devices.start + SECOND, 0);
    let code = |device| {
        let checked = batch.check(batch.hash(device), device, &[(Cow::Borrowed("x"), 1.0)]);
        checked.err().map(|rejection| rejection.code)
    };
    assert_eq!(["a", "b", "b"].map(code), [None, Some(Code::TooManyNewDevices), Some(Code::TooManyNewDevices)]);
    batch.set_sender(&other);
    assert_eq!(batch.check(batch.hash("b"), "b", &[(Cow::Borrowed("x"), 1.0)]), Ok(()));
}

#[test]
fn after_a_start_new_devices_are_admitted_up_to_a_bound() {
    let rate = Rate::new(1, SECOND, SECOND);
    let limits = DeviceLimits { new_devices: rate, start_grace: SECOND * 10, max_known: 3, ..NONE };
    let of_five = ["a", "b", "c", "d", "e"].map(|device| (device, &["x"][..]));
    let refused = Some(Code::TooManyNewDevices);
    let (early, _lookup) = devices(limits.clone());
    assert_eq!(send(&early, SECOND, &of_five).0, [None, None, None, None, refused], "three, and one at the rate");
    let (late, _lookup) = devices(limits);
    assert_eq!(send(&late, SECOND * 10, &of_five[..2]).0, [None, refused]);
}

#[test]
fn a_device_that_is_marked_known_is_not_new() {
    let (devices, mut unknown_devices) = devices(DeviceLimits { new_devices: Rate::new(1, SECOND, SECOND), ..NONE });
    let x = &["x"][..];
    assert_eq!(send(&devices, SECOND, &[("a", x), ("b", x)]).0, [None, Some(Code::TooManyNewDevices)]);
    assert_eq!(unknown_devices.waiting(), ["b"]);
    devices.mark_known("b");
    assert_eq!(send(&devices, SECOND, &[("b", x)]).0, [None]);
}

#[test]
fn a_long_series_counts_as_several_metrics() {
    let (devices, _lookup) = devices(DeviceLimits { metrics_per_hour: Some(5), ..NONE });
    let [short, long, longest] = [128, 129, 512].map(|bytes| format!("m{{a={}}}", "v".repeat(bytes - 5)));
    let sent = [("d", &[short.as_str()][..]), ("d", &[&longest]), ("d", &[&long]), ("e", &[&longest]), ("e", &[&long])];
    let expected = [None, None, Some(Code::TooManyDeviceMetrics), None, Some(Code::TooManyDeviceMetrics)];
    assert_eq!(send(&devices, SECOND, &sent).0, expected);
    let why = "a device has at most 5 different series an hour (limits.device_metrics_per_hour); one of more than 128 \
               bytes counts as several";
    assert_eq!(DeviceLimitError::TooManyMetrics.rejection(&devices.limits).detail, why);
}

#[test]
fn metrics_of_a_device_are_limited_per_hour() {
    let (devices, _lookup) = devices(DeviceLimits { metrics_per_hour: Some(2), ..NONE });
    let ab = [("d", &["a", "b"][..]), ("d", &["c"]), ("d", &["b", "a"]), ("other", &["c"])];
    let (codes, wait) = send(&devices, SECOND, &ab);
    assert_eq!(
        (codes, wait),
        (vec![None, Some(Code::TooManyDeviceMetrics), None, None], None),
        "waiting does not help"
    );
    let next = Duration::from_millis(HOUR_MS as u64);
    assert_eq!(
        send(&devices, next, &[("d", &["c"]), ("d", &["d"]), ("d", &["a"])]).0,
        [None, None, Some(Code::TooManyDeviceMetrics)]
    );
}
