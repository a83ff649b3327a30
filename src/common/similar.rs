//! Similar names, for hints about a name that is not known.

/// The longest unknown name that is compared with known names, in bytes.
///
/// The comparison leaves out `_`, `-` and spaces, so these do not count.
const MAX_COMPARED_BYTES: usize = 24;

/// A name in lower case, without `_`, `-` and spaces.
pub struct Bare {
    letters: [u8; MAX_COMPARED_BYTES],
    length: usize,
}

impl Bare {
    /// Converts a name to lower case, and removes `_`, `-` and spaces.
    ///
    /// `None` if the result is longer than 24 bytes.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        let mut bare = Self { letters: [0; MAX_COMPARED_BYTES], length: 0 };
        for byte in name.bytes().filter(|byte| !matches!(byte, b'_' | b'-' | b' ')) {
            *bare.letters.get_mut(bare.length)? = byte.to_ascii_lowercase();
            bare.length += 1;
        }
        Some(bare)
    }

    /// The name in lower case, without `_`, `-` and spaces.
    #[must_use]
    pub fn letters(&self) -> &[u8] {
        &self.letters[..self.length]
    }

    /// The known name that is most similar to this one: a letter or two differ, or the case.
    pub fn nearest<'n>(&self, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
        let most = if self.length <= 5 { 1 } else { 2 };
        let distances = known.filter_map(|name| Some((Self::of(name)?.distance(self), name)));
        let near = distances.min_by_key(|&(distance, _)| distance)?;
        (near.0 <= most && near.0 < self.length).then_some(near.1)
    }

    /// The number of edits that make both names equal (optimal string alignment).
    ///
    /// An edit inserts, removes or replaces a letter, or swaps two neighbours.
    fn distance(&self, other: &Self) -> usize {
        let (a, b) = (self.letters(), other.letters());
        let mut before = [0; MAX_COMPARED_BYTES + 1];
        let mut row: [usize; MAX_COMPARED_BYTES + 1] = std::array::from_fn(|j| j);
        for i in 1..=a.len() {
            let mut next = [i; MAX_COMPARED_BYTES + 1];
            for j in 1..=b.len() {
                let replaced = row[j - 1] + usize::from(a[i - 1] != b[j - 1]);
                next[j] = replaced.min(row[j] + 1).min(next[j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    next[j] = next[j].min(before[j - 2] + 1);
                }
            }
            (before, row) = (row, next);
        }
        row[b.len()]
    }
}
