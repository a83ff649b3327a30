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
const UTF16_MARKS: [&[u8]; 2] = [b"\xFF\xFE", b"\xFE\xFF"];

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
    if start.starts_with(UTF8_MARK) {
        input.consume(UTF8_MARK.len());
    } else if UTF16_MARKS.iter().any(|mark| start.starts_with(mark)) {
        let why = format!("{name} is UTF-16: save it as UTF-8, or convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW");
        return Err(Usage(why).into());
    } else {
        input = decoded(input, encoding);
    }
    let format = match format.or_else(|| format_of_name(path)) {
        Some(format) => format,
        None => format_of_content(fill(&mut input)?),
    };
    Ok(Source { name, format, input })
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
fn decompress(path: &Path, raw: impl BufRead + 'static) -> io::Result<(PathBuf, Box<dyn BufRead>)> {
    Ok(match extension(path).as_deref() {
        Some("gz") => {
            let input = BufReader::with_capacity(BUFFER_BYTES, flate2::bufread::MultiGzDecoder::new(raw));
            (path.with_extension(""), Box::new(input))
        }
        Some("zst") => {
            let input = BufReader::with_capacity(BUFFER_BYTES, zstd::Decoder::with_buffer(raw)?);
            (path.with_extension(""), Box::new(input))
        }
        _ => (path.to_owned(), Box::new(raw)),
    })
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
    }

    #[test]
    fn without_a_telling_name_the_first_character_tells_the_format() {
        assert_eq!(read("a.txt", b"\n {\"deviceId\":").0, Format::Ndjson);
        assert_eq!(read("a", b"[").0, Format::Ndjson);
        assert_eq!(read("a", b"ts,v").0, Format::Csv);
        assert_eq!(read("a", b"").0, Format::Csv);
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
