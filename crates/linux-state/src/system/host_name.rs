//! The machine's names that `uname` returns.

use quire_sync::{Rank, Sequenced};

/// The bytes of a name in `struct utsname`, the terminating zero included.
pub const NAME_LEN: usize = 65;

/// The words that store both names.
const NAME_WORDS: usize = (2 * NAME_LEN).div_ceil(8);

/// The host name and the domain name, which programs can set. Both are read without a lock.
pub struct HostName {
    names: Sequenced<NAME_WORDS>,
}

/// `text` as a name of `struct utsname`: truncated to its length, and padded with zeroes.
pub const fn name(text: &[u8]) -> [u8; NAME_LEN] {
    let mut out = [0; NAME_LEN];
    let mut at = 0;
    while at < text.len() && at < NAME_LEN - 1 {
        out[at] = text[at];
        at += 1;
    }
    out
}

impl Default for HostName {
    fn default() -> Self {
        Self::new()
    }
}

impl HostName {
    /// The initial names: "quire", and "(none)" as the domain.
    pub fn new() -> Self {
        let names = HostName { names: Sequenced::new(Rank::OWNED, [0; NAME_WORDS]) };
        names.set(0, name(b"quire"));
        names.set(1, name(b"(none)"));
        names
    }

    /// The host name and the domain name, read at one moment.
    pub fn get(&self) -> [[u8; NAME_LEN]; 2] {
        let words = self.names.read();
        let mut bytes = [0; NAME_WORDS * 8];
        for (into, word) in bytes.chunks_exact_mut(8).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        let mut both = [[0; NAME_LEN]; 2];
        both[0].copy_from_slice(&bytes[..NAME_LEN]);
        both[1].copy_from_slice(&bytes[NAME_LEN..2 * NAME_LEN]);
        both
    }

    /// Sets the host name (`which` is 0) or the domain name (1).
    pub fn set(&self, which: usize, new: [u8; NAME_LEN]) {
        self.names.update(|words| {
            for (at, new) in new.into_iter().enumerate() {
                let at = which * NAME_LEN + at;
                let shift = at % 8 * 8;
                words[at / 8] = words[at / 8] & !(0xff << shift) | u64::from(new) << shift;
            }
        });
    }

    /// The host name without zeroes.
    pub fn node(&self) -> Result<quire_heap::Vec<u8>, quire_heap::OutOfMemory> {
        let [node, _] = self.get();
        quire_heap::Vec::try_from_iter(node.into_iter().take_while(|b| *b != 0))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_set_leaves_the_other_one_as_it_is() {
        let names = HostName::new();
        names.set(0, name(b"longer than it was"));
        assert_eq!(
            (&names.node().expect("memory")[..], names.get()[1]),
            (b"longer than it was".as_slice(), name(b"(none)"))
        );
        names.set(1, [b'x'; NAME_LEN]);
        names.set(0, name(b"q"));
        assert_eq!((&names.node().expect("memory")[..], names.get()[1]), (b"q".as_slice(), [b'x'; NAME_LEN]));
    }
}
