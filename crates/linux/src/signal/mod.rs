//! System calls for signals, and the delivery of signals before a return to user mode.
//!
//! A thread *delivers* its pending signals itself ([`deliver`]): it takes the default action, or pushes a frame
//! ([`frame`]) and enters the handler. [`quire_linux_state::signal`] stores pending signals and finds their receivers.

pub mod alt_stack;
pub mod calls;
pub(crate) mod core_file;
pub mod deliver;
pub mod frame;
pub mod signal_file;
pub mod wait;
