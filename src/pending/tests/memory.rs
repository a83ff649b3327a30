//! The memory of pending readings: what is allocated, and what counts.

use super::*;
use crate::common::counting::counted;

#[test]
fn memory_of_unused_names_is_freed() {
    let mut pending = Pending::new(Limits { max_bytes: u64::MAX, ..LIMITS });
    for round in 0..30 {
        let names: Vec<String> = (0..1000).map(|name| format!("m-{round}-{name}")).collect();
        for name in &names {
            insert(&mut pending, round, &[("a", 0, &[(name, 1.0)])]);
        }
        for write in take(&mut pending, ALL, 10) {
            pending.complete(&write);
        }
    }
    assert!(pending.names.len() <= 11_000, "{} names are held", pending.names.len());
}

#[test]
fn names_count_as_memory_and_leave_the_count_when_they_are_freed() {
    const NAME_BYTES: u64 = 500;
    let mut pending = Pending::new(Limits { max_bytes: 4 << 20, ..LIMITS });
    let send = |pending: &mut Pending, round: u64| {
        let names: Vec<String> = (0..100).map(|name| format!("{round:08}-{name:0491}")).collect();
        let values: Vec<(&str, f64)> = names.iter().map(|name| (name.as_str(), 1.0)).collect();
        insert(pending, round, &[(&format!("{round:0128}"), 0, &values)]);
    };
    for round in 0..10 {
        send(&mut pending, round);
        let names = (round + 1) * 100 * NAME_BYTES;
        assert!(pending.bytes() >= names + (round + 1) * 128, "{} bytes for names of {names}", pending.bytes());
    }
    let rounds = (10..).take_while(|&round| {
        send(&mut pending, round);
        !pending.is_full()
    });
    let rounds = rounds.count() as u64 + 11;
    assert!(rounds * 100 * NAME_BYTES <= 4 << 20, "full after {rounds} rounds");
    for write in take(&mut pending, ALL, usize::MAX) {
        pending.complete(&write);
    }
    assert!(!pending.is_full() && pending.is_half_free(), "nothing is left to write");
    send(&mut pending, rounds);
    assert!(pending.bytes() < 1 << 20, "{} bytes after all but 100 names were freed", pending.bytes());
}

#[test]
fn names_that_no_bucket_uses_do_not_keep_pending_full_while_a_parked_bucket_stays() {
    let mut pending = Pending::new(Limits { max_bytes: 64 << 10, ..LIMITS });
    let names: Vec<String> = (0..1_000).map(|name| format!("{name:0100}")).collect();
    let send = |pending: &mut Pending, device: &str, names: &[String]| {
        let values: Vec<(&str, f64)> = names.iter().map(|name| (name.as_str(), 1.0)).collect();
        insert(pending, 0, &[(device, 0, &values)]);
    };
    send(&mut pending, "parked", &names[..100]);
    let parked = take(&mut pending, ALL, 1).remove(0);
    pending.park(&parked);
    send(&mut pending, "other", &names[100..]);
    assert!(pending.take_unused_names().is_none(), "a bucket uses them");
    let other = take(&mut pending, ALL, 1).remove(0);
    pending.complete(&other);
    assert!(pending.is_full() && take(&mut pending, ALL, 1).is_empty());
    drop(pending.take_unused_names());
    assert!(!pending.is_full() && pending.take_unused_names().is_none());
    send(&mut pending, "other", &names[..1]);
    assert_eq!(pending.readings(), 2);
}

/// Fills pending with an hour of a fleet, and returns it with the bytes that were allocated for it.
fn fleet_hour(devices: u32, readings: u32, metrics: &[&'static str]) -> (Pending, usize) {
    let batches: Vec<Vec<u8>> = (0..readings)
        .map(|reading| {
            let mut builder = BatchBuilder::default();
            for device in 0..devices {
                let noise = |salt: u32| (device * 31 + reading * 7 + salt).wrapping_mul(2_654_435_761) >> 16;
                let ts_ms = i64::from(device * 7 % 50_000 + reading * (3_600_000 / readings) + noise(1) % 20);
                let value =
                    |(salt, &name): (usize, &&'static str)| (name, f64::from(180 + noise(salt as u32) % 50) / 10.0);
                let values = metrics.iter().enumerate().map(value);
                builder.push(&format!("sensor-{device:08}"), None, ts_ms % 3_600_000, values).unwrap();
            }
            builder.finish().payload().to_vec()
        })
        .collect();
    let (pending, allocated) = counted(|| {
        let limits = Limits { max_bytes: u64::MAX, max_readings: u32::MAX, ..LIMITS };
        let mut pending = Pending::new(limits);
        for (batch, at) in batches.iter().zip(0..) {
            pending.insert(batch, Position(at), at).unwrap();
        }
        pending
    });
    // The free slots of the last chunks, and the memory of empty tables.
    let unused = (1_023 - devices as usize % 1_023) * (64 + 128) + (96 << 10);
    (pending, allocated.kept - unused)
}

#[test]
fn a_device_hour_takes_at_most_429_bytes() {
    let (pending, kept) = fleet_hour(5_000, 60, &["temp"]);
    let each = kept / 5_000;
    assert!(each <= 420, "{each} bytes are allocated for a device-hour");
    assert_eq!((pending.readings(), pending.buckets()), (5_000 * 60, 5_000));
}

#[test]
fn the_estimate_of_the_memory_is_honest() {
    let ten = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    for (devices, readings, metrics) in
        [(20_000, 1, &ten[..1]), (5_000, 60, &ten[..1]), (3_000, 20, &ten[..]), (5, 40_000, &ten[..1])]
    {
        let (pending, kept) = fleet_hour(devices, readings, metrics);
        let share = pending.bytes() as f64 / kept as f64;
        assert!((0.85..1.2).contains(&share), "{devices} devices, {readings} readings: {} of {kept}", pending.bytes());
    }
}

#[test]
fn a_pending_device_hour_stays_within_the_memory_budget() {
    let mut pending = Pending::new(Limits { max_bytes: u64::MAX, max_readings: u32::MAX, ..LIMITS });
    let (devices, readings) = (1_000_u64, 60_u64);
    for reading in 0..readings {
        for device in 0..devices {
            let id = format!("sensor-{device:08}");
            insert(&mut pending, reading, &[(&id, reading as i64 * 1_000, &[("value", 1.0)])]);
        }
    }
    let budget = devices * 250 + devices * readings * 3;
    assert!(pending.bytes() <= budget, "{} bytes for {devices} device-hours, the budget is {budget}", pending.bytes());
}

#[test]
fn what_a_reading_touches_is_in_few_cache_lines() {
    assert_eq!(size_of::<Option<Device>>(), 64);
    assert_eq!(size_of::<Option<OpenBucket>>(), 128);
}
