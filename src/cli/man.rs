//! `tidegauge man` and `tidegauge completions`: pages and scripts that are generated from the flags.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use tidegauge::telemetry::VERSION;

use super::{Cli, Usage};

/// The flags of `tidegauge man`.
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// The command of the page, such as serve or "dead-letters list" [default: tidegauge itself, with a list
    /// of all commands]
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// Write the pages of all commands into this folder: tidegauge.1, tidegauge-serve.1 and so on
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    output: Option<PathBuf>,
}

/// The flags of `tidegauge completions`.
#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell of the script
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the page of a command, in the format of man (roff), or writes all pages.
pub(super) fn run(args: &ManArgs) -> anyhow::Result<()> {
    let Some(folder) = &args.output else { return Ok(std::io::stdout().write_all(&page(&args.command)?)?) };
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let mut all = Cli::command();
    all.build();
    write_pages(folder, &all, &mut Vec::new())
}

/// Writes the pages of a command and of the commands below it.
///
/// `names` are the words after `tidegauge`, such as `dead-letters` and `list`.
fn write_pages(folder: &Path, command: &clap::Command, names: &mut Vec<String>) -> anyhow::Result<()> {
    let name: Vec<&str> = ["tidegauge"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let file = folder.join(format!("{}.1", name.join("-")));
    std::fs::write(&file, page(names)?).with_context(|| file.display().to_string())?;
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        names.push(below.get_name().to_owned());
        write_pages(folder, below, names)?;
        names.pop();
    }
    Ok(())
}

/// Prints a script that completes commands and flags in a shell.
pub(super) fn complete(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new(); // the generator would panic if standard output were a closed pipe
    clap_complete::generate(args.shell, &mut Cli::command(), "tidegauge", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}

fn page(names: &[String]) -> anyhow::Result<Vec<u8>> {
    let mut all = Cli::command();
    all.build(); // each command then knows its whole name
    let mut command = &all;
    for name in names.iter().flat_map(|words| words.split_whitespace()) {
        let below = command.get_subcommands().find(|below| below.get_name() == name);
        command = below.ok_or_else(|| Usage(format!("tidegauge has no command \"{}\"", names.join(" "))))?;
    }
    let mut page = Vec::new();
    Man::new(command.clone()).manual("tidegauge").source(format!("tidegauge {VERSION}")).render(&mut page)?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the pages of a command and of those below it, and returns their number.
    fn check(command: &clap::Command, names: &mut Vec<String>) -> usize {
        let page = String::from_utf8(page(names).unwrap()).unwrap().replace("\\-", "-");
        assert!(page.starts_with(".ie") && page.contains("\n.SH NAME\n"), "{page}");
        for flag in command.get_arguments().filter_map(clap::Arg::get_long) {
            assert!(page.contains(&format!("--{flag}")), "the page of {names:?} lacks --{flag}: {page}");
        }
        let mut pages = 1;
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            assert!(page.contains(below.get_name()), "the page of {names:?} lacks {}", below.get_name());
            names.push(below.get_name().to_owned());
            pages += check(below, names);
            names.pop();
        }
        pages
    }

    #[test]
    fn every_command_has_a_page_with_all_its_flags() {
        let mut all = Cli::command();
        all.build();
        assert!(check(&all, &mut Vec::new()) > 15);
        let page_of = |names: &[&str]| page(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(page_of(&["dead-letters list"]).unwrap(), page_of(&["dead-letters", "list"]).unwrap());
        page_of(&["no-such-command"]).unwrap_err();
    }
}
