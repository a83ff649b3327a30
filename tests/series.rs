//! Series: metrics with labels are kept apart, answered by their canonical texts, and selected by name, text
//! and label, in every store and while pending. Random writes and queries are compared with a plain model.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::harness::{Database, Server, Setup, run};

const HOUR_MS: i64 = 3_600_000;
const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z
const HOURS: i64 = 3;
const DEVICES: [&str; 3] = ["series-a", "series-b", "series-c"];
const NAMES: [&str; 5] = ["cpu", "cpu_idle", "cpu.idle", "disk", "T °C"];
const KEYS: [&str; 4] = ["cpu", "host", "a,b", "$path."];
const VALUES: [&str; 6] = ["0", "1", "x=y", "/mnt/a.b", "{$z}", "C:\\"];

/// A metric with its labels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Series {
    name: String,
    labels: BTreeMap<String, String>,
}

impl Series {
    fn any(random: &mut StdRng) -> Self {
        let count = [0, 1, 1, 2, 4][random.random_range(0..5)];
        let keys: Vec<&str> = KEYS.sample(random, count).copied().collect();
        let mut value = || VALUES.choose(random).expect("a value").to_string();
        let labels = keys.into_iter().map(|key| (key.to_owned(), value())).collect();
        Self { name: NAMES[random.random_range(0..NAMES.len())].to_owned(), labels }
    }

    fn text(&self) -> String {
        text_of(&self.name, self.labels.iter())
    }

    /// The text with the labels in any order.
    fn shuffled(&self, random: &mut StdRng) -> String {
        let mut labels: Vec<_> = self.labels.iter().collect();
        labels.shuffle(random);
        text_of(&self.name, labels.into_iter())
    }
}

fn text_of<'a>(name: &str, labels: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    let escaped = |text: &String| {
        let escape = |char| if "\\{},=".contains(char) { format!("\\{char}") } else { String::from(char) };
        text.chars().map(escape).collect::<String>()
    };
    let labels: Vec<String> = labels.map(|(key, value)| format!("{}={}", escaped(key), escaped(value))).collect();
    if labels.is_empty() { name.to_owned() } else { format!("{name}{{{}}}", labels.join(",")) }
}

/// The values of each device by series and instant.
type Model = BTreeMap<&'static str, BTreeMap<Series, BTreeMap<i64, f64>>>;

/// The identity determines the value, so that a resent reading changes nothing.
fn value_of(series: &Series, ts_ms: i64) -> f64 {
    (ts_ms / 1_000 % 977) as f64 + series.text().len() as f64 / 4.0
}

/// Sends one request of readings of these series.
async fn send(server: &Server, model: &mut Model, random: &mut StdRng, device: &'static str, of: &[(i64, Series)]) {
    let mut readings: BTreeMap<i64, BTreeSet<&Series>> = BTreeMap::new();
    for (ts_ms, series) in of {
        let value = value_of(series, *ts_ms);
        let known = model.entry(device).or_default().entry(series.clone()).or_default();
        known.insert(*ts_ms, value);
        readings.entry(*ts_ms).or_default().insert(series);
    }
    let mut reading = |(ts_ms, series): (i64, BTreeSet<&Series>)| {
        let value = |series: &Series| (series.shuffled(random), json!(value_of(series, ts_ms)));
        let values: serde_json::Map<String, Value> = series.into_iter().map(value).collect();
        json!({ "ts": ts_ms, "values": values })
    };
    let readings: Vec<Value> = readings.into_iter().map(&mut reading).collect();
    server.accepts(&json!({ "deviceId": device, "readings": readings })).await;
}

/// Writes series of all devices: random ones, in several waves, and each of them once in the last hour.
async fn fill(server: &mut Server, setup: Setup, random: &mut StdRng) -> Model {
    let mut model = Model::new();
    let pool: Vec<Series> = (0..20).map(|_| Series::any(random)).collect();
    for wave in 0..4 {
        if wave == 3 {
            server.settled().await;
            assert!(server.terminate().await.success());
            let pending = setup.clone().all_pending().set("mongodb.max_readings_per_document", 3_600);
            server.start_again_with(pending).await;
        }
        for device in DEVICES {
            let mut of: Vec<(i64, Series)> = Vec::new();
            for _ in 0..60 {
                let ts_ms = START_MS + random.random_range(0..HOURS) * HOUR_MS + random.random_range(0..20) * 7_000;
                of.push((ts_ms, pool.choose(random).expect("a series").clone()));
            }
            if wave == 1 {
                let last_ms = START_MS + HOURS * HOUR_MS - 60_000;
                of.extend(pool.iter().enumerate().map(|(at, series)| (last_ms + at as i64 % 7, series.clone())));
            }
            send(server, &mut model, random, device, &of).await;
        }
    }
    model
}

/// A selection, as the model understands it and as the query has it.
#[derive(Debug, Default)]
struct Selection {
    names: BTreeSet<String>,
    exact: BTreeSet<Series>,
    labels: BTreeMap<String, BTreeSet<String>>,
    parameters: Vec<(String, String)>,
}

impl Selection {
    fn any(random: &mut StdRng, known: &[Series]) -> Self {
        let mut selection = Self::default();
        for _ in 0..[0, 0, 1, 1, 2, 10][random.random_range(0..6)] {
            let series = if random.random_range(0..9) == 0 {
                Series::any(random)
            } else {
                known.choose(random).expect("a series").clone()
            };
            if series.labels.is_empty() || random.random_range(0..2) == 0 {
                selection.parameters.push(("metric".to_owned(), series.name.clone()));
                selection.names.insert(series.name);
            } else {
                selection.parameters.push(("metric".to_owned(), series.shuffled(random)));
                selection.exact.insert(series);
            }
        }
        for _ in 0..[0, 0, 1, 2][random.random_range(0..4)] {
            let series = known.choose(random).expect("a series");
            let Some((key, value)) = series.labels.iter().next() else { continue };
            selection.parameters.push((format!("label.{key}"), value.clone()));
            selection.labels.entry(key.clone()).or_default().insert(value.clone());
        }
        selection
    }

    fn matches(&self, series: &Series) -> bool {
        let has_metric = self.names.is_empty() && self.exact.is_empty()
            || self.names.contains(&series.name)
            || self.exact.contains(series);
        let has_label = |(key, values): (&String, &BTreeSet<String>)| {
            series.labels.get(key).is_some_and(|value| values.contains(value))
        };
        has_metric && self.labels.iter().all(has_label)
    }

    /// The query string with these other parameters.
    fn query(&self, others: &[(&str, String)]) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.parameters.iter()).extend_pairs(others);
        query.finish()
    }
}

/// Reads all pages of readings.
async fn readings(server: &Server, device: &str, query: &str) -> Vec<Value> {
    let path = format!("/v1/devices/{device}/readings?{query}");
    let (mut found, mut page) = (Vec::new(), server.get_json(&path).await);
    loop {
        found.extend(page["readings"].as_array().expect("readings").iter().cloned());
        let Some(next) = page["next"].as_str() else { return found };
        page = server.get_json(&format!("{path}&cursor={next}")).await;
    }
}

fn rfc3339(ts_ms: i64) -> String {
    format!("{:.3}", jiff::Timestamp::from_millisecond(ts_ms).expect("an instant"))
}

fn expected_readings(model: &Model, device: &str, selection: &Selection, from_ms: i64, to_ms: i64) -> Vec<Value> {
    let mut by_instant: BTreeMap<i64, serde_json::Map<String, Value>> = BTreeMap::new();
    for (series, values) in model[device].iter().filter(|(series, _)| selection.matches(series)) {
        for (ts_ms, value) in values.range(from_ms..to_ms) {
            by_instant.entry(*ts_ms).or_default().insert(series.text(), json!(value));
        }
    }
    by_instant.into_iter().map(|(ts_ms, values)| json!({ "ts": rfc3339(ts_ms), "values": values })).collect()
}

/// The rollups of some devices together, as `[count, min, max, sum]` by series and step.
fn expected_rollups(model: &Model, devices: &[&str], selection: &Selection, step_ms: i64) -> Value {
    let mut rollups: BTreeMap<String, BTreeMap<String, [f64; 4]>> = BTreeMap::new();
    for device in devices {
        for (series, values) in model[device].iter().filter(|(series, _)| selection.matches(series)) {
            for (ts_ms, &value) in values {
                let step = rfc3339(ts_ms.div_euclid(step_ms) * step_ms);
                let of_step = rollups.entry(series.text()).or_default().entry(step);
                let known = of_step.or_insert([0.0, f64::INFINITY, f64::NEG_INFINITY, 0.0]);
                let [count, min, max, sum] = *known;
                *known = [count + 1.0, min.min(value), max.max(value), sum + value];
            }
        }
    }
    json!(rollups)
}

/// The `metrics` of an answer, in the form of [`expected_rollups`].
fn found_rollups(metrics: &Value) -> Value {
    let of_point = |point: &Value| {
        let fields = ["count", "min", "max", "sum"].map(|field| point[field].as_f64().expect("a number"));
        (point["ts"].as_str().expect("a time").to_owned(), fields)
    };
    let of_series = |(text, points): (&String, &Value)| {
        let points = points.as_array().expect("points");
        (text.clone(), points.iter().map(of_point).collect::<BTreeMap<_, _>>())
    };
    json!(metrics.as_object().expect("metrics").iter().map(of_series).collect::<BTreeMap<_, _>>())
}

/// Compares the answers to one random selection with the model.
async fn compare(server: &Server, model: &Model, random: &mut StdRng) {
    let known: Vec<Series> = model.values().flat_map(|of| of.keys().cloned()).collect();
    let selection = Selection::any(random, &known);
    let device = *DEVICES.choose(random).expect("a device");

    let from_ms = START_MS + random.random_range(-1..2) * HOUR_MS + random.random_range(0..60) * 1_000;
    let to_ms = from_ms + [1, 60_000, HOUR_MS, 9 * HOUR_MS][random.random_range(0..4)];
    let limit = [1, 2, 7, 1_000][random.random_range(0..4)];
    let range = [("from", from_ms.to_string()), ("to", to_ms.to_string()), ("limit", limit.to_string())];
    let found = readings(server, device, &selection.query(&range)).await;
    assert_eq!(found, expected_readings(model, device, &selection, from_ms, to_ms), "{device} {selection:?}");

    let (step, step_ms) = [("1h", HOUR_MS), ("2h", 2 * HOUR_MS), ("1d", 24 * HOUR_MS)][random.random_range(0..3)];
    let [from, to] = [START_MS, START_MS + HOURS * HOUR_MS].map(|ms| ms.to_string());
    let range = [("from", from), ("to", to), ("step", step.to_owned())];
    let query = selection.query(&range);
    let of_device = server.get_json(&format!("/v1/devices/{device}/rollups?{query}")).await;
    let expected = expected_rollups(model, &[device], &selection, step_ms);
    assert_eq!(found_rollups(&of_device["metrics"]), expected, "{device} {selection:?}");
    let of_two = server.get_json(&format!("/v1/rollups?device={}&device={}&{query}", DEVICES[2], DEVICES[0])).await;
    for (at, device) in [DEVICES[2], DEVICES[0]].into_iter().enumerate() {
        let expected = expected_rollups(model, &[device], &selection, step_ms);
        assert_eq!(found_rollups(&of_two["devices"][at]["metrics"]), expected, "{device} {selection:?}");
    }
    let combined = server.get_json(&format!("/v1/rollups?prefix=series-&combine=true&{query}")).await;
    let expected = expected_rollups(model, &DEVICES, &selection, step_ms);
    assert_eq!(found_rollups(&combined["metrics"]), expected, "combined {selection:?}");

    let latest = server.get_json(&format!("/v1/devices/{device}/latest?{}", selection.query(&[]))).await;
    let last = |(series, values): (&Series, &BTreeMap<i64, f64>)| {
        let (ts_ms, value) = values.last_key_value().expect("a value");
        (series.text(), json!({ "ts": rfc3339(*ts_ms), "value": value }))
    };
    let expected: serde_json::Map<String, Value> =
        model[device].iter().filter(|(series, _)| selection.matches(series)).map(last).collect();
    assert_eq!(latest["metrics"], Value::from(expected), "{device} {selection:?}");
}

async fn random_selections_answer_what_the_model_has(setup: Setup, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut server = Server::start(setup.clone()).await;
    let model = fill(&mut server, setup.clone(), &mut random).await;
    for _ in 0..40 {
        compare(&server, &model, &mut random).await;
    }
    assert!(server.terminate().await.success());
    server.start_again_with(setup).await;
    server.settled().await;
    for _ in 0..40 {
        compare(&server, &model, &mut random).await;
    }
}

#[tokio::test]
async fn sqlite_answers_random_selections() {
    for seed in 0..2 {
        random_selections_answer_what_the_model_has(Setup::sqlite(), seed).await;
    }
}

#[tokio::test]
async fn mongodb_answers_random_selections() {
    let database = Database::new();
    // Small documents, so that series that arrive later go to other parts of the hour.
    let setup = Setup::mongodb(&database).set("flush.max_readings", 16).set("mongodb.max_readings_per_document", 16);
    random_selections_answer_what_the_model_has(setup, 3).await;
}

#[tokio::test]
async fn a_time_series_answers_random_selections() {
    let database = Database::new();
    random_selections_answer_what_the_model_has(Setup::timeseries(&database), 4).await;
}

#[tokio::test]
async fn columns_of_a_table_may_be_series() {
    let server = Server::start(Setup::sqlite()).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("table.csv");
    let table = "ts,\"cpu{host=a,core=1}\",load,x\n2024-04-20T14:00:00Z,1.5,2,3\n2024-04-20T14:00:10Z,,4,\n";
    std::fs::write(&file, table).expect("the folder is writable");
    let import = ["import", file.to_str().expect("UTF-8"), "--device", "table", "--url", server.url()];
    let metrics = ["--metric", "cpu{core=1,host=a}", "--metric", "load", "--metric", "y{k=x\\=1}=x"];
    let finished = run(&[&import[..], &metrics].concat()).await;
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let first = json!({ "cpu{core=1,host=a}": 1.5, "load": 2.0, "y{k=x\\=1}": 3.0 });
    let expected = [(0, first), (10, json!({ "load": 4.0 }))];
    let expected = expected.map(|(at, values)| json!({ "ts": rfc3339(START_MS + at * 1_000), "values": values }));
    assert_eq!(server.readings("table").await, json!(expected));
}

#[tokio::test]
async fn a_parameter_that_selects_no_series_is_refused() {
    let server = Server::start(Setup::sqlite()).await;
    for (query, place) in [
        ("metric=cpu%7Bcore%3D0", "metric: "),
        ("metric=cpu%7Bcore%3D0,core%3D1%7D", "metric: "),
        ("metric=", "metric: "),
        ("label.=0", "label: "),
        ("label.core=", "label: "),
        ("labels.core=0", "labels.core: "),
        ("label=core", "label: "),
    ] {
        for path in ["/v1/devices/d/readings", "/v1/devices/d/rollups", "/v1/devices/d/latest", "/v1/rollups"] {
            let answer = server.get(&format!("{path}?{query}")).await;
            let problem = answer.json();
            assert_eq!((answer.status, &problem["code"]), (400, &json!("invalid_parameter")), "{path}?{query}");
            let detail = problem["detail"].as_str().expect("a detail");
            assert!(detail.starts_with(place), "{path}?{query}: {detail}");
        }
    }
    let labels: Vec<String> = (0..257).map(|nth| format!("label.core={nth}")).collect();
    let answer = server.get(&format!("/v1/devices/d/latest?{}", labels.join("&"))).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
}
