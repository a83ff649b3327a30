//! Reads and writes `OP_MSG` messages, from clients and to shards.
//!
//! Format: <https://www.mongodb.com/docs/manual/reference/mongodb-wire-protocol/#op_msg>. Messages of clients
//! may have document sequences (kind 1) and a checksum, which is ignored; sent messages have neither.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use bson::{Bson, Document, doc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const OP_MSG: i32 = 2013;
const HEADER_BYTES: usize = 16;
const MESSAGE_MAX_BYTES: usize = 48_000_000;
const CHECKSUM_PRESENT: u32 = 1;
const MORE_TO_COME: u32 = 1 << 1;

/// The error code if a shard cannot be reached or does not answer.
const HOST_UNREACHABLE: i32 = 6;

/// A message that was read.
pub(super) struct Request {
    pub(super) id: i32,
    pub(super) wants_reply: bool,
    /// The command, with its document sequences as arrays.
    pub(super) command: Document,
}

/// Reads a message. After an error the connection is unusable.
pub(super) async fn read(stream: &mut TcpStream) -> Result<Request> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).await?;
    let field = |at: usize| i32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
    let length = usize::try_from(field(0)).unwrap_or(0);
    if field(12) != OP_MSG || !(HEADER_BYTES + 5..=MESSAGE_MAX_BYTES).contains(&length) {
        return Err(bad("not an OP_MSG"));
    }
    let mut body = vec![0; length - HEADER_BYTES];
    stream.read_exact(&mut body).await?;
    let mut rest = &body[..];
    let flags = take_u32(&mut rest)?;
    if flags & CHECKSUM_PRESENT != 0 {
        rest = rest.len().checked_sub(4).map(|end| &rest[..end]).ok_or_else(|| bad("no checksum"))?;
    }
    Ok(Request { id: field(4), wants_reply: flags & MORE_TO_COME == 0, command: sections(rest)? })
}

/// Writes a message. It is the reply to the message with the ID `to`; 0 if it is no reply.
pub(super) async fn write(stream: &mut TcpStream, to: i32, document: &Document) -> Result<()> {
    let body = bson::serialize_to_vec(document).map_err(|error| bad(&error.to_string()))?;
    let length = i32::try_from(HEADER_BYTES + 5 + body.len()).map_err(|_| bad("too long"))?;
    let mut message = Vec::with_capacity(HEADER_BYTES + 5 + body.len());
    for field in [length, 1, to, OP_MSG, 0] {
        message.extend(field.to_le_bytes());
    }
    message.push(0);
    message.extend(body);
    stream.write_all(&message).await
}

/// The body of a message, with each document sequence as an array field.
fn sections(mut rest: &[u8]) -> Result<Document> {
    let (mut body, mut sequences) = (Document::new(), Document::new());
    while let Some((kind, after)) = rest.split_first() {
        rest = after;
        match kind {
            0 => body = take_document(&mut rest)?,
            1 => {
                let size = take_u32(&mut rest)? as usize;
                let (mut sequence, after) = size
                    .checked_sub(4)
                    .and_then(|size| rest.split_at_checked(size))
                    .ok_or_else(|| bad("a sequence is cut off"))?;
                rest = after;
                let end = sequence.iter().position(|byte| *byte == 0).ok_or_else(|| bad("no identifier"))?;
                let name = String::from_utf8_lossy(&sequence[..end]).into_owned();
                sequence = &sequence[end + 1..];
                let mut documents = Vec::new();
                while !sequence.is_empty() {
                    documents.push(Bson::Document(take_document(&mut sequence)?));
                }
                sequences.insert(name, documents);
            }
            _ => return Err(bad("a section of another kind")),
        }
    }
    body.extend(sequences);
    Ok(body)
}

fn take_document(rest: &mut &[u8]) -> Result<Document> {
    Document::from_reader(rest).map_err(|error| bad(&error.to_string()))
}

fn take_u32(rest: &mut &[u8]) -> Result<u32> {
    let (bytes, after) = rest.split_first_chunk().ok_or_else(|| bad("cut off"))?;
    *rest = after;
    Ok(u32::from_le_bytes(*bytes))
}

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

/// Connections to the shards.
pub(super) struct Shards {
    shards: Vec<Shard>,
}

struct Shard {
    address: SocketAddr,
    idle: Mutex<Vec<TcpStream>>,
}

impl Shards {
    pub(super) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self { shards: addresses.into_iter().map(|address| Shard { address, idle: Mutex::default() }).collect() }
    }

    /// Sends a command to a shard. Returns its reply, without the fields that describe only that shard.
    pub(super) async fn call(&self, shard: usize, mut command: Document) -> Document {
        // The shards are separate replica sets: each would refuse the other's cluster time.
        command.remove("$clusterTime");
        if let Ok(concern) = command.get_document_mut("readConcern") {
            concern.remove("afterClusterTime");
        }
        let mut reply = self.exchange(&self.shards[shard], &command).await.unwrap_or_else(|error| {
            let errmsg = format!("shard {shard}: {error}");
            doc! { "ok": 0.0, "code": HOST_UNREACHABLE, "codeName": "HostUnreachable", "errmsg": errmsg }
        });
        for field in ["$clusterTime", "operationTime", "topologyVersion", "electionId", "opTime"] {
            reply.remove(field);
        }
        reply
    }

    async fn exchange(&self, shard: &Shard, command: &Document) -> Result<Document> {
        let idle = shard.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut stream = match idle {
            Some(stream) => stream,
            None => TcpStream::connect(shard.address).await?,
        };
        write(&mut stream, 0, command).await?;
        let reply = read(&mut stream).await?.command;
        shard.idle.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        Ok(reply)
    }

    /// Closes idle connections, which belong to the runtime that opened them.
    pub(super) fn hang_up(&self) {
        for shard in &self.shards {
            shard.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }
}
