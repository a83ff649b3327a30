//! Which statements stats of hours answer, and that readings give the same answers.

use super::*;

const HOURLY: &str = "WHERE time >= '2026-03-28T01:00:00Z' AND time < '2026-03-28T09:00:00Z' GROUP BY time(1h)";

/// The numbers of rows and of hours that a query reads.
fn read(source: &mut Data, query: &str) -> (usize, usize) {
    let answer = ask(source, query, LIMITS);
    assert!(!answer.contains("error"), "{answer}");
    (std::mem::take(&mut source.rows), std::mem::take(&mut source.hours))
}

#[test]
fn whole_hours_are_read_as_stats_and_nothing_else() {
    let mut source = Data::new(DATA);
    for query in [
        format!("SELECT mean(temp) FROM climate {HOURLY}"),
        format!("SELECT count(temp), spread(hum), last(temp) FROM climate {HOURLY}, device_id"),
        format!("SELECT derivative(max(temp)) FROM climate {HOURLY}"),
        format!("SELECT mean(temp) FROM climate {HOURLY} tz('Europe/Vienna')"),
        format!("SELECT mean(temp), difference(mean(temp)) FROM climate {HOURLY}"),
        "SELECT mean(temp) FROM climate WHERE time < '2026-03-29' GROUP BY time(1d) tz('Europe/Berlin')".to_owned(),
        "SELECT max(temp), min(temp) FROM climate WHERE time >= '2026-03-28' AND time < '2026-03-29'".to_owned(),
        "SELECT mean(temp) FROM climate WHERE device_id = 'S1'".to_owned(),
        "SELECT last(temp) FROM climate GROUP BY device_id".to_owned(),
    ] {
        let (rows, hours) = read(&mut source, &query);
        assert!(rows == 0 && hours > 0, "{query}: {rows} rows, {hours} hours");
    }
}

#[test]
fn other_statements_read_readings() {
    let mut source = Data::new(DATA);
    for query in [
        format!("SELECT median(temp) FROM climate {HOURLY}"),
        format!("SELECT mean(temp), mode(temp) FROM climate {HOURLY}"),
        format!("SELECT max(temp), hum FROM climate {HOURLY}"),
        format!("SELECT mean(temp::integer) FROM climate {HOURLY}"),
        HOURLY.replace("WHERE", "SELECT mean(temp) FROM climate WHERE hum > 50 AND"),
        HOURLY.replace("1h)", "1h, 15m)").replace("WHERE", "SELECT mean(temp) FROM climate WHERE"),
        HOURLY.replace("1h)", "90m)").replace("WHERE", "SELECT mean(temp) FROM climate WHERE"),
        format!("SELECT mean(temp) FROM climate {HOURLY} tz('Asia/Kolkata')"),
        "SELECT max(temp), room FROM climate".to_owned(),
        "SELECT temp FROM climate LIMIT 3".to_owned(),
    ] {
        let (rows, hours) = read(&mut source, &query);
        assert!(rows > 0 && hours == 0, "{query}: {rows} rows, {hours} hours");
    }
}

#[test]
fn only_the_edges_of_a_range_are_read_as_readings() {
    let mut source = Data::new(DATA);
    let mut read = |query: &str| read(&mut source, query);
    let range = "time >= '2026-03-28T01:50:00Z' AND time <= '2026-03-28T08:10:00Z'";
    let query = format!("SELECT mean(temp), count(temp) FROM climate WHERE device_id = 'S1' AND {range}");
    // One reading each ten minutes: at 01:50, 08:00 and 08:10, and the hours 2 to 7.
    assert_eq!(read(&query), (3, 6));
    assert_eq!(read(&format!("{query} GROUP BY time(2h)")), (3, 6));
    // The difference also needs the readings from 00:50 on, and so all readings of the hour 1 are read.
    let difference = query.replace("count", "difference(mean(temp)), count");
    assert_eq!(read(&format!("{difference} GROUP BY time(1h)")), (9, 6));
}

#[test]
fn a_lone_minimum_or_maximum_is_found_in_stats_and_its_instant_in_its_hour() {
    let mut source = Data::new(DATA);
    let device = "FROM climate WHERE device_id = 'S1'";
    // One reading each ten minutes. The maximum is at 06:00, and again in a later hour.
    assert_eq!(read(&mut source, &format!("SELECT max(temp) {device}")), (6, 40));
    assert_eq!(read(&mut source, &format!("SELECT max(temp), min(temp) {device}")), (0, 40));
    assert!(ask(&mut source, &format!("SELECT max(temp) {device}"), LIMITS).contains("06:00:00Z\",29.8]"));
}

#[test]
fn stats_and_readings_give_the_same_answer() {
    let mut source = Data::new(DATA);
    let range = "time >= '2026-03-28T00:25:00Z' AND time <= '2026-03-28T14:12:45.238Z'";
    for query in [
        "SELECT max(temp) FROM climate".to_owned(),
        "SELECT min(temp) FROM climate GROUP BY device_id, room".to_owned(),
        format!("SELECT max(temp) FROM climate WHERE {range}"),
        format!("SELECT min(temp) + 1 FROM climate WHERE {range} GROUP BY device_id ORDER BY time DESC SLIMIT 2"),
        format!("SELECT max(max) FROM (SELECT max(temp) FROM climate WHERE {range} GROUP BY device_id)"),
        format!("SELECT max(temp), difference(max(temp)) FROM climate WHERE {range} GROUP BY time(2h)"),
        format!("SELECT min(temp), derivative(last(temp)) FROM climate WHERE {range} GROUP BY time(1h), room"),
        format!(
            "SELECT max(temp), difference(min(temp)) FROM climate WHERE {range} GROUP BY time(3h) ORDER BY time DESC"
        ),
    ] {
        source.hours = 0;
        let of_stats = ask(&mut source, &query, LIMITS);
        assert!(of_stats.contains("values") && source.hours > 0, "{query}: {of_stats}");
        source.hours = 0;
        let of_readings = ask(&mut source, &query.replace("(temp)", "(temp::float)"), LIMITS);
        assert_eq!((source.hours, of_stats), (0, of_readings), "{query}");
    }
}

#[test]
fn a_limit_ends_the_reading_of_each_series() {
    let mut source = Data::new(DATA);
    let mut read = |query: &str| read(&mut source, query);
    assert_eq!(read("SELECT temp FROM climate WHERE device_id = 'S1' LIMIT 3 OFFSET 2").0, 5);
    assert_eq!(read("SELECT temp FROM climate GROUP BY device_id LIMIT 2").0, 8);
    let newest = "SELECT temp FROM climate WHERE device_id =~ /^S[12]$/ ORDER BY time DESC LIMIT";
    assert_eq!(read(&format!("{newest} 1")).0, 2);
    assert_eq!(read(&format!("{newest} 3 OFFSET 2")).0, 10);
    let conditional = newest.replace("WHERE", "WHERE temp > 0 AND");
    assert!(read(&format!("{conditional} 1")).0 > 400);
}

#[test]
fn a_series_that_a_statement_does_not_need_changes_no_answer() {
    let (mut all, mut needed) = (Data::new(DATA), Data::new(DATA));
    needed.leaves_out_others = true;
    for query in QUERIES.lines().map(|line| line.replace("\\n", "\n")) {
        assert_eq!(ask(&mut needed, &query, LIMITS), ask(&mut all, &query, LIMITS), "{query}");
    }
    assert!(needed.listed < all.listed, "{} of {}", needed.listed, all.listed);
}

#[test]
fn a_statement_needs_the_series_that_may_have_rows() {
    let lines = "m,device_id=old,room=a x=1,y=7 0\nm,device_id=live,room=b x=2 7200000000000";
    let (mut all, mut needed) = (Data::new(lines), Data::new(lines));
    needed.leaves_out_others = true;
    let edges = "time >= 1h AND time < 3h GROUP BY time(1h)";
    let both = "(SELECT x AS a FROM m), (SELECT y AS b FROM m)";
    for (query, listed) in [
        ("SELECT x FROM m WHERE device_id =~ /^l/".to_owned(), 1),
        ("SELECT x FROM m WHERE room != 'a' AND x > 0".to_owned(), 1),
        ("SELECT x FROM m WHERE room = 'b' OR y > 0".to_owned(), 2),
        ("SELECT x FROM m WHERE room::tag !~ /a/ OR device_id = 'live'".to_owned(), 1),
        ("SHOW SERIES WHERE device_id =~ /^l/".to_owned(), 1),
        ("SHOW SERIES WHERE time > 2h".to_owned(), 2),
        ("SELECT x, y FROM m WHERE time >= 2h".to_owned(), 1),
        ("SELECT * FROM m WHERE time >= 2h".to_owned(), 1),
        ("SELECT mean(x) FROM m WHERE time < 2h".to_owned(), 1),
        (format!("SELECT mean(x) FROM m WHERE {edges}"), 2),
        (format!("SELECT difference(mean(x)) FROM m WHERE {edges} fill(previous)"), 2),
        ("SELECT sum(x) + sum(y) FROM m WHERE time >= 2h fill(0)".to_owned(), 1),
        (format!("SELECT sum(a) + sum(b) FROM {both} WHERE time >= 2h fill(0)"), 2),
        ("SELECT x FROM m WHERE time >= 2h GROUP BY device_id SLIMIT 1 SOFFSET 1".to_owned(), 2),
        ("SELECT x FROM m WHERE y > 5 GROUP BY device_id SLIMIT 1".to_owned(), 2),
        ("SELECT x FROM m WHERE device_id =~ /^l/ GROUP BY device_id SLIMIT 1".to_owned(), 1),
        ("SELECT x FROM m WHERE device_id =~ /^l/ AND y > 5 GROUP BY device_id SLIMIT 1".to_owned(), 1),
        ("SELECT z FROM (SELECT x AS z FROM m) WHERE time >= 2h".to_owned(), 1),
        ("SELECT z FROM (SELECT x + y AS z FROM m) WHERE time >= 2h".to_owned(), 2),
    ] {
        let before = needed.listed;
        assert_eq!(ask(&mut needed, &query, LIMITS), ask(&mut all, &query, LIMITS), "{query}");
        assert_eq!(needed.listed - before, listed, "{query}");
    }
    let few = Limits { max_series: 1, ..LIMITS };
    let query = "SELECT x FROM m WHERE device_id =~ /^l/ AND time >= 2h";
    assert!(ask(&mut needed, query, few).contains("02:00:00Z"));
    assert!(ask(&mut all, query, few).contains("max-select-series limit exceeded: (2/1)"));
}

#[test]
fn tags_that_a_condition_needs_reach_the_source() {
    let mut source = Data::new(DATA);
    for (condition, wanted) in [
        ("device_id = 'S1' AND temp > 3", vec![("device_id", vec!["S1"])]),
        ("\"device_id\"::tag =~ /^(S1|S2)$/", vec![("device_id", vec!["S1", "S2"])]),
        ("(room = 'a' OR room = 'b') AND floor = '0'", vec![("floor", vec!["0"]), ("room", vec!["a", "b"])]),
        ("room = 'a' OR floor = '0'", vec![]),
        ("room = 'a' AND (room = 'b' OR room = 'a') AND room = 'a'", vec![("room", vec!["a"])]),
        ("room = ''", vec![]),
        ("room != 'a'", vec![]),
    ] {
        ask(&mut source, &format!("SELECT temp FROM climate WHERE {condition}"), LIMITS);
        let found: Vec<_> = source.wanted.iter().map(|one| (&*one.key, one.values.clone())).collect();
        assert_eq!(found.len(), wanted.len(), "{condition}");
        for ((key, values), (wanted_key, wanted_values)) in found.iter().zip(&wanted) {
            assert_eq!((key, values), (wanted_key, &wanted_values.iter().map(ToString::to_string).collect()));
        }
    }
}
