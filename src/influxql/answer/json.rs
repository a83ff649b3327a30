//! Answers as JSON.

use super::super::eval::OutSeries;
use super::super::value::Value;
use super::number::{write_float, write_text, write_time};
use super::{Epoch, Result};

/// The style of a document: the unit of its times, and whether it is indented.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub(super) epoch: Option<Epoch>,
    pub(super) is_pretty: bool,
}

pub(super) fn open(is_empty: bool, is_pretty: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(match (is_empty, is_pretty) {
        (true, _) => b"{",
        (false, false) => b"{\"results\":[",
        (false, true) => b"{\n    \"results\": [",
    });
}

pub(super) fn close(is_empty: bool, is_pretty: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(match (is_empty, is_pretty) {
        (true, _) => b"}\n",
        (false, false) => b"]}\n",
        (false, true) => b"\n    ]\n}\n",
    });
}

pub(super) fn error(message: &str, is_pretty: bool, out: &mut Vec<u8>) {
    let style = Style { epoch: None, is_pretty };
    out.push(b'{');
    style.key("error", 1, &mut true, out);
    string(message, out);
    style.line(0, out);
    out.extend_from_slice(b"}\n");
}

impl Style {
    /// Starts a new line if the document is indented.
    fn line(self, depth: usize, out: &mut Vec<u8>) {
        if self.is_pretty {
            out.push(b'\n');
            out.resize(out.len() + 4 * depth, b' ');
        }
    }

    /// Writes a key of an object, after a comma unless it is the first key.
    fn key(self, key: &str, depth: usize, is_first: &mut bool, out: &mut Vec<u8>) {
        if !std::mem::take(is_first) {
            out.push(b',');
        }
        self.line(depth, out);
        string(key, out);
        out.extend_from_slice(if self.is_pretty { b": " } else { b":" });
    }

    /// Writes an array.
    fn array<T>(
        self,
        items: impl Iterator<Item = T>,
        depth: usize,
        out: &mut Vec<u8>,
        mut item: impl FnMut(T, &mut Vec<u8>),
    ) {
        out.push(b'[');
        let mut is_empty = true;
        for value in items {
            if !std::mem::replace(&mut is_empty, false) {
                out.push(b',');
            }
            self.line(depth + 1, out);
            item(value, out);
        }
        if !is_empty {
            self.line(depth, out);
        }
        out.push(b']');
    }

    pub(super) fn result(
        self,
        id: usize,
        result: Result<'_>,
        messages: &[String],
        is_partial: bool,
        out: &mut Vec<u8>,
    ) {
        self.line(2, out);
        out.push(b'{');
        let mut is_first = true;
        self.key("statement_id", 3, &mut is_first, out);
        number(id as i64, out);
        match result {
            Ok(series) if !series.is_empty() => {
                self.key("series", 3, &mut is_first, out);
                self.array(series.iter(), 3, out, |one, out| self.series(one, out));
            }
            _ => {}
        }
        if !messages.is_empty() {
            self.key("messages", 3, &mut is_first, out);
            self.array(messages.iter(), 3, out, |message, out| {
                out.push(b'{');
                let mut is_first = true;
                self.key("level", 5, &mut is_first, out);
                string("warning", out);
                self.key("text", 5, &mut is_first, out);
                string(message, out);
                self.line(4, out);
                out.push(b'}');
            });
        }
        if let Err(error) = result {
            self.key("error", 3, &mut is_first, out);
            string(&error.to_string(), out);
        }
        if is_partial {
            self.key("partial", 3, &mut is_first, out);
            out.extend_from_slice(b"true");
        }
        self.line(2, out);
        out.push(b'}');
    }

    fn series(self, series: &OutSeries, out: &mut Vec<u8>) {
        out.push(b'{');
        let mut is_first = true;
        if !series.name.is_empty() {
            self.key("name", 5, &mut is_first, out);
            string(&series.name, out);
        }
        if !series.tags.is_empty() {
            self.key("tags", 5, &mut is_first, out);
            out.push(b'{');
            let mut is_first_tag = true;
            for (key, value) in &series.tags {
                self.key(key, 6, &mut is_first_tag, out);
                string(value, out);
            }
            self.line(5, out);
            out.push(b'}');
        }
        self.key("columns", 5, &mut is_first, out);
        self.array(series.columns.iter(), 5, out, |column, out| string(column, out));
        if !series.rows.is_empty() {
            self.key("values", 5, &mut is_first, out);
            self.array(series.rows.iter(), 5, out, |(ns, values), out| {
                let time = series.has_time.then_some(None).into_iter();
                self.array(time.chain(values.iter().map(Some)), 6, out, |cell, out| match (cell, self.epoch) {
                    (Some(value), _) => write_value(value, out),
                    (None, Some(epoch)) => number(epoch.of(*ns), out),
                    (None, None) => {
                        out.push(b'"');
                        write_time(*ns, series.zone.as_ref(), out);
                        out.push(b'"');
                    }
                });
            });
        }
        if series.is_partial {
            self.key("partial", 5, &mut is_first, out);
            out.extend_from_slice(b"true");
        }
        self.line(4, out);
        out.push(b'}');
    }
}

fn write_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Float(value) if value.is_finite() => write_float(*value, out),
        Value::Null | Value::Float(_) => out.extend_from_slice(b"null"),
        Value::Integer(value) => number(*value, out),
        Value::Text(text) => string(text, out),
        Value::Boolean(value) => out.extend_from_slice(if *value { b"true" } else { b"false" }),
    }
}

fn number(value: i64, out: &mut Vec<u8>) {
    write_text(format_args!("{value}"), out);
}

/// Writes a string. `<`, `>` and `&` are escaped, as Go's `encoding/json` does.
fn string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for char in text.chars() {
        match char {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            '\n' => out.extend_from_slice(b"\\n"),
            '\r' => out.extend_from_slice(b"\\r"),
            '\t' => out.extend_from_slice(b"\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                write_text(format_args!("\\u{:04x}", u32::from(char)), out);
            }
            _ => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}
