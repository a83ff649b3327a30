//! `InfluxQL` on `/query`: beside a real influxd, by unchanged clients, and against hostile queries.

mod clients;
mod comparison;
mod data;
mod envelope;
mod grafana;
mod hostile;
