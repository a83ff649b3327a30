//! Reading a stream. The grammar is on the module above.

use super::pieces::Packed;
use super::{DELTA, LONG, NEW_SERIES, NO_ENTRY, OTHER_SERIES, RESCALED, STARTS_READING, Series, Times, WHOLE, decimal};
use crate::common::zigzag::unzigzag;
use crate::model::HourOffset;
use crate::pending::slots::Key;

/// One value as it was accepted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::pending) struct Arrived {
    pub(in crate::pending) value: f64,
    pub(in crate::pending) offset: HourOffset,
    /// The metric's id in the names of the bucket.
    pub(in crate::pending) metric: Key,
    /// Whether the value is the first of its reading.
    pub(in crate::pending) starts_reading: bool,
}

impl Packed {
    /// Calls `visit` with the values in the order of their arrival.
    #[inline]
    pub(in crate::pending) fn each(&self, mut visit: impl FnMut(Arrived)) {
        let bytes = self.to_bytes();
        let mut reader = Reader { rest: &bytes, times: Times::default(), series: Vec::new(), next: 0 };
        for _ in 0..self.values {
            visit(reader.value());
        }
        debug_assert!(reader.rest.is_empty(), "a token for each value");
    }
}

/// The state after some tokens. The bytes are those of a [`Stream`](super::Stream).
struct Reader<'a> {
    rest: &'a [u8],
    times: Times,
    series: Vec<Series>,
    next: usize,
}

impl Reader<'_> {
    #[inline]
    fn value(&mut self) -> Arrived {
        if let &[first @ ..=0b0111_1111, second, ref rest @ ..] = self.rest {
            self.rest = rest;
            let token = u32::from_be_bytes([0, 0, first, second]);
            self.times.advance_on_time(self.times.at(signed::<8>(token >> 7)));
            return self.predicted(signed::<7>(token), true);
        }
        let first = self.byte();
        match first.leading_ones() {
            1 => self.predicted(signed::<6>(first.into()), false),
            2 => {
                let token = u32::from_be_bytes([0, first, self.byte(), self.byte()]);
                self.advance(signed::<12>(token >> 9));
                self.predicted(signed::<9>(token), true)
            }
            3 => {
                self.times.advance_on_time(self.times.at(0));
                self.predicted(signed::<4>(first.into()), true)
            }
            _ => self.long(first ^ LONG),
        }
    }

    #[inline]
    fn advance(&mut self, difference: i32) {
        self.times.advance(self.times.at(difference));
    }

    /// Returns a value of the predicted series.
    #[inline]
    fn predicted(&mut self, delta: i32, starts_reading: bool) -> Arrived {
        let series = &mut self.series[self.next];
        series.integer += i64::from(delta);
        let value = decimal::value_of(series.integer, series.decimals);
        let arrived = Arrived { value, offset: self.times.last, metric: series.metric, starts_reading };
        self.pass(0);
        arrived
    }

    #[inline(never)]
    fn long(&mut self, head: u8) -> Arrived {
        let mut at = self.next;
        let mut no_entry = None;
        if head & OTHER_SERIES == 0 {
            self.pass(0);
        } else {
            match self.number() {
                NEW_SERIES => {
                    at = self.series.len();
                    let metric = self.metric();
                    self.series.push(Series::new(metric));
                    self.next = 0;
                }
                NO_ENTRY => no_entry = Some(Series::new(self.metric())),
                skip => {
                    at = (self.next + skip as usize) % self.series.len();
                    self.pass(skip as usize);
                }
            }
        }
        let starts_reading = head & STARTS_READING != 0;
        if starts_reading {
            let difference = self.signed_number() as i32;
            self.advance(difference);
        }
        let mut series = no_entry.unwrap_or_else(|| self.series[at]);
        let value = match head & 0b11 {
            DELTA => {
                series.integer += self.signed_number();
                decimal::value_of(series.integer, series.decimals)
            }
            RESCALED => {
                series.decimals = self.byte();
                series.integer = self.signed_number();
                decimal::value_of(series.integer, series.decimals)
            }
            form => {
                let len = if form == WHOLE { size_of::<f64>() } else { usize::from(self.byte()) };
                let mut bytes = [0; size_of::<f64>()];
                bytes[..len].copy_from_slice(self.take(len));
                f64::from_be_bytes(bytes)
            }
        };
        if no_entry.is_none() {
            self.series[at] = series;
        }
        Arrived { value, offset: self.times.last, metric: series.metric, starts_reading }
    }

    #[inline]
    fn pass(&mut self, skip: usize) {
        let after = self.next + skip + 1;
        self.next = if after < self.series.len() { after } else { after - self.series.len() };
    }

    fn metric(&mut self) -> Key {
        Key::new(self.number() as u32).expect("the writer has written a key")
    }

    #[inline]
    fn byte(&mut self) -> u8 {
        self.take(1)[0]
    }

    #[inline]
    fn take(&mut self, len: usize) -> &[u8] {
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }

    fn number(&mut self) -> u64 {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = self.byte();
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return number;
            }
            shift += 7;
        }
    }

    fn signed_number(&mut self) -> i64 {
        unzigzag(self.number())
    }
}

/// The lowest bits as a two's complement.
#[inline]
const fn signed<const BITS: u32>(bits: u32) -> i32 {
    (bits << (32 - BITS)).cast_signed() >> (32 - BITS)
}
