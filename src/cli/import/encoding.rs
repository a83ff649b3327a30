//! Converts the bytes of files that are not UTF-8.

use std::io::{BufRead, Read, Result};

/// The character encoding of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Encoding {
    #[default]
    #[value(name = "utf-8")]
    Utf8,
    /// The one of Windows in Western Europe; ISO 8859-1 and 8859-15 files are read with it too.
    #[value(name = "windows-1252")]
    Windows1252,
}

/// The characters of the bytes 0x80 to 0x9F in Windows-1252 (Encoding Standard).
///
/// Each other byte is the Unicode character of the same number.
const FROM_0X80: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}', '‘', '’',
    '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];

/// Reads Windows-1252 as UTF-8.
pub(super) struct Windows1252<R> {
    input: R,
    /// The converted bytes that are not returned yet, the last one first.
    rest: Vec<u8>,
}

impl<R: BufRead> Windows1252<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, rest: Vec::new() }
    }
}

impl<R: BufRead> Read for Windows1252<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.rest.is_empty() {
            let bytes = self.input.fill_buf()?;
            let bytes = &bytes[..bytes.len().min(buffer.len()).min(8192)];
            let text: String = bytes.iter().map(|byte| character(*byte)).collect();
            let count = bytes.len();
            self.input.consume(count);
            self.rest = text.into_bytes();
            self.rest.reverse();
        }
        let count = self.rest.len().min(buffer.len());
        buffer.iter_mut().zip(self.rest.drain(self.rest.len() - count..).rev()).for_each(|(to, from)| *to = from);
        Ok(count)
    }
}

fn character(byte: u8) -> char {
    match byte {
        0x80..=0x9f => FROM_0X80[usize::from(byte - 0x80)],
        other => char::from(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_the_character_of_windows_1252_in_buffers_of_any_size() {
        let bytes: Vec<u8> = (0..=255).collect();
        let python = std::process::Command::new("python3")
            .args(["-c", "print(*(ord(bytes([b]).decode('cp1252', 'ignore') or chr(b)) for b in range(256)))"])
            .output()
            .unwrap();
        let expected: String = String::from_utf8(python.stdout)
            .unwrap()
            .split_whitespace()
            .map(|code| char::from_u32(code.parse().unwrap()).unwrap())
            .collect();
        for size in [1, 2, 3, 7, 1000] {
            let mut input = Windows1252::new(&bytes[..]);
            let (mut all, mut buffer) = (Vec::new(), vec![0; size]);
            loop {
                match input.read(&mut buffer).unwrap() {
                    0 => break,
                    count => all.extend_from_slice(&buffer[..count]),
                }
            }
            assert_eq!(String::from_utf8(all).unwrap(), expected, "{size}");
        }
    }
}
