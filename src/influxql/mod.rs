//! InfluxQL: the query language of InfluxDB 1, from text to answer.
//!
//! ```text
//!  text ──lexer──> tokens ──parser──> statements ──plan──> columns, condition, windows
//!                                                            │
//!  JSON, CSV, MessagePack <──answer── series <──eval── rows or hour stats of a Source
//! ```
//!
//! The grammar is that of the public InfluxQL specification; answers and error texts agree with InfluxDB 1.6.
//! Dialect: `SELECT` with its clauses and subqueries, and the `SHOW` statements about measurements, tags,
//! fields and series. The parser accepts statements that change something. Their answer is an error that
//! names them.
//!
//! A [`Source`] has the data. It lists measurements and series, passes readings in time order, and passes the
//! stats of whole hours. A statement asks for the series of all its measurements and subqueries at once, and
//! then for the values of all of them, so that nothing is read twice. A window that consists of whole hours
//! is computed from their stats, if the functions allow it and no condition concerns a field. Readings are
//! then only read for the hours at the edges of the range. All other statements are computed from readings.
//!
//! Every text is hostile. The parser limits its size, its depth and its lists before it works; regular
//! expressions match in linear time; [`Limits`] bounds series, windows and points. A statement that exceeds a
//! limit fails, it never gets a shorter answer.
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
pub use regex::Pattern;
pub use source::{
    Aliases, Found, HourStats, Measurements, Next, Read, Reader, Request, Row, Series, Source, Wanted, WantedTag,
};
pub use value::Value;
