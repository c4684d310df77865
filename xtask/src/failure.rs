//! Failures of the commands: one line that says what to do, and the exit status that a shell user expects.

use std::fmt;

/// The message and the exit status with which [`crate::main`] ends. The statuses follow the shell and `timeout(1)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The exit status of `./quire`.
    pub status: u8,
    /// One line for the user. Empty if the message was printed already.
    pub message: String,
}

/// The result of all functions that report to the user.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A wrong argument, or something that the host lacks. Status 2.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self { status: 2, message: message.to_string() }
    }

    /// The time limit of `--timeout` expired. Status 124, as for `timeout(1)`.
    pub fn timed_out(message: impl fmt::Display) -> Self {
        Self { status: 124, message: message.to_string() }
    }

    /// The machine failed, not the program: the kernel panicked, or QEMU died. Status 125.
    pub fn machine(message: impl fmt::Display) -> Self {
        Self { status: 125, message: message.to_string() }
    }

    /// The program exists but cannot be run. Status 126.
    pub fn cannot_run(message: impl fmt::Display) -> Self {
        Self { status: 126, message: message.to_string() }
    }

    /// There is no such program. Status 127.
    pub fn no_program(message: impl fmt::Display) -> Self {
        Self { status: 127, message: message.to_string() }
    }

    /// The message was printed already, so only the status is needed.
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

/// Adds a description of the failed action to an error.
pub trait Doing<T> {
    /// Turns the error into a [`Failure`] that starts with `what` (status 2).
    fn doing<D: fmt::Display>(self, what: impl FnOnce() -> D) -> Result<T>;
}

impl<T, E: fmt::Display> Doing<T> for std::result::Result<T, E> {
    fn doing<D: fmt::Display>(self, what: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|e| Failure::usage(format_args!("{}: {e}", what())))
    }
}
