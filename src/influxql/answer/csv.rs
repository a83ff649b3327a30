//! Answers as CSV: a table for each run of series of a statement with the same columns, and for each error.

use std::sync::Arc;

use super::super::eval::OutSeries;
use super::super::text::tags_text;
use super::super::value::Value;
use super::number::write_text;
use super::{Epoch, Result};

/// The last header: its statement and its columns.
///
/// A series of another statement, or with other columns, gets a new header.
#[derive(Debug, Default)]
pub(super) struct CsvState {
    header: Option<(usize, Arc<[String]>)>,
    /// Whether a table was written. The next one begins after a blank line.
    has_table: bool,
}

impl CsvState {
    /// Writes the result of one statement. `id` is its index in the query.
    pub(super) fn result(&mut self, id: usize, result: Result<'_>, epoch: Epoch, out: &mut Vec<u8>) {
        let series = match result {
            Ok(series) => series,
            Err(message) => {
                self.begin_table(out);
                return error(&message.to_string(), out);
            }
        };
        for one in series {
            self.header(id, one, out);
            let tags = tags_text(&one.tags);
            for (ns, values) in &one.rows {
                field(&one.name, out);
                out.push(b',');
                field(&tags, out);
                if one.has_time {
                    write_text(format_args!(",{}", epoch.of(*ns)), out);
                }
                for value in values {
                    out.push(b',');
                    write_value(value, out);
                }
                out.push(b'\n');
            }
        }
    }

    fn begin_table(&mut self, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.has_table, true) {
            out.push(b'\n');
        }
    }

    /// Writes the names of the columns, unless the series before is of this statement and has the same ones.
    fn header(&mut self, id: usize, series: &OutSeries, out: &mut Vec<u8>) {
        if self.header.as_ref().is_some_and(|(of, columns)| (*of, columns) == (id, &series.columns)) {
            return;
        }
        self.begin_table(out);
        out.extend_from_slice(b"name,tags");
        for column in series.columns.iter() {
            out.push(b',');
            field(column, out);
        }
        out.push(b'\n');
        self.header = Some((id, Arc::clone(&series.columns)));
    }
}

pub(super) fn error(message: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"error\n");
    field(message, out);
    out.push(b'\n');
}

/// Writes a value. Numbers have no exponent in CSV.
fn write_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Float(value) if value.is_finite() => write_text(format_args!("{value}"), out),
        Value::Null | Value::Float(_) => {}
        Value::Integer(value) => write_text(format_args!("{value}"), out),
        Value::Text(text) => field(text, out),
        Value::Boolean(value) => out.extend_from_slice(if *value { b"true" } else { b"false" }),
    }
}

/// Writes a field, in quotes if it needs them.
fn field(text: &str, out: &mut Vec<u8>) {
    let needs_quotes = text.contains([',', '"', '\n', '\r']) || text.starts_with([' ', '\t']);
    if !needs_quotes {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    out.push(b'"');
    out.extend_from_slice(text.replace('"', "\"\"").as_bytes());
    out.push(b'"');
}
