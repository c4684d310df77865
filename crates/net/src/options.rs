//! The options of a socket.

use crate::host::Header;
use quire_sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

bitflags::bitflags! {
    /// Options that are on or off.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Flags: u32 {
        /// The socket may share its address with sockets that do not listen.
        const REUSE_ADDRESS = 1;
        /// Sockets of one user may share an address. Connections and messages are distributed among them.
        const REUSE_PORT = 1 << 1;
        /// Stored, without effect.
        const KEEP_ALIVE = 1 << 2;
        /// Stored, without effect: data is never delayed.
        const NO_DELAY = 1 << 3;
        /// Stored, without effect: the loopback has no broadcasts.
        const BROADCAST = 1 << 4;
        /// The socket receives the sender's credentials with each message.
        const PASS_CREDENTIALS = 1 << 5;
        /// The IPv6 socket does not use IPv4.
        const V6_ONLY = 1 << 6;
        /// Stored, without effect: there is no urgent data.
        const INLINE_URGENT = 1 << 7;
        /// Stored, without effect.
        const CORK = 1 << 8;
    }
}

/// The initial size of a buffer, in bytes.
const BUFFER: usize = 212_992;
/// The smallest size of a buffer, in bytes.
const LEAST: usize = 2_304;
/// The value of `linger` without lingering.
const OFF: u64 = u64::MAX;

const fn word(header: Header) -> u32 {
    u32::from_le_bytes([header.class, header.hops, 0, 0])
}

/// The options of a socket. Each is an atomic that is read and changed independently of the others.
pub struct Options {
    flags: AtomicU32,
    send_buffer: AtomicUsize,
    receive_buffer: AtomicUsize,
    low_water: AtomicUsize,
    receive_timeout: AtomicU64,
    send_timeout: AtomicU64,
    linger: AtomicU64,
    /// The default headers of datagrams in IPv4 and in IPv6.
    headers: [AtomicU32; 2],
    kept: [AtomicU32; KEPT],
}

/// The number of options without effect whose values a socket stores for the program.
pub const KEPT: usize = 28;

macro_rules! value {
    ($($(#[$doc:meta])* $get:ident $set:ident $type:ty: $least:expr;)*) => {
        $($(#[$doc])*
        pub fn $get(&self) -> $type {
            self.$get.load(Ordering::Relaxed)
        }
        /// Changes the value.
        pub fn $set(&self, value: $type) {
            self.$get.store(value.max($least), Ordering::Relaxed);
        })*
    };
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    pub(crate) fn new() -> Self {
        Options {
            flags: AtomicU32::new(0),
            send_buffer: AtomicUsize::new(BUFFER),
            receive_buffer: AtomicUsize::new(BUFFER),
            low_water: AtomicUsize::new(1),
            receive_timeout: AtomicU64::new(0),
            send_timeout: AtomicU64::new(0),
            linger: AtomicU64::new(OFF),
            headers: core::array::from_fn(|_| AtomicU32::new(word(Header::USUAL))),
            kept: core::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// The options of a connection that `self`, a listener, accepts.
    pub(crate) fn inherited(&self, unix: bool) -> Self {
        let new = Options::new();
        new.flags.store(self.flags.load(Ordering::Relaxed), Ordering::Relaxed);
        if unix {
            return new;
        }
        new.set_send_buffer(self.send_buffer());
        new.set_receive_buffer(self.receive_buffer());
        new.set_low_water(self.low_water());
        new.set_receive_timeout(self.receive_timeout());
        new.set_send_timeout(self.send_timeout());
        new.set_linger(self.linger());
        new.kept
            .iter()
            .zip(&self.kept)
            .for_each(|(to, from)| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed));
        new
    }

    /// The header of a datagram whose sender chooses none, in IPv6 if `six` is set, otherwise in IPv4.
    pub fn header(&self, six: bool) -> Header {
        let [class, hops, ..] = self.headers[usize::from(six)].load(Ordering::Relaxed).to_le_bytes();
        Header { hops, class }
    }

    /// Changes [`header`](Self::header).
    pub fn set_header(&self, six: bool, header: Header) {
        self.headers[usize::from(six)].store(word(header), Ordering::Relaxed);
    }

    /// The value that is stored at `place`, which is below [`KEPT`]. The initial value is 0.
    pub fn kept(&self, place: usize) -> u32 {
        self.kept.get(place).map_or(0, |value| value.load(Ordering::Relaxed))
    }

    /// Stores a value at `place`, which is below [`KEPT`].
    pub fn keep(&self, place: usize, value: u32) {
        if let Some(to) = self.kept.get(place) {
            to.store(value, Ordering::Relaxed);
        }
    }

    /// Whether `flag` is on.
    pub fn has(&self, flag: Flags) -> bool {
        self.flags.load(Ordering::Relaxed) & flag.bits() != 0
    }

    /// Changes `flag`.
    pub fn set(&self, flag: Flags, on: bool) {
        match on {
            true => self.flags.fetch_or(flag.bits(), Ordering::Relaxed),
            false => self.flags.fetch_and(!flag.bits(), Ordering::Relaxed),
        };
    }

    value! {
        /// The most bytes that a Unix socket sends before they are read, or a TCP socket before the peer has room.
        send_buffer set_send_buffer usize: LEAST;
        /// The most bytes that wait at an internet socket.
        receive_buffer set_receive_buffer usize: LEAST;
        /// The number of bytes for which a read of a stream waits.
        low_water set_low_water usize: 1;
        /// The most nanoseconds that a read waits. 0: no limit.
        receive_timeout set_receive_timeout u64: 0;
        /// The most nanoseconds that a write waits. 0: no limit.
        send_timeout set_send_timeout u64: 0;
    }

    /// The seconds that closing may wait. With `Some(0)`, closing a TCP connection resets it. `None`: no lingering.
    pub fn linger(&self) -> Option<u32> {
        u32::try_from(self.linger.load(Ordering::Relaxed)).ok()
    }

    /// Changes [`linger`](Self::linger).
    pub fn set_linger(&self, seconds: Option<u32>) {
        self.linger.store(seconds.map_or(OFF, u64::from), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn options_are_kept_and_inherited() {
        let options = Options::new();
        assert_eq!((options.linger(), options.low_water()), (None, 1));
        options.set_linger(Some(0));
        options.set_low_water(0);
        options.set_send_buffer(0);
        options.set(Flags::NO_DELAY | Flags::V6_ONLY, true);
        options.set(Flags::NO_DELAY, false);
        let new = options.inherited(false);
        assert_eq!((new.linger(), new.low_water(), new.send_buffer()), (Some(0), 1, LEAST));
        assert!(new.has(Flags::V6_ONLY) && !new.has(Flags::NO_DELAY));
        new.set_linger(Some(u32::MAX));
        assert_eq!(new.linger(), Some(u32::MAX));
    }
}
