use proptest::prelude::*;

use super::*;
use crate::codec::fuzz::decode;
use crate::codec::{ChunkError, numbers};
use crate::model::{Contents, HourOffset, Metric, Sample};

fn contents(metrics: &[&str], samples: &[(HourOffset, u32, f64)]) -> Contents {
    let samples = samples.iter().map(|&(offset, metric, value)| Sample { value, offset, metric });
    Contents::new(metrics.iter().map(|&name| name.into()).collect(), samples.collect())
}

fn encode(contents: &Contents) -> Vec<u8> {
    ChunkEncoder::new().unwrap().encode(contents)
}

fn golden() -> Contents {
    contents(&["hum", "unused", "temp"], &[(0, 2, 1.5), (300, 0, 40.0), (300, 2, -2.0)])
}

/// A zstd frame of one raw block, with a window of `2 ^ (10 + exponent)` bytes.
fn raw_frame(exponent: u8, body: &[u8]) -> Vec<u8> {
    let block = u32::try_from(body.len() << 3 | 1).unwrap().to_le_bytes();
    [&[0x28, 0xb5, 0x2f, 0xfd, 0, exponent << 3], &block[..3], body].concat()
}

fn compressed(len: u8, frame: &[u8]) -> Vec<u8> {
    [&[VERSION, ZSTD, len], frame].concat()
}

#[test]
fn version_1_is_these_bytes() {
    let chunk = [
        1, PLAIN, 2, 3, b'h', b'u', b'm', 4, b't', b'e', b'm', b'p', //
        2,    // series
        0, 0, 0, 0xd8, 0x04, 0, // hum has one value, at 300
        0, 0, 80, 0, // 40
        1, 2, 0, 0, 0xd8, 0x04, // temp has two, at 0 and 300
        1, 0, 30, 69, // 15 tenths, and 35 less
    ];
    assert_eq!(encode(&golden()), chunk);
    assert_eq!(decode(&chunk), Ok(golden()));
    assert_eq!(decode(&compressed(31, &raw_frame(0, &chunk[2..]))), Ok(golden()));
}

#[test]
fn many_names_are_compressed() {
    let names: Vec<_> = (0..50).map(|nth| format!("machine_temperature_{nth}")).collect();
    let samples: Vec<_> = (0..50).map(|metric| (1_000, metric, 20.5)).collect();
    let hour = contents(&names.iter().map(String::as_str).collect::<Vec<_>>(), &samples);
    let chunk = encode(&hour);
    assert_eq!(chunk[..2], [VERSION, ZSTD]);
    assert!(chunk.len() < 50 * 12, "{}", chunk.len());
    assert_eq!(decode(&chunk), Ok(hour));
}

#[test]
fn a_regular_hour_takes_few_bytes_and_comes_back_in_order() {
    let samples: Vec<_> = (0..360).map(|at| (at * 10_000, 0, 20.0 + f64::from(at / 60))).collect();
    let hour = contents(&["temp"], &samples);
    let chunk = encode(&hour);
    assert_eq!(chunk[..2], [VERSION, PLAIN]);
    assert!(chunk.len() < 50, "{}", chunk.len());
    assert_eq!(decode(&chunk).unwrap().samples(), hour.samples());
}

#[test]
fn bytes_that_are_not_a_chunk_are_refused_with_a_reason() {
    let body = |body: &[u8]| decode(&[&[VERSION, PLAIN], body].concat());
    let invalid = |chunk: Result<Contents, ChunkError>| matches!(chunk, Err(ChunkError::Invalid(_)));
    assert_eq!(decode(&[]), Err(ChunkError::Truncated));
    assert_eq!(decode(&[0, 0, 0, 0]), Err(ChunkError::Version(0)));
    assert_eq!(decode(&[2, 0, 0, 0]), Err(ChunkError::Version(2)));
    assert!(invalid(decode(&[VERSION, 9])));
    assert!(invalid(decode(&[VERSION, ZSTD, 5, 1, 2, 3])), "a damaged frame");
    assert_eq!(body(&[200, 1]), Err(ChunkError::Truncated), "more metrics than bytes");
    assert_eq!(body(&[1, 0xff, 0xff, 0xff, 0xff, 0x0f]), Err(ChunkError::Truncated), "a name of 4 GiB");
    assert_eq!(body(&[0xff, 0xff, 0xff, 0xff, 0x1f]), Err(ChunkError::Truncated), "more metrics than any");
    let block = [1, 0, 0, 0, 0, 0, 0, 0, 2, 0];
    let name = [1, 1, b'a'];
    assert!(body(&[&name[..], &block].concat()).is_ok());
    assert!(invalid(body(&[&name[..], &block, &block].concat())), "an instant twice");
    assert!(invalid(body(&[&[0], &block[..]].concat())), "a series without a name");
    assert!(invalid(body(&[&name[..], &[0]].concat())), "a block of no series");
    let infinite = [&[1, 0, 0, 0, 0, 0, 0x80, 1, 0], f64::INFINITY.to_le_bytes().as_slice(), &[0, 0, 0]].concat();
    assert!(invalid(body(&[&name[..], &infinite].concat())), "a value that is not finite");
}

#[test]
fn a_frame_takes_no_memory_for_what_it_only_claims() {
    let claimed = |len| decode(&compressed(len, &raw_frame(0, &[0])));
    assert_eq!(claimed(1), Ok(Contents::default()));
    assert!(claimed(0).is_err() && claimed(2).is_err());
    let two_gib = [&[VERSION, ZSTD, 0x80, 0x80, 0x80, 0x80, 0x08], raw_frame(0, &[0]).as_slice()].concat();
    assert!(decode(&two_gib).is_err(), "a length of 2 GiB");
    let window = |exponent| decode(&compressed(1, &raw_frame(exponent, &[0])));
    assert!(window(13).is_ok(), "a window of 8 MiB");
    assert!(window(14).is_err(), "a window of 16 MiB");
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
    fn contents_are_decoded_as_they_were_encoded(contents in any_contents()) {
        prop_assert_eq!(decode(&encode(&contents)), Ok(contents));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), packing in 0..2u8) {
        let _ = decode(&bytes);
        let _ = decode(&[&[VERSION, packing], bytes.as_slice()].concat());
    }

    #[test]
    fn damaged_chunks_never_panic(contents in any_contents(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut chunk = encode(&contents);
        let at = at.index(chunk.len());
        chunk[at] = byte;
        let _ = decode(&chunk);
        let _ = decode(&chunk[..at]);
    }
}

/// Constant columns that share their times take 5 bytes for 512 values.
#[test]
fn a_chunk_that_claims_too_many_values_fails_before_it_takes_memory() {
    const SERIES: usize = 40_000;
    let number = |number: u64| {
        let mut bytes = Vec::new();
        numbers::put(&mut bytes, number);
        bytes
    };
    let names = (0..SERIES).flat_map(|series| [&[5], format!("{series:05}").as_bytes()].concat());
    let times = [number(2 * 512 - 2), vec![0, 0, 2]].concat(); // on a line, 1 ms apart
    let column = [0, 0, 0, 0]; // whole numbers, and each is 0
    let first = [number(SERIES as u64), vec![0], times, column.to_vec()].concat();
    let others = (1..SERIES).flat_map(|_| [&[1, 1], &column[..]].concat());
    let body = number(SERIES as u64).into_iter().chain(names).chain(first).chain(others);
    let chunk: Vec<u8> = [VERSION, PLAIN].into_iter().chain(body).collect();
    let (outcome, allocated) =
        crate::common::counting::counted(|| Chunk::decompress(&chunk).and_then(|chunk| chunk.samples(|_| Some(0))));
    assert_eq!(outcome, Err(ChunkError::Invalid("it has too many values")));
    assert!(allocated.peak < 32 * chunk.len(), "{} bytes for a chunk of {}", allocated.peak, chunk.len());
}
