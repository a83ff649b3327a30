//! The image, the compose files and the manifests of Kubernetes: a linter and schemas accept them, and their
//! statements about the service are true. No image is built here.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tidegauge::config::Config;

use super::text_of;
use crate::harness::{binary, fetched};
use crate::pages::in_repository;

/// The compose files and the objects of Kubernetes, as `tests/deploy/check-manifests` prints them.
static MANIFESTS: LazyLock<Value> = LazyLock::new(|| {
    let checked = check(&in_repository("deploy"));
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    serde_json::from_slice(&checked.stdout).expect("JSON")
});

fn check(deploy: &Path) -> Output {
    let mut command = Command::new("python3");
    command.arg(in_repository("tests/deploy/check-manifests")).arg(deploy);
    command.env("PYTHONPATH", fetched("get-schemas")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.stdin(Stdio::null()).output().expect("python3 runs")
}

/// The configuration that is in force with this file and these variables, as `tidegauge check` prints it.
fn in_force(file: &Path, variables: impl IntoIterator<Item = (String, String)>) -> String {
    let mut command = Command::new(binary());
    let output = command.arg("check").arg("--config").arg(file).envs(variables).output().expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The longest time of a stop: one grace each for requests, datagrams, MQTT messages and pending readings.
fn longest_stop() -> Duration {
    4 * Config::default().server.shutdown_grace.as_duration()
}

#[test]
fn hadolint_accepts_the_dockerfile() {
    let mut hadolint = Command::new(fetched("get hadolint"));
    let output = hadolint.arg(in_repository("deploy/docker/Dockerfile")).output().expect("hadolint runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_image_serves_and_checks_the_same_configuration() {
    let dockerfile = text_of("deploy/docker/Dockerfile");
    let last = dockerfile.split("FROM scratch\n").nth(1).expect("the last stage is empty");
    let words = |instruction: &str| -> Vec<String> {
        let line = last.lines().map(str::trim_start).rfind(|line| line.starts_with(instruction));
        let list = line.and_then(|line| line.strip_prefix(instruction)).unwrap_or_else(|| panic!("no {instruction}"));
        serde_json::from_str(list).expect("a JSON list")
    };
    let health = last.split("HEALTHCHECK").nth(1).and_then(|rest| rest.split("CMD ").nth(1)).expect("a health check");
    let health: Vec<String> = serde_json::from_str(health.lines().next().expect("a line")).expect("a JSON list");
    let (entry, command) = (words("ENTRYPOINT "), words("CMD "));
    assert_eq!(command[..2], ["serve", "--config"]);
    assert_eq!(health, [&entry[..], &["check", "--ready"].map(str::to_owned), &command[1..]].concat());
    assert!(dockerfile.contains(&format!("/image{}", entry[0])), "the build stage makes another file");
    assert!(dockerfile.contains(&format!("deploy/docker/tidegauge.toml /image{}", command[2])));

    let file = in_repository("deploy/docker/tidegauge.toml");
    let mut refused = Command::new(binary());
    let refused = refused.args(["check", "--config"]).arg(&file).output().expect("the binary runs");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(64) && said.contains("auth.allow_anonymous"), "{said}");
    let printed = in_force(&file, [("TIDEGAUGE_AUTH__ALLOW_ANONYMOUS".to_owned(), "true".to_owned())]);
    let data_dir = last.split("WORKDIR ").nth(1).and_then(|rest| rest.lines().next()).expect("a working folder");
    assert!(printed.contains(&format!("data_dir = \"{data_dir}\"")), "{printed}");
    assert!(last.contains(&format!("VOLUME [\"{data_dir}\"]")) && last.contains("USER 65532:65532"), "{last}");
}

#[test]
fn the_compose_files_run_the_service_as_documented() {
    let files = MANIFESTS["compose"].as_object().expect("compose files");
    assert!(files.contains_key("single") && files.contains_key("sharded"), "{files:?}");
    for (name, file) in files {
        let services = file["services"].as_object().expect("services");
        let ours: Vec<_> = services.iter().filter(|(_, service)| service["image"] == "tidegauge").collect();
        assert!(!ours.is_empty(), "{name} has no tidegauge");
        for (service, it) in ours {
            assert_eq!(
                (&it["read_only"], &it["cap_drop"][0]),
                (&Value::Bool(true), &"ALL".into()),
                "{name}: {service}"
            );
            let grace = it["stop_grace_period"].as_str().and_then(|text| text.strip_suffix('m')?.parse::<u64>().ok());
            let grace = Duration::from_secs(60 * grace.unwrap_or_else(|| panic!("{name}: {service} has no grace")));
            assert!(grace > longest_stop(), "{name}: {service} is killed after {grace:?}");
            let variables = it["environment"].as_object().expect("variables");
            let variables =
                variables.iter().map(|(key, value)| (key.clone(), value.as_str().expect("text").to_owned()));
            let printed = in_force(&in_repository("deploy/docker/tidegauge.toml"), variables);
            assert!(printed.contains("kind = \"mongodb\""), "{name}: {printed}");
            let volume = it["volumes"][0].as_str().expect("a volume");
            assert!(volume.ends_with(":/var/lib/tidegauge"), "{name}: {service} keeps its data in {volume}");
        }
        for (service, it) in services {
            for port in it["ports"].as_array().into_iter().flatten() {
                let port = port.as_str().expect("a port");
                assert!(port.starts_with("127.0.0.1:"), "{name}: other machines reach {service} without a token");
            }
        }
    }
}

#[test]
fn the_manifests_of_kubernetes_run_the_service_as_documented() {
    let folders = MANIFESTS["kubernetes"].as_object().expect("folders");
    for overlay in ["overlays/sqlite", "overlays/mongodb"] {
        let objects = folders[overlay].as_array().expect("objects");
        let one = |kind: &str| objects.iter().find(|it| it["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"));
        assert!(objects.iter().all(|it| it["kind"] == "Namespace" || it["metadata"]["namespace"] == "tidegauge"));
        let pods = &one("StatefulSet")["spec"]["template"]["spec"];
        let grace = Duration::from_secs(pods["terminationGracePeriodSeconds"].as_u64().expect("seconds"));
        assert!(grace > longest_stop(), "{overlay}: pods are killed after {grace:?}");
        let container = &pods["containers"][0];
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true, "{overlay}");
        assert_eq!(pods["securityContext"]["runAsUser"], 65532, "{overlay}: the user of the image");
        for (probe, path) in
            [("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")]
        {
            assert_eq!(container[probe]["httpGet"]["path"], path, "{overlay}: {probe}");
        }

        let folder = TempDir::new().expect("a temporary folder");
        let file = folder.path().join("tidegauge.toml");
        fs::write(&file, one("ConfigMap")["data"]["tidegauge.toml"].as_str().expect("text")).expect("writable");
        let names = container["env"].as_array().into_iter().flatten().map(|it| it["name"].as_str().expect("a name"));
        let names: Vec<&str> = names.collect();
        let uri = "mongodb://db/?replicaSet=rs0".to_owned();
        let printed = in_force(&file, names.iter().map(|name| ((*name).to_owned(), uri.clone())));
        let store = if overlay.ends_with("mongodb") { "kind = \"mongodb\"" } else { "kind = \"sqlite\"" };
        assert!(printed.contains(store), "{overlay}: {printed}");
        assert!(
            printed.contains(&format!("listen = \"0.0.0.0:{}\"", container["ports"][0]["containerPort"])),
            "{printed}"
        );
        let mount = container["volumeMounts"][0]["mountPath"].as_str().expect("a path");
        assert!(printed.contains(&format!("data_dir = \"{mount}/data\"")), "{overlay}: {printed}");
        let replicas = one("StatefulSet")["spec"]["replicas"].as_u64();
        assert_eq!(replicas, Some(if names.is_empty() { 1 } else { 2 }), "{overlay}: SQLite is of one instance");
    }
    let monitor =
        &folders["overlays/mongodb"].as_array().expect("objects").iter().find(|it| it["kind"] == "ServiceMonitor");
    let labels = &monitor.expect("a ServiceMonitor")["spec"]["selector"]["matchLabels"];
    let services = folders["overlays/mongodb"].as_array().expect("objects").iter().filter(|it| it["kind"] == "Service");
    let scraped = services.filter(|it| &it["metadata"]["labels"] == labels).count();
    assert_eq!(scraped, 1, "each instance is scraped once");
}

#[test]
fn the_rules_of_the_prometheus_operator_are_the_alerts() {
    let alerts = text_of("deploy/alerts.yml");
    let (_, groups) = alerts.split_once("\ngroups:").expect("groups");
    let indented = |line: &str| if line.is_empty() { String::new() } else { format!("  {line}") };
    let expected: Vec<String> = format!("groups:{groups}").lines().map(indented).collect();
    let rules = text_of("deploy/k8s/monitoring/prometheusrule.yaml");
    let (_, found) = rules.split_once("\nspec:\n").expect("a specification");
    assert_eq!(found.trim_end(), expected.join("\n").trim_end(), "make the file again with its command");
    let objects = MANIFESTS["kubernetes"]["overlays/mongodb"].as_array().expect("objects");
    let rule = objects.iter().find(|it| it["kind"] == "PrometheusRule").expect("a PrometheusRule");
    assert_eq!(rule["metadata"]["namespace"], "tidegauge");
    let alerts = rule["spec"]["groups"][0]["rules"].as_array().expect("rules");
    assert!(alerts.iter().any(|alert| alert["alert"] == "TidegaugeDown"), "{alerts:?}");
}

#[test]
fn mistakes_in_manifests_are_found() {
    let folder = TempDir::new().expect("a temporary folder");
    let deploy = folder.path().join("deploy");
    let copied = Command::new("cp").arg("-r").arg(in_repository("deploy")).arg(&deploy).status().expect("cp runs");
    assert!(copied.success());
    for (file, from, to) in [
        ("k8s/base/statefulset.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFs: true"),
        ("k8s/base/services.yaml", "port: 8080, ", "port: http, "),
        ("k8s/overlays/mongodb/networkpolicy.yaml", "name: tidegauge", "name: tidegauges"),
        ("compose/single/compose.yml", "cap_drop:", "drop_caps:"),
        ("compose/sharded/compose.yml", "./nginx.conf:", "./haproxy.conf:"),
    ] {
        let path = deploy.join(file);
        let text = fs::read_to_string(&path).expect("a file");
        assert!(text.contains(from), "{file} has no {from}");
        fs::write(&path, text.replacen(from, to, 1)).expect("writable");
    }
    let checked = check(&deploy);
    let said = String::from_utf8_lossy(&checked.stderr);
    assert_eq!(checked.status.code(), Some(1), "{said}");
    for mistake in ["readOnlyRootFs", "'http' is not of type", "tidegauges", "drop_caps", "haproxy.conf"] {
        assert!(said.contains(mistake), "{mistake} in {said}");
    }
}
