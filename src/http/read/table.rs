//! Tables: answers as CSV, NDJSON or a workbook.
//!
//! CSV and a sheet have a header, and a row for each entry. NDJSON has an object for each entry, with the
//! names of the columns as keys.
//!
//! Programs that open a table do not look at headers of HTTP, so they would take a page for the whole list.
//! So a table is one page only if the request has a `limit` or a `cursor`. Otherwise it has the rows of all
//! pages. If the list has more than one page, the answer is a file, of which one page at a time is in memory.
//!
//! [`respond`] and [`respond_list`] choose between JSON and a table, for every query except readings.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::LINK;
use axum::http::{HeaderValue, Uri, Version};
use axum::response::Response;

use super::query_limits::RunningQuery;
use super::streamed_file::{self, TEXT_BYTES};
use super::{QueryParts, as_file};
use crate::common::clock::rfc3339;
use crate::http::answer::body_in_pieces::BodyInPieces;
use crate::http::answer::format::{Cells, Encoding, Format, encoded, write_json, write_number};
use crate::http::problem::Problem;
use crate::http::request::params::Params;
use crate::query::{Answer, Listed, QueryError};

/// The rows of a table that are being written.
pub(super) struct Table {
    format: Format,
    of_cells: Cells,
    /// The row with the names of the columns.
    header: Vec<u8>,
    /// The text before the cell of each column: a delimiter, or in NDJSON `,"name":`.
    leads: Vec<Vec<u8>>,
    /// The rows that precede `text`.
    parts: Vec<Vec<u8>>,
    text: Vec<u8>,
    /// The number of cells that the last row has so far.
    cells: usize,
}

/// A list of devices, whose answer has pages.
pub(super) trait List: Send + 'static {
    /// A device with its data.
    type Item: Send;

    /// Returns the first page, or the page that [`Self::go_on_after`] has chosen.
    fn page(&mut self) -> impl Future<Output = Result<Answer<Listed<Self::Item>>, QueryError>> + Send;

    /// Makes the next page begin after this client ID.
    fn go_on_after(&mut self, last: &str);

    /// Makes a table without rows.
    fn table(&self) -> Table;

    /// Adds the rows of a device.
    fn add_rows(item: Self::Item, table: &mut Table);

    /// Makes the answer as JSON.
    fn to_json(found: Answer<Listed<Self::Item>>) -> Response;
}

/// The answer to a request for a list: one page, or a table of all pages.
pub(super) struct ListReply {
    /// The name of the file, without extension.
    name: &'static str,
    format: Format,
    uri: Uri,
    /// `Some`: a table of all pages. `None`: one page.
    ///
    /// One page is JSON, or a table for a request with `limit` or `cursor`.
    whole: Option<Whole>,
}

/// The means to send a table of all pages as a file.
struct Whole {
    running: Arc<RunningQuery>,
    version: Version,
    encoding: Encoding,
    /// The longest time that the client may take for a piece of the file.
    timeout: Duration,
}

impl ListReply {
    /// Chooses between one page and a table of all pages.
    pub(super) fn new(name: &'static str, format: Format, params: &Params<'_>, parts: &QueryParts) -> Self {
        let is_page = format == Format::Json || params.has("limit") || params.has("cursor");
        let whole = (!is_page).then(|| Whole {
            running: Arc::clone(&parts.running),
            version: parts.version,
            encoding: format.encoding(&parts.headers),
            timeout: parts.app.limits.body_timeout,
        });
        Self { name, format, uri: parts.uri.clone(), whole }
    }

    /// Whether the answer has all pages.
    pub(super) const fn is_whole(&self) -> bool {
        self.whole.is_some()
    }

    /// Returns the bytes of memory that the answer needs beside those of a page.
    pub(super) const fn bytes(&self) -> usize {
        if self.whole.is_some() { TEXT_BYTES } else { 0 }
    }
}

/// Answers with JSON, or with a file `name` that has a table of the data.
pub(super) async fn respond<T>(
    format: Format,
    name: &str,
    found: Answer<T>,
    to_json: impl FnOnce(Answer<T>) -> Response,
    to_table: impl FnOnce(T) -> Table,
) -> Result<Response, Problem> {
    if format == Format::Json {
        return Ok(to_json(found));
    }
    let (body, lagging) = complete(found)?;
    to_table(body).into_response(name, None, lagging).await
}

/// Answers with a page of a list, or with a table of all pages.
pub(super) async fn respond_list<L: List>(mut list: L, reply: ListReply) -> Result<Response, Problem> {
    let ListReply { name, format, uri, whole } = reply;
    let found = list.page().await?;
    if format == Format::Json {
        return Ok(L::to_json(found));
    }
    let (Listed { devices, next }, lagging) = complete(found)?;
    let table = list.table().with_rows::<L>(devices);
    let (Some(after), Some(whole)) = (&next, whole) else {
        return table.into_response(name, next.map(|next| next_page(&uri, &next)), lagging).await;
    };
    let after = Arc::clone(after);
    Ok(as_file(table.into_file(list, after, whole).await?, format, name, lagging))
}

impl Table {
    /// Makes a table without rows, in a format other than JSON.
    pub(super) fn new<'c>(
        format: Format,
        of_cells: &Cells,
        columns: impl IntoIterator<Item = impl Into<Cow<'c, str>>>,
    ) -> Self {
        let columns: Vec<Cow<'c, str>> = columns.into_iter().map(Into::into).collect();
        let mut header = Vec::new();
        if format.has_cells() {
            of_cells.header(&mut header, columns.iter().map(|column| &**column));
        }
        let lead = |(at, column): (usize, &Cow<'c, str>)| {
            if format.has_cells() {
                return of_cells.lead(at).to_owned();
            }
            let mut lead = vec![if at == 0 { b'{' } else { b',' }];
            write_json(&mut lead, &**column);
            lead.push(b':');
            lead
        };
        let leads = columns.iter().enumerate().map(lead).collect();
        Self { format, of_cells: of_cells.clone(), header, leads, parts: Vec::new(), text: Vec::new(), cells: 0 }
    }

    /// Writes a cell with a text.
    pub(super) fn text(&mut self, text: &str) {
        self.cell(|cells, row| cells.cell(row, text), |row| write_json(row, text));
    }

    /// Writes a cell with JSON, which is empty for null.
    pub(super) fn json(&mut self, json: &str) {
        self.cell(|cells, row| cells.json(row, json), |row| row.extend_from_slice(json.as_bytes()));
    }

    /// Writes a cell with an instant, given in Unix milliseconds.
    pub(super) fn instant(&mut self, ts_ms: i64) {
        self.cell(|cells, row| cells.instant(row, ts_ms), |row| write_json(row, &rfc3339(ts_ms)));
    }

    /// Writes a cell with a number, or with null if the number is not finite.
    pub(super) fn number(&mut self, number: f64) {
        if !number.is_finite() {
            return self.json("null");
        }
        self.cell(|cells, row| cells.number(row, number), |row| write_number(row, number));
    }

    fn cell(&mut self, write_cell: impl FnOnce(&Cells, &mut Vec<u8>), write_value: impl FnOnce(&mut Vec<u8>)) {
        let Self { format, of_cells, leads, text, cells, .. } = self;
        text.extend_from_slice(&leads[*cells]);
        if format.has_cells() {
            write_cell(of_cells, text);
        } else {
            write_value(text);
        }
        *cells += 1;
        if *cells == leads.len() {
            *cells = 0;
            if format.has_cells() { of_cells.end_row(text) } else { text.extend_from_slice(b"}\n") }
        }
    }

    /// Adds rows that another table with the same columns has written.
    pub(super) fn append(&mut self, rows: Vec<u8>) {
        debug_assert_eq!(self.cells, 0, "the last row is complete");
        self.parts.extend([std::mem::take(&mut self.text), rows]);
    }

    /// Returns the rows without the header.
    pub(super) fn into_rows(self) -> Vec<u8> {
        debug_assert!(self.cells == 0 && self.parts.is_empty(), "the last row is complete, and none was appended");
        self.text
    }

    /// Adds the rows of devices.
    fn with_rows<L: List>(mut self, devices: Vec<L::Item>) -> Self {
        for device in devices {
            L::add_rows(device, &mut self);
        }
        self
    }

    /// Returns the rows in the parts in which they were written.
    fn into_parts(mut self) -> Vec<Vec<u8>> {
        self.append(Vec::new());
        self.parts
    }

    /// Makes the response: a file `name`, with the address `next` of the next page.
    async fn into_response(
        mut self,
        name: &str,
        next: Option<String>,
        lagging: Option<Duration>,
    ) -> Result<Response, Problem> {
        let (format, header) = (self.format, std::mem::take(&mut self.header));
        let mut pieces = [header].into_iter().chain(self.into_parts()).map(Bytes::from).collect();
        if format == Format::Xlsx {
            let workbook = encoded(Encoding::Workbook, pieces).await;
            pieces = workbook.map_err(Problem::internal)?;
        }
        let mut response = as_file(Response::new(Body::new(BodyInPieces::new(pieces))), format, name, lagging);
        if let Some(next) = next.and_then(|next| HeaderValue::try_from(format!("<{next}>; rel=\"next\"")).ok()) {
            response.headers_mut().insert(LINK, next);
        }
        Ok(response)
    }

    /// Makes the response with these rows, and the rows of all pages after `after`.
    async fn into_file<L: List>(mut self, mut list: L, after: Arc<str>, whole: Whole) -> Result<Response, Problem> {
        let Whole { running, version, encoding, timeout } = whole;
        streamed_file::check_version(version)?;
        let reservation = running.reserve_file_place().await?;
        streamed_file::stream(encoding, timeout, (), move |out| {
            let _reservation = reservation;
            out.write(&std::mem::take(&mut self.header))?;
            let (mut table, mut next) = (self, Some(after));
            loop {
                for part in table.into_parts() {
                    out.write(&part)?;
                }
                let Some(after) = next else { return Ok(()) };
                list.go_on_after(&after);
                let (Listed { devices, next: follows }, _) = out.wait(async { complete(list.page().await?) })?;
                (table, next) = (list.table().with_rows::<L>(devices), follows);
            }
        })
    }
}

/// Refuses a partial answer.
///
/// A table has no place for the note that readings are missing.
fn complete<T>(answer: Answer<T>) -> Result<(T, Option<Duration>), QueryError> {
    let Answer { body, lagging, partial } = answer;
    partial.map_or(Ok((body, lagging)), |missing| Err(QueryError::incomplete(missing)))
}

/// Returns the address of the next page: `uri` with another cursor.
fn next_page(uri: &Uri, cursor: &str) -> String {
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
        let mut table = Table::new(format, &Cells::default(), ["a", "b,\"b\"", "c", "d"]);
        for text in ["x", "y \"z\", é"] {
            table.text(text);
            table.number(0.5);
            table.instant(0);
            table.json(if text == "x" { r#"["a",1]"# } else { "null" });
        }
        let body =
            axum::body::to_bytes(table.into_response("t", None, None).await.unwrap().into_body(), usize::MAX).await;
        String::from_utf8(body.unwrap().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_table_has_the_same_cells_in_both_formats() {
        assert_eq!(
            text(Format::Csv).await,
            "a,\"b,\"\"b\"\"\",c,d\r\nx,0.5,1970-01-01T00:00:00.000Z,\"[\"\"a\"\",1]\"\r\n\
             \"y \"\"z\"\", é\",0.5,1970-01-01T00:00:00.000Z,\r\n"
        );
        assert_eq!(
            text(Format::Ndjson).await,
            "{\"a\":\"x\",\"b,\\\"b\\\"\":0.5,\"c\":\"1970-01-01T00:00:00.000Z\",\"d\":[\"a\",1]}\n\
             {\"a\":\"y \\\"z\\\", é\",\"b,\\\"b\\\"\":0.5,\"c\":\"1970-01-01T00:00:00.000Z\",\"d\":null}\n"
        );
    }

    #[test]
    fn the_next_page_has_the_same_parameters() {
        let uri = "/v1/devices?format=csv&cursor=a&prefix=x%26y&limit=2".parse().unwrap();
        assert_eq!(next_page(&uri, "b:c"), "/v1/devices?format=csv&prefix=x%26y&limit=2&cursor=b%3Ac");
        assert_eq!(next_page(&"/v1/devices".parse().unwrap(), "b"), "/v1/devices?cursor=b");
    }
}
