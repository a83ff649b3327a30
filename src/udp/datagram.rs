//! From a datagram to readings.

use super::sequences::Numbering;
use crate::wire::{
    Format, Incoming, Limits, Rejection, Sink, json,
    line_protocol::{self, Precision},
};

/// The format of a datagram: JSON if it begins with a brace or a bracket, else line protocol.
pub(super) fn format_of(content: &[u8]) -> Format {
    match content.trim_ascii_start().first() {
        Some(b'{' | b'[') => Format::Json,
        _ => Format::LineProtocol,
    }
}

/// Reads the lines of a datagram of this format. Times of line protocol are in nanoseconds. The numbers of
/// messages go to `numbering`.
pub(super) fn parse(
    content: &[u8],
    format: Format,
    device_tags: &[String],
    numbering: Numbering<'_>,
    sink: &mut impl Sink,
) {
    let mut sink = Numbered { sink, numbering };
    if format == Format::Json {
        json::parse_lines(content, &mut sink);
    } else {
        let options = line_protocol::Options { precision: Precision::Nanoseconds, device_tags };
        line_protocol::parse(content, &options, &mut sink);
    }
}

/// Hands on what is found, and keeps an eye on the numbers of the messages.
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

    fn reading(&mut self, incoming: Incoming<'_>) {
        self.sink.reading(incoming);
    }

    fn reject(&mut self, rejection: Rejection) {
        self.sink.reject(rejection);
    }

    fn line(&mut self, number: u64) {
        self.sink.line(number);
    }

    fn sequence(&mut self, device: &str, number: u64) {
        self.numbering.saw(device, number);
    }
}

#[cfg(test)]
mod tests {
    use metrics::Counter;

    use super::super::sequences::Sequences;
    use super::*;
    use crate::access::DeviceScope;
    use crate::model::DeviceIdCase;

    /// Devices and times of readings, codes of rejections.
    #[derive(Default)]
    struct Notes(Vec<String>);

    impl Sink for Notes {
        fn reading(&mut self, incoming: Incoming<'_>) {
            self.0.push(format!("{} {:?}", incoming.device, incoming.ts_ms));
        }

        fn reject(&mut self, rejection: Rejection) {
            self.0.push(rejection.code.as_str().to_owned());
        }
    }

    fn notes(content: &str) -> Vec<String> {
        let mut notes = Notes::default();
        let sequences = Sequences::new(0, Counter::noop());
        let numbering = Numbering { sequences: &sequences, scope: DeviceScope::all(), case: DeviceIdCase::Preserve };
        parse(content.as_bytes(), format_of(content.as_bytes()), &["device".to_owned()], numbering, &mut notes);
        notes.0
    }

    #[test]
    fn the_first_byte_tells_json_from_line_protocol() {
        assert_eq!(notes(r#"{"deviceId":"S1","ts":1,"value":1}"#), ["S1 Some(1)"]);
        assert_eq!(notes("\n [{\"deviceId\":\"S1\",\"ts\":1,\"value\":1}]\r\n"), ["S1 Some(1)"]);
        assert_eq!(notes("t,device=S1 value=1 1000000"), ["S1 Some(1)"]);
        assert_eq!(notes("t,device=S1 value=1\nt,device=S2 value=1 2000000\n"), ["S1 None", "S2 Some(2)"]);
    }

    #[test]
    fn a_bad_line_takes_nothing_with_it() {
        let lines =
            "{\"deviceId\":\"S1\",\"ts\":1,\"value\":1}\n{\"deviceId\n{\"deviceId\":\"S2\",\"ts\":2,\"value\":1}";
        assert_eq!(notes(lines), ["S1 Some(1)", "invalid_json", "S2 Some(2)"]);
        assert_eq!(notes("t,device=S1 value=1 1000000\nt\n"), ["S1 Some(1)", "missing_values"]);
    }

    #[test]
    fn the_limits_of_the_sink_hold_for_datagrams_too() {
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
            let numbering =
                Numbering { sequences: &sequences, scope: DeviceScope::all(), case: DeviceIdCase::Preserve };
            let mut strict = Strict(Vec::new());
            parse(content.as_bytes(), format_of(content.as_bytes()), &["device".to_owned()], numbering, &mut strict);
            assert_eq!(strict.0, [code]);
        }
    }

    #[test]
    fn nothing_is_found_in_nothing() {
        assert!(notes("").is_empty() && notes(" \n").is_empty() && notes("# comment").is_empty());
    }
}
