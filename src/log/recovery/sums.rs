//! Checksums of ranges of a file, with little work for each.
//!
//! The file is divided into blocks. `Sums` keeps the checksum of all bytes before each block, up to the last
//! block that was needed so far. The checksum of a range is computed from two of these, for the whole blocks
//! in the range, and from the bytes before and behind these blocks.

use std::io::Result;
use std::ops::Range;

use crc32fast::Hasher;

use crate::disk::OpenFile;

/// The length of a block, in bytes.
const BLOCK: u64 = if cfg!(test) { 16 } else { 4 << 10 };

/// The number of blocks that one call reads.
const PIECE_BLOCKS: u64 = 64;

pub(super) struct Sums<'f> {
    file: &'f dyn OpenFile,
    /// The CRC-32 of all bytes before each block.
    before: Vec<u32>,
    buffer: Vec<u8>,
}

impl<'f> Sums<'f> {
    pub(super) const fn new(file: &'f dyn OpenFile) -> Self {
        Self { file, before: Vec::new(), buffer: Vec::new() }
    }

    /// The CRC-32 of a range of the file.
    ///
    /// If the range goes beyond the file, the result has no meaning.
    pub(super) fn crc(&mut self, range: Range<u64>) -> Result<u32> {
        let (first, last) = (range.start.div_ceil(BLOCK), range.end / BLOCK);
        if first >= last {
            return self.direct(range);
        }
        self.extend_to(last as usize)?;
        let [before, whole] = [first, last].map(|bound| self.before[bound as usize]);
        let middle = (last - first) * BLOCK;
        let head = self.direct(range.start..first * BLOCK)?;
        let tail = self.direct(last * BLOCK..range.end)?;
        // CRC-32 is linear, so this takes the bytes before out of the checksum of the whole.
        let middle_crc = joined(before, 0, middle) ^ whole;
        Ok(joined(joined(head, middle_crc, middle), tail, range.end - last * BLOCK))
    }

    fn direct(&mut self, range: Range<u64>) -> Result<u32> {
        self.buffer.resize((range.end - range.start) as usize, 0);
        let have = self.file.fill(&mut self.buffer, range.start)?;
        Ok(crc32fast::hash(&self.buffer[..have]))
    }

    fn extend_to(&mut self, bound: usize) -> Result<()> {
        if self.before.is_empty() {
            self.before.push(0);
        }
        while self.before.len() <= bound {
            let known = self.before.len() as u64 - 1;
            self.buffer.resize((PIECE_BLOCKS * BLOCK) as usize, 0);
            let have = self.file.fill(&mut self.buffer, known * BLOCK)?;
            let mut sum = Hasher::new_with_initial(self.before[known as usize]);
            for block in self.buffer[..have].chunks(BLOCK as usize) {
                sum.update(block);
                self.before.push(sum.clone().finalize());
            }
            if have < self.buffer.len() {
                self.before.resize(self.before.len().max(bound + 1), 0); // the file ends before
            }
        }
        Ok(())
    }
}

/// The CRC-32 of two parts in a row, from the checksum of each.
///
/// The last part has `len` bytes.
fn joined(first: u32, last: u32, len: u64) -> u32 {
    let mut sum = Hasher::new_with_initial(first);
    sum.combine(&Hasher::new_with_initial_len(last, len));
    sum.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::faulty::Disk;
    use crate::disk::{Folder, OpenMode};

    #[test]
    fn the_checksum_of_each_range_is_that_of_its_bytes() {
        let bytes: Vec<u8> = (0..120_u32).map(|at| ((at * at * 37) >> 3) as u8).collect();
        let disk = Disk::new(0);
        let file = disk.open("x", OpenMode::Create).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let mut sums = Sums::new(&*file);
        for start in (0..=bytes.len()).rev() {
            for end in start..=bytes.len() {
                let found = sums.crc(start as u64..end as u64).unwrap();
                assert_eq!(found, crc32fast::hash(&bytes[start..end]), "{start}..{end}");
            }
        }
    }
}
