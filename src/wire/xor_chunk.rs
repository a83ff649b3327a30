//! XOR chunks: the samples of a series as Prometheus keeps them.
//!
//! A chunk has at most 120 samples. Its first two bytes are their number. A time is stored as the change of
//! the interval between times, and a value as its XOR with the value before (Gorilla, VLDB 2015).
//!
//! Source: tsdb/chunkenc/xor.go of Prometheus.

use crate::common::leb128;
use crate::common::zigzag::zigzag;

/// The most samples of a chunk.
const MAX_SAMPLES: u16 = 120;

/// The window before the first XOR.
///
/// No XOR has that many leading zeros, so the first one writes a window of its own.
const NO_WINDOW: (u32, u32) = (u32::MAX, 0);

/// The samples of a series as chunks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chunks {
    full: Vec<Chunk>,
    last: Option<Appender>,
}

/// A chunk with its first and last instant, in Unix milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Chunk {
    pub(super) first_ms: i64,
    pub(super) last_ms: i64,
    pub(super) bytes: Vec<u8>,
}

/// A chunk to which samples can be appended.
#[derive(Debug, Clone, PartialEq)]
struct Appender {
    chunk: Chunk,
    samples: u16,
    /// The number of bits of the last byte that are not in use.
    free_bits: u32,
    delta_ms: u64,
    value_bits: u64,
    /// The leading and trailing zeros that were written last.
    ///
    /// An XOR that has at least these zeros reuses them.
    window: (u32, u32),
}

impl Chunks {
    /// Appends a sample, in ascending order of time.
    ///
    /// Returns how many bytes of memory it takes.
    pub fn push(&mut self, ts_ms: i64, value: f64) -> usize {
        if let Some(full) = self.last.take_if(|last| last.samples == MAX_SAMPLES) {
            self.full.push(full.finish());
        }
        if let Some(last) = &mut self.last {
            return last.push(ts_ms, value);
        }
        let first = self.last.insert(Appender::new(ts_ms, value));
        first.chunk.bytes.len() + size_of::<Chunk>()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// The chunks in ascending order of time.
    pub(super) fn finish(self) -> impl Iterator<Item = Chunk> {
        self.full.into_iter().chain(self.last.map(Appender::finish))
    }
}

impl Appender {
    fn new(ts_ms: i64, value: f64) -> Self {
        let mut bytes = vec![0, 0];
        leb128::put(&mut bytes, zigzag(ts_ms));
        bytes.extend_from_slice(&value.to_bits().to_be_bytes());
        let chunk = Chunk { first_ms: ts_ms, last_ms: ts_ms, bytes };
        Self { chunk, samples: 1, free_bits: 0, delta_ms: 0, value_bits: value.to_bits(), window: NO_WINDOW }
    }

    fn push(&mut self, ts_ms: i64, value: f64) -> usize {
        let before = self.chunk.bytes.len();
        let delta_ms = ts_ms.wrapping_sub(self.chunk.last_ms).cast_unsigned();
        if self.samples == 1 {
            leb128::put(&mut self.chunk.bytes, delta_ms);
        } else {
            self.write_change(delta_ms.wrapping_sub(self.delta_ms).cast_signed());
        }
        self.write_value(value.to_bits());
        (self.chunk.last_ms, self.delta_ms) = (ts_ms, delta_ms);
        self.samples += 1;
        self.chunk.bytes.len() - before
    }

    /// Writes the change of the interval between times.
    fn write_change(&mut self, change_ms: i64) {
        let fits = |bits: u32| (-(1 << (bits - 1)) + 1..=1 << (bits - 1)).contains(&change_ms);
        let (mark, mark_bits, bits) = match change_ms {
            0 => (0b0, 1, 0),
            _ if fits(14) => (0b10, 2, 14),
            _ if fits(17) => (0b110, 3, 17),
            _ if fits(20) => (0b1110, 4, 20),
            _ => (0b1111, 4, 64),
        };
        self.write_bits(mark, mark_bits);
        self.write_bits(change_ms.cast_unsigned(), bits);
    }

    fn write_value(&mut self, bits: u64) {
        let difference = std::mem::replace(&mut self.value_bits, bits) ^ bits;
        if difference == 0 {
            return self.write_bits(0, 1);
        }
        let (leading, trailing) = (difference.leading_zeros().min(31), difference.trailing_zeros());
        if leading < self.window.0 || trailing < self.window.1 {
            self.window = (leading, trailing);
            self.write_bits(0b11, 2);
            self.write_bits(u64::from(leading), 5);
            self.write_bits(u64::from(64 - leading - trailing), 6); // 64 as 0
        } else {
            self.write_bits(0b10, 2);
        }
        let (leading, trailing) = self.window;
        self.write_bits(difference >> trailing, 64 - leading - trailing);
    }

    /// Writes the lowest bits of a number, the highest of them first.
    fn write_bits(&mut self, number: u64, mut bits: u32) {
        while bits > 0 {
            if self.free_bits == 0 {
                self.chunk.bytes.push(0);
                self.free_bits = 8;
            }
            let taken = bits.min(self.free_bits);
            let part = (number >> (bits - taken)) as u8 & (0xFF >> (8 - taken));
            self.free_bits -= taken;
            bits -= taken;
            if let Some(last) = self.chunk.bytes.last_mut() {
                *last |= part << self.free_bits;
            }
        }
    }

    fn finish(mut self) -> Chunk {
        self.chunk.bytes[..2].copy_from_slice(&self.samples.to_be_bytes());
        self.chunk.bytes.shrink_to_fit();
        self.chunk
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The bits of a chunk, read as tsdb/chunkenc/xor.go does.
    struct Bits<'b>(&'b [u8], usize);

    impl Bits<'_> {
        fn next(&mut self, count: u32) -> u64 {
            (0..count).fold(0, |number, _| {
                let bit = self.0[self.1 / 8] >> (7 - self.1 % 8) & 1;
                self.1 += 1;
                number << 1 | u64::from(bit)
            })
        }

        fn varint(&mut self) -> u64 {
            let mut number = 0;
            for shift in (0..).step_by(7) {
                let byte = self.next(8);
                number |= (byte & 0x7F) << shift;
                if byte < 0x80 {
                    break;
                }
            }
            number
        }
    }

    /// The samples of a chunk, each with the bits of its value.
    pub(in crate::wire) fn decode(bytes: &[u8]) -> Vec<(i64, u64)> {
        let mut bits = Bits(bytes, 0);
        let samples = bits.next(16);
        let first = bits.varint();
        let mut ts_ms = (first >> 1) as i64 ^ -((first & 1) as i64);
        let (mut value, mut delta, mut window) = (bits.next(64), 0, (0, 0));
        let mut found = vec![(ts_ms, value)];
        for nth in 1..samples {
            if nth == 1 {
                delta = bits.varint() as i64;
            } else {
                let ones = (0..4).take_while(|_| bits.next(1) == 1).count();
                let width = [0, 14, 17, 20, 64][ones];
                let mut change = bits.next(width) as i64;
                if width < 64 && width > 0 && change > 1 << (width - 1) {
                    change -= 1 << width;
                }
                delta = delta.wrapping_add(change);
            }
            ts_ms = ts_ms.wrapping_add(delta);
            if bits.next(1) == 1 {
                if bits.next(1) == 1 {
                    let leading = bits.next(5) as u32;
                    let significant = bits.next(6) as u32;
                    window = (leading, 64 - leading - if significant == 0 { 64 } else { significant });
                }
                value ^= bits.next(64 - window.0 - window.1) << window.1;
            }
            found.push((ts_ms, value));
        }
        assert!(bits.1.div_ceil(8) == bytes.len(), "the chunk has no other bytes");
        found
    }

    fn values() -> impl Strategy<Value = u64> {
        let stale = 0x7FF0_0000_0000_0002_u64;
        prop_oneof![
            any::<u64>(),
            Just(stale),
            prop::sample::select(vec![0.0, -0.0, 1.0, -1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX])
                .prop_map(f64::to_bits),
            (0..1_000_u32).prop_map(|eighths| (f64::from(eighths) / 8.0).to_bits()),
        ]
    }

    fn gaps() -> impl Strategy<Value = i64> {
        let edges = [13, 14, 16, 17, 19, 20].map(|bits| 1_i64 << bits);
        let near: Vec<i64> = edges.into_iter().flat_map(|edge| [edge - 1, edge, edge + 1]).collect();
        prop_oneof![
            Just(10_000),
            1..100_i64,
            prop::sample::select(near),
            any::<u32>().prop_map(i64::from),
            1..1_i64 << 60
        ]
    }

    proptest! {
        #[test]
        fn a_plain_decoder_finds_each_sample_to_the_bit(
            first_ms in prop_oneof![any::<i64>(), Just(i64::MIN), Just(0)],
            rest in prop::collection::vec((gaps(), values()), 0..400),
        ) {
            let mut ts_ms = first_ms;
            let (mut chunks, mut samples, mut bytes) = (Chunks::default(), Vec::new(), 0);
            for (gap, value) in rest {
                samples.push((ts_ms, value));
                bytes += chunks.push(ts_ms, f64::from_bits(value));
                let Some(next_ms) = ts_ms.checked_add(gap) else { break };
                ts_ms = next_ms;
            }
            prop_assert_eq!(chunks.is_empty(), samples.is_empty());
            let chunks: Vec<Chunk> = chunks.finish().collect();
            let in_memory: usize = chunks.iter().map(|chunk| chunk.bytes.len() + size_of::<Chunk>()).sum();
            prop_assert_eq!(bytes, in_memory);
            let mut found = Vec::new();
            for Chunk { first_ms, last_ms, bytes } in chunks {
                let of_chunk = decode(&bytes);
                prop_assert!(of_chunk.len() <= 120);
                prop_assert_eq!((of_chunk[0].0, of_chunk[of_chunk.len() - 1].0), (first_ms, last_ms));
                found.extend(of_chunk);
            }
            prop_assert_eq!(found, samples);
        }
    }
}
