//! Answers in parts: together they are the whole answer.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use super::super::ast::Statement;
use super::super::in_memory::{Data, NoLimit};
use super::super::{
    Found, Memory, OutSeries, Reader, Request, Source, StatementError, Value, Wanted, Writer, execute, stream,
};
use super::*;

/// The text of an answer in chunks of this many rows. `write` writes the result of one statement.
fn chunks(rows: usize, statements: usize, write: impl Fn(&mut Writer, usize, &mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    let mut writer = Writer::new(Format::Json, None, false, Some(rows), statements, &mut out);
    for id in 0..statements {
        write(&mut writer, id, &mut out);
    }
    writer.finish(&mut out);
    String::from_utf8(out).unwrap()
}

/// The parts of the answer to a statement, and the error after them.
fn parts_of(statement: &Statement, source: &mut Data) -> (Vec<OutSeries>, Result<(), StatementError>) {
    let mut parts = Vec::new();
    let mut sink = |part: OutSeries| {
        parts.push(part);
        Ok(())
    };
    let result = stream(statement, source, &options(LIMITS), &mut sink);
    (parts, result)
}

#[test]
fn the_parts_of_an_answer_are_the_whole() {
    let mut source = Data::new(DATA);
    let queries = QUERIES.lines().map(|line| line.replace("\\n", "\n"));
    let mut compared = 0;
    for query in queries {
        let Ok(statements) = parse(&query, &Parameters::default()) else { continue };
        let whole: Vec<_> = statements.iter().map(|one| execute(one, &mut source, &options(LIMITS))).collect();
        let parts: Vec<_> = statements.iter().map(|one| parts_of(one, &mut source)).collect();
        for rows in [3, 10_000] {
            let of_whole = chunks(rows, whole.len(), |writer, id, out| writer.result(id, whole[id].as_deref(), out));
            let of_parts = chunks(rows, parts.len(), |writer, id, out| {
                let (parts, result) = &parts[id];
                for part in parts {
                    let Ok(()) = writer.part(id, part.clone(), out, &mut |_| Ok::<_, Infallible>(()));
                }
                writer.end(id, result.as_ref().copied(), out);
            });
            assert_eq!(of_parts, of_whole, "{query}");
        }
        compared += 1;
    }
    assert!(compared > 400, "{compared}");
}

/// The most memory that a statement took.
#[derive(Debug, Default)]
pub(super) struct Peak(pub(super) Cell<usize>);

impl Memory for Peak {
    fn grow(&self, bytes: usize) -> Result<(), StatementError> {
        self.0.set(self.0.get() + bytes);
        Ok(())
    }
}

#[test]
fn rows_in_parts_take_the_memory_of_a_part_and_have_no_limit() {
    let lines: Vec<_> = (0..40_000).map(|at| format!("m,device_id=d v={at} {}", at * 1_000_000_000_i64)).collect();
    let mut source = Data::new(&lines.join("\n"));
    let statement = &parse("SELECT v FROM m", &Parameters::default()).unwrap()[0];
    let (peak, mut rows) = (Peak::default(), 0);
    let limits = Limits { max_points: 30_000, ..LIMITS };
    let few = Options { memory: &peak, ..options(limits) };
    let mut sink = |part: OutSeries| {
        rows += part.rows.len();
        Ok(())
    };
    stream(statement, &mut source, &few, &mut sink).unwrap();
    assert_eq!(rows, 40_000);
    // A row takes 88 bytes. A part has two hours at most.
    assert!(peak.0.get() < 2 << 20, "{}", peak.0.get());
    let whole = execute(statement, &mut source, &Options { memory: &NoLimit, ..options(limits) });
    assert!(whole.unwrap_err().to_string().contains("max-select-point"));
}

/// Three devices, each with 5,000 rows.
fn three_devices() -> Data {
    let line = |at: i64| format!("m,device_id=d{} v={at} {}", at % 3, at * 1_000_000_000);
    Data::new(&(0..15_000).map(line).collect::<Vec<_>>().join("\n"))
}

/// Data whose deadline passes while the client takes a part of the answer, until data is read again.
struct WithSlowClient<'c> {
    data: Data,
    is_late: &'c Cell<bool>,
}

impl Source for WithSlowClient<'_> {
    fn series(&mut self, wanted: &[Wanted]) -> Result<Vec<BTreeMap<Arc<str>, Found>>, StatementError> {
        self.data.series(wanted)
    }

    fn check(&self) -> Result<(), StatementError> {
        if self.is_late.get() { Err("the deadline has passed".into()) } else { Ok(()) }
    }

    fn span_ms(&self, request: &Request<'_>) -> Range<i64> {
        self.data.span_ms(request)
    }

    fn readings(&mut self, requests: &[Request<'_>], reader: &mut Reader<'_>) -> Result<(), StatementError> {
        self.is_late.set(false);
        self.data.readings(requests, reader)
    }

    fn hours(&mut self, requests: &[Request<'_>], reader: &mut Reader<'_>) -> Result<(), StatementError> {
        self.data.hours(requests, reader)
    }
}

#[test]
fn a_slow_client_gets_all_parts() {
    let is_late = Cell::new(false);
    let mut source = WithSlowClient { data: three_devices(), is_late: &is_late };
    for query in ["SELECT v FROM m GROUP BY device_id", "SELECT v FROM m"] {
        is_late.set(false);
        let statement = &parse(query, &Parameters::default()).unwrap()[0];
        let (mut parts, mut rows) = (0, 0);
        let mut sink = |part: OutSeries| {
            is_late.set(true);
            parts += 1;
            rows += part.rows.len();
            Ok(())
        };
        stream(statement, &mut source, &options(LIMITS), &mut sink).unwrap();
        assert!(parts >= 3, "{query}: {parts}");
        assert_eq!(rows, 15_000, "{query}");
    }
}

#[test]
fn columns_of_a_part_take_memory() {
    let columns: Vec<_> = (0..20).map(|at| format!("v + {at} AS a{at}")).collect();
    let query = format!("SELECT {} FROM m GROUP BY device_id", columns.join(","));
    let statement = &parse(&query, &Parameters::default()).unwrap()[0];
    let peak = Peak::default();
    let few = Options { memory: &peak, ..options(LIMITS) };
    stream(statement, &mut three_devices(), &few, &mut |_| Ok(())).unwrap();
    assert!(peak.0.get() > 15_000 * 19 * size_of::<Value>(), "{}", peak.0.get());
}

#[test]
fn each_chunk_can_be_sent_before_the_next_one() {
    let columns = ["time".to_owned(), "n".repeat(500)].into();
    let rows = (0..1_000).map(|at| (at, [Value::Float(1.0)].into())).collect();
    let (name, tags, zone) = ("m".into(), Vec::new(), None);
    let part = OutSeries { name, tags, columns, has_time: true, zone, rows, is_partial: false };
    let (mut out, mut most, mut count) = (Vec::new(), 0, 0);
    let mut writer = Writer::new(Format::Json, None, false, Some(1), 1, &mut out);
    let mut sent = |out: &mut Vec<u8>| {
        most = out.len().max(most);
        count += 1;
        out.clear();
        if count < 990 { Ok(()) } else { Err("the client is gone") }
    };
    assert_eq!(writer.part(0, part, &mut out, &mut sent), Err("the client is gone"));
    assert_eq!(count, 990);
    assert!(most < 1_000, "{most}");
}

#[test]
fn the_size_of_a_text_is_known_before_it_is_written() {
    let mut source = Data::new(DATA);
    let queries = QUERIES.lines().map(|line| line.replace("\\n", "\n"));
    for statements in queries.filter_map(|query| parse(&query, &Parameters::default()).ok()) {
        for statement in &statements {
            let Ok(series) = execute(statement, &mut source, &options(LIMITS)) else { continue };
            for (format, is_pretty) in
                [(Format::Json, false), (Format::Json, true), (Format::Csv, false), (Format::MessagePack, false)]
            {
                let mut out = Vec::new();
                let mut writer = Writer::new(format, None, is_pretty, None, 1, &mut out);
                let most: usize = series.iter().map(|one| writer.bytes_of(one)).sum();
                writer.result(0, Ok(&series), &mut out);
                writer.finish(&mut out);
                assert!(out.len() <= most + 200, "{} > {most}: {statement:?}", out.len());
            }
        }
    }
}
