//! The pages name only things that exist: keys of the configuration, metrics with their labels, files,
//! commands, other pages and their sections. The same holds for the files of `deploy`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use strum::IntoEnumIterator;
use tidegauge::common::finding::Part;

use crate::alarms::LATEST_METRICS;

/// Where the paths begin that pages name.
const ROOTS: [&str; 6] = ["src/", "tests/", "benches/", "config/", "deploy/", "docs/"];

/// The labels that Prometheus itself adds.
const LABELS_OF_PROMETHEUS: [&str; 3] = ["job", "instance", "le"];

#[test]
fn every_key_that_is_named_exists() {
    let keys: BTreeSet<String> = reference().into_keys().collect();
    let mut named = 0;
    // The changelog has former names of keys.
    for (page, text) in texts().into_iter().filter(|(page, _)| !page.ends_with("CHANGELOG.md")) {
        // Keys on a page are in backticks; in other files they may be anywhere.
        let is_page = page.extension().is_some_and(|extension| extension == "md");
        let places = if is_page { in_backticks(&text) } else { text };
        for name in names_like_keys(&places, &keys) {
            named += 1;
            let is_section = || keys.iter().any(|key| key.starts_with(&format!("{name}.")));
            let is_there = keys.contains(name) || is_section();
            assert!(is_there, "{} names {name}, which config/tidegauge.toml does not have", page.display());
        }
    }
    assert!(named > 100, "only {named} keys were found on the pages");
}

#[test]
fn every_metric_and_label_that_is_named_exists() {
    let contract = contract();
    let mut named = 0;
    for (page, text) in texts() {
        for line in text.replace("\\\"", "\"").lines().filter(|line| line.contains("tidegauge_")) {
            let place = format!("{}: {line}", page.display());
            let mut labels_of_line = BTreeSet::from(LABELS_OF_PROMETHEUS.map(str::to_owned));
            for (name, matched) in metrics_of(line) {
                let labels = labels_of(&contract, name).unwrap_or_else(|| panic!("there is no {name}: {place}"));
                for label in matched {
                    let is_label = labels.contains(label) || LABELS_OF_PROMETHEUS.contains(&label);
                    assert!(is_label, "{name} has no label {label}: {place}");
                }
                labels_of_line.extend(labels.iter().cloned());
                named += 1;
            }
            for label in grouping_labels(line) {
                assert!(labels_of_line.contains(label), "no metric has the label {label}: {place}");
            }
        }
    }
    assert!(named > 100, "only {named} metrics were found on the pages");
}

#[test]
fn every_link_leads_somewhere() {
    let mut links = 0;
    for (page, text) in texts() {
        let folder = page.parent().expect("a file is in a folder");
        for link in without_blocks(&text).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("https://") {
                continue;
            }
            links += 1;
            let (file, section) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { folder.join(file) };
            assert!(target.exists(), "{}: there is no {link}", page.display());
            let is_there = section.is_empty() || sections_of(&target).contains(section);
            assert!(is_there, "{}: there is no section {link}", page.display());
        }
    }
    assert!(links > 50, "only {links} links were found on the pages");
}

#[test]
fn every_path_that_a_page_names_exists() {
    let mut named = 0;
    for (page, text) in pages() {
        for path in
            in_backticks(&text).split_whitespace().filter(|word| ROOTS.iter().any(|root| word.starts_with(root)))
        {
            named += 1;
            // A pattern names the folder in front of its first star.
            let folder = path.split('*').next().unwrap_or(path);
            assert!(in_repository(folder).exists(), "{}: there is no {path}", page.display());
        }
    }
    assert!(named > 50, "only {named} paths were found on the pages");
}

#[test]
fn every_function_of_a_trace_is_defined_in_the_file_beside_it() {
    let page = fs::read_to_string(in_repository("ARCHITECTURE.md")).expect("the page");
    let traces = page.split("\n## Traces\n").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("the traces");
    let mut named = 0;
    for row in traces.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, file, functions, ..] = cells[..] else { panic!("no functions: {row}") };
        let path = in_repository(file.trim_matches('`'));
        let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for function in in_backticks(functions).split_whitespace() {
            named += 1;
            let is_defined = ['(', '<'].iter().any(|after| source.contains(&format!("fn {function}{after}")));
            assert!(is_defined, "{file} defines no {function}");
        }
    }
    assert!(named > 60, "only {named} functions were found in the traces");
}

#[test]
fn every_make_target_that_a_page_names_exists() {
    let makefile = fs::read_to_string(in_repository("Makefile")).expect("the Makefile");
    let mut named = 0;
    for (page, text) in pages() {
        for command in commands(&text).filter_map(|line| line.strip_prefix("make ")) {
            named += 1;
            let target = command.split_whitespace().next().unwrap_or_default();
            let is_there = makefile.lines().any(|line| line.starts_with(&format!("{target}:")));
            assert!(is_there, "{}: the Makefile has no target {target}", page.display());
        }
    }
    assert!(named > 10, "only {named} make targets were found on the pages");
}

#[test]
fn every_flag_of_a_command_that_a_page_names_exists() {
    let mut help: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut command = String::new();
    let contract = "src/cli/snapshots/tidegauge__cli__tests__the_help_of_every_command_is_a_contract.snap";
    for line in fs::read_to_string(in_repository(contract)).expect("the help of all commands").lines() {
        if let Some(name) = line.strip_prefix("$ tidegauge").and_then(|line| line.strip_suffix(" --help")) {
            command = name.trim().to_owned();
        }
        let flags = line.split([' ', ',', '[', '<']).filter(|word| word.starts_with("--")).map(str::to_owned);
        help.entry(command.clone()).or_default().extend(flags);
    }
    let mut named = 0;
    for (page, text) in pages() {
        for line in text.replace("\\\n", " ").lines() {
            for (at, name) in line.match_indices("tidegauge ") {
                let command = line[at + name.len()..].split(['`', '|', '#', ';', '&', '>']).next().unwrap_or_default();
                let words: Vec<&str> = command.split_whitespace().collect();
                let names = [2, 1].into_iter().filter_map(|count| Some(words.get(..count)?.join(" ")));
                let Some(known) = names.into_iter().find_map(|name| help.get(&name)) else { continue };
                for flag in words.iter().filter(|word| word.starts_with("--") && word.len() > 2) {
                    named += 1;
                    let flag = flag.split('=').next().unwrap_or_default().trim_end_matches([',', '.', ':', ')', '"']);
                    assert!(known.contains(flag), "{}: there is no {flag} in: {line}", page.display());
                }
            }
        }
    }
    assert!(named > 50, "only {named} flags were found on the pages");
}

#[test]
fn every_test_that_a_page_runs_exists() {
    let modules = fs::read_to_string(in_repository("tests/main.rs")).expect("the list of modules");
    let mut named = 0;
    for (page, text) in pages() {
        for (filter, _) in commands(&text).filter_map(|line| line.split_once("cargo test --")?.1.split_once("::")) {
            let (_, module) = filter.rsplit_once(' ').unwrap_or_default();
            let is_there = if filter.starts_with("lib ") {
                in_repository("src").join(module).exists()
            } else {
                modules.contains(&format!("mod {module};"))
            };
            named += 1;
            assert!(is_there, "{}: there is no {module} to test", page.display());
        }
    }
    assert!(named > 5, "only {named} commands that run tests were found on the pages");
}

#[test]
fn every_test_that_the_page_of_reliability_names_exists() {
    let page = fs::read_to_string(in_repository("docs/reliability.md")).expect("the page");
    let mut sources = String::new();
    for folder in ["src", "tests"] {
        read_sources(&in_repository(folder), &mut sources);
    }
    let mut named = 0;
    for text in in_backticks(&page).split_whitespace() {
        let (name, ending) = text.strip_suffix("...").map_or((text, "("), |start| (start, ""));
        let is_name =
            name.split('_').count() > 4 && name.chars().all(|c| c.is_ascii_lowercase() || "_0123456789".contains(c));
        if is_name && !name.starts_with("tidegauge_") {
            named += 1;
            assert!(sources.contains(&format!("fn {name}{ending}")), "no test is called {text}");
        }
    }
    assert!(named > 5, "only {named} tests were found on the page");
}

#[test]
fn the_page_of_operations_lists_each_part_that_a_check_looks_at_and_no_other() {
    let page = fs::read_to_string(in_repository("docs/operations.md")).expect("the page");
    let table = page.split("| part | looks at |\n").nth(1).expect("the table of parts");
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let cells: String = rows.filter_map(|row| row.split('|').nth(1)).collect();
    let mut listed: Vec<String> = in_backticks(&cells).split_whitespace().map(str::to_owned).collect();
    listed.sort_unstable();
    let mut known: Vec<String> = Part::iter().map(|part| part.to_string()).collect();
    known.sort_unstable();
    assert_eq!(listed, known);
    let mut sources = String::new();
    read_sources(&in_repository("src"), &mut sources);
    for part in Part::iter() {
        assert!(sources.contains(&format!("Part::{part:?}")), "nothing is found about {part}");
    }
}

#[test]
fn every_log_line_that_a_page_quotes_exists() {
    let mut sources = String::new();
    read_sources(&in_repository("src"), &mut sources);
    let sources = squeezed(&sources.replace("\\\n", ""));
    let is_sentence = |text: &str| {
        text.split(' ').count() > 3 && text.chars().all(|c| c.is_ascii_alphabetic() || c == ' ' || c == ',')
    };
    let mut quoted = 0;
    for (page, text) in pages() {
        let quotes = without_blocks(&text);
        for quote in quotes.split('`').skip(1).step_by(2).map(squeezed).filter(|quote| is_sentence(quote)) {
            quoted += 1;
            assert!(sources.contains(&quote), "{}: no log line says {quote:?}", page.display());
        }
    }
    assert!(quoted > 5, "only {quoted} log lines were found on the pages");
}

/// The text with one space for each run of white space.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Appends the Rust files of a folder and of the folders in it.
fn read_sources(folder: &Path, sources: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("a file").path();
        if path.is_dir() {
            read_sources(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *sources += &fs::read_to_string(path).expect("text");
        }
    }
}

/// The headings of a page as link fragments.
pub(crate) fn sections_of(page: &Path) -> BTreeSet<String> {
    let text = without_blocks(&fs::read_to_string(page).expect("a page"));
    let slug = |heading: &str| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    text.lines().filter(|line| line.starts_with('#')).map(|line| slug(line.trim_start_matches('#').trim())).collect()
}

/// The file with this path in the repository.
pub(crate) fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The pages, the reference of the configuration, and the files of `deploy`.
fn texts() -> Vec<(PathBuf, String)> {
    let pages =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "config/tidegauge.toml"];
    let docs = files(&in_repository("docs")).into_iter().filter(|path| path.extension().is_some_and(|it| it == "md"));
    let paths = pages.into_iter().map(in_repository).chain(docs).chain(files(&in_repository("deploy")));
    paths.map(|path| (path.clone(), fs::read_to_string(path).expect("text"))).collect()
}

/// The files in a folder and in the folders below.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The pages, without the changelog: it names things of older versions.
fn pages() -> impl Iterator<Item = (PathBuf, String)> {
    let is_page = |(path, _): &(PathBuf, String)| path.extension().is_some_and(|it| it == "md");
    texts().into_iter().filter(is_page).filter(|(path, _)| !path.ends_with("CHANGELOG.md"))
}

/// The lines of blocks, and the texts in backticks.
fn commands(page: &str) -> impl Iterator<Item = &str> {
    page.split('`').skip(1).step_by(2).flat_map(str::lines).map(str::trim_start)
}

/// The texts in backticks, outside of blocks.
fn in_backticks(page: &str) -> String {
    without_blocks(page).split('`').skip(1).step_by(2).collect::<Vec<_>>().join(" ")
}

/// The words `section.key` whose section is one of those of `keys`.
fn names_like_keys<'t>(text: &'t str, keys: &BTreeSet<String>) -> Vec<&'t str> {
    let sections: BTreeSet<&str> = keys.iter().filter_map(|key| key.split('.').next()).collect();
    let is_name = |word: &&str| {
        word.split_once('.').is_some_and(|(section, key)| {
            sections.contains(section) && key.chars().all(|c| c.is_ascii_lowercase() || "._".contains(c))
        })
    };
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "._-/".contains(c)));
    words.map(|word| word.trim_end_matches('.')).filter(is_name).filter(|word| !is_file(word)).collect()
}

/// The metrics in a line, with the labels in their matchers.
fn metrics_of(line: &str) -> Vec<(&str, Vec<&str>)> {
    let metric = |(at, _)| {
        let rest: &str = &line[at..];
        let end = rest.find(|c: char| !(c.is_ascii_lowercase() || c == '_')).unwrap_or(rest.len());
        let matchers = rest[end..].strip_prefix('{').and_then(|rest| rest.split('}').next()).unwrap_or_default();
        let labels = matchers.split(',').filter_map(|matcher| matcher.split_once('='));
        (&rest[..end], labels.map(|(label, _)| label.trim_matches([' ', '!'])).collect())
    };
    // The file of a Debian package has a version behind its name.
    line.match_indices("tidegauge_").map(metric).filter(|(name, _)| *name != "tidegauge_").collect()
}

/// The labels by which a line groups or joins.
fn grouping_labels(line: &str) -> impl Iterator<Item = &str> {
    let groups = ["by (", "on ("].into_iter().flat_map(|start| line.split(start).skip(1));
    groups.flat_map(|rest| rest.split(')').next().unwrap_or_default().split(", "))
}

fn without_blocks(page: &str) -> String {
    page.split("\n```").step_by(2).collect::<Vec<_>>().join("\n")
}

/// `server.key` and the like.
fn is_file(word: &str) -> bool {
    word.contains('/')
        || [".pem", ".key", ".csr", ".ext", ".toml", ".json", ".js"].iter().any(|extension| word.ends_with(extension))
}

/// The keys of the configuration reference as `section.key`, each with its default. The default is `None` for
/// a key that is commented out.
pub(crate) fn reference() -> BTreeMap<String, Option<String>> {
    let text = fs::read_to_string(in_repository("config/tidegauge.toml")).expect("the reference");
    let mut section = "";
    let mut keys = BTreeMap::new();
    for line in text.lines() {
        let uncommented = line.strip_prefix('#').unwrap_or(line);
        if uncommented.starts_with('[') {
            section = uncommented.trim_matches(['[', ']']);
        } else if let Some((key, value)) = uncommented.split_once(" = ")
            && key.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        {
            let default = (uncommented == line).then(|| value.trim_matches('"').to_owned());
            keys.insert(format!("{section}.{key}"), default);
        }
    }
    keys
}

/// The labels of each metric in the snapshot of `src/telemetry`, and of those of the latest values.
fn contract() -> BTreeMap<String, BTreeSet<String>> {
    let snapshot = "src/telemetry/snapshots/tidegauge__telemetry__metrics__tests__the_metrics_are_a_contract.snap";
    let text = fs::read_to_string(in_repository(snapshot)).expect("the contract of the metrics");
    let metric = |line: &str| {
        let named = line.split(' ').next()?;
        let (name, labels) = named.trim_end_matches('}').split_once('{').unwrap_or((named, ""));
        let mut labels: BTreeSet<String> = labels.split(',').map(str::to_owned).collect();
        if line.contains(" histogram ") {
            labels.insert("histogram".to_owned());
        }
        Some((name.to_owned(), labels))
    };
    let latest = LATEST_METRICS.map(|(name, labels)| (name.to_owned(), labels.iter().map(|it| (*it).into()).collect()));
    text.lines().filter(|line| line.starts_with("tidegauge_")).filter_map(metric).chain(latest).collect()
}

/// The labels of a metric, or of a part of a histogram.
fn labels_of<'a>(contract: &'a BTreeMap<String, BTreeSet<String>>, name: &str) -> Option<&'a BTreeSet<String>> {
    let part = || {
        let histogram = ["_bucket", "_count", "_sum"].iter().find_map(|part| name.strip_suffix(part))?;
        contract.get(histogram).filter(|labels| labels.contains("histogram"))
    };
    contract.get(name).or_else(part)
}
