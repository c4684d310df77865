//! Generates the page of supported calls, `docs/system-calls.md`, from the table. A test fails when the page is stale.
//! `cargo run -p quire-linux --example system-calls` prints a new one.

use crate::syscall::{SUPPORTED, Supported, names};
use core::fmt::{self, Write};

/// A test program: a name, and its text in C.
pub struct Program<'a> {
    /// The program's name in `programs/`.
    pub name: &'a str,
    /// The program's source text.
    pub text: &'a str,
}

/// Programs that make every call. Rows do not name them as tests.
const OF_ALL: [&str; 3] = ["attack", "refusals", "siege"];
/// The most programs that a row names.
const SHOWN: usize = 3;

/// Names of calls, each with the libc function of another name that makes the call.
const WRAPPERS: &[(&str, &str)] = &[
    ("clone", "pthread_create"),
    ("clone3", "pthread_create"),
    ("exit_group", "exit"),
    ("fadvise64", "posix_fadvise"),
    ("getdents64", "readdir"),
    ("mq_getsetattr", "mq_getattr"),
    ("mq_timedreceive", "mq_receive"),
    ("mq_timedsend", "mq_send"),
    ("newfstatat", "fstatat"),
    ("prlimit64", "prlimit"),
    ("pselect6", "pselect"),
    ("semtimedop", "semop"),
    ("umount2", "umount"),
    ("wait4", "waitpid"),
];

/// Writes the whole page. The row of a call names some of the programs that make the call.
pub fn write(out: &mut dyn Write, programs: &[Program<'_>]) -> fmt::Result {
    let known = (0..names::END).filter(|number| names::name(*number).is_some()).count();
    writeln!(out, "# System calls\n")?;
    writeln!(out, "Generated from the dispatch table (`crates/linux/src/syscall/table.rs`) and `programs/*.c` by")?;
    writeln!(out, "`cargo run -p quire-linux --example system-calls > docs/system-calls.md`.\n")?;
    writeln!(
        out,
        "{} of the {known} calls that Linux has on x86-64 are there. The others return ENOSYS, and",
        SUPPORTED.len()
    )?;
    writeln!(
        out,
        "`./quire run -v` logs each of them once by name. A note names each part that is missing or different."
    )?;
    writeln!(out, "Any other difference from Linux is a bug.\n")?;
    writeln!(
        out,
        "The function is below `crates/linux/src`. The tests are the programs of `programs/` that make the call"
    )?;
    writeln!(out, "most, up to {SHOWN}.")?;
    writeln!(out, "`refusals` and `siege` make every call too: without memory, and with any arguments.\n")?;
    writeln!(out, "| number | name | supports | missing or different | function | tests |\n|---|---|---|---|---|---|")?;
    for call in SUPPORTED {
        let Supported { number, name, handler, flags, note } = *call;
        write!(out, "| {number} | `{name}` | {flags} | {note} | `{}` | ", handler.trim_start_matches("::"))?;
        // The programs that make the call most often. Among programs with an equal number, the first by name win.
        let mut most = [(0, ""); SHOWN];
        for program in programs.iter().filter(|program| !OF_ALL.contains(&program.name)) {
            let made = (times(name, program.text), program.name);
            let at = most.partition_point(|(n, _)| *n >= made.0);
            if at < SHOWN {
                most[at..].rotate_right(1);
                most[at] = made;
            }
        }
        for (n, (_, program)) in most.iter().enumerate().filter(|(_, (n, _))| *n > 0) {
            write!(out, "{}`{program}`", if n == 0 { "" } else { ", " })?;
        }
        writeln!(out, " |")?;
    }
    Ok(())
}

/// The number of places where a program makes the call, by its number or by a libc function.
fn times(name: &str, text: &str) -> usize {
    let plain = name.strip_prefix("rt_").unwrap_or(name);
    let plain = plain.strip_suffix("64").filter(|plain| plain.starts_with('p')).unwrap_or(plain);
    let wrapper = WRAPPERS.iter().find(|(call, _)| *call == name).map(|(_, wrapper)| *wrapper);
    let begins = |at: usize| !text[..at].ends_with(|c: char| is_word(c) || c == '.');
    let called = |function: &str| {
        let found = text.match_indices(function).map(|(at, _)| (at, &text[at + function.len()..]));
        found.filter(|(at, rest)| begins(*at) && rest.starts_with('(')).count()
    };
    let numbered = |before: &str| {
        let found = text.match_indices(before).filter_map(|(at, _)| text[at + before.len()..].strip_prefix(name));
        found.filter(|rest| !rest.starts_with(is_word)).count()
    };
    let functions = [Some(name), Some(plain).filter(|plain| *plain != name), wrapper];
    functions.into_iter().flatten().map(called).sum::<usize>() + numbered("SYS_") + numbered("__NR_")
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::string::String;
    use std::vec::Vec;

    const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

    #[test]
    fn the_page_in_docs_matches_the_table() {
        let there = std::fs::read_to_string(std::format!("{ROOT}/docs/system-calls.md")).unwrap_or_default();
        let texts: Vec<(String, String)> = sources();
        let programs: Vec<_> = texts.iter().map(|(name, text)| Program { name, text }).collect();
        let mut page = String::new();
        write(&mut page, &programs).unwrap();
        assert!(
            there == page,
            "docs/system-calls.md is stale: cargo run -p quire-linux --example system-calls > docs/system-calls.md"
        );
    }

    /// The names and sources of all programs, sorted by name.
    fn sources() -> Vec<(String, String)> {
        let files = std::fs::read_dir(std::format!("{ROOT}/programs")).unwrap();
        let mut all: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        all.sort();
        let sources = all.iter().filter(|file| file.extension().is_some_and(|end| end == "c"));
        let name = |file: &std::path::PathBuf| file.file_stem().unwrap().to_string_lossy().into_owned();
        sources.map(|file| (name(file), std::fs::read_to_string(file).unwrap())).collect()
    }

    #[test]
    fn a_call_is_found_by_its_number_and_by_its_functions() {
        assert_eq!(times("mmap", "x = mmap(0); syscall(SYS_mmap, 1)"), 2);
        assert_eq!(times("mmap", "munmap(0) mmap_it(0) SYS_mmap2"), 0);
        assert_eq!(times("read", "file.read(1) pread(1)"), 0);
        assert_eq!(times("rt_sigaction", "sigaction(1)") + times("pread64", "pread(1)"), 2);
        assert_eq!(times("wait4", "waitpid(1) syscall(__NR_wait4)"), 2);
    }

    #[test]
    fn numbers_and_names_agree_with_linux() {
        assert!(SUPPORTED.is_sorted_by_key(|call| call.number));
        for call in SUPPORTED {
            assert_eq!(names::name(u64::from(call.number)), Some(call.name));
        }
    }
}
