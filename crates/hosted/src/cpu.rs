//! A simulated CPU: it translates addresses and accesses memory as the hardware does, and checks every use of a
//! translation.

use crate::machine::{AttachError, Simulated, serve_own};
use crate::simulate::Simulate;
use crate::tlb::{Entry, Upper};
use quire_pmap::format::{FANOUT, index, span};
use quire_pmap::{Hardware, Tables};
use quire_pmap_x86_64::X86_64;
use quire_sync::CpuId;
use quire_sync::hooks::threads;
use quire_sync::record::apart;
use quire_vm::map::{Space, SpaceRef};
use quire_vm::phys::page::{FrameKind, Page};
use quire_vm::{Access, FaultError, MemoryType, PAGE_SHIFT, PAGE_SIZE, Pfn, Phys, Vm};
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A page fault, as the hardware reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageFault {
    /// The address of the access.
    pub va: u64,
    /// The kind of access.
    pub access: Access,
    /// Whether a present entry forbade the access. If not, there was no present entry.
    pub present: bool,
}

/// The space belongs to another machine than the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForeignSpace;

impl std::fmt::Display for ForeignSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the space belongs to another machine")
    }
}
impl std::error::Error for ForeignSpace {}

/// The privilege of an access.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Program,
    Kernel,
}

/// If one access faults this number of times, the core must be in a loop. Other CPUs may cause a few of these faults by
/// removing the page.
const FAULTS: u32 = 100_000;

std::thread_local! {
    static DISTURBANCE: std::cell::Cell<u64> = const { std::cell::Cell::new(1) };
    static PAUSES: std::cell::Cell<u64> = const { std::cell::Cell::new(512) };
}

/// The calling thread as a CPU. Dropping this value detaches the thread. A thread can be attached to several CPUs, with
/// a handle for each. It does the work of each handle as that handle's CPU. While the thread waits, it serves
/// interrupts for all its CPUs. So one thread can play a protocol of many CPUs step by step.
pub struct Cpu<F: Simulate = X86_64> {
    vm: &'static Vm<Simulated<F>>,
    id: CpuId,
    loaded: Cell<Loaded>,
    /// The space that [`enter`](Cpu::enter) loaded. The handle keeps it while its tables are loaded here: another CPU that
    /// drops its handle would free them otherwise.
    entered: RefCell<Option<SpaceRef<Simulated<F>>>>,
    _this_thread: PhantomData<Rc<()>>,
}

/// The root that a CPU has loaded, as its thread last recorded it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loaded {
    /// The kernel's own root; no space is loaded.
    Nothing,
    /// Page tables that a test made.
    Tables,
    /// The page tables of the space of that number.
    Space(u64),
}

impl<F: Simulate> Cpu<F> {
    /// Attaches the calling thread to CPU `id`, until the returned handle is dropped. Fails if there is no such CPU, or
    /// if a thread is attached to it already.
    pub fn attach(vm: &'static Vm<Simulated<F>>, id: CpuId) -> Result<Cpu<F>, AttachError> {
        vm.machine().attach(id)?;
        // SAFETY: `attach` refuses a CPU that another thread is attached to.
        unsafe { threads::become_cpu(id) };
        threads::set_relax(Some(Rc::new(serve_own)));
        Ok(Cpu { vm, id, loaded: Cell::new(Loaded::Nothing), entered: RefCell::default(), _this_thread: PhantomData })
    }

    /// The CPU's number.
    pub fn id(&self) -> CpuId {
        self.id
    }

    /// The memory system.
    pub fn vm(&self) -> &'static Vm<Simulated<F>> {
        self.vm
    }

    /// Runs `f` as this CPU. This matters if the thread is attached to several CPUs.
    pub fn run<R>(&self, f: impl FnOnce() -> R) -> R {
        // SAFETY: the thread is attached to this CPU as long as it has this value, which it cannot give to another.
        unsafe { threads::run_as_cpu(self.id, f) }
    }

    /// Loads the page tables of a space.
    ///
    /// # Safety
    /// The pmap is not moved while a CPU has it loaded. It is not dropped without `destroy`.
    pub unsafe fn load(&self, pmap: &Tables<F>) {
        self.interrupts();
        // SAFETY: this thread is the CPU; flushes are served only between steps.
        self.run(|| unsafe { pmap.switch_in(self.machine(), self.id) });
        self.loaded.set(Loaded::Tables);
    }

    /// Makes the CPU idle (lazy): it keeps the space loaded without running it. The idle CPU zeroes up to
    /// [`Settings::zero_stock`](crate::Settings) frames for later, and serves interrupts while it does this.
    ///
    /// # Safety
    /// This CPU has loaded `pmap`.
    pub unsafe fn idle(&self, pmap: &Tables<F>) {
        // SAFETY: this CPU has loaded `pmap`, by this function's contract. This thread is the CPU; flushes are served
        // only between steps.
        self.run(|| unsafe { pmap.go_lazy(self.machine(), self.id) });
        self.interrupts();
        if self.machine().zeroes_when_idle() {
            while self.run(|| self.vm.idle_zero(1)) {
                self.interrupts();
            }
        }
    }

    /// Loads the kernel's own root.
    pub fn leave(&self) {
        self.interrupts();
        // SAFETY: this thread is the CPU, and flushes are served only between steps.
        self.run(|| unsafe { self.machine().mmu().leave(self.machine(), self.id) });
        self.loaded.set(Loaded::Nothing);
        self.keep(None);
    }

    /// Keeps the handle of the loaded space, and drops that of the space before.
    fn keep(&self, space: Option<SpaceRef<Simulated<F>>>) {
        let before = self.entered.replace(space);
        self.run(|| drop(before));
    }

    /// Serves the requests of other CPUs.
    pub fn interrupts(&self) {
        self.machine().serve(self.id);
    }

    /// Makes this CPU yield at random moments inside the core, before it acquires a lock. `seed` and the CPU's own
    /// steps determine the moments.
    pub fn disturb(&self, seed: u64) {
        self.disturb_every(512, seed);
    }

    /// As [`Cpu::disturb`], but about one of `pauses` random moments is a long pause, in which other CPUs can finish
    /// whole operations.
    pub fn disturb_every(&self, pauses: u64, seed: u64) {
        ask_for_short_slices();
        PAUSES.set(pauses.max(1));
        DISTURBANCE.set(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        threads::set_disturb(Some(|| {
            let mut x = DISTURBANCE.get();
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            DISTURBANCE.set(x);
            if x.is_multiple_of(PAUSES.get()) {
                // The pause is long enough for other CPUs to do whole operations.
                std::thread::sleep(std::time::Duration::from_micros(50));
            } else if x.is_multiple_of(36) {
                // One yield at a time, because on a busy host each yield costs the rest of a time slice.
                std::thread::yield_now();
            }
        }));
    }

    fn machine(&self) -> &'static Simulated<F> {
        self.vm.machine()
    }

    /// Loads the aligned word at `va` through the loaded tables.
    pub fn load_word(&self, va: u64) -> Result<u64, PageFault> {
        let e = self.translate(va, Access::Read, Mode::Program)?;
        let value = apart(|| self.word(&e, va).load(Ordering::Acquire));
        self.interrupts();
        Ok(value)
    }

    /// Stores to the aligned word at `va` through the loaded tables.
    pub fn store_word(&self, va: u64, value: u64) -> Result<(), PageFault> {
        let e = self.translate(va, Access::Write, Mode::Program)?;
        if !self.machine().is_device(e.frame) {
            let state = self.page(e.frame).state();
            assert!(
                state.dirty() || state.busy(),
                "Contract C2: CPU {} stores at {va:#x} through a writable translation of {:?}, whose page is not \
                 marked dirty: {state:?}",
                self.id,
                e.frame
            );
        }
        apart(|| self.word(&e, va).store(value, Ordering::Release));
        self.interrupts();
        Ok(())
    }

    /// The kernel's fault handler for its own addresses. `Ok` if a page is mapped at `va`, so that a new walk will
    /// succeed.
    pub fn kernel_look_again(&self, va: u64) -> Result<(), PageFault> {
        let there = quire_pmap::kernel_pages::look_again(self.machine(), va);
        if there { Ok(()) } else { Err(PageFault { va, access: Access::Read, present: false }) }
    }

    /// Loads the aligned word at `va`, a kernel address, as the kernel on this CPU.
    pub fn kernel_load(&self, va: u64) -> Result<u64, PageFault> {
        let e = self.translate(va, Access::Read, Mode::Kernel)?;
        let value = apart(|| self.word(&e, va).load(Ordering::Acquire));
        self.interrupts();
        Ok(value)
    }

    /// Stores to the aligned word at `va`, a kernel address, as the kernel on this CPU.
    pub fn kernel_store(&self, va: u64, value: u64) -> Result<(), PageFault> {
        let e = self.translate(va, Access::Write, Mode::Kernel)?;
        apart(|| self.word(&e, va).store(value, Ordering::Release));
        self.interrupts();
        Ok(())
    }

    /// Loads the page tables of `space`. The CPU keeps a handle of the space until it has loaded others. Fails if the space belongs to another machine; the CPU then keeps its loaded tables.
    pub fn enter(&self, space: &SpaceRef<Simulated<F>>) -> Result<(), ForeignSpace> {
        if !space.is_of(self.vm) {
            return Err(ForeignSpace);
        }
        // SAFETY: a space destroys its pmap when its last handle is dropped, and does not move before that. This CPU keeps
        // a handle until it has loaded another root.
        unsafe { self.load(space.page_tables()) };
        self.loaded.set(Loaded::Space(space.id()));
        self.keep(Some(space.clone()));
        Ok(())
    }

    /// Loads the aligned word at `va` in `space`, which is loaded, as a program: the core handles page faults.
    pub fn read(&self, space: &Space<Simulated<F>>, va: u64) -> Result<u64, FaultError> {
        self.served(space, || self.load_word(va))
    }

    /// Stores to the aligned word at `va` in `space`, which is loaded, as a program: the core handles page faults.
    pub fn write(&self, space: &Space<Simulated<F>>, va: u64, value: u64) -> Result<(), FaultError> {
        self.served(space, || self.store_word(va, value))
    }

    /// Executes the instruction at `va` in `space`, which is loaded, as a program: the core handles page faults.
    pub fn execute(&self, space: &Space<Simulated<F>>, va: u64) -> Result<(), FaultError> {
        self.served(space, || self.fetch(va))
    }

    /// Retries `access` until it succeeds or the core refuses it. The CPU must have loaded `space`. With another space
    /// loaded, the access would fault for ever.
    fn served<R>(
        &self,
        space: &Space<Simulated<F>>,
        access: impl Fn() -> Result<R, PageFault>,
    ) -> Result<R, FaultError> {
        let loaded = self.loaded.get();
        if !space.is_of(self.vm) || (loaded != Loaded::Tables && loaded != Loaded::Space(space.id())) {
            return Err(FaultError::Foreign);
        }
        for _ in 0..FAULTS {
            let fault = match access() {
                Ok(r) => return Ok(r),
                Err(fault) => fault,
            };
            self.interrupts();
            let _kind = self.run(|| space.fault(fault.va, fault.access))?;
            self.interrupts();
        }
        panic!("no progress: an access still faults after {FAULTS} faults were served");
    }

    /// Returns the memory type that a load at `va` has through the loaded tables.
    pub fn memory_type(&self, va: u64) -> Result<MemoryType, PageFault> {
        let e = self.translate(va, Access::Read, Mode::Program)?;
        self.interrupts();
        Ok(e.memory)
    }

    /// Fetches an instruction at `va`. Only the translation is done; nothing is executed.
    pub fn fetch(&self, va: u64) -> Result<(), PageFault> {
        self.translate(va, Access::Exec, Mode::Program)?;
        self.interrupts();
        Ok(())
    }

    fn page(&self, frame: Pfn) -> &'static Page {
        // SAFETY: a translation led to the frame, so it is RAM in use; the descriptor is only read.
        unsafe { self.vm.descriptor(frame) }
    }

    fn word(&self, e: &Entry, va: u64) -> &AtomicU64 {
        assert!(va.is_multiple_of(8), "accesses are aligned words");
        let p = self.machine().frame_ptr(e.frame).wrapping_add((va % PAGE_SIZE) as usize);
        // SAFETY: the word lies within a frame of RAM. Memory of programs is accessed here only as atomics.
        unsafe { &*p.cast::<AtomicU64>() }
    }

    /// Translates `va` as the hardware does, with all checks.
    fn translate(&self, va: u64, access: Access, mode: Mode) -> Result<Entry, PageFault> {
        apart(|| self.look_up(va, access, mode))
    }

    fn look_up(&self, va: u64, access: Access, mode: Mode) -> Result<Entry, PageFault> {
        let (_, tag) = self.machine().loaded(self.id);
        let page = va >> PAGE_SHIFT;
        let fault = |present: bool| {
            if F::CACHES_ABSENT {
                // The entries that the walk has read stay cached until a fence of the address drops them, even absent
                // ones.
                self.machine().with_tlb(self.id, |t| {
                    if !present {
                        t.put_absent(tag, page)
                    }
                });
            } else {
                // A fault drops the page's translation, and the upper levels that led to it.
                let prefixes = (1..F::LEVELS).map(|l| (l, prefix(va, l)));
                self.machine().with_tlb(self.id, |t| t.faulted(tag, page, prefixes));
            }
            PageFault { va, access, present }
        };
        let (cached, absent) = self.machine().with_tlb(self.id, |t| (t.get(tag, page), t.is_absent(tag, page)));
        if absent {
            return Err(fault(false));
        }
        let entry = match cached {
            Some(e) => {
                self.check(&e, va, mode, "cached");
                if !allows(&e, access, mode) {
                    return Err(fault(true));
                }
                // If a store's translation is not known to be dirty, the hardware walks the tables again.
                if access == Access::Write && !e.dirty { self.walk(va, access, mode, tag).map_err(fault)? } else { e }
            }
            None => self.walk(va, access, mode, tag).map_err(fault)?,
        };
        self.check(&entry, va, mode, "fresh");
        Ok(entry)
    }

    /// The central check of this machine: a CPU may use a translation only while the frame has the life for which the
    /// translation was made. The life of a frame is the number of times it was freed.
    fn check(&self, e: &Entry, va: u64, mode: Mode, how: &str) {
        if self.machine().is_device(e.frame) {
            return;
        }
        if e.frame == self.vm.zero_frame() {
            assert!(!e.write, "CPU {} may store through {va:#x} into the shared zero frame", self.id);
            return;
        }
        let (life, kind) = (self.machine().life(e.frame), self.page(e.frame).kind());
        assert!(
            e.life == life && kind == if mode == Mode::Program { FrameKind::Object } else { FrameKind::Unowned },
            "stale translation: CPU {} reaches {va:#x} through a {how} translation to {:?}, made in its life {}, which \
             is now {kind:?} in life {life}",
            self.id,
            e.frame,
            e.life
        );
    }

    /// Translates `va` without a use, as speculation and prefetch do.
    pub fn speculate(&self, va: u64) {
        let (_, tag) = self.machine().loaded(self.id);
        if self.machine().with_tlb(self.id, |t| t.get(tag, va >> PAGE_SHIFT)).is_none() {
            let _ = self.walk(va, Access::Read, Mode::Program, tag);
        }
        self.interrupts();
    }

    /// Walks the tables. The error is `true` if a present entry forbade the access, and `false` if no entry was
    /// present.
    fn walk(&self, va: u64, access: Access, mode: Mode, tag: u16) -> Result<Entry, bool> {
        let m = self.machine();
        let (root, _) = m.loaded(self.id);
        // The walk begins at the lowest cached upper level.
        let cached =
            m.with_tlb(self.id, |t| (1..F::LEVELS).find_map(|l| t.get_upper(tag, l, prefix(va, l)).map(|u| (l, u))));
        let (mut level, mut at) = match cached {
            Some((l, u)) => (l - 1, u),
            None => (F::LEVELS - 1, Upper { table: root, user: true, write: true, life: m.life(root) }),
        };
        loop {
            self.check_table(&at, va);
            let slot = self.slot(at.table, index(va, level));
            let mut w = slot.load(Ordering::Acquire);
            if !F::present(w) {
                return Err(false);
            }
            if F::is_leaf(w, level) {
                loop {
                    let leaf = F::see(w, true);
                    let mut e = Entry {
                        frame: Pfn((F::frame(w).0 & !((span(level) >> PAGE_SHIFT) - 1))
                            + ((va & (span(level) - 1)) >> PAGE_SHIFT)),
                        user: at.user && leaf.user,
                        write: at.write && leaf.write,
                        execute: leaf.execute,
                        dirty: leaf.dirty,
                        memory: leaf.memory,
                        life: 0,
                    };
                    if !allows(&e, access, mode) {
                        return Err(true);
                    }
                    let store = access == Access::Write;
                    if !m.sets_accessed() && (!leaf.accessed || store && !leaf.dirty) {
                        return Err(true);
                    }
                    let seen = w | F::ACCESSED | if store { F::DIRTY } else { 0 };
                    if let Err(now) = slot.compare_exchange(w, seen, Ordering::AcqRel, Ordering::Acquire) {
                        // The entry changed during the walk, so the hardware reads it again.
                        if !F::present(now) {
                            return Err(false);
                        }
                        w = now;
                        continue;
                    }
                    e.dirty = seen & F::DIRTY != 0;
                    // The frame cannot be freed before this CPU has answered a flush. So the frame still has the life
                    // in which the leaf was made.
                    e.life = m.life(e.frame);
                    m.with_tlb(self.id, |t| t.put(tag, va >> PAGE_SHIFT, e, leaf.global));
                    return Ok(e);
                }
            }
            let (table, above) = (F::frame(w), F::see(w, false));
            at = Upper { table, user: at.user && above.user, write: at.write && above.write, life: m.life(table) };
            m.with_tlb(self.id, |t| t.put_upper(tag, level, prefix(va, level), at));
            level -= 1;
        }
    }

    fn check_table(&self, u: &Upper, va: u64) {
        // SAFETY: the descriptor is only read. The descriptor of the kernel's own root may not be initialised yet. Boot
        // has reserved that frame, like all frames without a descriptor that tables lead to.
        let page = unsafe { self.vm.find_descriptor(u.table) };
        let (life, kind) = (self.machine().life(u.table), page.map_or(FrameKind::Reserved, Page::kind));
        assert!(
            u.life == life && matches!(kind, FrameKind::Table | FrameKind::Reserved),
            "stale upper level: CPU {} walks to {va:#x} through table page {:?} of life {}, which is now {kind:?} in \
             life {life}",
            self.id,
            u.table,
            u.life
        );
    }

    fn slot(&self, table: Pfn, i: usize) -> &AtomicU64 {
        debug_assert!(i < FANOUT);
        // SAFETY: the slot lies in a frame of RAM. Table pages are accessed only as atomics.
        unsafe { &*self.machine().frame_ptr(table).cast::<AtomicU64>().add(i) }
    }
}

/// Asks the host for short time slices of the calling thread. A yield gives up the rest of a slice, so short slices
/// make yields cheaper on a busy host. Hosts without such slices ignore the request.
fn ask_for_short_slices() {
    #[cfg(all(target_os = "linux", not(miri)))]
    // SAFETY: `attr` is a `sched_attr` of its stated size, for which all zeroes are a valid value. The calls affect
    // only this thread.
    unsafe {
        let mut attr: libc::sched_attr = std::mem::zeroed();
        attr.size = size_of::<libc::sched_attr>() as u32;
        attr.sched_nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        attr.sched_runtime = 100_000;
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0);
    }
}

/// The address bits by which a cached entry of `level` is found.
fn prefix(va: u64, level: u32) -> u64 {
    va / span(level)
}

fn allows(e: &Entry, access: Access, mode: Mode) -> bool {
    e.user == (mode == Mode::Program)
        && match access {
            Access::Read => true,
            Access::Write => e.write,
            Access::Exec => e.execute,
        }
}

impl<F: Simulate> Drop for Cpu<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The thread is no CPU in a moment, so it cannot tear the space down.
            std::mem::forget(self.entered.take());
        } else {
            self.leave();
        }
        match self.machine().detach(self.id) {
            // SAFETY: the thread is attached to that CPU.
            Some(other) => unsafe { threads::become_cpu(other) },
            None => {
                threads::leave_cpu();
                threads::set_relax(None);
                threads::set_disturb(None);
            }
        }
    }
}
