//! `POST /api/v1/read`: Prometheus remote read, with samples or with chunks.
//!
//! A series has the label `__name__` with its metric, `instance` with its device, and its own labels.
//! Prometheus allows fewer characters in names, so each other character becomes `_`. A label is left out if
//! another one has its new name. A series whose names have changed also has its text as the label `series`,
//! instead of a label `series` of its own, so that two series never have the same labels.
//!
//! Prometheus computes with an answer as a whole. So the answer is complete, or an error: it has no pages. It
//! is in memory before it is sent, because its series must be sorted by their labels, and each device is read
//! once. An answer with chunks may have many more samples, because a sample takes only some bytes of a chunk.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::query_limits::{RunningQuery, run};
use crate::access::Grant;
use crate::http::App;
use crate::http::answer::body_in_pieces::BodyInPieces;
use crate::http::answer::etag::Negotiation;
use crate::http::openapi::{Operation, Tag};
use crate::http::problem::{Problem, ProblemCode};
use crate::http::request::body;
use crate::http::request::params::Params;
use crate::http::serve::connection::Peer;
use crate::influxql::Pattern;
use crate::model::prometheus::{label_name, metric_name};
use crate::model::series::{Series, metric_of};
use crate::model::{Metric, SeriesFilter};
use crate::query::{Device, DevicesRequest, QueryError, ReadingSlices, ReadingsRequest};
use crate::wire::Format;
use crate::wire::remote_read::{self, ReadMatcher, ReadQuery, ReadRequest, ReadSeries, Samples};

const METRIC: &str = "__name__";
const DEVICE: &str = "instance";
/// The label with the text of a series, if Prometheus does not allow its names.
const TEXT: &str = "series";

/// The memory of a sample in bytes: in the series, in the message, and compressed.
///
/// An answer with chunks may use the same memory, but for more samples.
const BYTES_PER_SAMPLE: usize = 64;

/// How many bytes of labels an answer may have for each sample that is allowed.
///
/// Many answers have series with only one sample.
const LABEL_BYTES_PER_SAMPLE: usize = 256;

/// The memory of a series without the text of its labels, in bytes.
const BYTES_PER_SERIES: usize = 160;

/// The most series of a device that are kept although they do not match, so that each is compared once.
const MAX_UNMATCHED: usize = 4_096;

/// Describes `POST /api/v1/read`.
pub(in crate::http) fn describe() -> Operation {
    Operation::post(Tag::Protocols, "remoteRead", "Read samples with Prometheus remote read")
        .description(
            "The request is compressed with snappy. The answer has samples, compressed as well, or streamed XOR \
             chunks: what `accepted_response_types` has first.",
        )
        .binary_body("application/x-protobuf")
        .answers_as(200, "The samples, compressed with snappy.", "application/x-protobuf", &json!({}))
        .answers_binary(200, "application/x-streamed-protobuf")
        .tagged()
        .takes_body()
        .queries()
        .problems(&[ProblemCode::InvalidRemoteRead, ProblemCode::TooManyDevices, ProblemCode::TooManyPoints])
}

/// `POST /api/v1/read`
pub(in crate::http) async fn remote_read(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    peer: Option<Extension<Peer>>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    Params::of(&uri, &[]).end()?;
    let body = body::receive(&app, &grant.quota, Format::RemoteWrite, &headers, body).await?;
    let disconnect = peer.map(|Extension(peer)| peer.disconnect);
    let (of_answer, quota) = (Arc::clone(&app), Arc::clone(&grant.quota));
    let answer = move |running: Arc<RunningQuery>| async move {
        let answer = on_blocking_thread(move || async move {
            let request = remote_read::parse(&body.bytes).map_err(|error| Problem::invalid_remote_read(&error))?;
            answer(&of_answer, &grant, &running, &request).await
        });
        answer.await.unwrap_or_else(Problem::into_response)
    };
    // The answer is compressed already, so `Accept-Encoding` must not count.
    run(&app, &quota, Negotiation::of(&HeaderMap::new()), disconnect, answer).await
}

/// Runs a query on a blocking thread, because its regular expressions may take long.
///
/// Once the caller drops the future, the query ends at its next pause.
async fn on_blocking_thread<T, Q>(query: impl FnOnce() -> Q + Send + 'static) -> Result<T, Problem>
where
    T: Send + 'static,
    Q: Future<Output = Result<T, Problem>>,
{
    let (runtime, cancelled) = (Handle::current(), CancellationToken::new());
    let _guard = cancelled.clone().drop_guard();
    let run = move || runtime.block_on(cancelled.run_until_cancelled(query()));
    let answer = tokio::task::spawn_blocking(run).await.map_err(Problem::internal)?;
    answer.unwrap_or_else(|| Err(Problem::client_left()))
}

async fn answer(
    app: &App,
    grant: &Grant,
    running: &RunningQuery,
    request: &ReadRequest<'_>,
) -> Result<Response, Problem> {
    let max = app.queries.limits().max_points;
    let bytes = max.saturating_mul(BYTES_PER_SAMPLE + LABEL_BYTES_PER_SAMPLE);
    running.reserve(bytes.saturating_add(ReadingSlices::MAX_BYTES)).await?;
    let budget = Budget { max, of_chunks: request.wants_chunks, samples: 0, bytes: 0, label_bytes: 0 };
    let (media, encoding, pieces) = if request.wants_chunks {
        let results = read_all(app, grant, &request.queries, budget).await?;
        let mut frames = Vec::new();
        for (query, series) in results.into_iter().enumerate() {
            for series in series {
                remote_read::write_frames(query, series, |frame| frames.push(Bytes::from(frame)));
            }
        }
        ("application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse", None, frames)
    } else {
        let results = read_all(app, grant, &request.queries, budget).await?;
        let compressed = snap::raw::Encoder::new().compress_vec(&remote_read::write(&results));
        ("application/x-protobuf", Some("snappy"), vec![Bytes::from(compressed.map_err(Problem::internal)?)])
    };
    let mut response = Response::new(Body::new(BodyInPieces::new(pieces)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    response.headers_mut().extend(encoding.map(|encoding| (CONTENT_ENCODING, HeaderValue::from_static(encoding))));
    Ok(response)
}

/// Reads the series of each query.
async fn read_all<S: Samples>(
    app: &App,
    grant: &Grant,
    queries: &[ReadQuery<'_>],
    mut left: Budget,
) -> Result<Vec<Vec<ReadSeries<S>>>, Problem> {
    let read = async {
        let mut results = Vec::with_capacity(queries.len());
        for query in queries {
            let matchers = Matcher::all(&query.matchers)?;
            results.push(read(app, grant, query, &matchers, &mut left).await?);
        }
        Ok(results)
    };
    let read = tokio::time::timeout_at(app.queries.deadline(), read).await;
    read.map_err(|_| QueryError::Timeout(app.queries.limits().timeout))?
}

/// The samples and bytes of an answer so far, and their limit.
struct Budget {
    max: usize,
    of_chunks: bool,
    samples: usize,
    bytes: usize,
    label_bytes: usize,
}

impl Budget {
    fn add_samples(&mut self, samples: usize, bytes: usize) -> Result<(), Problem> {
        self.samples += samples;
        self.bytes += bytes;
        let max_bytes = self.max.saturating_mul(BYTES_PER_SAMPLE);
        if self.of_chunks && self.bytes > max_bytes {
            let why = format!(
                "the chunks have more than {max_bytes} bytes ({BYTES_PER_SAMPLE} for each of query.max_points); read \
                 fewer series, or a shorter range"
            );
            return Err(Problem::invalid_remote_read(&why));
        }
        if self.of_chunks || self.samples <= self.max {
            return Ok(());
        }
        Err(QueryError::TooManyPoints { max: self.max, found: self.samples, fits: String::new() }.into())
    }

    fn add_series(&mut self, labels: &[(String, String)]) -> Result<(), Problem> {
        let of_labels = labels.iter().map(|(name, value)| name.len() + value.len());
        self.label_bytes += BYTES_PER_SERIES + of_labels.sum::<usize>();
        let max = self.max.saturating_mul(LABEL_BYTES_PER_SAMPLE);
        if self.label_bytes <= max {
            return Ok(());
        }
        let why = format!(
            "the labels of the series have more than {max} bytes ({LABEL_BYTES_PER_SAMPLE} for each of \
             query.max_points); name the metric or the device"
        );
        Err(Problem::invalid_remote_read(&why))
    }
}

/// Reads the series of a query, sorted by their labels.
async fn read<S: Samples>(
    app: &App,
    grant: &Grant,
    query: &ReadQuery<'_>,
    matchers: &[Matcher<'_>],
    budget: &mut Budget,
) -> Result<Vec<ReadSeries<S>>, Problem> {
    let mut found = Vec::new();
    let mut request = DevicesRequest::of_each(devices_of(matchers), app.clock.now_ms());
    loop {
        let page = app.queries.device_entries(&grant.device_scope, &request).await?.complete()?;
        for device in &page.devices {
            if all_match(matchers, DEVICE, &device.id) {
                read_device(app, grant, query, (device, matchers), budget, &mut found).await?;
            }
            tokio::task::yield_now().await; // the query can end here
        }
        let Some(next) = page.next else { break };
        request.after = Some(next.to_string());
    }
    found.sort_unstable_by(|a: &ReadSeries<S>, b| a.labels.cmp(&b.labels));
    Ok(found)
}

async fn read_device<S: Samples>(
    app: &App,
    grant: &Grant,
    query: &ReadQuery<'_>,
    (device, matchers): (&Device, &[Matcher<'_>]),
    budget: &mut Budget,
    found: &mut Vec<ReadSeries<S>>,
) -> Result<(), Problem> {
    let span_ms = device.span_ms();
    let (from_ms, to_ms) = (query.first_ms.max(span_ms.start), query.last_ms.saturating_add(1).min(span_ms.end));
    if from_ms >= to_ms {
        return Ok(());
    }
    let series = if device.has_more_metrics {
        // The index keeps some thousand series of a device, and any other may match too.
        only_values(matchers, METRIC).map_or(SeriesFilter::ALL, SeriesFilter::of_prometheus)
    } else {
        let mut known: Vec<&Metric> = Vec::new();
        for metric in &device.metrics {
            if labels_and_pause(&device.id, metric, matchers).await.is_some() {
                known.push(metric);
            }
        }
        if known.is_empty() {
            return Ok(());
        }
        SeriesFilter::new(known.iter().map(|metric| &***metric), []).map_err(Problem::internal)?
    };
    let request = ReadingsRequest { device: device.id.to_string(), from_ms, to_ms, series, limit: usize::MAX };
    let mut slices = app.queries.reading_slices(&grant.device_scope, &request)?;
    let begin = found.len();
    let (mut places, mut unmatched): (HashMap<Metric, usize>, HashSet<Metric>) = Default::default();
    while let Some(slice) = slices.next().await? {
        for hour in slice.hours() {
            let mut of_hour = Vec::with_capacity(hour.metrics.len());
            for metric in hour.metrics {
                let mut place = places.get(metric).copied();
                if place.is_none() && !unmatched.contains(metric) {
                    if let Some(labels) = labels_and_pause(&device.id, metric, matchers).await {
                        budget.add_series(&labels)?;
                        place = Some(found.len());
                        places.insert(metric.clone(), found.len());
                        found.push(ReadSeries { labels, samples: S::default() });
                    } else if unmatched.len() < MAX_UNMATCHED {
                        unmatched.insert(metric.clone());
                    }
                }
                of_hour.push(place);
            }
            let (mut samples, mut bytes) = (0, 0);
            for sample in hour.samples {
                if let Some(place) = of_hour[sample.metric as usize] {
                    samples += 1;
                    bytes += found[place].samples.push(hour.hour.instant_ms(sample.offset), sample.value);
                }
            }
            budget.add_samples(samples, bytes)?;
        }
    }
    let of_device = found.split_off(begin);
    found.extend(of_device.into_iter().filter(|series| !series.samples.is_empty()));
    Ok(())
}

/// A matcher of labels, with its compiled expression.
struct Matcher<'b> {
    matcher: &'b ReadMatcher<'b>,
    pattern: Option<Pattern>,
}

impl<'b> Matcher<'b> {
    fn all(matchers: &'b [ReadMatcher<'b>]) -> Result<Vec<Self>, Problem> {
        let compile = |matcher: &'b ReadMatcher<'b>| {
            let pattern = matcher.is_regex.then(|| Pattern::new(&format!("^(?:{})$", matcher.value))).transpose();
            let pattern = pattern.map_err(|why| Problem::invalid_remote_read(&why))?;
            Ok(Self { matcher, pattern })
        };
        matchers.iter().map(compile).collect()
    }

    fn matches(&self, value: &str) -> bool {
        let is_equal = match &self.pattern {
            Some(pattern) => pattern.matches(value),
            None => value == self.matcher.value,
        };
        is_equal != self.matcher.is_negative
    }
}

/// Whether `value` matches all matchers of the label `name`.
fn all_match(matchers: &[Matcher<'_>], name: &str, value: &str) -> bool {
    matchers.iter().filter(|matcher| matcher.matcher.name == name).all(|matcher| matcher.matches(value))
}

/// Returns the only devices that can match; `None`: any device may match.
fn devices_of(matchers: &[Matcher<'_>]) -> Option<Vec<Arc<str>>> {
    Some(only_values(matchers, DEVICE)?.into_iter().map(Arc::from).collect())
}

/// Returns the only values of the label `name` that can match, ascending; `None`: any value may match.
fn only_values(matchers: &[Matcher<'_>], name: &str) -> Option<Vec<String>> {
    let mut of_label = matchers.iter().filter(|it| it.matcher.name == name && !it.matcher.is_negative);
    let mut values = of_label.find_map(|it| match &it.pattern {
        Some(pattern) => pattern.literals(),
        None => Some(vec![it.matcher.value.to_owned()]),
    })?;
    values.sort_unstable();
    values.dedup();
    Some(values)
}

/// Does the same as [`matching_labels`], and then pauses.
///
/// The query can end there, at its deadline or when the client has left.
async fn labels_and_pause(device: &str, series: &Metric, matchers: &[Matcher<'_>]) -> Option<Vec<(String, String)>> {
    let labels = matching_labels(device, series, matchers);
    tokio::task::yield_now().await;
    labels
}

/// Returns the labels of a series, sorted by name, if all matchers match.
fn matching_labels(device: &str, series: &Metric, matchers: &[Matcher<'_>]) -> Option<Vec<(String, String)>> {
    let metric = metric_of(series);
    let name = metric_name(metric);
    if !all_match(matchers, METRIC, &name) {
        return None;
    }
    let mut is_whole = *name == *metric;
    let mut labels = vec![(METRIC.to_owned(), name.into_owned()), (DEVICE.to_owned(), device.to_owned())];
    let mut renamed = Vec::new();
    for (key, value) in Series::parse(series).map(|series| series.labels).unwrap_or_default() {
        let name = if key == DEVICE { "exported_instance".to_owned() } else { label_name(&key) };
        let names = if name == key && name != METRIC { &mut labels } else { &mut renamed };
        names.push((name, value.into_owned()));
    }
    is_whole &= renamed.is_empty();
    // A label keeps its own name, also if the new name of another label is the same.
    for (name, value) in renamed {
        if labels.iter().all(|(known, _)| *known != name) {
            labels.push((name, value));
        }
    }
    // Its own label `series` may be the text of a series that has the same labels otherwise.
    let own = labels.iter().find(|(known, _)| known == TEXT);
    is_whole &= own.is_none_or(|(_, own)| metric_name(metric_of(own)) != labels[0].1);
    if !is_whole {
        labels.retain(|(known, _)| known != TEXT);
        labels.push((TEXT.to_owned(), series.to_string()));
    }
    labels.sort_unstable();
    let value = |name: &str| labels.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value);
    matchers.iter().all(|matcher| matcher.matches(value(matcher.matcher.name))).then_some(labels)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_query_runs_on_a_blocking_thread_until_the_client_leaves() {
        let thread = on_blocking_thread(|| async { Ok(std::thread::current().id()) }).await;
        assert_ne!(thread.expect("an answer"), std::thread::current().id());
        let (sender, ended) = tokio::sync::oneshot::channel::<()>();
        let endless = on_blocking_thread(|| async move {
            let _sender = sender;
            std::future::pending::<Result<(), Problem>>().await
        });
        assert!(endless.now_or_never().is_none());
        ended.await.expect_err("the query was dropped");
    }

    #[test]
    fn a_query_can_end_after_each_series() {
        assert!(labels_and_pause("d1", &"up".into(), &[]).now_or_never().is_none());
    }

    fn labels(series: &str) -> String {
        let labels = matching_labels("pi:9100", &series.into(), &[]).expect("no matcher refuses it");
        let labels: Vec<String> = labels.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        labels.join(",")
    }

    #[test]
    fn a_series_has_its_device_and_the_names_that_prometheus_allows() {
        for (series, expected) in [
            ("up{job=node}", "__name__=up,instance=pi:9100,job=node"),
            ("job:up:sum", "__name__=job:up:sum,instance=pi:9100"),
            ("temp °C", "__name__=temp__C,instance=pi:9100,series=temp °C"),
            ("1st", "__name__=_1st,instance=pi:9100,series=1st"),
            ("v{instance=other}", "__name__=v,exported_instance=other,instance=pi:9100,series=v{instance=other}"),
            ("v{exported_instance=other}", "__name__=v,exported_instance=other,instance=pi:9100"),
            (
                "v{exported_instance=own,instance=other}",
                "__name__=v,exported_instance=own,instance=pi:9100,series=v{exported_instance=own,instance=other}",
            ),
            ("v{a.b=1,a_b=2}", "__name__=v,a_b=2,instance=pi:9100,series=v{a.b=1,a_b=2}"),
            ("v{series=x}", "__name__=v,instance=pi:9100,series=x"),
            ("v °{series=x}", "__name__=v__,instance=pi:9100,series=v °{series=x}"),
            ("v{a.b=1,series=x}", "__name__=v,a_b=1,instance=pi:9100,series=v{a.b=1,series=x}"),
            ("temp__C{series=temp °C}", "__name__=temp__C,instance=pi:9100,series=temp__C{series=temp °C}"),
            ("v{__name__=x}", "__name__=v,instance=pi:9100,series=v{__name__=x}"),
        ] {
            assert_eq!(labels(series), expected);
        }
    }

    #[test]
    fn matchers_match_whole_values_and_absent_labels() {
        let matches = |name, value, is_regex, is_negative| {
            let matcher = [ReadMatcher { is_regex, is_negative, name, value }];
            let matchers = Matcher::all(&matcher).expect("an expression");
            matching_labels("d1", &"up{job=node,series=own}".into(), &matchers).is_some()
        };
        for (name, value, is_regex, expected) in [
            ("job", "node", false, true),
            ("job", "nod", false, false),
            ("job", "no.*", true, true),
            ("job", "o", true, false),
            ("job", "a|node", true, true),
            ("__name__", "up", false, true),
            ("__name__", "down", false, false),
            ("instance", "d[0-9]", true, true),
            ("series", "own", false, true),
            ("absent", "", false, true),
            ("absent", ".*", true, true),
            ("absent", ".+", true, false),
        ] {
            assert_eq!(matches(name, value, is_regex, false), expected, "{name} {value}");
            assert_eq!(matches(name, value, is_regex, true), !expected, "not {name} {value}");
        }
        let bad = [ReadMatcher { is_regex: true, is_negative: false, name: "job", value: "(" }];
        assert!(Matcher::all(&bad).is_err());
    }

    #[test]
    fn a_matcher_means_the_label_that_has_this_name_before_a_renamed_one() {
        for (value, expected) in [("2", true), ("1", false)] {
            let matcher = [ReadMatcher { is_regex: false, is_negative: false, name: "a_b", value }];
            let matchers = Matcher::all(&matcher).expect("an expression");
            let found = matching_labels("d1", &"m{a.b=1,a_b=2}".into(), &matchers);
            assert_eq!(found.is_some(), expected, "{value}");
        }
    }

    #[test]
    fn matchers_of_the_device_name_the_only_ones() {
        let ids = |name, value, is_regex, is_negative| {
            let matcher = [ReadMatcher { is_regex, is_negative, name, value }];
            devices_of(&Matcher::all(&matcher).expect("an expression"))
        };
        assert_eq!(ids(DEVICE, "d1", false, false), Some(vec!["d1".into()]));
        assert_eq!(ids(DEVICE, "d2|d1|d2", true, false), Some(vec!["d1".into(), "d2".into()]));
        assert_eq!(ids(DEVICE, "d.*", true, false), None);
        assert_eq!(ids(DEVICE, "d1", false, true), None);
        assert_eq!(ids("job", "d1", false, false), None);
    }
}
