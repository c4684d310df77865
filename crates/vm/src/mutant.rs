//! Mutants: switches that each leave out one step of a protocol, to show that a model checker finds the resulting bug.
//!
//! A model must pass without a mutant, and fail with each of its mutants. In ordinary builds [`mutant`] is the constant
//! `false`, so the compiler removes the switches. Tests of whole machines build with `--cfg mutants`, which keeps them.
//! This is not a feature of the package, so no crate that depends on this one can turn it on.

/// The step that a build leaves out. Each text names the protocol, and what the changed code does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mutant {
    /// Index: the occupancy bit is set after the slot was published. By then another CPU may own the slot.
    BitAfterPublish = 1,
    /// Index: the occupancy bit is cleared after the slot was emptied. By then another CPU may own the slot.
    BitAfterEmpty,
    /// Enter: the fence between locking the table page and checking the page is left out (the test machine's pmap).
    NoFenceAfterLock,
    /// Enter: the page's busy bit and generation are not checked under the table page's lock.
    NoBusyCheck,
    /// Enter: the slots of the layers in front of the page's layer are not checked under the table page's lock.
    NoFrontCheck,
    /// Enter: the entry's stale mark is not checked under the table page's lock.
    NoStaleCheck,
    /// Map change: the fence between the stale marks of entries and the visit of the table pages is left out.
    NoFenceAfterMark,
    /// Remove: the fence between setting busy and the scan is left out.
    NoFenceBeforeScan,
    /// Remove: unflushed removals of other CPUs are ignored.
    NoUnflushedCheck,
    /// Enter a new page: the source of its content is not checked again after the copy.
    NoSourceCheck,
    /// Store protection: a table page allows stores again, although other spaces see layers of the chain.
    StoresRestoredUnlooked,
    /// Zero-ahead: the layers behind the front are not checked again under the table page's lock.
    NoLookBehind,
    /// Copy-on-write: the old translation is flushed after the copy is installed.
    FlushAfterInstall,
    /// Insert: the object's end and dead mark are not read again after the insert.
    NoEndCheck,
    /// Insert: the fence between the insert and the reads of the object's end and dead mark is left out.
    NoFenceAfterInsert,
    /// Move: a busy page in front counts as hiding the page behind it, although the busy page may still be dropped.
    BusyHides,
    /// Foreign read: the chain is not walked again after the copy.
    OneForeignLook,
    /// Move: the old slot is emptied before the new one is filled.
    EmptyBeforeFill,
    /// Move: a page in swap is put into the new slot while a fault can still read it in from the old slot.
    SwapInTwoSlots,
    /// Move to the front (`fault/cow_move.rs`): other sharers of the page are not searched again once it is in the
    /// front's slot.
    NoSecondAsk,
    /// Move: after a page moved to the layer behind its own, the file's size is not read again. A truncation may have
    /// missed the page.
    MovesCutOff,
    /// Mapping lists: a scan that released a shard's lock does not visit the backings that were linked while the lock
    /// was released.
    ScanGoesOn,
    /// Mapping lists: a backing that is linked during a scan is not noted in its ancestors in the tree. So the scan
    /// misses it.
    LinkingUnnoted,
    /// Mapping lists: the unlinking of a backing does not wait for passes that flush its space.
    UnlinkUnawaited,
    /// Mapping lists: a pass flushes while it holds the lock of a shard.
    FlushUnderShard,
    /// Mapping lists: scans cannot see that backings have moved back to the first shard.
    ShrinkUnseen,
    /// Copy-up: where a walk found no page, a mark that the content is zeroes is stored without a second walk.
    ZeroMarkerUnseen,
    /// Last sharer: a copy searches other sharers of its source before the copy itself is unbusied.
    LookBeforeFill,
    /// Reaper: a thread that marks an object for the reaper does not check whether the object is being destroyed.
    FlagTheDead,
    /// Last sharer: a backing is chosen as the page's watch (its remembered sharer), and is not checked again after
    /// that.
    NoSecondLook,
    /// Dirty: a page that is credited with a store while it is being cleaned is not tagged dirty again.
    CreditUntagged,
    /// Map change: a leaf that another CPU has cleared but not flushed yet is not flushed by the change.
    NoUnflushedSweep,
    /// Kernel map: frames and addresses are reused before every CPU has dropped its translations.
    ReuseBeforeFlush,
    /// Arenas: the answer that no entry covers an address is not checked again. The address may belong to another arena
    /// by now.
    MissInClosedArena,
    /// Clean: the page's data is read for the write before its translations are flushed.
    ReadBeforeProtect,
    /// Clean: the code does not check whether a thread with a hold on the page stores through its frame.
    NoHoldCheck,
    /// Clean: the end of a write does not check whether the page was removed.
    NoGoneCheck,
    /// Queues: a CPU puts all pages of its batch on their queues, without a check of the pages' states.
    DrainTrustsBatch,
    /// Queues: a CPU fails to change a page's state, because a remover has just removed the page's identity. It unlinks
    /// the page nevertheless.
    TakeUnlinksLeaving,
    /// Queues: a page's links are read after its state was changed. By then its frame may have another owner.
    LinksAfterState,
    /// Queues: a page that is removed in a batch is unlinked from the queue that it was first seen on. The page may
    /// have changed its queue before it lost its identity.
    LeavesWhereItWas,
    /// Frames: a block that was taken off its list stays marked free when the depot's lock is released.
    TakenStaysFree,
    /// Holes: the frame of zeroes stays mapped after the hole was filled.
    NoHoleScan,
    /// Holes: a load does not check the slot again under its table page's lock.
    NoHoleCheck,
    /// Zeroes: a load of private memory does not check the slots again under its table page's lock.
    NoZeroCheck,
    /// Zeroes: a load looks at its neighbours' slots only once, from the front to the back, so it misses pages that move
    /// towards the front.
    OneLookAtLayers,
    /// Enter: before a leaf is made writable, the page's dirty bit is not checked again under the table page's lock.
    DirtyAsFound,
    /// Lazy free: the leaves of pages that `MADV_FREE` marked stay writable.
    FreeLeavesWritable,
    /// Migrate: the bytes are copied before the leaves are removed and flushed.
    CopyBeforeRemove,
    /// Migrate: the code does not check whether a thread with a hold on the page uses the old frame.
    MoveUnderHold,
    /// Scaling: every fault adds to a counter that all CPUs share.
    CountsFaults,
    /// Scaling: every fault that finds a page of a file acquires a reference to the file for the time of the fault.
    CountsReferences,
    /// Scaling: every freed frame is put on the list that all CPUs share.
    FreesToDepot,
    /// Index: an empty node is removed before its slots are closed, so a CPU may still fill one of them.
    PruneUnclosed,
    /// Index: the occupancy bit of a removed node is cleared when another node may already be in its place.
    BitAfterUnlink,
    /// Busy: a thread that waits for a busy page does not mark that it waits.
    WaitUnannounced,
    /// Busy: a thread that unbusies a page clears the mark of waiters in an earlier, separate step.
    WaitersForgotten,
    /// Busy: a page is set busy without a check of its identity.
    BusyAnyIdentity,
    /// Dirty: a fault for a store marks the page that it found dirty, without a check of the page's present identity.
    DirtyAnyIdentity,
    /// Dirty: a thread that writes through the frame tags the page after it has marked it.
    TagAfterDirty,
    /// Clean: the dirty tag is cleared before the page's state shows that it is being written.
    UntagEarly,
    /// Dirty: after the pager's hook, a fault marks a page dirty before it tags the page.
    HookTagsLate,
    /// Busy: a page is set busy by a load and a store, not by one atomic operation.
    BusyNotAtomic,
    /// Busy: a frame that is no object's page can be set busy.
    BusyNoPage,
    /// Mapping lists: a CPU's own shard holds a reference to the object. These references keep the object alive after
    /// its last other reference was dropped.
    OwnShardsKeep,
    /// Mapping lists: a scan skips CPUs' own shards.
    OwnShardsUnscanned,
    /// Mapping lists: a CPU that closes the shards does not notice that another CPU has closed them before, and that
    /// the shards are open again.
    StaleClose,
    /// Pageout: the daemon clears the request for a pass without reading which thread made it.
    WantedForgotten,
    /// Pageout: a thread that waits for memory, and finds none after a pass, does not request another pass.
    AskedOnce,
    /// Arenas: a walk searches the home arena (the space's first) before the arenas from which entries may move there.
    HomeArenaFirst,
    /// Arenas: under the arena's lock there is no second check that the address still belongs to the arena.
    ArenaBeforeLock,
    /// Arenas: under the arena's lock there is no second check that the CPU's arena is still open.
    OwnArenaBeforeLock,
    /// Index: a slot is filled by a load and a store, not by one atomic operation.
    FillNotAtomic,
    /// Index: a new root replaces the old one without a check that it is unchanged.
    GrowNotAtomic,
    /// Index: a slot is replaced by a load and a store, not by one atomic operation.
    ReplaceNotAtomic,
    /// Index: a walk ends at a node that has just been removed, and misses the nodes after it.
    GoneIsEnd,
    /// Frames: a drain of a CPU's frames reads them under one acquisition of its lock, and removes them under the next.
    DrainInTwoHolds,
    /// Queues: a CPU moves a page to the tail of its shard. Under the shard's lock it does not check again that the
    /// page is in that shard.
    RequeueUnlooked,
    /// Mapping lists: a CPU that makes a shard of its own does not fence before it checks whether the shards are open.
    NoFenceAfterOwn,
    /// Mapping lists: a CPU that closes the shards does not fence before it looks for CPUs' own shards.
    NoFenceAfterClosing,
    /// Fork: a fault enters a leaf of an entry that is marked as having no writable leaf, and does not clear the mark.
    StoresUnnoted,
    /// Fork: a fault clears the mark that an entry has no writable leaf, without a check whether the entry has become
    /// stale.
    NotedUnlooked,
    /// Enter: whether the space is condemned is not checked under the table page's lock.
    CondemnedUnlooked,
    /// Condemn: the fence between the mark and the sweep of the table pages is left out.
    NoFenceAfterCondemn,
    /// Reap: pages are freed before the removed leaves are flushed.
    ReapsBeforeFlush,
    /// Reap: the pages of a layer are freed without a check whether other spaces show the layer.
    ReapsShared,
    /// Fork: whether the space is condemned is checked before the arenas' locks are held.
    ForkLooksEarly,
    /// Commit charge: the fence between a writer's post and its sum of all posts is left out.
    NoFenceAfterCharge,
    /// Space: the count of handles is lowered by a load and a store, not by one atomic operation.
    HandleNotAtomic,
    /// Times of stores: an explicit change of the time clears a recorded time without reading it.
    ForgetsUnlooked,
}

#[cfg(any(loom, shuttle, test))]
mod switch {
    use super::Mutant;
    use std::cell::Cell;

    // Both checkers run all threads of a model on the operating-system thread of its test. `ON` is not an atomic of a
    // checker, so that a read of it is no step of the model.
    std::thread_local! {
        static ON: Cell<u8> = const { Cell::new(0) };
    }

    /// Whether the step that `m` names is left out.
    pub fn mutant(m: Mutant) -> bool {
        ON.get() == m as u8
    }
    /// From now on leaves out `m` (or nothing), in models and tests on this thread of the operating system.
    pub fn set_mutant(m: Option<Mutant>) {
        ON.set(m.map_or(0, |m| m as u8));
    }
}
#[cfg(all(mutants, not(any(loom, shuttle, test))))]
mod switch {
    use super::Mutant;
    use core::sync::atomic::{AtomicU8, Ordering};

    // One switch for the whole program, because the CPUs of a hosted machine are threads.
    static ON: AtomicU8 = AtomicU8::new(0);

    /// Whether the step that `m` names is left out.
    #[inline(always)]
    pub fn mutant(m: Mutant) -> bool {
        ON.load(Ordering::Relaxed) == m as u8
    }
    /// From now on leaves out `m` (or nothing), in the whole program.
    ///
    /// # Safety
    /// Afterwards the content of memory and the owners of frames are undefined. Only for tests that expect failures.
    pub unsafe fn set_mutant(m: Option<Mutant>) {
        ON.store(m.map_or(0, |m| m as u8), Ordering::Relaxed);
    }
}
#[cfg(any(loom, shuttle, test, mutants))]
pub use switch::{mutant, set_mutant};

/// Whether the step that `m` names is left out. Always false in ordinary builds.
#[cfg(not(any(loom, shuttle, test, mutants)))]
#[inline(always)]
pub const fn mutant(m: Mutant) -> bool {
    let _named = m;
    false
}
