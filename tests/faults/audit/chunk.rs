//! Reads and writes the chunks of SQLite by their documented format, without the code under test.

use std::io::Read;

/// A value at an offset from the start of the hour, in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample {
    pub(super) offset: u32,
    pub(super) metric: String,
    pub(super) value: f64,
}

/// The values of a chunk.
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
    let metrics: Vec<String> = (0..number(&mut body)).map(|_| name(&mut body)).collect();
    let mut samples = Vec::new();
    while !body.is_empty() {
        decode_block(&mut body, &metrics, &mut samples);
    }
    samples
}

pub(super) fn decode_block(body: &mut &[u8], metrics: &[String], samples: &mut Vec<Sample>) {
    let mut metric = 0;
    let mut times: Vec<Vec<i64>> = Vec::new();
    for _ in 0..number(body) {
        metric += number(body) as usize;
        let head = number(body);
        let offsets = if head.is_multiple_of(2) {
            integers(body, head as usize / 2 + 1)
        } else {
            times[head as usize / 2].clone()
        };
        for (&offset, value) in offsets.iter().zip(column(body, offsets.len())) {
            samples.push(Sample { offset: offset as u32, metric: metrics[metric].clone(), value });
        }
        times.push(offsets);
    }
}

fn column(body: &mut &[u8], count: usize) -> Vec<f64> {
    let [scale] = take(body);
    let raw = if scale >= 128 { places(body, |body| f64::from_le_bytes(take(body))) } else { Vec::new() };
    let scale = scale % 128;
    let integers = integers(body, count).into_iter();
    let mut values: Vec<f64> = if scale < 16 {
        integers.map(|integer| integer as f64 / 10_f64.powi(scale.into())).collect()
    } else {
        integers.map(|integer| from_ordered(integer, scale - 16)).collect()
    };
    for (place, value) in raw {
        values[place] = value;
    }
    values
}

fn from_ordered(integer: i64, unused: u8) -> f64 {
    if integer < 0 {
        return -f64::from_bits((!integer as u64) << unused);
    }
    f64::from_bits((integer as u64) << unused)
}

fn integers(body: &mut &[u8], count: usize) -> Vec<i64> {
    let [shape] = take(body);
    let width = if shape % 64 == 63 { 64 } else { usize::from(shape % 64) };
    let (mut prediction, step) = (unzigzag(number(body)), unzigzag(number(body)));
    let patches = if shape >= 128 { places(body, number) } else { Vec::new() };
    let packed: Vec<u8> = (0..(count * width).div_ceil(8)).map(|_| take::<1>(body)[0]).collect();
    let bit = |at: usize| u64::from(packed[at / 8] >> (at % 8) & 1);
    let mut residuals: Vec<u64> =
        (0..count).map(|at| (0..width).map(|nth| bit(at * width + nth) << nth).sum()).collect();
    for (place, residual) in patches {
        residuals[place] = residual;
    }
    let is_line = shape & 64 != 0;
    let mut integers = Vec::new();
    for residual in residuals {
        let integer = prediction.wrapping_add(unzigzag(residual));
        prediction = if is_line { prediction } else { integer }.wrapping_add(step);
        integers.push(integer);
    }
    integers
}

/// Items at places, each with its distance from the one before.
fn places<T>(body: &mut &[u8], item: impl Fn(&mut &[u8]) -> T) -> Vec<(usize, T)> {
    let mut next = 0;
    let count = number(body);
    (0..count)
        .map(|_| {
            let place = next + number(body) as usize;
            next = place + 1;
            (place, item(body))
        })
        .collect()
}

/// A chunk of one reading with one metric: columns of bits without residuals.
pub(super) fn encode(Sample { offset, metric, value }: &Sample) -> Vec<u8> {
    let bits = (value.abs().to_bits()).cast_signed();
    let ordered = if value.is_sign_negative() { !bits } else { bits };
    let mut chunk = vec![1, 0, 1, u8::try_from(metric.len()).expect("a short name")];
    chunk.extend_from_slice(metric.as_bytes());
    chunk.extend_from_slice(&[1, 0, 0, 0]); // one series, the first metric, one offset: without residuals
    put_number(&mut chunk, zigzag((*offset).into()));
    chunk.extend_from_slice(&[0, 16, 0]); // no step; a column of all bits: without residuals
    put_number(&mut chunk, zigzag(ordered));
    chunk.push(0);
    chunk
}

fn zigzag(integer: i64) -> u64 {
    (integer << 1 ^ integer >> 63).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

/// An unsigned LEB128.
fn number(bytes: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    loop {
        let [byte] = take(bytes);
        number |= u64::from(byte & 0x7F) << shift;
        shift += 7;
        if byte < 0x80 {
            return number;
        }
    }
}

fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
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
