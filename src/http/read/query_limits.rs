//! The limits of queries: how many run at once, and how much memory they use.
//!
//! Both are limited in total and for each token. A query that exceeds a limit waits for a moment, in order of
//! arrival, and is then refused. (An InfluxQL statement whose data grows does not wait: `try_take`.)
//!
//! Once the answer of a query exists, the query frees its place, and all memory except that of the answer. It
//! frees the rest after the answer has been sent. A file holds its place and its memory until its end, so it
//! also needs a place among the files. One token gets at most its [`Share`] of the files and of the memory,
//! so that some is left for other tokens.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::CONTENT_LENGTH;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::AbortOnDropHandle;

use crate::access::Grant;
use crate::http::App;
use crate::http::answer::body_in_pieces::BodyInPieces;
use crate::http::answer::etag::{self, Negotiation};
use crate::http::problem::{MOMENT, Problem};
use crate::http::serve::client_disconnect::Disconnect;
use crate::http::serve::connection::Peer;
use crate::limits::{QUERY_BLOCK_BYTES as BLOCK_BYTES, Quota, Share};
use crate::telemetry::Limit;

/// The limits of all queries together. Memory is counted in blocks.
#[derive(Debug)]
pub struct QueryLimits {
    queries: Arc<Semaphore>,
    files: Arc<Semaphore>,
    blocks: Arc<Semaphore>,
    max_blocks: u32,
}

/// The place and the memory that one running query holds.
#[derive(Debug)]
pub(in crate::http) struct RunningQuery {
    files: Arc<Semaphore>,
    blocks: Arc<Semaphore>,
    max_blocks: u32,
    files_of_token: Option<Share>,
    blocks_of_token: Option<Share>,
    memory: Mutex<Option<QueryMemory>>,
    _places: Vec<OwnedSemaphorePermit>,
}

/// Memory that a query holds, of the total and of the share of its token.
#[derive(Debug)]
pub(in crate::http) struct QueryMemory {
    of_all: OwnedSemaphorePermit,
    of_token: Option<OwnedSemaphorePermit>,
}

/// The places and the memory of a file, which are free once the file has ended.
#[derive(Debug)]
pub(in crate::http) struct FileReservation {
    _running: Arc<RunningQuery>,
    _places: [Option<OwnedSemaphorePermit>; 2],
    _memory: Option<QueryMemory>,
}

impl QueryLimits {
    /// Limits queries to `queries` at once, which together use up to `bytes`.
    ///
    /// Up to `files` of them may answer with a file.
    pub fn new(queries: usize, files: usize, bytes: usize) -> Self {
        let max_blocks = u32::try_from(bytes / BLOCK_BYTES).unwrap_or(u32::MAX);
        Self {
            queries: Arc::new(Semaphore::new(queries)),
            files: Arc::new(Semaphore::new(files)),
            blocks: Arc::new(Semaphore::new(max_blocks as usize)),
            max_blocks,
        }
    }

    /// Waits for a place among the running queries.
    ///
    /// Fails if none is free after a moment.
    pub(in crate::http) async fn enter(&self, quota: &Quota) -> Result<RunningQuery, Problem> {
        let mut places = Vec::new();
        if let Some(queries) = &quota.queries {
            let place = acquire(queries, 1).await;
            places.push(place.ok_or_else(|| Problem::rate_limited(Limit::TokenQueries, MOMENT))?);
        }
        let place = acquire(&self.queries, 1).await;
        places.push(place.ok_or_else(|| Problem::too_many_queries(Limit::Queries))?);
        let [files, blocks] = [&self.files, &self.blocks].map(Arc::clone);
        Ok(RunningQuery {
            files,
            blocks,
            max_blocks: self.max_blocks,
            files_of_token: quota.files.clone(),
            blocks_of_token: quota.query_blocks.clone(),
            memory: Mutex::new(None),
            _places: places,
        })
    }
}

impl RunningQuery {
    /// Reserves memory for the query: `bytes`, but at most the whole limit.
    pub(in crate::http) async fn reserve(&self, bytes: usize) -> Result<(), Problem> {
        let memory = self.take(bytes).await?;
        self.keep(memory);
        Ok(())
    }

    /// Takes memory, of the total and of the share of the token.
    ///
    /// A query that needs more than the total or the share takes all of it.
    pub(in crate::http) async fn take(&self, bytes: usize) -> Result<QueryMemory, Problem> {
        let blocks = blocks(bytes).min(self.max_blocks);
        let of_token = share(self.blocks_of_token.as_ref(), blocks, Limit::QueryBytes).await?;
        let of_all = acquire(&self.blocks, blocks).await;
        let of_all = of_all.ok_or_else(|| Problem::too_many_queries(Limit::QueryBytes))?;
        Ok(QueryMemory { of_all, of_token })
    }

    /// The most memory that the query can have while no other query runs, in bytes.
    pub(in crate::http) fn max_bytes(&self) -> usize {
        let of_token = self.blocks_of_token.as_ref().map_or(u32::MAX, |of| of.max);
        self.max_blocks.min(of_token) as usize * BLOCK_BYTES
    }

    /// Takes memory, or fails at once if not enough is free.
    pub(in crate::http) fn try_take(&self, bytes: usize) -> Result<QueryMemory, Problem> {
        let blocks = blocks(bytes);
        let take = |places: &Arc<Semaphore>| Arc::clone(places).try_acquire_many_owned(blocks).ok();
        let of_token = match &self.blocks_of_token {
            None => None,
            Some(of) => Some(take(&of.places).ok_or_else(|| Problem::share_is_used(Limit::QueryBytes))?),
        };
        let of_all = take(&self.blocks).ok_or_else(|| Problem::too_many_queries(Limit::QueryBytes))?;
        Ok(QueryMemory { of_all, of_token })
    }

    /// Keeps memory until the answer has been sent.
    pub(in crate::http) fn keep(&self, memory: QueryMemory) {
        *self.memory() = Some(memory);
    }

    fn memory(&self) -> MutexGuard<'_, Option<QueryMemory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a place among the files, and memory until the end of the file.
    pub(in crate::http) async fn reserve_file(self: Arc<Self>, bytes: usize) -> Result<FileReservation, Problem> {
        let file = Arc::clone(&self).reserve_file_place().await?;
        self.reserve(bytes).await?;
        let memory = self.memory().take();
        Ok(FileReservation { _memory: memory, ..file })
    }

    /// Reserves a place among the files for a query that has reserved its memory.
    ///
    /// It is a place among all files, and among the files of the token.
    pub(in crate::http) async fn reserve_file_place(self: Arc<Self>) -> Result<FileReservation, Problem> {
        let of_token = share(self.files_of_token.as_ref(), 1, Limit::Files).await?;
        let of_all = acquire(&self.files, 1).await.ok_or_else(|| Problem::too_many_queries(Limit::Files))?;
        let memory = self.memory().take();
        Ok(FileReservation { _running: self, _places: [of_token, Some(of_all)], _memory: memory })
    }

    /// Tags and compresses an answer, and keeps its memory until it has been sent.
    ///
    /// A file holds its memory itself, so `memory` is `None` and the answer stays as it is.
    async fn hand_over(&self, answer: Response, negotiation: Negotiation) -> Response {
        let Some(mut memory) = self.memory().take() else { return answer };
        let (mut head, mut body) = answer.into_parts();
        let mut pieces = Vec::new();
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => pieces.extend(frame.into_data().ok()),
                Err(error) => return Problem::internal(error).into_response(),
            }
        }
        let pieces = match negotiation.finish(&mut head, pieces).await {
            Ok(pieces) => pieces,
            Err(error) => return Problem::internal(error).into_response(),
        };
        let bytes: usize = pieces.iter().map(Bytes::len).sum();
        let memory = Arc::new(memory.split(bytes.div_ceil(BLOCK_BYTES)));
        let sent = pieces.into_iter().map(|bytes| Bytes::from_owner(Sent { bytes, _memory: Arc::clone(&memory) }));
        head.headers.remove(CONTENT_LENGTH); // that of the body before compression
        Response::from_parts(head, Body::new(BodyInPieces::new(sent)))
    }
}

/// A piece of an answer. All pieces of an answer share its memory.
struct Sent {
    bytes: Bytes,
    _memory: Arc<QueryMemory>,
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl QueryMemory {
    /// The size in bytes.
    pub(in crate::http) fn bytes(&self) -> usize {
        self.of_all.num_permits() * BLOCK_BYTES
    }

    /// Adds memory of the same query.
    pub(in crate::http) fn merge(&mut self, more: Self) {
        self.of_all.merge(more.of_all);
        if let (Some(of_token), Some(more)) = (&mut self.of_token, more.of_token) {
            of_token.merge(more);
        }
    }

    /// Splits off this many blocks, or all if there are fewer.
    fn split(&mut self, blocks: usize) -> Self {
        let part = |permit: &mut OwnedSemaphorePermit| permit.split(blocks.min(permit.num_permits()));
        let of_all = part(&mut self.of_all).expect("no more than there is");
        Self { of_all, of_token: self.of_token.as_mut().and_then(part) }
    }
}

fn blocks(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BLOCK_BYTES)).unwrap_or(u32::MAX)
}

/// Acquires permits of a token's share, but never more than all of the share.
async fn share(of: Option<&Share>, permits: u32, limit: Limit) -> Result<Option<OwnedSemaphorePermit>, Problem> {
    let Some(of) = of else { return Ok(None) };
    let held = acquire(&of.places, permits.min(of.max)).await;
    held.ok_or_else(|| Problem::share_is_used(limit)).map(Some)
}

/// Acquires permits, and gives up after [`MOMENT`].
async fn acquire(semaphore: &Arc<Semaphore>, permits: u32) -> Option<OwnedSemaphorePermit> {
    tokio::time::timeout(MOMENT, Arc::clone(semaphore).acquire_many_owned(permits)).await.ok()?.ok()
}

/// Middleware: lets a query wait for a place, and hands the place to its handler.
///
/// The handler gets it as an `Extension`; a query without a place is refused. The query runs on the main
/// runtime: on the thread of its connection it would delay other connections.
pub(in crate::http) async fn limit_query(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let Some(grant) = request.extensions().get::<Arc<Grant>>().cloned() else {
        return Problem::internal("a query without a grant").into_response();
    };
    let negotiation = Negotiation::of(request.headers());
    let disconnect = request.extensions().get::<Peer>().map(|peer| peer.disconnect.clone());
    let answer = |running| {
        request.extensions_mut().insert(running);
        next.run(request)
    };
    run(&app, &grant.quota, negotiation, disconnect, answer).await.unwrap_or_else(IntoResponse::into_response)
}

/// Answers a query on the main runtime, once the query has a place.
pub(in crate::http) async fn run<A>(
    app: &App,
    quota: &Quota,
    negotiation: Negotiation,
    disconnect: Option<Disconnect>,
    answer: impl FnOnce(Arc<RunningQuery>) -> A,
) -> Result<Response, Problem>
where
    A: Future<Output = Response> + Send + 'static,
{
    let running = Arc::new(app.query_limits.enter(quota).await?);
    let answer = answer(Arc::clone(&running));
    let query = async move { running.hand_over(answer.await, negotiation).await };
    let mut answer = until_client_leaves(app, disconnect, query).await?;
    etag::vary(answer.headers_mut());
    Ok(answer)
}

/// Runs a query on the main runtime. The query ends when the client has left.
pub(in crate::http) async fn until_client_leaves<T: Send + 'static>(
    app: &App,
    disconnect: Option<Disconnect>,
    query: impl Future<Output = T> + Send + 'static,
) -> Result<T, Problem> {
    let query = AbortOnDropHandle::new(app.main.spawn(query));
    let answer = match disconnect.map(|disconnect| disconnect.watch()) {
        None => query.await,
        Some(watch) => tokio::select! {
            answer = query => answer,
            () = watch.client_left() => return Err(Problem::client_left()),
        },
    };
    answer.map_err(Problem::internal)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;

    use super::*;

    fn no_wishes() -> Negotiation {
        Negotiation::of(&HeaderMap::new())
    }

    #[tokio::test]
    async fn an_answer_holds_its_memory_until_it_is_sent() {
        let limits = QueryLimits::new(1, 1, 100 * BLOCK_BYTES);
        let running = limits.enter(Quota::unlimited()).await.expect("below the limit");
        running.reserve(60 * BLOCK_BYTES).await.expect("below the limit");
        assert_eq!((limits.queries.available_permits(), limits.blocks.available_permits()), (0, 40));
        let pieces = [vec![b'x'; 2 * BLOCK_BYTES], vec![b'y'; 1]].map(Bytes::from);
        let answer = running.hand_over(Response::new(Body::new(BodyInPieces::new(pieces))), no_wishes()).await;
        drop(running);
        assert_eq!((limits.queries.available_permits(), limits.blocks.available_permits()), (1, 97));
        let mut body = answer.into_body();
        let first = body.frame().await.expect("a piece").expect("of memory");
        let last = body.frame().await.expect("a piece").expect("of memory");
        drop(body);
        drop(first);
        assert_eq!((last.data_ref().map(Bytes::len), limits.blocks.available_permits()), (Some(1), 97));
        drop(last);
        assert_eq!(limits.blocks.available_permits(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_holds_its_places_and_its_memory_until_it_ends() {
        let limits = QueryLimits::new(3, 1, 10 * BLOCK_BYTES);
        let enter = async || Arc::new(limits.enter(Quota::unlimited()).await.expect("below the limit"));
        let running = enter().await;
        let reservation = Arc::clone(&running).reserve_file(4 * BLOCK_BYTES).await.expect("the first");
        let answer = running.hand_over(Response::new(Body::empty()), no_wishes()).await;
        drop((running, answer));
        assert_eq!((limits.queries.available_permits(), limits.blocks.available_permits()), (2, 6));
        let refused = enter().await.reserve_file(1).await.expect_err("one file at a time");
        assert!(refused.detail().contains("query.max_files"), "{}", refused.detail());
        drop(reservation);
        assert_eq!((limits.queries.available_permits(), limits.blocks.available_permits()), (3, 10));
        drop(enter().await.reserve_file(1).await.expect("the place is free again"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_gets_its_share_of_files_and_memory_and_leaves_the_rest_to_others() {
        let limits = QueryLimits::new(9, 4, 100 * BLOCK_BYTES);
        let quota = Quota { files: Some(Share::of(4)), query_blocks: Some(Share::of(100)), ..Quota::default() };
        let enter = async |quota: &Quota| Arc::new(limits.enter(quota).await.expect("below the limit"));
        let mut files = Vec::new();
        for _ in 0..3 {
            files.push(enter(&quota).await.reserve_file(BLOCK_BYTES).await.expect("three of four"));
        }
        let refused = enter(&quota).await.reserve_file(BLOCK_BYTES).await.expect_err("its share of files is used");
        assert_eq!((refused.status().as_u16(), refused.detail().contains("query.max_files")), (429, true));
        let other = enter(Quota::unlimited()).await.reserve_file(BLOCK_BYTES).await;
        files.push(other.expect("a place is left to others"));
        drop(files);
        let large = enter(&quota).await;
        large.reserve(90 * BLOCK_BYTES).await.expect("more than the share, but alone");
        let refused = enter(&quota).await.reserve(1).await.expect_err("its share of memory is used");
        assert!(refused.detail().contains("query.max_bytes_in_flight"), "{}", refused.detail());
        assert!(enter(&quota).await.try_take(1).is_err(), "not at once either");
        enter(Quota::unlimited()).await.reserve(10 * BLOCK_BYTES).await.expect("the rest is for others");
        let memory = large.take(0).await.expect("nothing");
        large.keep(memory);
        enter(&quota).await.reserve(75 * BLOCK_BYTES).await.expect("the share was returned");
    }

    #[tokio::test(start_paused = true)]
    async fn a_query_above_the_memory_limit_runs_alone() {
        let limits = QueryLimits::new(2, 1, 10 * BLOCK_BYTES);
        let one = limits.enter(Quota::unlimited()).await.expect("below the limit");
        one.reserve(usize::MAX).await.expect("all of it");
        let other = limits.enter(Quota::unlimited()).await.expect("below the limit");
        let refused = other.reserve(1).await.expect_err("nothing is left");
        assert!(refused.detail().contains("query.max_bytes_in_flight"), "{}", refused.detail());
        drop(one);
        other.reserve(1).await.expect("the memory was freed");
    }
}
