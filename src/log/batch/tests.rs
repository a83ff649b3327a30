use proptest::prelude::*;

use super::*;

type Flat = (String, Option<String>, i64, Vec<(String, f64)>);

fn unpack(payload: &[u8]) -> Result<Vec<Flat>, BadPayload> {
    let BatchView { names, steps } = BatchView::new(payload)?;
    let (mut of_group, mut flat) = ((String::new(), None), Vec::new());
    for step in steps {
        match step? {
            Step::Group { device, metadata } => {
                of_group = (device.as_str().to_owned(), metadata.map(str::to_owned));
            }
            Step::Reading { ts_ms, values } => {
                let values = values.map(|(name, value)| (names[usize::from(name)].text.to_owned(), value)).collect();
                flat.push((of_group.0.clone(), of_group.1.clone(), ts_ms, values));
            }
        }
    }
    Ok(flat)
}

proptest! {
    #[test]
    fn readings_come_back_in_order(
        readings in prop::collection::vec(
            (
                "[ab]{1,2}",
                prop::option::of("\\{[xy]\\}"),
                any::<i64>(),
                prop::collection::vec(("[m-p]{1,2}", -1e9..1e9), 1..4),
            ),
            0..40,
        )
    ) {
        let mut builder = BatchBuilder::default();
        for (device, metadata, ts_ms, values) in &readings {
            let values = values.iter().map(|(name, value)| (name.as_str(), *value));
            builder.push(device, metadata.as_deref(), *ts_ms, values).unwrap();
        }
        let batch = builder.finish();
        prop_assert_eq!(batch.readings() as usize, readings.len());
        let flat = unpack(batch.payload()).unwrap();
        prop_assert_eq!(flat.len(), readings.len());
        for (got, sent) in flat.iter().zip(&readings) {
            prop_assert_eq!((&got.0, got.2, &got.3), (&sent.0, sent.2, &sent.3));
            prop_assert_eq!(&got.1, &sent.1, "metadata stays with its reading");
        }
    }

    #[test]
    fn repeated_owners_come_back_as_they_were_pushed(
        devices in prop::collection::vec(("[ab]{1,128}", prop::option::of("\\{[xy]{0,300}\\}")), 1..6),
        readings in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<i64>()), 0..60),
    ) {
        let (mut builder, mut plain) = (BatchBuilder::default(), BatchBuilder::default());
        for (device, is_numbered, ts_ms) in &readings {
            let number = device.index(devices.len());
            let (device, metadata) = &devices[number];
            let values = || [("m", 1.0)].into_iter();
            let owner = is_numbered.then_some(number as u32);
            builder.push_of(owner, device, metadata.as_deref(), *ts_ms, 0, values()).unwrap();
            plain.push(device, metadata.as_deref(), *ts_ms, values()).unwrap();
        }
        let (batch, plain) = (builder.finish(), plain.finish());
        prop_assert!(batch.payload().len() <= plain.payload().len());
        prop_assert_eq!(unpack(batch.payload()).unwrap(), unpack(plain.payload()).unwrap());
    }

    #[test]
    fn arbitrary_bytes_never_panic(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = unpack(&payload);
    }
}

#[test]
fn a_reading_without_values_breaks_the_grammar() {
    let mut builder = BatchBuilder::default();
    builder.push("a", None, 0, std::iter::empty::<(&str, f64)>()).unwrap();
    assert!(unpack(builder.finish().payload()).is_err());
}

#[test]
fn a_reading_that_does_not_fit_leaves_no_bytes() {
    let mut builder = BatchBuilder::default();
    let names: Vec<String> = (0..u32::from(u16::MAX)).map(|name| name.to_string()).collect();
    let (last, others) = names.split_last().unwrap();
    for name in others {
        builder.push("a", None, 0, [(name.as_str(), 1.0)].into_iter()).unwrap();
    }
    let of_two = [("one name fits", 1.0), ("and this one not", 1.0)];
    assert_eq!(builder.push("b", None, 0, of_two.into_iter()), Err(PushError::TooManyNames));
    builder.push("a", None, 0, [(last.as_str(), 1.0)].into_iter()).unwrap();
    assert_eq!(builder.push("b", None, 0, [("one name fits", 1.0)].into_iter()), Err(PushError::TooManyNames));
    builder.push("a", None, 1, [("7", 2.0)].into_iter()).unwrap();
    let flat = unpack(builder.finish().payload()).unwrap();
    assert_eq!(flat.len(), names.len() + 1);
    assert!(flat.iter().all(|(device, ..)| device == "a"));
}

#[test]
fn names_of_readings_that_do_not_fit_take_no_space() {
    let long = "x".repeat(50);
    let mut builder = BatchBuilder::new(400);
    for rejected in 0..100 {
        let names: Vec<String> = (0..8).map(|name| format!("{rejected}.{name}.{long}")).collect();
        let values = names.iter().map(|name| (name.as_str(), 1.0));
        assert_eq!(builder.push("a", None, 0, values), Err(PushError::TooLarge(400)));
    }
    builder.push("a", None, 0, [("t", 1.0), ("u", 2.0)].into_iter()).unwrap();
    let payload = builder.finish().payload;
    assert!(payload.len() <= 400, "{}", payload.len());
    let values = vec![("t".to_owned(), 1.0), ("u".to_owned(), 2.0)];
    assert_eq!(unpack(&payload), Ok(vec![("a".to_owned(), None, 0, values)]));
}

/// A payload of the first version, in which each group has its owner in full.
const GOLDEN_1: &str = "\
    470000000161070000007b2278223a317d01000000010000000000000001000000000000000000f03f01620000000001 \
    0000000200000000000000010001000000000000000040020001740175";

/// A payload in which a group refers to an earlier group.
const GOLDEN_2: &str = "\
    640000000161070000007b2278223a317d01000000010000000000000001000000000000000000f03f01620000000001 \
    000000020000000000000001000100000000000000004000040000000100000001000000000000000100000000000000 \
    0000f03f020001740175";

#[test]
fn payloads_of_all_versions_stay_readable() {
    let flat = |device: &str, metadata: Option<&str>, ts_ms, name: &str, value| {
        (device.to_owned(), metadata.map(str::to_owned), ts_ms, vec![(name.to_owned(), value)])
    };
    let (first, second) = (flat("a", Some("{\"x\":1}"), 1, "t", 1.0), flat("b", None, 2, "u", 2.0));
    assert_eq!(unpack(&bytes(GOLDEN_1)), Ok(vec![first.clone(), second.clone()]));
    let mut builder = BatchBuilder::default();
    for (owner, (device, metadata, ts_ms, values)) in [(0, &first), (1, &second), (0, &first)] {
        let values = values.iter().map(|(name, value)| (name.as_str(), *value));
        builder.push_of(Some(owner), device, metadata.as_deref(), *ts_ms, 0, values).unwrap();
    }
    let payload = builder.finish().payload;
    assert_eq!(payload, bytes(GOLDEN_2));
    assert_eq!(unpack(&payload), Ok(vec![first.clone(), second, first]));
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().filter_map(|digit| Some(digit.to_digit(16)? as u8)).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

#[test]
fn a_batch_refuses_a_reading_that_would_exceed_its_limit() {
    let mut builder = BatchBuilder::new(100);
    let values = || [("temp", 1.0)].into_iter();
    let mut pushed = 0;
    let refused = loop {
        match builder.push("device", None, 0, values()) {
            Ok(()) => pushed += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((refused, pushed), (PushError::TooLarge(100), 3));
    let metadata = "x".repeat(100);
    assert_eq!(builder.push("other", Some(&metadata), 0, values()), Err(PushError::TooLarge(100)));
    let batch = builder.finish();
    assert!(batch.payload().len() <= 100);
    assert_eq!(unpack(batch.payload()).unwrap().len(), 3);
}

#[test]
fn lengths_that_do_not_fit_are_errors() {
    let mut builder = BatchBuilder::default();
    let values = || [("m", 1.0)].into_iter();
    assert_eq!(builder.push(&"d".repeat(256), None, 0, values()), Err(PushError::TooLong));
    let name = "m".repeat(1 << 16);
    assert_eq!(builder.push("d", None, 0, [(name.as_str(), 1.0)].into_iter()), Err(PushError::TooLong));
    let many = vec![("m", 1.0); usize::from(u16::MAX) + 1];
    assert_eq!(builder.push("d", None, 0, many.into_iter()), Err(PushError::TooLong));
    let metadata = "x".repeat(MAX_PAYLOAD_BYTES);
    assert_eq!(builder.push("d", Some(&metadata), 0, values()), Err(PushError::TooLarge(MAX_PAYLOAD_BYTES)));
    builder.push("d", None, 0, values()).unwrap();
    assert_eq!(unpack(builder.finish().payload()).unwrap().len(), 1);
}

#[test]
fn long_texts_and_measurements_are_read_again() {
    let long = format!("cpu_idle{{k={}}}", "v".repeat(500));
    let names = ["cpu", "cpu_idle", "cpu{cpu=0}", &long, "m_x"];
    let mut builder = BatchBuilder::default();
    for (name, measurement_bytes) in names.into_iter().zip([3, 3, 3, 3, 0]) {
        builder.push_of(None, "d", None, 0, measurement_bytes, [(name, 1.0)].into_iter()).unwrap();
    }
    builder.push_of(None, "d", None, 1, 1, [("m_x", 1.0)].into_iter()).unwrap(); // known without a measurement
    let batch = builder.finish();
    let read = BatchView::new(batch.payload()).unwrap();
    let found: Vec<_> = read.names.iter().map(|name| (name.text, name.measurement_bytes)).collect();
    assert_eq!(found, names.into_iter().zip([0, 3, 0, 3, 0]).collect::<Vec<_>>());
}

#[test]
fn a_name_that_is_shorter_than_its_measurement_breaks_the_grammar() {
    for name in [&[0, 2, 1, 0, b'x'][..], &[0, 0, 0, 0], &[0, 1, 2, 0, 0xC3, 0xA4]] {
        let mut payload = 4u32.to_le_bytes().to_vec();
        payload.extend_from_slice(&1u16.to_le_bytes());
        payload.extend_from_slice(name);
        assert_eq!(BatchView::new(&payload).map(|_| ()), Err(BadPayload(7)), "{name:?}");
    }
}
