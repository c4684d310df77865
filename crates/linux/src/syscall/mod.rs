//! The system call table and what stands around it.

pub mod arg;
pub mod names;
pub mod table;

pub use arg::{Arg, Handler};
pub use table::{SUPPORTED, dispatch};

/// One line of the generated list of what is supported.
#[derive(Clone, Copy, Debug)]
pub struct Supported {
    /// The call's number.
    pub number: u16,
    /// Its name.
    pub name: &'static str,
    /// What of it is missing or different; empty where nothing is known to be.
    pub note: &'static str,
}
