//! The marks that a program makes: `nopl WORD(%rax)`, seven bytes.

/// What a program tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// From here on the kernel's accesses count.
    On,
    /// Up to here.
    Off,
    /// A round is over: what its accesses have in common is written out.
    Round,
    /// The rounds that follow are those of the next case.
    Case,
    /// What is measured as a whole begins. Apart from the others, which the programs make that are measured so.
    Begin,
    /// It is over.
    End,
}

/// The upper three bytes of the displacement: `Qui`.
const WORD: u32 = 0x5175_6900;

impl Mark {
    /// The mark that the instruction `code` makes.
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
