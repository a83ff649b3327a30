//! Receives many datagrams of a socket with one system call.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, MultiHeaders, RecvMsg, SockaddrStorage, recvmmsg};

/// The most datagrams that one call receives.
const MAX_DATAGRAMS: usize = 128;

/// The most bytes that one call receives, unless a single datagram may be larger.
///
/// The names of metrics in so many bytes always fit into a record of the log. So no reading is rejected
/// because of other readings in its batch, if `log.max_bytes` is above 2 MiB.
const MAX_BYTES: usize = 256 << 10;

/// A socket and the datagrams of the last call.
pub(super) struct Inbox<'s> {
    socket: &'s UdpSocket,
    headers: MultiHeaders<SockaddrStorage>,
    /// The memory of the datagrams: slots of `max_datagram_bytes` each.
    slots: Vec<u8>,
    max_datagram_bytes: usize,
    arrived: Vec<Arrived>,
}

/// The size and the sender of the datagram in a slot.
#[derive(Debug, Clone, Copy)]
struct Arrived {
    bytes: usize,
    from: Option<SocketAddr>,
}

/// A datagram of the last call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Datagram<'i> {
    /// The size of the datagram, also if it did not fit into its slot.
    pub(super) bytes: usize,
    /// The content; `None` if the datagram was larger than allowed.
    pub(super) content: Option<&'i [u8]>,
    pub(super) from: Option<SocketAddr>,
}

impl<'s> Inbox<'s> {
    pub(super) fn new(socket: &'s UdpSocket, max_datagram_bytes: usize) -> Self {
        let slots = (MAX_BYTES / max_datagram_bytes).clamp(1, MAX_DATAGRAMS);
        Self {
            socket,
            headers: MultiHeaders::preallocate(slots, None),
            slots: vec![0; slots * max_datagram_bytes],
            max_datagram_bytes,
            arrived: Vec::with_capacity(slots),
        }
    }

    /// Replaces the datagrams by those that the kernel has now, without waiting.
    ///
    /// Takes at most [`MAX_DATAGRAMS`], in slots of at most [`MAX_BYTES`] together. Returns whether there are
    /// any.
    pub(super) fn receive(&mut self) -> nix::Result<bool> {
        self.arrived.clear();
        let mut slots: Vec<_> =
            self.slots.chunks_exact_mut(self.max_datagram_bytes).map(|slot| [std::io::IoSliceMut::new(slot)]).collect();
        // With MSG_TRUNC the kernel returns the full size of a datagram that does not fit.
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
        match recvmmsg(self.socket.as_raw_fd(), &mut self.headers, slots.iter_mut(), flags, None) {
            Ok(datagrams) => self.arrived.extend(datagrams.map(|datagram| Arrived::of(&datagram))),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
        Ok(!self.arrived.is_empty())
    }

    /// The datagrams of the last call, in the order of their arrival.
    pub(super) fn datagrams(&self) -> impl ExactSizeIterator<Item = Datagram<'_>> {
        let slots = self.slots.chunks_exact(self.max_datagram_bytes);
        self.arrived.iter().zip(slots).map(|(&Arrived { bytes, from }, slot)| Datagram {
            bytes,
            content: slot.get(..bytes),
            from,
        })
    }

    /// Waits until the kernel has a datagram or the other end of `shutdown` is closed.
    ///
    /// Returns whether that end is closed.
    pub(super) fn wait(&self, shutdown: &UnixStream) -> nix::Result<bool> {
        let socket = PollFd::new(self.socket.as_fd(), PollFlags::POLLIN);
        // `poll` reports a closed end even without flags.
        let mut both = [socket, PollFd::new(shutdown.as_fd(), PollFlags::empty())];
        match poll(&mut both, PollTimeout::NONE) {
            Ok(_) => Ok(both[1].any().unwrap_or(true)),
            Err(Errno::EINTR) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Arrived {
    fn of(datagram: &RecvMsg<'_, '_, SockaddrStorage>) -> Self {
        let from = datagram.address.and_then(|address| {
            let v4 = address.as_sockaddr_in().map(|&v4| SocketAddr::V4(v4.into()));
            v4.or_else(|| address.as_sockaddr_in6().map(|&v6| SocketAddr::V6(v6.into())))
        });
        Self { bytes: datagram.bytes, from }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_arrive_whole_in_order_with_their_senders() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(socket) = UdpSocket::bind(host) else {
                assert!(host.starts_with('['), "every machine has IPv4");
                continue;
            };
            let sender = UdpSocket::bind(host).expect("a free port");
            sender.connect(socket.local_addr().expect("bound")).expect("a local address");
            let sent: Vec<Vec<u8>> = (0..2 * MAX_DATAGRAMS).map(|length| vec![b'x'; length % 65]).collect();
            for datagram in &sent {
                sender.send(datagram).expect("sent");
            }
            let mut inbox = Inbox::new(&socket, 64);
            let (open, other_end) = UnixStream::pair().expect("two ends");
            for sent in sent.chunks(MAX_DATAGRAMS) {
                assert!(!inbox.wait(&open).expect("a socket"));
                assert!(inbox.receive().expect("a socket"));
                assert_eq!(inbox.datagrams().len(), sent.len());
                for (sent, datagram) in sent.iter().zip(inbox.datagrams()) {
                    assert_eq!((datagram.bytes, datagram.content), (sent.len(), Some(&sent[..])));
                    assert_eq!(datagram.from, sender.local_addr().ok());
                }
            }
            assert!(!inbox.receive().expect("a socket"), "all were received");
            assert_eq!(inbox.datagrams().len(), 0);
            drop(other_end);
            assert!(inbox.wait(&open).expect("a socket"), "it waits no longer");
        }
    }

    #[test]
    fn a_datagram_that_is_too_large_has_a_size_but_no_content() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        for bytes in [64, 65, 60_000] {
            socket.send_to(&vec![b'x'; bytes], socket.local_addr().expect("bound")).expect("sent");
        }
        let mut inbox = Inbox::new(&socket, 64);
        assert!(inbox.receive().expect("a socket"));
        let found: Vec<_> = inbox.datagrams().map(|found| (found.bytes, found.content.is_some())).collect();
        assert_eq!(found, [(64, true), (65, false), (60_000, false)]);
    }
}
