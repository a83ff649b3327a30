//! The lines of an NDJSON file, unchanged. Pure.

use std::io::{self, BufRead, Read};

/// The longest line, in bytes: the default limit of the server for a body.
const LINE_MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The lines of a file that are not blank.
pub(super) struct Lines<R> {
    input: R,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    /// The lines of the input, which follow `before` others.
    pub(super) fn new(input: R, before: u64) -> Self {
        Self { input, number: before }
    }

    /// Reads the next line into `text`, without its line end, and returns its number.
    ///
    /// `None` after the last.
    pub(super) fn next(&mut self, text: &mut Vec<u8>) -> io::Result<Option<u64>> {
        loop {
            text.clear();
            if self.input.by_ref().take(LINE_MAX_BYTES).read_until(b'\n', text)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            if text.len() as u64 == LINE_MAX_BYTES && !text.ends_with(b"\n") {
                let why = format!("line {} is longer than {LINE_MAX_BYTES} bytes", self.number);
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            text.truncate(text.trim_ascii_end().len());
            if !text.is_empty() {
                return Ok(Some(self.number));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_their_numbers_over_blank_ones_and_any_line_end() {
        let mut lines = Lines::new(&b"{\"a\":1}\n\n \r\n[2]\r\n  {}"[..], 0);
        let mut text = Vec::new();
        let mut all = Vec::new();
        while let Some(number) = lines.next(&mut text).unwrap() {
            all.push((number, String::from_utf8(text.clone()).unwrap()));
        }
        assert_eq!(all, [(1, "{\"a\":1}".to_owned()), (4, "[2]".to_owned()), (5, "  {}".to_owned())]);
    }

    #[test]
    fn an_endless_line_is_refused_and_not_kept_in_memory() {
        let mut lines = Lines::new(io::BufReader::new(io::repeat(b' ')), 0);
        let error = lines.next(&mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "line 1 is longer than 16777216 bytes");
    }
}
