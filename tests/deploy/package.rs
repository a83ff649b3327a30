//! The packages and the release: their files fit the program and the unit, and a release is refused if the
//! sources are not those of its version. `deploy/release/make` builds the packages, and `tests/try-release`
//! tests them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use super::{text_of, unit};
use crate::harness::binary;
use crate::pages::in_repository;

/// A file of the packages: its source, its place, its other keys.
struct Packed {
    source: String,
    place: String,
    keys: String,
}

/// The files that `nfpm.yaml` lists, one a line.
fn contents() -> Vec<Packed> {
    let text = text_of("deploy/package/nfpm.yaml");
    let packed = |line: &str| {
        let (source, rest) = line.strip_prefix("  - {src: ")?.split_once(", dst: ")?;
        let (place, keys) = rest.strip_suffix('}')?.split_once(", ").unwrap_or((rest.strip_suffix('}')?, ""));
        Some(Packed { source: source.trim_matches('"').to_owned(), place: place.to_owned(), keys: keys.to_owned() })
    };
    let contents: Vec<Packed> = text.lines().filter_map(packed).collect();
    assert_eq!(contents.len(), text.matches("src: ").count(), "a file is listed in another way");
    contents
}

#[test]
fn the_packages_have_what_the_unit_needs() {
    let contents = contents();
    for Packed { source, .. } in &contents {
        let place = source.split('*').next().expect("a path");
        assert!(source.starts_with("${FILES}/") || in_repository(place).exists(), "there is no {source}");
    }
    let installed = |path: &str| contents.iter().find(|it| it.place == path).unwrap_or_else(|| panic!("no {path}"));
    assert_eq!(installed("/usr/lib/systemd/system/tidegauge.service").source, "deploy/tidegauge.service");
    let unit = unit();
    let command: Vec<&str> = unit["ExecStart"][0].split(' ').collect();
    assert!(installed(&format!("/usr/bin/{}", command[0])).keys.contains("mode: 0755"));
    let config = command.iter().skip_while(|word| **word != "--config").nth(1).expect("--config FILE");
    for file in [config, unit["EnvironmentFile"][0].trim_start_matches('-')] {
        let keys = &installed(file).keys;
        assert!(keys.contains("type: config|noreplace") && keys.contains("mode: 0600"), "{file}: {keys}");
    }

    let package = text_of("deploy/package/nfpm.yaml");
    for script in ["deb/postinst", "deb/prerm", "deb/postrm", "rpm/post", "rpm/preun", "rpm/postun"] {
        let path = in_repository(&format!("deploy/package/{script}"));
        assert!(package.contains(&format!(": deploy/package/{script}\n")), "no package runs {script}");
        let parsed = Command::new("sh").arg("-n").arg(path).output().expect("sh runs");
        assert!(parsed.status.success(), "{}", String::from_utf8_lossy(&parsed.stderr));
    }
}

#[test]
fn the_page_of_packages_names_what_an_operator_changes() {
    let page = text_of("docs/deploy.md");
    for Packed { source, place, .. } in contents() {
        let place = if place.starts_with("/usr/lib/systemd/") { place.rsplit('/').next() } else { Some(&*place) };
        let named = place.expect("a place").split("/examples/").next().expect("a part").trim_end_matches('/');
        let is_for_shells = source.contains("/shell/");
        assert!(is_for_shells || page.contains(named), "docs/deploy.md does not name {named}, the place of {source}");
    }
    assert!(page.contains("`tidegauge.socket`"));
}

/// A checkout with what `deploy/release/make --check` reads, in one commit.
fn checkout() -> TempDir {
    let folder = TempDir::new().expect("a temporary folder");
    for file in ["CHANGELOG.md", "Cargo.toml", "clients/python/tidegauge.py", "deploy/release/make"] {
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
        fs::copy(in_repository(file), path).expect("readable");
    }
    commit(folder.path());
    folder
}

fn commit(folder: &Path) {
    let author = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"];
    for args in [&["init", "--quiet"][..], &["add", "--all"], &["commit", "--quiet", "--message=all"]] {
        let mut git = Command::new("git");
        git.env_remove("GIT_DIR").env_remove("GIT_INDEX_FILE").current_dir(folder).args(author).args(args);
        let done = git.output().expect("git runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

fn check_release(folder: &TempDir, version: &str) -> Output {
    let script = folder.path().join("deploy/release/make");
    let mut make = Command::new("bash");
    make.env_remove("GIT_DIR").env_remove("GIT_INDEX_FILE").arg(script).args([version, "--check"]);
    make.output().expect("bash runs")
}

#[test]
fn the_notes_of_a_release_are_its_section_of_the_changelog() {
    let folder = checkout();
    let version = env!("CARGO_PKG_VERSION");
    let checked = check_release(&folder, version);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let changelog = text_of("CHANGELOG.md");
    let (_, section) = changelog.split_once(&format!("\n## [{version}]")).expect("a section");
    let (_, section) = section.split("\n## ").next().and_then(|it| it.split_once('\n')).expect("a text");
    assert_eq!(String::from_utf8_lossy(&checked.stdout).trim(), section.trim());

    let changelog = format!("## [9.9.9]\n\nNew.\n\n## [{version}] - 2026-01-01\n\n- One.\n\n## [0.0.1]\n\n- Old.\n");
    fs::write(folder.path().join("CHANGELOG.md"), changelog).expect("writable");
    commit(folder.path());
    assert_eq!(String::from_utf8_lossy(&check_release(&folder, version).stdout).trim(), "- One.");
}

#[test]
fn a_release_of_other_sources_is_refused_with_the_reason() {
    let version = env!("CARGO_PKG_VERSION");
    let write = |folder: &TempDir, file: &str, text: &str| {
        fs::write(folder.path().join(file), text).expect("writable");
    };
    let refused = |folder: &TempDir, version: &str, reason: &str| {
        let refused = check_release(folder, version);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(1) && said.contains(reason), "{version}: {said}, not {reason}");
        assert!(refused.stdout.is_empty(), "{refused:?}");
    };
    let folder = checkout();
    for no_version in ["", "v0.1.0", "0.1", "0.1.0;id", "../0.1.0"] {
        refused(&folder, no_version, "name the version");
    }
    refused(&folder, "9.9.9", "Cargo.toml is not of version 9.9.9");
    write(&folder, "new-file", "");
    refused(&folder, version, "not committed");
    commit(folder.path());
    write(&folder, "clients/python/tidegauge.py", "__version__ = \"0.0.0\"\n");
    commit(folder.path());
    refused(&folder, version, "clients/python/tidegauge.py is not of version");

    let folder = checkout();
    for no_notes in ["## [Unreleased]\n\n- One.\n".to_owned(), format!("## [{version}]\n\n## [0.0.1]\n\n- Old.\n")] {
        write(&folder, "CHANGELOG.md", &no_notes);
        commit(folder.path());
        refused(&folder, version, &format!("CHANGELOG.md has no section '## [{version}]'"));
    }
}

#[test]
fn the_packages_have_the_completions_and_the_manual_pages_of_all_commands() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let made = folder.path().join("shell");
    let mut script = Command::new(in_repository("deploy/release/shell-files"));
    let script = script.arg(binary()).arg(&made).output().expect("it runs");
    assert!(script.status.success(), "{}", String::from_utf8_lossy(&script.stderr));

    // Each file that the script makes is in the packages, at the place where its program looks.
    let contents = contents();
    let of_shell = contents.iter().filter_map(|it| Some((it.source.strip_prefix("${FILES}/shell/")?, &*it.place)));
    let expected = [
        ("man/*.1.gz", "/usr/share/man/man1/"),
        ("tidegauge.bash", "/usr/share/bash-completion/completions/tidegauge"),
        ("tidegauge.fish", "/usr/share/fish/vendor_completions.d/tidegauge.fish"),
        ("_tidegauge", "/usr/share/zsh/vendor-completions/_tidegauge"),
        ("_tidegauge", "/usr/share/zsh/site-functions/_tidegauge"),
    ];
    assert_eq!(of_shell.collect::<Vec<_>>(), expected);
    let read = |name: &str| fs::read_to_string(made.join(name)).expect(name);
    assert!(read("_tidegauge").starts_with("#compdef tidegauge\n"));
    assert!(read("tidegauge.fish").contains("complete -c tidegauge "));
    let parsed = Command::new("bash").arg("-n").arg(made.join("tidegauge.bash")).output().expect("bash runs");
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
