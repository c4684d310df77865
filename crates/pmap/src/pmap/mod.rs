//! The page tables of one address space: [`quire_vm::Pmap`].

mod locked;
pub(crate) mod tables;

pub use locked::LockedTable;
pub use tables::Tables;

use crate::format::{FANOUT, Format, base, index, span};
use crate::hardware::{Drops, Hardware};
use crate::root::Root;
use crate::roots::{Fan, Own, Part, Roots, USER_HALF};
use crate::shootdown::Request;
use crate::shootdown::residency::Residency;
use crate::table::{Memory, TableEntries, TableState, View};
use crate::tree::{Dead, Tree};
use core::marker::PhantomData;
use core::ptr;
use quire_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quire_sync::cpuset::{CpuMask, MAX_CPUS};
use quire_sync::epoch::{Pinned, Retired};
use quire_sync::rank::assert_may_await_cpus;
use quire_sync::{CpuId, Rank, SpinLock, preempt_off, record};
use quire_vm::check::Broken;
use quire_vm::phys::Physical;
use quire_vm::phys::frames::{Fill, For};
use quire_vm::phys::page::{FrameKind, Page};
use quire_vm::stats::Event;
use quire_vm::tlb::flush::FlushSet;
use quire_vm::{OutOfMemory, PAGE_SIZE, Pfn, Pmap, VirtRange};

/// Wraps a memory system, from which table pages are allocated and whose page descriptors hold their state.
#[repr(transparent)]
struct Frames<M: Hardware>(Physical<M>);

impl<M: Hardware> Frames<M> {
    /// The descriptor of a table page, or of a frame that becomes one.
    #[inline(always)]
    fn page(&self, t: Pfn) -> &'static Page {
        // SAFETY: `allocate` took the frame from this system, and a table page's words are this crate's.
        unsafe { self.0.descriptor(t) }
    }

    fn of(vm: &'static Physical<M>) -> &'static Self {
        // SAFETY: `Frames` is a transparent wrapper of `Physical`, so a reference to either has the other's layout.
        unsafe { &*(&raw const *vm).cast() }
    }
}

impl<M: Hardware> Memory for Frames<M> {
    type Pin<'a> = Pinned<'a>;

    #[inline]
    fn pin(&self) -> Pinned<'_> {
        self.0.epoch().pin()
    }
    #[inline]
    fn slots(&self, t: Pfn) -> &'static TableEntries {
        // SAFETY: frames stay reachable (Phys); the kernel and the hardware access a table page's memory only as
        // atomics.
        unsafe { &*self.0.machine().frame_ptr(t).cast::<TableEntries>() }
    }
    #[inline]
    fn state(&self, t: Pfn) -> &'static TableState {
        // SAFETY: the first word of a table page's descriptor holds its state from `allocate` on. Its size is asserted
        // beside the type, and it is made of atomics.
        unsafe { &*(&raw const self.page(t).words()[0]).cast::<TableState>() }
    }
    #[inline]
    fn occupied(&self, t: Pfn) -> &'static AtomicU64 {
        self.page(t).spare()
    }
    #[inline]
    fn writable(&self, t: Pfn) -> &'static AtomicU64 {
        // This word is valid until the page is dead. Then `retire` writes the epoch's header over it.
        &self.page(t).words()[1]
    }

    fn allocate(&self, level: u32) -> Result<Pfn, OutOfMemory> {
        let t = match self.0.machine().mmu().take_spare(&self.0) {
            // Taking a spare page counts as an allocation for failure injection.
            Some(t) if self.0.inject_failure() => {
                // SAFETY: no other CPU has a page that was kept as a spare.
                unsafe { self.0.free_pfn(t) };
                return Err(OutOfMemory);
            }
            Some(t) => t,
            None => self.0.alloc_frame(Fill::Zeroed, For::Table)?.into_pfn(),
        };
        debug_assert!(self.slots(t).iter().all(|s| s.load(Ordering::Relaxed) == 0), "a new table page is not empty");
        record::own(self.0.machine().frame_ptr(t), PAGE_SIZE as usize, "table");
        let page = self.page(t);
        page.set_kind(FrameKind::Table);
        page.spare().store(0, Ordering::Relaxed);
        page.words()[1].store(0, Ordering::Relaxed);
        let word: *const AtomicU64 = &page.words()[0];
        // SAFETY: only this function uses the frame; see `state`.
        unsafe { word.cast_mut().cast::<TableState>().write(TableState::new(level)) };
        self.0.stats().count(Event::TableAlloc);
        Ok(t)
    }

    fn free(&self, t: Pfn) {
        self.page(t).set_kind(FrameKind::Unowned);
        let vm = &self.0;
        vm.stats().count(Event::TableFree);
        record::disown(vm.machine().frame_ptr(t));
        if self.state(t).live() == 0 && vm.machine().mmu().keep_spare(vm, t) {
            return;
        }
        // SAFETY: by the trait's contract no walker reaches the table page any more, and `allocate` left its frame to
        // the table page alone.
        unsafe { self.0.free_pfn(t) };
    }

    fn retire(&self, t: Pfn) {
        let page: *const Page = self.page(t);
        // `released` reads this address. The word held the `occupied` bits, which a dead table page does not need.
        self.page(t).spare().store((&raw const self.0).expose_provenance() as u64, Ordering::Relaxed);
        let offset = &raw const self.page(t).words()[1] as usize - page as usize;
        let header = page.wrapping_byte_add(offset).cast_mut().cast::<Retired>();
        // SAFETY: no code reads the second and third word of a dead table page's descriptor, so a header fits there.
        // The page was unlinked and flushed, and is retired once. `released` does not sleep.
        unsafe {
            header.write(Retired::new());
            self.0.epoch().retire_large(header, PAGE_SIZE, released::<M>);
        }
    }

    fn set_next(&self, t: Pfn, next: Option<Pfn>) {
        self.page(t).set_next(next);
    }
    fn next(&self, t: Pfn) -> Option<Pfn> {
        self.page(t).next()
    }
}

const _: () = assert!(size_of::<Retired>() == 16);

/// Frees a retired table page. The epoch calls this when no walker can still read the page.
unsafe fn released<M: Hardware>(header: *mut Retired) {
    // SAFETY: the header lies inside the descriptor of the table page, which is as large as its alignment. The pointer
    // covers all of it, and the spare word holds the system's address.
    unsafe {
        let page: *const Page = header.cast_const().map_addr(|a| a & !(align_of::<Page>() - 1)).cast();
        let page: &'static Page = &*page;
        let vm: &'static Physical<M> =
            &*core::ptr::with_exposed_provenance(page.spare().load(Ordering::Relaxed) as usize);
        Frames::of(vm).free(vm.pfn_of_page(page));
    }
}

impl<F: Format> Tables<F> {
    fn tree<M: Hardware<Format = F>>(&self, vm: &'static Physical<M>) -> Tree<'_, F, Frames<M>> {
        Tree { memory: Frames::of(vm), root: &self.root, fan: &self.fan, format: PhantomData }
    }

    #[inline(always)]
    fn roots(&self) -> Option<&Roots> {
        self.fan.get()
    }

    #[cold]
    fn fan_out_now<M: Hardware<Format = F>>(&self, vm: &'static Physical<M>) {
        if self.roots().is_none() {
            let Ok(new) = Self::place(vm, "roots", Roots::new()) else { return };
            if !self.fan.put(new) {
                // SAFETY: `new` was placed above and did not get into the fan, so this thread has it alone.
                unsafe { Self::displace(vm, new) };
            }
        }
        if let Some(roots) = self.roots() {
            let _held = roots.lock.lock();
            self.with_root_locked(vm, || {
                if roots.may_open() {
                    roots.open();
                }
            });
        }
    }

    /// Calls `f` under the locks that protect the decision to keep or unlink the root and its entries. These are the
    /// lock of the root word and, if there is a root, the root's own lock.
    fn with_root_locked<M: Hardware<Format = F>>(&self, vm: &'static Physical<M>, f: impl FnOnce()) {
        let _word = self.root.lock();
        let _root = self.root.get().map(|root| Frames::of(vm).state(root).lock_child());
        f();
    }

    /// Allocates a table page as a root: the kernel's half is filled in, the user half is empty.
    fn new_root<M: Hardware<Format = F>>(vm: &'static Physical<M>) -> Result<Pfn, OutOfMemory> {
        let root = Frames::of(vm).allocate(F::LEVELS - 1)?;
        // SAFETY: the root was allocated zeroed just now, in the memory of the machine's own tables.
        unsafe { vm.machine().mmu().kernel().share(vm.machine(), root) };
        Ok(root)
    }

    /// Frees a root.
    ///
    /// # Requires
    /// No CPU has the root loaded, and no walker can reach it.
    fn free_root<M: Hardware<Format = F>>(vm: &'static Physical<M>, root: Pfn) {
        vm.machine().mmu().kernel().unshare(vm.machine(), root);
        Frames::of(vm).free(root);
    }

    /// Makes a root if the space has none. Returns when the CPUs that run the space have loaded it.
    #[cold]
    #[inline(never)]
    fn make_root<M: Hardware<Format = F>>(&self, vm: &'static Physical<M>) -> Result<(), OutOfMemory> {
        let new = Self::new_root(vm)?;
        match self.root.put(new, &self.residency) {
            Some(running) => Self::shoot(vm, running, &Request::root(&self.residency, &self.root)),
            None => Self::free_root(vm, new),
        }
        Ok(())
    }

    /// Prepares a fault at `va` in a space whose map has fanned out, so that CPUs have roots of their own. Gives this
    /// CPU an own root, if it runs the space and there is memory. Also allocates the state that this CPU needs to copy
    /// the root entry over `va`.
    #[inline(never)]
    fn prepare_own<M: Hardware<Format = F>>(
        &self,
        vm: &'static Physical<M>,
        roots: &Roots,
        va: u64,
    ) -> Result<(), OutOfMemory> {
        let here = vm.machine().mmu().cpu(preempt_off().cpu());
        if here.loaded() != self.id() {
            return Ok(());
        }
        if !here.has_own() {
            let Ok(new) = self.new_own(vm) else { return Ok(()) };
            if !self.adopt(vm, roots, new) {
                Self::free_own(vm, new);
            }
        }
        let part = roots.part_of(index(va, F::LEVELS - 1));
        if part.load(Ordering::Acquire).is_null() {
            let new = Self::place(vm, "root-entries", Part::new())?;
            if part.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: `new` was placed above and lost the exchange, so this thread has it alone.
                unsafe { Self::displace(vm, new) };
            }
        }
        Ok(())
    }

    fn new_own<M: Hardware<Format = F>>(&self, vm: &'static Physical<M>) -> Result<*mut Own, OutOfMemory> {
        let root = Self::new_root(vm)?;
        Self::place(vm, "own-root", Own::new(root)).inspect_err(|_| Self::free_root(vm, root))
    }

    /// Makes `new` this CPU's own root of this space, and loads it. Returns `false` if own roots are no longer in use,
    /// or if the CPU has an own root already. Also returns `false` if the thread has moved to a CPU that runs another
    /// space.
    fn adopt<M: Hardware<Format = F>>(&self, vm: &'static Physical<M>, roots: &Roots, new: *mut Own) -> bool {
        let held = roots.lock.lock();
        let cpu = quire_sync::current_cpu();
        let mmu = vm.machine().mmu();
        let done = vm.machine().masked(|| {
            if !roots.is_open() || roots.own(cpu).is_some() || mmu.cpu(cpu).loaded() != self.id() {
                return false;
            }
            // SAFETY: this runs on `cpu`, masked. The root shares the kernel's half, and is freed only when every CPU
            // is back on the space's root.
            unsafe { mmu.go_private(vm.machine(), cpu, &self.residency, &*new, roots.regime()) };
            roots.adopt(cpu, new);
            true
        });
        drop(held);
        done
    }

    /// Copies the root entry over `va` into this CPU's own root, if it has one.
    ///
    /// # Requires
    /// The last-level table page over `va` is locked, so it is linked.
    #[inline(never)]
    fn copy_entry<M: Hardware<Format = F>>(&self, vm: &'static Physical<M>, roots: &Roots, va: u64) {
        let i = index(va, F::LEVELS - 1);
        let machine = vm.machine();
        let cpu = quire_sync::current_cpu();
        let state = machine.mmu().cpu(cpu);
        // Interrupts are masked, because the handler of a request may load the space's root on this CPU. The requester
        // then frees this CPU's own root, which this code still uses.
        machine.masked(|| {
            let Some((own, reach)) = state.own().zip(roots.reach(i)) else { return };
            if state.loaded() != self.id() || own.has(i) {
                return;
            }
            // The linked table page below keeps the root from being dropped.
            let Some(root) = self.root.get() else { return };
            roots.join(cpu, own, i, reach);
            let frames = Frames::of(vm);
            let word = frames.slots(root)[i].load(Ordering::Acquire);
            frames.slots(own.root())[i].store(word, Ordering::Release);
            if F::CACHES_ABSENT {
                Drops::drop_loaded(machine, state);
            }
        });
    }

    /// Frees a CPU's own root.
    ///
    /// # Requires
    /// No CPU has it loaded.
    fn free_own<M: Hardware<Format = F>>(vm: &'static Physical<M>, own: *mut Own) {
        let frames = Frames::of(vm);
        // SAFETY: it was made by `new_own`, and only the caller has it.
        let root = unsafe {
            (*own).each(|i| frames.slots((*own).root())[i].store(0, Ordering::Relaxed));
            (*own).root()
        };
        Self::free_root(vm, root);
        // SAFETY: `own` was made by `new_own`, only the caller has it, and it is not used after this.
        unsafe { Self::displace(vm, own) };
    }

    /// Allocates a frame and moves `value` into it.
    fn place<M: Hardware<Format = F>, T>(
        vm: &'static Physical<M>,
        label: &'static str,
        value: T,
    ) -> Result<*mut T, OutOfMemory> {
        const { assert!(size_of::<T>() <= PAGE_SIZE as usize || cfg!(any(loom, shuttle))) };
        let frame = vm.alloc_frame(Fill::Any, For::User)?.into_pfn();
        vm.stats().count(Event::BufferPage);
        let at = vm.machine().frame_ptr(frame);
        record::own(at, PAGE_SIZE as usize, label);
        let at = at.cast::<T>();
        // SAFETY: only this function uses the frame, which is large enough.
        unsafe { at.write(value) };
        Ok(at)
    }

    /// Frees a value of [`place`](Self::place).
    ///
    /// # Safety
    /// No other code can reach it any more.
    unsafe fn displace<M: Hardware<Format = F>, T>(vm: &'static Physical<M>, value: *mut T) {
        record::disown(value.cast());
        let pfn = vm.machine().pfn_of(value.cast());
        // SAFETY: `place` took the frame for this value, which no reader can reach any more.
        unsafe { vm.free_pfn(pfn) };
        vm.stats().count(Event::BufferPageGone);
    }

    /// The frame of the root table, where hardware walks begin; `None` if the space has no page tables now.
    pub fn root(&self) -> Option<Pfn> {
        self.root.get()
    }

    /// The number of this space, by which CPUs recognise its translations; never reused.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Loads these tables on this CPU, which may then run the space's programs and access its user memory. The CPU
    /// leaves the space that was loaded before. The call is cheap if these tables are loaded already.
    ///
    /// # Safety
    /// `cpu` is the calling CPU, with preemption and interrupts off. The pmap is not moved or destroyed before the CPU
    /// has loaded another root ([`Pmap::destroy`] does that on other CPUs).
    pub unsafe fn switch_in<M: Hardware<Format = F>>(&self, machine: &M, cpu: CpuId) {
        // SAFETY: the caller is on `cpu` with preemption and interrupts off, and keeps the pmap until the CPU has left
        // it.
        unsafe { machine.mmu().load(machine, cpu, &self.residency, &self.root, &self.fan) }
    }

    /// Marks this CPU as lazy: it keeps these tables loaded while it runs a thread without a user half (the idle
    /// thread, a kernel thread). Flushes do not interrupt it, unless table pages are freed. It must not access user
    /// memory until it has called [`switch_in`](Self::switch_in) again.
    ///
    /// # Safety
    /// `cpu` is the calling CPU, with preemption and interrupts off.
    pub unsafe fn go_lazy<M: Hardware<Format = F>>(&self, machine: &M, cpu: CpuId) {
        if machine.mmu().cpu(cpu).loaded() == self.id() {
            self.residency.idle(cpu);
        }
    }

    /// Checks that each present entry of the CPUs' own roots equals the space's.
    fn check_own<M: Hardware<Format = F>>(&self, vm: &'static Physical<M>) -> Result<(), Broken> {
        let Some(roots) = self.roots() else { return Ok(()) };
        let _held = roots.lock.lock();
        let frames = Frames::of(vm);
        for own in (0..MAX_CPUS).filter_map(|cpu| roots.own(cpu)) {
            for i in 0..USER_HALF {
                let theirs = frames.slots(own.root())[i].load(Ordering::Acquire);
                // A CPU marks an entry as copied before it copies the entry. This check reads the space's root after
                // the own root, because another CPU may make the space's root in between. The space's root stays while
                // copies of its entries exist.
                let word = self.root.get().map_or(0, |root| frames.slots(root)[i].load(Ordering::Acquire));
                if theirs != 0 && (!own.has(i) || theirs != word) {
                    return Err(Broken::TableRoot(i as u64 * span(F::LEVELS - 1)));
                }
            }
        }
        Ok(())
    }

    fn shoot<M: Hardware<Format = F>>(vm: &'static Physical<M>, mut targets: CpuMask, request: &Request<'_, F>) {
        // The check comes first, so that a caller is found out also where no CPU has to answer.
        assert_may_await_cpus();
        if targets.is_empty() {
            return;
        }
        let pinned = preempt_off();
        let here = pinned.cpu();
        let mine = targets.contains(here);
        targets.remove(here);
        if !targets.is_empty() {
            vm.stats().count(Event::Shootdown);
            vm.stats().add(Event::ShootdownTarget, targets.len() as u64);
            if mine {
                targets.insert(here);
            }
            vm.machine().shoot(&targets, request);
        } else if mine {
            // The common case is a program with one thread: no other CPU is involved.
            request.serve(vm.machine());
        }
    }

    /// Calls `f` with each last-level table page in turn. Returns the number of table pages, without the root. Each
    /// step holds the `census` lock for one entry of level 2 (1 GiB).
    fn census<M: Hardware<Format = F>>(&self, vm: &'static Physical<M>, mut f: impl FnMut(&View<'_>)) -> u64 {
        let frames = Frames::of(vm);
        let (mut tables, mut at) = (0, 0);
        'step: loop {
            let _held = self.census.lock();
            let _pin = frames.pin();
            let Some(mut t) = self.root.get() else { return tables };
            for level in (2..F::LEVELS).rev() {
                let table = base(at, level + 1);
                let last = if level == F::LEVELS - 1 { USER_HALF - 1 } else { FANOUT - 1 };
                // At the end of the root's user half `at` lies outside it, so nothing is left to find.
                let from = if at >= span(F::LEVELS - 1) * USER_HALF as u64 { FANOUT } else { index(at, level) };
                let Some((i, word)) = View::of(frames, t).next(from, last) else {
                    if level == F::LEVELS - 1 {
                        return tables;
                    }
                    at = table + span(level + 1);
                    continue 'step;
                };
                at = at.max(table + i as u64 * span(level));
                // A table counts when the walk enters it for the first time.
                tables += u64::from(at == base(at, level));
                t = F::frame(word);
            }
            let middle = View::of(frames, t);
            let mut k = 0;
            while let Some((i, word)) = middle.next(k, FANOUT - 1) {
                tables += 1;
                f(&View::of(frames, F::frame(word)));
                k = i + 1;
            }
            at = base(at, 2) + span(2);
        }
    }
}

// SAFETY: `tree` and `table` keep C2 (enter versus remove) and C3 (stale entries). Faults and removers change
// leaves by read-modify-writes under the table page's lock. The pruner sets a dead mark under the locks of parent and
// child, and retires the frame after the flush. `shootdown` keeps C4: a frame is reused only after the flush.
unsafe impl<F: Format, M: Hardware<Format = F>> Pmap<M> for Tables<F> {
    const USER: VirtRange = F::USER;
    const TABLE_SPAN: u64 = span(1);

    type Table<'a> = LockedTable<'a, M>;

    unsafe fn new(vm: &'static Physical<M>) -> Result<Self, OutOfMemory> {
        // The root is made at once, because most new spaces run soon. If the first fault made it, the root register
        // would be loaded twice.
        let root = Self::new_root(vm)?;
        let id = vm.machine().mmu().new_id();
        Ok(Tables {
            root: Root::new(Some(root)),
            fan: Fan::new(),
            id,
            inherits: AtomicBool::new(false),
            format: PhantomData,
            residency: Residency::new(id),
            census: SpinLock::new(Rank::TABLE_UPPER, ()),
        })
    }

    #[inline(always)]
    fn table(&self, vm: &'static Physical<M>, va: u64, pin: &Pinned<'_>) -> Result<LockedTable<'_, M>, OutOfMemory> {
        debug_assert!(index(va, F::LEVELS - 1) < USER_HALF, "a kernel address is entered into a user half");
        let roots = self.roots().filter(|roots| roots.is_open());
        if let Some(roots) = roots {
            self.prepare_own(vm, roots, va)?;
        }
        let table = LockedTable { vm, tables: self, t: self.tree(vm).lock_last(va, pin, || self.make_root(vm))? };
        if let Some(roots) = roots {
            self.copy_entry(vm, roots, va);
        }
        Ok(table)
    }

    #[inline]
    fn next_table(&self, vm: &'static Physical<M>, range: VirtRange) -> Option<LockedTable<'_, M>> {
        Some(LockedTable { vm, tables: self, t: self.tree(vm).lock_next(range)? })
    }

    fn unflushed_above(&self, vm: &'static Physical<M>, va: u64) -> bool {
        self.tree(vm).unflushed(va)
    }

    fn flush(&self, vm: &'static Physical<M>, set: &FlushSet) {
        vm.stats().count(Event::Flush);
        let (hull, top) = (set.hull(), F::LEVELS - 1);
        if let Some(roots) = self.roots()
            && let Some(last) = hull.end.checked_sub(1)
            && base(hull.start, top) == base(last, top)
        {
            let i = index(hull.start, top);
            if let Some((reach, generation, targets)) =
                roots.bump(i, &self.residency, set.structure(), vm.machine().cpus())
            {
                Self::shoot(vm, targets, &Request::entry(self.id, i, (reach, generation), set));
                return;
            }
        }
        let (generation, targets) = self.residency.bump(set.structure());
        Self::shoot(vm, targets, &Request::flush(&self.residency, generation, set));
    }

    fn settle(&self, vm: &'static Physical<M>, table: Pfn) -> bool {
        Frames::of(vm).state(table).settle()
    }

    fn prune(&self, vm: &'static Physical<M>, range: VirtRange) {
        let tree = self.tree(vm);
        // The first and the last table page also cover addresses that programs may not map.
        let mut at = if range.start <= F::USER.start { 0 } else { range.start };
        let end = if range.end >= F::USER.end { span(F::LEVELS - 1) * USER_HALF as u64 } else { range.end };
        let mut dead = Dead::new();
        while at < end {
            at = tree.prune_some(VirtRange { start: at, end }, &mut dead);
        }
        if dead.first.is_some() {
            // The removers have flushed all leaves of these table pages already. So this flush only has to drop cached
            // upper levels.
            let mut set = FlushSet::new();
            set.add_structure(dead.covered);
            Pmap::<M>::flush(self, vm, &set);
            tree.retire(dead);
        }
    }

    #[inline]
    fn fan_out(&self, vm: &'static Physical<M>) {
        if self.roots().is_none_or(|r| !r.is_open()) {
            self.fan_out_now(vm);
        }
    }

    fn fan_in(&self, vm: &'static Physical<M>) {
        let Some(roots) = self.roots().filter(|r| r.is_open()) else { return };
        let loaded = {
            let _held = roots.lock.lock();
            if !roots.is_open() {
                return;
            }
            roots.close(&self.residency)
        };
        // No lock is held during the wait for the other CPUs. The regime is even, so no CPU gets an own root. It stays
        // even until `keeps_root` is cleared below, so no own root is loaded after the request was served.
        Self::shoot(vm, loaded, &Request::home(&self.residency, &self.root, roots.regime()));
        let _held = roots.lock.lock();
        roots.take(|own| Self::free_own(vm, own));
        self.with_root_locked(vm, || roots.keeps_root.store(false, Ordering::Release));
    }

    fn is_running(&self) -> bool {
        !self.residency.running().is_empty()
    }

    fn is_running_elsewhere(&self, cpu: CpuId) -> bool {
        let mut others = self.residency.running();
        others.remove(cpu);
        !others.is_empty()
    }

    fn take_ran(&self) -> bool {
        self.residency.take_ran()
    }

    fn reclaim_tables(vm: &Physical<M>) -> u64 {
        vm.machine().mmu().drain(vm)
    }

    fn drop_root(&self, vm: &'static Physical<M>) -> bool {
        let frames = Frames::of(vm);
        let Some((root, loaded)) = self.root.take(frames, &self.residency, &self.fan) else { return false };
        Self::shoot(vm, loaded, &Request::root(&self.residency, &self.root));
        // The kernel's half may be cleared at once, because walkers read only the user half.
        vm.machine().mmu().kernel().unshare(vm.machine(), root);
        frames.retire(root);
        true
    }

    fn clear(&self, vm: &'static Physical<M>) {
        Pmap::<M>::fan_in(self, vm);
        let frames = Frames::of(vm);
        let Some(root) = self.root.get() else { return };
        let root = View::of(frames, root);
        // The detached table pages, linked through their descriptors.
        let mut detached = None;
        // An empty root has no table pages to detach. So only a root with entries needs the `census` lock, which
        // excludes CPUs that count table pages.
        if root.next(0, USER_HALF - 1).is_some() {
            let _held = self.census.lock();
            let mut i = 0;
            while let Some((at, word)) = root.next(i, USER_HALF - 1) {
                root.unlink(at);
                let t = F::frame(word);
                frames.set_next(t, detached);
                detached = Some(t);
                i = at + 1;
            }
        }
        if detached.is_none() {
            return;
        }
        // Makes the other CPUs leave this space, and makes this CPU drop its cached upper levels.
        let (generation, mut targets) = self.residency.bump(true);
        {
            let pinned = preempt_off();
            let here = pinned.cpu();
            if targets.contains(here) {
                let mut set = FlushSet::new();
                set.add_all();
                set.add_structure(F::USER);
                Request::flush(&self.residency, generation, &set).serve(vm.machine());
                targets.remove(here);
            }
            Self::shoot(vm, targets, &Request::leave(&self.residency));
        }
        {
            let pinned = preempt_off();
            let here = vm.machine().mmu().cpu(pinned.cpu());
            if here.loaded() == self.id {
                here.forget_unreported();
            }
        }
        self.residency.none_resident();
        // No walker can reach the detached pages any more, so this loop frees them without the epoch and with
        // interrupts on.
        let tree = self.tree(vm);
        while let Some(t) = detached {
            detached = frames.next(t);
            tree.free_below(t, F::LEVELS - 2);
        }
    }

    unsafe fn destroy(&mut self, vm: &'static Physical<M>) {
        // Idle CPUs may still have this space loaded.
        Self::shoot(vm, self.residency.loaded(), &Request::leave(&self.residency));
        if let Some(root) = self.root.get() {
            Self::free_root(vm, root);
        }
        if let Some(roots) = self.roots() {
            debug_assert!(!roots.is_open(), "page tables were destroyed before they were cleared");
            // SAFETY: no CPU and no walker is left.
            unsafe {
                roots.each_part(|part| Self::displace(vm, part));
                Self::displace(vm, ptr::from_ref(roots).cast_mut());
            }
        }
    }

    fn check(&self, vm: &'static Physical<M>, quiet: bool) -> Result<u64, Broken> {
        // SAFETY: only the descriptor's kind is read, as `find_descriptor` requires.
        let is_table =
            |pfn: Pfn| unsafe { vm.find_descriptor(pfn) }.is_some_and(|page| page.kind() == FrameKind::Table);
        let cost = self.tree(vm).check(USER_HALF, &is_table, quiet)?;
        self.check_own(vm)?;
        Ok(cost)
    }

    fn resident_pages(&self, vm: &'static Physical<M>) -> u64 {
        Pmap::<M>::pages(self, vm).0
    }

    fn pages(&self, vm: &'static Physical<M>) -> (u64, u64) {
        let mut pages = 0;
        let below = self.census(vm, |table| pages += table.resident::<F>(vm.zero_frame()));
        let own = self.roots().map_or(0, |r| {
            let _held = r.lock.lock();
            r.count()
        });
        (pages, u64::from(self.root.get().is_some()) + own + below)
    }

    fn peak_pages(&self, vm: &'static Physical<M>) -> u64 {
        let pinned = preempt_off();
        self.residency.peak(vm.machine().mmu().cpu(pinned.cpu()).unreported(self.id))
    }

    fn inherit(&self, vm: &'static Physical<M>, parent: &Self, most: u64) {
        // Pages that other CPUs have not reported are left out, because a fork shares no line with their faults.
        let pages = {
            let pinned = preempt_off();
            parent.residency.resident(vm.machine().mmu().cpu(pinned.cpu()).unreported(parent.id)).min(most)
        };
        if pages != 0 {
            self.inherits.store(true, Ordering::Relaxed);
            self.residency.add_resident(pages.cast_signed());
        }
    }

    fn disinherit(&self) {
        if self.inherits.swap(false, Ordering::Relaxed) {
            self.residency.none_resident();
        }
    }

    fn counted_pages(&self, vm: &'static Physical<M>) -> Option<u64> {
        let mmu = vm.machine().mmu();
        let unreported = self.residency.loaded().iter().map(|cpu| mmu.cpu(cpu).unreported(self.id)).sum();
        Some(self.residency.resident(unreported))
    }

    fn recount(&self, vm: &'static Physical<M>, pages: u64) {
        let counted = Pmap::<M>::counted_pages(self, vm).unwrap_or(0);
        self.residency.add_resident(pages.wrapping_sub(counted).cast_signed());
    }

    fn restart_peak(&self, vm: &'static Physical<M>) {
        let pinned = preempt_off();
        self.residency.restart_peak(vm.machine().mmu().cpu(pinned.cpu()).unreported(self.id));
    }

    fn table_pages(&self, vm: &'static Physical<M>) -> u64 {
        Pmap::<M>::pages(self, vm).1
    }
}
