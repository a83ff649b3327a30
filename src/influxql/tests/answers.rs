//! Answers, as InfluxDB gives them.

use std::sync::Arc;

use super::super::{Aliases, Epoch, Format};
use super::*;

const LINES: &str = "\
m,device_id=a,room=r\\ 1 x=1,y=10 0
m,device_id=b x=2 60000000000
m,device_id=a,room=r\\ 1 x=4 120000000000
n,device_id=a value=-0.5 180000000000";

fn answer(query: &str) -> String {
    ask(&mut Data::new(LINES), query, LIMITS)
}

/// The series of the only statement.
fn series(query: &str) -> String {
    let answer = answer(query);
    let series = answer.strip_prefix(r#"{"results":[{"statement_id":0,"series":["#);
    series.and_then(|series| series.strip_suffix("]}]}")).map_or(answer.clone(), str::to_owned)
}

/// The error of the query, or of its only statement.
fn error(query: &str) -> String {
    let answer: serde_json::Value = serde_json::from_str(&answer(query)).unwrap();
    let of_statement = &answer["results"][0]["error"];
    let error = if of_statement.is_null() { &answer["error"] } else { of_statement };
    error.as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_range_without_a_whole_millisecond_has_no_rows() {
    for query in [
        "SELECT x FROM m WHERE time = 5",
        "SELECT mean(x), count(y) FROM m WHERE time = 5 AND time < 2h GROUP BY time(10m, 1m), device_id fill(linear)",
        "SELECT mean(x) FROM m WHERE time > 0 AND time < 1ms GROUP BY time(1h) fill(0)",
        "SELECT x FROM (SELECT x FROM m) WHERE time = 5",
    ] {
        assert_eq!(answer(query), r#"{"results":[{"statement_id":0}]}"#, "{query}");
    }
}

#[test]
fn errors_name_the_place() {
    for (query, expected) in [
        (
            "SELEC",
            "error parsing query: found SELEC, expected SELECT, DELETE, SHOW, CREATE, DROP, EXPLAIN, GRANT, \
                   REVOKE, ALTER, SET, KILL at line 1, char 1",
        ),
        ("SELECT", "error parsing query: found EOF, expected identifier, string, number, bool at line 1, char 8"),
        ("SELECT x FROM m\nLIMIT y", "error parsing query: found y, expected integer at line 2, char 7"),
        ("SELECT x FROM m z", "error parsing query: found z, expected ; at line 1, char 17"),
        (
            "SELECT x FROM m WHERE room = 'a",
            "error parsing query: found a, expected identifier, string, number, \
                                             bool at line 1, char 29",
        ),
        (
            "SELECT x FROM m WHERE room =~ /(/",
            "error parsing query: error parsing regexp: missing closing ): `(` at \
                                              line 1, char 30",
        ),
        ("SELECT foo(x) FROM m", "undefined function foo()"),
        ("SELECT integral(x) FROM m", "the function integral() is not supported"),
        ("SELECT mean(x), y FROM m", "mixing aggregate and non-aggregate queries is not supported"),
        ("SELECT x FROM d.other.m", "retention policy not found: other"),
        ("SELECT x INTO y FROM m", "SELECT INTO is not supported"),
        ("DROP MEASUREMENT m", "DROP MEASUREMENT is not supported"),
        ("DELETE FROM m WHERE time > 0", "DELETE is not supported"),
        ("ALTER RETENTION POLICY a ON d DEFAULT", "ALTER RETENTION POLICY is not supported"),
        ("GRANT ALL TO x", "GRANT is not supported"),
        ("KILL QUERY 3", "KILL QUERY is not supported"),
        ("CREATE CONTINUOUS QUERY q ON d BEGIN SELECT x FROM m END", "CREATE CONTINUOUS QUERY is not supported"),
        ("SHOW USERS", "SHOW USERS is not supported"),
        ("SHOW CONTINUOUS QUERIES", "SHOW CONTINUOUS QUERIES is not supported"),
        ("SHOW SHARD GROUPS", "SHOW SHARD GROUPS is not supported"),
        ("EXPLAIN SELECT x FROM m", "EXPLAIN is not supported"),
        (
            "SELECT x FROM m WHERE time > 'now'",
            "invalid operation: time and *influxql.StringLiteral are not compatible",
        ),
        (
            "SELECT x FROM m WHERE time > '9999-12-31'",
            "time 9999-12-31 overflows time literal: times are between 1677-09-21 and 2262-04-11",
        ),
        (
            "SELECT x FROM m WHERE time > '0001-01-01T00:00:00Z'",
            "time 0001-01-01 underflows time literal: times are between 1677-09-21 and 2262-04-11",
        ),
        ("CREATE DATABASE d", ""),
    ] {
        assert_eq!(error(query), expected, "{query}");
    }
}

#[test]
fn any_database_is_the_one_with_all_data() {
    for (named, plain) in [
        (r#"SELECT x FROM "telegraf"."autogen"."m""#, "SELECT x FROM m"),
        ("SELECT x FROM a..m, b.autogen./n/", "SELECT x FROM m, /n/"),
        ("SHOW MEASUREMENTS ON telegraf", "SHOW MEASUREMENTS"),
        (r#"SHOW RETENTION POLICIES ON "telegraf""#, "SHOW RETENTION POLICIES"),
        ("SHOW TAG VALUES ON a FROM b..m WITH KEY = room", "SHOW TAG VALUES FROM m WITH KEY = room"),
    ] {
        assert_eq!(series(named), series(plain), "{named}");
        assert_eq!(error(named), "", "{named}");
    }
}

#[test]
fn a_text_that_is_no_time_is_refused_with_the_forms_of_times() {
    for text in ["2026-02-30", "2026-13-01", "2026-10-30T00:00:00", "2026-10-30 25:00:00", "2026-10-30é"] {
        let error = error(&format!("SELECT x FROM m WHERE time > '{text}'"));
        assert!(error.starts_with("invalid timestamp string: a time is 2026-03-28, "), "{text}: {error}");
    }
    for text in ["1677-09-22", "2262-04-11", "2026-10-30 23:59:59.999", "2026-10-30T00:00:00+02:00"] {
        assert_eq!(error(&format!("SELECT x FROM m WHERE time > '{text}'")), "", "{text}");
    }
}

#[test]
fn bit_operators_of_a_condition_need_integers() {
    let meant = [("x::integer & 1 = 1", 1), ("x::integer & 6 != 0", 2), ("y > 5 AND 2 * (1 | 4) > 9", 1)];
    for (condition, count) in meant {
        let found = series(&format!("SELECT count(x) FROM m WHERE {condition}"));
        assert!(found.ends_with(&format!(r#""values":[["1970-01-01T00:00:00Z",{count}]]}}"#)), "{condition}: {found}");
    }
    let odd = series("SELECT c FROM (SELECT count(x) AS c FROM m GROUP BY device_id) WHERE c & 1 = 1");
    assert!(odd.ends_with(r#""values":[["1970-01-01T00:00:00Z",1]]}"#), "{odd}");
    let float = "type error: x::float & 1: incompatible types: float and integer";
    for condition in ["x & 1 = 1", "y > 5 AND (room = '' OR 2 * (x & 1) > 1)"] {
        assert_eq!(error(&format!("SELECT count(x) FROM m WHERE {condition}")), float, "{condition}");
    }
}

#[test]
fn rows_of_several_series_are_in_the_order_of_time() {
    assert_eq!(
        series("SELECT * FROM m"),
        concat!(
            r#"{"name":"m","columns":["time","device_id","room","x","y"],"values":[["1970-01-01T00:00:00Z","#,
            r#""a","r 1",1,10],["1970-01-01T00:01:00Z","b",null,2,null],["1970-01-01T00:02:00Z","a","r 1",4,"#,
            r#"null]]}"#,
        )
    );
    assert_eq!(
        series("SELECT x FROM m GROUP BY room ORDER BY time DESC LIMIT 1"),
        concat!(
            r#"{"name":"m","tags":{"room":"r 1"},"columns":["time","x"],"values":[["1970-01-01T00:02:00Z","#,
            r#"4]]},{"name":"m","tags":{"room":""},"columns":["time","x"],"values":[["1970-01-01T00:01:00Z","#,
            r#"2]]}"#,
        )
    );
}

#[test]
fn windows_are_half_open_and_filled() {
    let query = |fill: &str| {
        series(&format!("SELECT sum(x), count(x) FROM m WHERE time >= 0 AND time < 3m GROUP BY time(2m) fill({fill})"))
    };
    let header = r#"{"name":"m","columns":["time","sum","count"],"values":"#;
    for fill in ["null", "none", "previous", "linear", "7"] {
        let rows = r#"[["1970-01-01T00:00:00Z",3,2],["1970-01-01T00:02:00Z",4,1]]}"#;
        assert_eq!(query(fill), format!("{header}{rows}"), "{fill}");
    }
    let query = |fill: &str| {
        let answer = series(&format!(
            "SELECT sum(x), count(x) FROM m WHERE device_id = 'a' AND time >= 0 AND time <= 2m GROUP BY time(1m) \
             fill({fill})"
        ));
        answer.split_once(r#"["1970-01-01T00:01:00Z","#).map(|(_, rest)| rest[..rest.find(']').unwrap()].to_owned())
    };
    for (fill, row) in [
        ("null", Some("null,0")),
        ("none", None),
        ("previous", Some("1,1")),
        ("linear", Some("2.5,1")),
        ("7.5", Some("7.5,7")),
    ] {
        assert_eq!(query(fill).as_deref(), row, "{fill}");
    }
}

#[test]
fn sums_and_means_include_the_rounding_errors() {
    let lines = "m,device_id=a x=1e16 0\nm,device_id=a x=1 3600000000000\nm,device_id=a x=-1e16 7200000000000";
    for (condition, hours) in [("", 3), (" WHERE x != 5", 0)] {
        let mut source = Data::new(lines);
        let answer = ask(&mut source, &format!("SELECT sum(x), mean(x) FROM m{condition}"), LIMITS);
        assert!(answer.contains(r#""values":[["1970-01-01T00:00:00Z",1,0.3333333333333333]]"#), "{answer}");
        assert_eq!(source.hours, hours);
    }
    let answer = ask(&mut Data::new(lines), "SELECT cumulative_sum(x) FROM m", LIMITS);
    assert!(answer.contains(r#"["1970-01-01T02:00:00Z",1]]"#), "{answer}");
}

#[test]
fn a_moving_average_depends_only_on_the_values_of_its_row() {
    let values = [3.4e38, 10.0, 20.0, 30.0, 1e308, 1e308, 10.0, 20.0, 30.0, 40.0, -5.0, 15.0];
    let lines: Vec<_> =
        values.iter().enumerate().map(|(at, value)| format!("m,device_id=a x={value:e} {at}000000000")).collect();
    for size in 2..=6 {
        let query = format!("SELECT moving_average(x, {size}) FROM m");
        let answer: serde_json::Value =
            serde_json::from_str(&ask(&mut Data::new(&lines.join("\n")), &query, LIMITS)).unwrap();
        let rows = answer["results"][0]["series"][0]["values"].as_array().unwrap();
        let averages: Vec<_> = rows.iter().map(|row| row[1].as_f64()).collect();
        let average = |of_row: &[f64]| Some(of_row.iter().sum::<f64>() / size as f64).filter(|mean| mean.is_finite());
        assert_eq!(averages, values.windows(size).map(average).collect::<Vec<_>>(), "{size}");
    }
}

#[test]
fn windows_of_readings_and_of_subqueries_end_at_now() {
    let seconds = |after_now: i64| NOW_NS + after_now * 1_000_000_000;
    let lines = format!("m,device_id=a x=3,y=1 {}\nm,device_id=a x=9,y=1 {}", seconds(-60), seconds(300));
    for source in ["m", "(SELECT x FROM m)", "(SELECT x FROM (SELECT x - y AS x FROM m))"] {
        let query = format!("SELECT count(x) FROM {source} WHERE time > now() - 2m GROUP BY time(1m)");
        let answer = ask(&mut Data::new(&lines), &query, LIMITS);
        let rows = r#"[["2026-03-29T15:58:00Z",0],["2026-03-29T15:59:00Z",1],["2026-03-29T16:00:00Z",0]]"#;
        assert!(answer.contains(&format!(r#""values":{rows}"#)), "{query}: {answer}");
    }
}

#[test]
fn parameters_are_values_and_never_text() {
    let ask_with = |parameters: &str, query: &str| {
        let parameters = Parameters::from_json(parameters).unwrap();
        super::ask_with(&mut Data::new(LINES), query, &parameters, LIMITS)
    };
    let query = "SELECT x FROM m WHERE device_id = $d LIMIT $n";
    assert!(ask_with(r#"{"d": "b", "n": 1}"#, query).contains(r#"[["1970-01-01T00:01:00Z",2]]"#));
    assert_eq!(ask_with(r#"{"d": "' OR 1 = 1 --", "n": 1}"#, query), r#"{"results":[{"statement_id":0}]}"#);
    assert!(ask_with(r#"{"d": "b"}"#, query).contains("missing parameter: n"));
    assert!(ask_with(r#"{"d": "b", "n": -1}"#, query).contains("LIMIT must be"));
    let smallest = r#"{"n": -9223372036854775808}"#;
    assert!(!ask_with(smallest, "SELECT x FROM m WHERE x > -$n").contains("error"));
    let pattern = r#"{"d": {"regex": "^b$"}}"#;
    assert!(ask_with(pattern, "SELECT x FROM m WHERE device_id =~ $d").contains("00:01:00Z"));
    let window = r#"{"w": {"duration": "2m"}}"#;
    assert!(ask_with(window, "SELECT sum(x) FROM m WHERE time < 3m GROUP BY time($w)").contains("00:02:00Z"));
}

#[test]
fn a_name_in_a_pattern_or_of_a_subquery_may_be_another_name_of_a_tag() {
    let mut source = Data::new("ho,device_id=h1,room=a temp=1 0\nho,device_id=h2,room=a temp=2 0");
    let others = vec!["host".to_owned(), "device".to_owned()];
    source.aliases = Arc::new(Aliases { key: "device_id".to_owned(), others });
    for (query, expected) in [
        ("SELECT sum(temp) FROM ho GROUP BY /^host$/", vec![r#""tags":{"host":"h1"}"#, r#""tags":{"host":"h2"}"#]),
        ("SELECT sum(temp) FROM ho GROUP BY /^h|host|room/", vec![r#""tags":{"host":"h1","room":"a"}"#]),
        ("SELECT sum(temp) FROM ho GROUP BY /device/", vec![r#""tags":{"device_id":"h1"}"#]),
        ("SELECT sum(temp) FROM ho GROUP BY /o/", vec![r#""tags":{"room":"a"}"#, r#"Z",3]"#]),
        ("SELECT sum(temp) FROM ho GROUP BY *", vec![r#""tags":{"device_id":"h1","room":"a"}"#]),
        ("SHOW TAG VALUES FROM ho WITH KEY =~ /^host$/", vec![r#""values":[["host","h1"],["host","h2"]]"#]),
        ("SHOW TAG VALUES FROM ho WITH KEY =~ /o/", vec![r#""values":[["room","a"]]"#]),
        ("SELECT /host|temp/ FROM ho", vec![r#""columns":["time","host","temp"]"#, r#"Z","h1",1]"#, r#"Z","h2",2]"#]),
        ("SELECT /o|temp/ FROM ho", vec![r#""columns":["time","room","temp"]"#]),
        ("SELECT host FROM (SELECT * FROM ho)", vec![r#"Z","h1"]"#, r#"Z","h2"]"#]),
        ("SELECT sum(temp) FROM (SELECT * FROM ho) WHERE host = 'h1'", vec![r#"Z",1]"#]),
        ("SELECT sum(temp) FROM (SELECT temp FROM ho GROUP BY device_id) WHERE host = 'h2'", vec![r#"Z",2]"#]),
    ] {
        let answer = ask(&mut source, query, LIMITS);
        assert!(expected.iter().all(|part| answer.contains(part)), "{query}: {answer}");
    }
}

#[test]
fn a_row_has_a_column_that_the_subquery_has() {
    for query in [
        "SELECT nope FROM (SELECT * FROM m)",
        "SELECT nope * 2 FROM (SELECT x FROM m GROUP BY *)",
        "SELECT a FROM (SELECT nope AS a, x FROM m)",
        "SELECT a FROM (SELECT sum(nope) AS a, count(x) FROM m)",
    ] {
        assert_eq!(answer(query), r#"{"results":[{"statement_id":0}]}"#, "{query}");
    }
    for (query, expected) in [
        (
            "SELECT nope, y FROM (SELECT x, y FROM m)",
            concat!(
                r#"["time","nope","y"],"values":[["1970-01-01T00:00:00Z",null,10],["1970-01-01T00:01:00Z",null,null],"#,
                r#"["1970-01-01T00:02:00Z",null,null]]"#,
            ),
        ),
        (
            "SELECT * FROM (SELECT max(*) FROM m)",
            r#"["time","max_x","max_y"],"values":[["1970-01-01T00:00:00Z",4,10]]"#,
        ),
        ("SELECT \"distinct\" FROM (SELECT DISTINCT x FROM m) LIMIT 1", r#""values":[["1970-01-01T00:00:00Z",1]]"#),
    ] {
        let found = series(query);
        assert!(found.contains(expected), "{query}: {found}");
    }
}

/// The answer to two statements.
fn written(format: Format, epoch: Option<Epoch>, chunk_rows: Option<usize>) -> Vec<u8> {
    written_of("SELECT x, room FROM m LIMIT 3; SHOW DATABASES", format, epoch, chunk_rows)
}

fn written_of(query: &str, format: Format, epoch: Option<Epoch>, chunk_rows: Option<usize>) -> Vec<u8> {
    let mut source = Data::new(LINES);
    let statements = parse(query, &Parameters::default()).unwrap();
    let mut out = Vec::new();
    let mut writer = Writer::new(format, epoch, false, chunk_rows, statements.len(), &mut out);
    for (id, statement) in statements.iter().enumerate() {
        writer.result(id, execute(statement, &mut source, &options(LIMITS)).as_deref(), &mut out);
    }
    writer.finish(&mut out);
    out
}

#[test]
fn csv_has_a_table_for_each_kind_of_series() {
    let csv = String::from_utf8(written(Format::Csv, Some(Epoch::Second), None)).unwrap();
    let expected = "name,tags,time,x,room\nm,,0,1,r 1\nm,,60,2,\nm,,120,4,r 1\n\nname,tags,name\ndatabases,,d\n";
    assert_eq!(csv, expected);
}

#[test]
fn csv_has_a_table_for_each_statement_and_each_error() {
    let query = "SELECT x FROM m LIMIT 1; SELECT y AS x FROM m; SELECT x FROM nope; SELECT foo(x) FROM m";
    for chunk_rows in [None, Some(5)] {
        let csv = String::from_utf8(written_of(query, Format::Csv, Some(Epoch::Second), chunk_rows)).unwrap();
        let tables = "name,tags,time,x\nm,,0,1\n\nname,tags,time,x\nm,,0,10\n";
        assert_eq!(csv, format!("{tables}\nerror\nundefined function foo()\n"));
    }
    let csv = written_of("SELECT foo(x) FROM m; SELECT bar(x) FROM m", Format::Csv, None, None);
    let expected = "error\nundefined function foo()\n\nerror\nundefined function bar()\n";
    assert_eq!(String::from_utf8(csv).unwrap(), expected);
}

#[test]
fn chunks_are_documents_that_announce_the_next() {
    let json = String::from_utf8(written(Format::Json, Some(Epoch::Millisecond), Some(2))).unwrap();
    let columns = r#"{"results":[{"statement_id":0,"series":[{"name":"m","columns":["time","x","room"],"values":"#;
    let expected = format!(
        "{columns}[[0,1,\"r 1\"],[60000,2,null]],\"partial\":true}}],\"partial\":true}}]}}\n\
         {columns}[[120000,4,\"r 1\"]]}}]}}]}}\n\
         {{\"results\":[{{\"statement_id\":1,\"series\":[{{\"name\":\"databases\",\"columns\":[\"name\"],\
         \"values\":[[\"d\"]]}}]}}]}}\n"
    );
    assert_eq!(json, expected);
}

#[test]
fn a_warning_is_beside_the_series_of_its_statement() {
    let mut out = Vec::new();
    let mut writer = Writer::new(Format::Json, None, false, None, 2, &mut out);
    writer.warn("stored readings are missing");
    writer.result(0, Ok(&[]), &mut out);
    writer.result(1, Ok(&[]), &mut out);
    writer.finish(&mut out);
    let expected = concat!(
        r#"{"results":[{"statement_id":0,"messages":[{"level":"warning","#,
        r#""text":"stored readings are missing"}]},{"statement_id":1}]}"#,
    );
    assert_eq!(String::from_utf8(out).unwrap().trim_end(), expected);
}

#[test]
fn messagepack_has_times_as_an_extension() {
    let bytes = written(Format::MessagePack, None, None);
    assert!(bytes.starts_with(b"\x81\xa7results\x92\x82\xacstatement_id\x00\xa6series\x91"));
    let row = b"\x93\xc7\x0c\x05\0\0\0\0\0\0\0\x3c\0\0\0\0\xcb\x40\0\0\0\0\0\0\0\xc0";
    assert!(bytes.windows(row.len()).any(|window| window == row), "the row of the second minute");
}
