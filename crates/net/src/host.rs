//! The interface of the sockets to the system below this crate, and the parts of a message that are not bytes.

use crate::address::{Address, Credentials};
use core::net::IpAddr;
use quire_fs::Stream;
use quire_heap::{Arc, Vec};

/// The files that a message can carry, the caller's credentials, and random numbers.
pub trait Host: Clone + Send + Sync + 'static {
    /// A file that a message can carry.
    type File: Clone + Send + Sync + 'static;
    /// Keeps the inode to which a Unix socket is bound.
    type Node: Send + Sync + 'static;
    /// The charge for files in flight to their sender. It is dropped when the message has arrived or is lost.
    type Charge: Send + Sync + 'static;

    /// The stream that `file` opens, such as a [`Socket`](crate::Socket). `None` for other files.
    fn stream_of(file: &Self::File) -> Option<&dyn Stream>;
    /// The number of references to the file, this one included. A socket has one file.
    fn references(file: &Self::File) -> usize;
    /// The calling thread's credentials.
    fn caller(&self) -> Credentials;
    /// A random number, with which a search for a free port or name starts.
    fn random(&self) -> u32;
}

/// The most files of a message.
pub const FILES_MAX: usize = 253;

/// Fields of the header of an internet datagram that its sender chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The number of hops that are left: the time to live, or the hop limit.
    pub hops: u8,
    /// The type of service, or the traffic class.
    pub class: u8,
}

impl Header {
    /// The header of a datagram whose sender and socket choose nothing.
    pub const USUAL: Header = Header { hops: 64, class: 0 };
}

/// The header of a datagram, for its receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// The address to which the datagram was sent.
    pub to: IpAddr,
    /// The header fields that the sender chose.
    pub header: Header,
}

/// A sender's choices for one internet datagram. They override the options of its socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Choice {
    /// See [`Header::hops`].
    pub hops: Option<u8>,
    /// See [`Header::class`].
    pub class: Option<u8>,
    /// The address from which the datagram is sent. It must be of the destination's family.
    pub from: Option<IpAddr>,
}

/// The part of a message that is not bytes.
pub struct Ancillary<H: Host> {
    /// Open files for the receiver.
    pub files: Vec<H::File>,
    /// The charge to the sender of the files.
    pub charge: Option<H::Charge>,
    /// The identity of the sender.
    pub credentials: Option<Credentials>,
    /// The sender's choices for an internet datagram.
    pub choice: Choice,
}

impl<H: Host> Ancillary<H> {
    /// A value without files, credentials and choices.
    pub const fn none() -> Self {
        let choice = Choice { hops: None, class: None, from: None };
        Ancillary { files: Vec::new(), charge: None, credentials: None, choice }
    }
}

bitflags::bitflags! {
    /// How a message is received.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct ReceiveFlags: u32 {
        /// The data stays in the queue.
        const PEEK = 1;
        /// A read of a stream waits until the buffer is full. With [`PEEK`](Self::PEEK), only a read of a TCP socket
        /// does so.
        const WAIT_ALL = 1 << 1;
        /// The result is the real length of a message, also if only a part of it fits. A TCP socket drops the bytes
        /// instead of storing them.
        const TRUNCATE = 1 << 2;
        /// The result names the sender also if it is the peer of a connection between Unix sockets.
        const SENDER = 1 << 3;
    }
}

/// A received message, or a part of a stream.
pub struct Received<H: Host> {
    /// The number of received bytes, or the real length with [`ReceiveFlags::TRUNCATE`].
    pub bytes: usize,
    /// Whether a datagram or a packet was received, perhaps an empty one. False at the end of a connection.
    pub is_message: bool,
    /// The rest of the message did not fit, and is lost.
    pub truncated: bool,
    /// The sender of a datagram, or the peer with [`ReceiveFlags::SENDER`] if it has a name.
    pub from: Option<Address>,
    /// The header of a received internet datagram.
    pub arrival: Option<Arrival>,
    /// Files and credentials.
    pub ancillary: Ancillary<H>,
}

impl<H: Host> Received<H> {
    pub(crate) const fn nothing() -> Self {
        let (is_message, truncated) = (false, false);
        Received { bytes: 0, is_message, truncated, from: None, arrival: None, ancillary: Ancillary::none() }
    }
}

/// The path or abstract name of a Unix socket, with a reference count.
pub(crate) type NameBytes = Arc<[u8]>;
