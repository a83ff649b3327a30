//! `tidegauge token`: creates, hashes and checks tokens.
//!
//! No token is a command-line argument, because the process list shows arguments.

use std::io::{IsTerminal, Read, Write};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use strum::IntoEnumIterator;
use tidegauge::access::{Credentials, TOKEN_MAX_BYTES, Tokens};
use tidegauge::common::clock::Clock;
use tidegauge::config::{Auth, Config, Scope, Token, TokenHash};

use super::Usage;
use super::credential::{self, GrantArgs, random_secret};
use super::settings::Settings;

/// The start of new tokens.
///
/// By it, people and scanners for leaked secrets recognize a token.
const START: &str = "tg_";

/// The shortest token. A shorter one could be guessed in spite of its hash.
const MIN_BYTES: usize = 20;

/// Create, hash and check tokens.
#[derive(Debug, Args)]
pub(super) struct TokenArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a token and print it, followed by its table for the configuration
    New(NewArgs),
    /// Read a token from standard input and print its hash for the configuration
    Hash,
    /// Read a token from standard input and print what it allows, or why it is refused
    Check(Box<Settings>),
}

#[derive(Debug, Args)]
struct NewArgs {
    /// The name of the owner: 1 to 64 of A-Z a-z 0-9 . _ -
    #[arg(long)]
    name: String,
    /// The scopes: ingest, query, metadata or admin; separate several with commas, or repeat the flag
    #[arg(long = "scope", value_name = "SCOPE", required = true, value_delimiter = ',', value_parser = parse_scope)]
    scopes: Vec<Scope>,
    #[command(flatten)]
    grant: GrantArgs,
}

/// Runs the command. A refused token is an error.
pub(super) fn run(args: TokenArgs) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match args.command {
        Command::New(args) => {
            let (token, table) = new(args)?;
            writeln!(out, "{token}\n\n{table}")?;
            eprintln!("The first line is the token; it is not shown again. Add the table to the configuration.");
        }
        Command::Hash => writeln!(out, "{}", TokenHash::of(&read_token()?))?,
        Command::Check(settings) => {
            let config = settings.load()?;
            writeln!(out, "{}", check(&config, &read_token()?)?)?;
        }
    }
    Ok(())
}

fn new(args: NewArgs) -> anyhow::Result<(String, String)> {
    let token = format!("{START}{}", random_secret());
    let NewArgs { name, scopes, grant } = args;
    let entry = Token {
        name,
        hash: TokenHash::of(&token),
        scopes,
        devices: grant.devices(),
        device_prefix: grant.device_prefix,
        expires: grant.expires,
        readings_per_second: None,
    };
    let table = toml::to_string(&entry).context("a token as TOML")?;
    credential::check(Auth { tokens: vec![entry], ..Auth::default() })?;
    Ok((token, format!("[[auth.tokens]]\n{}", table.trim_end())))
}

/// Describes what a token allows.
fn check(config: &Config, token: &str) -> anyhow::Result<String> {
    let tokens = Tokens::new(config);
    if tokens.count() == 0 {
        bail!("the configuration has no tokens: every client that can connect may do everything");
    }
    tokens.grant(Credentials { token: Some(token), certificate: None }, None, Clock::system().now_ms())?;
    let entry = config.auth.tokens.iter().find(|entry| entry.hash == TokenHash::of(token));
    let Token { name, scopes, devices, device_prefix, expires, .. } = entry.context("the token is not known")?;
    let devices = devices.as_ref().map_or_else(|| "all".to_owned(), |patterns| join(patterns.iter()));
    let lines = [
        format!("name      {name}"),
        format!("scopes    {}", join(scopes.iter().map(|scope| scope.as_str()))),
        format!("devices   {devices}"),
        format!("prefix    {}", device_prefix.as_deref().unwrap_or("none")),
        format!("expires   {}", expires.map_or_else(|| "never".to_owned(), |expires| expires.to_string())),
    ];
    Ok(lines.join("\n"))
}

fn join<T: ToString>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

/// Reads a token from standard input, without the white space around it.
fn read_token() -> anyhow::Result<String> {
    let input = std::io::stdin();
    if input.is_terminal() {
        eprintln!("Paste the token, then press Enter and Ctrl-D:");
    }
    let mut text = String::new();
    input.lock().take(64 << 10).read_to_string(&mut text).context("read a token from standard input")?;
    let token = text.trim();
    let is_token = (MIN_BYTES..=TOKEN_MAX_BYTES).contains(&token.len()) && token.bytes().all(|b| b.is_ascii_graphic());
    if !is_token || token.contains(':') {
        bail!(Usage(format!(
            "a token has {MIN_BYTES} to {TOKEN_MAX_BYTES} visible ASCII characters and no colon; `tidegauge token new` \
             creates a random one"
        )));
    }
    Ok(token.to_owned())
}

fn parse_scope(text: &str) -> Result<Scope, String> {
    let known = Scope::iter().find(|scope| scope.as_str() == text);
    known.ok_or_else(|| "expected ingest, query, metadata or admin".to_owned())
}
