//! Tables: answers as CSV or NDJSON.
//!
//! CSV has a row per entry, with a header. NDJSON has an object per entry, with the same columns as keys.
//!
//! Programs that open a table do not look at headers, so they would take a page for the whole. So a table is
//! one page only if the request has a `limit` or a `cursor`. Otherwise the rows of all pages follow each
//! other; if they are more than one, the answer is a file, of which one page at a time is in memory.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::LINK;
use axum::http::{HeaderMap, HeaderValue, Uri, Version};
use axum::response::Response;

use super::mark_lagging;
use crate::common::clock::write_rfc3339;
use crate::http::admission::Admitted;
use crate::http::file::{self, TEXT_BYTES};
use crate::http::format::{Encoding, Format, write_cell, write_number};
use crate::http::params::Params;
use crate::http::pieces::Pieces;
use crate::http::problem::Problem;
use crate::query::{Answer, QueryError};

/// Rows of a table that are being written.
pub(super) struct Table {
    format: Format,
    columns: Vec<&'static str>,
    text: Vec<u8>,
    /// The number of cells of the last row.
    cells: usize,
}

/// A table that has all pages.
pub(super) struct Whole {
    admitted: Arc<Admitted>,
    version: Version,
    encoding: Encoding,
    timeout: Duration,
}

impl Whole {
    /// `None` if the answer is one page: JSON, or one that the request asks for with `limit` or `cursor`.
    pub(super) fn of(
        format: Format,
        params: &Params<'_>,
        admitted: &Arc<Admitted>,
        (version, headers): (Version, &HeaderMap),
        timeout: Duration,
    ) -> Option<Self> {
        if format == Format::Json || params.has("limit") || params.has("cursor") {
            return None;
        }
        Some(Self { admitted: Arc::clone(admitted), version, encoding: Encoding::choose(headers), timeout })
    }

    /// The memory beside that of a page.
    pub(super) fn bytes(of: Option<&Self>) -> usize {
        if of.is_some() { TEXT_BYTES } else { 0 }
    }
}

/// The rows of a page, in parts, and the client ID after which the next page begins.
pub(super) type Page = (Vec<Vec<u8>>, Option<Arc<str>>);

impl Table {
    /// A table without rows. `format` is not JSON.
    pub(super) fn new(format: Format, columns: impl Into<Vec<&'static str>>) -> Self {
        Self { format, columns: columns.into(), text: Vec::new(), cells: 0 }
    }

    /// Writes a text.
    pub(super) fn text(&mut self, text: &str) {
        self.json_or_cell(text, |table| {
            serde_json::to_writer(&mut table.text, text).expect("a Vec takes every write");
        });
    }

    /// Writes JSON, in CSV as a text. Null is an empty cell.
    pub(super) fn json(&mut self, json: &str) {
        let cell = if json == "null" { "" } else { json };
        self.json_or_cell(cell, |table| table.text.extend_from_slice(json.as_bytes()));
    }

    /// Writes an instant, in Unix milliseconds.
    pub(super) fn instant(&mut self, ts_ms: i64) {
        let mut text = Vec::with_capacity(24);
        write_rfc3339(&mut text, ts_ms);
        self.text(std::str::from_utf8(&text).expect("ASCII"));
    }

    /// Writes a number. One that is not finite is null.
    pub(super) fn number(&mut self, number: f64) {
        if !number.is_finite() {
            return self.json("null");
        }
        self.begin_cell();
        write_number(&mut self.text, number);
        self.end_cell();
    }

    fn json_or_cell(&mut self, cell: &str, write_json: impl FnOnce(&mut Self)) {
        self.begin_cell();
        if self.format == Format::Csv {
            write_cell(&mut self.text, cell);
        } else {
            write_json(self);
        }
        self.end_cell();
    }

    fn begin_cell(&mut self) {
        let is_first = self.cells == 0;
        match self.format {
            Format::Csv if is_first => {}
            Format::Csv => self.text.push(b','),
            _ => {
                let (before, column) = (if is_first { '{' } else { ',' }, self.columns[self.cells]);
                self.text.extend_from_slice(format!("{before}\"{column}\":").as_bytes());
            }
        }
        self.cells += 1;
    }

    fn end_cell(&mut self) {
        if self.cells == self.columns.len() {
            self.cells = 0;
            self.text.extend_from_slice(if self.format == Format::Csv { b"\r\n" } else { b"}\n" });
        }
    }

    /// The rows.
    pub(super) fn into_rows(self) -> Vec<u8> {
        debug_assert_eq!(self.cells, 0, "the last row is complete");
        self.text
    }

    /// The response of the file `name`: these rows, and `others` after them. `next` is the address of the
    /// next page.
    pub(super) fn into_response(
        self,
        others: impl IntoIterator<Item = Vec<u8>>,
        name: &str,
        next: Option<String>,
        lagging: Option<Duration>,
    ) -> Response {
        let (format, header) = (self.format, self.header());
        let rows = std::iter::once(self.into_rows()).chain(others);
        let mut response = Response::new(Body::new(Pieces::new(header.into_iter().chain(rows).map(Bytes::from))));
        format.mark_file(&mut response, name);
        mark_lagging(&mut response, lagging);
        if let Some(next) = next.and_then(|next| HeaderValue::try_from(format!("<{next}>; rel=\"next\"")).ok()) {
            response.headers_mut().insert(LINK, next);
        }
        response
    }

    /// The response of the file `name`: these rows, `others`, and the rows of all pages after the device
    /// `after`, which `page` reads.
    pub(super) async fn into_file(
        self,
        others: impl IntoIterator<Item = Vec<u8>>,
        name: &str,
        (after, lagging): (Arc<str>, Option<Duration>),
        whole: Whole,
        mut page: impl AsyncFnMut(Arc<str>) -> Result<Page, QueryError> + Send + 'static,
    ) -> Result<Response, Problem> {
        let Whole { admitted, version, encoding, timeout } = whole;
        file::check_version(version)?;
        let lease = admitted.extend().await?;
        let (format, header) = (self.format, self.header());
        let mut rows: Vec<Vec<u8>> = header.into_iter().chain([self.into_rows()]).chain(others).collect();
        let mut response = file::stream(encoding, timeout, (), move |out| {
            let _lease = lease;
            let mut next = Some(after);
            loop {
                for part in rows {
                    out.write(&part)?;
                }
                let Some(after) = next else { return Ok(()) };
                (rows, next) = out.wait(page(after))?;
            }
        })?;
        format.mark_file(&mut response, name);
        mark_lagging(&mut response, lagging);
        Ok(response)
    }

    /// The header of CSV.
    fn header(&self) -> Option<Vec<u8>> {
        (self.format == Format::Csv).then(|| format!("{}\r\n", self.columns.join(",")).into_bytes())
    }
}

/// Refuses an answer without the stored readings: a table has no place to say so.
pub(super) fn complete<T>(answer: Answer<T>) -> Result<(T, Option<Duration>), QueryError> {
    let Answer { body, lagging, partial } = answer;
    if partial { Err(QueryError::incomplete()) } else { Ok((body, lagging)) }
}

/// The address of the next page: that of `uri` with another cursor.
pub(super) fn next_page(uri: &Uri, cursor: &str) -> String {
    let mut params = Params::of_any(uri);
    params.all("cursor");
    let rest = params.into_rest();
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(rest).append_pair("cursor", cursor);
    format!("{}?{}", uri.path(), query.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn text(format: Format) -> String {
        let mut table = Table::new(format, ["a", "b", "c", "d"]);
        for text in ["x", "y \"z\", é"] {
            table.text(text);
            table.number(0.5);
            table.instant(0);
            table.json(if text == "x" { r#"["a",1]"# } else { "null" });
        }
        let body = axum::body::to_bytes(table.into_response([], "t", None, None).into_body(), usize::MAX).await;
        String::from_utf8(body.unwrap().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_table_has_the_same_cells_in_both_formats() {
        assert_eq!(
            text(Format::Csv).await,
            "a,b,c,d\r\nx,0.5,1970-01-01T00:00:00.000Z,\"[\"\"a\"\",1]\"\r\n\
             \"y \"\"z\"\", é\",0.5,1970-01-01T00:00:00.000Z,\r\n"
        );
        assert_eq!(
            text(Format::Ndjson).await,
            "{\"a\":\"x\",\"b\":0.5,\"c\":\"1970-01-01T00:00:00.000Z\",\"d\":[\"a\",1]}\n\
             {\"a\":\"y \\\"z\\\", é\",\"b\":0.5,\"c\":\"1970-01-01T00:00:00.000Z\",\"d\":null}\n"
        );
    }

    #[test]
    fn the_next_page_has_the_same_parameters() {
        let uri = "/v1/devices?format=csv&cursor=a&prefix=x%26y&limit=2".parse().unwrap();
        assert_eq!(next_page(&uri, "b:c"), "/v1/devices?format=csv&prefix=x%26y&limit=2&cursor=b%3Ac");
        assert_eq!(next_page(&"/v1/devices".parse().unwrap(), "b"), "/v1/devices?cursor=b");
    }
}
