//! Models of waits at sockets, run by `RUSTFLAGS="--cfg loom"` and `"--cfg shuttle"`.

mod in_flight;

use crate::{Credentials, Destination, Family, Host, Kind, Place, ReceiveFlags};
use core::mem::ManuallyDrop;
use core::net::SocketAddr;
use quire_fs::{FsError, Io, SliceSink, SliceSource, Stream};
use quire_sync::explore::thread;
use quire_sync::protocol;

/// A host for models, whose messages carry no files.
#[derive(Clone)]
struct ModelHost;

impl Host for ModelHost {
    type File = ();
    type Node = ();
    type Charge = ();

    fn stream_of(_file: &()) -> Option<&dyn Stream> {
        None
    }
    fn references(_file: &()) -> usize {
        1
    }
    fn caller(&self) -> Credentials {
        ME
    }
    fn random(&self) -> u32 {
        7
    }
}

type Socket = crate::Socket<ModelHost>;
type Network = &'static crate::Network<ModelHost>;

const ME: Credentials = Credentials { pid: 1, uid: 2, gid: 3 };
/// A number of bytes that fills the smallest buffer.
const FULL: usize = 4096;

fn network() -> Network {
    quire_sync::hooks::threads::set_cpu(0);
    crate::Network::new(ModelHost).unwrap()
}

fn write(socket: &Socket, bytes: usize) -> Result<usize, FsError> {
    socket.write(&Io::WAIT, &mut SliceSource::new(&[7; FULL][..bytes]))
}

fn read(socket: &Socket) -> Result<usize, FsError> {
    socket.read(&Io::WAIT, &mut SliceSink::new(&mut [0; 2 * FULL]))
}

/// A writer waits for room while the reader makes room.
fn room_against_read() {
    let (writer, reader) = Socket::pair(network(), Kind::Stream, ME).unwrap();
    // The sockets must never be closed. A checker that reports a deadlock drops the values of its model, and a close
    // would then run.
    let (writer, reader) = (ManuallyDrop::new(writer), ManuallyDrop::new(reader));
    writer.options().set_send_buffer(1);
    assert_eq!(write(&writer, FULL), Ok(FULL));
    let reading = thread::spawn(move || {
        let first = read(&reader).unwrap();
        let rest = if first == FULL { read(&reader).unwrap() } else { 0 };
        first + rest
    });
    assert_eq!(write(&writer, 1), Ok(1));
    assert_eq!(reading.join().unwrap(), FULL + 1, "bytes are lost");
}

protocol! {
    a_writer_that_waits_for_room_goes_on = room_against_read, Some(2);
    RoomUnannounced;
}

/// A reader waits while its peer closes.
fn read_against_close() {
    let (reader, peer) = Socket::pair(network(), Kind::Stream, ME).unwrap();
    let closing = thread::spawn(move || drop(peer));
    assert_eq!(read(&reader), Ok(0));
    closing.join().unwrap();
}

protocol! {
    a_reader_learns_of_the_end_of_its_peer = read_against_close, Some(3);
    NotifiedBeforeEnd;
}

/// A reader of a client waits for two bytes while the client leaves its connection for another one. Each connection has
/// one byte.
fn read_against_disconnect() {
    let network = network();
    let at: SocketAddr = "127.0.0.1:5000".parse().unwrap();
    let socket = || Socket::new(network, Family::Inet4, Kind::Stream).unwrap();
    let (listener, client) = (socket(), socket());
    listener.bind(Place::Inet(at), ME).unwrap();
    listener.listen(1, ME).unwrap();
    let connect = |byte| {
        client.connect(&Io::WAIT, &Destination::Inet(at), ME).unwrap();
        let server = listener.accept(&Io::WAIT).unwrap();
        assert_eq!(server.write(&Io::WAIT, &mut SliceSource::new(&[byte])), Ok(1));
        server
    };
    let first = connect(1);
    let reader = client.clone();
    let reading = thread::spawn(move || {
        let mut bytes = [0; 2];
        let got = reader.receive(&Io::WAIT, &mut SliceSink::new(&mut bytes), ReceiveFlags::WAIT_ALL);
        got.map(|got| got.bytes)
    });
    client.disconnect().unwrap();
    drop(connect(2));
    let got = reading.join().unwrap();
    assert_ne!(got, Ok(2), "a read gave bytes of two connections");
    drop(first);
}

protocol! {
    a_read_gives_bytes_of_one_connection = read_against_disconnect, Some(1);
    DisconnectUncounted: "a read gave bytes of two connections";
}

/// A client connects while the listener closes.
fn connect_against_close() {
    let network = network();
    let at: SocketAddr = "127.0.0.1:5000".parse().unwrap();
    let listener = Socket::new(network, Family::Inet4, Kind::Stream).unwrap();
    listener.bind(Place::Inet(at), ME).unwrap();
    listener.listen(1, ME).unwrap();
    let client = Socket::new(network, Family::Inet4, Kind::Stream).unwrap();
    let closing = thread::spawn(move || drop(listener));
    let connected = client.connect(&Io::WAIT, &Destination::Inet(at), ME);
    closing.join().unwrap();
    match connected {
        // The connection was made, and has ended since.
        Ok(()) => assert!(matches!(read(&client), Err(FsError::Reset)), "a refused connection was reported as made"),
        refused => assert_eq!(refused, Err(FsError::Refused)),
    }
}

protocol! {
    a_connection_is_made_or_refused = connect_against_close, Some(2);
    ConnectedUnchecked: "a refused connection was reported as made";
}

/// A client waits for a place at a listener while another client is accepted.
fn connect_against_accept() {
    let network = network();
    // No socket closes, because other models cover closing.
    let socket = || ManuallyDrop::new(Socket::new(network, Family::Unix, Kind::Stream).unwrap());
    let (listener, first, second) = (socket(), socket(), socket());
    listener.bind(Place::Abstract(b"a"), ME).unwrap();
    listener.listen(0, ME).unwrap();
    first.connect(&Io::WAIT, &Destination::Abstract(b"a"), ME).unwrap();
    let accepting = thread::spawn(move || listener.accept(&Io::WAIT).map(ManuallyDrop::new).is_ok());
    assert_eq!(second.connect(&Io::WAIT, &Destination::Abstract(b"a"), ME), Ok(()));
    assert!(accepting.join().unwrap());
}

protocol! {
    a_client_that_waits_for_a_place_goes_on = connect_against_accept, Some(2);
    BacklogUnannounced;
}
