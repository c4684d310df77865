//! The line discipline, which processes typed bytes. It is a state machine that neither waits nor calls outside.
//! [`Editor::receive`] takes typed bytes, `echo` collects bytes to show, and [`Editor::take`] returns readable bytes.

use super::settings::{Input, Local, Output, Settings};
use crate::FsError;
use quire_heap::{Deque, Vec};

/// The most bytes that wait to be read, and the length of the longest line.
pub(super) const QUEUE: usize = 4096;
/// The most bytes that are typed between two calls of [`Editor::has_room`].
pub(super) const BATCH: usize = 128;
/// The most readable bytes: a full queue, and a line that ends in the next batch.
const READY: usize = 2 * QUEUE + BATCH;
/// The most lines: a full queue, and the lines that end in the next batch.
const LINES: usize = QUEUE + BATCH + 1;
/// The most bytes that wait to be shown. Beyond these, typed bytes are not shown.
const ECHO: usize = 4096;

/// The distance between the columns of tabs.
const TAB: usize = 8;
/// The most bytes that one byte of output becomes.
pub(super) const MOST_SHOWN: usize = TAB;

/// The most bytes that one byte of output becomes with the settings `s`.
pub(super) fn most_shown(s: &Settings) -> usize {
    if s.output.contains(Output::TABS_TO_SPACES) { MOST_SHOWN } else { 2 }
}

/// A key that sends a signal to the foreground process group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// The interrupt key (SIGINT).
    Interrupt,
    /// The quit key (SIGQUIT).
    Quit,
    /// The suspend key (SIGTSTP).
    Suspend,
}

/// The line discipline; see the module. All its memory is allocated by `new`.
pub(super) struct Editor {
    /// Readable bytes.
    ready: Deque<u8>,
    /// In canonical mode: the lengths of the finished lines at the front of `ready`. An end of file finishes a line
    /// without an end character.
    lines: Deque<u16>,
    /// The line under construction.
    line: Vec<u8>,
    /// Whether the next byte is taken literally.
    literal: bool,
    /// The column of the cursor (`column`), and its column at the beginning of the line (`line_column`).
    column: usize,
    line_column: usize,
    /// Whether output is stopped.
    pub stopped: bool,
    /// Bytes to show.
    pub echo: Deque<u8>,
}

fn is_control(b: u8) -> bool {
    b < 32 || b == 127
}

/// The small letter for a capital of Latin-1, as Linux's kernel knows letters.
fn lower(b: u8) -> u8 {
    match b {
        b'A'..=b'Z' | 0xc0..=0xd6 | 0xd8..=0xde => b + 32,
        _ => b,
    }
}

fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80
}

impl Editor {
    pub fn new() -> Result<Self, FsError> {
        Ok(Editor {
            ready: Deque::try_with_capacity(READY)?,
            lines: Deque::try_with_capacity(LINES)?,
            line: Vec::try_with_capacity(QUEUE)?,
            literal: false,
            column: 0,
            line_column: 0,
            stopped: false,
            echo: Deque::try_with_capacity(ECHO)?,
        })
    }

    /// Whether another batch of bytes can be typed.
    pub fn has_room(&self) -> bool {
        self.ready.len() < QUEUE && self.lines.len() < QUEUE
    }

    /// The number of bytes that a read could return now.
    pub fn available(&self) -> usize {
        self.ready.len()
    }

    fn first_line(&self) -> Option<usize> {
        self.lines.front().map(|&line| usize::from(line))
    }

    /// The number of readable bytes.
    pub fn queued(&self) -> usize {
        self.ready.len()
    }

    /// Whether a canonical read can return, with a line or at the end of file.
    pub fn has_line(&self) -> bool {
        !self.lines.is_empty() || !self.ready.is_empty()
    }

    /// Moves readable bytes into `into`; a canonical read stops at the end of a line. Returns their number, and whether
    /// the line (or everything) is used up.
    pub fn take(&mut self, s: &Settings, into: &mut [u8]) -> (usize, bool) {
        let canonical = s.local.contains(Local::CANONICAL);
        let most = match self.first_line() {
            Some(line) if canonical => line,
            _ => self.ready.len(),
        };
        let n = most.min(into.len());
        for (to, from) in into.iter_mut().zip(self.ready.drain_front(n)) {
            *to = from;
        }
        let mut left = n;
        if canonical {
            if let Some(line) = self.lines.get_mut(0) {
                *line -= n as u16; // at most the line
                if *line == 0 {
                    self.lines.pop_front();
                }
            }
        } else {
            // Earlier lines lose their boundaries.
            while let Some(line) = self.lines.get_mut(0) {
                let used = left.min(usize::from(*line));
                *line -= used as u16;
                left -= used;
                if *line > 0 {
                    break;
                }
                self.lines.pop_front();
            }
        }
        (n, n == most)
    }

    /// Handles a change of the settings. If lines are no longer edited, the typed bytes become readable.
    pub fn changed(&mut self, old: &Settings, new: &Settings) {
        if old.local.contains(Local::CANONICAL) && !new.local.contains(Local::CANONICAL) {
            self.line_is_ready();
            self.lines.clear();
        }
        if !new.input.contains(Input::FLOW) {
            self.stopped = false;
        }
    }

    /// Discards typed bytes.
    pub fn flush_input(&mut self) {
        self.ready.clear();
        self.lines.clear();
        self.line.clear();
        self.literal = false;
    }

    /// Processes a typed byte. Returns the key if the byte sends a signal.
    pub fn receive(&mut self, byte: u8, s: &Settings) -> Option<Key> {
        let mut b = if s.input.contains(Input::STRIP) { byte & 0x7f } else { byte };
        let (local, c) = (s.local, &s.characters);
        if s.input.contains(Input::LOWER_CASE) && local.contains(Local::EXTENDED) {
            b = lower(b);
        }
        if core::mem::take(&mut self.literal) {
            if s.input.contains(Input::FLOW | Input::ANY_STARTS) {
                self.stopped = false;
            }
            self.insert(b, s);
            return None;
        }
        let is = |ch: u8| ch != 0 && b == ch;
        if s.input.contains(Input::FLOW) {
            if is(c.stop) {
                self.stopped = true;
                return None;
            }
            if is(c.start) {
                self.stopped = false;
                return None;
            }
            if s.input.contains(Input::ANY_STARTS) {
                self.stopped = false;
            }
        }
        if local.contains(Local::SIGNALS) {
            let key = match () {
                () if is(c.interrupt) => Some(Key::Interrupt),
                () if is(c.quit) => Some(Key::Quit),
                () if is(c.suspend) => Some(Key::Suspend),
                () => None,
            };
            if key.is_some() {
                if !local.contains(Local::NO_FLUSH) {
                    self.flush_input();
                    self.echo.clear();
                }
                self.stopped = false;
                if local.contains(Local::ECHO) {
                    self.show_typed(b, s);
                }
                return key;
            }
        }
        match b {
            b'\r' if s.input.contains(Input::IGNORE_CR) => return None,
            b'\r' if s.input.contains(Input::CR_TO_NL) => b = b'\n',
            b'\n' if s.input.contains(Input::NL_TO_CR) => b = b'\r',
            _ => {}
        }
        if local.contains(Local::CANONICAL) {
            self.edit(b, s)
        } else {
            self.insert(b, s)
        }
        None
    }

    fn edit(&mut self, b: u8, s: &Settings) {
        let (local, c) = (s.local, &s.characters);
        let is = |ch: u8| ch != 0 && b == ch;
        let extended = local.contains(Local::EXTENDED);
        match () {
            () if is(c.erase) => self.erase_one(s, b),
            () if extended && is(c.word_erase) => self.erase_word(s),
            () if is(c.kill) => self.kill(s, b),
            () if extended && is(c.literal_next) => {
                self.literal = true;
                if local.contains(Local::ECHO | Local::ECHO_CONTROL) {
                    self.show(b'^', s);
                    self.show(b'\x08', s);
                }
            }
            () if extended && is(c.reprint) => {
                if local.contains(Local::ECHO) {
                    self.show_typed(b, s);
                    self.show(b'\n', s);
                    for i in 0..self.line.len() {
                        self.show_typed(self.line[i], s);
                    }
                }
            }
            () if is(c.end_of_file) => self.finish(None),
            () if b == b'\n' => {
                if local.intersects(Local::ECHO | Local::ECHO_NEWLINE) {
                    self.show(b'\n', s);
                }
                self.finish(Some(b));
            }
            () if is(c.end_of_line) || (extended && is(c.end_of_line2)) => {
                if local.contains(Local::ECHO) {
                    self.show_typed(b, s);
                }
                self.finish(Some(b));
            }
            () => self.insert(b, s),
        }
    }

    /// Adds an ordinary character to the line, or to the readable bytes if lines are not edited.
    fn insert(&mut self, b: u8, s: &Settings) {
        let canonical = s.local.contains(Local::CANONICAL);
        // One place is left for the end of the line. Without line editing there is room for the whole batch.
        if if canonical { self.line.len() + 1 >= QUEUE } else { self.ready.len() >= QUEUE + BATCH } {
            return;
        }
        if s.local.contains(Local::ECHO) {
            if self.line.is_empty() {
                self.line_column = self.column;
            }
            self.show_typed(b, s);
        }
        if canonical { self.line.push_reserved(b) } else { self.ready.push_back_reserved(b) }
    }

    fn finish(&mut self, end: Option<u8>) {
        // Bytes typed before line editing began become a separate line. Otherwise they would count as part of a later
        // line.
        if self.lines.is_empty() && !self.ready.is_empty() {
            self.end_line(self.ready.len());
        }
        if let Some(end) = end {
            self.line.push_reserved(end); // room for it was left
        }
        self.end_line(self.line.len());
        self.line_is_ready();
    }

    fn end_line(&mut self, len: usize) {
        debug_assert!(len <= READY);
        self.lines.push_back_reserved(len as u16);
    }

    fn line_is_ready(&mut self) {
        self.line.drain(..).for_each(|b| self.ready.push_back_reserved(b));
    }

    fn erase_one(&mut self, s: &Settings, key: u8) {
        let Some(b) = self.pop(s) else { return };
        if !s.local.contains(Local::ECHO) {
            return;
        }
        if s.local.contains(Local::ECHO_ERASE) { self.blank(b, s) } else { self.show_typed(key, s) }
    }

    /// Removes the last character of the line, with all its bytes. Returns its first byte.
    fn pop(&mut self, s: &Settings) -> Option<u8> {
        let mut b = self.line.pop()?;
        while s.input.contains(Input::UTF8) && b & 0xc0 == 0x80 {
            match self.line.pop() {
                Some(before) => b = before,
                None => break,
            }
        }
        Some(b)
    }

    fn erase_word(&mut self, s: &Settings) {
        let mut seen = false;
        while let Some(&b) = self.line.last() {
            if is_word(b) {
                seen = true;
            } else if seen {
                break;
            }
            let Some(b) = self.pop(s) else { break };
            if s.local.contains(Local::ECHO) {
                self.blank(b, s);
            }
        }
    }

    fn kill(&mut self, s: &Settings, key: u8) {
        if s.local.contains(Local::ECHO) {
            if s.local.contains(Local::ECHO_KILL | Local::ECHO_KILL_ERASE | Local::ECHO_ERASE) {
                while let Some(b) = self.pop(s) {
                    self.blank(b, s);
                }
            } else {
                self.show_typed(key, s);
                if s.local.contains(Local::ECHO_KILL) {
                    self.show(b'\n', s);
                }
            }
        }
        self.line.clear();
    }

    /// Shows the removal of `b` from the line.
    fn blank(&mut self, b: u8, s: &Settings) {
        let width = match b {
            b'\t' => {
                let before = self.line.iter().fold(self.line_column, |at, &b| advance(at, b, s));
                self.column.saturating_sub(before)
            }
            b if is_control(b) => {
                if s.local.contains(Local::ECHO_CONTROL) {
                    2
                } else {
                    0
                }
            }
            _ => 1,
        };
        for _ in 0..width {
            for out in *b"\x08 \x08" {
                self.show(out, s);
            }
        }
    }

    /// Shows a typed character.
    fn show_typed(&mut self, b: u8, s: &Settings) {
        if is_control(b) && b != b'\n' && b != b'\t' && s.local.contains(Local::ECHO_CONTROL) {
            self.show(b'^', s);
            self.show(b ^ 0x40, s);
        } else {
            self.show(b, s);
        }
    }

    fn show(&mut self, b: u8, s: &Settings) {
        let mut out = [0; MOST_SHOWN];
        let n = self.output(b, s, &mut out);
        if self.echo.len() + n <= ECHO {
            out[..n].iter().for_each(|&b| self.echo.push_back_reserved(b));
        }
    }

    /// Puts the output for byte `b` into `out`, at most as many bytes as [`most_shown`], and returns their number.
    /// Updates the column.
    pub fn output(&mut self, b: u8, s: &Settings, out: &mut [u8; MOST_SHOWN]) -> usize {
        out[0] = b;
        if s.output.contains(Output::PROCESS) {
            match b {
                b'\n' if s.output.contains(Output::NL_TO_CRNL) => {
                    (out[0], out[1]) = (b'\r', b'\n');
                    self.column = 0;
                    return 2;
                }
                b'\n' if s.output.contains(Output::NL_RETURNS) => self.column = 0,
                b'\r' if s.output.contains(Output::NO_CR_AT_COLUMN_0) && self.column == 0 => return 0,
                b'\r' if s.output.contains(Output::CR_TO_NL) => {
                    out[0] = b'\n';
                    // As on Linux, the new line does not move the cursor to column 0.
                    if s.output.contains(Output::NL_RETURNS) {
                        self.column = 0;
                    }
                    return 1;
                }
                b'\t' if s.output.contains(Output::TABS_TO_SPACES) => {
                    let spaces = TAB - self.column % TAB;
                    out[..spaces].fill(b' ');
                    self.column += spaces;
                    return spaces;
                }
                b if s.output.contains(Output::UPPER_CASE) => out[0] = b.to_ascii_uppercase(),
                _ => {}
            }
        }
        self.column = match b {
            b'\r' => 0,
            b'\x08' => self.column.saturating_sub(1),
            b if is_control(b) && b != b'\t' => self.column,
            b => advance_shown(self.column, b, s),
        };
        1
    }
}

/// Returns the cursor's column after the typed byte `b` is shown at column `at`.
fn advance(at: usize, b: u8, s: &Settings) -> usize {
    match b {
        b if is_control(b) && b != b'\t' => at + if s.local.contains(Local::ECHO_CONTROL) { 2 } else { 0 },
        b => advance_shown(at, b, s),
    }
}

fn advance_shown(at: usize, b: u8, s: &Settings) -> usize {
    match b {
        b'\t' => (at | 7) + 1,
        b if s.input.contains(Input::UTF8) && b & 0xc0 == 0x80 => at,
        _ => at + 1,
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::string::String;
    use std::vec::Vec;

    fn type_all(e: &mut Editor, s: &Settings, bytes: &[u8]) -> Vec<Key> {
        bytes.iter().filter_map(|&b| e.receive(b, s)).collect()
    }
    fn read(e: &mut Editor, s: &Settings) -> Vec<u8> {
        let mut b = [0; 64];
        let (n, _) = e.take(s, &mut b);
        b[..n].to_vec()
    }
    fn shown(e: &mut Editor) -> Vec<u8> {
        e.echo.drain_front(usize::MAX).collect()
    }

    #[test]
    fn readers_get_a_line_once_it_is_finished_and_as_edited() {
        let (mut e, s) = (Editor::new().unwrap(), Settings::default());
        type_all(&mut e, &s, b"helx\x7flo");
        assert!(!e.has_line());
        type_all(&mut e, &s, b" worlds all\x17\x7f\x7f\r");
        assert_eq!(read(&mut e, &s), b"hello world\n");
        assert_eq!(shown(&mut e).iter().filter(|&&b| b == 8).count(), 2 * (1 + 3 + 2));
    }

    #[test]
    fn the_kill_character_empties_the_line() {
        let (mut e, s) = (Editor::new().unwrap(), Settings::default());
        type_all(&mut e, &s, b"rm -rf /\x15ls\n");
        assert_eq!(read(&mut e, &s), b"ls\n");
    }

    #[test]
    fn an_end_of_file_ends_a_line_and_alone_is_an_empty_one() {
        let (mut e, s) = (Editor::new().unwrap(), Settings::default());
        type_all(&mut e, &s, b"abc\x04\x04");
        assert_eq!(read(&mut e, &s), b"abc");
        assert!(e.has_line());
        assert_eq!(read(&mut e, &s), b"");
        assert!(!e.has_line());
    }

    #[test]
    fn signal_keys_send_signals_and_throw_the_line_away() {
        let (mut e, s) = (Editor::new().unwrap(), Settings::default());
        assert_eq!(type_all(&mut e, &s, b"abc\x03x\x1c\x1a"), [Key::Interrupt, Key::Quit, Key::Suspend]);
        type_all(&mut e, &s, b"y\n");
        assert_eq!(read(&mut e, &s), b"y\n");
        assert!(shown(&mut e).starts_with(b"^Z"));
    }

    #[test]
    fn a_quoted_character_loses_its_meaning() {
        let (mut e, s) = (Editor::new().unwrap(), Settings::default());
        assert!(type_all(&mut e, &s, b"\x16\x03\n").is_empty());
        assert_eq!(read(&mut e, &s), b"\x03\n");
    }

    #[test]
    fn raw_bytes_are_readable_at_once_and_not_shown() {
        let (mut e, mut s) = (Editor::new().unwrap(), Settings::default());
        s.local = Local::empty();
        s.input = Input::empty();
        type_all(&mut e, &s, b"\x03\r\x7f");
        assert_eq!(read(&mut e, &s), b"\x03\r\x7f");
        assert!(shown(&mut e).is_empty());
    }

    #[test]
    fn erasing_takes_whole_utf8_characters_and_the_width_of_tabs() {
        let (mut e, mut s) = (Editor::new().unwrap(), Settings::default());
        s.input |= Input::UTF8;
        type_all(&mut e, &s, "aé\x7f".as_bytes());
        shown(&mut e);
        type_all(&mut e, &s, b"\t\x7f");
        assert_eq!(shown(&mut e).iter().filter(|&&b| b == 8).count(), 2 * 7);
        type_all(&mut e, &s, b"\n");
        assert_eq!(read(&mut e, &s), b"a\n");
    }

    #[test]
    fn any_character_starts_stopped_output_if_it_should() {
        let (mut e, mut s) = (Editor::new().unwrap(), Settings::default());
        type_all(&mut e, &s, b"\x13x");
        assert!(e.stopped);
        s.input |= Input::ANY_STARTS;
        type_all(&mut e, &s, b"\x13");
        assert!(e.stopped, "the stop character itself starts nothing");
        type_all(&mut e, &s, b"y\n");
        assert!(!e.stopped);
        assert_eq!(read(&mut e, &s), b"xy\n");
        s.input -= Input::FLOW;
        type_all(&mut e, &s, b"\x13\n");
        assert!(!e.stopped);
    }

    #[test]
    fn capitals_become_small_letters_if_the_input_is_extended() {
        let (mut e, mut s) = (Editor::new().unwrap(), Settings::default());
        s.input |= Input::LOWER_CASE;
        type_all(&mut e, &s, b"AbC\xc9\xd7\n");
        assert_eq!(read(&mut e, &s), b"abc\xe9\xd7\n");
        s.local -= Local::EXTENDED;
        type_all(&mut e, &s, b"AbC\n");
        assert_eq!(read(&mut e, &s), b"AbC\n");
    }

    #[test]
    fn output_is_processed_as_the_flags_say() {
        let shown = |flags: Output, bytes: &[u8]| {
            let (mut e, s) = (Editor::new().unwrap(), Settings { output: flags, ..Settings::default() });
            let mut out = Vec::new();
            for b in bytes {
                let mut some = [0; MOST_SHOWN];
                let n = e.output(*b, &s, &mut some);
                assert!(n <= most_shown(&s));
                out.extend(&some[..n]);
            }
            String::from_utf8(out).unwrap()
        };
        let no_cr = Output::PROCESS | Output::NO_CR_AT_COLUMN_0;
        assert_eq!(shown(no_cr, b"\rab\n\rc\r\rd"), "ab\n\rc\rd", "a new line keeps the column");
        assert_eq!(shown(no_cr | Output::NL_RETURNS, b"\rab\n\rc\r\rd"), "ab\nc\rd");
        assert_eq!(shown(Output::PROCESS | Output::CR_TO_NL, b"a\rb"), "a\nb");
        let wide = Output::PROCESS | Output::TABS_TO_SPACES | Output::UPPER_CASE;
        assert_eq!(shown(wide, b"a\tb\tcccccccc\td"), "A       B       CCCCCCCC        D");
        assert_eq!(shown(wide - Output::PROCESS, b"\ra\t"), "\ra\t");
    }

    #[test]
    fn a_line_never_outgrows_the_queue() {
        let (mut e, s) = (Editor::new().unwrap(), Settings::default());
        for _ in 0..3 * QUEUE {
            e.receive(b'x', &s);
        }
        e.receive(b'\n', &s);
        assert_eq!(e.queued(), QUEUE);
    }
}
