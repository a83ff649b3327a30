//! Strings: borrowed from the text when they can be, unescaped when they must be.

use std::borrow::Cow;

use super::{
    SyntaxError,
    lexer::{Lexer, Result},
};

impl<'b> Lexer<'b> {
    /// Reads the string that [`Lexer::kind`] has announced.
    pub(super) fn string(&mut self) -> Result<Cow<'b, str>> {
        let start = self.at + 1;
        self.at = start;
        let plain = self.plain();
        if self.byte() == Some(b'"') {
            self.at += 1;
            return Ok(Cow::Borrowed(plain));
        }
        self.string_with_escapes(plain).map(Cow::Owned)
    }

    /// Takes the part of a string up to the next byte that is not simply itself: quote, backslash, control character.
    fn plain(&mut self) -> &'b str {
        let start = self.at;
        let rest = &self.text.as_bytes()[start..];
        let length = rest.iter().position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\');
        self.at += length.unwrap_or(rest.len());
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

    /// The four digits of `\uXXXX`.
    fn unicode_unit(&mut self) -> Result<u16> {
        let digits = self.text.get(self.at + 2..self.at + 6);
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        let unit = unit.ok_or_else(|| self.error("expected four hexadecimal digits after \\u"))?;
        self.at += 6;
        Ok(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(json: &str) -> Result<String> {
        Ok(Lexer::new(json.as_bytes())?.string()?.into_owned())
    }

    #[test]
    fn a_string_borrows_unless_it_holds_escapes() {
        assert!(matches!(Lexer::new("\"Zähler\"".as_bytes()).unwrap().string(), Ok(Cow::Borrowed("Zähler"))));
        assert_eq!(string(r#""a\"\\\/\b\f\n\r\tz""#).unwrap(), "a\"\\/\u{8}\u{c}\n\r\tz");
        assert_eq!(string(r#""\u00e9\uD83D\uDE00é\u0000""#).unwrap(), "é😀é\0");
    }
}
