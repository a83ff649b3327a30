//! The check of answers against the description of their route, in debug builds.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;

use super::operation::Expected;
use crate::http::problem::ProblemCode;

/// The answers that a route may give.
#[derive(Debug)]
pub(in crate::http) struct Conformance {
    path: String,
    operations: Vec<Expected>,
}

impl Conformance {
    pub(super) fn new(path: &str, operations: Vec<Expected>) -> Self {
        Self { path: path.to_owned(), operations }
    }

    /// Returns what the description of the route lacks for this answer, if anything.
    fn missing(&self, method: &Method, response: &Response) -> Option<String> {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let of_method = |operation: &&Expected| operation.method.eq_ignore_ascii_case(method.as_str());
        let Some(expected) = self.operations.iter().find(of_method) else { return Some("no such method".to_owned()) };
        let status = response.status().as_u16();
        if !expected.statuses.contains(&status) {
            return Some(format!("no status {status}"));
        }
        let code = response.extensions().get::<ProblemCode>()?;
        (!expected.problems.contains(code)).then(|| format!("no problem {}", code.as_str()))
    }
}

/// Middleware of debug builds: panics at an answer that is not described.
pub(in crate::http) async fn check(
    State(conformance): State<Arc<Conformance>>,
    request: Request,
    next: Next,
) -> Response {
    let method = request.method().clone();
    let response = next.run(request).await;
    if let Some(missing) = conformance.missing(&method, &response) {
        panic!("the description of {method} {} has {missing}", conformance.path);
    }
    response
}
