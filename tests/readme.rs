//! The examples of the README and its pages are true: each `$ curl` in a `console` block runs against a
//! server, in order, and must print the text below it, in which `...` matches anything. Blocks marked
//! `console demo` run against a demo (`tests/demo.rs`).

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use crate::harness::mongod::signal;
use crate::harness::{Server, Setup, binary};

/// The address in the README, which is the default one.
const ADDRESSES: [&str; 2] = ["http://127.0.0.1:8080", "http://localhost:8080"];

#[tokio::test]
async fn the_curl_examples_print_what_the_readme_shows() {
    print_what_a_server_shows("README.md").await;
}

#[tokio::test]
async fn the_curl_examples_print_what_the_page_of_protocols_shows() {
    print_what_a_server_shows("docs/protocols.md").await;
}

#[test]
fn hints_are_printed_on_terminals_only() {
    let data = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(binary());
    command.args(["serve", "--http", "127.0.0.1:0", "--udp", "off", "--data-dir"]).arg(data.path().join("data"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary runs");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut first = String::new();
    out.read_line(&mut first).expect("text");
    signal(&child, "TERM");
    let mut others = String::new();
    out.read_to_string(&mut others).expect("text");
    child.wait().expect("our child");
    assert!(first.starts_with("listening http=127.0.0.1:") && others.is_empty(), "{first}{others}");
}

#[tokio::test]
async fn the_curl_examples_print_what_the_page_of_the_api_shows() {
    print_what_a_server_shows("docs/http-api.md").await;
}

#[tokio::test]
async fn the_curl_examples_print_what_the_page_of_alarms_shows() {
    print_what_a_server_shows("docs/alarms.md").await;
}

async fn print_what_a_server_shows(page: &str) {
    let text = std::fs::read_to_string(format!("{}/{page}", env!("CARGO_MANIFEST_DIR"))).expect("there is a page");
    let server = Server::start(Setup::default_config()).await;
    print_what_is_shown(page, blocks(&text, "console"), server.url()).await;
}

/// Runs the `$ curl` examples of some blocks of a page against a server.
pub(crate) async fn print_what_is_shown(page: &str, blocks: impl Iterator<Item = &str>, url: &str) {
    let is_curl = |example: &Example| example.command.starts_with("curl");
    let examples: Vec<Example> = blocks.flat_map(examples).filter(is_curl).collect();
    assert!(!examples.is_empty(), "no `$ curl` in these blocks of {page}");
    for example in examples {
        let printed = shell(&example.command, url).await;
        assert!(
            matches(&example.output, &printed),
            "$ {}\n--- {page} shows:\n{}\n--- it printed:\n{printed}",
            example.command,
            example.output
        );
    }
}

pub(crate) struct Example {
    pub(crate) command: String,
    pub(crate) output: String,
}

/// The blocks of a page that are marked with these words.
pub(crate) fn blocks<'p>(page: &'p str, words: &'p str) -> impl Iterator<Item = &'p str> {
    let marked = page.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
    marked.filter(move |(mark, _)| *mark == words).map(|(_, block)| block)
}

/// The commands of a block. A command goes on over lines that end with a backslash, and its output goes on to
/// the next command.
pub(crate) fn examples(block: &str) -> Vec<Example> {
    let lines: Vec<&str> = block.lines().collect();
    let commands = lines.chunk_by(|_, next| !next.starts_with("$ "));
    let example = |lines: &[&str]| {
        let continued = lines.iter().take_while(|line| line.ends_with('\\')).count();
        let (command, output) = lines.split_at(continued + 1);
        Example { command: command.join("\n")[2..].to_owned(), output: output.join("\n") }
    };
    commands.map(example).collect()
}

async fn shell(command: &str, url: &str) -> String {
    let script = ADDRESSES.iter().fold(command.to_owned(), |script, address| script.replace(address, url));
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || shell.output()).await.expect("no panic").expect("sh is there");
    assert!(output.status.success(), "{command}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Whether `printed` is `shown`, whatever the white space, where each `...` stands for anything.
pub(crate) fn matches(shown: &str, printed: &str) -> bool {
    let squeeze = |text: &str| text.split_whitespace().collect::<String>();
    let (shown, printed) = (squeeze(shown), squeeze(printed));
    let mut pieces = shown.split("...");
    let first = pieces.next().expect("split gives at least one piece");
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    let mut pieces = pieces.peekable();
    while let Some(piece) = pieces.next() {
        if pieces.peek().is_none() {
            return rest.ends_with(piece);
        }
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.is_empty()
}

#[test]
fn a_command_continues_over_backslashes() {
    let block = "$ tidegauge\nlistening\n$ curl a \\\n  -d b\n{\"c\":1}\n{}\n$ curl d\n";
    let found = examples(block).into_iter().map(|example| (example.command, example.output));
    let expected = [("tidegauge", "listening"), ("curl a \\\n  -d b", "{\"c\":1}\n{}"), ("curl d", "")];
    assert!(found.eq(expected.map(|(command, output)| (command.to_owned(), output.to_owned()))));
}

#[test]
fn three_dots_stand_for_anything() {
    for (shown, printed, same) in [
        ("{\"a\": 1}", "{\"a\":1}\n", true),
        ("{\"a\": ...}", "{\"a\":1}", true),
        ("{...\"b\":2...}", "{\"a\":1,\"b\":2,\"c\":3}", true),
        ("{\"a\":1}", "{\"a\":12}", false),
        ("{...\"d\":2...}", "{\"a\":1,\"b\":2,\"c\":3}", false),
    ] {
        assert_eq!(matches(shown, printed), same, "{shown} {printed}");
    }
}
