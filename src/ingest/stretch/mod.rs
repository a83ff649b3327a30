//! The cost of a body is proportional to its size: bodies that stretch one thing each, at two sizes, in every
//! format.
//!
//! The counts do not depend on the machine: bytes allocated, bytes in use at once, bytes read or copied
//! ([`work`]), and bytes of the record. Each may be a multiple of the body ([`Most`]), and the multiple is
//! the same for a body four times as large. The tests cover parsers, rules and the encoding of the record.

mod bodies;
mod messages;
mod otlp;
mod packs;
mod remote_write;

use super::admission::{Admission, Kind, Rules};
use crate::access::DeviceScope;
use crate::common::{counting, work::counted as work};
use crate::config::LineProtocol;
use crate::limits::Quota;
use crate::log::{BatchView, MAX_PAYLOAD_BYTES};
use crate::model::DeviceIdCase;
use crate::wire::line_protocol::{self, Precision};
use crate::wire::remote_write::Version;
use crate::wire::senml::{self, NameSplit};
use crate::wire::webhook::{self, Hook};
use crate::wire::{self, Limits, Sink, Source, json};

const NOW_MS: i64 = 1_776_693_610_000;

/// The smaller size of the bodies. The larger size is four times as much.
const BODY_BYTES: usize = 32 << 10;

/// The fixed cost besides the multiple: tables with a size of their own, such as a device's metadata.
const FIXED_BYTES: usize = 256 << 10;

/// `ingest.max_metadata_bytes`: the default and the largest.
const METADATA_LIMITS: [usize; 2] = [4 << 10, 64 << 10];

/// How many bytes a byte of a body may cost.
struct Most {
    /// In use at once.
    in_use: usize,
    /// Allocated in total.
    allocated: usize,
    /// Read or copied.
    work: usize,
    /// In the record, without the table of metric names. For the larger body, the fixed cost allows two more.
    record: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    JsonWithLabels,
    FlatJson,
    Lines,
    LineProtocol,
    SenmlJson,
    SenmlCbor,
    RemoteWrite1,
    RemoteWrite2,
    Otlp,
    OtlpJson,
    Webhook,
}

impl Format {
    /// The multiples of a format follow from the shortest item in a body and the longest text that it may
    /// stand for.
    ///
    /// A field of line protocol takes 4 bytes and may name a series of 512 bytes; a table holds at most
    /// 65,535 of these names. A reading of JSON takes 12 bytes and may have labels of 512 bytes from the
    /// object around it. A value of a flat object takes 5 bytes and may have a path of 128. A record of
    /// `SenML` in CBOR takes 3 bytes, and the base name may give it a device and a metric of 128 bytes each.
    /// A sample of remote write takes 2 bytes and may be of a device of 128 bytes and a series of 512. In
    /// version 2.0 a series takes some 20 bytes, whatever the length of its labels.
    /// A histogram is two values.
    const fn most(self) -> Most {
        match self {
            Self::JsonWithLabels => Most { in_use: 60, allocated: 140, work: 180, record: 1 },
            Self::FlatJson => Most { in_use: 8, allocated: 40, work: 60, record: 1 },
            Self::Json => Most { in_use: 8, allocated: 40, work: 12, record: 1 },
            Self::Lines => Most { in_use: 8, allocated: 80, work: 8, record: 1 },
            Self::LineProtocol => Most { in_use: 130, allocated: 220, work: 140, record: 1 },
            Self::SenmlJson => Most { in_use: 50, allocated: 250, work: 100, record: 10 },
            Self::SenmlCbor => Most { in_use: 100, allocated: 600, work: 300, record: 20 },
            Self::RemoteWrite1 => Most { in_use: 30, allocated: 350, work: 900, record: 11 },
            Self::RemoteWrite2 => Most { in_use: 110, allocated: 250, work: 350, record: 20 },
            Self::Otlp => Most { in_use: 10, allocated: 100, work: 220, record: 2 },
            Self::OtlpJson => Most { in_use: 8, allocated: 80, work: 10, record: 2 },
            Self::Webhook => Most { in_use: 60, allocated: 400, work: 300, record: 1 },
        }
    }
}

thread_local! {
    /// A hook whose readings are the elements of an array, or the payload if that is an object.
    static HOOK: Hook = {
        let keys = "path = \"/h\"\ndevice = \"id\"\nmetrics = [\"list[*].v.*\", \"list[*].*\"]\ntime = \"list[*].t\"\n\
            labels = [\"zone\", \"list[*].l\"]\nmetadata = [\"info\"]\nignore = [\"none\"]";
        Hook::new(&toml::from_str(keys).unwrap())
    };
}

/// A body that stretches one thing. `body(bytes)` makes it about `bytes` long.
struct Case {
    name: &'static str,
    format: Format,
    body: Box<dyn Fn(usize) -> Vec<u8>>,
}

/// The cost of a body.
#[derive(Debug)]
struct Cost {
    body: usize,
    peak: usize,
    total: usize,
    work: usize,
    record: usize,
}

impl Cost {
    fn counts(&self) -> [(&'static str, usize); 4] {
        [("in use", self.peak), ("allocated", self.total), ("work", self.work), ("record", self.record)]
    }

    /// The count that is too large for a body of this size, if any.
    fn excess(&self, most: &Most) -> Option<&'static str> {
        let most = [most.in_use, most.allocated, most.work, most.record];
        let beyond = |&((_, bytes), most): &((_, usize), usize)| bytes > most * self.body + FIXED_BYTES;
        self.counts().into_iter().zip(most).find(beyond).map(|((what, _), _)| what)
    }

    /// The count that grows faster than the body, if any.
    fn growth(&self, small: &Self) -> Option<&'static str> {
        let times = self.body.div_ceil(small.body) + 2; // a body has parts that do not grow
        let grows = |(large, small): &((_, usize), (_, usize))| large.1 > times * small.1 + FIXED_BYTES;
        self.counts().into_iter().zip(small.counts()).find(grows).map(|((what, _), _)| what)
    }
}

/// Parses, checks and encodes a body as a request does.
fn cost_of(format: Format, body: &[u8], max_metadata_bytes: usize) -> Cost {
    let limits = Limits { max_metrics: 256, max_metadata_bytes };
    let rules = Rules { max_readings: 100_000, limits, ..Rules::OF_TEST };
    let work_before = work::so_far();
    let ((batch, _), allocated) = counting::counted(|| {
        let scope = DeviceScope::of(DeviceIdCase::Lower, None, None);
        let sender = (&scope, Quota::unlimited());
        let source = Source::http(wire::Format::Json);
        let mut admission = Admission::new(&rules, Kind::Request, source, sender, None, NOW_MS, MAX_PAYLOAD_BYTES);
        parse(format, body, &mut admission);
        admission.finish()
    });
    let work = usize::try_from(work::so_far() - work_before).unwrap();
    let names: usize = BatchView::new(batch.payload()).unwrap().names.iter().map(|name| 4 + name.text.len()).sum();
    Cost { body: body.len(), peak: allocated.peak, total: allocated.total, work, record: batch.payload().len() - names }
}

fn parse(format: Format, body: &[u8], admission: &mut Admission<'_>) {
    let limits = admission.limits();
    let senml = senml::Options {
        device: None,
        split: NameSplit::default(),
        now_ms: NOW_MS,
        max_readings: 100_000,
        max_metrics: limits.max_metrics,
        max_metadata_bytes: limits.max_metadata_bytes,
    };
    let mapping = LineProtocol::default();
    let device_attributes = ["host.name".to_owned(), "service.name".to_owned()];
    let otlp = wire::otlp::Options { device_attributes: &device_attributes };
    match format {
        Format::FlatJson => {
            let options = json::Options { flat: true, ..json::Options::default() };
            drop(json::parse(body, &options, admission));
        }
        Format::Json | Format::JsonWithLabels => drop(json::parse(body, &json::Options::default(), admission)),
        Format::Lines => json::parse_value_or_lines(body, &json::Options::default(), admission),
        Format::LineProtocol => {
            let options = line_protocol::Options { precision: Precision::Nanoseconds, device: None, mapping: &mapping };
            line_protocol::parse(body, &options, admission);
        }
        Format::SenmlJson => drop(senml::parse_json(body, &senml, admission)),
        Format::SenmlCbor => drop(senml::parse_cbor(body, &senml, admission)),
        Format::RemoteWrite1 | Format::RemoteWrite2 => {
            let version = if format == Format::RemoteWrite1 { Version::V1 } else { Version::V2 };
            let (device_labels, metadata_labels) = (&["instance".to_owned()], &["job".to_owned()]);
            let options = wire::remote_write::Options { version, device_labels, metadata_labels };
            drop(wire::remote_write::parse(body, &options, admission));
        }
        Format::Otlp => drop(wire::otlp::parse_protobuf(body, &otlp, admission)),
        Format::OtlpJson => drop(wire::otlp::parse_json(body, &otlp, admission)),
        Format::Webhook => HOOK.with(|hook| drop(webhook::parse(body, hook, &webhook::Address::default(), admission))),
    }
}

/// Checks bodies without metadata, or with far less than its limit.
fn check(cases: Vec<Case>) {
    check_with(&METADATA_LIMITS[..1], cases);
}

/// Checks bodies with metadata that has the size of its limit, or is too large.
///
/// At the largest limit, metadata that is encoded again with each of its parts costs the most. At the default
/// limit, most bodies have metadata that is refused.
fn check_metadata(cases: Vec<Case>) {
    check_with(&METADATA_LIMITS, cases);
}

/// Asserts that each case stays within the multiples at both sizes, and that the multiple does not grow with
/// the size. Reports all cases that fail.
fn check_with(metadata_limits: &[usize], cases: Vec<Case>) {
    let mut excesses = Vec::new();
    for Case { name, format, body } in cases {
        let [small, large] = [BODY_BYTES, 4 * BODY_BYTES].map(body);
        for &max_metadata_bytes in metadata_limits {
            let [small, large] = [&small, &large].map(|body| cost_of(format, body, max_metadata_bytes));
            let factors: Vec<String> = large
                .counts()
                .iter()
                .map(|(what, bytes)| format!("{what} {:.1}", *bytes as f64 / large.body as f64))
                .collect();
            println!("{format:?}, {name}: {}", factors.join(", "));
            let excess = small.excess(&format.most()).or(large.excess(&format.most()));
            if let Some(what) = excess.or(large.growth(&small)) {
                excesses.push(format!("{format:?}, {name}: too much {what}: {small:?}, {large:?}"));
            }
        }
    }
    assert!(excesses.is_empty(), "{}", excesses.join("\n"));
}

#[test]
fn no_json_costs_more_than_its_size() {
    check(bodies::json());
}

#[test]
fn no_metadata_in_json_costs_more_than_its_size() {
    check_metadata(bodies::json_metadata());
}

#[test]
fn no_json_with_labels_costs_more_than_its_size() {
    check(bodies::labelled());
}

#[test]
fn no_flat_json_costs_more_than_its_size() {
    check(bodies::flat());
}

#[test]
fn no_ndjson_costs_more_than_its_size() {
    check(bodies::lines());
}

#[test]
fn no_line_protocol_costs_more_than_its_size() {
    check(bodies::line_protocol());
}

#[test]
fn no_senml_in_json_costs_more_than_its_size() {
    let (with_units, others) = packs::cases(Format::SenmlJson);
    check_metadata(with_units);
    check(others);
}

#[test]
fn no_senml_in_cbor_costs_more_than_its_size() {
    let (with_units, others) = packs::cases(Format::SenmlCbor);
    check_metadata(with_units);
    check(others);
}

#[test]
fn no_remote_write_1_costs_more_than_its_size() {
    check(remote_write::version_1());
}

#[test]
fn no_remote_write_2_costs_more_than_its_size() {
    check(remote_write::version_2());
    check_metadata(remote_write::version_2_metadata());
}

#[test]
fn no_otlp_in_protobuf_costs_more_than_its_size() {
    check(otlp::points());
    check(otlp::resources());
    check_metadata(otlp::metadata());
}

#[test]
fn no_otlp_in_json_costs_more_than_its_size() {
    check(otlp::json());
}

#[test]
fn no_payload_of_a_webhook_costs_more_than_its_size() {
    check(bodies::webhook());
    check_metadata(bodies::webhook_metadata());
}

#[test]
fn work_that_grows_faster_than_the_body_is_found() {
    let bodies = [BODY_BYTES, 4 * BODY_BYTES].map(|bytes| "[".repeat(bytes));
    let [small, large] = bodies.each_ref().map(|body| {
        let before = work::so_far();
        // This is the work of a parser that starts again at each 64th byte.
        (0..body.len()).step_by(64).for_each(|at| crate::common::work::count(body.len() - at));
        work::so_far() - before
    });
    assert!(large > 15 * small, "{small} {large}");
    let ((), allocated) = counting::counted(|| drop((vec![0u8; 1000], vec![0u8; 10])));
    assert_eq!(allocated, counting::Allocated { total: 1010, peak: 1010, kept: 0 });
}
