//! Reads the lines of a CSV file up to its header, which tells the character between cells.
//!
//! Comments, blank lines and the line `sep=;`, which a spreadsheet writes, may precede the header.

use std::io::BufRead;

use super::cells::ROW_MAX_BYTES;
use super::columns::ColumnsError;
use super::csv::CsvError;

/// The characters between cells that the import can recognize.
const DELIMITERS: [u8; 4] = *b",;\t|";

/// The beginning of a file.
pub(super) struct Preamble {
    /// The header, and also the line after it if it was needed to find the delimiter.
    pub(super) header: Vec<u8>,
    /// The number of lines before the header.
    pub(super) lines: u64,
    /// The character between cells.
    pub(super) delimiter: u8,
}

impl Preamble {
    /// Reads up to the header, which follows `skip` lines.
    ///
    /// `skip` is `None`: the header is the first line that is neither blank, nor a comment, nor `sep=;`.
    pub(super) fn read(input: &mut impl BufRead, delimiter: Option<u8>, skip: Option<u64>) -> Result<Self, CsvError> {
        let (mut header, mut lines, mut named) = (Vec::new(), 0, delimiter);
        loop {
            header.clear();
            read_line(input, &mut header)?;
            let separator = separator(&header);
            let is_before = match skip {
                Some(skip) => lines < skip,
                None => is_blank_or_comment(&header) || separator.is_some(),
            };
            if !is_before || header.is_empty() {
                break;
            }
            if !header.ends_with(b"\n") && header.len() >= ROW_MAX_BYTES {
                return Err(CsvError::Header("a line before it is longer than 1 MiB"));
            }
            named = named.or(separator);
            lines += 1;
        }
        let delimiter = match named {
            Some(delimiter) => delimiter,
            None => guess(input, &mut header)?,
        };
        Ok(Self { header, lines, delimiter })
    }
}

/// Guesses the delimiter: the most frequent one of the header.
///
/// If several are as frequent, it is the one that the next line has just as often. If the header has none, it
/// is the comma.
fn guess(input: &mut impl BufRead, header: &mut Vec<u8>) -> Result<u8, CsvError> {
    let counts = DELIMITERS.map(|delimiter| (delimiter, count(header, delimiter)));
    let most = counts.iter().map(|(_, count)| *count).max().unwrap_or_default();
    let mut found: Vec<u8> =
        counts.iter().filter(|(_, count)| *count == most).map(|(delimiter, _)| *delimiter).collect();
    if most == 0 {
        return Ok(b',');
    }
    if found.len() > 1 {
        let line = header.len();
        read_line(input, header)?;
        found.retain(|delimiter| count(&header[line..], *delimiter) == most);
    }
    match found[..] {
        [only] => Ok(only),
        _ => Err(ColumnsError::Delimiter.into()),
    }
}

/// How often a delimiter occurs outside of quotes.
fn count(line: &[u8], delimiter: u8) -> usize {
    let mut is_quoted = false;
    let outside = line.iter().filter(|&&byte| {
        is_quoted ^= byte == b'"';
        byte == delimiter && !is_quoted
    });
    outside.count()
}

fn is_blank_or_comment(line: &[u8]) -> bool {
    matches!(line.trim_ascii_start().first(), None | Some(b'#'))
}

/// The delimiter in a line `sep=;`.
fn separator(line: &[u8]) -> Option<u8> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    match line.strip_suffix(b"\r").unwrap_or(line) {
        [b's' | b'S', b'e' | b'E', b'p' | b'P', b'=', delimiter] if delimiter.is_ascii() => Some(*delimiter),
        _ => None,
    }
}

fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<usize> {
    #[cfg(test)]
    tests::LINES_READ.set(tests::LINES_READ.get() + 1);
    std::io::Read::take(input, ROW_MAX_BYTES as u64).read_until(b'\n', line)
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// The lines that this thread has read, to find quadratic work.
        pub(in crate::cli::import) static LINES_READ: Cell<usize> = const { Cell::new(0) };
    }

    fn read(text: &str, skip: Option<u64>) -> Result<(u8, u64, String), String> {
        let mut input = text.as_bytes();
        let Preamble { mut header, lines, delimiter } =
            Preamble::read(&mut input, None, skip).map_err(|error| error.to_string())?;
        header.extend_from_slice(input);
        Ok((delimiter, lines, String::from_utf8(header).unwrap()))
    }

    #[test]
    fn the_header_tells_the_delimiter() {
        for (text, delimiter) in [
            ("ts,v\n", b','),
            ("ts\n1\n", b','),
            ("", b','),
            ("ts;v,w;x\n", b';'),
            ("ts;\"v,w,x,y\";x\n", b';'),
            ("ts\tv\n", b'\t'),
            ("ts|v\r\n1|2\r\n", b'|'),
            ("ts,v|w\n1,2\n", b','),
            ("ts;v, w\n1;2\n", b';'),
        ] {
            assert_eq!(read(text, None), Ok((delimiter, 0, text.to_owned())), "{text:?}");
        }
        for text in ["ts;v, w\n1;2,5\n", "ts;v, w\n"] {
            assert!(read(text, None).unwrap_err().contains("--delimiter"), "{text:?}");
        }
    }

    #[test]
    fn lines_before_the_header_are_skipped() {
        let read = |text, skip| read(text, skip).unwrap();
        assert_eq!(read("# a;b;c\n\r\n  #\nts,v\n#1,2\n", None), (b',', 3, "ts,v\n#1,2\n".to_owned()));
        assert_eq!(read("sep=;\r\nts;v\n", None), (b';', 1, "ts;v\n".to_owned()));
        assert_eq!(read("Gateway 7;;\nts,v\n", Some(1)), (b',', 1, "ts,v\n".to_owned()));
        assert_eq!(read("#ts,v\n1,2\n", Some(0)), (b',', 0, "#ts,v\n1,2\n".to_owned()));
        assert_eq!(read("a\n", Some(9)), (b',', 1, String::new()));
    }

    #[test]
    fn a_comment_without_end_is_refused() {
        let text = "#".repeat(2 * ROW_MAX_BYTES);
        assert!(read(&text, None).unwrap_err().contains("longer than 1 MiB"));
    }
}
