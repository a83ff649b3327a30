//! The formats of messages, and how to write them.

use std::fmt::Write;

use clap::ValueEnum;

use crate::workload::Reading;

/// A format of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// tidegauge's JSON: one object, or an array of them
    Json,
    /// A JSON object a line
    Ndjson,
    /// InfluxDB line protocol, its times in nanoseconds: over UDP there is no saying otherwise
    Lines,
}

/// The ID of the device with this number: `device-00000007`.
pub(crate) fn device_id(device: u64) -> String {
    format!("device-{device:08}")
}

impl Format {
    /// Replaces the content of `text` by a message with these readings.
    pub(crate) fn write(self, text: &mut String, readings: &[Reading]) {
        text.clear();
        let array = self == Self::Json && readings.len() != 1;
        if array {
            text.push('[');
        }
        for (at, reading) in readings.iter().enumerate() {
            if at > 0 {
                text.push(if array { ',' } else { '\n' });
            }
            self.write_one(text, reading).expect("a string takes everything");
        }
        if array {
            text.push(']');
        }
    }

    fn write_one(self, text: &mut String, reading: &Reading) -> std::fmt::Result {
        let Reading { device, ts_ms, value } = reading;
        match self {
            Self::Json | Self::Ndjson => {
                write!(text, "{{\"deviceId\":\"device-{device:08}\",\"ts\":{ts_ms},\"value\":{value}}}")
            }
            Self::Lines => write!(text, "temp,deviceId=device-{device:08} value={value} {ts_ms}000000"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_as_their_format() {
        let readings =
            [Reading { device: 7, ts_ms: 1000, value: 0.25 }, Reading { device: 8, ts_ms: 2000, value: 3.0 }];
        let mut text = String::new();
        Format::Json.write(&mut text, &readings[..1]);
        assert_eq!(text, r#"{"deviceId":"device-00000007","ts":1000,"value":0.25}"#);
        Format::Json.write(&mut text, &readings);
        assert!(text.starts_with(r#"[{"deviceId":"device-00000007""#) && text.ends_with(r#""value":3}]"#));
        Format::Ndjson.write(&mut text, &readings);
        assert_eq!(text.lines().count(), 2);
        Format::Lines.write(&mut text, &readings);
        assert_eq!(text.lines().next(), Some("temp,deviceId=device-00000007 value=0.25 1000000000"));
    }
}
