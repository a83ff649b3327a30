//! `tidegauge key`: creates the keys that sign datagrams, and signs with them.
//!
//! No secret is a command-line argument, because the process list shows arguments.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use tidegauge::access::sign;
use tidegauge::config::{Auth, Key, KeySecret, is_key_id};

use super::Usage;
use super::credential::{self, GrantArgs, random_secret};

/// The size limit of an IPv4 datagram.
const DATAGRAM_MAX_BYTES: usize = 65_507;

/// Create keys, and sign datagrams with them.
#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a key and print its secret, for the sender, followed by its table for the configuration
    New(NewArgs),
    /// Read a datagram from standard input and print it with its signature
    Sign(SignArgs),
}

#[derive(Debug, Args)]
struct NewArgs {
    /// The ID of the key: 1 to 32 of A-Z a-z 0-9 . _ -
    #[arg(long)]
    id: String,
    #[command(flatten)]
    grant: GrantArgs,
}

#[derive(Debug, Args)]
struct SignArgs {
    /// The ID of the key
    #[arg(long)]
    id: String,
    /// The file with the secret of the key
    #[arg(long, value_name = "FILE")]
    secret_file: PathBuf,
}

/// Runs the command.
pub(super) fn run(args: KeyArgs) -> anyhow::Result<()> {
    match args.command {
        Command::New(args) => {
            let (secret, table) = new(args)?;
            writeln!(std::io::stdout(), "{secret}\n\n{table}")?;
            eprintln!(
                "The first line is the secret, for the sender. The table contains it too: keep that file private."
            );
        }
        Command::Sign(args) => {
            let mut content = Vec::new();
            std::io::stdin().lock().take(DATAGRAM_MAX_BYTES as u64 + 1).read_to_end(&mut content)?;
            let line = signature(&args, &content)?;
            // Write in one call, unlike line-buffered standard output, so that the reader gets one datagram.
            let mut out = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
            out.write_all(&[line.as_bytes(), &content].concat())?;
        }
    }
    Ok(())
}

fn new(args: NewArgs) -> anyhow::Result<(String, String)> {
    let text = random_secret();
    let NewArgs { id, grant } = args;
    let key = Key {
        id,
        secret: KeySecret::new(&text)?,
        devices: grant.devices(),
        device_prefix: grant.device_prefix,
        expires: grant.expires,
        readings_per_second: None,
    };
    let shown = toml::to_string(&key).context("a key as TOML")?;
    credential::check(Auth { keys: vec![key], ..Auth::default() })?;
    let table = shown.trim_end().replacen("secret = \"***\"", &format!("secret = \"{text}\""), 1);
    Ok((text, format!("[[auth.keys]]\n{table}")))
}

/// The signature line that precedes the content.
fn signature(args: &SignArgs, content: &[u8]) -> anyhow::Result<String> {
    if !is_key_id(args.id.as_bytes()) {
        bail!(Usage("--id: the ID of a key has 1 to 32 of A-Z a-z 0-9 . _ -".to_owned()));
    }
    let secret = KeySecret::from_file(&args.secret_file);
    let secret = secret.with_context(|| format!("{} (--secret-file)", args.secret_file.display()))?;
    let line = sign(&args.id, &secret, content);
    if line.len() + content.len() > DATAGRAM_MAX_BYTES {
        bail!("a datagram has at most {DATAGRAM_MAX_BYTES} bytes together with its signature");
    }
    Ok(line)
}
