//! Standard output of the commands whose result it is.

use std::io::{self, Stdout};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::bail;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::fstat;

/// Standard output, for a result.
///
/// A command that was started with it closed (`>&-`) is refused, because its result would be lost: before
/// `main`, Rust opens `/dev/null` for reading and writing in its place. `>/dev/null` opens it for writing
/// only.
pub(super) fn output() -> anyhow::Result<Stdout> {
    let out = io::stdout();
    let mode = OFlag::from_bits_retain(fcntl(&out, FcntlArg::F_GETFL)?) & OFlag::O_ACCMODE;
    let device = fstat(&out)?.st_rdev;
    if mode == OFlag::O_RDWR && Path::new("/dev/null").metadata().is_ok_and(|null| null.rdev() == device) {
        bail!("standard output is closed, so the result would be lost: redirect it to a file or a pipe");
    }
    Ok(out)
}
