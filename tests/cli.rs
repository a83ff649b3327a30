//! The command line: refused input with its place and exit code.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::harness::{Finished, binary, run};

const USAGE: Option<i32> = Some(64);

#[tokio::test]
async fn an_unknown_flag_or_command_exits_with_64() {
    for args in [&["serve", "--no-such-flag"][..], &["no-such-command"], &["--no-such-flag"]] {
        let finished = run(args).await;
        assert_eq!(finished.code, USAGE, "{finished:?}");
        assert!(finished.stderr.contains("no-such"), "{finished:?}");
    }
}

#[tokio::test]
async fn help_and_version_exit_with_0() {
    let help = run(&["--help"]).await;
    assert!(help.code == Some(0) && help.stdout.contains("serve") && help.stdout.contains("import"), "{help:?}");
    let version = run(&["--version"]).await;
    let name = concat!("tidegauge ", env!("CARGO_PKG_VERSION"), " (");
    assert!(version.code == Some(0) && version.stdout.starts_with(name), "{version:?}");
}

#[tokio::test]
async fn an_unknown_key_in_the_config_is_refused_with_its_place() {
    for command in ["serve", "check"] {
        let finished = with_config(command, "[http]\nlisten = \"127.0.0.1:0\"\nlissten = 1\n", &[]).await;
        assert_eq!(finished.code, USAGE, "{finished:?}");
        assert!(finished.stderr.contains("lissten") && finished.stderr.contains("tidegauge.toml:3"), "{finished:?}");
    }
}

#[tokio::test]
async fn a_value_out_of_range_is_refused_with_its_key() {
    let finished = with_config("serve", "[http]\nmax_connections = 0\n", &["--http", "127.0.0.1:0"]).await;
    assert_eq!(finished.code, USAGE, "{finished:?}");
    assert!(finished.stderr.contains("http.max_connections"), "{finished:?}");
}

#[tokio::test]
async fn all_errors_of_a_configuration_are_reported_at_once() {
    let config = "[http]\nmax_connections = 0\n[log]\nsync = \"never\"\n[retention]\nreadings = \"1y\"\n";
    for command in ["serve", "check"] {
        let finished = with_config(command, config, &["--udp", "nowhere", "--log-level", "loud"]).await;
        assert_eq!(finished.code, USAGE, "{finished:?}");
        for mistake in [
            "4 mistakes",
            "tidegauge.toml:2:19: http.max_connections is 0",
            "tidegauge.toml:4:8: log.sync: ",
            "--udp: ",
            "--log-level: ",
        ] {
            assert!(finished.stderr.contains(mistake), "{mistake} in {finished:?}");
        }
    }
}

#[tokio::test]
async fn check_shows_what_is_in_force_with_the_flags_of_the_server() {
    let config = "[server]\ndata_dir = \"./data\"\n[http]\nlisten = \"127.0.0.1:1\"\n";
    let flags = ["--data-dir", "/var/lib/tidegauge", "--http", "127.0.0.1:1"];
    let finished = with_config("check", config, &flags).await;
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stdout.contains("\ndata_dir = \"/var/lib/tidegauge\"\n"), "{finished:?}");
    let overridden =
        "tidegauge.toml:2:12) is overridden by --data-dir: \"/var/lib/tidegauge\"\n# configuration is valid";
    assert!(finished.stdout.contains(overridden), "{finished:?}");
    assert_eq!(finished.stdout.matches("is overridden by").count(), 1, "{finished:?}");
    assert!(finished.stdout.contains("\n# rollups are written: with each write\n"), "{finished:?}");

    let config = "[flush]\nmax_age = \"5s\"\n[retention]\nreadings = \"1d\"\n[mongodb]\nuri = \"mongodb://db1\"\n";
    let finished = with_config("check", config, &[]).await;
    for line in ["# rollups are written: each hour after its end", "# of flush.gather only 500ms are used"] {
        assert!(finished.stdout.contains(line), "{line} in {finished:?}");
    }
}

#[tokio::test]
async fn an_address_without_http_is_refused_with_what_to_write() {
    for address in ["127.0.0.1:8080", "localhost:8080", "server"] {
        let finished = run(&["import", "x.csv", "--url", address]).await;
        let hint = format!("write http://{address}");
        assert!(finished.code == USAGE && finished.stderr.contains(&hint), "{finished:?}");
    }
}

#[tokio::test]
async fn scopes_and_devices_may_be_given_with_commas() {
    let args = ["token", "new", "--name", "a", "--scope", "ingest,query", "--devices", "A-*,B-*"];
    let finished = run(&args).await;
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stdout.contains("scopes = [\"ingest\", \"query\"]"), "{finished:?}");
    assert!(finished.stdout.contains("devices = [\"A-*\", \"B-*\"]"), "{finished:?}");
}

#[tokio::test]
async fn a_missing_config_file_is_refused() {
    let finished = run(&["serve", "--config", "no-such-file.toml"]).await;
    assert_eq!(finished.code, USAGE, "{finished:?}");
    assert!(finished.stderr.contains("no-such-file.toml"), "{finished:?}");
}

#[tokio::test]
async fn a_public_address_needs_anonymous_access() {
    let finished = with_config("serve", "", &["--http", "0.0.0.0:0"]).await;
    assert_eq!(finished.code, USAGE, "{finished:?}");
    assert!(finished.stderr.contains("allow_anonymous"), "{finished:?}");
}

#[tokio::test]
async fn check_accepts_the_example_config() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/config/tidegauge.toml");
    let finished = run(&["check", "--config", example]).await;
    assert!(finished.code == Some(0) && finished.stdout.contains("configuration is valid"), "{finished:?}");
}

#[tokio::test]
async fn check_looks_at_the_log_when_it_is_asked_to() {
    let folder = TempDir::new().expect("a temporary folder");
    let data = folder.path().to_str().expect("UTF-8");
    let finished = run(&["check", "--log", "--data-dir", data]).await;
    assert!(finished.code == Some(0) && finished.stdout.contains("no log yet"), "{finished:?}");
    assert!(finished.stdout.lines().count() == 2, "the configuration is not printed: {finished:?}");
    let unclear = run(&["check", "--quarantine", "--data-dir", data]).await;
    assert!(unclear.code == USAGE && unclear.stderr.contains("--log"), "{unclear:?}");
}

#[test]
fn a_reader_that_goes_away_ends_a_command_without_a_panic() {
    let folder = TempDir::new().expect("a temporary folder");
    let data = ["--data-dir", folder.path().to_str().expect("UTF-8")];
    let commands = [
        [&["check"][..], &data],
        [&["dead-letters", "list"], &data],
        [&["dead-letters", "retry"], &data],
        [&["backup", "--to", "x"], &data],
        [&["token", "new", "--name", "a"], &[]],
        [&["--help"], &[]],
    ];
    for command in commands.map(|parts| parts.concat()) {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let both = writer.try_clone().expect("a descriptor");
        let status = Command::new(binary()).args(&command).stdout(writer).stderr(both).status().expect("it runs");
        assert!(matches!(status.code(), Some(0 | 1 | 64)), "{command:?}: {status}");
    }
}

#[tokio::test]
async fn a_server_that_would_forward_to_itself_is_refused() {
    let loops = "[http]\nlisten = '127.0.0.1:8080'\n[forward]\nurl = 'http://localhost:8080'\n";
    for command in ["serve", "check"] {
        let finished = with_config(command, loops, &[]).await;
        assert!(finished.code == USAGE && finished.stderr.contains("forward.url is http://localhost"), "{finished:?}");
    }
}

#[tokio::test]
async fn an_import_without_a_server_or_a_file_fails_and_says_why() {
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("series.csv");
    fs::write(&file, "timestamp,value\n2024-04-20 14:00:00,1\nnot a time,2\n").expect("the folder is writable");
    let file = file.to_str().expect("UTF-8");
    let absent = run(&["import", "no-such-file.csv", "--device", "a", "--url", "http://127.0.0.1:9"]).await;
    assert!(absent.code.is_some_and(|code| code != 0) && absent.stderr.contains("no-such-file.csv"), "{absent:?}");
    let bad = run(&["import", file, "--device", "not ok ", "--url", "http://127.0.0.1:9"]).await;
    let said = "must not begin or end with a space";
    assert!(bad.code.is_some_and(|code| code != 0) && bad.stderr.contains(said), "{bad:?}");
}

#[tokio::test]
async fn a_cause_is_said_once() {
    let folder = TempDir::new().expect("a temporary folder");
    let data = folder.path().join("data");
    fs::create_dir(&data).expect("the folder is writable");
    fs::write(data.join("log"), "no folder").expect("the folder is writable");
    let (data, config) = (data.to_str().expect("UTF-8"), folder.path().join("no-such.toml"));
    let no_log = run(&["serve", "--http", "127.0.0.1:0", "--udp", "off", "--data-dir", data]).await;
    assert_eq!(no_log.stderr.matches("os error").count(), 1, "{no_log:?}");
    let no_file = run(&["check", "--config", config.to_str().expect("UTF-8")]).await;
    assert_eq!(no_file.stderr.matches("os error").count(), 1, "{no_file:?}");
}

#[tokio::test]
async fn a_missing_data_folder_has_no_dead_letters() {
    let folder = TempDir::new().expect("a temporary folder");
    let (there, missing) = (folder.path().to_str().expect("UTF-8"), folder.path().join("missing"));
    let missing = missing.to_str().expect("UTF-8");
    for command in ["list", "retry"] {
        let finished = run(&["dead-letters", command, "--data-dir", missing]).await;
        assert!(finished.code == USAGE && finished.stderr.contains(missing), "{finished:?}");
    }
    let none = run(&["dead-letters", "list", "--data-dir", there]).await;
    assert_eq!((none.code, none.stdout.as_str()), (Some(0), "0 dead letters with 0 readings\n"));
}

async fn with_config(command: &str, config: &str, flags: &[&str]) -> Finished {
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("tidegauge.toml");
    fs::write(&file, config).expect("the folder is writable");
    let data = folder.path().join("data");
    let (file, data) = (file.to_str().expect("UTF-8"), data.to_str().expect("UTF-8"));
    let data_dir: &[&str] = if command == "serve" { &["--data-dir", data] } else { &[] };
    run(&[&[command, "--config", file], data_dir, flags].concat()).await
}

#[tokio::test]
async fn each_shell_has_a_script_and_that_of_bash_completes_commands_flags_and_values() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = run(&["completions", shell]).await;
        assert!(script.code == Some(0) && script.stdout.contains("dead-letters"), "{shell}: {script:?}");
    }
    let script = run(&["completions", "bash"]).await.stdout;
    for (words, expected) in [
        ("tidegauge comp", "completions"),
        ("tidegauge restore --fr", "--from"),
        ("tidegauge serve --store sq", "sqlite"),
    ] {
        let ask = format!(
            "{script}\nCOMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             _tidegauge tidegauge \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"\n\
             echo \"${{COMPREPLY[@]}}\""
        );
        let output = Command::new("bash").args(["--norc", "-c", &ask]).output().expect("bash is installed");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected, "{output:?}");
    }
    let unknown = run(&["completions", "tcsh"]).await;
    assert!(unknown.code == USAGE && unknown.stderr.contains("bash"), "{unknown:?}");
}

#[tokio::test]
async fn the_manual_page_of_a_command_is_printed() {
    let page = run(&["man", "dead-letters", "list"]).await;
    assert!(page.code == Some(0) && page.stdout.contains(".TH tidegauge-dead-letters-list 1"), "{page:?}");
    let unknown = run(&["man", "dead-letters", "lost"]).await;
    assert!(unknown.code == USAGE && unknown.stderr.contains("no command \"dead-letters lost\""), "{unknown:?}");
}
