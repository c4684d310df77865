//! Conversion of terminal settings from and to `struct termios`. Flags without an effect are stored too, because `stty`
//! checks that they were set.

use quire_fs::terminal::{Characters, Input, Local, Output, Settings};

/// `struct termios` of x86-64: four words of flags, the line discipline, 19 characters.
pub type Termios = [u8; 36];

/// `struct termios2`: a [`Termios`], the input speed and the output speed.
pub type Termios2 = [u8; 44];

/// The speeds of a line in bits per second. They have no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Speeds {
    input: u32,
    output: u32,
}

impl Speeds {
    /// The speeds that settings have.
    pub fn of(s: &Settings) -> Speeds {
        Speeds { output: s.remembered[5], input: s.remembered[6] }
    }

    /// The speeds that the control flags select. The flags may leave the choice to `given`.
    fn chosen(self, control: u32) -> Speeds {
        /// The bits of the output speed, of which one leaves the choice to the program, and the bit for high speeds.
        const BITS: u32 = 0o10017;
        const OTHER: u32 = 0o10000;
        /// The distance from the bits of the output speed to those of the input speed.
        const INPUT: u32 = 16;
        const TABLE: [u32; 31] = [
            0, 50, 75, 110, 134, 150, 200, 300, 600, 1200, 1800, 2400, 4800, 9600, 19_200, 38_400, 57_600, 115_200,
            230_400, 460_800, 500_000, 576_000, 921_600, 1_000_000, 1_152_000, 1_500_000, 2_000_000, 2_500_000,
            3_000_000, 3_500_000, 4_000_000,
        ];
        let speed = |bits: u32, given: u32| match bits {
            OTHER => given,
            bits if bits & OTHER != 0 => TABLE[(bits & 0o17) as usize + 15],
            bits => TABLE[bits as usize],
        };
        let output = speed(control & BITS, self.output);
        let input = match control >> INPUT & BITS {
            0 => output,
            bits => speed(bits, self.input),
        };
        Speeds { input, output }
    }
}

const INPUT: [(u32, Input); 8] = [
    (0o40, Input::STRIP),
    (0o100, Input::NL_TO_CR),
    (0o200, Input::IGNORE_CR),
    (0o400, Input::CR_TO_NL),
    (0o1000, Input::LOWER_CASE),
    (0o2000, Input::FLOW),
    (0o4000, Input::ANY_STARTS),
    (0o40000, Input::UTF8),
];
const OUTPUT: [(u32, Output); 6] = [
    (0o1, Output::PROCESS),
    (0o2, Output::UPPER_CASE),
    (0o4, Output::NL_TO_CRNL),
    (0o10, Output::CR_TO_NL),
    (0o20, Output::NO_CR_AT_COLUMN_0),
    (0o40, Output::NL_RETURNS),
];
/// The bits of the output flags for tabs, and their value for tabs that are shown as spaces.
const TABS: u32 = 0o14000;
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
/// The control flags of a new terminal: 8 bits per character, receiver on, hang up, 38400 baud.
const CONTROL: u32 = 0o60 | 0o200 | HANG_UP | 0o17;
/// The terminal is hung up at its last close.
const HANG_UP: u32 = 0o2000;

type Field = fn(&mut Characters) -> &mut u8;

/// The fields of [`Characters`] for the special characters, by their index in `c_cc`.
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
    with_control(CONTROL)
}

/// The settings of a new pseudo-terminal.
pub fn of_pty() -> Settings {
    with_control(CONTROL & !HANG_UP)
}

fn with_control(control: u32) -> Settings {
    let Speeds { input, output } = Speeds { input: 0, output: 0 }.chosen(control);
    Settings { remembered: [0, 0, control, 0, 0, output, input], ..Settings::default() }
}

/// Converts settings to a program's `termios2`.
pub fn to_linux2(s: &Settings) -> Termios2 {
    let mut out = [0; 44];
    let Speeds { input, output } = Speeds::of(s);
    out[..36].copy_from_slice(&to_linux(s));
    out[36..40].copy_from_slice(&input.to_le_bytes());
    out[40..].copy_from_slice(&output.to_le_bytes());
    out
}

/// Splits a program's `termios2` into its `termios` and its speeds.
pub fn from_linux2(t: &Termios2) -> (Termios, Speeds) {
    let word = |at: usize| u32::from_le_bytes([t[at], t[at + 1], t[at + 2], t[at + 3]]);
    (core::array::from_fn(|at| t[at]), Speeds { input: word(36), output: word(40) })
}

/// Converts settings to a program's `termios`.
pub fn to_linux(s: &Settings) -> Termios {
    let mut words = [s.remembered[0], s.remembered[1], s.remembered[2], s.remembered[3]];
    for (bit, ours) in INPUT {
        words[0] = if s.input.contains(ours) { words[0] | bit } else { words[0] & !bit };
    }
    for (bit, ours) in OUTPUT {
        words[1] = if s.output.contains(ours) { words[1] | bit } else { words[1] & !bit };
    }
    // The other kinds of tabs have no effect, and are only remembered.
    if s.output.contains(Output::TABS_TO_SPACES) {
        words[1] |= TABS;
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

/// Converts a program's `termios` to settings. Its flags select the speeds, or leave the choice to `speeds`.
pub fn from_linux(t: &Termios, speeds: Speeds) -> Settings {
    let word = |i: usize| u32::from_le_bytes([t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]]);
    let speeds = speeds.chosen(word(2));
    let mut s = Settings {
        input: Input::empty(),
        output: Output::empty(),
        local: Local::empty(),
        remembered: [word(0), word(1), word(2), word(3), u32::from(t[16]), speeds.output, speeds.input],
        ..Settings::default()
    };
    for (bit, ours) in INPUT {
        s.input.set(ours, word(0) & bit != 0);
    }
    for (bit, ours) in OUTPUT {
        s.output.set(ours, word(1) & bit != 0);
    }
    s.output.set(Output::TABS_TO_SPACES, word(1) & TABS == TABS);
    for (bit, ours) in LOCAL {
        s.local.set(ours, word(3) & bit != 0);
    }
    for (index, field) in CHARACTERS {
        *field(&mut s.characters) = t[17 + index];
    }
    s
}

/// `struct termio` of System V: the low halves of the flags, the line discipline, eight characters, a byte of padding.
pub type Termio = [u8; 18];
const TERMIO_CHARACTERS: usize = 8;

/// Converts settings to the older `termio`.
pub fn to_termio(t: &Termios) -> Termio {
    let mut out = [0; 18];
    for (half, word) in out.chunks_exact_mut(2).zip(t[..16].chunks_exact(4)) {
        half.copy_from_slice(&word[..2]);
    }
    out[8] = t[16];
    out[9..9 + TERMIO_CHARACTERS].copy_from_slice(&t[17..17 + TERMIO_CHARACTERS]);
    out
}

/// Returns `now` with the parts that `termio` has replaced by `new`. As on Linux, the upper halves of the flags stay.
pub fn from_termio(now: &Termios, new: &Termio) -> Termios {
    let mut out = *now;
    for (word, half) in out[..16].chunks_exact_mut(4).zip(new.chunks_exact(2)) {
        word[..2].copy_from_slice(half);
    }
    out[16] = new[8];
    out[17..17 + TERMIO_CHARACTERS].copy_from_slice(&new[9..9 + TERMIO_CHARACTERS]);
    out
}

/// Returns `new`, but the parts that `locked` marks have their values of `old`. In the flags, each bit of `locked`
/// marks one bit. Elsewhere a byte that is not 0 marks the whole byte.
pub fn keep_locked(old: &Termios, new: &Termios, locked: &Termios) -> Termios {
    let mut out = *new;
    for (at, byte) in out.iter_mut().enumerate() {
        let mask = match locked[at] {
            0 => 0,
            bits if at < 16 => bits,
            _ => u8::MAX,
        };
        *byte = (*byte & !mask) | (old[at] & mask);
    }
    out
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_older_form_keeps_the_upper_halves() {
        let now: Termios = core::array::from_fn(|i| i as u8 + 1);
        let short = to_termio(&now);
        assert_eq!(short[..10], [1, 2, 5, 6, 9, 10, 13, 14, 17, 18]);
        assert_eq!(short[17], 0);
        assert_eq!(from_termio(&now, &short), now);
        let new = from_termio(&now, &[0xff; 18]);
        assert_eq!(new[..5], [0xff, 0xff, 3, 4, 0xff]);
        assert_eq!((new[16], new[24], new[25]), (0xff, 0xff, 26));
    }

    #[test]
    fn locked_settings_stay() {
        let (old, new) = ([0x0f; 36], [0xf0; 36]);
        let mut locked = [0; 36];
        (locked[0], locked[20]) = (0x11, 1);
        let kept = keep_locked(&old, &new, &locked);
        assert_eq!((kept[0], kept[1], kept[20], kept[21]), (0xe1, 0xf0, 0x0f, 0xf0));
    }

    #[test]
    fn a_program_reads_back_its_settings() {
        let mut t = to_linux(&initial());
        let speeds = Speeds::of(&initial());
        assert_eq!(speeds, Speeds { input: 38_400, output: 38_400 });
        assert_eq!(from_linux(&t, speeds), Settings { remembered: from_linux(&t, speeds).remembered, ..initial() });
        for (i, byte) in t.iter_mut().enumerate() {
            // Three bytes of c_cc have no meaning and are not stored.
            if ![17 + 7, 17 + 17, 17 + 18].contains(&i) {
                *byte ^= 0x5a;
            }
        }
        assert_eq!(to_linux(&from_linux(&t, speeds)), t);
    }

    #[test]
    fn flags_select_the_speeds_or_leave_them_to_the_program() {
        let given = Speeds { input: 6000, output: 5000 };
        for (control, input, output) in [
            (0o15, 9600, 9600),
            (0o10001, 57_600, 57_600),
            (0o10017, 4_000_000, 4_000_000),
            (0o10000, 5000, 5000),
            (0o10000 | 0o15 << 16, 9600, 5000),
            (0o15 | 0o10000 << 16, 6000, 9600),
            (0, 0, 0),
        ] {
            assert_eq!(given.chosen(control), Speeds { input, output }, "{control:o}");
        }
        let (t, speeds) = from_linux2(&to_linux2(&initial()));
        assert_eq!(from_linux(&t, speeds).remembered[5..], initial().remembered[5..]);
    }
}
