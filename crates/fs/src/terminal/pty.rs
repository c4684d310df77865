//! Pseudo-terminals: terminals whose port leads to another program, the holder of the master.
//!
//! The port is a [`Cable`]: a buffer for each direction between the master and the terminal. Bytes that the master
//! writes are typed at the terminal, and bytes that the terminal sends are read from the master. The terminal and its
//! settings last as long as the pair, whether or not a slave is open. When the master closes, the terminal is hung up
//! for ever: its readers and writers get [`FsError::Io`].

use super::{Processes, Settings, Size, Terminal};
use crate::FsError;
use crate::device::port::{Change, Port};
use crate::stream::Stream;
use crate::stream::io::Io;
use crate::stream::readiness::{Readiness, Ready};
use crate::stream::transfer::{Sink, Source};
use core::any::Any;
use quire_heap::{Arc, Deque, unsize};
use quire_sync::{Mutex, Rank, SpinLock};

/// The most bytes in transit in each direction.
const CABLE: usize = 4096;
/// The number of bytes that the terminal may send beyond [`CABLE`]. Writers and the echo each check for room before
/// they send a step.
const SLACK: usize = 4 * STEP;
/// The number of bytes that move in one step.
const STEP: usize = 256;

bitflags::bitflags! {
    /// The changes of a terminal since the last read of a master in packet mode, as the bits of a packet's first byte.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Packet: u8 {
        /// Typed bytes were discarded.
        const INPUT_FLUSHED = 1;
        /// Sent bytes were discarded.
        const OUTPUT_FLUSHED = 2;
        /// Output was stopped.
        const STOPPED = 4;
        /// Output was started.
        const STARTED = 8;
        /// The stop and start characters are not the usual ones.
        const NO_FLOW = 16;
        /// The stop and start characters are the usual ones.
        const FLOW = 32;
    }
}

struct State {
    /// Bytes from the master that the terminal has not taken.
    typed: Deque<u8>,
    /// Bytes from the terminal that the master has not read.
    shown: Deque<u8>,
    /// Whether the master is closed.
    hung_up: bool,
    /// The number of open slaves.
    slaves: usize,
    /// Whether the last slave was closed, and none was opened since.
    slaves_closed: bool,
    /// Whether no slave can be opened.
    locked: bool,
    /// The changes to report, if the master reads packets; `None` if it does not.
    packets: Option<Packet>,
}

/// The port between the terminal and the master.
struct Cable {
    state: SpinLock<State>,
    /// Announces changes to the master's holders.
    master: Readiness,
    /// Announces changes to the terminal.
    terminal: Readiness,
}

impl Cable {
    fn new() -> Result<Arc<Self>, FsError> {
        let state = State {
            typed: Deque::try_with_capacity(CABLE)?,
            shown: Deque::try_with_capacity(CABLE + SLACK)?,
            hung_up: false,
            slaves: 0,
            slaves_closed: false,
            locked: true,
            packets: None,
        };
        let state = SpinLock::new(Rank::CABLE, state);
        Ok(Arc::try_new(Cable { state, master: Readiness::new(), terminal: Readiness::new() })?)
    }
}

/// Moves bytes from the front of `from` to `into`. Returns their number.
fn take(from: &mut Deque<u8>, into: &mut [u8]) -> usize {
    let n = from.len().min(into.len());
    into.iter_mut().zip(from.drain_front(n)).for_each(|(to, byte)| *to = byte);
    n
}

/// Adds as many of `bytes` as fit, up to `most` bytes in `to`. Returns their number.
fn add(to: &mut Deque<u8>, bytes: &[u8], most: usize) -> usize {
    let n = bytes.len().min(most - to.len());
    bytes[..n].iter().for_each(|&byte| to.push_back_reserved(byte));
    n
}

impl Port for Cable {
    fn write(&self, bytes: &[u8]) -> usize {
        let n = {
            let mut state = self.state.lock();
            // After a hang-up the bytes are lost.
            if state.hung_up { bytes.len() } else { add(&mut state.shown, bytes, CABLE + SLACK) }
        };
        if n > 0 {
            self.master.notify();
        }
        n
    }

    fn read(&self, into: &mut [u8]) -> usize {
        let n = take(&mut self.state.lock().typed, into);
        if n > 0 {
            self.master.notify();
        }
        n
    }

    fn unread(&self) -> usize {
        self.state.lock().typed.len()
    }

    fn writable(&self) -> bool {
        // A newline becomes two bytes.
        self.room() >= 2
    }

    fn room(&self) -> usize {
        let state = self.state.lock();
        if state.hung_up { usize::MAX } else { CABLE.saturating_sub(state.shown.len()) }
    }

    fn drained(&self) -> bool {
        // As on Linux, bytes that the master has not read yet count as sent.
        true
    }

    fn at_end(&self) -> bool {
        self.hung_up()
    }

    fn hung_up(&self) -> bool {
        self.state.lock().hung_up
    }

    fn changed(&self, change: Change) {
        {
            let mut state = self.state.lock();
            // Bytes that the master can read have left the terminal already, so a flush of output does not discard
            // them.
            let Some(packet) = &mut state.packets else { return };
            let (new, old) = match change {
                Change::InputFlushed => (Packet::INPUT_FLUSHED, Packet::empty()),
                Change::OutputFlushed => (Packet::OUTPUT_FLUSHED, Packet::empty()),
                Change::Stopped => (Packet::STOPPED, Packet::STARTED),
                Change::Started => (Packet::STARTED, Packet::STOPPED),
                Change::FlowOff => (Packet::NO_FLOW, Packet::FLOW),
                Change::FlowOn => (Packet::FLOW, Packet::NO_FLOW),
            };
            *packet = (*packet - old) | new;
        }
        self.master.notify();
    }

    fn readiness(&self) -> &Readiness {
        &self.terminal
    }
}

/// A pair of a master and its terminal.
pub struct Pty {
    terminal: Arc<Terminal>,
    cable: Arc<Cable>,
    /// Held by a writer of the master, so that no other writer uses the room that it has found.
    writing: Mutex<()>,
}

impl Pty {
    /// A pair of a master and a terminal, which is locked: no slave can be opened yet. `number` is the caller's number
    /// of the terminal. The terminal drops `processes` with the pair.
    pub fn new(processes: Arc<dyn Processes>, settings: Settings, number: u64) -> Result<Arc<Self>, FsError> {
        let cable = Cable::new()?;
        let terminal = Terminal::new(unsize!(cable.clone()), processes, Size::default(), number)?;
        terminal.set_settings(settings, false);
        Ok(Arc::try_new(Pty { terminal, cable, writing: Mutex::new(()) })?)
    }

    /// The terminal.
    pub fn terminal(&self) -> &Arc<Terminal> {
        &self.terminal
    }

    /// Whether no slave can be opened.
    pub fn is_locked(&self) -> bool {
        self.cable.state.lock().locked
    }

    /// Locks or unlocks the pair.
    pub fn set_locked(&self, locked: bool) {
        self.cable.state.lock().locked = locked;
    }

    /// Whether the master reads packets.
    pub fn has_packets(&self) -> bool {
        self.cable.state.lock().packets.is_some()
    }

    /// Begins or ends the packet mode of the master.
    pub fn set_packets(&self, on: bool) {
        let mut state = self.cable.state.lock();
        if on != state.packets.is_some() {
            state.packets = on.then(Packet::empty);
        }
    }

    /// Opens a slave. Fails with [`FsError::Io`] if the pair is locked or hung up.
    pub fn open_slave(this: &Arc<Self>) -> Result<Arc<dyn Stream>, FsError> {
        let mut slave = Arc::try_new(Slave { pty: this.clone(), counted: false })?;
        {
            let mut state = this.cable.state.lock();
            if state.locked || state.hung_up {
                return Err(FsError::Io);
            }
            state.slaves += 1;
            state.slaves_closed = false;
        }
        if let Some(slave) = Arc::get_mut(&mut slave) {
            slave.counted = true;
        }
        Ok(unsize!(slave))
    }

    /// Handles the close of the master: hangs the terminal up.
    pub fn close_master(&self) {
        {
            let mut state = self.cable.state.lock();
            state.hung_up = true;
            state.typed.clear();
            state.shown.clear();
        }
        self.terminal.hang_up();
        self.cable.terminal.notify();
    }

    fn close_slave(&self) {
        {
            let mut state = self.cable.state.lock();
            state.slaves -= 1;
            if state.slaves > 0 {
                return;
            }
            state.slaves_closed = true;
        }
        self.cable.master.notify();
    }

    /// Reads, for the master, bytes that the terminal has sent.
    pub fn read_master(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        enum Found {
            Bytes,
            Packet(Packet),
            End,
        }
        if sink.room() == 0 {
            return Ok(0);
        }
        let mut done = 0;
        loop {
            let found = self.cable.master.wait(io, || {
                let mut state = self.cable.state.lock();
                match &mut state.packets {
                    Some(packet) if !packet.is_empty() => return Some(Found::Packet(core::mem::take(packet))),
                    _ => {}
                }
                match (state.shown.is_empty(), state.slaves_closed) {
                    (false, _) => Some(Found::Bytes),
                    (true, true) => Some(Found::End),
                    (true, false) => None,
                }
            })?;
            match found {
                Found::Packet(packet) => return sink.put(&[packet.bits()]),
                Found::End => return Err(FsError::Io),
                Found::Bytes => {}
            }
            let mut bytes = [0; STEP];
            loop {
                // In packet mode, a packet of data begins with a zero byte.
                let mark = usize::from(done == 0 && self.has_packets());
                let most = STEP.min(sink.room());
                let n = mark + take(&mut self.cable.state.lock().shown, &mut bytes[mark.min(most)..most]);
                if n == mark && most > mark {
                    break;
                }
                bytes[..mark].fill(0);
                match sink.put(&bytes[..n]) {
                    Ok(put) => done += put,
                    Err(e) if done == 0 => return Err(e),
                    Err(_) => break,
                }
                if sink.room() == 0 {
                    break;
                }
            }
            if done > 0 {
                // The terminal's writers have room now.
                self.cable.terminal.notify();
                return Ok(done);
            }
            // Another reader took the bytes.
        }
    }

    /// Writes bytes to the master, which are typed at the terminal.
    pub fn write_master(&self, io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError> {
        let mut done = 0;
        let mut bytes = [0; STEP];
        while source.left() > 0 {
            let room = || {
                let room = CABLE - self.cable.state.lock().typed.len();
                (room > 0).then_some(room)
            };
            let io = Io { park: io.park.filter(|_| done == 0), ..*io };
            if let Err(e) = self.cable.master.wait(&io, room) {
                return if done > 0 { Ok(done) } else { Err(e) };
            }
            {
                let _one = self.writing.lock();
                let Some(room) = room() else { continue };
                let want = source.left().min(STEP).min(room);
                let n = match source.take(&mut bytes[..want]) {
                    Ok(0) => break,
                    Ok(n) => n,
                    Err(_) if done > 0 => break,
                    Err(e) => return Err(e),
                };
                done += add(&mut self.cable.state.lock().typed, &bytes[..n], CABLE);
            }
            self.cable.terminal.notify();
        }
        Ok(done)
    }

    /// The operations on the master that would not wait now.
    pub fn master_ready(&self) -> Ready {
        let state = self.cable.state.lock();
        let packet = state.packets.is_some_and(|packet| !packet.is_empty());
        let mut ready = Ready::empty();
        ready.set(Ready::READ, packet || !state.shown.is_empty());
        ready.set(Ready::PRIORITY, packet);
        ready.set(Ready::HANGUP, state.slaves_closed);
        ready.set(Ready::WRITE, state.typed.len() < CABLE);
        ready
    }

    /// The readiness that announces changes of [`master_ready`](Self::master_ready).
    pub fn master_readiness(&self) -> &Readiness {
        &self.cable.master
    }

    /// Discards bytes that the master has not read (`input`), or bytes written to it that the terminal has not taken
    /// (`output`).
    pub fn flush_master(&self, input: bool, output: bool) {
        {
            let mut state = self.cable.state.lock();
            if input {
                state.shown.clear();
            }
            if output {
                state.typed.clear();
            }
        }
        self.cable.terminal.notify();
        self.cable.master.notify();
    }

    /// The number of bytes that the master could read now.
    pub fn master_queued(&self) -> usize {
        self.cable.state.lock().shown.len()
    }
}

/// An open slave of a pair.
struct Slave {
    pty: Arc<Pty>,
    /// Whether the slave is counted among the open slaves.
    counted: bool,
}

impl Drop for Slave {
    fn drop(&mut self) {
        if self.counted {
            self.pty.close_slave();
        }
    }
}

impl Stream for Slave {
    fn read(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        // As on Linux, a read after the hang-up finds the end, and a read that waited gets an error.
        let waited = io.earlier().is_some();
        if sink.room() == 0 || self.pty.cable.hung_up() && !waited {
            return Ok(0);
        }
        match self.pty.terminal.read(io, sink)? {
            0 if self.pty.cable.hung_up() => Err(FsError::Io),
            n => Ok(n),
        }
    }

    fn write(&self, io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError> {
        if self.pty.cable.hung_up() {
            return Err(FsError::Io);
        }
        let written = self.pty.terminal.write(io, source)?;
        if self.pty.cable.hung_up() { Err(FsError::Io) } else { Ok(written) }
    }

    fn ready(&self) -> Ready {
        match self.pty.cable.hung_up() {
            true => Ready::READ | Ready::WRITE | Ready::ERROR | Ready::HANGUP,
            false => self.pty.terminal.ready(),
        }
    }

    fn readiness(&self) -> Option<&Readiness> {
        self.pty.terminal.readiness()
    }

    fn queued(&self) -> Result<usize, FsError> {
        if self.pty.cable.hung_up() { Err(FsError::Io) } else { self.pty.terminal.queued() }
    }

    fn as_any(&self) -> &dyn Any {
        // The slave accepts the same requests (`ioctl`) as a console, so this returns the terminal.
        &*self.pty.terminal
    }
}
