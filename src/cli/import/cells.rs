//! The cells of a CSV file, row by row, with the line of each row.

use std::collections::VecDeque;
use std::io::{Chain, Error, ErrorKind::InvalidData, Read};

use csv::{ErrorKind, StringRecord};

use super::csv::CsvError;
use super::quotes::Quotes;

/// The size limit of a row.
///
/// It also bounds the memory for the rows that are read to find the columns.
pub(super) const ROW_MAX_BYTES: usize = 1 << 20;

/// A row of the file. If it is not UTF-8, its cells are not kept.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) line: u64,
    /// Why its cells cannot be trusted; `None` if they can.
    pub(super) trouble: Option<&'static str>,
}

const NOT_UTF8: &str = "not UTF-8: if a program of Windows wrote the file, add --encoding windows-1252";
const UNCLOSED: &str = "a quote is not closed: the row extends to the end of the file";
const AFTER_QUOTE: &str =
    "text follows a closing quote: a quote before it may be wrong, and following lines in the row";

/// The cells of a file, with the right line numbers.
///
/// They are right for `\n` and `\r\n`, and after blank lines.
///
/// The csv crate reports the line on which its search for a row started, which may be a blank line before the
/// row. So the line of a row is counted back from its end: the last line that was read, minus the line ends
/// in the row. For that, only `\n` ends a row, and the last row has one too. The `\r` of `\r\n` is white
/// space at the end of a cell.
pub(super) struct Input<R: Read> {
    rows: csv::Reader<Bytes<R>>,
    /// The number of lines before those of `rows`.
    lines_before: u64,
}

/// The bytes of a file, followed by a line end.
struct Bytes<R> {
    input: Chain<R, &'static [u8]>,
    /// Whether a read has reached the end.
    is_over: bool,
    /// How many bytes may still be read for this row.
    left: usize,
    quotes: Quotes,
    /// The offsets of text after a closing quote, in rows that are not returned yet.
    after_quote: VecDeque<u64>,
}

impl<R: Read> Read for Bytes<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 {
            let why = format!("the row is longer than {ROW_MAX_BYTES} bytes; a quote may not be closed");
            return Err(Error::new(InvalidData, why));
        }
        let most = buffer.len().min(self.left);
        let count = self.input.read(&mut buffer[..most])?;
        self.after_quote.extend(self.quotes.read(&buffer[..count]));
        self.is_over |= count == 0;
        self.left -= count;
        Ok(count)
    }
}

impl<R: Read> Input<R> {
    /// Reads the rows of `input`, which begins with the header if `has_header`.
    ///
    /// `lines_before` is the number of lines of the file before `input`.
    pub(super) fn new(input: R, delimiter: u8, lines_before: u64, has_header: bool) -> Self {
        let mut builder = csv::ReaderBuilder::new();
        builder.flexible(true).terminator(csv::Terminator::Any(b'\n')).delimiter(delimiter).has_headers(has_header);
        let input = input.chain(&b"\n"[..]);
        let (quotes, after_quote) = (Quotes::new(delimiter), VecDeque::new());
        let bytes = Bytes { input, is_over: false, left: ROW_MAX_BYTES, quotes, after_quote };
        Self { rows: builder.from_reader(bytes), lines_before }
    }

    pub(super) fn header(&mut self) -> Result<StringRecord, CsvError> {
        let header = match self.rows.headers() {
            Ok(header) => header.clone(),
            Err(error) if matches!(error.kind(), ErrorKind::Utf8 { .. }) => {
                return Err(CsvError::Header(NOT_UTF8));
            }
            Err(error) => return Err(CsvError::Io(error.into())),
        };
        if !header.is_empty()
            && let Some(trouble) = self.trouble()
        {
            return Err(CsvError::Header(trouble));
        }
        if header.iter().any(|name| name.trim().replace("\r\n", "").contains('\r')) {
            return Err(CsvError::Header("the lines end with CR alone: convert the ends to LF"));
        }
        Ok(header)
    }

    /// Why the row that was read last cannot be trusted.
    fn trouble(&mut self) -> Option<&'static str> {
        let end = self.rows.position().byte();
        let bytes = self.rows.get_mut();
        let mut is_after_quote = false;
        while bytes.after_quote.front().is_some_and(|offset| *offset < end) {
            bytes.after_quote.pop_front();
            is_after_quote = true;
        }
        // If all quotes are closed, the appended line end ends the last row, before a read reaches the end.
        if bytes.is_over { Some(UNCLOSED) } else { is_after_quote.then_some(AFTER_QUOTE) }
    }

    /// Reads the next row that is not blank.
    pub(super) fn read(&mut self, record: &mut StringRecord) -> std::io::Result<Option<Found>> {
        loop {
            let mut cells = std::mem::take(record).into_byte_record(); // reuses its memory
            self.rows.get_mut().left = ROW_MAX_BYTES;
            let more = self.rows.read_byte_record(&mut cells).map_err(|error| self.at_line(&error.into()))?;
            if !more {
                return Ok(None);
            }
            // After an unclosed quote the row extends to the end of the file and has no line end.
            let end = u64::from(!self.rows.get_ref().is_over);
            let line_ends = end + memchr::memchr_iter(b'\n', cells.as_slice()).count() as u64;
            let text = StringRecord::from_byte_record(cells);
            let not_text = text.is_err().then_some(NOT_UTF8);
            *record = text.unwrap_or_default();
            let trouble = self.trouble().or(not_text);
            if trouble.is_none() && record.len() == 1 && record[0].trim().is_empty() {
                continue;
            }
            return Ok(Some(Found { line: self.line().saturating_sub(line_ends), trouble }));
        }
    }

    fn line(&self) -> u64 {
        self.lines_before + self.rows.position().line()
    }

    /// Adds to an error the line on which the row begins.
    ///
    /// The row is not read to its end, but all bytes that were read are counted.
    fn at_line(&self, error: &Error) -> Error {
        let line = self.line().saturating_sub(self.rows.get_ref().quotes.line_ends());
        Error::new(error.kind(), format!("line {line}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_end_is_refused_with_its_line_and_not_kept_in_memory() {
        for endless in [&b"\"a"[..], b"a", b"\"\"", b"a,"] {
            let head = &b"ts,v\n1,1\n2,2\n"[..];
            let mut input = Input::new(head.chain(Endless(endless)), b',', 0, true);
            input.header().unwrap();
            let mut record = StringRecord::new();
            for _ in 0..2 {
                input.read(&mut record).unwrap().unwrap();
            }
            let error = input.read(&mut record).err().unwrap().to_string();
            assert!(error.starts_with("line 4: the row is longer than 1048576 bytes"), "{error}");
        }
    }

    #[test]
    fn a_row_with_many_line_ends_is_refused_with_the_line_on_which_it_begins() {
        let head = &b"ts,v\n1,\"a\nb\"\n\n2,\"c\n"[..];
        let mut input = Input::new(head.chain(Endless(b"3,d\n")), b',', 7, true);
        input.header().unwrap();
        let mut record = StringRecord::new();
        assert_eq!(input.read(&mut record).unwrap().unwrap().line, 9);
        let error = input.read(&mut record).err().unwrap().to_string();
        assert!(error.starts_with("line 12: the row is longer than 1048576 bytes"), "{error}");
    }

    #[test]
    fn a_header_without_end_is_refused() {
        let error = Input::new(Endless(b"a"), b',', 0, true).header().err().unwrap().to_string();
        assert!(error.contains("longer than 1048576 bytes"), "{error}");
    }

    /// The same bytes again and again.
    struct Endless(&'static [u8]);

    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            for (at, byte) in buffer.iter_mut().enumerate() {
                *byte = self.0[at % self.0.len()];
            }
            Ok(buffer.len())
        }
    }
}
