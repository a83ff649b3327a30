//! Sockets, threads, TLS and connections: from the accepted connection to its end.
//!
//! `connection` accepts connections up to the limit, and gives each to one of the `threads`. `over_capacity`
//! answers the connections above the limit. On its thread, `connection` makes the TLS handshake and lets
//! hyper serve the requests, which the router answers. Two layers wrap the socket: `client_disconnect` tells
//! running queries that the client has left, and a lingering close makes the last answer arrive.

pub(super) mod client_disconnect;
pub(super) mod connection;
pub(super) mod over_capacity;
pub(super) mod threads;
