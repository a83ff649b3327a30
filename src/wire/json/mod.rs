//! JSON and NDJSON.
