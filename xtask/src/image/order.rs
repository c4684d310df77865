//! `/.quire/run`: the guest's program, as lines that no byte can break.
//!
//! A line is one word and one value. Texts are in hexadecimal, so that arguments may hold anything but NUL. `arg HEX`
//! occurs once an argument; the first is the absolute path that is executed. `env HEX` is `NAME=value`, and `cwd HEX`
//! is the directory. `tty 0|1` says whether descriptors 0 to 2 are a terminal or byte streams. `size ROWS COLUMNS` is
//! that terminal's size.

use std::{ffi::OsString, fmt::Write as _, os::unix::ffi::OsStrExt};

/// One program run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Order {
    /// The arguments; the first is the absolute path in the guest.
    pub args: Vec<OsString>,
    /// `NAME=value`.
    pub env: Vec<OsString>,
    /// The directory in which it starts.
    pub cwd: OsString,
    /// A terminal, or plain streams.
    pub tty: bool,
    /// The terminal's rows and columns, where they are known.
    pub size: Option<(u16, u16)>,
}

impl Order {
    /// The file's content.
    pub fn encode(&self) -> String {
        let mut out = String::new();
        for (word, values) in [("arg", &self.args), ("env", &self.env), ("cwd", &vec![self.cwd.clone()])] {
            for value in values {
                let _ = write!(out, "{word} ");
                for byte in value.as_bytes() {
                    let _ = write!(out, "{byte:02x}");
                }
                out.push('\n');
            }
        }
        let _ = writeln!(out, "tty {}", u8::from(self.tty));
        if let Some((rows, columns)) = self.size {
            let _ = writeln!(out, "size {rows} {columns}");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_survive_as_hexadecimal() {
        let order = Order {
            args: vec!["/bin/a".into(), "x\n ".into()],
            env: vec!["A=".into()],
            cwd: "/".into(),
            tty: true,
            size: Some((24, 80)),
        };
        assert_eq!(order.encode(), "arg 2f62696e2f61\narg 780a20\nenv 413d\ncwd 2f\ntty 1\nsize 24 80\n");
    }
}
