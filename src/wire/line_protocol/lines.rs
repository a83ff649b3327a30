//! The split of a body into lines, at newlines that are not part of a string.
//!
//! The splitter understands just enough for that: which quotes begin a string, and which quote closes it.

use memchr::{memchr, memchr2};

use crate::common::work;

/// The lines of a body, without their line ends. Each has its number, from 1.
///
/// A string in a line may contain newlines.
#[derive(Debug)]
pub(super) struct Lines<'b> {
    rest: &'b [u8],
    number: u64,
}

impl<'b> Lines<'b> {
    pub(super) const fn new(body: &'b [u8]) -> Self {
        Self { rest: body, number: 1 }
    }
}

impl<'b> Iterator for Lines<'b> {
    type Item = (u64, &'b [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let number = self.number;
        let length = match memchr2(b'\n', b'"', self.rest) {
            None => self.rest.len(),
            Some(at) if self.rest[at] == b'\n' => at,
            Some(_) => {
                let length = length_with_quotes(self.rest);
                self.number += memchr::memchr_iter(b'\n', &self.rest[..length]).count() as u64;
                length
            }
        };
        work::count(length + 1);
        let (line, rest) = self.rest.split_at(length);
        self.rest = rest.get(1..).unwrap_or_default();
        self.number += 1;
        Some((number, line))
    }
}

/// The length of the first line of `bytes`, if the line has quotes.
///
/// A quote begins a string only right after the equals sign of a field.
fn length_with_quotes(bytes: &[u8]) -> usize {
    let start = indent(bytes);
    if bytes.get(start) == Some(&b'#') {
        return newline(bytes, start);
    }
    let mut at = unescaped(bytes, start, b" ");
    while bytes.get(at) == Some(&b' ') {
        at += 1;
    }
    loop {
        at = unescaped(bytes, at, b"=, ");
        if bytes.get(at) != Some(&b'=') {
            return newline(bytes, at);
        }
        at += 1;
        if bytes.get(at) == Some(&b'"') {
            match string_end(bytes, at) {
                Some(end) => at = end,
                None => return newline(bytes, at),
            }
        }
        at += bytes[at..].iter().take_while(|byte| !b", \n".contains(byte)).count();
        if bytes.get(at) != Some(&b',') {
            return newline(bytes, at);
        }
        at += 1;
    }
}

/// The number of leading spaces and tabs.
pub(super) fn indent(line: &[u8]) -> usize {
    line.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count()
}

/// The position after the string that begins at `start`, if it is closed.
///
/// An unclosed string would seem to be closed by the opening quote of a string on a later line. So after a
/// newline, a quote closes the string only if the end of a field follows.
fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let end = closing_quote(bytes, start)? + 1;
    let is_one_line = memchr(b'\n', &bytes[start..end]).is_none();
    (is_one_line || matches!(bytes.get(end), None | Some(b',' | b' ' | b'\n' | b'\r'))).then_some(end)
}

/// The position of the closing quote of the string that begins at `start`.
pub(super) fn closing_quote(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        let found = memchr2(b'"', b'\\', bytes.get(at..)?);
        work::count(found.unwrap_or(bytes.len() - at) + 1);
        at += found?;
        if bytes[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

/// The position of the first byte of `ends` that has no backslash before it.
///
/// The search begins at `at`. A newline or the end of the body ends it too.
fn unescaped(bytes: &[u8], at: usize, ends: &[u8]) -> usize {
    let is_end = |&place: &usize| {
        let byte = bytes[place];
        byte == b'\n' || ends.contains(&byte) && (place == at || bytes[place - 1] != b'\\')
    };
    let end = (at..bytes.len()).find(is_end).unwrap_or(bytes.len());
    work::count(end - at);
    end
}

fn newline(bytes: &[u8], at: usize) -> usize {
    let end = memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |found| at + found);
    work::count(end - at);
    end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(body: &str) -> Vec<(u64, &str)> {
        Lines::new(body.as_bytes()).map(|(number, line)| (number, std::str::from_utf8(line).unwrap())).collect()
    }

    #[test]
    fn lines_end_at_newlines() {
        assert_eq!(lines(""), []);
        assert_eq!(lines("a\n\nb\r\nc"), [(1, "a"), (2, ""), (3, "b\r"), (4, "c")]);
        assert_eq!(lines("a\n"), [(1, "a")]);
    }

    #[test]
    fn a_newline_in_a_string_ends_no_line() {
        assert_eq!(lines("m s=\"a\nb\"\nc"), [(1, "m s=\"a\nb\""), (3, "c")]);
        assert_eq!(
            lines("m x=1,s=\"a\n\\\"\n\\\\\",y=\"\n\" 5\nc"),
            [(1, "m x=1,s=\"a\n\\\"\n\\\\\",y=\"\n\" 5"), (5, "c")]
        );
        assert_eq!(lines("m\\ n,t=\\\\  s=\"\n\"\r\nc"), [(1, "m\\ n,t=\\\\  s=\"\n\"\r"), (3, "c")]);
        assert_eq!(lines("m a\\=b=\"\n\""), [(1, "m a\\=b=\"\n\"")]);
    }

    #[test]
    fn a_quote_elsewhere_is_an_ordinary_character() {
        for line in [
            "# it's 3\" wide",
            "  #=\"",
            "\"m\" a=1",
            "m,t=\" a=1",
            "m,t=\"a b=\",c=1",
            "m \"a=1",
            "m a=b\"",
            "m a\"",
            "m a=1 \"",
            "m a=1 b=\"",
            "m\\ a=\"",
            "m a\\=\"",
            "m \"",
        ] {
            assert_eq!(lines(&format!("{line}\nn b=\"c\"\n")), [(1, line), (2, "n b=\"c\"")], "{line}");
        }
    }

    #[test]
    fn an_unclosed_string_ends_with_its_line() {
        for open in ["m s=\"a", "m s=\"", "m s=\"a\\", "m s=\"a\\\"", "m s=\"a\",t=\"b", "m s=\"\\\\\\\" 5"] {
            assert_eq!(lines(&format!("{open}\nc d=1\ne")), [(1, open), (2, "c d=1"), (3, "e")], "{open}");
            assert_eq!(lines(&format!("{open}\nc d=\"1\"\ne")), [(1, open), (2, "c d=\"1\""), (3, "e")], "{open}");
            assert_eq!(lines(open), [(1, open)], "{open}");
        }
    }

    proptest! {
        #[test]
        fn lines_and_their_newlines_are_the_body(body in "[a#\"=, \\\\\n\r\t]{0,60}") {
            let found = lines(&body);
            let joined: Vec<_> = found.iter().map(|&(_, line)| line).collect();
            prop_assert_eq!(joined.join("\n"), body.strip_suffix('\n').unwrap_or(&body));
            for (number, line) in found {
                let before = (line.as_ptr() as usize) - (body.as_ptr() as usize);
                prop_assert_eq!(number, 1 + body[..before].matches('\n').count() as u64);
            }
        }
    }
}
