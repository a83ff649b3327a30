//! Sockets, threads, TLS and connections: from the accepted connection to its end.
//!
//! `accept` listens and accepts connections within the limit (`over_capacity` answers those above it), and
//! gives each to one of the `threads`. There `connection` makes the TLS handshake and lets hyper serve the
//! requests, which the router answers. Two streams are around the socket of each connection:
//! `client_disconnect` tells running queries that the client has left, and a lingering close makes the last
//! answer arrive. `unread_body` closes connections after answers to requests whose body was not read.

pub(super) mod accept;
pub(super) mod client_disconnect;
pub(super) mod connection;
pub(super) mod over_capacity;
pub(super) mod threads;
pub(super) mod unread_body;
