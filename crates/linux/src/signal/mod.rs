//! Calls about signals, and delivery on the way to user mode.
//!
//! A thread *delivers* a pending signal ([`deliver`]) itself: default action, or a frame ([`frame`]) and a handler.
//! [`quire_linux_state::signal`] has the pending signals and their receivers.

pub mod alt_stack;
pub mod calls;
pub(crate) mod core_file;
pub mod deliver;
pub mod frame;
pub mod signal_file;
pub mod wait;
