//! Sends datagrams by a schedule, with a thread for each socket.

use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, sendmmsg};

use crate::format::Format;
use crate::http::Until;
use crate::workload::Workload;

/// The most datagrams that one system call sends.
const AT_ONCE: u64 = 32;

/// The datagrams to send, and when to send them.
#[derive(Debug, Clone)]
pub(crate) struct Sending {
    pub(crate) address: SocketAddrV4,
    pub(crate) format: Format,
    pub(crate) workload: Workload,
    pub(crate) sockets: u64,
    /// Readings per second of all sockets together.
    pub(crate) rate: f64,
    pub(crate) until: Until,
}

/// Sends datagrams. Returns their number by socket.
///
/// Adds the sent readings to `progress`.
pub(crate) fn send(sending: &Sending, progress: &AtomicU64) -> anyhow::Result<Vec<u64>> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let sockets: Vec<_> =
            (0..sending.sockets).map(|nth| scope.spawn(move || socket(sending, nth, start, progress))).collect();
        sockets.into_iter().map(|one| one.join().expect("a sender panicked")).collect()
    })
}

fn socket(sending: &Sending, nth: u64, start: Instant, progress: &AtomicU64) -> anyhow::Result<u64> {
    let socket = UdpSocket::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
    let share = sending.workload.share(nth, sending.sockets);
    let step = sending.workload.batch as f64 * sending.sockets as f64 / sending.rate;
    let mut headers = MultiHeaders::preallocate(AT_ONCE as usize, None);
    let addresses = vec![Some(SockaddrIn::from(sending.address)); AT_ONCE as usize];
    let mut bodies = vec![String::new(); AT_ONCE as usize];
    let mut messages = 0;
    let mut readings = Vec::new();
    while sending.until.goes_on(start, messages) {
        let mut in_these = 0;
        let count = sending.until.left(messages).min(AT_ONCE) as usize;
        for body in &mut bodies[..count] {
            share.message(messages, &mut readings);
            sending.format.write(body, &readings);
            messages += 1;
            in_these += readings.len() as u64;
        }
        let due = start + Duration::from_secs_f64(step * messages as f64);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let slices: Vec<[IoSlice<'_>; 1]> =
            bodies[..count].iter().map(|body| [IoSlice::new(body.as_bytes())]).collect();
        let flags = MsgFlags::empty();
        let results = sendmmsg(socket.as_raw_fd(), &mut headers, &slices, &addresses[..count], [], flags);
        let taken = results.context("send")?.count();
        anyhow::ensure!(taken == count, "the system took only a part of the datagrams");
        progress.fetch_add(in_these, Ordering::Relaxed);
    }
    Ok(messages)
}
