//! The outcome of a request or batch.

use std::fmt;
use std::time::Duration;

use strum::{EnumCount, IntoEnumIterator};

use super::{Listed, Overwritten};
use crate::telemetry::{RefusalEntry, What};
use crate::wire::{Code, Ignored};

/// The outcome of the readings of one request: `received = accepted + rejected`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The number of readings in the request, without those in `older`.
    pub received: u32,
    /// The number of admitted readings. They are in the log once the [`super::Submission`] is durable.
    pub accepted: u32,
    /// The number of rejected readings, which are not in the log.
    pub rejected: u32,
    /// The first hundred rejections, of readings and of single values.
    pub listed: Vec<Listed>,
    /// The parts of the body that were dropped on purpose.
    pub ignored: IgnoredFields,
    /// The readings that overwrite others of the request.
    pub overwritten: Overwritten,
    /// The number of repeated readings that were left out, because the server has newer values.
    pub older: u32,
    /// The number of values that were left out of accepted readings.
    ///
    /// The server has newer values in their place.
    pub older_values: u32,
    /// The time until the limits per device admit the readings they have rejected.
    ///
    /// `None` if they have rejected none, or if waiting does not help.
    pub retry_after: Option<Duration>,
    /// The number of rejected readings by code.
    pub(super) by_code: ByCode,
    /// The number of rejected values of accepted readings by code.
    pub(super) values_by_code: ByCode,
}

/// The parts of a body that were dropped on purpose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IgnoredFields {
    pub(super) counts: [u32; Ignored::COUNT],
    /// The first names of the dropped parts, each once: at most [`MAX_IGNORED_NAMES`].
    names: Vec<Box<str>>,
}

/// The most names of ignored fields that an answer lists.
const MAX_IGNORED_NAMES: usize = 10;

/// The longest name of an ignored field that an answer lists, in bytes.
const MAX_IGNORED_NAME_BYTES: usize = 128;

impl IgnoredFields {
    pub(super) fn add(&mut self, what: Ignored, name: &str) {
        self.counts[what as usize] += 1;
        let is_new = || self.names.iter().all(|known| **known != *name);
        if name.len() <= MAX_IGNORED_NAME_BYTES && self.names.len() < MAX_IGNORED_NAMES && is_new() {
            self.names.push(name.into());
        }
    }

    /// The number of ignored fields.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.counts.iter().sum()
    }

    /// The first names of ignored fields, each once.
    #[must_use]
    pub fn names(&self) -> &[Box<str>] {
        &self.names
    }
}

/// The number of rejections by [`Code`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ByCode([u32; Code::COUNT]);

impl Receipt {
    /// The rejections, for log lines.
    #[must_use]
    pub fn refusals(&self) -> Vec<RefusalEntry> {
        self.all_by_code().refusals(&self.listed)
    }

    /// The number of rejected readings and values by code.
    pub(super) fn all_by_code(&self) -> ByCode {
        let mut all = self.by_code;
        all.add(&self.values_by_code);
        all
    }

    /// The number of rejected values of accepted readings.
    #[must_use]
    pub fn rejected_values(&self) -> u32 {
        self.values_by_code.sum()
    }

    /// Whether everything was accepted: each reading with each of its values.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.rejected == 0 && self.rejected_values() == 0
    }

    /// Whether at least one reading was rejected with this code.
    pub(super) const fn has(&self, code: Code) -> bool {
        self.by_code.0[code as usize] > 0
    }

    /// Counts readings, and values of other readings, that were left out because they are older.
    pub(super) fn leave_out(&mut self, readings: u64, values: u64) {
        (self.older, self.older_values) = (readings as u32, values as u32);
        self.received -= self.older;
        self.accepted -= self.older;
    }

    /// Counts the values that differ from the first as ignored: the store keeps the first.
    pub(super) fn ignore_later_values(&mut self) {
        let Overwritten { readings: values, first } = std::mem::take(&mut self.overwritten);
        for value in first {
            self.ignored.add(Ignored::LaterValue, &value.metric);
        }
        self.ignored.counts[Ignored::LaterValue as usize] = values; // also those without a name
    }

    /// Rejects the accepted readings too, with this code.
    ///
    /// Forgets their rejected values, ignored fields and overwritten values.
    pub(super) fn reject_accepted(&mut self, code: Code) {
        let accepted = std::mem::take(&mut self.accepted);
        self.rejected += accepted;
        self.by_code.0[code as usize] += accepted;
        (self.values_by_code, self.ignored, self.overwritten) = Default::default();
    }
}

impl ByCode {
    pub(super) const fn count(&mut self, code: Code) {
        self.0[code as usize] += 1;
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }

    pub(super) fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|code| self.0[code] - earlier.0[code]))
    }

    pub(super) fn sum(&self) -> u32 {
        self.0.iter().sum()
    }

    pub(super) fn counted(&self) -> impl Iterator<Item = (Code, u32)> {
        Code::iter().zip(self.0).filter(|&(_, count)| count > 0)
    }

    /// One entry for each code, with the first listed rejection as example.
    pub(super) fn refusals(&self, listed: &[Listed]) -> Vec<RefusalEntry> {
        let refusal = |(code, count): (Code, u32)| {
            let example = listed.iter().find(|listed| listed.rejection.code == code).map(Listed::to_string);
            let (code, example) = (code.as_str(), example.unwrap_or_default());
            RefusalEntry { what: What::Readings, code, count: count.into(), example }
        };
        self.counted().map(refusal).collect()
    }
}

/// The text in log lines.
impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}")?,
            None => write!(f, "index {}", self.index)?,
        }
        if let Some(device) = &self.device {
            write!(f, ", device {device}")?;
        }
        write!(f, ": {}", self.rejection.detail)
    }
}
