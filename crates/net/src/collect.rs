//! Files in flight, and the collector of sockets that only messages in each other's inboxes keep alive.
//!
//! # The collector
//! A socket whose file is in a message is *in flight*. Its file is garbage if all references to the file are in the
//! inboxes of other garbage. Here the inboxes of the connections in a listener's backlog belong to the listener. At
//! first, no socket in flight is reached. The collector then works in rounds:
//!
//! 1. Count, for each unreached socket in flight, the references to its file that unreached inboxes hold.
//! 2. A socket with further references is a root, because a file table, a thread or a reached inbox has these
//!    references.
//! 3. All sockets to which messages lead from the roots are marked as reached.
//!
//! The rounds end with a round without new roots, but never with the first round. The messages and the backlogs of the
//! unreached sockets are then dropped, and so are these sockets.
//!
//! ## Why no live socket is emptied
//! While the collector counts, other threads change inboxes: they read, accept, shut down, and queue messages.
//!
//! - The references in messages stay the same during the rounds. To make, take out, copy or drop such a reference, a
//!   thread needs the collector's lock. A thread that takes a message out of an inbox waits for that lock before it has
//!   the file. So a reference that the collector has counted exists until the rounds are over.
//! - Suppose that the count equals the file's reference count. Then no thread and no file table has the file. None gets
//!   it before the rounds are over, because a reference is made only from another reference.
//! - So after the first count, no thread is in a call on an unreached socket. The inbox and the backlog of that socket
//!   lose nothing any more. Messages that were removed earlier are visible as removed after the fence in
//!   `take_garbage`.
//! - The last round counted these inboxes again, and found in them all references to all unreached sockets. So these
//!   sockets are garbage.
//!
//! The first count alone is not enough. After the collector has counted an inbox, a thread may take a message out of
//! it. The thread may then drop the last outside reference to the inbox's socket. If the collector counts the
//! references to that socket afterwards, it finds no root, although the thread gets the message's files.
//!
//! A call may look a descriptor up while another thread closes it. If only garbage refers to the file then, the call
//! may find the socket's inbox empty.
//!
//! ## One collector at a time
//! Dropping garbage closes sockets, and each close calls the collector again. Such a nested call returns at once, so
//! that the depth of calls stays constant. The outer collector repeats its work if enough sockets have closed since it
//! began.
//!
//! # Graves
//! Dropping a message may close a socket, whose inbox has messages too. To keep the depth of calls constant, a closing
//! socket with messages that carry files is put on a list (`graves`). One thread at a time drops the messages of all
//! sockets on the list.

use crate::address::Credentials;
use crate::host::{Ancillary, FILES_MAX, Host};
use crate::inbox::{Attached, Inbox, Removed};
use crate::mutant::{Mutant, mutant};
use core::mem;
use quire_fs::FsError;
use quire_heap::{Arc, Box, Vec};
use quire_sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use quire_sync::{Mutex, Rank, SpinLock};

/// The least number of sockets in flight at which a sender runs the collector. A sender runs it again each time the
/// number has doubled.
const MANY: usize = 1024;

/// The collector runs when the number of closed Unix sockets is a sixteenth of the number in flight. So its work for
/// each closing socket is bounded.
const RATIO: usize = 16;

/// The shared part of a socket, as the collector sees it.
pub(crate) trait Member: Sized + 'static {
    /// The system whose files messages carry.
    type Host: Host;
    /// Connections that wait to be accepted.
    type Backlog;

    /// The collector of the socket's network.
    fn collector(&self) -> &'static Collector<Self>;
    /// The socket's part of the collector's state.
    fn marks(&self) -> &CollectorMarks<Self>;
    /// The messages that wait at the socket.
    fn inbox(&self) -> &Inbox<InFlight<Self>>;
    /// Whether messages to the socket can carry files.
    fn is_unix(&self) -> bool;
    /// The Unix socket that `file` opens, or `None` for another file.
    fn of_file(file: &FileOf<Self>) -> Option<&Arc<Self>>;
    /// Calls `f` for the server's end of each connection in the backlog, with the lock of the socket's state held.
    fn each_unaccepted(&self, f: impl FnMut(&Self));
    /// Takes the backlog out of the socket.
    fn take_backlog(&self) -> Option<Self::Backlog>;
    /// Drops connections that no call has accepted.
    fn abort_all(backlog: Option<Self::Backlog>);
}

/// A file that messages carry.
type FileOf<M> = <<M as Member>::Host as Host>::File;

/// The files and credentials of a message until a receiver takes them out.
pub(crate) struct InFlight<M: Member> {
    files: Vec<FileOf<M>>,
    _charge: Option<<M::Host as Host>::Charge>,
    pub credentials: Option<Credentials>,
    /// The collector whose sockets in flight include those of `files`.
    counted: Option<&'static Collector<M>>,
}

/// The sockets in flight.
struct SocketsInFlight<M: Member> {
    /// The sockets, without duplicates.
    all: Vec<Arc<M>>,
    /// The number of sockets in flight at which a sender runs the collector.
    due: usize,
}

/// A socket that is garbage, with all that it keeps alive.
struct Garbage<M: Member> {
    _member: Arc<M>,
    messages: Removed<InFlight<M>>,
    backlog: Option<M::Backlog>,
}

/// The files in flight of a network, and the state of the collector of its garbage.
pub(crate) struct Collector<M: Member> {
    sockets: Mutex<SocketsInFlight<M>>,
    /// The head of the list of closed endpoints whose messages must be dropped.
    graves: SpinLock<Option<Arc<M>>>,
    /// Set while a thread drops the messages of closed endpoints.
    digging: AtomicBool,
    /// Set while a thread looks for garbage or drops it.
    collecting: AtomicBool,
    /// The number of sockets in flight, readable without the lock.
    number: AtomicUsize,
    /// The number of Unix sockets that have closed since the collector began.
    closed: AtomicUsize,
}

/// An endpoint's part of the collector's state. The lock of [`SocketsInFlight`] guards all fields except `next`.
pub(crate) struct CollectorMarks<M: Member> {
    in_flight: AtomicUsize,
    /// The index of the socket in [`SocketsInFlight::all`].
    at: AtomicUsize,
    found: AtomicUsize,
    references: AtomicUsize,
    reachable: AtomicBool,
    /// The next closed endpoint on the list. The lock of `graves` guards the list.
    next: SpinLock<Option<Arc<M>>>,
}

impl<M: Member> CollectorMarks<M> {
    pub(crate) fn new() -> Self {
        CollectorMarks {
            in_flight: AtomicUsize::new(0),
            at: AtomicUsize::new(0),
            found: AtomicUsize::new(0),
            references: AtomicUsize::new(0),
            reachable: AtomicBool::new(false),
            next: SpinLock::new(Rank::INBOX, None),
        }
    }
}

fn get(cell: &AtomicUsize) -> usize {
    cell.load(Ordering::Relaxed)
}

fn set(cell: &AtomicUsize, value: usize) {
    cell.store(value, Ordering::Relaxed);
}

impl<M: Member> InFlight<M> {
    /// Puts files and credentials into a message. `None` if there are none.
    pub(crate) fn put_in_flight(
        collector: &'static Collector<M>,
        ancillary: Ancillary<M::Host>,
    ) -> Result<Option<Box<Self>>, FsError> {
        let Ancillary { files, charge, credentials, .. } = ancillary;
        if files.is_empty() && credentials.is_none() {
            return Ok(None);
        }
        if files.len() > FILES_MAX {
            return Err(FsError::Invalid);
        }
        let mut attached = Box::try_new(InFlight { files, _charge: charge, credentials, counted: None })?;
        let sockets = attached.files.iter().filter_map(M::of_file).count();
        if sockets == 0 {
            return Ok(Some(attached));
        }
        let mut listed = collector.sockets.lock();
        let all = &mut listed.all;
        all.try_reserve(sockets)?;
        for endpoint in attached.files.iter().filter_map(M::of_file) {
            let marks = endpoint.marks();
            let before = get(&marks.in_flight);
            set(&marks.in_flight, before + 1);
            if before == 0 {
                set(&marks.at, all.len());
                all.push_reserved(endpoint.clone());
            }
        }
        let number = all.len();
        collector.number.store(number, Ordering::Relaxed);
        let due = number >= listed.due;
        drop(listed);
        attached.counted = Some(collector);
        if due {
            collector.collect();
        }
        Ok(Some(attached))
    }

    /// Takes the files and credentials out for a receiver. The files are in flight no more.
    pub(crate) fn take_out(mut self) -> Ancillary<M::Host> {
        self.uncount();
        Ancillary { files: mem::take(&mut self.files), credentials: self.credentials.take(), ..Ancillary::none() }
    }

    /// A copy of the files and credentials, for a receiver that leaves the message in the inbox.
    pub(crate) fn copy(&self) -> Result<Ancillary<M::Host>, FsError> {
        // The lock keeps the collector's counts correct: no reference leaves a message while the collector counts.
        let _listed = self.counted.map(|collector| collector.sockets.lock());
        let files = Vec::try_from_iter(self.files.iter().cloned())?;
        Ok(Ancillary { files, credentials: self.credentials, ..Ancillary::none() })
    }

    fn uncount(&mut self) {
        let Some(collector) = self.counted.take() else { return };
        let mut listed = collector.sockets.lock();
        let all = &mut listed.all;
        for endpoint in self.files.iter().filter_map(M::of_file) {
            let marks = endpoint.marks();
            let left = get(&marks.in_flight) - 1;
            set(&marks.in_flight, left);
            if left == 0 {
                let at = get(&marks.at);
                // The file still refers to the endpoint, so this call does not drop the last reference to it.
                all.swap_remove(at);
                if let Some(moved) = all.get(at) {
                    set(&moved.marks().at, at);
                }
            }
        }
        collector.number.store(all.len(), Ordering::Relaxed);
        let memory = if all.is_empty() { mem::take(all) } else { Vec::new() };
        drop(listed);
        drop(memory);
    }
}

impl<M: Member> Drop for InFlight<M> {
    fn drop(&mut self) {
        self.uncount();
    }
}

impl<M: Member> Attached for InFlight<M> {
    /// Each file needs a slot in `files`. A file that is a socket also needs a slot in the list of sockets in flight.
    fn memory(&self) -> usize {
        self.files.len() * (size_of::<FileOf<M>>() + size_of::<Arc<M>>())
    }
}

/// Calls `f` for each socket in a message at `endpoint`, or at a connection that waits there to be accepted.
fn each_socket<M: Member>(endpoint: &M, mut f: impl FnMut(&Arc<M>, &FileOf<M>)) {
    let mut look = |endpoint: &M| {
        let queue = endpoint.inbox().queue();
        let files =
            queue.iter().filter_map(|message| message.attached.as_ref()).flat_map(|attached| attached.files.iter());
        files.for_each(|file| {
            if let Some(socket) = M::of_file(file) {
                f(socket, file);
            }
        });
    };
    look(endpoint);
    endpoint.each_unaccepted(look);
}

impl<M: Member> Collector<M> {
    pub(crate) fn new() -> Self {
        Collector {
            sockets: Mutex::new(SocketsInFlight { all: Vec::new(), due: MANY }),
            graves: SpinLock::new(Rank::SOCKET, None),
            digging: AtomicBool::new(false),
            collecting: AtomicBool::new(false),
            number: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
        }
    }

    /// Drops the messages of garbage: sockets that only messages in each other's inboxes keep alive. The call does
    /// nothing if memory for its lists is exhausted, or while another thread collects.
    pub(crate) fn collect(&self) {
        loop {
            if self.collecting.swap(true, Ordering::AcqRel) {
                return;
            }
            self.closed.store(0, Ordering::Relaxed);
            let mut garbage = self.take_garbage().unwrap_or_default();
            while let Some(Garbage { _member, messages, backlog }) = garbage.pop() {
                M::abort_all(backlog);
                drop(messages);
            }
            // A thread that found `collecting` set has added to `closed` before. This swap reads the value of that
            // thread's swap, so `is_due` sees the addition.
            self.collecting.swap(false, Ordering::AcqRel);
            if !self.is_due() {
                return;
            }
        }
    }

    /// Takes the messages and backlogs of all garbage sockets. The caller drops them without a lock. `None` if memory
    /// is exhausted.
    fn take_garbage(&self) -> Option<Vec<Garbage<M>>> {
        let mut listed = self.sockets.lock();
        let all = &listed.all;
        let mut reached = Vec::<Arc<M>>::try_with_capacity(all.len()).ok()?;
        let reach = |reached: &mut Vec<Arc<M>>, endpoint: &Arc<M>| {
            // A socket of another machine is not in the list.
            if get(&endpoint.marks().in_flight) > 0 && !endpoint.marks().reachable.swap(true, Ordering::Relaxed) {
                reached.push_reserved(endpoint.clone());
            }
        };
        let unreached = || all.iter().filter(|endpoint| !endpoint.marks().reachable.load(Ordering::Relaxed));
        all.iter().for_each(|endpoint| endpoint.marks().reachable.store(false, Ordering::Relaxed));
        let mut first = true;
        loop {
            for endpoint in unreached() {
                set(&endpoint.marks().found, 0);
                set(&endpoint.marks().references, 0);
            }
            for endpoint in unreached() {
                each_socket(&**endpoint, |socket, file| {
                    let marks = socket.marks();
                    set(&marks.found, get(&marks.found) + 1);
                    set(&marks.references, M::Host::references(file));
                });
            }
            // The reference counts were read without an ordering. After this fence, the collector sees all that threads
            // did before they dropped references. No model can show that the fence is needed, because both checkers run
            // the steps of a thread in program order.
            fence(Ordering::Acquire);
            for endpoint in unreached() {
                let found = get(&endpoint.marks().found);
                if found == 0 || found < get(&endpoint.marks().references) {
                    reach(&mut reached, endpoint);
                }
            }
            if reached.is_empty() && (!first || mutant(Mutant::CountedOnce)) {
                break;
            }
            first = false;
            while let Some(endpoint) = reached.pop() {
                each_socket(&*endpoint, |socket, _| reach(&mut reached, socket));
            }
        }
        let number = unreached().count();
        let mut garbage = Vec::try_with_capacity(number).ok()?;
        for endpoint in unreached() {
            let backlog = endpoint.take_backlog();
            let messages = endpoint.inbox().queue().take_all();
            garbage.push_reserved(Garbage { _member: endpoint.clone(), messages, backlog });
        }
        listed.due = ((all.len() - number) * 2).max(MANY);
        Some(garbage)
    }

    /// The number of sockets in flight.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> usize {
        self.number.load(Ordering::Relaxed)
    }

    /// Whether enough sockets have closed to run the collector again.
    fn is_due(&self) -> bool {
        let (sockets, closed) = (self.number.load(Ordering::Relaxed), self.closed.load(Ordering::Relaxed));
        sockets > 0 && closed > 0 && closed >= sockets / RATIO
    }

    /// Drops the messages of a closed endpoint. If they carry files, the endpoint is put on the list `graves`, and one
    /// thread at a time drops the messages of that list.
    pub(crate) fn bury(endpoint: &Arc<M>) {
        let collector = endpoint.collector();
        let (removed, deep) = {
            let mut queue = endpoint.inbox().queue();
            let deep = queue.iter().any(|message| message.attached.is_some());
            ((!deep).then(|| queue.take_all()), deep)
        };
        if deep {
            let mut graves = collector.graves.lock();
            *endpoint.marks().next.lock() = graves.take();
            *graves = Some(endpoint.clone());
        }
        drop(removed);
        // If no message carries files, `graves` needs no visit. So such closes write to no shared cache line.
        let dug = if deep { collector.dig() } else { !collector.digging.load(Ordering::Acquire) };
        if !endpoint.is_unix() || collector.number.load(Ordering::Relaxed) == 0 {
            return;
        }
        collector.closed.fetch_add(1, Ordering::Relaxed);
        if dug && collector.is_due() {
            collector.collect();
        }
    }

    /// Drops the messages of all closed endpoints on the list. Returns false if another thread, or an outer call of
    /// this thread, does so already.
    fn dig(&self) -> bool {
        loop {
            if self.digging.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire).is_err() {
                return false;
            }
            while let Some(endpoint) = self.next_grave() {
                let removed = endpoint.inbox().queue().take_all();
                drop(removed);
            }
            self.digging.store(false, Ordering::Release);
            // No endpoint stays on the list without a thread that drops its messages. A thread that found `digging` set
            // has listed its endpoint before that, under the lock of `graves`. If that thread had the lock first, this
            // thread finds the endpoint. If this thread had the lock first, that thread would have found `digging`
            // clear.
            if mutant(Mutant::GraveUnseen) || self.graves.lock().is_none() {
                return true;
            }
        }
    }

    fn next_grave(&self) -> Option<Arc<M>> {
        let mut graves = self.graves.lock();
        let first = graves.take()?;
        *graves = first.marks().next.lock().take();
        Some(first)
    }
}
