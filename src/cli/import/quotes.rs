//! Finds text that follows a closing quote in a CSV file.
//!
//! The csv crate adds such text to the cell. But mostly an earlier quote is wrong: the cell extends from that
//! quote over line ends to the next quote, and contains the rows between.

/// The place behind the last byte that was read, by the rules of the csv crate.
///
/// The delimiter ends a cell, `\n` a row.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Before the first byte of a cell.
    Start,
    /// In a cell without quotes. A quote in it is a character.
    Plain,
    /// Behind the opening quote.
    Quoted,
    /// Behind a quote in a quoted cell.
    ///
    /// It is the closing quote, or the first of two that stand for one.
    Quote,
    /// In white space behind the closing quote.
    Closed,
}

/// Follows the quotes of a file.
#[derive(Debug)]
pub(super) struct Quotes {
    place: Place,
    offset: u64,
    /// The line ends between quotes in the row that was read last.
    line_ends: u64,
    delimiter: u8,
}

impl Quotes {
    pub(super) fn new(delimiter: u8) -> Self {
        Self { place: Place::Start, offset: 0, line_ends: 0, delimiter }
    }

    /// The line ends in the row that was read last, up to the last byte.
    pub(super) const fn line_ends(&self) -> u64 {
        self.line_ends
    }

    /// Reads the next bytes.
    ///
    /// Returns the offsets in the file of each text that follows a closing quote.
    pub(super) fn read(&mut self, bytes: &[u8]) -> impl Iterator<Item = u64> {
        let start = self.offset;
        self.offset += bytes.len() as u64;
        bytes.iter().zip(start..).filter_map(move |(byte, offset)| self.follows_quote(*byte).then_some(offset))
    }

    fn follows_quote(&mut self, byte: u8) -> bool {
        if byte == b'\n' {
            self.line_ends = if matches!(self.place, Place::Quoted) { self.line_ends + 1 } else { 0 };
        }
        let (place, is_text) = match (self.place, byte) {
            (Place::Quoted, b'"') => (Place::Quote, false),
            (Place::Quoted, _) | (Place::Start | Place::Quote, b'"') => (Place::Quoted, false),
            (_, b'\n') => (Place::Start, false),
            (_, byte) if byte == self.delimiter => (Place::Start, false),
            (Place::Quote | Place::Closed, b' ' | b'\t' | b'\r') => (Place::Closed, false),
            (Place::Quote | Place::Closed, _) => (Place::Plain, true),
            (Place::Start | Place::Plain, _) => (Place::Plain, false),
        };
        self.place = place;
        is_text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_after_a_closing_quote_is_found_in_any_pieces() {
        for (text, expected) in [
            (&b"a,\"b\"\r\n\"c\" ,\"d\"\"\",e\"f\n"[..], &[][..]),
            (b"\"a\"b,c\n", &[3]),
            (b"1,\"5 inch\n2,\"ok\"\n", &[13]),
            (b"\"a\" \"b\",\"c\"d\"\n", &[4, 11]),
        ] {
            for size in [1, 2, 3, text.len()] {
                let mut quotes = Quotes::new(b',');
                let found: Vec<u64> =
                    text.chunks(size).flat_map(|piece| quotes.read(piece).collect::<Vec<_>>()).collect();
                assert_eq!(found, expected, "{:?} in pieces of {size}", String::from_utf8_lossy(text));
            }
        }
    }

    #[test]
    fn the_line_ends_in_a_row_are_counted() {
        for (text, expected) in [
            (&b""[..], 0),
            (b"a\n\n", 0),
            (b"a,\"b\n\nc\"", 2),
            (b"a,\"b\n\nc\"\n", 0),
            (b"\"a\nb\"\n1,\"\n2", 1),
            (b"5\"\n2", 0),
        ] {
            let mut quotes = Quotes::new(b',');
            let found = quotes.read(text).count();
            assert_eq!((found, quotes.line_ends()), (0, expected), "{:?}", String::from_utf8_lossy(text));
        }
    }
}
