//! `tidegauge import` reads the CSV files that gateways and spreadsheets write: their delimiters, decimal
//! commas, times, units and encodings, and the hours in which clocks are set.

mod follow;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use flate2::{Compression, write::GzEncoder};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Database, Finished, Server, Setup, binary, run, wait_until};

/// Readings by device and Unix milliseconds.
type Readings = BTreeMap<(String, i64), BTreeMap<String, f64>>;

/// Each change of the clocks in a week of a gateway, with the minutes between two rows, and the form.
const WEEKS: [(&str, &str, &str, &str); 4] = [
    ("Europe/Berlin", "2026-10-22", "15", "german"),
    ("Europe/Berlin", "2026-03-26", "1", "iso"),
    ("Australia/Lord_Howe", "2026-04-02", "1", "german"),
    ("Australia/Lord_Howe", "2026-10-01", "15", "iso"),
];

#[tokio::test]
async fn a_week_with_a_clock_change_is_stored_row_by_row_in_sqlite() {
    weeks(Setup::sqlite).await;
}

#[tokio::test]
async fn a_week_with_a_clock_change_is_stored_row_by_row_in_mongodb() {
    let database = Database::new();
    weeks(|| Setup::mongodb(&database)).await;
}

async fn weeks(setup: impl Fn() -> Setup) {
    let server = Server::start(setup()).await;
    let folder = TempDir::new().expect("a temporary folder");
    let mut expected = Readings::new();
    for (zone, day, minutes, form) in WEEKS {
        let file = folder.path().join(format!("{day}.csv"));
        let week = week_of(zone, day, minutes, form, &file);
        let flags: &[&str] = if form == "german" {
            &["--device-column", "Gerät", "--time-column", "Zeit", "--encoding", "windows-1252"]
        } else {
            &[]
        };
        let done = import(&server, &file, &[flags, &["--tz", zone]].concat()).await;
        assert_eq!(done.code, Some(0), "{done:?}");
        let rows = week.len();
        let said = format!("{} rows read", grouped(rows));
        assert!(done.stdout.starts_with(&said), "{done:?}");
        assert!(done.stdout.contains(&format!("{} readings accepted, 0 rejected, ", grouped(rows))), "{done:?}");
        assert!(done.stdout.contains("empty cells skipped") && !done.stdout.contains("overwrote"), "{done:?}");
        for (key, values) in week {
            expected.entry(key).or_default().extend(values); // the weeks of two zones overlap
        }
    }
    server.settled().await;
    let found = readings(&server).await;
    assert_eq!(found.len(), expected.len());
    for (key, values) in &expected {
        assert_eq!(found.get(key), Some(values), "{key:?}");
    }
}

/// The hourly rows of a gateway: the order is the only difference between the two.
#[tokio::test]
async fn hourly_rows_are_resolved_and_a_lone_row_is_refused() {
    let server = Server::start(Setup::sqlite()).await;
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("hours.csv");
    let rows = |times: &[&str]| {
        let rows: Vec<String> = times.iter().zip(1..).map(|(time, v)| format!("2026-10-25 {time},{v}")).collect();
        std::fs::write(&file, format!("time,v\n{}\n", rows.join("\n"))).expect("writable");
    };
    let berlin = ["--device", "d", "--tz", "Europe/Berlin"];
    rows(&["00:30", "01:30", "02:30", "02:30", "03:30"]);
    let done = import(&server, &file, &berlin).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let start = 1_792_881_000_000; // 2026-10-24T22:30:00Z
    let times: Vec<i64> = readings(&server).await.keys().map(|(_, ms)| *ms).collect();
    assert_eq!(times, (0..5).map(|hour| start + hour * 3_600_000).collect::<Vec<_>>());

    rows(&["01:30", "02:30", "03:30"]);
    let done = import(&server, &file, &berlin).await;
    assert_eq!(done.code, Some(1), "{done:?}");
    let said = "hours.csv:3: 2026-10-25T02:30:00 exists twice in Europe/Berlin, as 2026-10-25T00:30:00Z and \
                2026-10-25T01:30:00Z, and the order of line 3 does not tell which: add the offset to the times";
    assert!(done.stderr.contains(said), "{done:?}");
    assert!(done.stdout.contains("2 readings accepted, 1 rejected (1 not converted)"), "{done:?}");

    std::fs::write(&file, "time,v\n29.03.2026 01:30,1\n29.03.2026 02:30,2\n29.03.2026 03:30,3\n").expect("writable");
    let done = import(&server, &file, &berlin).await;
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(
        done.stderr.contains(
            "hours.csv:3: column \"time\": \"29.03.2026 02:30\": this time does not exist in \
        Europe/Berlin, where clocks are set forward over it"
        ),
        "{done:?}"
    );
}

/// Each file is a header, one row and flags; the row is meant as 21.5 at the same instant.
#[tokio::test]
async fn each_form_of_a_row_is_read() {
    let server = Server::start(Setup::sqlite()).await;
    let folder = TempDir::new().expect("a temporary folder");
    let at = 1_792_852_215_000; // 2026-10-24T14:30:15Z
    for (nth, (text, flags, guessed)) in [
        (&b"time;t\n24.10.2026 14:30:15;21,5\n"[..], &[][..], "read with --delimiter ';' --decimal ','"),
        (b"time;t\n24.10.2026 14:30:15;21,5\n", &["--delimiter", ";", "--decimal", ","], "metrics t"),
        (b"time\tt\n2026/10/24 14:30:15\t21.5\n", &[], "read with --delimiter '\\t'"),
        (b"time|t\n2026-10-24T16:30:15+02:00|21.5\n", &["--delimiter", "|"], "metrics t"),
        (b"time\tt\n1792852215\t21.5\n", &["--delimiter", "\\t"], "metrics t"),
        (b"\xEF\xBB\xBFtime,t\r\n\"2026-10-24 14:30:15\",\"21,5\"\r\n", &[], "read with --decimal ','"),
        (b"sep=;\r\ntime;t\r\n24.10.2026 14:30:15;21,5\r\n", &[], "--skip-lines 1"),
        (b"# a;b\n\ntime;t;;\n24.10.2026 14:30:15;21,5;;;\n", &[], "--skip-lines 2"),
        (b"Plant 7\nReport,of,today\ntime,t\n2026-10-24 14:30:15,21.5\n", &["--skip-lines", "2"], "metrics t"),
        (b"time,t\n10/24/2026 2:30:15 PM,21.5\n", &["--time-format", "%m/%d/%Y %I:%M:%S %p"], "metrics t"),
        (b"date,time,t\n2026-10-24,14:30:15,21.5\n", &["--time-column", "date,time"], "metrics t"),
        (
            b"Datum;Zeit;t\n24.10.26;143015;21,5\n",
            &["--time-column", "Datum,Zeit", "--time-format", "%d.%m.%y %H%M%S"],
            "metrics t",
        ),
        (b"time,t [\xB0C]\n2026-10-24 14:30:15,21.5\n", &["--encoding", "windows-1252"], "metrics t{unit=°C}"),
        ("time,t (°C)\n2026-10-24 14:30:15,21.5\n".as_bytes(), &[], "metrics t{unit=°C}"),
        ("time,t (°C)\n2026-10-24 14:30:15,21.5\n".as_bytes(), &["--metric", "t"], "metrics t{unit=°C}"),
        ("time,t (°C)\n2026-10-24 14:30:15,21.5\n".as_bytes(), &["--metric", "t=t (°C)"], "metrics t\n"),
        (
            b"time,tag,value,note\n2026-10-24 14:30:15,t,21.5,ok\n",
            &["--metric-column", "tag"],
            "metrics of the rows, values from value\n",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let (device, file) = (format!("d{nth}"), folder.path().join("one.csv"));
        std::fs::write(&file, text).expect("writable");
        let done = import(&server, &file, &[&["--device", &device, "--tz", "UTC"], flags].concat()).await;
        assert!(done.code == Some(0) && done.stderr.contains(guessed), "{guessed}: {done:?}");
        let found = readings(&server).await;
        let series = if guessed.contains("unit") { "t{unit=°C}" } else { "t" };
        assert_eq!(found.get(&(device, at)), Some(&BTreeMap::from([(series.to_owned(), 21.5)])), "{done:?}");
    }
}

#[tokio::test]
async fn a_file_with_several_readings_is_refused_with_the_option_that_tells() {
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("one.csv");
    for (text, flags, code, said) in [
        (&b"time;t,x\n1;2,3\n"[..], &[][..], 64, "may separate the columns: name one, such as --delimiter ';'"),
        (b"time;t\n1792852215;1.234\n", &[], 64, "\"1.234\" may be 1.234 with decimals, or 1234: add --decimal"),
        (b"time;t;u\n1792852215;1,5;1.5\n", &[], 64, "\"1,5\" has a decimal comma and \"1.5\" a decimal point"),
        (b"time;t\n1792852215;1.234,5\n", &[], 1, "a number with a separator of thousands: write it without"),
        (b"time;t\n1792852215;1.5\n", &["--decimal", ","], 1, "not a number with a decimal comma (--decimal ',')"),
        (b"time,t\n1792852215,\"1,5\"\n", &["--decimal", "."], 1, "if it has a decimal comma, add --decimal ','"),
        (
            b"time,t\n01/02/2026 10:00,1\n",
            &[],
            64,
            "line 2: column \"time\": \"01/02/2026 10:00\": 1 February 2026 or 2 January 2026: add --time-format \
             '%d/%m/%Y %H:%M' or --time-format '%m/%d/%Y %H:%M'",
        ),
        (
            b"time,tag,value\n1,t,1\n",
            &[],
            64,
            "add --metric-column \"tag\", or --device-column \"tag\" without --device if it names the device, or \
             --metric NAME=\"value\" if all rows",
        ),
        (b"time,t\n10:00,1\n", &[], 1, "name both: --time-column DATE,TIME"),
        (b"time,t\n24.10.2026,1\n", &[], 1, "name both: --time-column DATE,TIME"),
        (b"time,t\nnoon,1\n", &[], 1, "--time-format names another form"),
        (
            b"time,t\n24.10.2026 08:00,1\n",
            &[],
            64,
            "a time without an offset: name its zone, such as --tz Europe/Berlin",
        ),
        (b"time,t\nnoon,1\n", &["--time-format", "%d.%m.%Y %H:%M"], 1, "not a time of the form %d.%m.%Y %H:%M: "),
        (b"time,t\nnoon,1\n", &["--time-format", "%d.%m.%Y"], 64, "does not tell date and hour"),
        (b"time,t\nnoon,1\n", &["--delimiter", "x"], 64, "the character is , ; | : or \\t"),
        (b"time,t\nnoon,1\n", &["--decimal", "x"], 64, "the decimal mark is . or ,"),
        (b"time,t\xB0\n1,1\n", &[], 1, "add --encoding windows-1252"),
        (b"time,t,n\n1,1,\xB0\n", &[], 1, "add --encoding windows-1252"),
        (b"\xFF\xFEt\0i\0m\0e\0", &[], 64, "is UTF-16: save it as UTF-8, or convert it: iconv -f UTF-16"),
    ] {
        std::fs::write(&file, text).expect("writable");
        let fixed = ["import", path(&file), "--device", "d", "--dry-run"];
        let done = run(&[&fixed[..], flags].concat()).await;
        assert!(done.code == Some(code) && done.stderr.contains(said), "{said}: {done:?}");
    }
}

#[tokio::test]
async fn rows_that_are_held_or_were_rejected_count_after_a_kill() {
    let server = Server::start(Setup::sqlite()).await;
    let folder = TempDir::new().expect("a temporary folder");
    let [file, progress] = ["week.csv", "progress"].map(|name| folder.path().join(name));
    let week = week_of("Europe/Berlin", "2026-10-22", "5", "iso", &file);
    let text = std::fs::read_to_string(&file).expect("the week");
    std::fs::write(&file, text.replacen('\n', "\npress-1,noon,1,1\n", 1)).expect("writable");
    let flags = ["--tz", "Europe/Berlin", "--batch", "150", "--progress", path(&progress)];
    let mut kills = 0;
    loop {
        let args = [&["import", path(&file), "--url", server.url()][..], &flags[..]].concat();
        let mut command = Command::new(binary());
        let mut child =
            command.args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary runs");
        let before = std::fs::read(&progress).unwrap_or_default();
        let ended = wait_until("it saves or ends", async || {
            let is_saved = std::fs::read(&progress).is_ok_and(|saved| saved != before);
            child.try_wait().expect("our child").map(Some).or(is_saved.then_some(None))
        })
        .await;
        if ended.is_some() {
            let ended = child.wait_with_output().expect("our child");
            let said = String::from_utf8_lossy(&ended.stdout);
            assert_eq!(ended.status.code(), Some(1), "{said}");
            assert!(said.contains(", 1 rejected (1 before the interruption), "), "{said}");
            break;
        }
        kills += 1;
        child.kill().expect("our child");
        child.wait().expect("our child");
    }
    assert!(kills > 0);
    assert_eq!(readings(&server).await, week);
}

#[tokio::test]
async fn each_rejected_row_is_listed_where_stderr_is_no_terminal() {
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("bad.csv");
    std::fs::write(&file, format!("time,v\n1776693600,1\n{}", "noon,1\n".repeat(50))).expect("writable");
    let done = run(&["import", path(&file), "--device", "d", "--dry-run"]).await;
    assert!(done.code == Some(1) && done.stdout.contains("50 rejected (50 not converted)"), "{done:?}");
    for line in 3..=52 {
        assert!(done.stderr.contains(&format!("bad.csv:{line}: column \"time\": \"noon\": not a time")), "{line}");
    }
    assert!(!done.stderr.contains("more rejections"), "{done:?}");
}

/// A repetition with the same progress reads the file that failed again.
#[tokio::test]
async fn a_file_that_cannot_be_read_is_named_and_the_next_one_follows() {
    let server = Server::start(Setup::sqlite()).await;
    let folder = TempDir::new().expect("a temporary folder");
    let [good, empty, cut, last, progress] =
        ["a.csv", "b.csv", "c.csv.gz", "d.csv", "progress"].map(|name| folder.path().join(name));
    for (file, text) in
        [(&good, "time,v\n1776693610,1\n"), (&empty, ""), (&cut, "\x1F"), (&last, "time,v\n1776693620,2\n")]
    {
        std::fs::write(file, text).expect("writable");
    }
    let files = [&good, &empty, &cut, &last].map(|file| path(file));
    let flags = ["--url", server.url(), "--device", "d", "--progress", path(&progress)];
    let done = run(&[&["import"][..], &files, &flags].concat()).await;
    assert!(done.code == Some(64) && done.stdout.contains("2 readings accepted, 0 rejected, "), "{done:?}");
    for said in ["b.csv: the file is empty", "c.csv.gz: ", "2 of 4 files could not be read to the end: "] {
        assert!(done.stderr.contains(said), "{said}: {done:?}");
    }
    let noted = std::fs::read_to_string(&progress).expect("the first file is imported");
    assert!(noted.contains("a.csv\",\"line\":2"), "{noted}");
}

/// The break is among the rows that tell the columns, or after them.
#[tokio::test]
async fn the_rows_before_a_break_are_sent_and_the_error_names_the_line() {
    let server = Server::start(Setup::sqlite()).await;
    let folder = TempDir::new().expect("a temporary folder");
    for count in [3, 150] {
        let rows = (0..count).map(|row| format!("{},1\n", 1_776_693_600 + row)).collect::<Vec<_>>().concat();
        let whole = format!("time,v\n{rows}");
        let unclosed = format!("{whole}1776699999,\"{}", "2\n".repeat(1 << 20));
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(whole.as_bytes()).expect("a Vec takes any bytes");
        let mut cut = gzip.finish().expect("a Vec takes any bytes");
        cut.truncate(cut.len() - 4); // the checksum
        let line = count + 2;
        for (name, bytes) in [("unclosed.csv", unclosed.into_bytes()), ("cut.csv.gz", cut)] {
            let file = folder.path().join(name);
            std::fs::write(&file, bytes).expect("writable");
            let done = import(&server, &file, &["--device", "d"]).await;
            assert!(done.code == Some(1) && done.stderr.contains(&format!("{name}: line {line}: ")), "{done:?}");
            let said = format!("{count} readings accepted, 0 rejected, ");
            assert!(done.stdout.starts_with(&format!("{count} rows read")) && done.stdout.contains(&said), "{done:?}");
        }
    }
}

/// Writes a week of a gateway, and returns what it means.
fn week_of(zone: &str, day: &str, minutes: &str, form: &str, file: &Path) -> Readings {
    let script = format!("{}/tests/import_csv/gateway.py", env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("python3").args([&script, zone, day, minutes, form, path(file)]).output();
    let output = output.expect("python3 is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let model = String::from_utf8(output.stdout).expect("UTF-8");
    let reading = |line: &str| {
        let mut parts = line.splitn(3, ' ');
        let mut part = || parts.next().expect("device, time, values").to_owned();
        let key = (part(), part().parse().expect("milliseconds"));
        (key, serde_json::from_str(&part()).expect("values"))
    };
    model.lines().map(reading).collect()
}

async fn import(server: &Server, file: &Path, flags: &[&str]) -> Finished {
    run(&[&["import", path(file), "--url", server.url()], flags].concat()).await
}

/// All readings of a server.
async fn readings(server: &Server) -> Readings {
    let done = run(&["export", "--url", server.url()]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let reading = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let device = line["deviceId"].as_str().expect("a device").to_owned();
        let ms = match &line["ts"] {
            Value::String(text) => text.parse::<jiff::Timestamp>().expect("RFC 3339").as_millisecond(),
            number => number.as_i64().expect("milliseconds"),
        };
        ((device, ms), serde_json::from_value(line["values"].clone()).expect("values"))
    };
    done.stdout.lines().map(reading).collect()
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A number as people read it: `20,160`.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let (head, tail) = digits.split_at(digits.len().saturating_sub(3));
    if head.is_empty() { tail.to_owned() } else { format!("{head},{tail}") }
}
