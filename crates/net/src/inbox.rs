//! Inboxes: the messages that wait at an endpoint.
//!
//! Writers fill chunks without a lock, and queue them under the spin lock. A sleeping lock serialises readers. The
//! reader that holds it *borrows* the chunks of a message in three steps. It takes the chunks out under the spin lock,
//! copies their bytes without that lock, and puts the chunks back or removes the message. Only that reader removes
//! messages, so the position of a borrowed message stays the same. The exception is a disconnect, which purges the
//! inbox and raises the purge counter. The reader then finds that the counter has changed, and drops the chunks. No
//! writer can add bytes to a borrowed chunk, because the message in the queue has an empty chunk without capacity.
//!
//! The inbox of a TCP socket records its only sender, because a disconnected socket may connect again. A call on the
//! earlier peer may still send bytes or end the connection. The inbox refuses both.
//!
//! An empty inbox uses no heap memory.

use crate::address::Address;
use crate::host::Arrival;
use core::mem;
use quire_heap::{Box, Deque, OutOfMemory, Vec};
use quire_sync::{Mutex, MutexGuard, Rank, SpinGuard, SpinLock};

/// The size of the largest chunk, in bytes.
pub(crate) const CHUNK: usize = 4096;
/// The charge, in bytes, of a message without its bytes and its attached data. It covers the memory of the message's
/// slot and of its allocations.
pub(crate) const OVERHEAD: usize = 256;
/// The number of slots that are first allocated for a queue of more than one message.
const PLACES: usize = 8;

/// A message, or a piece of a stream. `C` is its attached data: files and credentials.
pub(crate) struct Message<C> {
    /// The first chunk. A piece of a stream has only this one.
    pub data: Vec<u8>,
    /// The other chunks.
    pub more: Vec<Vec<u8>>,
    /// The number of bytes of a stream's piece that were read.
    pub start: usize,
    /// The sender of a datagram.
    pub from: Option<Address>,
    /// The header of an internet datagram.
    pub arrival: Option<Arrival>,
    /// Files and credentials.
    pub attached: Option<Box<C>>,
    /// The charge of the message without its bytes. It stays the same when the attached data of a stream's piece is
    /// taken out.
    overhead: usize,
}

/// The part of a message that is not bytes.
pub(crate) trait Attached {
    /// The memory of the parts, in bytes. It is part of the charge, so the limit of an inbox also bounds the files in
    /// it.
    fn memory(&self) -> usize;
}

impl<C: Attached> Message<C> {
    pub(crate) fn new(data: Vec<u8>, attached: Option<Box<C>>) -> Self {
        let overhead = OVERHEAD + attached.as_ref().map_or(0, |attached| attached.memory());
        Self::of(data, attached, overhead)
    }
}

impl<C> Message<C> {
    #[inline(always)]
    fn of(data: Vec<u8>, attached: Option<Box<C>>, overhead: usize) -> Self {
        Message { data, more: Vec::new(), start: 0, from: None, arrival: None, attached, overhead }
    }

    /// Whether the message has no memory, no attached data and no sender.
    fn is_bare(&self) -> bool {
        self.data.capacity() + self.more.capacity() == 0 && self.attached.is_none() && self.from.is_none()
    }

    /// The number of unread bytes.
    pub(crate) fn len(&self) -> usize {
        self.data.len() - self.start + self.more.iter().map(|chunk| chunk.len()).sum::<usize>()
    }
}

/// The chunks and the attached data of a message that a reader has borrowed.
pub(crate) struct Borrowed<C> {
    pub data: Vec<u8>,
    pub more: Vec<Vec<u8>>,
    pub start: usize,
    pub attached: Option<Box<C>>,
    /// The value of `purges` when the chunks were taken out.
    purges: u32,
    /// The queue had no other message when the chunks were taken out.
    alone: bool,
}

impl<C> Borrowed<C> {
    /// Whether the message was the only one in the queue and has no attached data.
    pub(crate) fn is_last(&self) -> bool {
        self.alone && self.attached.is_none()
    }

    /// Drops the chunk of a stream's piece that has no attached data.
    #[inline]
    pub(crate) fn drop_chunk(self) {
        let Borrowed { data, more, attached, .. } = self;
        debug_assert!(more.capacity() == 0 && attached.is_none());
        drop(data);
        // `more` and `attached` are empty. `forget` avoids the drop code that the compiler would generate.
        mem::forget((more, attached));
    }
}

/// The queue, under the inbox's spin lock.
pub(crate) struct Queue<C> {
    /// The first message, which is stored here so that a queue of one message needs no ring.
    first: Option<Message<C>>,
    rest: Deque<Message<C>>,
    /// Unread bytes.
    pub bytes: usize,
    /// The number of unread bytes, plus the overhead of each message.
    pub charge: usize,
    /// Writers wait until the charge is at most this value. `None`: no writer waits.
    wanted: Option<usize>,
    /// No more messages come.
    pub ended: bool,
    /// The inbox refuses new messages.
    pub receive_shutdown: bool,
    /// The socket of this inbox has closed.
    pub closed: bool,
    /// The address of the only endpoint that may send to this TCP socket. `None`: any endpoint may send.
    pub sender: Option<usize>,
    purges: u32,
}

/// A value of [`Queue::sender`] that is the address of no endpoint, so that no endpoint may send.
pub(crate) const NO_SENDER: usize = 0;

/// Messages that were removed from a queue. The caller drops them after it has released the lock.
pub(crate) type Removed<C> = (Option<Message<C>>, Deque<Message<C>>);

impl<C> Queue<C> {
    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn get(&self, at: usize) -> Option<&Message<C>> {
        if at == 0 { self.first.as_ref() } else { self.rest.get(at - 1) }
    }

    fn get_mut(&mut self, at: usize) -> Option<&mut Message<C>> {
        if at == 0 { self.first.as_mut() } else { self.rest.get_mut(at - 1) }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Message<C>> {
        self.first.iter().chain(self.rest.iter())
    }

    /// Allocates slots for `more` messages.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), OutOfMemory> {
        let places = (more + self.len()).saturating_sub(1);
        match places.saturating_sub(self.rest.len()) {
            0 => Ok(()),
            more if self.rest.is_empty() => self.rest.try_reserve(more.max(PLACES)),
            more => self.rest.try_reserve(more),
        }
    }

    /// Adds a message. The caller has allocated its slot with [`reserve`](Self::reserve).
    pub(crate) fn push_reserved(&mut self, message: Message<C>) {
        let bytes = message.len();
        self.bytes += bytes;
        self.charge += bytes + message.overhead;
        match self.first {
            None => self.first = Some(message),
            Some(_) => self.rest.push_back_reserved(message),
        }
    }

    /// Adds a piece of a stream without attached data. The caller has allocated its slot with
    /// [`reserve`](Self::reserve).
    pub(crate) fn push_piece(&mut self, data: Vec<u8>) {
        self.bytes += data.len();
        self.charge += data.len() + OVERHEAD;
        match self.first {
            // The message is built in its slot, without a copy.
            None => self.first = Some(Message::of(data, None, OVERHEAD)),
            Some(_) => self.rest.push_back_reserved(Message::of(data, None, OVERHEAD)),
        }
    }

    /// Adds bytes to the last chunk. Returns false if that chunk has too little room, or attached data.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> bool {
        let last = if self.rest.is_empty() { self.first.as_mut() } else { self.rest.get_mut(self.rest.len() - 1) };
        let Some(last) = last else { return false };
        if last.attached.is_some() || last.data.capacity() - last.data.len() < bytes.len() {
            return false;
        }
        last.data.extend_reserved(bytes);
        self.bytes += bytes.len();
        self.charge += bytes.len();
        true
    }

    /// Takes the chunks of message `at` out. The caller holds the readers' lock.
    pub(crate) fn borrow(&mut self, at: usize) -> Option<Borrowed<C>> {
        let alone = self.rest.is_empty();
        let message = self.get_mut(at)?;
        let (data, more) = (mem::take(&mut message.data), mem::take(&mut message.more));
        let (start, attached, purges) = (message.start, message.attached.take(), self.purges);
        Some(Borrowed { data, more, start, attached, purges, alone })
    }

    /// Whether the message of these chunks is still in the queue.
    pub(crate) fn lent(&self, borrowed: &Borrowed<C>) -> bool {
        borrowed.purges == self.purges
    }

    /// Puts borrowed chunks back after the reader has read another `read` bytes of them. If the message was purged, the
    /// chunks are returned, and the caller drops them without the lock.
    pub(crate) fn give_back(&mut self, at: usize, borrowed: Borrowed<C>, read: usize) -> Option<Borrowed<C>> {
        if !self.lent(&borrowed) {
            return Some(borrowed);
        }
        if let Some(message) = self.get_mut(at) {
            let Borrowed { data, more, start, attached, .. } = borrowed;
            let (from, arrival, overhead) = (message.from.take(), message.arrival, message.overhead);
            *message = Message { data, more, start: start + read, from, arrival, attached, overhead };
        }
        self.bytes -= read;
        self.charge -= read;
        None
    }

    /// Removes the first message, whose chunks are [lent](Self::lent). `unread` is the number of its bytes that were
    /// unread when the chunks were lent.
    pub(crate) fn remove_borrowed(&mut self, unread: usize) -> Removed<C> {
        self.bytes -= unread;
        self.charge -= unread + self.first.as_ref().map_or(0, |message| message.overhead);
        self.shift()
    }

    /// Removes the first piece of a stream, if it is the only one. Its chunk is lent, and it has no attached data.
    /// `unread` is the number of its bytes that were unread when the chunks were lent.
    #[inline]
    pub(crate) fn forget_last_piece(&mut self, unread: usize) -> bool {
        if !self.rest.is_empty() {
            return false;
        }
        self.bytes -= unread;
        if let Some(piece) = self.first.take() {
            self.charge -= unread + piece.overhead;
            debug_assert!(piece.is_bare());
            // The piece owns nothing. `forget` avoids the drop code that the compiler would generate.
            mem::forget(piece);
        }
        true
    }

    /// Removes and returns the first message, and the memory of the ring if the ring is empty now.
    pub(crate) fn pop(&mut self) -> (Option<Message<C>>, Deque<Message<C>>) {
        let Some(unread) = self.first.as_ref().map(Message::len) else { return (None, Deque::new()) };
        self.remove_borrowed(unread)
    }

    /// Removes all messages, also while a reader borrows chunks.
    pub(crate) fn purge(&mut self) -> Removed<C> {
        self.purges = self.purges.wrapping_add(1);
        self.take_all()
    }

    /// Whether this TCP socket has another peer than the endpoint at address `sender`.
    pub(crate) fn is_foreign(&self, sender: usize) -> bool {
        self.sender.is_some_and(|only| only != sender)
    }

    /// Whether the inbox refuses messages from the endpoint at address `sender`.
    pub(crate) fn refuses(&self, sender: usize) -> bool {
        self.receive_shutdown || self.is_foreign(sender)
    }

    fn shift(&mut self) -> Removed<C> {
        let first = mem::replace(&mut self.first, self.rest.pop_front());
        let memory = if self.rest.is_empty() { mem::replace(&mut self.rest, Deque::new()) } else { Deque::new() };
        (first, memory)
    }

    /// Removes all messages. The caller knows that no reader borrows chunks.
    pub(crate) fn take_all(&mut self) -> Removed<C> {
        (self.bytes, self.charge) = (0, 0);
        (self.first.take(), mem::replace(&mut self.rest, Deque::new()))
    }

    /// Whether the charge is at most `level`. If not, [`made_room`](Self::made_room) returns true when the charge has
    /// fallen to `level`.
    pub(crate) fn is_below(&mut self, level: usize) -> bool {
        let below = self.charge <= level;
        if !below {
            self.wanted = Some(self.wanted.map_or(level, |w| w.max(level)));
        }
        below
    }

    /// Whether waiting writers may continue. The call returns true once, and the caller notifies the writers.
    pub(crate) fn made_room(&mut self) -> bool {
        self.wanted.is_some_and(|level| self.charge <= level) && self.wanted.take().is_some()
    }
}

/// The content of the readers' lock, which guards no data.
pub(crate) struct Readers;

/// The messages of an endpoint, and the lock that serialises their readers.
pub(crate) struct Inbox<C> {
    queue: SpinLock<Queue<C>>,
    readers: Mutex<Readers>,
}

impl<C> Inbox<C> {
    pub(crate) fn new() -> Self {
        let queue = Queue {
            first: None,
            rest: Deque::new(),
            bytes: 0,
            charge: 0,
            wanted: None,
            ended: false,
            receive_shutdown: false,
            closed: false,
            sender: None,
            purges: 0,
        };
        Inbox { queue: SpinLock::new(Rank::INBOX, queue), readers: Mutex::new(Readers) }
    }

    /// Locks the queue.
    pub(crate) fn queue(&self) -> SpinGuard<'_, Queue<C>> {
        self.queue.lock()
    }

    /// Locks out other readers.
    pub(crate) fn read(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_heap::refusal;

    impl Attached for () {
        fn memory(&self) -> usize {
            1000
        }
    }

    fn message(bytes: &[u8]) -> Message<()> {
        Message::new(Vec::try_copy(bytes).unwrap(), None)
    }

    #[test]
    fn one_message_needs_no_ring_and_an_empty_queue_has_none() {
        let inbox = Inbox::new();
        let mut queue = inbox.queue();
        let m = message(b"x");
        assert_eq!(refusal::allocations(|| queue.reserve(1).unwrap()), 0);
        queue.push_reserved(m);
        assert!(refusal::at(1, || queue.reserve(1).is_err()).0);
        queue.reserve(1).unwrap();
        queue.push_reserved(message(b"yz"));
        assert_eq!((queue.len(), queue.bytes, queue.charge), (2, 3, 3 + 2 * OVERHEAD));
        assert_eq!(queue.pop().0.unwrap().data, b"x");
        assert_eq!(queue.pop().0.unwrap().data, b"yz");
        assert_eq!((queue.len(), queue.bytes, queue.charge), (0, 0, 0));
        assert!(queue.pop().0.is_none());
    }

    #[test]
    fn a_borrowed_chunk_takes_no_bytes() {
        let inbox = Inbox::new();
        let mut queue = inbox.queue();
        let mut m = message(b"");
        m.data.try_reserve(100).unwrap();
        m.data.extend_reserved(b"abc");
        queue.push_reserved(m);
        assert!(queue.append(b"def"));
        let borrowed = queue.borrow(0).unwrap();
        assert!(!queue.append(b"g"));
        assert!(queue.give_back(0, borrowed, 2).is_none());
        assert!(queue.append(b"g"));
        assert_eq!((queue.bytes, queue.get(0).unwrap().len()), (5, 5));
        assert!(!queue.append(&[0; 200]));
    }

    #[test]
    fn chunks_of_a_purged_message_do_not_go_back() {
        let inbox = Inbox::new();
        let mut queue = inbox.queue();
        queue.push_reserved(message(b"old"));
        let borrowed = queue.borrow(0).unwrap();
        queue.purge();
        queue.push_reserved(message(b"new"));
        assert!(!queue.lent(&borrowed));
        assert_eq!(queue.give_back(0, borrowed, 1).unwrap().data, b"old");
        assert_eq!((queue.bytes, queue.pop().0.unwrap().data), (3, Vec::try_copy(b"new").unwrap()));
        assert_eq!((queue.bytes, queue.charge), (0, 0));
    }

    #[test]
    fn an_inbox_takes_bytes_of_its_only_sender() {
        let inbox = Inbox::<()>::new();
        let mut queue = inbox.queue();
        assert!(!queue.refuses(8) && !queue.refuses(16));
        queue.sender = Some(8);
        assert!(!queue.refuses(8) && queue.refuses(16));
        queue.sender = Some(NO_SENDER);
        assert!(queue.is_foreign(8));
    }

    #[test]
    fn attached_data_is_charged_until_its_message_goes() {
        let inbox = Inbox::new();
        let mut queue = inbox.queue();
        queue.push_reserved(Message::new(Vec::try_copy(b"abc").unwrap(), Some(Box::try_new(()).unwrap())));
        assert_eq!(queue.charge, 3 + OVERHEAD + 1000);
        let mut borrowed = queue.borrow(0).unwrap();
        borrowed.attached = None;
        assert!(queue.give_back(0, borrowed, 1).is_none());
        assert_eq!(queue.charge, 2 + OVERHEAD + 1000);
        queue.pop();
        assert_eq!(queue.charge, 0);
    }

    #[test]
    fn room_is_reported_once_to_writers() {
        let inbox = Inbox::new();
        let mut queue = inbox.queue();
        queue.push_reserved(message(&[0; 1000]));
        assert!(queue.is_below(5000) && !queue.made_room());
        assert!(!queue.is_below(500) && !queue.is_below(100));
        assert!(!queue.made_room());
        queue.pop();
        assert!(queue.made_room() && !queue.made_room());
    }
}
