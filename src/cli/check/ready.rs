//! `tidegauge check --ready`: asks the running server whether it accepts readings.
//!
//! It is the health check of a container, which has neither a shell nor curl. It takes the address of the
//! server from the same flags, variables and file as the server itself.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::StatusCode;
use tidegauge::config::Http;

use crate::cli::client::{any_certificate, plain_http};

/// How long the server may take to answer. An orchestrator asks every few seconds.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Prints `ready` if `/readyz` of the server with this configuration answers 200, else fails with the reason.
pub(super) async fn check(http: &Http, out: &mut impl Write) -> anyhow::Result<()> {
    let address = reachable(http.listen);
    if address.port() == 0 {
        bail!("http.listen = \"{}\" has no fixed port, so the server cannot be found", http.listen);
    }
    let (scheme, client) =
        if http.tls.cert_file.is_some() { ("https", any_certificate()) } else { ("http", plain_http()) };
    let url = format!("{scheme}://{address}/readyz");
    let client = client.timeout(TIMEOUT).no_proxy().build().context("the HTTP client")?;
    let answer = client.get(&url).send().await.with_context(|| format!("{url} does not answer"))?;
    match answer.status() {
        StatusCode::OK => Ok(writeln!(out, "ready")?),
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            bail!("{url} answered {status}: the check has no token, so it needs auth.health = \"open\"")
        }
        status => bail!("{url} answered {status}: {}", answer.text().await.unwrap_or_default()),
    }
}

/// The address under which this machine reaches a server that listens on `listen`.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_all_addresses_is_reached_on_loopback() {
        for (listen, reached) in [
            ("0.0.0.0:8080", "127.0.0.1:8080"),
            ("[::]:8080", "[::1]:8080"),
            ("192.0.2.7:443", "192.0.2.7:443"),
            ("127.0.0.1:1", "127.0.0.1:1"),
        ] {
            assert_eq!(reachable(listen.parse().expect("an address")).to_string(), reached, "{listen}");
        }
    }
}
