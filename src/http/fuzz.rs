//! The invariants of fuzz targets: query strings, tokens and client certificates.

use axum::http::{HeaderMap, HeaderValue, Uri, header};
use rustls::pki_types::CertificateDer;

use super::access::authorize::token_of;
use super::request::params::Params;
use crate::access::{Credentials, Tokens};
use crate::config::{Auth, CertificateUse, Config, Scope};
use crate::model::{check_device_id, series};
use crate::tls::names;

/// Fuzzes the value of the header `Authorization`.
pub fn authorization(value: &[u8]) {
    let Ok(header) = HeaderValue::from_bytes(value) else { return };
    let headers = HeaderMap::from_iter([(header::AUTHORIZATION, header)]);
    let (bearer, any_scheme) = (token_of(&headers, false), token_of(&headers, true));
    if let Ok(Some(token)) = &bearer {
        let text = value.trim_ascii().get(b"bearer".len()..).unwrap_or_default();
        assert_eq!(token.as_bytes(), text.trim_ascii(), "the token is the text after the scheme");
        assert_eq!(any_scheme, bearer);
    }
    if let Ok(token) = &any_scheme {
        assert!(token.as_ref().is_some_and(|token| token.len() <= value.len()));
    }
}

/// Fuzzes the query string of a request target.
pub fn query_string(text: &[u8]) {
    let mut target = b"/?".to_vec();
    target.extend_from_slice(text);
    let Ok(uri) = Uri::try_from(target) else { return };
    let mut params = Params::of_any(&uri);
    if let Ok(filter) = params.series() {
        for text in filter.texts().into_iter().flatten() {
            assert_eq!(series::canonical(text).as_deref(), Ok(text), "a filter has canonical texts");
            let _ = filter.matches(text);
        }
    }
    let _ = params.one("device");
    let _ = params.boolean("combine", false);
    if let Ok(limit) = params.limit(100, 1_000) {
        assert!((1..=1_000).contains(&limit));
    }
    let zone = params.zone().ok().flatten();
    for name in ["from", "to"] {
        if let Ok(Some(ms)) = params.instant_ms(name, 0, zone.as_ref()) {
            assert!((-62_167_219_200_000..=253_402_300_800_000).contains(&ms), "{ms} is outside the years 0 to 9999");
        }
    }
    let _ = params.end();
}

/// Fuzzes the DER of a client certificate.
///
/// Any certificate gives access to single devices only.
pub fn certificate(der: &[u8]) {
    let certificate = names::certificate(&CertificateDer::from(der));
    let auth = Auth { client_certificate: CertificateUse::Device, ..Auth::default() };
    let config = Config { auth, ..Config::default() };
    let shown = Credentials { token: None, certificate: Some(&certificate) };
    let granted = Tokens::new(&config).grant(shown, Some(Scope::Ingest), 0);
    let Ok(grant) = granted else { return };
    assert_eq!(grant.scopes, [Scope::Ingest]);
    let ranges = grant.device_scope.ranges("");
    assert!(!ranges.is_empty());
    assert!(ranges.iter().all(|range| range.is_one_id && check_device_id(&range.prefix).is_ok()), "{ranges:?}");
}
