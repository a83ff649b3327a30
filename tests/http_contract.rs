//! The HTTP API, version 1, as its users see it.

mod ingest;
mod operate;
mod query;

use serde_json::Value;

use crate::harness::Answer;

/// Asserts that the answer is a problem of RFC 9457 with this status, and returns it.
pub(crate) fn problem(answer: &Answer, status: u16) -> Value {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert_eq!(answer.header("content-type"), "application/problem+json");
    let problem = answer.json();
    assert_eq!(problem["status"], status);
    assert!(problem["code"].as_str().is_some_and(|code| !code.is_empty()), "{problem}");
    assert!(problem["title"].is_string(), "{problem}");
    problem
}
