//! Unsigned LEB128: numbers in 1 to 10 bytes, the varints of Protocol Buffers.

/// Appends a number in groups of seven bits, the lowest bits first.
///
/// All bytes except the last one have their high bit set.
pub fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80); // seven bits of the number, and the high bit
        number >>= 7;
    }
    out.push(number as u8);
}
