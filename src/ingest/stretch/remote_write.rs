//! Bodies of remote write that stretch one thing each.

use super::messages::{Message, case, filled, message};
use super::{Case, Format};

/// A series of version 1.0 with these labels.
fn series(labels: &[(&str, &str)]) -> Message {
    let label = |(key, value): &(&str, &str)| message().bytes(1, key).bytes(2, value);
    labels.iter().fold(message(), |series, of| series.message(1, &label(of)))
}

/// The shortest sample: its value and its time are 0.
fn with_sample(series: Message) -> Message {
    series.message(2, &message())
}

pub(super) fn version_1() -> Vec<Case> {
    let of = Format::RemoteWrite1;
    let samples = |name, labels: fn(usize) -> Message| {
        case(of, name, move |bytes| message().message(1, &labels(bytes).fill(bytes, |series, _| with_sample(series))))
    };
    let histograms = |name, labels: fn(usize) -> Message| {
        let with_histogram = |series: Message, _| series.message(4, &message().varint(1, 1));
        case(of, name, move |bytes| message().message(1, &labels(bytes).fill(bytes, with_histogram)))
    };
    let long = |bytes: usize| "v".repeat(bytes);
    let device = ("instance", "a");
    vec![
        filled(of, "empty series", 1, |_| message()),
        filled(of, "metadata", 3, |_| message()),
        filled(of, "unknown fields", 9, |_| message()),
        samples("samples of one series", |_| series(&[("__name__", "m"), ("instance", "a")])),
        samples("samples of the longest series", |_| {
            series(&[("__name__", "m"), ("instance", &"d".repeat(128)), ("l", &"v".repeat(500))])
        }),
        samples("samples of a series with a label of half the body", |bytes| {
            series(&[("__name__", "m"), ("instance", "a"), ("l", &"v".repeat(bytes / 2))])
        }),
        samples("samples of a series without a metric", |_| series(&[("instance", "a")])),
        samples("samples of a series without a device", |_| series(&[("__name__", "m"), ("l", &"v".repeat(500))])),
        samples("samples with a long name", |bytes| series(&[("__name__", &"m".repeat(bytes / 2)), ("instance", "a")])),
        samples("samples with a long device", |bytes| {
            series(&[("__name__", "m"), ("instance", &"d".repeat(bytes / 2))])
        }),
        samples("samples with metadata", |_| {
            series(&[("__name__", "m"), ("instance", "a"), ("job", &"j".repeat(128))])
        }),
        histograms("histograms of the longest series", |_| {
            series(&[("__name__", "m"), ("instance", &"d".repeat(128)), ("l", &"v".repeat(490))])
        }),
        histograms("histograms whose metric is too long with its suffix", |_| {
            series(&[("__name__", &"m".repeat(126)), ("instance", "a"), ("l", &"v".repeat(370))])
        }),
        histograms("histograms with a long name", |bytes| {
            series(&[("__name__", &"m".repeat(bytes / 2)), ("instance", "a")])
        }),
        case(of, "empty samples at different times", |bytes| {
            let samples = |series: Message, at| series.message(2, &message().varint(2, at as u64));
            message().message(1, &series(&[("__name__", "m"), ("instance", "a")]).fill(bytes, samples))
        }),
        case(of, "labels of one series", move |bytes| {
            let labels =
                |series: Message, at: usize| series.message(1, &message().bytes(1, at.to_string()).bytes(2, "v"));
            message().message(1, &with_sample(series(&[("__name__", "m"), device]).fill(bytes, labels)))
        }),
        case(of, "one label again and again", move |bytes| {
            let labels = |series: Message, _| series.message(1, &message().bytes(1, "l").bytes(2, "v"));
            message().message(1, &with_sample(series(&[("__name__", "m"), device]).fill(bytes, labels)))
        }),
        case(of, "empty labels", move |bytes| {
            let labels = |series: Message, _| series.message(1, &message());
            message().message(1, &with_sample(series(&[("__name__", "m"), device]).fill(bytes, labels)))
        }),
        filled(of, "different series", 1, move |at| with_sample(series(&[("__name__", &at.to_string()), device]))),
        filled(of, "different long series", 1, move |at| {
            with_sample(series(&[("__name__", &at.to_string()), device, ("l", &long(480))]))
        }),
        filled(of, "different devices", 1, |at| {
            with_sample(series(&[("__name__", "m"), ("instance", &at.to_string())]))
        }),
        filled(of, "devices that alternate", 1, |at| {
            with_sample(series(&[("__name__", "m"), ("instance", ["a", "b"][at % 2])]))
        }),
        filled(of, "metadata that alternates", 1, |at| {
            let job = "j".repeat(100 + at % 2);
            with_sample(series(&[("__name__", "m"), ("instance", "a"), ("job", &job)]))
        }),
        filled(of, "series of histograms and exemplars", 1, |_| {
            let series = series(&[("__name__", "m"), ("instance", "a")]);
            series.fill(1_000, |series, _| series.message(3, &message()).message(4, &message()))
        }),
        filled(of, "labels that need escapes", 1, |at| {
            let value = "\\{},=".repeat(40);
            with_sample(series(&[("__name__", &at.to_string()), ("instance", "a"), ("l", &value)]))
        }),
    ]
}

/// A table of symbols.
fn symbols(all: &[&str]) -> Message {
    all.iter().fold(message(), |body, symbol| body.bytes(4, symbol))
}

pub(super) fn version_2_metadata() -> Vec<Case> {
    let of = Format::RemoteWrite2;
    let alternating = |length: usize| {
        move |bytes| {
            let body = symbols(&["__name__", "m", "instance", "a", "b", "job", &"j".repeat(length)]);
            body.fill(bytes, |body, at| body.message(5, &referring(&[0, 1, 2, 3 + (at % 2) as u8, 5, 6])))
        }
    };
    vec![
        case(of, "devices that alternate with metadata", alternating(128)),
        case(of, "devices that alternate with metadata that is too long", alternating(4_000)),
    ]
}

pub(super) fn version_2() -> Vec<Case> {
    let of = Format::RemoteWrite2;
    vec![
        filled(of, "empty symbols", 4, |_| message()),
        filled(of, "symbols", 4, |at| Message(at.to_string().into_bytes())),
        filled(of, "empty series", 5, |_| message()),
        case(of, "series of short symbols", move |bytes| {
            let body = symbols(&["__name__", "m", "instance", "a"]);
            body.fill(bytes, |body, _| body.message(5, &referring(&[0, 1, 2, 3])))
        }),
        case(of, "series of long symbols", move |bytes| {
            let body = symbols(&["__name__", &"m".repeat(128), "instance", &"d".repeat(128), "l", &"v".repeat(370)]);
            body.fill(bytes, |body, _| body.message(5, &referring(&[0, 1, 2, 3, 4, 5])))
        }),
        case(of, "different series of long symbols", move |bytes| {
            let body = symbols(&["__name__", &"m".repeat(128), "instance", "a", "l", &"v".repeat(370)]);
            let body = (0..100).fold(body, |body, at| body.bytes(4, at.to_string()));
            body.fill(bytes, |body, at| {
                let key = 6 + (at / 100 % 100) as u8;
                body.message(5, &referring(&[0, 1, 2, 3, 4, 5, key, 6 + (at % 100) as u8]))
            })
        }),
        case(of, "series of long symbols with a histogram", move |bytes| {
            let body = symbols(&["__name__", &"m".repeat(120), "instance", &"d".repeat(128), "l", &"v".repeat(370)]);
            let series = message().bytes(1, [0, 1, 2, 3, 4, 5]).message(3, &message().varint(1, 1));
            body.fill(bytes, |body, _| body.message(5, &series))
        }),
        case(of, "series of a label of half the body", move |bytes| {
            let body = symbols(&["__name__", "m", "instance", "a", "l", &"v".repeat(bytes / 2)]);
            body.fill(bytes, |body, _| body.message(5, &referring(&[0, 1, 2, 3, 4, 5])))
        }),
        case(of, "series of a key of half the body", move |bytes| {
            let body = symbols(&["__name__", "m", "instance", "a", "l", &"v".repeat(bytes / 2)]);
            body.fill(bytes, |body, _| body.message(5, &referring(&[0, 1, 2, 3, 5, 4, 5, 4])))
        }),
        case(of, "series of a metric of half the body", move |bytes| {
            let body = symbols(&["__name__", &"v".repeat(bytes / 2), "instance", "a"]);
            body.fill(bytes, |body, _| body.message(5, &referring(&[0, 1, 2, 3])))
        }),
        case(of, "series of a device of half the body", move |bytes| {
            let body = symbols(&["__name__", "m", "instance", &"v".repeat(bytes / 2)]);
            body.fill(bytes, |body, _| body.message(5, &referring(&[0, 1, 2, 3])))
        }),
        case(of, "references of one series", move |bytes| {
            let body = symbols(&["__name__", "m", "instance", "a"]);
            body.message(5, &with_sample(message().bytes(1, vec![3; bytes])))
        }),
        case(of, "references to nothing", move |bytes| {
            let body = symbols(&["__name__", "m", "instance", "a"]);
            body.fill(bytes, |body, _| body.message(5, &referring(&[0, 99])))
        }),
        case(of, "series of metadata and start times", move |bytes| {
            let body = symbols(&["__name__", "m", "instance", "a"]);
            body.fill(bytes, |body, at| {
                body.message(5, &referring(&[0, 1, 2, 3]).message(5, &message()).varint(6, at as u64))
            })
        }),
    ]
}

/// A series with these references to symbols as labels, and the shortest sample.
fn referring(references: &[u8]) -> Message {
    with_sample(message().bytes(1, references))
}
