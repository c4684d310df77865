//! The file `/.quire/run` with the guest's order: the program to run and its surroundings. Any argument can be encoded.
//!
//! Each line is one word and one value. Texts are in hexadecimal, so that arguments may contain any byte except NUL:
//!
//! - `arg HEX`, a line for each argument: the first is the absolute path of the program
//! - `env HEX`: `NAME=value`
//! - `cwd HEX`: the directory where the program starts
//! - `out HEX`, a line for each path whose tree the host wants at the end
//! - `tty 0|1`: whether descriptors 0 to 2 are a terminal or byte streams
//! - `size ROWS COLUMNS`: the size of that terminal

use std::{ffi::OsString, fmt::Write as _, os::unix::ffi::OsStrExt};

/// The order to run one program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Order {
    /// The arguments. The first is the absolute path of the program in the guest.
    pub args: Vec<OsString>,
    /// The environment, as texts `NAME=value`.
    pub env: Vec<OsString>,
    /// The directory in which the program starts.
    pub cwd: OsString,
    /// The paths in the guest whose trees are copied to the host at the end.
    pub results: Vec<OsString>,
    /// Whether descriptors 0 to 2 are a terminal. Otherwise they are byte streams.
    pub tty: bool,
    /// The terminal's rows and columns, if they are known.
    pub size: Option<(u16, u16)>,
}

impl Order {
    /// The content of the file.
    pub fn encode(&self) -> String {
        let mut out = String::new();
        for (word, values) in
            [("arg", &self.args), ("env", &self.env), ("cwd", &vec![self.cwd.clone()]), ("out", &self.results)]
        {
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
            results: vec!["/r".into()],
            tty: true,
            size: Some((24, 80)),
        };
        assert_eq!(order.encode(), "arg 2f62696e2f61\narg 780a20\nenv 413d\ncwd 2f\nout 2f72\ntty 1\nsize 24 80\n");
    }
}
