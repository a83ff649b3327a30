//! The formats of answers, and how a client chooses one.
//!
//! `?format=` names a format, or `Accept` lists media types with their weights (RFC 9110, section 12.5.1). A
//! path offers some of the formats. If the client takes none of them, the answer is 406 and lists them.

use axum::http::header::{ACCEPT, CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;

use crate::http::problem::Problem;
use crate::http::request::params::Params;

mod cells;
mod csv;
mod encoding;
mod number;
mod workbook;

pub(in crate::http) use self::cells::Cells;
use self::csv::Csv;
pub(in crate::http) use self::encoding::{Encoder, Encoding, encoded};
pub(in crate::http) use self::number::{write_json, write_number};

/// A format of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[cfg_attr(test, derive(strum::EnumIter))]
#[strum(serialize_all = "lowercase", const_into_str)]
pub(in crate::http) enum Format {
    Json,
    Csv,
    Ndjson,
    Xlsx,
}

/// The media type of workbooks.
pub(in crate::http) const XLSX: &str = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet";

impl Format {
    /// All formats, the default first.
    pub(in crate::http) const ALL: [Self; 4] = [Self::Json, Self::Csv, Self::Ndjson, Self::Xlsx];

    /// The formats of answers that are always a file, the default first.
    pub(in crate::http) const FILES: [Self; 3] = [Self::Ndjson, Self::Csv, Self::Xlsx];

    /// Chooses an `offered` format by the parameter `format`, or else by `Accept`.
    pub(in crate::http) fn choose(
        params: &mut Params<'_>,
        headers: &HeaderMap,
        offered: &'static [Self],
    ) -> Result<Self, Problem> {
        if let Some(name) = params.one("format")? {
            let named = offered.iter().find(|format| *name == *format.name());
            return named.copied().ok_or_else(|| {
                let names: Vec<_> = offered.iter().map(|format| format.name()).collect();
                Problem::invalid_parameter("format", format!("expected one of {}", names.join(", ")))
            });
        }
        let accepted: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
        let accepted = accepted.join(",");
        best(&accepted, offered).ok_or_else(|| {
            let types: Vec<_> = offered.iter().map(|format| format.media_types()[0]).collect();
            Problem::not_acceptable(&types, &accepted)
        })
    }

    /// Returns the name of the format: `csv`.
    ///
    /// The parameter `format` has this name, and files have it as extension.
    pub(in crate::http) const fn name(self) -> &'static str {
        self.into_str()
    }

    /// Whether the format consists of rows of cells.
    pub(in crate::http) const fn has_cells(self) -> bool {
        matches!(self, Self::Csv | Self::Xlsx)
    }

    /// Returns the encoding of a file. A workbook is compressed already.
    pub(in crate::http) fn encoding(self, headers: &HeaderMap) -> Encoding {
        if self == Self::Xlsx { Encoding::Workbook } else { Encoding::choose(headers) }
    }

    /// Returns the media types by which a client may ask for the format.
    ///
    /// Answers have the first one.
    const fn media_types(self) -> &'static [&'static str] {
        match self {
            Self::Json => &["application/json"],
            Self::Csv => &["text/csv"],
            Self::Ndjson => &["application/x-ndjson", "application/ndjson", "application/jsonl"],
            Self::Xlsx => &[XLSX],
        }
    }

    /// Marks an answer as a file of this format. JSON gets no file name.
    pub(in crate::http) fn mark_file(self, response: &mut Response, name: &str) {
        let content_type = match self {
            Self::Json => "application/json",
            Self::Csv => "text/csv; charset=utf-8; header=present",
            Self::Ndjson => "application/x-ndjson",
            Self::Xlsx => XLSX,
        };
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if self != Self::Json {
            let is_plain = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
            let name: String = name.chars().map(|char| if is_plain(char) { char } else { '_' }).collect();
            let disposition = format!("attachment; filename=\"{name}.{}\"", self.name());
            let disposition = HeaderValue::try_from(disposition).expect("ASCII without control characters");
            response.headers_mut().insert(CONTENT_DISPOSITION, disposition);
        }
    }
}

/// Returns the `offered` format that a client prefers.
///
/// At the same weight, a format that the client names precedes one that a wildcard covers. If both still tie,
/// the earlier one in `offered` precedes.
fn best(accept: &str, offered: &[Format]) -> Option<Format> {
    if accept.trim().is_empty() {
        return offered.first().copied();
    }
    let ranges: Vec<_> = weights(accept).collect();
    let rank = |format: &Format| format.media_types().iter().filter_map(|media| rank(media, &ranges)).max();
    let ranked = offered.iter().rev().filter_map(|format| Some((rank(format)?, *format)));
    let (rank, format) = ranked.max_by_key(|(rank, _)| *rank)?; // takes the last one, hence rev()
    (rank.weight > 0).then_some(format)
}

/// The preference of a client for a media type. The greater rank is preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    weight: u16,
    precision: u8,
}

/// Returns the rank of `media` by the most precise range that covers it.
///
/// `None`: no range covers it.
fn rank(media: &str, ranges: &[(&str, u16)]) -> Option<Rank> {
    let (kind, _) = media.split_once('/')?;
    let precision_of = |range: &str| match range.split_once('/')? {
        _ if range.eq_ignore_ascii_case(media) => Some(2),
        (of_kind, "*") if of_kind.eq_ignore_ascii_case(kind) => Some(1),
        ("*", "*") => Some(0),
        _ => None,
    };
    let found = ranges.iter().filter_map(|&(range, weight)| Some((precision_of(range)?, weight)));
    let (precision, weight) = found.max()?;
    Some(Rank { weight, precision })
}

/// Returns the choices in `Accept` or `Accept-Encoding`, with weights in 1/1000.
///
/// For `gzip;q=0.5, br`, it returns `("gzip", 500)` and `("br", 1000)`. Parameters other than `q` are
/// ignored. A weight that is no number from 0 to 1 counts as 1.
fn weights(list: &str) -> impl Iterator<Item = (&str, u16)> {
    list.split(',').map(|choice| {
        let mut parts = choice.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let weight =
            parts.filter_map(|part| part.split_once('=')).find(|(key, _)| key.trim().eq_ignore_ascii_case("q"));
        let weight = weight.and_then(|(_, weight)| weight.trim().parse::<f32>().ok());
        let weight = weight.filter(|weight| (0.0..=1.0).contains(weight)).unwrap_or(1.0);
        (name, (weight * 1e3) as u16)
    })
}

#[cfg(test)]
mod tests {
    use strum::IntoEnumIterator;

    use super::*;

    #[test]
    fn the_client_gets_the_offered_format_that_it_prefers() {
        for (accept, expected) in [
            ("", Some(Format::Json)),
            ("*/*", Some(Format::Json)),
            ("application/json", Some(Format::Json)),
            ("text/csv", Some(Format::Csv)),
            ("TEXT/CSV; charset=utf-8; header=present", Some(Format::Csv)),
            ("text/*", Some(Format::Csv)),
            ("application/x-ndjson", Some(Format::Ndjson)),
            ("application/jsonl", Some(Format::Ndjson)),
            ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", Some(Format::Xlsx)),
            ("text/csv, */*", Some(Format::Csv)),
            ("*/*;q=0.1, text/csv;q=0.1", Some(Format::Csv)),
            ("text/csv;q=0.5, application/json;q=0.4", Some(Format::Csv)),
            ("text/csv;q=0.5, application/json", Some(Format::Json)),
            ("application/json;q=0, */*", Some(Format::Csv)),
            ("application/json;q=0, text/*;q=0, */*", Some(Format::Ndjson)),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Some(Format::Json)),
            ("application/json, text/plain, */*", Some(Format::Json)),
            ("text/csv;q=0", None),
            ("*/*;q=0", None),
            ("image/png", None),
            ("csv", None),
            (",;,q=1,/", None),
        ] {
            assert_eq!(best(accept, &Format::ALL), expected, "{accept:?}");
        }
        assert_eq!(best("*/*", &Format::FILES), Some(Format::Ndjson));
        assert_eq!(best("application/json", &Format::FILES), None);
    }

    #[test]
    fn the_parameter_goes_before_the_header() {
        let chosen = |query: &str, accept: &'static str| {
            let uri = format!("/?{query}").parse().expect("a URI");
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            Format::choose(&mut Params::of_any(&uri), &headers, &Format::ALL)
        };
        assert_eq!(chosen("format=ndjson", "text/csv").expect("a format"), Format::Ndjson);
        assert_eq!(chosen("", "text/csv").expect("a format"), Format::Csv);
        let refused = chosen("format=xml", "text/csv").expect_err("no such format");
        assert_eq!(
            (refused.status().as_u16(), refused.detail()),
            (400, "format: expected one of json, csv, ndjson, xlsx")
        );
        let refused = chosen("", "text/html").expect_err("no such media type");
        assert_eq!(refused.status().as_u16(), 406);
        let types = "application/json, text/csv, application/x-ndjson";
        assert!(refused.detail().contains(types) && refused.detail().contains("text/html"), "{}", refused.detail());
    }

    #[test]
    fn several_headers_are_one_list() {
        let headers = ["image/png", "text/csv"].map(|value| (ACCEPT, HeaderValue::from_static(value)));
        let uri = "/".parse().expect("a URI");
        let headers: HeaderMap = headers.into_iter().fold(HeaderMap::new(), |mut all, (name, value)| {
            all.append(name, value);
            all
        });
        assert_eq!(Format::choose(&mut Params::of_any(&uri), &headers, &Format::ALL).expect("CSV"), Format::Csv);
    }

    #[test]
    fn each_choice_has_its_weight() {
        let list = "gzip;q=0.5, br ; Q = 0 ,zstd;level=1;q=1.000,*;q=.25,x;q=2,y;q=NaN,";
        let expected = [("gzip", 500), ("br", 0), ("zstd", 1000), ("*", 250), ("x", 1000), ("y", 1000), ("", 1000)];
        assert!(weights(list).eq(expected));
    }

    #[test]
    fn files_have_names_without_special_characters() {
        let mut response = Response::default();
        Format::Csv.mark_file(&mut response, "a/b:\"c\"");
        assert_eq!(response.headers()[CONTENT_DISPOSITION], "attachment; filename=\"a_b__c_.csv\"");
        for format in Format::iter() {
            let mut response = Response::default();
            format.mark_file(&mut response, "x");
            let content_type = response.headers()[CONTENT_TYPE].to_str().expect("ASCII");
            assert!(content_type.starts_with(format.media_types()[0]), "{content_type}");
        }
    }
}
