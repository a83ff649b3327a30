//! Packs numbers into bits, from the lowest bit of the first byte on.

/// Packs numbers into bytes. Each number may have another width.
pub(super) struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    word: u64,
    /// The bits of `word` in use, fewer than 64.
    used: u32,
}

impl<'a> BitWriter<'a> {
    pub(super) const fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, word: 0, used: 0 }
    }

    /// Appends a number below 2^`width`.
    #[inline]
    pub(super) fn push(&mut self, number: u64, width: u32) {
        self.word |= number << self.used;
        let used = self.used + width;
        if used < u64::BITS {
            self.used = used;
            return;
        }
        self.out.extend_from_slice(&self.word.to_le_bytes());
        self.word = if self.used == 0 { 0 } else { number >> (u64::BITS - self.used) };
        self.used = used - u64::BITS;
    }

    /// Appends the last, partly filled bytes.
    pub(super) fn finish(self) {
        let bytes = self.used.div_ceil(8) as usize;
        self.out.extend_from_slice(&self.word.to_le_bytes()[..bytes]);
    }
}

/// The number of bytes that `count` numbers of `width` bits take.
pub(super) const fn packed_bytes(count: usize, width: u32) -> usize {
    (count * width as usize).div_ceil(8)
}

/// Reads numbers that all have the same width. After the end of the bytes, it reads zeros.
#[derive(Debug, Clone)]
pub(super) struct BitReader<'a> {
    bytes: &'a [u8],
    /// The offset of the next number, in bits.
    at: usize,
    width: u32,
    mask: u64,
}

impl<'a> BitReader<'a> {
    pub(super) const fn new(bytes: &'a [u8], width: u32) -> Self {
        let mask = if width == 0 { 0 } else { u64::MAX >> (u64::BITS - width) };
        Self { bytes, at: 0, width, mask }
    }

    #[inline]
    pub(super) fn next(&mut self) -> u64 {
        let (byte, shift) = (self.at / 8, (self.at % 8) as u32);
        self.at += self.width as usize;
        let rest = self.bytes.get(byte..).unwrap_or_default();
        let word = rest.first_chunk().map_or_else(|| last_word(rest), |word| u64::from_le_bytes(*word));
        let mut number = word >> shift;
        if shift + self.width > u64::BITS {
            number |= u64::from(rest.get(8).copied().unwrap_or(0)) << (u64::BITS - shift);
        }
        number & self.mask
    }
}

/// Reads fewer than eight bytes as a little-endian word.
fn last_word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}
