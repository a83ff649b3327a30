//! The checks that a request passes before its handler.
//!
//! `cross_site` refuses requests that a browser sends for a page of another site. `authorize` turns a token
//! or a client certificate into a grant, checks the grant against the need of the route, and charges the rate
//! of requests.

pub(super) mod authorize;
pub(super) mod cross_site;
