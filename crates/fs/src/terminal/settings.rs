//! A terminal's processing of bytes: POSIX's termios, in our own types.

bitflags::bitflags! {
    /// Processing of input bytes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Input: u16 {
        /// Carriage return becomes newline.
        const CR_TO_NL = 1;
        /// Newline becomes carriage return.
        const NL_TO_CR = 2;
        /// Carriage returns are dropped.
        const IGNORE_CR = 4;
        /// The eighth bit is dropped.
        const STRIP = 8;
        /// The stop and start characters stop and start output.
        const FLOW = 16;
        /// Text is UTF-8: erasing takes whole characters.
        const UTF8 = 32;
        /// Capitals become small letters, if [`Local::EXTENDED`] is set, too.
        const LOWER_CASE = 64;
        /// Any character starts output that the stop character stopped.
        const ANY_STARTS = 128;
    }

    /// Processing of output bytes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Output: u16 {
        /// Output is processed at all.
        const PROCESS = 1;
        /// Newline becomes carriage return and newline.
        const NL_TO_CRNL = 2;
        /// Carriage return becomes newline.
        const CR_TO_NL = 4;
        /// A carriage return at column 0 is dropped.
        const NO_CR_AT_COLUMN_0 = 8;
        /// Newline moves the cursor to column 0 too.
        const NL_RETURNS = 16;
        /// Letters become capitals.
        const UPPER_CASE = 32;
        /// Tabs become spaces.
        const TABS_TO_SPACES = 64;
    }

    /// The terminal's own actions on typed bytes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Local: u16 {
        /// Lines are edited, and read as a whole.
        const CANONICAL = 1;
        /// Typed bytes are shown.
        const ECHO = 2;
        /// Erasing is shown by blanking.
        const ECHO_ERASE = 4;
        /// Killing a line is shown by a new line.
        const ECHO_KILL = 8;
        /// Killing a line is shown by blanking all of it.
        const ECHO_KILL_ERASE = 16;
        /// Newlines are shown even without echo.
        const ECHO_NEWLINE = 32;
        /// Control characters are shown as `^X`.
        const ECHO_CONTROL = 64;
        /// The interrupt, quit and suspend characters send signals.
        const SIGNALS = 128;
        /// Signals do not discard typed bytes.
        const NO_FLUSH = 256;
        /// The characters that erase words, reprint and quote are active.
        const EXTENDED = 512;
        /// Output from the background stops its process group.
        const STOP_BACKGROUND = 1024;
    }
}

/// The special characters; 0 for each that is not set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Characters {
    pub interrupt: u8,
    pub quit: u8,
    pub suspend: u8,
    pub erase: u8,
    pub word_erase: u8,
    pub kill: u8,
    pub end_of_file: u8,
    pub end_of_line: u8,
    pub end_of_line2: u8,
    pub start: u8,
    pub stop: u8,
    pub reprint: u8,
    pub discard: u8,
    pub literal_next: u8,
    /// In noncanonical mode: the number of bytes that a read waits for.
    pub min: u8,
    /// In noncanonical mode: the time that a read waits, in tenths of a second. If `min` is 0, this is the time for the
    /// first byte. Otherwise it is the time between two bytes.
    pub time: u8,
}

/// A terminal's settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Input processing.
    pub input: Input,
    /// Output processing.
    pub output: Output,
    /// Local actions.
    pub local: Local,
    /// The special characters.
    pub characters: Characters,
    /// The caller's other settings, stored without effect.
    pub remembered: [u32; 7],
}

impl Settings {
    /// Whether the usual characters, control-S and control-Q, stop and start output.
    pub fn has_usual_flow(&self) -> bool {
        self.input.contains(Input::FLOW) && (self.characters.stop, self.characters.start) == (19, 17)
    }
}

impl Default for Settings {
    /// The settings at login: canonical, with echo and the usual keys.
    fn default() -> Self {
        Settings {
            input: Input::CR_TO_NL | Input::FLOW,
            output: Output::PROCESS | Output::NL_TO_CRNL,
            local: Local::CANONICAL
                | Local::ECHO
                | Local::ECHO_ERASE
                | Local::ECHO_KILL
                | Local::ECHO_KILL_ERASE
                | Local::ECHO_CONTROL
                | Local::SIGNALS
                | Local::EXTENDED,
            characters: Characters {
                interrupt: 3,
                quit: 28,
                suspend: 26,
                erase: 127,
                word_erase: 23,
                kill: 21,
                end_of_file: 4,
                end_of_line: 0,
                end_of_line2: 0,
                start: 17,
                stop: 19,
                reprint: 18,
                discard: 15,
                literal_next: 22,
                min: 1,
                time: 0,
            },
            remembered: [0; 7],
        }
    }
}

/// Rows and columns, and pixels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Size {
    pub rows: u16,
    pub columns: u16,
    pub width: u16,
    pub height: u16,
}
