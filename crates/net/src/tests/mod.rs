//! Tests of sockets, alone and between threads.

mod corners;
mod datagrams;
mod disconnects;
mod files;
mod names;
mod refusals;
mod streams;
mod threads;

use crate::test_host::{Opened, TestFile, TestHost};
use crate::{Ancillary, Credentials, Destination, Family, Flags, Kind, Place, ReceiveFlags, Received};
use quire_fs::{FsError, Ident, Io, Ready, SliceSink, SliceSource, Stream};
use quire_heap::Arc;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::vec::Vec;

type Network = &'static crate::Network<TestHost>;
type Socket = crate::Socket<TestHost>;
type Shared = Arc<Socket>;

const ME: Credentials = Credentials { pid: 1, uid: 2, gid: 3 };
const OTHER: Credentials = Credentials { pid: 4, uid: 5, gid: 6 };

/// Each connected kind, with the families that have it.
const CONNECTED: [(Family, Kind); 4] = [
    (Family::Unix, Kind::Stream),
    (Family::Unix, Kind::SeqPacket),
    (Family::Inet4, Kind::Stream),
    (Family::Inet6, Kind::Stream),
];

/// Counts how often calls have checked their condition in vain. A call is registered as a waiter before it checks, so a
/// later change wakes it.
#[derive(Default)]
struct Looks(AtomicUsize);

impl Looks {
    /// A check for signals, which a call makes after each look. The check finds no signal, and counts the look.
    fn ask(&self) -> impl Fn() -> bool {
        || {
            self.0.fetch_add(1, Ordering::SeqCst);
            false
        }
    }
    /// Waits until calls have looked `count` times.
    fn until(&self, count: usize) {
        while self.0.load(Ordering::SeqCst) < count {
            std::thread::yield_now();
        }
    }
}

fn network() -> Network {
    crate::Network::new(TestHost).unwrap()
}
/// The number of endpoints that were not freed, plus the number of sockets in flight.
fn alive(n: Network) -> usize {
    (0..crate::table::BUCKETS as u64).map(|at| n.all.bucket(at).len()).sum::<usize>() + n.collector.in_flight()
}
fn socket(n: &Network, family: Family, kind: Kind) -> Shared {
    Socket::new(n, family, kind).unwrap()
}
fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}
fn inet(text: &str) -> Destination<'static> {
    Destination::Inet(at(text))
}
fn bind(s: &Shared, text: &str) -> Result<(), FsError> {
    s.bind(Place::Inet(at(text)), ME)
}
fn address(text: &str) -> crate::Address {
    crate::Address::Inet(at(text))
}
fn named(bytes: &[u8]) -> crate::Address {
    crate::Address::Abstract(Arc::try_copy(bytes).unwrap())
}
fn ident(number: u64) -> Ident {
    Ident { device: 1, number }
}

/// The destination of a connection to `listener`.
fn destination(listener: &Shared) -> Destination<'static> {
    match listener.local() {
        crate::Address::Inet(at) => Destination::Inet(at),
        crate::Address::Abstract(_) => Destination::Abstract(b"listener"),
        other => panic!("{other:?}"),
    }
}

fn listener(n: &Network, family: Family, kind: Kind, backlog: u32) -> Shared {
    let s = socket(n, family, kind);
    match family {
        Family::Unix => s.bind(Place::Abstract(b"listener"), ME).unwrap(),
        Family::Inet4 => bind(&s, "127.0.0.1:0").unwrap(),
        Family::Inet6 => bind(&s, "[::1]:0").unwrap(),
    }
    s.listen(backlog, ME).unwrap();
    s
}

/// A client and a server that are connected through a listener.
fn connected(n: &Network, family: Family, kind: Kind) -> (Shared, Shared) {
    let listener = listener(n, family, kind, 1);
    let client = socket(n, family, kind);
    client.connect(&Io::WAIT, &destination(&listener), OTHER).unwrap();
    (client, listener.accept(&Io::NOW).unwrap())
}
fn pair(n: &Network, kind: Kind) -> (Shared, Shared) {
    Socket::pair(n, kind, ME).unwrap()
}

fn write(s: &Shared, io: &Io<'_>, bytes: &[u8]) -> Result<usize, FsError> {
    s.write(io, &mut SliceSource::new(bytes))
}
fn send_to(s: &Shared, bytes: &[u8], to: Destination<'_>) -> Result<usize, FsError> {
    s.send(&Io::NOW, &mut SliceSource::new(bytes), Some(&to), Ancillary::none())
}
fn read(s: &Shared, io: &Io<'_>, most: usize) -> Result<Vec<u8>, FsError> {
    let mut into = std::vec![0; most];
    let n = s.read(io, &mut SliceSink::new(&mut into))?;
    into.truncate(n);
    Ok(into)
}
/// Runs `call` on another thread, and runs `then` while `call` waits. Returns the result of `call`.
fn during<T: Send>(call: impl FnOnce(&Io<'_>) -> T + Send, then: impl FnOnce()) -> T {
    let (waits, waited) = std::sync::mpsc::channel();
    std::thread::scope(|s| {
        let waiter = s.spawn(move || {
            // A call checks for signals after it has registered as a waiter and has found nothing.
            let interrupted = || {
                waits.send(()).ok();
                false
            };
            call(&Io { interrupted: &interrupted, ..Io::WAIT })
        });
        waited.recv().expect("the call did not wait");
        assert!(!waiter.is_finished());
        then();
        waiter.join().unwrap()
    })
}
fn receive(s: &Shared, most: usize, flags: ReceiveFlags) -> Result<(Vec<u8>, Received<TestHost>), FsError> {
    let mut into = std::vec![0; most];
    let mut sink = SliceSink::new(&mut into);
    let received = s.receive(&Io::NOW, &mut sink, flags)?;
    let used = sink.used();
    into.truncate(used);
    Ok((into, received))
}
fn number(n: u32) -> TestFile {
    TestFile::Number(Arc::try_new(n).unwrap())
}
fn send_files(s: &Shared, bytes: &[u8], files: Vec<TestFile>) -> Result<usize, FsError> {
    let files = quire_heap::Vec::try_from_iter(files).unwrap();
    s.send(&Io::NOW, &mut SliceSource::new(bytes), None, Ancillary { files, credentials: None, ..Ancillary::none() })
}
fn open(s: &Shared) -> TestFile {
    TestFile::Socket(Arc::try_new(Opened(s.clone())).unwrap())
}
