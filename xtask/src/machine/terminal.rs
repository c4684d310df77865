//! The user's terminal. It is in raw mode while a guest uses it, and is restored however the run ends.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

/// A terminal in raw mode. Dropping the value restores the terminal's settings, also while a panic unwinds.
#[derive(Debug)]
pub struct Raw<'a> {
    fd: BorrowedFd<'a>,
    was: Termios,
}

impl<'a> Raw<'a> {
    /// Switches `fd` to raw mode. Returns `None` if `fd` is no terminal.
    pub fn enter(fd: BorrowedFd<'a>) -> Option<Self> {
        let was = tcgetattr(fd).ok()?;
        let mut raw = was.clone();
        raw.make_raw();
        tcsetattr(fd, OptionalActions::Drain, &raw).ok()?;
        Some(Self { fd, was })
    }
}

impl Drop for Raw<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.fd, OptionalActions::Drain, &self.was);
    }
}

/// Whether standard input and standard output are both a terminal.
pub fn interactive() -> bool {
    isatty(rustix::stdio::stdin()) && isatty(rustix::stdio::stdout())
}

/// The rows and columns of a terminal. `None` if they are unknown.
pub fn size(fd: impl AsFd) -> Option<(u16, u16)> {
    let size = tcgetwinsize(fd).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}

#[cfg(test)]
mod tests {
    use rustix::{
        fs::{Mode, OFlags},
        pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
        termios::LocalModes,
    };

    use super::*;

    #[test]
    fn the_terminal_is_restored_also_when_a_panic_unwinds() {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let terminal = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let canonical = || tcgetattr(&terminal).unwrap().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO);
        assert!(canonical());
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _raw = Raw::enter(terminal.as_fd()).unwrap();
            assert!(!canonical());
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(unwound.is_err());
        assert!(canonical());
    }

    #[test]
    fn a_file_is_no_terminal() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Raw::enter(file.as_fd()).is_none());
        assert_eq!(size(&file), None);
    }
}
