//! Opens regular files only.
//!
//! Opening a FIFO waits for a process at its other end, and reading a device may never end. So a FIFO or a
//! device in the data folder or in a backup would make a command wait forever.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;

/// Opens a regular file for reading.
///
/// # Errors
/// When it cannot be opened, or is not a regular file. Then the error names what it is.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_regular_with(path, File::options().read(true))
}

/// Opens a regular file with these options.
///
/// # Errors
/// As [`open_regular`].
pub fn open_regular_with(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // `O_NONBLOCK` opens a FIFO without a wait. For regular files the flag has no effect.
    let opened = options.custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits()).open(path);
    match &opened {
        Ok(file) => expect(file.metadata()?.file_type())?,
        Err(_) => expect_regular(path)?, // a socket, for example, cannot be opened
    }
    opened
}

/// Fails if there is something other than a regular file at `path`.
///
/// A file that is missing or not accessible is no error here: opening it fails later.
///
/// # Errors
/// When there is something else, which the error names.
pub fn expect_regular(path: &Path) -> io::Result<()> {
    path.metadata().map_or(Ok(()), |found| expect(found.file_type()))
}

fn expect(kind: std::fs::FileType) -> io::Result<()> {
    let kind = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(io::Error::new(ErrorKind::InvalidInput, format!("this is {kind}, and a regular file is expected")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn only_a_regular_file_is_opened_and_nothing_is_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        let cases = [(at("fifo"), "a FIFO"), (at("socket"), "a socket"), (at(""), "a folder")];
        for (path, kind) in cases.into_iter().chain([("/dev/zero".into(), "a device")]) {
            for options in [File::options().read(true), File::options().write(true), File::options().append(true)] {
                let refused = open_regular_with(&path, options).unwrap_err().to_string();
                assert_eq!(refused, format!("this is {kind}, and a regular file is expected"));
            }
            expect_regular(&path).unwrap_err();
        }
        assert_eq!(open_regular(&at("none")).unwrap_err().kind(), ErrorKind::NotFound);
        expect_regular(&at("none")).unwrap();
        std::fs::write(at("file"), b"x").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        open_regular(&at("link")).unwrap();
        expect_regular(&at("link")).unwrap();
    }
}
