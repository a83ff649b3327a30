//! CSV (RFC 4180), and its forms for spreadsheets of other languages.
//!
//! A German spreadsheet, for example, reads `0,5;20,1` as the two numbers 0.5 and 20.1.

use super::{Format, write_number};
use crate::common::clock::write_rfc3339;
use crate::http::problem::Problem;
use crate::http::request::params::Params;
use crate::query::Zone;

/// The byte order mark of UTF-8, by which some spreadsheets recognise it.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The form of CSV: its delimiter, decimal mark and times.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::http) struct Csv {
    delimiter: u8,
    decimal: u8,
    has_mark: bool,
    /// The zone of local times, which have no offset. `None`: RFC 3339 in UTC.
    clock: Option<Zone>,
}

/// The default form, which programs read.
impl Default for Csv {
    fn default() -> Self {
        Self { delimiter: b',', decimal: b'.', has_mark: false, clock: None }
    }
}

impl Csv {
    /// Reads `delimiter`, `decimal`, `bom` and `times`, and `tz` for local times.
    ///
    /// Formats other than CSV take only the default values, but a workbook also takes `times=local`.
    pub(super) fn of(params: &mut Params<'_>, format: Format) -> Result<Self, Problem> {
        let usual = Self::default();
        let one_of = |name: &str, known: &str| Problem::invalid_parameter(name, format!("expected {known}"));
        let delimiter = match params.one("delimiter")?.as_deref() {
            None | Some(",") => b',',
            Some(";") => b';',
            Some("tab") => b'\t',
            Some(_) => return Err(one_of("delimiter", "a comma, a semicolon (;) or tab")),
        };
        let decimal = match params.one("decimal")?.as_deref() {
            None | Some(".") => b'.',
            Some(",") => b',',
            Some(_) => return Err(one_of("decimal", "a point or a comma")),
        };
        let has_mark = params.boolean("bom", false)?;
        let zone = params.zone()?;
        let clock = match params.one("times")?.as_deref() {
            None | Some("utc") => None,
            Some("local") => {
                let why = || Problem::invalid_parameter("times", "local times need `tz`, the name of a time zone");
                Some(zone.ok_or_else(why)?)
            }
            Some(_) => return Err(one_of("times", "utc or local")),
        };
        let csv = Self { delimiter, decimal, has_mark, clock };
        if decimal == delimiter {
            return Err(Problem::invalid_parameter("decimal", "the comma needs `delimiter=;` or `delimiter=tab`"));
        }
        let changed = [
            ("delimiter", delimiter != usual.delimiter),
            ("decimal", decimal != usual.decimal),
            ("bom", has_mark),
            ("times", csv.clock.is_some() && format != Format::Xlsx),
        ];
        match changed.into_iter().find(|(_, is_changed)| *is_changed) {
            Some((name, _)) if format != Format::Csv => Err(Problem::invalid_parameter(name, "is for format=csv only")),
            _ => Ok(csv),
        }
    }

    /// Returns the zone of local times; `None`: times are UTC.
    pub(super) fn into_zone(self) -> Option<Zone> {
        self.clock
    }

    /// Whether times are local, without their offset.
    pub(super) const fn is_local(&self) -> bool {
        self.clock.is_some()
    }

    /// Appends the byte order mark, if the request asks for it.
    pub(super) fn begin(&self, text: &mut Vec<u8>) {
        text.extend_from_slice(if self.has_mark { BYTE_ORDER_MARK } else { b"" });
    }

    /// Returns the text between two cells.
    pub(super) const fn delimiter(&self) -> &[u8] {
        std::slice::from_ref(&self.delimiter)
    }

    /// Appends a cell, in quotes if a reader would take its text for several cells.
    ///
    /// Series and device IDs never have line breaks, but metadata may.
    pub(super) fn cell(&self, row: &mut Vec<u8>, text: &str) {
        let is_special = |byte: u8| matches!(byte, b'"' | b'\r' | b'\n') || byte == self.delimiter;
        if !text.bytes().any(is_special) {
            return row.extend_from_slice(text.as_bytes());
        }
        row.push(b'"');
        for (at, part) in text.split('"').enumerate() {
            if at > 0 {
                row.extend_from_slice(b"\"\"");
            }
            row.extend_from_slice(part.as_bytes());
        }
        row.push(b'"');
    }

    /// Appends a number.
    pub(super) fn number(&self, row: &mut Vec<u8>, number: f64) {
        let start = row.len();
        write_number(row, number);
        self.set_decimal(&mut row[start..]);
    }

    /// Appends an instant, given in Unix milliseconds.
    ///
    /// It is `2026-10-25T00:30:00.000Z` in UTC, and `2026-10-25 02:30:00` by a local clock. Local times have
    /// milliseconds only if they are not zero.
    pub(super) fn instant(&self, row: &mut Vec<u8>, ts_ms: i64) {
        let Some(zone) = &self.clock else { return write_rfc3339(row, ts_ms) };
        let mut text = Vec::with_capacity(24);
        write_rfc3339(&mut text, ts_ms + zone.offset_ms_at(ts_ms));
        text.pop_if(|last| *last == b'Z');
        if text.ends_with(b".000") {
            text.truncate(text.len() - ".000".len());
        }
        self.set_decimal(&mut text);
        for byte in text {
            row.push(if byte == b'T' { b' ' } else { byte });
        }
    }

    fn set_decimal(&self, text: &mut [u8]) {
        if self.decimal == b'.' {
            return;
        }
        for byte in text.iter_mut().filter(|byte| **byte == b'.') {
            *byte = self.decimal;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_reader_of_csv_finds_the_same_cells(
            rows in prop::collection::vec(prop::collection::vec("[a\" ,\r\né;\t'=]{0,6}", 2..4), 1..5),
            delimiter in prop::sample::select(vec![b',', b';', b'\t']),
        ) {
            let csv = Csv { delimiter, ..Csv::default() };
            let mut text = Vec::new();
            for row in &rows {
                for (at, cell) in row.iter().enumerate() {
                    if at > 0 {
                        text.push(delimiter);
                    }
                    csv.cell(&mut text, cell);
                }
                text.extend_from_slice(b"\r\n");
            }
            let mut reader = ::csv::ReaderBuilder::new();
            reader.has_headers(false).flexible(true).terminator(::csv::Terminator::CRLF).delimiter(delimiter);
            let found: Vec<Vec<String>> =
                reader.from_reader(&text[..]).deserialize().collect::<Result<_, _>>().unwrap();
            prop_assert_eq!(found, rows);
        }
    }

    fn of(query: &str, format: Format) -> Result<Csv, String> {
        let uri = format!("/?{query}").parse().expect("a URI");
        Csv::of(&mut Params::of_any(&uri), format).map_err(|problem| problem.detail().to_owned())
    }

    #[test]
    fn numbers_and_times_are_those_of_a_spreadsheet() {
        let csv = of("delimiter=;&decimal=,&bom=1&times=local&tz=Europe/Berlin", Format::Csv).expect("all are known");
        let written = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut text = Vec::new();
            write(&mut text);
            String::from_utf8(text).expect("UTF-8")
        };
        for (number, expected) in [(0.5, "0,5"), (-1.0, "-1,0"), (1.5e300, "1,5e+300"), (1e-7, "1e-7")] {
            assert_eq!(written(&|text| csv.number(text, number)), expected);
        }
        // Clocks in Berlin are set back at 2026-10-25T01:00Z: the same local time twice.
        let change_ms = 1_792_890_000_000;
        for (ts_ms, expected) in [
            (change_ms - 1_800_000, "2026-10-25 02:30:00"),
            (change_ms + 1_800_000, "2026-10-25 02:30:00"),
            (change_ms + 7, "2026-10-25 02:00:00,007"),
        ] {
            assert_eq!(written(&|text| csv.instant(text, ts_ms)), expected);
        }
        assert_eq!(written(&|text| csv.begin(text)), "\u{feff}");
        assert_eq!(written(&|text| csv.cell(text, "a,b;c")), "\"a,b;c\"");
        assert_eq!(written(&|text| csv.cell(text, "a,b")), "a,b");
        let usual = Csv::default();
        assert_eq!(written(&|text| usual.instant(text, change_ms)), "2026-10-25T01:00:00.000Z");
    }

    #[test]
    fn forms_that_cannot_be_read_again_are_refused() {
        for (query, format, refused) in [
            ("delimiter=x", Format::Csv, "delimiter: expected a comma, a semicolon (;) or tab"),
            ("decimal=x", Format::Csv, "decimal: expected a point or a comma"),
            ("decimal=,", Format::Csv, "decimal: the comma needs `delimiter=;` or `delimiter=tab`"),
            ("bom=x", Format::Csv, "bom: expected true or false"),
            ("times=x", Format::Csv, "times: expected utc or local"),
            ("times=local", Format::Csv, "times: local times need `tz`, the name of a time zone"),
            ("delimiter=;", Format::Json, "delimiter: is for format=csv only"),
            ("bom=true", Format::Ndjson, "bom: is for format=csv only"),
        ] {
            assert_eq!(of(query, format), Err(refused.to_owned()), "{query}");
        }
        assert_eq!(of("delimiter=,&decimal=.&bom=0&times=utc", Format::Json), Ok(Csv::default()), "the usual form");
    }
}
