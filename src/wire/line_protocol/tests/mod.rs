//! The readings and rejections of lines.

mod oracle;
mod random;

use super::*;
use crate::config::Strings;
use crate::wire::{Ignored, Incoming, Rejection, Sink, recording_sink::RecordingSink};

fn device_tags() -> Vec<String> {
    LineProtocol::default().device_tags
}

/// The entries of lines by this mapping.
fn entries_of(mapping: &LineProtocol, body: &str) -> Vec<String> {
    entries_by(&Options { precision: Precision::Milliseconds, device: None, mapping }, body)
}

/// The readings and rejections of a body, each after the number of its line and `: `.
fn entries_by(options: &Options<'_>, body: impl AsRef<[u8]>) -> Vec<String> {
    let mut entries = RecordingSink::default();
    parse(body.as_ref(), options, &mut entries);
    let (mut line, mut found) = ("0".to_owned(), Vec::new());
    for entry in entries.0 {
        match entry.strip_prefix("line ") {
            Some(number) => line = number.to_owned(),
            None => found.push(format!("{line}: {entry}")),
        }
    }
    found
}

fn entries_at(precision: Precision, body: impl AsRef<[u8]>) -> Vec<String> {
    entries_by(&Options { precision, device: None, mapping: &LineProtocol::default() }, body)
}

fn entries(body: impl AsRef<[u8]>) -> Vec<String> {
    entries_at(Precision::Milliseconds, body)
}

/// The reading or rejection of a body of one line.
fn entry(line: impl AsRef<[u8]>) -> String {
    let entries = entries(line);
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries[0].strip_prefix("1: ").unwrap().to_owned()
}

#[test]
fn the_device_of_a_reading_is_announced_before_it() {
    #[derive(Default)]
    struct Heard(Vec<String>);
    impl Sink for Heard {
        fn expect(&mut self, device: &str) {
            self.0.push(format!("expect {device}"));
        }
        fn reading(&mut self, incoming: Incoming<'_>) {
            self.0.push(incoming.device.to_owned());
        }
        fn reject(&mut self, rejection: Rejection) {
            self.0.push(rejection.code.as_str().to_owned());
        }
        fn reject_value(&mut self, _: Rejection) {}
        fn ignore(&mut self, _: Ignored, _: &str) {}
    }
    let mut heard = Heard::default();
    let options = Options { precision: Precision::Milliseconds, device: None, mapping: &LineProtocol::default() };
    parse(b"m,host=a\\ b f=1 1\nm,zone=4 f=1 1\nm,zone=4,host=c f=? 1\n", &options, &mut heard);
    assert_eq!(heard.0, ["expect a b", "a b", "missing_device_id", "expect c", "invalid_value"]);
}

#[test]
fn a_line_is_a_reading() {
    assert_eq!(
        entries_at(Precision::Nanoseconds, "sensor,deviceId=S1 temp=22.4,hum=40 1776693610000000000"),
        ["1: S1 1776693610000 sensor_temp=22.4 sensor_hum=40"]
    );
    assert_eq!(
        entry("sensor,zone=Zone\\ 4,deviceId=S1,floor=2 on=t,n=3i 5"),
        "S1 5 sensor_on{floor=2,zone=Zone 4}=1 sensor_n{floor=2,zone=Zone 4}=3"
    );
    assert_eq!(entry("m,host=h f=1"), "h now m_f=1");
    assert_eq!(entry("m,host=h f=1 -1"), "h -1 m_f=1");
    assert_eq!(entry("_m,host=h _f=1e999"), "h now _m__f=inf");
}

#[test]
fn the_field_value_is_the_measurement_itself() {
    assert_eq!(entry("temp,host=h value=1"), "h now temp=1");
    assert_eq!(entry("temp,host=h min=0,value=1,max=2,Value=3"), "h now temp_min=0 temp=1 temp_max=2 temp_Value=3");
    assert_eq!(entry("temp,host=h val\\ue=1"), "h now temp_val\\ue=1");
}

#[test]
fn the_device_is_the_first_listed_tag_and_the_others_are_labels() {
    assert_eq!(entry("m,host=h,device=d,x=y f=1"), "h now m_f{device=d,x=y}=1");
    assert_eq!(entry("m,device_id=i,deviceId=D,device=d f=1"), "D now m_f{device=d,device_id=i}=1");
    assert_eq!(entry("m,dev\\=ice=1,host=a\\,b,q=\"\\n f=1"), r#"a,b now m_f{dev\=ice=1,q="\\n}=1"#);
    let missing = "missing_device_id: no tag names the device \
                   (looked for deviceId, device_id, sensor_id, sensorId, host, device): the tags end at column";
    assert_eq!(entry("m f=1"), format!("{missing} 2"));
    assert_eq!(entry(" m,Host=h,x=1  f=1 5"), format!("{missing} 14"));
    let mapping = LineProtocol { device_tags: vec!["b".to_owned()], ..LineProtocol::default() };
    assert_eq!(entries_of(&mapping, "m,a=1,b=2 f=1"), ["1: 2 now m_f{a=1}=1"]);
}

#[test]
fn points_that_differ_in_a_tag_are_different_series() {
    let cpus = "cpu,cpu=cpu0,host=a idle=1 5\ncpu,cpu=cpu1,host=a idle=2 5\ncpu,cpu=cpu-total,host=a idle=3 5";
    assert_eq!(
        entries(cpus),
        ["1: a 5 cpu_idle{cpu=cpu0}=1", "2: a 5 cpu_idle{cpu=cpu1}=2", "3: a 5 cpu_idle{cpu=cpu-total}=3"]
    );
    let disks = "disk,device=sda1,host=a value=1 5\ndisk,device=sda1,host=b value=2 5";
    assert_eq!(entries(disks), ["1: a 5 disk{device=sda1}=1", "2: b 5 disk{device=sda1}=2"]);
}

#[test]
fn the_tags_of_metadata_describe_the_device() {
    let metadata_tags = ["floor", "zone"].map(str::to_owned).to_vec();
    let mapping = LineProtocol { metadata_tags, ..LineProtocol::default() };
    assert_eq!(
        entries_of(&mapping, "m,zone=Zone\\ 4,host=h,core=0,floor=2 f=1\nm,host=h f=2"),
        [r#"1: h now m_f{core=0}=1 {"zone":"Zone 4","floor":"2"}"#, "2: h now m_f=2"]
    );
}

#[test]
fn labels_that_no_series_can_have_reject_the_line() {
    let tags = |count: usize| (0..count).map(|tag| format!(",t{tag}=1")).collect::<Vec<_>>().concat();
    let code = |line: String| entry(line).split(':').next().unwrap().to_owned();
    assert!(entry(format!("m,host=h{} f=1", tags(32))).starts_with("h now m_f{t0=1,"));
    assert_eq!(code(format!("m,host=h{} f=1", tags(33))), "too_many_labels");
    assert_eq!(code(format!("m,host=h{} f=1", tags(50_000))), "too_many_labels");
    assert_eq!(code(format!("m,host=h,t={} f=1", "x".repeat(600))), "series_too_long");
    assert_eq!(code(format!("m,host=h,t={} {}=1", "x".repeat(450), "f".repeat(100))), "series_too_long");
    assert_eq!(code("m,host=h,t=a\u{FF0E}b f=1".to_owned()), "invalid_label");
}

#[test]
fn a_bad_field_is_rejected_alone() {
    assert_eq!(
        entries("m,host=h a=NaN,b=2,c=x,d=4 5"),
        [
            "1: value invalid_value: the value of field \"a\" is neither a number nor a boolean at column 12",
            "1: value invalid_value: the value of field \"c\" is neither a number nor a boolean at column 22",
            "1: h 5 m_b=2 m_d=4",
        ]
    );
    let braces = entries("m,host=h,l={x} a{b=1,c=2,d}=3 5");
    assert_eq!(
        braces[..2].iter().map(|entry| &entry[..32]).collect::<Vec<_>>(),
        ["1: value invalid_metric_name: fi"; 2]
    );
    assert_eq!(braces[2..], [r"1: h 5 m_c{l=\{x\}}=2"]);
    let long = entries(format!("m,host=h {}=1,ok=2 5", "f".repeat(127)));
    assert!(long[0].starts_with("1: value invalid_metric_name") && long[1..] == ["1: h 5 m_ok=2"], "{long:?}");
}

#[test]
fn the_last_value_of_a_duplicate_field_wins() {
    assert_eq!(entry("m,host=h a=1,b=2,a=3"), "h now m_a=3 m_b=2");
    assert_eq!(entry("m,host=h value=1,value=2,value=3"), "h now m=3");
    assert_eq!(entry("m,host=h a\\ b=1,a\\ b=2"), "h now m_a b=2");
    let many: Vec<_> = (0..50_000).map(|field| format!("f{field}={field}")).collect();
    let entry = entry(format!("m,host=h {},f7=x7,f7=-1", many.join(",")).replace("x7", "0"));
    assert!(entry.contains(" m_f6=6 m_f7=-1 m_f8=8 ") && entry.ends_with(" m_f49999=49999"));
}

#[test]
fn a_duplicate_tag_is_rejected() {
    assert_eq!(entry("m,a=1,host=h,a=1 f=1"), "duplicate_key: the tag \"a\" is duplicated at column 14");
    let many: Vec<_> = (0..40).map(|tag| format!("t{tag}={tag}")).collect();
    assert!(entry(format!("m,{},t0=0 f=1", many.join(","))).starts_with("duplicate_key: the tag \"t0\" is duplicated"));
}

#[test]
fn the_time_has_the_unit_of_the_body() {
    for (precision, time, ms) in [
        (Precision::Nanoseconds, "-1", "-1"),
        (Precision::Microseconds, "1776693610000999", "1776693610000"),
        (Precision::Seconds, "1776693610", "1776693610000"),
        (Precision::Minutes, "2", "120000"),
        (Precision::Hours, "-1", "-3600000"),
        (Precision::Auto, "1776693610", "1776693610000"),
        (Precision::Auto, "1776693610000000000", "1776693610000"),
    ] {
        assert_eq!(entries_at(precision, format!("m,host=h f=1 {time}")), [format!("1: h {ms} m_f=1")]);
    }
    for time in ["9223372036854775808", "-9223372036854775809", "99999999999999999999999"] {
        let problem = "invalid_timestamp: the time does not fit into 64 bits at column 14";
        assert_eq!(entry(format!("m,host=h f=1 {time}")), problem);
    }
    let problem = "1: invalid_timestamp: the time does not fit into 64 bits at column 14";
    assert_eq!(entries_at(Precision::Seconds, "m,host=h f=1 9223372036854775"), ["1: h 9223372036854775000 m_f=1"]);
    assert_eq!(entries_at(Precision::Seconds, "m,host=h f=1 9223372036854776"), [problem]);
    for time in ["now", "1.5", "1e3", "+1", "-", "--1", "1i", "0x1", "\t1", "1\t2", "2026-04-20T14:00:10Z", "é"] {
        let problem = "invalid_timestamp: the time is not a whole number at column 14";
        assert_eq!(entry(format!("m,host=h f=1 {time}")), problem, "{time}");
    }
}

#[test]
fn white_space_around_a_line_and_its_parts_is_skipped() {
    assert_eq!(entry(" \t m,host=h   f=1   5 \t \r\n"), "h 5 m_f=1");
    assert_eq!(entry("m,host=h f=1 \r"), "h now m_f=1");
    assert_eq!(
        entries("\r\n# comment\r\nm,host=a f=1 1\r\n\n  \t\n  # \"comment\nm,host=b f=2 2"),
        ["3: a 1 m_f=1", "7: b 2 m_f=2"]
    );
    assert_eq!(entries(""), [""; 0]);
    assert_eq!(entries(b"\n # \xFF\n\n"), [""; 0]);
    assert_eq!(entry("m#,host=h #=1"), "h now m#_#=1");
}

#[test]
fn strings_are_dropped_and_counted_by_default() {
    assert_eq!(entries("m,host=h a=1,s=\"\",b=2 5"), ["1: ignored String s", "1: h 5 m_a=1 m_b=2"]);
    assert_eq!(entries("m,host=h s=\"a\",t=\"b\" 5"), ["1: ignored String s", "1: ignored String t"]);
    assert_eq!(entries("m,host=h s=\"a\nb, \\\" c=1\"\nm,host=h f=1"), ["1: ignored String s", "3: h now m_f=1"]);
    assert_eq!(entries("m,host=h s=\"a\",b=x 5").len(), 1, "the line has no number, and its rejection is told");
}

#[test]
fn strings_can_be_rejected_alone() {
    let mapping = LineProtocol { strings: Strings::Reject, ..LineProtocol::default() };
    let problem = "invalid_value: the value of field \"s\" must be a number or a boolean, found a string at column";
    assert_eq!(entries_of(&mapping, "m,host=h s=\"a\""), [format!("1: {problem} 12")]);
    assert_eq!(
        entries_of(&mapping, "m,host=h a=1,s=\"\",b=2 5"),
        [format!("1: value {problem} 16"), "1: h 5 m_a=1 m_b=2".to_owned()]
    );
}

#[test]
fn strings_can_be_metadata() {
    let metadata_tags = vec!["floor".to_owned()];
    let mapping = LineProtocol { strings: Strings::Metadata, metadata_tags, ..LineProtocol::default() };
    assert_eq!(
        entries_of(&mapping, r#"m,host=h,floor=2 name="a \"b\" \\ \c",v=1,floor="3",os="x" 5"#),
        ["1: ignored String floor", r#"1: h 5 m_v=1 {"floor":"2","name":"a \"b\" \\ \\c","os":"x"}"#]
    );
    assert_eq!(entries_of(&mapping, "m,host=h s=\"a\""), ["1: ignored String s"]);
    assert_eq!(entries_of(&mapping, "m,host=h s=\"a\nb\",v=1"), ["1: ignored String s", "1: h now m_v=1"]);
}

#[test]
fn a_line_with_an_unclosed_string_is_rejected_alone() {
    let problem = "invalid_line: the string of field \"s\" is not closed, it begins at column 12";
    for other in ["m,host=h f=1", "m,host=h f=1\nm,host=h s=\"a\"", "m,host=h s=\"b\nm,host=h f=1"] {
        let entries = entries(format!("m,host=h s=\"a\n{other}"));
        assert_eq!(entries[0], format!("1: {problem}"));
        assert_eq!(entries.len(), 1 + other.lines().count(), "{entries:?}");
    }
}

#[test]
fn every_rejection_has_its_column() {
    for (line, problem) in [
        (",host=h f=1", "invalid_line: expected a measurement at column 1"),
        ("  ,host=h f=1", "invalid_line: expected a measurement at column 3"),
        ("m", "missing_values: the line ends without a field at column 2"),
        ("m,host=h", "missing_values: the line ends without a field at column 9"),
        ("m,host=h ", "missing_values: the line ends without a field at column 9"),
        ("m,host=h\\ f=1", "invalid_line: '=' in the value of a tag needs a backslash before it at column 12"),
        ("m, f=1", "invalid_line: expected the key of a tag at column 3"),
        ("m,", "invalid_line: expected the key of a tag at column 3"),
        ("m,=h f=1", "invalid_line: expected the key of a tag at column 3"),
        ("m,host=h, f=1", "invalid_line: expected the key of a tag at column 10"),
        ("m,host=h,,a=b f=1", "invalid_line: expected the key of a tag at column 10"),
        ("m,host f=1", "invalid_line: expected '=' after the tag \"host\" at column 7"),
        ("m,host,a=b f=1", "invalid_line: expected '=' after the tag \"host\" at column 7"),
        ("m,host= f=1", "invalid_line: expected the value of tag \"host\" at column 8"),
        ("m,host=,a=b f=1", "invalid_line: expected the value of tag \"host\" at column 8"),
        ("m,host==h f=1", "invalid_line: expected the value of tag \"host\" at column 8"),
        ("m,host=h=i f=1", "invalid_line: '=' in the value of a tag needs a backslash before it at column 9"),
        ("m,host=h f", "invalid_line: expected '=' after the field \"f\" at column 11"),
        ("m,host=h 5", "invalid_line: expected '=' after the field \"5\" at column 11"),
        ("m,host=h f,g=1", "invalid_line: expected '=' after the field \"f\" at column 11"),
        ("m,host=h f\\=1", "invalid_line: expected '=' after the field \"f=1\" at column 14"),
        ("m,host=h =1", "invalid_line: expected the key of a field at column 10"),
        ("m,host=h f=1,", "invalid_line: expected the key of a field at column 14"),
        ("m,host=h f=1, g=2", "invalid_line: expected the key of a field at column 14"),
        ("m,host=h f=1,,g=2", "invalid_line: expected the key of a field at column 14"),
        ("m,host=h f=", "invalid_value: the value of field \"f\" is missing at column 12"),
        ("m,host=h f= 5", "invalid_value: the value of field \"f\" is missing at column 12"),
        ("m,host=h f=NaN", "invalid_value: the value of field \"f\" is neither a number nor a boolean at column 12"),
        ("m,host=h f=1=2", "invalid_value: the value of field \"f\" is neither a number nor a boolean at column 12"),
        (
            "m,host=h f=9223372036854775808i",
            "invalid_value: the value of field \"f\" is an integer of more than 64 bits at column 12",
        ),
        ("m,host=h f=1 5 6", "invalid_line: expected the end of the line at column 16"),
        ("m,host=h f=1 5,6", "invalid_timestamp: the time is not a whole number at column 14"),
        ("m,host=h f=1 ,g=2", "invalid_timestamp: the time is not a whole number at column 14"),
        ("m,host=h\tf=1", "invalid_line: a name has no control characters, there is one at column 9"),
        ("\rm,host=h f=1", "invalid_line: a name has no control characters, there is one at column 1"),
        ("m\0,host=h f=1", "invalid_line: a name has no control characters, there is one at column 2"),
        ("m,host=h \tf=1", "invalid_line: a name has no control characters, there is one at column 10"),
        ("m,host=h f=\"a\"b 5", "invalid_line: expected a comma or a space after a string at column 15"),
    ] {
        assert_eq!(entry(line), problem, "{line}");
        assert_eq!(entries(format!("{line}\nm,host=h f=1"))[1..], ["2: h now m_f=1"], "{line}");
    }
}

#[test]
fn a_line_that_is_not_utf_8_is_rejected_alone() {
    assert_eq!(
        entries(b"m,host=a f=1\nm,host=\xC3\xA9\xFF f=1\nm\xFF s=\"a\nb\"\nm,host=b f=1"),
        [
            "1: a now m_f=1",
            "2: invalid_line: the line is not valid UTF-8 at column 10",
            "3: invalid_line: the line is not valid UTF-8 at column 2",
            "5: b now m_f=1"
        ]
    );
}

#[test]
fn a_long_line_is_a_line() {
    let long = "x".repeat(1_000_000);
    assert_eq!(entry(format!("m,host={long} f=1")), format!("{long} now m_f=1"));
    let digits = "1".repeat(1_000_000);
    assert_eq!(entry(format!("m,host=h f={digits}")), "h now m_f=inf");
    let problem = entry(format!("m,{long} f=1"));
    assert!(problem.ends_with("at column 1000003") && problem.len() < 200, "{problem}");
}
