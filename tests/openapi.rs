//! `/v1/openapi.json` describes the service: its routes, its answers, and examples that can be executed.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Command;

use regex::Regex;
use serde_json::{Value, json};
use tidegauge::config::OWN_PATHS;

use crate::clients::clients;
use crate::harness::{Server, Setup, encoded, secret_of};

#[tokio::test]
async fn the_contract_is_that_of_the_snapshot() {
    let server = Server::start(Setup::default_config()).await;
    insta::assert_snapshot!(contract_of(&server.get_json("/v1/openapi.json").await));
}

/// The part of the document that clients depend on: what each operation takes and answers, and the fields of
/// each schema. Of an error that is its codes.
fn contract_of(document: &Value) -> String {
    let mut text = String::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            writeln!(text, "{} {path} {}", method.to_uppercase(), operation["security"]).expect("memory");
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let [place, name] = ["in", "name"].map(|key| parameter[key].as_str().expect("text"));
                writeln!(text, "  {place} {name}").expect("memory");
            }
            for media_type in names_in(&operation["requestBody"]["content"]) {
                writeln!(text, "  takes {media_type}").expect("memory");
            }
            for (status, answer) in operation["responses"].as_object().expect("answers") {
                let media_types = names_in(&answer["content"]).join(", ");
                let codes = answer["description"].as_str().filter(|_| status.as_str() >= "400").unwrap_or_default();
                writeln!(text, "  {}", format!("{status} {media_types} {codes}").trim_end()).expect("memory");
            }
        }
    }
    for (name, schema) in document["components"]["schemas"].as_object().expect("schemas") {
        let mut fields = BTreeSet::new();
        collect_fields(schema, &mut fields);
        writeln!(text, "{name}: {}", fields.into_iter().collect::<Vec<_>>().join(", ")).expect("memory");
    }
    text
}

fn names_in(object: &Value) -> Vec<&str> {
    object.as_object().into_iter().flat_map(|object| object.keys().map(String::as_str)).collect()
}

/// Collects the fields of a schema and of the schemas in it.
fn collect_fields<'d>(schema: &'d Value, fields: &mut BTreeSet<&'d str>) {
    match schema {
        Value::Object(parts) => {
            fields.extend(names_in(&schema["properties"]));
            parts.values().for_each(|part| collect_fields(part, fields));
        }
        Value::Array(parts) => parts.iter().for_each(|part| collect_fields(part, fields)),
        _ => {}
    }
}

#[tokio::test]
async fn the_document_has_the_paths_and_methods_of_the_router() {
    let server = Server::start(Setup::sqlite()).await;
    let document = server.get_json("/v1/openapi.json").await;
    let paths = document["paths"].as_object().expect("paths");
    assert_eq!(paths.keys().map(String::as_str).collect::<BTreeSet<_>>(), OWN_PATHS.into_iter().collect());
    for (path, item) in paths {
        let request = server.request(reqwest::Method::TRACE, &path.replace(['{', '}'], ""));
        let refused = server.send(request).await;
        assert_eq!(refused.status, 405, "{path}");
        let allowed = refused.header("allow").to_ascii_lowercase();
        let allowed: BTreeSet<_> = allowed.split(',').filter(|method| *method != "head").collect();
        assert_eq!(item.as_object().expect("methods").keys().map(String::as_str).collect::<BTreeSet<_>>(), allowed);
    }
}

#[tokio::test]
async fn the_document_has_the_limits_of_the_configuration() {
    let server = Server::start(with_tokens().set("query.max_devices", 7)).await;
    assert_eq!(server.get("/v1/openapi.json").await.status, 401);
    let request = server.request(reqwest::Method::GET, "/v1/openapi.json").bearer_auth(secret_of("client"));
    let document = server.send(request).await.json();
    let parameters = document["paths"]["/v1/devices"]["get"]["parameters"].as_array().expect("a list");
    let limit = parameters.iter().find(|parameter| parameter["name"] == "limit").expect("it is there");
    assert_eq!(limit["schema"], json!({ "type": "integer", "minimum": 1, "maximum": 7, "default": 7 }));
}

#[tokio::test]
async fn the_document_allows_what_the_server_takes() {
    let server = Server::start(Setup::sqlite().set("query.max_readings", 7).set("query.default_readings", 7)).await;
    let reading = json!({ "deviceId": "S1", "value": 1, "metadata": { "Gerät": 2 } });
    assert_eq!(server.ingest(&reading).await.status, 200);
    let document = server.get_json("/v1/openapi.json").await;
    let schema = |path: &str, name: &str| {
        let parameters = document["paths"][path]["get"]["parameters"].as_array().expect("a list");
        parameters.iter().find(|parameter| parameter["name"] == name).expect("it is there")["schema"].clone()
    };

    let limit = schema("/v1/devices/{deviceId}/readings", "limit");
    let most: Vec<_> = limit["anyOf"].as_array().expect("a page or a file").iter().map(|of| &of["maximum"]).collect();
    assert_eq!(most, [&json!(7), &json!(u64::MAX)]);
    let readings = "/v1/devices/S1/readings?limit";
    assert_eq!(server.get(&format!("{readings}={}&format=csv", u64::MAX)).await.status, 200);
    for (limit, status) in [(7, 200), (8, 400)] {
        assert_eq!(server.get(&format!("{readings}={limit}")).await.status, status);
    }

    let combine = schema("/v1/rollups", "combine");
    let [longest, too_long] = [256, 257].map(|length| format!("by:{},b", "a".repeat(length)));
    for (value, is_taken) in
        [("by:Gerät", true), ("by:a b", true), (&*longest, true), (&*too_long, false), ("by:", false)]
    {
        assert_eq!(allows(&combine, value), is_taken, "{value}");
        let answer = server.get(&format!("/v1/rollups?combine={}", encoded(value))).await;
        assert_eq!(answer.status, if is_taken { 200 } else { 400 }, "{value}: {}", answer.text());
    }

    for (parameter, name, is_taken) in [
        ("meta.KEY", "meta.Gerät", true),
        ("meta.KEY", "meta.a b!", true),
        ("meta.KEY", "meta.!", false),
        ("label.KEY", "label.Gerät", true),
        ("label.KEY", "label.{", true),
        ("label.KEY", "label.\u{85}", false),
    ] {
        assert_eq!(allows(&schema("/v1/rollups", parameter)["propertyNames"], name), is_taken, "{name}");
        let answer = server.get(&format!("/v1/rollups?{}=x", encoded(name))).await;
        assert_eq!(answer.status, if is_taken { 200 } else { 400 }, "{name}: {}", answer.text());
    }

    let ts = document["components"]["schemas"]["NewReading"]["properties"]["ts"]["anyOf"].as_array().expect("forms");
    assert!(ts.iter().any(|form| form["type"] == "number"));
    assert!(ts.iter().any(|form| form.get("pattern").is_some() && allows(form, "1713621610000.25")));
    for ts in [json!(1_713_621_610_000.25), json!("1713621610000.25")] {
        let reading = json!({ "deviceId": "S1", "ts": ts, "value": 1 });
        assert_eq!(server.ingest(&reading).await.status, 200, "{reading}");
    }

    let from = schema("/v1/devices/{deviceId}/readings", "from");
    let forms = from["anyOf"].as_array().expect("several forms");
    let hour = "2024-11-22T09:00";
    for (text, to) in [
        ("2024-11-22T08:00", hour),
        ("2024-11-22 08:00:30.5", hour),
        ("2024-11-22T08:00+01:00", hour),
        ("-99999s", "now"),
    ] {
        assert!(forms.iter().any(|form| form.get("pattern").is_some() && allows(form, text)), "{text}");
        let range = format!("from={}&to={}&tz=Europe/Berlin", encoded(text), encoded(to));
        assert_eq!(server.get(&format!("/v1/devices/S1/readings?{range}")).await.status, 200, "{range}");
    }
}

#[tokio::test]
async fn the_document_allows_the_series_that_the_server_takes() {
    let server = Server::start(Setup::sqlite().set("ingest.max_metrics_per_reading", 300)).await;
    let document = server.get_json("/v1/openapi.json").await;
    let reading = &document["components"]["schemas"]["NewReading"]["properties"];
    let parameters = document["paths"]["/v1/rollups"]["get"]["parameters"].as_array().expect("a list");
    let metric = parameters.iter().find(|parameter| parameter["name"] == "metric").expect("it is there");
    let [longest, too_long] = [507, 508].map(|length| format!("m{{a={}}}", "v".repeat(length)));
    for (series, is_taken) in [
        ("cpu_idle{cpu=cpu0}", true),
        ("m{b=é,a=1 2}", true),
        (r"m{a=\{\}}", true),
        (&*longest, true),
        (&*too_long, false),
        ("m{a}", false),
        ("m}", false),
        ("ts", false),
        ("ts{a=1}", false),
    ] {
        for schema in [&metric["schema"]["items"], &reading["values"]["propertyNames"], &reading["metric"]] {
            assert_eq!(allows(schema, series), is_taken, "{series}: {schema}");
        }
        let status = if is_taken { 200 } else { 400 };
        assert_eq!(server.get(&format!("/v1/rollups?metric={}", encoded(series))).await.status, status, "{series}");
        for part in [json!({ "values": { series: 1 } }), json!({ "metric": series, "value": 1 })] {
            let mut body = part;
            body["deviceId"] = json!("S1");
            assert_eq!(server.ingest(&body).await.status, status, "{body}");
        }
    }
    let label = json!({ "deviceId": "S1", "value": 1, "unit": "{}", "labels": { "{": "}" } });
    assert_eq!(server.ingest(&label).await.status, 200);
    let of_labels = [&reading["unit"], &reading["labels"]["propertyNames"], &reading["labels"]["additionalProperties"]];
    assert!(of_labels.into_iter().all(|schema| allows(schema, "{}")));
    let many: Value = (0..300).map(|nth| (format!("m{nth}"), json!(nth))).collect();
    assert_eq!(server.ingest(&json!({ "deviceId": "S1", "values": many })).await.status, 200);
    assert!(reading["values"].get("maxProperties").is_none(), "the configuration says how many");
}

/// Whether the schema of a text allows it.
fn allows(schema: &Value, text: &str) -> bool {
    let is_match = |schema: &Value| {
        let pattern = schema["pattern"].as_str().expect("a text");
        Regex::new(pattern).expect("an expression").is_match(text)
    };
    let is_short = schema["maxLength"].as_u64().is_none_or(|most| text.chars().count() as u64 <= most);
    is_short && is_match(schema) && !schema.get("not").is_some_and(is_match)
}

#[tokio::test]
async fn the_examples_are_answered_as_described() {
    let server = Server::start(with_tokens()).await;
    runs(&server, Command::new("python3").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openapi/examples.py"))).await;
}

/// The requests that `schemathesis` makes of the document. `SEED=n` and `EXAMPLES=n` choose others and more.
#[tokio::test]
async fn no_request_gets_an_answer_that_is_not_described() {
    let server = Server::start(with_tokens()).await;
    let of_env = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let folder = tempfile::tempdir().expect("a folder");
    let options = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openapi/schemathesis.toml");
    let mut python = Command::new("python3");
    python.args(["-m", "schemathesis.cli", "--config-file", options, "run"]);
    python.arg(format!("{}/v1/openapi.json", server.url()));
    python.args(["--no-color", "--warnings", "off"]);
    python.args(["--seed", &of_env("SEED", "1"), "--max-examples", &of_env("EXAMPLES", "8")]);
    python.args(["--header", &format!("Authorization:Bearer {}", secret_of("client"))]).current_dir(&folder);
    runs(&server, &mut python).await;
    server.assert_balanced().await;
}

/// A server for requests of any time.
fn with_tokens() -> Setup {
    let setup = Setup::sqlite().set("ingest.max_future", "365d");
    setup.token("operator", "scopes = ['admin']").token("client", "scopes = ['ingest', 'query', 'metadata', 'admin']")
}

/// Runs a program that reads the document of this server.
async fn runs(server: &Server, program: &mut Command) {
    program
        .env("PYTHONPATH", format!("{}:{}/tests/openapi", clients(), env!("CARGO_MANIFEST_DIR")))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TIDEGAUGE_URL", server.url())
        .env("TIDEGAUGE_TOKEN", secret_of("client"));
    let child = program.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn();
    let child = child.expect("python3 is there");
    let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await.expect("no panic");
    let output = output.expect("our child");
    let [said, log] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{said}\n{log}");
}
