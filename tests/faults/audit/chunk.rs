//! Reads and writes the chunks of SQLite by their documented format, without the code under test.

use std::io::Read;

/// A value at an offset from the start of the hour, in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample {
    pub(super) offset: u32,
    pub(super) metric: String,
    pub(super) value: f64,
}

/// The values of a chunk of version 1.
pub(super) fn decode(chunk: &[u8]) -> Vec<Sample> {
    assert_eq!(chunk[0], 1, "the version of a chunk");
    let mut rest = &chunk[2..];
    if chunk[1] == 0 {
        return decode_body(rest);
    }
    let length = number(&mut rest) as usize;
    let body = zstd::stream::decode_all(rest).expect("a zstd frame");
    assert_eq!(body.len(), length, "the length of the body");
    decode_body(&body)
}

fn decode_body(mut body: &[u8]) -> Vec<Sample> {
    let body = &mut body;
    let metrics: Vec<String> = (0..number(body)).map(|_| name(body)).collect();
    let mut offset = 0;
    let offsets: Vec<u32> = (0..number(body))
        .map(|_| {
            offset += number(body);
            offset
        })
        .collect();
    let mut values = Vec::new();
    for metric in metrics {
        let present = match take::<1>(body) {
            [0] => vec![0xFF; offsets.len().div_ceil(8)],
            _ => (0..offsets.len().div_ceil(8)).map(|_| take::<1>(body)[0]).collect(),
        };
        for (_, &offset) in offsets.iter().enumerate().filter(|(at, _)| present[at / 8] >> (at % 8) & 1 == 1) {
            values.push(Sample { offset, metric: metric.clone(), value: f64::from_le_bytes(take(body)) });
        }
    }
    assert!(body.is_empty(), "bytes follow the last column");
    values
}

/// An uncompressed chunk of one reading with one metric.
pub(super) fn encode(Sample { offset, metric, value }: &Sample) -> Vec<u8> {
    let mut chunk = vec![1, 0, 1, u8::try_from(metric.len()).expect("a short name")];
    chunk.extend_from_slice(metric.as_bytes());
    chunk.push(1);
    let mut rest = *offset;
    while rest >= 0x80 {
        chunk.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    chunk.extend_from_slice(&[rest as u8, 0]);
    chunk.extend_from_slice(&value.to_le_bytes());
    chunk
}

/// An unsigned LEB128.
fn number(bytes: &mut &[u8]) -> u32 {
    let (mut number, mut shift) = (0, 0);
    loop {
        let [byte] = take(bytes);
        number |= u32::from(byte & 0x7F) << shift;
        shift += 7;
        if byte < 0x80 {
            return number;
        }
    }
}

fn name(bytes: &mut &[u8]) -> String {
    let mut name = vec![0; number(bytes) as usize];
    bytes.read_exact(&mut name).expect("a name");
    String::from_utf8(name).expect("UTF-8")
}

fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let mut taken = [0; N];
    bytes.read_exact(&mut taken).expect("the chunk is too short");
    taken
}
