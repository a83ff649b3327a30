//! Opens the files to import: decompresses them, detects their format and counts their bytes.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;

use super::super::Usage;
use super::encoding::{Encoding, Windows1252};

const BUFFER_BYTES: usize = 256 * 1024;
pub(super) const UTF8_MARK: &[u8] = b"\xEF\xBB\xBF";
/// The first bytes of a ZIP file: also of the workbooks of Excel since 2007.
const ZIP_MARK: &[u8] = b"PK\x03\x04";
/// The first bytes of the workbooks of earlier versions of Excel.
const OLD_WORKBOOK_MARK: &[u8] = b"\xD0\xCF\x11\xE0";
const GZIP_MARK: &[u8] = b"\x1F\x8B";
const ZSTD_MARK: &[u8] = b"\x28\xB5\x2F\xFD";

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum Format {
    /// Comma-separated values with a header.
    Csv,
    /// One JSON value per line, in any form that POST /v1/readings accepts.
    Ndjson,
}

/// An open file, decompressed.
pub(super) struct Source {
    /// The name of the file in messages.
    pub(super) name: Arc<str>,
    /// The format of the file.
    pub(super) format: Format,
    /// The decompressed bytes of the file.
    pub(super) input: Box<dyn BufRead>,
}

/// The size of all files on disk; `None` if one of them is standard input.
///
/// It fails if a file is missing, so that the import sends nothing before it has found all files.
pub(super) fn total_bytes(paths: &[PathBuf]) -> anyhow::Result<Option<u64>> {
    let mut total = Some(0);
    for path in paths {
        if is_stdin(path) {
            total = None;
            continue;
        }
        let bytes = std::fs::metadata(path).with_context(|| path.display().to_string())?.len();
        total = total.map(|total| total + bytes);
    }
    Ok(total)
}

/// Opens a file, or standard input for `-`.
///
/// `bytes_read` counts the bytes before decompression. The format is the given one, else that of the file
/// name, else that of the first character.
pub(super) fn open(
    path: &Path,
    format: Option<Format>,
    encoding: Encoding,
    bytes_read: &Arc<AtomicU64>,
) -> anyhow::Result<Source> {
    let name: Arc<str> = if is_stdin(path) { "stdin".into() } else { path.display().to_string().into() };
    let raw: Box<dyn Read> = if is_stdin(path) {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).with_context(|| name.to_string())?)
    };
    let raw = BufReader::with_capacity(BUFFER_BYTES, Counted { inner: raw, bytes: Arc::clone(bytes_read) });
    let (stem, input) = decompress(path, raw).with_context(|| name.to_string())?;
    begin(name, &stem, input, format, encoding)
}

/// Finds the format of decompressed bytes, and converts them to UTF-8.
///
/// `path` is the name of the file without the ending of its compression.
pub(super) fn begin(
    name: Arc<str>,
    path: &Path,
    mut input: Box<dyn BufRead>,
    format: Option<Format>,
    encoding: Encoding,
) -> anyhow::Result<Source> {
    let start = fill(&mut input).with_context(|| name.to_string())?;
    if let Some(why) = no_text(start) {
        return Err(Usage(format!("{name} is {why}")).into());
    }
    if start.starts_with(UTF8_MARK) {
        input.consume(UTF8_MARK.len());
    } else {
        input = decoded(input, encoding);
    }
    let format = match format.or_else(|| format_of_name(path)) {
        Some(format) => format,
        None => format_of_content(fill(&mut input)?),
    };
    if format == Format::Ndjson
        && let Some(convert) = converter_of(fill(&mut input)?)
    {
        let why =
            format!("{name} has a JSON value over several lines; in NDJSON, each line is one: {convert} OLD > NEW");
        return Err(Usage(why).into());
    }
    Ok(Source { name, format, input })
}

/// Which file begins with these bytes, if it is not text that can be read, and what to do.
fn no_text(start: &[u8]) -> Option<String> {
    if start.starts_with(ZIP_MARK) {
        return Some("a workbook of Excel or another ZIP file: save the sheet as CSV, or unpack the file".to_owned());
    }
    if start.starts_with(OLD_WORKBOOK_MARK) {
        return Some("an old workbook of Excel: save the sheet as CSV".to_owned());
    }
    // Without a byte order mark, the zeros tell the encoding: each of the first letters has some.
    let encoding = match start {
        [0xFF, 0xFE, 0, 0, ..] | [0, 0, 0xFE, 0xFF, ..] => "UTF-32",
        [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] => "UTF-16",
        [1..=0xFF, 0, 0, 0, ..] => "UTF-32LE",
        [0, 0, 0, 1..=0xFF, ..] => "UTF-32BE",
        [1..=0xFF, 0, _, 0, ..] => "UTF-16LE",
        [0, 1..=0xFF, 0, _, ..] => "UTF-16BE",
        _ => return None,
    };
    Some(format!("{encoding}: save it as UTF-8, or convert it: iconv -f {encoding} -t UTF-8 OLD > NEW"))
}

/// The bytes of `input` as UTF-8.
pub(super) fn decoded(input: Box<dyn BufRead>, encoding: Encoding) -> Box<dyn BufRead> {
    match encoding {
        Encoding::Utf8 => input,
        Encoding::Windows1252 => Box::new(BufReader::with_capacity(BUFFER_BYTES, Windows1252::new(input))),
    }
}

/// Whether a path names a file that is not compressed, and not standard input.
pub(super) fn is_plain(path: &Path) -> bool {
    !is_stdin(path) && !matches!(extension(path).as_deref(), Some("gz" | "zst"))
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// The decompressed bytes, and the name without the extension of the compression.
///
/// Without such an extension, the first bytes tell the compression.
fn decompress(path: &Path, mut raw: impl BufRead + 'static) -> io::Result<(PathBuf, Box<dyn BufRead>)> {
    let ending = extension(path).filter(|ending| matches!(ending.as_str(), "gz" | "zst"));
    let stem = if ending.is_some() { path.with_extension("") } else { path.to_owned() };
    let start = fill(&mut raw)?;
    let is = |name: &str, mark: &[u8]| ending.as_ref().map_or(start.starts_with(mark), |ending| ending == name);
    let (is_gzip, is_zstd) = (is("gz", GZIP_MARK), is("zst", ZSTD_MARK));
    let input: Box<dyn BufRead> = if is_gzip {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, flate2::bufread::MultiGzDecoder::new(raw)))
    } else if is_zstd {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, zstd::Decoder::with_buffer(raw)?))
    } else {
        Box::new(raw)
    };
    Ok((stem, input))
}

fn format_of_name(path: &Path) -> Option<Format> {
    match extension(path)?.as_str() {
        "csv" => Some(Format::Csv),
        "ndjson" | "jsonl" => Some(Format::Ndjson),
        _ => None,
    }
}

fn format_of_content(start: &[u8]) -> Format {
    match start.trim_ascii_start().first() {
        Some(b'{' | b'[') => Format::Ndjson,
        _ => Format::Csv,
    }
}

/// The program that writes each value on a line of its own.
///
/// `None`: the first line is more than the begin of a value.
fn converter_of(start: &[u8]) -> Option<&'static str> {
    let start = start.trim_ascii_start();
    let line = start.split(|byte| *byte == b'\n').next()?;
    let is_begin = line.len() < start.len() && line.iter().all(|byte| b"[{ \t\r".contains(byte));
    is_begin.then(|| if line.starts_with(b"[") { "jq -c '.[]'" } else { "jq -c ." })
}

fn extension(path: &Path) -> Option<String> {
    Some(path.extension()?.to_str()?.to_ascii_lowercase())
}

/// The buffered bytes, once there are some.
fn fill(input: &mut dyn BufRead) -> io::Result<&[u8]> {
    loop {
        match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    input.fill_buf() // a second call for the borrow checker; it reads nothing
}

/// Counts the bytes that are read through it.
struct Counted<R> {
    inner: R,
    bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(name: &str, content: &[u8]) -> (Format, Vec<u8>, u64) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let bytes = Arc::new(AtomicU64::new(0));
        let mut source = open(&path, None, Encoding::Utf8, &bytes).unwrap();
        let mut all = Vec::new();
        source.input.read_to_end(&mut all).unwrap();
        assert_eq!(total_bytes(&[path]).unwrap(), Some(content.len() as u64));
        (source.format, all, bytes.load(Ordering::Relaxed))
    }

    #[test]
    fn the_extension_tells_compression_and_format_and_bytes_are_counted_as_on_disk() {
        let text = b"ts,v\n1,2\n".repeat(1000);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&text).unwrap();
        let gzip = gzip.finish().unwrap();
        let twice = [gzip.as_slice(), &gzip].concat(); // two members, as log shippers write them
        assert_eq!(read("a.CSV.gz", &twice), (Format::Csv, text.repeat(2), twice.len() as u64));
        let zstd = zstd::encode_all(text.as_slice(), 1).unwrap();
        assert_eq!(read("a.jsonl.zst", &zstd), (Format::Ndjson, text.clone(), zstd.len() as u64));
        assert_eq!(read("a.csv", &text), (Format::Csv, text.clone(), text.len() as u64));
        for (name, packed, format) in [("a.csv", &gzip, Format::Csv), ("a.jsonl", &zstd, Format::Ndjson)] {
            assert_eq!(read(name, packed), (format, text.clone(), packed.len() as u64), "without the ending");
        }
    }

    #[test]
    fn a_file_that_is_not_utf_8_text_is_refused_with_what_it_is() {
        let begin = |bytes: &[u8]| {
            let input = Box::new(io::Cursor::new(bytes.to_vec()));
            begin("f".into(), Path::new("f.csv"), input, None, Encoding::Utf8).err().map(|error| error.to_string())
        };
        let wide = |encoding: &str| {
            format!("f is {encoding}: save it as UTF-8, or convert it: iconv -f {encoding} -t UTF-8 OLD > NEW")
        };
        for (bytes, said) in [
            (&b"\xFF\xFEt\0s\0"[..], wide("UTF-16")),
            (b"\xFE\xFF\0t\0s", wide("UTF-16")),
            (b"t\0s\0", wide("UTF-16LE")),
            (b"G\0\x01\x01", String::new()),
            (b"\0t\0s", wide("UTF-16BE")),
            (b"\xFF\xFE\0\0t\0\0\0", wide("UTF-32")),
            (b"\0\0\xFE\xFF\0\0\0t", wide("UTF-32")),
            (b"t\0\0\0s\0\0\0", wide("UTF-32LE")),
            (b"\0\0\0t", wide("UTF-32BE")),
            (b"ts,v\n", String::new()),
            (b"\0\0\0\0", String::new()),
            (b"PK\x03\x04\x14\0", "f is a workbook of Excel or another ZIP file: save the sheet as CSV".to_owned()),
            (b"\xD0\xCF\x11\xE0\xA1", "f is an old workbook of Excel: save the sheet as CSV".to_owned()),
        ] {
            let found = begin(bytes).unwrap_or_default();
            assert!(found.starts_with(&said) && found.is_empty() == said.is_empty(), "{bytes:?}: {found}");
        }
    }

    #[test]
    fn without_a_telling_name_the_first_character_tells_the_format() {
        assert_eq!(read("a.txt", b"\n {\"deviceId\":").0, Format::Ndjson);
        assert_eq!(read("a", b"[").0, Format::Ndjson);
        assert_eq!(read("a", b"ts,v").0, Format::Csv);
        assert_eq!(read("a", b"").0, Format::Csv);
    }

    #[test]
    fn json_over_several_lines_is_refused_with_the_program_that_converts_it() {
        for (text, convert) in [
            (&b"\n[\r\n  {\"deviceId\":\"a\"}\r\n]"[..], Some("jq -c '.[]'")),
            (b"[ {\n", Some("jq -c '.[]'")),
            (b"{\n  \"deviceId\": \"a\"", Some("jq -c .")),
            (b"[", None),
            (b"[]\n[]\n", None),
            (b"{\"deviceId\":\"a\"}\n", None),
        ] {
            let input = Box::new(io::Cursor::new(text.to_vec()));
            let begun = begin("f".into(), Path::new("f.jsonl"), input, None, Encoding::Utf8);
            let expected = convert.map(|convert| {
                format!("f has a JSON value over several lines; in NDJSON, each line is one: {convert} OLD > NEW")
            });
            assert_eq!(begun.err().map(|error| error.to_string()), expected);
        }
    }

    #[test]
    fn a_byte_order_mark_is_not_content() {
        assert_eq!(read("a", b"\xEF\xBB\xBF{}"), (Format::Ndjson, b"{}".to_vec(), 5));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = total_bytes(&["-".into(), "no/such.csv".into()]).unwrap_err();
        assert!(format!("{error:#}").starts_with("no/such.csv: "), "{error:#}");
    }
}
