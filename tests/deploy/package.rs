//! The Debian package: its description in `Cargo.toml` fits the files and the unit. `tests/try-deb` installs
//! the package.

use std::process::Command;

use toml::{Table, Value};

use super::{text_of, unit};
use crate::pages::in_repository;

#[test]
fn the_package_has_what_the_unit_needs() {
    let manifest: Table = toml::from_str(&text_of("Cargo.toml")).expect("TOML");
    let package = &manifest["package"]["metadata"]["deb"];
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().expect("a list").iter().map(|text| text.as_str().expect("text").to_owned()).collect()
    };
    let assets: Vec<Vec<String>> = package["assets"].as_array().expect("a list").iter().map(texts).collect();
    for asset in &assets {
        let [source, ..] = &asset[..] else { panic!("{asset:?}") };
        let place = source.split('*').next().expect("a path");
        assert!(source.starts_with("target/") || in_repository(place).exists(), "there is no {source}");
    }
    let installed = |path: &str| assets.iter().any(|asset| asset[1] == path.trim_start_matches('/'));
    for file in texts(&package["conf-files"]) {
        assert!(installed(&file), "no asset is {file}");
    }
    let unit = unit();
    let command: Vec<&str> = unit["ExecStart"][0].split(' ').collect();
    assert!(assets.iter().any(|asset| asset[0].ends_with(&format!("/{}", command[0])) && asset[1] == "usr/bin/"));
    let config = command.iter().skip_while(|word| **word != "--config").nth(1).expect("--config FILE");
    assert!(installed(config), "no asset is {config}");
    let secrets = unit["EnvironmentFile"][0].trim_start_matches('-');
    assert!(installed(secrets), "no asset is {secrets}");
    let units = package["systemd-units"]["unit-scripts"].as_str().expect("a folder");
    assert!(in_repository(units).join("tidegauge.service").is_file(), "the package has another unit");

    let scripts = package["maintainer-scripts"].as_str().expect("a folder");
    for script in ["postinst", "prerm", "postrm"] {
        let text = text_of(&format!("{scripts}{script}"));
        assert!(text.contains("\n#DEBHELPER#\n"), "{script}: nothing enables, starts or stops the service");
        let parsed = Command::new("sh").arg("-n").arg(in_repository(scripts).join(script)).output().expect("sh runs");
        assert!(parsed.status.success(), "{}", String::from_utf8_lossy(&parsed.stderr));
    }
}
