//! A disk in memory that keeps what was synced, makes what it likes of the rest, and fails when told to.
//!
//! Each file and the folder itself are there twice: as programs see them **now**, and as they are **kept**.
//! What is done changes what is now, and is remembered; a sync carries it over to what is kept. When the
//! power fails, each change that was not synced is kept, lost, or kept in part, each for itself: later ones
//! may survive earlier ones. A sync of a file that fails carries over some changes and forgets the others, as
//! the kernel does: what is now stays, the next sync succeeds, and the disk never gets them. A sync of names
//! that fails leaves them as they were: names are in the journal of a file system, which does not forget.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Folder, How, OpenFile, Space};

/// The disk: a handle, of which there may be many.
#[derive(Debug, Clone)]
pub(crate) struct Disk(Arc<Mutex<State>>);

/// What can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Names,
    Open,
    Rename,
    Remove,
    SyncNames,
    Read,
    Write,
    SetLen,
    Sync,
}

#[derive(Debug)]
struct State {
    files: Vec<Contents>,
    now: Names,
    kept: Names,
    changes: Vec<NameChange>,
    dice: StdRng,
    /// The next call of this kind fails.
    failing: Option<Call>,
    /// So many bytes more may files grow.
    room: u64,
    /// The process has no file descriptors left.
    out_of_files: bool,
    /// A write takes no more bytes than this.
    max_write: usize,
    /// After so many calls the power fails: nothing happens any more.
    calls_left: u32,
}

type Names = BTreeMap<String, usize>;

#[derive(Debug, Default)]
struct Contents {
    now: Vec<u8>,
    kept: Vec<u8>,
    changes: Vec<Change>,
}

#[derive(Debug, Clone)]
enum Change {
    Write(usize, Vec<u8>),
    SetLen(usize),
}

#[derive(Debug, Clone)]
enum NameChange {
    Link(String, usize),
    Rename(String, String, usize),
    Unlink(String),
}

#[derive(Debug)]
struct DiskFile {
    disk: Disk,
    file: usize,
}

impl Disk {
    /// An empty disk whose whims follow from `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            files: Vec::new(),
            now: Names::new(),
            kept: Names::new(),
            changes: Vec::new(),
            dice: StdRng::seed_from_u64(seed),
            failing: None,
            room: u64::MAX,
            out_of_files: false,
            max_write: usize::MAX,
            calls_left: u32::MAX,
        })))
    }

    /// The next call of this kind fails, once.
    pub(crate) fn fail(&self, call: Call) {
        self.lock().failing = Some(call);
    }

    /// Files may grow by so many bytes, all in all.
    pub(crate) fn set_room(&self, bytes: u64) {
        self.lock().room = bytes;
    }

    /// No file can be opened any more.
    pub(crate) fn run_out_of_files(&self) {
        self.lock().out_of_files = true;
    }

    /// A write takes at most so many bytes at once.
    pub(crate) fn set_max_write(&self, bytes: usize) {
        self.lock().max_write = bytes;
    }

    /// The power fails after so many calls more.
    pub(crate) fn fail_power_after(&self, calls: u32) {
        self.lock().calls_left = calls;
    }

    /// All is well from now on.
    pub(crate) fn heal(&self) {
        let mut state = self.lock();
        (state.failing, state.room, state.max_write, state.calls_left) = (None, u64::MAX, usize::MAX, u32::MAX);
        state.out_of_files = false;
    }

    /// Whether all is well.
    pub(crate) fn is_sound(&self) -> bool {
        let state = self.lock();
        state.failing.is_none() && state.room == u64::MAX && state.calls_left == u32::MAX
    }

    /// Whether the power has failed.
    pub(crate) fn is_dead(&self) -> bool {
        self.lock().calls_left == 0
    }

    /// The power comes back. What was not synced is there, gone, or there in part.
    pub(crate) fn crash(&self) {
        let state = &mut *self.lock();
        for change in std::mem::take(&mut state.changes) {
            if state.dice.random() {
                change.apply(&mut state.kept);
            }
        }
        state.now.clone_from(&state.kept);
        for file in &mut state.files {
            for change in std::mem::take(&mut file.changes) {
                change.apply_in_part(&mut file.kept, &mut state.dice);
            }
            file.now.clone_from(&file.kept);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no call panics")
    }

    /// The state, for a call, unless the call fails.
    fn call(&self, call: Call) -> std::result::Result<MutexGuard<'_, State>, (Error, MutexGuard<'_, State>)> {
        let mut state = self.lock();
        if state.calls_left == 0 {
            return Err((Error::other("the power is gone"), state));
        }
        if state.calls_left != u32::MAX {
            state.calls_left -= 1;
        }
        if state.failing == Some(call) {
            state.failing = None;
            return Err((Error::other(format!("{call:?} was told to fail")), state));
        }
        Ok(state)
    }
}

impl Change {
    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Self::Write(offset, bytes) => {
                let end = offset + bytes.len();
                to.resize(to.len().max(end), 0);
                to[*offset..end].copy_from_slice(bytes);
            }
            Self::SetLen(len) => to.resize(*len, 0),
        }
    }

    fn apply_in_part(self, to: &mut Vec<u8>, dice: &mut StdRng) {
        match (dice.random_range(0..3), self) {
            (0, _) => {}
            (1, Self::Write(offset, bytes)) => {
                let from = dice.random_range(0..bytes.len());
                let to_end = dice.random_range(from..=bytes.len());
                Self::Write(offset + from, bytes[from..to_end].to_vec()).apply(to);
            }
            (_, change) => change.apply(to),
        }
    }
}

impl NameChange {
    fn apply(&self, to: &mut Names) {
        match self {
            Self::Link(name, file) => {
                to.insert(name.clone(), *file);
            }
            Self::Rename(from, into, file) => {
                to.remove(from);
                to.insert(into.clone(), *file);
            }
            Self::Unlink(name) => {
                to.remove(name);
            }
        }
    }
}

impl State {
    fn rename(&mut self, change: NameChange) {
        change.apply(&mut self.now);
        self.changes.push(change);
    }

    fn file_of(&self, name: &str) -> Result<usize> {
        self.now.get(name).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn change(&mut self, file: usize, change: Change) {
        let file = &mut self.files[file];
        change.apply(&mut file.now);
        file.changes.push(change);
    }
}

impl Folder for Disk {
    fn path(&self) -> &Path {
        Path::new("disk")
    }

    fn make(&self) -> Result<()> {
        Ok(())
    }

    fn names(&self) -> Result<Vec<String>> {
        let state = self.call(Call::Names).map_err(|(error, _)| error)?;
        Ok(state.now.keys().cloned().collect())
    }

    fn open(&self, name: &str, how: How) -> Result<Box<dyn OpenFile>> {
        let mut state = self.call(Call::Open).map_err(|(error, _)| error)?;
        if state.out_of_files {
            return Err(nix::errno::Errno::EMFILE.into());
        }
        let file = match (state.file_of(name), how) {
            (Ok(file), How::Replace) => {
                state.change(file, Change::SetLen(0));
                file
            }
            (Ok(file), _) => file,
            (Err(_), How::Mend | How::Replace) => {
                state.files.push(Contents::default());
                let file = state.files.len() - 1;
                state.rename(NameChange::Link(name.to_owned(), file));
                file
            }
            (Err(error), How::Read | How::Write) => return Err(error),
        };
        Ok(Box::new(DiskFile { disk: self.clone(), file }))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut state = self.call(Call::Rename).map_err(|(error, _)| error)?;
        let file = state.file_of(from)?;
        state.rename(NameChange::Rename(from.to_owned(), to.to_owned(), file));
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut state = self.call(Call::Remove).map_err(|(error, _)| error)?;
        state.file_of(name)?;
        state.rename(NameChange::Unlink(name.to_owned()));
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let (outcome, mut state) = match self.call(Call::SyncNames) {
            Ok(state) => (Ok(()), state),
            Err((error, state)) => (Err(error), state),
        };
        let state = &mut *state;
        if outcome.is_ok() {
            state.changes.drain(..).for_each(|change| change.apply(&mut state.kept));
        }
        outcome
    }

    fn space(&self) -> Result<Space> {
        Ok(Space { free: self.lock().room, total: 1 << 40 })
    }
}

impl OpenFile for DiskFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        let state = self.disk.call(Call::Read).map_err(|(error, _)| error)?;
        let there = state.files[self.file].now.get(offset as usize..).unwrap_or_default();
        let count = there.len().min(bytes.len());
        bytes[..count].copy_from_slice(&there[..count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        let (outcome, mut state) = match self.disk.call(Call::Write) {
            Ok(state) => (Ok(()), state),
            Err((error, state)) => (Err(error), state),
        };
        if state.calls_left == 0 && outcome.is_err() {
            return outcome.map(|()| 0);
        }
        let len = state.files[self.file].now.len() as u64;
        let fits = (len.max(offset) - offset).saturating_add(state.room) as usize;
        let count = bytes.len().min(fits).min(state.max_write);
        // Who is told of an error is not told how much was written.
        let count = if outcome.is_ok() { count } else { count / 2 };
        state.room -= if state.room == u64::MAX { 0 } else { (offset + count as u64).saturating_sub(len) };
        if count > 0 {
            state.change(self.file, Change::Write(offset as usize, bytes[..count].to_vec()));
        }
        outcome.and(if count > 0 { Ok(count) } else { Err(ErrorKind::StorageFull.into()) })
    }

    fn len(&self) -> Result<u64> {
        Ok(self.disk.lock().files[self.file].now.len() as u64)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let mut state = self.disk.call(Call::SetLen).map_err(|(error, _)| error)?;
        let freed = (state.files[self.file].now.len() as u64).saturating_sub(len);
        state.room = state.room.saturating_add(freed);
        state.change(self.file, Change::SetLen(len as usize));
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let (outcome, mut state) = match self.disk.call(Call::Sync) {
            Ok(state) => (Ok(()), state),
            Err((error, state)) => (Err(error), state),
        };
        let State { files, dice, calls_left, .. } = &mut *state;
        let file = &mut files[self.file];
        if outcome.is_ok() {
            file.changes.drain(..).for_each(|change| change.apply(&mut file.kept));
        } else if *calls_left > 0 {
            file.changes.drain(..).for_each(|change| change.apply_in_part(&mut file.kept, dice));
        }
        outcome
    }
}
