//! `tidegauge estimate`: the guides' example, the answer to every allowed input, and what is refused.

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{Finished, Server, Setup, run};

/// The example of the guides: ten million devices, 100 bytes a minute each, for a year, with peaks of five
/// times the mean.
const GUIDES: &str = "--devices 10000000 --interval 60s --metrics 1 --bytes 100 --retention 365d --peak 5";

const LAYOUTS: [&str; 4] = ["readable", "packed", "timeseries", "sqlite"];

async fn estimate(flags: &str) -> Finished {
    let args: Vec<&str> = ["estimate"].into_iter().chain(flags.split_whitespace()).collect();
    run(&args).await
}

async fn json_of(flags: &str) -> Value {
    let finished = estimate(&format!("{flags} --json")).await;
    assert_eq!(finished.code, Some(0), "{flags}: {finished:?}");
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {}", finished.stdout))
}

fn number(estimate: &Value, pointer: &str) -> f64 {
    estimate.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer} in {estimate}"))
}

#[tokio::test]
async fn the_example_of_the_guides_has_their_rates_and_what_buckets_make_of_its_volume() {
    let storage_tb = [75.0..95.0, 35.0..55.0, 30.0..50.0, 95.0..115.0];
    for (layout, storage_tb) in LAYOUTS.into_iter().zip(storage_tb) {
        let documents_of_an_hour = if layout == "packed" { 2.0 } else { 1.0 };
        let estimate = json_of(&format!("{GUIDES} --layout {layout}")).await;
        let near = |pointer: &str, expected: f64| {
            let found = number(&estimate, pointer);
            assert!((found / expected - 1.0).abs() < 1e-6, "{layout} {pointer}: {found}, not {expected}");
        };
        near("/readings_per_second/average", 1e7 / 60.0);
        near("/readings_per_second/peak", 5e7 / 60.0);
        near("/network_bytes_per_second/average", 1e9 / 60.0);
        near("/readings", 1e7 * 525_600.0);
        near("/sent_bytes", 525.6e12);
        near("/documents_per_day", 1e7 * 24.0 * documents_of_an_hour);
        near("/documents", 1e7 * 8_760.0 * documents_of_an_hour);
        let tb = number(&estimate, "/storage_bytes") / 1e12;
        assert!(storage_tb.contains(&tb), "{layout}: {tb} TB");
        assert_eq!(estimate["is_one_node_enough"], false, "{estimate}");
        assert_eq!(estimate["first_limit"], "disk of the store", "{estimate}");
    }
}

#[tokio::test]
async fn an_hour_in_sqlite_keeps_more_than_rollups_after_its_readings() {
    let of_hour = async |retention: &str| {
        let flags = format!("--devices 100 --retention {retention} --rollups-retention 30d --layout sqlite");
        number(&json_of(&flags).await, "/rollup_bytes") / (100.0 * 24.0 * 30.0)
    };
    // A month of a server that kept readings for an hour had 203 bytes an hour: 112 of them in rollups.
    let (with_readings, after) = (of_hour("30d").await, of_hour("1h").await);
    assert!((105.0..125.0).contains(&with_readings), "{with_readings}");
    assert!((190.0..220.0).contains(&after), "{after}");
}

#[tokio::test]
async fn the_page_shows_what_its_command_prints() {
    let page = include_str!("../docs/sizing.md").replace("\\\n    ", "");
    let flags = format!("{GUIDES} --layout readable");
    assert!(page.contains(&format!("tidegauge estimate {flags}\n")), "the page has another command");
    let printed = estimate(&flags).await.stdout;
    assert!(page.contains(&format!("```text\n{printed}```")), "the page shows something else than:\n{printed}");
}

#[tokio::test]
async fn a_small_fleet_fits_on_one_node_and_the_text_names_the_origin_of_the_figures() {
    let small = "--devices 1000 --interval 10s --layout sqlite";
    let found = json_of(small).await;
    assert_eq!((&found["is_one_node_enough"], number(&found, "/instances")), (&Value::Bool(true), 1.0));
    let said = estimate(small).await.stdout;
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in ["readings a second 100, at the peak 100", "is enough", "src/cli/estimate/constants.toml"] {
        assert!(said.contains(line), "{line:?} in {said}");
    }
}

#[tokio::test]
async fn a_fleet_for_which_a_small_machine_is_enough_gets_sqlite_and_the_wear_of_its_disk() {
    let said = estimate("--devices 200").await.stdout;
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in ["store SQLite", "one node of 1 core, 512MiB of memory, 32 GB of disk is enough", "GB a day, in whole"]
    {
        assert!(said.contains(line), "{line:?} in {said}");
    }
    let found = json_of("--devices 200").await;
    let memory = number(&found, "/instance_memory_max_bytes");
    assert!(memory < 0.81 * 512.0 * f64::from(1 << 20), "all limits together: {found}");
    // Each of the 200 requests a minute is a sync, which writes a page.
    assert!(number(&found, "/disk_written_bytes_per_day") > 200.0 * 1_440.0 * 4_096.0, "{found}");

    // More devices, another machine or another store get what they ask for.
    for (flags, line) in [
        ("--devices 200 --interval 1h", "store SQLite"),
        ("--devices 100000", "store MongoDB, readable documents"),
        ("--devices 200 --layout packed", "one node of 8 cores, 32GiB of memory, 2 TB of disk is enough"),
        ("--devices 200 --node-cores 4 --node-memory 1GiB", "one node of 4 cores, 1GiB of memory, 32 GB of disk is"),
    ] {
        let said = estimate(flags).await.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(line), "{flags}: {said}");
    }
}

#[tokio::test]
async fn buckets_that_sqlite_writes_together_share_pages() {
    let written =
        async |flags: &str| number(&json_of(&format!("{flags} --layout sqlite")).await, "/disk_written_bytes_per_day");
    // A gateway's requests with a reading of each of its devices: 4.3 million writes of a bucket a day.
    let together = written("--devices 1000 --interval 5s --batch 1000 --max-age 20s").await;
    assert!((15e9..30e9).contains(&together), "{together}");
    // One device: each write is a transaction, 3,600 or 60 an hour.
    let often = written("--devices 1 --interval 1s --max-age 1s").await;
    let seldom = written("--devices 1 --interval 1s --max-age 1m").await;
    let of_write = (often - seldom) / (3_540.0 * 24.0);
    assert!((15e3..30e3).contains(&of_write), "{of_write}");
}

/// The settings that an estimate prints, as lines of a configuration file.
async fn settings_of(flags: &str) -> String {
    let printed = estimate(flags).await.stdout;
    let set = |line: &str| {
        let (key, value) = line.strip_prefix("  set ")?.split_once(" to ")?;
        Some(format!("{} = {}\n", key.trim(), value.split_once(": ")?.0.trim()))
    };
    printed.lines().filter_map(set).collect()
}

#[tokio::test]
async fn the_printed_settings_are_a_valid_configuration() {
    let folder = TempDir::new().expect("a temporary folder");
    let largest = "--devices 10000000000 --interval 1ms --metrics 4096 --peak 1000 --node-memory 100000GiB";
    for (nth, (fleet, keys)) in [
        ("--devices 5 --interval 10s --layout readable", ""),
        ("--devices 200", "pending.max_bytes http.max_bytes_in_flight query.max_bytes_in_flight"),
        ("--devices 50000 --interval 10s", "http.max_connections"),
        ("--devices 50000 --interval 10s --batch 100", ""),
        ("--devices 10000000 --interval 1d", "http.max_connections limits.known_devices limits.new_devices_per_minute"),
        (
            "--devices 1000000 --interval 60s --batch 1000 --peak 5 --node-memory 1000GiB --node-cores 64",
            "log.max_bytes pending.max_bytes limits.new_devices_per_minute",
        ),
        (largest, "log.max_bytes pending.max_bytes"),
        (
            "--devices 10000000000 --interval 1d --batch 100000 --node-memory 100000GiB --node-cores 1024",
            "log.max_bytes pending.max_bytes limits.known_devices limits.new_devices_per_minute",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let settings = settings_of(fleet).await;
        let set: Vec<&str> = settings.lines().filter_map(|line| Some(line.split_once(' ')?.0)).collect();
        assert_eq!(set.join(" "), keys, "{fleet}");
        let file = folder.path().join(format!("{nth}.toml"));
        std::fs::write(&file, &settings).expect("the folder is writable");
        let checked = run(&["check", "--config", file.to_str().expect("text")]).await;
        assert_eq!(checked.code, Some(0), "{fleet}: {settings}{checked:?}");
    }
}

#[tokio::test]
async fn a_reading_of_more_metrics_has_more_bytes_and_requests_have_heads() {
    let reading = |metrics: usize| {
        let values: serde_json::Map<String, Value> =
            (0..metrics).map(|nth| (format!("metric{nth:02}"), json!(22.4 + nth as f64))).collect();
        json!({"deviceId": "LIGHT-FL02-ZONE4", "ts": "2026-04-20T14:00:10.000Z", "values": values}).to_string()
    };
    for metrics in [1, 40] {
        let estimate = json_of(&format!("--devices 1 --interval 1s --metrics {metrics}")).await;
        let (found, body) = (number(&estimate, "/network_bytes_per_second/average"), reading(metrics));
        assert!((found / body.len() as f64 - 1.0).abs() < 0.15, "{found} for {} bytes", body.len());
    }
    let estimate = json_of("--devices 1 --interval 1s --metrics 40 --bytes 50").await;
    assert!((number(&estimate, "/network_bytes_per_second/average") - 50.0).abs() < 1e-9, "{estimate}");
    let server = Server::start(Setup::sqlite()).await;
    let (body, token) = (reading(1), "x".repeat(43));
    let head = format!(
        "POST /v1/readings HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer tg_{token}\r\nContent-Type: \
         application/json\r\nContent-Length: {}\r\n\r\n",
        server.http_addr(),
        body.len()
    );
    let mut stream = tokio::net::TcpStream::connect(server.http_addr()).await.expect("it listens");
    stream.write_all(format!("{head}{body}").as_bytes()).await.expect("it reads");
    let mut answer = Vec::new();
    while !answer.ends_with(b"{\"accepted\":1}") {
        assert!(stream.read_buf(&mut answer).await.expect("it answers") > 0, "{}", String::from_utf8_lossy(&answer));
    }
    let (found, measured) = (number(&estimate, "/http_bytes_per_second/average"), (head.len() + answer.len()) as f64);
    assert!((found / measured - 1.0).abs() < 0.1, "{found}, not {measured}");
}

#[tokio::test]
async fn memory_includes_a_full_pending_and_the_connections() {
    for fleet in [
        "--devices 5 --interval 10s --layout readable",
        "--devices 200000 --interval 1s --node-memory 1TiB --node-cores 512",
    ] {
        let found = json_of(fleet).await;
        let (full, most) = (number(&found, "/service_memory_full_bytes"), number(&found, "/instance_memory_max_bytes"));
        let pending = number(&found, "/pending_max_bytes").max((256_u64 << 20) as f64);
        assert!(full >= number(&found, "/service_memory_bytes/peak") && full >= pending, "{found}");
        assert!(number(&found, "/instances") * most > full, "{found}");
    }
    let memory = async |flags: &str| number(&json_of(flags).await, "/service_memory_bytes/average");
    let of_connections =
        memory("--devices 50000 --interval 10s").await - memory("--devices 50000 --interval 10s --batch 50000").await;
    assert!(of_connections / 50_000.0 > 20e3, "{of_connections}");
}

#[tokio::test]
async fn the_text_says_what_it_adds_up_and_what_else_there_is_to_do() {
    let said = estimate(&format!("{GUIDES} --layout packed --node-memory 32GiB --node-disk 20TB")).await.stdout;
    for part in ["of it readings", "of it rollups", "32GiB of memory, 20 TB of disk", "--max-age 1h", "replica sets of"]
    {
        assert!(said.contains(part), "{part:?} in {said}");
    }
    let said = estimate(&format!("{GUIDES} --layout packed --max-age 1h")).await.stdout;
    assert!(!said.contains("--max-age 1h"), "{said}");
    let found = json_of(GUIDES).await;
    let of_readings = number(&found, "/storage_bytes_per_reading") * number(&found, "/readings");
    let rest = number(&found, "/storage_bytes") - of_readings - number(&found, "/rollup_bytes");
    assert!(rest >= 0.0 && rest < 0.01 * of_readings, "{found}");
}

#[tokio::test]
async fn the_smallest_and_the_largest_inputs_have_finite_figures() {
    let smallest = "--devices 1 --interval 365d --metrics 1 --bytes 1 --retention 1h --rollups-retention 1h";
    let largest = "--devices 10000000000 --interval 1ms --metrics 4096 --bytes 1048576 --retention 24855d --peak 1000";
    for layout in LAYOUTS {
        for (fleet, max_age) in [(smallest, "1s"), (smallest, "1d"), (largest, "1s"), (largest, "1d")] {
            let flags = format!("{fleet} --layout {layout} --max-age {max_age}");
            check_finite(&json_of(&flags).await);
            let text = estimate(&flags).await;
            assert!(text.code == Some(0) && !text.stdout.contains("NaN") && !text.stdout.contains("inf"), "{text:?}");
        }
    }
}

/// JSON has `null` where a number is not finite.
fn check_finite(estimate: &Value) {
    for (name, value) in estimate.as_object().expect("an object") {
        match value {
            Value::Object(_) => check_finite(value),
            Value::Number(number) => assert!(number.as_f64().is_some_and(|number| number >= 0.0), "{name}: {number}"),
            value => assert!(value.is_boolean() || value.is_string(), "{name}: {value}"),
        }
    }
}

#[tokio::test]
async fn inputs_out_of_range_are_refused_with_their_range() {
    let valid = [("--devices", "10"), ("--interval", "60s")];
    for (flag, value, words) in [
        ("--devices", "0", "must be from 1 to 10000000000"),
        ("--devices", "99999999999999999999", "must be from 1 to 10000000000"),
        ("--devices", "50k", ": expected a whole number in digits, such as 50000"),
        ("--devices", "50,000", ": expected a whole number in digits, such as 50000"),
        ("--interval", "0s", "must be from 1ms to 365d"),
        ("--interval", "60", ": expected a duration"),
        ("--metrics", "4097", "must be from 1 to 4096"),
        ("--bytes", "0", "must be from 1 to 1048576"),
        ("--retention", "59m", "must be from 1h to 24855d"),
        ("--retention", "forever", "name the time for which the disks must suffice"),
        ("--rollups-retention", "25000d", "expected a duration"),
        ("--peak", "NaN", "must be from 1 to 1000"),
        ("--peak", "0.5", "must be from 1 to 1000"),
        ("--peak", "five", "expected a number"),
        ("--layout", "flat", "readable, packed, timeseries, sqlite"),
        ("--batch", "0", "must be from 1 to 100000"),
        ("--max-age", "2d", "must be from 1s to 1d"),
        ("--node-memory", "511MiB", "must be from 512MiB"),
        ("--node-disk", "huge", ": expected a size"),
    ] {
        let others = valid.iter().filter(|(other, _)| *other != flag).map(|(flag, value)| format!("{flag} {value}"));
        let flags = format!("{flag} {value} {}", others.collect::<Vec<_>>().join(" "));
        let refused = estimate(&flags).await;
        assert!(refused.code == Some(64) && refused.stderr.contains(words), "{flags}: {refused:?}");
    }
}
