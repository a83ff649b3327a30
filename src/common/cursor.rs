//! Reads bytes from front to back, and checks that no read goes beyond the end.

/// The bytes end too early: in the middle of the item that starts at this offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndOfBytes(pub usize);

/// A slice of bytes, and the offset of the next byte to read.
#[derive(Debug, Clone)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor at the first byte.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self::at(bytes, 0)
    }

    /// A cursor at an offset, which may be beyond the end.
    #[must_use]
    pub const fn at(bytes: &'a [u8], offset: usize) -> Self {
        Self { bytes, at: offset }
    }

    /// The offset of the next byte.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.at
    }

    /// The whole slice, with the bytes before the cursor.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes from the cursor on.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Reads the next `count` bytes.
    ///
    /// # Errors
    /// When fewer bytes are left.
    #[inline]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], EndOfBytes> {
        let end = self.at.checked_add(count).ok_or(EndOfBytes(self.at))?;
        let taken = self.bytes.get(self.at..end).ok_or(EndOfBytes(self.at))?;
        self.at = end;
        Ok(taken)
    }

    /// Reads the next `N` bytes as an array.
    ///
    /// # Errors
    /// When fewer bytes are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], EndOfBytes> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_length_reads_beyond_the_end() {
        let mut cursor = Cursor::new(&[1, 2, 3]);
        assert_eq!((cursor.array(), cursor.offset(), cursor.rest()), (Ok([1]), 1, &[2, 3][..]));
        assert_eq!((cursor.take(3), cursor.take(usize::MAX)), (Err(EndOfBytes(1)), Err(EndOfBytes(1))));
        assert_eq!((cursor.take(2), cursor.take(1)), (Ok(&[2, 3][..]), Err(EndOfBytes(3))));
        let mut beyond = Cursor::at(&[1], 9);
        assert_eq!((beyond.rest(), beyond.take(0)), (&[][..], Err(EndOfBytes(9))));
    }
}
