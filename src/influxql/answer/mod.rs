//! Answers: the series of each statement as JSON, CSV or MessagePack, in the envelope of InfluxDB 1.

mod csv;
mod json;
mod msgpack;
mod number;

use std::convert::Infallible;

use super::error::StatementError;
use super::eval::OutSeries;
use super::value::Value;
use csv::CsvState;

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `application/json`
    Json,
    /// `application/csv`
    Csv,
    /// `application/x-msgpack`
    MessagePack,
}

/// The unit of the times of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epoch {
    /// Nanoseconds
    Nanosecond,
    /// Microseconds
    Microsecond,
    /// Milliseconds
    Millisecond,
    /// Seconds
    Second,
    /// Minutes
    Minute,
    /// Hours
    Hour,
}

impl Epoch {
    /// The unit that the parameter `epoch` names.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "ns" | "n" => Self::Nanosecond,
            "u" | "us" | "µ" => Self::Microsecond,
            "ms" => Self::Millisecond,
            "s" => Self::Second,
            "m" => Self::Minute,
            "h" => Self::Hour,
            _ => return None,
        })
    }

    const fn of(self, ns: i64) -> i64 {
        ns / match self {
            Self::Nanosecond => 1,
            Self::Microsecond => 1_000,
            Self::Millisecond => 1_000_000,
            Self::Second => 1_000_000_000,
            Self::Minute => 60_000_000_000,
            Self::Hour => 3_600_000_000_000,
        }
    }
}

/// Writes the results of a query, statement by statement, to the caller's buffer.
///
/// The caller may send and clear the buffer between two calls. A chunked answer consists of documents. Each
/// has rows of only one series, at most as many as the size of a chunk. `partial` in a document says that
/// more documents of the same statement follow.
#[derive(Debug)]
pub struct Writer {
    format: Format,
    epoch: Option<Epoch>,
    is_pretty: bool,
    /// The most rows of a document in a chunked answer.
    ///
    /// `None`: the answer is not chunked.
    chunk_rows: Option<usize>,
    /// Warnings that the next result will have.
    messages: Vec<String>,
    /// How many results were written.
    count: usize,
    /// The last chunk of a result.
    ///
    /// It is held back until another chunk or the end follows.
    held: Option<OutSeries>,
    csv: CsvState,
}

/// The series of a statement, or its error.
type Result<'a> = std::result::Result<&'a [OutSeries], &'a StatementError>;

impl Writer {
    /// Begins an answer with `statements` results.
    ///
    /// `epoch` is the unit of times. With `None`, times are RFC 3339 in JSON, Unix nanoseconds in CSV, and an
    /// extension type in MessagePack. With `chunk_rows`, the answer consists of chunks of at most so many
    /// rows.
    pub fn new(
        format: Format,
        epoch: Option<Epoch>,
        is_pretty: bool,
        chunk_rows: Option<usize>,
        statements: usize,
        out: &mut Vec<u8>,
    ) -> Self {
        let chunk_rows = chunk_rows.map(|rows| rows.max(1));
        let (messages, csv) = (Vec::new(), CsvState::default());
        let writer = Self { format, epoch, is_pretty, chunk_rows, messages, count: 0, held: None, csv };
        if chunk_rows.is_none() {
            match format {
                Format::Json => json::open(statements == 0, is_pretty, out),
                Format::MessagePack => msgpack::open(statements, out),
                Format::Csv => {}
            }
        }
        writer
    }

    /// Adds a warning to the next result, such as that stored readings are missing.
    ///
    /// CSV does not show it.
    pub fn warn(&mut self, message: impl Into<String>) {
        self.messages.push(message.into());
    }

    /// Returns an upper bound of the bytes that a series takes in the answer.
    #[must_use]
    pub fn bytes_of(&self, series: &OutSeries) -> usize {
        /// Bytes of an element of a pretty document: indentation, line end and marks.
        const OF_PRETTY: usize = 40;
        /// Bytes of marks and keys: of a series, a row with its time, and an element.
        const OF_SERIES: usize = 384;
        const OF_ROW: usize = 128;
        const OF_ELEMENT: usize = 8;
        let of_element = if self.is_pretty { OF_PRETTY } else { OF_ELEMENT };
        let of_tags: usize =
            series.tags.iter().map(|(key, value)| bytes_of(key) + bytes_of(value) + 2 * of_element).sum();
        let of_columns: usize = series.columns.iter().map(|name| bytes_of(name) + of_element).sum();
        let header = OF_SERIES + bytes_of(&series.name) + of_tags;
        // CSV repeats the name and the tags in each row.
        let of_row = if self.format == Format::Csv { header + OF_ROW } else { OF_ROW };
        let of_rows: usize = series
            .rows
            .iter()
            .map(|(_, values)| of_row + values.iter().map(|value| bytes_of_value(value) + of_element).sum::<usize>())
            .sum();
        header + of_columns + of_rows
    }

    /// Writes the result of one statement. `id` is its index in the query.
    pub fn result(&mut self, id: usize, result: Result<'_>, out: &mut Vec<u8>) {
        match result {
            Ok(series) if self.chunk_rows.is_some() => {
                for one in series {
                    let Ok(()) = self.part(id, one.clone(), out, &mut |_| Ok::<_, Infallible>(()));
                }
                self.end(id, Ok(()), out);
            }
            result => self.document_or_chunk(id, result, out),
        }
    }

    /// Writes a part of the result of one statement, in a chunked answer.
    ///
    /// Successive parts of one series are joined. The writer holds the last chunk back until it knows whether
    /// another one follows, because a chunk says so. `written` gets the buffer after each chunk, and may send
    /// and clear it.
    ///
    /// # Errors
    /// The errors of `written`. The rest of the part is lost then.
    pub fn part<E>(
        &mut self,
        id: usize,
        part: OutSeries,
        out: &mut Vec<u8>,
        written: &mut impl FnMut(&mut Vec<u8>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        match &mut self.held {
            Some(held) if held.name == part.name && held.tags == part.tags && held.has_time && part.has_time => {
                held.rows.extend(part.rows);
            }
            held => {
                if let Some(before) = held.replace(part) {
                    // A chunk of a `SELECT` says that another series follows, a chunk of a `SHOW` does not.
                    let has_time = before.has_time;
                    self.chunk(id, Ok(&[before]), has_time, out);
                    written(out)?;
                }
            }
        }
        let chunk_rows = self.chunk_rows.unwrap_or(usize::MAX);
        let Some(mut held) = self.held.take() else { return Ok(()) };
        let mut rows = std::mem::take(&mut held.rows).into_iter();
        while rows.len() > chunk_rows {
            let chunk = OutSeries { rows: rows.by_ref().take(chunk_rows).collect(), is_partial: true, ..held.header() };
            self.chunk(id, Ok(&[chunk]), true, out);
            written(out)?;
        }
        held.rows = rows.collect();
        self.held = Some(held);
        Ok(())
    }

    /// Ends the result of a statement whose parts were written.
    pub fn end(&mut self, id: usize, result: std::result::Result<(), &StatementError>, out: &mut Vec<u8>) {
        match (self.held.take(), result) {
            (Some(last), Ok(())) => self.chunk(id, Ok(&[last]), false, out),
            (None, Ok(())) => self.document_or_chunk(id, Ok(&[]), out),
            (last, Err(error)) => {
                if let Some(last) = last {
                    self.chunk(id, Ok(&[last]), true, out);
                }
                self.document_or_chunk(id, Err(error), out);
            }
        }
    }

    fn document_or_chunk(&mut self, id: usize, result: Result<'_>, out: &mut Vec<u8>) {
        if self.chunk_rows.is_some() {
            self.chunk(id, result, false, out);
        } else {
            self.document(id, result, false, out);
        }
    }

    /// Ends the answer.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if self.chunk_rows.is_none() && self.format == Format::Json {
            json::close(self.count == 0, self.is_pretty, out);
        }
    }

    /// Writes a result as a document of its own.
    fn chunk(&mut self, id: usize, result: Result<'_>, is_partial: bool, out: &mut Vec<u8>) {
        match self.format {
            Format::Json => json::open(false, self.is_pretty, out),
            Format::MessagePack => msgpack::open(1, out),
            Format::Csv => {}
        }
        self.count = 0;
        self.document(id, result, is_partial, out);
        if self.format == Format::Json {
            json::close(false, self.is_pretty, out);
        }
    }

    fn document(&mut self, id: usize, result: Result<'_>, is_partial: bool, out: &mut Vec<u8>) {
        let messages = std::mem::take(&mut self.messages);
        match self.format {
            Format::Json => {
                let style = json::Style { epoch: self.epoch, is_pretty: self.is_pretty };
                if self.count > 0 {
                    out.push(b',');
                }
                style.result(id, result, &messages, is_partial, out);
            }
            Format::MessagePack => msgpack::result(id, result, &messages, is_partial, self.epoch, out),
            Format::Csv => self.csv.result(id, result, self.epoch.unwrap_or(Epoch::Nanosecond), out),
        }
        self.count += 1;
    }

    /// Writes the answer to a query that is refused as a whole.
    pub fn error(format: Format, is_pretty: bool, message: &str, out: &mut Vec<u8>) {
        match format {
            Format::Json => json::error(message, is_pretty, out),
            Format::MessagePack => msgpack::error(message, out),
            Format::Csv => csv::error(message, out),
        }
    }
}

/// Returns an upper bound of the bytes of a text once it is escaped.
fn bytes_of(text: &str) -> usize {
    let is_escaped = |byte: &u8| *byte < b' ' || b"\"\\<>&,= \xe2".contains(byte);
    text.len() + 5 * text.bytes().filter(|byte| is_escaped(byte)).count()
}

/// Returns an upper bound of the bytes of a value.
fn bytes_of_value(value: &Value) -> usize {
    match value {
        // Without an exponent, very large and very small numbers have hundreds of digits.
        Value::Float(value) if *value != 0.0 && !(1e-10..1e21).contains(&value.abs()) => 350,
        Value::Float(_) | Value::Integer(_) => 24,
        Value::Text(text) => bytes_of(text),
        Value::Null | Value::Boolean(_) => 8,
    }
}
