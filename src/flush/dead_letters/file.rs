//! Durable changes of a file of lines: lines are added, the file is taken away, lines are put back.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::ops::Range;
use std::path::Path;

use crate::disk::{Folder, OpenFile, OpenMode};

/// Renames a file to `taken`, unless that exists. Returns false if neither exists.
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
        add_lines(folder, name, kept.iter().map(|range| line_at(&*taken, range)), u64::MAX)?;
    }
    folder.remove(taken)?;
    folder.sync()
}

/// The change of a line.
pub(super) enum Change {
    Keep,
    Remove,
    Replace(Vec<u8>),
}

/// Changes the lines of a file, one after the other, by way of a new file named `new`. Writes nothing if all
/// lines stay.
pub(super) fn rewrite(
    folder: &dyn Folder,
    name: &str,
    new: &str,
    mut change: impl FnMut(&[u8]) -> Change,
) -> std::io::Result<()> {
    let old = folder.open(name, OpenMode::Read)?;
    let mut has_changed = false;
    {
        let new = folder.open(new, OpenMode::Truncate)?;
        let (mut lines, mut end) = (BufReader::new(FileBytes { file: &*old, at: 0 }), 0);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line)? > 0 {
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            match change(text) {
                Change::Keep => {}
                Change::Remove => {
                    line.clear();
                    has_changed = true;
                }
                Change::Replace(with) => {
                    line = with;
                    line.push(b'\n');
                    has_changed = true;
                }
            }
            new.write_all_at(&line, end)?;
            end += line.len() as u64;
            line.clear();
        }
        new.sync()?;
    }
    if has_changed {
        folder.rename(new, name)?;
    } else {
        folder.remove(new)?;
    }
    folder.sync()
}

/// Visits the lines of a file.
pub(super) fn each_line(folder: &dyn Folder, name: &str, mut visit: impl FnMut(&[u8])) -> std::io::Result<()> {
    let file = folder.open(name, OpenMode::Read)?;
    let mut lines = BufReader::new(FileBytes { file: &*file, at: 0 });
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        visit(line.strip_suffix(b"\n").unwrap_or(&line));
        line.clear();
    }
    Ok(())
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

/// Reads a byte range of a file, and adds a line end.
fn line_at(file: &dyn OpenFile, range: &Range<u64>) -> std::io::Result<Vec<u8>> {
    let bytes = range.end.saturating_sub(range.start);
    let mut line = vec![0; usize::try_from(bytes).map_err(|_| ErrorKind::FileTooLarge)?];
    if file.fill(&mut line, range.start)? < line.len() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    line.push(b'\n');
    Ok(line)
}

/// Adds whole lines to a file of at most `max_bytes`, and creates the file if it does not exist. When this
/// returns, the lines survive a crash.
pub(super) fn add_lines(
    folder: &dyn Folder,
    name: &str,
    lines: impl IntoIterator<Item = std::io::Result<Vec<u8>>>,
    max_bytes: u64,
) -> std::io::Result<()> {
    let file = folder.open(name, OpenMode::Create)?;
    let end = file.len()?;
    if let Err(error) = write_lines(&*file, &folder.path_of(name), end, lines, max_bytes) {
        let _ = file.set_len(end); // otherwise each retry leaves a piece of a line
        return Err(error);
    }
    file.sync()?;
    folder.sync() // always: a killed process may have created the file and not synced its name
}

/// Writes lines at the end of a file. If a crash or a full disk has cut off its last line, a line end
/// precedes them.
fn write_lines(
    file: &dyn OpenFile,
    path: &Path,
    mut end: u64,
    lines: impl IntoIterator<Item = std::io::Result<Vec<u8>>>,
    max_bytes: u64,
) -> std::io::Result<()> {
    let mut last = *b"\n";
    file.fill(&mut last, end.saturating_sub(1))?;
    let separator = (last != *b"\n").then(|| Ok(b"\n".to_vec()));
    for line in separator.into_iter().chain(lines) {
        let line = line?;
        if end + line.len() as u64 > max_bytes {
            let full = format!("{} has reached flush.max_dead_letter_bytes ({max_bytes} bytes)", path.display());
            return Err(std::io::Error::new(ErrorKind::StorageFull, full));
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
    use crate::disk::faulty::Disk;

    fn add(disk: &Disk, name: &str, lines: &[&str]) -> std::io::Result<()> {
        add_lines(disk, name, lines.iter().map(|line| Ok(format!("{line}\n").into())), 100)
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
    fn a_line_that_does_not_fit_on_the_disk_leaves_no_piece() {
        let disk = Disk::new(0);
        add(&disk, "letters", &["one"]).unwrap();
        disk.set_free_bytes(9);
        add(&disk, "letters", &["two", "three and more"]).unwrap_err();
        disk.heal();
        add(&disk, "letters", &["four"]).unwrap();
        assert_eq!(lines_on(&disk, "letters").unwrap(), ["one", "four"]);
    }
}
