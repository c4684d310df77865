//! Signals: a program's actions, pending signals, and the threads that receive them.
//!
//! A signal is *sent* ([`send`]) to a thread or a process. The signal then is pending. A thread that may receive it
//! gets a work flag and is woken. This thread delivers the signal on its way to user mode. A stop by job control is
//! also a delivery ([`send::stop`]).

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
