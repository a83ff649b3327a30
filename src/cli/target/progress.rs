//! How far a command is: a bar or lines for people, and a file for the next attempt.
//!
//! ```json
//! {"version":1,"from":"sqlite /data/tidegauge.sqlite","to":"mongodb tidegauge.buckets at h:27017",
//!  "device":"LIGHT-FL02-ZONE4","fromMs":1776693600000}
//! ```
//! The command knows the meaning of the keys after `to`.

use std::io::{ErrorKind, IsTerminal};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidegauge::common::small_file::read_small_regular_file;
use tidegauge::common::version::Version1;
use tidegauge::disk::replace_file;

use super::super::Usage;

/// The time between two lines if standard error is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// The file with the place up to which all is written.
pub(in super::super) struct ProgressFile {
    path: PathBuf,
    from: String,
    to: String,
    /// The advice if the file is of another copy.
    advice: &'static str,
}

#[derive(Serialize, Deserialize)]
struct Saved<P> {
    version: Version1,
    from: String,
    to: String,
    #[serde(flatten)]
    place: P,
}

impl ProgressFile {
    pub(in super::super) fn new(path: PathBuf, [from, to]: &[String; 2]) -> Self {
        Self { path, from: from.clone(), to: to.clone(), advice: "finish that one, or remove the file" }
    }

    /// Gives other advice if the file is of another copy.
    pub(in super::super) fn with_advice(self, advice: &'static str) -> Self {
        Self { advice, ..self }
    }

    /// The place at which the command continues; `None`: at the beginning.
    pub(in super::super) fn load<P: DeserializeOwned>(&self) -> anyhow::Result<Option<P>> {
        let shown = || self.path.display().to_string();
        let bytes = match read_small_regular_file(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.with_context(shown)?,
        };
        let saved: Saved<P> = serde_json::from_slice(&bytes).map_err(|error| {
            let why = "it does not say how far a command is; remove it to begin at the beginning";
            Usage(format!("{}: {why} ({error})", shown()))
        })?;
        if (&saved.from, &saved.to) != (&self.from, &self.to) {
            let (path, Saved { from, to, .. }) = (shown(), saved);
            let why = format!("{path} is of a copy from {from} to {to}: {}", self.advice);
            return Err(Usage(why).into());
        }
        Ok(Some(saved.place))
    }

    /// Replaces the file, durably.
    pub(in super::super) fn save(&self, place: &impl Serialize) -> anyhow::Result<()> {
        let saved = Saved { version: Version1, from: self.from.clone(), to: self.to.clone(), place };
        replace_file(&self.path, &serde_json::to_vec(&saved)?).with_context(|| self.path.display().to_string())
    }

    /// Removes the file: the next attempt begins at the beginning.
    pub(in super::super) fn remove(&self) -> anyhow::Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.with_context(|| self.path.display().to_string()),
        }
    }
}

/// Prints lines on standard error, above the bar.
#[derive(Clone)]
pub(in super::super) struct Lines {
    /// The progress bar; `None` if standard error is not a terminal.
    bar: Option<ProgressBar>,
}

impl Lines {
    pub(super) fn print(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }
}

/// Shows the progress on standard error.
pub(in super::super) struct Progress {
    lines: Lines,
    step: &'static str,
    /// The plural of the items that are counted besides readings, such as `devices`.
    items: &'static str,
    total: u64,
    done: u64,
    readings: u64,
    started: Instant,
    line: Instant,
}

impl Progress {
    /// Starts with copying items, such as `devices`.
    pub(in super::super) fn start(items: &'static str) -> Self {
        let now = Instant::now();
        let bar = std::io::stderr().is_terminal().then(bar);
        Self { lines: Lines { bar }, step: "copying", items, total: 0, done: 0, readings: 0, started: now, line: now }
    }

    /// Sets the number of all items.
    pub(in super::super) fn expect(&mut self, total: u64) {
        self.total = total;
        if let Some(bar) = &self.lines.bar {
            bar.set_length(total);
        }
    }

    /// Prints lines while the progress is in use elsewhere.
    pub(in super::super) fn lines(&self) -> Lines {
        self.lines.clone()
    }

    /// Begins another step over all items.
    pub(in super::super) fn begin(&mut self, step: &'static str) {
        let now = Instant::now();
        (self.step, self.done, self.readings, self.started, self.line) = (step, 0, 0, now, now);
        self.add(0, 0);
    }

    /// Adds items and readings that are done.
    pub(in super::super) fn add(&mut self, items: u64, readings: u64) {
        self.done += items;
        self.readings += readings;
        if let Some(bar) = &self.lines.bar {
            bar.set_position(self.done.min(self.total));
            bar.set_message(self.state());
        } else if self.line.elapsed() > LINE_INTERVAL {
            self.line = Instant::now();
            eprintln!("{} of {} {}: {}", self.done, self.total, self.items, self.state());
        }
    }

    /// Prints a line above the bar.
    pub(in super::super) fn note(&self, text: &str) {
        self.lines.print(text);
    }

    /// Removes the bar.
    pub(in super::super) fn finish(&self) {
        if let Some(bar) = &self.lines.bar {
            bar.finish_and_clear();
        }
    }

    fn state(&self) -> String {
        let rate = (self.readings as f64 / self.started.elapsed().as_secs_f64().max(0.001)) as u64;
        format!("{}, {} readings, {}/s", self.step, HumanCount(self.readings), HumanCount(rate))
    }
}

fn bar() -> ProgressBar {
    let template = "{bar:20} {percent}% ETA {eta}  {wide_msg}";
    let style = ProgressStyle::with_template(template).expect("the template is well-formed");
    ProgressBar::new(0).with_style(style)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_command_continues_at_its_place_and_not_at_that_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let file = |to: &str| ProgressFile::new(folder.path().join("move.json"), &["a".to_owned(), to.to_owned()]);
        let load = |to: &str| file(to).load::<BTreeMap<String, i64>>();
        assert_eq!(load("b").unwrap(), None);
        for from_ms in [-5, i64::MAX] {
            let place = BTreeMap::from([("fromMs".to_owned(), from_ms)]);
            file("b").save(&place).unwrap();
            assert_eq!(load("b").unwrap(), Some(place));
        }
        file("b").save(&BTreeMap::from([("fromMs", -5)])).unwrap();
        let saved = std::fs::read_to_string(folder.path().join("move.json")).unwrap();
        assert_eq!(saved, include_str!("../../../tests/golden/move-1.json"));
        let refused = load("c").unwrap_err().to_string();
        assert!(refused.contains("is of a copy from a to b"), "{refused}");
        let newer = r#"{"version":2,"from":"a","to":"b","fromMs":1}"#;
        for damaged in ["", "{}", "null", "[1]", "{\"version\":1,\"from\":\"a\",\"to\":\"b\",\"fromMs\":1e99}", newer] {
            std::fs::write(folder.path().join("move.json"), damaged).unwrap();
            let refused = load("b").unwrap_err();
            assert!(refused.is::<Usage>() && refused.to_string().contains("remove it to begin"), "{refused}");
        }
        file("b").remove().unwrap();
        file("b").remove().unwrap();
        assert_eq!(load("c").unwrap(), None);
    }
}
