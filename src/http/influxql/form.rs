//! The parameters of a request to `/query`, in its query string and in its form.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use axum::http::{HeaderMap, Method, Uri};

use super::{KNOWN, Refusal, Shape};
use crate::access::Grant;
use crate::http::App;
use crate::http::request::body;
use crate::influxql::{Epoch, Format, QUERY_MAX_BYTES};
use crate::wire;

/// The default of `chunk_size`, as in InfluxDB.
const CHUNK_ROWS: usize = 10_000;

/// The most rows of a chunk. A larger `chunk_size` means this many.
const CHUNK_ROWS_MAX: usize = 100_000;

/// The most bytes of `params`. Parsed, they take up to a hundred times the memory.
const PARAMS_MAX_BYTES: usize = 64 << 10;

/// The most bytes of a form or query string.
///
/// Percent-encoding may turn one byte into three.
const FORM_MAX_BYTES: usize = 3 * (QUERY_MAX_BYTES + PARAMS_MAX_BYTES) + (4 << 10);

/// The most parameters of a form and a query string together.
const PAIRS_MAX: usize = 100;

/// The media type of a form.
const FORM: &str = "application/x-www-form-urlencoded";

/// The parameters of a request to `/query`.
#[derive(Debug)]
pub(super) struct Form {
    pub(super) query: String,
    /// The JSON object with the values of `$name` in the query.
    pub(super) parameters: Option<String>,
    pub(super) database: Option<String>,
    pub(super) epoch: Option<Epoch>,
    /// The most rows of a chunk of the answer; `None`: the answer is one document.
    pub(super) chunk_rows: Option<usize>,
    pub(super) is_pretty: bool,
    pub(super) format: Format,
}

impl Form {
    /// Receives the parameters of the form and of the query string.
    ///
    /// A parameter of the form precedes the same parameter of the query string. Parameters without an effect,
    /// such as `u`, `p` and `rp`, are ignored.
    pub(super) async fn receive(
        app: &App,
        grant: &Grant,
        (method, uri, headers): (&Method, &Uri, &HeaderMap),
        body: Body,
    ) -> Result<Self, (Refusal, Shape)> {
        let format = format_of(headers);
        let refused = |problem| (Refusal::Problem(problem), Shape { format, is_pretty: false });
        let received = if *method == Method::POST && has_body(headers) {
            let received = body::receive(app, &grant.quota, wire::Format::LineProtocol, headers, body).await;
            Some(received.map_err(|error| refused(error.into()))?)
        } else {
            None
        };
        let body = received.as_ref().map_or(&[][..], |received| &received.bytes);
        let parsed = Self::parse(body, uri.query().unwrap_or_default(), format);
        parsed.map_err(|(refusal, shape)| (if body.is_empty() { refusal } else { of_body(refusal, headers) }, shape))
    }

    fn parse(body: &[u8], query: &str, format: Format) -> Result<Self, (Refusal, Shape)> {
        let refused = |message| Err((Refusal::Malformed(message), Shape { format, is_pretty: false }));
        let bytes = body.len().max(query.len());
        if bytes > FORM_MAX_BYTES {
            return refused(format!("a form has at most {FORM_MAX_BYTES} bytes, this one has {bytes}"));
        }
        let mut params: [Option<Cow<'_, str>>; KNOWN.len()] = Default::default();
        let pairs = form_urlencoded::parse(body).chain(form_urlencoded::parse(query.as_bytes()));
        for (at, (name, value)) in pairs.enumerate() {
            if at == PAIRS_MAX {
                return refused(format!("a request has at most {PAIRS_MAX} parameters"));
            }
            if let Some(place) = KNOWN.iter().position(|known| known.describes(&name)) {
                params[place].get_or_insert(value);
            }
        }
        let find = |name: &str| {
            let place = KNOWN.iter().position(|known| known.describes(name))?;
            params[place].as_deref().map(str::trim)
        };
        let is_true = |name: &str| find(name) == Some("true");
        let is_pretty = is_true("pretty");
        let malformed = |message| (Refusal::Malformed(message), Shape { format, is_pretty });
        let text = |name| find(name).filter(|value| !value.is_empty());
        let Some(query) = text("q") else {
            return Err(malformed("missing required parameter \"q\"".to_owned()));
        };
        let parameters = text("params");
        if let Some(json) = parameters.filter(|json| json.len() > PARAMS_MAX_BYTES) {
            let message = format!("params has at most {PARAMS_MAX_BYTES} bytes, this one has {}", json.len());
            return Err(malformed(message));
        }
        let chunk_rows = find("chunk_size").and_then(|size| size.parse().ok()).filter(|size| *size > 0);
        let chunk_rows = chunk_rows.unwrap_or(CHUNK_ROWS).min(CHUNK_ROWS_MAX);
        Ok(Self {
            query: query.to_owned(),
            parameters: parameters.map(str::to_owned),
            database: text("db").map(str::to_owned),
            // InfluxDB takes an unknown unit as nanoseconds.
            epoch: text("epoch").map(|unit| Epoch::parse(unit).unwrap_or(Epoch::Nanosecond)),
            chunk_rows: is_true("chunked").then_some(chunk_rows),
            is_pretty,
            format,
        })
    }

    pub(super) const fn shape(&self) -> Shape {
        Shape { format: self.format, is_pretty: self.is_pretty }
    }
}

/// Whether a request has a body.
///
/// A client may also post with all parameters in the query string.
fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING) || headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0")
}

/// Adds to an error that the body has another media type than forms.
fn of_body(refusal: Refusal, headers: &HeaderMap) -> Refusal {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = media_type.split(';').next().unwrap_or_default().trim();
    match refusal {
        Refusal::Malformed(message) if !media_type.is_empty() && !media_type.eq_ignore_ascii_case(FORM) => {
            Refusal::Malformed(format!("{message}; the body is {media_type}: send {FORM}"))
        }
        other => other,
    }
}

/// Returns the format that `Accept` names first, by default JSON.
fn format_of(headers: &HeaderMap) -> Format {
    let lists = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let types = lists.flat_map(|list| list.split(',')).map(|item| item.split(';').next().unwrap_or_default().trim());
    let known = types.filter_map(|name| match name {
        "application/json" | "*/*" => Some(Format::Json),
        "application/csv" | "text/csv" => Some(Format::Csv),
        "application/x-msgpack" => Some(Format::MessagePack),
        _ => None,
    });
    known.into_iter().next().unwrap_or(Format::Json)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_form_precedes_the_query_string() {
        let form = Form::parse(b"q=SHOW+DATABASES&epoch=x", "q=nope&db=plant&chunked=true&pretty=1", Format::Csv);
        let form = form.expect("a query");
        assert_eq!((&*form.query, form.database.as_deref()), ("SHOW DATABASES", Some("plant")));
        assert_eq!((form.epoch, form.chunk_rows, form.is_pretty), (Some(Epoch::Nanosecond), Some(10_000), false));
        let form = Form::parse(b"", "q=x&chunk_size=5", Format::Json).expect("a query");
        assert_eq!((form.epoch, form.chunk_rows), (None, None));
        for (chunk_size, rows) in [("7", 7), ("0", 10_000), ("-1", 10_000), ("9999999999", 100_000)] {
            let query = format!("q=x&chunked=true&chunk_size={chunk_size}");
            let form = Form::parse(b"", &query, Format::Json).expect("a query");
            assert_eq!(form.chunk_rows, Some(rows), "{chunk_size}");
        }
    }

    #[test]
    fn a_query_is_needed_and_forms_have_limits() {
        let pairs = |count: usize| "q=x&".to_owned() + &"+&".repeat(count - 1);
        assert!(Form::parse(b"", &pairs(PAIRS_MAX), Format::Json).is_ok());
        for (query, error) in [
            ("db=x".to_owned(), "missing required parameter \"q\""),
            ("q=".to_owned(), "missing required parameter \"q\""),
            (pairs(PAIRS_MAX + 1), "a request has at most 100 parameters"),
            (format!("q=x&params={}", "[".repeat(PARAMS_MAX_BYTES + 1)), "params has at most 65536 bytes"),
            (format!("q={}", "x".repeat(FORM_MAX_BYTES)), "a form has at most 987136 bytes, this one has 987138"),
        ] {
            for (body, query) in [(&*query, ""), ("", &query)] {
                let (refusal, _) = Form::parse(body.as_bytes(), query, Format::Json).expect_err("no query");
                assert!(matches!(&refusal, Refusal::Malformed(message) if message.contains(error)), "{refusal:?}");
            }
        }
    }

    #[test]
    fn the_error_of_a_body_that_is_no_form_names_its_media_type() {
        for (media_type, other) in [
            (FORM, None),
            ("Application/X-WWW-Form-Urlencoded; charset=utf-8", None),
            ("multipart/form-data; boundary=x", Some("multipart/form-data")),
            ("application/vnd.influxql", Some("application/vnd.influxql")),
        ] {
            let headers = [(CONTENT_TYPE, HeaderValue::from_static(media_type))].into_iter().collect();
            let refusal = of_body(Refusal::Malformed("no q".to_owned()), &headers);
            let added = other.map_or_else(String::new, |other| format!("; the body is {other}: send {FORM}"));
            assert!(matches!(&refusal, Refusal::Malformed(found) if *found == format!("no q{added}")), "{refusal:?}");
        }
    }

    #[test]
    fn the_scope_is_looked_at_before_a_query_is_parsed() {
        let read = |query: &str, may_query| {
            let form = Form::parse(b"", query, Format::Json).map_err(|(refusal, _)| refusal)?;
            super::super::statements(&form, may_query)
        };
        assert_eq!(read("q=CREATE+DATABASE+d", false).expect("it is allowed").len(), 1);
        assert!(matches!(read("q=SHOW+DATABASES", false), Err(Refusal::Problem(_))));
        let malformed = format!("q=SHOW+DATABASES&params={}", "[".repeat(2_000));
        assert!(matches!(read(&malformed, false), Err(Refusal::Problem(_))));
        let error = read(&malformed, true).expect_err("no object");
        assert!(matches!(&error, Refusal::Malformed(message) if message.contains("error parsing query parameters")));
    }

    #[test]
    fn the_first_known_type_is_the_format() {
        for (accept, format) in [
            ("text/html, application/csv;q=0.1", Format::Csv),
            ("text/csv", Format::Csv),
            ("application/x-msgpack", Format::MessagePack),
            ("*/*", Format::Json),
            ("text/html", Format::Json),
        ] {
            let headers = [(ACCEPT, HeaderValue::from_static(accept))].into_iter().collect();
            assert_eq!(format_of(&headers), format, "{accept}");
        }
    }
}
