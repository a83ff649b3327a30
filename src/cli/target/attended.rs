//! Progress output of long commands that can be continued.

use anyhow::anyhow;
use tidegauge::config::MongodbUri;

use super::super::serve::StopSignals;
use super::patience::say_waits;
use super::progress::Lines;

/// Does the work of a command, and says every ten seconds what it waits for.
///
/// A signal ends the work with an error, which has the command line that continues the work.
pub(in super::super) async fn attended<T>(
    lines: &Lines,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let mut signals = StopSignals::new(false)?;
    tokio::select! {
        done = work => done,
        name = signals.received() => Err(anyhow!("stopped by {name}; to continue, repeat: {}", command_line())),
        never = say_waits(|line| lines.print(line)) => match never {},
    }
}

/// The command line of this process, for a shell.
fn command_line() -> String {
    let words: Vec<String> = std::env::args_os().map(|word| shown(&word.to_string_lossy())).collect();
    words.join(" ")
}

/// A word of a command line for a shell.
///
/// The passwords in connection strings are hidden.
fn shown(word: &str) -> String {
    let (flag, value) = word.split_once('=').filter(|(flag, _)| flag.starts_with("--")).unwrap_or(("", word));
    let word = match value.parse::<MongodbUri>() {
        Ok(uri) if flag.is_empty() => uri.to_string(),
        Ok(uri) => format!("{flag}={uri}"),
        Err(_) => word.to_owned(),
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_pasted_and_has_no_password() {
        for (word, text) in [
            ("--from", "--from"),
            ("/etc/my file", "'/etc/my file'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
            ("mongodb://me:hunter2@h:1/a?w=1", "'mongodb://me:***@h:1/a?w=1'"),
            ("--mongodb-uri=mongodb://me:hunter2@h", "'--mongodb-uri=mongodb://me:***@h'"),
            ("--data-dir=/var/lib/t", "--data-dir=/var/lib/t"),
        ] {
            assert_eq!(shown(word), text);
        }
    }
}
