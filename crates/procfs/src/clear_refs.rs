//! `clear_refs`: clears the access bits of a process's pages, or its peak of resident memory.
//!
//! Only the file's permission bits and owner are checked, as on Linux. A write acts on the memory that the process has
//! at that time.
//!
//! | written | effect |
//! |---|---|
//! | 1 | `Referenced` of `smaps` becomes 0 for all mappings, and rises again with later accesses |
//! | 2 | `Referenced` becomes 0 for mappings without a file |
//! | 3 | `Referenced` becomes 0 for mappings of files and of shared memory, including copied pages |
//! | 4 | none: a PTE has no soft-dirty bit, so `pagemap` says of each page that it may have changed |
//! | 5 | `VmHWM`, and `ru_maxrss` of the present program, begin again with the present count |
//!
//! As on Linux, the values 1 to 3 flush no translation. A CPU that has cached a translation sets no access bit until it
//! walks the page tables again.

use crate::about::Task;
use crate::map_query::is_of_file;
use quire_fs::FsError;
use quire_fs::generated::{GeneratedFile, Text};
use quire_heap::{Arc, unsize};
use quire_linux_state::machine::Machine;
use quire_vm::VirtRange;

struct ClearRefs<M: Machine>(Task<M>);

/// The most bytes of a write that are read, as on Linux. The write returns at most this count too.
const MOST: usize = 12;

impl<M: Machine> GeneratedFile for ClearRefs<M> {
    fn text(&self, _out: &mut Text) -> Result<(), FsError> {
        Err(FsError::Invalid)
    }

    fn store(&self, bytes: &[u8]) -> Result<usize, FsError> {
        let bytes = &bytes[..bytes.len().min(MOST)];
        let what = number(bytes)?;
        if !(1..=5).contains(&what) {
            return Err(FsError::Invalid);
        }
        let Task { process, tid } = &self.0;
        let there = process.linux.ids.process_of_thread(*tid).is_some_and(|there| Arc::ptr_eq(&there, process));
        if !there {
            return Err(FsError::NoProcess);
        }
        // A zombie has no memory.
        let Some(memory) = self.0.memory() else { return Ok(bytes.len()) };
        match what {
            1 => memory.forget_accesses(VirtRange { start: 0, end: u64::MAX }),
            2 | 3 => memory.entries(0, &mut |entry| {
                if is_of_file(entry) == (what == 3) {
                    memory.forget_accesses(entry.range);
                }
                true
            }),
            5 => memory.restart_peak(),
            _ => {}
        }
        Ok(bytes.len())
    }
}

/// Reads the number in `bytes` as Linux's `kstrtoint` does. It is decimal, with white space around it and an optional
/// sign. Bytes after a zero byte are ignored.
fn number(bytes: &[u8]) -> Result<i32, FsError> {
    // Linux also treats the no-break space of Latin-1 as white space.
    let is_space = |byte: &u8| matches!(byte, b'\t'..=b'\r' | b' ' | 0xa0);
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let start = text.iter().position(|byte| !is_space(byte)).ok_or(FsError::Invalid)?;
    let end = text.iter().rposition(|byte| !is_space(byte)).ok_or(FsError::Invalid)?;
    let (sign, digits) = match &text[start..=end] {
        [b'-', rest @ ..] => (-1, rest),
        [b'+', rest @ ..] => (1, rest),
        rest => (1, rest),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(FsError::Invalid);
    }
    let add = |sum: i64, digit: &u8| sum.checked_mul(10)?.checked_add(i64::from(digit - b'0'));
    let sum = digits.iter().try_fold(0, add).ok_or(FsError::OutOfRange)?;
    i32::try_from(sign * sum).map_err(|_| FsError::OutOfRange)
}

pub(super) fn open<M: Machine>(about: &Task<M>) -> Result<Arc<dyn GeneratedFile>, FsError> {
    Ok(unsize!(Arc::try_new(ClearRefs(about.clone()))?))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::number;
    use quire_fs::FsError;

    #[test]
    fn numbers_are_read_as_linux_reads_them() {
        for (text, value) in [(&b"1"[..], 1), (b"2\n", 2), (b" 3 \n", 3), (b"+4", 4), (b"05", 5), (b"-1", -1)] {
            assert_eq!(number(text), Ok(value), "{text:?}");
        }
        assert_eq!((number(b"1\0x"), number(b"\t\xa01\x0b\x0c\r")), (Ok(1), Ok(1)));
        for text in [&b""[..], b"\n", b" ", b"x", b"1 2", b"0x1", b"++1", b"+ 1", b"-+1", b"\x001", b"+"] {
            assert_eq!(number(text), Err(FsError::Invalid), "{text:?}");
        }
        for text in [&b"2147483648"[..], b"-2147483649", b"99999999999", b"99999999999999999999"] {
            assert_eq!(number(text), Err(FsError::OutOfRange), "{text:?}");
        }
        assert_eq!((number(b"2147483647"), number(b"-2147483648")), (Ok(i32::MAX), Ok(i32::MIN)));
    }
}
