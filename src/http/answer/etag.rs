//! Entity tags and compression of whole answers of queries.
//!
//! The tag is a hash (XXH3, 128 bits) of the answer before compression. So it changes exactly when the answer
//! changes, on each instance and with each store: by a late reading, another value, or a note that readings
//! are missing. A tag saves the transfer, not the query. Files of readings have no tag, because their headers
//! are sent before their end is known.
//!
//! A late reading may change any range. So no answer is fresh for a time (`no-cache`): a client keeps it, and
//! asks whether it is still the same.

use std::io;

use axum::body::Bytes;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode, response};
use xxhash_rust::xxh3::Xxh3Default;

use super::format::{Encoding, XLSX, encoded};

/// The fewest bytes of an answer that is compressed.
const COMPRESS_FROM: usize = 1 << 10;

/// The compression that a client takes, and the tags of answers that it has.
#[derive(Debug)]
pub(in crate::http) struct Negotiation {
    encoding: Encoding,
    /// The values of `If-None-Match`.
    known: Vec<HeaderValue>,
}

impl Negotiation {
    pub(in crate::http) fn of(headers: &HeaderMap) -> Self {
        let known = headers.get_all(IF_NONE_MATCH).iter().cloned().collect();
        Self { encoding: Encoding::choose(headers), known }
    }

    /// Tags an answer and compresses its body, or answers 304.
    ///
    /// The status is 304 if the client has the same answer. Only answers with the status 200 are tagged.
    pub(in crate::http) async fn finish(self, head: &mut response::Parts, body: Vec<Bytes>) -> io::Result<Vec<Bytes>> {
        let bytes: usize = body.iter().map(Bytes::len).sum();
        let is_compressed = head.headers.get(CONTENT_TYPE).is_some_and(|media| media == XLSX);
        let encoding = if bytes < COMPRESS_FROM || is_compressed { Encoding::Identity } else { self.encoding };
        if head.status == StatusCode::OK {
            let tag = tag(&body);
            let is_known = self.known.iter().any(|list| has_tag(list, &tag));
            // A compressed answer may have other bytes on another instance, so its tag is weak.
            let value = if encoding == Encoding::Identity { format!("\"{tag}\"") } else { format!("W/\"{tag}\"") };
            head.headers.insert(ETAG, HeaderValue::try_from(value).expect("hexadecimal digits"));
            head.headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
            if is_known {
                head.status = StatusCode::NOT_MODIFIED;
                head.headers.remove(CONTENT_TYPE);
                head.headers.remove(CONTENT_DISPOSITION);
                return Ok(Vec::new());
            }
        }
        let Some(header) = encoding.header() else { return Ok(body) };
        head.headers.insert(CONTENT_ENCODING, header);
        encoded(encoding, body).await
    }
}

/// Sets `Vary`: the answer depends on these headers of the request.
pub(in crate::http) fn vary(headers: &mut HeaderMap) {
    headers.insert(VARY, HeaderValue::from_static("accept, accept-encoding"));
}

fn tag(body: &[Bytes]) -> String {
    let mut hash = Xxh3Default::new();
    for piece in body {
        hash.update(piece);
    }
    format!("{:032x}", hash.digest128())
}

/// Whether a value of `If-None-Match` names the tag, strong or weak, or is `*`.
pub(in crate::http) fn has_tag(list: &HeaderValue, tag: &str) -> bool {
    let is_same = |known: &str| known.strip_prefix('"').and_then(|known| known.strip_suffix('"')) == Some(tag);
    let mut known = list.to_str().unwrap_or_default().split(',').map(str::trim);
    known.any(|known| known == "*" || is_same(known.strip_prefix("W/").unwrap_or(known)))
}

#[cfg(test)]
mod tests {
    use axum::http::header::ACCEPT_ENCODING;
    use axum::response::Response;

    use super::*;

    async fn delivered(headers: &[(axum::http::HeaderName, &str)], body: &[&str]) -> (response::Parts, Vec<u8>) {
        let headers = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap()));
        let (mut head, ()) = Response::new(()).into_parts();
        let body = body.iter().map(|piece| Bytes::from((*piece).to_owned())).collect();
        let body = Negotiation::of(&headers.collect()).finish(&mut head, body).await.unwrap();
        (head, body.concat())
    }

    #[tokio::test]
    async fn a_tag_is_that_of_the_body_whatever_its_pieces_and_its_encoding() {
        let long = "reading ".repeat(1_000);
        let (head, body) = delivered(&[], &[&long, "end"]).await;
        assert_eq!(body.len(), 8_003);
        let tag = head.headers[ETAG].to_str().unwrap().to_owned();
        assert_eq!((tag.len(), &head.headers[CACHE_CONTROL]), (34, &HeaderValue::from_static("private, no-cache")));
        let (other, _) = delivered(&[], &["reading ", &long[8..], "en", "d"]).await;
        assert_eq!(other.headers[ETAG], tag);
        assert_ne!(delivered(&[], &[&long, "enD"]).await.0.headers[ETAG], tag);
        let (zipped, body) = delivered(&[(ACCEPT_ENCODING, "zstd")], &[&long, "end"]).await;
        assert_eq!(
            (&zipped.headers[CONTENT_ENCODING], zipped.status),
            (&HeaderValue::from_static("zstd"), StatusCode::OK)
        );
        assert_eq!(zipped.headers[ETAG], format!("W/{tag}"));
        assert_eq!(zstd::decode_all(&body[..]).unwrap(), format!("{long}end").into_bytes());
        let (short, body) = delivered(&[(ACCEPT_ENCODING, "zstd")], &["short"]).await;
        assert_eq!((short.headers.contains_key(CONTENT_ENCODING), &body[..]), (false, &b"short"[..]));
    }

    #[tokio::test]
    async fn a_client_with_the_same_answer_gets_none() {
        let tag = delivered(&[], &["a"]).await.0.headers[ETAG].to_str().unwrap().to_owned();
        for (known, is_known) in [
            (tag.clone(), true),
            (format!("W/{tag}"), true),
            (format!("\"x\", W/\"a,b\",{tag} "), true),
            ("*".to_owned(), true),
            (tag.replace('"', ""), false),
            ("\"x\"".to_owned(), false),
            ("W/".to_owned(), false),
            (String::new(), false),
        ] {
            let (head, body) = delivered(&[(IF_NONE_MATCH, &known)], &["a"]).await;
            let status = if is_known { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
            assert_eq!((head.status, body.is_empty()), (status, is_known), "{known}");
            assert_eq!(head.headers[ETAG], tag, "{known}");
        }
    }
}
