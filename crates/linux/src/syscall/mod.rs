//! The system call table, its arguments, names and generated page.

pub mod arg;
pub mod names;
pub mod page;
pub mod repeat;
pub mod table;

pub use arg::{Arg, Handler};
pub use repeat::Repeat;
pub use table::{SUPPORTED, dispatch};

/// One line of the generated list of supported calls.
#[derive(Clone, Copy, Debug)]
pub struct Supported {
    /// The call's number.
    pub number: u16,
    /// The call's name.
    pub name: &'static str,
    /// The path of the function that serves the call, from `crates/linux/src`, with a leading `::`.
    pub handler: &'static str,
    /// The supported flags, commands and options. Empty if the call has none.
    pub flags: &'static str,
    /// Missing or different features; empty if none are known.
    pub note: &'static str,
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::test_host::script::run;
    use crate::test_host::steps;
    use linux_raw_sys::general::__NR_getpid;
    use quire_linux_state::Errno;
    use std::collections::BTreeSet;

    /// The calls with a row in `programs/refusals.c`, which refuses their allocations.
    fn rows() -> BTreeSet<String> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../programs/refusals.c");
        let source = std::fs::read_to_string(path).unwrap();
        let row = |line: &str| {
            let rest = line.strip_prefix("ROW(").or_else(|| line.strip_prefix("ROW_BY("))?;
            Some(rest.split(',').next()?.to_owned())
        };
        source.lines().filter_map(row).collect()
    }

    #[test]
    fn the_upper_half_of_a_number_counts_for_nothing() {
        run(|task| {
            let pid = task.pid();
            for number in [0x7_0000_0000, u64::MAX << 32].map(|high| high | u64::from(__NR_getpid)) {
                assert_eq!(steps::call(task.machine, &mut task.regs, number, [0; 6]), pid, "{number:#x}");
            }
            let unknown = steps::call(task.machine, &mut task.regs, 1 << 32 | 0xffff_ffff, [0; 6]);
            assert_eq!(unknown as i64, -i64::from(Errno::ENOSYS.0));
        });
    }

    #[test]
    fn exactly_the_supported_calls_are_tried_without_memory() {
        let rows = rows();
        let supported: BTreeSet<String> = SUPPORTED.iter().map(|call| call.name.to_owned()).collect();
        let missing: Vec<_> = supported.difference(&rows).collect();
        assert!(missing.is_empty(), "programs/refusals.c has no row of {missing:?}");
        let unknown: Vec<_> = rows.difference(&supported).collect();
        assert!(unknown.is_empty(), "programs/refusals.c has rows of {unknown:?}, which are not supported");
    }

    #[test]
    fn only_calls_that_end_things_may_take_the_last_memory() {
        let ends_things = |name: &str| {
            let call = SUPPORTED.iter().find(|call| call.name == name).expect("a supported call");
            quire_linux_state::shortage::ends(u64::from(call.number))
        };
        for name in ["exit", "exit_group", "close", "wait4", "munmap", "unlink"] {
            assert!(ends_things(name), "{name}");
        }
        for name in
            ["fork", "execve", "open", "pipe2", "eventfd2", "mkdir", "dup", "memfd_create", "getpid", "mmap", "kill"]
        {
            assert!(!ends_things(name), "{name}");
        }
    }
}
