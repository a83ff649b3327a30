//! The integration tests: one binary, one module per promise or feature.

mod auth;
mod browsers;
mod cli;
mod clients;
mod dead_letters;
mod deploy;
mod durability;
mod fire;
mod harness;
mod hostile_http;
mod http_contract;
mod import_real_data;
mod influx;
mod limits;
mod mongodb_connection;
mod mongodb_documents;
mod pages;
mod protocols;
mod readme;
mod resending;
mod rollups;
mod senml;
mod sharding;
mod store_away;
mod tls;
mod udp;
