//! Converts the rows of a CSV file to lines of NDJSON, one reading per row. Pure.
//!
//! A row that cannot be converted yields its error, and the next row follows.

use std::io::Read;

use csv::StringRecord;
use jiff::tz::TimeZone;
use tidegauge::model::check_device_id;

use super::cells::{Found, Input};
use super::columns::{Columns, ColumnsError, DeviceSource, ValueColumn, Wanted};
use super::exported::{self, ValueRows};
use super::time;

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
    /// The header cannot be read.
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
    /// Its result.
    pub(super) outcome: Outcome,
}

/// The result of a row.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A line of NDJSON.
    Reading {
        /// The number of metrics with an empty cell.
        empty_cells: u64,
    },
    /// No metric has a value: there is nothing to send.
    NoValues {
        /// The number of metrics with an empty cell.
        empty_cells: u64,
    },
    /// The row is rejected, for this reason.
    Bad(String),
}

/// The rows of a file.
pub(super) struct Rows<R: Read> {
    input: Input<R>,
    /// The rows that were read to find the columns and are not converted yet.
    sample: std::vec::IntoIter<(Found, StringRecord)>,
    record: StringRecord,
    convert: Convert,
}

/// How rows become lines.
enum Convert {
    /// A row is a reading with several values.
    Columns(Converter),
    /// A row is one value, as in the files of an export.
    Values(ValueRows),
}

impl<R: Read> Rows<R> {
    /// Reads the header and the first rows, and finds the columns.
    pub(super) fn open(input: R, wanted: &Wanted, zone: TimeZone) -> Result<Self, CsvError> {
        let mut input = Input::new(input);
        let header = input.header()?;
        if wanted.is_nothing() && exported::is_header(&header)? {
            let convert = Convert::Values(ValueRows::new(&header, zone));
            return Ok(Self { input, sample: Vec::new().into_iter(), record: StringRecord::new(), convert });
        }
        let mut record = StringRecord::new();
        let mut sample = Vec::new();
        while sample.len() < SAMPLE_ROWS
            && let Some(found) = input.read(&mut record)?
        {
            sample.push((found, record.clone()));
        }
        let rows: Vec<&StringRecord> = sample.iter().map(|(_, row)| row).collect();
        let columns = Columns::find(&header, &rows, wanted)?;
        let convert = Convert::Columns(Converter::new(columns, &header, zone));
        Ok(Self { input, sample: sample.into_iter(), record, convert })
    }

    /// The columns found in the header; `None` if a row is one value.
    pub(super) fn columns(&self) -> Option<&Columns> {
        match &self.convert {
            Convert::Columns(convert) => Some(&convert.columns),
            Convert::Values(_) => None,
        }
    }

    /// Converts the next row, a reading into `text`. `None` after the last.
    pub(super) fn next(&mut self, text: &mut Vec<u8>) -> Result<Option<Row>, CsvError> {
        let found = match self.sample.next() {
            Some((found, record)) => {
                self.record = record;
                Some(found)
            }
            None => self.input.read(&mut self.record)?,
        };
        let row = |Found { line, trouble }| {
            let outcome = match (&self.convert, trouble) {
                (_, Some(trouble)) => Err(trouble.to_owned()),
                (Convert::Columns(convert), None) => convert.row(&self.record, text),
                (Convert::Values(convert), None) => convert.row(&self.record, text),
            };
            Row { line, outcome: outcome.unwrap_or_else(Outcome::Bad) }
        };
        Ok(found.map(row))
    }
}

/// Converts a row to a line.
struct Converter {
    columns: Columns,
    header: Vec<String>,
    /// For each value column, its metric as a JSON key: `"temp":`.
    keys: Vec<String>,
    zone: TimeZone,
}

impl Converter {
    fn new(columns: Columns, header: &StringRecord, zone: TimeZone) -> Self {
        let key = |value: &ValueColumn| format!("{}:", serde_json::Value::from(value.metric.as_str()));
        let keys = columns.values.iter().map(key).collect();
        Self { keys, header: header.iter().map(|name| name.trim().to_owned()).collect(), columns, zone }
    }

    fn row(&self, row: &StringRecord, text: &mut Vec<u8>) -> Result<Outcome, String> {
        text.clear();
        if row.len() != self.header.len() {
            return Err(format!("the row has {} cells, the header has {}", row.len(), self.header.len()));
        }
        let cell = |at: usize| row[at].trim();
        let device = match &self.columns.device {
            DeviceSource::Fixed(device) => device,
            DeviceSource::Column(at) => {
                check_device_id(cell(*at)).map_err(|error| self.bad(*at, cell(*at), &error))?;
                cell(*at)
            }
        };
        let at = self.columns.time;
        let ts_ms = time::parse(cell(at), &self.zone).map_err(|error| self.bad(at, cell(at), &error))?;
        // A device ID contains no character that JSON escapes.
        text.extend_from_slice(format!("{{\"deviceId\":\"{device}\",\"ts\":{ts_ms},\"values\":{{").as_bytes());
        let mut empty_cells = 0;
        for (value, key) in self.columns.values.iter().zip(&self.keys) {
            let cell = cell(value.at);
            if cell.is_empty() {
                empty_cells += 1;
                continue;
            }
            let number = number(cell).map_err(|error| self.bad(value.at, cell, &error))?;
            if text.last() != Some(&b'{') {
                text.push(b',');
            }
            text.extend_from_slice(key.as_bytes());
            serde_json::to_writer(&mut *text, &number).expect("a Vec takes any bytes");
        }
        text.extend_from_slice(b"}}");
        let no_values = empty_cells == self.keys.len() as u64;
        Ok(if no_values { Outcome::NoValues { empty_cells } } else { Outcome::Reading { empty_cells } })
    }

    fn bad(&self, at: usize, cell: &str, why: &dyn std::fmt::Display) -> String {
        bad_cell(&self.header[at], cell, why)
    }
}

/// Why a row is rejected because of a cell.
pub(super) fn bad_cell(column: &str, cell: &str, why: &dyn std::fmt::Display) -> String {
    let shown: String = cell.chars().take(SHOWN_CHARS).collect();
    let more = if shown.len() < cell.len() { "..." } else { "" };
    format!("column {column:?}: {shown:?}{more}: {why}")
}

pub(super) fn number(cell: &str) -> Result<f64, &'static str> {
    let number: f64 = cell.parse().map_err(|_| "not a number")?;
    if number.is_finite() { Ok(number) } else { Err("not a finite number") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegauge::wire::{Ignored, Incoming, Rejection, Sink, json};

    use super::super::columns::WantedDevice;
    use super::*;

    fn wanted(device: WantedDevice) -> Wanted {
        Wanted { device, time_column: None, metrics: Vec::new() }
    }

    /// All rows: the line number, and the line of NDJSON or the error.
    fn rows(input: &[u8], device: WantedDevice) -> Vec<(u64, Result<String, String>)> {
        let mut rows = Rows::open(input, &wanted(device), TimeZone::UTC).unwrap();
        let mut all = Vec::new();
        let mut text = Vec::new();
        while let Some(row) = rows.next(&mut text).unwrap() {
            let outcome = match row.outcome {
                Outcome::Reading { .. } => Ok(String::from_utf8(text.clone()).unwrap()),
                Outcome::NoValues { empty_cells } => Err(format!("{empty_cells} empty")),
                Outcome::Bad(why) => Err(why),
            };
            all.push((row.line, outcome));
        }
        all
    }

    #[test]
    fn a_row_is_one_reading_with_the_values_of_its_filled_cells() {
        let input = b"time,device,temp,\"hum \"\"%\"\"\"\n2026-04-20 14:00:10, S1 ,22.4, +40\n1776693620,S2,,1e3\n";
        let expected = [
            (2, Ok(r#"{"deviceId":"S1","ts":1776693610000,"values":{"temp":22.4,"hum \"%\"":40.0}}"#.to_owned())),
            (3, Ok(r#"{"deviceId":"S2","ts":1776693620000,"values":{"hum \"%\"":1000.0}}"#.to_owned())),
        ];
        assert_eq!(rows(input, WantedDevice::Customary), expected);
    }

    #[test]
    fn a_bad_cell_spoils_its_row_only_and_is_named_with_its_column_and_line() {
        let input = b"ts,device,v\n1,a,1\nyesterday,a,2\n3,a b,3\n4,a,four\n5,a,inf\n6,a,\n7,a\n8,\xff,1\n9,a,9\n";
        let rows = rows(input, WantedDevice::Customary);
        let bad: Vec<_> = rows.iter().filter_map(|(line, row)| Some((*line, row.as_ref().err()?.as_str()))).collect();
        let not_a_time = "not a time: expected RFC 3339, YYYY-MM-DD HH:MM[:SS[.fff]] or Unix time";
        let expected = [
            (3, format!("column \"ts\": \"yesterday\": {not_a_time}")),
            (4, format!("column \"device\": \"a b\": {}", check_device_id("a b").unwrap_err())),
            (5, "column \"v\": \"four\": not a number".to_owned()),
            (6, "column \"v\": \"inf\": not a finite number".to_owned()),
            (7, "1 empty".to_owned()),
            (8, "the row has 2 cells, the header has 3".to_owned()),
            (9, "not UTF-8".to_owned()),
        ];
        assert_eq!(bad, expected.each_ref().map(|(line, why)| (*line, why.as_str())));
        assert_eq!(rows.iter().filter(|(_, row)| row.is_ok()).map(|(line, _)| *line).collect::<Vec<_>>(), [2, 10]);
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
            let Ok(mut rows) = Rows::open(&input[..], &wanted(WantedDevice::Fixed("d".into())), TimeZone::UTC) else {
                return Ok(());
            };
            let lines = input.iter().filter(|byte| b"\r\n".contains(byte)).count() as u64 + 1;
            let (mut text, mut last) = (Vec::new(), 0);
            while let Some(row) = rows.next(&mut text).unwrap() {
                prop_assert!(last < row.line && row.line <= lines, "line {} of {lines} after {last}", row.line);
                last = row.line;
                if let Outcome::Reading { .. } = row.outcome {
                    let mut counted = Counted::default();
                    json::parse(&text, &json::Options::default(), &mut counted).unwrap();
                    prop_assert_eq!((counted.0, counted.1), (1, Vec::new()));
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
            let wanted = wanted(WantedDevice::Fixed("d".into()));
            let opened = Rows::open(header.as_bytes(), &wanted, TimeZone::UTC);
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
            let expected = format!("{{\"deviceId\":\"d\",\"ts\":{ts}000,\"values\":{{\"v\":{ts}.0}}}}");
            assert_eq!(row.as_deref(), Ok(expected.as_str()));
        }
    }

    #[test]
    fn a_file_without_a_header_is_refused() {
        let wanted = wanted(WantedDevice::Customary);
        assert!(matches!(Rows::open(&b""[..], &wanted, TimeZone::UTC), Err(CsvError::Columns(_))));
        assert!(matches!(Rows::open(&b"\xff,v\n"[..], &wanted, TimeZone::UTC), Err(CsvError::Header(_))));
    }
}
