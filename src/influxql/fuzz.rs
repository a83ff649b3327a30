//! Invariants fuzzed on queries.

use super::in_memory::{Data, NoLimit};
use super::{Format, Limits, Options, Parameters, Writer, execute, parse};

/// The line protocol of the points that the queries read.
const LINES: &str =
    "m,device_id=a,room=r x=1,y=10 0\nm,device_id=b x=2 60000000000\nn,device_id=a value=3 3600000000000";

const LIMITS: Limits = Limits { max_series: 100, max_buckets: 1_000, max_points: 10_000, max_rows: 1_000 };

/// Fuzzes the parser and the evaluator with a query.
///
/// The query is refused, with a line of the text if the error names one. Or each statement has an answer
/// within the limits that is JSON.
pub fn query(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let statements = match parse(text, &Parameters::default()) {
        Ok(statements) => statements,
        Err(error) => return check_place(&error.to_string(), text),
    };
    let options =
        Options { now_ns: 7_200_000_000_000, databases: vec!["d".to_owned()], limits: LIMITS, memory: &NoLimit };
    let mut source = Data::new(LINES);
    for statement in statements {
        let answer = execute(&statement, &mut source, &options);
        for series in answer.iter().flatten() {
            assert!(series.rows.len() <= LIMITS.max_rows.max(source.size()));
            let columns = series.columns.len() - usize::from(series.has_time);
            assert!(series.rows.iter().all(|(_, values)| values.len() == columns), "each column has a value");
        }
        let mut out = Vec::new();
        let mut writer = Writer::new(Format::Json, None, false, None, 1, &mut out);
        writer.result(0, answer.as_deref(), &mut out);
        writer.finish(&mut out);
        assert!(serde_json::from_slice::<serde_json::Value>(&out).is_ok(), "the answer is JSON");
    }
}

/// Checks that the line in an error is a line of the text.
fn check_place(error: &str, text: &str) {
    let Some((_, place)) = error.rsplit_once(" at line ") else { return };
    let line = place.split(',').next().and_then(|line| line.parse::<usize>().ok());
    assert!(line.is_none_or(|line| line <= text.lines().count().max(1)), "{error}");
}
