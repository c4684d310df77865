//! The relay between the user and the guest: one loop that moves bytes both ways. The loop never blocks on one side
//! while the other has work. It also finds out how the run ended.
//!
//! Back-pressure reaches the guest: when a buffer of the relay is full, the relay stops reading, QEMU's write blocks,
//! and the guest waits. The user's first interrupt (Ctrl-C) enlarges the buffers of the guest's output. So a guest that
//! waits to write can go on and receive the interrupt, even if no reader takes its output.

use std::{
    fs::File,
    io::{Read as _, Seek as _, Write as _, pipe},
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, fstat},
    io::Errno,
};

use super::{
    control::{FromGuest, Piece, Pieces, ToGuest},
    flow::{Flow, Moved},
    outcome::Outcome,
    qemu::{self, Guest},
    terminal,
};
use crate::failure::{Doing, Result};

/// The longest time that the machine may run after the program's end without moving a byte.
const GRACE: Duration = Duration::from_secs(10);
/// The bytes of the kernel's log that are kept for an error message.
const TAIL: usize = 32 << 10;
/// The most chunks of 64 KiB that one turn of the loop reads from the control port.
const MOST_CHUNKS: usize = 16;
/// Ctrl-], which ends the machine in raw mode.
const ESCAPE: u8 = 0x1d;

/// A request to the relay, made by a signal or the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Ctrl-C was pressed.
    Interrupt,
    /// The window's size changed.
    Resized,
    /// The whole run must end, because of the signal of this number.
    Stop(u8),
}

/// The streams of a run, and its limits.
pub struct Ends<'a> {
    /// The program's standard input.
    pub input: BorrowedFd<'a>,
    /// The program's standard output.
    pub output: BorrowedFd<'a>,
    /// The program's standard error.
    pub errors: BorrowedFd<'a>,
    /// A descriptor that is readable when `asked` has requests.
    pub wake: Option<BorrowedFd<'a>>,
    /// Returns the requests. It is called when `wake` is readable.
    pub asked: Box<dyn FnMut() -> Vec<Asked> + 'a>,
    /// Whether the guest's terminal is the user's.
    pub tty: bool,
    /// Whether the kernel's log is shown on standard error.
    pub verbose: bool,
    /// Whether the results that the guest sends are kept.
    pub results: bool,
    /// The file that keeps the kernel's log.
    pub log: Option<File>,
    /// The time when the run must be over.
    pub deadline: Option<Instant>,
}

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// How the run ended.
    pub outcome: Outcome,
    /// The end of the kernel's log.
    pub log_tail: String,
    /// The guest's time, in nanoseconds, at its first user instruction. `None` if the guest executed no user
    /// instruction.
    pub ready: Option<u64>,
    /// The real time from QEMU's start to that instruction.
    pub ready_after: Option<Duration>,
    /// The archive of results that the guest sent, if any.
    pub results: Option<File>,
}

struct Relay<'a> {
    ends: Ends<'a>,
    guest: Guest,
    to_a: Flow,
    from_a: Flow,
    from_b: Flow,
    to_c: Flow,
    pieces: Pieces,
    /// The archive of results; `None` until the guest sends one.
    results: Option<File>,
    tail: Vec<u8>,
    said: Option<FromGuest>,
    ready: Option<(u64, Duration)>,
    interrupts: u32,
    eof_sent: bool,
    /// Whether QEMU has ended. The sockets may still hold its last bytes.
    over: bool,
    quiet_since: Instant,
    closed: [bool; 2],
    blocking: [bool; 2],
}

/// Runs until the guest has ended and all its bytes are passed on, or until it must be stopped.
pub fn run(guest: Guest, ends: Ends<'_>) -> Report {
    let may_block = |fd: BorrowedFd<'_>| {
        fstat(fd).map_or(true, |s| !matches!(FileType::from_raw_mode(s.st_mode), FileType::RegularFile))
    };
    let blocking = [may_block(ends.output), may_block(ends.errors)];
    let mut relay = Relay {
        ends,
        guest,
        to_a: Flow::default(),
        from_a: Flow::default(),
        from_b: Flow::default(),
        to_c: Flow::default(),
        pieces: Pieces::default(),
        results: None,
        tail: Vec::new(),
        said: None,
        ready: None,
        interrupts: 0,
        eof_sent: false,
        over: false,
        quiet_since: Instant::now(),
        closed: [false; 2],
        blocking,
    };
    let outcome = loop {
        if let Some(outcome) = relay.step() {
            break outcome;
        }
    };
    relay.guest.kill();
    relay.drain_log();
    Report {
        outcome,
        log_tail: String::from_utf8_lossy(&relay.tail).into_owned(),
        ready: relay.ready.map(|r| r.0),
        ready_after: relay.ready.map(|r| r.1),
        results: relay.results.take(),
    }
}

/// Runs a guest without user input, for `limit` at most. `log` keeps the kernel's log.
pub fn unattended(
    guest: Guest,
    [output, errors]: [BorrowedFd<'_>; 2],
    log: Option<File>,
    limit: Duration,
) -> Result<Report> {
    let nothing = File::open("/dev/null").doing(|| "cannot open /dev/null".to_string())?;
    Ok(run(guest, without_user(nothing.as_fd(), [output, errors], log, limit)))
}

/// The report of a guest without user input, and its program's output.
pub struct GuestOutput {
    /// How the run ended.
    pub report: Report,
    /// The bytes of the program's standard output.
    pub output: Vec<u8>,
    /// The bytes of the program's standard error.
    pub errors: Vec<u8>,
}

/// Runs a guest as [`unattended`] does, and keeps the program's output.
pub fn kept(guest: Guest, limit: Duration) -> Result<GuestOutput> {
    keeping(|ends| unattended(guest, ends, None, limit))
}

/// Runs a guest as [`kept`] does, but sends the guest nothing, not even the end of its input. In a guest with a counted
/// clock, a byte would arrive at a moment that depends on the host's load.
pub fn silent(guest: Guest, limit: Duration) -> Result<GuestOutput> {
    let (input, held) = pipe().doing(|| "cannot connect to the guest".to_string())?;
    let ended = keeping(|ends| Ok(run(guest, without_user(input.as_fd(), ends, None, limit))));
    drop(held);
    ended
}

fn keeping(run: impl FnOnce([BorrowedFd<'_>; 2]) -> Result<Report>) -> Result<GuestOutput> {
    let file =
        |name| qemu::memory_file(name).doing(|| "cannot store the program's output in a temporary file".to_string());
    let (mut output, mut errors) = (file("output")?, file("errors")?);
    let report = run([output.as_fd(), errors.as_fd()])?;
    Ok(GuestOutput { report, output: content(&mut output)?, errors: content(&mut errors)? })
}

/// The `Ends` of a guest that no user attends.
fn without_user<'a>(
    input: BorrowedFd<'a>,
    [output, errors]: [BorrowedFd<'a>; 2],
    log: Option<File>,
    limit: Duration,
) -> Ends<'a> {
    Ends {
        input,
        output,
        errors,
        wake: None,
        asked: Box::new(Vec::new),
        tty: false,
        verbose: false,
        results: false,
        log,
        deadline: Some(Instant::now() + limit),
    }
}

/// Reads the whole content of a file that keeps a guest's output.
pub fn content(file: &mut File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).doing(|| "cannot read the stored output".to_string())?;
    Ok(bytes)
}

/// The descriptors of one turn of the loop, in the order in which they are polled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Input,
    Output,
    Errors,
    PortA,
    PortB,
    PortC,
    Log,
    Wake,
    Ended,
}

impl Relay<'_> {
    /// Waits for an event and serves it. Returns the outcome if the run is over.
    fn step(&mut self) -> Option<Outcome> {
        let wanted = self.wanted();
        let mut fds: Vec<PollFd<'_>> =
            wanted.iter().map(|(side, flags)| PollFd::from_borrowed_fd(self.descriptor(*side), *flags)).collect();
        let wait = self.patience();
        let timeout = wait.map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos().into() });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Some(Outcome::Died(format!("poll: {e}"))),
        }
        let found: Vec<(Side, PollFlags)> = wanted.iter().zip(&fds).map(|((s, _), fd)| (*s, fd.revents())).collect();
        drop(fds);
        for (side, flags) in found.into_iter().filter(|(_, f)| !f.is_empty()) {
            if let Some(outcome) = self.serve(side, flags) {
                return Some(outcome);
            }
        }
        self.settle()
    }

    /// The descriptors to poll now, with the events to wait for.
    fn wanted(&self) -> Vec<(Side, PollFlags)> {
        let mut wanted = Vec::with_capacity(9);
        let mut want = |side, flags: PollFlags| {
            if !flags.is_empty() {
                wanted.push((side, flags));
            }
        };
        let when = |condition: bool, flags: PollFlags| if condition { flags } else { PollFlags::empty() };
        let (r, w) = (PollFlags::IN, PollFlags::OUT);
        want(Side::Input, when(!self.over && self.to_a.has_room() && !self.to_a.has_bytes(), r));
        want(Side::Output, when(self.from_a.has_bytes(), w));
        want(Side::Errors, when(self.from_b.has_bytes(), w));
        want(Side::PortA, when(self.from_a.has_room(), r) | when(!self.over && self.to_a.has_bytes(), w));
        want(Side::PortB, when(self.from_b.has_room(), r));
        want(Side::PortC, when(!self.over, r) | when(!self.over && self.to_c.has_bytes(), w));
        want(Side::Log, when(!self.over, r));
        want(Side::Wake, when(self.ends.wake.is_some(), r));
        want(Side::Ended, when(!self.over, r));
        wanted
    }

    fn descriptor(&self, side: Side) -> BorrowedFd<'_> {
        match side {
            Side::Input => self.ends.input,
            Side::Output => self.ends.output,
            Side::Errors => self.ends.errors,
            Side::PortA => self.guest.port_a.as_fd(),
            Side::PortB => self.guest.port_b.as_fd(),
            Side::PortC => self.guest.port_c.as_fd(),
            Side::Log => self.guest.log.as_fd(),
            Side::Wake => self.ends.wake.unwrap_or(self.ends.input),
            Side::Ended => self.guest.ended.as_fd(),
        }
    }

    /// The longest time that the next wait may take; `None` for no limit.
    fn patience(&self) -> Option<Duration> {
        let now = Instant::now();
        let grace = self.said.is_some().then(|| self.quiet_since + GRACE);
        [self.ends.deadline, grace].into_iter().flatten().min().map(|t| t.saturating_duration_since(now))
    }

    fn serve(&mut self, side: Side, flags: PollFlags) -> Option<Outcome> {
        let broken = PollFlags::ERR | PollFlags::NVAL;
        match side {
            Side::Input => {
                if flags.contains(PollFlags::NVAL) {
                    self.to_a.ended = true;
                } else {
                    return self.take_input();
                }
            }
            Side::Output => return self.give_output(),
            Side::Errors => {
                if let Moved::Failed(_) = self.from_b.drain(self.ends.errors, self.blocking[1]) {
                    self.closed[1] = true; // a program whose standard error is closed continues too
                }
            }
            Side::PortA => {
                if flags.contains(PollFlags::OUT) && self.to_a.drain(&self.guest.port_a, false) != Moved::Nothing {
                    self.quiet_since = Instant::now();
                }
                if flags.intersects(PollFlags::IN | PollFlags::HUP | broken) && self.from_a.has_room() {
                    self.from_a.fill(&self.guest.port_a);
                    self.quiet_since = Instant::now();
                }
            }
            Side::PortB => {
                self.from_b.fill(&self.guest.port_b);
                self.quiet_since = Instant::now();
            }
            Side::PortC => {
                if flags.contains(PollFlags::OUT) {
                    self.to_c.drain(&self.guest.port_c, false);
                }
                if flags.intersects(PollFlags::IN) {
                    self.take_control();
                }
            }
            Side::Log => self.drain_log(),
            Side::Wake => return self.take_wishes(),
            Side::Ended => {
                self.over = true;
                self.take_control();
                self.drain_log();
            }
        }
        None
    }

    /// Finishes a turn of the loop: discards output without a reader, passes on the end of the input, and checks the
    /// limits. Returns the outcome if the run is over.
    fn settle(&mut self) -> Option<Outcome> {
        if self.closed[1] {
            self.from_b.discard();
        }
        if self.to_a.is_done() && !self.eof_sent && !self.over {
            self.eof_sent = true;
            self.send(ToGuest::Eof(self.to_a.taken));
        }
        if self.over {
            // QEMU has ended. Its sockets still hold its last bytes, and then report their end.
            while self.from_a.has_room() && matches!(self.from_a.fill(&self.guest.port_a), Moved::Bytes(_)) {}
            while self.from_b.has_room() && matches!(self.from_b.fill(&self.guest.port_b), Moved::Bytes(_)) {}
            if self.from_a.is_done() && self.from_b.is_done() {
                return Some(self.verdict());
            }
        }
        let now = Instant::now();
        if self.ends.deadline.is_some_and(|d| now >= d) {
            return Some(Outcome::TimedOut);
        }
        // The program has ended but the machine hangs. The program's status is known, so the relay does not wait
        // longer.
        if self.said.is_some() && !self.over && !self.from_a.has_bytes() && now >= self.quiet_since + GRACE {
            return Some(self.verdict());
        }
        None
    }

    fn verdict(&mut self) -> Outcome {
        match self.said {
            Some(FromGuest::Exit(status)) => Outcome::Exit(status),
            Some(FromGuest::Signal(n)) => Outcome::Signal(n),
            _ => match self.guest.wait() {
                Ok(status) => {
                    let log = String::from_utf8_lossy(&self.tail);
                    Outcome::of_qemu(status.code(), &status.to_string(), &self.guest.complaints(), &log)
                }
                Err(e) => Outcome::Died(format!("QEMU: {e}")),
            },
        }
    }

    fn take_input(&mut self) -> Option<Outcome> {
        let before = self.to_a.taken;
        self.to_a.fill(self.ends.input);
        // In raw mode, the byte `ESCAPE` ends the machine only if it arrives alone. In pasted text, it goes to the
        // program.
        if self.ends.tty && self.to_a.taken == before + 1 && self.to_a.holds_only(ESCAPE) {
            return Some(Outcome::Stopped(2));
        }
        None
    }

    fn give_output(&mut self) -> Option<Outcome> {
        match self.from_a.drain(self.ends.output, self.blocking[0]) {
            Moved::Failed(Errno::PIPE) => Some(Outcome::OutputClosed),
            Moved::Failed(e) => Some(Outcome::OutputFailed(e.to_string())),
            _ => None,
        }
    }

    fn take_control(&mut self) {
        let mut bytes = [0; 64 << 10];
        // The number of chunks is bounded, so that a guest that sends without end does not keep the loop from its other
        // work.
        let most = if self.over { usize::MAX } else { MOST_CHUNKS };
        for _ in 0..most {
            let Ok(n @ 1..) = rustix::io::read(&self.guest.port_c, &mut bytes) else { return };
            let mut pieces = std::mem::take(&mut self.pieces);
            pieces.push(&bytes[..n], |piece| match piece {
                Piece::Line(FromGuest::Ready(ns)) => {
                    self.ready = Some((ns, self.guest.started.elapsed()));
                    // The window's size may have changed since the guest's start.
                    self.window_size();
                }
                Piece::Line(said) => {
                    self.said.get_or_insert(said);
                    self.quiet_since = Instant::now();
                }
                Piece::Data(part) => self.keep_result(part),
            });
            self.pieces = pieces;
        }
    }

    /// Keeps a piece of the results. If a write fails, the file stays incomplete, and its reader will report that.
    fn keep_result(&mut self, part: &[u8]) {
        if self.results.is_none() && self.ends.results {
            self.results = tempfile::tempfile().ok();
        }
        if let Some(Err(e)) = self.results.as_mut().map(|file| file.write_all(part)) {
            eprintln!("quire: the guest's results cannot be kept: {e}");
        }
        self.quiet_since = Instant::now();
    }

    fn take_wishes(&mut self) -> Option<Outcome> {
        for wish in (self.ends.asked)() {
            match wish {
                Asked::Interrupt => {
                    self.interrupts += 1;
                    if self.interrupts > 1 {
                        return Some(Outcome::Stopped(2));
                    }
                    self.from_a.widen();
                    self.from_b.widen();
                    self.send(ToGuest::Interrupt);
                }
                Asked::Resized => self.window_size(),
                Asked::Stop(signal) => return Some(Outcome::Stopped(signal)),
            }
        }
        None
    }

    fn window_size(&mut self) {
        if let (true, Some((rows, columns))) = (self.ends.tty, terminal::size(self.ends.output)) {
            self.send(ToGuest::WindowSize(rows, columns));
        }
    }

    fn send(&mut self, line: ToGuest) {
        self.to_c.put(line.to_string().as_bytes());
    }

    fn drain_log(&mut self) {
        let mut bytes = [0; 16 << 10];
        while let Ok(n @ 1..) = rustix::io::read(&self.guest.log, &mut bytes) {
            let piece = &bytes[..n];
            if let Some(file) = &mut self.ends.log {
                let _ = file.write_all(piece);
            }
            if self.ends.verbose {
                let text = String::from_utf8_lossy(piece).replace('\r', "");
                let text = if self.ends.tty { text.replace('\n', "\r\n") } else { text };
                let _ = std::io::stderr().write_all(text.as_bytes());
            }
            self.tail.extend_from_slice(piece);
            if self.tail.len() > 2 * TAIL {
                self.tail.drain(..self.tail.len() - TAIL);
            }
        }
    }
}
