//! Numbers of variable length (LEB128), and signed numbers in zigzag order.

use super::ChunkError;
use crate::common::cursor::Cursor;
pub(super) use crate::common::leb128::put;
use crate::common::zigzag::{unzigzag, zigzag};

/// The bits that one more decimal adds to a number, in tenths of a bit: log2(10) is 3.3.
pub(super) const TENTHS_OF_BITS_PER_DECIMAL: usize = 33;

/// Appends a signed number: zigzag, then LEB128.
pub(super) fn put_signed(out: &mut Vec<u8>, number: i64) {
    put(out, zigzag(number));
}

/// Reads a number that [`put`] wrote.
#[inline]
pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<u64, ChunkError> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let [byte] = cursor.array()?;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            break;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(ChunkError::Invalid("a number has more than 64 bits"))
}

/// Reads a number that [`put_signed`] wrote.
#[inline]
pub(super) fn read_signed(cursor: &mut Cursor<'_>) -> Result<i64, ChunkError> {
    read(cursor).map(unzigzag)
}

/// The number of bits that a number needs: 3 for 5, and 0 for 0.
#[inline]
pub(super) const fn bits(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}
