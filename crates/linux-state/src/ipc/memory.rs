//! The memory of a shared memory segment: an object whose pager counts the segment's mappings.

use crate::base::owned::FreesItself;
use crate::file::host::FileHost;
use crate::{Linux, Machine};
use core::fmt;
use quire_heap::{Arc, Box};
use quire_ipc::shm::{Attaches, Memory};
use quire_ipc::{Error, Name};
use quire_sync::{Rank, SpinLock};
use quire_vm::object::{ObjectRef, WeakRef};
use quire_vm::paging::pager::Pager;

/// The host of System V IPC, which is the host of files.
pub struct IpcHost<M: Machine>(pub FileHost<M>);

impl<M: Machine> Clone for IpcHost<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Machine> Copy for IpcHost<M> {}

/// The device number of segments in listings of mappings. Listings show only the low bits of this number, which are
/// Linux's device 00:01. No file system has this number.
pub const DEVICE: u64 = 1 << 40 | 1;

/// The state that a segment shares with its pager.
struct Shared<M: Machine> {
    attaches: Arc<Attaches>,
    object: WeakRef<M>,
}

/// The memory of a segment.
pub struct SegmentMemory<M: Machine> {
    /// The segment's own handle on its object, until the segment is removed.
    own: SpinLock<Option<ObjectRef<M>>>,
    shared: Arc<Shared<M>>,
}

/// The pager of a segment's object. It is freed with the object.
struct SegmentPager<M: Machine> {
    id: i32,
    key: i32,
    host: IpcHost<M>,
    shared: Arc<Shared<M>>,
    _frees_itself: FreesItself,
}

impl<M: Machine> SegmentMemory<M> {
    /// Memory of `bytes` bytes, filled with zeroes, for the segment that gets `name`.
    pub fn new(linux: &'static Linux<M>, name: &Name, attaches: &Arc<Attaches>, bytes: u64) -> Result<Self, Error> {
        let (vm, host) = (linux.vm, IpcHost(*linux.files.vfs().host()));
        let shared = Arc::try_new(Shared { attaches: attaches.clone(), object: WeakRef::empty(vm) })?;
        let pager = SegmentPager { id: name.id(), key: name.key(), host, shared: shared.clone(), _frees_itself: [] };
        let pager = Box::into_raw(Box::try_new(pager)?);
        // SAFETY: the pager was just leaked. Only `released` frees it, after the last use, or the code below if no
        // object was made.
        let object = ObjectRef::charged(vm, unsafe { &*pager }, bytes, None).map_err(|_| {
            // SAFETY: no object was made, so no other reference to the pager exists.
            drop(unsafe { Box::from_raw(pager) });
            Error::OutOfMemory
        })?;
        // SAFETY: the object belongs to this memory system, and its pager clears the reference in `released`.
        unsafe { shared.object.set(&object) };
        Ok(SegmentMemory { own: SpinLock::new(Rank::OWNED, Some(object)), shared })
    }
}

impl<M: Machine> Memory for SegmentMemory<M> {
    type Handle = ObjectRef<M>;

    fn handle(&self) -> Option<ObjectRef<M>> {
        let own = self.own.lock().clone();
        own.or_else(|| self.shared.object.upgrade())
    }

    fn give_up(&self) {
        let own = self.own.lock().take();
        drop(own);
    }

    fn resident(&self) -> u64 {
        self.handle().map_or(0, |object| object.resident())
    }

    fn keep_resident(&self, keep: bool) {
        if let Some(object) = self.handle() {
            object.keep_resident(keep);
        }
    }
}

impl<M: Machine> Pager for SegmentPager<M> {
    fn name(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        write!(to, "/SYSV{:08x} (deleted)", self.key)
    }

    fn ident(&self) -> (u64, u64) {
        (DEVICE, self.id as u64)
    }

    fn in_memory(&self) -> bool {
        true
    }

    // Pages are written to swap.
    fn takes_writes(&self) -> bool {
        false
    }

    fn counts_mappings(&self) -> bool {
        true
    }

    fn mapping_noted(&self, came: bool) {
        self.shared.attaches.note(came, &self.host);
    }

    fn released(&self) {
        self.shared.object.clear();
        if let Some(linux) = self.host.0.linux() {
            linux.ipc.segments.memory_gone(self.id, &self.shared.attaches);
        }
        // SAFETY: `SegmentMemory::new` leaked the box for exactly one object. The core calls this once, after all other
        // uses.
        drop(unsafe { Box::from_raw(core::ptr::from_ref(self).cast_mut()) });
    }
}
