//! Converts the rows of a CSV file to lines of NDJSON, one line per row. Pure.
//!
//! A line is one reading, or several if a reading cannot have the values of the row. A row that cannot be
//! converted yields an error, and the conversion continues with the next row.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{BufRead, Chain, Cursor, Read};
use std::time::Instant;

use csv::StringRecord;
use tidegauge::model::{METRICS_PER_READING, check_device_id};

use super::cells::{Found, Input};
use super::columns::{self, Columns, ColumnsError, DeviceSource, MetricColumn, Wanted, joined};
use super::exported::{self, ValueRows};
use super::numbers::{self, Decimal};
use super::preamble::Preamble;
use super::repeated_hour::{Held, RepeatedHour, Resolved};
use super::time::{TimeError, Times, Twice, When};

/// The number of rows that decide which columns contain numbers.
const SAMPLE_ROWS: usize = 100;
/// The number of characters shown of a bad cell.
const SHOWN_CHARS: usize = 40;

/// Why a file cannot be read any further.
#[derive(Debug, thiserror::Error)]
pub(super) enum CsvError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The header cannot be read, for this reason.
    #[error("the header cannot be read: {0}")]
    Header(&'static str),
    /// The header lacks a needed column.
    #[error(transparent)]
    Columns(#[from] ColumnsError),
}

/// A row that was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// The line of the file on which the row starts, from 1.
    pub(super) line: u64,
    /// The result of the conversion.
    pub(super) outcome: Outcome,
}

/// The result of a row.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A line of NDJSON.
    Reading {
        /// The number of readings in the line.
        readings: u64,
        /// The number of metrics with an empty cell.
        empty_cells: u64,
        /// Why each value that the line lacks is rejected.
        bad_values: Vec<String>,
    },
    /// No metric has a value: there is nothing to send.
    NoValues {
        /// The number of metrics with an empty cell.
        empty_cells: u64,
    },
    /// The row is rejected, for this reason.
    Bad(String),
}

/// How a file is read.
#[derive(Debug, Clone)]
pub(super) struct Options {
    /// The columns that the command line names.
    pub(super) wanted: Wanted,
    /// How times are parsed.
    pub(super) times: Times,
    /// The character between cells; `None`: guessed.
    pub(super) delimiter: Option<u8>,
    /// The decimal mark; `None`: guessed.
    pub(super) decimal: Option<Decimal>,
    /// The number of lines before the header.
    ///
    /// `None`: comments and blank lines precede it.
    pub(super) skip_lines: Option<u64>,
}

/// The rows of a file.
pub(super) struct Rows<R: Read> {
    input: Input<Chain<Cursor<Vec<u8>>, R>>,
    delimiter: u8,
    /// The rows that were read to find the columns and are not converted yet.
    sample: VecDeque<(Found, StringRecord)>,
    /// Why no row after the sample can be read.
    failed: Option<std::io::Error>,
    record: StringRecord,
    convert: Convert,
    times: Times,
    repeated: RepeatedHour,
    /// Rows that were held and are resolved now.
    resolved: VecDeque<Resolved>,
    /// The lowest line of `resolved`, until all its rows are returned.
    resolved_from: Option<u64>,
    /// The line of the row that was read last.
    line: u64,
    guessed: Vec<String>,
}

/// How rows become lines.
enum Convert {
    /// A row is an instant with several values.
    Columns(Converter),
    /// A row is one value, as in the files of an export.
    Values(ValueRows),
}

/// A row as a line of NDJSON, without its time and its closing brace.
pub(super) struct Converted<'a> {
    pub(super) when: When,
    /// The device, or device and series if a row is one value.
    pub(super) sender: Cow<'a, str>,
    /// The number of metrics with an empty cell.
    pub(super) empty_cells: u64,
    /// Why each cell that is not empty and no number is rejected.
    pub(super) bad_values: Vec<String>,
    /// The columns with a value in this row, in ascending order.
    ///
    /// Empty unless the local time of the row exists twice.
    pub(super) filled: Vec<usize>,
    /// The number of values.
    pub(super) values: usize,
}

impl<R: BufRead> Rows<R> {
    /// Reads the header and the first rows, and finds the columns.
    pub(super) fn open(mut input: R, options: &Options) -> Result<Self, CsvError> {
        let Options { wanted, times, delimiter: given, decimal, skip_lines } = options;
        let Preamble { header, lines, delimiter } = Preamble::read(&mut input, *given, *skip_lines)?;
        let mut input = Input::new(Cursor::new(header).chain(input), delimiter, lines, true);
        let header = input.header()?;
        if header.is_empty() {
            return Err(ColumnsError::Empty.into());
        }
        let mut record = StringRecord::new();
        let (mut sample, mut failed) = (VecDeque::new(), None);
        while sample.len() < SAMPLE_ROWS && failed.is_none() {
            match input.read(&mut record) {
                Ok(Some(found)) => sample.push_back((found, record.clone())),
                Ok(None) => break,
                Err(error) if sample.is_empty() => return Err(error.into()),
                Err(error) => failed = Some(error),
            }
        }
        // A delimiter in a cell without quotes shifts all cells behind it. Such a row tells nothing about the
        // columns.
        let width = Width::of(&header);
        let is_whole = |row: &StringRecord| width.check(row).is_ok();
        let has_whole = sample.iter().any(|(_, row)| is_whole(row));
        let rows: Vec<&StringRecord> =
            sample.iter().map(|(_, row)| row).filter(|row| !has_whole || is_whole(row)).collect();
        let mut convert = if wanted.is_nothing() && exported::is_header(&header)? {
            Convert::Values(ValueRows::new(&header))
        } else {
            Convert::Columns(Converter::new(Columns::find(&header, &rows, wanted, times)?, &header))
        };
        let (time, values, found) = match &mut convert {
            Convert::Columns(of) => {
                (&of.columns.time[..], of.columns.values.iter().map(|value| value.at).collect(), &mut of.decimal)
            }
            Convert::Values(of) => (&[1][..], vec![3], &mut of.decimal),
        };
        let cells = rows.iter().flat_map(|row| values.iter().filter_map(|at| row.get(*at)).map(str::trim));
        *found = match decimal {
            Some(decimal) => Some(*decimal),
            None => numbers::guess(cells, delimiter).map_err(ColumnsError::from)?,
        };
        let mut guessed = Vec::new();
        if given.is_none() && delimiter != b',' {
            guessed.push(format!("--delimiter '{}'", delimiter.escape_ascii()));
        }
        if decimal.is_none() && *found == Some(Decimal::Comma) {
            guessed.push("--decimal ','".to_owned());
        }
        if skip_lines.is_none() && lines > 0 {
            guessed.push(format!("--skip-lines {lines}"));
        }
        for (Found { line, .. }, row) in sample.iter().filter(|(_, row)| is_whole(row)) {
            let cell = joined(row, time);
            if let Err(why @ (TimeError::DayOrMonth(_) | TimeError::Number(_) | TimeError::NoZone)) = times.parse(&cell)
            {
                return Err(ColumnsError::Time(*line, bad_cell(&joined(&header, time), &cell, &why)).into());
            }
        }
        let (times, repeated, resolved) = (times.clone(), RepeatedHour::new(), VecDeque::new());
        let (resolved_from, line) = (None, 0);
        Ok(Self {
            input,
            delimiter,
            sample,
            failed,
            record,
            convert,
            times,
            repeated,
            resolved,
            resolved_from,
            line,
            guessed,
        })
    }

    /// The columns found in the header; `None` if a row is one value.
    pub(super) fn columns(&self) -> Option<&Columns> {
        match &self.convert {
            Convert::Columns(convert) => Some(&convert.columns),
            Convert::Values(_) => None,
        }
    }

    /// The options that were guessed, as flags such as `--decimal ','`.
    pub(super) fn guessed(&self) -> &[String] {
        &self.guessed
    }

    /// The line up to which all rows are returned.
    pub(super) fn returned_to(&self) -> u64 {
        self.resolved_from.into_iter().chain(self.repeated.first_line()).min().map_or(self.line, |line| line - 1)
    }

    /// Converts the next row; a reading is written into `text`.
    ///
    /// `None`: only held rows may be left, which [`Self::end`] releases. A row whose local time exists twice
    /// is held, and returned after later rows of the file.
    pub(super) fn next(&mut self, text: &mut Vec<u8>) -> Result<Option<Row>, CsvError> {
        loop {
            if let Some((row, ms)) = self.resolved.pop_front() {
                self.resolved_from = self.resolved_from.filter(|_| !self.resolved.is_empty());
                return Ok(Some(self.returned(row, ms, text)));
            }
            let found = match self.sample.pop_front() {
                Some((found, record)) => {
                    self.record = record;
                    Some(found)
                }
                None => match self.failed.take() {
                    Some(error) => return Err(error.into()),
                    None => self.input.read(&mut self.record)?,
                },
            };
            let Some(Found { line, trouble }) = found else { return Ok(None) };
            self.line = line;
            text.clear();
            let converted = match (&self.convert, trouble) {
                (_, Some(trouble)) => Err(trouble.to_owned()),
                (Convert::Columns(convert), None) => convert.row(&self.record, &self.times, text),
                (Convert::Values(convert), None) => convert.row(&self.record, &self.times, text),
            };
            let Converted { when, sender, empty_cells, bad_values, filled, values } = match converted {
                Ok(converted) => converted,
                Err(why) => return Ok(Some(Row { line, outcome: Outcome::Bad(why) })),
            };
            if values == 0 {
                return Ok(Some(Row { line, outcome: Outcome::NoValues { empty_cells } }));
            }
            match when {
                When::At(ms) => {
                    if !self.times.is_fixed() {
                        self.resolved.extend(self.repeated.pass(&sender, ms));
                        self.resolved_from = first_line(&self.resolved);
                    }
                    complete(text, ms);
                    let outcome = Outcome::Reading { readings: readings_of(values), empty_cells, bad_values };
                    return Ok(Some(Row { line, outcome }));
                }
                When::Twice(twice) => {
                    let row = Held { line, text: std::mem::take(text), empty_cells, bad_values, filled, twice };
                    self.resolved.extend(self.repeated.hold(&sender, row)?);
                    self.resolved_from = first_line(&self.resolved);
                }
            }
        }
    }

    /// Continues with the rows of `input`, which follow `lines` lines of the file.
    ///
    /// Rows that [`Self::next`] has not returned yet are dropped, unless they are held.
    pub(super) fn append(&mut self, input: R, lines: u64) {
        self.sample.clear();
        self.failed = None;
        self.input = Input::new(Cursor::new(Vec::new()).chain(input), self.delimiter, lines, false);
    }

    /// Ends the input, so that [`Self::next`] returns the held rows.
    pub(super) fn end(&mut self) {
        self.resolved.extend(self.repeated.finish());
        self.resolved_from = first_line(&self.resolved);
    }

    /// Ends the wait for devices that are silent, so that [`Self::next`] returns their held rows.
    ///
    /// Only in a file that grows. An earlier run has sent the rows up to the line `sent`.
    pub(super) fn end_silent(&mut self, now: Instant, sent: u64) {
        self.resolved.extend(self.repeated.end_silent(now, sent));
        self.resolved_from = first_line(&self.resolved);
    }

    /// Whether rows are held.
    pub(super) fn holds_any(&self) -> bool {
        self.repeated.holds_any()
    }

    /// Takes the rows that are held, for a file that continues this one.
    pub(super) fn into_held(self) -> RepeatedHour {
        self.repeated
    }

    /// Takes over the held rows of an earlier file.
    ///
    /// Call it before the first [`Self::next`].
    pub(super) fn hold_too(&mut self, held: RepeatedHour) {
        self.repeated = held;
    }

    fn returned(&self, row: Held, ms: Result<i64, (u64, u64)>, text: &mut Vec<u8>) -> Row {
        let Held { line, text: held, empty_cells, bad_values, filled, twice } = row;
        *text = held;
        let outcome = match ms {
            Ok(ms) => {
                complete(text, ms);
                Outcome::Reading { readings: readings_of(filled.len()), empty_cells, bad_values }
            }
            Err((from, to)) => {
                let Twice { civil, first_ms, second_ms } = twice;
                let [first, second] =
                    [first_ms, second_ms].map(|ms| jiff::Timestamp::from_millisecond(ms).unwrap_or_default());
                let lines = if from == to { format!("line {from}") } else { format!("lines {from} to {to}") };
                Outcome::Bad(format!(
                    "{civil} exists twice in {}, as {first} and {second}, and the order of {lines} does not tell \
                     which: add the offset to the times",
                    self.times.zone_name()
                ))
            }
        };
        Row { line, outcome }
    }
}

/// The lowest line of `resolved`.
fn first_line(resolved: &VecDeque<Resolved>) -> Option<u64> {
    resolved.iter().map(|(row, _)| row.line).min()
}

/// The number of readings with these values of a row.
const fn readings_of(values: usize) -> u64 {
    values.div_ceil(METRICS_PER_READING) as u64
}

/// A metric as a JSON key: `"temp":`.
fn key(metric: &str) -> String {
    format!("{}:", serde_json::Value::from(metric))
}

/// Completes a line of NDJSON with its time.
fn complete(text: &mut Vec<u8>, ms: i64) {
    text.extend_from_slice(format!(",\"ts\":{ms}}}").as_bytes());
}

/// Converts a row to a line.
struct Converter {
    columns: Columns,
    header: Vec<String>,
    width: Width,
    /// For each value column, its metric as a JSON key: `"temp":`.
    keys: Vec<String>,
    decimal: Option<Decimal>,
}

impl Converter {
    fn new(columns: Columns, header: &StringRecord) -> Self {
        let keys = columns.values.iter().map(|value| key(&value.metric)).collect();
        let width = Width::of(header);
        let header = header.iter().map(|name| name.trim().to_owned()).collect();
        Self { keys, header, width, columns, decimal: None }
    }

    /// Converts a row. A bad value is left out, unless the row has no other.
    fn row<'a>(&'a self, row: &'a StringRecord, times: &Times, text: &mut Vec<u8>) -> Result<Converted<'a>, String> {
        self.width.check(row)?;
        let cell = |at: usize| row.get(at).unwrap_or_default().trim();
        let device = match &self.columns.device {
            DeviceSource::Fixed(device) => device,
            DeviceSource::Column(at) => {
                check_device_id(cell(*at)).map_err(|error| self.bad(&[*at], cell(*at), &error))?;
                cell(*at)
            }
        };
        let at = &self.columns.time[..];
        let time = joined(row, at);
        let when = times.parse(&time).map_err(|error| self.bad(at, &time, &error))?;
        let series = self.columns.metric.as_ref().map(|of| self.series(of, row)).transpose()?;
        let own_key = series.as_deref().map(key);
        text.extend_from_slice(format!("{{\"deviceId\":{},\"values\":{{", serde_json::Value::from(device)).as_bytes());
        let (mut values, mut empty_cells, mut bad_values, mut filled) = (0_usize, 0, Vec::new(), Vec::new());
        for (value, key) in self.columns.values.iter().zip(&self.keys) {
            let cell = cell(value.at);
            if cell.is_empty() {
                empty_cells += 1;
                continue;
            }
            let number = match numbers::parse(cell, self.decimal) {
                Ok(number) => number,
                Err(why) => {
                    bad_values.push(self.bad(&[value.at], cell, &why));
                    continue;
                }
            };
            let separator: &[u8] = match values {
                0 => b"",
                METRICS_PER_READING => b"},\"readings\":[{\"values\":{",
                _ if values.is_multiple_of(METRICS_PER_READING) => b"}},{\"values\":{",
                _ => b",",
            };
            text.extend_from_slice(separator);
            text.extend_from_slice(own_key.as_ref().unwrap_or(key).as_bytes());
            serde_json::to_writer(&mut *text, &number).expect("a Vec takes any bytes");
            values += 1;
            if matches!(when, When::Twice(_)) {
                filled.push(value.at);
            }
        }
        if values == 0 && !bad_values.is_empty() {
            return Err(bad_values.swap_remove(0));
        }
        let end: &[u8] = if values > METRICS_PER_READING { b"}}]" } else { b"}" };
        text.extend_from_slice(end);
        filled.sort_unstable();
        let sender: Cow<'a, str> = match series {
            Some(series) if !times.is_fixed() => format!("{device} {series}").into(),
            _ => Cow::Borrowed(device),
        };
        Ok(Converted { when, sender, empty_cells, bad_values, filled, values })
    }

    /// The series that a row names.
    fn series(&self, of: &MetricColumn, row: &StringRecord) -> Result<String, String> {
        let cell = |at: usize| row.get(at).unwrap_or_default().trim();
        let unit = of.unit.map(cell).filter(|unit| !unit.is_empty());
        columns::labelled(cell(of.at), unit).map_err(|why| self.bad(&[of.at], cell(of.at), &why))
    }

    fn bad(&self, at: &[usize], cell: &str, why: &dyn std::fmt::Display) -> String {
        let names: Vec<&str> = at.iter().map(|at| self.header[*at].as_str()).collect();
        bad_cell(&names.join(" "), cell, why)
    }
}

/// The number of cells of a header.
#[derive(Clone, Copy)]
pub(super) struct Width {
    cells: usize,
    /// The cells up to the last one with a name.
    named: usize,
}

impl Width {
    pub(super) fn of(header: &StringRecord) -> Self {
        let named = header.iter().rev().skip_while(|name| name.trim().is_empty()).count();
        Self { cells: header.len(), named }
    }

    /// Checks that a row has as many cells as the header.
    ///
    /// More cells at the end are allowed if they are empty, and fewer if the header has no names there.
    pub(super) fn check(self, row: &StringRecord) -> Result<(), String> {
        let Self { cells, named } = self;
        let is_more = row.iter().skip(cells).any(|cell| !cell.trim().is_empty());
        match (is_more, row.len() < named) {
            (false, false) => Ok(()),
            (false, true) => Err(format!("the row has {} cells, the header has {cells}", row.len())),
            (true, _) => {
                let hint = "a cell that contains the delimiter needs quotes";
                Err(format!("the row has {} cells, the header has {cells}: {hint}", row.len()))
            }
        }
    }
}

/// Why a row is rejected because of a cell.
pub(super) fn bad_cell(column: &str, cell: &str, why: &dyn std::fmt::Display) -> String {
    let shown: String = cell.chars().take(SHOWN_CHARS).collect();
    let more = if shown.len() < cell.len() { "..." } else { "" };
    format!("column {column:?}: {shown:?}{more}: {why}")
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;
    use proptest::prelude::*;
    use tidegauge::wire::{Ignored, Incoming, Rejection, Sink, json};

    use super::super::columns::WantedDevice;
    use super::*;

    fn options(device: WantedDevice) -> Options {
        let wanted = Wanted { device, time_column: None, metric_column: None, metrics: Vec::new() };
        let times = Times::usual(TimeZone::UTC);
        Options { wanted, times, delimiter: None, decimal: None, skip_lines: None }
    }

    /// All rows: the line number, and the line of NDJSON or the error.
    fn rows(input: &[u8], device: WantedDevice) -> Vec<(u64, Result<String, String>)> {
        rows_with(input, &options(device))
    }

    fn rows_with(input: &[u8], options: &Options) -> Vec<(u64, Result<String, String>)> {
        let mut rows = Rows::open(input, options).unwrap();
        let mut all = Vec::new();
        let mut text = Vec::new();
        let mut is_over = false;
        loop {
            let Some(row) = rows.next(&mut text).unwrap() else {
                if std::mem::replace(&mut is_over, true) {
                    return all;
                }
                rows.end();
                continue;
            };
            let outcome = match row.outcome {
                Outcome::Reading { .. } => Ok(String::from_utf8(text.clone()).unwrap()),
                Outcome::NoValues { empty_cells } => Err(format!("{empty_cells} empty")),
                Outcome::Bad(why) => Err(why),
            };
            all.push((row.line, outcome));
        }
    }

    #[test]
    fn a_row_is_one_reading_with_the_values_of_its_filled_cells() {
        let input = b"time,device,temp,\"hum \"\"%\"\"\"\n2026-04-20 14:00:10, S1 ,22.4, +40\n1776693620,S2,,1e3\n";
        let expected = [
            (2, Ok(r#"{"deviceId":"S1","values":{"temp":22.4,"hum \"%\"":40.0},"ts":1776693610000}"#.to_owned())),
            (3, Ok(r#"{"deviceId":"S2","values":{"hum \"%\"":1000.0},"ts":1776693620000}"#.to_owned())),
        ];
        assert_eq!(rows(input, WantedDevice::Customary), expected);
    }

    /// The times of the middle rows exist twice, and are in order for each metric.
    #[test]
    fn a_row_may_name_its_metric_and_unit() {
        let input = "time,tag,value,unit\n2026-10-25 01:30,t,1,°C\n2026-10-25 01:30,on,true,\n\
                     2026-10-25 02:30,t,2,°C\n2026-10-25 02:30,on,0,\n2026-10-25 02:30,t,3,°C\n\
                     2026-10-25 02:30,on,1,\n2026-10-25 03:30,t,4,°C\n2026-10-25 03:30,on,,\n\
                     2026-10-25 03:30,,5,\n2026-10-25 03:30,on,FALSE,\n2026-10-25 03:30,t{unit=K},6,°C\n";
        let options = options(WantedDevice::Fixed("d".into()));
        let times = Times::usual(TimeZone::get("Europe/Vienna").unwrap());
        let wanted = Wanted { metric_column: Some("tag".to_owned()), ..options.wanted };
        let mut found = rows_with(input.as_bytes(), &Options { wanted, times, ..options });
        found.sort_by_key(|(line, _)| *line);
        let line = |series: &str, value: &str, hour: i64| {
            let ms = 1_792_884_600_000 + hour * 3_600_000;
            Ok(format!("{{\"deviceId\":\"d\",\"values\":{{\"{series}\":{value}.0}},\"ts\":{ms}}}"))
        };
        let (t, no_name) = ("t{unit=°C}", "column \"tag\": \"\": a metric name must not be empty");
        let expected = [
            (2, line(t, "1", 0)),
            (3, line("on", "1", 0)),
            (4, line(t, "2", 1)),
            (5, line("on", "0", 1)),
            (6, line(t, "3", 2)),
            (7, line("on", "1", 2)),
            (8, line(t, "4", 3)),
            (9, Err("1 empty".to_owned())),
            (10, Err(no_name.to_owned())),
            (11, line("on", "0", 3)),
            (12, line("t{unit=K}", "6", 3)),
        ];
        assert_eq!(found, expected);
    }

    /// The middle two rows have a time that exists twice.
    #[test]
    fn a_row_of_more_values_than_a_reading_has_is_one_line_of_several_readings() {
        for (values, expected) in [(256_usize, &[256_usize][..]), (257, &[256, 1]), (513, &[256, 256, 1])] {
            let header: String = (0..values).flat_map(|nth| [",m".to_owned(), nth.to_string()]).collect();
            let row = |hour: &str| format!("2026-10-25 {hour}:30:00{}\n", ",1.5".repeat(values));
            let input = format!("time{header}\n{}", ["01", "02", "02", "03"].map(row).concat());
            let options = options(WantedDevice::Fixed("d".into()));
            let times = Times::usual(TimeZone::get("Europe/Vienna").unwrap());
            let mut rows = Rows::open(input.as_bytes(), &Options { times, ..options }).unwrap();
            let (mut text, mut lines) = (Vec::new(), Vec::new());
            while let Some(row) = rows.next(&mut text).unwrap() {
                let readings = expected.len() as u64;
                assert_eq!(row.outcome, Outcome::Reading { readings, empty_cells: 0, bad_values: Vec::new() });
                let mut counted = Counted::default();
                json::parse(&text, &json::Options::default(), &mut counted).unwrap();
                assert_eq!((counted.0, counted.1), (expected.len(), Vec::new()));
                let line: serde_json::Value = serde_json::from_slice(&text).unwrap();
                let more = line["readings"].as_array().into_iter().flatten();
                let readings = std::iter::once(&line).chain(more);
                let found: Vec<usize> = readings.map(|one| one["values"].as_object().unwrap().len()).collect();
                assert_eq!(found, expected);
                lines.push(row.line);
            }
            lines.sort_unstable();
            assert_eq!(lines, [2, 3, 4, 5]);
        }
    }

    #[test]
    fn a_cell_with_a_delimiter_and_without_quotes_spoils_its_row_only() {
        let why = |row: usize, header: usize| {
            let hint = "a cell that contains the delimiter needs quotes";
            Err(format!("the row has {row} cells, the header has {header}: {hint}"))
        };
        let good =
            |device: &str| Ok(format!("{{\"deviceId\":{device:?},\"values\":{{\"temp\":1.5}},\"ts\":1776693610000}}"));
        let input = b"device,time,temp\nLine 3,5,2026-04-20T14:00:10Z,1.5\nS1,2026-04-20T14:00:10Z,1.5\n\
                      S2,2026-04-20T14:00:10Z,1,5\n";
        let expected = [(2, why(4, 3)), (3, good("S1")), (4, why(4, 3))];
        assert_eq!(rows(input, WantedDevice::Customary), expected);
        let of_export = b"deviceId,ts,series,value\na,7,2026-04-20T14:00:10Z,temp,1.5\n\
                          S1,2026-04-20T14:00:10Z,temp,1.5\n";
        assert_eq!(rows(of_export, WantedDevice::Customary), [(2, why(5, 4)), (3, good("S1"))]);
        let only = b"device,time,temp\nS2,2026-04-20T14:00:10Z,1,5\n";
        assert_eq!(rows(only, WantedDevice::Customary), [(2, why(4, 3))]);
    }

    #[test]
    fn a_row_needs_cells_up_to_the_last_name_of_the_header() {
        let width = Width::of(&StringRecord::from(vec!["ts", "", "v\r", " ", "\r"]));
        assert_eq!((width.cells, width.named), (5, 3));
        for (cells, expected) in [
            (vec!["1"; 2], false),
            (vec!["1"; 3], true),
            (vec!["1"; 5], true),
            (vec!["1"; 6], false),
            (vec!["1", "1", "1", "1", "1", " "], true),
        ] {
            assert_eq!(width.check(&StringRecord::from(cells.clone())).is_ok(), expected, "{cells:?}");
        }
        assert!(Width::of(&StringRecord::from(vec!["", " "])).check(&StringRecord::new()).is_ok());
        let many = format!("ts,v{}\n1,1\n2\n", ",".repeat(100_000));
        let why = "the row has 1 cells, the header has 100002".to_owned();
        let good = r#"{"deviceId":"d","values":{"v":1.0},"ts":1000}"#.to_owned();
        assert_eq!(rows(many.as_bytes(), WantedDevice::Fixed("d".into())), [(2, Ok(good)), (3, Err(why))]);
    }

    #[test]
    fn a_bad_cell_spoils_its_row_only_and_is_named_with_its_column_and_line() {
        let input = b"ts,device,v\n1,a,1\nyesterday,a,2\n3,a\x07b,3\n4,a,four\n5,a,inf\n6,a,\n7,a\n8,\xff,1\n9,a,9\n";
        let rows = rows(input, WantedDevice::Customary);
        let bad: Vec<_> = rows.iter().filter_map(|(line, row)| Some((*line, row.as_ref().err()?.as_str()))).collect();
        let not_a_time = TimeError::Unknown;
        let expected = [
            (3, format!("column \"ts\": \"yesterday\": {not_a_time}")),
            (4, format!("column \"device\": {:?}: {}", "a\x07b", check_device_id("a\x07b").unwrap_err())),
            (5, "column \"v\": \"four\": not a number".to_owned()),
            (6, "column \"v\": \"inf\": not a finite number".to_owned()),
            (7, "1 empty".to_owned()),
            (8, "the row has 2 cells, the header has 3".to_owned()),
            (9, "not UTF-8: if a program of Windows wrote the file, add --encoding windows-1252".to_owned()),
        ];
        assert_eq!(bad, expected.each_ref().map(|(line, why)| (*line, why.as_str())));
        assert_eq!(rows.iter().filter(|(_, row)| row.is_ok()).map(|(line, _)| *line).collect::<Vec<_>>(), [2, 10]);
    }

    /// The time of the middle row exists twice, so the row is held.
    #[test]
    fn a_bad_value_is_rejected_alone_if_its_row_has_another() {
        let input = b"time,v,w,x\n2026-10-25 01:30:00,1,NaN,3\n2026-10-25 02:30:00,---,2,\n\
                      2026-10-25 02:30:00,3,4,5\n2026-10-25 03:30:00,ERR,ERR,\n";
        let times = Times::usual(TimeZone::get("Europe/Vienna").unwrap());
        let options = Options { times, ..options(WantedDevice::Fixed("d".into())) };
        let metrics = vec!["v".parse().unwrap(), "w".parse().unwrap(), "x".parse().unwrap()];
        let wanted = Wanted { metrics, ..options.wanted };
        let mut rows = Rows::open(&input[..], &Options { wanted, ..options }).unwrap();
        let (mut text, mut found) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            while let Some(Row { line, outcome }) = rows.next(&mut text).unwrap() {
                let json = String::from_utf8(text.clone()).unwrap();
                let values = json.split(['{', '}']).nth(2).unwrap_or_default().to_owned();
                match outcome {
                    Outcome::Reading { bad_values, .. } => found.push((line, values, bad_values)),
                    Outcome::Bad(why) => found.push((line, String::new(), vec![why])),
                    Outcome::NoValues { .. } => panic!("line {line}"),
                }
            }
            rows.end();
        }
        found.sort_unstable();
        let found: Vec<(u64, &str, Vec<&str>)> = found
            .iter()
            .map(|(line, values, bad)| (*line, values.as_str(), bad.iter().map(String::as_str).collect()))
            .collect();
        let expected = [
            (2, r#""v":1.0,"x":3.0"#, vec![r#"column "w": "NaN": not a finite number"#]),
            (3, r#""w":2.0"#, vec![r#"column "v": "---": not a number"#]),
            (4, r#""v":3.0,"w":4.0,"x":5.0"#, Vec::new()),
            (5, "", vec![r#"column "v": "ERR": not a number"#]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn lines_are_counted_right_with_any_line_end_over_blank_and_quoted_ones() {
        let unix = "ts,note,v\n1,\"a\nb\",1\n\n2,c,2\n3,d,x\n4,e,4";
        for input in
            [unix.to_owned(), unix.to_owned() + "\n\n", unix.replace('\n', "\r\n"), unix.replace('\n', "\r\n") + "\r\n"]
        {
            let rows = rows(input.as_bytes(), WantedDevice::Fixed("d".into()));
            assert_eq!(rows.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 5, 6, 7], "{input:?}");
            assert_eq!(rows.iter().filter(|(_, row)| row.is_err()).count(), 1, "{input:?}");
        }
    }

    /// The readings and rejections that the API finds in a line.
    #[derive(Default)]
    struct Counted(usize, Vec<Rejection>);

    impl Sink for Counted {
        fn reading(&mut self, _: Incoming<'_>) {
            self.0 += 1;
        }

        fn reject(&mut self, rejection: Rejection) {
            self.1.push(rejection);
        }

        fn reject_value(&mut self, rejection: Rejection) {
            self.1.push(rejection);
        }

        fn ignore(&mut self, _: Ignored, _: &str) {}
    }

    /// Roughly a table: cells and pieces of cells.
    fn any_table() -> impl Strategy<Value = Vec<u8>> {
        let pieces =
            ["time", "device", "v", "1", "-1e3", "1e999", "NaN", "2026-04-20 14:00:10", "1776693610", "d 1", "\0"];
        let cell = prop::sample::select(pieces.map(str::as_bytes).map(<[u8]>::to_vec).to_vec());
        let mark = prop::sample::select(
            [",", ",", ",", "\n", "\n", "\r\n", "\r", "\"", "\"\"", ";", "\t", " "].map(Vec::from).to_vec(),
        );
        let noise = prop::collection::vec(any::<u8>(), 1..3);
        let piece = prop_oneof![6 => cell, 6 => mark, 1 => noise];
        let head = prop::sample::select(["", "time,device,v\n", "ts,v,w\n", "\u{feff}time,v\n"].to_vec());
        (head, prop::collection::vec(piece, 0..60))
            .prop_map(|(head, pieces)| [head.as_bytes(), &pieces.concat()].concat())
    }

    proptest! {
        #[test]
        fn of_any_bytes_each_row_is_a_line_that_the_api_takes_or_bad_on_a_line_of_the_file(input in any_table()) {
            let Ok(mut rows) = Rows::open(&input[..], &options(WantedDevice::Fixed("d".into()))) else {
                return Ok(());
            };
            let lines = input.iter().filter(|byte| b"\r\n".contains(byte)).count() as u64 + 1;
            let (mut text, mut last) = (Vec::new(), 0);
            while let Some(row) = rows.next(&mut text).unwrap() {
                prop_assert!(last < row.line && row.line <= lines, "line {} of {lines} after {last}", row.line);
                last = row.line;
                if let Outcome::Reading { readings, .. } = row.outcome {
                    let mut counted = Counted::default();
                    json::parse(&text, &json::Options::default(), &mut counted).unwrap();
                    prop_assert_eq!((counted.0 as u64, counted.1), (readings, Vec::new()));
                }
            }
        }
    }

    #[test]
    fn a_quote_that_is_never_closed_is_bad_on_the_line_where_its_row_begins() {
        let rows = rows(b"ts,v\n1,1\n2,2\n3,3,\"3\n4,4\n", WantedDevice::Fixed("d".into()));
        assert_eq!(
            rows.iter().map(|(line, row)| (*line, row.is_ok())).collect::<Vec<_>>(),
            [(2, true), (3, true), (4, false)]
        );
    }

    #[test]
    fn a_wrong_quote_does_not_swallow_rows_silently() {
        let text = b"ts,v,note\n1,1,ok\n2,2,\"5 inch\n3,3,\"fine\"\n4,4,\"ok\"\n5,5,\"rest\n6,6,\n";
        let rows = rows(text, WantedDevice::Fixed("d".into()));
        let found: Vec<_> = rows.iter().map(|(line, row)| (*line, row.as_ref().err().map(String::as_str))).collect();
        let (after, unclosed) = ("text follows a closing quote", "a quote is not closed");
        for ((line, why), (expected_line, expected)) in
            found.iter().zip([(2, None), (3, Some(after)), (5, None), (6, Some(unclosed))])
        {
            assert_eq!((*line, why.is_some()), (expected_line, expected.is_some()), "{found:?}");
            assert!(why.unwrap_or_default().starts_with(expected.unwrap_or_default()), "{found:?}");
        }
        assert_eq!(found.len(), 4, "{found:?}");
    }

    #[test]
    fn a_header_that_contains_rows_is_refused() {
        for header in ["ts,v,\"note\n1,1,x\n", "ts,\"v\n1,1\n\"note\"\n", "ts,v\r1,1\r2,2\r"] {
            let opened = Rows::open(header.as_bytes(), &options(WantedDevice::Fixed("d".into())));
            assert!(matches!(opened, Err(CsvError::Header(_))), "{header:?}");
        }
    }

    #[test]
    fn rows_after_the_sample_are_read_like_those_in_it() {
        let mut input = b"ts,v\n".to_vec();
        for ts in 1..=3 * SAMPLE_ROWS {
            input.extend(format!("{ts},{ts}\n").into_bytes());
        }
        let rows = rows(&input, WantedDevice::Fixed("d".into()));
        assert_eq!(rows.len(), 3 * SAMPLE_ROWS);
        for (at, (line, row)) in rows.iter().enumerate() {
            let ts = at + 1;
            assert_eq!(*line, ts as u64 + 1);
            let expected = format!("{{\"deviceId\":\"d\",\"values\":{{\"v\":{ts}.0}},\"ts\":{ts}000}}");
            assert_eq!(row.as_deref(), Ok(expected.as_str()));
        }
    }

    #[test]
    fn a_file_without_a_header_is_refused() {
        let options = options(WantedDevice::Customary);
        for empty in ["", "\n \r\n", "# time,v\n"] {
            let opened = Rows::open(empty.as_bytes(), &options);
            assert!(matches!(opened, Err(CsvError::Columns(ColumnsError::Empty))), "{empty:?}");
        }
        assert!(matches!(Rows::open(&b"\xff,v\n"[..], &options), Err(CsvError::Header(_))));
    }
}
