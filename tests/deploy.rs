//! The files of `deploy` fit the program: the unit's flags, keys and variables, the rules, the dashboard, the
//! image, the manifests and the package. `pages` checks that the names in them exist.

mod balancer;
mod containers;
mod package;
mod ready;

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tidegauge::config::Config;

use crate::harness::{Server, Setup, binary, fetched, run};
use crate::pages::{in_repository, sections_of};

/// The exposure level that `systemd-analyze security` may compute, in tenths: from 0, the best, to 100.
const MAX_EXPOSURE: u32 = 20;
const RUNBOOKS: &str = "https://github.com/tidegauge/tidegauge/blob/main/docs/";

#[test]
fn the_command_and_the_variables_of_the_unit_are_understood() {
    let unit = unit();
    let words: Vec<&str> = unit["ExecStart"][0].split(' ').collect();
    let [program, "serve", flags @ ..] = &words[..] else { panic!("{words:?}") };
    assert_eq!(*program, "tidegauge", "a package and an installation by hand have different folders");
    let page = fs::read_to_string(in_repository("docs/operations.md")).expect("the page");
    let documented = format!("tidegauge check {}\n", flags.join(" "));
    assert!(page.contains(&documented), "docs/operations.md checks another configuration than that of the unit");
    let config = in_repository("config/tidegauge.toml").display().to_string();
    let flags = flags.iter().map(|word| word.replace("/etc/tidegauge/tidegauge.toml", &config));
    let secrets = fs::read_to_string(in_repository("deploy/secrets.env")).expect("the file of secrets");
    let variables: Vec<(&str, &str)> =
        secrets.lines().filter_map(|line| line.strip_prefix('#')?.split_once('=')).collect();
    assert!(variables.iter().any(|(name, _)| *name == "TIDEGAUGE_MONGODB__URI"), "{variables:?}");

    let mut check = Command::new(binary());
    check.arg("check").args(flags).envs(variables).stdin(Stdio::null());
    let output = check.output().expect("the binary runs");
    let (printed, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}");
    let data_dir = format!("data_dir = \"/var/lib/{}\"", unit["StateDirectory"][0]);
    assert!(printed.contains(&data_dir) && printed.contains("uri = "), "{printed}");
}

#[tokio::test]
async fn the_unit_does_not_restart_after_an_invalid_configuration() {
    let refused = run(&["serve", "--http", "nowhere"]).await;
    let code = refused.code.map(|code| code.to_string());
    assert_eq!(code.as_deref(), Some(unit()["RestartPreventExitStatus"][0].as_str()), "{refused:?}");
}

#[test]
fn the_unit_waits_longer_than_a_stop_takes() {
    let unit = unit();
    let minutes: u64 = unit["TimeoutStopSec"][0].strip_suffix("min").expect("minutes").parse().expect("a number");
    // One each for requests, datagrams, MQTT messages and pending readings.
    let at_most = 4 * Config::default().server.shutdown_grace.as_duration();
    assert!(Duration::from_secs(60 * minutes) > at_most, "{minutes} minutes");
    assert_eq!(unit["KillSignal"], ["SIGTERM"]);
    assert!(unit["ExecReload"][0].contains("-HUP"), "{unit:?}");
}

#[test]
fn the_unit_has_descriptors_for_all_connections() {
    let files: usize = unit()["LimitNOFILE"][0].parse().expect("a number");
    assert!(files > Config::default().http.max_connections + 1_000, "{files}");
}

#[test]
fn the_unit_confines_the_service() {
    let unit = unit();
    for (directive, value, reason) in [
        ("User", "tidegauge", "the service does not run as root"),
        ("NoNewPrivileges", "yes", "no program that it runs gets more rights"),
        ("CapabilityBoundingSet", "", "it needs no privilege"),
        ("ProtectSystem", "strict", "it writes to its data folder only"),
        ("MemoryDenyWriteExecute", "yes", "it makes no code at run time"),
    ] {
        assert_eq!(unit[directive], [value], "{directive}: {reason}");
    }
    assert!(!unit.contains_key("ProcSubset"), "the service reads the datagrams that the kernel dropped in /proc/net");

    // A machine may lack systemd, and the tests cannot fetch it.
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["security", "--offline=true", &format!("--threshold={MAX_EXPOSURE}")]);
    match analyze.arg(in_repository("deploy/tidegauge.service")).stdin(Stdio::null()).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        output => {
            let output = output.expect("systemd-analyze runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        }
    }
}

#[test]
fn each_alert_says_what_to_do_and_is_tested() {
    let read = |path: &str| fs::read_to_string(in_repository(path)).expect("a file of deploy");
    for (name, page, place) in [("alerts", "operations.md", "instance"), ("alerts-readings", "alarms.md", "device")] {
        let rules = read(&format!("deploy/{name}.yml"));
        let tests = read(&format!("deploy/{name}_test.yml"));
        let sections = sections_of(&in_repository(&format!("docs/{page}")));
        let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
        assert!(!alerts.is_empty());
        for alert in alerts {
            let name = alert.lines().next().expect("a name");
            assert!(["critical", "warning"].iter().any(|it| alert.contains(&format!("severity: {it}"))), "{alert}");
            let is_placed = [place, "instance"].iter().any(|it| alert.contains(&format!("{{{{ $labels.{it} }}}}")));
            assert!(alert.contains("summary: \"") && is_placed, "{alert}");
            let runbook = alert.split(&format!("{RUNBOOKS}{page}#")).nth(1).and_then(|rest| rest.lines().next());
            let section = runbook.unwrap_or_default();
            assert!(sections.contains(section), "docs/{page} has no section {section:?} for {name}");
            assert!(fires_and_ends(&tests, name), "no test for promtool triggers {name} and then ends it");
        }
    }
}

/// Whether one of the tests for promtool expects the alert to fire, and later not to fire any more.
fn fires_and_ends(tests: &str, alert: &str) -> bool {
    tests.split("\n  - name: ").any(|test| {
        let steps = test.split("- eval_time: ").skip(1).filter(|step| step.contains(&format!("alertname: {alert}\n")));
        let mut fires = steps.map(|step| step.contains("exp_alerts:\n"));
        fires.any(|fires| fires) && fires.any(|fires| !fires)
    })
}

#[tokio::test]
async fn promtool_accepts_the_metrics_of_a_server_in_use() {
    let server = Server::start(Setup::default_config()).await;
    let bodies = [r#"{"deviceId":"a","value":1}"#, r#"{"deviceId":"a","value":"high"}"#, "{", "[]"];
    for body in bodies {
        server.post("/v1/readings", "application/json", body).await;
    }
    for path in ["/v1/devices", "/v1/devices/a/latest", "/v1/rollups?prefix=", "/nowhere"] {
        server.get(path).await;
    }
    let page = server.get("/metrics").await;
    let mut command = Command::new(fetched("get promtool"));
    let mut child = command
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool runs");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(&page.body).expect("promtool reads");
    drop(stdin);
    let output = child.wait_with_output().expect("our child");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn promtool_accepts_the_scrape_job_and_the_alerts() {
    promtool(&["check", "config", "prometheus.yml"]);
    promtool(&["test", "rules", "alerts_test.yml", "alerts-readings_test.yml"]);
}

#[test]
fn promtool_accepts_the_scrape_jobs_of_the_compose_files() {
    for name in ["single", "sharded"] {
        let folder = TempDir::new().expect("a temporary folder");
        for (from, to) in [
            (format!("deploy/compose/{name}/prometheus.yml"), "prometheus.yml"),
            ("deploy/alerts.yml".to_owned(), "alerts.yml"),
        ] {
            fs::copy(in_repository(&from), folder.path().join(to)).expect("the folder is writable");
        }
        promtool(&["check", "config", folder.path().join("prometheus.yml").to_str().expect("UTF-8")]);
    }
}

#[test]
fn promtool_accepts_the_scrape_job_with_a_token_and_tls() {
    let text = fs::read_to_string(in_repository("deploy/prometheus.yml")).expect("the scrape job");
    let is_option = |rest: &str| {
        rest.starts_with(|c: char| c.is_ascii_lowercase()) || rest.starts_with("  ") && !rest.contains(" new ")
    };
    let with_all: Vec<String> = text
        .lines()
        .map(|line| match line.strip_prefix("    #") {
            Some(rest) if is_option(rest) => format!("    {rest}"),
            _ => line.to_owned(),
        })
        .collect();
    assert_ne!(with_all.join("\n").trim(), text.trim());
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("prometheus.yml");
    fs::write(&file, with_all.join("\n")).expect("the folder is writable");
    promtool(&["check", "config", "--syntax-only", file.to_str().expect("UTF-8")]);
}

#[test]
fn promtool_accepts_every_query_of_the_dashboard() {
    let text = fs::read_to_string(in_repository("deploy/grafana/dashboards/service.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let questions: Vec<&str> = targets.map(|target| target["expr"].as_str().expect("a question")).collect();
    assert!(questions.iter().all(|it| it.contains(r#"instance=~"$instance""#)), "not of one instance: {questions:#?}");
    let rules = questions.iter().enumerate().map(|(number, question)| {
        let question = question.replace("$__rate_interval", "5m");
        format!("      - record: question:{number}\n        expr: {question}\n")
    });
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("dashboard.yml");
    let head = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    fs::write(&file, head + &rules.collect::<String>()).expect("the folder is writable");
    promtool(&["check", "rules", file.to_str().expect("UTF-8")]);
}

/// The directives of the unit in all sections, each with all its values.
fn unit() -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(in_repository("deploy/tidegauge.service")).expect("the unit");
    let mut directives: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (key, value) in text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('=')) {
        directives.entry(key.to_owned()).or_default().push(value.to_owned());
    }
    directives
}

/// The text of a file of the repository.
fn text_of(path: &str) -> String {
    fs::read_to_string(in_repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Runs promtool in `deploy` and asserts that it succeeds.
fn promtool(args: &[&str]) {
    let mut promtool = Command::new(fetched("get promtool"));
    let output = promtool.args(args).current_dir(in_repository("deploy")).output().expect("promtool runs");
    let (printed, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "promtool {args:?}\n{printed}{errors}");
}
