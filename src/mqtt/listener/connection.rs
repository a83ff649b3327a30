//! One connection of a device, from its first byte to its end.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::client_ids::{Claim, ClientIds};
use super::ended::{Ended, Refusal};
use super::session::{Connect, Received, Session, Version};
use crate::access::{Certificate, Credentials, Grant};
use crate::common::backoff::jittered;
use crate::common::lingering_close::LingeringClose;
use crate::config::Scope;
use crate::ingest::{IngestError, Receipt};
use crate::limits::{Exhausted, Quota, Reservation};
use crate::mqtt::message::MESSAGE_OVERHEAD_BYTES;
use crate::mqtt::queue::{Author, Queue};
use crate::telemetry::{GaugeGuard, Limit, RefusalEntry, Sender, What};

/// The most bytes that one read takes.
const READ_BYTES: usize = 16 << 10;

/// The size of the smallest message: a topic of one character, and no payload.
const MIN_MESSAGE_BYTES: usize = 5;

/// The memory of a read and of the most messages that it can complete, in bytes.
const READ_MEMORY_BYTES: usize = READ_BYTES + READ_BYTES.div_ceil(MIN_MESSAGE_BYTES) * MESSAGE_OVERHEAD_BYTES;

/// The most bytes that one read takes of one packet, when the memory for messages is scarce.
const SMALL_READ_BYTES: usize = 1 << 10;

/// The bytes of waiting messages at which the server stops reading.
const MAX_WAITING_BYTES: usize = 1 << 20;

/// The bytes of unsent answers at which the server stops reading.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// The wait before the next read when the memory for messages is used up.
const MEMORY_PAUSE: Duration = Duration::from_millis(50);

/// The time to store and acknowledge the last messages at the end of a connection.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The time for the client to read the last packet and close its side.
const LAST_PACKET_TIMEOUT: Duration = Duration::from_secs(3);

/// The longest delay before a connection is refused.
const MAX_REFUSAL_DELAY: Duration = Duration::from_secs(1);

/// The client of a connection, before it is authenticated.
pub(super) struct Peer {
    pub(super) address: IpAddr,
    pub(super) certificate: Option<Arc<Certificate>>,
}

/// A connection of a device.
struct Connection<S> {
    stream: LingeringClose<S>,
    session: Session,
    queue: Queue,
    /// The reserved memory: for the queue and for the incomplete packet.
    reservation: Reservation,
    /// This connection's part of the metric that counts unacknowledged messages.
    unacknowledged: GaugeGuard,
    /// Whether the last write must be flushed: TLS may still hold bytes of it.
    must_flush: bool,
    /// The end of a pause for lack of memory.
    read_at: Option<Instant>,
    /// Whether memory has been lacking since the last read.
    is_starved: bool,
    /// The deadline for the client to complete its first or an incomplete packet.
    packet_by: Option<Instant>,
    /// The deadline for the client to read some of the waiting answers.
    write_by: Option<Instant>,
    /// The silence after which the client counts as gone: 1.5 times its keep-alive.
    keep_alive: Option<Duration>,
    /// When the client counts as gone.
    silent_by: Option<Instant>,
}

/// An authenticated client.
struct Client {
    sender: Sender,
    password: Option<String>,
    grant: Arc<Grant>,
    /// Cancelled when another connection takes the client ID, or the server stops.
    end: CancellationToken,
    _claim: Claim,
}

/// The event that ends a turn of the loop in [`Shared::run`].
enum Turn {
    End,
    Durable(Box<Result<Receipt, IngestError>>),
    Io(Io),
    Timer,
}

/// The progress on the socket.
enum Io {
    Read(Vec<Received>),
    Closed,
    NoMemory(Exhausted),
    Written(usize),
    Flushed,
}

impl Shared {
    /// Serves a connection to its end.
    pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S, peer: Peer) {
        let mut connection = Connection {
            stream: LingeringClose::new(stream, self.shutdown.clone()),
            session: Session::new(self.options.max_packet_bytes, self.options.receive_maximum),
            queue: Queue::default(),
            reservation: self.memory.reservation(Quota::unlimited()),
            unacknowledged: GaugeGuard::new(&self.intake.metrics.mqtt_listener_unacknowledged, 0),
            must_flush: false,
            read_at: None,
            is_starved: false,
            packet_by: Some(Instant::now() + self.options.packet_timeout),
            write_by: None,
            keep_alive: None,
            silent_by: None,
        };
        let mut client = None;
        let Err(ended) = self.run(&mut connection, &mut client, &peer).await;
        let sender = client.as_ref().map_or(Sender::Address(peer.address), |client| client.sender.clone());
        if let Some(client) = &mut client {
            let _ = timeout(END_TIMEOUT, self.settle_all(&mut connection, client, &peer)).await;
            std::mem::take(&mut connection.queue).give_up(&self.intake.metrics);
        }
        self.count_end(&ended, sender);
        connection.session.end(&ended);
        let Connection { stream, session, .. } = &mut connection;
        let last = async {
            stream.write_all(&session.out).await?;
            stream.shutdown().await
        };
        let _ = timeout(LAST_PACKET_TIMEOUT, last).await; // the client may be gone
    }

    async fn run<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        connection: &mut Connection<S>,
        client: &mut Option<Client>,
        peer: &Peer,
    ) -> Result<std::convert::Infallible, Ended> {
        loop {
            if let Some(client) = client {
                self.submit(connection, client, peer)?;
            }
            match self.turn(connection, client.as_ref()).await? {
                Turn::End if self.shutdown.is_cancelled() => return Err(Ended::Shutdown),
                Turn::End => return Err(Ended::TakenOver),
                Turn::Durable(result) => {
                    if let Some(client) = client {
                        self.settle(*result, connection, client);
                    }
                }
                Turn::Io(Io::Read(mut received)) => {
                    let has_packet = !received.is_empty();
                    if let Some(Received::Connect(connect)) =
                        received.pop_if(|last| matches!(last, Received::Connect(_)))
                    {
                        *client = Some(self.authenticate(connect, connection, peer).await?);
                    }
                    connection.note_read(has_packet, self.options.packet_timeout);
                    self.take(received, connection)?;
                }
                Turn::Io(Io::Closed) => return Err(Ended::Closed),
                Turn::Io(Io::NoMemory(exhausted)) => {
                    if !std::mem::replace(&mut connection.is_starved, true) {
                        let limit = match exhausted {
                            Exhausted::All => Limit::BytesInFlight,
                            Exhausted::Token => Limit::TokenBytesInFlight,
                        };
                        self.intake.metrics.limited_total.of(limit).increment(1);
                    }
                    connection.read_at = Some(Instant::now() + jittered(MEMORY_PAUSE));
                }
                Turn::Io(Io::Written(bytes)) => {
                    connection.session.out.drain(..bytes);
                    if connection.session.out.is_empty() {
                        connection.session.out = Vec::new();
                    }
                    (connection.must_flush, connection.write_by) = (true, None);
                }
                Turn::Io(Io::Flushed) => connection.must_flush = false,
                Turn::Timer => connection.check_times()?,
            }
        }
    }

    /// Waits for the next event of the connection.
    async fn turn<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        connection: &mut Connection<S>,
        client: Option<&Client>,
    ) -> Result<Turn, Ended> {
        let now = Instant::now();
        if connection.read_at.is_some_and(|at| at <= now) {
            connection.read_at = None;
        }
        let may_read = connection.read_at.is_none() && connection.has_room();
        if !may_read {
            connection.pause(self.options.packet_timeout);
        }
        if !connection.session.out.is_empty() {
            connection.write_by.get_or_insert(now + self.options.packet_timeout);
        }
        let Connection { queue, read_at, packet_by, write_by, silent_by, .. } = connection;
        let times = [queue.try_at(), *read_at, *packet_by, *write_by, *silent_by];
        let wake_at = times.into_iter().flatten().min();
        let end = client.map_or(&self.shutdown, |client| &client.end);
        let is_submitted = connection.queue.is_submitted();
        let Connection { stream, session, queue, reservation, must_flush, .. } = connection;
        let held = queue.bytes();
        tokio::select! {
            biased;
            () = end.cancelled() => Ok(Turn::End),
            result = queue.durable(), if is_submitted => Ok(Turn::Durable(Box::new(result))),
            io = io(stream, session, reservation, held, *must_flush, may_read) => Ok(Turn::Io(io?)),
            () = sleep_until(wake_at.unwrap_or(now).into()), if wake_at.is_some() => Ok(Turn::Timer),
        }
    }

    /// Authenticates a client as for an HTTP request that writes readings.
    async fn authenticate<S>(
        &self,
        connect: Connect,
        connection: &mut Connection<S>,
        peer: &Peer,
    ) -> Result<Client, Ended> {
        let password = connect.password.as_ref().map(|password| String::from_utf8_lossy(password).into_owned());
        let grant = self.grant(password.as_deref(), peer).map_err(Ended::Refused)?;
        if let Some(limiter) = &grant.quota.requests
            && let Err(wait) = limiter.take(Instant::now())
        {
            self.intake.metrics.limited_total.of(Limit::TokenRequests).increment(1);
            sleep(jittered(wait.min(MAX_REFUSAL_DELAY))).await;
            return Err(Ended::Refused(Refusal::RateLimited));
        }
        let assigned = connect.client_id.is_empty().then(ClientIds::unused);
        let client_id = assigned.as_deref().unwrap_or(&connect.client_id);
        let end = self.shutdown.child_token();
        let claim = self.client_ids.claim(grant.name.clone(), client_id, &end);
        connection.session.accept(&connect, assigned.as_deref());
        connection.keep_alive = match connect.keep_alive_seconds {
            0 => None,
            seconds => Some(Duration::from_secs(seconds.into()) * 3 / 2),
        };
        connection.silent_by = connection.keep_alive.map(|keep_alive| Instant::now() + keep_alive);
        connection.reservation = self.memory.reservation(&grant.quota);
        let sender = grant.name.clone().map_or(Sender::Address(peer.address), Sender::Named);
        Ok(Client { sender, password, grant, end, _claim: claim })
    }

    fn grant(&self, password: Option<&str>, peer: &Peer) -> Result<Arc<Grant>, Refusal> {
        let credentials = Credentials { token: password, certificate: peer.certificate.as_deref() };
        let granted = self.gate.tokens().grant(credentials, Some(Scope::Ingest), self.clock.now_ms());
        let grant = granted.map_err(Refusal::Unauthorized)?;
        if grant.allows(Scope::Ingest) { Ok(grant) } else { Err(Refusal::Forbidden) }
    }

    /// Submits waiting messages, if the client may still write.
    ///
    /// Its token may have been removed, or may have expired, since the last messages.
    fn submit<S>(&self, connection: &mut Connection<S>, client: &mut Client, peer: &Peer) -> Result<(), Ended> {
        if !connection.queue.can_submit() {
            return Ok(());
        }
        client.grant = self.grant(client.password.as_deref(), peer).map_err(|refusal| match refusal {
            Refusal::Unauthorized(error) => Ended::Unauthorized(error),
            other => Ended::Refused(other),
        })?;
        let Grant { device_scope: scope, quota, .. } = &*client.grant;
        let waits_for_rate = connection.session.version() == Version::V3;
        connection.queue.submit(&self.intake, Author { scope, quota, waits_for_rate });
        Ok(())
    }

    /// Submits and settles the messages that wait at the end of a connection.
    ///
    /// A client may send messages of quality of service 0 and disconnect at once. Such messages wait for the
    /// rate, but not longer than the end may take. The call ends early if the log refuses a record, or if the
    /// client may no longer write.
    async fn settle_all<S>(&self, connection: &mut Connection<S>, client: &mut Client, peer: &Peer) {
        let end = Instant::now() + END_TIMEOUT;
        while connection.queue.is_submitted() || self.submit(connection, client, peer).is_ok() {
            if connection.queue.is_submitted() {
                let result = connection.queue.durable().await;
                self.settle(result, connection, client);
            } else if let Some(rate_at) = connection.queue.rate_pause().filter(|at| *at < end) {
                sleep_until(rate_at.into()).await;
            } else {
                return;
            }
        }
    }

    /// Acknowledges the messages of the submitted record, or lets them wait again.
    ///
    /// They wait if `result` is an error, which means that the log has refused the record.
    fn settle<S>(&self, result: Result<Receipt, IngestError>, connection: &mut Connection<S>, client: &Client) {
        let Connection { session, queue, reservation, unacknowledged, .. } = connection;
        let Ok(()) = queue.settle(result, &self.intake, &client.sender, |receipt, outcome, why| {
            session.acknowledge(receipt, outcome, why);
            Ok::<_, std::convert::Infallible>(())
        });
        reservation.shrink_to(queue.bytes() + session.partial_bytes());
        unacknowledged.set(queue.unacknowledged());
    }

    /// Appends messages to the queue. Fails if the connection ends.
    fn take<S>(&self, received: Vec<Received>, connection: &mut Connection<S>) -> Result<(), Ended> {
        let mut result = Ok(());
        for received in received {
            match received {
                Received::Message(message) => {
                    self.intake.metrics.mqtt_listener_messages_total.increment(1);
                    connection.queue.take(message, &self.intake);
                }
                Received::Ended(ended) => result = Err(ended),
                Received::Connect(_) => result = Err(Ended::protocol("a second CONNECT")),
            }
        }
        connection.unacknowledged.set(connection.queue.unacknowledged());
        let held_bytes = connection.queue.bytes() + connection.session.partial_bytes();
        // The read has reserved them, except for a byte or two of a message that lacks the length of its
        // properties, which counts all the same.
        let _ = connection.reservation.grow_to(held_bytes);
        connection.reservation.shrink_to(held_bytes);
        result
    }

    /// Counts the end of a connection.
    fn count_end(&self, ended: &Ended, sender: Sender) {
        self.intake.metrics.mqtt_listener_ended_total.with(ended.code()).increment(1);
        tracing::debug!(%ended, "an MQTT connection ended");
        if ended.is_logged() {
            let entry = RefusalEntry {
                what: What::Connections,
                code: ended.code(),
                count: 1,
                example: format!("MQTT: {ended}"),
            };
            self.intake.refusals.record(sender, entry, None);
        }
    }
}

impl<S> Connection<S> {
    /// Whether the server reads on.
    ///
    /// It stops at [`MAX_WAITING_BYTES`] of messages, at [`MAX_ANSWER_BYTES`] of answers, and at more than
    /// `receive_maximum` unacknowledged messages. Version 3.1.1 does not tell clients this maximum, and some
    /// clients of version 5 (mqtt.js) do not keep to it. Pings and the end of a client that keeps to it are
    /// read.
    fn has_room(&self) -> bool {
        let is_exceeded = self.session.is_window_exceeded();
        self.queue.bytes() < MAX_WAITING_BYTES && self.session.out.len() < MAX_ANSWER_BYTES && !is_exceeded
    }

    /// Sets the deadlines after a read. With `has_packet`, a packet has become whole.
    fn note_read(&mut self, has_packet: bool, packet_timeout: Duration) {
        let now = Instant::now();
        self.is_starved = false;
        if self.session.partial_bytes() == 0 {
            self.packet_by = None;
        } else if has_packet || self.packet_by.is_none() {
            self.packet_by = Some(now + packet_timeout);
        }
        self.silent_by = self.keep_alive.map(|keep_alive| now + keep_alive);
    }

    /// Extends the deadlines for the client to send, while the server does not read.
    ///
    /// If the server does not read for lack of memory, the deadline of an incomplete packet stays. Otherwise
    /// connections with incomplete packets could wait forever for each other's memory.
    fn pause(&mut self, packet_timeout: Duration) {
        let now = Instant::now();
        self.silent_by = self.keep_alive.map(|keep_alive| now + keep_alive);
        if !self.has_room() {
            self.packet_by = self.packet_by.map(|_| now + packet_timeout);
        }
    }

    /// Fails if a deadline has passed.
    fn check_times(&self) -> Result<(), Ended> {
        let now = Instant::now();
        let is_over = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_over(self.packet_by) || is_over(self.write_by) {
            return Err(Ended::Timeout);
        }
        if is_over(self.silent_by) { Err(Ended::KeepAlive) } else { Ok(()) }
    }
}

/// Writes, flushes or reads, whichever is possible first.
///
/// The read buffer exists only during a call, so an idle connection has none. Memory for the bytes and their
/// messages is reserved before they are read. [`Shared::take`] returns the part that the messages do not
/// need. Before the client is authenticated, and when memory is scarce, a read goes no further than the end
/// of the packet. So what follows CONNECT counts for the client's token.
async fn io<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut LingeringClose<S>,
    session: &mut Session,
    reservation: &mut Reservation,
    held_bytes: usize,
    must_flush: bool,
    may_read: bool,
) -> io::Result<Io> {
    poll_fn(|cx| {
        if !session.out.is_empty() {
            if let Poll::Ready(written) = Pin::new(&mut *stream).poll_write(cx, &session.out) {
                return Poll::Ready(written.and_then(|bytes| match bytes {
                    0 => Err(io::ErrorKind::WriteZero.into()),
                    _ => Ok(Io::Written(bytes)),
                }));
            }
        } else if must_flush && let Poll::Ready(flushed) = Pin::new(&mut *stream).poll_flush(cx) {
            return Poll::Ready(flushed.map(|()| Io::Flushed));
        }
        if !may_read {
            return Poll::Pending;
        }
        let held_bytes = held_bytes + session.partial_bytes();
        let mut reserve = |bytes: usize| reservation.grow_to(held_bytes + bytes);
        let of_one_packet = session.lacking_bytes().min(SMALL_READ_BYTES);
        let bytes = if session.is_connected() && reserve(READ_MEMORY_BYTES).is_ok() {
            READ_BYTES
        } else if let Err(exhausted) = reserve(of_one_packet + MESSAGE_OVERHEAD_BYTES) {
            return Poll::Ready(Ok(Io::NoMemory(exhausted)));
        } else {
            of_one_packet
        };
        let mut space = [MaybeUninit::uninit(); READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut space[..bytes]);
        let read = Pin::new(&mut *stream).poll_read(cx, &mut buffer);
        let result = match read {
            Poll::Pending => {
                reservation.shrink_to(held_bytes);
                return Poll::Pending;
            }
            Poll::Ready(Ok(())) if buffer.filled().is_empty() => Ok(Io::Closed),
            Poll::Ready(Ok(())) => Ok(Io::Read(session.receive(buffer.filled()))),
            Poll::Ready(Err(error)) => Err(error),
        };
        Poll::Ready(result)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::BodyMemory;

    /// The smallest messages take fifty times their bytes.
    #[tokio::test]
    async fn memory_is_reserved_for_messages_before_their_bytes_are_read() {
        let connect = [0x10, 13, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 60, 0, 1, b'd'];
        let messages = [0x30, 3, 0, 1, b't'].repeat(3_000);
        for total in [20 << 10, 2 << 20] {
            let (stream, mut device) = tokio::io::duplex(64 << 10);
            device.write_all(&[&connect[..], &messages[..]].concat()).await.unwrap();
            drop(device);
            let mut stream = LingeringClose::new(stream, CancellationToken::new());
            let mut session = Session::new(1 << 10, 100);
            let mut reservation = BodyMemory::new(total).reservation(Quota::unlimited());
            let (mut held_bytes, mut count) = (0, 0);
            while let Io::Read(received) =
                io(&mut stream, &mut session, &mut reservation, held_bytes, false, true).await.unwrap()
            {
                for received in received {
                    match received {
                        Received::Connect(connect) => {
                            assert_eq!(session.partial_bytes(), 0, "bytes behind CONNECT were read");
                            session.accept(&connect, None);
                            session.out.clear();
                        }
                        Received::Message(message) => (held_bytes, count) = (held_bytes + message.bytes, count + 1),
                        Received::Ended(ended) => panic!("{ended}"),
                    }
                }
                let needed_bytes = held_bytes + session.partial_bytes();
                assert!(needed_bytes <= reservation.held_bytes(), "{needed_bytes} of {total}");
            }
            assert!(count == 3_000 || held_bytes > total / 2, "only {count} messages were read");
        }
    }
}
