//! Converts the rows of `tidegauge export`, one value each, to lines of NDJSON. Pure.

use csv::StringRecord;
use serde_json::{Map, Value};
use tidegauge::model::check_device_id;
use tidegauge::model::series;

use super::columns::ColumnsError;
use super::csv::{Converted, Width, bad_cell};
use super::numbers::{self, Decimal};
use super::time::{Times, When};

/// The columns. The files of the server (`GET /v1/readings`) lack the last one.
const COLUMNS: [&str; 5] = ["deviceId", "ts", "series", "value", "metadata"];

/// Whether the header is that of an export.
///
/// # Errors
/// If it has other columns, too.
pub(super) fn is_header(header: &StringRecord) -> Result<bool, ColumnsError> {
    let is_export = header.iter().take(4).map(str::trim).eq(COLUMNS[..4].iter().copied());
    match header.iter().skip(4).map(str::trim).find(|&name| name != COLUMNS[4]) {
        Some(other) if is_export => Err(ColumnsError::NotOfExport(other.to_owned())),
        _ if is_export && header.len() > COLUMNS.len() => Err(ColumnsError::NotOfExport(COLUMNS[4].to_owned())),
        _ => Ok(is_export),
    }
}

/// Converts the rows of one file.
pub(super) struct ValueRows {
    width: Width,
    pub(super) decimal: Option<Decimal>,
}

impl ValueRows {
    pub(super) fn new(header: &StringRecord) -> Self {
        Self { width: Width::of(header), decimal: None }
    }

    /// Converts a row into a line of NDJSON in `text`.
    ///
    /// The line lacks its time and its closing brace.
    pub(super) fn row<'a>(
        &self,
        row: &'a StringRecord,
        times: &Times,
        text: &mut Vec<u8>,
    ) -> Result<Converted<'a>, String> {
        self.width.check(row)?;
        let cell = |at: usize| {
            let cell = row.get(at).unwrap_or_default();
            if at == 2 { cell } else { cell.trim() } // white space may belong to the name of a metric
        };
        let bad = |at: usize, why: &dyn std::fmt::Display| bad_cell(COLUMNS[at], cell(at), why);
        check_device_id(cell(0)).map_err(|why| bad(0, &why))?;
        let when = times.parse(cell(1)).map_err(|why| bad(1, &why))?;
        let series = series::canonical(cell(2)).map_err(|why| bad(2, &why))?;
        let number = numbers::parse(cell(3), self.decimal).map_err(|why| bad(3, &why))?;
        let mut line = Map::new();
        line.insert("deviceId".to_owned(), cell(0).into());
        if !cell(4).is_empty() {
            let metadata: Map<String, Value> =
                serde_json::from_str(cell(4)).map_err(|why| bad(4, &format!("not a JSON object: {why}")))?;
            line.insert("metadata".to_owned(), metadata.into());
        }
        let sender = if times.is_fixed() { cell(0).into() } else { format!("{} {series}", cell(0)).into() };
        let filled = if matches!(when, When::Twice(_)) { vec![3] } else { Vec::new() };
        line.insert("values".to_owned(), Map::from_iter([(series.into_owned(), number.into())]).into());
        serde_json::to_writer(&mut *text, &line).expect("a Vec takes any bytes");
        text.pop(); // the closing brace: the time follows
        Ok(Converted { when, sender, empty_cells: 0, bad_values: Vec::new(), filled, values: 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert(cells: &[&str]) -> Result<String, String> {
        let mut rows = ValueRows::new(&StringRecord::from(&COLUMNS[..]));
        rows.decimal = Some(Decimal::Point);
        let mut text = Vec::new();
        let row = StringRecord::from(cells);
        let times = Times::usual(jiff::tz::TimeZone::UTC);
        let Converted { when, .. } = rows.row(&row, &times, &mut text)?;
        let When::At(ms) = when else { panic!("{when:?}") };
        Ok(format!("{},\"ts\":{ms}}}", String::from_utf8(text).unwrap()))
    }

    #[test]
    fn a_row_is_one_value() {
        let line = convert(&["a", "2026-04-20T14:00:10.001Z", "x{b=\"1\",a=2}", "-0.1e-300", "{\"f\" : [1]}"]).unwrap();
        let expected =
            r#"{"deviceId":"a","metadata":{"f":[1]},"ts":1776693610001,"values":{"x{a=2,b=\"1\"}":-1e-301}}"#;
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), serde_json::from_str::<Value>(expected).unwrap());
        for series in ["t", " t", "t\u{a0}", " "] {
            let line = convert(&["a", "2026-04-20T14:00:10Z", series, " 1", "\r"]).unwrap();
            assert!(line.contains(&format!("{{\"{series}\":1.0}}")), "{line}");
        }
    }

    #[test]
    fn a_row_with_a_wrong_cell_is_rejected_with_its_column() {
        let good = ["a", "2026-04-20T14:00:10Z", "t", "1", "{}"];
        for (at, cell) in
            [(0, "a\u{7}b"), (1, "soon"), (2, "t{"), (3, "NaN"), (3, "1,5"), (3, ""), (4, "[1]"), (4, "{\"a\"")]
        {
            let mut row = good;
            row[at] = cell;
            let why = convert(&row).unwrap_err();
            assert!(why.starts_with(&format!("column {:?}: {cell:?}: ", COLUMNS[at])), "{why}");
        }
        assert_eq!(convert(&good[..4]).unwrap_err(), "the row has 4 cells, the header has 5");
    }

    #[test]
    fn a_header_of_an_export_has_no_other_columns() {
        let is = |text: &str| is_header(&StringRecord::from(text.split(',').collect::<Vec<_>>()));
        assert_eq!(is("deviceId,ts,series,value"), Ok(true));
        assert_eq!(is("deviceId,ts,series,value,metadata"), Ok(true));
        assert_eq!(is("deviceId,ts,value"), Ok(false));
        assert_eq!(is("ts,deviceId,series,value"), Ok(false));
        let other = |name: &str| Err(ColumnsError::NotOfExport(name.to_owned()));
        assert_eq!(is("deviceId,ts,series,value,unit"), other("unit"));
        assert_eq!(is("deviceId,ts,series,value,metadata,metadata"), other("metadata"));
    }
}
