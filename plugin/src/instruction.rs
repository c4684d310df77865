//! Properties of an x86-64 instruction for a profile, from its first bytes.

/// The effect of an instruction on the call stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// Stores a return address.
    Call,
    /// Loads a return address.
    Return,
    /// The instruction is neither a call nor a return.
    On,
}

/// Returns the instruction without its prefixes, and whether LOCK was among them.
fn bare(code: &[u8]) -> (&[u8], bool) {
    let is_prefix = |b: &u8| matches!(b, 0xf0 | 0xf2 | 0xf3 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 | 0x66 | 0x67);
    let legacy = code.iter().take_while(|b| is_prefix(b)).count();
    let locked = code[..legacy].contains(&0xf0);
    let rest = &code[legacy..];
    (if rest.first().is_some_and(|b| b & 0xf0 == 0x40) { &rest[1..] } else { rest }, locked)
}

impl Flow {
    /// Returns the flow of the instruction `code`.
    pub fn of(code: &[u8]) -> Flow {
        match bare(code).0 {
            [0xe8, ..] => Flow::Call,
            [0xff, operand, ..] if operand >> 3 & 7 == 2 => Flow::Call,
            [0xc3, ..] | [0xc2, ..] => Flow::Return,
            _ => Flow::On,
        }
    }
}

/// Whether the instruction is a locked read-modify-write, an exchange with memory, or a full fence, which may wait for
/// other processors.
pub fn is_locked(code: &[u8]) -> bool {
    let (rest, locked) = bare(code);
    locked || matches!(rest, [0x86 | 0x87, operand, ..] if operand >> 6 != 3) || matches!(rest, [0x0f, 0xae, 0xf0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_returns_are_told_from_jumps() {
        for call in
            [&[0xe8, 1, 2, 3, 4][..], &[0xff, 0xd0], &[0x41, 0xff, 0xd2], &[0xff, 0x50, 8], &[0x65, 0xff, 0x14, 0x25]]
        {
            assert_eq!(Flow::of(call), Flow::Call, "{call:x?}");
        }
        assert_eq!(
            (Flow::of(&[0xc3]), Flow::of(&[0xf3, 0xc3]), Flow::of(&[0xc2, 8, 0])),
            (Flow::Return, Flow::Return, Flow::Return)
        );
        for other in [&[0xe9, 1, 2, 3, 4][..], &[0xff, 0xe0], &[0xff, 0x30], &[0x48, 0xcf], &[0x90], &[]] {
            assert_eq!(Flow::of(other), Flow::On, "{other:x?}");
        }
    }

    #[test]
    fn locked_instructions_are_seen_with_and_without_the_prefix() {
        for locked in
            [&[0xf0, 0x0f, 0xb1, 0x0b][..], &[0xf0, 0x83, 0x0c, 0x24, 0], &[0x48, 0x87, 0x07], &[0x0f, 0xae, 0xf0]]
        {
            assert!(is_locked(locked), "{locked:x?}");
        }
        for plain in [&[0x48, 0x87, 0xc7][..], &[0x48, 0x89, 0x07], &[0x0f, 0xae, 0xe8], &[0x90]] {
            assert!(!is_locked(plain), "{plain:x?}");
        }
    }
}
