//! `tidegauge key`: keys that datagrams are signed with are made here, and used. No secret is ever an
//! argument: those show in the list of processes.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use tidegauge::access::sign;
use tidegauge::config::{Auth, Config, Key, KeySecret, is_key_id};

use super::Usage;
use super::credential::{Extent, random_secret};

/// The most bytes that a datagram of IPv4 carries.
const DATAGRAM_MAX_BYTES: usize = 65_507;

/// Make keys, and sign datagrams with them.
#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a key: print its secret, for who signs with it, and below it the lines for the configuration
    New(NewArgs),
    /// Read a datagram from standard input and write it to standard output, signed
    Sign(SignArgs),
}

#[derive(Debug, Args)]
struct NewArgs {
    /// What datagrams will call it: 1 to 32 of A-Z a-z 0-9 . _ -
    #[arg(long)]
    id: String,
    #[command(flatten)]
    extent: Extent,
}

#[derive(Debug, Args)]
struct SignArgs {
    /// The id of the key
    #[arg(long)]
    id: String,
    /// A file that holds the secret of the key
    #[arg(long, value_name = "FILE")]
    secret_file: PathBuf,
}

/// Does what was asked for.
pub(super) fn run(args: KeyArgs) -> anyhow::Result<()> {
    match args.command {
        Command::New(args) => {
            let (secret, table) = new(args)?;
            writeln!(std::io::stdout(), "{secret}\n\n{table}")?;
            eprintln!("The first line is the secret, for who signs. The table holds it too: keep the file private.");
        }
        Command::Sign(args) => {
            let mut content = Vec::new();
            std::io::stdin().lock().take(DATAGRAM_MAX_BYTES as u64 + 1).read_to_end(&mut content)?;
            let line = signature(&args, &content)?;
            // With one call, which standard output does not make of lines, so that who reads makes one
            // datagram of it.
            let mut out = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
            out.write_all(&[line.as_bytes(), &content].concat())?;
        }
    }
    Ok(())
}

fn new(args: NewArgs) -> anyhow::Result<(String, String)> {
    let text = random_secret();
    let NewArgs { id, extent } = args;
    let key = Key {
        id,
        secret: KeySecret::new(&text)?,
        devices: extent.devices(),
        device_prefix: extent.device_prefix,
        expires: extent.expires,
        readings_per_second: None,
    };
    let shown = toml::to_string(&key).context("a key as TOML")?;
    let auth = Auth { keys: vec![key], ..Auth::default() };
    let alone = Config { auth, ..Config::default() };
    Config::default().reloaded(&alone).map_err(|error| Usage(error.to_string()))?;
    let table = shown.trim_end().replacen("secret = \"***\"", &format!("secret = \"{text}\""), 1);
    Ok((text, format!("[[auth.keys]]\n{table}")))
}

/// The line to stand before the content.
fn signature(args: &SignArgs, content: &[u8]) -> anyhow::Result<String> {
    if !is_key_id(args.id.as_bytes()) {
        bail!(Usage("--id: the id of a key has 1 to 32 of A-Z a-z 0-9 . _ -".to_owned()));
    }
    let secret = KeySecret::from_file(&args.secret_file);
    let secret = secret.with_context(|| format!("{} (--secret-file)", args.secret_file.display()))?;
    let line = sign(&args.id, &secret, content);
    if line.len() + content.len() > DATAGRAM_MAX_BYTES {
        bail!("a datagram has at most {DATAGRAM_MAX_BYTES} bytes together with its signature");
    }
    Ok(line)
}
