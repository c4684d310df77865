//! Models of files in flight: the collector beside a thread that accepts, and two closes with messages to drop.

use super::ME;
use crate::{Ancillary, Credentials, Destination, Family, Host, Kind, Place, ReceiveFlags};
use core::mem::ManuallyDrop;
use quire_fs::{Io, SliceSink, SliceSource, Stream};
use quire_heap::{Arc, Vec};
use quire_sync::atomic::{AtomicUsize, Ordering};
use quire_sync::explore::thread;
use quire_sync::protocol;

/// A host for models, whose messages carry sockets.
#[derive(Clone)]
struct Passing;

type Socket = crate::Socket<Passing>;
type Network = &'static crate::Network<Passing>;

/// A reference to an open socket.
struct File(Arc<Opened>);

struct Opened {
    socket: Arc<Socket>,
    /// The number of references, as the checkers see it.
    references: AtomicUsize,
}

impl Clone for File {
    fn clone(&self) -> Self {
        self.0.references.fetch_add(1, Ordering::Relaxed);
        File(self.0.clone())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.0.references.fetch_sub(1, Ordering::Release);
    }
}

impl Host for Passing {
    type File = File;
    type Node = ();
    type Charge = ();

    fn stream_of(file: &File) -> Option<&dyn Stream> {
        Some(&*file.0.socket)
    }
    fn references(file: &File) -> usize {
        file.0.references.load(Ordering::Relaxed)
    }
    fn caller(&self) -> Credentials {
        ME
    }
    fn random(&self) -> u32 {
        7
    }
}

fn network() -> Network {
    quire_sync::hooks::threads::set_cpu(0);
    crate::Network::new(Passing).unwrap()
}

fn open(socket: Arc<Socket>) -> File {
    File(Arc::try_new(Opened { socket, references: AtomicUsize::new(1) }).unwrap())
}

fn pair(network: Network) -> (File, Arc<Socket>) {
    let (one, other) = Socket::pair(network, Kind::Stream, ME).unwrap();
    (open(one), other)
}

/// Sends one byte and a file.
fn send(socket: &Socket, file: File) {
    let files = Vec::try_from_iter([file]).unwrap();
    let ancillary = Ancillary { files, ..Ancillary::none() };
    assert_eq!(socket.send(&Io::NOW, &mut SliceSource::new(&[1]), None, ancillary), Ok(1));
}

/// A thread accepts a connection whose inbox has the only reference to a socket, and drops its reference to the
/// listener. Then the listener is garbage, and the socket is not. The collector counts at the same time.
fn accept_against_collect() {
    let network = network();
    let listener = open(Socket::new(network, Family::Unix, Kind::Stream).unwrap());
    listener.0.socket.bind(Place::Abstract(b"l"), ME).unwrap();
    listener.0.socket.listen(1, ME).unwrap();
    let client = Socket::new(network, Family::Unix, Kind::Stream).unwrap();
    client.connect(&Io::NOW, &Destination::Abstract(b"l"), ME).unwrap();
    let (garbage, feeder) = pair(network);
    let (live, writer) = pair(network);
    assert_eq!(writer.write(&Io::NOW, &mut SliceSource::new(&[9])), Ok(1));
    // The collector counts in the order of these sends: first the sockets to which the listener leads, then the
    // references to the listener.
    send(&feeder, listener.clone());
    send(&feeder, garbage);
    send(&client, live);
    let accepting = thread::spawn(move || {
        let connection = listener.0.socket.accept(&Io::NOW).unwrap();
        drop(listener);
        let got = connection.receive(&Io::NOW, &mut SliceSink::new(&mut [0]), ReceiveFlags::empty());
        let live = got.ok().and_then(|got| got.ancillary.files.first().cloned()).expect("no file came");
        let byte = live.0.socket.read(&Io::NOW, &mut SliceSink::new(&mut [0]));
        assert_eq!(byte, Ok(1), "a socket in use was emptied");
        ManuallyDrop::new((connection, live))
    });
    network.collect();
    let kept = accepting.join().unwrap();
    network.collect();
    assert_eq!(network.collector.in_flight(), 0, "garbage stays");
    drop((kept, client, feeder, writer));
}

protocol! {
    the_collector_empties_no_socket_in_use = accept_against_collect, Some(1);
    CountedOnce: "a socket in use was emptied";
}

/// Two sockets close at the same time. Each has a message with a file in its inbox.
fn close_against_close() {
    let network = network();
    let (kept, other) = pair(network);
    let [(first, first_peer), (second, second_peer)] = [(); 2].map(|()| pair(network));
    send(&first_peer, kept.clone());
    send(&second_peer, kept.clone());
    let closing = thread::spawn(move || drop(first));
    drop(second);
    closing.join().unwrap();
    assert_eq!(Passing::references(&kept), 1, "a closed socket keeps a file");
    drop((kept, other, first_peer, second_peer));
}

protocol! {
    closed_sockets_keep_no_files = close_against_close, Some(2);
    GraveUnseen: "a closed socket keeps a file";
}
