//! Sending and receiving the bytes of streams.

use crate::address::{Address, Kind};
use crate::collect::InFlight;
use crate::endpoint::{Endpoint, Phase};
use crate::host::{Ancillary, Host, ReceiveFlags, Received};
use crate::inbox::{Borrowed, CHUNK, Message};
use crate::mutant::{Mutant, mutant};
use crate::options::Flags;
use quire_fs::{FsError, Io, Sink, Source};
use quire_heap::{Arc, Box, Vec};
use quire_sync::atomic::Ordering;

/// The most chunks that a writer queues each time that it acquires the inbox's lock.
const BATCH: usize = 8;
/// The most bytes of a write that is copied to the writer's stack first, and then added to the last chunk.
const SMALL: usize = 256;
/// The most bytes of a write that uses the smaller of two buffers on the stack.
const TINY: usize = 32;
/// The capacity, in bytes, of a chunk for small writes, if the queue has other chunks.
const SHARED: usize = 1024;

/// One round of a write: a piece that the writer queues under one acquisition of the inbox's lock.
struct Round<'p, H: Host> {
    peer: &'p Endpoint<H>,
    /// The most bytes of the piece.
    most: usize,
    /// This socket's disconnects when the write began.
    since: u32,
}

/// The progress of a receiving call when it looks for messages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// The call has received nothing. A waiting error is its result.
    First,
    /// The call has received nothing, and has just found the inbox empty.
    Done,
    /// The call has received bytes. A waiting error stays for the next call.
    Later,
}

impl<H: Host> Endpoint<H> {
    /// Waits until the socket is connected, and returns the peer that takes its bytes. `since` is the number of
    /// disconnects when the call began.
    pub(crate) fn writable_peer(&self, io: &Io<'_>, since: u32) -> Result<Arc<Self>, FsError> {
        loop {
            let shut = self.shut.load(Ordering::Acquire);
            if !(shut && self.is_unix())
                && let Some(error) = self.take_error()
            {
                return Err(error);
            }
            if shut {
                return Err(FsError::BrokenPipe);
            }
            let (phase, peer) = {
                let state = self.state();
                if self.disconnects() != since {
                    // The call returns the error that the disconnect has stored, if there is one.
                    (Phase::Idle, None)
                } else {
                    (state.phase, state.peer.clone())
                }
            };
            match (phase, peer) {
                (Phase::Connected | Phase::Unreported, Some(peer)) => return Ok(peer),
                (Phase::Connecting, _) => {
                    let settled = || {
                        let settled = self.state().phase != Phase::Connecting || self.disconnects() != since;
                        settled.then_some(())
                    };
                    self.readiness.wait_in(since, io, settled)?;
                }
                _ if self.is_unix() => return Err(FsError::NotConnected),
                _ => return Err(self.take_error().unwrap_or(FsError::BrokenPipe)),
            }
        }
    }

    /// Waits until at most half of the buffer at `peer` is filled, or the connection ends.
    fn wait_writable(&self, io: &Io<'_>, peer: &Endpoint<H>, since: u32) -> Result<(), FsError> {
        let state = || {
            if self.shut.load(Ordering::Acquire) || self.has_error() || self.disconnects() != since {
                return Some(());
            }
            let mut queue = peer.inbox.queue();
            (queue.refuses(self.place()) || queue.is_below(self.limit(peer) / 2)).then_some(())
        };
        self.readiness.wait_in(since, io, state)
    }

    /// Writes the bytes of `source` to a stream, and returns their number. `attached` is queued with the first byte.
    pub(crate) fn send_stream(
        &self,
        io: &Io<'_>,
        source: &mut dyn Source,
        mut attached: Option<&mut Option<Box<InFlight<Endpoint<H>>>>>,
    ) -> Result<usize, FsError> {
        let mut limited = None;
        let io = self.writing(io, &mut limited);
        let since = self.began(io);
        let mut done = 0;
        loop {
            let left = source.left();
            if done > 0 && (left == 0 || self.has_error()) {
                return Ok(done);
            }
            // Sent bytes cannot be taken back, so the call cannot begin again. If it must wait now, it keeps its kernel
            // stack.
            let stack;
            let io = match done {
                0 => io,
                _ => {
                    stack = io.on_stack();
                    &stack
                }
            };
            let put = self.writable_peer(io, since).and_then(|peer| {
                if left == 0 {
                    return Ok((0, true));
                }
                let (room, queued, receive_shutdown) = {
                    let queue = peer.inbox.queue();
                    (self.limit(&peer).saturating_sub(queue.charge), !queue.is_empty(), queue.refuses(self.place()))
                };
                // A peer that takes no more bytes makes no room for them.
                if room == 0 && !receive_shutdown {
                    return self.wait_writable(io, &peer, since).map(|()| (0, false));
                }
                let n = left.min(room.max(CHUNK)).min(BATCH * CHUNK);
                let round = Round { peer: &peer, most: n, since };
                let put = if n <= SMALL && attached.as_ref().is_none_or(|attached| attached.is_none()) {
                    self.put_small(round, source, queued)
                } else {
                    self.put_chunks(round, source, attached.as_deref_mut())
                };
                // Fewer bytes than requested mean that the memory of `source` could not be read further.
                put.map(|put| (put, put < n))
            });
            match put {
                Ok((n, ends)) => {
                    done += n;
                    if ends {
                        return Ok(done);
                    }
                }
                Err(_) if done > 0 => return Ok(done),
                Err(e) => return Err(e),
            }
        }
    }

    /// Sends at most [`SMALL`] bytes. If chunks are `queued` at the peer, the bytes are added to the last chunk.
    /// Otherwise, or if the last chunk has no room, the bytes become a new chunk.
    fn put_small(&self, round: Round<'_, H>, source: &mut dyn Source, queued: bool) -> Result<usize, FsError> {
        // The buffer is zeroed first, so a tiny write uses a smaller buffer.
        match round.most {
            ..=TINY => self.put_small_by::<TINY>(round, source, queued),
            _ => self.put_small_by::<SMALL>(round, source, queued),
        }
    }

    /// Does the work of [`put_small`](Self::put_small) with a buffer of `ROOM` bytes.
    fn put_small_by<const ROOM: usize>(
        &self,
        round: Round<'_, H>,
        source: &mut dyn Source,
        queued: bool,
    ) -> Result<usize, FsError> {
        let Round { peer, most, since } = round;
        let mut bytes = [0; ROOM];
        let n = source.take(&mut bytes[..most])?;
        let bytes = &bytes[..n];
        if n == 0 {
            return Ok(0);
        }
        // An empty queue has no chunk to which bytes could be added.
        let added = queued && {
            let mut queue = peer.inbox.queue();
            !queue.refuses(self.place()) && queue.append(bytes)
        };
        if !added {
            let mut chunk = Vec::try_with_capacity(if queued { SHARED } else { n.next_multiple_of(64) })?;
            chunk.extend_reserved(bytes);
            let mut queue = peer.inbox.queue();
            if queue.refuses(self.place()) {
                drop(queue);
                return self.put_in_vain(n, since);
            }
            queue.reserve(1)?;
            queue.push_piece(chunk);
        }
        peer.readiness.notify();
        Ok(n)
    }

    /// Copies bytes into chunks and queues these at the peer. `attached` is queued with the first chunk.
    fn put_chunks(
        &self,
        round: Round<'_, H>,
        source: &mut dyn Source,
        mut attached: Option<&mut Option<Box<InFlight<Endpoint<H>>>>>,
    ) -> Result<usize, FsError> {
        let mut chunks = [const { Vec::new() }; BATCH];
        let (mut copied, mut used) = (0, 0);
        for chunk in &mut chunks {
            let size = (round.most - copied).min(CHUNK);
            if size == 0 {
                break;
            }
            let taken = fill(source, chunk, size);
            match taken {
                Ok(0) => break,
                Ok(taken) => (copied, used) = (copied + taken, used + 1),
                Err(e) if copied == 0 => return Err(e),
                Err(_) => break,
            }
            if chunk.len() < size {
                break;
            }
        }
        if copied == 0 {
            return Ok(0);
        }
        let mut carried = || attached.as_mut().and_then(|attached| attached.take());
        let messages = chunks.into_iter().take(used).map(|chunk| Message::new(chunk, carried()));
        self.queue_chunks(round, messages, used, copied)
    }

    /// Queues `number` chunks, which have `bytes` bytes together, at the peer.
    fn queue_chunks(
        &self,
        round: Round<'_, H>,
        messages: impl Iterator<Item = Message<InFlight<Endpoint<H>>>>,
        number: usize,
        bytes: usize,
    ) -> Result<usize, FsError> {
        let Round { peer, since, .. } = round;
        {
            let mut queue = peer.inbox.queue();
            if queue.refuses(self.place()) {
                drop(queue);
                return self.put_in_vain(bytes, since);
            }
            queue.reserve(number)?;
            messages.for_each(|message| queue.push_reserved(message));
        }
        peer.readiness.notify();
        Ok(bytes)
    }

    /// The result of a write to a peer that accepts no more bytes. As with real TCP, the first such write seems to
    /// succeed, and the socket is ended for the next calls.
    fn put_in_vain(&self, bytes: usize, since: u32) -> Result<usize, FsError> {
        if self.is_unix() {
            return Err(FsError::BrokenPipe);
        }
        {
            let mut queue = self.inbox.queue();
            // This socket's own disconnect has ended the connection of this write. The code below must not end the next
            // connection too.
            if self.disconnects() != since {
                return Ok(bytes);
            }
            self.shut.store(true, Ordering::Release);
            queue.ended = true;
            self.fail(FsError::BrokenPipe);
        }
        self.readiness.notify();
        Ok(bytes)
    }

    /// Reads the bytes of a stream.
    pub(crate) fn receive_stream(
        &self,
        io: &Io<'_>,
        sink: &mut dyn Sink,
        flags: ReceiveFlags,
    ) -> Result<Received<H>, FsError> {
        let mut out = Received::nothing();
        self.receive_bytes(io, sink, flags, &mut out)?;
        if out.bytes > 0 {
            out.from = self.connected_sender(flags);
        }
        Ok(out)
    }

    /// The sender of bytes or of a packet that came over a connection. As on Linux, this is the present name of the
    /// peer, also after the peer has closed.
    pub(crate) fn connected_sender(&self, flags: ReceiveFlags) -> Option<Address> {
        if !flags.contains(ReceiveFlags::SENDER) || !self.is_unix() {
            return None;
        }
        self.peer().and_then(|peer| peer.state().local.clone())
    }

    /// Receives bytes without their sender. `out` has received nothing yet.
    pub(crate) fn receive_bytes(
        &self,
        io: &Io<'_>,
        sink: &mut dyn Sink,
        flags: ReceiveFlags,
        out: &mut Received<H>,
    ) -> Result<(), FsError> {
        // A socket with bytes has been connected, and a call that slept has checked this before. Both skip the check.
        let filled = io.earlier().is_some() || !self.inbox.queue().is_empty();
        let since = if filled { self.began(io) } else { self.is_readable()? };
        let mut limited = None;
        let io = self.reading(io, &mut limited);
        let want = sink.room();
        if want == 0 {
            return Ok(());
        }
        let peeks = self.is_tcp() && flags.contains(ReceiveFlags::PEEK);
        if !filled && !peeks && !self.wait_readable(io, Look::Done, since)? {
            return Ok(());
        }
        let all = flags.contains(ReceiveFlags::WAIT_ALL);
        let target = if all { want } else { want.min(self.options.low_water()) };
        let mut discard = Discard(want);
        let sink: &mut dyn Sink =
            if self.is_tcp() && flags.contains(ReceiveFlags::TRUNCATE) { &mut discard } else { sink };
        loop {
            if peeks {
                // The call returns the present bytes, also if this wait fails.
                let _ended = self.wait_for_bytes(&io.on_stack(), target, all, since);
            }
            let stop = match self.take_bytes(sink, flags, since, out) {
                Ok(stop) => stop,
                Err(e) if out.bytes == 0 => return Err(e),
                Err(_) => true,
            };
            if stop || out.bytes >= target || (flags.contains(ReceiveFlags::PEEK) && out.bytes > 0) {
                return Ok(());
            }
            let look = if out.bytes == 0 { Look::First } else { Look::Later };
            match self.wait_readable(io, look, since) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(_) if out.bytes > 0 => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }

    /// Waits until the inbox has `bytes` bytes, or until no more can come. Unless `all` is set, more than half of the
    /// buffer is enough.
    fn wait_for_bytes(&self, io: &Io<'_>, bytes: usize, all: bool, since: u32) -> Result<(), FsError> {
        let come = || {
            let over = self.has_error() || self.is_refused() || self.never_readable();
            let queue = self.inbox.queue();
            let enough = queue.bytes >= bytes || !all && queue.charge > self.options.receive_buffer() / 2;
            (over || enough || queue.ended || self.disconnects() != since).then_some(())
        };
        self.readiness.wait(io, come)
    }

    /// Whether a connection-based socket has no connection, so that no bytes can come.
    pub(crate) fn never_readable(&self) -> bool {
        !self.is_datagram() && matches!(self.state().phase, Phase::Idle | Phase::Listening)
    }

    /// The number of this socket's disconnects when the call began.
    #[inline]
    pub(crate) fn began(&self, io: &Io<'_>) -> u32 {
        io.earlier().map_or_else(|| self.disconnects(), |earlier| earlier.generation)
    }

    /// Like [`began`](Self::began), for a read. Fails if the socket was never connected.
    #[inline]
    pub(crate) fn reads_since(&self, io: &Io<'_>) -> Result<u32, FsError> {
        match io.earlier() {
            // The wait reports a disconnect since the first attempt of this call.
            Some(earlier) => Ok(earlier.generation),
            None => self.is_readable(),
        }
    }

    fn is_readable(&self) -> Result<u32, FsError> {
        let state = self.state();
        let since = self.disconnects();
        match state.phase {
            Phase::Idle | Phase::Listening if self.is_unix() && self.kind == Kind::Stream => Err(FsError::Invalid),
            Phase::Idle | Phase::Listening if !self.is_datagram() => {
                Err(self.take_error().unwrap_or(FsError::NotConnected))
            }
            _ => Ok(since),
        }
    }

    /// Waits for messages. Returns `Ok(false)` at the end of the stream. As on Linux, a disconnect makes waiting calls
    /// fail with [`FsError::BrokenPipe`], and the disconnect's own error stays for the next call.
    pub(crate) fn wait_readable(&self, io: &Io<'_>, look: Look, since: u32) -> Result<bool, FsError> {
        let state = || {
            let queue = self.inbox.queue();
            if self.disconnects() != since {
                return Some(Err(FsError::BrokenPipe));
            }
            if !queue.is_empty() {
                return Some(Ok(true));
            }
            let ended = queue.ended;
            drop(queue);
            // `is_refused` is read before the error, because another reader may take the error between the two reads.
            let ended = ended || self.is_refused();
            if self.has_error() && look == Look::Later {
                return Some(Ok(false));
            }
            // A broken pipe is the error of a write. A reader sees the end of the stream, and the error stays for the
            // writer.
            if self.error() == Some(FsError::BrokenPipe) {
                return Some(Ok(false));
            }
            match self.take_error() {
                Some(e) => Some(Err(e)),
                // There was no error, or another reader has taken it.
                None if ended => Some(Ok(false)),
                // The attempt to connect has ended.
                None if self.is_tcp() && self.never_readable() => Some(Err(FsError::NotConnected)),
                None => None,
            }
        };
        match look {
            Look::First => self.readiness.wait_in(since, io, state)?,
            Look::Done => self.readiness.wait_again(since, io, state)?,
            // The program has received bytes, so the call cannot begin again. It keeps its kernel stack while it waits.
            Look::Later => self.readiness.wait(&io.on_stack(), state)?,
        }
    }

    /// Copies the bytes in the inbox to `sink`. Returns whether the call ends with these bytes.
    fn take_bytes(
        &self,
        sink: &mut dyn Sink,
        flags: ReceiveFlags,
        since: u32,
        out: &mut Received<H>,
    ) -> Result<bool, FsError> {
        let peek = flags.contains(ReceiveFlags::PEEK);
        let (mut at, mut stop, mut room) = (0, false, false);
        let mut failed = Ok(());
        let readers = self.inbox.read();
        while !stop && sink.room() > 0 {
            let Some(mut borrowed) = self.borrow(at, since, out, &mut stop) else { break };
            let bytes = &borrowed.data[borrowed.start..];
            let length = bytes.len();
            let moved = sink.put(bytes);
            let n = *moved.as_ref().unwrap_or(&0);
            failed = moved.map(drop);
            stop = n < length;
            // The usual case: the piece was read to its end, it has no attached data, and no other piece has come.
            if !stop && !peek && borrowed.is_last() {
                let forgotten = {
                    let mut queue = self.inbox.queue();
                    let forgotten = queue.lent(&borrowed) && queue.forget_last_piece(n);
                    room |= forgotten && queue.made_room();
                    forgotten
                };
                if forgotten {
                    out.bytes += n;
                    borrowed.drop_chunk();
                    continue;
                }
            }
            let taken = if n > 0 && !peek { borrowed.attached.take() } else { None };
            if n > 0 && peek {
                at += 1;
                match borrowed.attached.as_ref().map(|attached| attached.copy()).transpose() {
                    Ok(copy) => stop |= deliver(out, copy),
                    Err(e) => (failed, stop) = (Err(e), true),
                }
            }
            let removed = {
                let mut queue = self.inbox.queue();
                stop |= !queue.lent(&borrowed);
                let removed = if n == length && !peek {
                    (queue.lent(&borrowed).then(|| queue.remove_borrowed(n)), Some(borrowed))
                } else {
                    let at = at - usize::from(peek && n > 0);
                    (None, queue.give_back(at, borrowed, if peek { 0 } else { n }))
                };
                room |= queue.made_room();
                removed
            };
            drop(removed);
            out.bytes += n;
            stop |= deliver(out, taken.map(|attached| attached.into_inner().take_out()));
        }
        drop(readers);
        if room
            && !mutant(Mutant::RoomUnannounced)
            && let Some(peer) = self.peer()
        {
            peer.readiness.notify();
        }
        failed.map(|()| stop)
    }

    /// Takes out chunk `at`. If its credentials differ from the credentials of the bytes before it, the call sets
    /// `stop` instead.
    fn borrow(
        &self,
        at: usize,
        since: u32,
        out: &Received<H>,
        stop: &mut bool,
    ) -> Option<Borrowed<InFlight<Endpoint<H>>>> {
        let mut queue = self.inbox.queue();
        // The socket was disconnected, so the inbox has bytes of another connection.
        if self.disconnects() != since {
            return None;
        }
        if out.bytes > 0 && self.options.has(Flags::PASS_CREDENTIALS) {
            let theirs = queue.get(at)?.attached.as_ref().and_then(|attached| attached.credentials);
            if theirs.is_some() && theirs != out.ancillary.credentials {
                *stop = true;
                return None;
            }
        }
        queue.borrow(at)
    }
}

/// A sink that drops the bytes. Its field is the number of bytes that it still takes.
struct Discard(usize);

impl Sink for Discard {
    fn room(&self) -> usize {
        self.0
    }

    fn put(&mut self, bytes: &[u8]) -> Result<usize, FsError> {
        let n = bytes.len().min(self.0);
        self.0 -= n;
        Ok(n)
    }
}

/// Fills a new chunk with up to `size` bytes, and returns their number.
pub(crate) fn fill(source: &mut dyn Source, chunk: &mut Vec<u8>, size: usize) -> Result<usize, FsError> {
    chunk.try_reserve_exact(size)?;
    chunk.resize_reserved(size, 0);
    let taken = source.take(chunk);
    chunk.truncate(*taken.as_ref().unwrap_or(&0));
    taken
}

/// Adds the files and credentials of a message to `out`. Returns whether there were files, because a read ends after
/// bytes with files.
fn deliver<H: Host>(out: &mut Received<H>, ancillary: Option<Ancillary<H>>) -> bool {
    let Some(ancillary) = ancillary else { return false };
    out.ancillary.credentials = out.ancillary.credentials.or(ancillary.credentials);
    let files = !ancillary.files.is_empty();
    if files {
        out.ancillary.files = ancillary.files;
    }
    files
}
