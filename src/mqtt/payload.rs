//! The readings of a message, by its topic and its payload.

use crate::config::PayloadFormat;
use crate::ingest::Admission;
use crate::wire::line_protocol::{self, Precision};
use crate::wire::webhook::{self, Address, Hook};
use crate::wire::{Code, Format, Ignored, Incoming, Limits, Rejection, Sink, json, senml};

use super::Formats;
use super::topic::{Kind, Named, Topic, named};

/// The longest text of a plain number, in bytes.
const NUMBER_MAX_BYTES: usize = 64;

/// The byte order mark of UTF-8, which some programs write before a text.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The meaning of a message by its topic.
pub(super) struct Place<'t> {
    pub(super) kind: &'t Kind,
    pub(super) named: Named<'t>,
}

/// Finds the first template that a topic matches, or says why there is none.
pub(super) fn place<'t>(topics: &'t [Topic], topic: &'t str) -> Result<Place<'t>, String> {
    for Topic { template, kind, .. } in topics {
        match named(template, topic) {
            Some(Ok(named)) => return Ok(Place { kind, named }),
            Some(Err(error)) => return Err(error.to_string()),
            None => {}
        }
    }
    Err("no topic of the configuration has it".to_owned())
}

/// Counts of the readings of a message that have no time of their own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Readings {
    /// The readings that were passed on. They get the time of their arrival.
    pub(super) untimed: u32,
    /// The readings that were left out: a retained message may be old.
    pub(super) retained: u32,
}

impl Place<'_> {
    /// The format of a payload.
    pub(super) fn format(&self, payload: &[u8]) -> Format {
        match self.kind {
            Kind::Mapped { .. } => Format::Webhook,
            Kind::Own(PayloadFormat::Json) => Format::Json,
            Kind::Own(PayloadFormat::LineProtocol) => Format::LineProtocol,
            Kind::Own(PayloadFormat::Senml) => Format::Senml,
            Kind::Own(PayloadFormat::Auto | PayloadFormat::Mapped) => {
                match without_mark(payload).trim_ascii_start().first() {
                    Some(b'{' | b'[') => Format::Json,
                    _ => Format::LineProtocol,
                }
            }
        }
    }

    /// Admits the readings of a message into a batch.
    pub(super) fn admit(
        &self,
        payload: &[u8],
        is_retained: bool,
        formats: &Formats,
        admission: &mut Admission<'_>,
    ) -> Readings {
        let (now_ms, max_readings) = (admission.now_ms(), admission.rules().max_readings);
        let mut sink = Arrival { sink: admission, is_retained, is_relative: false, readings: Readings::default() };
        self.parse(payload, formats, (now_ms, max_readings), &mut sink);
        sink.readings
    }

    /// Parses a payload in its format.
    pub(super) fn parse(
        &self,
        payload: &[u8],
        formats: &Formats,
        (now_ms, max_readings): (i64, usize),
        sink: &mut impl Sink,
    ) {
        let (device, payload) = (self.named.device, without_mark(payload));
        match self.format(payload) {
            Format::LineProtocol => {
                let (precision, mapping) = (Precision::Nanoseconds, &formats.line_protocol);
                let options = line_protocol::Options { precision, device, mapping };
                line_protocol::parse(payload, &options, sink);
            }
            Format::Senml => {
                let limits = sink.limits();
                let options = senml::Options {
                    device,
                    split: formats.senml_names,
                    now_ms,
                    max_readings,
                    max_metrics: limits.max_metrics,
                    max_metadata_bytes: limits.max_metadata_bytes,
                };
                let parsed = match payload.trim_ascii_start().first() {
                    Some(b'[') => senml::parse_json(payload, &options, sink),
                    _ => senml::parse_cbor(payload, &options, sink),
                };
                if let Err(error) = parsed {
                    sink.reject(Rejection { code: error.code(), detail: error.to_string() });
                }
            }
            Format::Webhook => {
                if let Kind::Mapped { json, number } = self.kind {
                    self.parse_mapped(payload, (json, number), sink);
                }
            }
            _ => {
                let options = json::Options { device, ..formats.json.at(now_ms) };
                json::parse_value_or_lines(payload, &options, sink);
            }
        }
    }

    /// Parses JSON by the keys of the configuration, or a plain number.
    fn parse_mapped(&self, payload: &[u8], (json, number): (&Hook, &Hook), sink: &mut impl Sink) {
        let Named { device, metric, labels, metadata } = &self.named;
        let address = Address { device: *device, metric: *metric, labels, metadata };
        let start = payload.trim_ascii();
        if matches!(start.first(), Some(b'{' | b'[')) {
            if let Err(error) = webhook::parse(payload, json, &address, sink) {
                sink.reject(Rejection { code: Code::InvalidJson, detail: error.to_string() });
            }
            return;
        }
        match plain_number(start) {
            Some(value) => {
                // A number beyond the range of a float is infinite. As JSON it is out of range again, so
                // admission rejects it as not finite.
                let payload = format!("{{\"value\":{value:?}}}").replace("inf", "1e999");
                let parsed = webhook::parse(payload.as_bytes(), number, &address, sink);
                debug_assert!(parsed.is_ok(), "a number is JSON, or NaN, which the lexer knows");
            }
            None if is_meant_as_number(start) => {
                let shown = String::from_utf8_lossy(&start[..start.len().min(NUMBER_MAX_BYTES)]);
                let detail = format!("expected a plain number such as 22.5, or JSON, found {shown:?}");
                sink.reject(Rejection { code: Code::InvalidValue, detail });
            }
            None => sink.ignore(Ignored::String, "value"),
        }
    }
}

/// A payload without its byte order mark.
fn without_mark(payload: &[u8]) -> &[u8] {
    payload.strip_prefix(BYTE_ORDER_MARK).unwrap_or(payload)
}

/// Reads a plain number, such as `22.4`.
///
/// `on` and `true` are 1, `off` and `false` are 0. `nan`, `inf` and numbers beyond the range of a float are
/// read too; admission rejects them.
fn plain_number(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= NUMBER_MAX_BYTES)?;
    if ["on", "true"].iter().any(|word| text.eq_ignore_ascii_case(word)) {
        return Some(1.0);
    }
    if ["off", "false"].iter().any(|word| text.eq_ignore_ascii_case(word)) {
        return Some(0.0);
    }
    text.parse().ok()
}

/// Whether a text that is no plain number is a number in another form, or may be a binary number.
///
/// A text that is not UTF-8 or has a NUL may be a binary number. The other forms are quotes, a decimal comma,
/// too many digits, and one word as a unit behind a blank, `%` or `°`. A unit with a digit, such as `m3`,
/// begins with a letter. Other texts that begin with a digit, such as dates and addresses, are states.
fn is_meant_as_number(text: &[u8]) -> bool {
    let Some(text) = std::str::from_utf8(text).ok().filter(|text| !text.contains('\0')) else { return true };
    let text = text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '"' | '\''));
    let end = text.find(|c: char| c.is_whitespace() || matches!(c, '%' | '°')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number = number.replacen(',', ".", 1);
    let is_number = number.parse::<f64>().is_ok() && number.ends_with(|c: char| c.is_ascii_digit());
    let unit = unit.trim_start();
    let is_unit = unit.starts_with(char::is_alphabetic) || !unit.contains(|c: char| c.is_ascii_digit());
    is_number && is_unit && !unit.contains(char::is_whitespace)
}

/// A sink that passes readings on, and counts those without a time.
struct Arrival<'s, S> {
    sink: &'s mut S,
    /// Whether to leave out readings without a time: a retained message may be old.
    is_retained: bool,
    /// Whether the time of the next reading is an age, which gives it another time at each arrival.
    is_relative: bool,
    readings: Readings,
}

impl<S: Sink> Sink for Arrival<'_, S> {
    fn limits(&self) -> Limits {
        self.sink.limits()
    }

    fn is_over(&self) -> bool {
        self.sink.is_over()
    }

    fn expect(&mut self, device: &str) {
        self.sink.expect(device);
    }

    fn relative_time(&mut self) {
        self.is_relative = true;
    }

    fn reading(&mut self, incoming: Incoming<'_>) {
        if std::mem::take(&mut self.is_relative) || incoming.ts_ms.is_none() {
            if self.is_retained {
                self.readings.retained += 1;
                return;
            }
            self.readings.untimed += 1;
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MqttTopic;
    use crate::wire::recording_sink::RecordingSink;

    fn formats() -> Formats {
        Formats {
            line_protocol: crate::config::LineProtocol::default(),
            json: json::Options::default(),
            senml_names: senml::NameSplit::at(crate::config::Senml::default().separators.as_str()),
        }
    }

    /// The readings of a message, the codes of rejections, and the ignored parts.
    fn entries(keys: &str, topic: &str, payload: &str) -> Vec<String> {
        let topics = Topic::all(&toml::from_str::<MqttTopic>(keys).unwrap());
        let place = match place(&topics, topic) {
            Ok(place) => place,
            Err(why) => return vec![why],
        };
        let mut sink = RecordingSink::default();
        place.parse(payload.as_bytes(), &formats(), (1_776_693_610_000, 1_000), &mut sink);
        let without_lines = sink.0.iter().filter(|entry| !entry.starts_with("line "));
        without_lines.map(|entry| entry.split(": ").next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn a_topic_completes_json_and_plain_numbers() {
        let plant = "topic = 'plant/{site}/{deviceId}/{metric}'\ntime = 'ts'";
        let of = |payload| entries(plant, "plant/north/S1/temp", payload);
        for (payload, expected) in [
            ("22.4", "S1 now temp=22.4"),
            (" -1e3\n", "S1 now temp=-1000"),
            ("ON", "S1 now temp=1"),
            ("false", "S1 now temp=0"),
            (r#"{"ts":1776693610000,"value":3}"#, "S1 1776693610000 temp=3"),
            (r#"{"value":3,"min":2}"#, "S1 now temp=3 temp.min=2"),
        ] {
            let found = of(payload);
            assert!(found.len() == 1 && found[0].starts_with(expected), "{payload}: {found:?}");
            assert!(found[0].contains(r#"{"site":"north"}"#), "{found:?}");
        }
        assert_eq!(entries("topic = 'a/{deviceId}/{label.phase}'", "a/S1/L1", "7"), ["S1 now value{phase=L1}=7"]);
        assert_eq!(of("{\"ts\":"), ["invalid_json"]);
    }

    #[test]
    fn a_number_in_another_form_is_rejected_and_any_other_text_is_a_state() {
        let of = |payload: &str| entries("topic = 'a/{deviceId}/{metric}'", "a/S1/temp", payload);
        let digits = "1".repeat(NUMBER_MAX_BYTES + 1);
        for payload in ["22,5", "\"22.5\"", "\" 7 \"", "22.5 C", "-3,5 °C", "-3°", "55%", "1e3 W/m²", &digits] {
            assert_eq!(of(payload), ["invalid_value"], "{payload}");
        }
        for payload in ["12,5 m3", "20 W/m2", "22.5\0", "A \0\0"] {
            assert_eq!(of(payload), ["invalid_value"], "{payload:?}");
        }
        for payload in ["", "unavailable", "offline", "\"idle\"", "null", "-", "...", "2026-04-20T14:00:10Z"] {
            assert_eq!(of(payload), ["ignored String value"], "{payload}");
        }
        for payload in ["2026-04-20", "20/04/2026", "20260420T140010Z", "07:30", "-07:30", "5 minutes ago", "1 2"] {
            assert_eq!(of(payload), ["ignored String value"], "{payload}");
        }
        for payload in ["24a160123456", "0x00158d0001", "192.168.1.7", "1.2.3-beta", "255,0,128", "52.5,13.4"] {
            assert_eq!(of(payload), ["ignored String value"], "{payload}");
        }
        for payload in ["52.5 -13.4", "52°30'N", "50%-60%", "120 1/min"] {
            assert_eq!(of(payload), ["ignored String value"], "{payload}");
        }
        for payload in ["2700K", "1080p", "1st floor", "2. Stock", "5, Hauptstrasse", "not 22.5"] {
            assert_eq!(of(payload), ["ignored String value"], "{payload}");
        }
        assert!(is_meant_as_number(b"\xff\xfe") && is_meant_as_number(b"\x41\xb2\x00\x00"), "a binary number");
    }

    /// Admission rejects an infinite value.
    #[test]
    fn a_plain_number_that_is_not_finite_is_a_rejected_value_as_in_json() {
        let of = |payload: &str| entries("topic = 'a/{deviceId}/{metric}'", "a/S1/temp", payload);
        for (plain, in_json, expected) in [
            ("1e400", "1e400", "S1 now temp=inf"),
            ("-1e999", "-1e999", "S1 now temp=-inf"),
            ("inf", "1e400", "S1 now temp=inf"),
            ("nan", "NaN", "invalid_value"),
        ] {
            let found = of(plain);
            assert_eq!(found, [expected], "{plain}");
            assert_eq!(of(&format!("{{\"value\":{in_json}}}")), found, "{in_json}");
        }
    }

    #[test]
    fn payloads_that_name_their_devices_have_a_format_of_their_own() {
        let line = "t,device=S1 value=1 1000000";
        assert_eq!(entries("topic = 'in/#'", "in", line), ["S1 1 t=1"]);
        let json = "{\"deviceId\":\"S1\",\"ts\":1,\"value\":1}\n{\"deviceId\":\"S2\",\"ts\":2,\"value\":2}";
        assert_eq!(entries("topic = 'in/#'", "in/a", json), ["S1 1 value=1", "S2 2 value=2"]);
        // A value over several lines is one value.
        for (json, expected) in [
            ("{\n  \"deviceId\": \"S1\",\n  \"values\": {\"hum\": 40}\n}", &["S1 now hum=40"][..]),
            (
                "\r\n[\r\n{\"deviceId\":\"S1\",\"value\":1},\r\n{\"deviceId\":\"S2\",\r\n\"value\":2}\r\n]\r\n",
                &["S1 now value=1", "S2 now value=2"],
            ),
            ("[{\"deviceId\":\"S1\",\"value\":1},\n{\"value\":2", &["invalid_json"; 2]),
            ("{\"deviceId\":\"S1\",\"value\":1}\n{\"value\":2", &["S1 now value=1", "invalid_json"]),
        ] {
            for format in ["json", "auto"] {
                assert_eq!(entries(&format!("topic = 'in/#'\nformat = '{format}'"), "in", json), expected, "{json}");
            }
        }
        let senml = r#"[{"bn":"S1:","bt":1776693610,"n":"temp","v":3}]"#;
        let found = entries("topic = 'in'\nformat = 'senml'", "in", senml);
        assert!(found[0].starts_with("S1 1776693610000 temp=3"), "{found:?}");
        assert_eq!(entries("topic = 'in'\nformat = 'senml'", "in", "\u{1}"), ["invalid_senml"]);
        assert_eq!(entries("topic = 'in'", "out", line), ["no topic of the configuration has it"]);
    }

    #[test]
    fn a_byte_order_mark_changes_nothing() {
        for (keys, topic, payload) in [
            ("topic = 'a/{deviceId}/{metric}'", "a/S1/temp", r#"{"value":3}"#),
            ("topic = 'a/{deviceId}/{metric}'", "a/S1/temp", "22.4"),
            ("topic = 'in/#'", "in", r#"{"deviceId":"S1","ts":1,"value":1}"#),
            ("topic = 'in/#'", "in", "t,device=S1 value=1 1000000"),
            ("topic = 'in'\nformat = 'senml'", "in", r#"[{"bn":"S1:","bt":1776693610,"n":"temp","v":3}]"#),
        ] {
            let found = entries(keys, topic, payload);
            assert!(found.len() == 1 && found[0].starts_with("S1 "), "{payload}: {found:?}");
            assert_eq!(entries(keys, topic, &format!("\u{FEFF}{payload}")), found, "{payload}");
        }
    }

    #[test]
    fn an_age_is_no_time_of_its_own() {
        for (payload, without_time) in [
            (r#"{"deviceId":"S","ts":1,"value":1}"#, 0),
            (r#"{"deviceId":"S","value":1}"#, 1),
            (r#"{"deviceId":"S","ageMs":0,"value":1}"#, 1),
            (r#"{"deviceId":"S","ageMs":null,"ts":1,"value":1}"#, 0),
            (r#"{"deviceId":"S","ageMs":5,"readings":[{"value":1},{"ts":1,"value":2},{"ageMs":1,"value":3}]}"#, 2),
            (r#"{"deviceId":"S","ts":5,"readings":[{"value":1},{"ageMs":1,"value":2},{"value":3}]}"#, 1),
            (r#"[{"deviceId":"S","ageMs":1,"value":"x"},{"deviceId":"S","ts":1,"value":2}]"#, 0),
            (r#"[{"n":"S:a","v":1},{"n":"S:b","v":2}]"#, 1),
            (r#"[{"n":"S:a","t":-10,"v":1},{"n":"S:a","t":1776693610,"v":2},{"n":"S:a","t":5,"v":3}]"#, 2),
            (r#"[{"n":"S:a","bt":-10,"v":1},{"n":"S:a","t":1776693620,"v":2},{"n":"S:a","v":3}]"#, 2),
        ] {
            let format = if payload.contains("\"n\"") { "senml" } else { "json" };
            let keys = format!("topic = 'in'\nformat = '{format}'");
            let topics = Topic::all(&toml::from_str::<MqttTopic>(&keys).unwrap());
            let place = place(&topics, "in").unwrap();
            let passed_on = [false, true].map(|is_retained| {
                let (sink, readings) = (&mut RecordingSink::default(), Readings::default());
                let mut sink = Arrival { sink, is_retained, is_relative: false, readings };
                place.parse(payload.as_bytes(), &formats(), (1_776_693_610_000, 1_000), &mut sink);
                let Readings { untimed, retained } = sink.readings;
                assert_eq!(if is_retained { retained } else { untimed }, without_time, "{payload}");
                sink.sink.0.iter().filter(|entry| entry.starts_with("S ")).count()
            });
            assert_eq!(passed_on[0] - passed_on[1], without_time as usize, "{payload}");
        }
    }

    #[test]
    fn a_topic_names_the_device_of_payloads_that_name_none() {
        for (format, payload, expected) in [
            ("json", r#"{"ts":1,"value":1}"#, &["T1 1 value=1"][..]),
            ("json", r#"{"deviceId":null,"ts":1,"value":1}"#, &["invalid_device_id"]),
            (
                "json",
                "{\"deviceId\":\"S1\",\"ts\":1,\"value\":1}\n{\"ts\":2,\"value\":2}",
                &["S1 1 value=1", "T1 2 value=2"],
            ),
            (
                "json",
                r#"{"metadata":{"floor":2},"readings":[{"ts":1,"value":1},{"deviceId":"S2","ts":1,"value":2}]}"#,
                &["T1 1 value=1 {\"floor\":2}", "S2 1 value=2"],
            ),
            ("auto", "t,room=a value=1 1000000", &["T1 1 t{room=a}=1"]),
            (
                "line_protocol",
                "t value=1 1000000\nt,device=S1,room=a value=2 1000000",
                &["T1 1 t=1", "S1 1 t{room=a}=2"],
            ),
            ("senml", r#"[{"bt":1776693610,"n":"temp","v":3}]"#, &["T1 1776693610000 temp=3"]),
            (
                "senml",
                r#"[{"bt":1776693610,"u":"Cel","v":3}]"#,
                &["T1 1776693610000 Cel=3 {\"units\":{\"Cel\":\"Cel\"}}"],
            ),
            (
                "senml",
                r#"[{"bn":"S1:","bt":1776693610,"n":"temp","v":3},{"v":4}]"#,
                &["S1 1776693610000 temp=3 value=4"],
            ),
            (
                "senml",
                r#"[{"bn":"urn:dev:ow:10e2","bt":1776693610,"v":3}]"#,
                &["urn:dev:ow:10e2 1776693610000 value=3"],
            ),
        ] {
            let keys = format!("topic = 'in/{{deviceId}}/#'\nformat = '{format}'");
            assert_eq!(entries(&keys, "in/T1/x", payload), expected, "{payload}");
        }
        let of_nobody = entries("topic = 'in/{deviceId}'\nformat = 'json'", "in/", r#"{"value":1}"#);
        assert_eq!(of_nobody, ["missing_device_id"]);
    }

    #[test]
    fn presets_read_what_the_platforms_publish() {
        let zigbee = r#"{"temperature":21.5,"humidity":40,"linkquality":90,"update":{"state":"idle"},"contact":true}"#;
        let found = entries("preset = 'zigbee2mqtt'", "zigbee2mqtt/Küche", zigbee);
        assert!(found[0].starts_with("Küche ") && found[0].contains("temperature=21.5"), "{found:?}");
        let tasmota = r#"{"Time":"2026-04-20T14:00:10","ENERGY":{"Power":12,"Today":0.3}}"#;
        let found = entries("preset = 'tasmota'", "tele/plug-1/SENSOR", tasmota);
        assert!(found.iter().any(|entry| entry.starts_with("plug-1 now ENERGY.Power=12")), "{found:?}");
        let shelly =
            r#"{"src":"shelly-1","method":"NotifyStatus","params":{"ts":1776693610.5,"switch:0":{"id":0,"apower":8}}}"#;
        let found = entries("preset = 'shelly'", "shelly-1/events/rpc", shelly);
        assert!(found.iter().any(|entry| entry.starts_with("shelly-1 1776693610500 switch:0.apower=8")), "{found:?}");
    }
}
