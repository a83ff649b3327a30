//! The flags of commands that are clients of a running server: where it is, and the token to show it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use super::import::Sender;

#[derive(Debug, Args)]
pub(super) struct ClientArgs {
    /// The server
    #[arg(long, default_value = "http://127.0.0.1:8080", value_parser = parse_url)]
    url: String,
    #[arg(
        long,
        value_name = "FILE",
        help = "A file that holds the token to show to the server [default: the variable TIDEGAUGE_TOKEN, if it is set]"
    )]
    token_file: Option<PathBuf>,
}

impl ClientArgs {
    /// Sends to that server, and tries each batch for `retry_for` after its first failure.
    pub(super) fn sender(&self, retry_for: Duration) -> anyhow::Result<Sender> {
        Sender::new(&self.url, self.token()?, retry_for)
    }

    /// The token to show. It is no argument, because those show in the list of processes.
    fn token(&self) -> anyhow::Result<Option<String>> {
        let text = match &self.token_file {
            Some(file) => {
                let text = std::fs::read_to_string(file);
                Some(text.with_context(|| format!("{} (--token-file)", file.display()))?)
            }
            None => std::env::var("TIDEGAUGE_TOKEN").ok(),
        };
        Ok(text.map(|text| text.trim().to_owned()).filter(|token| !token.is_empty()))
    }
}

fn parse_url(text: &str) -> anyhow::Result<String> {
    match reqwest::Url::parse(text)?.scheme() {
        "http" => Ok(text.to_owned()),
        other => bail!("{other}:// is not spoken, only http://"),
    }
}
