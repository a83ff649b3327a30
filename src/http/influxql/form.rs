//! The parameters of a request to `/query`, in the query string or in a form.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::header::{ACCEPT, CONTENT_LENGTH, TRANSFER_ENCODING};
use axum::http::{HeaderMap, Method, Uri};

use super::super::App;
use super::super::body;
use super::{Refusal, Shape};
use crate::access::Grant;
use crate::influxql::{Epoch, Format, Parameters};
use crate::wire;

/// The rows of a chunk if the request does not say, as in InfluxDB.
const CHUNK_ROWS: usize = 10_000;

/// The most rows of a chunk.
const CHUNK_ROWS_MAX: usize = 100_000;

/// A request, as its parameters describe it.
#[derive(Debug)]
pub(super) struct Form {
    pub(super) query: String,
    pub(super) parameters: Parameters,
    pub(super) database: Option<String>,
    pub(super) epoch: Option<Epoch>,
    /// The rows of a chunk of the answer; `None`: the answer is one document.
    pub(super) chunk_rows: Option<usize>,
    pub(super) is_pretty: bool,
    pub(super) format: Format,
}

impl Form {
    /// Receives the parameters. Those of a form precede those of the query string. Other parameters, such as
    /// `u`, `p` and `rp`, have no effect.
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
        Self::parse(body, uri.query().unwrap_or_default(), format)
    }

    fn parse(body: &[u8], query: &str, format: Format) -> Result<Self, (Refusal, Shape)> {
        let mut params: Vec<(Cow<'_, str>, Cow<'_, str>)> = form_urlencoded::parse(body).collect();
        params.extend(form_urlencoded::parse(query.as_bytes()));
        let find = |name: &str| params.iter().find(|(key, _)| key == name).map(|(_, value)| value.trim());
        let is_true = |name: &str| find(name) == Some("true");
        let is_pretty = is_true("pretty");
        let malformed = |message| (Refusal::Malformed(message), Shape { format, is_pretty });
        let text = |name| find(name).filter(|value| !value.is_empty());
        let Some(query) = text("q") else {
            return Err(malformed("missing required parameter \"q\"".to_owned()));
        };
        let parameters = match text("params") {
            Some(json) => Parameters::from_json(json).map_err(malformed)?,
            None => Parameters::default(),
        };
        let chunk_rows = find("chunk_size").and_then(|size| size.parse().ok()).filter(|size| *size > 0);
        let chunk_rows = chunk_rows.unwrap_or(CHUNK_ROWS).min(CHUNK_ROWS_MAX);
        Ok(Self {
            query: query.to_owned(),
            parameters,
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

/// Whether a request has a body. Clients also post with all parameters in the query string.
fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING) || headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0")
}

/// The format that `Accept` names first, by default JSON.
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

/// The media type of an answer.
pub(super) const fn content_type(format: Format) -> &'static str {
    match format {
        Format::Json => "application/json",
        Format::Csv => "text/csv",
        Format::MessagePack => "application/x-msgpack",
    }
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
    fn a_query_is_needed_and_parameters_are_an_object() {
        for (query, error) in [
            ("db=x", "missing required parameter \"q\""),
            ("q=", "missing required parameter \"q\""),
            ("q=x&params=[1]", "error parsing query parameters"),
        ] {
            let (refusal, _) = Form::parse(b"", query, Format::Json).expect_err("no query");
            assert!(matches!(&refusal, Refusal::Malformed(message) if message.contains(error)), "{refusal:?}");
        }
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
