//! The page of supported calls, made from the table. `docs/system-calls.md` is its output. A test fails when it is
//! stale, and `cargo run -p quire-linux --example system-calls` prints it anew.

use super::{SUPPORTED, names};
use core::fmt::Write;

/// Writes the whole page.
pub fn write(out: &mut dyn Write) -> core::fmt::Result {
    let known = (0..names::END).filter(|number| names::name(*number).is_some()).count();
    writeln!(out, "# System calls\n")?;
    writeln!(out, "Generated from the dispatch table (`crates/linux/src/syscall/table.rs`) by")?;
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
    writeln!(out, "| number | name | note |\n|---|---|---|")?;
    for call in SUPPORTED {
        writeln!(out, "| {} | `{}` | {} |", call.number, call.name, call.note)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_docs_matches_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/system-calls.md");
        let there = std::fs::read_to_string(path).unwrap_or_default();
        let mut page = String::new();
        write(&mut page).unwrap();
        assert!(
            there == page,
            "docs/system-calls.md is stale: cargo run -p quire-linux --example system-calls > docs/system-calls.md"
        );
    }

    #[test]
    fn numbers_and_names_agree_with_linux() {
        assert!(SUPPORTED.is_sorted_by_key(|call| call.number));
        for call in SUPPORTED {
            assert_eq!(names::name(u64::from(call.number)), Some(call.name));
        }
    }
}
