//! Errors in the format of each version of `InfluxDB`.

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::problem::{Problem, Refusals, set_retry_after};
use crate::http::write::samples;
use crate::ingest::{Listed, Receipt};

/// The number of rejected lines that a message of version 1 or 2 describes.
const MAX_DESCRIBED: usize = 10;

/// The longest `original_line` of version 3, in characters.
const MAX_ORIGINAL_CHARS: usize = 256;

/// A version of the write API of `InfluxDB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Version {
    V1,
    V2,
    V3,
}

/// An error in the format of version 1.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InfluxError1)]
pub(in crate::http) struct ErrorV1<'a> {
    /// The reason in words.
    error: &'a str,
}

/// An error in the format of version 2.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InfluxError2)]
pub(in crate::http) struct ErrorV2<'a> {
    /// The kind of the error, such as `invalid`.
    code: &'static str,
    /// The reason in words.
    message: &'a str,
    /// The number of the first rejected line, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    line: Option<u64>,
}

/// An error in the format of version 3.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InfluxError3)]
pub(in crate::http) struct ErrorV3<'a> {
    /// The reason in words.
    error: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    data: Option<Data>,
}

/// All rejected lines; with `accept_partial=false` only the first.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = InfluxRejectedLines)]
enum Data {
    All(Vec<BadLine>),
    First(BadLine),
}

/// A rejected line in an error of version 3.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InfluxRejectedLine)]
struct BadLine {
    /// The first 256 characters of the line.
    original_line: String,
    /// The number of the line, from 1.
    #[schema(required)]
    line_number: Option<u64>,
    /// Why it is rejected.
    error_message: String,
}

impl Version {
    /// The answer to a refused request.
    pub(in crate::http) fn failed(self, problem: &Problem) -> Response {
        samples::failed(problem, |status, detail| {
            let status = if status == StatusCode::TOO_MANY_REQUESTS { self.for_now() } else { status };
            match self {
                Self::V1 => v1(status, detail),
                Self::V2 => v2(status, detail, None),
                Self::V3 => (status, Json(ErrorV3 { error: detail, data: None })).into_response(),
            }
        })
    }

    /// The status of a refusal by a rate limit.
    ///
    /// Clients of version 1 drop lines after any status of 4xx, and send them again after 503.
    const fn for_now(self) -> StatusCode {
        match self {
            Self::V1 => StatusCode::SERVICE_UNAVAILABLE,
            Self::V2 | Self::V3 => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// Answers a request with rejected lines. With `partial` the others are accepted.
    ///
    /// If a rate limit rejected lines, clients send the whole request again.
    pub(in crate::http) fn rejected(self, receipt: &Receipt, body: &[u8], partial: bool) -> Response {
        let refused = match (self, receipt.retry_after) {
            (_, Some(_)) => self.for_now(),
            (Self::V2, None) if receipt.accepted > 0 => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::BAD_REQUEST,
        };
        let message = || match (self, receipt.retry_after) {
            // Telegraf drops the lines after any error of version 1 with the words "partial write".
            (Self::V1, Some(_)) => Problem::rejected(receipt.clone(), partial).detail().to_owned(),
            _ => format!("partial write: {} dropped={}", described(receipt), receipt.rejected),
        };
        let mut response = match self {
            Self::V1 => v1(refused, &message()),
            Self::V2 => v2(refused, &message(), receipt.listed.first().and_then(|first| first.line)),
            Self::V3 => {
                let mut lines = bad_lines(&receipt.listed, body);
                let (error, data) = if partial {
                    ("partial write of line protocol occurred", Some(Data::All(lines.collect())))
                } else {
                    ("parsing failed for write_lp endpoint", lines.next().map(Data::First))
                };
                (refused, Json(ErrorV3 { error, data })).into_response()
            }
        };
        set_retry_after(&mut response, receipt.retry_after);
        response.extensions_mut().insert(Refusals(receipt.refusals()));
        response
    }
}

/// The answer to a refused query of version 1, with the status of the problem.
pub(in crate::http) fn query_failed(problem: &Problem) -> Response {
    let mut response = v1(problem.status(), problem.detail());
    problem.mark(&mut response);
    response
}

fn v1(status: StatusCode, error: &str) -> Response {
    let mut response = (status, Json(ErrorV1 { error })).into_response();
    set_error(response.headers_mut(), error);
    response
}

/// Adds the error header of version 1. `?` replaces all but printable ASCII.
pub(in crate::http) fn set_error(headers: &mut HeaderMap, error: &str) {
    let ascii = error.replace(|character: char| !matches!(character, ' '..='~'), "?");
    if let Ok(value) = HeaderValue::from_str(&ascii) {
        headers.insert("x-influxdb-error", value);
    }
}

fn v2(status: StatusCode, message: &str, line: Option<u64>) -> Response {
    let code = match status {
        StatusCode::UNAUTHORIZED => "unauthorized",
        StatusCode::FORBIDDEN => "forbidden",
        StatusCode::UNPROCESSABLE_ENTITY => "unprocessable entity",
        StatusCode::PAYLOAD_TOO_LARGE => "request too large",
        StatusCode::TOO_MANY_REQUESTS => "too many requests",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "unsupported media type",
        StatusCode::SERVICE_UNAVAILABLE => "unavailable",
        StatusCode::INTERNAL_SERVER_ERROR => "internal error",
        _ => "invalid",
    };
    (status, Json(ErrorV2 { code, message, line })).into_response()
}

/// Describes the first rejected lines and fields, and counts the others.
fn described(receipt: &Receipt) -> String {
    let describe = |listed: &Listed| match listed.line {
        Some(line) => format!("line {line}: {}", listed.rejection.detail),
        None => listed.rejection.detail.clone(),
    };
    let described: Vec<_> = receipt.listed.iter().take(MAX_DESCRIBED).map(describe).collect();
    match (receipt.rejected + receipt.rejected_values()) as usize - described.len() {
        0 => described.join("; "),
        more => format!("{}; and {more} more", described.join("; ")),
    }
}

/// Finds the texts of the listed lines, which are in the order of the body.
fn bad_lines(listed: &[Listed], body: &[u8]) -> impl Iterator<Item = BadLine> {
    let mut lines = (1..).zip(body.split(|&byte| byte == b'\n')).peekable();
    listed.iter().map(move |listed| {
        while lines.next_if(|&(number, _)| Some(number) < listed.line).is_some() {}
        let original = lines.peek().filter(|&&(number, _)| Some(number) == listed.line);
        BadLine {
            original_line: original.map(|&(_, line)| shortened(line)).unwrap_or_default(),
            line_number: listed.line,
            error_message: listed.rejection.detail.clone(),
        }
    })
}

fn shortened(line: &[u8]) -> String {
    let start = &line[..line.len().min(MAX_ORIGINAL_CHARS * 4)]; // a character has at most four bytes
    String::from_utf8_lossy(start).trim_end().chars().take(MAX_ORIGINAL_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Code, Rejection};

    fn bad(line: u64) -> Listed {
        let rejection = Rejection { code: Code::InvalidLine, detail: format!("no {line}") };
        Listed { is_value: false, index: 0, line: Some(line), device: None, rejection }
    }

    #[test]
    fn ten_lines_are_described_and_the_others_counted() {
        let receipt = |rejected| {
            let mut receipt = Receipt::default();
            (receipt.received, receipt.rejected) = (rejected, rejected);
            receipt.listed.extend((1..=u64::from(rejected)).map(bad));
            receipt
        };
        assert_eq!(described(&receipt(2)), "line 1: no 1; line 2: no 2");
        assert!(described(&receipt(10)).ends_with("; line 10: no 10"));
        assert!(described(&receipt(13)).ends_with("; line 10: no 10; and 3 more"));
    }

    #[test]
    fn original_lines_are_found_by_their_number_and_shortened() {
        let long = "ä".repeat(300);
        let body = format!("good\r\nbad\r\n\n{long}\nlast");
        let found: Vec<_> =
            bad_lines(&[bad(2), bad(4), bad(4), bad(5)], body.as_bytes()).map(|line| line.original_line).collect();
        assert_eq!(found, ["bad", &"ä".repeat(256), &"ä".repeat(256), "last"]);
        assert_eq!(shortened(b"\xffx"), "\u{fffd}x");
    }
}
