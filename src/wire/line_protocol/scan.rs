//! The scanner of a line.

use std::borrow::Cow;
use std::fmt;

use memchr::memchr;

use super::lines::indent;
use crate::common::work;
use crate::wire::{
    Code, Rejection,
    problem::{Parsed, rejection},
};

/// The characters that end a kind of name. A backslash escapes them in the name.
pub(super) struct Ends {
    escapable: &'static [u8],
    /// The bytes at which [`Scanner::plain`] stops.
    ///
    /// They are the ends, the backslash, control characters, and braces.
    special: [bool; 256],
}

/// The ends of a measurement.
pub(super) const MEASUREMENT: &Ends = &Ends::new(b", ");
/// The ends of tag keys, tag values and field keys.
pub(super) const KEY: &Ends = &Ends::new(b",= ");

impl Ends {
    const fn new(escapable: &'static [u8]) -> Self {
        let mut special = [false; 256];
        let mut byte = 0;
        while byte < 0x20 {
            special[byte] = true;
            byte += 1;
        }
        special[0x7F] = true;
        special[b'{' as usize] = true;
        special[b'}' as usize] = true;
        special[b'\\' as usize] = true;
        let mut at = 0;
        while at < escapable.len() {
            special[escapable[at] as usize] = true;
            at += 1;
        }
        Self { escapable, special }
    }

    fn is_special(&self, byte: u8) -> bool {
        self.special[usize::from(byte)]
    }
}

/// A buffer that most names with escapes fit into.
const USUAL_BYTES: usize = 32;

/// A position in a line.
#[derive(Debug)]
pub(super) struct Scanner<'b> {
    text: &'b str,
    at: usize,
    has_brace: bool,
}

impl<'b> Scanner<'b> {
    /// Starts after the indent of `text`.
    pub(super) fn new(text: &'b str) -> Self {
        Self { text, at: indent(text.as_bytes()), has_brace: false }
    }

    /// Reads a name up to one of `ends`. The name may be empty.
    #[inline]
    pub(super) fn name(&mut self, ends: &Ends) -> Parsed<Cow<'b, str>> {
        let plain = self.plain(ends);
        match self.byte() {
            Some(byte) if byte.is_ascii_control() || matches!(byte, b'\\' | b'{' | b'}') => {
                self.special_name(plain, ends).map(Cow::Owned)
            }
            _ => Ok(Cow::Borrowed(plain)),
        }
    }

    /// Reads up to the next space.
    pub(super) fn word(&mut self) -> &'b str {
        let rest = self.rest();
        self.take(memchr(b' ', rest.as_bytes()).unwrap_or(rest.len()))
    }

    /// Reads up to the next comma or space.
    #[inline]
    pub(super) fn value(&mut self) -> &'b str {
        let rest = &self.text.as_bytes()[self.at..];
        let length = rest.iter().position(|byte| matches!(byte, b',' | b' ')).unwrap_or(rest.len());
        self.take(length)
    }

    /// Reads `byte` if it is next.
    #[inline]
    pub(super) fn take_if(&mut self, byte: u8) -> bool {
        let is_next = self.byte() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Whether one of the names had a brace.
    pub(super) const fn has_brace(&self) -> bool {
        self.has_brace
    }

    /// Skips spaces.
    pub(super) fn skip_spaces(&mut self) {
        while self.take_if(b' ') {}
    }

    /// The rest of the line.
    pub(super) fn rest(&self) -> &'b str {
        &self.text[self.at..]
    }

    /// The offset of the next byte.
    pub(super) const fn offset(&self) -> usize {
        self.at
    }

    /// A rejection that points at the next byte.
    #[cold]
    pub(super) fn rejection(&self, code: Code, what: &str) -> Rejection {
        rejection_at(self.at, code, what)
    }

    /// The next byte.
    #[inline]
    pub(super) fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Takes the bytes of a name up to the next special byte.
    #[inline]
    fn plain(&mut self, ends: &Ends) -> &'b str {
        let rest = &self.text.as_bytes()[self.at..];
        let length = rest.iter().position(|&byte| ends.is_special(byte)).unwrap_or(rest.len());
        self.take(length)
    }

    /// Reads `length` bytes.
    #[inline]
    pub(super) fn take(&mut self, length: usize) -> &'b str {
        let taken = &self.text[self.at..self.at + length];
        work::count(length + 1);
        self.at += length;
        taken
    }

    /// Reads the rest of a name that began with `start`, up to one of `ends`.
    ///
    /// A backslash, a brace or a control character is next.
    #[cold]
    fn special_name(&mut self, start: &str, ends: &Ends) -> Parsed<String> {
        let mut name = String::with_capacity(start.len() + USUAL_BYTES);
        name.push_str(start);
        while let Some(special @ (b'\\' | b'{' | b'}')) = self.byte() {
            self.at += 1;
            match self.byte() {
                _ if special != b'\\' => {
                    self.has_brace = true;
                    name.push(char::from(special));
                }
                Some(byte) if ends.escapable.contains(&byte) => {
                    name.push(char::from(byte));
                    self.at += 1;
                }
                _ => name.push('\\'),
            }
            name.push_str(self.plain(ends));
        }
        match self.byte() {
            Some(byte) if byte.is_ascii_control() => {
                Err(self.rejection(Code::InvalidLine, "a name has no control characters, there is one"))
            }
            _ => Ok(name),
        }
    }
}

/// A rejection that points at a byte of the line.
#[cold]
pub(super) fn rejection_at(offset: usize, code: Code, what: impl fmt::Display) -> Rejection {
    rejection(code, format!("{what} at column {}", offset + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str, ends: &Ends) -> (String, String) {
        let mut scanner = Scanner::new(text);
        let name = scanner.name(ends).unwrap();
        (name.into_owned(), scanner.rest().to_owned())
    }

    #[test]
    fn a_name_borrows_unless_it_has_a_backslash() {
        assert!(matches!(Scanner::new("Zähler,a").name(MEASUREMENT), Ok(Cow::Borrowed("Zähler"))));
        assert!(matches!(Scanner::new("a\\b").name(MEASUREMENT), Ok(Cow::Owned(_))));
    }

    #[test]
    fn a_backslash_escapes_the_ends_of_a_name_only() {
        for (text, ends, read, rest) in [
            (r"a\,b\ c,d", MEASUREMENT, "a,b c", ",d"),
            (r"a\=b=c d", MEASUREMENT, r"a\=b=c", " d"),
            (r"a\,b\ c\=d=e", KEY, "a,b c=d", "=e"),
            (r#"\n\"\\x"#, KEY, r#"\n\"\\x"#, ""),
            (r"a\\ b c", KEY, r"a\ b", " c"),
            (r"a\\\,b,c", KEY, r"a\\,b", ",c"),
            (r"a\", KEY, r"a\", ""),
            (r"\é,", KEY, r"\é", ","),
            ("", KEY, "", ""),
            (",", KEY, "", ","),
        ] {
            assert_eq!(name(text, ends), (read.to_owned(), rest.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_name_has_no_control_characters() {
        for text in ["a\0", "ab\u{1F}c", "a\tb", "\\a\u{7F}", "\\\n"] {
            let detail = Scanner::new(text).name(KEY).unwrap_err().detail;
            let column = text.find(char::is_control).unwrap() + 1;
            assert_eq!(detail, format!("a name has no control characters, there is one at column {column}"));
        }
    }
}
