//! The flags of commands that are clients of a running server: its address, and TLS and token of the client.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use tidegauge::client::{Options, check_url};
use tidegauge::common::small_file::read_small_text;
use tidegauge::config::Http;

/// The address of a server whose configuration does not set `http.listen`.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

#[derive(Debug, Args)]
pub(super) struct ClientArgs {
    #[arg(
        long,
        value_parser = UrlParser,
        help = "The server [default: http://127.0.0.1:8080; of dead-letters retry, the address of http.listen]"
    )]
    url: Option<String>,
    #[arg(
        long,
        value_name = "FILE",
        help = "The file with the token for the server [default: the variable TIDEGAUGE_TOKEN, if it is set]"
    )]
    token_file: Option<PathBuf>,
    #[arg(
        long,
        value_name = "FILE",
        help = "With https://: the file with the certificate authorities of the server, PEM \
                [default: those of the system]"
    )]
    ca_file: Option<PathBuf>,
    /// With https://: the file with the certificate of the client, PEM
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,
    /// The file with the private key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

impl ClientArgs {
    /// The URL of the server.
    pub(super) fn url(&self) -> &str {
        self.url.as_deref().unwrap_or(DEFAULT_URL)
    }

    /// Selects the server with this configuration, unless `--url` names one.
    pub(super) fn or_server_of(mut self, http: &Http) -> anyhow::Result<Self> {
        if self.url.is_none() {
            if http.tls.is_on() {
                let port = http.listen.port();
                bail!("name the server with --url https://NAME:{port}: its certificate has a name, and no address");
            }
            self.url = Some(local_url(http)?);
        }
        Ok(self)
    }

    /// The options of a client with these flags.
    pub(super) fn options(&self) -> anyhow::Result<Options> {
        let url = self.url();
        if !url.starts_with("https:") && (self.ca_file.is_some() || self.client_cert.is_some()) {
            bail!("--ca-file and --client-cert are for https://, and the server is {url}");
        }
        let identity = self.client_cert.clone().zip(self.client_key.clone()).map(Into::into);
        Ok(Options { token: self.token()?, ca_file: self.ca_file.clone(), identity, ..Options::new(url) })
    }

    /// The token in the file of `--token-file`, else in `TIDEGAUGE_TOKEN`.
    ///
    /// It is no command-line argument, because the process list shows arguments.
    fn token(&self) -> anyhow::Result<Option<String>> {
        let Some(file) = &self.token_file else { return token_of_environment() };
        let name = format!("{} (--token-file)", file.display());
        let text = read_small_text(file).with_context(|| name.clone())?;
        only_token(&text, &name).map(Some)
    }
}

/// The token in `TIDEGAUGE_TOKEN`; `None` if it is not set, or is empty.
pub(super) fn token_of_environment() -> anyhow::Result<Option<String>> {
    let text = std::env::var("TIDEGAUGE_TOKEN").unwrap_or_default();
    if text.trim().is_empty() { Ok(None) } else { only_token(&text, "TIDEGAUGE_TOKEN").map(Some) }
}

/// The token in the text of a file or a variable. An error does not repeat the text.
fn only_token(text: &str, name: &str) -> anyhow::Result<String> {
    let token = text.strip_prefix('\u{feff}').unwrap_or(text).trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        bail!(
            "{name}: it must have one token and nothing else, such as the first line that `tidegauge token new` \
             prints, without the word Bearer"
        );
    }
    Ok(token.to_owned())
}

/// The URL under which this machine reaches the server with this configuration.
pub(super) fn local_url(http: &Http) -> anyhow::Result<String> {
    let ip = match http.listen.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let (scheme, port) = (if http.tls.is_on() { "https" } else { "http" }, http.listen.port());
    if port == 0 {
        bail!("http.listen = \"{}\" has no fixed port, so the server cannot be found", http.listen);
    }
    Ok(format!("{scheme}://{}", SocketAddr::new(ip, port)))
}

/// Parses `--url`. It refuses a user and a password, which errors and log lines would show.
#[derive(Clone)]
struct UrlParser;

impl TypedValueParser for UrlParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        if value.as_encoded_bytes().contains(&b'@') {
            // clap puts the value into an error of `parse_url`.
            let problem = "--url must have no user, no password and no \"@\"; write the token in a file, and name the \
                           file with --token-file\n";
            return Err(clap::Error::raw(ErrorKind::ValueValidation, problem).with_cmd(command));
        }
        parse_url.parse_ref(command, arg, value)
    }
}

fn parse_url(text: &str) -> Result<String, String> {
    check_url(text).map(|()| text.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn a_url_with_a_password_is_refused_and_not_repeated() {
        let parse = |url: &str| Cli::try_parse_from(["tidegauge", "export", "--url", url]);
        parse("https://h:8443/path").expect("a URL of a server");
        for url in ["http://ann:hunter2@h", "http://hunter2@h/path", "ann:hunter2@h"] {
            let refused = parse(url).expect_err(url).to_string();
            assert!(refused.contains("no password") && refused.contains("--token-file"), "{refused}");
            assert!(!refused.contains("hunter2"), "{refused}");
        }
        let refused = parse("h:8080").expect_err("no scheme").to_string();
        assert!(refused.contains("write http://h:8080"), "{refused}");
    }

    #[test]
    fn a_server_on_all_addresses_is_reached_on_loopback() {
        for (listen, reached) in [
            ("0.0.0.0:8080", "http://127.0.0.1:8080"),
            ("[::]:8080", "http://[::1]:8080"),
            ("192.0.2.7:443", "http://192.0.2.7:443"),
            ("127.0.0.1:1", "http://127.0.0.1:1"),
        ] {
            let http = Http { listen: listen.parse().expect("an address"), ..Http::default() };
            assert_eq!(local_url(&http).expect("a URL"), reached, "{listen}");
        }
        assert_eq!(local_url(&Http::default()).expect("a URL"), DEFAULT_URL);
    }
}
