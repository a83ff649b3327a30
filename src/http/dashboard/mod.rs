//! The dashboard: a web page with devices, readings and the state of the service.
//!
//! The program contains the files of the page. The scripts get all data from the HTTP API, with the token
//! that the viewer types in. So the files contain no data, and everyone who can reach the server may read
//! them. The page loads nothing from other servers, and its `POLICY` makes the browser refuse to.
//!
//! The address of each file, except the page, contains a hash of all files. So a browser keeps the files
//! without asking again, and never combines files of two versions. The page is small; a browser asks each
//! time whether it has changed.
//!
//! `uplot/` has the library that draws the charts, unchanged.

use std::io::Write;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY, VARY,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use xxhash_rust::xxh3::xxh3_128;

use super::answer::etag::has_tag;
use super::answer::format::Encoding;
use super::openapi::{Operation, Tag};
use super::problem::{Problem, ProblemCode};

/// The policy of the page, which the browser enforces.
///
/// It allows nothing from other servers, no script or style outside of the files, and no frames.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
);

/// The placeholder in the page for the hash of all files.
const VERSION: &str = "{version}";

/// The level of zstd, a slow one: the files are compressed once.
const ZSTD_LEVEL: i32 = 19;

const SCRIPT: HeaderValue = HeaderValue::from_static("text/javascript; charset=utf-8");
const STYLE: HeaderValue = HeaderValue::from_static("text/css; charset=utf-8");
const ICON: HeaderValue = HeaderValue::from_static("image/svg+xml");
const PAGE: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// The files, without the page itself.
const SOURCES: [(&str, HeaderValue, &str); 16] = [
    ("address.js", SCRIPT, include_str!("address.js")),
    ("api.js", SCRIPT, include_str!("api.js")),
    ("card.js", SCRIPT, include_str!("card.js")),
    ("chart.js", SCRIPT, include_str!("chart.js")),
    ("devices.js", SCRIPT, include_str!("devices.js")),
    ("editor.js", SCRIPT, include_str!("editor.js")),
    ("main.js", SCRIPT, include_str!("main.js")),
    ("page.js", SCRIPT, include_str!("page.js")),
    ("plot.js", SCRIPT, include_str!("plot.js")),
    ("series.js", SCRIPT, include_str!("series.js")),
    ("service.js", SCRIPT, include_str!("service.js")),
    ("states.js", SCRIPT, include_str!("states.js")),
    ("time.js", SCRIPT, include_str!("time.js")),
    ("dashboard.css", STYLE, include_str!("dashboard.css")),
    ("icon.svg", ICON, include_str!("icon.svg")),
    ("uplot.js", SCRIPT, include_str!("uplot/uPlot.iife.min.js")),
];

/// All files. They are compressed at the first request.
static FILES: LazyLock<Files> = LazyLock::new(Files::new);

struct Files {
    version: String,
    page: File,
    others: Vec<(&'static str, File)>,
}

/// A file in each encoding.
struct File {
    content_type: HeaderValue,
    identity: Bytes,
    gzip: Bytes,
    zstd: Bytes,
}

/// Describes `GET /`.
pub(super) fn describe_page() -> Operation {
    Operation::get(Tag::Operation, "getDashboard", "The dashboard")
        .answers_as(200, "A page for browsers.", "text/html", &json!({ "type": "string" }))
        .tagged()
}

/// Describes `GET /dashboard/{version}/{file}`.
pub(super) fn describe_file() -> Operation {
    let text = json!({ "type": "string" });
    Operation::get(Tag::Operation, "getDashboardFile", "A file of the dashboard")
        .answers_as(200, "The file.", "text/javascript", &text)
        .answers_as(200, "", "text/css", &text)
        .answers_as(200, "", "image/svg+xml", &text)
        .problems(&[ProblemCode::NotFound])
}

/// `GET /`: the page.
pub(super) async fn page(headers: HeaderMap) -> Response {
    let files = &*FILES;
    let is_known = headers.get_all(IF_NONE_MATCH).iter().any(|list| has_tag(list, &files.version));
    let tag = HeaderValue::try_from(format!("W/\"{}\"", files.version)).expect("hexadecimal digits");
    let mut response = if is_known { StatusCode::NOT_MODIFIED.into_response() } else { files.page.answer(&headers) };
    let more = [
        (ETAG, tag),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    response.headers_mut().extend(more);
    response
}

/// `GET /dashboard/{version}/{file}`: a script, style or icon.
pub(super) async fn file(Path((version, name)): Path<(String, String)>, uri: Uri, headers: HeaderMap) -> Response {
    let files = &*FILES;
    let found = files.others.iter().find(|(known, _)| *known == name).filter(|_| version == files.version);
    let Some((_, file)) = found else { return Problem::not_found(uri.path()).into_response() };
    let mut response = file.answer(&headers);
    let forever = HeaderValue::from_static("public, max-age=31536000, immutable");
    response.headers_mut().insert(CACHE_CONTROL, forever);
    response
}

impl Files {
    fn new() -> Self {
        let page = include_str!("index.html");
        let sources = SOURCES.map(|(name, content_type, source)| (name, content_type, squeezed(name, source)));
        let all: Vec<&str> = sources.iter().map(|(_, _, text)| text.as_str()).chain([page]).collect();
        let version = format!("{:032x}", xxh3_128(all.concat().as_bytes()));
        let page = File::new(PAGE, page.replace(VERSION, &version));
        let others = sources.into_iter().map(|(name, content_type, text)| (name, File::new(content_type, text)));
        Self { page, others: others.collect(), version }
    }
}

impl File {
    fn new(content_type: HeaderValue, text: String) -> Self {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let gzip = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()).expect("memory takes all bytes");
        let zstd = zstd::encode_all(text.as_bytes(), ZSTD_LEVEL).expect("memory takes all bytes");
        Self { content_type, identity: text.into(), gzip: gzip.into(), zstd: zstd.into() }
    }

    fn answer(&self, headers: &HeaderMap) -> Response {
        let encoding = Encoding::choose(headers);
        let body = match encoding {
            Encoding::Identity | Encoding::Workbook => &self.identity,
            Encoding::Gzip => &self.gzip,
            Encoding::Zstd => &self.zstd,
        };
        let head = [(CONTENT_TYPE, self.content_type.clone()), (VARY, HeaderValue::from_static("accept-encoding"))];
        let mut response = (head, body.clone()).into_response();
        response.headers_mut().extend(encoding.header().map(|value| (CONTENT_ENCODING, value)));
        response
    }
}

/// Removes comments and indentation from a file of this project.
///
/// In these files, no string continues on another line, or has two slashes between spaces.
fn squeezed(name: &str, source: &str) -> String {
    if name == "uplot.js" {
        return source.to_owned();
    }
    let code = source.lines().map(|line| line.split_once(" // ").map_or(line, |(code, _)| code).trim_start());
    let lines = code.filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use axum::http::header::ACCEPT_ENCODING;

    use super::*;
    use crate::config::TokenHash;

    /// The files of uPlot 1.6.32 in the npm registry.
    const UPLOT: [(&str, &str); 2] = [
        (include_str!("uplot/uPlot.iife.min.js"), "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"),
        (include_str!("uplot/LICENSE"), "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd"),
    ];

    async fn body(response: Response) -> Bytes {
        axum::body::to_bytes(response.into_body(), 1 << 20).await.expect("a body in memory")
    }

    fn accepting(encodings: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(encodings))])
    }

    #[test]
    fn the_library_for_charts_is_unchanged() {
        for (text, expected) in UPLOT {
            assert_eq!(TokenHash::of(text).to_string(), format!("sha256:{expected}"));
        }
    }

    #[tokio::test]
    async fn all_files_together_have_less_than_64_kib() {
        for encodings in ["gzip", "zstd"] {
            let mut bytes = body(page(accepting(encodings)).await).await.len();
            for (name, ..) in SOURCES {
                let path = Path((FILES.version.clone(), name.to_owned()));
                bytes += body(file(path, Uri::from_static("/"), accepting(encodings)).await).await.len();
            }
            assert!(bytes < 64 << 10, "{bytes} bytes with {encodings}");
        }
    }

    #[tokio::test]
    async fn the_page_names_every_script_and_only_files_that_exist() {
        let text = String::from_utf8(body(page(HeaderMap::new()).await).await.to_vec()).expect("UTF-8");
        let start = format!("\"/dashboard/{}/", FILES.version);
        let mut named: Vec<&str> = text.split(&start).skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let mut all = SOURCES.map(|(name, ..)| name);
        named.sort_unstable();
        all.sort_unstable();
        assert_eq!(named, all);
        assert!(!text.contains(VERSION) && !text.contains("style=") && !text.contains("://"), "{text}");
    }

    #[tokio::test]
    async fn a_browser_keeps_files_and_asks_for_the_page_again() {
        let first = page(HeaderMap::new()).await;
        assert_eq!((first.status(), &first.headers()[CACHE_CONTROL]), (StatusCode::OK, &"no-cache".parse().unwrap()));
        let known = HeaderMap::from_iter([(IF_NONE_MATCH, first.headers()[ETAG].clone())]);
        let again = page(known).await;
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert!(body(again).await.is_empty());
        let get = async |version: &str, name: &str| {
            let path = Path((version.to_owned(), name.to_owned()));
            file(path, Uri::from_static("/dashboard/x/y"), accepting("gzip")).await
        };
        let script = get(&FILES.version, "main.js").await;
        assert_eq!(script.headers()[CONTENT_ENCODING], "gzip");
        assert!(script.headers()[CACHE_CONTROL].to_str().unwrap().contains("immutable"));
        assert_eq!(get(&FILES.version, "mod.rs").await.status(), StatusCode::NOT_FOUND);
        assert_eq!(get("another", "main.js").await.status(), StatusCode::NOT_FOUND);
    }
}
