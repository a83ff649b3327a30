//! Finds the instants of local times that exist twice, because clocks were set back. Pure.
//!
//! ```text
//! 01:45 02:00 02:15 02:30 02:45 02:00 02:15 02:30 02:45 03:00
//!       ├─── the first instants ──┤├─── the second ones ─┤
//! ```
//! Rows with such times are held until the device has a row with another time. The second instants begin
//! where the times go back, as at the second 02:00 above. The rows cannot be resolved, and all of them are
//! rejected, if their times never go back, if they go back more than once, or if much more time passes at
//! that place than between other rows.
//!
//! In a file that grows, a device may be silent for good. Its rows are held until another device has a row
//! that is a day later, and for a day at least: the clock of the other device may be ahead, and the rows may
//! have been sent late.
//!
//! A file may begin with its newest row. Then the times fall, and the first instants begin where they go
//! forward.

use std::collections::{BTreeSet, HashMap};
use std::io::{Error, ErrorKind};
use std::time::{Duration, Instant};

use tidegauge::common::generations::Generations;

use super::time::Twice;

/// The number of devices whose last time is remembered, in each of two generations.
const DEVICES: usize = 100_000;
/// The size limit of all held rows.
const HELD_MAX_BYTES: usize = 64 << 20;
/// The bytes that a held row takes besides its text.
const ROW_BYTES: usize = 128;
/// If two held rows of a device are further apart, they are of different years.
const SAME_HOUR_MS: i64 = 12 * 3_600_000;
/// A device is silent if the last row of the file is so much later than its held rows.
const SILENT_MS: i64 = 24 * 3_600_000;
/// The last held row of a silent device was also read so long ago.
const SILENT_FOR: Duration = Duration::from_millis(SILENT_MS as u64);

/// A row whose local time exists twice.
#[derive(Debug)]
pub(super) struct Held {
    /// The line of the row in the file.
    pub(super) line: u64,
    /// The line of NDJSON without its time.
    pub(super) text: Vec<u8>,
    /// The number of empty cells.
    pub(super) empty_cells: u64,
    /// Why each value that it lacks is rejected.
    pub(super) bad_values: Vec<String>,
    /// The columns of its values, in ascending order.
    pub(super) filled: Vec<usize>,
    /// The two instants that the local time of the row may be.
    pub(super) twice: Twice,
}

impl Held {
    fn bytes(&self) -> usize {
        let bad: usize = self.bad_values.iter().map(|why| why.len() + size_of::<String>()).sum();
        self.text.len() + bad + self.filled.len() * size_of::<usize>() + ROW_BYTES
    }

    fn shares_column(&self, other: &Self) -> bool {
        self.filled.iter().any(|column| other.filled.binary_search(column).is_ok())
    }
}

/// A row that was held, and its time in Unix milliseconds.
///
/// The error: the order of the held rows does not tell their times. It has the first and the last of their
/// lines.
pub(super) type Resolved = (Held, Result<i64, (u64, u64)>);

/// The last row of a device before those that are held.
#[derive(Debug, Clone, Copy)]
struct Before {
    ms: i64,
    /// Whether two successive rows of the device had the same time.
    has_repeated: bool,
}

/// The held rows of a device.
struct Waiting {
    rows: Vec<Held>,
    /// The first [`RepeatedHour::end_silent`] after the last row.
    since: Option<Instant>,
}

/// The rows that are held, by device.
pub(super) struct RepeatedHour {
    before: Generations<Box<str>, Before>,
    held: HashMap<Box<str>, Waiting>,
    /// The first line of each device that has held rows.
    first_lines: BTreeSet<u64>,
    bytes: usize,
    /// The time of the last row that exists once, of any device.
    last_ms: i64,
}

impl RepeatedHour {
    pub(super) fn new() -> Self {
        let before = Generations::new(DEVICES, |_| 1);
        Self { before, held: HashMap::new(), first_lines: BTreeSet::new(), bytes: 0, last_ms: i64::MIN }
    }

    /// The first line that is held, if all held rows are of one file.
    pub(super) fn first_line(&self) -> Option<u64> {
        self.first_lines.first().copied()
    }

    /// Whether rows are held. They may be of several files, in which lines have the same number.
    pub(super) fn holds_any(&self) -> bool {
        !self.held.is_empty()
    }

    /// Holds a row.
    ///
    /// If the held rows of the device are of another year, returns them, resolved.
    ///
    /// # Errors
    /// When too many rows are held.
    pub(super) fn hold(&mut self, device: &str, row: Held) -> Result<Vec<Resolved>, Error> {
        let last_ms = self.held.get(device).and_then(|held| held.rows.last()).map(|last| last.twice.first_ms);
        let is_other = last_ms.is_some_and(|last_ms| last_ms.abs_diff(row.twice.first_ms) > SAME_HOUR_MS as u64);
        let resolved = if is_other { self.end(device, Some(row.twice.first_ms)) } else { Vec::new() };
        self.bytes += row.bytes();
        if self.bytes > HELD_MAX_BYTES {
            let why = format!(
                "line {}: more than 64 MiB of rows have a time that exists twice: divide the file by devices, or add \
                 the offset to the times",
                row.line
            );
            return Err(Error::new(ErrorKind::InvalidData, why));
        }
        if let Some(held) = self.held.get_mut(device) {
            held.rows.push(row);
            held.since = None;
        } else {
            self.first_lines.insert(row.line);
            self.held.insert(device.into(), Waiting { rows: vec![row], since: None });
        }
        Ok(resolved)
    }

    /// Notes the time of a row that exists once.
    ///
    /// Returns the held rows of the device, resolved.
    pub(super) fn pass(&mut self, device: &str, ms: i64) -> Vec<Resolved> {
        let resolved = if self.held.is_empty() { Vec::new() } else { self.end(device, Some(ms)) };
        self.note(device, ms);
        self.last_ms = ms;
        resolved
    }

    /// Resolves all held rows, at the end of the file.
    pub(super) fn finish(&mut self) -> Vec<Resolved> {
        self.end_each(|_| true)
    }

    /// Resolves the held rows of silent devices. Call it whenever rows were read.
    ///
    /// An earlier run has sent or rejected the rows up to the line `sent`, so these do not wait again.
    pub(super) fn end_silent(&mut self, now: Instant, sent: u64) -> Vec<Resolved> {
        let last_ms = self.last_ms;
        self.end_each(|Waiting { rows, since }| {
            let waited = now.duration_since(*since.get_or_insert(now));
            let is_sent = rows.iter().all(|row| row.line <= sent);
            let is_long_ago = |row: &Held| last_ms.saturating_sub(row.twice.second_ms) > SILENT_MS;
            (is_sent || waited >= SILENT_FOR) && rows.iter().all(is_long_ago)
        })
    }

    /// Resolves the held rows of each device for which `is_over` holds.
    fn end_each(&mut self, mut is_over: impl FnMut(&mut Waiting) -> bool) -> Vec<Resolved> {
        let over = self.held.iter_mut().filter_map(|(device, held)| is_over(held).then(|| device.clone()));
        let mut devices: Vec<Box<str>> = over.collect();
        devices.sort_unstable();
        devices.iter().flat_map(|device| self.end(device, None)).collect()
    }

    fn note(&mut self, device: &str, ms: i64) {
        let noted = self.before.update(device, |before| {
            *before = Before { ms, has_repeated: before.has_repeated || before.ms == ms };
        });
        if noted.is_none() {
            self.before.insert(device.into(), Before { ms, has_repeated: false });
        }
    }

    fn end(&mut self, device: &str, after_ms: Option<i64>) -> Vec<Resolved> {
        let Some(Waiting { rows: held, .. }) = self.held.remove(device) else { return Vec::new() };
        self.first_lines.remove(&held[0].line);
        self.bytes -= held.iter().map(Held::bytes).sum::<usize>();
        let before = self.before.update(device, |before| *before);
        if let Some(times) = resolve(&held, before, after_ms) {
            if let Some(last) = times.last() {
                self.note(device, *last);
            }
            held.into_iter().zip(times.into_iter().map(Ok)).collect()
        } else {
            let lines = (held[0].line, held[held.len() - 1].line);
            held.into_iter().map(|row| (row, Err(lines))).collect()
        }
    }
}

/// The times of held rows; `None` if their order does not tell them.
///
/// `before` and `after_ms` are the rows of the device before and after them.
fn resolve(rows: &[Held], before: Option<Before>, after_ms: Option<i64>) -> Option<Vec<i64>> {
    let first_ms = |at: usize| rows[at].twice.first_ms;
    let is_rising_before = before.map(|before| before.ms < first_ms(0));
    let is_rising_after = after_ms.map(|after_ms| after_ms > first_ms(rows.len() - 1));
    let is_rising = is_rising_before.or(is_rising_after)?;
    if is_rising_after.is_some_and(|after| after != is_rising) {
        return None;
    }
    let goes_back = |&at: &usize| {
        if is_rising { first_ms(at) < first_ms(at - 1) } else { first_ms(at) > first_ms(at - 1) }
    };
    let repeats = |&at: &usize| first_ms(at) == first_ms(at - 1) && rows[at].shares_column(&rows[at - 1]);
    let backward: Vec<usize> = (1..rows.len()).filter(goes_back).take(2).collect();
    let repeated: Vec<usize> = (1..rows.len()).filter(repeats).take(2).collect();
    let second = match (&backward[..], &repeated[..]) {
        ([only], _) => *only,
        ([], [only]) if !before.is_some_and(|before| before.has_repeated) => *only,
        _ => return None,
    };
    let ms = |at: usize| if (at < second) == is_rising { first_ms(at) } else { rows[at].twice.second_ms };
    let times: Vec<i64> = (0..rows.len()).map(ms).collect();
    // A row in a wrong place, such as 02:29 after 02:30, goes back too. But if it began the second hour,
    // nearly an hour would have passed there without a row.
    let all = before.map(|before| before.ms).into_iter().chain(times.iter().copied()).chain(after_ms);
    let all: Vec<i64> = all.collect();
    let second_in_all = second + usize::from(before.is_some());
    let gap = |at: usize| all[at].abs_diff(all[at - 1]);
    let widest = (1..all.len()).filter(|&at| at != second_in_all).map(gap).max().unwrap_or_default();
    let hour_ms = rows[0].twice.second_ms.abs_diff(first_ms(0));
    (gap(second_in_all) <= (hour_ms / 4).max(widest.saturating_mul(2))).then_some(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 60;

    /// A row with these columns, whose time is `first_ms` or an hour later.
    fn held(line: u64, first_ms: i64, text: Vec<u8>, filled: Vec<usize>) -> Held {
        let twice = Twice { civil: jiff::civil::DateTime::ZERO, first_ms, second_ms: first_ms + HOUR };
        Held { line, text, empty_cells: 0, bad_values: Vec::new(), filled, twice }
    }

    /// Minutes of a local clock that is set back from 60 to 0 once; the second 0 to 59 are 60 to 119.
    /// Returns the resolved minutes, `None` for a row that is not resolved.
    fn resolved(local: &[i64]) -> Vec<Option<i64>> {
        let mut hours = RepeatedHour::new();
        let mut all = Vec::new();
        for (at, &minute) in local.iter().enumerate() {
            let line = at as u64;
            let found = if (0..HOUR).contains(&minute) {
                hours.hold("d", held(line, minute, Vec::new(), vec![1])).unwrap()
            } else {
                let ms = if minute < 0 { minute } else { minute + HOUR };
                all.push((line, Some(ms)));
                hours.pass("d", ms)
            };
            all.extend(found.into_iter().map(|(row, ms)| (row.line, ms.ok())));
        }
        all.extend(hours.finish().into_iter().map(|(row, ms)| (row.line, ms.ok())));
        assert_eq!((hours.first_line(), hours.bytes), (None, 0));
        all.sort_unstable();
        all.into_iter().map(|(_, ms)| ms).collect()
    }

    fn all(minutes: &[i64]) -> Vec<Option<i64>> {
        minutes.iter().copied().map(Some).collect()
    }

    #[test]
    fn rows_in_order_tell_where_the_hour_begins_again() {
        for (local, expected) in [
            (&[-15, 0, 15, 30, 45, 0, 15, 30, 45, 60][..], &[-15, 0, 15, 30, 45, 60, 75, 90, 105, 120][..]),
            (&[60, 45, 30, 15, 0, 45, 30, 15, 0, -15], &[120, 105, 90, 75, 60, 45, 30, 15, 0, -15]),
            (&[-30, 30, 30, 90], &[-30, 30, 90, 150]),
            (&[30, 45, 0, 15, 60], &[30, 45, 60, 75, 120]),
            (&[-15, 0, 30, 0], &[-15, 0, 30, 60]),
            (&[-1, 58, 59, 2, 3, 60], &[-1, 58, 59, 62, 63, 120]),
        ] {
            assert_eq!(resolved(local), all(expected), "{local:?}");
        }
    }

    #[test]
    fn rows_whose_order_does_not_tell_are_not_resolved() {
        for (local, held) in [
            (&[-60, 0, 60][..], 1..2),
            (&[-15, 0, 15, 30, 45, 60], 1..5),
            (&[-15, 0, 15, 10, 30, 45, 60], 1..6), // one row in a wrong place
            (&[-15, 0, 30, 0, 30, 0, 60], 1..6),   // three times
            (&[-30, -30, 0, 0, 60, 60], 2..4),     // each row twice
            (&[-15, 0, 30, 30, 45, 45, 60], 1..6),
            (&[0, 30, 0, 30], 0..4),           // rising or falling
            (&[-15, 0, 30, 0, 30, -15], 1..5), // neither
        ] {
            let found = resolved(local);
            for (at, minute) in found.iter().enumerate() {
                assert_eq!(minute.is_none(), held.contains(&at), "{local:?} {found:?}");
            }
        }
    }

    #[test]
    fn rows_with_different_values_at_one_time_are_no_repetition() {
        let mut hours = RepeatedHour::new();
        assert!(hours.pass("d", -HOUR).is_empty());
        for (line, column) in [(1, 1), (2, 2)] {
            assert!(hours.hold("d", held(line, 0, vec![b'x'; 9], vec![column])).unwrap().is_empty());
        }
        assert_eq!(hours.first_line(), Some(1));
        assert!(hours.pass("d", 2 * HOUR).iter().all(|(_, ms)| *ms == Err((1, 2))));
    }

    #[test]
    fn a_silent_device_is_ended_a_day_after_the_hour_and_lines_of_two_files_count_apart() {
        const LATER: i64 = HOUR + SILENT_MS + 1;
        let mut hours = RepeatedHour::new();
        let row = || held(7, 0, Vec::new(), vec![1]);
        for device in ["silent", "d"] {
            assert!(hours.hold(device, row()).unwrap().is_empty());
        }
        let (start, short) = (Instant::now(), SILENT_FOR.saturating_sub(Duration::from_nanos(1)));
        for (ms, waited) in [(LATER, Duration::ZERO), (LATER, short), (LATER - 1, SILENT_FOR)] {
            hours.pass("d", ms);
            assert!(hours.end_silent(start + waited, 0).is_empty() && hours.holds_any(), "{ms} {waited:?}");
        }
        hours.pass("d", LATER);
        assert!(hours.hold("silent", row()).unwrap().is_empty());
        for waited in [SILENT_FOR, SILENT_FOR + short] {
            assert!(hours.end_silent(start + waited, 6).is_empty(), "the wait begins with the last row");
        }
        let ended = hours.end_silent(start + 2 * SILENT_FOR, 0);
        assert!(ended.len() == 2 && ended.iter().all(|(_, ms)| *ms == Err((7, 7))));
        assert!(!hours.holds_any() && hours.bytes == 0);
        assert!(hours.hold("silent", row()).unwrap().is_empty());
        assert_eq!(hours.end_silent(start, 7).len(), 1, "an earlier run has sent the row");
    }

    #[test]
    fn rows_are_held_up_to_a_number_of_bytes() {
        let mut hours = RepeatedHour::new();
        let row = |line| held(line, 0, vec![0; 1 << 20], Vec::new());
        let error = (1..100).find_map(|line| hours.hold("d", row(line)).err()).unwrap();
        assert!(error.to_string().starts_with("line 64: more than 64 MiB of rows"), "{error}");
    }
}
