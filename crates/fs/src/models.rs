//! Models of waits for streams, run by `RUSTFLAGS="--cfg loom"` and `"--cfg shuttle"`.

use crate::readiness::Poller;
use crate::test_host::TestHost;
use crate::{Io, Listener, PAGE_SIZE, Pipe, Readiness, SliceSink, SliceSource};
use core::mem::ManuallyDrop;
use quire_heap::unsize;
use quire_sync::atomic::{AtomicBool, Ordering};
use quire_sync::explore::{Arc, thread};
use quire_sync::hooks::park;
use quire_sync::hooks::threads::set_cpu;
use quire_sync::protocol;

/// A thread polls a stream while another thread changes the stream's state.
fn poll_against_change() {
    let shared = Arc::new((Readiness::new(), AtomicBool::new(false)));
    let theirs = shared.clone();
    let changing = thread::spawn(move || {
        set_cpu(1);
        theirs.1.store(true, Ordering::Release);
        theirs.0.notify();
    });
    set_cpu(0);
    let (readiness, state) = &*shared;
    let poller = Poller::new().unwrap();
    let listener: quire_heap::Arc<dyn Listener> = unsize!(poller.clone());
    readiness.listen(&listener).unwrap();
    while !state.load(Ordering::Acquire) {
        if !poller.take_changed() {
            park(None);
        }
    }
    readiness.unlisten(&listener);
    poller.end();
    changing.join().unwrap();
}

protocol! {
    a_poll_learns_of_each_change_behind_its_look = poll_against_change, Some(3);
    #[cfg(loom)]
    ListenNoFence;
    PollerUnwoken;
}

/// A writer fills a pipe of two pages and waits, while a reader takes the first page.
fn full_pipe_against_read() {
    let host = TestHost;
    host.pay_from(Some(std::sync::Arc::new(2.into())));
    let (_pipe, [reader, writer]) = Pipe::ends(host).unwrap();
    // No thread drops the ends, because a checker that reports a deadlock drops the values of its model.
    let (reader, writer) = (ManuallyDrop::new(reader), ManuallyDrop::new(writer));
    set_cpu(0);
    assert_eq!(writer.write(&Io::WAIT, &mut SliceSource::new(&[1; PAGE_SIZE])), Ok(PAGE_SIZE));
    let reading = thread::spawn(move || {
        set_cpu(1);
        reader.read(&Io::WAIT, &mut SliceSink::new(&mut [0; PAGE_SIZE])).unwrap()
    });
    assert_eq!(writer.write(&Io::WAIT, &mut SliceSource::new(&[2; 2 * PAGE_SIZE])), Ok(2 * PAGE_SIZE));
    assert_eq!(reading.join().unwrap(), PAGE_SIZE);
}

protocol! {
    a_writer_that_fills_a_pipe_goes_on = full_pipe_against_read, Some(2);
    #[cfg(loom)]
    RoomNoFence;
    RoomByFirstEnd;
}
