//! The language as a whole, over data in memory. `tests/influxql` compares it with InfluxDB.

mod answers;
mod hostile;
mod parts;
mod stats;

use super::in_memory::{Data, NoLimit};
use super::{Format, Limits, Options, Parameters, Writer, execute, parse};

/// The data and the queries of the comparison with InfluxDB.
const DATA: &str = include_str!("../../../tests/influxql/data.lp");
const QUERIES: &str = include_str!("../../../tests/influxql/queries.txt");

/// The time of `now()`: 2026-03-29T16:00:00Z.
const NOW_NS: i64 = 1_774_800_000_000_000_000;

const LIMITS: Limits = Limits { max_series: 1_000, max_buckets: 20_000, max_points: 100_000, max_rows: 20_000 };

fn options(limits: Limits) -> Options<'static> {
    Options { now_ns: NOW_NS, databases: vec!["d".to_owned()], limits, memory: &NoLimit }
}

/// The answer of the whole path, as one line of JSON.
fn ask(source: &mut Data, query: &str, limits: Limits) -> String {
    ask_with(source, query, &Parameters::default(), limits)
}

fn ask_with(source: &mut Data, query: &str, parameters: &Parameters, limits: Limits) -> String {
    let mut out = Vec::new();
    match parse(query, parameters) {
        Err(error) => Writer::error(Format::Json, false, &error.to_string(), &mut out),
        Ok(statements) => {
            let mut writer = Writer::new(Format::Json, None, false, None, statements.len(), &mut out);
            for (id, statement) in statements.iter().enumerate() {
                let answer = execute(statement, source, &options(limits));
                writer.result(id, answer.as_deref(), &mut out);
            }
            writer.finish(&mut out);
        }
    }
    String::from_utf8(out).unwrap().trim_end().to_owned()
}
