//! The `#!` lines of scripts.

use quire_heap::Vec;
use quire_linux_state::errno::Errno;

/// The number of bytes at a file's start that decide its format.
pub const HEAD_LEN: usize = 256;

/// The contents of a `#!` line.
#[derive(PartialEq, Eq, Debug)]
pub struct Line {
    /// The interpreter.
    pub interpreter: Vec<u8>,
    /// The rest of the line, as one argument.
    pub argument: Option<Vec<u8>>,
}

fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Parses the line at the start of `head`, which has a file's first bytes, at most [`HEAD_LEN`]. `None` if the file is
/// no script. ENOEXEC if the line has no name, or if the name does not end within `head`.
pub fn parse(head: &[u8]) -> Result<Option<Line>, Errno> {
    let Some(rest) = head.strip_prefix(b"#!") else { return Ok(None) };
    let end = rest.iter().position(|b| matches!(b, b'\n' | b'\0'));
    let line = &rest[..end.unwrap_or(rest.len())];
    let line = &line[line.iter().take_while(|b| is_blank(b)).count()..];
    let name_len = line.iter().position(is_blank);
    if name_len.is_none() && end.is_none() && head.len() >= HEAD_LEN {
        // The name is cut off, and a program with the shorter name must not be run.
        return Err(Errno::ENOEXEC);
    }
    let (name, rest) = line.split_at(name_len.unwrap_or(line.len()));
    if name.is_empty() {
        return Err(Errno::ENOEXEC);
    }
    let rest = &rest[rest.iter().take_while(|b| is_blank(b)).count()..];
    let rest = &rest[..rest.len() - rest.iter().rev().take_while(|b| is_blank(b)).count()];
    let argument = if rest.is_empty() { None } else { Some(Vec::try_copy(rest)?) };
    Ok(Some(Line { interpreter: Vec::try_copy(name)?, argument }))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn copy(bytes: &[u8]) -> Vec<u8> {
        Vec::try_copy(bytes).expect("memory")
    }

    type Parts = (Vec<u8>, Option<Vec<u8>>);

    fn line(head: &[u8]) -> Result<Option<Parts>, Errno> {
        parse(head).map(|l| l.map(|l| (l.interpreter, l.argument)))
    }

    #[test]
    fn interpreter_and_one_argument_are_found() {
        assert_eq!(line(b"#!/bin/sh\necho"), Ok(Some((copy(b"/bin/sh"), None))));
        assert_eq!(line(b"#! \t/bin/awk  -f x \n"), Ok(Some((copy(b"/bin/awk"), Some(copy(b"-f x"))))));
        assert_eq!(line(b"#!/bin/sh"), Ok(Some((copy(b"/bin/sh"), None))));
        assert_eq!(line(b"#!  \n"), Err(Errno::ENOEXEC));
        assert_eq!(line(b"\x7fELF"), Ok(None));
    }

    #[test]
    fn a_name_that_is_cut_off_is_refused() {
        let mut head = b"#!/".to_vec();
        head.resize(HEAD_LEN, b'x');
        assert_eq!(line(&head), Err(Errno::ENOEXEC));
    }

    proptest! {
        #[test]
        fn no_head_makes_it_panic(rest in proptest::collection::vec(any::<u8>(), 0..HEAD_LEN - 2)) {
            let mut head = b"#!".to_vec();
            head.extend(rest);
            if let Ok(Some(l)) = parse(&head) {
                prop_assert!(!l.interpreter.is_empty());
            }
        }
    }
}
