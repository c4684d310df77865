//! A table of reference-counted values by name, in which lookups take no lock. Directories use it.
//!
//! # Protocol
//! Names are in hash chains. A CPU that adds or removes a name holds the lock. A lookup takes no lock: pinned in an
//! [epoch](quire_sync::epoch), it follows the chain. A lookup that has reached a removed name still follows its link,
//! and the name is freed only after all such lookups are done. When there are too many names for the chains, all are
//! copied to a longer table, and the old table stays unchanged.
//!
//! A value that *stays* is kept after its removal until all lookups that may have found it have unpinned. So a lookup
//! can use it without counting it ([`FoundName::Kept`]). Of any other value only the memory is kept. The lookup counts
//! such a value, unless its count is already zero. Then another value may have replaced it, and the lookup starts again
//! under the lock.
//!
//! If CPUs look a name up alternately, its value gets a [crowd](crate::hold), which counts the holds in shards. From
//! then on lookups take holds of the crowd, and share no count. The crowd is closed when the name is removed, so that
//! the value is freed with its last holder.

use crate::hold::{Crowd, Hold};
use crate::mutant::{Mutant, mutant};
use core::cell::UnsafeCell;
use core::iter;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::Deref;
use core::ptr::{self, NonNull};
use quire_heap::{Arc, Box, OutOfMemory, Vec, Weak};
use quire_sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use quire_sync::epoch::{Pile, Pinned, Retired};
use quire_sync::hooks::current_cpu;
use quire_sync::rank::Rank;
use quire_sync::spin::SpinLock;

/// The number of chains in the first table. Each chain has its own cache line, so that adding or removing a name
/// changes few lines of other names.
#[cfg(not(any(loom, shuttle)))]
const FIRST: usize = 8;
#[cfg(any(loom, shuttle))]
const FIRST: usize = 1;
/// The average number of names in a chain above which the table gets more chains.
#[cfg(not(any(loom, shuttle)))]
const IN_CHAIN: usize = 2;
#[cfg(any(loom, shuttle))]
const IN_CHAIN: usize = 1;

/// The number that a lookup adds to [`NameNode::turns`] if another CPU made the last lookup. Each further lookup by
/// that CPU subtracts one. So CPUs that look a name up at least five times in a row cause no contention.
const TURN: u32 = 4;
/// The number of recent turns (lookups by another CPU than the last one) after which a value gets a crowd.
#[cfg(not(any(loom, shuttle)))]
const TURNS: u32 = 16;
#[cfg(any(loom, shuttle))]
const TURNS: u32 = 1;

/// One name. It has its own cache lines, so that changes of nodes beside it in memory do not disturb its lookups.
#[repr(C, align(64))]
struct NameNode<V> {
    /// Must be the first field, because the epoch's free function casts the header to the node.
    retired: Retired,
    next: AtomicPtr<NameNode<V>>,
    hash: u32,
    stays: bool,
    /// The CPU that looked the name up last, and a measure of recent turns. Both are hints, and are used only if the
    /// value is counted.
    last: AtomicU32,
    turns: AtomicU32,
    name: Arc<[u8]>,
    /// The table's reference to the value, until the name is removed.
    value: *const V,
    /// Null until a thread that holds `Names::changes` gives the value a crowd (a count of its holders in shards).
    crowd: AtomicPtr<Crowd<V>>,
    /// The part of the value that is kept after the removal. The CPU that removes the name writes it once. The CPU that
    /// frees the node reads it.
    left: UnsafeCell<Left<V>>,
}

#[allow(dead_code)] // only held, until the node is freed
enum Left<V> {
    /// Nothing is kept, because this table, or a longer copy of it, still has the value.
    Nothing,
    Value(Arc<V>),
    Memory(Weak<V>),
}

#[repr(align(64))]
struct Chain<V>(AtomicPtr<NameNode<V>>);

/// All chains. Replaced by a longer table when there are too few.
#[repr(C, align(64))]
struct Table<V> {
    /// Must be the first field, because the epoch's free function casts the header to the table.
    retired: Retired,
    /// The number of chains is a power of two.
    chains: Vec<Chain<V>>,
}

impl<V> Table<V> {
    fn new(chains: usize) -> Result<Box<Self>, OutOfMemory> {
        let chains = Vec::try_from_iter((0..chains).map(|_| Chain(AtomicPtr::new(ptr::null_mut()))))?;
        Box::try_new(Table { retired: Retired::new(), chains })
    }

    /// Frees a table and its nodes, but not the values.
    ///
    /// # Safety
    /// No other thread can reach the table or one of its nodes.
    unsafe fn free(this: Box<Self>) {
        // SAFETY: the caller has exclusive access to the table, as `nodes` requires.
        for node in unsafe { this.nodes() } {
            // SAFETY: by this function's contract, no other thread can reach the node. The iterator has already read
            // its link.
            drop(unsafe { Box::from_raw(node) });
        }
    }

    /// All nodes. Each may be freed after the iterator has returned it.
    ///
    /// # Safety
    /// The caller holds the lock, or has exclusive access to the table.
    unsafe fn nodes(&self) -> impl Iterator<Item = *mut NameNode<V>> {
        self.chains.iter().flat_map(|chain| {
            let mut at = chain.0.load(Ordering::Relaxed);
            core::iter::from_fn(move || {
                let node = at;
                // SAFETY: the pointer is null, or leads to a node of the table, which is not freed while it is in the
                // table.
                at = unsafe { node.as_ref() }?.next.load(Ordering::Relaxed);
                Some(node)
            })
        })
    }

    /// The link that leads to the node with the name `name`, and the pointer in it. If there is no such node, the link
    /// is the end of the chain, and the pointer is null.
    ///
    /// # Safety
    /// The caller holds the lock.
    unsafe fn find(&self, hash: u32, name: &[u8]) -> (&AtomicPtr<NameNode<V>>, *mut NameNode<V>) {
        let mut link = self.chain(hash);
        loop {
            let at = link.load(Ordering::Relaxed);
            // SAFETY: while the lock is held, the nodes of a chain are not freed.
            match unsafe { at.as_ref() } {
                Some(node) if node.hash != hash || !same(&node.name, name) => link = &node.next,
                _ => return (link, at),
            }
        }
    }

    fn chain(&self, hash: u32) -> &AtomicPtr<NameNode<V>> {
        &self.chains[hash as usize & (self.chains.len() - 1)].0
    }
}

/// The memory for one more name, so that [`Names::put`] cannot fail.
pub struct SpareName<V> {
    node: Box<MaybeUninit<NameNode<V>>>,
    /// The first table, if the names had no table when this was allocated.
    table: Option<Box<Table<V>>>,
}

/// Counts of the names. The lock `Names::changes` guards them, as it guards the chains.
struct Count {
    names: usize,
    /// After a failed allocation of a longer table, the number of names at which the allocation is tried again.
    wait_for: usize,
}

/// A table of values by name; see the module's comment.
pub struct Names<V> {
    /// Null until the first name. A thread that holds `changes` changes the pointer.
    table: AtomicPtr<Table<V>>,
    changes: SpinLock<Count>,
}

// SAFETY: lookups on any thread get references to values, and a removing thread drops values. So `V` is `Send` and
// `Sync`.
unsafe impl<V: Send + Sync> Send for Names<V> {}
// SAFETY: a shared table gives references to values, and drops values under its lock. So `V` is `Send` and `Sync`.
unsafe impl<V: Send + Sync> Sync for Names<V> {}

/// A value that is kept while the thread that found it is pinned.
pub struct PinnedValue<'p, V>(ManuallyDrop<Arc<V>>, PhantomData<&'p ()>);

impl<V> Deref for PinnedValue<'_, V> {
    type Target = Arc<V>;
    fn deref(&self) -> &Arc<V> {
        &self.0
    }
}

/// The result of a lookup.
pub enum FoundName<'p, V> {
    /// A value that *stays*: the table keeps it until all lookups that may have found it have unpinned. It is valid
    /// while the thread is pinned.
    Kept(PinnedValue<'p, V>),
    /// Any other value, which is counted or held.
    Counted(Hold<V>),
}

impl<V> FoundName<'_, V> {
    /// The value, with a counted reference.
    pub fn counted(self) -> Arc<V> {
        match self {
            FoundName::Kept(kept) => Arc::clone(&kept),
            FoundName::Counted(value) => value.counted(),
        }
    }

    /// Returns a hold of the value that stays valid after the thread has unpinned.
    pub fn held(self) -> Hold<V> {
        match self {
            FoundName::Kept(kept) => Arc::clone(&kept).into(),
            FoundName::Counted(value) => value,
        }
    }
}

impl<V> Deref for FoundName<'_, V> {
    type Target = Arc<V>;
    fn deref(&self) -> &Arc<V> {
        match self {
            FoundName::Kept(kept) => kept,
            FoundName::Counted(value) => value,
        }
    }
}

/// The FNV-1a hash, folded to 32 bits. It suits names, because they are short.
fn hash(name: &[u8]) -> u32 {
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325, |h: u64, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    (hash ^ hash >> 32) as u32
}

/// Whether two names are equal. The comparison is inlined and by words, because names are short. Names with equal
/// hashes are nearly always equal.
#[inline]
fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    // The last bytes are compared as a whole word, which overlaps the word before.
    if let (Some(end), Some(other_end)) = (one.last_chunk::<8>(), other.last_chunk()) {
        return end == other_end && iter::zip(one.as_chunks::<8>().0, other.as_chunks().0).all(|(a, b)| a == b);
    }
    if let (Some(end), Some(other_end)) = (one.last_chunk::<4>(), other.last_chunk()) {
        return end == other_end && one.first_chunk::<4>() == other.first_chunk();
    }
    iter::zip(one, other).all(|(a, b)| a == b)
}

impl<V: Send + Sync + 'static> Names<V> {
    /// An empty table. Its lock has `rank`.
    pub fn new(rank: Rank) -> Self {
        Names { table: AtomicPtr::new(ptr::null_mut()), changes: SpinLock::new(rank, Count { names: 0, wait_for: 0 }) }
    }

    /// Looks up the value of `name`. Returns `None` if there is no such name.
    pub fn get<'p>(&self, name: &[u8], pin: &'p Pinned<'_>) -> Option<FoundName<'p, V>> {
        let hash = hash(name);
        let node = self.node(name, hash, pin)?;
        if node.stays {
            // SAFETY: the pointer is the table's reference, or the part that a removal keeps. Either is dropped only
            // after the pin.
            let value = ManuallyDrop::new(unsafe { Arc::from_raw(node.value) });
            return Some(FoundName::Kept(PinnedValue(value, PhantomData)));
        }
        if node.crowds() {
            self.make_crowd(name, hash, pin);
        }
        if let Some(crowd) = NonNull::new(node.crowd.load(Ordering::Acquire)) {
            // SAFETY: the crowd's maker drops its reference only after all lookups that may have reached the node have
            // unpinned.
            return match unsafe { Crowd::join(crowd) } {
                Some(held) => Some(FoundName::Counted(held)),
                None => self.get_locked(name, hash, pin),
            };
        }
        #[cfg(any(loom, shuttle))]
        crate::slots::checked::about_to_count(node.value.cast_mut(), || _ = self.table.load(Ordering::Relaxed));
        // SAFETY: this is the pointer of a counted value. Its memory is kept while a lookup that reached the node is
        // pinned. `ManuallyDrop` never drops this weak handle, which has no count of its own.
        let value = ManuallyDrop::new(unsafe { Weak::from_raw(node.value) }).upgrade();
        match value {
            Some(value) => Some(FoundName::Counted(value.into())),
            None if mutant(Mutant::NameReadOnce) => None,
            None => self.get_locked(name, hash, pin),
        }
    }

    /// Repeats the lookup of [`get`](Self::get) under the lock, because the count of the found value was zero, or its
    /// crowd was closed.
    #[cold]
    fn get_locked<'p>(&self, name: &[u8], hash: u32, pin: &'p Pinned<'_>) -> Option<FoundName<'p, V>> {
        let _locked = self.changes.lock();
        let value = self.node(name, hash, pin)?.value;
        // SAFETY: the table's reference is kept while the lock is held.
        unsafe {
            Arc::increment_strong_count(value);
            Some(FoundName::Counted(Arc::from_raw(value).into()))
        }
    }

    /// Gives the value of `name` a crowd (a count of its holders in shards). If there is no memory, lookups continue to
    /// count the value.
    #[cold]
    fn make_crowd(&self, name: &[u8], hash: u32, pin: &Pinned<'_>) {
        let _locked = self.changes.lock();
        // Another thread may have copied the table since the caller found its node. Tables are copied under the lock,
        // so this lookup finds the node that has the name now.
        let Some(node) = self.node(name, hash, pin).filter(|node| !node.stays) else { return };
        if node.crowd.load(Ordering::Relaxed).is_null() {
            // SAFETY: the table's reference is kept while the lock is held.
            let value = ManuallyDrop::new(unsafe { Arc::from_raw(node.value) });
            match Crowd::new(&value) {
                Some(crowd) => node.crowd.store(crowd.as_ptr(), Ordering::Release),
                None => node.turns.store(0, Ordering::Relaxed),
            }
        }
    }

    fn node<'p>(&self, name: &[u8], hash: u32, _pin: &'p Pinned<'_>) -> Option<&'p NameNode<V>> {
        // SAFETY: tables and nodes are freed only after all lookups that may have reached them have unpinned.
        unsafe {
            let mut at = self.table.load(Ordering::Acquire).as_ref()?.chain(hash).load(Ordering::Acquire);
            while let Some(node) = at.as_ref() {
                if node.hash == hash && same(&node.name, name) {
                    return Some(node);
                }
                at = node.next.load(Ordering::Acquire);
            }
        }
        None
    }

    /// Allocates the memory for one more name.
    pub fn spare(&self) -> Result<SpareName<V>, OutOfMemory> {
        let first = self.table.load(Ordering::Relaxed).is_null();
        let table = if first { Some(Table::new(FIRST)?) } else { None };
        Ok(SpareName { node: Box::try_new(MaybeUninit::uninit())?, table })
    }

    /// Gives `name` a value, and returns its old value. A value that `stays` is used without being counted. Whether a
    /// given value stays must not change. Nodes that lookups may still use are added to the pile `given_up`. `spare`
    /// was allocated by this table.
    pub fn put(
        &self,
        spare: SpareName<V>,
        name: Arc<[u8]>,
        value: Arc<V>,
        stays: bool,
        given_up: &mut Pile<'_>,
    ) -> Option<Arc<V>> {
        let hash = hash(&name);
        let mut node = NameNode::new(ptr::null_mut(), hash, stays, name, Arc::into_raw(value)).within(spare.node);
        let mut count = self.changes.lock();
        let table = self.room(&mut count, spare.table, given_up);
        // SAFETY: the lock is held, because `count` is its guard.
        let (link, old) = unsafe { table.find(hash, &node.name) };
        // SAFETY: the lock is held, so a node in a chain is not freed.
        let (next, link) = match unsafe { old.as_ref() } {
            Some(old) => (old.next.load(Ordering::Relaxed), link),
            None => {
                count.names += 1;
                let chain = table.chain(hash);
                (chain.load(Ordering::Relaxed), chain)
            }
        };
        node.next = AtomicPtr::new(next);
        link.store(Box::into_raw(node), Ordering::Release);
        drop(count);
        // SAFETY: the new node has taken the place of `old`.
        (!old.is_null()).then(|| unsafe { give_up(old, given_up) })
    }

    /// Removes `name`, and returns its value. Nodes that lookups may still use are added to the pile `given_up`.
    pub fn take(&self, name: &[u8], given_up: &mut Pile<'_>) -> Option<Arc<V>> {
        let mut count = self.changes.lock();
        // SAFETY: tables are replaced only under the lock.
        let table = unsafe { self.table.load(Ordering::Relaxed).as_ref() }?;
        // SAFETY: the lock is held, because `count` is its guard.
        let (link, old) = unsafe { table.find(hash(name), name) };
        // SAFETY: the lock is held, so a node in a chain is not freed.
        link.store(unsafe { old.as_ref() }?.next.load(Ordering::Relaxed), Ordering::Release);
        count.names -= 1;
        drop(count);
        // SAFETY: the chain has led past the node since the store above, which was made under the lock.
        Some(unsafe { give_up(old, given_up) })
    }

    /// Returns a table with room for one more name. It is a longer table if one is needed and there is memory for it.
    /// `first` is used if there is no table yet. The caller holds the lock.
    fn room(&self, count: &mut Count, first: Option<Box<Table<V>>>, given_up: &mut Pile<'_>) -> &Table<V> {
        let old = self.table.load(Ordering::Relaxed);
        // SAFETY: tables are replaced only under the lock.
        let there = unsafe { old.as_ref() };
        let new = match (there, first) {
            (Some(there), _) if count.names < (there.chains.len() * IN_CHAIN).max(count.wait_for) => return there,
            (Some(there), _) => match self.longer(there) {
                Ok(new) => new,
                // The chains become longer than they should be. The next try waits for more names, because a failed
                // copy costs as much as a complete one.
                Err(OutOfMemory) => {
                    count.wait_for = count.names + count.names / 8 + 1;
                    return there;
                }
            },
            (None, Some(first)) => first,
            (None, None) => unreachable!("an existing table is gone"),
        };
        let new = Box::into_raw(new);
        self.table.store(new, Ordering::Release);
        if !old.is_null() {
            // SAFETY: the new table has taken the place of `old`, which is retired once.
            unsafe { given_up.add(old.cast(), free_table::<V>) };
        }
        // SAFETY: `new` is in `self.table`, and is replaced only under the lock, which the caller holds.
        unsafe { &*new }
    }

    /// Makes a copy of a table, with twice as many chains. The caller holds the lock.
    fn longer(&self, there: &Table<V>) -> Result<Box<Table<V>>, OutOfMemory> {
        let new = Table::new(there.chains.len() * 2)?;
        // SAFETY: the lock is held, so the nodes are not freed.
        for node in unsafe { there.nodes() }.map(|node| unsafe { &*node }) {
            let Ok(memory) = Box::try_new(MaybeUninit::uninit()) else {
                // SAFETY: no other thread can reach the new table. Its nodes are copies, and the references in them
                // belong to the old nodes.
                unsafe { Table::free(new) };
                return Err(OutOfMemory);
            };
            let chain = new.chain(node.hash);
            let next = chain.load(Ordering::Relaxed);
            let copy = NameNode::new(next, node.hash, node.stays, node.name.clone(), node.value).within(memory);
            copy.crowd.store(node.crowd.load(Ordering::Relaxed), Ordering::Relaxed);
            chain.store(Box::into_raw(copy), Ordering::Relaxed);
        }
        Ok(new)
    }
}

impl<V> NameNode<V> {
    fn new(next: *mut Self, hash: u32, stays: bool, name: Arc<[u8]>, value: *const V) -> Self {
        NameNode {
            retired: Retired::new(),
            next: AtomicPtr::new(next),
            hash,
            stays,
            last: AtomicU32::new(current_cpu() as u32),
            turns: AtomicU32::new(0),
            name,
            value,
            crowd: AtomicPtr::new(ptr::null_mut()),
            left: UnsafeCell::new(Left::Nothing),
        }
    }

    fn within(self, memory: Box<MaybeUninit<Self>>) -> Box<Self> {
        let at = Box::into_raw(memory).cast::<Self>();
        // SAFETY: the box owns this memory, which has a node in it from now on.
        unsafe {
            at.write(self);
            Box::from_raw(at)
        }
    }

    /// Records the CPU of a lookup. Returns whether CPUs alternate so often that the value should get a crowd (a count
    /// of its holders in shards).
    fn crowds(&self) -> bool {
        let (cpu, turns) = (current_cpu() as u32, self.turns.load(Ordering::Relaxed));
        if turns >= TURN * TURNS {
            return self.crowd.load(Ordering::Relaxed).is_null();
        }
        if self.last.load(Ordering::Relaxed) != cpu {
            self.last.store(cpu, Ordering::Relaxed);
            self.turns.store(turns + TURN, Ordering::Relaxed);
        } else if turns > 0 {
            self.turns.store(turns - 1, Ordering::Relaxed);
        }
        false
    }

    /// Closes the node's crowd, because no new lookup reaches the value through this node.
    fn close(&self) {
        if let Some(crowd) = NonNull::new(self.crowd.load(Ordering::Acquire)) {
            // SAFETY: the crowd belongs to this node, and is closed once.
            unsafe { Crowd::close(crowd) };
        }
    }

    /// Drops the node's reference to its crowd. All lookups that may have reached the node are over.
    fn leave(&self) {
        if let Some(crowd) = NonNull::new(self.crowd.load(Ordering::Relaxed)) {
            // SAFETY: the crowd belongs to this node, and lookups through the node are over. The node leaves it once.
            unsafe { Crowd::leave(crowd) };
        }
    }
}

/// Retires a node that is in no chain any more, and returns the table's reference to the value.
///
/// # Safety
/// The caller has taken `node` out of its chain, under the lock.
unsafe fn give_up<V: Send + Sync + 'static>(node: *mut NameNode<V>, pile: &mut Pile<'_>) -> Arc<V> {
    // SAFETY: the node is not retired yet, so the epoch does not free it.
    let there = unsafe { &*node };
    // SAFETY: this is the table's reference, which is removed with the node.
    let value = unsafe { Arc::from_raw(there.value) };
    let left = if there.stays { Left::Value(value.clone()) } else { Left::Memory(Arc::downgrade(&value)) };
    // SAFETY: lookups do not read this field, and no other thread removes this node.
    unsafe { *there.left.get() = left };
    there.close();
    if mutant(Mutant::NameValueFreed) {
        // SAFETY: this mutant does not wait for lookups. In the checkers' builds the memory itself is kept.
        drop_left(unsafe { there.left.get().replace(Left::Nothing) });
    }
    // SAFETY: new lookups do not reach the node. It is retired once, and `free_node` does not sleep.
    unsafe { pile.add(node.cast(), free_node::<V>) };
    value
}

fn drop_left<V>(left: Left<V>) {
    #[cfg(any(loom, shuttle))]
    if let Left::Memory(value) = &left {
        crate::slots::checked::memory_goes(value);
    }
    drop(left);
}

/// # Safety
/// `node` is a [`NameNode<V>`] that the epoch passes to this function, once.
unsafe fn free_node<V>(node: *mut Retired) {
    // SAFETY: by this function's contract, the epoch passes a node. The header is its first field.
    let node = unsafe { Box::from_raw(node.cast::<NameNode<V>>()) };
    node.leave();
    drop_left(node.into_inner().left.into_inner());
}

/// # Safety
/// `table` is a [`Table<V>`] that the epoch passes to this function, once. Its names are in another table.
unsafe fn free_table<V>(table: *mut Retired) {
    // SAFETY: by this function's contract, the epoch passes a table. The header is its first field.
    let table = unsafe { Box::from_raw(table.cast::<Table<V>>()) };
    // SAFETY: no other thread can reach the table any more. A replaced table owns its nodes.
    unsafe { Table::free(table) };
}

impl<V> Drop for Names<V> {
    fn drop(&mut self) {
        let table = self.table.load(Ordering::Relaxed);
        if table.is_null() {
            return;
        }
        // SAFETY: no other thread can reach the names any more.
        let table = unsafe { Box::from_raw(table) };
        // SAFETY: the caller drops the names, so it has exclusive access to the table.
        for node in unsafe { table.nodes() } {
            // SAFETY: the table owns the nodes and the references in them. The iterator has already read the next node.
            unsafe {
                let node = Box::from_raw(node);
                node.close();
                node.leave();
                drop(Arc::from_raw(node.value));
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_sync::epoch::{Domain, Slot};
    use quire_sync::hooks::threads::set_cpu;
    use quire_sync::per_cpu::PerCpu;
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering as Order};

    fn domain(cpus: usize) -> Domain {
        // The thread that makes the domain is the first CPU.
        quire_sync::hooks::threads::set_cpu(0);
        Domain::new(PerCpu::leaked(cpus, |_| Slot::new()))
    }

    static ALIVE: AtomicUsize = AtomicUsize::new(0);
    struct Value(usize);
    impl Value {
        fn new(n: usize) -> Arc<Self> {
            ALIVE.fetch_add(1, Order::SeqCst);
            Arc::try_new(Value(n)).unwrap()
        }
    }
    impl Drop for Value {
        fn drop(&mut self) {
            self.0 = usize::MAX;
            ALIVE.fetch_sub(1, Order::SeqCst);
        }
    }

    fn name(n: usize) -> Arc<[u8]> {
        Arc::try_copy(std::format!("name {n}").as_bytes()).unwrap()
    }

    #[test]
    fn names_of_one_length_are_told_apart_by_any_byte() {
        let letters: std::vec::Vec<u8> = (1..=40).collect();
        let again = letters.clone();
        for len in 0..=letters.len() {
            let one = &letters[..len];
            assert!(same(one, &again[..len]), "{len}");
            assert!(len == 0 || !same(one, &one[1..]), "{len}");
            for at in 0..len {
                let mut other = one.to_vec();
                other[at] ^= 0x80;
                assert!(!same(one, &other), "{len}, {at}");
            }
        }
    }

    #[test]
    fn names_lead_to_their_newest_values_during_lookups() {
        const ROUNDS: usize = if cfg!(miri) { 300 } else { 30_000 };
        let (domain, names) = (domain(3), Names::new(Rank::FILE));
        let mut model = BTreeMap::new();
        for n in 0..2 {
            names.put(names.spare().unwrap(), name(n), Value::new(n), n % 2 == 0, &mut domain.pile());
        }
        std::thread::scope(|s| {
            for cpu in 1..3 {
                let (domain, names) = (&domain, &names);
                s.spawn(move || {
                    set_cpu(cpu);
                    for i in 0..ROUNDS {
                        let pin = domain.pin();
                        // The first two names always exist, with changing values.
                        let n = i % 2;
                        assert_eq!(names.get(&name(n), &pin).unwrap().0 % 10, n);
                        let other = 2 + i % 50;
                        assert!(names.get(&name(other), &pin).is_none_or(|v| v.0 % 100 == other));
                    }
                });
            }
            set_cpu(0);
            let mut state = 1u64;
            for i in 0..ROUNDS {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let n = (state >> 33) as usize % 50 + 2;
                names
                    .put(
                        names.spare().unwrap(),
                        name(i % 2),
                        Value::new(i / 2 * 10 + i % 2),
                        i % 2 == 0,
                        &mut domain.pile(),
                    )
                    .unwrap();
                let (before, known) = if state >> 62 == 0 {
                    (names.take(&name(n), &mut domain.pile()), model.remove(&n))
                } else {
                    let new = i * 100 + n;
                    (
                        names.put(
                            names.spare().unwrap(),
                            name(n),
                            Value::new(new),
                            n.is_multiple_of(2),
                            &mut domain.pile(),
                        ),
                        model.insert(n, new),
                    )
                };
                assert_eq!(before.map(|v| v.0), known);
            }
            let pin = domain.pin();
            for n in 2..52 {
                assert_eq!(names.get(&name(n), &pin).map(|v| v.0), model.get(&n).copied());
            }
        });
        drop(names);
        domain.drain();
        assert_eq!(ALIVE.load(Order::SeqCst), 0);
    }

    #[test]
    fn a_crowded_value_is_uncounted_and_goes_with_its_last_hold() {
        struct CountsDrops(&'static AtomicUsize);
        impl Drop for CountsDrops {
            fn drop(&mut self) {
                self.0.fetch_add(1, Order::SeqCst);
            }
        }
        static GONE: AtomicUsize = AtomicUsize::new(0);
        let (domain, names) = (domain(2), Names::new(Rank::FILE));
        let value = Arc::try_new(CountsDrops(&GONE)).unwrap();
        names.put(names.spare().unwrap(), name(0), value.clone(), false, &mut domain.pile());
        let look = |cpu: usize| {
            set_cpu(cpu);
            names.get(&name(0), &domain.pin()).unwrap().held()
        };
        // The CPUs alternate rarely. So lookups still count the value, and it gets no crowd.
        (0..100).for_each(|i| drop(look(i / 5 % 2)));
        let before = Arc::strong_count(&value);
        let one = look(0);
        assert_eq!(Arc::strong_count(&value), before + 1);
        drop(one);
        (0..100).for_each(|i| drop(look(i % 2)));
        let crowded = Arc::strong_count(&value);
        let mut held: std::vec::Vec<_> = (0..20).map(|i| look(i % 2)).collect();
        assert_eq!((crowded, Arc::strong_count(&value)), (before + 1, before + 1));
        // The holds are released on the other CPU. Longer tables keep the crowd.
        held.drain(..5).for_each(drop);
        for n in 1..100 {
            names.put(
                names.spare().unwrap(),
                name(n),
                Arc::try_new(CountsDrops(&GONE)).unwrap(),
                false,
                &mut domain.pile(),
            );
        }
        held.push(look(1));
        assert_eq!(Arc::strong_count(&value), before + 1);
        let counted = held.pop().unwrap().counted();
        assert_eq!(Arc::strong_count(&value), before + 2);
        drop((counted, value, names.take(&name(0), &mut domain.pile())));
        held.drain(..10).for_each(drop);
        set_cpu(0);
        assert_eq!((GONE.load(Order::SeqCst), held.len()), (0, 5));
        drop(held);
        assert_eq!(GONE.load(Order::SeqCst), 1);
        drop(names);
        domain.drain();
        assert_eq!(GONE.load(Order::SeqCst), 100);
    }

    #[test]
    fn a_drop_during_growth_may_use_the_same_names() {
        struct Asks(Arc<Names<Asks>>);
        impl Drop for Asks {
            fn drop(&mut self) {
                drop(self.0.changes.lock());
            }
        }
        set_cpu(0);
        // The number of earlier retirements determines the point at which the epoch frees memory.
        for before in 0..40 {
            let domain = domain(1);
            let (growing, others) = (Arc::try_new(Names::new(Rank::FILE)).unwrap(), Names::new(Rank::FILE));
            let value = || Arc::try_new(Asks(growing.clone())).unwrap();
            (0..FIRST * IN_CHAIN)
                .for_each(|n| drop(growing.put(growing.spare().unwrap(), name(n), value(), false, &mut domain.pile())));
            for _ in 0..before {
                drop(others.put(others.spare().unwrap(), name(0), value(), true, &mut domain.pile()));
                drop(others.take(&name(0), &mut domain.pile()));
            }
            drop(growing.put(growing.spare().unwrap(), name(FIRST * IN_CHAIN), value(), false, &mut domain.pile()));
            domain.drain();
            (0..=FIRST * IN_CHAIN).for_each(|n| drop(growing.take(&name(n), &mut domain.pile())));
            domain.drain();
            assert_eq!(Arc::strong_count(&growing), 1);
        }
    }

    #[test]
    fn a_table_refused_memory_stays_and_retries_later() {
        let domain = domain(1);
        let names = Names::new(Rank::FILE);
        let full = FIRST * IN_CHAIN;
        (0..full)
            .for_each(|n| drop(names.put(names.spare().unwrap(), name(n), Value::new(n), false, &mut domain.pile())));
        let put = |n: usize, refused: u64| {
            let (spare, name, value) = (names.spare().unwrap(), name(n), Value::new(n));
            quire_heap::refusal::at(refused, || drop(names.put(spare, name, value, false, &mut domain.pile()))).1
        };
        assert_eq!((put(full, 1), put(full + 1, 0)), (1, 0));
        let more = (full + 2..2 * full).map(|n| put(n, 0)).sum::<u64>();
        assert!(more > full as u64, "the table grows later");
        let pin = domain.pin();
        (0..2 * full).for_each(|n| assert!(names.get(&name(n), &pin).is_some()));
    }
}
