//! Tests of pipes between threads, and against a queue.

use super::*;
use crate::stream::readiness::Listener;
use crate::stream::transfer::{SliceSink, SliceSource};
use crate::test_host::{Looks, TestHost};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::vec::Vec;

/// The number of bytes that a new pipe holds.
const CAPACITY: usize = DEFAULT * PAGE_SIZE;

fn pipe() -> (Arc<dyn Stream>, Arc<dyn Stream>) {
    let p = Pipe::new(TestHost).unwrap();
    (Pipe::open_now(&p, true, false).unwrap(), Pipe::open_now(&p, false, true).unwrap())
}
fn write(s: &dyn Stream, io: &Io<'_>, bytes: &[u8]) -> Result<usize, FsError> {
    s.write(io, &mut SliceSource::new(bytes))
}
fn read(s: &dyn Stream, io: &Io<'_>, most: usize) -> Result<Vec<u8>, FsError> {
    let mut into = std::vec![0; most];
    let n = s.read(io, &mut SliceSink::new(&mut into))?;
    into.truncate(n);
    Ok(into)
}

#[test]
fn many_bytes_arrive_in_order_through_a_pipe_that_fills_up() {
    let (r, w) = pipe();
    std::thread::scope(|s| {
        s.spawn(move || {
            for i in 0..40_000u32 {
                let message: Vec<u8> = (0..i % 200).map(|k| (i + k) as u8).collect();
                assert_eq!(write(&*w, &Io::WAIT, &message).unwrap(), message.len());
            }
        });
        let mut got = Vec::new();
        loop {
            let part = read(&*r, &Io::WAIT, 10_000).unwrap();
            if part.is_empty() {
                break;
            }
            got.extend(part);
        }
        let want: Vec<u8> = (0..40_000u32).flat_map(|i| (0..i % 200).map(move |k| (i + k) as u8)).collect();
        assert!(got == want);
    });
}

#[test]
fn small_writes_of_several_writers_are_never_torn_apart() {
    let p = Pipe::new(TestHost).unwrap();
    let r = Pipe::open_now(&p, true, false).unwrap();
    std::thread::scope(|s| {
        for id in 1..=3u8 {
            let w = Pipe::open_now(&p, false, true).unwrap();
            s.spawn(move || {
                for _ in 0..500 {
                    write(&*w, &Io::WAIT, &[id; 4000]).unwrap();
                }
            });
        }
        let mut got = Vec::new();
        while got.len() < 3 * 500 * 4000 {
            got.extend(read(&*r, &Io::WAIT, 5000).unwrap());
        }
        assert!(got.chunks(4000).all(|c| c.iter().all(|b| *b == c[0])));
    });
}

#[test]
fn a_writer_that_fills_the_pipe_during_a_read_is_woken_by_it() {
    /// A sink that, in the middle of the copy, lets the writer continue until it sleeps.
    struct Slow<'a>(&'a AtomicBool, &'a Looks, usize);
    impl Sink for Slow<'_> {
        fn put(&mut self, bytes: &[u8]) -> Result<usize, FsError> {
            self.0.store(true, Ordering::SeqCst);
            self.1.until(1);
            self.2 -= bytes.len();
            Ok(bytes.len())
        }
        fn room(&self) -> usize {
            self.2
        }
    }
    let (r, w) = pipe();
    let (copying, looks) = (AtomicBool::new(false), Looks::default());
    // The reader copies the last byte of a page, and locks that page during the copy. The writer fills the other pages.
    write(&*w, &Io::NOW, &[0; PAGE_SIZE - 1]).unwrap();
    read(&*r, &Io::NOW, PAGE_SIZE - 1).unwrap();
    write(&*w, &Io::NOW, b"x").unwrap();
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            while !copying.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            assert_eq!(write(&*w, &Io::NOW, &[0; CAPACITY - PAGE_SIZE]), Ok(CAPACITY - PAGE_SIZE));
            write(&*w, &Io { interrupted: &looks.ask(), ..Io::WAIT }, &[0; ATOMIC])
        });
        assert_eq!(r.read(&Io::NOW, &mut Slow(&copying, &looks, 1)), Ok(1));
        assert_eq!(writer.join().unwrap(), Ok(ATOMIC));
    });
}

#[test]
fn ends_that_close_are_noticed() {
    let (r, w) = pipe();
    write(&*w, &Io::NOW, b"last").unwrap();
    assert_eq!(read(&*r, &Io::NOW, 2).unwrap(), b"la");
    drop(w);
    assert_eq!(r.ready(), Ready::READ | Ready::HANGUP);
    assert_eq!(read(&*r, &Io::WAIT, 10).unwrap(), b"st");
    assert_eq!(read(&*r, &Io::WAIT, 10).unwrap(), b"");
    let (r, w) = pipe();
    drop(r);
    assert_eq!(write(&*w, &Io::WAIT, b"x"), Err(FsError::BrokenPipe));
    assert!(w.ready().contains(Ready::ERROR));
}

#[test]
fn a_reader_that_waits_is_woken_by_the_last_writer_leaving() {
    let looks = Looks::default();
    let (r, w) = pipe();
    std::thread::scope(|s| {
        let reader = s.spawn(|| read(&*r, &Io { interrupted: &looks.ask(), ..Io::WAIT }, 10));
        looks.until(1);
        drop(w);
        assert_eq!(reader.join().unwrap().unwrap(), b"");
    });
}

#[test]
fn nonblocking_and_interrupted_callers_get_their_errors() {
    let (r, w) = pipe();
    assert_eq!(read(&*r, &Io::NOW, 1), Err(FsError::WouldBlock));
    let big = std::vec![7; CAPACITY + 5];
    assert_eq!(write(&*w, &Io::NOW, &big), Ok(CAPACITY));
    assert_eq!(write(&*w, &Io::NOW, b"x"), Err(FsError::WouldBlock));
    read(&*r, &Io::NOW, 100).unwrap();
    assert_eq!(write(&*w, &Io::NOW, &[0; 101]), Err(FsError::WouldBlock), "small writes are whole");
    assert_eq!(write(&*w, &Io::NOW, &big), Ok(100), "large ones are not");
    let io = Io { interrupted: &|| true, ..Io::WAIT };
    assert_eq!(write(&*w, &io, b"x"), Err(FsError::Interrupted));
}

#[test]
fn a_fifo_without_users_is_empty() {
    let p = Pipe::new(TestHost).unwrap();
    let both = Pipe::open(&p, true, true, &Io::NOW).unwrap();
    write(&*both, &Io::NOW, b"never read").unwrap();
    drop(both);
    let both = Pipe::open(&p, true, true, &Io::NOW).unwrap();
    assert_eq!(read(&*both, &Io::NOW, 99), Err(FsError::WouldBlock));
}

#[test]
fn opening_a_fifo_waits_for_the_other_end() {
    let p = Pipe::new(TestHost).unwrap();
    assert!(matches!(Pipe::open(&p, false, true, &Io::NOW), Err(FsError::NoDevice)));
    let (met, looks) = (AtomicBool::new(false), Looks::default());
    std::thread::scope(|s| {
        s.spawn(|| {
            let r = Pipe::open(&p, true, false, &Io { interrupted: &looks.ask(), ..Io::WAIT }).unwrap();
            met.store(true, Ordering::SeqCst);
            assert_eq!(read(&*r, &Io::WAIT, 9).unwrap(), b"hello");
        });
        looks.until(1);
        assert!(!met.load(Ordering::SeqCst));
        let w = Pipe::open(&p, false, true, &Io::WAIT).unwrap();
        write(&*w, &Io::WAIT, b"hello").unwrap();
    });
}

#[test]
fn a_writer_that_opened_first_and_leaves_at_once_is_met() {
    let looks = Looks::default();
    let p = Pipe::new(TestHost).unwrap();
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            let io = Io { interrupted: &looks.ask(), ..Io::WAIT };
            write(&*Pipe::open(&p, false, true, &io).unwrap(), &Io::WAIT, b"x")
        });
        looks.until(1);
        // The listener delays the opening reader right after it has announced its opening, until the writer has opened
        // and closed.
        struct Late(Arc<Pipe<TestHost>>, std::thread::ThreadId);
        impl crate::Listener for Late {
            fn changed(&self) {
                let opener = std::thread::current().id() == self.1;
                while opener && (self.0.filled() == 0 || self.0.writers.load(Ordering::SeqCst) > 0) {
                    std::thread::yield_now();
                }
            }
        }
        let late: Arc<dyn crate::Listener> =
            unsize!(Arc::try_new(Late(p.clone(), std::thread::current().id())).unwrap());
        p.readiness.listen(&late).expect("memory");
        let r = Pipe::open(&p, true, false, &Io::WAIT).expect("the writer was there");
        p.readiness.unlisten(&late);
        assert_eq!(read(&*r, &Io::WAIT, 9).unwrap(), b"x");
        assert_eq!(writer.join().unwrap(), Ok(1));
    });
}

fn size(s: &dyn Stream) -> &PipeEnd<TestHost> {
    s.as_any().downcast_ref().unwrap()
}
/// Bytes that count up, modulo 251.
fn counted(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|i| (i % 251) as u8).collect()
}

#[test]
fn a_pipe_holds_as_much_as_its_size_says() {
    for pages in [1, 2, 8, 16, 32, 256] {
        let (r, w) = pipe();
        size(&*r).resize(pages, 256).unwrap();
        let bytes = counted(0, pages * PAGE_SIZE);
        assert_eq!(size(&*w).capacity(), bytes.len());
        assert_eq!(write(&*w, &Io::NOW, &counted(0, bytes.len() + 1)), Ok(bytes.len()));
        assert!(!w.ready().contains(Ready::WRITE));
        assert_eq!(r.queued(), Ok(bytes.len()));
        assert_eq!(
            size(&*r).resize(pages / 2, 256).err(),
            Some(if pages > 1 { FsError::Busy } else { FsError::Invalid })
        );
        assert!(read(&*r, &Io::NOW, bytes.len()).unwrap() == bytes);
        assert!(w.ready().contains(Ready::WRITE));
    }
}

#[test]
fn a_pipe_grows_no_further_than_it_may_and_always_shrinks() {
    let (r, _w) = pipe();
    assert_eq!(size(&*r).resize(32, 16), Err(FsError::NotPermitted));
    assert_eq!(size(&*r).capacity(), CAPACITY);
    size(&*r).resize(32, 32).unwrap();
    size(&*r).resize(16, 1).unwrap();
    assert_eq!(size(&*r).capacity(), CAPACITY);
}

#[test]
fn a_writer_that_waits_goes_on_in_a_larger_pipe() {
    let looks = Looks::default();
    let (r, w) = pipe();
    assert_eq!(write(&*w, &Io::NOW, &[1; CAPACITY]), Ok(CAPACITY));
    std::thread::scope(|s| {
        let writer = s.spawn(|| write(&*w, &Io { interrupted: &looks.ask(), ..Io::WAIT }, &[2; ATOMIC]));
        looks.until(1);
        size(&*r).resize(32, 32).unwrap();
        assert_eq!(writer.join().unwrap(), Ok(ATOMIC));
    });
}

#[test]
fn bytes_keep_their_order_while_the_pipe_changes_its_size() {
    let (r, w) = pipe();
    let ends = std::sync::atomic::AtomicUsize::new(0);
    const ALL: usize = 6_000_000;
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut at = 0;
            while at < ALL {
                at += write(&*w, &Io::WAIT, &counted(at, (1 + at % 9_000).min(ALL - at))).unwrap();
            }
            ends.fetch_add(1, Ordering::SeqCst);
        });
        s.spawn(|| {
            let (mut changed, mut busy) = (0, 0);
            for round in 0usize.. {
                match size(&*r).resize(1 << (round * 5 % 9), 256) {
                    Ok(()) => changed += 1,
                    Err(e) => {
                        assert_eq!(e, FsError::Busy);
                        busy += 1;
                    }
                }
                if ends.load(Ordering::SeqCst) > 1 {
                    break;
                }
                std::thread::yield_now();
            }
            assert!(changed > 0, "{busy} were refused");
        });
        let mut at = 0;
        while at < ALL {
            let part = read(&*r, &Io::WAIT, 1 + at % 12_345).unwrap();
            assert!(part == counted(at, part.len()), "at {at}");
            at += part.len();
        }
        ends.fetch_add(1, Ordering::SeqCst);
    });
}

#[test]
fn a_resize_without_memory_leaves_the_pipe_as_it_was() {
    use quire_heap::refusal;
    // The ring's first and last bytes share a page. It moves to larger and smaller rings, and each allocation is
    // refused.
    for pages in [32, 64, 8] {
        let attempt = |refuse: u64| {
            let (r, w) = pipe();
            // The first resize records the order of the locks, which needs memory in tests.
            size(&*r).resize(DEFAULT, DEFAULT).unwrap();
            let mut at = 0;
            let mut put = |len| {
                assert_eq!(write(&*w, &Io::NOW, &counted(at, len)), Ok(len));
                at += len;
            };
            put(CAPACITY);
            read(&*r, &Io::NOW, 3000).unwrap();
            put(2000);
            let mut from = 3000;
            if pages < DEFAULT {
                from += read(&*r, &Io::NOW, CAPACITY / 2).unwrap().len();
            }
            let (done, made) = refusal::at(refuse, || size(&*r).resize(pages, 64));
            let want = if made < refuse { Ok(()) } else { Err(FsError::OutOfMemory) };
            assert_eq!(done, want, "{pages} pages, allocation {refuse}");
            let pages = if done.is_ok() { pages } else { DEFAULT };
            assert_eq!(size(&*r).capacity(), pages * PAGE_SIZE);
            assert!(read(&*r, &Io::NOW, usize::MAX >> 40).unwrap() == counted(from, at - from), "{pages} pages");
            done.is_ok()
        };
        attempt(u64::MAX);
        let refused = (1..).take_while(|n| !attempt(*n)).count();
        assert!(refused >= if pages < DEFAULT { 1 } else { 4 }, "{pages}: {refused}");
    }
}

#[test]
fn a_user_pays_for_its_pipes_until_they_go() {
    let purse = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(40));
    let left = || purse.load(Ordering::SeqCst);
    TestHost.pay_from(Some(purse.clone()));
    let ends = || Pipe::ends(TestHost).map(|(_, ends)| ends);
    let one = ends().unwrap();
    assert_eq!(left(), 24);
    // A growing ring is charged first, and a failure returns the charge.
    assert_eq!(size(&*one[0]).resize(64, 64), Err(FsError::NotPermitted));
    size(&*one[0]).resize(32, 64).unwrap();
    assert_eq!(left(), 8);
    assert_eq!(write(&*one[1], &Io::NOW, &[1; 5000]), Ok(5000));
    assert_eq!(size(&*one[0]).resize(1, 64), Err(FsError::Busy));
    assert_eq!(left(), 8);
    size(&*one[0]).resize(2, 64).unwrap();
    assert_eq!(left(), 38);
    // A user with many pipes gets small pipes, and then no more pipes.
    let more = [ends().unwrap(), ends().unwrap()];
    let small = ends().unwrap();
    assert_eq!((left(), size(&*small[0]).capacity()), (4, 2 * PAGE_SIZE));
    let last = [ends().unwrap(), ends().unwrap()];
    assert_eq!((left(), ends().err()), (0, Some(FsError::TooManyPipes)));
    // The first end of a FIFO is charged, and the close of its last end returns the charge. The next end is charged
    // again.
    let fifo = Pipe::new(TestHost).unwrap();
    let open = || Pipe::open(&fifo, true, true, &Io::NOW);
    assert_eq!(open().err(), Some(FsError::OutOfMemory));
    drop(more);
    let (first, second) = (open().unwrap(), open().unwrap());
    assert_eq!(left(), 16);
    size(&*first).resize(1, 1).unwrap();
    drop(first);
    assert_eq!((left(), size(&*second).capacity()), (31, PAGE_SIZE));
    drop(second);
    assert_eq!(left(), 32);
    let again = open().unwrap();
    assert_eq!((left(), size(&*again).capacity()), (16, CAPACITY));
    drop((again, last, small, one));
    assert_eq!(left(), 40);
    TestHost.pay_from(None);
}

#[test]
fn a_fifo_that_is_opened_while_its_last_end_closes_is_new() {
    let purse = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(40));
    TestHost.pay_from(Some(purse.clone()));
    let p = Pipe::new(TestHost).unwrap();
    let last = Pipe::open_now(&p, true, true).unwrap();
    size(&*last).resize(32, 32).unwrap();
    assert_eq!(write(&*last, &Io::NOW, b"never read"), Ok(10));
    // The test acts as if preempted in `close`, after the end is uncounted.
    size(&*last).closed.store(true, Ordering::SeqCst);
    p.uncount(true, true);
    let new = Pipe::open_now(&p, true, true).unwrap();
    assert_eq!((purse.load(Ordering::SeqCst), size(&*new).capacity()), (24, CAPACITY));
    assert_eq!(read(&*new, &Io::NOW, 99), Err(FsError::WouldBlock));
    assert_eq!(write(&*new, &Io::NOW, b"new"), Ok(3));
    p.empty_if_closed();
    drop(last);
    assert_eq!(read(&*new, &Io::NOW, 99).unwrap(), b"new");
    drop(new);
    assert_eq!(purse.load(Ordering::SeqCst), 40);
    TestHost.pay_from(None);
}

/// How a file that is open for packets writes.
const PACKETS: Io<'static> = Io { packets: true, ..Io::NOW };

#[test]
fn a_read_returns_one_packet_and_loses_its_rest() {
    let (r, w) = pipe();
    for packet in [&b"one"[..], b"second", b"3"] {
        assert_eq!(write(&*w, &PACKETS, packet), Ok(packet.len()));
    }
    assert_eq!(write(&*w, &PACKETS, b""), Ok(0));
    assert_eq!(r.queued(), Ok(10));
    assert_eq!(read(&*r, &Io::NOW, 99).unwrap(), b"one");
    assert_eq!(read(&*r, &Io::NOW, 3).unwrap(), b"sec");
    assert_eq!(r.queued(), Ok(1));
    assert_eq!(read(&*r, &Io::NOW, 99).unwrap(), b"3");
    assert_eq!(read(&*r, &Io::NOW, 99), Err(FsError::WouldBlock));
    // A large write is packets of a page.
    assert_eq!(write(&*w, &PACKETS, &counted(0, 2 * PAGE_SIZE + 7)), Ok(2 * PAGE_SIZE + 7));
    let lengths = [0; 3].map(|_| read(&*r, &Io::NOW, 3 * PAGE_SIZE).unwrap().len());
    assert_eq!(lengths, [PAGE_SIZE, PAGE_SIZE, 7]);
}

#[test]
fn packets_and_a_stream_share_a_pipe() {
    let (r, w) = pipe();
    let stream = |bytes: &[u8]| assert_eq!(write(&*w, &Io::NOW, bytes), Ok(bytes.len()));
    let packet = |bytes: &[u8]| assert_eq!(write(&*w, &PACKETS, bytes), Ok(bytes.len()));
    // A packet joins the stream before it if the stream's last page has room; otherwise it begins a page of its own. A
    // stream does not join a packet.
    stream(&[1; 4000]);
    packet(&[2; 90]);
    packet(&[3; 10]);
    stream(&[4; 20]);
    assert_eq!(r.queued(), Ok(4120));
    assert_eq!(read(&*r, &Io::NOW, 10).unwrap(), [1; 10]);
    let got = read(&*r, &Io::NOW, 9000).unwrap();
    assert_eq!(got.chunk_by(|a, b| a == b).map(<[u8]>::len).collect::<Vec<_>>(), [3990, 90, 10]);
    assert_eq!(read(&*r, &Io::NOW, 9000).unwrap(), [4; 20]);
    assert_eq!(r.queued(), Ok(0));
    // A reader that took exactly the stream's end continues with the packet.
    stream(&[5; 4000]);
    packet(&[6; 97]);
    assert_eq!(read(&*r, &Io::NOW, 4000).unwrap(), [5; 4000]);
    assert_eq!(read(&*r, &Io::NOW, 4000).unwrap(), [6; 97]);
    assert_eq!(read(&*r, &Io::NOW, 99), Err(FsError::WouldBlock));
}

#[test]
fn a_pipe_holds_as_many_packets_as_pages_and_they_go_along() {
    for pages in [1, 2, 16, 64] {
        let (r, w) = pipe();
        // The stream leaves the positions inside of a page.
        write(&*w, &Io::NOW, &[9; 100]).unwrap();
        read(&*r, &Io::NOW, 100).unwrap();
        size(&*r).resize(pages, 64).unwrap();
        for i in 0..pages {
            assert!(w.ready().contains(Ready::WRITE));
            assert_eq!(write(&*w, &PACKETS, &counted(i, 2)), Ok(2));
        }
        assert!(!w.ready().contains(Ready::WRITE), "{pages} pages");
        assert_eq!(write(&*w, &PACKETS, b"x"), Err(FsError::WouldBlock));
        assert_eq!(r.queued(), Ok(2 * pages));
        assert!(pages == 1 || size(&*r).resize(pages / 2, 64) == Err(FsError::Busy));
        size(&*r).resize(2 * pages, 2 * pages).unwrap();
        assert_eq!(write(&*w, &PACKETS, b"end"), Ok(3));
        (0..pages).for_each(|i| assert_eq!(read(&*r, &Io::NOW, 9).unwrap(), counted(i, 2)));
        size(&*r).resize(1, 1).unwrap();
        assert_eq!(read(&*r, &Io::NOW, 9).unwrap(), b"end");
        assert!(w.ready().contains(Ready::WRITE));
    }
}

#[test]
fn a_packet_that_is_copied_in_part_is_none() {
    /// A source whose memory ends after this number of bytes.
    struct Ends(usize);
    impl Source for Ends {
        fn take(&mut self, into: &mut [u8]) -> Result<usize, FsError> {
            let n = into.len().min(self.0);
            self.0 -= n;
            into[..n].fill(7);
            Ok(n)
        }
        fn left(&self) -> usize {
            self.0 + 10
        }
    }
    impl Sink for Ends {
        fn put(&mut self, bytes: &[u8]) -> Result<usize, FsError> {
            Ok(bytes.len().min(self.0))
        }
        fn room(&self) -> usize {
            self.0 + 10
        }
    }
    let (r, w) = pipe();
    assert_eq!(w.write(&PACKETS, &mut Ends(5)), Err(FsError::Fault));
    assert_eq!(r.queued(), Ok(0));
    assert_eq!(write(&*w, &PACKETS, b"packet"), Ok(6));
    assert_eq!(r.read(&Io::NOW, &mut Ends(3)), Err(FsError::Fault));
    assert_eq!(read(&*r, &Io::NOW, 99).unwrap(), b"packet");
}

#[test]
fn packets_arrive_whole_while_the_pipe_changes_its_size() {
    let p = Pipe::new(TestHost).unwrap();
    let r = Pipe::open_now(&p, true, false).unwrap();
    const EACH: usize = 3000;
    const STREAM: u8 = 3;
    /// A record: its writer, its number, its length, and bytes that follow from these.
    fn record(writer: u8, number: usize) -> Vec<u8> {
        let len = 60 + (number * 37 + usize::from(writer)) % 200;
        let mut record = std::vec![writer, number as u8, (number >> 8) as u8, len as u8, (len >> 8) as u8];
        record.extend(counted(number, len - 5));
        record
    }
    std::thread::scope(|s| {
        for id in 1..=STREAM {
            let w = Pipe::open_now(&p, false, true).unwrap();
            s.spawn(move || {
                for i in 0..EACH {
                    let bytes = record(id, i);
                    assert_eq!(write(&*w, &Io { packets: id != STREAM, ..Io::WAIT }, &bytes), Ok(bytes.len()));
                }
            });
        }
        let mut next = [0; STREAM as usize + 1];
        for round in 1.. {
            if round % 16 == 0 {
                let _done = size(&*r).resize(1 << (round / 16 % 7), 64);
            }
            // Reads all of a stream before a packet, so that the packet is not truncated.
            let part = read(&*r, &Io::WAIT, 65 * PAGE_SIZE).unwrap();
            if part.is_empty() {
                break;
            }
            // A packet is read alone, unless it joined a stream before it.
            let mut rest = &part[..];
            while let [writer, low, high, short, long, ..] = *rest {
                let number = usize::from(u16::from_le_bytes([low, high]));
                let len = usize::from(u16::from_le_bytes([short, long]));
                assert_eq!(number, next[usize::from(writer)], "writer {writer}");
                next[usize::from(writer)] += 1;
                assert!(rest[..len] == record(writer, number), "packet {number} of {writer}");
                let alone = part[0] != STREAM;
                assert!(!alone || len == part.len(), "packet {number} of {writer}: {len} of {} bytes", part.len());
                rest = &rest[len..];
            }
            assert!(rest.is_empty());
        }
        assert_eq!(next[1..], [EACH; STREAM as usize]);
    });
}

/// A sink in memory that cannot be stored to.
struct Faults;

impl Sink for Faults {
    fn put(&mut self, _bytes: &[u8]) -> Result<usize, FsError> {
        Err(FsError::Fault)
    }
    fn room(&self) -> usize {
        PAGE_SIZE
    }
}

#[test]
fn a_read_announces_room_once_and_only_where_a_write_fits() {
    struct Counts(AtomicUsize);
    impl Listener for Counts {
        fn changed(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (r, w) = pipe();
    size(&*r).resize(1, 1).unwrap();
    let listener = quire_heap::Arc::try_new(Counts(AtomicUsize::new(0))).unwrap();
    w.readiness().unwrap().listen(&quire_heap::unsize!(listener.clone())).unwrap();
    let announced = || listener.0.swap(0, Ordering::Relaxed);
    for _ in 0..3 {
        assert_eq!(write(&*w, &Io::NOW, &[1; PAGE_SIZE]), Ok(PAGE_SIZE));
        assert_eq!(announced(), 1);
        assert_eq!(read(&*r, &Io::NOW, PAGE_SIZE / 2).unwrap().len(), PAGE_SIZE / 2);
        assert_eq!((announced(), w.ready().contains(Ready::WRITE)), (0, false));
        assert_eq!(read(&*r, &Io::NOW, PAGE_SIZE / 2 - 1).unwrap().len(), PAGE_SIZE / 2 - 1);
        assert_eq!((announced(), w.ready().contains(Ready::WRITE)), (0, false));
        assert_eq!(read(&*r, &Io::NOW, 9).unwrap().len(), 1);
        assert_eq!((announced(), w.ready().contains(Ready::WRITE)), (1, true));
    }
}

#[test]
fn a_read_that_passes_a_gap_and_fails_wakes_a_writer() {
    /// A source with a packet. While the packet is copied into the pipe, a reader takes the stream before the packet.
    /// So only the gap between stream and packet stays.
    struct Late<'a>(&'a dyn Stream, usize);
    impl Source for Late<'_> {
        fn take(&mut self, into: &mut [u8]) -> Result<usize, FsError> {
            let reader = || assert_eq!(read(self.0, &Io::NOW, 100).unwrap(), [1; 100]);
            std::thread::scope(|s| s.spawn(reader).join()).unwrap();
            self.1 -= into.len();
            Ok(into.len())
        }
        fn left(&self) -> usize {
            self.1
        }
    }
    let (r, w) = pipe();
    size(&*r).resize(2, 2).unwrap();
    assert_eq!(write(&*w, &Io::NOW, &[1; 100]), Ok(100));
    assert_eq!(w.write(&PACKETS, &mut Late(&*r, PAGE_SIZE)), Ok(PAGE_SIZE));
    let looks = Looks::default();
    assert!(!w.ready().contains(Ready::WRITE));
    std::thread::scope(|s| {
        let writer = s.spawn(|| write(&*w, &Io { packets: true, interrupted: &looks.ask(), ..Io::WAIT }, b"next"));
        looks.until(1);
        assert_eq!(r.read(&Io::NOW, &mut Faults), Err(FsError::Fault));
        assert_eq!(read(&*r, &Io::NOW, PAGE_SIZE).unwrap().len(), PAGE_SIZE);
        assert_eq!(writer.join().unwrap(), Ok(4));
    });
    assert_eq!(read(&*r, &Io::NOW, PAGE_SIZE).unwrap(), b"next");
}

proptest! {
    #[test]
    fn a_pipe_is_a_queue_of_bytes(steps in prop::collection::vec((0u8..8, 0usize..20_000), 1..60)) {
        let (r, w) = pipe();
        let mut model = VecDeque::new();
        let mut next = 0u8;
        let mut capacity = CAPACITY;
        for (step, n) in steps {
            if step == 0 {
                let pages = 1 << (n % 7);
                let want = if model.len() > pages * PAGE_SIZE { Err(FsError::Busy) } else { Ok(()) };
                prop_assert_eq!(size(&*r).resize(pages, 64), want);
                if want.is_ok() {
                    capacity = pages * PAGE_SIZE;
                }
            } else if step % 2 == 0 {
                let bytes: Vec<u8> = (0..n).map(|_| { next = next.wrapping_add(1); next }).collect();
                let done = write(&*w, &Io::NOW, &bytes).unwrap_or(0);
                let free = capacity - model.len();
                prop_assert_eq!(done, if n <= ATOMIC && n > free { 0 } else { n.min(free) });
                model.extend(&bytes[..done]);
            } else if n > 0 {
                let got = read(&*r, &Io::NOW, n).unwrap_or_default();
                prop_assert_eq!(got.len(), n.min(model.len()));
                prop_assert!(got.iter().all(|b| Some(*b) == model.pop_front()));
            }
            prop_assert_eq!(r.queued().unwrap(), model.len());
            prop_assert_eq!(w.ready().contains(Ready::WRITE), capacity - model.len() >= ATOMIC);
        }
    }
}

fn end_of(stream: &Arc<dyn Stream>) -> &PipeEnd<TestHost> {
    stream.as_any().downcast_ref().unwrap()
}

#[test]
fn bytes_leave_a_pipe_only_after_their_receiver_has_them() {
    let (r, w) = pipe();
    write(&*w, &Io::NOW, b"0123456789").unwrap();
    let mut buffer = [0; 64];
    assert_eq!(end_of(&r).give(&mut buffer, &mut |_| Err(FsError::WouldBlock)), Err(FsError::WouldBlock));
    assert_eq!(end_of(&r).give(&mut buffer, &mut |bytes| Ok(bytes.len() - 6)), Ok(4));
    let (other, into) = pipe();
    assert_eq!(end_of(&r).move_to_pipe(end_of(&into), &mut buffer[..2], true), Ok(2));
    assert_eq!(end_of(&r).move_to_pipe(end_of(&into), &mut buffer, false), Ok(6));
    assert_eq!(end_of(&r).move_to_pipe(end_of(&w), &mut buffer, false), Err(FsError::Invalid));
    assert_eq!(read(&*other, &Io::NOW, 64).unwrap(), b"45456789");
    assert_eq!(read(&*r, &Io::NOW, 64), Err(FsError::WouldBlock));
}

#[test]
fn a_full_pipe_receives_nothing_and_a_moved_packet_keeps_its_gap() {
    let (r, w) = pipe();
    let mut buffer = std::vec![7; CAPACITY + 1];
    assert_eq!(end_of(&w).receive(&mut buffer, &mut |into| Ok(into.len())), Ok(Some(CAPACITY)));
    assert_eq!(end_of(&w).receive(&mut buffer, &mut |into| Ok(into.len())), Ok(None));
    assert_eq!(read(&*r, &Io::NOW, CAPACITY + 1).unwrap().len(), CAPACITY);
    let packets = Io { packets: true, ..Io::NOW };
    write(&*w, &packets, b"first").unwrap();
    write(&*w, &packets, b"second").unwrap();
    let (other, into) = pipe();
    assert_eq!(end_of(&r).move_to_pipe(end_of(&into), &mut buffer, true), Ok(5));
    assert_eq!(r.queued(), Ok(11));
    for n in [5, 6] {
        assert_eq!(end_of(&r).move_to_pipe(end_of(&into), &mut buffer, false), Ok(n));
    }
    assert_eq!((r.queued(), read(&*other, &Io::NOW, 64).unwrap()), (Ok(0), b"firstfirstsecond".to_vec()));
}
