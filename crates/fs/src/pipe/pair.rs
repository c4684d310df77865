//! Socket pairs: two pipes, one each way.

use super::{Pipe, PipeEnd};
use crate::FsError;
use crate::host::Host;
use crate::stream::Stream;
use crate::stream::io::Io;
use crate::stream::readiness::{Readiness, Ready};
use crate::stream::transfer::{Sink, Source};
use core::any::Any;
use quire_heap::Arc;
use quire_sync::{Rank, SpinLock};

/// One end of a pair of connected sockets: two pipes, one each way.
pub struct Pair<H: Host> {
    /// `None` once that direction was shut down.
    from: SpinLock<Option<Arc<PipeEnd<H>>>>,
    to: SpinLock<Option<Arc<PipeEnd<H>>>>,
    readiness: Arc<Readiness>,
}

impl<H: Host> Pair<H> {
    /// Two ends that are connected to each other.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(host: H) -> Result<(Arc<Self>, Arc<Self>), FsError> {
        let readiness = Arc::try_new(Readiness::new())?;
        let one = Pipe::announced_by(host.clone(), readiness.clone())?;
        let other = Pipe::announced_by(host, readiness.clone())?;
        let end = |from: &Arc<Pipe<H>>, to: &Arc<Pipe<H>>| -> Result<Arc<Self>, FsError> {
            let direction = |end| SpinLock::new(Rank::ATTRIBUTES, Some(end));
            Ok(Arc::try_new(Pair {
                from: direction(Pipe::end(from, true, false)?),
                to: direction(Pipe::end(to, false, true)?),
                readiness: readiness.clone(),
            })?)
        };
        Ok((end(&one, &other)?, end(&other, &one)?))
    }

    /// Closes the given directions, for both ends.
    pub fn shut(&self, reading: bool, writing: bool) {
        let from = if reading { self.from.lock().take() } else { None };
        let to = if writing { self.to.lock().take() } else { None };
        // Other threads may wait on them.
        from.iter().chain(&to).for_each(|end| end.close());
        self.readiness.notify();
    }
}

impl<H: Host> Stream for Pair<H> {
    fn read(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        let end = self.from.lock().clone();
        end.map_or(Ok(0), |end| end.read(io, sink))
    }

    fn write(&self, io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError> {
        let end = self.to.lock().clone();
        end.ok_or(FsError::BrokenPipe)?.write(io, source)
    }

    fn ready(&self) -> Ready {
        let from = self.from.lock().clone();
        let to = self.to.lock().clone();
        let from = from.map_or(Ready::HANGUP, |end| end.ready());
        let to = to.map_or(Ready::ERROR, |end| end.ready());
        let mut ready = (from & Ready::READ) | (to & Ready::WRITE);
        let (no_more, nobody) = (from.contains(Ready::HANGUP), to.contains(Ready::ERROR));
        if no_more {
            ready |= Ready::READ | Ready::READ_HANGUP;
        }
        if nobody {
            ready |= Ready::WRITE; // a write would not wait: it fails
        }
        ready.set(Ready::HANGUP, no_more && nobody);
        ready
    }

    fn readiness(&self) -> Option<&Readiness> {
        Some(&self.readiness)
    }

    fn queued(&self) -> Result<usize, FsError> {
        let end = self.from.lock().clone();
        end.map_or(Ok(0), |end| end.queued())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
