//! Signals: a program's actions, pending ones, and their receivers.
//!
//! A signal is *sent* ([`send`]) to a thread or a process. It becomes pending, and a thread that can take it gets a
//! work flag and is woken. The thread itself delivers it on its way to user mode. A stop for job control is also a
//! delivery ([`send::stop`]).

pub mod action;
pub mod info;
pub mod pending;
pub mod receiver;
pub mod send;
pub mod set;

pub use action::{Action, Actions, Default, Disposition};
pub use info::{Detail, SigInfo};
pub use pending::Pending;
pub use set::{SigSet, Signal};
