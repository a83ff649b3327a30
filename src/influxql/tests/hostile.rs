//! Hostile queries: each is answered or refused, in time and memory that its limits bound.

use std::cell::Cell;
use std::time::Instant;

use super::super::parser::{NAME_MAX_BYTES, STATEMENTS_MAX};
use super::super::{Memory, QUERY_MAX_BYTES, StatementError, stream};
use super::parts::Peak;
use super::*;
use crate::common::counting::counted;

/// Pseudo-random numbers (`SplitMix64`), so that a failure repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

/// Changes a query in one place.
fn mutated(query: &[char], random: &mut Random) -> Vec<char> {
    const MARKS: &[char] =
        &['(', ')', '\'', '"', '/', '\\', ',', ';', '*', '-', '.', '$', ' ', '0', '9', 'e', '\n', 'µ', '\0', ':'];
    let mut query = query.to_vec();
    let at = random.below(query.len().max(1)).min(query.len());
    match random.below(5) {
        0 => query.insert(at, MARKS[random.below(MARKS.len())]),
        1 if at < query.len() => _ = query.remove(at),
        2 if at < query.len() => query[at] = MARKS[random.below(MARKS.len())],
        3 => query.truncate(at),
        _ => {
            let end = (at + random.below(30)).min(query.len());
            let part = query[at..end].to_vec();
            let to = random.below(query.len() + 1);
            query.splice(to..to, part);
        }
    }
    query
}

#[test]
fn mutations_of_the_corpus_never_panic() {
    let corpus: Vec<Vec<char>> = QUERIES.lines().map(|line| line.chars().collect()).collect();
    let mut source = Data::new(DATA);
    let mut random = Random(7);
    for _ in 0..5_000 {
        let mut query = corpus[random.below(corpus.len())].clone();
        for _ in 0..=random.below(4) {
            query = mutated(&query, &mut random);
        }
        let query: String = query.into_iter().collect();
        let parameters = Parameters::from_json(r#"{"a": 1, "x": {"regex": "S1"}}"#).unwrap();
        // Most queries are parsed only: they take microseconds.
        if random.below(10) == 0 {
            ask_with(&mut source, &query, &parameters, LIMITS);
        } else {
            _ = parse(&query, &parameters);
        }
    }
}

/// Asks in a thread with the stack of a worker, and returns the answer.
fn ask_in_small_stack(source: &mut Data, query: &str) -> String {
    std::thread::scope(|scope| {
        let ask = move || ask(source, query, LIMITS);
        std::thread::Builder::new().stack_size(2 << 20).spawn_scoped(scope, ask).unwrap().join().unwrap()
    })
}

#[test]
fn deep_nesting_is_refused_before_the_stack_ends() {
    let many = 50_000;
    let mut source = Data::new(DATA);
    for query in [
        format!("SELECT {}temp{} FROM climate", "(".repeat(many), ")".repeat(many)),
        format!("SELECT temp FROM climate WHERE {}", "(".repeat(many)),
        format!("SELECT {}temp FROM climate", "-".repeat(many)),
        format!("SELECT {}(temp) FROM climate", "mean(".repeat(many)),
        format!("SELECT temp FROM {}climate", "(SELECT temp FROM ".repeat(10_000)),
        format!("SELECT temp{} FROM climate", " + 1".repeat(many)),
        format!("SELECT temp{} FROM climate", " * 2 + 1".repeat(many / 2)),
        format!("SELECT temp{} FROM climate", ", temp".repeat(30_000)),
        format!("SELECT temp FROM climate WHERE temp{} > 1", " - 1".repeat(many)),
        format!("SELECT temp FROM climate WHERE room = ''{}", " OR room = 'a'".repeat(15_000)),
    ] {
        let answer = ask_in_small_stack(&mut source, &query);
        assert!(answer.contains("error"), "{}: {answer}", &query[..60]);
        assert!(answer.len() < 500, "{answer}");
    }
}

#[test]
fn long_lists_of_conditions_are_answered() {
    let mut source = Data::new(DATA);
    let operands: Vec<_> = (0..5_000).map(|at| format!("device_id = 'S{at}'")).collect();
    for join in [" OR ", " AND "] {
        let query = format!("SELECT count(temp) FROM climate WHERE ({})", operands.join(join));
        assert!(!ask_in_small_stack(&mut source, &query).contains("error"));
    }
    let alternating = "room = '' OR floor = '0' AND ".repeat(500) + "temp > 1";
    let answer = ask_in_small_stack(&mut source, &format!("SELECT count(temp) FROM climate WHERE {alternating}"));
    assert!(!answer.contains("error"), "{answer}");
}

/// Adds 60 times 1 to an operand, in each of `groups` parentheses around each other.
fn sum(operand: &str, groups: usize) -> String {
    let ones = " + 1".repeat(60) + ")";
    format!("{}{operand}{}", "(".repeat(groups), ones.repeat(groups))
}

#[test]
fn operators_of_an_expression_have_a_limit() {
    let mut source = Data::new(DATA);
    let (most, more) = (sum("temp", 8), sum("temp", 9));
    let conditions = [&*most; 3].join(" > 1 AND ") + " > 1";
    for allowed in [format!("{most} AS a FROM climate"), format!("temp FROM climate WHERE {conditions}")] {
        let answer = ask_in_small_stack(&mut source, &format!("SELECT {allowed} LIMIT 1"));
        assert!(!answer.contains("error"), "{answer}");
    }
    for refused in [format!("{more} AS a FROM climate"), format!("temp FROM climate WHERE room = '' OR {more} > 1")] {
        let answer = ask_in_small_stack(&mut source, &format!("SELECT {refused} LIMIT 1"));
        assert!(answer.contains("an expression has at most 500 operators"), "{answer}");
    }
}

#[test]
fn operators_are_work() {
    let lines: Vec<_> = (0..1_000).map(|at| format!("m,device_id=d v=1 {}", at * 1_000_000_000_i64)).collect();
    let mut source = Data::new(&lines.join("\n"));
    let windows = "WHERE time >= 0s AND time < 1000s GROUP BY time(1s)";
    // Three values for each row: one that is read, and two columns. Few operators count nothing.
    let few = Limits { max_points: 3_000, ..LIMITS };
    for query in ["SELECT v, v * 2 + 1 AS a FROM m", &format!("SELECT mean(v), mean(v) * 2 AS a FROM m {windows}")] {
        let answer = ask(&mut source, query, few);
        assert!(!answer.contains("error"), "{answer}");
    }
    let columns =
        |operand: &str| (0..20).map(|at| format!("{} AS a{at}", sum(operand, 8))).collect::<Vec<_>>().join(",");
    let rows = format!("SELECT {} FROM m", columns("v"));
    for query in [&rows, &format!("SELECT {} FROM m {windows}", columns("mean(v)"))] {
        let answer = ask(&mut source, query, LIMITS);
        assert!(answer.contains("max-select-point limit exceeded"), "{answer}");
    }
    // In parts, values have no limit, but each row may end the statement.
    let statement = &parse(&format!("{rows} LIMIT 100"), &Parameters::default()).unwrap()[0];
    let checks = source.checks.get();
    stream(statement, &mut source, &options(LIMITS), &mut |_| Ok(())).unwrap();
    assert!(source.checks.get() >= checks + 100, "{}", source.checks.get());
}

#[test]
fn sizes_and_counts_have_limits() {
    let mut source = Data::new(DATA);
    let long = format!("SELECT temp FROM climate -- {}", "x".repeat(QUERY_MAX_BYTES));
    assert!(ask_in_small_stack(&mut source, &long).contains("a query has at most 262144 bytes"));
    let many = "SHOW DATABASES;".repeat(STATEMENTS_MAX + 1);
    assert!(ask_in_small_stack(&mut source, &many).contains("a query has at most 256 statements"));
    let many = format!("SELECT temp FROM climate WHERE room = ''{}", " OR room =~ /[a-z]{200}/".repeat(101));
    assert!(ask_in_small_stack(&mut source, &many).contains("a query has at most 100 regular expressions"));
}

#[test]
fn a_bound_parameter_takes_memory_each_time() {
    let list = format!("^({}b)$", "a|".repeat(15_000));
    let parameters = Parameters::from_json(&format!(r#"{{"x": {{"regex": "{list}"}}, "y": "{list}"}}"#)).unwrap();
    for comparison in [" OR room =~ $x", " OR room = $y"] {
        let query = |count: usize| format!("SELECT temp FROM climate WHERE room = ''{}", comparison.repeat(count));
        assert!(parse(&query(8), &parameters).is_ok());
        let error = parse(&query(9), &parameters).unwrap_err().to_string();
        assert!(error.contains("the bound parameters of a query have at most 262144 bytes"), "{error}");
    }
}

#[test]
fn series_windows_points_and_rows_have_limits() {
    let mut source = Data::new(DATA);
    let few = Limits { max_series: 3, max_buckets: 100, max_points: 600, max_rows: 50 };
    for (query, error) in [
        ("SELECT mean(temp) FROM climate", "max-select-series limit exceeded: (4/3)"),
        ("SHOW SERIES", "max-select-series limit exceeded"),
        (
            "SELECT mean(temp) FROM climate WHERE device_id = 'S1' AND time > '2021-01-01' GROUP BY time(1h)",
            "max-select-buckets limit exceeded",
        ),
        (
            "SELECT mean(temp) FROM climate WHERE device_id = 'S1' GROUP BY time(1s)",
            "max-select-buckets limit exceeded",
        ),
        (
            "SELECT mean(temp) FROM climate WHERE device_id = 'S1' AND time > 0 GROUP BY time(1u)",
            "max-select-buckets limit exceeded",
        ),
        ("SELECT temp, hum FROM climate WHERE device_id = 'S1'", "max-select-point limit exceeded"),
        ("SELECT temp FROM climate WHERE device_id = 'S1'", "the answer has 240 rows, more than 50"),
    ] {
        let answer = ask(&mut source, query, few);
        assert!(answer.contains(error), "{query}: {answer}");
    }
    let allowed = ask(&mut source, "SELECT temp FROM climate WHERE device_id = 'S1' LIMIT 50", few);
    assert!(!allowed.contains("error"), "{allowed}");
}

#[test]
fn a_hostile_expression_or_limit_takes_no_time() {
    let (mut source, before) = (Data::new(DATA), Instant::now());
    for query in [
        format!("SELECT temp FROM climate WHERE room =~ /^({}b)+$/", "a*".repeat(1_000)),
        format!("SELECT temp FROM climate WHERE room =~ /{}/", "(a?){50}".repeat(100)),
        format!("SELECT temp{} FROM climate", ", temp".repeat(999)),
        format!("SELECT *{} FROM climate", ", *".repeat(999)),
        format!("SELECT mean(temp){} FROM climate GROUP BY time(1m)", ", mean(temp) + 1".repeat(999)),
        format!("SELECT temp FROM climate LIMIT {0} OFFSET {0} SLIMIT {0} SOFFSET {0}", u64::MAX),
        "SELECT top(temp, 999999) FROM climate".to_owned(),
        "SELECT moving_average(temp, 999999) FROM climate".to_owned(),
        format!("SELECT mean(temp) FROM climate WHERE time > {0}s AND time < -{0}s GROUP BY time({0}w)", i64::MAX),
        format!("SELECT temp FROM climate WHERE time > now() + {0}w - {0}w * {0}", i64::MAX),
        "SELECT mean(temp) FROM climate WHERE time > 0 GROUP BY time(1ns) tz('Europe/Vienna')".to_owned(),
        "SELECT mean(temp) FROM climate WHERE time > -9223372036854775808 GROUP BY time(1w, -1w)".to_owned(),
        "SELECT derivative(mean(temp)) FROM climate WHERE time > -10 GROUP BY time(99999999999999h)".to_owned(),
    ] {
        ask_in_small_stack(&mut source, &query);
    }
    assert!(before.elapsed().as_secs() < 60, "{:?}", before.elapsed());
}

#[test]
fn a_slow_expression_runs_once_for_each_series() {
    // Random letters have so many states that the expression is matched step by step: millions of them.
    let mut random = Random(1);
    let text: String = (0..4_000).map(|_| if random.below(2) == 0 { 'a' } else { 'b' }).collect();
    let lines: Vec<_> = (0..1_000).map(|at| format!("m,room={text} v=1 {}", at * 1_000_000_i64)).collect();
    let (mut source, before) = (Data::new(&lines.join("\n")), Instant::now());
    let answer = ask(&mut source, "SELECT count(v) FROM m WHERE v > 1 OR room !~ /a[ab]{300}a[ab]{300}[^ab]/", LIMITS);
    assert!(answer.contains("1000"), "{answer}");
    assert!(before.elapsed().as_secs() < 60, "{:?}", before.elapsed());
    let inner = "SELECT v, room FROM m WHERE room !~ /c/ LIMIT 20";
    let checks = source.checks.get();
    ask(&mut source, &format!("SELECT v FROM ({inner}) WHERE room !~ /a[ab]{{300}}[^ab]/"), LIMITS);
    assert!(source.checks.get() >= checks + 20, "each row may end the statement");
}

/// A thousand series.
fn thousand() -> Data {
    let lines: Vec<_> = (0..1_000).map(|at| format!("m,device_id=d{at} v=1 0")).collect();
    Data::new(&lines.join("\n"))
}

#[test]
fn names_have_a_limit() {
    let mut source = Data::new(DATA);
    let (long, longer) = ("n".repeat(NAME_MAX_BYTES), "n".repeat(NAME_MAX_BYTES + 1));
    for query in [
        format!("SELECT temp AS \"{longer}\" FROM climate"),
        format!("SELECT temp FROM climate GROUP BY \"{longer}\""),
        format!("SHOW TAG VALUES WITH KEY = {longer}"),
    ] {
        let answer = ask(&mut source, &query, LIMITS);
        assert!(answer.contains("a name has at most 512 bytes, this one has 513"), "{answer}");
    }
    let answer = ask(&mut source, &format!("SELECT temp + {long} FROM climate"), LIMITS);
    assert!(answer.contains("the name of a column has at most 512 bytes, this one has 517"), "{answer}");
    for query in [
        format!("SELECT temp AS \"{long}\" FROM climate LIMIT 1"),
        format!("SELECT temp + {long} AS a FROM climate LIMIT 1"),
    ] {
        let answer = ask(&mut source, &query, LIMITS);
        assert!(!answer.contains("error"), "{answer}");
    }
}

#[test]
fn groups_take_memory() {
    let names: Vec<_> = (0..300).map(|at| format!("n{at}")).collect();
    let query = format!("SELECT last(v) FROM m GROUP BY {} SLIMIT 1", names.join(","));
    let peak = Peak::default();
    let statement = &parse(&query, &Parameters::default()).unwrap()[0];
    // All series have the same tags, so they are one group.
    execute(statement, &mut thousand(), &Options { memory: &peak, ..options(LIMITS) }).unwrap();
    assert!(peak.0.get() < 4 << 20, "{}", peak.0.get());
    let query = query.replace("SLIMIT", ",device_id SLIMIT");
    let statement = &parse(&query, &Parameters::default()).unwrap()[0];
    execute(statement, &mut thousand(), &Options { memory: &peak, ..options(LIMITS) }).unwrap();
    assert!(peak.0.get() > 12 << 20, "{}", peak.0.get());
}

/// The bytes of memory that are left for a statement.
#[derive(Debug)]
struct Left(Cell<usize>);

impl Memory for Left {
    fn grow(&self, bytes: usize) -> Result<(), StatementError> {
        self.0.set(self.0.get().checked_sub(bytes).ok_or("no memory is left")?);
        Ok(())
    }
}

/// The error of a statement, and the most bytes that were allocated at once until then.
fn error_and_peak(source: &mut Data, query: &str, memory: &dyn Memory) -> (String, usize) {
    let statement = &parse(query, &Parameters::default()).unwrap()[0];
    let (answer, allocated) = counted(|| execute(statement, source, &Options { memory, ..options(LIMITS) }));
    (answer.unwrap_err().to_string(), allocated.peak)
}

#[test]
fn tags_that_subqueries_inherit_take_memory_before_they_are_copied() {
    let tags = |level: usize| (0..1_000).map(|at| format!("t{level}_{at}")).collect::<Vec<_>>().join(",");
    let around = |inner: String, level| format!("SELECT v FROM ({inner}) GROUP BY {}", tags(level));
    let query = (0..4).fold(format!("SELECT v FROM {}", ["(SELECT v FROM m)"; 1_000].join(",")), around);
    let (error, peak) = error_and_peak(&mut thousand(), &query, &Left(Cell::new(16 << 20)));
    assert_eq!(error, "no memory is left");
    assert!(peak < 32 << 20, "{peak}");
}

#[test]
fn wildcards_make_no_more_columns_than_allowed() {
    let fields: Vec<_> = (0..1_000).map(|at| format!("f{at}=1")).collect();
    let mut source = Data::new(&format!("m {} 0", fields.join(",")));
    for (columns, expected) in [
        (["*"; 1_000].join(","), "the SELECT has more than 2000 columns"),
        (["/f/"; 100].join(","), "the SELECT has more than 2000 columns"),
        (["mean(*)"; 1_000].join(","), "the SELECT has more than 2000 columns"),
        (format!("percentile(*, '{}')", "x".repeat(100_000)), "expected float argument in percentile()"),
        (format!("elapsed(max(*{}))", ", 1".repeat(999)), "expected 1, got 1000"),
    ] {
        let (error, peak) = error_and_peak(&mut source, &format!("SELECT {columns} FROM m"), &NoLimit);
        assert!(error.contains(expected), "{error}");
        assert!(peak < 8 << 20, "{expected}: {peak}");
    }
    // Thirty subqueries around each other have a thousand columns each.
    let query = (0..30).fold("SELECT * FROM m".to_owned(), |inner, _| format!("SELECT * FROM ({inner})"));
    let statement = &parse(&query, &Parameters::default()).unwrap()[0];
    let peak = Peak::default();
    execute(statement, &mut source, &Options { memory: &peak, ..options(LIMITS) }).unwrap();
    assert!(peak.0.get() > 6 << 20, "{}", peak.0.get());
}

#[test]
fn conditions_on_series_are_work() {
    let many: Vec<_> = (0..3_000).map(|at| format!("room = 'a{at}'")).collect();
    let condition = format!("{} OR zone = 'z'", many.join(" OR "));
    for query in [format!("SELECT v FROM m WHERE {condition}"), format!("SHOW SERIES FROM m WHERE {condition}")] {
        let mut source = thousand();
        let answer = ask(&mut source, &query, LIMITS);
        assert!(answer.contains("max-select-point limit exceeded"), "{answer}");
        assert!(source.checks.get() > 100, "{}", source.checks.get());
    }
}

#[test]
fn keys_of_tags_may_repeat() {
    let once = ask(&mut Data::new(DATA), "SHOW TAG VALUES FROM climate WITH KEY IN (device_id)", LIMITS);
    assert!(once.contains("S1"), "{once}");
    let repeated = format!("SHOW TAG VALUES FROM climate WITH KEY IN ({}device_id)", "device_id,".repeat(999));
    assert_eq!(ask(&mut Data::new(DATA), &repeated, LIMITS), once);
}
