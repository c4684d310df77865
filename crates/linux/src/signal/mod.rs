//! Signals: what is pending, what a program wants done, and doing it.
//!
//! A signal is *sent* ([`send`]) to a thread or a process: it becomes pending, and a thread that can take it is told
//! through its work flags and woken. It is *delivered* ([`deliver`]) by the thread itself on its way to user mode: default
//! action, or a frame ([`frame`]) and a handler. Stopping for job control is a delivery too ([`send::stop`]).

pub mod action;
pub mod alt_stack;
pub mod calls;
pub mod deliver;
pub mod frame;
pub mod info;
pub mod pending;
pub mod send;
pub mod set;
pub mod wait;

pub use action::{Action, Actions, Default, Disposition};
pub use info::{Detail, SigInfo};
pub use pending::Pending;
pub use set::{SigSet, Signal};
