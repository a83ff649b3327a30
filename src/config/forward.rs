//! `[forward]`: the other server to which all accepted readings are sent too.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::check::within;
use super::secret::Secret;
use super::{Bytes, ConfigError, Period};

const TOKEN_MAX_BYTES: usize = 1_024;

/// The other server to which all accepted readings are sent too.
///
/// Forwarding is on if there is a URL.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Forward {
    /// The URL of the other server, such as `https://centre.example.com`.
    ///
    /// `None`: readings are not forwarded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The token for the other server. It needs the scope `ingest` there, and `metadata` for metadata that
    /// operators set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// The PEM file of the certificate authorities of the other server.
    ///
    /// `None`: the authorities of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// The most bytes of compressed bodies per second. 0 to 1GiB; 0: no limit.
    pub max_bytes_per_second: Bytes,
    /// The size at which a batch is sent, as JSON before compression. 1KiB to 64MiB.
    pub max_batch_bytes: Bytes,
    /// The time for the other server to answer a request. 1ms to 1h.
    pub timeout: Period,
}

impl Default for Forward {
    fn default() -> Self {
        Self {
            url: None,
            token: None,
            ca_file: None,
            max_bytes_per_second: Bytes(0),
            max_batch_bytes: Bytes::mib(1),
            timeout: Period::minutes(1),
        }
    }
}

impl Forward {
    /// Reads the token from its file.
    pub(super) fn read_secret(&mut self) -> Result<(), ConfigError> {
        self.token.as_mut().map_or(Ok(()), |token| token.read("forward.token"))
    }

    /// Checks that the URL does not name this server, which listens at `listen`.
    ///
    /// Host names other than `localhost` are not looked up in DNS, so they pass. A running server refuses the
    /// requests that it has sent itself.
    pub(super) fn check_is_other(&self, listen: SocketAddr) -> Result<(), ConfigError> {
        let Some((url, (host, port))) = self.url.as_deref().and_then(|url| Some((url, address(url)?))) else {
            return Ok(());
        };
        let here = listen.ip().to_canonical();
        let is_here = match host.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
            Ok(ip) if ip.is_loopback() || ip.is_unspecified() => {
                here.is_unspecified() || here == ip || ip.is_unspecified()
            }
            Ok(ip) => here == ip,
            Err(_) => {
                let is_localhost = host.trim_end_matches('.').eq_ignore_ascii_case("localhost");
                is_localhost && (here.is_unspecified() || here.is_loopback())
            }
        };
        if is_here && port == listen.port() {
            let problem = format!(
                "is {url}, and this server itself listens there (http.listen is {listen}): its readings would go round \
                 without end; name the other server"
            );
            return Err(ConfigError::invalid("forward.url", problem));
        }
        Ok(())
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        within("forward.max_bytes_per_second", self.max_bytes_per_second, Bytes(0), Bytes::gib(1))?;
        within("forward.max_batch_bytes", self.max_batch_bytes, Bytes::kib(1), Bytes::mib(64))?;
        within("forward.timeout", self.timeout, Period::millis(1), Period::hours(1))?;
        let Some(url) = &self.url else {
            let set = [("forward.token", self.token.is_some()), ("forward.ca_file", self.ca_file.is_some())];
            let set = set.into_iter().find(|(_, is_set)| *is_set);
            return set.map_or(Ok(()), |(key, _)| Err(ConfigError::invalid(key, "is set, so forward.url must be set")));
        };
        check_url(url)?;
        // `***` is no token: a printed configuration has it in place of the token.
        let is_token = |text: &str| {
            (1..=TOKEN_MAX_BYTES).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_graphic())
                && text != "***"
        };
        if self.token.as_ref().is_some_and(|token| !is_token(token.expose())) {
            let problem = format!("is not 1 to {TOKEN_MAX_BYTES} visible ASCII characters without spaces");
            return Err(ConfigError::invalid("forward.token", problem));
        }
        match &self.ca_file {
            Some(file) if file == Path::new("") => {
                Err(ConfigError::invalid("forward.ca_file", "is empty; remove it if you do not need it"))
            }
            Some(_) if !url.starts_with("https:") => {
                Err(ConfigError::invalid("forward.ca_file", format!("is for https://, and forward.url is {url}")))
            }
            _ => Ok(()),
        }
    }
}

/// The host and the port of a URL; `None` if the port is no number.
///
/// [`check_url`] has accepted the URL.
fn address(url: &str) -> Option<(&str, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split('/').next()?;
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (authority, if scheme == "https" { 443 } else { 80 }),
    };
    Some((host.trim_start_matches('[').trim_end_matches(']'), port))
}

/// Checks the form of the URL of the other server.
///
/// It has no user, no `?` and no `#`: URLs are logged, and these parts could be secret.
fn check_url(url: &str) -> Result<(), ConfigError> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let is_good = rest.is_some_and(|rest| {
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_graphic() && !b"@?#\\\"<>".contains(&byte))
    });
    if is_good {
        return Ok(());
    }
    let problem = "must be http:// or https://, a host, and perhaps a port and a path, as in \
                   https://centre.example.com:8080; it has no user, no \"?\" and no \"#\"";
    Err(ConfigError::invalid("forward.url", problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(keys: &str) -> Option<String> {
        let mut forward: Forward = toml::from_str(keys).expect("TOML");
        forward.read_secret().and_then(|()| forward.check()).err().map(|error| error.to_string())
    }

    #[test]
    fn a_url_names_a_server_and_no_secret() {
        for url in ["http://h", "https://h:8443/", "https://[::1]:8080", "http://10.0.0.1/tidegauge"] {
            assert_eq!(problem(&format!("url = {url:?}")), None, "{url}");
        }
        for url in ["h:8080", "ftp://h", "https://", "https://ann:hunter2@h", "https://h/?token=hunter2", "http://h h"]
        {
            let problem = problem(&format!("url = {url:?}")).expect(url);
            assert!(problem.starts_with("forward.url must be http://") && !problem.contains("hunter2"), "{problem}");
        }
    }

    #[test]
    fn a_server_does_not_forward_to_itself() {
        let is_refused = |url: &str, listen: &str| {
            let forward = Forward { url: Some(url.to_owned()), ..Forward::default() };
            forward.check_is_other(listen.parse().expect("an address")).is_err()
        };
        for (url, listen) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080"),
            ("http://LocalHost:8080/", "127.0.0.1:8080"),
            ("https://localhost", "0.0.0.0:443"),
            ("http://127.0.0.1:8080/path", "0.0.0.0:8080"),
            ("http://[::1]:8080", "[::]:8080"),
            ("http://0.0.0.0:80", "127.0.0.1:80"),
            ("http://10.0.0.1", "10.0.0.1:80"),
        ] {
            assert!(is_refused(url, listen), "{url} {listen}");
        }
        for (url, listen) in [
            ("http://127.0.0.1:8081", "127.0.0.1:8080"),
            ("http://127.0.0.1:8080", "10.0.0.1:8080"),
            ("http://10.0.0.2:8080", "0.0.0.0:8080"),
            ("http://centre:8080", "127.0.0.1:8080"),
            ("https://[::1]", "[::1]:80"),
            ("http://127.0.0.1:x", "127.0.0.1:80"),
        ] {
            assert!(!is_refused(url, listen), "{url} {listen}");
        }
    }

    #[test]
    fn the_keys_of_a_server_need_one() {
        for (keys, expected) in [
            ("token = 'x'", "forward.token is set, so forward.url must be set"),
            ("ca_file = 'x'", "forward.ca_file is set, so forward.url must be set"),
            ("url = 'http://h'\nca_file = 'x'", "forward.ca_file is for https://, and forward.url is http://h"),
            ("url = 'https://h'\nca_file = ''", "forward.ca_file is empty; remove it if you do not need it"),
            ("url = 'https://h'\ntoken = ''", "forward.token is not 1 to 1024 visible ASCII characters without spaces"),
            (
                "url = 'https://h'\ntoken = '***'",
                "forward.token is not 1 to 1024 visible ASCII characters without spaces",
            ),
        ] {
            assert_eq!(problem(keys).as_deref(), Some(expected));
        }
        let missing = problem("url = 'https://h'\ntoken = { file = '/nowhere' }").expect("no file");
        assert!(missing.starts_with("forward.token cannot be read from /nowhere"), "{missing}");
    }

    #[test]
    fn a_token_is_never_shown_and_may_be_in_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        std::fs::write(&path, "hunter2\n").expect("writable");
        for token in ["'hunter2'".to_owned(), format!("{{ file = {path:?} }}")] {
            let keys = format!("url = 'https://h'\ntoken = {token}");
            let mut forward: Forward = toml::from_str(&keys).expect("TOML");
            forward.read_secret().expect("the file is there");
            assert_eq!(forward.token.as_ref().map(Secret::expose), Some("hunter2"));
            let shown = toml::to_string(&forward).expect("TOML");
            assert!(!format!("{forward:?}{shown}").contains("hunter2"), "{shown}");
        }
    }
}
