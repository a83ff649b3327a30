//! The progress of an import: counts, a bar or plain lines, and the summary.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use tidegauge::client;

use super::send::{reasons, remarks};

/// The number of rejections that are listed on a terminal, or elsewhere in a minute of a followed file.
const LISTED_REJECTIONS: u64 = 20;
const BAR_INTERVAL: Duration = Duration::from_millis(200);
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);
const FOLLOWED_INTERVAL: Duration = Duration::from_secs(60);

/// The counts of an import. The reading thread and the sending task add to them.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Bytes read from the files, before decompression.
    pub(super) bytes: Arc<AtomicU64>,
    /// Rows of CSV and lines of NDJSON.
    pub(super) rows: AtomicU64,
    /// Rows that the import could not convert.
    pub(super) rejected: AtomicU64,
    /// Values that the import could not convert, of other rows.
    pub(super) rejected_values: AtomicU64,
    /// The counts of the answers. A dry run counts as accepted what it would have sent.
    answers: Mutex<client::Counts>,
    /// Empty cells of metrics.
    pub(super) empty_cells: AtomicU64,
    /// Rows in which no metric had a value.
    pub(super) empty_rows: AtomicU64,
}

impl Counts {
    /// The numbers of rows, and of values of other rows, that the import could not convert.
    pub(super) fn unconverted(&self) -> (u64, u64) {
        (load(&self.rejected), load(&self.rejected_values))
    }
}

/// Shows the progress on standard error.
pub(super) struct Progress {
    /// The counts shown.
    pub(super) counts: Counts,
    total_bytes: Option<u64>,
    dry_run: bool,
    /// Whether the file is followed.
    ///
    /// Then lines of progress are rare, and after each of them the list of rejections begins again.
    is_followed: bool,
    started: Instant,
    listed: AtomicU64,
    outage: Mutex<Outage>,
    /// `None` if standard error is not a terminal.
    bar: Option<ProgressBar>,
}

/// The time in which the server accepts no readings.
#[derive(Debug, Default)]
struct Outage {
    /// Why the server accepts none; `None` while it does.
    trouble: Option<String>,
    /// When the last line about an outage was printed.
    said_at: Option<Instant>,
    /// Whether the line about this outage was printed.
    is_said: bool,
}

impl Outage {
    /// Sets the trouble, and returns the line about its begin or its end.
    ///
    /// Outages have a line at most once a minute, so that a server that is away again and again fills no log.
    fn set(&mut self, trouble: Option<&str>, now: Instant) -> Option<String> {
        self.trouble = trouble.map(str::to_owned);
        let may_say = || self.said_at.is_none_or(|at| now.duration_since(at) >= FOLLOWED_INTERVAL);
        match trouble {
            Some(what) if !self.is_said && may_say() => {
                (self.said_at, self.is_said) = (Some(now), true);
                Some(format!("rows wait until the server accepts them: {what}"))
            }
            None if std::mem::take(&mut self.is_said) => Some("the server accepts rows again".to_owned()),
            _ => None,
        }
    }
}

impl Progress {
    /// Starts the measurement. Without `total_bytes` the total is unknown.
    pub(super) fn start(total_bytes: Option<u64>, dry_run: bool, is_followed: bool) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| bar(total_bytes));
        let (started, listed, outage) = (Instant::now(), AtomicU64::new(0), Mutex::default());
        Self { counts: Counts::default(), total_bytes, dry_run, is_followed, started, listed, outage, bar }
    }

    /// Prints a line.
    pub(super) fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    /// Adds the counts of an answer.
    pub(super) fn add(&self, answer: client::Counts) {
        self.answers().add(answer);
    }

    /// The number of rejected readings, and of rejected values.
    ///
    /// The import itself or the server has rejected them.
    pub(super) fn rejected(&self) -> (u64, u64) {
        self.rejected_with(self.counts.unconverted())
    }

    /// The same, if the import itself has rejected so many `rows` and `values`.
    pub(super) fn rejected_with(&self, (rows, values): (u64, u64)) -> (u64, u64) {
        let answers = self.answers();
        (rows + answers.rejected, values + answers.rejected_values)
    }

    /// Adds the rejected readings and values of attempts that were interrupted.
    pub(super) fn add_earlier(&self, (rejected, rejected_values): (u64, u64)) {
        let by_code = BTreeMap::from([("before the interruption", rejected.saturating_add(rejected_values))]);
        self.add(client::Counts { rejected, rejected_values, by_code, ..client::Counts::default() });
    }

    fn answers(&self) -> MutexGuard<'_, client::Counts> {
        self.counts.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists a rejected reading or value, unless too many are listed already.
    ///
    /// It does not count the reading.
    pub(super) fn list_rejection(&self, file: &str, line: u64, why: &str) {
        if self.listed.fetch_add(1, Ordering::Relaxed) < LISTED_REJECTIONS || self.lists_all() {
            self.note(&format!("{file}:{line}: {why}"));
        }
    }

    /// Whether all rejections are listed. They would flood a terminal, or the log of a followed file.
    fn lists_all(&self) -> bool {
        self.bar.is_none() && !self.is_followed
    }

    /// Prints how many rejections were not listed, and begins the list again.
    fn end_list(&self) {
        let hidden = self.listed.swap(0, Ordering::Relaxed).saturating_sub(LISTED_REJECTIONS);
        if hidden > 0 && !self.lists_all() {
            eprintln!("{}", self.unlisted(hidden));
        }
    }

    /// The line about rejections that were not listed.
    fn unlisted(&self, count: u64) -> String {
        let hint = if self.bar.is_some() { "; for a longer list, write stderr to a file: 2> FILE" } else { "" };
        format!("... and {} more rejections{hint}", HumanCount(count))
    }

    /// Sets why the server accepts no readings; `None` once it does. If the file is followed, prints when an
    /// outage begins and ends.
    pub(super) fn set_trouble(&self, what: Option<&str>) {
        let line = self.outage().set(what, Instant::now());
        if let Some(line) = line.filter(|_| self.is_followed) {
            self.note(&line);
        }
    }

    fn outage(&self) -> MutexGuard<'_, Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the progress repeatedly, until dropped.
    pub(super) async fn watch(&self) -> Infallible {
        let interval = match self.bar {
            Some(_) => BAR_INTERVAL,
            None if self.is_followed => FOLLOWED_INTERVAL,
            None => PLAIN_INTERVAL,
        };
        let mut interval = tokio::time::interval(interval);
        let mut last = String::new();
        interval.tick().await; // the first tick is at once
        loop {
            interval.tick().await;
            match &self.bar {
                Some(bar) => {
                    bar.set_position(load(&self.counts.bytes));
                    bar.set_message(self.state());
                }
                None if self.is_followed => {
                    self.end_list();
                    let state = self.state();
                    if state != last {
                        eprintln!("{state}");
                    }
                    last = state;
                }
                None => eprintln!("{}{}", self.share(), self.state()),
            }
        }
    }

    /// Removes the bar and returns the summary.
    pub(super) fn finish(&self) -> String {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.end_list();
        self.summary()
    }

    fn summary(&self) -> String {
        let Counts { bytes, rows, rejected: unconverted, rejected_values, empty_cells, empty_rows, .. } = &self.counts;
        let answers = self.answers();
        let sent = if self.dry_run { "would be sent" } else { "accepted" };
        let mut summary = format!("{} rows read ({})", HumanCount(load(rows)), HumanBytes(load(bytes)));
        let _ = write!(summary, ", {} readings {sent}", HumanCount(answers.accepted));
        let _ = write!(summary, ", {} rejected", HumanCount(load(unconverted) + answers.rejected));
        let unconverted = Some(load(unconverted)).filter(|&rows| rows > 0);
        let unconverted = unconverted.map(|rows| format!("{} not converted", HumanCount(rows)));
        let reasons: Vec<String> = reasons(&answers).chain(unconverted).collect();
        if !reasons.is_empty() {
            let _ = write!(summary, " ({})", reasons.join(", "));
        }
        for remark in remarks(&answers) {
            let _ = write!(summary, ", {remark}");
        }
        drop(answers);
        for (counter, what) in [
            (rejected_values, "values not converted"),
            (empty_cells, "empty cells skipped"),
            (empty_rows, "rows without values"),
        ] {
            if load(counter) > 0 {
                let _ = write!(summary, ", {} {what}", HumanCount(load(counter)));
            }
        }
        let _ = write!(summary, ", {:.1} s, {} readings/s", self.started.elapsed().as_secs_f64(), self.rate());
        summary
    }

    /// The counts so far, the rate, and why the server accepts nothing at the moment.
    ///
    /// If the file is followed, the rate is left out. So is the reason, unless it is shown in the bar: each
    /// outage has lines of its own.
    fn state(&self) -> String {
        let accepted = HumanCount(self.answers().accepted);
        let mut state = format!("{accepted} readings");
        if !self.is_followed {
            let _ = write!(state, ", {}/s", self.rate());
        }
        let (rejected, _) = self.rejected();
        if rejected > 0 {
            let _ = write!(state, ", {} rejected", HumanCount(rejected));
        }
        if let Some(trouble) = self.outage().trouble.as_ref().filter(|_| !self.is_followed || self.bar.is_some()) {
            let _ = write!(state, "; waiting: {trouble}");
        }
        state
    }

    /// The share of the files that is read, if known: `42%: `.
    fn share(&self) -> String {
        match self.total_bytes {
            Some(total) if total > 0 => format!("{}%: ", load(&self.counts.bytes) * 100 / total),
            _ => String::new(),
        }
    }

    /// Readings per second since the start.
    fn rate(&self) -> HumanCount {
        let seconds = self.started.elapsed().as_secs_f64().max(0.001);
        HumanCount((self.answers().accepted as f64 / seconds) as u64)
    }
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn bar(total_bytes: Option<u64>) -> ProgressBar {
    let (bar, template) = match total_bytes {
        Some(total) => (ProgressBar::new(total), "{bar:20} {percent}% ETA {eta}  {wide_msg}"),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} {elapsed}  {wide_msg}"),
    };
    bar.with_style(ProgressStyle::with_template(template).expect("the template is well-formed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_every_count_that_matters() {
        let progress = Progress::start(Some(4096), false, false);
        progress.counts.bytes.store(4096, Ordering::Relaxed);
        progress.counts.rows.store(1200, Ordering::Relaxed);
        progress.add(client::Counts { accepted: 1100, ..client::Counts::default() });
        let summary = progress.summary();
        assert!(summary.starts_with("1,200 rows read (4.00 KiB), 1,100 readings accepted, 0 rejected, "), "{summary}");
        progress.counts.rejected.store(98, Ordering::Relaxed);
        progress.counts.rejected_values.store(7, Ordering::Relaxed);
        progress.counts.empty_cells.store(4, Ordering::Relaxed);
        progress.counts.empty_rows.store(2, Ordering::Relaxed);
        let summary = progress.summary();
        let expected = "accepted, 98 rejected (98 not converted), 7 values not converted, 4 empty cells skipped, \
                        2 rows without values, ";
        assert!(summary.contains(expected), "{summary}");
        assert_eq!(progress.rejected(), (98, 7));
    }

    #[test]
    fn only_a_terminal_is_told_how_to_list_more_rejections() {
        for is_followed in [false, true] {
            let mut progress = Progress::start(None, false, is_followed);
            progress.bar = None;
            assert_eq!(progress.unlisted(1200), "... and 1,200 more rejections");
            progress.bar = Some(ProgressBar::hidden());
            let expected = "... and 1,200 more rejections; for a longer list, write stderr to a file: 2> FILE";
            assert_eq!(progress.unlisted(1200), expected);
        }
    }

    #[test]
    fn trouble_is_shown_until_it_is_over() {
        let progress = Progress::start(None, false, false);
        progress.set_trouble(Some("connection refused"));
        assert!(progress.state().ends_with("; waiting: connection refused"));
        progress.set_trouble(None);
        assert!(!progress.state().contains("waiting"));
    }

    #[test]
    fn an_outage_is_said_once_and_its_end_too_and_at_most_one_a_minute() {
        let (mut outage, start) = (Outage::default(), Instant::now());
        let lines: Vec<Option<String>> = [
            (0, Some("no connection")),
            (1, Some("no connection")),
            (70, Some("timeout")),
            (71, None),
            (72, None),
            (73, Some("no connection")),
            (74, None),
            (75, Some("no connection")),
            (134, Some("timeout")),
            (135, None),
        ]
        .into_iter()
        .map(|(seconds, trouble)| outage.set(trouble, start + Duration::from_secs(seconds)))
        .collect();
        let said: Vec<(usize, &str)> =
            lines.iter().enumerate().filter_map(|(at, line)| Some((at, line.as_deref()?))).collect();
        let begin = |what: &str| format!("rows wait until the server accepts them: {what}");
        let again = "the server accepts rows again";
        let (first, later) = (begin("no connection"), begin("timeout"));
        assert_eq!(said, [(0, &*first), (3, again), (5, &*first), (6, again), (8, &*later), (9, again)]);
    }
}
