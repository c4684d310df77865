//! Sockets between the processes of one machine: Unix domain, and TCP and UDP on the loopback.
//!
//! # Principles
//! - **No packets.** A sender copies bytes into chunks and puts them into the receiver's [inbox]. In this crate TCP has
//!   no segments, no timers and no acknowledgements, because no byte can be lost.
//! - **User memory is accessed with no spin lock held.** A sender fills its chunks first and queues them then. A reader
//!   takes a chunk out, copies it, and puts the unread rest back. So a page fault loses no byte of a stream.
//! - **No wake-up is lost.** An endpoint changes its state before it notifies. A waiter registers before it looks
//!   ([`Readiness`](quire_fs::Readiness)). A writer that finds an inbox full leaves a mark under the inbox's lock. The
//!   reader that makes room finds the mark under the same lock.
//! - **Each endpoint drops its own link.** Two connected endpoints refer to each other. A closing endpoint clears only
//!   its own link, and marks the other endpoint as ended. So there is no cycle, and closing holds one lock at a time.
//! - **Every allocation may fail**, and a failed call leaves the socket as it was.
//! - **No errno, no Linux constant.** Errors are [`FsError`](quire_fs::FsError); the Linux layer translates.
//!
//! # Where to start reading
//! A [`Socket`] is an open file. Its [endpoint] is the part that other sockets reach. [`connect`] makes connections,
//! [`disconnect`] takes peers away, [`stream`] and [`datagram`] move bytes. [`unix`] and [`inet`] give names to
//! endpoints through the tables of a [`Network`]. [`collect`] frees sockets that only messages in each other's inboxes
//! keep alive. [`listing`] shows all sockets.
#![cfg_attr(not(any(test, loom, shuttle)), no_std)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod address;
mod collect;
mod connect;
mod datagram;
mod disconnect;
mod endpoint;
mod host;
mod inbox;
mod inet;
mod listing;
mod mutant;
mod network;
mod options;
mod socket;
mod stream;
mod table;
mod unix;

#[cfg(all(test, any(loom, shuttle)))]
mod models;
#[cfg(all(test, not(any(loom, shuttle))))]
mod test_host;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

pub use address::{Address, Credentials, Destination, Family, Kind, Place};
pub use endpoint::Socket;
pub use host::{Ancillary, Arrival, Choice, FILES_MAX, Header, Host, ReceiveFlags, Received};
pub use listing::{Row, Stage};
pub use network::Network;
pub use options::{Flags, KEPT, Options};
