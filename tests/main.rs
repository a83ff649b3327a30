//! The integration tests: one binary, one module per promise or feature.

mod harness;
