//! Reads small files, such as a token or the progress of an import.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::regular_file::open_regular;

/// The most bytes of a small file.
const MAX_BYTES: u64 = 16 << 20;

/// Reads a file of at most 16 MiB whose path a person gave.
///
/// The path may be that of a FIFO, such as `<(command)` in a shell.
///
/// # Errors
/// When the file cannot be read, or is longer than 16 MiB, such as a device that never ends.
pub fn read_small_file(path: &Path) -> io::Result<Vec<u8>> {
    read(File::open(path)?)
}

/// Reads a regular file of at most 16 MiB.
///
/// # Errors
/// When it is not a regular file, cannot be read, or is longer.
pub fn read_small_regular_file(path: &Path) -> io::Result<Vec<u8>> {
    read(open_regular(path)?)
}

fn read(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        let why = format!("it has more than {} MiB: another file is meant", MAX_BYTES >> 20);
        return Err(io::Error::new(ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// Reads a text file of at most 16 MiB whose path a person gave.
///
/// # Errors
/// As [`read_small_file`], and when it is not UTF-8.
pub fn read_small_text(path: &Path) -> io::Result<String> {
    text_of(read_small_file(path)?)
}

/// Reads a regular text file of at most 16 MiB.
///
/// # Errors
/// As [`read_small_regular_file`], and when it is not UTF-8.
pub fn read_small_regular_text(path: &Path) -> io::Result<String> {
    text_of(read_small_regular_file(path)?)
}

/// Removes the byte order mark at the start of a text, which some editors write.
#[must_use]
pub fn without_byte_order_mark(mut text: Vec<u8>) -> Vec<u8> {
    const MARK: &[u8] = "\u{feff}".as_bytes();
    if text.starts_with(MARK) {
        text.drain(..MARK.len());
    }
    text
}

/// The rights of other users of this machine to a file, as bits: 4 to read, 2 to write, 1 to execute it.
///
/// They are 0 if the file is not there.
#[must_use]
pub fn rights_of_others(path: &Path) -> u32 {
    std::fs::metadata(path).map_or(0, |about| about.permissions().mode() & 0o007)
}

fn text_of(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_never_ends_is_refused() {
        for device in ["/dev/zero", "/dev/full"] {
            let error = read_small_text(Path::new(device)).unwrap_err();
            assert!(error.to_string().contains("more than 16 MiB"), "{error}");
        }
    }
}
