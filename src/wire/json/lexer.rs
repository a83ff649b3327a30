//! A strict pull lexer for JSON (RFC 8259), which also knows `NaN` and infinities.
//!
//! The caller asks for the [`Kind`] of the next value and then reads or skips it. Strings borrow from the
//! text unless they have escapes. The lexer fails at the first byte that is not JSON, and at the first level
//! of nesting beyond [`MAX_DEPTH`]. It does not know what a reading is.
//!
//! JSON has no `NaN`, but programs print it where a sensor has failed (`json.dumps` in Python, `%f` in C).
//! With a kind of its own, a `NaN` makes one value invalid, and not the whole body.

use std::{borrow::Cow, fmt};

use super::SyntaxError;
use crate::common::work;

/// The most levels of nested arrays and objects.
pub(super) const MAX_DEPTH: usize = 64;

pub(in crate::wire) type Result<T> = std::result::Result<T, SyntaxError>;

/// The kind of a value, which its first byte determines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::wire) enum Kind {
    Object,
    Array,
    String,
    Number,
    /// `NaN`, `Infinity` or `inf` in any case, with or without a minus.
    NonFinite,
    True,
    False,
    Null,
}

/// The text in "expected a number, found ...".
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Object => "an object",
            Self::Array => "an array",
            Self::String => "a string",
            Self::Number => "a number",
            Self::NonFinite => "NaN or an infinity",
            Self::True => "true",
            Self::False => "false",
            Self::Null => "null",
        })
    }
}

/// A position in a JSON text.
///
/// A clone is a bookmark: it reads on from the same position.
#[derive(Debug, Clone)]
pub(in crate::wire) struct Lexer<'b> {
    text: &'b str,
    at: usize,
    /// The byte offset of the last key.
    key_at: usize,
    depth: usize,
    /// Whether an array or object was entered, and none of its items has been read.
    is_fresh: bool,
}

impl<'b> Lexer<'b> {
    /// Starts at the first byte, or after the byte order mark if there is one.
    pub(in crate::wire) fn new(bytes: &'b [u8]) -> Result<Self> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| SyntaxError::new(error.valid_up_to(), "the text is not valid UTF-8"))?;
        work::count(text.len());
        let at = if text.starts_with('\u{FEFF}') { '\u{FEFF}'.len_utf8() } else { 0 };
        Ok(Self { text, at, key_at: at, depth: 0, is_fresh: false })
    }

    /// The kind of the next value.
    pub(in crate::wire) fn kind(&mut self) -> Result<Kind> {
        match self.peek() {
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::Array),
            Some(b'"') => Ok(Kind::String),
            Some(b't') => Ok(Kind::True),
            Some(b'f') => Ok(Kind::False),
            Some(b'0'..=b'9') => Ok(Kind::Number),
            Some(b'-') if self.text.as_bytes().get(self.at + 1).is_some_and(u8::is_ascii_digit) => Ok(Kind::Number),
            _ => self.rare_kind(),
        }
    }

    #[cold]
    fn rare_kind(&self) -> Result<Kind> {
        match self.byte() {
            _ if self.non_finite_bytes().is_some() => Ok(Kind::NonFinite),
            Some(b'-') => Ok(Kind::Number),
            Some(b'n') => Ok(Kind::Null),
            _ => Err(self.expected("a value")),
        }
    }

    /// Enters the object or array that [`Lexer::kind`] has found.
    pub(in crate::wire) fn open(&mut self) -> Result<()> {
        if self.depth == MAX_DEPTH {
            return Err(self.error(format!("more than {MAX_DEPTH} levels of nesting")));
        }
        self.depth += 1;
        self.at += 1;
        self.is_fresh = true;
        Ok(())
    }

    /// The next key of the current object, or `None` after its end.
    ///
    /// The caller must then read or skip the value of the key.
    pub(in crate::wire) fn key(&mut self) -> Result<Option<Cow<'b, str>>> {
        let is_first = std::mem::take(&mut self.is_fresh);
        match self.peek() {
            Some(b'}') => {
                self.close();
                return Ok(None);
            }
            Some(b',') if !is_first => self.at += 1,
            Some(_) if is_first => {}
            _ => return Err(self.expected(if is_first { "a key in double quotes or '}'" } else { "',' or '}'" })),
        }
        if self.peek() != Some(b'"') {
            return Err(self.expected("a key in double quotes"));
        }
        self.key_at = self.at;
        let key = self.string()?;
        if self.peek() != Some(b':') {
            return Err(self.expected("':'"));
        }
        self.at += 1;
        Ok(Some(key))
    }

    /// Whether the current array has another element.
    ///
    /// If not, the lexer is now after the end of the array.
    pub(in crate::wire) fn element(&mut self) -> Result<bool> {
        let is_first = std::mem::take(&mut self.is_fresh);
        match self.peek() {
            Some(b']') if is_first => self.close(),
            Some(_) if is_first => return Ok(true),
            Some(b',') => {
                self.at += 1;
                return Ok(true);
            }
            Some(b']') => self.close(),
            _ => return Err(self.expected(if is_first { "a value or ']'" } else { "',' or ']'" })),
        }
        Ok(false)
    }

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

    /// The text of the number that [`Lexer::kind`] has found.
    pub(in crate::wire) fn number(&mut self) -> Result<&'b str> {
        let start = self.at;
        self.take_one_of(b"-");
        if self.take_one_of(b"0") {
            if self.byte().is_some_and(|byte| byte.is_ascii_digit()) {
                return Err(self.error("a number has no leading zeros"));
            }
        } else {
            self.digits()?;
        }
        if self.take_one_of(b".") {
            self.digits()?;
        }
        if self.take_one_of(b"eE") {
            self.take_one_of(b"+-");
            self.digits()?;
        }
        work::count(self.at - start);
        Ok(&self.text[start..self.at])
    }

    /// Skips the next value of any kind, and returns its text.
    pub(in crate::wire) fn skip(&mut self) -> Result<&'b str> {
        let kind = self.kind()?;
        let start = self.at;
        match kind {
            Kind::Object => {
                self.open()?;
                while self.key()?.is_some() {
                    self.skip()?;
                }
            }
            Kind::Array => {
                self.open()?;
                while self.element()? {
                    self.skip()?;
                }
            }
            Kind::String => drop(self.string()?),
            Kind::Number => drop(self.number()?),
            Kind::NonFinite => self.at += self.non_finite_bytes().unwrap_or_default(),
            Kind::True => self.word("true")?,
            Kind::False => self.word("false")?,
            Kind::Null => self.word("null")?,
        }
        Ok(&self.text[start..self.at])
    }

    /// The length of the next token if it is `NaN` or an infinity.
    fn non_finite_bytes(&self) -> Option<usize> {
        let rest = &self.text.as_bytes()[self.at..];
        let unsigned = rest.strip_prefix(b"-").unwrap_or(rest);
        let letters = unsigned.iter().take(9).take_while(|byte| byte.is_ascii_alphanumeric()).count();
        let word = &unsigned[..letters];
        let is_known = [&b"nan"[..], b"inf", b"infinity"].iter().any(|known| word.eq_ignore_ascii_case(known));
        is_known.then_some(rest.len() - unsigned.len() + letters)
    }

    /// Whether only white space is left.
    pub(super) fn is_at_end(&mut self) -> bool {
        self.peek().is_none()
    }

    /// Fails if anything but white space is left.
    pub(in crate::wire) fn end(&mut self) -> Result<()> {
        if self.is_at_end() { Ok(()) } else { Err(self.error("expected nothing after the value")) }
    }

    /// The byte offset of the next token.
    pub(in crate::wire) const fn offset(&self) -> usize {
        self.at
    }

    /// The byte offset of the last key that [`Lexer::key`] returned.
    pub(in crate::wire) const fn key_offset(&self) -> usize {
        self.key_at
    }

    /// The text from `start` to the current position.
    pub(in crate::wire) fn text_from(&self, start: usize) -> &'b str {
        &self.text[start..self.at]
    }

    const fn close(&mut self) {
        self.at += 1;
        self.depth -= 1;
    }

    pub(super) fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// The next byte after white space, which the lexer skips.
    fn peek(&mut self) -> Option<u8> {
        while let Some(byte) = self.byte() {
            work::count(1);
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(byte);
            }
            self.at += 1;
        }
        None
    }

    /// Takes the part of a string up to the next special byte.
    ///
    /// Special bytes are the quote, the backslash and control characters.
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

    fn take_one_of(&mut self, bytes: &[u8]) -> bool {
        let taken = self.byte().is_some_and(|byte| bytes.contains(&byte));
        self.at += usize::from(taken);
        taken
    }

    fn digits(&mut self) -> Result<()> {
        let start = self.at;
        while self.byte().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start { Err(self.expected("a digit")) } else { Ok(()) }
    }

    fn word(&mut self, word: &str) -> Result<()> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.expected("a value"));
        }
        self.at += word.len();
        Ok(())
    }

    #[cold]
    pub(super) fn expected(&self, what: &str) -> SyntaxError {
        let end = if self.at == self.text.len() { " but found the end" } else { "" };
        self.error(format!("expected {what}{end}"))
    }

    #[cold]
    pub(super) fn error(&self, detail: impl Into<String>) -> SyntaxError {
        SyntaxError::new(self.at, detail)
    }
}

/// The number of leading bytes that are not special.
///
/// It checks eight at a time, because most bytes of a body are not special.
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

/// Sets the high bit of each quote, backslash and control character in `word`.
///
/// A borrow may also set the high bit of bytes above such a byte, so only the lowest set bit is reliable.
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

    fn syntax(json: impl AsRef<[u8]>) -> std::result::Result<(), String> {
        let check = |bytes| {
            let mut lexer = Lexer::new(bytes)?;
            lexer.skip()?;
            lexer.end()
        };
        check(json.as_ref()).map_err(|error| error.to_string())
    }

    fn string(json: &str) -> Result<String> {
        Ok(Lexer::new(json.as_bytes())?.string()?.into_owned())
    }

    #[test]
    fn every_error_has_its_position() {
        for (json, error) in [
            ("", "expected a value but found the end at byte 1"),
            ("[1 2]", "expected ',' or ']' at byte 4"),
            ("[1", "expected ',' or ']' but found the end at byte 3"),
            ("[", "expected a value or ']' but found the end at byte 2"),
            ("[1,]", "expected a value at byte 4"),
            ("[,1]", "expected a value at byte 2"),
            ("{\"a\" 1}", "expected ':' at byte 6"),
            ("{\"a\":1 \"b\":2}", "expected ',' or '}' at byte 8"),
            ("{\"a\":1,}", "expected a key in double quotes at byte 8"),
            ("{a:1}", "expected a key in double quotes at byte 2"),
            ("{", "expected a key in double quotes or '}' but found the end at byte 2"),
            ("{,}", "expected a key in double quotes at byte 2"),
            ("01", "a number has no leading zeros at byte 2"),
            ("-", "expected a digit but found the end at byte 2"),
            ("1.", "expected a digit but found the end at byte 3"),
            ("1.e5", "expected a digit at byte 3"),
            ("1e+", "expected a digit but found the end at byte 4"),
            ("+1", "expected a value at byte 1"),
            (".5", "expected a value at byte 1"),
            ("nul", "expected a value at byte 1"),
            ("NaNs", "expected a value at byte 1"),
            ("+inf", "expected a value at byte 1"),
            ("-infinite", "expected a digit at byte 2"),
            ("1 1", "expected nothing after the value at byte 3"),
            ("nullx", "expected nothing after the value at byte 5"),
            ("\"a", "expected the closing '\"' of a string but found the end at byte 3"),
            ("\"a\nb\"", "a control character in a string must be escaped at byte 3"),
            (r#""\x""#, "unknown escape in a string at byte 2"),
            (r#""\u12G4""#, "expected four hexadecimal digits after \\u at byte 2"),
            (r#""\u+123""#, "expected four hexadecimal digits after \\u at byte 2"),
            (r#""\u12é4""#, "expected four hexadecimal digits after \\u at byte 2"),
            (r#""a\uD83D""#, "an unpaired surrogate in a string at byte 3"),
            (r#""\uDE00""#, "an unpaired surrogate in a string at byte 2"),
            (r#""\uD83D\u0041""#, "an unpaired surrogate in a string at byte 2"),
        ] {
            assert_eq!(syntax(json), Err(error.to_owned()), "{json}");
        }
        assert_eq!(syntax(b"[\"ab\xFF\"]"), Err("the text is not valid UTF-8 at byte 5".to_owned()));
    }

    #[test]
    fn numbers_that_are_not_finite_are_a_kind_of_their_own() {
        for word in ["NaN", "nan", "-nan", "Infinity", "-Infinity", "inf", "-INF"] {
            for json in [format!(" {word} "), format!("[{word},{word}]"), format!("{{\"a\":{word}}}")] {
                assert_eq!(syntax(&json), Ok(()), "{json}");
            }
            assert_eq!(Lexer::new(word.as_bytes()).unwrap().kind(), Ok(Kind::NonFinite), "{word}");
        }
        for json in ["n", "-i", "in", "nul", "nano", "infinity2", "NaN1", "- inf"] {
            assert!(syntax(json).is_err(), "{json}");
        }
    }

    #[test]
    fn nesting_is_limited() {
        let nested = |levels| "[".repeat(levels) + &"]".repeat(levels);
        assert_eq!(syntax(nested(MAX_DEPTH)), Ok(()));
        assert_eq!(syntax(nested(MAX_DEPTH + 1)), Err("more than 64 levels of nesting at byte 65".to_owned()));
        assert!(syntax("[".repeat(1_000_000)).is_err());
    }

    #[test]
    fn skipping_returns_the_text_of_the_value() {
        let mut lexer = Lexer::new(b"\xEF\xBB\xBF [ {\"a\" : [1, -0.5e+3, true]} , null ] ").unwrap();
        assert_eq!(lexer.kind(), Ok(Kind::Array));
        lexer.open().unwrap();
        assert_eq!(lexer.element(), Ok(true));
        assert_eq!(lexer.skip(), Ok("{\"a\" : [1, -0.5e+3, true]}"));
        assert_eq!(lexer.element(), Ok(true));
        assert_eq!(lexer.skip(), Ok("null"));
        assert_eq!(lexer.element(), Ok(false));
        assert_eq!(lexer.end(), Ok(()));
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
