//! `tidegauge estimate`: the guides' example, the answer to every allowed input, and what is refused.

use serde_json::Value;

use crate::harness::{Finished, run};

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
    let storage_tb = [75.0..95.0, 35.0..55.0, 30.0..50.0, 60.0..85.0];
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
    for line in ["readings a second               100, at the peak 100", "is enough", "src/cli/estimate/constants.toml"]
    {
        assert!(said.contains(line), "{line:?} in {said}");
    }
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
        ("--devices", "0", "1..=10000000000"),
        ("--devices", "99999999999999999999", "number too large"),
        ("--interval", "0s", "must be from 1ms to 365d"),
        ("--interval", "60", "expected a duration"),
        ("--metrics", "4097", "1..=4096"),
        ("--bytes", "0", "1..=1048576"),
        ("--retention", "59m", "must be from 1h to 24855d"),
        ("--rollups-retention", "25000d", "expected a duration"),
        ("--peak", "NaN", "must be from 1 to 1000"),
        ("--peak", "0.5", "must be from 1 to 1000"),
        ("--peak", "five", "expected a number"),
        ("--layout", "flat", "readable, packed, timeseries, sqlite"),
        ("--batch", "0", "1..=100000"),
        ("--max-age", "2d", "must be from 1s to 1d"),
        ("--node-memory", "1MiB", "must be from 1GiB"),
        ("--node-disk", "huge", "expected a size"),
    ] {
        let others = valid.iter().filter(|(other, _)| *other != flag).map(|(flag, value)| format!("{flag} {value}"));
        let flags = format!("{flag} {value} {}", others.collect::<Vec<_>>().join(" "));
        let refused = estimate(&flags).await;
        assert!(refused.code == Some(64) && refused.stderr.contains(words), "{flags}: {refused:?}");
    }
}
