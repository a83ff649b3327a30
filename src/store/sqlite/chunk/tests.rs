use proptest::prelude::*;

use super::*;
use crate::model::{Hour, Sample};

fn contents(metrics: &[&str], samples: &[(HourOffset, u32, f64)]) -> Contents {
    let samples = samples.iter().map(|&(offset, metric, value)| Sample { value, offset, metric });
    Contents::new(metrics.iter().map(|&name| name.into()).collect(), samples.collect())
}

fn pack(contents: &Contents) -> Vec<u8> {
    Packer::new().unwrap().pack(contents)
}

fn unpack(chunk: &[u8]) -> Result<Contents, ChunkError> {
    let mut samples = HourSamples::all(Hour(0));
    super::unpack(chunk, &mut samples)?;
    Ok(samples.finish().0)
}

#[test]
fn format_version_1_is_these_bytes() {
    let golden = contents(&["hum", "unused", "temp"], &[(0, 2, 1.5), (300, 0, 40.0), (300, 2, -2.0)]);
    let chunk = [
        [1, 0].as_slice(), // version 1, plain
        &[2, 3, b'h', b'u', b'm', 4, b't', b'e', b'm', b'p'],
        &[2, 0, 0xac, 0x02],                      // two readings, at 0 and 300 ms
        &[1, 0b10, 0, 0, 0, 0, 0, 0, 0x44, 0x40], // hum on the second: 40.0
        &[0, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0xc0], // temp on both: 1.5, -2.0
    ]
    .concat();
    assert_eq!(pack(&golden), chunk);
    assert_eq!(unpack(&chunk), Ok(golden));
}

#[test]
fn a_regular_hour_is_packed_to_less_than_half_and_comes_back_in_order() {
    let samples: Vec<_> = (0..360).map(|at| (at * 10_000, 0, 20.0 + f64::from(at / 60))).collect();
    let hour = contents(&["temp"], &samples);
    let chunk = pack(&hour);
    assert_eq!(chunk[..2], [VERSION, ZSTD]);
    assert!(chunk.len() < 360 * 8 / 2, "{}", chunk.len());
    assert_eq!(unpack(&chunk).unwrap().samples(), hour.samples());
}

#[test]
fn chunks_are_gathered_by_metric_name() {
    let mut samples = HourSamples::all(Hour(0));
    super::unpack(&pack(&contents(&["a", "b"], &[(1, 0, 1.0), (1, 1, 2.0)])), &mut samples).unwrap();
    super::unpack(&pack(&contents(&["b", "c"], &[(2, 0, 3.0), (2, 1, 4.0)])), &mut samples).unwrap();
    let expected = contents(&["a", "b", "c"], &[(1, 0, 1.0), (1, 1, 2.0), (2, 1, 3.0), (2, 2, 4.0)]);
    assert_eq!(samples.finish().0, expected);
}

#[test]
fn what_is_not_a_chunk_is_refused_with_its_reason() {
    let body = |body: &[u8]| unpack(&[&[VERSION, PLAIN], body].concat());
    let invalid = |chunk: Result<Contents, ChunkError>| matches!(chunk, Err(ChunkError::Invalid(_)));
    assert_eq!(unpack(&[]), Err(ChunkError::Truncated));
    assert_eq!(unpack(&[2, 0, 0, 0]), Err(ChunkError::Version(2)));
    assert!(invalid(unpack(&[VERSION, 9])));
    assert!(invalid(unpack(&[VERSION, ZSTD, 5, 1, 2, 3])), "a damaged frame");
    assert!(invalid(unpack(&[VERSION, ZSTD, 0xff, 0xff, 0xff, 0xff, 0x0f])), "a size out of all proportion");
    assert_eq!(body(&[200, 1]), Err(ChunkError::Truncated), "more metrics than bytes");
    assert!(invalid(body(&[0, 2, 5, 0])), "an instant twice");
    assert!(invalid(body(&[0, 1, 0x80, 0xdd, 0xdb, 0x01])), "an offset of 3,600,000");
    assert!(invalid(body(&[0, 0, 7])), "a byte too many");
    let nan = [&[1, 1, b'a', 1, 0, 0], f64::NAN.to_le_bytes().as_slice()].concat();
    assert!(invalid(body(&nan)));
}

#[test]
fn a_frame_of_another_length_than_claimed_is_refused() {
    let chunk = |claimed: u8| {
        let frame = zstd::bulk::compress(&[0, 0], 1).unwrap();
        unpack(&[&[VERSION, ZSTD, claimed], frame.as_slice()].concat())
    };
    assert_eq!(chunk(2), Ok(Contents::default()));
    assert!(chunk(1).is_err());
    assert!(chunk(3).is_err());
}

fn any_contents() -> impl Strategy<Value = Contents> {
    let offset = prop_oneof![0..50u32, 0..3_600_000u32];
    let value = prop_oneof![Just(20.5), prop::num::f64::NORMAL, prop::num::f64::SUBNORMAL];
    let sample = (offset, 0..4u32, value).prop_map(|(offset, metric, value)| Sample { value, offset, metric });
    let metrics = ["a", "Temp °C", "$x.y", "m"].map(Metric::from).to_vec();
    prop::collection::vec(sample, 0..200).prop_map(move |samples| Contents::new(metrics.clone(), samples))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))] // each makes a compressor

    #[test]
    fn what_was_packed_is_unpacked(contents in any_contents()) {
        prop_assert_eq!(unpack(&pack(&contents)), Ok(contents));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), packing in 0..2u8) {
        let _ = unpack(&bytes);
        let _ = unpack(&[&[VERSION, packing], bytes.as_slice()].concat());
    }

    #[test]
    fn damaged_chunks_never_panic(contents in any_contents(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut chunk = pack(&contents);
        let at = at.index(chunk.len());
        chunk[at] = byte;
        let _ = unpack(&chunk);
        let _ = unpack(&chunk[..at]);
    }
}
