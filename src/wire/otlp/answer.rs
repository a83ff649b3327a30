//! The answers of OTLP in protobuf.

use super::super::protobuf::Writer;

/// An `ExportMetricsServiceResponse`; empty unless data points are rejected.
#[must_use]
pub fn success(rejected: u64, message: &str) -> Vec<u8> {
    let mut writer = Writer::default();
    if rejected > 0 {
        let partial_success = writer.message(1);
        writer.varint(1, rejected);
        writer.bytes(2, message.as_bytes());
        writer.end(partial_success);
    }
    writer.into_bytes()
}

/// A `google.rpc.Status`.
#[must_use]
pub fn status(code: u8, message: &str) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.varint(1, code.into());
    writer.bytes(2, message.as_bytes());
    writer.into_bytes()
}
