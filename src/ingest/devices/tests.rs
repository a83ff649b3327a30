//! Devices within their limits, by a clock that the tests turn.

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

/// A request `after` so long: the code for each reading, and how long to wait.
fn send(devices: &Devices, after: Duration, readings: &[(&str, &[&str])]) -> (Vec<Option<Code>>, Option<Duration>) {
    send_as(Quota::unlimited(), devices, after, readings)
}

fn send_as(
    sender: &Quota,
    devices: &Devices,
    after: Duration,
    readings: &[(&str, &[&str])],
) -> (Vec<Option<Code>>, Option<Duration>) {
    let mut visit = devices.visit(sender, devices.start + after, after.as_millis() as i64);
    let judge = |(device, metrics): &(&str, &[&str])| {
        let values: Vec<_> = metrics.iter().map(|&name| (Cow::Borrowed(name), 1.0)).collect();
        visit.judge(device, &values).err().map(|rejection| rejection.code)
    };
    (readings.iter().map(judge).collect(), visit.end())
}

#[test]
fn without_limits_there_is_nothing_to_look_at() {
    assert!(Devices::new(NONE).is_none());
}

#[test]
fn a_device_that_sends_too_fast_is_refused_until_it_has_paid_and_others_are_not() {
    let (devices, _strangers) = devices(DeviceLimits { readings: Rate::new(10, SECOND, SECOND), ..NONE });
    let fast = [("fast", &["x"][..]); 30];
    assert_eq!(send(&devices, SECOND, &fast), (vec![None; 30], None), "what comes in one request is taken whole");
    let mixed = [("fast", &["x"][..]), ("slow", &["x"]), ("fast", &["x"])];
    let refused = Some(Code::DeviceRateLimited);
    let wait = SECOND * 21 / 10;
    assert_eq!(send(&devices, SECOND, &mixed), (vec![refused, None, refused], Some(wait)));
    assert_eq!(send(&devices, SECOND + wait, &mixed), (vec![None; 3], None));
}

#[test]
fn readings_of_a_device_count_wherever_they_stand_in_a_request() {
    let (devices, _strangers) = devices(DeviceLimits { readings: Rate::new(10, SECOND, SECOND), ..NONE });
    let apart: Vec<_> = (0..20).map(|nth| (["a", "b"][nth % 2], &["x"][..])).collect();
    assert_eq!(send(&devices, SECOND, &apart).1, None);
    assert_eq!(send(&devices, SECOND, &apart[..2]).1, Some(SECOND / 10), "ten of each");
}

#[test]
fn new_devices_come_at_their_rate_and_known_ones_as_they_like() {
    let (devices, _strangers) = devices(DeviceLimits { new_devices: Rate::new(1, SECOND, SECOND * 3), ..NONE });
    let x = &["x"][..];
    let three = [("a", x), ("b", x), ("c", x)];
    assert_eq!(send(&devices, SECOND, &three), (vec![None; 3], None));
    let refused = Some(Code::TooManyNewDevices);
    let (codes, wait) = send(&devices, SECOND, &[("d", x), ("a", x), ("e", x), ("d", x)]);
    assert_eq!(codes, [refused, None, refused, refused]);
    assert_eq!(wait, Some(SECOND * 2), "there are two of them");
    assert_eq!(send(&devices, SECOND * 3, &[("d", x), ("e", x), ("c", x)]), (vec![None; 3], None));
    assert_eq!(devices.count(), 5);
}

#[test]
fn new_devices_of_one_sender_take_nothing_from_another() {
    let rate = Rate::new(1, SECOND, SECOND).unwrap();
    let (devices, _strangers) = devices(DeviceLimits { new_devices: Some(rate), ..NONE });
    let sender = || Quota { new_devices: Some(Limiter::new(rate, devices.start)), ..Quota::default() };
    let (one, other) = (sender(), sender());
    let refused = Some(Code::TooManyNewDevices);
    let x = &["x"][..];
    assert_eq!(send_as(&one, &devices, SECOND, &[("a", x), ("b", x)]).0, [None, refused]);
    assert_eq!(send_as(&other, &devices, SECOND, &[("c", x), ("d", x)]).0, [None, refused]);
    assert_eq!(send(&devices, SECOND, &[("e", x), ("f", x)]).0, [None, refused], "those without one share another");
}

#[test]
fn after_a_start_as_many_come_as_are_known_and_then_at_their_rate() {
    let rate = Rate::new(1, SECOND, SECOND);
    let limits = DeviceLimits { new_devices: rate, start_grace: SECOND * 10, max_known: 3, ..NONE };
    let of_five = ["a", "b", "c", "d", "e"].map(|device| (device, &["x"][..]));
    let refused = Some(Code::TooManyNewDevices);
    let (early, _strangers) = devices(limits.clone());
    assert_eq!(send(&early, SECOND, &of_five).0, [None, None, None, None, refused], "three, and one at the rate");
    let (late, _strangers) = devices(limits);
    assert_eq!(send(&late, SECOND * 10, &of_five[..2]).0, [None, refused]);
}

#[test]
fn who_is_introduced_is_not_new() {
    let (devices, mut unknown_devices) = devices(DeviceLimits { new_devices: Rate::new(1, SECOND, SECOND), ..NONE });
    let x = &["x"][..];
    assert_eq!(send(&devices, SECOND, &[("a", x), ("b", x)]).0, [None, Some(Code::TooManyNewDevices)]);
    assert_eq!(unknown_devices.waiting(), ["b"]);
    devices.introduce("b");
    assert_eq!(send(&devices, SECOND, &[("b", x)]).0, [None]);
}

#[test]
fn metrics_of_a_device_are_limited_by_the_hour() {
    let (devices, _strangers) = devices(DeviceLimits { metrics_per_hour: Some(2), ..NONE });
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
