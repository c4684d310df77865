//! Signals: pending ones, a program's actions, and delivery.
//!
//! A signal is *sent* ([`send`]) to a thread or a process. It becomes pending, and a thread that can take it gets a
//! work flag and is woken. The thread itself *delivers* it ([`deliver`]) on its way to user mode: default action, or a
//! frame ([`frame`]) and a handler. A stop for job control is also a delivery ([`send::stop`]).

pub mod action;
pub mod alt_stack;
pub mod calls;
pub mod deliver;
pub mod frame;
pub mod info;
pub mod pending;
pub(crate) mod receiver;
pub mod send;
pub mod set;
pub mod signal_file;
pub mod wait;

pub use action::{Action, Actions, Default, Disposition};
pub use info::{Detail, SigInfo};
pub use pending::Pending;
pub use set::{SigSet, Signal};
