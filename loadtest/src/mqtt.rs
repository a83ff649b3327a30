//! Publishes messages over MQTT 5 with quality of service 1.
//!
//! Each connection has up to `window` unacknowledged messages. The password is the token in the variable
//! `TIDEGAUGE_TOKEN`, if there is one. The topic is `loadtest`; the payloads name their devices.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;

use crate::http::{self, OfConnection, Sending, Sent};
use crate::latency;

/// The topic of all messages.
const TOPIC: &str = "loadtest";

/// Publishes messages until the end. Adds the acknowledged readings to `progress`.
///
/// # Errors
/// If a message is refused, or a connection breaks.
pub(crate) async fn send(sending: Sending, window: u16, progress: Arc<AtomicU64>) -> anyhow::Result<Sent> {
    let (start, sending) = (Instant::now(), Arc::new(sending));
    let connection = |nth| connection(Arc::clone(&sending), nth, window, start, Arc::clone(&progress));
    http::join(sending.connections, start, connection).await
}

/// The unacknowledged messages: the readings of each, and when it was sent.
type Unacknowledged = VecDeque<(usize, Instant)>;

async fn connection(
    sending: Arc<Sending>,
    nth: u64,
    window: u16,
    start: Instant,
    progress: Arc<AtomicU64>,
) -> anyhow::Result<OfConnection> {
    let share = sending.workload.share(nth, sending.connections);
    let stream = TcpStream::connect(&sending.address).await;
    let stream = stream.with_context(|| format!("connect to {}", sending.address))?;
    stream.set_nodelay(true)?;
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    writer.write_all(&connect(nth)).await?;
    let answer = packet(&mut reader).await?;
    ensure!(answer.get(1) == Some(&0), "the server refuses the connection: {answer:?}");
    let mut of = OfConnection { nth, messages: 0, readings: 0, again: 0, latencies: latency::histogram() };
    let (mut readings, mut body, mut packets) = (Vec::new(), String::new(), Vec::new());
    let (mut waiting, mut published) = (Unacknowledged::new(), 0_u64);
    loop {
        packets.clear();
        while waiting.len() < usize::from(window) && sending.until.goes_on(start, published) {
            share.message(published, &mut readings);
            sending.format.write(&mut body, &readings);
            publish(&mut packets, (published % 65_535 + 1) as u16, &body);
            waiting.push_back((readings.len(), Instant::now()));
            published += 1;
        }
        writer.write_all(&packets).await?;
        if waiting.is_empty() {
            return Ok(of);
        }
        loop {
            acknowledged(&mut reader, &mut waiting, &mut of, &progress).await?;
            // Reads all acknowledgements that have arrived, and then writes as many messages at once.
            if waiting.is_empty() || reader.buffer().is_empty() {
                break;
            }
        }
    }
}

/// Reads the acknowledgement of the oldest message.
async fn acknowledged(
    reader: &mut BufReader<OwnedReadHalf>,
    waiting: &mut Unacknowledged,
    of: &mut OfConnection,
    progress: &AtomicU64,
) -> anyhow::Result<()> {
    let answer = packet(reader).await?;
    let id = (of.messages % 65_535 + 1) as u16;
    ensure!(answer == id.to_be_bytes(), "the acknowledgement of message {id} is {answer:?}");
    let (readings, sent_at) = waiting.pop_front().context("an acknowledgement without a message")?;
    of.latencies.record(latency::micros(sent_at.elapsed()))?;
    of.messages += 1;
    of.readings += readings as u64;
    progress.fetch_add(readings as u64, Ordering::Relaxed);
    Ok(())
}

/// Reads the content of the next packet, which has fewer than 128 bytes.
async fn packet(reader: &mut BufReader<OwnedReadHalf>) -> anyhow::Result<Vec<u8>> {
    let mut head = [0; 2];
    reader.read_exact(&mut head).await.context("the server closed the connection")?;
    ensure!(head[1] < 0x80 && [2, 4].contains(&(head[0] >> 4)), "the server ends the connection: {head:?}");
    let mut content = vec![0; usize::from(head[1])];
    reader.read_exact(&mut content).await?;
    Ok(content)
}

fn connect(nth: u64) -> Vec<u8> {
    let token = std::env::var("TIDEGAUGE_TOKEN").ok();
    let flags = if token.is_some() { 0xc2 } else { 2 };
    let mut body = [text("MQTT"), vec![5, flags, 0, 0, 0], text(&format!("loadtest-{nth}"))].concat();
    if let Some(token) = token {
        body.extend([text("loadtest"), text(&token)].concat());
    }
    let mut packet = Vec::new();
    put(&mut packet, 0x10, &[&body]);
    packet
}

fn publish(packets: &mut Vec<u8>, id: u16, payload: &str) {
    put(packets, 0x32, &[&text(TOPIC), &id.to_be_bytes(), &[0], payload.as_bytes()]);
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
}

fn put(packets: &mut Vec<u8>, first: u8, parts: &[&[u8]]) {
    packets.push(first);
    let mut length: usize = parts.iter().map(|part| part.len()).sum();
    loop {
        packets.push((length % 128) as u8 | if length >= 128 { 0x80 } else { 0 });
        length /= 128;
        if length == 0 {
            break;
        }
    }
    for part in parts {
        packets.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::format::Format;
    use crate::http::Until;
    use crate::target::Target;
    use crate::workload::{Kind, Values, Workload};

    /// Publishes ten messages to a server that answers each with these bytes behind its packet ID.
    async fn published(reason: &'static [u8]) -> anyhow::Result<Sent> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let (reader, mut writer) = stream.into_split();
            let mut reader = BufReader::new(reader);
            loop {
                let mut head = [0; 2];
                if reader.read_exact(&mut head).await.is_err() {
                    return;
                }
                let mut body = vec![0; usize::from(head[1])];
                reader.read_exact(&mut body).await.unwrap();
                let answer = match head[0] {
                    0x10 => vec![0x20, 3, 0, 0, 0],
                    _ => [&[0x40, 2 + reason.len() as u8, body[10], body[11]], reason].concat(),
                };
                writer.write_all(&answer).await.unwrap();
            }
        });
        let workload = Workload {
            kind: Kind::Fleet,
            first_device: 0,
            devices: 10,
            step_ms: 1_000,
            batch: 1,
            late_percent: 0,
            resent_percent: 0,
            first_ms: 0,
            values: Values::Decimal,
        };
        let (target, format, until) = (Target::Tidegauge, Format::Json, Until::Messages(10));
        let sending = Sending { address, target, format, workload, connections: 1, rate: None, until };
        send(sending, 3, Arc::new(AtomicU64::new(0))).await
    }

    #[tokio::test]
    async fn each_message_is_acknowledged_once() {
        let sent = published(&[]).await.unwrap();
        assert_eq!((sent.messages, sent.readings, sent.latencies.len()), (vec![10], 10, 10));
    }

    #[tokio::test]
    async fn a_message_that_is_not_stored_ends_the_load() {
        let error = published(&[0x99, 0]).await.unwrap_err();
        assert!(error.to_string().starts_with("the acknowledgement of message 1 is"), "{error}");
    }
}
