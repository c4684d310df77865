//! The control port's lines, in both directions.

use std::fmt;

/// A line to the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToGuest {
    /// The standard input ended after this many bytes.
    Eof(u64),
    /// SIGINT to the foreground group.
    Interrupt,
    /// The terminal has this many rows and columns.
    WindowSize(u16, u16),
}

impl fmt::Display for ToGuest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eof(bytes) => writeln!(f, "eof {bytes}"),
            Self::Interrupt => writeln!(f, "int"),
            Self::WindowSize(rows, columns) => writeln!(f, "winch {rows} {columns}"),
        }
    }
}

/// A line from the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromGuest {
    /// The program ended with this status.
    Exit(u8),
    /// The program died of this signal.
    Signal(u8),
    /// The first user instruction ran this many nanoseconds after the kernel started.
    Ready(u64),
}

impl FromGuest {
    /// Reads one line without its end. An unknown line gives `None`, and the caller skips it.
    pub fn parse(line: &str) -> Option<Self> {
        let (word, value) = line.trim_end_matches('\r').split_once(' ')?;
        match word {
            "exit" => value.parse().ok().map(Self::Exit),
            "signal" => value.parse().ok().filter(|n| (1..=64).contains(n)).map(Self::Signal),
            "ready" => value.parse().ok().map(Self::Ready),
            _ => None,
        }
    }
}

/// Splits a stream of bytes into lines.
#[derive(Debug, Default)]
pub struct Lines {
    partial: Vec<u8>,
}

/// A longer line breaks the protocol, and its bytes are dropped.
const LONGEST: usize = 256;

impl Lines {
    /// Takes bytes and returns the lines that are complete now.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut whole = Vec::new();
        for byte in bytes {
            if *byte == b'\n' {
                whole.push(String::from_utf8_lossy(&self.partial).into_owned());
                self.partial.clear();
            } else if self.partial.len() < LONGEST {
                self.partial.push(*byte);
            }
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_may_come_in_pieces() {
        let mut lines = Lines::default();
        assert!(lines.push(b"re").is_empty());
        assert_eq!(lines.push(b"ady 12\nexit 3\nsig"), ["ready 12", "exit 3"]);
        assert_eq!(lines.push(b"nal 9\n"), ["signal 9"]);
    }

    #[test]
    fn a_line_without_end_takes_no_memory_without_end() {
        let mut lines = Lines::default();
        for _ in 0..1000 {
            lines.push(&[b'x'; 1000]);
        }
        assert!(lines.partial.len() <= LONGEST);
    }

    #[test]
    fn statuses_and_signals_are_read_and_nonsense_is_not() {
        assert_eq!(FromGuest::parse("exit 0"), Some(FromGuest::Exit(0)));
        assert_eq!(FromGuest::parse("exit 255\r"), Some(FromGuest::Exit(255)));
        assert_eq!(FromGuest::parse("signal 11"), Some(FromGuest::Signal(11)));
        assert_eq!(FromGuest::parse("ready 123456789"), Some(FromGuest::Ready(123_456_789)));
        for bad in ["", "exit", "exit 256", "exit -1", "exit x", "signal 0", "signal 65", "ready", "hello 1"] {
            assert_eq!(FromGuest::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn each_message_to_the_guest_is_one_line() {
        assert_eq!(ToGuest::Eof(17).to_string(), "eof 17\n");
        assert_eq!(ToGuest::Interrupt.to_string(), "int\n");
        assert_eq!(ToGuest::WindowSize(24, 80).to_string(), "winch 24 80\n");
    }
}
