//! Durable changes of a file of lines: lines are added, the file is taken away, lines are put back.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read};
use std::ops::Range;
use std::path::Path;

use crate::disk::{Folder, OpenFile, OpenMode, named};
use crate::log::MAX_PAYLOAD_BYTES;

/// Renames a file to `taken`, unless `taken` exists. Returns false if neither file exists.
pub(super) fn take(folder: &dyn Folder, name: &str, taken: &str) -> std::io::Result<bool> {
    match folder.open(taken, OpenMode::Read) {
        Err(error) if error.kind() == ErrorKind::NotFound => match folder.rename(name, taken) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            renamed => renamed?,
        },
        opened => drop(opened?),
    }
    folder.sync()?; // before a new file gets the name
    Ok(true)
}

/// Adds the lines at the byte ranges `kept` of `taken` to a file, then removes `taken`.
pub(super) fn put_back(folder: &dyn Folder, name: &str, taken: &str, kept: &[Range<u64>]) -> std::io::Result<()> {
    if !kept.is_empty() {
        let taken = folder.open(taken, OpenMode::Read)?;
        let line = |range: &Range<u64>| Pieces { file: &*taken, at: range.start, end: range.end };
        let lines = kept.iter().flat_map(|range| line(range).chain([Ok(b"\n".to_vec())]));
        add_lines(folder, name, lines, u64::MAX, 0)?;
    }
    folder.remove(taken)?;
    folder.sync()
}

/// Moves the lines of a file, if it exists, to the end of `taken`.
///
/// A crash in between leaves lines in both files.
pub(super) fn gather(folder: &dyn Folder, name: &str, taken: &str) -> std::io::Result<()> {
    let file = match folder.open(name, OpenMode::Read) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    add_lines(folder, taken, Pieces { file: &*file, at: 0, end: file.len()? }, u64::MAX, 0)?;
    folder.remove(name)?;
    folder.sync()
}

/// The longest line that is read.
///
/// The lines that this program writes are shorter: a line of several readings is below a MiB, and the text of
/// one reading is not much larger than its record.
pub const MAX_LINE_BYTES: usize = 2 * MAX_PAYLOAD_BYTES;

/// A line of a file.
#[derive(Debug)]
pub struct NumberedLine {
    /// The number of the line, from 1.
    pub number: u64,
    /// The place of the line in the file, in bytes, without its line end.
    pub at: Range<u64>,
    /// The text of the line, without its line end.
    ///
    /// `None` if it is longer than [`MAX_LINE_BYTES`].
    pub text: Option<Vec<u8>>,
}

/// Reads the lines of a file.
///
/// A line of more than [`MAX_LINE_BYTES`] is skipped, and has no text.
#[derive(Debug)]
pub struct NumberedLines<R> {
    input: R,
    number: u64,
    next: u64,
}

impl<R: BufRead> NumberedLines<R> {
    /// Begins with line 1.
    pub const fn new(input: R) -> Self {
        Self { input, number: 0, next: 0 }
    }

    fn read(&mut self) -> std::io::Result<Option<NumberedLine>> {
        let mut text = Vec::new();
        let max = MAX_LINE_BYTES as u64 + 1; // with its end
        let mut bytes = self.input.by_ref().take(max).read_until(b'\n', &mut text)? as u64;
        if bytes == 0 {
            return Ok(None);
        }
        let has_end = text.pop_if(|last| *last == b'\n').is_some();
        let is_too_long = bytes == max && !has_end;
        let mut end_bytes = u64::from(has_end);
        if is_too_long {
            text = Vec::new();
            let (rest, ends) = skip_line(&mut self.input)?;
            bytes += rest;
            end_bytes = u64::from(ends);
        }
        let start = self.next;
        self.next += bytes;
        self.number += 1;
        let at = start..self.next - end_bytes;
        Ok(Some(NumberedLine { number: self.number, at, text: (!is_too_long).then_some(text) }))
    }
}

impl<R: BufRead> Iterator for NumberedLines<R> {
    type Item = std::io::Result<NumberedLine>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

/// Reads to the end of a line.
///
/// Returns the number of bytes, and whether the last one ends a line.
fn skip_line(input: &mut impl BufRead) -> std::io::Result<(u64, bool)> {
    let mut skipped = 0;
    loop {
        let bytes = input.fill_buf()?;
        let (count, ends) = match memchr::memchr(b'\n', bytes) {
            Some(at) => (at + 1, true),
            None => (bytes.len(), bytes.is_empty()),
        };
        let is_end_of_line = ends && count > 0;
        input.consume(count);
        skipped += count as u64;
        if ends {
            return Ok((skipped, is_end_of_line));
        }
    }
}

/// How [`rewrite`] changes a line.
pub(super) enum Change {
    Keep,
    Remove,
    Replace(Vec<u8>),
}

/// Changes the lines of a file, one after the other, by way of a new file named `new`.
///
/// The new file is shorter by about `freed` bytes. A line that is too long to be read stays. An error leaves
/// the file as it is, and no new file.
pub(super) fn rewrite(
    folder: &dyn Folder,
    name: &str,
    new: &str,
    freed: u64,
    change: impl FnMut(&[u8]) -> Change,
) -> std::io::Result<()> {
    let old = folder.open(name, OpenMode::Read)?;
    let (needed, free) = (old.len()?.saturating_sub(freed), folder.space()?.free);
    if needed > free {
        // Otherwise each retry would fill the disk, which the log and the store may need.
        let full = format!("{} needs {needed} bytes, and {free} are free", folder.path_of(new).display());
        return Err(Error::new(ErrorKind::StorageFull, full));
    }
    let written = write_changed(folder, &*old, new, change).and_then(|()| folder.rename(new, name));
    if written.is_err() {
        let _ = folder.remove(new); // otherwise it takes space until the next deletion
    }
    written?;
    folder.sync()
}

/// Writes the changed lines of a file to the file `new`, and syncs it.
fn write_changed(
    folder: &dyn Folder,
    old: &dyn OpenFile,
    new: &str,
    mut change: impl FnMut(&[u8]) -> Change,
) -> std::io::Result<()> {
    let new = folder.open(new, OpenMode::Truncate)?;
    let mut end = 0;
    let mut write = |bytes: &[u8]| {
        new.write_all_at(bytes, end)?;
        end += bytes.len() as u64;
        std::io::Result::Ok(())
    };
    for line in lines_in(old) {
        let NumberedLine { at, text, .. } = line?;
        match text.as_deref().map_or(Change::Keep, &mut change) {
            Change::Keep => {
                for piece in (Pieces { file: old, at: at.start, end: at.end }) {
                    write(&piece?)?;
                }
                write(b"\n")?;
            }
            Change::Remove => {}
            Change::Replace(with) => {
                write(&with)?;
                write(b"\n")?;
            }
        }
    }
    new.sync()
}

/// Removes lines of a file without more disk space: overwrites them with spaces, and cuts off the last ones.
///
/// A line whose first byte is a space is removed. Only when these bytes survive a crash, the others follow:
/// of a removed line, a crash leaves the whole or nothing to be read. Lines to be replaced stay.
pub(super) fn blank(folder: &dyn Folder, name: &str, mut change: impl FnMut(&[u8]) -> Change) -> std::io::Result<()> {
    let file = folder.open(name, OpenMode::Write)?;
    let mut end = 0; // of the last line that stays
    for line in lines_in(&*file) {
        let NumberedLine { at, text, .. } = line?;
        if text.is_some_and(|text| matches!(change(&text), Change::Remove)) {
            file.write_all_at(b" ", at.start)?;
        } else {
            end = at.end + 1;
        }
    }
    file.sync()?;
    file.set_len(end.min(file.len()?))?;
    for line in lines_in(&*file) {
        let NumberedLine { at, text, .. } = line?;
        if let Some(mut text) = text.filter(|text| text.starts_with(b" ") && !text.trim_ascii().is_empty()) {
            text.fill(b' ');
            file.write_all_at(&text, at.start)?;
        }
    }
    file.sync()
}

fn lines_in(file: &dyn OpenFile) -> NumberedLines<BufReader<FileBytes<'_>>> {
    NumberedLines::new(BufReader::new(FileBytes { file, at: 0 }))
}

/// Visits the lines of a file, except those that are too long to be read.
pub(super) fn each_line(folder: &dyn Folder, name: &str, mut visit: impl FnMut(&[u8])) -> std::io::Result<()> {
    let file = folder.open(name, OpenMode::Read)?;
    for line in lines_in(&*file) {
        if let Some(text) = line?.text {
            visit(&text);
        }
    }
    Ok(())
}

/// A part of a file, in pieces of bounded size.
struct Pieces<'a> {
    file: &'a dyn OpenFile,
    at: u64,
    end: u64,
}

impl Iterator for Pieces<'_> {
    type Item = std::io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        const BYTES: u64 = 64 << 10;
        let bytes = (self.end - self.at).min(BYTES);
        if bytes == 0 {
            return None;
        }
        let mut piece = vec![0; bytes as usize];
        let read = self.file.fill(&mut piece, self.at);
        self.at += bytes;
        Some(match read {
            Ok(count) if count < piece.len() => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(piece),
            Err(error) => Err(error),
        })
    }
}

/// Reads a file from its beginning.
struct FileBytes<'a> {
    file: &'a dyn OpenFile,
    at: u64,
}

impl Read for FileBytes<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read_at(bytes, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// Adds lines, each in one or several pieces, to a file.
///
/// The file has at most `max_bytes`, together with the `left` bytes of the file of an interrupted retry. This
/// creates the file if it does not exist. When this returns, the lines survive a crash.
pub(super) fn add_lines(
    folder: &dyn Folder,
    name: &str,
    lines: impl IntoIterator<Item = std::io::Result<Vec<u8>>>,
    max_bytes: u64,
    left: u64,
) -> std::io::Result<()> {
    let file = folder.open(name, OpenMode::Create).map_err(named(&folder.path_of(name)))?;
    let end = file.len()?;
    if let Err(error) = write_lines(&*file, &folder.path_of(name), end, lines, max_bytes, left) {
        let _ = file.set_len(end); // otherwise each retry leaves a piece of a line
        return Err(error);
    }
    file.sync()?;
    folder.sync() // always: a killed process may have created the file and not synced its name
}

/// Writes lines at the end of a file.
///
/// If a crash or a full disk has cut off the last line of the file, this first writes a line end.
fn write_lines(
    file: &dyn OpenFile,
    path: &Path,
    mut end: u64,
    lines: impl IntoIterator<Item = std::io::Result<Vec<u8>>>,
    max_bytes: u64,
    left: u64,
) -> std::io::Result<()> {
    let mut last = *b"\n";
    file.fill(&mut last, end.saturating_sub(1))?;
    let separator = (last != *b"\n").then(|| Ok(b"\n".to_vec()));
    for line in separator.into_iter().chain(lines) {
        let line = line?;
        if end + left + line.len() as u64 > max_bytes {
            let of_retry = if left > 0 { format!(", {left} of them left by a retry") } else { String::new() };
            let limit = format!("flush.max_dead_letter_bytes ({max_bytes} bytes{of_retry})");
            let full = format!("{} has reached {limit}", path.display());
            return Err(Error::new(ErrorKind::StorageFull, full));
        }
        file.write_all_at(&line, end)?;
        end += line.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::disk::faulty::{Call, Disk};

    fn add(disk: &Disk, name: &str, lines: &[&str]) -> std::io::Result<()> {
        add_lines(disk, name, lines.iter().map(|line| Ok(format!("{line}\n").into())), 100, 0)
    }

    /// The lines of a file on a faulty disk; none if it does not exist.
    fn lines_on(disk: &Disk, name: &str) -> std::io::Result<Vec<String>> {
        let file = match disk.open(name, OpenMode::Read) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened?,
        };
        let mut bytes = vec![0; file.len()? as usize];
        file.fill(&mut bytes, 0)?;
        Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
    }

    /// A retry. The server accepts the line `sent`, rejects the others, and adds a line meanwhile.
    fn retry(disk: &Disk, is_added: &Cell<bool>, is_accepted: &Cell<bool>) -> std::io::Result<()> {
        take(disk, "current", "taken")?;
        gather(disk, "current", "taken")?;
        add(disk, "current", &["new"])?;
        is_added.set(true);
        let mut end = 0;
        let mut kept = Vec::new();
        for line in lines_on(disk, "taken")? {
            let start = end;
            end += line.len() as u64 + 1;
            kept.extend((line != "sent").then_some(start..end - 1));
        }
        is_accepted.set(true);
        put_back(disk, "current", "taken", &kept)
    }

    #[test]
    fn a_power_cut_during_a_retry_loses_no_dead_letter() {
        let mut done = 0;
        for (seed, calls) in (0..100).flat_map(|seed| (0..40).map(move |calls| (seed, calls))) {
            let disk = Disk::new(seed);
            (&disk as &dyn Folder).replace("current", b"kept\nsent\n").unwrap();
            let (is_added, is_accepted) = (Cell::new(false), Cell::new(false));
            disk.cut_power_after(calls);
            let is_done = retry(&disk, &is_added, &is_accepted).is_ok();
            disk.heal();
            disk.crash();
            let [current, taken] = ["current", "taken"].map(|name| lines_on(&disk, name).unwrap());
            let has = |line: &str| current.iter().chain(&taken).any(|found| found == line);
            let context = format!("seed {seed}, {calls} calls: {current:?}, {taken:?}");
            assert!(has("kept") && (has("new") || !is_added.get()) && (has("sent") || is_accepted.get()), "{context}");
            assert!(!is_done || (taken.is_empty() && current == ["new", "kept"]), "done: {context}");
            done += u32::from(is_done);
            retry(&disk, &is_added, &is_accepted).unwrap();
            let after = lines_on(&disk, "current").unwrap();
            assert!(
                after.contains(&"kept".to_owned()) && after.contains(&"new".to_owned()),
                "{context}, then {after:?}"
            );
        }
        assert!(done >= 100, "some of the power cuts come after the end");
    }

    #[test]
    fn a_line_that_is_too_long_is_numbered_and_not_kept_in_memory() {
        let long = MAX_LINE_BYTES as u64;
        let input = std::io::repeat(b'x').take(long).chain(&b"\n{}\n\n"[..]);
        let input = input.chain(std::io::repeat(b'y').take(long + 5)).chain(&b"\nend"[..]);
        let lines: Vec<_> = NumberedLines::new(BufReader::new(input)).map(Result::unwrap).collect();
        let lengths: Vec<_> = lines.iter().map(|line| line.text.as_ref().map(Vec::len)).collect();
        assert_eq!(lengths, [Some(MAX_LINE_BYTES), Some(2), Some(0), None, Some(3)]);
        let places: Vec<_> = lines.iter().map(|line| (line.number, line.at.clone())).collect();
        let from = |start: u64, bytes: u64| start..start + bytes;
        let expected =
            [from(0, long), from(long + 1, 2), from(long + 4, 0), from(long + 5, long + 5), from(2 * long + 11, 3)];
        assert_eq!(places, (1..).zip(expected).collect::<Vec<_>>());
        let endless = std::io::repeat(b'z').take(2 * long);
        let lines: Vec<_> = NumberedLines::new(BufReader::new(endless)).map(Result::unwrap).collect();
        assert_eq!((lines.len(), &lines[0].at, &lines[0].text), (1, &(0..2 * long), &None));
    }

    #[test]
    fn a_line_that_is_too_long_stays_when_others_are_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letters");
        let long = "x".repeat(MAX_LINE_BYTES + 1);
        std::fs::write(&path, format!("one\n{long}\ntwo\n")).unwrap();
        let folder = crate::disk::OsFolder::new(folder.path());
        rewrite(&folder, "letters", "letters.new", 0, |line| {
            assert!(line.len() < 9);
            if line == b"one" { Change::Remove } else { Change::Replace(b"2".to_vec()) }
        })
        .unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.strip_suffix("\n2\n").is_some_and(|left| left == long), "{} bytes", text.len());
    }

    #[test]
    fn a_line_that_does_not_fit_on_the_disk_leaves_no_piece() {
        let disk = Disk::new(0);
        add(&disk, "letters", &["one"]).unwrap();
        disk.set_free_bytes(9);
        add(&disk, "letters", &["two", "three and more"]).unwrap_err();
        disk.heal();
        add(&disk, "letters", &["four"]).unwrap();
        assert_eq!(lines_on(&disk, "letters").unwrap(), ["one", "four"]);
    }

    #[test]
    fn a_power_cut_while_lines_are_removed_in_place_damages_no_other_line() {
        const LINES: [&str; 5] = ["first", "kept", "second", "last", "third"];
        let change = |line: &[u8]| if matches!(line, b"kept" | b"last") { Change::Keep } else { Change::Remove };
        let mut done = 0;
        for (seed, calls) in (0..100).flat_map(|seed| (0..20).map(move |calls| (seed, calls))) {
            let disk = Disk::new(seed);
            (&disk as &dyn Folder).replace("letters", (LINES.join("\n") + "\n").as_bytes()).unwrap();
            disk.set_free_bytes(0);
            disk.cut_power_after(calls);
            let is_done = blank(&disk, "letters", change).is_ok();
            disk.heal();
            disk.crash();
            let found = lines_on(&disk, "letters").unwrap();
            let context = format!("seed {seed}, {calls} calls: {found:?}");
            let left: Vec<&str> = found.iter().map(String::as_str).filter(|line| !line.starts_with(' ')).collect();
            assert!(left.iter().all(|line| LINES.contains(line)), "{context}");
            assert!(left.contains(&"kept") && left.contains(&"last"), "{context}");
            let blanked = ["     ", "kept", "      ", "last"];
            assert!(!is_done || found == blanked, "done: {context}");
            done += u32::from(is_done);
            blank(&disk, "letters", change).unwrap();
            assert_eq!(lines_on(&disk, "letters").unwrap(), blanked, "{context}");
        }
        assert!(done >= 100, "some of the power cuts come after the end");
    }

    #[test]
    fn a_rewrite_without_enough_disk_space_leaves_the_file_and_no_new_one() {
        let disk = Disk::new(0);
        add(&disk, "letters", &["one", "two", "three"]).unwrap();
        let rewrite_all = || {
            let change = |line: &[u8]| if line == b"two" { Change::Remove } else { Change::Keep };
            rewrite(&disk, "letters", "letters.new", 4, change)
        };
        for (free, writes) in [(9, false), (1 << 20, true)] {
            disk.set_free_bytes(free);
            if writes {
                disk.fail(Call::Write); // another program has filled the disk
            }
            rewrite_all().unwrap_err();
            assert_eq!(disk.names().unwrap(), ["letters"]);
            assert_eq!(disk.space().unwrap().free < free, writes, "what does not fit is not begun");
            disk.heal();
        }
        rewrite_all().unwrap();
        assert_eq!(lines_on(&disk, "letters").unwrap(), ["one", "three"]);
    }
}
