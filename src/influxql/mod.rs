//! InfluxQL: the query language of InfluxDB 1, from text to answer.
//!
//! ```text
//!  text ──lexer──> tokens ──parser──> statements ──plan──> columns, condition, windows
//!                                                            │
//!  JSON, CSV, MessagePack <──answer── series <──eval── rows or hour stats of a Source
//! ```
//!
//! The grammar is that of the public InfluxQL specification; answers and error texts agree with InfluxDB 1.6.
//! Supported are `SELECT` with its clauses and subqueries, and the `SHOW` statements about databases,
//! measurements, tags, fields and series. `CREATE DATABASE` succeeds and does nothing. The parser knows the
//! other statements of InfluxDB, such as `DROP MEASUREMENT`; the answer to them is an error.
//!
//! A [`Source`] has the data. It lists measurements and series, passes readings in time order, and passes the
//! stats of whole hours. A statement asks once for the series of all its measurements and subqueries, and
//! then once for all their values, so that the source reads nothing twice. Only for the instant of a lone
//! `min` or `max`, it then reads the readings of the hour of the value.
//!
//! Windows of whole hours are computed from the stats of these hours, if the functions allow it and no
//! condition concerns a field. Then the source reads readings only at both ends of the range: from 10:20 to
//! 14:30, those from 10:20 to 11:00 and from 14:00 to 14:30. All other statements are computed from readings.
//!
//! A query is untrusted input. The parser limits its length, its nesting and its lists. Regular expressions
//! match in linear time. [`Limits`] bounds series, windows and points. A statement that exceeds a limit
//! fails: its answer is never cut silently.
//!
//! Pure: knows no HTTP, no store, no clock.

mod answer;
pub mod ast;
mod duration;
mod error;
mod eval;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
#[cfg(any(test, fuzzing))]
mod in_memory;
mod lexer;
pub mod mapping;
mod params;
mod parser;
mod plan;
mod regex;
mod source;
#[cfg(test)]
mod tests;
mod text;
mod time;
mod value;
mod window;
mod zone;

pub use answer::{Epoch, Format, Writer};
pub use error::{ParseError, StatementError};
pub use eval::{Limits, Memory, Options, OutRow, OutSeries, Sink, execute, stream};
pub use params::Parameters;
pub use parser::{QUERY_MAX_BYTES, parse};
pub use plan::TagFilter;
pub use regex::Pattern;
pub use source::{
    Aliases, Found, HourStats, Measurements, Next, Read, Reader, Request, Row, Series, Source, Wanted, WantedTag,
};
pub use value::Value;
