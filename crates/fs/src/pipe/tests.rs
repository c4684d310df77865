//! Pipes between threads, and against a queue.

use super::*;
use crate::test_host::TestHost;
use crate::transfer::{SliceSink, SliceSource};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::vec::Vec;

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
    /// Lets the writer go on until it sleeps, in the middle of the copy.
    struct Slow<'a>(&'a AtomicBool, usize);
    impl Sink for Slow<'_> {
        fn put(&mut self, bytes: &[u8]) -> Result<usize, FsError> {
            self.0.store(true, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(30));
            self.1 -= bytes.len();
            Ok(bytes.len())
        }
        fn room(&self) -> usize {
            self.1
        }
    }
    let (r, w) = pipe();
    let copying = AtomicBool::new(false);
    write(&*w, &Io::NOW, b"x").unwrap();
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            while !copying.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            write(&*w, &Io { deadline: Some(quire_sync::hooks::now() + 5_000_000_000), ..Io::WAIT }, &[0; CAPACITY])
        });
        assert_eq!(r.read(&Io::NOW, &mut Slow(&copying, 1)), Ok(1));
        assert_eq!(writer.join().unwrap(), Ok(CAPACITY));
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
    let (r, w) = pipe();
    std::thread::scope(|s| {
        let reader = s.spawn(move || read(&*r, &Io::WAIT, 10));
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(w);
        assert_eq!(reader.join().unwrap().unwrap(), b"");
    });
}

#[test]
fn who_does_not_wait_is_told_so_and_who_is_interrupted_too() {
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
fn a_fifo_that_everybody_left_is_empty() {
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
    let met = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let r = Pipe::open(&p, true, false, &Io::WAIT).unwrap();
            met.store(true, Ordering::SeqCst);
            assert_eq!(read(&*r, &Io::WAIT, 9).unwrap(), b"hello");
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!met.load(Ordering::SeqCst));
        let w = Pipe::open(&p, false, true, &Io::WAIT).unwrap();
        write(&*w, &Io::WAIT, b"hello").unwrap();
    });
}

#[test]
fn a_writer_that_opened_first_and_leaves_at_once_is_met() {
    let p = Pipe::new(TestHost).unwrap();
    std::thread::scope(|s| {
        let writer = s.spawn(|| write(&*Pipe::open(&p, false, true, &Io::WAIT).unwrap(), &Io::WAIT, b"x"));
        std::thread::sleep(std::time::Duration::from_millis(20));
        // As preempted right after the opening was announced: the writer has come and gone.
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
        let io = Io { deadline: Some(quire_sync::hooks::now() + 2_000_000_000), ..Io::WAIT };
        let r = Pipe::open(&p, true, false, &io).expect("the writer was there");
        p.readiness.unlisten(&late);
        assert_eq!(read(&*r, &Io::WAIT, 9).unwrap(), b"x");
        assert_eq!(writer.join().unwrap(), Ok(1));
    });
}

#[test]
fn a_socket_pair_carries_both_ways_and_ends_when_one_side_goes() {
    let (a, b) = Pair::new(TestHost).unwrap();
    write(&*a, &Io::NOW, b"ping").unwrap();
    write(&*b, &Io::NOW, b"pong").unwrap();
    assert_eq!(read(&*b, &Io::NOW, 9).unwrap(), b"ping");
    assert_eq!(read(&*a, &Io::NOW, 9).unwrap(), b"pong");
    a.shut(false, true);
    assert_eq!(read(&*b, &Io::NOW, 9).unwrap(), b"");
    drop(a);
    assert!(b.ready().contains(Ready::HANGUP));
    assert_eq!(write(&*b, &Io::NOW, b"x"), Err(FsError::BrokenPipe));
}

proptest! {
    #[test]
    fn a_pipe_is_a_queue_of_bytes(steps in prop::collection::vec((any::<bool>(), 0usize..20_000), 1..60)) {
        let (r, w) = pipe();
        let mut model = VecDeque::new();
        let mut next = 0u8;
        for (writes, n) in steps {
            if writes {
                let bytes: Vec<u8> = (0..n).map(|_| { next = next.wrapping_add(1); next }).collect();
                let done = write(&*w, &Io::NOW, &bytes).unwrap_or(0);
                let free = CAPACITY - model.len();
                prop_assert_eq!(done, if n <= ATOMIC && n > free { 0 } else { n.min(free) });
                model.extend(&bytes[..done]);
            } else if n > 0 {
                let got = read(&*r, &Io::NOW, n).unwrap_or_default();
                prop_assert_eq!(got.len(), n.min(model.len()));
                prop_assert!(got.iter().all(|b| Some(*b) == model.pop_front()));
            }
            prop_assert_eq!(r.queued().unwrap(), model.len());
            prop_assert_eq!(w.ready().contains(Ready::WRITE), CAPACITY - model.len() >= ATOMIC);
        }
    }
}
