//! Refuses each allocation of each operation in turn. The operation fails and leaves the sockets as they were.

use super::*;
use quire_heap::refusal;

/// Runs `does` on new sockets once for each of its allocations, which is refused, and once with none refused.
fn refuse_each<T>(name: &str, prepare: impl Fn(&Network) -> T, does: impl Fn(&Network, &T) -> Result<(), FsError>) {
    let n = network();
    // A first run, because the lock-order checker allocates when it sees a new order of locks.
    does(&n, &prepare(&n)).unwrap_or_else(|e| panic!("{name}: {e}"));
    for at in 1.. {
        let n = network();
        let prepared = prepare(&n);
        let count = alive(n);
        let (done, made) = refusal::at(at, || does(&n, &prepared));
        if made < at {
            assert_eq!(done, Ok(()), "{name}");
            assert!(at > 1, "{name} allocates");
            return;
        }
        assert_eq!(done, Err(FsError::OutOfMemory), "{name}, allocation {at}");
        assert_eq!(alive(n), count, "{name}, allocation {at}");
        assert_eq!(does(&n, &prepared), Ok(()), "{name}, after allocation {at}");
    }
}

#[test]
fn a_call_without_memory_leaves_the_sockets_as_they_were() {
    let unix = |n: &Network| socket(n, Family::Unix, Kind::Stream);
    refuse_each("socket", |_| (), |n, ()| Socket::new(n, Family::Inet4, Kind::Stream).map(drop));
    refuse_each("pair", |_| (), |n, ()| Socket::pair(n, Kind::Stream, ME).map(drop));
    refuse_each("bind to a name", unix, |_, s| s.bind(Place::Abstract(b"name"), ME));
    refuse_each("bind to any name", unix, |_, s| s.bind(Place::Auto, ME));
    let tcp = |n: &Network| socket(n, Family::Inet4, Kind::Stream);
    refuse_each("bind to a port", tcp, |_, s| bind(s, "127.0.0.1:80"));
    refuse_each("listen", tcp, |_, s| s.listen(1, ME));
    for (family, kind) in CONNECTED {
        let both = |n: &Network| (listener(n, family, kind, 1), socket(n, family, kind));
        refuse_each("connect", both, |_, (l, c)| c.connect(&Io::WAIT, &destination(l), ME));
        let queued = |n: &Network| {
            let (l, c) = both(n);
            c.connect(&Io::WAIT, &destination(&l), ME).unwrap();
            (l, c)
        };
        let again = |n: &Network| {
            let (l, c) = queued(n);
            drop(l.accept(&Io::NOW).unwrap());
            c.disconnect().unwrap();
            (l, c)
        };
        if family != Family::Unix {
            refuse_each("connect again", again, |_, (l, c)| c.connect(&Io::WAIT, &destination(l), ME));
        }
        refuse_each("accept", queued, |_, (l, _)| l.accept(&Io::NOW).map(drop));
        let connected = |n: &Network| connected(n, family, kind);
        refuse_each("write a little", connected, |_, (a, _)| write(a, &Io::NOW, b"x").map(drop));
        let one = |n: &Network| {
            let (a, b) = connected(n);
            write(&a, &Io::NOW, &[0; 100]).unwrap();
            (a, b)
        };
        refuse_each("write behind others", one, |_, (a, _)| write(a, &Io::NOW, &[0; 100]).map(drop));
    }
    let datagrams = |n: &Network| pair(n, Kind::Datagram);
    refuse_each("send a datagram", datagrams, |_, (a, _)| write(a, &Io::NOW, &[0; 10_000]).map(drop));
    let files = |n: &Network| {
        let (a, b) = pair(n, Kind::Stream);
        (open(&a), a, b)
    };
    refuse_each("send files", files, |_, (file, a, _)| {
        let mut list = quire_heap::Vec::try_with_capacity(1)?;
        list.push_reserved(file.clone());
        let ancillary = Ancillary { files: list, credentials: None, ..Ancillary::none() };
        a.send(&Io::NOW, &mut SliceSource::new(b"x"), None, ancillary).map(drop)
    });
}

#[test]
fn reading_and_closing_need_no_memory() {
    for round in 0..2 {
        let n = network();
        let (a, b) = connected(&n, Family::Inet4, Kind::Stream);
        write(&a, &Io::NOW, &[1; 20_000]).unwrap();
        let mut into = [0; 30_000];
        let allocations = refusal::allocations(|| {
            let mut sink = SliceSink::new(&mut into);
            assert_eq!(b.read(&Io::NOW, &mut sink), Ok(20_000));
            drop((a, b));
        });
        assert!(round == 0 || allocations == 0, "{allocations}");
        assert_eq!(alive(n), 0);
    }
}
