//! Reads files that people and commands name and that are small, such as a token or a place to continue at.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// The most bytes of such a file.
const MAX_BYTES: u64 = 16 << 20;

/// Reads a file of at most 16 MiB.
///
/// # Errors
/// When it cannot be read, or is longer. A device that never ends is longer, too.
pub fn read_small_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        let why = format!("it has more than {} MiB: another file is meant", MAX_BYTES >> 20);
        return Err(io::Error::new(ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// Reads a file of at most 16 MiB of text.
///
/// # Errors
/// As [`read_small_file`], and when it is not UTF-8.
pub fn read_small_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read_small_file(path)?).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8"))
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
