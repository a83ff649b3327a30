//! `tidegauge import --follow`: sends the rows that a program appends to a file.
//!
//! Each step sends the whole lines that were appended since the last step. It notes the place behind them,
//! unless an earlier row is still held. A row ends with its line: a quote that is not closed rejects only
//! that line.

use std::io::{BufRead, Cursor, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::sync::{mpsc, watch};

use self::growing_file::{GrowingFile, Step};
use super::batch::{Batch, Batcher, Stopped};
use super::columns::ColumnsError;
use super::csv::{CsvError, Options, Outcome, Row, Rows};
use super::encoding::Encoding;
use super::notes::Place;
use super::preamble::Preamble;
use super::progress::Progress;
use super::repeated_hour::RepeatedHour;
use super::source::{self, Format, UTF8_MARK};
use super::time::{TimeError, Times};
use super::{ImportArgs, add, announce, ndjson, numbers, of_csv, send_rows};

mod growing_file;

pub(super) use self::growing_file::Mark;

/// The wait before the import looks for more lines.
const POLL: Duration = Duration::from_millis(200);

/// The first row of a file must end within this number of bytes.
const HEAD_MAX_BYTES: usize = 16 << 20;
/// The most bytes of a header, with the lines before it, that are kept for a file without one.
const HEADER_MAX_BYTES: usize = 64 << 10;
/// How many characters of a line without end are shown.
const SHOWN_CHARS: usize = 200;

/// Sends the lines of a file after a place, until `stop` is true.
pub(super) fn read(
    args: &ImportArgs,
    place: Option<&Place>,
    queue: &mpsc::Sender<Batch>,
    progress: &Progress,
    stop: &watch::Receiver<bool>,
) -> anyhow::Result<()> {
    match follow(args, place, queue, progress, stop) {
        Err(error) if error.is::<Stopped>() => Ok(()),
        other => other,
    }
}

fn follow(
    args: &ImportArgs,
    place: Option<&Place>,
    queue: &mpsc::Sender<Batch>,
    progress: &Progress,
    stop: &watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let path = &args.files[0];
    let shown = || path.display().to_string();
    let mark = place.and_then(|place| place.done.mark);
    let (mut file, is_found) = GrowingFile::open(path, mark).with_context(shown)?;
    if !is_found {
        progress.note(&format!(
            "{}: the file of {} is gone, so this one is read from its beginning",
            file.name().display(),
            named(args)
        ));
    }
    let start = place.filter(|_| is_found).map_or(0, |place| place.done.line);
    let batcher = Batcher::new(queue, args.batch as usize, Arc::from(shown())).with_marks();
    let header = place.and_then(|place| place.done.header.clone());
    let (form, encoding) = (Form::Head(Vec::new()), args.encoding);
    let mut lines = Lines { args, progress, batcher, start, form, encoding, header, is_torn: false, repeated: None };
    let mut is_cut = false;
    loop {
        for name in file.take_skipped() {
            progress.note(&format!("{}: skipped, because it is compressed: import it too", name.display()));
        }
        let before = file.mark();
        match file.next().with_context(|| file.name().display().to_string())? {
            Step::Lines(bytes) => {
                add(&progress.counts.bytes, bytes.len() as u64);
                let name = file.name().display().to_string();
                if lines.add(&name, &bytes, before.lines())? {
                    lines.batcher.set_mark(file.mark(), lines.header.clone());
                }
                if !matches!(lines.form, Form::Head(_)) {
                    file.note_row();
                }
                lines.batcher.finish()?;
            }
            Step::Idle if *stop.borrow() => break,
            Step::Idle => std::thread::sleep(POLL),
            Step::Cut(line) => {
                is_cut = true;
                let name = file.name().display().to_string();
                reject(progress, &name, file.mark().lines(), "the file ends within", &line);
            }
            Step::Ended(why) => {
                progress.note(&format!("{}: {why}; it is read from its beginning", shown()));
                lines.begin_file(std::mem::take(&mut is_cut));
            }
        }
        if *stop.borrow() {
            break;
        }
    }
    if let Form::Csv(rows) = &lines.form
        && rows.holds_any()
    {
        progress.note(&format!(
            "{}: rows of the hour that exists twice wait for later rows; they are sent after the next start",
            shown()
        ));
    }
    Ok(())
}

/// Rejects a line that is no whole row.
fn reject(progress: &Progress, name: &str, number: u64, why: &str, line: &[u8]) {
    add(&progress.counts.rows, 1);
    add(&progress.counts.rejected, 1);
    let shown: String = String::from_utf8_lossy(line).chars().take(SHOWN_CHARS).collect();
    progress.list_rejection(name, number, &format!("{why} {shown:?}"));
}

fn named(args: &ImportArgs) -> String {
    args.progress.as_ref().map(|path| path.display().to_string()).unwrap_or_default()
}

/// The lines of a file, as they arrive.
struct Lines<'a> {
    args: &'a ImportArgs,
    progress: &'a Progress,
    batcher: Batcher<'a>,
    /// The line up to which all rows are sent already.
    start: u64,
    form: Form,
    /// The encoding of the file: UTF-8 if it begins with a byte order mark.
    encoding: Encoding,
    /// The lines up to the last header.
    ///
    /// If the program writes the header only once, the file has none after it was truncated, and may begin
    /// within a row.
    header: Option<Arc<str>>,
    /// Whether the file before this one ended within a line.
    is_torn: bool,
    /// The held rows of the file before this one.
    repeated: Option<RepeatedHour>,
}

enum Form {
    /// The first lines of a file that has no row yet, so its format is unknown.
    Head(Vec<u8>),
    Csv(Box<Rows<Box<dyn BufRead>>>),
    Ndjson,
}

impl Lines<'_> {
    /// Sends the rows of `bytes`, whole lines that follow `before` lines of the file.
    ///
    /// `false`: not all rows are sent. Some are held, or the format is unknown until the file has a row.
    fn add(&mut self, name: &str, bytes: &[u8], before: u64) -> anyhow::Result<bool> {
        if let Form::Head(head) = &mut self.form {
            head.extend_from_slice(bytes);
            let head = std::mem::take(head);
            return self.begin(name, head);
        }
        let Form::Csv(rows) = &mut self.form else {
            let lines = source::decoded(Box::new(Cursor::new(bytes.to_vec())), self.encoding);
            return self.add_ndjson(name, lines, before);
        };
        for (lines, before) in rows_of_lines(bytes, before) {
            let lines = Box::new(Cursor::new(lines.to_vec()));
            rows.append(source::decoded(lines, self.encoding), before);
            send_rows(rows, name, self.start, &mut self.batcher, self.progress)?;
        }
        rows.end_silent(Instant::now(), self.start);
        send_rows(rows, name, self.start, &mut self.batcher, self.progress)?;
        Ok(!rows.holds_any())
    }

    /// Finds the format and the columns once there is a row, and sends the rows.
    ///
    /// Returns the same as [`Self::add`].
    fn begin(&mut self, name: &str, head: Vec<u8>) -> anyhow::Result<bool> {
        let ImportArgs { files, format, encoding, .. } = self.args;
        let source = source::begin(name.into(), &files[0], Box::new(Cursor::new(head.clone())), *format, *encoding)?;
        self.encoding = if head.starts_with(UTF8_MARK) { Encoding::Utf8 } else { *encoding };
        if source.format == Format::Ndjson {
            self.form = Form::Ndjson;
            return self.add_ndjson(name, source.input, 0);
        }
        let options = self.args.options();
        let line = head.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
        let mut header = self.header.clone().filter(|header| self.is_row(name, header, line));
        let row = if header.is_some() { Some(0) } else { first_row(&head, options.delimiter, options.skip_lines) };
        let Some(row) = row else {
            if head.len() > HEAD_MAX_BYTES {
                bail!("{name}: the first 16 MiB are comments, and no row");
            }
            self.form = Form::Head(head);
            return Ok(false);
        };
        // Parse only the first row here, so that a quote that is not closed affects no later line.
        let mut end = 0;
        let ends = rows_of_lines(&head, 0).into_iter().map(|(lines, _)| {
            end += lines.len();
            end
        });
        let first = ends.into_iter().find(|end| *end > row);
        let (mut first, mut rest) = head.split_at(first.unwrap_or(head.len()));
        let mut sample = first;
        // The rest of a line may be a row too, of another time or device.
        let is_rest = header.is_some() && self.is_torn;
        if header.is_none() && self.header.is_some() && !self.has_new_header(first) && self.has_no_header(name, first) {
            // The first line is a bad row, or the rest of one. It is rejected, and no sample for the columns.
            (header, sample) = (self.header.clone(), &first[line.len()..]);
            (first, rest) = head.split_at(line.len());
        }
        let mut rows = self.open(name, header.as_deref().unwrap_or_default(), sample)?;
        if is_rest {
            (first, rest) = head.split_at(line.len());
            let why = "the file before ended within a line, and this may be its rest:";
            reject(self.progress, name, 1, why, line.trim_ascii_end());
            rows.append(Box::new(std::io::empty()), 1);
        } else if header.is_some() {
            rows.append(self.decoded(name, first)?, 0);
        } else {
            self.keep_header(name, first)?;
        }
        if let Some(held) = self.repeated.take() {
            rows.hold_too(held);
        }
        announce(name, &rows, self.progress);
        send_rows(&mut rows, name, self.start, &mut self.batcher, self.progress)?;
        self.form = Form::Csv(Box::new(rows));
        self.add(name, rest, memchr::memchr_iter(b'\n', first).count() as u64)
    }

    /// Opens the first lines of a file, behind `header` if they have none.
    fn open(&self, name: &str, header: &str, first: &[u8]) -> anyhow::Result<Rows<Box<dyn BufRead>>> {
        let input = Cursor::new(header.as_bytes().to_vec()).chain(self.decoded(name, first)?);
        Rows::open(Box::new(input) as Box<dyn BufRead>, &self.args.options()).map_err(|error| of_csv(error, name))
    }

    /// The first lines of a file as UTF-8, without a byte order mark.
    fn decoded(&self, name: &str, first: &[u8]) -> anyhow::Result<Box<dyn BufRead>> {
        let ImportArgs { files, format, encoding, .. } = self.args;
        let first = Box::new(Cursor::new(first.to_vec()));
        Ok(source::begin(name.into(), &files[0], first, *format, *encoding)?.input)
    }

    /// Whether a line is a row under `header`, and not itself a header.
    fn is_row(&self, name: &str, header: &str, line: &[u8]) -> bool {
        !line.trim_ascii().is_empty()
            && self.open(name, header, line).is_ok_and(|mut rows| {
                !matches!(rows.next(&mut Vec::new()), Ok(Some(Row { outcome: Outcome::Bad(_), .. })) | Err(_))
            })
    }

    /// Whether the first lines of a file have a header that may differ from the last one.
    ///
    /// It has at least as many cells, and no number or time.
    fn has_new_header(&self, first: &[u8]) -> bool {
        let Options { times, delimiter, skip_lines, .. } = self.args.options();
        let Some(last) = self.header.as_deref() else { return false };
        let after = memchr::memchr(b'\n', first).map_or(first.len(), |at| at + 1);
        let mut last = last.as_bytes().chain(&first[after..]); // a row may be needed to find the delimiter
        let Ok(Preamble { header: last, delimiter, .. }) = Preamble::read(&mut last, delimiter, skip_lines) else {
            return false;
        };
        let mut found = first.strip_prefix(UTF8_MARK).unwrap_or(first);
        let Ok(Preamble { header: found, .. }) = Preamble::read(&mut found, Some(delimiter), skip_lines) else {
            return false;
        };
        let found = cells(&found, delimiter);
        found.len() >= cells(&last, delimiter).len() && !found.iter().any(|cell| is_value(cell, &times))
    }

    /// Whether the first lines of a file have no header: it cannot be read, or names no time.
    ///
    /// A header that lacks another column has changed, so its rows are not read under the last one.
    fn has_no_header(&self, name: &str, first: &[u8]) -> bool {
        let options = self.args.options();
        let is_of_time = |column: &str| {
            let names = options.wanted.time_column.iter().flat_map(|names| names.split(','));
            names.map(str::trim).any(|name| name == column.trim())
        };
        let Ok(Err(error)) = self.decoded(name, first).map(|input| Rows::open(input, &options)) else { return false };
        match error {
            CsvError::Header(_)
            | CsvError::Columns(ColumnsError::Empty | ColumnsError::NoTime(_) | ColumnsError::Delimiter) => true,
            CsvError::Columns(ColumnsError::Absent(column, _)) => is_of_time(&column),
            _ => false,
        }
    }

    /// Keeps the lines up to the header.
    fn keep_header(&mut self, name: &str, first: &[u8]) -> anyhow::Result<()> {
        let options = self.args.options();
        let mut rest = first.strip_prefix(UTF8_MARK).unwrap_or(first);
        let before = Preamble::read(&mut rest, options.delimiter, options.skip_lines).map_or(0, |found| found.lines);
        let end = memchr::memchr_iter(b'\n', first).nth(before as usize).map_or(first.len(), |at| at + 1);
        let mut header = String::new();
        self.decoded(name, &first[..end])?.read_to_string(&mut header).with_context(|| name.to_owned())?;
        self.header = (header.len() <= HEADER_MAX_BYTES).then(|| header.into());
        Ok(())
    }

    /// Prepares for the lines of another file. If the last line was cut, its rest may begin this file.
    fn begin_file(&mut self, is_cut: bool) {
        (self.start, self.is_torn) = (0, is_cut);
        if let Form::Csv(rows) = std::mem::replace(&mut self.form, Form::Head(Vec::new())) {
            self.repeated = Some(rows.into_held());
        }
    }

    fn add_ndjson(&mut self, name: &str, input: Box<dyn BufRead>, before: u64) -> anyhow::Result<bool> {
        let mut lines = ndjson::Lines::new(input, before);
        let mut text = Vec::new();
        while let Some(number) = lines.next(&mut text).with_context(|| name.to_owned())? {
            if number > self.start {
                add(&self.progress.counts.rows, 1);
                self.batcher.push(number, &text, None, number)?;
            }
        }
        Ok(true)
    }
}

/// The place of the first row in the first lines of a CSV file.
///
/// `None`: they have no row.
fn first_row(head: &[u8], delimiter: Option<u8>, skip: Option<u64>) -> Option<usize> {
    let mut rest = head.strip_prefix(UTF8_MARK).unwrap_or(head);
    drop(Preamble::read(&mut rest, delimiter, skip)); // `Rows::open` reports the error
    let row = rest.iter().position(|byte| !byte.is_ascii_whitespace())?;
    Some(head.len() - rest.len() + row)
}

/// The cells of the first line of a text, without quotes around them.
fn cells(text: &[u8], delimiter: u8) -> Vec<String> {
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut is_quoted = false;
    let cells = line.split(|&byte| {
        is_quoted ^= byte == b'"';
        byte == delimiter && !is_quoted
    });
    cells.map(|cell| String::from_utf8_lossy(cell).trim().trim_matches('"').to_owned()).collect()
}

/// Whether a cell is a number, a time, or a part of a time.
fn is_value(cell: &str, times: &Times) -> bool {
    let is_time = !matches!(times.parse(cell), Err(TimeError::Unknown | TimeError::NotOfFormat(..)));
    let has_letter = cell.contains(char::is_alphabetic);
    is_time || numbers::is_number(cell) || !has_letter && cell.bytes().any(|byte| byte.is_ascii_digit())
}

/// Divides lines into groups, each with the number of lines before it.
///
/// A line with a quote that is not closed is a group of its own, so it affects no other line.
fn rows_of_lines(bytes: &[u8], before: u64) -> Vec<(&[u8], u64)> {
    let (mut groups, mut start, mut end, mut lines) = (Vec::new(), 0, 0, before);
    let mut first = before;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let is_open = memchr::memchr_iter(b'"', line).count() % 2 == 1;
        if is_open {
            groups.push((&bytes[start..end], first));
            groups.push((line, lines));
        }
        (end, lines) = (end + line.len(), lines + 1);
        if is_open {
            (start, first) = (end, lines);
        }
    }
    groups.push((&bytes[start..], first));
    groups.retain(|(lines, _)| !lines.is_empty());
    groups
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::preamble;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        import: ImportArgs,
    }

    /// The lines that are sent for those that `add` adds.
    fn sent(args: &[&str], add: impl FnOnce(&mut Lines<'_>)) -> String {
        let args = Line::try_parse_from(["import"].iter().chain(args)).unwrap().import;
        let progress = Progress::start(None, false, true);
        let (queue, mut batches) = mpsc::channel(100);
        let batcher = Batcher::new(&queue, 100, "a".into()).with_marks();
        let (form, encoding) = (Form::Head(Vec::new()), args.encoding);
        let (args, progress, start, header) = (&args, &progress, 0, None);
        let mut lines =
            Lines { args, progress, batcher, start, form, encoding, header, is_torn: false, repeated: None };
        add(&mut lines);
        lines.batcher.finish().unwrap();
        drop(lines);
        drop(queue);
        let mut sent = Vec::new();
        while let Some(batch) = batches.blocking_recv() {
            sent.extend_from_slice(&batch.body);
        }
        String::from_utf8(sent).unwrap()
    }

    #[test]
    fn lines_of_json_have_the_encoding_of_the_file() {
        let lines = sent(&["a.ndjson", "--encoding", "windows-1252"], |lines| {
            lines.add("a", b"{\"deviceId\":\"\xD6l\"}\n", 0).unwrap();
            lines.add("a", b"{\"deviceId\":\"W\xE4rme\"}\n", 1).unwrap();
        });
        assert_eq!(lines, "{\"deviceId\":\"Öl\"}\n{\"deviceId\":\"Wärme\"}\n");
        let lines = sent(&["a.ndjson"], |lines| assert!(lines.add("a", "\u{feff}[]\n".as_bytes(), 0).unwrap()));
        assert_eq!(lines, "[]\n");
    }

    #[test]
    fn all_lines_of_a_file_with_a_byte_order_mark_are_utf_8() {
        let windows = |name: &'static str| [name, "--encoding", "windows-1252"];
        let lines = sent(&windows("a.ndjson"), |lines| {
            lines.add("a", "\u{feff}{\"deviceId\":\"Öl\"}\n".as_bytes(), 0).unwrap();
            lines.add("a", "{\"deviceId\":\"Wärme\"}\n".as_bytes(), 1).unwrap();
            lines.begin_file(false);
            lines.add("a", b"[]\n", 0).unwrap();
            lines.add("a", b"{\"deviceId\":\"K\xE4lte\"}\n", 1).unwrap();
        });
        let [oil, heat, cold] = ["Öl", "Wärme", "Kälte"].map(|device| format!("{{\"deviceId\":\"{device}\"}}\n"));
        assert_eq!(lines, format!("{oil}{heat}[]\n{cold}"));
        let row = |device: &str| format!("{device},1776693610,1\n");
        let lines = sent(&windows("a.csv"), |lines| {
            lines.add("a", format!("\u{feff}device,time,v\n{}", row("Öl")).as_bytes(), 0).unwrap();
            lines.add("a", row("Wärme").as_bytes(), 2).unwrap();
            lines.begin_file(false);
            lines.add("a", format!("\u{feff}{}", row("Kälte")).as_bytes(), 0).unwrap();
        });
        let devices: Vec<_> = lines.lines().filter_map(|line| line.split('"').nth(3)).collect();
        assert_eq!(devices, ["Öl", "Wärme", "Kälte"]);
    }

    #[test]
    fn the_rest_of_a_cut_line_is_no_row() {
        let row = |device: &str| format!("{device};24.10.2026 20:00:05;21,5\n");
        let with_header = |device: &str| format!("device;time;press\n{}", row(device));
        let sent = sent(&["a.csv", "--tz", "UTC", "--decimal", ","], |lines| {
            lines.add("a", with_header("press-1").as_bytes(), 0).unwrap();
            for (is_cut, text) in [
                (true, row("ess-2") + &row("press-3")),
                (false, row("press-4")),
                (true, with_header("press-5")),
                (true, row("ess-6")),
            ] {
                lines.begin_file(is_cut);
                assert!(lines.add("a", text.as_bytes(), 0).unwrap());
            }
            assert_eq!(lines.progress.rejected(), (2, 0));
        });
        let devices: Vec<_> = sent.lines().filter_map(|line| line.split('"').nth(3)).collect();
        assert_eq!(devices, ["press-1", "press-3", "press-4", "press-5"]);
    }

    #[test]
    fn rows_of_the_repeated_hour_hold_the_place_until_all_devices_are_ended() {
        let rows = |device: &str, times: &[&str]| -> String {
            times.iter().map(|time| format!("{device},2026-10-{time},1\n")).collect::<Vec<_>>().concat()
        };
        let head = |device: &str| format!("device,time,v\n{}", rows(device, &["25 01:30", "25 02:30"]));
        sent(&["a.csv", "--tz", "Europe/Berlin"], |lines| {
            assert!(!lines.add("a", head("silent").as_bytes(), 0).unwrap());
            lines.begin_file(false);
            assert!(!lines.add("a", head("d").as_bytes(), 0).unwrap());
            for (time, before) in [("25 03:30", 3), ("26 02:31", 4)] {
                assert!(!lines.add("a", rows("d", &[time]).as_bytes(), before).unwrap(), "{time}");
            }
            let Form::Csv(rows) = &mut lines.form else { panic!("the file has rows") };
            rows.end_silent(Instant::now() + Duration::from_secs(86_400), 0);
            assert!(lines.add("a", b"", 5).unwrap());
            assert_eq!(lines.progress.rejected(), (2, 0));
        });
    }

    #[test]
    fn a_device_whose_clock_is_ahead_ends_no_other_device() {
        let sent = sent(&["a.csv", "--tz", "Europe/Berlin"], |lines| {
            let mut before = 0;
            for time in ["01:59", "02:10", "02:50", "02:10", "02:50", "03:10"] {
                let header = if before == 0 { "device,time,v\n" } else { "" };
                let text = format!("{header}d,2026-10-25 {time},1\nahead,2026-10-27 12:00,1\n");
                assert_eq!(lines.add("a", text.as_bytes(), before).unwrap(), !time.starts_with("02"), "{time}");
                before += text.lines().count() as u64;
            }
            assert_eq!(lines.progress.rejected(), (0, 0));
        });
        assert_eq!(sent.matches("\"d\"").count(), 6, "{sent}");
    }

    #[test]
    fn a_torn_text_is_no_header_and_a_renamed_header_is_refused() {
        let args = ["--device", "d", "--time-column", "Zeit", "--metric", "press", "--tz", "UTC", "--decimal", ","];
        let row = "24.10.2026 20:00:05;21,5;ok\n";
        for (first, is_refused) in [
            ("offen, Motor aus, Band steht\n", false),
            ("\"offen;Motor aus;Band steht\"\n", false),
            ("24.10.2026 20:00:04;ERR;ok\n", false),
            ("Zeitpunkt;2m Temp [°C];press [bar]\n", true),
            ("# Gateway 7\nZeitpunkt;Temp;press\n", true),
        ] {
            sent(&[&["a.csv"], &args[..]].concat(), |lines| {
                lines.add("a", format!("Zeit;press;Zustand\n{row}").as_bytes(), 0).unwrap();
                lines.begin_file(false);
                let added = lines.add("a", format!("{first}{row}").as_bytes(), 0);
                assert_eq!(added.is_err(), is_refused, "{first}");
                assert_eq!(lines.progress.rejected(), (u64::from(!is_refused), 0), "{first}");
            });
        }
    }

    #[test]
    fn the_parts_of_a_time_are_values() {
        let times = Times::usual(jiff::tz::TimeZone::UTC);
        for cell in ["-17", "1,5e3", "1.234,5", "2026-10-24T14:30", "24.10.2026", "14:30:15", "0:05", "01/02/2026 1:0"]
        {
            assert!(is_value(cell, &times), "{cell}");
        }
        for cell in ["", "Zeit", "2m Temp [°C]", "-", "4-20 mA", "time"] {
            assert!(!is_value(cell, &times), "{cell}");
        }
    }

    #[test]
    fn a_quote_that_is_not_closed_is_a_group() {
        let text = b"1,\"a\"\n2,b\n3,5\"\n4,c\n\"\n";
        let found: Vec<(&str, u64)> =
            rows_of_lines(text, 7).into_iter().map(|(text, line)| (std::str::from_utf8(text).unwrap(), line)).collect();
        assert_eq!(found, [("1,\"a\"\n2,b\n", 7), ("3,5\"\n", 9), ("4,c\n", 10), ("\"\n", 11)]);
        assert_eq!(rows_of_lines(b"1\n2\n", 3), [(&b"1\n2\n"[..], 3)]);
        assert_eq!(rows_of_lines(b"", 3), []);
    }

    #[test]
    fn a_header_alone_has_no_row() {
        for (head, skip, expected) in [
            ("", None, None),
            ("# a\n", None, None),
            ("ts;v\n", None, None),
            ("ts;v,w\n", None, None),
            ("ts;v,w\n1;2,3\n4;5,6\n", None, Some("4;5,6\n")),
            ("ts;v\n\n1;2\n", None, Some("1;2\n")),
            ("\u{feff}# a\nts;v\n", None, None),
            ("\u{feff}# a\nts;v\n1;2\n", None, Some("1;2\n")),
            ("a\nts;v\n", Some(1), None),
            ("a\nts;v\n1;2\n", Some(1), Some("1;2\n")),
        ] {
            assert_eq!(first_row(head.as_bytes(), None, skip).map(|row| &head[row..]), expected, "{head:?}");
        }
    }

    #[test]
    fn comments_with_a_quote_are_read_a_few_times_only() {
        let head = "#\"\n".repeat(1_000) + "device,time,v\nd,1776693610,1\nd,1776693611,\"\nd,1776693612,1\n";
        let before = preamble::tests::LINES_READ.get();
        let sent = sent(&["a.csv"], |lines| {
            assert!(lines.add("a", head.as_bytes(), 0).unwrap());
            assert_eq!(lines.progress.rejected(), (1, 0));
        });
        assert_eq!(sent.lines().count(), 2, "{sent}");
        let read = preamble::tests::LINES_READ.get() - before;
        assert!(read < 10_000, "{read}");
    }
}
