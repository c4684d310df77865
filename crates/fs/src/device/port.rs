//! Byte ports to the outside world, such as a serial line or a virtio console. The kernel implements [`Port`].

use crate::device::driver::Driver;
use crate::stream::Stream;
use crate::stream::io::Io;
use crate::stream::readiness::{Readiness, Ready};
use crate::stream::transfer::{Sink, Source};
use crate::{FsError, OpenFlags};
use core::any::Any;
use quire_heap::Arc;
use quire_sync::Mutex;

/// A change of a terminal that concerns the other side of its port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Typed bytes were discarded.
    InputFlushed,
    /// Output bytes that were not sent yet were discarded.
    OutputFlushed,
    /// Output was stopped.
    Stopped,
    /// Output was started.
    Started,
    /// The stop and start characters have no effect, or are not the usual characters.
    FlowOff,
    /// The stop and start characters are the usual characters, and have their effect.
    FlowOn,
}

/// A two-way port of bytes. None of its calls waits.
pub trait Port: Send + Sync {
    /// Sends bytes from the front of `bytes`, as many as fit now, and returns how many.
    fn write(&self, bytes: &[u8]) -> usize;
    /// Moves received bytes into `into`. Returns their number, or 0 if there are none.
    fn read(&self, into: &mut [u8]) -> usize;
    /// The number of bytes that [`read`](Self::read) would return now; at least 1 if there are any.
    fn unread(&self) -> usize;
    /// Whether [`write`](Self::write) accepts any bytes now.
    fn writable(&self) -> bool;
    /// The least number of bytes that [`write`](Self::write) accepts now; 0 if it accepts none. A port that does not
    /// know the number returns `usize::MAX` while it is writable.
    fn room(&self) -> usize {
        if self.writable() { usize::MAX } else { 0 }
    }
    /// Whether all written bytes have been sent.
    fn drained(&self) -> bool {
        self.writable()
    }
    /// Whether all input has been read and no more will come.
    fn at_end(&self) -> bool;
    /// Whether the other side is gone, so that no write has an effect.
    fn hung_up(&self) -> bool {
        false
    }
    /// Handles a change of the terminal at this port.
    fn changed(&self, _change: Change) {}
    /// The readiness that is notified when bytes arrive, room appears, or the end is reached.
    fn readiness(&self) -> &Readiness;
}

/// A port as a device that passes all bytes unchanged.
pub struct RawPort {
    port: Arc<dyn Port>,
    /// Bytes that were taken from the port and did not fit the reader. Reads go through this kernel buffer, because
    /// calls of a port never wait, and a copy to user memory may wait. One reader uses this buffer at a time, so that
    /// no bytes are lost between port and reader.
    rest: Mutex<Rest>,
}

struct Rest {
    bytes: [u8; 512],
    from: usize,
    to: usize,
}

impl RawPort {
    /// The stream over `port`.
    pub fn new(port: Arc<dyn Port>) -> Result<Arc<Self>, FsError> {
        Ok(Arc::try_new(RawPort { port, rest: Mutex::new(Rest { bytes: [0; 512], from: 0, to: 0 }) })?)
    }
}

/// Writes all of `bytes`, and waits for room as `io` allows. Returns how many bytes were written, and why writing
/// ended.
pub fn write_all(port: &dyn Port, io: &Io<'_>, mut bytes: &[u8]) -> (usize, Result<(), FsError>) {
    let mut done = 0;
    while !bytes.is_empty() {
        let n = port.write(bytes);
        done += n;
        bytes = &bytes[n..];
        if n == 0
            && let Err(e) = port.readiness().wait(io, || port.writable().then_some(()))
        {
            return (done, Err(e));
        }
    }
    (done, Ok(()))
}

impl Stream for RawPort {
    fn read(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        let mut done = 0;
        loop {
            {
                let mut rest = self.rest.lock();
                while sink.room() > 0 {
                    if rest.from == rest.to {
                        rest.from = 0;
                        let Rest { bytes, to, .. } = &mut *rest;
                        *to = self.port.read(bytes);
                        if *to == 0 {
                            break;
                        }
                    }
                    match sink.put(&rest.bytes[rest.from..rest.to]) {
                        Ok(0) => return Ok(done),
                        Ok(n) => {
                            done += n;
                            rest.from += n;
                        }
                        Err(_) if done > 0 => return Ok(done),
                        Err(e) => return Err(e),
                    }
                }
            }
            if done > 0 || sink.room() == 0 || self.port.at_end() {
                return Ok(done);
            }
            self.port.readiness().wait(io, || (self.port.unread() > 0 || self.port.at_end()).then_some(()))?;
        }
    }

    fn write(&self, io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError> {
        // Bytes are taken from the program before the port has room for them, so the call keeps its kernel stack while
        // it waits.
        let io = &io.on_stack();
        let mut done = 0;
        let mut bytes = [0; 1024];
        while source.left() > 0 {
            if io.nonblock && !self.port.writable() {
                return if done > 0 { Ok(done) } else { Err(FsError::WouldBlock) };
            }
            let want = source.left().min(bytes.len());
            let n = match source.take(&mut bytes[..want]) {
                Ok(0) => break,
                Ok(n) => n,
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            };
            let (sent, outcome) = write_all(&*self.port, io, &bytes[..n]);
            done += sent;
            match outcome {
                Ok(()) => {}
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn ready(&self) -> Ready {
        let mut ready = Ready::empty();
        let kept = self.rest.try_lock().is_none_or(|r| r.from < r.to);
        ready.set(Ready::READ, kept || self.port.unread() > 0 || self.port.at_end());
        ready.set(Ready::WRITE, self.port.writable());
        ready
    }

    fn readiness(&self) -> Option<&Readiness> {
        Some(self.port.readiness())
    }

    fn queued(&self) -> Result<usize, FsError> {
        let kept = self.rest.try_lock().map_or(0, |r| r.to - r.from);
        Ok(kept + self.port.unread())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A driver that always opens the same stream.
pub struct Shared(pub Arc<dyn Stream>);

impl Driver for Shared {
    fn open(&self, _flags: OpenFlags) -> Result<Arc<dyn Stream>, FsError> {
        Ok(self.0.clone())
    }
}
