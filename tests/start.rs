//! The commands of `docs/start.md` work, in their order, on a plant of two months, and print what the page
//! shows. The answers equal those of plain loops over the same readings.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Broker, Server, Setup, binary, publisher, run, wait_until};
use crate::pages::in_repository;
use crate::readme::{blocks, examples, matches};

/// The time of the page: 2026-11-26T12:00, a Thursday, in Berlin.
const NOW_S: i64 = 1_795_690_800;
const HOUR_S: i64 = 3_600;
const DAY_S: i64 = 24 * HOUR_S;
/// 2026-11-26T00:00 in Berlin, where the time is UTC+1 since 2026-10-25.
const TODAY_S: i64 = NOW_S - 12 * HOUR_S;
const MONDAY_S: i64 = TODAY_S - 3 * DAY_S;
const NOVEMBER_S: i64 = TODAY_S - 25 * DAY_S;
/// October has 31 days and an hour.
const OCTOBER_S: i64 = NOVEMBER_S - 31 * DAY_S - HOUR_S;
/// When `meter-1` was replaced.
const REPLACED_S: i64 = TODAY_S - 8 * HOUR_S;

/// The values of each device and metric, by their times in seconds, and the halls of the devices.
#[derive(Default)]
struct Plant {
    values: BTreeMap<(&'static str, &'static str), BTreeMap<i64, f64>>,
    halls: BTreeMap<&'static str, u8>,
}

impl Plant {
    fn new() -> Self {
        let mut plant = Self::default();
        for (device, hall, step) in [("meter-1", 1, 0.25), ("meter-2", 2, 0.5)] {
            let mut energy = 4_210.0;
            plant.add(device, hall, "energy", OCTOBER_S, 900, |at, nth| {
                energy = if device == "meter-1" && at == REPLACED_S { 0.75 } else { energy + step * (nth % 7) as f64 };
                energy
            });
        }
        for (device, hall, base) in [("climate-1", 1, 18.5), ("climate-2", 1, 19.5), ("climate-3", 2, 21.0)] {
            let from = TODAY_S - 7 * DAY_S;
            plant.add(device, hall, "temp", from, 900, |_, nth| base + 0.125 * (nth % 16 + 3 * (nth / 96)) as f64);
        }
        for (device, base) in [("press-1", 44.0), ("press-2", 46.5), ("press-3", 51.0)] {
            let from = NOW_S - 2 * DAY_S;
            plant.add(device, 2, "bearing", from, 600, |_, nth| base + 0.5 * (nth * nth % 37) as f64);
        }
        plant.add("tank-1", 1, "level", TODAY_S - DAY_S, 900, |_, nth| 60.0 - 0.25 * nth as f64);
        plant.values.get_mut(&("tank-1", "level")).expect("just added").retain(|at, _| *at < NOW_S - 3 * HOUR_S);
        plant
    }

    /// Adds a value each `step` seconds.
    fn add(
        &mut self,
        device: &'static str,
        hall: u8,
        metric: &'static str,
        from: i64,
        step: i64,
        mut value: impl FnMut(i64, i64) -> f64,
    ) {
        let values = (0..).map(|nth| (from + nth * step, nth)).take_while(|(at, _)| *at < NOW_S);
        self.values.insert((device, metric), values.map(|(at, nth)| (at, value(at, nth))).collect());
        self.halls.insert(device, hall);
    }

    async fn send_to(&self, server: &Server, token: &str) {
        for ((device, metric), values) in &self.values {
            let reading = |(at, value): (&i64, &f64)| json!({ "ts": at * 1_000, "values": { *metric: value } });
            let readings: Vec<_> = values.iter().map(reading).collect();
            let body = json!({ "deviceId": device, "metadata": { "hall": self.halls[device] }, "readings": readings });
            let request = server.request(reqwest::Method::POST, "/v1/readings").bearer_auth(token);
            let answer = server.send(request.header("content-type", "application/json").body(body.to_string())).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }

    /// The growth of a meter from an instant to another one.
    fn growth(&self, device: &'static str, from: i64, to: i64) -> f64 {
        let values: Vec<(i64, f64)> =
            self.values[&(device, "energy")].iter().map(|(at, value)| (*at, *value)).collect();
        let steps = values.windows(2).filter(|pair| (from..to).contains(&pair[1].0));
        steps.map(|pair| if pair[1].1 < pair[0].1 { pair[1].1 } else { pair[1].1 - pair[0].1 }).sum()
    }

    fn mean(&self, hall: u8, from: i64, to: i64) -> f64 {
        let temps = self.values.iter().filter(|((device, metric), _)| *metric == "temp" && self.halls[device] == hall);
        let values: Vec<f64> = temps.flat_map(|(_, values)| values.range(from..to).map(|(_, value)| *value)).collect();
        values.iter().sum::<f64>() / values.len() as f64
    }

    /// The rows below the header of each answer of the page, by the question.
    fn answers(&self) -> BTreeMap<&'static str, Vec<String>> {
        let (mut answers, next) = (BTreeMap::<_, Vec<String>>::new(), i64::MAX);
        let mut row = |question, row: String| answers.entry(question).or_default().push(row);
        // `from=-1d` is Wednesday noon, in the shift that began at 6.
        for shift in 0..4 {
            let start = TODAY_S - 18 * HOUR_S + shift * 8 * HOUR_S;
            let growth = self.growth("meter-1", start, start + 8 * HOUR_S);
            row("each shift", format!("meter-1,{},energy,{growth:?}", step(start, 1)));
        }
        for hall in [1, 2] {
            for start in [TODAY_S - DAY_S, TODAY_S] {
                let mean = self.mean(hall, start, start + DAY_S);
                row("How warm", format!("{hall},{},temp,{mean:?}", step(start, 1)));
            }
        }
        let energy = |from, to| self.growth("meter-1", from, to) + self.growth("meter-2", from, to);
        for (start, end) in [(MONDAY_S - 7 * DAY_S, MONDAY_S), (MONDAY_S, next)] {
            row("against last week", format!("{},energy,{:?}", step(start, 1), energy(start, end)));
        }
        let bearings = self.values.iter().filter(|((_, metric), _)| *metric == "bearing");
        let today = bearings.flat_map(|((device, _), values)| {
            values.range(NOW_S - DAY_S + 1..).map(move |(at, value)| (*value, *at, *device))
        });
        let (max, at, device) = today.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))).expect("values");
        let at = jiff::Timestamp::from_second(at).expect("a time of today");
        let columns = r#""name":"bearing","columns":["time","max","device_id"]"#;
        let series = format!(r#"{{{columns},"values":[["{at}",{max},"{device}"]]}}"#);
        row("the hottest", format!(r#"{{"results":[{{"statement_id":0,"series":[{series}]}}]}}"#));
        row("correct one hour", format!("climate-1,{},temp,1,21.5", step(TODAY_S - 10 * HOUR_S, 1)));
        for (hall, meter) in [(1, "meter-1"), (2, "meter-2")] {
            for (start, end, offset) in [(OCTOBER_S, NOVEMBER_S, 2), (NOVEMBER_S, next, 1)] {
                let growth = self.growth(meter, start, end);
                row("against last month", format!("{hall},{},energy,{growth:?}", step(start, offset)));
            }
        }
        answers
    }
}

/// The start of a step in UTC and by the local clock.
fn step(at: i64, offset: i8) -> String {
    let instant = jiff::Timestamp::from_second(at).expect("a time of today");
    let local = instant.display_with_offset(jiff::tz::offset(offset)).to_string();
    let (utc, (time, offset)) = (instant.to_string(), local.split_at(19));
    format!("{}.000Z,{time}.000{offset}", utc.trim_end_matches('Z'))
}

#[tokio::test]
async fn the_first_page_leads_from_a_token_to_right_answers_an_alarm_and_a_backup() {
    let page = fs::read_to_string(in_repository("docs/start.md")).expect("the page");
    let folder = TempDir::new().expect("a temporary folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("the folder is writable");
    let mut commands: Vec<&str> = blocks(&page, "sh start").collect();
    let (made, variables) = (run(&words(commands.remove(0))).await, commands.remove(0));
    let (token, table) = made.stdout.split_once('\n').expect("a token and its table");
    write("token", token);
    write("halle2.csv", blocks(&page, "text halle2.csv").next().expect("the file of a gateway"));

    let broker = Broker::start().await;
    let config = blocks(&page, "toml start").chain([table]).collect::<Vec<_>>().join("\n");
    let config = config.replace("mqtt://127.0.0.1", &format!("mqtt://127.0.0.1:{}", broker.port()));
    let server = Server::start_at(Setup::of(&config).token("operator", "scopes = [\"admin\"]"), NOW_S).await;
    let count = async |metric: &str| server.metrics().await.count(metric);
    let one = async |metric: &str| wait_until(metric, async || (count(metric).await == 1).then_some(())).await;
    one("tidegauge_mqtt_connected").await;
    let plant = Plant::new();
    plant.send_to(&server, token).await;

    let shell = |command: &str| {
        let (binary, publisher, port) = (binary(), publisher(), broker.port());
        let tidegauge = format!("tidegauge() {{ '{}' \"$@\"; }}", binary.display());
        let functions =
            format!("{tidegauge}\nmosquitto_pub() {{ {publisher} -p {port} \"$@\"; }}\nsudo() {{ shift 2; \"$@\"; }}");
        let script = format!("{functions}\n{variables}\n{command}").replace("http://192.168.1.10:8080", server.url());
        let mut shell = Command::new("bash");
        shell.args(["-ec", &script]).current_dir(folder.path()).stdin(Stdio::null());
        let output = shell.output().expect("bash is there");
        assert!(output.status.success(), "{command}\n{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let (mut answers, mut question) = (plant.answers(), "");
    for paragraph in page.split("\n\n") {
        if paragraph.starts_with("**") {
            question = paragraph.split("**").nth(1).expect("a question");
        }
        for example in blocks(paragraph, "console start").flat_map(examples) {
            let printed = shell(&example.command);
            let shown = matches(&example.output, &printed);
            assert!(shown, "$ {}\n--- the page:\n{}\n--- printed:\n{printed}", example.command, example.output);
            if example.command.starts_with("mosquitto_pub") {
                one("tidegauge_mqtt_messages_total").await;
            }
            let (is_csv, is_influxql) = (example.command.contains("format=csv"), example.command.contains("/query"));
            if (is_csv || is_influxql)
                && let Some(key) = answers.keys().find(|key| question.contains(**key)).copied()
            {
                let rows: Vec<&str> = printed.lines().skip(usize::from(is_csv)).collect();
                assert_eq!(rows, answers.remove(key).expect("just found"), "{question}");
            }
        }
    }
    assert!(answers.is_empty(), "the page does not ask for {:?}", answers.keys());

    let (config, data) = (server.data_dir().with_file_name("config.toml"), server.data_dir());
    for command in commands {
        let command = command.replace("/etc/tidegauge/tidegauge.toml", &config.display().to_string());
        let command = command.replace("/var/lib/tidegauge", &data.display().to_string());
        shell(&command.replace("/var/backups/tidegauge", "."));
    }
    // The folder of the backup has the date as its name.
    let mut folders =
        fs::read_dir(folder.path()).expect("the folder is readable").map(|entry| entry.expect("an entry"));
    assert!(folders.any(|entry| entry.path().join("backup.json").exists()));
}

/// The arguments of a command of `tidegauge`.
fn words(command: &str) -> Vec<&str> {
    command.trim_end().strip_prefix("tidegauge ").expect("a command of tidegauge").split(' ').collect()
}
