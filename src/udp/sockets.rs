//! Sockets that share an address, and their receive buffers.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage, setsockopt, sockopt};

/// Binds `count` sockets to one address.
///
/// Also returns the bytes of the receive buffer that the kernel grants to each.
pub(super) fn bind(listen: SocketAddr, count: usize, buffer_bytes: usize) -> io::Result<(Vec<UdpSocket>, usize)> {
    // The first socket is bound without SO_REUSEPORT, so that the bind fails if another process uses the
    // address. Otherwise the kernel would distribute datagrams to that process too.
    let (first, granted_bytes) = open(listen, buffer_bytes)?;
    bind_to(&first, listen)?;
    setsockopt(&first, sockopt::ReusePort, &true)?;
    let first = UdpSocket::from(first);
    let address = first.local_addr()?;
    let mut sockets = vec![first];
    while sockets.len() < count {
        let (next, _) = open(address, buffer_bytes)?;
        setsockopt(&next, sockopt::ReusePort, &true)?;
        bind_to(&next, address)?;
        sockets.push(next.into());
    }
    Ok((sockets, granted_bytes))
}

/// The advice for the operator if the kernel grants a smaller buffer than requested.
pub(super) fn advice(asked_bytes: usize, granted_bytes: usize) -> Option<String> {
    (granted_bytes < asked_bytes).then(|| {
        format!(
            "udp.receive_buffer is {asked_bytes} bytes, but the kernel grants {granted_bytes}, so it may drop bursts: \
             run `sysctl -w net.core.rmem_max={asked_bytes}` and restart"
        )
    })
}

fn open(address: SocketAddr, buffer_bytes: usize) -> io::Result<(OwnedFd, usize)> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket::socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let granted_bytes = ask_for_buffer(&socket, buffer_bytes)?;
    Ok((socket, granted_bytes))
}

/// Asks the kernel for a receive buffer, unless the socket has at least this much.
///
/// Another process may have made the socket, with the right to larger buffers. Returns the bytes of the
/// buffer.
pub(super) fn ensure_buffer(socket: &impl AsFd, buffer_bytes: usize) -> io::Result<usize> {
    let has_bytes = buffer_of(socket)?;
    if has_bytes < buffer_bytes { ask_for_buffer(socket, buffer_bytes) } else { Ok(has_bytes) }
}

/// Asks the kernel for a receive buffer. Returns the bytes that it grants.
fn ask_for_buffer(socket: &impl AsFd, buffer_bytes: usize) -> io::Result<usize> {
    // The system's limit does not apply to processes with the capability CAP_NET_ADMIN.
    setsockopt(socket, sockopt::RcvBufForce, &buffer_bytes)
        .or_else(|_| setsockopt(socket, sockopt::RcvBuf, &buffer_bytes))?;
    buffer_of(socket)
}

fn buffer_of(socket: &impl AsFd) -> io::Result<usize> {
    // The kernel doubles the size for its own bookkeeping, see socket(7).
    Ok(socket::getsockopt(socket, sockopt::RcvBuf)? / 2)
}

fn bind_to(socket: &OwnedFd, address: SocketAddr) -> io::Result<()> {
    Ok(socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    #[test]
    fn sockets_share_one_address_with_each_other_only() {
        let (sockets, granted_bytes) = bind(ANY, 3, 64 << 10).expect("a free port");
        let address = sockets[0].local_addr().expect("bound");
        assert!(sockets.iter().all(|socket| socket.local_addr().expect("bound") == address), "{sockets:?}");
        assert_eq!(granted_bytes, 64 << 10);
        assert_eq!(bind(address, 1, 64 << 10).expect_err("in use").kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn a_larger_buffer_that_a_socket_was_passed_with_stays() {
        let (sockets, granted_bytes) = bind(ANY, 1, 128 << 10).expect("a free port");
        assert_eq!(ensure_buffer(&sockets[0], 64 << 10).expect("an open socket"), granted_bytes);
        assert_eq!(ensure_buffer(&sockets[0], granted_bytes + 1_024).expect("an open socket"), granted_bytes + 1_024);
    }

    #[test]
    fn the_kernel_distributes_senders_over_the_sockets() {
        let (sockets, _) = bind(ANY, 2, 64 << 10).expect("a free port");
        let address = sockets[0].local_addr().expect("bound");
        for _ in 0..64 {
            let sender = UdpSocket::bind(ANY).expect("a free port");
            sender.send_to(b"x", address).expect("sent");
        }
        for socket in sockets {
            socket.set_nonblocking(true).expect("a socket");
            socket.recv(&mut [0]).expect("each has received a datagram");
        }
    }

    #[test]
    fn the_advice_names_the_sysctl_and_only_if_needed() {
        assert_eq!(advice(100, 100), None);
        assert!(advice(8_388_608, 212_992).expect("advice").contains("sysctl -w net.core.rmem_max=8388608"));
    }
}
