//! What is held against any query string and any `Authorization`.

use axum::http::{HeaderMap, HeaderValue, Uri, header};

use super::auth::token_of;
use super::params::Params;

/// The value of the header `Authorization`.
pub fn authorization(value: &[u8]) {
    let Ok(header) = HeaderValue::from_bytes(value) else { return };
    let headers = HeaderMap::from_iter([(header::AUTHORIZATION, header)]);
    let (bearer, any_scheme) = (token_of(&headers, false), token_of(&headers, true));
    if let Ok(Some(token)) = &bearer {
        let text = value.trim_ascii().get(b"bearer".len()..).unwrap_or_default();
        assert_eq!(token.as_bytes(), text.trim_ascii(), "a token is what stands there");
        assert_eq!(any_scheme, bearer);
    }
    if let Ok(token) = &any_scheme {
        assert!(token.as_ref().is_some_and(|token| token.len() <= value.len()));
    }
}

/// The part of a target behind the question mark.
pub fn query_string(text: &[u8]) {
    let mut target = b"/?".to_vec();
    target.extend_from_slice(text);
    let Ok(uri) = Uri::try_from(target) else { return };
    let mut params = Params::of(&uri);
    let _ = params.metrics();
    let _ = params.one("device");
    let _ = params.boolean("combine", false);
    if let Ok(limit) = params.limit(100, 1_000) {
        assert!((1..=1_000).contains(&limit));
    }
    for name in ["from", "to"] {
        if let Ok(Some(ms)) = params.instant_ms(name) {
            assert!((-62_167_219_200_000..=253_402_300_800_000).contains(&ms), "{ms} is outside the years 0 to 9999");
        }
    }
    let _ = params.end();
}
