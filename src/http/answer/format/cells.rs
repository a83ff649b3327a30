//! Cells of tables: CSV, and sheets of a workbook (XLSX, ECMA-376 part 1).

use super::{Csv, Format, write_number};
use crate::common::clock::rfc3339;
use crate::http::problem::Problem;
use crate::http::request::params::Params;
use crate::query::Zone;

/// The form of the cells of a table.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::http) enum Cells {
    Csv(Csv),
    /// A sheet. Texts are never formulas. Times are dates of this zone.
    Xlsx(Zone),
}

/// The most characters of a cell in Excel, as UTF-16 counts them.
const MAX_CELL: usize = 32_767;

/// The days from Excel's day 0 to 1970-01-01.
const EPOCH_DAYS: i64 = 25_569;

const MS_PER_DAY: i64 = 86_400_000;

/// The local times that Excel has as dates: 1900-03-01 to 9999-12-31.
///
/// Before them, Excel counts a day that never was: 1900-02-29.
const DATES_MS: std::ops::Range<i64> = (61 - EPOCH_DAYS) * MS_PER_DAY..(2_958_466 - EPOCH_DAYS) * MS_PER_DAY;

/// The XML of a sheet before the widths of its columns.
///
/// Its first row stays in sight when the rows are scrolled.
const SHEET_START: &str = concat!(
    r#"<?xml version="1.0" encoding="UTF-8" standalone="yes"?>"#,
    r#"<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetViews>"#,
    r#"<sheetView workbookViewId="0">"#,
    r#"<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"/></sheetView></sheetViews>"#,
    r#"<cols>"#,
);

impl Default for Cells {
    fn default() -> Self {
        Self::Csv(Csv::default())
    }
}

impl Cells {
    /// Reads the parameters of CSV, and `times` and `tz` for a workbook.
    ///
    /// The dates of a workbook are in `tz`, unless the request has `times=utc`.
    pub(in crate::http) fn of(params: &mut Params<'_>, format: Format) -> Result<Self, Problem> {
        let has_times = params.has("times");
        let csv = Csv::of(params, format)?;
        if format != Format::Xlsx {
            return Ok(Self::Csv(csv));
        }
        let zone = if has_times { csv.into_zone() } else { params.zone()? };
        Ok(Self::Xlsx(zone.unwrap_or(Zone::UTC)))
    }

    /// Whether times are local, without their offset.
    pub(in crate::http) fn is_local(&self) -> bool {
        match self {
            Self::Csv(csv) => csv.is_local(),
            Self::Xlsx(_) => true,
        }
    }

    /// Appends the row with the names of the columns, and the text before it.
    pub(in crate::http) fn header<'n>(&self, text: &mut Vec<u8>, columns: impl Iterator<Item = &'n str> + Clone) {
        match self {
            Self::Csv(csv) => csv.begin(text),
            Self::Xlsx(_) => begin_sheet(text, columns.clone()),
        }
        for (at, name) in columns.enumerate() {
            text.extend_from_slice(self.lead(at));
            match self {
                Self::Csv(csv) => csv.cell(text, name),
                Self::Xlsx(_) => text_cell(text, name, " s=\"3\""),
            }
        }
        self.end_row(text);
    }

    /// Returns the text before the cell of this column.
    pub(in crate::http) fn lead(&self, column: usize) -> &[u8] {
        match self {
            Self::Csv(csv) if column > 0 => csv.delimiter(),
            Self::Xlsx(_) if column == 0 => b"<row>",
            _ => b"",
        }
    }

    /// Appends the end of a row.
    pub(in crate::http) fn end_row(&self, text: &mut Vec<u8>) {
        text.extend_from_slice(match self {
            Self::Csv(_) => b"\r\n",
            Self::Xlsx(_) => b"</row>\n",
        });
    }

    /// Appends a cell without a value.
    pub(in crate::http) fn empty(&self, text: &mut Vec<u8>) {
        text.extend_from_slice(if matches!(self, Self::Xlsx(_)) { b"<c/>" } else { b"" });
    }

    /// Appends a cell with a text.
    pub(in crate::http) fn cell(&self, text: &mut Vec<u8>, cell: &str) {
        match self {
            Self::Csv(csv) => csv.cell(text, cell),
            Self::Xlsx(_) => text_cell(text, cell, ""),
        }
    }

    /// Appends a cell with JSON: `[1,2]`.
    ///
    /// In a sheet, a JSON number becomes a number, and a JSON boolean a boolean. Null is an empty cell.
    pub(in crate::http) fn json(&self, text: &mut Vec<u8>, json: &str) {
        match (self, json.as_bytes().first()) {
            _ if json == "null" => self.empty(text),
            (Self::Xlsx(_), Some(b'-' | b'0'..=b'9')) => value(text, "", json.as_bytes()),
            (Self::Xlsx(_), Some(b't' | b'f')) => value(text, " t=\"b\"", if json == "true" { b"1" } else { b"0" }),
            _ => self.cell(text, json),
        }
    }

    /// Appends a cell with a finite number.
    pub(in crate::http) fn number(&self, text: &mut Vec<u8>, number: f64) {
        match self {
            Self::Csv(csv) => csv.number(text, number),
            Self::Xlsx(_) => {
                text.extend_from_slice(b"<c><v>");
                write_number(text, number);
                text.extend_from_slice(b"</v></c>");
            }
        }
    }

    /// Appends a cell with an instant, given in Unix milliseconds.
    pub(in crate::http) fn instant(&self, text: &mut Vec<u8>, ts_ms: i64) {
        let zone = match self {
            Self::Csv(csv) => return csv.instant(text, ts_ms),
            Self::Xlsx(zone) => zone,
        };
        let local_ms = ts_ms + zone.offset_ms_at(ts_ms);
        if !DATES_MS.contains(&local_ms) {
            return text_cell(text, &rfc3339(ts_ms), "");
        }
        let days = (local_ms + EPOCH_DAYS * MS_PER_DAY) as f64 / MS_PER_DAY as f64;
        let style = if local_ms % 1_000 == 0 { " s=\"1\"" } else { " s=\"2\"" };
        value(text, style, days.to_string().as_bytes());
    }
}

fn value(text: &mut Vec<u8>, attributes: &str, value: &[u8]) {
    for part in [b"<c", attributes.as_bytes(), b"><v>", value, b"</v></c>"] {
        text.extend_from_slice(part);
    }
}

/// Begins a sheet with the widths of its columns.
fn begin_sheet<'n>(text: &mut Vec<u8>, columns: impl Iterator<Item = &'n str>) {
    text.extend_from_slice(SHEET_START.as_bytes());
    for (name, nth) in columns.zip(1..) {
        let is_wide = ["deviceId", "ts", "series", "metadata", "metrics", "local"].contains(&name);
        let is_wide = is_wide || name.ends_with("Ts") || name.ends_with("Seen");
        let width = if is_wide { 25 } else { (name.chars().count() + 2).clamp(10, 40) };
        let column = format!(r#"<col min="{nth}" max="{nth}" width="{width}" customWidth="1"/>"#);
        text.extend_from_slice(column.as_bytes());
    }
    text.extend_from_slice(b"</cols><sheetData>");
}

/// Appends a cell of a sheet with a text. A text that is too long ends with `…`.
fn text_cell(text: &mut Vec<u8>, cell: &str, attributes: &str) {
    text.extend_from_slice(b"<c t=\"inlineStr\"");
    text.extend_from_slice(attributes.as_bytes());
    text.extend_from_slice(b"><is><t xml:space=\"preserve\">");
    let (shown, is_cut) = shortened(cell);
    let mut utf8 = [0; 4];
    for (at, char) in shown.char_indices() {
        match char {
            '&' => text.extend_from_slice(b"&amp;"),
            '<' => text.extend_from_slice(b"&lt;"),
            '>' => text.extend_from_slice(b"&gt;"),
            '\t' => text.push(b'\t'),
            '\n' => text.extend_from_slice(b"&#10;"),
            // XML has none of these characters: Excel writes `_x0001_` for U+0001. In a text such as
            // `_x0041_`, it writes `_x005F_` for the underscore.
            '\0'..' ' | '\u{fffe}' | '\u{ffff}' => {
                text.extend_from_slice(format!("_x{:04X}_", u32::from(char)).as_bytes());
            }
            '_' if is_escape(&shown.as_bytes()[at..]) => text.extend_from_slice(b"_x005F_"),
            _ => text.extend_from_slice(char.encode_utf8(&mut utf8).as_bytes()),
        }
    }
    text.extend_from_slice(if is_cut { "…".as_bytes() } else { b"" });
    text.extend_from_slice(b"</t></is></c>");
}

fn is_escape(text: &[u8]) -> bool {
    matches!(text, [_, b'x', a, b, c, d, b'_', ..] if [a, b, c, d].into_iter().all(u8::is_ascii_hexdigit))
}

/// Returns the part of a text that fits into a cell, and whether it is cut.
fn shortened(cell: &str) -> (&str, bool) {
    if cell.len() <= MAX_CELL {
        return (cell, false);
    }
    let mut units = 0;
    let mut fits = 0;
    for (at, char) in cell.char_indices() {
        units += char.len_utf16();
        if units < MAX_CELL {
            fits = at + char.len_utf8();
        }
    }
    if units <= MAX_CELL { (cell, false) } else { (&cell[..fits], true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xlsx(zone: &str) -> Cells {
        Cells::Xlsx(Zone::named(zone).expect("a zone"))
    }

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut text = Vec::new();
        write(&mut text);
        String::from_utf8(text).expect("UTF-8")
    }

    #[test]
    fn times_are_dates_of_the_zone_if_a_spreadsheet_has_such_dates() {
        // Clocks in Berlin are set back at 2026-10-25T01:00Z.
        let change_ms = 1_792_890_000_000;
        for (zone, ts_ms, expected) in [
            ("UTC", 0, "<c s=\"1\"><v>25569</v></c>"),
            ("UTC", change_ms, "<c s=\"1\"><v>46320.041666666664</v></c>"),
            ("Europe/Berlin", change_ms, "<c s=\"1\"><v>46320.083333333336</v></c>"),
            ("Europe/Berlin", change_ms - 3_600_000, "<c s=\"1\"><v>46320.083333333336</v></c>"),
            ("UTC", change_ms + 1, "<c s=\"2\"><v>46320.04166667824</v></c>"),
            ("UTC", DATES_MS.start, "<c s=\"1\"><v>61</v></c>"),
        ] {
            assert_eq!(written(|text| xlsx(zone).instant(text, ts_ms)), expected, "{zone} {ts_ms}");
        }
        for (ts_ms, expected) in
            [(DATES_MS.start - 1, "1900-02-28T23:59:59.999Z"), (-3_000_000_000_000, "1874-12-07T18:40:00.000Z")]
        {
            let cell = format!("<c t=\"inlineStr\"><is><t xml:space=\"preserve\">{expected}</t></is></c>");
            assert_eq!(written(|text| xlsx("UTC").instant(text, ts_ms)), cell);
        }
    }

    #[test]
    fn texts_are_never_formulas_markup_or_rows() {
        for (cell, expected) in [
            ("=1+1", "=1+1"),
            ("<a>&\"b\"", "&lt;a&gt;&amp;\"b\""),
            (" a\r\n\tb\u{1}", " a_x000D_&#10;\tb_x0001_"),
            ("_x0041_ _x004_ __x005F_", "_x005F_x0041_ _x004_ __x005F_x005F_"),
            ("é€😀", "é€😀"),
        ] {
            let written = written(|text| xlsx("UTC").cell(text, cell));
            assert_eq!(written, format!("<c t=\"inlineStr\"><is><t xml:space=\"preserve\">{expected}</t></is></c>"));
        }
    }

    #[test]
    fn a_text_has_at_most_the_characters_of_a_cell() {
        for (cell, fits) in [("x", MAX_CELL), ("😀", MAX_CELL / 2), ("é", MAX_CELL)] {
            let whole = cell.repeat(fits);
            assert_eq!(shortened(&whole), (&*whole, false));
            let long = cell.repeat(fits + 1);
            let (cut, is_cut) = shortened(&long);
            assert!(is_cut && cut.encode_utf16().count() < MAX_CELL && cut.encode_utf16().count() > MAX_CELL - 3);
        }
    }

    #[test]
    fn a_sheet_follows_tz_and_has_none_of_the_forms_of_csv() {
        let of = |query: &str| {
            let uri = format!("/?{query}").parse().expect("a URI");
            Cells::of(&mut Params::of_any(&uri), Format::Xlsx).map_err(|problem| problem.detail().to_owned())
        };
        assert_eq!(of(""), Ok(xlsx("UTC")));
        assert_eq!(of("tz=Europe/Berlin"), Ok(xlsx("Europe/Berlin")));
        assert_eq!(of("tz=Europe/Berlin&times=local"), Ok(xlsx("Europe/Berlin")));
        assert_eq!(of("tz=Europe/Berlin&times=utc"), Ok(xlsx("UTC")));
        for (query, refused) in [
            ("delimiter=;", "delimiter: is for format=csv only"),
            ("delimiter=tab&decimal=,", "delimiter: is for format=csv only"),
            ("bom=1", "bom: is for format=csv only"),
            ("times=local", "times: local times need `tz`, the name of a time zone"),
        ] {
            assert_eq!(of(query), Err(refused.to_owned()), "{query}");
        }
    }
}
