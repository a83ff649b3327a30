//! Failures of requests, and whether a retry may help.

use std::error::Error;
use std::time::Duration;
use std::{fmt, io};

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use rustls::CertificateError::{BadSignature, UnknownIssuer};
use rustls::{AlertDescription, InvalidMessage};
use serde::Deserialize;

/// The longest wait before a retry, even if the server asks for more.
///
/// A longer wait would delay the recovery after an outage.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// The most characters that are kept of a problem document or a rejection.
const DETAIL_CHARS: usize = 1_000;

/// The most characters that are kept of any other answer.
const SHOWN_CHARS: usize = 200;

/// The alerts by which a server refuses the certificate of its client, or the lack of one.
const OF_CLIENT_CERTIFICATE: [AlertDescription; 8] = [
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::DecryptError,
    AlertDescription::CertificateRequired,
];

/// The hint in errors of a server with plain HTTP.
const NO_TLS: &str = "the server speaks no TLS at this address: if that is right, write http:// in its URL";

/// The texts that are added to errors about certificates.
#[derive(Debug, Default)]
pub(super) struct Hints {
    /// For errors about a server's certificate of an unknown authority.
    pub(super) authority: String,
    /// For a server that refuses the certificate of this client, or the lack of one.
    pub(super) identity: String,
}

/// A failed request: no connection, no answer in time, or an unexpected answer.
#[derive(Debug)]
pub struct Trouble {
    /// The kind of failure: one of [`Self::REASONS`].
    pub reason: &'static str,
    /// The wait before a retry that the server asks for.
    pub retry_after: Option<Duration>,
    /// Whether a retry cannot help before a person changes something.
    pub is_for_good: bool,
    url: String,
    /// The status of the answer; `None` without an answer.
    status: Option<StatusCode>,
    /// Whether the answer is a problem document of this API.
    is_problem: bool,
    /// The text of the error, or of the server's answer.
    said: String,
}

/// The members of a problem document that this client reads.
#[derive(Deserialize)]
struct Problem {
    code: String,
    detail: String,
}

/// An answer cannot be read.
pub(super) enum Failure {
    Http(reqwest::Error),
    Slow,
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Self {
        Self::Http(error)
    }
}

impl Trouble {
    /// The reason of answers with status 500 and the code `internal` of this API.
    pub const INTERNAL: &'static str = "internal";

    /// All reasons.
    ///
    /// They are: no connection; no answer in time; a token without the right; a rate limit; a server that
    /// takes no readings at the moment; a server that fails on this request; and any other answer, such as
    /// that of a proxy.
    pub const REASONS: [&'static str; 7] =
        ["connection", "timeout", "unauthorized", "rate_limited", "unavailable", Self::INTERNAL, "unexpected"];

    /// The text of the error, or the status and the text of the server's answer.
    #[must_use]
    pub fn detail(&self) -> String {
        match self.status {
            Some(status) => format!("{status}: {}", self.said),
            None => self.said.clone(),
        }
    }

    /// The text of the error, or of the server's answer, without the status.
    #[must_use]
    pub fn said(&self) -> &str {
        &self.said
    }

    /// Whether the server, a tidegauge, has failed with status 500.
    ///
    /// A reading in the request may be the cause.
    #[must_use]
    pub fn is_internal_error(&self) -> bool {
        self.reason == Self::INTERNAL
    }

    /// Whether there is an answer of the server.
    #[must_use]
    pub const fn is_answer(&self) -> bool {
        self.status.is_some()
    }

    /// Whether the answer has status 400: the request is malformed.
    #[must_use]
    pub fn is_bad_request(&self) -> bool {
        self.status == Some(StatusCode::BAD_REQUEST)
    }

    /// Whether the answer of the server or a proxy has status 413: too large.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        self.status == Some(StatusCode::PAYLOAD_TOO_LARGE)
    }

    /// Whether the answer is a problem document of this API.
    #[must_use]
    pub const fn is_problem(&self) -> bool {
        self.is_problem
    }

    /// Whether the server, a tidegauge, will always refuse this request.
    ///
    /// The answer is a problem document with a status 4xx. It is not 401, and not one that may pass, such as
    /// 429.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        let is_of_client = |status: StatusCode| status.is_client_error() && status != StatusCode::UNAUTHORIZED;
        self.is_problem && self.is_for_good && self.status.is_some_and(is_of_client)
    }

    /// A trouble with the reason `unexpected`: no tidegauge gives this answer.
    #[must_use]
    pub fn unexpected(url: &str, said: String) -> Self {
        Self {
            reason: "unexpected",
            retry_after: None,
            is_for_good: true,
            url: url.to_owned(),
            status: None,
            is_problem: false,
            said,
        }
    }

    pub(super) fn bad_url(url: &str, error: impl fmt::Display) -> Self {
        Self { reason: "connection", ..Self::unexpected(url, error.to_string()) }
    }

    /// The trouble of a request without a complete answer.
    ///
    /// `has_answered`: the client has had an answer before. So TLS and the certificates were right, and the
    /// cause may pass, such as a certificate that has expired, or wrong files at a reload of the server.
    pub(super) fn of_error(url: &str, error: Failure, hints: &Hints, has_answered: bool) -> Self {
        let error = match error {
            Failure::Http(error) => error.without_url(),
            Failure::Slow => {
                let slow = Self::unexpected(url, "the answer takes too long".to_owned());
                return Self { reason: "timeout", is_for_good: false, ..slow };
            }
        };
        let reason = if error.is_timeout() { "timeout" } else { "connection" };
        let (is_of_tls, hint) = match tls_error(&error) {
            // If another authority has the same name, the error is `BadSignature` instead of `UnknownIssuer`.
            Some(rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature)) => (true, &*hints.authority),
            Some(rustls::Error::InvalidCertificate(_)) => (true, ""),
            Some(rustls::Error::AlertReceived(alert)) if OF_CLIENT_CERTIFICATE.contains(alert) => {
                (true, &*hints.identity)
            }
            Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => (true, NO_TLS),
            _ => (false, ""),
        };
        let is_for_good = error.is_builder() || is_of_tls && !has_answered;
        let causes = std::iter::successors(error.source(), |&cause| cause.source());
        let mut said = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
        if !hint.is_empty() {
            said = format!("{said}: {hint}");
        }
        Self { reason, is_for_good, ..Self::unexpected(url, said) }
    }

    pub(super) fn of_status(url: &str, status: StatusCode, body: &[u8], retry_after: Option<Duration>) -> Self {
        let problem = serde_json::from_slice::<Problem>(body).ok();
        let is_internal = problem.as_ref().is_some_and(|problem| problem.code == Self::INTERNAL);
        // A long text is cut, because it goes into log lines and dead letters.
        let said = match &problem {
            Some(Problem { code, detail }) => beginning(&format!("{code}: {detail}"), DETAIL_CHARS),
            None => beginning(&String::from_utf8_lossy(body), SHOWN_CHARS),
        };
        let reason = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "unauthorized",
            StatusCode::TOO_MANY_REQUESTS => "rate_limited",
            StatusCode::REQUEST_TIMEOUT => "timeout",
            StatusCode::INTERNAL_SERVER_ERROR if is_internal => Self::INTERNAL,
            StatusCode::LOOP_DETECTED => "unexpected",
            _ if status.is_server_error() => "unavailable",
            _ => "unexpected",
        };
        let may_pass = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::REQUEST_TIMEOUT
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        Self {
            reason,
            retry_after,
            is_for_good: !may_pass,
            url: url.to_owned(),
            status: Some(status),
            is_problem: problem.is_some(),
            said,
        }
    }

    /// This trouble with another text.
    pub(super) fn saying(self, said: String) -> Self {
        Self { said, ..self }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "{} answered {status}: {}", self.url, self.said),
            None => write!(f, "{}: {}", self.url, self.said),
        }
    }
}

impl Error for Trouble {}

/// The start of the detail of a rejection, short enough to keep.
pub(super) fn short_detail(detail: &str) -> String {
    beginning(detail, DETAIL_CHARS)
}

fn beginning(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}

/// The wait in seconds that the header `Retry-After` asks for. A date is ignored.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    (seconds > 0).then(|| Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

/// The TLS error, if that is the cause of the error.
fn tls_error(error: &reqwest::Error) -> Option<&rustls::Error> {
    let mut causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.find_map(|cause| cause.downcast_ref().and_then(of_tls))
}

/// The TLS error inside an error of a connection, at any depth.
fn of_tls(error: &io::Error) -> Option<&rustls::Error> {
    let inner = error.get_ref()?;
    inner.downcast_ref().or_else(|| inner.downcast_ref().and_then(of_tls))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_of_a_long_text_is_kept() {
        let long = "ü".repeat(100_000);
        let problem = format!(r#"{{"code":"x","detail":"{long}"}}"#);
        let said = |body: &str| Trouble::of_status("http://h", StatusCode::BAD_GATEWAY, body.as_bytes(), None).said;
        assert_eq!(said(&problem).chars().count(), DETAIL_CHARS);
        assert_eq!(said(&long).chars().count(), SHOWN_CHARS);
        assert_eq!(short_detail(&long).chars().count(), DETAIL_CHARS);
    }

    #[test]
    fn only_the_problem_of_this_api_says_that_the_server_failed_on_the_request() {
        let reason = |status, body: &str| {
            Trouble::of_status("http://h", StatusCode::from_u16(status).unwrap(), body.as_bytes(), None).reason
        };
        assert_eq!(reason(500, r#"{"code":"internal","detail":"see its log"}"#), "internal");
        for (status, body) in [
            (503, r#"{"code":"internal","detail":"x"}"#),
            (500, r#"{"code":"overloaded","detail":"x"}"#),
            (500, "<html>proxy</html>"),
            (500, ""),
        ] {
            assert_eq!(reason(status, body), "unavailable", "{status} {body}");
        }
    }

    #[test]
    fn each_reason_is_one_of_the_list() {
        for status in 100..600 {
            let trouble = Trouble::of_status("http://h", StatusCode::from_u16(status).unwrap(), b"", None);
            assert!(Trouble::REASONS.contains(&trouble.reason), "{trouble}");
        }
    }
}
