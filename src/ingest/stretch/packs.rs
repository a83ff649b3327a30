//! Packs of `SenML` that stretch one thing each, in JSON and in CBOR.

use super::bodies::fill;
use super::{BODY_BYTES, Case, Format};

/// A field of a record.
#[derive(Clone)]
enum Field {
    Text(&'static str, String),
    Number(&'static str, u32),
    /// `labels` with this many keys, and values of this many bytes.
    Labels(usize, usize),
}

use Field::{Labels, Number, Text};

/// A pack: the records `first`, then numbered records from `record` up to the length of the pack.
struct Pack {
    name: &'static str,
    first: fn(usize) -> Vec<Vec<Field>>,
    record: fn(usize) -> Vec<Field>,
}

fn value() -> Field {
    Number("v", 1)
}

fn name(name: impl Into<String>) -> Field {
    Text("n", name.into())
}

/// The record of a device's metric with a unit of 40 bytes: some 60 fill a device's metadata.
fn measured(device: &str, metric: usize) -> Vec<Field> {
    vec![name(format!("{device}/metric-{metric:04}")), Text("u", "u".repeat(40)), value()]
}

/// The devices a and b, each with units for this many metrics.
fn units_of_two(metrics: usize) -> Vec<Vec<Field>> {
    ["a", "b"].iter().flat_map(|device| (0..metrics).map(|metric| measured(device, metric))).collect()
}

fn a_and_b(at: usize) -> Vec<Field> {
    vec![name(["a", "b"][at % 2]), value()]
}

const PACKS: [Pack; 31] = [
    Pack {
        name: "a long base name",
        first: |bytes| vec![vec![Text("bn", "a".repeat(bytes / 2))]],
        record: |_| vec![value()],
    },
    Pack {
        name: "a long base unit",
        first: |bytes| vec![vec![Text("bu", "u".repeat(bytes / 2))]],
        record: |at| vec![name(format!("a/b{at}")), value()],
    },
    Pack {
        name: "the longest base unit with many devices",
        first: |_| vec![vec![Text("bu", "u".repeat(64))]],
        record: |at| vec![name(format!("{at}/b")), value()],
    },
    Pack {
        name: "the longest base unit with many metrics",
        first: |_| vec![vec![Text("bu", "u".repeat(64))]],
        record: |at| vec![name(format!("a/{at}")), value()],
    },
    Pack {
        name: "a base unit of quotes with many devices",
        first: |_| vec![vec![Text("bu", "\"".repeat(64))]],
        record: |at| vec![name(format!("{at}/b")), value()],
    },
    Pack {
        name: "a base name of 120 bytes with many devices",
        first: |_| vec![vec![Text("bn", "b".repeat(120))]],
        record: |at| vec![name(at.to_string()), value()],
    },
    Pack {
        name: "a base name of 120 bytes with many devices and a unit",
        first: |_| vec![vec![Text("bn", "b".repeat(120)), Text("bu", "u".repeat(64))]],
        record: |at| vec![name(format!("{at}/t")), value()],
    },
    Pack {
        name: "a base name of 120 bytes with devices that alternate",
        first: |_| vec![vec![Text("bn", "b".repeat(120))]],
        record: |at| vec![name(["a", "b"][at % 2]), value()],
    },
    Pack {
        name: "a base name of 122 bytes with many metrics",
        first: |_| vec![vec![Text("bn", format!("d/{}", "m".repeat(120)))]],
        record: |at| vec![name(at.to_string()), value()],
    },
    Pack {
        name: "base names of 122 bytes with units",
        first: |_| vec![vec![Text("bu", "u".repeat(64))]],
        record: |at| {
            let metric = name(format!("{}", at % 20));
            match at % 20 {
                0 => vec![Text("bn", format!("{at}/{}", "m".repeat(110))), metric, value()],
                _ => vec![metric, value()],
            }
        },
    },
    Pack { name: "units of two devices that alternate", first: |_| units_of_two(55), record: a_and_b },
    Pack {
        name: "many units of two devices that alternate",
        first: |bytes| units_of_two(bytes / 200),
        record: a_and_b,
    },
    Pack {
        name: "many short names with units",
        first: |_| Vec::new(),
        record: |at| vec![name(format!("{at}/t")), Text("u", "C".to_owned()), value()],
    },
    Pack {
        name: "different units",
        first: |_| Vec::new(),
        record: |at| vec![name("a/t"), Text("u", at.to_string()), value()],
    },
    Pack { name: "values of one metric", first: |_| vec![vec![Text("bn", "a".to_owned())]], record: |_| vec![value()] },
    Pack {
        name: "values of one long metric",
        first: |_| vec![vec![Text("bn", format!("{}/{}", "a".repeat(128), "m".repeat(128)))]],
        record: |_| vec![value()],
    },
    Pack {
        name: "names without a separator",
        first: |_| vec![vec![Text("bn", format!("urn:dev:ow:{}", "a".repeat(240)))]],
        record: |_| vec![value()],
    },
    Pack {
        name: "names of separators",
        first: |_| vec![vec![Text("bn", format!("a{}", ":".repeat(250)))]],
        record: |_| vec![value()],
    },
    Pack {
        name: "metrics of one reading",
        first: |_| vec![vec![Text("bn", "a/".to_owned())]],
        record: |at| vec![name(at.to_string()), value()],
    },
    Pack {
        name: "long metrics of one reading",
        first: |_| vec![vec![Text("bn", format!("a/{}", "m".repeat(124)))]],
        record: |at| vec![name((at % 256).to_string()), value()],
    },
    Pack {
        name: "sums",
        first: |_| vec![vec![Text("bn", format!("a/{}", "m".repeat(120))), Number("bs", 1)]],
        record: |at| vec![name((at % 100).to_string()), value()],
    },
    Pack {
        name: "times",
        first: |_| vec![vec![Text("bn", "a".to_owned())]],
        record: |at| vec![value(), Number("t", u32::try_from(at % 200).unwrap())],
    },
    Pack { name: "records of nothing", first: |_| Vec::new(), record: |_| Vec::new() },
    Pack {
        name: "records with a bad base name",
        first: |_| vec![vec![Text("bn", "-".repeat(258))]],
        record: |_| vec![value()],
    },
    Pack {
        name: "records that need a bad base field",
        first: |_| vec![vec![Text("bt", "no time".to_owned()), Number("bn", 1)]],
        record: |_| vec![value()],
    },
    Pack {
        name: "unknown fields",
        first: |_| Vec::new(),
        record: |at| vec![name("a"), value(), Text("unknown", "x".repeat(at % 50)), Number("also unknown", 1)],
    },
    Pack {
        name: "empty unknown fields",
        first: |_| Vec::new(),
        record: |_| vec![name("a"), value(), Number("", 1), Number("", 1), Number("", 1), Number("", 1)],
    },
    Pack {
        name: "labels",
        first: |_| vec![vec![Text("bn", format!("a/{}", "m".repeat(120)))]],
        record: |at| vec![value(), Labels(1 + at % 32, 1)],
    },
    Pack {
        name: "many labels of one record",
        first: |_| Vec::new(),
        record: |_| vec![name("a"), value(), Labels(10_000, 1)],
    },
    Pack {
        name: "labels with a long base name and a sum",
        first: |_| vec![vec![Text("bn", format!("a/{}", "m".repeat(120))), Number("bs", 1)]],
        record: |at| vec![name((at % 100).to_string()), value(), Labels(1, 1)],
    },
    Pack {
        name: "fields again and again",
        first: |_| Vec::new(),
        record: |_| vec![name("a"), name("a"), name("a"), value(), value()],
    },
];

/// The cases with units, which are metadata, and the other ones.
pub(super) fn cases(format: Format) -> (Vec<Case>, Vec<Case>) {
    let case = |pack: Pack| {
        let write = if format == Format::SenmlJson { in_json } else { in_cbor };
        Case { name: pack.name, format, body: Box::new(move |bytes| write(&pack, bytes)) }
    };
    let (with_units, others): (Vec<Pack>, Vec<Pack>) = PACKS.into_iter().partition(Pack::has_units);
    let (with_units, mut others): (Vec<_>, Vec<_>) =
        (with_units.into_iter().map(case).collect(), others.into_iter().map(case).collect());
    if format == Format::SenmlCbor {
        others.extend(cbor_only());
    }
    (with_units, others)
}

impl Pack {
    fn has_units(&self) -> bool {
        let is_unit = |field: &Field| matches!(field, Text("u" | "bu", _));
        (self.first)(BODY_BYTES).iter().flatten().any(is_unit) || (self.record)(0).iter().any(is_unit)
    }
}

fn in_json(pack: &Pack, bytes: usize) -> Vec<u8> {
    let field = |field: &Field| match field {
        Text(label, text) => format!("{label:?}:{text:?}"),
        Number(label, number) => format!("{label:?}:{number}"),
        Labels(count, bytes) => {
            let value = "v".repeat(*bytes);
            let labels: Vec<_> = (0..*count).map(|key| format!(r#""{key}":"{value}""#)).collect();
            format!(r#""labels":{{{}}}"#, labels.join(","))
        }
    };
    let record = |record: Vec<Field>| format!("{{{}}}", record.iter().map(field).collect::<Vec<_>>().join(","));
    let first: Vec<_> = (pack.first)(bytes).into_iter().map(record).collect();
    let between = if first.is_empty() { "" } else { "," };
    fill(bytes, &format!("[{}{between}", first.join(",")), ",", "]", |at| record((pack.record)(at)))
}

fn in_cbor(pack: &Pack, bytes: usize) -> Vec<u8> {
    let mut body = vec![0x9F];
    for record in (pack.first)(bytes) {
        put_record(&mut body, &record);
    }
    let mut number = 0;
    while body.len() < bytes {
        put_record(&mut body, &(pack.record)(number));
        number += 1;
    }
    body.push(0xFF);
    body
}

fn put_record(body: &mut Vec<u8>, record: &[Field]) {
    put_head(body, 5, record.len());
    for field in record {
        match field {
            Text(label, text) => {
                put_label(body, label);
                put_text(body, text);
            }
            Number(label, number) => {
                put_label(body, label);
                put_head(body, 0, usize::try_from(*number).unwrap());
            }
            Labels(count, bytes) => {
                put_text(body, "labels");
                put_head(body, 5, *count);
                for key in 0..*count {
                    put_text(body, &key.to_string());
                    put_text(body, &"v".repeat(*bytes));
                }
            }
        }
    }
}

fn put_label(body: &mut Vec<u8>, label: &str) {
    match label {
        "bn" => body.push(0x21),
        "bt" => body.push(0x22),
        "bu" => body.push(0x23),
        "bs" => body.push(0x25),
        "n" => body.push(0),
        "u" => body.push(1),
        "v" => body.push(2),
        "t" => body.push(6),
        other => put_text(body, other),
    }
}

fn put_text(body: &mut Vec<u8>, text: &str) {
    put_head(body, 3, text.len());
    body.extend_from_slice(text.as_bytes());
}

/// Writes a major type with its argument.
fn put_head(body: &mut Vec<u8>, major: u8, argument: usize) {
    match u8::try_from(argument) {
        Ok(small @ 0..24) => body.push(major << 5 | small),
        Ok(byte) => body.extend([major << 5 | 0x18, byte]),
        Err(_) => {
            body.push(major << 5 | 0x1A);
            body.extend_from_slice(&u32::try_from(argument).unwrap().to_be_bytes());
        }
    }
}

/// Cases that JSON cannot express.
fn cbor_only() -> Vec<Case> {
    let case = |name, body: fn(usize) -> Vec<u8>| Case { name, format: Format::SenmlCbor, body: Box::new(body) };
    vec![
        case("a name of empty pieces", |bytes| {
            [&[0x81, 0xA2, 0x00, 0x7F][..], &vec![0x60; bytes], &[0xFF, 0x02, 0x01]].concat()
        }),
        case("names of pieces", |bytes| {
            let record = [0xA2, 0x00, 0x7F, 0x61, b'a', 0x61, b'b', 0xFF, 0x02, 0x01];
            [&[0x9F][..], &record.repeat(bytes / record.len()), &[0xFF]].concat()
        }),
        case("a pack that claims more than it has", |bytes| {
            [&[0x9B, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF][..], &[0xA1, 0x02, 0x01].repeat(bytes / 3)].concat()
        }),
        case("arrays in an unknown field", |bytes| {
            [&[0x81, 0xA3, 0x18, 0x63, 0x9F][..], &vec![0x80; bytes], &[0xFF, 0x00, 0x61, b'a', 0x02, 0x01]].concat()
        }),
        case("depth", |bytes| [&[0x81, 0xA1, 0x18, 0x63][..], &vec![0x81; bytes]].concat()),
        case("decimal fractions", |bytes| {
            let record = [0xA2, 0x00, 0x61, b'a', 0x02, 0xC4, 0x82, 0x39, 0xFF, 0xFF, 0x01];
            [&[0x9F][..], &record.repeat(bytes / record.len()), &[0xFF]].concat()
        }),
    ]
}
