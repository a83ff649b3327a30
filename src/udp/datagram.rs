//! Parses a datagram, which is JSON or line protocol.

use super::sequences::Numbering;
use crate::config::LineProtocol;
use crate::wire::{
    Format, Ignored, Incoming, Limits, Rejection, Sink, json,
    line_protocol::{self, Precision},
};

/// The format of a datagram: JSON if it begins with a brace or a bracket, else line protocol.
pub(super) fn format_of(content: &[u8]) -> Format {
    match content.trim_ascii_start().first() {
        Some(b'{' | b'[') => Format::Json,
        _ => Format::LineProtocol,
    }
}

/// Parses a datagram of this format.
///
/// Times of line protocol are in nanoseconds. Sequence numbers go to `numbering`.
pub(super) fn parse(
    content: &[u8],
    format: Format,
    json: &json::Options<'_>,
    mapping: &LineProtocol,
    numbering: Numbering<'_>,
    sink: &mut impl Sink,
) {
    let mut sink = Numbered { sink, numbering };
    if format == Format::Json {
        json::parse_value_or_lines(content, json, &mut sink);
    } else {
        let options = line_protocol::Options { precision: Precision::Nanoseconds, device: None, mapping };
        line_protocol::parse(content, &options, &mut sink);
    }
}

/// Passes on readings, and records the sequence numbers of messages.
struct Numbered<'s, S> {
    sink: &'s mut S,
    numbering: Numbering<'s>,
}

impl<S: Sink> Sink for Numbered<'_, S> {
    fn limits(&self) -> Limits {
        self.sink.limits()
    }

    fn is_over(&self) -> bool {
        self.sink.is_over()
    }

    fn expect(&mut self, device: &str) {
        self.sink.expect(device);
    }

    fn reading(&mut self, incoming: Incoming<'_>) {
        self.sink.reading(incoming);
    }

    fn reject(&mut self, rejection: Rejection) {
        self.sink.reject(rejection);
    }

    fn reject_value(&mut self, rejection: Rejection) {
        self.sink.reject_value(rejection);
    }

    fn ignore(&mut self, what: Ignored, name: &str) {
        self.sink.ignore(what, name);
    }

    fn line(&mut self, number: u64) {
        self.sink.line(number);
    }

    fn sequence(&mut self, device: &str, number: u64) {
        self.numbering.record(device, number);
    }
}

#[cfg(test)]
mod tests {
    use metrics::Counter;

    use super::super::sequences::Sequences;
    use super::*;
    use crate::access::DeviceScope;
    use crate::wire::recording_sink::RecordingSink;

    /// The readings and the codes of rejections of a datagram.
    fn entries(content: &str) -> Vec<String> {
        let mut sink = RecordingSink::default();
        let sequences = Sequences::new(0, Counter::noop());
        let numbering = Numbering { sequences: &sequences, scope: DeviceScope::all() };
        let format = format_of(content.as_bytes());
        let json = json::Options::default();
        parse(content.as_bytes(), format, &json, &LineProtocol::default(), numbering, &mut sink);
        let without_lines = sink.0.iter().filter(|entry| !entry.starts_with("line "));
        without_lines.map(|entry| entry.split(": ").next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn the_first_byte_decides_between_json_and_line_protocol() {
        assert_eq!(entries(r#"{"deviceId":"S1","ts":1,"value":1}"#), ["S1 1 value=1"]);
        assert_eq!(entries("\n [{\"deviceId\":\"S1\",\"ts\":1,\"value\":1}]\r\n"), ["S1 1 value=1"]);
        assert_eq!(entries("{\n \"deviceId\":\"S1\",\n \"ts\":1,\n \"value\":1\n}"), ["S1 1 value=1"]);
        assert_eq!(entries("t,device=S1 value=1 1000000"), ["S1 1 t=1"]);
        assert_eq!(entries("t,device=S1 value=1\nt,device=S2 value=1 2000000\n"), ["S1 now t=1", "S2 2 t=1"]);
    }

    #[test]
    fn a_bad_line_does_not_affect_the_others() {
        let lines =
            "{\"deviceId\":\"S1\",\"ts\":1,\"value\":1}\n{\"deviceId\n{\"deviceId\":\"S2\",\"ts\":2,\"value\":1}";
        assert_eq!(entries(lines), ["S1 1 value=1", "invalid_json", "S2 2 value=1"]);
        assert_eq!(entries("t,device=S1 value=1 1000000\nt\n"), ["S1 1 t=1", "missing_values"]);
    }

    #[test]
    fn the_limits_of_the_sink_apply_to_datagrams() {
        struct Strict(Vec<&'static str>);
        impl Sink for Strict {
            fn limits(&self) -> Limits {
                Limits { max_metrics: 1, max_metadata_bytes: 10 }
            }
            fn reading(&mut self, _: Incoming<'_>) {
                self.0.push("reading");
            }
            fn reject(&mut self, rejection: Rejection) {
                self.0.push(rejection.code.as_str());
            }
            fn reject_value(&mut self, rejection: Rejection) {
                self.reject(rejection);
            }
            fn ignore(&mut self, _: Ignored, _: &str) {}
        }
        let measurement = "m".repeat(60_000);
        let fields: Vec<_> = (0..1_000).map(|at| format!("f{at}=1")).collect();
        for (content, code) in [
            (format!("{measurement},device=S1 value=1"), "invalid_metric_name"),
            (format!("{measurement},device=S1 {}", fields.join(",")), "too_many_metrics"),
            (r#"{"deviceId":"S1","values":{"a":1,"b":1}}"#.to_owned(), "too_many_metrics"),
            (r#"{"deviceId":"S1","value":1,"metadata":{"a":"0123"}}"#.to_owned(), "metadata_too_large"),
            ("m,device=S1 value=1".to_owned(), "reading"),
        ] {
            let sequences = Sequences::new(0, Counter::noop());
            let numbering = Numbering { sequences: &sequences, scope: DeviceScope::all() };
            let mut strict = Strict(Vec::new());
            let format = format_of(content.as_bytes());
            let json = json::Options::default();
            parse(content.as_bytes(), format, &json, &LineProtocol::default(), numbering, &mut strict);
            assert_eq!(strict.0, [code]);
        }
    }

    #[test]
    fn an_empty_datagram_has_no_readings() {
        assert!(entries("").is_empty() && entries(" \n").is_empty() && entries("# comment").is_empty());
    }
}
