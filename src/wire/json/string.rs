//! Strings: borrowed from the text, or unescaped if they have escapes.

use std::borrow::Cow;

use super::{
    SyntaxError,
    lexer::{Lexer, Result},
};
use crate::common::work;

impl<'b> Lexer<'b> {
    /// Reads the string that [`Lexer::kind`] has found.
    pub(in crate::wire) fn string(&mut self) -> Result<Cow<'b, str>> {
        let start = self.at + 1;
        self.at = start;
        let plain = self.plain();
        if self.byte() == Some(b'"') {
            self.at += 1;
            return Ok(Cow::Borrowed(plain));
        }
        self.string_with_escapes(plain).map(Cow::Owned)
    }

    /// Takes the part of a string up to the next special byte: quote, backslash or control character.
    fn plain(&mut self) -> &'b str {
        let start = self.at;
        self.at += plain_length(&self.text.as_bytes()[start..]);
        work::count(self.at - start + 1);
        &self.text[start..self.at]
    }

    #[cold]
    fn string_with_escapes(&mut self, start: &str) -> Result<String> {
        let mut string = start.to_owned();
        loop {
            match self.byte() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(string);
                }
                Some(b'\\') => string.push(self.escape()?),
                Some(_) => return Err(self.error("a control character in a string must be escaped")),
                None => return Err(self.expected("the closing '\"' of a string")),
            }
            string.push_str(self.plain());
        }
    }

    fn escape(&mut self) -> Result<char> {
        let character = match self.text.as_bytes().get(self.at + 1) {
            Some(b'u') => return self.unicode_escape(),
            Some(&byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            _ => return Err(self.error("unknown escape in a string")),
        };
        self.at += 2;
        Ok(character)
    }

    fn unicode_escape(&mut self) -> Result<char> {
        let start = self.at;
        let first = self.unicode_unit()?;
        let second = match first {
            0xD800..0xDC00 if self.text[self.at..].starts_with("\\u") => Some(self.unicode_unit()?),
            _ => None,
        };
        let mut decoded = char::decode_utf16([first].into_iter().chain(second));
        match (decoded.next(), decoded.next()) {
            (Some(Ok(character)), None) => Ok(character),
            _ => Err(SyntaxError::new(start, "an unpaired surrogate in a string")),
        }
    }

    /// Reads `\uXXXX`, and returns the number of the four digits.
    fn unicode_unit(&mut self) -> Result<u16> {
        let digits = self.text.get(self.at + 2..self.at + 6);
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        let unit = unit.ok_or_else(|| self.error("expected four hexadecimal digits after \\u"))?;
        self.at += 6;
        Ok(unit)
    }
}

/// The number of leading bytes that are not special. It checks eight at a time, because most bytes of a body
/// are not special.
fn plain_length(bytes: &[u8]) -> usize {
    let (words, rest) = bytes.as_chunks::<8>();
    for (place, word) in words.iter().enumerate() {
        let special = special_bytes(u64::from_le_bytes(*word));
        if special != 0 {
            return place * 8 + special.trailing_zeros() as usize / 8;
        }
    }
    let length = rest.iter().position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\');
    words.len() * 8 + length.unwrap_or(rest.len())
}

/// Sets the high bit of each byte that is a quote, a backslash or a control character. A borrow may also set
/// the high bit of bytes above such a byte, so only the lowest set bit is reliable.
const fn special_bytes(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 0xFF;
    let quotes = word ^ (ONES * b'"' as u64);
    let backslashes = word ^ (ONES * b'\\' as u64);
    let below_32 = word.wrapping_sub(ONES * 0x20) & !word;
    let zeros = quotes.wrapping_sub(ONES) & !quotes | backslashes.wrapping_sub(ONES) & !backslashes;
    (below_32 | zeros) & (ONES * 0x80)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn string(json: &str) -> Result<String> {
        Ok(Lexer::new(json.as_bytes())?.string()?.into_owned())
    }

    #[test]
    fn a_string_borrows_unless_it_has_escapes() {
        assert!(matches!(Lexer::new("\"Zähler\"".as_bytes()).unwrap().string(), Ok(Cow::Borrowed("Zähler"))));
        assert_eq!(string(r#""a\"\\\/\b\f\n\r\tz""#).unwrap(), "a\"\\/\u{8}\u{c}\n\r\tz");
        assert_eq!(string(r#""\u00e9\uD83D\uDE00é\u0000""#).unwrap(), "é😀é\0");
    }

    proptest! {
        #[test]
        fn plain_bytes_end_at_the_first_special_one(
            bytes in prop::collection::vec(prop_oneof![8 => 0x1Eu8..=255, 1 => any::<u8>()], 0..40),
        ) {
            let special = |byte: &u8| matches!(byte, 0..0x20 | b'"' | b'\\');
            prop_assert_eq!(plain_length(&bytes), bytes.iter().position(special).unwrap_or(bytes.len()));
        }
    }
}
