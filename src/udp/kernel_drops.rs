//! The datagrams that the kernel dropped, from `/proc/net/udp`.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use metrics::Counter;

/// The interval between reads of `/proc/net/udp`.
const INTERVAL: Duration = Duration::from_secs(1);

/// The shortest time between two warnings.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// Counts the datagrams that the kernel dropped at each socket.
pub(super) struct KernelDrops {
    /// The last count of drops, by the inode of the socket; `None` until a passed socket is first seen.
    ///
    /// The counters of the kernel have 32 bits and wrap around.
    seen: HashMap<u64, Option<u32>>,
    table: &'static str,
    counter: Counter,
    warned_at: Option<Instant>,
}

impl KernelDrops {
    /// Counts the drops of `sockets` into `counter`, also the drops before this call.
    ///
    /// The sockets are of one address family. If they `are_passed`, only later drops count: the kernel keeps
    /// the number for as long as another process holds the sockets, and an earlier start may have counted
    /// them. So drops while this service does not run are not counted.
    pub(super) fn of(sockets: &[UdpSocket], are_passed: bool, counter: Counter) -> io::Result<Self> {
        let is_ipv6 = sockets.iter().any(|socket| socket.local_addr().is_ok_and(|address| address.is_ipv6()));
        let table = if is_ipv6 { "/proc/net/udp6" } else { "/proc/net/udp" };
        let first = (!are_passed).then_some(0);
        let seen = sockets.iter().map(|socket| Ok((inode(socket)?, first))).collect::<io::Result<_>>()?;
        let mut drops = Self { seen, table, counter, warned_at: None };
        drops.update()?;
        Ok(drops)
    }

    /// Counts drops every second, until `/proc/net/udp` cannot be read.
    ///
    /// The caller stops it earlier by dropping the future.
    pub(super) async fn watch(mut self) {
        let mut ticks = tokio::time::interval(INTERVAL);
        loop {
            ticks.tick().await;
            match self.update() {
                Ok(0) => {}
                Ok(dropped) => self.warn(dropped),
                Err(error) => {
                    tracing::warn!(%error, "cannot read /proc/net/udp; drops of datagrams are no longer counted");
                    return;
                }
            }
        }
    }

    /// Counts the drops since the last call, and returns their number.
    fn update(&mut self) -> io::Result<u64> {
        let table = std::fs::read_to_string(self.table)?;
        let mut dropped = 0;
        for (inode, drops) in table.lines().filter_map(inode_and_drops) {
            if let Some(seen) = self.seen.get_mut(&inode) {
                dropped += u64::from(drops.wrapping_sub(seen.unwrap_or(drops)));
                *seen = Some(drops);
            }
        }
        self.counter.increment(dropped);
        Ok(dropped)
    }

    fn warn(&mut self, dropped: u64) {
        if self.warned_at.is_none_or(|warned_at| warned_at.elapsed() >= WARN_INTERVAL) {
            self.warned_at = Some(Instant::now());
            tracing::warn!(
                datagrams = dropped,
                "the kernel dropped datagrams within a second: senders are faster than the log, or their bursts exceed \
                 udp.receive_buffer"
            );
        }
    }
}

fn inode(socket: &UdpSocket) -> io::Result<u64> {
    Ok(File::from(OwnedFd::from(socket.try_clone()?)).metadata()?.ino())
}

/// The inode and the drops of a socket, from a line of `/proc/net/udp`; `None` for the headings. The columns
/// are `sl local remote st tx:rx tr:when retrnsmt uid timeout inode ref pointer drops`.
fn inode_and_drops(line: &str) -> Option<(u64, u32)> {
    let mut columns = line.split_ascii_whitespace();
    let inode = columns.nth(9)?.parse().ok()?;
    Some((inode, columns.nth(2)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_line_of_the_kernel_has_inode_and_drops() {
        let headings = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt  \
              uid  timeout inode ref pointer drops";
        assert_eq!(inode_and_drops(headings), None);
        let line = " 2012: 0100007F:1F99 00000000:0000 07 00000000:00001D00 00:00000000 00000000   \
               0        0 25071 2 0000000000000000 4294967295   ";
        assert_eq!(inode_and_drops(line), Some((25_071, u32::MAX)));
    }

    #[test]
    fn each_dropped_datagram_is_counted_once() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(socket) = UdpSocket::bind(host) else {
                assert!(host.starts_with('['), "every machine has IPv4");
                continue;
            };
            let start = |are_passed, counter| {
                KernelDrops::of(std::slice::from_ref(&socket), are_passed, counter).expect("/proc is there")
            };
            let mut drops = start(false, Counter::noop());
            assert_eq!(drops.update().expect("/proc is there"), 0);
            let address = socket.local_addr().expect("bound");
            let mut sent = 0;
            let mut dropped = 0;
            while dropped == 0 {
                for _ in 0..1_000 {
                    socket.send_to(&[b'x'; 1_000], address).expect("sent");
                    sent += 1;
                }
                dropped = drops.update().expect("/proc is there");
            }
            socket.set_nonblocking(true).expect("a socket");
            let received = std::iter::from_fn(|| socket.recv(&mut [0; 1_000]).ok()).count();
            assert_eq!(received as u64 + dropped, sent);
            assert_eq!(drops.update().expect("/proc is there"), 0, "counted before");
            for (are_passed, expected) in [(false, dropped), (true, 0)] {
                let counted = Arc::new(AtomicU64::new(0));
                let mut drops = start(are_passed, Counter::from_arc(Arc::clone(&counted)));
                drops.update().expect("/proc is there");
                assert_eq!(counted.load(Ordering::SeqCst), expected);
            }
        }
    }
}
