//! Evaluates the statements of a request on a blocking thread.
//!
//! A job takes more of the memory for queries as its data and its answer grow. It ends early if the client is
//! gone.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::catalogue::Catalogue;
use super::form::Form;
use super::source::{self, Stored};
use crate::access::Grant;
use crate::http::App;
use crate::http::access::authorize::{Need, log_refusals};
use crate::http::answer::format::Encoding;
use crate::http::problem::Problem;
use crate::http::read::query_limits::{QueryMemory, RunningQuery};
use crate::http::read::streamed_file::{self, FILE_BYTES, FileError, Output, PIECE_BYTES};
use crate::http::serve::client_disconnect::Disconnect;
use crate::influxql::ast::Statement;
use crate::influxql::{Format, Limits, Memory, Options, OutSeries, StatementError, Writer, execute, stream};
use crate::telemetry::{Limit, Metrics, RequestId, Sender};

/// The name of the only database, which has all data.
///
/// If a request has the parameter `db`, `SHOW DATABASES` lists that name instead.
const DATABASE: &str = "tidegauge";

/// The memory of a query before it has data, in bytes.
const LEAST_BYTES: usize = 64 << 10;

/// The statements of a request, and all that their evaluation needs.
pub(super) struct Job {
    app: Arc<App>,
    grant: Arc<Grant>,
    statements: Vec<Statement>,
    form: Form,
    request: Option<RequestId>,
    runtime: Handle,
    /// The deadline of all statements, if the answer is one document.
    deadline: Instant,
    cancelled: CancellationToken,
    memory: Held,
}

impl Job {
    pub(super) async fn start(
        app: Arc<App>,
        grant: Arc<Grant>,
        running: Arc<RunningQuery>,
        statements: Vec<Statement>,
        form: Form,
        (encoding, disconnect): (Encoding, Option<Disconnect>),
        request: Option<RequestId>,
    ) -> Result<Response, Problem> {
        let (shape, cancelled) = (form.shape(), CancellationToken::new());
        let guard: DropGuard = cancelled.clone().drop_guard();
        let (reservation, bytes) = match form.chunk_rows {
            Some(_) => {
                let of_file = FILE_BYTES.min(running.max_bytes() / 2); // the other half is for the data of statements
                (Some(Arc::clone(&running).reserve_file_place().await?), of_file + LEAST_BYTES)
            }
            None => (None, LEAST_BYTES),
        };
        let bytes = Mutex::new(running.take(bytes).await?);
        let runtime = Handle::current();
        let memory =
            Held { running: Arc::clone(&running), metrics: Arc::clone(&app.metrics), bytes, ahead: Mutex::default() };
        let (timeout, deadline) = (app.limits.body_timeout, app.queries.deadline());
        let job = Self { app, grant, statements, form, request, runtime, deadline, cancelled, memory };
        if let Some(reservation) = reservation {
            if let Some(watch) = disconnect.map(|disconnect| disconnect.watch()) {
                let of_job = job.cancelled.clone();
                job.runtime.spawn(async move {
                    tokio::select! {
                        () = watch.client_left() => of_job.cancel(),
                        () = of_job.cancelled() => {}
                    }
                });
            }
            let mut response = streamed_file::stream(encoding, timeout, guard, move |out| {
                let _reservation = reservation;
                job.send(out)
            })?;
            let headers = std::mem::take(shape.respond(Body::empty()).headers_mut());
            response.headers_mut().extend(headers);
            return Ok(response);
        }
        let written = tokio::task::spawn_blocking(move || (job.write(), job.memory.bytes)).await;
        let (text, memory) = written.map_err(Problem::internal)?;
        drop(guard);
        running.keep(memory.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(shape.respond(Body::from(text)))
    }

    /// Writes the answer as one document.
    fn write(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let mut writer = self.writer(&mut text);
        let mut failed = false;
        for (id, statement) in self.statements.iter().enumerate() {
            if failed {
                writer.result(id, Err(&StatementError::not_executed()), &mut text);
                continue;
            }
            let (answer, warnings) = self.evaluate(statement, |source, options| execute(statement, source, options));
            let answer = answer.and_then(|series| {
                let (timeout, memory) = (self.app.queries.limits().timeout, &self.memory);
                let check = || source::check(&self.cancelled, self.deadline, timeout);
                charge_text(&writer, &series, memory, check)?;
                Ok(series)
            });
            failed = answer.is_err();
            for warning in warnings {
                writer.warn(warning);
            }
            writer.result(id, answer.as_deref(), &mut text);
        }
        writer.finish(&mut text);
        text
    }

    /// Sends the answer in chunks.
    fn send(&self, out: &mut Output) -> Result<(), FileError> {
        let mut text = Vec::new();
        let mut writer = self.writer(&mut text);
        let mut most = PIECE_BYTES;
        let mut failed = false;
        for (id, statement) in self.statements.iter().enumerate() {
            if failed {
                writer.result(id, Err(&StatementError::not_executed()), &mut text);
                continue;
            }
            let (mut broken, mut held, mut has_rows) = (None, 0, false);
            let (answer, warnings) = self.evaluate(statement, |source, options| {
                stream(statement, source, options, &mut |part| {
                    has_rows = true;
                    let bytes = self.bytes_of_chunk(part.columns.len());
                    if bytes > held {
                        self.memory.grow(bytes - held)?;
                        held = bytes;
                    }
                    writer.part(id, part, &mut text, &mut |text| {
                        if text.len() > most {
                            self.memory.grow(text.len() - most)?;
                            most = text.len();
                        }
                        self.pass(text, out).map_err(|error| {
                            broken = Some(error);
                            StatementError::not_executed()
                        })
                    })
                })
            });
            if let Some(error) = broken {
                return Err(error);
            }
            if let Err(error) = &answer
                && has_rows
                && self.form.format == Format::Csv
            {
                return Err(FileError::Statement(error.clone())); // a table has no place for an error
            }
            failed = answer.is_err();
            for warning in warnings {
                writer.warn(warning);
            }
            writer.end(id, answer.as_ref().copied(), &mut text);
            self.pass(&mut text, out)?;
        }
        writer.finish(&mut text);
        out.text = text;
        Ok(())
    }

    /// Sends text that is long enough for a piece. Fails if the client is gone.
    fn pass(&self, text: &mut Vec<u8>, out: &mut Output) -> Result<(), FileError> {
        if self.cancelled.is_cancelled() {
            return Err(FileError::Gone);
        }
        std::mem::swap(text, &mut out.text);
        let sent = out.send_if_full();
        std::mem::swap(text, &mut out.text);
        sent
    }

    /// Estimates the memory of the rows and the text of a chunk, in bytes.
    fn bytes_of_chunk(&self, columns: usize) -> usize {
        const OF_ROW: usize = 64;
        const OF_VALUE: usize = 64;
        self.form.chunk_rows.unwrap_or_default().saturating_mul(OF_ROW + columns * OF_VALUE)
    }

    fn writer(&self, text: &mut Vec<u8>) -> Writer {
        let Form { format, epoch, is_pretty, chunk_rows, .. } = self.form;
        Writer::new(format, epoch, is_pretty, chunk_rows, self.statements.len(), text)
    }

    /// Evaluates a statement with its data. Also returns notes on missing data.
    fn evaluate<T>(
        &self,
        statement: &Statement,
        evaluate: impl FnOnce(&mut Stored<'_>, &Options<'_>) -> Result<T, StatementError>,
    ) -> (Result<T, StatementError>, Vec<String>) {
        let Self { app, grant, form, request, runtime, deadline, cancelled, memory, .. } = self;
        let (limits, is_in_parts) = (app.queries.limits(), form.chunk_rows.is_some());
        let now_ms = app.clock.now_ms();
        let mut source = Stored {
            queries: &app.queries,
            scope: &grant.device_scope,
            runtime,
            deadline: if is_in_parts { Instant::now() + limits.timeout } else { *deadline },
            is_in_parts,
            cancelled,
            catalogue: &Catalogue::new(&app.formats.line_protocol),
            memory,
            now_ms,
            max_series: limits.max_points,
            places: Vec::new(),
            lagging: None,
            is_of_index: matches!(statement, Statement::Show(_)),
            incomplete: None,
            notes_missing: form.format != Format::Csv,
            lacks_devices: false,
            has_memory_ahead: false,
            failure: None,
        };
        let options = Options {
            now_ns: now_ms.saturating_mul(1_000_000),
            databases: vec![form.database.clone().unwrap_or_else(|| DATABASE.to_owned())],
            limits: Limits {
                max_series: limits.max_points,
                max_buckets: limits.max_points,
                max_points: usize::try_from(limits.max_values_read).unwrap_or(usize::MAX),
                max_rows: limits.max_points,
            },
            memory,
        };
        let answer = evaluate(&mut source, &options);
        if let Some(problem) = source.failure.take() {
            log_refusals(app, Need::InfluxQl, &Sender::All, *request, &mut problem.into_response());
        }
        (answer, source.warnings())
    }
}

/// Takes memory for the text of a result before the text is written.
fn charge_text(
    writer: &Writer,
    series: &[OutSeries],
    memory: &dyn Memory,
    check: impl Fn() -> Result<(), StatementError>,
) -> Result<(), StatementError> {
    let mut bytes = 0;
    for one in series {
        check()?;
        source::grow(memory, &mut bytes, writer.bytes_of(one))?;
    }
    Ok(())
}

/// The memory of a request, which grows with its data.
struct Held {
    running: Arc<RunningQuery>,
    metrics: Arc<Metrics>,
    bytes: Mutex<QueryMemory>,
    /// For reading ahead: taken once for all statements, and given back if one needs it.
    ahead: Mutex<Option<QueryMemory>>,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

impl Memory for Held {
    fn grow(&self, bytes: usize) -> Result<(), StatementError> {
        let mut held = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let again = |problem| {
            let was_held = self.ahead.lock().unwrap_or_else(PoisonError::into_inner).take().is_some();
            if was_held { self.running.try_take(bytes) } else { Err(problem) }
        };
        let more = self.running.try_take(bytes).or_else(again).map_err(|problem| {
            self.metrics.limited_total.of(Limit::QueryBytes).increment(1);
            let max = self.running.max_bytes();
            if held.bytes().saturating_add(bytes) <= max {
                return StatementError::new(problem.detail());
            }
            StatementError::new(format!(
                "this query alone needs more than the {max} bytes that {} leaves it; add a LIMIT, name fields or \
                 choose a shorter range",
                Limit::QueryBytes.key()
            ))
        })?;
        held.merge(more);
        Ok(())
    }

    /// Does not count as refused, because the statement goes on.
    fn try_grow(&self, bytes: usize) -> bool {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        if ahead.is_none() {
            *ahead = self.running.try_take(bytes).ok();
        }
        ahead.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::http::QueryLimits;
    use crate::influxql::Value;
    use crate::limits::{Quota, Share};

    /// At most 4 MiB of memory.
    #[derive(Debug, Default)]
    struct Few(Mutex<usize>);

    impl Memory for Few {
        fn grow(&self, bytes: usize) -> Result<(), StatementError> {
            let mut taken = self.0.lock().expect("no panic");
            *taken += bytes;
            if *taken > 4 << 20 { Err("no memory".into()) } else { Ok(()) }
        }
    }

    #[tokio::test]
    async fn a_query_that_alone_needs_too_much_is_not_told_to_try_again() {
        let limits = QueryLimits::new(2, 1, 4 << 20);
        let quota = Quota { query_blocks: Some(Share::of(4 << 10)), ..Quota::default() };
        let (metrics, exposition) = Metrics::new();
        let metrics = Arc::new(metrics);
        let refused = |count: u64| format!("tidegauge_limited_total{{limit=\"query.max_bytes_in_flight\"}} {count}\n");
        let hold_a_mib = async || {
            let running = Arc::new(limits.enter(&quota).await.expect("below the limit"));
            let bytes = Mutex::new(running.take(1 << 20).await.expect("below the limit"));
            Held { running, metrics: Arc::clone(&metrics), bytes, ahead: Mutex::default() }
        };
        let (one, other) = (hold_a_mib().await, hold_a_mib().await);
        assert!(!one.try_grow(2 << 20));
        assert!(exposition.render().contains(&refused(0)));
        let error = |bytes| one.grow(bytes).expect_err("the share has three MiB").to_string();
        let for_now = error(2 << 20);
        assert!(for_now.contains("three quarters of query.max_bytes_in_flight; try again later"), "{for_now}");
        let for_good = error((2 << 20) + 1);
        let expected = "this query alone needs more than the 3145728 bytes that query.max_bytes_in_flight leaves it";
        assert!(for_good.starts_with(expected), "{for_good}");
        assert!(exposition.render().contains(&refused(2)));
        drop(other);
        assert_eq!(error((2 << 20) + 1), for_good);
        assert_eq!((one.try_grow(1 << 20), one.grow(1 << 20)), (true, Ok(())));
        assert!(one.try_grow(1 << 20), "it was taken before");
        assert_eq!(one.grow(1 << 20), Ok(()), "it is given back");
        assert!(!one.try_grow(1), "the share is used");
        assert!(exposition.render().contains(&refused(3)));
    }

    #[test]
    fn text_is_charged_and_the_work_on_it_ends_early() {
        let one = OutSeries {
            name: "m".into(),
            tags: vec![("k".repeat(500).into(), "v".into())],
            columns: vec!["c".repeat(500); 100].into(),
            has_time: true,
            zone: None,
            rows: vec![(0, vec![Value::Null; 99].into())],
            is_partial: false,
        };
        let writer = Writer::new(Format::Json, None, false, None, 1, &mut Vec::new());
        let charge = |count, check: &dyn Fn() -> Result<(), StatementError>| {
            charge_text(&writer, &vec![one.clone(); count], &Few::default(), check)
        };
        assert_eq!(charge(50, &|| Ok(())), Ok(()));
        assert_eq!(charge(100, &|| Ok(())), Err("no memory".into()));
        let (token, second) = (CancellationToken::new(), Duration::from_secs(1));
        let later = Instant::now() + Duration::from_secs(3_600);
        assert_eq!(charge(1, &|| source::check(&token, later, second)), Ok(()));
        let error = charge(1, &|| source::check(&token, Instant::now(), second)).expect_err("it is late");
        assert!(error.to_string().contains("query.timeout"), "{error}");
        token.cancel();
        assert_eq!(charge(1, &|| source::check(&token, later, second)), Err("the client is gone".into()));
    }
}
