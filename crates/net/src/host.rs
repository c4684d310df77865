//! The system beneath the sockets, and the parts of a message that it knows.

use crate::address::{Address, Credentials};
use core::net::IpAddr;
use quire_fs::Stream;
use quire_heap::{Arc, Vec};

/// The files a message can carry, and random numbers.
pub trait Host: Clone + Send + Sync + 'static {
    /// A file that a message can carry.
    type File: Clone + Send + Sync + 'static;
    /// Keeps the inode to which a Unix socket is bound.
    type Node: Send + Sync + 'static;
    /// A charge to the sender of files, until the message has arrived or is lost.
    type Charge: Send + Sync + 'static;

    /// The stream that `file` opens, such as a [`Socket`](crate::Socket).
    fn stream_of(file: &Self::File) -> Option<&dyn Stream>;
    /// The number of references to the file, this one included. A socket has one file.
    fn references(file: &Self::File) -> usize;
    /// The calling thread's credentials.
    fn caller(&self) -> Credentials;
    /// A random number, where a search for a free port or name starts.
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
    /// The header of a datagram whose sender says nothing.
    pub const USUAL: Header = Header { hops: 64, class: 0 };
}

/// The header of a datagram, for its receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// The address to which it was sent.
    pub to: IpAddr,
    /// The sender's choice.
    pub header: Header,
}

/// A sender's choices for one internet datagram. They go before its socket's options.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Choice {
    /// See [`Header::hops`].
    pub hops: Option<u8>,
    /// See [`Header::class`].
    pub class: Option<u8>,
    /// The address from which it is sent. It must be of the destination's family.
    pub from: Option<IpAddr>,
}

/// The part of a message that is not bytes.
pub struct Ancillary<H: Host> {
    /// Open files for the receiver.
    pub files: Vec<H::File>,
    /// The charge to the sender of the files.
    pub charge: Option<H::Charge>,
    /// The sender.
    pub credentials: Option<Credentials>,
    /// The header of an internet datagram.
    pub choice: Choice,
}

impl<H: Host> Ancillary<H> {
    /// Nothing.
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
        /// A read of a stream waits for all bytes; with [`PEEK`](Self::PEEK), only that of a TCP socket.
        const WAIT_ALL = 1 << 1;
        /// Report a message's real length, also where only a part of it fits. A TCP socket drops the bytes instead of
        /// storing them.
        const TRUNCATE = 1 << 2;
        /// Report the sender also where it is the peer of a connection between Unix sockets.
        const SENDER = 1 << 3;
    }
}

/// A received message, or a part of a stream.
pub struct Received<H: Host> {
    /// Received bytes, or the real length with [`ReceiveFlags::TRUNCATE`].
    pub bytes: usize,
    /// A datagram or a packet came, perhaps without bytes. Nothing comes at an end.
    pub is_message: bool,
    /// The rest of the message did not fit, and is lost.
    pub truncated: bool,
    /// The sender of a datagram, or the peer with [`ReceiveFlags::SENDER`] if it has a name.
    pub from: Option<Address>,
    /// The header of an internet datagram.
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

/// The path or abstract name of a Unix socket, counted.
pub(crate) type NameBytes = Arc<[u8]>;
