//! Numbers of variable length: unsigned LEB128, which Protocol Buffers call varints.

/// Appends a number, with the lowest seven bits first. All bytes but the last have their high bit set.
pub fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80); // the lowest eight bits
        number >>= 7;
    }
    out.push(number as u8);
}
