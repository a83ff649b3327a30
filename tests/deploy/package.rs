//! The Debian package: its description in `Cargo.toml` fits the files and the unit. `tests/try-deb` installs
//! the package.

use std::fs;
use std::process::Command;

use toml::{Table, Value};

use super::{text_of, unit};
use crate::harness::binary;
use crate::pages::in_repository;

/// The description of the package in `Cargo.toml`, and its files: source, place, mode.
fn description() -> (Value, Vec<Vec<String>>) {
    let manifest: Table = toml::from_str(&text_of("Cargo.toml")).expect("TOML");
    let package = manifest["package"]["metadata"]["deb"].clone();
    let assets = package["assets"].as_array().expect("a list").iter().map(texts).collect();
    (package, assets)
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().expect("a list").iter().map(|text| text.as_str().expect("text").to_owned()).collect()
}

#[test]
fn the_package_has_what_the_unit_needs() {
    let (package, assets) = description();
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

#[test]
fn the_page_of_packages_names_what_an_operator_changes() {
    let (page, (_, assets)) = (text_of("docs/deploy.md"), description());
    for asset in &assets {
        let [source, place, _] = &asset[..] else { panic!("{asset:?}") };
        let named = if place.starts_with("usr/share/doc/") { place.split("/examples").next() } else { Some(&**place) };
        let named = format!("/{}", named.unwrap_or_default().trim_end_matches('/'));
        let is_for_shells = source.starts_with("target/shell/");
        assert!(is_for_shells || page.contains(&named), "docs/deploy.md does not name {named}, the place of {source}");
    }
    assert!(assets.iter().any(|asset| asset[0].ends_with("/tidegauge.socket")) && page.contains("`tidegauge.socket`"));
}

#[test]
fn the_package_has_the_completions_and_the_manual_pages_of_all_commands() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let made = folder.path().join("shell");
    let script = Command::new(in_repository("deploy/shell-files")).arg(binary()).arg(&made).output().expect("it runs");
    assert!(script.status.success(), "{}", String::from_utf8_lossy(&script.stderr));

    // Each file that the script makes is in the package, at the place where its program looks.
    let (_, assets) = description();
    let of_shell = assets.iter().filter_map(|asset| Some((asset[0].strip_prefix("target/shell/")?, &*asset[1])));
    let expected = [
        ("tidegauge", "usr/share/bash-completion/completions/"),
        ("_tidegauge", "usr/share/zsh/vendor-completions/"),
        ("tidegauge.fish", "usr/share/fish/vendor_completions.d/"),
        ("man/*.1", "usr/share/man/man1/"),
    ];
    assert_eq!(of_shell.collect::<Vec<_>>(), expected);
    let read = |name: &str| fs::read_to_string(made.join(name)).expect(name);
    assert!(read("_tidegauge").starts_with("#compdef tidegauge\n"));
    assert!(read("tidegauge.fish").contains("complete -c tidegauge "));
    let parsed = Command::new("bash").arg("-n").arg(made.join("tidegauge")).output().expect("bash runs");
    assert!(parsed.status.success() && parsed.stderr.is_empty(), "{}", String::from_utf8_lossy(&parsed.stderr));

    // mandb finds a page by its title and by the line below NAME.
    let mut pages: Vec<String> = fs::read_dir(made.join("man"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    pages.sort_unstable();
    assert!(pages.len() > 15 && pages.contains(&"tidegauge-dead-letters-list.1".to_owned()), "{pages:?}");
    for page in &pages {
        let (name, text) = (page.strip_suffix(".1").expect("of section 1"), read(&format!("man/{page}")));
        let title = text.lines().find(|line| line.starts_with(".TH ")).expect("a title");
        assert!(title.starts_with(&format!(".TH {name} 1 ")), "{page}: {title}");
        let (_, below) = text.split_once("\n.SH NAME\n").expect("a section NAME");
        let line = below.lines().next().unwrap_or_default().replace("\\-", "-");
        assert!(line.starts_with(&format!("{name} - ")) && line.len() > name.len() + 5, "{page}: {line}");
    }
    // The page of the program refers to those of its commands.
    let commands = pages.iter().filter(|page| page.matches('-').count() == 1 && !page.starts_with("tidegauge-dead"));
    for page in commands {
        let reference = page.replace('-', "\\-").replace(".1", "(1)");
        assert!(read("man/tidegauge.1").contains(&reference), "tidegauge.1 does not name {reference}");
    }
}
