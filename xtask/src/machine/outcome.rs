//! The outcome of a run, and the exit status for it.

use super::qemu;
use crate::failure::Failure;

/// The beginnings of the kernel's messages when it cannot run, or cannot use a boot word (`boot/required.rs`).
const REFUSALS: [&str; 2] = ["Quire cannot run on this machine: ", "the boot word "];

/// The way in which a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The program ended with this status.
    Exit(u8),
    /// This signal killed the program.
    Signal(u8),
    /// The time limit of `--timeout` expired.
    TimedOut,
    /// The user ended the machine, or this process got a signal. The field is the signal's number.
    Stopped(u8),
    /// The reader of standard output closed it.
    OutputClosed,
    /// Standard output could not be written. The field is the error message.
    OutputFailed(String),
    /// The kernel panicked.
    Panicked,
    /// The kernel cannot run on this machine. The field is the kernel's message.
    Refused(String),
    /// QEMU ended before the program did. The field is a description of QEMU's end, with its message.
    Died(String),
}

impl Outcome {
    /// The outcome if QEMU ended and the guest did not report the end of its program. `log` is the end of the kernel's
    /// log.
    pub fn of_qemu(code: Option<i32>, shown: &str, complaint: &str, log: &str) -> Self {
        match code {
            Some(qemu::PANICKED) => Self::Panicked,
            Some(qemu::REFUSED) => Self::Refused(
                log.lines()
                    .rev()
                    .find_map(|line| REFUSALS.iter().find_map(|begin| Some(line[line.find(begin)?..].trim_end())))
                    .map(str::to_owned)
                    .unwrap_or_else(|| "the kernel cannot run on this machine, and printed no reason".into()),
            ),
            Some(qemu::ORDERLY) => Self::Died("the machine powered off without reporting a status".into()),
            _ if complaint.is_empty() => Self::Died(format!("QEMU ended: {shown}")),
            _ => Self::Died(complaint.to_owned()),
        }
    }

    /// The outcome as one word, for other tools.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Exit(_) => "exit",
            Self::Signal(_) => "signal",
            Self::TimedOut => "timeout",
            Self::Stopped(_) => "stopped",
            Self::OutputClosed | Self::OutputFailed(_) => "output",
            Self::Panicked => "panic",
            Self::Refused(_) => "refused",
            Self::Died(_) => "machine",
        }
    }

    /// The exit status of `./quire run`: the program's status, or 128+n for a signal. The other statuses follow
    /// `timeout(1)`.
    pub fn status(&self) -> u8 {
        match self {
            Self::Exit(status) => *status,
            Self::Signal(n) | Self::Stopped(n) => 128u8.saturating_add(*n),
            Self::TimedOut => 124,
            Self::OutputClosed => 128 + 13,
            Self::Refused(_) => 2,
            Self::OutputFailed(_) | Self::Panicked | Self::Died(_) => 125,
        }
    }

    /// The outcome as a failure. The end of the program itself has no message.
    pub fn to_failure(&self) -> Failure {
        match self {
            Self::TimedOut => Failure::timed_out("the time limit of --timeout expired; the machine was stopped"),
            Self::OutputFailed(why) => Failure::machine(format_args!("cannot write standard output: {why}")),
            Self::Panicked => {
                Failure::machine("the kernel panicked; the end of its log is above, and -v prints the whole log")
            }
            Self::Refused(why) => Failure::usage(why),
            Self::Died(how) => Failure::machine(how),
            _ => Failure::silent(self.status()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_follow_the_conventions_of_shells() {
        assert_eq!(Outcome::Exit(0).status(), 0);
        assert_eq!(Outcome::Exit(255).status(), 255);
        assert_eq!(Outcome::Signal(9).status(), 137);
        assert_eq!(Outcome::Signal(11).status(), 139);
        assert_eq!(Outcome::Stopped(2).status(), 130);
        assert_eq!(Outcome::Stopped(15).status(), 143);
        assert_eq!(Outcome::OutputClosed.status(), 141);
        assert_eq!(Outcome::TimedOut.status(), 124);
        assert_eq!(Outcome::Panicked.status(), 125);
    }

    #[test]
    fn the_ends_of_qemu_are_distinguished() {
        assert_eq!(Outcome::of_qemu(Some(35), "exit 35", "", ""), Outcome::Panicked);
        assert!(matches!(Outcome::of_qemu(Some(33), "exit 33", "", ""), Outcome::Died(m) if m.contains("powered off")));
        assert!(matches!(Outcome::of_qemu(None, "signal 11", "", ""), Outcome::Died(m) if m.contains("signal 11")));
        assert!(
            matches!(Outcome::of_qemu(Some(1), "exit 1", "no such thing", ""), Outcome::Died(m) if m == "no such thing")
        );
    }

    #[test]
    fn a_refusal_is_the_kernels_own_sentence() {
        let of = |log: &str| Outcome::of_qemu(Some(37), "exit 37", "", log).to_failure();
        for sentence in
            ["Quire cannot run on this machine: its processor lacks nx, sse2", "the boot word swap=abc is not a number"]
        {
            for log in [format!("\r\n{sentence}\r\n"), format!("[    0.000001] other\r\n[    0.01] {sentence}\r\n")] {
                assert_eq!(of(&log), Failure::usage(sentence));
            }
        }
        assert_eq!(of("nothing").status, 2);
        assert!(of("nothing").message.contains("printed no reason"));
    }

    #[test]
    fn an_end_of_the_programs_own_is_silent() {
        assert_eq!(Outcome::Exit(3).to_failure(), Failure::silent(3));
        assert!(!Outcome::Panicked.to_failure().message.is_empty());
    }
}
