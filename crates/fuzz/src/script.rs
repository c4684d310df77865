//! `#!` lines: when the parsed parts are written down again, they must parse to the same parts.

use quire_linux::exec::script::{HEAD_LEN, Line, parse};

/// Parses the bytes as the beginning of a file.
pub fn run(data: &[u8]) {
    let head = &data[..data.len().min(HEAD_LEN)];
    let Ok(found) = parse(head) else { return };
    assert_eq!(found.is_some(), head.starts_with(b"#!"));
    let Some(Line { interpreter, argument }) = found else { return };
    let blank = |b: &u8| matches!(b, b' ' | b'\t');
    assert!(!interpreter.is_empty() && !interpreter.iter().any(|b| blank(b) || matches!(b, b'\n' | 0)));
    let mut again = b"#!".to_vec();
    again.extend_from_slice(&interpreter);
    if let Some(argument) = &argument {
        let (first, last) = (argument.first().expect("not empty"), argument.last().expect("not empty"));
        assert!(!blank(first) && !blank(last) && !argument.iter().any(|b| matches!(b, b'\n' | 0)));
        again.push(b' ');
        again.extend_from_slice(argument);
    }
    again.push(b'\n');
    assert_eq!(parse(&again), Ok(Some(Line { interpreter, argument })));
}
