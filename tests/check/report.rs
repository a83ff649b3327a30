//! `tidegauge check --report`: what the file has, and what it must not have.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::check::{small, with_readings};
use crate::harness::{Setup, binary, free_port, key_of, secret_of};

/// Writes the report of a configuration, with a token in the environment.
fn report(setup: &Setup, folder: &TempDir, data_dir: &Path, file: &Path, token: &str) -> Output {
    let config = folder.path().join("config.toml");
    std::fs::write(&config, setup.to_toml()).expect("the folder is writable");
    let mut command = Command::new(binary());
    command.args(["check", "--report"]).arg(file).arg("--config").arg(config).arg("--data-dir").arg(data_dir);
    command.env("TIDEGAUGE_TOKEN", token).output().expect("the binary runs")
}

/// A configuration with a secret of each kind, whose servers are all away.
fn with_all_secrets() -> Setup {
    let away = free_port();
    let setup = Setup::default_config()
        .token("operator", "scopes = ['admin']")
        .key("meter", "")
        .set("mongodb.uri", format!("mongodb://ann:hunter2%40mongo@127.0.0.1:{away}/"))
        .set("mongodb.timeout", "1s")
        .set("forward.url", format!("http://127.0.0.1:{away}"))
        .set("forward.token", "hunter2-forward")
        .mqtt(&format!(
            "url = 'mqtt://127.0.0.1:{away}'\nclient_id = 'site-1'\nuser = 'ann'\npassword = 'hunter2-mqtt'\n\
             [[topics]]\ntopic = 'plant/{{deviceId}}/{{metric}}'\n"
        ));
    small(setup)
}

#[tokio::test]
async fn the_report_has_version_machine_configuration_findings_and_metrics() {
    let setup = small(Setup::sqlite().token("operator", "scopes = ['ingest', 'query', 'admin']"));
    let server = with_readings(&setup.clone().set("auth.allow_anonymous", true)).await;
    let setup = setup.set("http.listen", server.http_addr().to_string());
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("report");
    let token = secret_of("operator");
    let written = report(&setup, &folder, &server.data_dir(), &file, &token);
    assert!(written.status.success(), "{written:?}");
    assert_eq!(std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&file).expect("text");
    for part in [
        concat!("version      ", env!("CARGO_PKG_VERSION")),
        "Linux ",
        "data folder  on ",
        "\n[http]\n",
        "the configuration is valid",
        "log-segments",
        "\n# TYPE tidegauge_",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    assert!(!text.contains(&token), "{text}");

    let again = report(&setup, &folder, &server.data_dir(), &file, &token);
    assert!(again.status.code() == Some(1) && String::from_utf8_lossy(&again.stderr).contains("exists"), "{again:?}");
}

#[tokio::test]
async fn the_report_has_no_token_password_key_or_credential_of_a_uri() {
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("report");
    let setup = with_all_secrets();
    let given = setup.to_toml();
    let written = report(&setup, &folder, &folder.path().join("data"), &file, "hunter2-of-the-environment");
    assert!(written.status.success(), "{written:?}");
    let text = std::fs::read_to_string(&file).expect("text");
    let said = String::from_utf8_lossy(&written.stdout) + String::from_utf8_lossy(&written.stderr);
    for (part, secret) in [
        ("ann:***@", "hunter2"),
        ("[[auth.keys]]", key_of("meter").expose()),
        ("[[auth.tokens]]", &secret_of("operator")),
        ("[forward]", "hunter2-forward"),
        ("[[mqtt]]", "hunter2-mqtt"),
        ("none: ", "hunter2-of-the-environment"),
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
        assert!(!text.contains(secret) && !said.contains(secret), "{secret} in {text}{said}");
    }
    assert!(given.contains("hunter2%40mongo") && given.contains(key_of("meter").expose()), "{given}");
}
