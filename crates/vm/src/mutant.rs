//! Switches that leave out one step of a protocol, so that the model checkers can be seen to notice.
//!
//! A model first passes with everything in place, then fails with each switch on. Natively [`mutant`] is constant false
//! and the switches are compiled away. Tests of whole machines build with `--cfg mutants`, which keeps them. No cargo
//! feature does, so no crate that depends on this one can turn them on.

/// A step that can be left out; each names the protocol and the step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mutant {
    /// Index: the occupancy bit is set after the slot was published, when another CPU may already own it.
    BitAfterPublish = 1,
    /// Index: the occupancy bit is cleared after the slot was emptied, when another CPU may already own it.
    BitAfterEmpty,
    /// Enter: the fence between locking the table page and checking the page is left out (the test machine's pmap).
    NoFenceAfterLock,
    /// Enter: the page's busy bit and generation are not checked under the table page's lock.
    NoBusyCheck,
    /// Enter: the slots of the layers in front are not checked under the table page's lock.
    NoFrontCheck,
    /// Enter: the entry's stale mark is not checked under the table page's lock.
    NoStaleCheck,
    /// Map change: the fence between marking entries stale and looking at the table pages is left out.
    NoFenceAfterMark,
    /// Remove: the fence between setting busy and the scan is left out.
    NoFenceBeforeScan,
    /// Remove: unflushed removals of others are not waited for.
    NoUnflushedCheck,
    /// Enter a new page: the source of its content is not checked again.
    NoSourceCheck,
    /// A store-protected table page allows stores again though other spaces see the layers behind.
    StoresRestoredUnlooked,
    /// Pages made ahead: the layers behind are not checked again under the table page's lock.
    NoLookBehind,
    /// Copy-on-write: the old translation is flushed after the copy is installed.
    FlushAfterInstall,
    /// Insert: the object's end and dead mark are not read again after the insert.
    NoEndCheck,
    /// Insert: the fence between the insert and that check is left out.
    NoFenceAfterInsert,
    /// Move: a page that is busy in front counts as hiding the one behind it, though it may yet be given up.
    BusyHides,
    /// Foreign read: the chain is not walked again after the copy.
    OneForeignLook,
    /// Move: the old slot is emptied before the new one is filled.
    EmptyBeforeFill,
    /// Move: a page in swap is put into the new slot while its old slot can still be read in.
    SwapInTwoSlots,
    /// Claim: other sharers of the page are not searched again once it is in the front.
    NoSecondAsk,
    /// Move: the end of the file behind is not read again once a page is in the layer behind.
    MovesCutOff,
    /// Reverse lists: a scan that let go of a shard does not visit the backings that were linked meanwhile.
    ScanGoesOn,
    /// Reverse lists: a backing that is linked during a scan is not noted in its ancestors.
    LinkingUnnoted,
    /// Reverse lists: scans cannot see that backings have gone back to the first shard.
    ShrinkUnseen,
    /// Copy-up: an address without a page in the walk is hidden without a second walk.
    ZeroMarkerUnseen,
    /// Shadow: a copy searches other sharers of its source before it is there to stay.
    LookBeforeFill,
    /// Reaper: a thread that marks an object for the reaper does not check whether it is dead.
    FlagTheDead,
    /// Shadow: a chain chosen as the watch is not checked again after the watch was written.
    NoSecondLook,
    /// Dirty: a page that was credited with stores in the middle of its cleaning is not tagged again.
    CreditUntagged,
    /// Map change: a leaf that is cleared but not flushed yet counts as gone.
    NoUnflushedSweep,
    /// Kernel map: frames and addresses are used again before every CPU has dropped its translations.
    ReuseBeforeFlush,
    /// Arenas: a miss counts though the address belongs to another arena by now.
    MissInClosedArena,
    /// Clean: the data is read before the flush.
    ReadBeforeProtect,
    /// Clean: stores through the frame by a holder are not checked.
    NoHoldCheck,
    /// Clean: at the end of a write it is not checked whether the page was removed.
    NoGoneCheck,
    /// Queues: a drain links the pages of its batch, whatever their states are.
    DrainTrustsBatch,
    /// Queues: a page is unlinked though its state could not be changed, because a remover has just taken its identity.
    TakeUnlinksLeaving,
    /// Queues: a page's links are read after its state was changed, when its frame may be another's.
    LinksAfterState,
    /// Queues: a page that goes with others is taken off the queue that it was first seen on, not the queue at the loss
    /// of its identity.
    LeavesWhereItWas,
    /// Frames: a block stays marked free until it is handed out, after the depot's lock was released.
    TakenStaysFree,
    /// Holes: the frame of zeroes stays mapped where a hole was filled.
    NoHoleScan,
    /// Holes: a load does not check the slot again under its table page's lock.
    NoHoleCheck,
    /// Enter: whether the page is dirty is not checked again under the table page's lock, before it is made writable.
    DirtyAsFound,
    /// Lazy: translations of given-up memory keep their stores.
    FreeLeavesWritable,
    /// Migrate: the bytes are copied before the translations are gone and flushed.
    CopyBeforeRemove,
    /// Migrate: loads and stores through the old frame by a holder are not checked.
    MoveUnderHold,
    /// Scaling: every fault counts itself in a word that all CPUs share.
    CountsFaults,
    /// Scaling: every fault that finds a page of a file takes a reference on the file meanwhile.
    CountsReferences,
    /// Scaling: every frame that is freed goes to the list that all CPUs share.
    FreesToDepot,
    /// A node is taken out of an index without its slots being closed first.
    PruneUnclosed,
    /// The bit of a node that was taken out is cleared when another may stand there.
    BitAfterUnlink,
    /// A thread that waits for a busy page does not mark that it waits.
    WaitUnannounced,
    /// A thread that unbusies a page clears the mark of its waiters, in a step before.
    WaitersForgotten,
    /// A page is made busy with any identity.
    BusyAnyIdentity,
    /// A fault that is about to store marks the page that it found dirty, whatever the page is by now.
    DirtyAnyIdentity,
    /// Dirty: a thread that writes through the frame tags the page after it has marked it.
    TagAfterDirty,
    /// Clean: the tag goes before the page's state shows that it is being written.
    UntagEarly,
    /// Dirty: after the pager's hook a fault marks a page before it tags it.
    HookTagsLate,
    /// A page is made busy by a look and a store.
    BusyNotAtomic,
    /// A frame that is no page is made busy.
    BusyNoPage,
    /// Reverse lists: references of CPUs' own shards keep an object whose last other reference is dropped.
    OwnShardsKeep,
    /// Reverse lists: a scan leaves out CPUs' own shards.
    OwnShardsUnscanned,
    /// Reverse lists: a CPU that closes the shards does not see that another has finished, and that they are open
    /// again.
    StaleClose,
    /// Pageout: the daemon clears the request for a pass without seeing who made it.
    WantedForgotten,
    /// Pageout: a thread that waits for memory and has none after a pass does not request another.
    AskedOnce,
    /// Arenas: a walk searches the home arena before those that may join it.
    HomeArenaFirst,
    /// Whether an address is still its arena's is not checked again under the arena's lock.
    ArenaBeforeLock,
    /// Whether a CPU still has its arena is not checked again under the arena's lock.
    OwnArenaBeforeLock,
    /// Index: a slot is taken by a look and a store.
    FillNotAtomic,
    /// Index: a new root replaces the old one without a check that it is unchanged.
    GrowNotAtomic,
    /// Index: a slot is replaced by a look and a store.
    ReplaceNotAtomic,
    /// Index: a walk ends at a node that has just been taken out.
    GoneIsEnd,
    /// Frames: a CPU's frames are looked at in one hold of its lock, and taken in the next.
    DrainInTwoHolds,
    /// Queues: a CPU that moves a page to the tail of its shard does not check again, under the shard's lock, whether
    /// it is there.
    RequeueUnlooked,
    /// Reverse lists: a CPU that makes a shard of its own does not fence before it checks whether the shards are open.
    NoFenceAfterOwn,
    /// Reverse lists: a CPU that closes the shards does not fence before it looks for own shards.
    NoFenceAfterClosing,
    /// Fork: a fault enters a leaf of an entry without stores, and does not clear that mark.
    StoresUnnoted,
    /// Fork: a fault clears the mark for no stores without seeing whether the entry was marked stale meanwhile.
    NotedUnlooked,
    /// Enter: whether the space is condemned is not checked under the table page's lock.
    CondemnedUnlooked,
    /// Condemn: the fence between the mark and the sweep of the table pages is left out.
    NoFenceAfterCondemn,
    /// Reap: pages are freed before the translations that were taken away are flushed.
    ReapsBeforeFlush,
    /// Reap: whether other spaces show a layer is not checked.
    ReapsShared,
    /// Fork: whether the space is condemned is checked before the arenas' locks are held.
    ForkLooksEarly,
    /// Commit charge: no fence between a writer's post and its sum of all posts.
    NoFenceAfterCharge,
    /// Space: a handle is taken off the count by a look and a store.
    HandleNotAtomic,
    /// Times of stores: an explicit time clears a time without a look at it.
    ForgetsUnlooked,
}

#[cfg(any(loom, shuttle, test))]
mod switch {
    use super::Mutant;
    use std::cell::Cell;

    // Both checkers run all threads of a model on the operating-system thread of its test; and this is no atomic of
    // theirs, so that reading it is no step of the model.
    std::thread_local! {
        static ON: Cell<u8> = const { Cell::new(0) };
    }

    /// Whether the step that `m` names is to be left out.
    pub fn mutant(m: Mutant) -> bool {
        ON.get() == m as u8
    }
    /// Leaves out `m` (or nothing) from now on, in models and tests that run on this thread of the system.
    pub fn set_mutant(m: Option<Mutant>) {
        ON.set(m.map_or(0, |m| m as u8));
    }
}
#[cfg(all(mutants, not(any(loom, shuttle, test))))]
mod switch {
    use super::Mutant;
    use core::sync::atomic::{AtomicU8, Ordering};

    // Of the whole program: the CPUs of a hosted machine are threads.
    static ON: AtomicU8 = AtomicU8::new(0);

    /// Whether the step that `m` names is to be left out.
    #[inline(always)]
    pub fn mutant(m: Mutant) -> bool {
        ON.load(Ordering::Relaxed) == m as u8
    }
    /// Leaves out `m` (or nothing) from now on, in the whole program.
    ///
    /// # Safety
    /// Memory's content and its users are undefined from then on: for tests that expect failures.
    pub unsafe fn set_mutant(m: Option<Mutant>) {
        ON.store(m.map_or(0, |m| m as u8), Ordering::Relaxed);
    }
}
#[cfg(any(loom, shuttle, test, mutants))]
pub use switch::{mutant, set_mutant};

/// Whether the step that `m` names is to be left out: never, outside tests.
#[cfg(not(any(loom, shuttle, test, mutants)))]
#[inline(always)]
pub const fn mutant(m: Mutant) -> bool {
    let _named = m;
    false
}
