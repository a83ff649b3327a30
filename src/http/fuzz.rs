//! What is held against any query string.

use axum::http::Uri;

use super::params::Params;

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
