//! The refusal of requests that a browser sends for a page of another site.
//!
//! A foreign page needs only a form to make its reader's browser write to this server (CSRF). It could also
//! read answers if its DNS name points first at its own server and then at this one (DNS rebinding): the
//! browser takes both servers for one site. Two checks precede all others:
//!
//! - The origin. Browsers send `Sec-Fetch-Site`, or at least `Origin`, and pages cannot change these headers.
//!   Devices, agents and `curl` send neither, and pass.
//! - The host name must belong to this server. A foreign page can rebind only a name that its owner has
//!   registered. So IP addresses, and names that cannot be registered, always pass. Without
//!   `http.allowed_hosts`, every name passes if reaching the server is not enough: for example, if a client
//!   also needs a token.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Version, header};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// The endings of names that cannot be registered.
///
/// RFC 6761, 6762 and 8375 reserve them, and ICANN reserves `internal`.
const PRIVATE_ENDS: [&str; 5] = [".localhost", ".local", ".internal", ".home.arpa", ".test"];

/// The entry of `http.allowed_hosts` that allows every name.
const ANY: &str = "*";

/// Why a request may come from a page of another site.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::http) enum CrossSiteError {
    /// A browser sent the request for a page of another origin.
    #[error(
        "a browser sent this for a page of another site; only pages of this server's own address may send requests"
    )]
    ForeignOrigin,
    /// The host name may belong to another server.
    #[error("this server does not answer to the name \"{0}\"; if it is the server's own, add it to http.allowed_hosts")]
    UnknownHost(String),
    /// The header `Host` is missing, repeated or malformed.
    #[error("an HTTP/1.1 request must have exactly one header Host, with the host and port of this server")]
    InvalidHost,
}

/// The registered host names that belong to this server.
#[derive(Debug)]
pub struct Hosts {
    allowed: Vec<String>,
    machine: String,
}

impl Hosts {
    /// The names of `http.allowed_hosts`, and the name of the machine.
    #[must_use]
    pub fn new(allowed: &[String], machine: &str) -> Self {
        Self { allowed: allowed.iter().map(|name| bare(name)).collect(), machine: bare(machine) }
    }

    /// Refuses a request that a browser may have sent for a foreign page.
    ///
    /// `needs_more_than_the_address` returns true if a rebound name is of no use to a foreign page: the
    /// request also needs a token, or the server's certificate does not contain the name.
    pub(in crate::http) fn check(
        &self,
        request: &Request,
        needs_more_than_the_address: impl FnOnce() -> bool,
    ) -> Result<(), CrossSiteError> {
        let host = host_of(request)?;
        let foreign = host.iter().chain(request.uri().authority()).find(|host| !self.is_own(host.host()));
        if let Some(foreign) = foreign
            && !(self.allowed.is_empty() && needs_more_than_the_address())
        {
            return Err(CrossSiteError::UnknownHost(foreign.host().to_owned()));
        }
        if is_for_foreign_page(request.method(), request.headers(), host.as_ref()) {
            return Err(CrossSiteError::ForeignOrigin);
        }
        Ok(())
    }

    fn is_own(&self, host: &str) -> bool {
        let name = bare(host);
        let address = name.trim_start_matches('[').trim_end_matches(']');
        address.parse::<IpAddr>().is_ok()
            || !name.contains('.')
            || PRIVATE_ENDS.iter().any(|end| name.ends_with(end))
            || name == self.machine
            || self.allowed.iter().any(|allowed| *allowed == name || allowed == ANY)
    }
}

/// A host name for comparisons: lower case, without a dot at the end.
fn bare(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Reads the header `Host`; `None`: it is empty, or missing in HTTP/1.0.
fn host_of(request: &Request) -> Result<Option<Authority>, CrossSiteError> {
    let mut values = request.headers().get_all(header::HOST).iter();
    match (values.next(), values.next()) {
        (None, _) if request.version() < Version::HTTP_11 => Ok(None),
        (Some(host), None) if host.is_empty() => Ok(None),
        (Some(host), None) => match Authority::try_from(host.as_bytes()) {
            Ok(host) if !host.as_str().contains('@') => Ok(Some(host)),
            _ => Err(CrossSiteError::InvalidHost),
        },
        _ => Err(CrossSiteError::InvalidHost),
    }
}

/// Whether a browser sent the request for a page of another origin.
///
/// A link that a person follows is allowed: the page with the link cannot read the answer.
fn is_for_foreign_page(method: &Method, headers: &HeaderMap, host: Option<&Authority>) -> bool {
    let is = |name: &HeaderName, value: &str| headers.get(name).is_some_and(|found| found == value);
    match headers.get(SEC_FETCH_SITE) {
        Some(site) if site == "same-origin" || site == "none" => false,
        Some(_) => !(method.is_safe() && is(&SEC_FETCH_MODE, "navigate") && is(&SEC_FETCH_DEST, "document")),
        None => headers.get_all(header::ORIGIN).iter().any(|origin| !is_origin_of(origin, host)),
    }
}

/// Whether `origin` is the origin of `host`.
///
/// The schemes may differ, because a proxy may terminate TLS.
fn is_origin_of(origin: &HeaderValue, host: Option<&Authority>) -> bool {
    let authority = origin.to_str().ok().and_then(|origin| Some(origin.split_once("://")?.1));
    authority.zip(host).is_some_and(|(origin, host)| origin.eq_ignore_ascii_case(host.as_str()))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    /// Checks a request with this request line, such as `GET /`, and these headers.
    fn check(hosts: &Hosts, line: &str, headers: &[(&str, &str)]) -> Result<(), CrossSiteError> {
        let (method, target) = line.split_once(' ').expect("a method and a target");
        let builder = Request::builder().method(method).uri(target);
        let builder = headers.iter().fold(builder, |builder, &(name, value)| builder.header(name, value));
        hosts.check(&builder.body(Body::empty()).expect("a request"), || false)
    }

    fn hosts() -> Hosts {
        Hosts::new(&["Ingest.Example.com".to_owned()], "pi.lan")
    }

    #[test]
    fn names_that_others_may_have_registered_are_refused() {
        for own in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "192.0.2.7",
            "[::1]:8080",
            "[2001:db8::1]",
            "localhost:8080",
            "LOCALHOST.",
            "tidegauge",
            "a:1",
            "tidegauge.iot.svc.cluster.local",
            "host.docker.internal",
            "pi.home.arpa",
            "x.localhost",
            "PI.lan:80",
            "ingest.example.com",
            "ingest.example.com.:443",
            "",
        ] {
            assert_eq!(check(&hosts(), "GET /", &[("host", own)]), Ok(()), "{own}");
        }
        for foreign in
            ["rebind.evil.example:8080", "127.0.0.1.nip.io", "example.com", "a.ingest.example.com", "x.local.com"]
        {
            let name = foreign.split(':').next().unwrap_or_default().to_owned();
            let refused = Err(CrossSiteError::UnknownHost(name));
            assert_eq!(check(&hosts(), "GET /", &[("host", foreign)]), refused, "{foreign}");
            let absolute = format!("GET http://{foreign}/v1/devices");
            assert_eq!(check(&hosts(), &absolute, &[("host", "127.0.0.1")]), refused, "{absolute}");
            let any = Hosts::new(&["*".to_owned()], "");
            assert_eq!(check(&any, "GET /", &[("host", foreign)]), Ok(()), "{foreign}");
        }
    }

    #[test]
    fn any_name_will_do_where_a_name_is_not_enough_unless_there_is_a_list() {
        let request = || Request::builder().header("host", "any.example").body(Body::empty()).expect("a request");
        let (none, some) = (Hosts::new(&[], ""), hosts());
        assert_eq!(none.check(&request(), || true), Ok(()));
        assert!(none.check(&request(), || false).is_err() && some.check(&request(), || true).is_err());
    }

    #[test]
    fn a_request_has_one_host_that_can_be_read() {
        assert_eq!(check(&hosts(), "GET /", &[]), Err(CrossSiteError::InvalidHost));
        for bad in ["a b", "a/b", "me@127.0.0.1", "[::1", "a:b:c"] {
            assert_eq!(check(&hosts(), "GET /", &[("host", bad)]), Err(CrossSiteError::InvalidHost), "{bad}");
        }
        let twice = [("host", "127.0.0.1"), ("host", "127.0.0.1")];
        assert_eq!(check(&hosts(), "GET /", &twice), Err(CrossSiteError::InvalidHost));
        let old = Request::builder().version(Version::HTTP_10).body(Body::empty()).expect("a request");
        assert_eq!(hosts().check(&old, || false), Ok(()));
    }

    #[test]
    fn requests_for_pages_of_other_origins_are_refused() {
        const HOST: (&str, &str) = ("host", "127.0.0.1:8080");
        let foreign = Err(CrossSiteError::ForeignOrigin);
        for site in ["cross-site", "same-site", "", "unheard-of"] {
            for request in ["POST /write", "GET /v1/devices", "DELETE /"] {
                assert_eq!(check(&hosts(), request, &[HOST, ("sec-fetch-site", site)]), foreign, "{site} {request}");
            }
        }
        for site in ["same-origin", "none"] {
            let headers = [HOST, ("sec-fetch-site", site), ("origin", "https://behind.a.proxy.example")];
            assert_eq!(check(&hosts(), "POST /write", &headers), Ok(()), "{site}");
        }
        let link =
            [HOST, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        assert_eq!(check(&hosts(), "GET /metrics", &link), Ok(()), "a link that a person follows");
        assert_eq!(check(&hosts(), "POST /write", &link), foreign, "a form");
        let frame = [link[0], link[1], link[2], ("sec-fetch-dest", "iframe")];
        assert_eq!(check(&hosts(), "GET /metrics", &frame), foreign);
        for (origin, expected) in [
            ("http://127.0.0.1:8080", Ok(())),
            ("https://127.0.0.1:8080", Ok(())),
            ("http://127.0.0.1:3000", foreign.clone()),
            ("http://evil.example", foreign.clone()),
            ("null", foreign.clone()),
            ("", foreign.clone()),
        ] {
            assert_eq!(check(&hosts(), "POST /write", &[HOST, ("origin", origin)]), expected, "{origin}");
        }
        let old = Request::builder().version(Version::HTTP_10).header("origin", "http://a").body(Body::empty());
        assert_eq!(hosts().check(&old.expect("a request"), || false), foreign, "it has no origin of its own");
    }
}
