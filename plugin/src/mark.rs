//! The marks that a program makes. Each is the instruction `nopl WORD(%rax)`, of seven bytes.

/// A mark: a program's message to the plugin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// The kernel's accesses count from here on.
    On,
    /// The kernel's accesses do not count any more.
    Off,
    /// A round, the time since the last mark of this kind, is over. The plugin writes the lines in conflict.
    Round,
    /// The following rounds belong to the next case.
    Case,
    /// A measured run begins. This mark differs from the marks above, because programs inside a measured run may make
    /// those marks.
    Begin,
    /// The measured run is over.
    End,
}

/// The upper three bytes of the displacement: `Qui`.
const WORD: u32 = 0x5175_6900;

impl Mark {
    /// Returns the mark that the instruction `code` makes; `None` if it is another instruction.
    pub fn of(code: &[u8]) -> Option<Mark> {
        let [0x0f, 0x1f, 0x80, word @ ..] = code else { return None };
        match u32::from_le_bytes(word.try_into().ok()?) ^ WORD {
            1 => Some(Mark::On),
            2 => Some(Mark::Off),
            3 => Some(Mark::Round),
            4 => Some(Mark::Case),
            5 => Some(Mark::Begin),
            6 => Some(Mark::End),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_no_operations_are_marks() {
        let code = |word: u32| [&[0x0f, 0x1f, 0x80][..], &word.to_le_bytes()].concat();
        assert_eq!(Mark::of(&code(0x5175_6901)), Some(Mark::On));
        assert_eq!(Mark::of(&code(0x5175_6904)), Some(Mark::Case));
        for other in [code(0), code(0x5175_6900), code(0x5175_6907), code(0x5175_6901)[..6].to_vec(), vec![0x90]] {
            assert_eq!(Mark::of(&other), None, "{other:x?}");
        }
    }
}
