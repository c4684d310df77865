//! The failure of a command: one line that says what to do, and the status that a shell user would expect.

use std::fmt;

/// The message and status with which [`crate::main`] ends. Statuses follow the shell and `timeout(1)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The exit status of `./quire`.
    pub status: u8,
    /// One line; empty if everything was printed already.
    pub message: String,
}

/// The result of all code that talks to the user.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A wrong argument, or something missing on this machine: 2.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self { status: 2, message: message.to_string() }
    }

    /// The time that `--timeout` gave is over: 124, as `timeout(1)`.
    pub fn timed_out(message: impl fmt::Display) -> Self {
        Self { status: 124, message: message.to_string() }
    }

    /// The machine, not the program, failed: 125 (the kernel panicked, QEMU died).
    pub fn machine(message: impl fmt::Display) -> Self {
        Self { status: 125, message: message.to_string() }
    }

    /// The program is there and cannot be run: 126.
    pub fn cannot_run(message: impl fmt::Display) -> Self {
        Self { status: 126, message: message.to_string() }
    }

    /// There is no such program: 127.
    pub fn no_program(message: impl fmt::Display) -> Self {
        Self { status: 127, message: message.to_string() }
    }

    /// Everything was printed already; only the status is left.
    pub fn silent(status: u8) -> Self {
        Self { status, message: String::new() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Adds the current activity to an error.
pub trait Doing<T> {
    /// Turns the error into a [`Failure`] that starts with `what` (status 2).
    fn doing<D: fmt::Display>(self, what: impl FnOnce() -> D) -> Result<T>;
}

impl<T, E: fmt::Display> Doing<T> for std::result::Result<T, E> {
    fn doing<D: fmt::Display>(self, what: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|e| Failure::usage(format_args!("{}: {e}", what())))
    }
}
