//! A small disk: a tmpfs in its own user and mount namespaces, which needs no privileges. Only programs that
//! run in these namespaces see it.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Killed;

/// A disk. It is unmounted when this is dropped or this process ends.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Keeps the namespaces alive, until it reads end-of-file.
    holder: Killed,
    folder: PathBuf,
}

impl Disk {
    /// Creates `folder` and mounts a disk of this size there.
    pub(crate) fn mount(folder: &Path, mebibytes: usize) -> Self {
        std::fs::create_dir_all(folder).expect("the folder can be made");
        let script = "mount -t tmpfs -o size=\"$1\"m tidegauge \"$0\" && echo mounted && exec cat";
        let holder = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
            .arg(folder)
            .arg(mebibytes.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut holder = Killed(holder.expect("unshare of util-linux is there"));
        let mut said = String::new();
        let stdout = holder.0.stdout.as_mut().expect("piped");
        BufReader::new(stdout).read_line(&mut said).expect("it can be read");
        assert_eq!(said, "mounted\n", "this test needs user namespaces (unshare --user --map-root-user --mount)");
        Self { holder, folder: folder.to_owned() }
    }

    /// A command that runs `program` in the namespaces of the disk.
    pub(crate) fn run(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--user", "--mount", "--preserve-credentials", "--target", &self.holder.0.id().to_string()]);
        command.arg(program);
        command
    }

    /// Changes the size of the disk.
    pub(crate) fn resize(&self, mebibytes: usize) {
        self.remount(&format!("size={mebibytes}m"));
    }

    /// Changes an option of the mount, such as `ro` while no process has a file open for writing.
    pub(crate) fn remount(&self, option: &str) {
        let mut mount = self.run(Path::new("mount"));
        let status = mount.arg("-o").arg(format!("remount,{option}")).arg(&self.folder).status();
        assert!(status.expect("mount of util-linux is there").success());
    }

    /// The path by which processes outside of the namespaces reach a path on the disk.
    pub(crate) fn seen(&self, path: &Path) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.holder.0.id()))
            .join(path.strip_prefix("/").expect("an absolute path"))
    }

    /// The folder at which the disk is mounted.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes to a file on the disk until `spare` bytes are left.
    ///
    /// If `spare` is less than a mebibyte, this fills the whole disk first, and then shortens the file.
    pub(crate) fn fill(&self, spare: u64) {
        let mut file = File::create(self.filler()).expect("a file can be made on the disk");
        if spare < 1 << 20 {
            grow(&file);
            let len = file.metadata().expect("an open file").len();
            file.set_len(len.saturating_sub(spare)).expect("an open file");
            return;
        }
        let disk = nix::sys::statvfs::statvfs(&self.seen(&self.folder)).expect("a mounted disk");
        let block = vec![0; 64 << 10];
        let blocks = (disk.blocks_available() * disk.fragment_size()).saturating_sub(spare) / block.len() as u64;
        for _ in 0..blocks {
            file.write_all(&block).expect("the disk has space");
        }
    }

    /// Fills the disk again after space became free, for example by a removed segment.
    pub(crate) fn fill_up(&self) {
        grow(&File::options().append(true).open(self.filler()).expect("the disk was filled"));
    }

    /// Frees the space again.
    pub(crate) fn free(&self) {
        std::fs::remove_file(self.filler()).expect("the disk was filled");
    }

    fn filler(&self) -> PathBuf {
        self.seen(&self.folder).join("filler")
    }
}

/// Writes until there is no space left.
fn grow(mut file: &File) {
    let full = loop {
        if let Err(error) = file.write_all(&[0; 512]) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::StorageFull, "{full}");
}
