//! A disk in memory that loses unsynced changes at power cuts, and can fail.
//!
//! Each file has two states: the **current** bytes, which programs read, and the **durable** bytes, which
//! survive a power cut. The folder has two such states of its names. A call changes the current state and
//! records the change. A sync applies the recorded changes to the durable state.
//!
//! At a power cut each unsynced change is applied, lost, or applied in part, independently of the others: a
//! later change may survive while an earlier one is lost. A failed sync of a file does the same, and then
//! forgets the changes, as the kernel does: programs still read the current bytes and the next sync succeeds,
//! but the lost changes never become durable. A failed sync of names forgets nothing, because the file system
//! keeps names in its journal.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Folder, OpenFile, OpenMode, Space};

/// A disk with one folder. Clones are handles to the same disk.
#[derive(Debug, Clone)]
pub(crate) struct Disk(Arc<Mutex<State>>);

/// A kind of call that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Names,
    Open,
    Create,
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
    current: Names,
    durable: Names,
    changes: Vec<NameChange>,
    rng: StdRng,
    /// The kind of call whose next call fails.
    failing: Option<Call>,
    /// The number of bytes by which all files together may still grow.
    free_bytes: u64,
    /// The calls that fail because the disk is full.
    full: Option<Full>,
    /// The error of a call that fails for lack of space.
    full_error: ErrorKind,
    /// Whether the process has no file descriptors left.
    out_of_files: bool,
    /// The most bytes that one write accepts.
    max_write: usize,
    /// The number of calls before the power cut. Later calls fail and change nothing.
    calls_left: u32,
}

/// A number of calls that fail for lack of space, even if they need none.
#[derive(Debug, Default)]
struct Full {
    /// The number of calls that succeed before the first one fails.
    after: u32,
    /// The number of calls that still fail.
    calls: u32,
    /// The kinds of the calls that have failed so far.
    failed: Vec<Call>,
}

type Names = BTreeMap<String, usize>;

#[derive(Debug, Default)]
struct Contents {
    current: Vec<u8>,
    durable: Vec<u8>,
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
    /// An empty disk whose random choices follow from `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            files: Vec::new(),
            current: Names::new(),
            durable: Names::new(),
            changes: Vec::new(),
            rng: StdRng::seed_from_u64(seed),
            failing: None,
            free_bytes: u64::MAX,
            full: None,
            full_error: ErrorKind::StorageFull,
            out_of_files: false,
            max_write: usize::MAX,
            calls_left: u32::MAX,
        })))
    }

    /// Makes the next call of this kind fail, once.
    pub(crate) fn fail(&self, call: Call) {
        self.lock().failing = Some(call);
    }

    /// Lets all files together grow by `bytes` more.
    pub(crate) fn set_free_bytes(&self, bytes: u64) {
        self.lock().free_bytes = bytes;
    }

    /// Makes `calls` calls fail for lack of space, after `after` calls that succeed.
    ///
    /// Afterwards the disk has space again. Calls that only open, read or list files do not count.
    pub(crate) fn fill_for(&self, after: u32, calls: u32) {
        self.lock().full = Some(Full { after, calls, failed: Vec::new() });
    }

    /// Sets the error of a call that fails for lack of space, such as that of a quota.
    pub(crate) fn set_full_error(&self, error: ErrorKind) {
        self.lock().full_error = error;
    }

    /// The kinds of the calls that have failed since [`Self::fill_for`].
    pub(crate) fn failed_for_space(&self) -> Vec<Call> {
        self.lock().full.as_ref().map(|full| full.failed.clone()).unwrap_or_default()
    }

    /// Makes each call that opens a file fail, as without file descriptors.
    pub(crate) fn run_out_of_files(&self) {
        self.lock().out_of_files = true;
    }

    /// Lets each write accept at most `bytes`.
    pub(crate) fn set_max_write(&self, bytes: usize) {
        self.lock().max_write = bytes;
    }

    /// Cuts the power after this many more calls.
    pub(crate) fn cut_power_after(&self, calls: u32) {
        self.lock().calls_left = calls;
    }

    /// Ends all faults.
    pub(crate) fn heal(&self) {
        let mut state = self.lock();
        (state.failing, state.free_bytes, state.max_write, state.calls_left) = (None, u64::MAX, usize::MAX, u32::MAX);
        (state.full, state.out_of_files) = (None, false);
    }

    /// Whether no call will fail, space is unlimited, and no power cut is set.
    ///
    /// A limit of the writes and missing file descriptors do not count.
    pub(crate) fn is_sound(&self) -> bool {
        let state = self.lock();
        state.failing.is_none() && state.free_bytes == u64::MAX && state.full.is_none() && state.calls_left == u32::MAX
    }

    /// Whether the power is cut.
    pub(crate) fn has_no_power(&self) -> bool {
        self.lock().calls_left == 0
    }

    /// Restarts after a power cut, which may lose any unsynced changes.
    pub(crate) fn crash(&self) {
        let state = &mut *self.lock();
        for change in std::mem::take(&mut state.changes) {
            if state.rng.random() {
                change.apply(&mut state.durable);
            }
        }
        state.current.clone_from(&state.durable);
        for file in &mut state.files {
            for change in std::mem::take(&mut file.changes) {
                change.apply_in_part(&mut file.durable, &mut state.rng);
            }
            file.current.clone_from(&file.durable);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no call panics")
    }

    /// Starts a call. Returns the state, or an error and the state if the call fails.
    fn call(&self, call: Call) -> std::result::Result<MutexGuard<'_, State>, (Error, MutexGuard<'_, State>)> {
        let mut state = self.lock();
        if state.calls_left == 0 {
            return Err((Error::other("the power is cut"), state));
        }
        if state.calls_left != u32::MAX {
            state.calls_left -= 1;
        }
        if state.failing == Some(call) {
            state.failing = None;
            return Err((Error::other(format!("{call:?} was made to fail")), state));
        }
        if state.full.as_mut().is_some_and(|full| full.fails(call)) {
            return Err((state.full_error.into(), state));
        }
        Ok(state)
    }
}

impl Full {
    /// Counts a call. Returns whether it fails.
    fn fails(&mut self, call: Call) -> bool {
        if matches!(call, Call::Names | Call::Open | Call::Read) {
            return false;
        }
        if self.after > 0 || self.calls == 0 {
            self.after = self.after.saturating_sub(1);
            return false;
        }
        self.calls -= 1;
        self.failed.push(call);
        true
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

    fn apply_in_part(self, to: &mut Vec<u8>, rng: &mut StdRng) {
        match (rng.random_range(0..3), self) {
            (0, _) => {}
            (1, Self::Write(offset, bytes)) => {
                let from = rng.random_range(0..bytes.len());
                let to_end = rng.random_range(from..=bytes.len());
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
        change.apply(&mut self.current);
        self.changes.push(change);
    }

    fn file_of(&self, name: &str) -> Result<usize> {
        self.current.get(name).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn change(&mut self, file: usize, change: Change) {
        let file = &mut self.files[file];
        change.apply(&mut file.current);
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
        Ok(state.current.keys().cloned().collect())
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Box<dyn OpenFile>> {
        let creates = match mode {
            OpenMode::Read | OpenMode::Hold | OpenMode::Write => false,
            OpenMode::Create | OpenMode::Truncate => !self.lock().current.contains_key(name),
        };
        let call = if creates { Call::Create } else { Call::Open };
        let mut state = self.call(call).map_err(|(error, _)| error)?;
        if state.out_of_files {
            return Err(nix::errno::Errno::EMFILE.into());
        }
        let file = match (state.file_of(name), mode) {
            (Ok(file), OpenMode::Truncate) => {
                state.change(file, Change::SetLen(0));
                file
            }
            (Ok(file), _) => file,
            (Err(_), OpenMode::Create | OpenMode::Truncate) => {
                state.files.push(Contents::default());
                let file = state.files.len() - 1;
                state.rename(NameChange::Link(name.to_owned(), file));
                file
            }
            (Err(error), OpenMode::Read | OpenMode::Hold | OpenMode::Write) => return Err(error),
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
            state.changes.drain(..).for_each(|change| change.apply(&mut state.durable));
        }
        outcome
    }

    fn space(&self) -> Result<Space> {
        Ok(Space { free: self.lock().free_bytes, total: 1 << 40 })
    }
}

impl OpenFile for DiskFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        let state = self.disk.call(Call::Read).map_err(|(error, _)| error)?;
        let there = state.files[self.file].current.get(offset as usize..).unwrap_or_default();
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
        let len = state.files[self.file].current.len() as u64;
        let fits = (len.max(offset) - offset).saturating_add(state.free_bytes) as usize;
        let count = bytes.len().min(fits).min(state.max_write);
        // A write that fails may have written something: here, half of the bytes.
        let count = if outcome.is_ok() { count } else { count / 2 };
        state.free_bytes -= if state.free_bytes == u64::MAX { 0 } else { (offset + count as u64).saturating_sub(len) };
        if count > 0 {
            state.change(self.file, Change::Write(offset as usize, bytes[..count].to_vec()));
        }
        outcome.and(if count > 0 { Ok(count) } else { Err(state.full_error.into()) })
    }

    fn len(&self) -> Result<u64> {
        Ok(self.disk.lock().files[self.file].current.len() as u64)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let mut state = self.disk.call(Call::SetLen).map_err(|(error, _)| error)?;
        let freed = (state.files[self.file].current.len() as u64).saturating_sub(len);
        state.free_bytes = state.free_bytes.saturating_add(freed);
        state.change(self.file, Change::SetLen(len as usize));
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let (outcome, mut state) = match self.disk.call(Call::Sync) {
            Ok(state) => (Ok(()), state),
            Err((error, state)) => (Err(error), state),
        };
        let State { files, rng, calls_left, .. } = &mut *state;
        let file = &mut files[self.file];
        if outcome.is_ok() {
            file.changes.drain(..).for_each(|change| change.apply(&mut file.durable));
        } else if *calls_left > 0 {
            file.changes.drain(..).for_each(|change| change.apply_in_part(&mut file.durable, rng));
        }
        outcome
    }

    fn is_held(&self) -> bool {
        false
    }

    fn is_removed(&self) -> bool {
        !self.disk.lock().current.values().any(|&file| file == self.file)
    }
}
