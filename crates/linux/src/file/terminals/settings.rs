//! `struct termios`, in both directions. Flags without meaning for the terminal are stored, since `stty` checks that
//! they were set.

use quire_fs::terminal::{Characters, Input, Local, Output, Settings};

/// `struct termios` of x86-64: four words of flags, the line discipline, 19 characters.
pub type Termios = [u8; 36];

/// `struct termio`, the older form: the low halves of the flags, the line discipline, the first eight characters, and a
/// byte of padding.
pub type Termio = [u8; 18];
const OLD_LINE: usize = 8;
const OLD_CHARACTERS: usize = 9;
const OLD_COUNT: usize = 8;

/// The older form of `t`.
pub fn to_old(t: &Termios) -> Termio {
    let mut out = [0; 18];
    for (old, new) in out[..OLD_LINE].chunks_exact_mut(2).zip(t.chunks_exact(4)) {
        old.copy_from_slice(&new[..2]);
    }
    out[OLD_LINE] = t[16];
    out[OLD_CHARACTERS..OLD_CHARACTERS + OLD_COUNT].copy_from_slice(&t[17..17 + OLD_COUNT]);
    out
}

/// `present` with the parts that the older form has.
pub fn from_old(old: &Termio, present: Termios) -> Termios {
    let mut out = present;
    for (new, old) in out.chunks_exact_mut(4).zip(old[..OLD_LINE].chunks_exact(2)) {
        new[..2].copy_from_slice(old);
    }
    out[16] = old[OLD_LINE];
    out[17..17 + OLD_COUNT].copy_from_slice(&old[OLD_CHARACTERS..OLD_CHARACTERS + OLD_COUNT]);
    out
}

const INPUT: [(u32, Input); 6] = [
    (0o40, Input::STRIP),
    (0o100, Input::NL_TO_CR),
    (0o200, Input::IGNORE_CR),
    (0o400, Input::CR_TO_NL),
    (0o2000, Input::FLOW),
    (0o40000, Input::UTF8),
];
const OUTPUT: [(u32, Output); 3] = [(0o1, Output::PROCESS), (0o4, Output::NL_TO_CRNL), (0o10, Output::CR_TO_NL)];
const LOCAL: [(u32, Local); 11] = [
    (0o1, Local::SIGNALS),
    (0o2, Local::CANONICAL),
    (0o10, Local::ECHO),
    (0o20, Local::ECHO_ERASE),
    (0o40, Local::ECHO_KILL),
    (0o100, Local::ECHO_NEWLINE),
    (0o200, Local::NO_FLUSH),
    (0o400, Local::STOP_BACKGROUND),
    (0o1000, Local::ECHO_CONTROL),
    (0o4000, Local::ECHO_KILL_ERASE),
    (0o100000, Local::EXTENDED),
];
/// Bits per character, receiver on, hang up, 38400 baud: the values for a line without a speed.
const CONTROL: u32 = 0o60 | 0o200 | HANG_UP | 0o17;
/// A line is hung up with its last close.
const HANG_UP: u32 = 0o2000;

type Field = fn(&mut Characters) -> &mut u8;

/// The characters by their index in `c_cc`.
const CHARACTERS: [(usize, Field); 16] = [
    (0, |c| &mut c.interrupt),
    (1, |c| &mut c.quit),
    (2, |c| &mut c.erase),
    (3, |c| &mut c.kill),
    (4, |c| &mut c.end_of_file),
    (5, |c| &mut c.time),
    (6, |c| &mut c.min),
    (8, |c| &mut c.start),
    (9, |c| &mut c.stop),
    (10, |c| &mut c.suspend),
    (11, |c| &mut c.end_of_line),
    (12, |c| &mut c.reprint),
    (13, |c| &mut c.discard),
    (14, |c| &mut c.word_erase),
    (15, |c| &mut c.literal_next),
    (16, |c| &mut c.end_of_line2),
];

/// The settings of a new terminal.
pub fn initial() -> Settings {
    Settings { remembered: [0, 0, CONTROL, 0, 0, 0], ..Settings::default() }
}

/// The settings of a new pseudo-terminal.
pub fn of_pty() -> Settings {
    Settings { remembered: [0, 0, CONTROL & !HANG_UP, 0, 0, 0], ..Settings::default() }
}

/// Settings as a program sees them.
pub fn to_linux(s: &Settings) -> Termios {
    let mut words = [s.remembered[0], s.remembered[1], s.remembered[2], s.remembered[3]];
    for (bit, ours) in INPUT {
        words[0] = if s.input.contains(ours) { words[0] | bit } else { words[0] & !bit };
    }
    for (bit, ours) in OUTPUT {
        words[1] = if s.output.contains(ours) { words[1] | bit } else { words[1] & !bit };
    }
    for (bit, ours) in LOCAL {
        words[3] = if s.local.contains(ours) { words[3] | bit } else { words[3] & !bit };
    }
    let mut out = [0; 36];
    for (slot, word) in out.chunks_exact_mut(4).zip(words) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    out[16] = s.remembered[4] as u8;
    let mut characters = s.characters;
    for (index, field) in CHARACTERS {
        out[17 + index] = *field(&mut characters);
    }
    out
}

/// Settings from a program's `termios`.
pub fn from_linux(t: &Termios) -> Settings {
    let word = |i: usize| u32::from_le_bytes([t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]]);
    let mut s = Settings {
        input: Input::empty(),
        output: Output::empty(),
        local: Local::empty(),
        remembered: [word(0), word(1), word(2), word(3), u32::from(t[16]), 0],
        ..Settings::default()
    };
    for (bit, ours) in INPUT {
        s.input.set(ours, word(0) & bit != 0);
    }
    for (bit, ours) in OUTPUT {
        s.output.set(ours, word(1) & bit != 0);
    }
    for (bit, ours) in LOCAL {
        s.local.set(ours, word(3) & bit != 0);
    }
    for (index, field) in CHARACTERS {
        *field(&mut s.characters) = t[17 + index];
    }
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_form_keeps_what_it_lacks() {
        let mut new = to_linux(&initial());
        new[2] = 0x77;
        let mut old = to_old(&new);
        assert_eq!((old[8], old[17]), (new[16], 0));
        assert_eq!(from_old(&old, new), new);
        old[0] ^= 0xff;
        old[9] = 1;
        let changed = from_old(&old, new);
        assert_eq!((changed[0], changed[2], changed[17], changed[25]), (new[0] ^ 0xff, 0x77, 1, new[25]));
    }

    #[test]
    fn a_program_reads_back_its_settings() {
        let mut t = to_linux(&initial());
        assert_eq!(from_linux(&t), Settings { remembered: from_linux(&t).remembered, ..initial() });
        for (i, byte) in t.iter_mut().enumerate() {
            // Three places of c_cc have no meaning, and are not stored.
            if ![17 + 7, 17 + 17, 17 + 18].contains(&i) {
                *byte ^= 0x5a;
            }
        }
        assert_eq!(to_linux(&from_linux(&t)), t);
    }
}
