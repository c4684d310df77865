//! The words of the kernel's command line. The kernel ignores unknown words, because boot loaders add some. This tool
//! checks the user's words before the machine starts, and reports an unknown word as an error.

use crate::failure::{Failure, Result};

/// All words that the kernel reads: those that `docs/commands.md` describes, and those for tests.
const WORDS: &[&str] = &[
    "hung_task_timeout_secs",
    "invert",
    "layers",
    "lockup",
    "memtest",
    "panic",
    "swap",
    "tick",
    "tmpfs-inodes",
    "tmpfs-size",
    "trace",
    "verbose",
    "virtio_mmio.device",
    "watchdog",
    "watchdog_thresh",
    "zero-window",
];

/// The most letters in which a mistyped word differs from a known word.
const NEAR: usize = 2;

/// Returns an error for the first word that Quire's kernel does not know.
pub fn check(line: &str) -> Result<()> {
    match names(line).find(|name| !WORDS.contains(name)) {
        Some(name) => Err(unknown(name, nearest(name))),
        None => Ok(()),
    }
}

/// Checks words that Linux gets too. An unknown word may be a word of Linux. So it is an error only if it is similar to
/// a word of Quire.
pub fn check_for_both(line: &str) -> Result<()> {
    let unknown = names(line).filter(|name| !WORDS.contains(name)).find_map(|name| Some((name, nearest(name)?)));
    unknown.map_or(Ok(()), |(name, near)| Err(self::unknown(name, Some(near))))
}

/// The names of the words in a line, without their values.
fn names(line: &str) -> impl Iterator<Item = &str> {
    line.split_whitespace().filter_map(|word| word.split('=').next())
}

fn nearest(name: &str) -> Option<&'static str> {
    let near = WORDS.iter().map(|word| (strsim::osa_distance(name, word), *word)).min()?;
    (near.0 <= NEAR && near.0 < name.len()).then_some(near.1)
}

fn unknown(name: &str, near: Option<&str>) -> Failure {
    match near {
        Some(near) => Failure::usage(format_args!("there is no boot word '{name}'; a similar one is '{near}'")),
        None => Failure::usage(format_args!(
            "there is no boot word '{name}'; docs/commands.md lists them under \"Boot parameters\""
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    #[test]
    fn unknown_words_are_refused_with_the_nearest() {
        assert_eq!(check(""), Ok(()));
        assert_eq!(check(" swap=1G  memtest watchdog=panic "), Ok(()));
        // The kernel itself reports a wrong value.
        assert_eq!(check("swap=abc"), Ok(()));
        for (line, near) in [("swp=1G", "'swap'"), ("verbose tmpfs_size=1", "'tmpfs-size'"), ("watchdgo", "'watchdog'")]
        {
            let refused = check(line).unwrap_err();
            assert!(refused.status == 2 && refused.message.contains(near), "{refused}");
        }
        let refused = check("wibble=3").unwrap_err().message;
        assert!(refused.contains("'wibble'") && !refused.contains("similar"), "{refused}");
    }

    #[test]
    fn words_for_both_kernels_may_be_those_of_linux() {
        assert_eq!(check_for_both("transparent_hugepage=always quiet swap=1G"), Ok(()));
        assert!(check_for_both("quiet swp=1G").unwrap_err().message.contains("'swap'"));
    }

    /// The names that the sources under `place` read from the command line.
    fn read_by(place: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(place).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read_by(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("loader/command_line.rs") {
                let source = fs::read_to_string(&path).unwrap();
                for begin in ["(command_line, \"", "(line, \"", "given(\""] {
                    let after = source.split(begin).skip(1);
                    let words = after.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()));
                    // Texts with a space are not names but formats of messages.
                    found.extend(words.filter(|word| !word.contains(' ')));
                }
            }
        }
    }

    #[test]
    fn the_list_has_the_words_that_the_kernel_reads() {
        let mut read = BTreeSet::new();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        read_by(&root.join("crates/kernel/src"), &mut read);
        assert!(read.contains("swap") && read.contains("zero-window"), "{read:?}");
        // These names are added by hand, because they are composed from a table or read as a prefix.
        let composed = ["hung_task_timeout_secs", "virtio_mmio.device", "watchdog_thresh"];
        read.extend(composed.map(str::to_owned));
        assert_eq!(read, WORDS.iter().map(|word| (*word).to_owned()).collect());
    }
}
