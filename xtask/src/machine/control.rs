//! The lines of the control port, in both directions.

use std::fmt;

/// A line that is sent to the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToGuest {
    /// The standard input ended after this many bytes.
    Eof(u64),
    /// The foreground process group gets SIGINT.
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
    /// This many bytes of the results follow the line.
    Data(u64),
}

impl FromGuest {
    /// Parses one line without its end. Returns `None` for an unknown line, which the caller skips.
    pub fn parse(line: &str) -> Option<Self> {
        let (word, value) = line.trim_end_matches('\r').split_once(' ')?;
        match word {
            "exit" => value.parse().ok().map(Self::Exit),
            "signal" => value.parse().ok().filter(|n| (1..=64).contains(n)).map(Self::Signal),
            "ready" => value.parse().ok().map(Self::Ready),
            "data" => value.parse().ok().map(Self::Data),
            _ => None,
        }
    }
}

/// One piece of the stream from the guest.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A known line.
    Line(FromGuest),
    /// Bytes of the results.
    Data(&'a [u8]),
}

/// Splits the stream from the guest into lines and bytes of results.
#[derive(Debug, Default)]
pub struct Pieces {
    partial: Vec<u8>,
    /// The number of bytes of results that are still to come.
    data: u64,
}

/// The most bytes of a line. A longer line violates the protocol, and its bytes are dropped.
const LONGEST: usize = 256;

impl Pieces {
    /// Accepts bytes from the guest, and passes the pieces that are complete now to `each`.
    pub fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(Piece<'_>)) {
        while !bytes.is_empty() {
            if self.data > 0 {
                let (now, later) = bytes.split_at(bytes.len().min(usize::try_from(self.data).unwrap_or(usize::MAX)));
                self.data -= now.len() as u64;
                bytes = later;
                each(Piece::Data(now));
                continue;
            }
            let end = bytes.iter().position(|b| *b == b'\n');
            let part = &bytes[..end.unwrap_or(bytes.len())];
            self.partial.extend(part.iter().take(LONGEST - self.partial.len()));
            bytes = &bytes[end.map_or(bytes.len(), |at| at + 1)..];
            if end.is_some() {
                let line = FromGuest::parse(&String::from_utf8_lossy(&self.partial));
                self.partial.clear();
                match line {
                    Some(FromGuest::Data(count)) => self.data = count,
                    Some(line) => each(Piece::Line(line)),
                    None => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pieces: &mut Pieces, bytes: &[u8]) -> String {
        let mut text = String::new();
        pieces.push(bytes, |piece| text.push_str(&format!("{piece:?} ")));
        text
    }

    #[test]
    fn lines_may_come_in_pieces() {
        let mut pieces = Pieces::default();
        assert_eq!(all(&mut pieces, b"re"), "");
        assert_eq!(all(&mut pieces, b"ady 12\nexit 3\nsig"), "Line(Ready(12)) Line(Exit(3)) ");
        assert_eq!(all(&mut pieces, b"nal 9\n"), "Line(Signal(9)) ");
    }

    #[test]
    fn results_are_bytes_between_lines() {
        let mut pieces = Pieces::default();
        assert_eq!(all(&mut pieces, b"data 5\nab"), "Data([97, 98]) ");
        assert_eq!(all(&mut pieces, b"\nexexit 0\n"), "Data([10, 101, 120]) Line(Exit(0)) ");
        assert_eq!(all(&mut pieces, b"data 0\nexit 1\ndata x\nexit 2\n"), "Line(Exit(1)) Line(Exit(2)) ");
    }

    #[test]
    fn a_line_without_end_takes_no_memory_without_end() {
        let mut pieces = Pieces::default();
        for _ in 0..1000 {
            assert_eq!(all(&mut pieces, &[b'x'; 1000]), "");
        }
        assert!(pieces.partial.len() <= LONGEST);
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
