//! A file to which a program appends lines, over rotation, truncation and restarts.
//!
//! A file is recognized by its content: a checksum of the last bytes that were read, and their offset. So it
//! is found again under another name, and a new file in its place is not mistaken for it.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidegauge::common::regular_file::open_regular;

/// The most bytes that one step reads.
const STEP_BYTES: u64 = 1 << 20;
/// The longest line: the default limit of the server for a body.
const LINE_MAX_BYTES: usize = 16 << 20;
/// How many bytes before a place the checksum covers.
const CHECKED_BYTES: u64 = 4096;
/// How many files that were read to their ends are remembered.
const ENDED_FILES: usize = 100;
/// The endings of compressed files.
///
/// They are skipped and named, because the import cannot continue in them.
const COMPRESSED: [&str; 4] = ["gz", "zst", "xz", "bz2"];

/// A place at the end of a line, with a checksum of the bytes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Mark {
    bytes: u64,
    lines: u64,
    /// The CRC-32 of the last bytes before it.
    check: u32,
    /// The last change of the file when it, or the one before it, was read to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changed: Option<Changed>,
}

/// The time of a change of a file: seconds since 1970, and nanoseconds.
type Changed = (i64, i64);

impl Mark {
    /// The beginning of the file at a path: nothing of this file was read.
    ///
    /// # Errors
    /// If there is no file at the path.
    pub(in super::super) fn unread(path: &Path) -> io::Result<Self> {
        let (seconds, nanoseconds) = changed(&std::fs::metadata(path)?);
        // Just before the last change: a rotated file that changes no more is unread too.
        Ok(Self { changed: Some((seconds, nanoseconds - 1)), ..START })
    }

    /// The number of lines before it.
    pub(in super::super) const fn lines(self) -> u64 {
        self.lines
    }
}

/// The result of one attempt to read more lines.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Whole lines.
    Lines(Vec<u8>),
    /// There are no more whole lines yet.
    Idle,
    /// The last line of a file that has ended. It has no line end, so it may lack more.
    Cut(Vec<u8>),
    /// The file has ended, for this reason.
    ///
    /// The next step reads another file, or this one from its beginning.
    Ended(&'static str),
}

/// The file at a path, or a rotated file that was at this path before.
pub(super) struct GrowingFile {
    path: PathBuf,
    /// The current name of the open file. After a rotation, it is not `path`.
    name: PathBuf,
    file: File,
    /// The end of the last line that was returned.
    read: Mark,
    /// The bytes read after this line: the beginning of the next line.
    partial: Vec<u8>,
    /// The checksum at the end of `partial`.
    partial_check: u32,
    /// Whether a row was read. Before the first one, the content is a header, which other files have too.
    has_row: bool,
    /// Whether the program was found to write to another file.
    is_replaced: bool,
    /// The last files that were read to their ends.
    ended: VecDeque<Version>,
    /// The compressed files that were skipped and are not returned yet.
    skipped: Vec<PathBuf>,
}

/// A file and its last change: device, inode, modification time.
type Version = (u64, u64, Changed);

impl GrowingFile {
    /// Opens the file that was read up to `mark`, under its current name.
    ///
    /// If that file is gone, it opens the first rotated file that changed after `mark`. Without one, or
    /// without `mark`, it opens the file at `path`. The boolean is false if the file of `mark` is gone. In
    /// each case the file is read from its beginning, so the caller skips the lines up to `mark`.
    ///
    /// No content tells which file a [`Mark::unread`] is of: even its header is also that of other files. So
    /// the first rotated file that changed after it is opened, and none is gone.
    pub(super) fn open(path: &Path, mark: Option<Mark>) -> io::Result<(Self, bool)> {
        let is_unread = mark.is_some_and(|mark| mark.bytes == 0);
        let found = match mark {
            None => Some(path.to_owned()),
            Some(_) if is_unread => None,
            Some(mark) if is_at(path, mark) => Some(path.to_owned()),
            Some(mark) => renamed(path, mark)?,
        };
        let is_found = is_unread || found.is_some();
        let last = mark.and_then(|mark| mark.changed);
        let (next, skipped) = match (found, last) {
            (None, Some(last)) => rotated_after(path, (0, 0, last), &VecDeque::new())?,
            (found, _) => (found, Vec::new()),
        };
        let name = next.unwrap_or_else(|| path.to_owned());
        let is_replaced = name != path;
        let file = open_regular(&name)?;
        // Rotated files that changed earlier are not unread.
        let last = last.unwrap_or(changed(&file.metadata()?));
        let read = Mark { changed: Some(last), ..START };
        let opened = Self {
            path: path.to_owned(),
            name,
            file,
            read,
            partial: Vec::new(),
            partial_check: 0,
            has_row: false,
            is_replaced,
            ended: VecDeque::new(),
            skipped,
        };
        Ok((opened, is_found))
    }

    /// The name of the file that is read.
    pub(super) fn name(&self) -> &Path {
        &self.name
    }

    /// The end of the last line that was returned.
    pub(super) fn mark(&self) -> Mark {
        self.read
    }

    /// Notes that the lines returned so far have a row.
    pub(super) fn note_row(&mut self) {
        self.has_row = true;
    }

    /// The compressed files that were skipped since the last call.
    pub(super) fn take_skipped(&mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.skipped)
    }

    /// Reads the next whole lines, or finds that there are none.
    pub(super) fn next(&mut self) -> io::Result<Step> {
        loop {
            let metadata = self.file.metadata()?;
            let (len, known) = (metadata.len(), self.known());
            let is_unchanged = len == known && self.read.changed == Some(changed(&metadata));
            let is_same = len >= known && (is_unchanged || check(&self.file, known)? == Some(self.partial_check));
            if !is_same {
                if let Some(step) = self.truncated()? {
                    return Ok(step);
                }
            } else if len > known {
                let lines = self.read_lines(len - known)?;
                if self.known() == len {
                    self.read.changed = Some(changed(&metadata));
                }
                if let Some(lines) = lines {
                    return Ok(Step::Lines(lines));
                }
            } else {
                self.read.changed = Some(changed(&metadata));
                return self.at_end(&metadata);
            }
        }
    }

    /// The number of bytes of the file that were read, `partial` included.
    fn known(&self) -> u64 {
        self.read.bytes + self.partial.len() as u64
    }

    /// Reads more bytes, and returns the lines that they complete.
    fn read_lines(&mut self, more: u64) -> io::Result<Option<Vec<u8>>> {
        let (known, start) = (self.known(), self.partial.len());
        self.partial.resize(start + more.min(STEP_BYTES) as usize, 0);
        let read = self.file.read_at(&mut self.partial[start..], known);
        self.partial.truncate(start + read.as_ref().map_or(0, |count| *count));
        read?;
        self.partial_check = check(&self.file, self.known())?.unwrap_or_default();
        let Some(end) = memchr::memrchr(b'\n', &self.partial[start..]) else {
            if self.partial.len() > LINE_MAX_BYTES {
                let why = format!("line {} is longer than {LINE_MAX_BYTES} bytes", self.read.lines + 1);
                return Err(io::Error::new(ErrorKind::InvalidData, why));
            }
            return Ok(None);
        };
        self.take_lines(start + end + 1).map(Some)
    }

    fn take_lines(&mut self, end: usize) -> io::Result<Vec<u8>> {
        let rest = self.partial.split_off(end);
        let lines = std::mem::replace(&mut self.partial, rest);
        self.read.bytes += lines.len() as u64;
        self.read.lines += memchr::memchr_iter(b'\n', &lines).count() as u64;
        self.read.check = check(&self.file, self.read.bytes)?.unwrap_or_default();
        Ok(lines)
    }

    /// Takes the last line of a file that has ended, which has no line end.
    fn cut(&mut self) -> Step {
        let lines = self.read.lines + 1;
        self.read = Mark { bytes: self.known(), lines, check: self.partial_check, ..self.read };
        Step::Cut(std::mem::take(&mut self.partial))
    }

    /// Continues in a copy that was made before the file was truncated.
    ///
    /// Without such a copy, or without a row that tells it from other files, it begins the first rotated file
    /// that may be unread. If there is none either, it cuts the last line, and begins this file again.
    fn truncated(&mut self) -> io::Result<Option<Step>> {
        if self.has_row
            && let Some(copy) = renamed(&self.path, self.read)?
        {
            self.partial.clear();
            (self.file, self.name, self.is_replaced) = (open_regular(&copy)?, copy, true);
            self.partial_check = self.read.check;
            return Ok(None);
        }
        let (next, skipped) = match self.read.changed {
            Some(changed) => rotated_after(&self.path, (0, 0, changed), &self.ended)?,
            None => (None, Vec::new()),
        };
        if next.is_none() && !self.partial.is_empty() {
            return Ok(Some(self.cut()));
        }
        self.partial.clear();
        let next = next.unwrap_or_else(|| self.path.clone());
        self.begin(next)?;
        self.skipped.extend(skipped);
        Ok(Some(Step::Ended("it was truncated")))
    }

    /// The step at the end of the file. It has ended once the program writes to another one.
    fn at_end(&mut self, open: &Metadata) -> io::Result<Step> {
        if is_still_at(&self.path, open) {
            self.is_replaced = false;
            return Ok(Step::Idle);
        }
        let version = version(open);
        self.read.changed = Some(changed(open));
        if self.ended.front() != Some(&version) {
            self.ended.truncate(ENDED_FILES);
            self.ended.push_front(version);
        }
        let (rotated, skipped) = rotated_after(&self.path, version, &self.ended)?;
        let next = match rotated {
            Some(rotated) => rotated,
            None if has_begun(&self.path, &self.file)? => self.path.clone(),
            None => return Ok(Step::Idle),
        };
        if !std::mem::replace(&mut self.is_replaced, true) {
            return Ok(Step::Idle); // read once more: the program has written to this file until now
        }
        let known = Mark { bytes: self.known(), check: self.partial_check, ..self.read };
        if next == self.path && known.bytes > 0 && is_at(&next, known) {
            // A longer copy has replaced the file, as rsync does.
            (self.file, self.name, self.is_replaced) = (open_regular(&next)?, next, false);
            return self.next();
        }
        if !self.partial.is_empty() {
            return Ok(self.cut());
        }
        match self.begin(next) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Step::Idle),
            begun => {
                begun?;
                self.skipped.extend(skipped);
                Ok(Step::Ended("another file has its name"))
            }
        }
    }

    fn begin(&mut self, name: PathBuf) -> io::Result<()> {
        self.file = open_regular(&name)?;
        (self.is_replaced, self.name) = (name != self.path, name);
        (self.read, self.partial_check, self.has_row) = (Mark { changed: self.read.changed, ..START }, 0, false);
        Ok(())
    }
}

const START: Mark = Mark { bytes: 0, lines: 0, check: 0, changed: None };

/// The checksum of the last bytes before an offset. `None`: the file is shorter.
fn check(file: &File, bytes: u64) -> io::Result<Option<u32>> {
    let mut before = vec![0; bytes.min(CHECKED_BYTES) as usize];
    let start = bytes - before.len() as u64;
    match file.read_exact_at(&mut before, start) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        read => read.map(|()| Some(crc32fast::hash(&before))),
    }
}

/// Whether the file at a path has the content that `mark` describes.
fn is_at(path: &Path, mark: Mark) -> bool {
    open_regular(path).and_then(|file| check(&file, mark.bytes)).is_ok_and(|found| found == Some(mark.check))
}

/// Whether the open file is at the path.
fn is_still_at(path: &Path, open: &Metadata) -> bool {
    std::fs::metadata(path).is_ok_and(|at_path| (at_path.dev(), at_path.ino()) == (open.dev(), open.ino()))
}

/// Whether the program writes to the file at the path: it is no copy of the beginning of the old one.
///
/// Another program, such as logrotate, may make the new file, even with a header. Meanwhile, and until it
/// opens the new file, the program writes to the old one.
fn has_begun(path: &Path, old: &File) -> io::Result<bool> {
    let new = match open_regular(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    let len = new.metadata()?.len();
    Ok(check(&new, len)? != check(old, len)?)
}

/// The rotated file that has the content of `mark`, and is not compressed.
fn renamed(path: &Path, mark: Mark) -> io::Result<Option<PathBuf>> {
    let is_it = |other: &PathBuf| is_rotated(path, other) && !is_compressed(other) && is_at(other, mark);
    Ok(others(path)?.into_iter().find(is_it))
}

/// The other regular files in the folder of a path.
fn others(path: &Path) -> io::Result<Vec<PathBuf>> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() && Some(entry.file_name().as_os_str()) != path.file_name() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// The rotated file to read next, and the compressed ones that changed before it.
///
/// The files that changed before `last`, the file that ended last, are read already. Of the others, this one
/// changed first.
fn rotated_after(path: &Path, last: Version, ended: &VecDeque<Version>) -> io::Result<(Option<PathBuf>, Vec<PathBuf>)> {
    let (last_device, last_inode, last_change) = last;
    let mut later = Vec::new();
    for other in others(path)?.into_iter().filter(|other| is_rotated(path, other)) {
        let Ok(metadata) = other.metadata() else { continue };
        let found = version(&metadata);
        let (device, inode, changed) = found;
        let is_last = (device, inode) == (last_device, last_inode);
        if changed >= last_change && metadata.len() > 0 && !is_last && !ended.contains(&found) {
            later.push((changed, other));
        }
    }
    later.sort_unstable();
    let mut skipped = Vec::new();
    for (changed, other) in later {
        if !is_compressed(&other) {
            return Ok((Some(other), skipped));
        }
        if changed > last_change {
            skipped.push(other); // one that is as old may be the last file, compressed
        }
    }
    Ok((None, skipped))
}

/// Whether a file at `path` may have had this name after a rotation.
///
/// Such names are `readings.csv.1`, `readings.1.csv` and `readings-20260421.csv`, also of compressed files.
/// The name `readings-2.csv` is not, because it may be that of another device, nor is
/// `readings.csv.progress`.
fn is_rotated(path: &Path, name: &Path) -> bool {
    if let Some(end) = bytes(name.file_name()).strip_prefix(bytes(path.file_name())) {
        return end == b".old" || is_compressed(name) || end.iter().any(u8::is_ascii_digit);
    }
    let name = if is_compressed(name) { name.with_extension("") } else { name.to_owned() };
    let Some(middle) = bytes(name.file_stem()).strip_prefix(bytes(path.file_stem())) else { return false };
    let digits = middle.iter().filter(|byte| byte.is_ascii_digit()).count();
    let is_date = (middle.starts_with(b"-20") || middle.starts_with(b"_20")) && digits >= 6;
    let is_number = middle.starts_with(b".") && digits > 0;
    let has_other = middle.iter().any(|byte| !byte.is_ascii_digit() && !b".-_T".contains(byte));
    name.extension() == path.extension() && (is_date || is_number) && !has_other
}

fn is_compressed(path: &Path) -> bool {
    path.extension().is_some_and(|end| COMPRESSED.iter().any(|known| end == *known))
}

fn bytes(part: Option<&OsStr>) -> &[u8] {
    part.unwrap_or_default().as_encoded_bytes()
}

fn version(metadata: &Metadata) -> Version {
    (metadata.dev(), metadata.ino(), changed(metadata))
}

fn changed(metadata: &Metadata) -> Changed {
    (metadata.mtime(), metadata.mtime_nsec())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::time::{Duration, SystemTime};

    use super::*;

    struct Folder {
        _folder: tempfile::TempDir,
        path: PathBuf,
    }

    impl Folder {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.csv");
            Self { _folder: folder, path }
        }

        fn append(&self, text: &str) {
            self.append_to("csv", text);
        }

        fn append_to(&self, ending: &str, text: &str) {
            let mut file = File::options().append(true).create(true).open(self.path.with_extension(ending)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }

        /// Sets the last change of a file to `nth` seconds after 1970.
        fn set_changed(&self, name: &str, nth: u64) {
            let file = File::options().append(true).open(self.path.with_file_name(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(nth)).unwrap();
        }

        /// Gives the file another name. Its last change is `nth` seconds after 1970.
        fn rotate(&self, nth: u64) {
            self.set_changed("a.csv", nth);
            fs::rename(&self.path, self.path.with_extension(format!("csv.{nth}"))).unwrap();
        }

        fn open(&self, mark: Option<Mark>) -> (GrowingFile, bool) {
            GrowingFile::open(&self.path, mark).unwrap()
        }
    }

    /// The steps up to the second that is idle: the first one may find that the file is replaced.
    fn steps(file: &mut GrowingFile) -> Vec<String> {
        let (mut all, mut idle) = (Vec::new(), 0);
        while idle < 2 {
            match file.next().unwrap() {
                Step::Lines(lines) => {
                    file.note_row();
                    all.push(String::from_utf8(lines).unwrap());
                }
                Step::Cut(line) => all.push(format!("cut {}", String::from_utf8(line).unwrap())),
                Step::Ended(_) => all.push("|".to_owned()),
                Step::Idle => idle += 1,
            }
        }
        all
    }

    #[test]
    fn lines_arrive_whole_and_once() {
        let folder = Folder::new();
        folder.append("1\n2\n3");
        let (mut file, _) = folder.open(None);
        assert_eq!(steps(&mut file), ["1\n2\n"]);
        folder.append("3");
        assert_eq!(steps(&mut file), [""; 0]);
        folder.append("3\n4\n");
        assert_eq!(steps(&mut file), ["333\n4\n"]);
        assert_eq!((file.mark().lines, file.mark().bytes), (4, 10));
    }

    #[test]
    fn rotated_files_are_read_to_their_ends_in_order() {
        let folder = Folder::new();
        folder.append("1\n");
        let (mut file, _) = folder.open(None);
        assert_eq!(steps(&mut file), ["1\n"]);
        folder.append("2\n3");
        folder.rotate(1);
        fs::rename(folder.path.with_extension("csv.1"), folder.path.with_extension("csv.0")).unwrap();
        assert_eq!(steps(&mut file), ["2\n"], "no file has the name");
        for (text, name) in [("4\n", "csv.2"), ("5\n", "csv.3")] {
            folder.append(text);
            folder.rotate(1); // in the same moment
            fs::rename(folder.path.with_extension("csv.1"), folder.path.with_extension(name)).unwrap();
        }
        folder.append("6\n");
        assert_eq!(steps(&mut file), ["cut 3", "|", "4\n", "|", "5\n", "|", "6\n"]);
    }

    #[test]
    fn a_rotated_file_is_read_until_the_program_writes_to_the_next_one() {
        let folder = Folder::new();
        folder.append("h\n1\n");
        let (mut file, _) = folder.open(None);
        assert_eq!(steps(&mut file), ["h\n1\n"]);
        folder.rotate(1);
        for (new, late, found) in [("", "2\n3", "2\n"), ("h\n", "3\n", "33\n")] {
            folder.append(new); // not by the program
            assert_eq!(steps(&mut file), [""; 0]);
            folder.append_to("csv.1", late);
            assert_eq!(steps(&mut file), [found]);
        }
        folder.append("4\n");
        assert_eq!(steps(&mut file), ["|", "h\n4\n"]);
    }

    #[test]
    fn a_longer_copy_of_a_file_continues_it() {
        let folder = Folder::new();
        folder.append("1\n2\n3");
        let (mut file, _) = folder.open(None);
        assert_eq!(steps(&mut file), ["1\n2\n"]);
        for (copy, found) in [("1\n2\n33\n4\n", "33\n4\n"), ("1\n2\n33\n4\n5\n", "5\n")] {
            folder.append_to("new", copy);
            fs::rename(folder.path.with_extension("new"), &folder.path).unwrap();
            assert_eq!(steps(&mut file), [found]);
        }
        assert_eq!(file.mark().lines, 5);
    }

    #[test]
    fn a_truncated_file_is_read_anew_after_the_rest_of_its_copy() {
        let folder = Folder::new();
        folder.append("1\n2\n");
        let (mut file, _) = folder.open(None);
        assert_eq!(steps(&mut file), ["1\n2\n"]);
        folder.append("3\n");
        fs::copy(&folder.path, folder.path.with_extension("csv.1")).unwrap();
        fs::write(&folder.path, "4\n").unwrap();
        assert_eq!(steps(&mut file), ["3\n", "|", "4\n"]);
        fs::write(&folder.path, "5\n6\n7\n").unwrap(); // longer than before
        assert_eq!(steps(&mut file), ["|", "5\n6\n7\n"]);
        fs::write(&folder.path, "8\n9\n0\n").unwrap(); // as long as before
        folder.set_changed("a.csv", 1);
        assert_eq!(steps(&mut file), ["|", "8\n9\n0\n"]);
    }

    #[test]
    fn a_truncation_within_a_line_cuts_it_unless_a_copy_has_its_rest() {
        let folder = Folder::new();
        folder.append("1\n2");
        let (mut file, _) = folder.open(None);
        assert_eq!(steps(&mut file), ["1\n"]);
        fs::write(&folder.path, "3\n").unwrap();
        assert_eq!(steps(&mut file), ["cut 2", "|", "3\n"]);
        folder.append("4");
        assert_eq!(steps(&mut file), [""; 0]);
        folder.append("4\n");
        fs::copy(&folder.path, folder.path.with_extension("csv.1")).unwrap();
        fs::write(&folder.path, "5\n").unwrap();
        assert_eq!(steps(&mut file), ["44\n", "|", "5\n"]);
    }

    #[test]
    fn a_file_of_another_device_is_no_copy() {
        let folder = Folder::new();
        folder.append("header\n1\n");
        let (mut file, _) = folder.open(None);
        assert_eq!(steps(&mut file), ["header\n1\n"]);
        let mark = file.mark();
        fs::write(folder.path.with_file_name("a-2.csv"), "header\n1\n2\n").unwrap();
        fs::write(&folder.path, "header\n3\n4\n").unwrap();
        assert_eq!(steps(&mut file), ["|", "header\n3\n4\n"]);
        assert!(!folder.open(Some(mark)).1);
    }

    #[test]
    fn no_copy_is_told_by_its_header_alone() {
        let folder = Folder::new();
        folder.append("header\n");
        folder.set_changed("a.csv", 2);
        let (mut file, _) = folder.open(None);
        assert_eq!(file.next().unwrap(), Step::Lines(b"header\n".to_vec()));
        for (name, text, nth) in
            [("a.csv.3", "header\n0\n", 1), ("a.csv.2", "header\n1\n", 3), ("a.csv.1", "header\n2\n", 4)]
        {
            fs::write(folder.path.with_file_name(name), text).unwrap();
            folder.set_changed(name, nth);
        }
        fs::write(&folder.path, "3\n").unwrap();
        assert_eq!(steps(&mut file), ["|", "header\n1\n", "|", "header\n2\n", "|", "3\n"]);
    }

    #[test]
    fn a_file_is_found_again_by_its_content() {
        let folder = Folder::new();
        folder.append("1\n2\n");
        let (mut file, _) = folder.open(None);
        steps(&mut file);
        let mark = file.mark();
        assert!(folder.open(Some(mark)).1);
        folder.append("3\n");
        folder.rotate(1);
        folder.append("4\n5\n6\n");
        let (mut file, is_found) = folder.open(Some(mark));
        assert!(is_found);
        assert_eq!(steps(&mut file), ["1\n2\n3\n", "|", "4\n5\n6\n"]);
        fs::remove_file(folder.path.with_extension("csv.1")).unwrap();
        let (mut file, is_found) = folder.open(Some(mark));
        assert!(!is_found);
        assert_eq!(steps(&mut file), ["4\n5\n6\n"]);
    }

    #[test]
    fn without_the_marked_file_the_unread_rotated_files_are_read_in_order() {
        let folder = Folder::new();
        folder.append("1\n");
        folder.set_changed("a.csv", 1);
        let (mut file, _) = folder.open(None);
        steps(&mut file);
        for (name, text, nth) in [
            ("a.1.csv", "0\n", 0),
            ("a.csv.1.gz", "the marked file", 1),
            ("a.2.csv", "2\n", 2),
            ("a.csv.3.gz", "3", 3),
            ("a-20260421.csv", "4\n", 4),
            ("a-2.csv", "another device", 5),
            ("a.csv", "6\n", 6),
        ] {
            fs::write(folder.path.with_file_name(name), text).unwrap();
            folder.set_changed(name, nth);
        }
        let (mut file, is_found) = folder.open(Some(file.mark()));
        assert!(!is_found && file.take_skipped().is_empty());
        assert_eq!(steps(&mut file), ["2\n", "|", "4\n", "|", "6\n"]);
        assert_eq!(file.take_skipped(), [folder.path.with_file_name("a.csv.3.gz")]);
    }

    #[test]
    fn a_file_of_which_nothing_was_read_is_found_after_a_rotation_while_no_file_has_its_name() {
        let folder = Folder::new();
        folder.append("header\n");
        folder.set_changed("a.csv", 2);
        let mark = Mark::unread(&folder.path).unwrap();
        for (name, nth) in [("a.csv.1", 1), ("a.csv.2.gz", 2)] {
            fs::write(folder.path.with_file_name(name), "header\n0\n").unwrap();
            folder.set_changed(name, nth);
        }
        folder.append("1\n");
        folder.rotate(3);
        let (mut file, is_found) = folder.open(Some(mark));
        assert!(is_found);
        assert_eq!(file.take_skipped(), [folder.path.with_file_name("a.csv.2.gz")]);
        assert_eq!(steps(&mut file), ["header\n1\n"], "no file has the name");
        folder.append("header\n2\n");
        assert_eq!(steps(&mut file), ["|", "header\n2\n"]);
    }

    #[test]
    fn the_unread_rotated_files_of_a_truncated_file_are_read_or_named() {
        let folder = Folder::new();
        folder.append(&"1\n".repeat(STEP_BYTES as usize));
        folder.set_changed("a.csv", 1);
        let (mut file, _) = folder.open(None);
        assert!(matches!(file.next().unwrap(), Step::Lines(_)), "half of the file");
        for (name, text, nth) in
            [("a.csv.3.gz", "0", 0), ("a.csv.2.gz", "1, 2", 2), ("a.csv.1", "3\n", 3), ("a.csv", "4\n5\n", 4)]
        {
            fs::write(folder.path.with_file_name(name), text).unwrap();
            folder.set_changed(name, nth);
        }
        assert_eq!(steps(&mut file), ["|", "3\n", "|", "4\n5\n"]);
        assert_eq!(file.take_skipped(), [folder.path.with_file_name("a.csv.2.gz")]);
        fs::write(folder.path.with_file_name("a.csv.4.gz"), "4, 5, 6").unwrap();
        folder.set_changed("a.csv.4.gz", 5);
        fs::write(&folder.path, "7\n").unwrap();
        assert_eq!(steps(&mut file), ["|", "7\n"]);
        assert_eq!(file.take_skipped(), [folder.path.with_file_name("a.csv.4.gz")]);
    }

    #[test]
    fn the_name_of_a_rotated_file_has_a_number_or_a_date() {
        for (name, expected) in [
            ("press.csv.1", true),
            ("press.csv-20260421.zst", true),
            ("press.csv.gz", true),
            ("press.csv.old", true),
            ("press.csv.progress", false),
            ("press.1.csv", true),
            ("press.2026-04-21.0.csv.gz", true),
            ("press-20260421.csv", true),
            ("press_2026-04-21T10.csv", true),
            ("press-2.csv", false),
            ("press2.csv", false),
            ("press.old.csv", false),
            ("press.1.txt", false),
            ("press-20260421-b.csv", false),
            ("pressure.csv", false),
        ] {
            assert_eq!(is_rotated(Path::new("f/press.csv"), &Path::new("f").join(name)), expected, "{name}");
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let folder = Folder::new();
        File::create(&folder.path).unwrap().set_len(2 * LINE_MAX_BYTES as u64).unwrap();
        let (mut file, _) = folder.open(None);
        assert_eq!(file.next().unwrap_err().to_string(), "line 1 is longer than 16777216 bytes");
        assert!(file.partial.len() <= LINE_MAX_BYTES + STEP_BYTES as usize);
    }
}
