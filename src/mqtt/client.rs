//! The task of one broker: it connects, and moves messages into the log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::{sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::connect::Stream;
use super::message::Message;
use super::queue::{Author, Intake, Queue};
use super::reconnect::Reconnect;
use super::session::{PONG_TIMEOUT, Received, Session};
use super::subscriptions::SubscriptionsFile;
use super::{MqttError, Options};
use crate::config::MqttVersion;
use crate::ingest::{IngestError, Receipt};
use crate::limits::Quota;
use crate::telemetry::Sender;

/// The bytes of waiting messages at which the client stops reading.
pub(super) const MAX_WAITING_BYTES: usize = 16 << 20;

/// The bytes of unsent answers at which the client stops reading.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// The most bytes that one read takes.
const READ_BYTES: usize = 64 << 10;

/// The time for the broker to answer CONNECT and all subscriptions.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);

/// The wait before the client asks again for the subscriptions that the broker has refused.
const ASK_AGAIN_DELAY: Duration = Duration::from_secs(60);

/// The interval at which the age of the oldest message is exported.
const TICK: Duration = Duration::from_secs(1);

/// The time for a stop to acknowledge the messages on their way into the log.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The client of one broker.
pub(super) struct Client {
    options: Options,
    name: Arc<str>,
    subscriptions: SubscriptionsFile,
    intake: Intake,
    /// The name of the client in log lines.
    sender: Sender,
    shutdown: CancellationToken,
    counters: Counters,
}

/// The session at the broker, as the last connection left it.
struct Past {
    had_session: bool,
    /// The expiry that the broker sets for the session, if it is shorter than `mqtt.session_expiry`.
    shorter_expiry: Option<Duration>,
}

/// The metrics of one client.
struct Counters {
    connected: Gauge,
    messages: Counter,
    unacknowledged: Gauge,
    oldest_seconds: Gauge,
    sessions_lost: Counter,
}

/// A connection to the broker.
struct Connection {
    reader: ReadHalf<Box<dyn Stream>>,
    writer: WriteHalf<Box<dyn Stream>>,
    session: Session,
    /// Whether the last write must be flushed: TLS may still hold bytes of it.
    must_flush: bool,
    /// The deadline of the broker's answers (`HANDSHAKE_TIMEOUT`); `None` after them.
    answer_by: Option<Instant>,
    /// The deadline for the broker to read some of the waiting answers.
    write_by: Option<Instant>,
    /// Whether the broker grants the quality of service that the client asks for.
    all_granted: bool,
    /// The filters that the broker refuses, each with its quality of service.
    refused: Vec<(String, u8)>,
    /// When to ask for them again.
    ask_at: Option<Instant>,
}

/// The event that ends a turn of the loop in [`Client::serve`].
enum Turn {
    Stop,
    Durable(Box<Result<Receipt, IngestError>>),
    Read(usize),
    Written(usize),
    Flushed,
    Timer,
}

impl Client {
    pub(super) fn new(options: Options, intake: Intake, shutdown: CancellationToken) -> Self {
        let (name, metrics) = (options.broker.client_id.as_str(), &intake.metrics);
        let counters = Counters {
            connected: metrics.mqtt_connected.of_configured(name),
            messages: metrics.mqtt_messages_total.of_configured(name),
            unacknowledged: metrics.mqtt_unacknowledged.of_configured(name),
            oldest_seconds: metrics.mqtt_oldest_unacknowledged_seconds.of_configured(name),
            sessions_lost: metrics.mqtt_sessions_lost_total.of_configured(name),
        };
        counters.connected.set(0.0);
        let name: Arc<str> = name.into();
        let sender = Sender::Named(Arc::clone(&name));
        let subscriptions = SubscriptionsFile::new(options.subscriptions_file.clone());
        Self { options, name, subscriptions, intake, sender, shutdown, counters }
    }

    /// Connects, and connects again after each failure, until the shutdown.
    pub(super) async fn run(self) {
        let (mut reconnect, mut failures) = (Reconnect::new(), 0_u64);
        let mut is_v5 = self.options.broker.version != MqttVersion::V3;
        let mut past = Past { had_session: self.subscriptions.exists(), shorter_expiry: None };
        while !self.shutdown.is_cancelled() {
            let began = Instant::now();
            let (mut was_accepted, mut waiting) = (false, Queue::default());
            let result = tokio::select! {
                opened = self.options.connector.connect() => match opened {
                    Ok(stream) => {
                        self.serve(stream, is_v5, &mut waiting, &mut past, &mut was_accepted).await
                    }
                    Err(error) => Err(error),
                },
                () = self.shutdown.cancelled() => Ok(()),
            };
            self.counters.connected.set(0.0);
            self.counters.unacknowledged.set(0.0);
            self.counters.oldest_seconds.set(0.0);
            let Err(error) = result else { break };
            waiting.give_up(&self.intake.metrics);
            let may_speak_v3 = is_v5 && self.options.broker.version == MqttVersion::Auto;
            if may_speak_v3 && !was_accepted && error.may_be_of_version() {
                tracing::info!(broker = self.options.connector.url(), "the broker does not take MQTT 5; trying 3.1.1");
                is_v5 = false;
                continue;
            }
            failures = if was_accepted { 1 } else { failures + 1 };
            let wait = reconnect.wait_after(began.elapsed(), matches!(error, MqttError::TakenOver));
            self.intake.metrics.mqtt_disconnects_total.with(error.code()).increment(1);
            self.log_failure(&error, failures, wait);
            tokio::select! {
                () = sleep(wait) => {}
                () = self.shutdown.cancelled() => {}
            }
        }
    }

    /// Logs a failure: as a warning, or as a debug line if it is one of many.
    ///
    /// In a row of failures, the 1st, 2nd, 4th, 8th and so on is a warning, and so is each takeover of the
    /// session by another client.
    fn log_failure(&self, error: &MqttError, failures: u64, wait: Duration) {
        let (broker, client_id, wait_ms) = (self.options.connector.url(), &*self.name, wait.as_millis() as u64);
        if failures.is_power_of_two() || matches!(error, MqttError::TakenOver) {
            tracing::warn!(
                broker,
                client_id,
                %error,
                wait_ms,
                failures,
                "no connection to the MQTT broker; trying again"
            );
        } else {
            tracing::debug!(broker, client_id, %error, wait_ms, "no connection to the MQTT broker; trying again");
        }
    }

    /// Serves one connection to its end. `Ok` means that the service stops.
    ///
    /// At the end, `waiting` has the messages that are not in the log.
    async fn serve(
        &self,
        stream: Box<dyn Stream>,
        is_v5: bool,
        waiting: &mut Queue,
        past: &mut Past,
        was_accepted: &mut bool,
    ) -> Result<(), MqttError> {
        let session = Session::open(&self.options.broker, &self.options.broker.client_id, is_v5, false)?;
        let mut connection = Connection::new(stream, session);
        connection.answer_by = Some(Instant::now() + HANDSHAKE_TIMEOUT);
        let mut buffer = vec![0; READ_BYTES];
        let mut tick = Instant::now();
        loop {
            self.submit(waiting);
            if tick <= Instant::now() {
                let oldest = waiting.oldest().map_or(0.0, |oldest| oldest.elapsed().as_secs_f64());
                self.counters.oldest_seconds.set(oldest);
                tick = Instant::now() + TICK;
            }
            match Self::turn(&self.shutdown, &mut connection, waiting, &mut buffer, tick).await? {
                Turn::Stop => {
                    let stopped = timeout(STOP_TIMEOUT, self.stop(&mut connection, waiting)).await;
                    return stopped.unwrap_or(Ok(()));
                }
                Turn::Durable(result) => self.settle(*result, waiting, &mut connection.session)?,
                Turn::Read(0) => {
                    let why = "closed the connection; if that repeats, another client may have the same client ID: \
                               each needs its own mqtt.client_id";
                    return Err(MqttError::Broker(why.to_owned()));
                }
                Turn::Read(bytes) => {
                    for received in connection.session.receive(&buffer[..bytes]) {
                        match received {
                            Received::Connected { has_session, session_expiry } => {
                                *was_accepted = true;
                                self.note_expiry(session_expiry, past);
                                self.connected(&mut connection.session, has_session, &mut past.had_session).await?;
                            }
                            Received::Granted(answers) => self.granted(answers, &mut connection).await,
                            Received::Message(message) => self.take(message, waiting),
                            Received::Ended(error) => return Err(error),
                        }
                    }
                }
                Turn::Written(bytes) => {
                    connection.session.out.drain(..bytes);
                    (connection.must_flush, connection.write_by) = (true, None);
                }
                Turn::Flushed => connection.must_flush = false,
                Turn::Timer => connection.fire_timers()?,
            }
        }
    }

    /// Waits for the next event of the connection.
    async fn turn(
        shutdown: &CancellationToken,
        connection: &mut Connection,
        waiting: &mut Queue,
        buffer: &mut [u8],
        tick: Instant,
    ) -> Result<Turn, MqttError> {
        let has_room = waiting.bytes() < MAX_WAITING_BYTES && connection.session.out.len() < MAX_ANSWER_BYTES;
        if !has_room {
            connection.pause();
        }
        if !connection.session.out.is_empty() {
            connection.write_by.get_or_insert(Instant::now() + PONG_TIMEOUT);
        }
        let Connection { reader, writer, session, must_flush, answer_by, write_by, ask_at, .. } = connection;
        let times = [session.next_timer(), *answer_by, *write_by, *ask_at, waiting.try_at()];
        let wake_at = times.into_iter().flatten().fold(tick, Instant::min);
        let (is_idle, must_write) = (!waiting.is_submitted(), !session.out.is_empty());
        let must_flush = *must_flush && !must_write;
        tokio::select! {
            biased;
            () = shutdown.cancelled() => Ok(Turn::Stop),
            result = waiting.durable(), if !is_idle => Ok(Turn::Durable(Box::new(result))),
            sent = send(writer, &session.out), if must_write || must_flush => sent,
            read = reader.read(buffer), if has_room => Ok(Turn::Read(read?)),
            () = sleep_until(wake_at.into()) => Ok(Turn::Timer),
        }
    }

    /// Subscribes to all topics, and ends the subscriptions of an older configuration.
    async fn connected(
        &self,
        session: &mut Session,
        has_session: bool,
        had_session: &mut bool,
    ) -> Result<(), MqttError> {
        let (broker, client_id) = (self.options.connector.url(), &*self.name);
        if has_session {
            tracing::info!(broker, client_id, "connected to the MQTT broker, which has kept the session");
        } else if *had_session {
            self.counters.sessions_lost.increment(1);
            tracing::warn!(
                broker,
                client_id,
                "the MQTT broker has lost the session: messages that it took since the last connection are lost; \
                 subscribing again"
            );
        } else {
            tracing::info!(broker, client_id, "connected to the MQTT broker with a new session");
        }
        *had_session = true;
        let wanted = self.wanted();
        let filters: Vec<String> = wanted.iter().map(|(filter, _)| filter.clone()).collect();
        let subscriptions = self.subscriptions.clone();
        let surplus = tokio::task::spawn_blocking(move || subscriptions.surplus(&filters)).await.unwrap_or_default();
        let surplus = if has_session { surplus } else { Vec::new() };
        for filter in &surplus {
            tracing::info!(broker, client_id, filter, "ending a subscription that the configuration no longer has");
        }
        session.subscribe(&wanted, &surplus)
    }

    /// Warns of a session that the broker keeps for a shorter time than the client asks for.
    ///
    /// It does not repeat a warning until the broker sets another time.
    fn note_expiry(&self, session_expiry: Option<Duration>, past: &mut Past) {
        let asked = self.options.broker.session_expiry;
        let shorter_expiry = session_expiry.filter(|expiry| expiry.as_secs() < asked.as_duration().as_secs());
        if let Some(expiry) = shorter_expiry
            && past.shorter_expiry != shorter_expiry
        {
            tracing::warn!(
                broker = self.options.connector.url(),
                client_id = &*self.name,
                expiry_seconds = expiry.as_secs(),
                %asked,
                "the MQTT broker keeps the session for a shorter time than mqtt.session_expiry: messages of a longer \
                 absence are lost; raise the broker's limit"
            );
        }
        past.shorter_expiry = shorter_expiry;
    }

    fn wanted(&self) -> Vec<(String, u8)> {
        self.options.topics.iter().map(|topic| (topic.template.filter(), topic.qos)).collect()
    }

    async fn granted(&self, answers: Vec<(String, Result<u8, String>)>, connection: &mut Connection) {
        let wanted = self.wanted();
        connection.note_answers(answers, &wanted, (self.options.connector.url(), &*self.name));
        if !connection.session.is_subscribed() {
            return;
        }
        connection.answer_by = None;
        let is_complete = connection.all_granted && connection.refused.is_empty();
        self.counters.connected.set(f64::from(u8::from(is_complete)));
        let subscriptions = self.subscriptions.clone();
        let filters: Vec<String> = wanted.into_iter().map(|(filter, _)| filter).collect();
        let noted = tokio::task::spawn_blocking(move || subscriptions.note(&filters)).await;
        noted.unwrap_or_else(|error| tracing::warn!(%error, "the topics were not noted"));
    }

    /// Appends a message to the queue.
    fn take(&self, message: Message, waiting: &mut Queue) {
        self.counters.messages.increment(1);
        waiting.take(message, &self.intake);
        self.counters.unacknowledged.set(f64::from(waiting.unacknowledged()));
    }

    /// Acknowledges the messages of the submitted record, or lets them wait again.
    ///
    /// They wait if `result` is an error, which means that the log has refused the record.
    fn settle(
        &self,
        result: Result<Receipt, IngestError>,
        waiting: &mut Queue,
        session: &mut Session,
    ) -> Result<(), MqttError> {
        let acknowledge = |receipt, outcome, _: Option<&str>| session.acknowledge(receipt, outcome);
        waiting.settle(result, &self.intake, &self.sender, acknowledge)?;
        self.counters.unacknowledged.set(f64::from(waiting.unacknowledged()));
        Ok(())
    }

    /// Submits waiting messages to the log. A broker has no quota.
    fn submit(&self, waiting: &mut Queue) {
        let author = Author { scope: &self.options.scope, quota: Quota::unlimited(), waits_for_rate: false };
        waiting.submit(&self.intake, author);
    }

    /// Stores and acknowledges the messages that have arrived, and disconnects.
    async fn stop(&self, connection: &mut Connection, waiting: &mut Queue) -> Result<(), MqttError> {
        let session = &mut connection.session;
        loop {
            self.submit(waiting);
            if !waiting.is_submitted() {
                break;
            }
            let result = waiting.durable().await;
            self.settle(result, waiting, session)?;
        }
        session.disconnect();
        connection.writer.write_all(&session.out).await?;
        connection.writer.shutdown().await?;
        Ok(())
    }
}

impl Connection {
    fn new(stream: Box<dyn Stream>, session: Session) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let (answer_by, write_by, ask_at) = (None, None, None);
        let (must_flush, all_granted, refused) = (false, true, Vec::new());
        Self { reader, writer, session, must_flush, answer_by, write_by, all_granted, refused, ask_at }
    }

    /// Notes and logs the answers of the broker to subscriptions.
    ///
    /// A refusal is logged as an error once in a connection.
    fn note_answers(
        &mut self,
        answers: Vec<(String, Result<u8, String>)>,
        wanted: &[(String, u8)],
        (broker, client_id): (&str, &str),
    ) {
        for (filter, answer) in answers {
            let asked = wanted.iter().find(|(known, _)| *known == filter).map_or(0, |(_, qos)| *qos);
            let known = self.refused.iter().position(|(known, _)| *known == filter);
            let was_refused = known.map(|place| self.refused.swap_remove(place)).is_some();
            match answer {
                Ok(qos) if qos >= asked && was_refused => {
                    tracing::info!(broker, client_id, filter, "the MQTT broker grants the subscription now");
                }
                Ok(qos) if qos >= asked => {}
                Ok(_) => {
                    self.all_granted = false;
                    tracing::warn!(
                        broker,
                        client_id,
                        filter,
                        "the MQTT broker grants quality of service 0 only: its messages may be lost"
                    );
                }
                Err(why) if was_refused => {
                    tracing::debug!(broker, client_id, filter, why, "the MQTT broker refuses a subscription again");
                    self.refused.push((filter, asked));
                }
                Err(why) => {
                    tracing::error!(
                        broker,
                        client_id,
                        filter,
                        why,
                        "the MQTT broker refuses a subscription; asking for it again each minute"
                    );
                    self.refused.push((filter, asked));
                }
            }
        }
        self.ask_at = (!self.refused.is_empty()).then(|| Instant::now() + ASK_AGAIN_DELAY);
    }

    /// Extends the deadlines of the broker's answers while the client does not read.
    fn pause(&mut self) {
        self.session.pause();
        self.answer_by = self.answer_by.map(|_| Instant::now() + HANDSHAKE_TIMEOUT);
    }

    /// Fails if a deadline has passed. Sends subscriptions and a ping that are due.
    fn fire_timers(&mut self) -> Result<(), MqttError> {
        let is_over = |at: Option<Instant>| at.is_some_and(|at| at <= Instant::now());
        if is_over(self.answer_by) {
            return Err(MqttError::Timeout("answer the connection or the subscriptions"));
        }
        if is_over(self.write_by) {
            return Err(MqttError::Timeout("read its acknowledgements"));
        }
        if is_over(self.ask_at) {
            self.ask_at = None;
            self.answer_by = Some(Instant::now() + HANDSHAKE_TIMEOUT);
            self.session.subscribe(&self.refused, &[])?;
        }
        self.session.fire_timers()
    }
}

/// Writes some of `bytes`. If there are none, flushes the earlier writes.
async fn send(writer: &mut WriteHalf<Box<dyn Stream>>, bytes: &[u8]) -> Result<Turn, MqttError> {
    if bytes.is_empty() {
        writer.flush().await?;
        return Ok(Turn::Flushed);
    }
    match writer.write(bytes).await? {
        0 => Err(MqttError::Broker("closed the connection".to_owned())),
        written => Ok(Turn::Written(written)),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::io::DuplexStream;

    use super::*;

    /// A connection, and the side of the broker, which takes one byte until it reads.
    fn connection() -> (Connection, DuplexStream) {
        let broker: crate::config::Mqtt = toml::from_str("url = 'mqtt://broker'\nclient_id = 'c'").unwrap();
        let session = Session::open(&broker, "c", true, false).unwrap();
        let (stream, broker) = tokio::io::duplex(1);
        (Connection::new(Box::new(stream), session), broker)
    }

    /// Takes the SUBSCRIBE that waits, and answers it with these codes.
    fn answer(connection: &mut Connection, wanted: &[(String, u8)], codes: &[u8]) {
        let subscribe = std::mem::take(&mut connection.session.out);
        let suback = [&[0x90, 3 + codes.len() as u8, subscribe[2], subscribe[3], 0][..], codes].concat();
        for received in connection.session.receive(&suback) {
            let Received::Granted(answers) = received else { panic!("{received:?}") };
            connection.note_answers(answers, wanted, ("mqtt://broker", "c"));
        }
    }

    /// An operator may grant the right to a topic while the client is connected.
    #[test]
    fn the_client_asks_again_for_a_refused_subscription_until_it_is_granted() {
        let (mut connection, _broker) = connection();
        connection.session.receive(&[0x20, 3, 0, 0, 0]);
        connection.session.out.clear();
        let wanted = [("a/#".to_owned(), 1), ("b".to_owned(), 1)];
        connection.session.subscribe(&wanted, &[]).unwrap();
        answer(&mut connection, &wanted, &[1, 0x87]);
        for code in [0x87, 1] {
            assert_eq!((&connection.refused[..], connection.all_granted), (&wanted[1..], true));
            assert!(connection.ask_at.is_some_and(|at| at > Instant::now()));
            connection.ask_at = Some(Instant::now());
            connection.fire_timers().unwrap();
            assert!(connection.answer_by.take().is_some(), "the broker has to answer in time");
            let subscribe = &connection.session.out;
            assert!(subscribe.len() == 9 && subscribe[5..8] == [0, 1, b'b'], "only the refused one: {subscribe:?}");
            answer(&mut connection, &wanted, &[code]);
        }
        assert!(connection.refused.is_empty() && connection.ask_at.is_none() && connection.all_granted);
    }

    /// The answers to a broker that sends and does not read would grow without end.
    #[tokio::test]
    async fn the_client_stops_reading_and_ends_if_the_broker_does_not_read() {
        let (mut connection, mut broker) = connection();
        broker.write_all(&[0xd0]).await.unwrap();
        connection.session.out = vec![0; MAX_ANSWER_BYTES];
        let (shutdown, mut waiting, mut buffer) = (CancellationToken::new(), Queue::default(), [0; 8]);
        let tick = Instant::now() + Duration::from_secs(3_600);
        let turn = Client::turn(&shutdown, &mut connection, &mut waiting, &mut buffer, tick).await;
        assert!(matches!(turn, Ok(Turn::Written(1))));
        let turn = Client::turn(&shutdown, &mut connection, &mut waiting, &mut buffer, tick).now_or_never();
        assert!(turn.is_none(), "it reads on, although the broker has no room for answers");
        let deadline = connection.write_by.replace(Instant::now());
        assert!(deadline.is_some_and(|at| at > Instant::now()));
        let turn = Client::turn(&shutdown, &mut connection, &mut waiting, &mut buffer, tick).await;
        assert!(matches!(turn, Ok(Turn::Timer)));
        assert!(matches!(connection.fire_timers(), Err(MqttError::Timeout(_))));
    }

    /// The answers may wait behind messages that the client has no room for.
    #[tokio::test]
    async fn the_broker_has_more_time_for_its_answers_while_the_client_does_not_read() {
        let (mut connection, _broker) = connection();
        let soon = Instant::now() + HANDSHAKE_TIMEOUT / 2;
        connection.answer_by = Some(soon);
        connection.pause();
        assert!(connection.answer_by.is_some_and(|at| at > soon));
        connection.answer_by = None;
        connection.pause();
        assert_eq!(connection.answer_by, None, "the broker has answered");
    }
}
