//! Terminals: a line discipline between a byte port and the programs that read and write it.
//!
//! The terminal listens to the port's readiness and takes typed bytes as they arrive, so the interrupt key works
//! without a reader. One spin lock guards the settings and the editor, and is held for one buffer of bytes at a time.
//! Bytes to and from programs are copied with only the reader's sleeping lock held.

mod editor;
pub mod pty;
mod settings;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

pub use editor::Key;
pub use settings::{Characters, Input, Local, Output, Settings, Size};

use crate::FsError;
use crate::device::port::{Change, Port, write_all};
use crate::stream::Stream;
use crate::stream::io::Io;
use crate::stream::readiness::{Listener, Readiness, Ready};
use crate::stream::transfer::{Sink, Source};
use core::any::Any;
use editor::Editor;
use quire_heap::{Arc, Weak, unsize};
use quire_sync::atomic::{AtomicBool, Ordering};
use quire_sync::hooks::now;
use quire_sync::{Mutex, Rank, SpinLock};

/// The notifications that a terminal sends to processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A key was pressed.
    Key(Key),
    /// The size changed.
    Resized,
}

/// A terminal's interface to processes.
pub trait Processes: Send + Sync {
    /// Sends the signal for `notice` to every process of the group.
    fn notify(&self, group: u32, notice: Notice);
    /// Checks the calling process before it reads, writes or changes a terminal. `session` and `foreground` are the
    /// terminal's. A process in the background of that session gets the signal that stops it, and the call fails with
    /// [`FsError::Interrupted`]. If the process ignores the signal, a read fails with [`FsError::Io`], and a write
    /// continues.
    fn check(&self, session: u32, foreground: u32, writing: bool) -> Result<(), FsError>;
    /// Handles the hang-up of the terminal of `session`, whose foreground group is `foreground`. Both may be 0 for
    /// none.
    fn hung_up(&self, session: u32, foreground: u32);
}

struct State {
    settings: Settings,
    /// The settings that no program may change: the bits and characters that are set in this value. `None` if all may
    /// change.
    locked: Option<Settings>,
    editor: Editor,
    size: Size,
    /// Process group that keys send signals to; 0 if there is none.
    foreground: u32,
    /// Session that the terminal belongs to; 0 if it is free.
    session: u32,
}

/// A terminal; see the module.
pub struct Terminal {
    port: Arc<dyn Port>,
    processes: Arc<dyn Processes>,
    /// The number by which the terminal's owner knows it.
    number: u64,
    state: SpinLock<State>,
    /// Held by the thread that moves bytes from the port, so that the bytes stay in order.
    pumping: Mutex<()>,
    /// Whether something changed since a thread began to pump, that is, to move bytes between the port and the editor.
    unpumped: AtomicBool,
    /// Held by the reader that takes a line.
    reading: Mutex<()>,
    /// Held by a writer from its check for room until it has sent the bytes, so that no other writer uses that room.
    writing: Mutex<()>,
    readiness: Readiness,
}

/// The listener on the port. It holds the terminal weakly, because the port outlives terminals.
struct Ear(Weak<Terminal>);

impl Listener for Ear {
    fn changed(&self) {
        if let Some(terminal) = self.0.upgrade() {
            terminal.pump();
        }
    }
}

impl Terminal {
    /// Makes a terminal at `port`, which the caller knows by `number`.
    pub fn new(
        port: Arc<dyn Port>,
        processes: Arc<dyn Processes>,
        size: Size,
        number: u64,
    ) -> Result<Arc<Self>, FsError> {
        let editor = Editor::new()?;
        let state = State { settings: Settings::default(), locked: None, editor, size, foreground: 0, session: 0 };
        let terminal = Arc::try_new(Terminal {
            port,
            processes,
            number,
            state: SpinLock::new(Rank::TERMINAL, state),
            pumping: Mutex::new(()),
            unpumped: AtomicBool::new(false),
            reading: Mutex::new(()),
            writing: Mutex::new(()),
            readiness: Readiness::new(),
        })?;
        let ear: Arc<dyn Listener> = unsize!(Arc::try_new(Ear(Arc::downgrade(&terminal)))?);
        terminal.port.readiness().listen(&ear)?;
        terminal.pump();
        Ok(terminal)
    }

    /// Moves typed bytes from the port to the editor, and echoes to the port. If another thread is pumping, that thread
    /// pumps again instead. A pump may call itself again: waking the peer may drop the peer, and that drop pumps too.
    fn pump(&self) {
        self.unpumped.store(true, Ordering::Release);
        while self.unpumped.load(Ordering::Acquire) {
            let Some(one) = self.pumping.try_lock() else { return };
            while self.unpumped.swap(false, Ordering::AcqRel) {
                self.move_typed();
            }
            drop(one);
            self.readiness.notify();
        }
    }

    fn move_typed(&self) {
        let mut bytes = [0; editor::BATCH];
        loop {
            self.show();
            if !self.state.lock().editor.has_room() {
                break;
            }
            let n = self.port.read(&mut bytes);
            if n == 0 {
                break;
            }
            for &byte in &bytes[..n] {
                self.typed(byte);
            }
        }
        self.show();
    }

    fn typed(&self, byte: u8) {
        let (key, group, flushed, stopped) = {
            let mut state = self.state.lock();
            let State { settings, editor, foreground, .. } = &mut *state;
            let before = editor.stopped;
            let key = editor.receive(byte, settings);
            let flushed = key.is_some() && !settings.local.contains(Local::NO_FLUSH);
            (key, *foreground, flushed, (editor.stopped != before).then_some(editor.stopped))
        };
        if flushed {
            self.port.changed(Change::InputFlushed);
            self.port.changed(Change::OutputFlushed);
        }
        if let Some(stopped) = stopped {
            self.port.changed(if stopped { Change::Stopped } else { Change::Started });
        }
        if let Some(key) = key {
            self.press(key, group);
        }
    }

    /// The number by which the terminal's owner knows it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the other side of the port is gone.
    pub fn is_hung_up(&self) -> bool {
        self.port.hung_up()
    }

    /// Takes the terminal from its session, because the other side of the port is gone.
    fn hang_up(&self) {
        let (session, foreground) = {
            let mut state = self.state.lock();
            (core::mem::take(&mut state.session), core::mem::take(&mut state.foreground))
        };
        self.processes.hung_up(session, foreground);
    }

    fn press(&self, key: Key, group: u32) {
        if group != 0 {
            self.processes.notify(group, Notice::Key(key));
        }
    }

    /// Handles a key that was pressed outside of the port, whatever the settings are.
    pub fn key(&self, key: Key) {
        let group = self.state.lock().foreground;
        self.press(key, group);
    }

    /// Sends echoes to the port, as far as the port accepts them.
    fn show(&self) {
        let mut bytes = [0; 128];
        loop {
            let n = {
                let room = self.port.room();
                let state = self.state.lock();
                let n = state.editor.echo.len().min(bytes.len()).min(room);
                for (to, &from) in bytes[..n].iter_mut().zip(state.editor.echo.iter()) {
                    *to = from;
                }
                n
            };
            let sent = if n == 0 { 0 } else { self.port.write(&bytes[..n]) };
            if sent == 0 {
                return;
            }
            let mut state = self.state.lock();
            state.editor.echo.drain_front(sent).for_each(drop);
        }
    }

    /// The present settings.
    pub fn settings(&self) -> Settings {
        self.state.lock().settings
    }

    /// Whether the port has room for the output of any byte under `settings`.
    fn has_room_for_output(&self, settings: &Settings) -> bool {
        self.port.writable() && self.port.room() >= editor::most_shown(settings)
    }

    /// The settings stored by [`set_locked`](Self::set_locked). The terminal's owner applies them to new settings.
    pub fn locked(&self) -> Option<Settings> {
        self.state.lock().locked
    }

    /// Stores which settings no program may change.
    pub fn set_locked(&self, locked: Settings) {
        self.state.lock().locked = Some(locked);
    }

    /// Changes the settings; discards typed bytes if `flush`.
    pub fn set_settings(&self, new: Settings, flush: bool) {
        let flow = {
            let mut state = self.state.lock();
            let old = core::mem::replace(&mut state.settings, new);
            if flush {
                state.editor.flush_input();
            }
            state.editor.changed(&old, &new);
            (old.has_usual_flow(), new.has_usual_flow())
        };
        if flush {
            self.port.changed(Change::InputFlushed);
        }
        match flow {
            (true, false) => self.port.changed(Change::FlowOff),
            (false, true) => self.port.changed(Change::FlowOn),
            _ => {}
        }
        self.pump();
    }

    /// Discards typed bytes.
    pub fn flush_input(&self) {
        self.state.lock().editor.flush_input();
        self.port.changed(Change::InputFlushed);
        self.pump();
    }

    /// Discards bytes that were written but not sent yet.
    pub fn flush_output(&self) {
        self.state.lock().editor.echo.clear();
        self.port.changed(Change::OutputFlushed);
        self.readiness.notify();
    }

    /// Stops or starts output, as the stop and start characters do.
    pub fn set_stopped(&self, stopped: bool) {
        let before = core::mem::replace(&mut self.state.lock().editor.stopped, stopped);
        if before != stopped {
            self.port.changed(if stopped { Change::Stopped } else { Change::Started });
        }
        self.readiness.notify();
    }

    /// Sends the start or the stop character to the other side, if there is such a character.
    pub fn send_flow(&self, io: &Io<'_>, start: bool) -> Result<(), FsError> {
        let characters = self.settings().characters;
        let byte = if start { characters.start } else { characters.stop };
        if byte == 0 { Ok(()) } else { write_all(&*self.port, io, &[byte]).1 }
    }

    /// The size.
    pub fn size(&self) -> Size {
        self.state.lock().size
    }

    /// Changes the size, and notifies the foreground group.
    pub fn set_size(&self, size: Size) {
        let group = {
            let mut state = self.state.lock();
            if core::mem::replace(&mut state.size, size) == size { 0 } else { state.foreground }
        };
        if group != 0 {
            self.processes.notify(group, Notice::Resized);
        }
    }

    /// The process group in the foreground, and the session it belongs to; zeroes if there is none.
    pub fn owner(&self) -> (u32, u32) {
        let state = self.state.lock();
        (state.foreground, state.session)
    }

    /// Puts a process group into the foreground.
    pub fn set_foreground(&self, group: u32) {
        self.state.lock().foreground = group;
    }

    /// Gives the terminal to `session`. Fails if another session has it, unless `steal`.
    pub fn claim(&self, session: u32, group: u32, steal: bool) -> Result<(), FsError> {
        let mut state = self.state.lock();
        if state.session != 0 && state.session != session && !steal {
            return Err(FsError::NotPermitted);
        }
        if state.session != session {
            state.session = session;
            state.foreground = group;
        }
        Ok(())
    }

    /// Frees the terminal of an ended session.
    pub fn release(&self, session: u32) {
        let mut state = self.state.lock();
        if state.session == session {
            state.session = 0;
            state.foreground = 0;
        }
    }

    /// Stops a caller in the background; see [`Processes::check`].
    pub fn check(&self, writing: bool) -> Result<(), FsError> {
        let (foreground, session) = self.owner();
        self.processes.check(session, foreground, writing)
    }

    /// Waits until all output is sent.
    pub fn drain(&self, io: &Io<'_>) -> Result<(), FsError> {
        self.port.readiness().wait(io, || self.port.drained().then_some(()))
    }

    fn read_line(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<Option<usize>, FsError> {
        // The end is checked before the editor. If the end is reached, the editor has all bytes that came before the
        // end.
        let end = self.port.at_end();
        {
            let state = self.state.lock();
            if !state.editor.has_line() {
                return Ok(end.then_some(0));
            }
        }
        let _ = io;
        let mut done = 0;
        let mut bytes = [0; 128];
        loop {
            let most = bytes.len().min(sink.room());
            let (n, over) = {
                let mut state = self.state.lock();
                let State { settings, editor, .. } = &mut *state;
                editor.take(settings, &mut bytes[..most])
            };
            match sink.put(&bytes[..n]) {
                Ok(m) => {
                    done += m;
                    if m < n {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
            if over || sink.room() == 0 {
                break;
            }
        }
        Ok(Some(done))
    }

    /// Reads in noncanonical mode: ends by the number of bytes and the time in the settings.
    fn read_raw(&self, io: &Io<'_>, sink: &mut dyn Sink, min: u8, time: u8) -> Result<usize, FsError> {
        const TENTH: u64 = 100_000_000;
        let mut done = 0;
        let mut bytes = [0; 128];
        let want = usize::from(min).min(sink.room());
        // With a minimum number of bytes, the clock starts again at each byte. Without a minimum it starts at once.
        let mut deadline = match io.earlier() {
            Some(earlier) => earlier.deadline,
            None => (min == 0).then(|| now() + u64::from(time) * TENTH),
        };
        loop {
            let most = bytes.len().min(sink.room());
            let n = {
                let mut state = self.state.lock();
                let State { settings, editor, .. } = &mut *state;
                editor.take(settings, &mut bytes[..most]).0
            };
            if n > 0 {
                match sink.put(&bytes[..n]) {
                    Ok(m) => done += m,
                    Err(_) if done > 0 => return Ok(done),
                    Err(e) => return Err(e),
                }
                if min > 0 && time > 0 {
                    deadline = Some(now() + u64::from(time) * TENTH);
                }
                if sink.room() > 0 {
                    continue;
                }
            }
            if sink.room() == 0 || (done >= want && done > 0) || self.port.at_end() {
                return Ok(done);
            }
            let park = io.park.filter(|_| done == 0);
            let wait = Io { deadline, park, ..*io };
            let more = || (self.state.lock().editor.queued() > 0 || self.port.at_end()).then_some(());
            match self.readiness.wait(&wait, more) {
                Ok(()) => {}
                Err(_) if done > 0 => return Ok(done),
                Err(FsError::WouldBlock) if !io.nonblock || (min == 0 && time == 0) => return Ok(0),
                Err(e) => return Err(e),
            }
        }
    }
}

impl Stream for Terminal {
    fn read(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        if sink.room() == 0 {
            return Ok(0);
        }
        // As on Linux, a call checks the foreground group only once, not again after a sleep.
        if io.earlier().is_none() {
            self.check(false)?;
        }
        let got = loop {
            let settings = self.settings();
            if settings.local.contains(Local::CANONICAL) {
                let got = {
                    let _one = self.reading.lock();
                    self.read_line(io, sink)?
                };
                if let Some(n) = got {
                    break n;
                }
                let raw = || !self.settings().local.contains(Local::CANONICAL);
                self.readiness.wait(io, || {
                    let line = self.state.lock().editor.has_line();
                    (line || self.port.at_end() || raw()).then_some(())
                })?;
            } else {
                break self.read_raw(io, sink, settings.characters.min, settings.characters.time)?;
            }
        };
        self.pump(); // there is room for more
        Ok(got)
    }

    fn write(&self, io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError> {
        if self.settings().local.contains(Local::STOP_BACKGROUND) {
            self.check(true)?;
        }
        // The call keeps its kernel stack while it waits, for two reasons. It waits at the readiness of the port, which
        // is another object. Also, bytes are taken from the program before they are sent.
        let io = &io.on_stack();
        let mut done = 0;
        let mut bytes = [0; 256];
        let mut out = [0; 512];
        while source.left() > 0 {
            let stopped = || self.state.lock().editor.stopped && !self.port.hung_up();
            let takes_output = || self.has_room_for_output(&self.settings());
            let start = || (!stopped() && takes_output()).then_some(());
            let waited = match start() {
                Some(()) => Ok(()),
                None if stopped() => self.readiness.wait(io, || (!stopped()).then_some(())),
                None => self.port.readiness().wait(io, || takes_output().then_some(())),
            };
            match waited {
                Ok(()) => {}
                Err(_) if done > 0 => return Ok(done),
                Err(e) => return Err(e),
            }
            // A write to a port that does not know its room may wait, and no thread may wait under `writing`. So the
            // lock is not acquired for such a port.
            let _one = (self.port.room() != usize::MAX).then(|| self.writing.lock());
            // Output processing may turn each byte into several. All bytes that are taken from the program must be sent.
            let settings = self.settings();
            let each = editor::most_shown(&settings);
            let want = source.left().min(out.len() / each).min(self.port.room() / each);
            if want == 0 {
                continue; // another writer was faster
            }
            let n = match source.take(&mut bytes[..want]) {
                Ok(0) => break,
                Ok(n) => n,
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            };
            let mut len = 0;
            {
                let mut state = self.state.lock();
                for &b in &bytes[..n] {
                    let mut some = [0; editor::MOST_SHOWN];
                    let k = state.editor.output(b, &settings, &mut some);
                    out[len..len + k].copy_from_slice(&some[..k]);
                    len += k;
                }
            }
            // The bytes are taken from the program, so all of them are sent. Only a signal ends the sending early.
            let (_, outcome) = write_all(&*self.port, &Io { nonblock: false, deadline: None, ..*io }, &out[..len]);
            done += n;
            if outcome.is_err() {
                break;
            }
        }
        Ok(done)
    }

    fn ready(&self) -> Ready {
        let end = self.port.at_end();
        let state = self.state.lock();
        let readable = match state.settings.local.contains(Local::CANONICAL) {
            true => state.editor.has_line(),
            false => {
                let min =
                    if state.settings.characters.time == 0 { usize::from(state.settings.characters.min) } else { 1 };
                state.editor.queued() >= min.max(1)
            }
        };
        let mut ready = Ready::empty();
        ready.set(Ready::READ, readable || end);
        ready.set(Ready::WRITE, !state.editor.stopped && self.has_room_for_output(&state.settings));
        ready
    }

    fn readiness(&self) -> Option<&Readiness> {
        // The pump forwards every change of the port.
        Some(&self.readiness)
    }

    fn queued(&self) -> Result<usize, FsError> {
        let state = self.state.lock();
        Ok(state.editor.available())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
