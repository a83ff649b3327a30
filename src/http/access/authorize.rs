//! Middleware that authenticates and authorizes requests, and limits their rate.
//!
//! Each route states a [`Need`]. If the token or client certificate of a request meets the need, the handler
//! gets its [`Grant`] as an `Extension`. The middleware answers all other requests, before it reads their
//! body. It reads tokens only from the header `Authorization`. Tokens in the query string are ignored, also
//! `u` and `p` of `InfluxDB` 1, because the logs of proxies contain URLs.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::cross_site::CrossSiteError;
use crate::access::{AuthError, Certificate, Credentials, Grant, Tokens};
use crate::client::is_forwarded_by_this_process;
use crate::common::backoff::jittered;
use crate::common::clock::Clock;
use crate::config::{Audience, Scope};
use crate::http::App;
use crate::http::problem::{Problem, ProblemCode, Refusals};
use crate::http::serve::connection::Peer;
use crate::http::write::influx::{self, Version};
use crate::http::write::otlp;
use crate::http::write::readings;
use crate::http::write::remote_write;
use crate::ingest::RefusalReason;
use crate::limits::Quota;
use crate::telemetry::{Limit, RefusalEntry, RequestId, Sender, What};
use crate::wire::{Format, Source};

/// The access that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Need {
    /// A token with this scope.
    Scope(Scope),
    /// The scope `ingest`, for a writer of `InfluxDB`.
    ///
    /// `Authorization` and errors have the forms of `InfluxDB`.
    InfluxWrite(Version),
    /// The scope `query` or `ingest`, for a client of InfluxQL.
    ///
    /// Writers of `InfluxDB` have only `ingest`, and send `CREATE DATABASE` before they write.
    InfluxQl,
    /// The scope `ingest`, for a sender of remote write.
    RemoteWrite,
    /// The scope `ingest`, for a client of OTLP.
    Otlp,
    /// The scope `ingest`, for a payload of a webhook.
    Webhook,
    /// Any valid token.
    AnyToken,
    /// The access that `auth.metrics` defines.
    Metrics,
    /// The access that `auth.health` defines.
    Health,
    /// No token: the answer is the same for everyone and shows no data.
    Nothing,
}

/// Passes an authorized request to its handler, and refuses all others.
pub(in crate::http) async fn authorize(
    State((app, need)): State<(Arc<App>, Need)>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>();
    let certificate = peer.and_then(|peer| peer.certificate.as_deref());
    let address = peer.map(|peer| peer.address);
    let id = request.extensions().get().copied();
    let is_over_tls = peer.is_some_and(|peer| peer.is_over_tls);
    let needs_more_than_the_address = || is_over_tls || !app.gate.tokens().allows_anonymous();
    let checked = app.hosts.check(&request, needs_more_than_the_address).map_err(AccessError::CrossSite);
    let granted = checked.and_then(|()| authorized(&app, need, request.headers(), certificate));
    let granted = match granted {
        Ok(_) if need.may_be_forwarded() && is_forwarded_by_this_process(request.headers()) => {
            Err(AccessError::ForwardLoop)
        }
        Ok(grant) => match need.charge_request(&grant.quota, Instant::now()) {
            Ok(()) => Ok(grant),
            Err(wait) => Err(AccessError::RateLimited(delay_refusal(wait).await)),
        },
        Err(error) => Err(error),
    };
    match granted {
        Ok(grant) => {
            let sender = sender(grant.name.clone(), address);
            let format = need.format_of_readings().map(|format_of| format_of(request.headers()));
            request.extensions_mut().insert(grant);
            let mut response = next.run(request).await;
            // A handler reads its parameters before anything counts its readings.
            if let Some(format) = format
                && response.extensions().get::<ProblemCode>() == Some(&ProblemCode::InvalidParameter)
            {
                app.ingest.count_refused_request(Source::http(format).into(), RefusalReason::InvalidParameter);
            }
            log_refusals(&app, need, &sender, id, &mut response);
            response
        }
        Err(error) => {
            if let Some(format_of) = need.format_of_readings() {
                let source = Source::http(format_of(request.headers()));
                app.ingest.count_refused_request(source.into(), error.reason());
            }
            let mut response = need.answer(&error, request.headers(), request.uri());
            log_refusals(&app, need, &sender(None, address), id, &mut response);
            response
        }
    }
}

fn sender(name: Option<Arc<str>>, address: Option<IpAddr>) -> Sender {
    name.map(Sender::Named).or(address.map(Sender::Address)).unwrap_or(Sender::All)
}

/// Logs the refusals in an answer, if operators should see them.
///
/// These are refused readings, unauthorized requests, and queries that the store failed. The senders of other
/// refused queries see the error themselves.
pub(in crate::http) fn log_refusals(
    app: &App,
    need: Need,
    sender: &Sender,
    request: Option<RequestId>,
    response: &mut Response,
) {
    let is_authorized = response.status() != StatusCode::UNAUTHORIZED && response.status() != StatusCode::FORBIDDEN;
    let is_server_error =
        response.extensions().get::<ProblemCode>().is_some_and(|code| code.status().is_server_error());
    let Some(Refusals(refusals)) = response.extensions_mut().remove() else { return };
    let is_logged = |refusal: &RefusalEntry| match refusal.what {
        What::Queries => app.pipeline.store_away().is_none(), // else one other line says that it is away
        _ => need.format_of_readings().is_some() || !is_authorized,
    };
    for refusal in refusals.into_iter().filter(is_logged) {
        app.refusals.record(if is_server_error { Sender::All } else { sender.clone() }, refusal, request);
    }
}

/// The upper bound of the delay before a 429.
const MAX_REFUSAL_DELAY: Duration = Duration::from_secs(1);

/// Sleeps for a part of `wait`, at most a second, before a 429. Returns the rest.
///
/// The delay slows clients that retry at once. Its jitter keeps them from retrying in step.
pub(in crate::http) async fn delay_refusal(wait: Duration) -> Duration {
    let delay = jittered(wait.min(MAX_REFUSAL_DELAY));
    tokio::time::sleep(delay).await;
    wait.saturating_sub(delay)
}

/// Why a request is not passed to its handler.
#[derive(Debug, PartialEq, Eq)]
enum AccessError {
    /// A browser may have sent the request for a page of another site.
    CrossSite(CrossSiteError),
    /// The token or certificate is missing or invalid.
    Unauthenticated(AuthError),
    /// The header `Authorization` contains no token.
    MalformedAuthorization(&'static str),
    /// The token lacks this scope.
    MissingScope(Scope),
    /// This server has sent the request itself.
    ForwardLoop,
    /// The token has used up its rate of requests, and must wait this long.
    RateLimited(Duration),
}

fn authorized(
    app: &App,
    need: Need,
    headers: &HeaderMap,
    certificate: Option<&Certificate>,
) -> Result<Arc<Grant>, AccessError> {
    if certificate.is_some_and(|certificate| certificate.is_over(app.clock.now_ms())) {
        return Err(AccessError::Unauthenticated(AuthError::ExpiredCertificate)); // on open paths too
    }
    let tokens = app.gate.tokens();
    let scope = match need {
        Need::Scope(scope) => Some(scope),
        Need::InfluxQl => Some(Scope::Query),
        Need::InfluxWrite(_) | Need::RemoteWrite | Need::Otlp | Need::Webhook => Some(Scope::Ingest),
        Need::AnyToken | Need::Nothing => None,
        Need::Metrics => (tokens.metrics == Audience::Admin).then_some(Scope::Admin),
        Need::Health => (tokens.health == Audience::Admin).then_some(Scope::Admin),
    };
    let is_open = scope.is_none() && !matches!(need, Need::AnyToken);
    let token = token_of(headers, need.takes_influx_schemes());
    let granted = authenticated(&tokens, token.clone(), certificate, scope, &app.clock);
    if need == Need::InfluxQl && !granted.as_ref().is_ok_and(|grant| grant.allows(Scope::Query)) {
        let writer = authenticated(&tokens, token, certificate, Some(Scope::Ingest), &app.clock);
        if let Some(grant) = writer.ok().filter(|grant| grant.allows(Scope::Ingest)) {
            return Ok(grant);
        }
    }
    match granted {
        Ok(grant) => match scope {
            Some(scope) if !grant.allows(scope) => {
                tracing::debug!(name = grant.name.as_deref(), scope = scope.as_str(), "a token lacks a scope");
                Err(AccessError::MissingScope(scope))
            }
            _ => Ok(grant),
        },
        Err(_) if is_open => Ok(Arc::clone(&tokens.unauthenticated)),
        Err(error) => Err(error),
    }
}

fn authenticated(
    tokens: &Tokens,
    token: Result<Option<String>, &'static str>,
    certificate: Option<&Certificate>,
    scope: Option<Scope>,
    clock: &Clock,
) -> Result<Arc<Grant>, AccessError> {
    if !tokens.authenticates() {
        return tokens.grant(Credentials::default(), scope, 0).map_err(AccessError::Unauthenticated);
    }
    let token = token.map_err(AccessError::MalformedAuthorization)?;
    let credentials = Credentials { token: token.as_deref(), certificate };
    tokens.grant(credentials, scope, clock.now_ms()).map_err(AccessError::Unauthenticated)
}

/// Reads the token in the header `Authorization`, if there is one.
pub(in crate::http) fn token_of(headers: &HeaderMap, influx: bool) -> Result<Option<String>, &'static str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err("the request has more than one header Authorization");
    }
    let text = value.to_str().map_err(|_| "the header Authorization is not ASCII")?;
    let (scheme, credentials) = text.split_once(' ').unwrap_or((text, ""));
    let credentials = credentials.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Ok(Some(credentials.to_owned()));
    }
    if influx && scheme.eq_ignore_ascii_case("token") {
        return Ok(Some(password(credentials).to_owned()));
    }
    if influx && scheme.eq_ignore_ascii_case("basic") {
        let decoded = STANDARD.decode(credentials).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let decoded = decoded.ok_or("the credentials of Authorization: Basic are not base64 of user:token")?;
        return Ok(Some(password(&decoded).to_owned()));
    }
    if influx {
        return Err("expected Authorization: Bearer TOKEN, Token TOKEN, or Basic with the token as password");
    }
    Err("expected Authorization: Bearer TOKEN")
}

/// The password of `user:password`, or the whole text if it has no colon.
///
/// Clients of version 2 that use the API of version 1 send `Token user:password`.
fn password(credentials: &str) -> &str {
    credentials.split_once(':').map_or(credentials, |(_, password)| password)
}

/// Whether the query string has `u` or `p`, with which clients of `InfluxDB` 1 may log in there.
fn has_influx_login(uri: &Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    form_urlencoded::parse(query.as_bytes()).any(|(name, _)| matches!(&*name, "u" | "p"))
}

impl Need {
    /// Whether another server may forward requests to the route.
    pub(in crate::http) const fn may_be_forwarded(self) -> bool {
        matches!(self, Self::Scope(Scope::Ingest | Scope::Metadata))
    }

    const fn takes_influx_schemes(self) -> bool {
        matches!(self, Self::InfluxWrite(_) | Self::InfluxQl | Self::Health)
    }

    /// Returns the function that finds the format of a write; `None` for other routes.
    ///
    /// The headers of `/v1/readings` name the format. The metrics count a refused write under it.
    fn format_of_readings(self) -> Option<fn(&HeaderMap) -> Format> {
        match self {
            Self::Scope(Scope::Ingest) => Some(readings::format_of),
            Self::InfluxWrite(_) => Some(|_| Format::LineProtocol),
            Self::RemoteWrite => Some(|_| Format::RemoteWrite),
            Self::Otlp => Some(|_| Format::Otlp),
            Self::Webhook => Some(|_| Format::Webhook),
            _ => None,
        }
    }

    /// Charges a request to the token, or returns how long the token must wait.
    ///
    /// Requests for metrics, health and the dashboard have no limit.
    fn charge_request(self, quota: &Quota, now: Instant) -> Result<(), Duration> {
        match &quota.requests {
            Some(limiter) if !matches!(self, Self::Metrics | Self::Health | Self::Nothing) => limiter.take(now),
            _ => Ok(()),
        }
    }

    fn answer(self, error: &AccessError, headers: &HeaderMap, uri: &Uri) -> Response {
        let problem = match error {
            AccessError::Unauthenticated(why @ (AuthError::NoToken | AuthError::NoTokenNorCertificate))
                if self.takes_influx_schemes() =>
            {
                let ignored = if has_influx_login(uri) { "; u and p in the address are ignored" } else { "" };
                Problem::unauthorized(format!(
                    "{why}; basic authentication with the token as password works too{ignored}"
                ))
            }
            _ => error.problem(),
        };
        let is_unauthorized = problem.status() == StatusCode::UNAUTHORIZED;
        let mut response = match self {
            Self::InfluxWrite(version) => version.failed(&problem),
            Self::InfluxQl => influx::query_failed(&problem),
            Self::RemoteWrite => remote_write::failed(&problem),
            Self::Otlp => otlp::Encoding::of(headers).failed(&problem),
            _ => problem.into_response(),
        };
        if is_unauthorized {
            let challenge = error.challenge();
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
            if self.takes_influx_schemes() {
                let basic = HeaderValue::from_static("Basic realm=\"tidegauge\"");
                response.headers_mut().append(header::WWW_AUTHENTICATE, basic);
            }
        }
        // Only a new connection can have the renewed certificate.
        if matches!(error, AccessError::Unauthenticated(AuthError::ExpiredCertificate)) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl AccessError {
    fn problem(&self) -> Problem {
        match self {
            Self::CrossSite(error) => Problem::from(error),
            Self::Unauthenticated(error) => Problem::unauthorized(error.to_string()),
            Self::MalformedAuthorization(why) => Problem::unauthorized((*why).to_owned()),
            Self::MissingScope(scope) => {
                Problem::forbidden(format!("the token lacks the scope \"{}\"", scope.as_str()))
            }
            Self::ForwardLoop => Problem::forward_loop(),
            Self::RateLimited(wait) => Problem::rate_limited(Limit::TokenRequests, *wait),
        }
    }

    const fn reason(&self) -> RefusalReason {
        match self {
            Self::CrossSite(CrossSiteError::ForeignOrigin) => RefusalReason::ForeignOrigin,
            Self::CrossSite(CrossSiteError::UnknownHost(_)) => RefusalReason::HostNotAllowed,
            Self::CrossSite(CrossSiteError::InvalidHost) => RefusalReason::InvalidHost,
            Self::Unauthenticated(_) | Self::MalformedAuthorization(_) => RefusalReason::Unauthorized,
            Self::MissingScope(_) => RefusalReason::Forbidden,
            Self::ForwardLoop => RefusalReason::ForwardLoop,
            Self::RateLimited(..) => RefusalReason::RateLimited,
        }
    }

    /// The value of `WWW-Authenticate` (RFC 6750, section 3).
    ///
    /// It contains no error if the request has no token.
    const fn challenge(&self) -> &'static str {
        match self {
            Self::Unauthenticated(AuthError::UnknownToken | AuthError::ExpiredToken)
            | Self::MalformedAuthorization(_)
            | Self::MissingScope(_) => "Bearer realm=\"tidegauge\", error=\"invalid_token\"",
            Self::CrossSite(_) | Self::Unauthenticated(_) | Self::ForwardLoop | Self::RateLimited(..) => {
                "Bearer realm=\"tidegauge\""
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(authorization: &[&str], influx: bool) -> Result<Option<String>, &'static str> {
        let mut headers = HeaderMap::new();
        for value in authorization {
            headers.append(header::AUTHORIZATION, HeaderValue::from_str(value).expect("a header"));
        }
        token_of(&headers, influx)
    }

    #[test]
    fn a_token_is_read_from_each_scheme() {
        let t = || Ok(Some("t".to_owned()));
        assert_eq!(token(&[], false), Ok(None));
        for shown in ["Bearer t", "bearer t", "BEARER   t "] {
            assert_eq!((token(&[shown], false), token(&[shown], true)), (t(), t()), "{shown}");
        }
        for shown in ["Token t", "Token user:t", "Basic dXNlcjp0", "basic OnQ="] {
            assert_eq!(token(&[shown], true), t(), "{shown}");
            assert!(token(&[shown], false).is_err(), "{shown} is only for the paths of InfluxDB");
        }
        assert_eq!(token(&["Basic dXNlcjphOmI="], true), Ok(Some("a:b".to_owned())), "split at the first colon");
    }

    #[test]
    fn malformed_credentials_are_refused() {
        for shown in ["Digest t", "t", "Basic %%%", "Basic /w==", "Bearert"] {
            assert!(token(&[shown], true).is_err(), "{shown}");
        }
        assert!(token(&["Bearer a", "Bearer b"], true).is_err(), "two tokens are ambiguous");
        assert_eq!(token(&["Bearer"], true), Ok(Some(String::new())), "no known token is empty");
    }
}
