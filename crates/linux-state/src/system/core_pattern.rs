//! The name of a core file: `kernel.core_pattern`.

use crate::errno::Errno;
use quire_heap::{Vec, try_format};
use quire_sync::{Rank, Sequenced};

/// The most bytes of a pattern, as on Linux.
const MOST: usize = 127;
const WORDS: usize = (MOST + 1) / 8;

/// The pattern, which is read without a lock. Its last byte is always zero.
pub struct CorePattern(Sequenced<WORDS>);

impl Default for CorePattern {
    fn default() -> Self {
        Self::new()
    }
}

impl CorePattern {
    /// The initial pattern, `core`.
    pub fn new() -> Self {
        let new = CorePattern(Sequenced::new(Rank::OWNED, [0; WORDS]));
        let _fits = new.set(b"core");
        new
    }

    /// Sets the pattern. EINVAL for a pattern with `|`, because Quire does not pipe core files to a program.
    pub fn set(&self, text: &[u8]) -> Result<(), Errno> {
        if text.first() == Some(&b'|') {
            return Err(Errno::EINVAL);
        }
        let mut bytes = [0u8; MOST + 1];
        let len = text.len().min(MOST);
        bytes[..len].copy_from_slice(&text[..len]);
        self.0.update(|words| {
            for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
                *word = u64::from_le_bytes(*bytes);
            }
        });
        Ok(())
    }

    /// The pattern, padded with zeroes.
    pub fn get(&self) -> [u8; MOST + 1] {
        let mut out = [0; MOST + 1];
        for (bytes, word) in out.as_chunks_mut().0.iter_mut().zip(self.0.read()) {
            *bytes = word.to_le_bytes();
        }
        out
    }
}

/// The values that replace the `%` letters of a pattern.
pub struct Facts<'a> {
    pub pid: u32,
    pub tid: u32,
    pub user: u32,
    pub group: u32,
    pub signal: u8,
    /// Seconds since 1970.
    pub time: u64,
    pub limit: u64,
    pub host: &'a [u8],
    pub name: &'a [u8],
    pub path: &'a [u8],
    /// Whether the name ends with the process's id (`kernel.core_uses_pid`), unless the pattern has the id already.
    pub adds_pid: bool,
}

/// The name of a core file, from `pattern`. A slash in an inserted name becomes an exclamation mark.
pub fn name(pattern: &[u8], facts: &Facts<'_>) -> Result<Vec<u8>, Errno> {
    let mut out = Vec::new();
    let mut has_pid = false;
    let mut bytes = pattern.iter().copied().take_while(|byte| *byte != 0);
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.try_push(byte)?;
            continue;
        }
        let Some(kind) = bytes.next() else { break };
        let number = match kind {
            b'p' | b'P' => {
                has_pid = true;
                u64::from(facts.pid)
            }
            b'i' | b'I' => facts.tid.into(),
            b'u' => facts.user.into(),
            b'g' => facts.group.into(),
            b'd' => 1,
            b's' => facts.signal.into(),
            b't' => facts.time,
            b'c' => facts.limit,
            _ => {
                let text: &[u8] = match kind {
                    b'%' => b"%",
                    b'h' => facts.host,
                    b'e' => facts.name,
                    b'f' => facts.path.rsplit(|byte| *byte == b'/').next().unwrap_or(b""),
                    b'E' => facts.path,
                    _ => b"",
                };
                for byte in text {
                    out.try_push(if *byte == b'/' { b'!' } else { *byte })?;
                }
                continue;
            }
        };
        out.try_extend_from_slice(&try_format(format_args!("{number}"))?)?;
    }
    if facts.adds_pid && !has_pid {
        out.try_extend_from_slice(&try_format(format_args!(".{}", facts.pid))?)?;
    }
    Ok(out)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_names_the_process_that_has_ended() {
        let facts = Facts {
            pid: 7,
            tid: 8,
            user: 9,
            group: 10,
            signal: 6,
            time: 11,
            limit: u64::MAX,
            host: b"a/b",
            name: b"sh",
            path: b"/bin/dash",
            adds_pid: true,
        };
        let named = |pattern: &[u8]| name(pattern, &facts).expect("memory");
        assert_eq!(&named(b"core")[..], b"core.7");
        assert_eq!(&named(b"/tmp/dump-%p\0junk")[..], b"/tmp/dump-7");
        assert_eq!(&named(b"%i %u %g %d %s %t %P")[..], b"8 9 10 1 6 11 7");
        assert_eq!(&named(b"%h%e%f%E%%%z%P%")[..], b"a!bshdash!bin!dash%7");
        assert_eq!(&named(b"%c%p")[..], b"184467440737095516157");
    }

    #[test]
    fn a_long_pattern_is_cut_and_a_program_is_refused() {
        let pattern = CorePattern::new();
        assert_eq!(&pattern.get()[..5], b"core\0");
        assert_eq!(pattern.set(&[b'x'; 300]), Ok(()));
        assert_eq!((pattern.get()[126], pattern.get()[127]), (b'x', 0));
        assert_eq!(pattern.set(b"|/bin/cat"), Err(Errno::EINVAL));
        assert_eq!(pattern.get()[0], b'x');
    }
}
