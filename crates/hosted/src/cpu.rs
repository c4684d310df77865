//! A CPU: translating and touching memory as the hardware does, with every use of a translation checked.

use crate::machine::Hosted;
use crate::tlb::{Entry, Upper};
use quire_pmap_x86_64::word::{self, ACCESSED, DIRTY, FANOUT, GLOBAL, LARGE, LEVELS, NO_EXECUTE, USER, WRITE};
use quire_pmap_x86_64::{X86, X86Pmap};
use quire_sync::CpuId;
use quire_sync::hooks::threads;
use quire_vm::map::{Space, SpaceRef};
use quire_vm::page::Kind;
use quire_vm::{Access, FaultError, PAGE_SHIFT, PAGE_SIZE, Pfn, Phys, Vm};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the hardware reports when it cannot translate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageFault {
    /// The address.
    pub va: u64,
    /// What was tried.
    pub access: Access,
    /// Whether something was there that did not allow it.
    pub present: bool,
}

/// Faults for one access beyond which something goes round in circles: others may take the page away a few times.
const FAULTS: u32 = 100_000;

std::thread_local! {
    static DISTURBANCE: std::cell::Cell<u64> = const { std::cell::Cell::new(1) };
}

/// The calling thread as a CPU. Detaches when dropped.
pub struct Cpu {
    vm: &'static Vm<Hosted>,
    id: CpuId,
    _this_thread: PhantomData<Rc<()>>,
}

impl Cpu {
    /// Makes the calling thread CPU `id`.
    ///
    /// # Panics
    /// Where another thread is that CPU.
    pub fn attach(vm: &'static Vm<Hosted>, id: CpuId) -> Cpu {
        vm.machine().attach(id);
        threads::set_cpu(id);
        threads::set_relax(Some(Rc::new(move || vm.machine().serve(id))));
        Cpu { vm, id, _this_thread: PhantomData }
    }

    /// The CPU's number.
    pub fn id(&self) -> CpuId {
        self.id
    }

    /// The memory system.
    pub fn vm(&self) -> &'static Vm<Hosted> {
        self.vm
    }

    /// Loads the page tables of a space.
    ///
    /// # Safety
    /// The pmap is not moved or dropped without `destroy` while any CPU has it loaded.
    pub unsafe fn load(&self, pmap: &X86Pmap) {
        self.interrupts();
        // SAFETY: this thread is the CPU; flushes are served only between steps.
        unsafe { pmap.switch_in(self.machine(), self.id) }
    }

    /// Goes on with the space loaded, but without running it.
    pub fn idle(&self, pmap: &X86Pmap) {
        // SAFETY: as in `load`.
        unsafe { pmap.go_lazy(self.machine(), self.id) }
        self.interrupts();
    }

    /// Loads the kernel's own root.
    pub fn leave(&self) {
        self.interrupts();
        // SAFETY: as in `load`.
        unsafe { self.machine().mmu().leave(self.machine(), self.id) }
    }

    /// Answers what other CPUs ask of this one.
    pub fn interrupts(&self) {
        self.machine().serve(self.id);
    }

    /// From now on this CPU lets others run at random moments inside the core, where a lock is about to be taken; the moments
    /// follow from `seed` and from what this CPU does.
    pub fn disturb(&self, seed: u64) {
        DISTURBANCE.set(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        threads::set_disturb(Some(|| {
            let mut x = DISTURBANCE.get();
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            DISTURBANCE.set(x);
            if x.is_multiple_of(512) {
                // Long enough for others to do whole operations.
                std::thread::sleep(std::time::Duration::from_micros(50));
            } else if x.is_multiple_of(32) {
                (0..x >> 32 & 7).for_each(|_| std::thread::yield_now());
            }
        }));
    }

    fn machine(&self) -> &'static Hosted {
        self.vm.machine()
    }

    /// Loads the aligned word at `va` through whatever is loaded.
    pub fn load_word(&self, va: u64) -> Result<u64, PageFault> {
        let e = self.translate(va, Access::Read)?;
        let value = self.word(&e, va).load(Ordering::Acquire);
        self.interrupts();
        Ok(value)
    }

    /// Stores to the aligned word at `va` through whatever is loaded.
    pub fn store_word(&self, va: u64, value: u64) -> Result<(), PageFault> {
        let e = self.translate(va, Access::Write)?;
        let state = self.vm.page(e.frame).state();
        assert!(
            state.dirty() || state.busy(),
            "Contract C2: CPU {} stores at {va:#x} through a writable translation of {:?}, whose page is not marked dirty: {state:?}",
            self.id,
            e.frame
        );
        self.word(&e, va).store(value, Ordering::Release);
        self.interrupts();
        Ok(())
    }

    /// Loads the page tables of `space`, whose last handle sees to it that no CPU has them any more.
    pub fn enter(&self, space: &SpaceRef<Hosted>) {
        // SAFETY: a space destroys its pmap when its last handle goes, and stays where it is until then.
        unsafe { self.load(space.pmap()) }
    }

    /// Loads the aligned word at `va` in `space`, which is loaded; faults as a program would.
    pub fn read(&self, space: &Space<Hosted>, va: u64) -> Result<u64, FaultError> {
        self.served(space, || self.load_word(va))
    }

    /// Stores to the aligned word at `va` in `space`, which is loaded; faults as a program would.
    pub fn write(&self, space: &Space<Hosted>, va: u64, value: u64) -> Result<(), FaultError> {
        self.served(space, || self.store_word(va, value))
    }

    /// Executes at `va` in `space`, which is loaded; faults as a program would.
    pub fn execute(&self, space: &Space<Hosted>, va: u64) -> Result<(), FaultError> {
        self.served(space, || self.fetch(va))
    }

    /// Tries until it goes through or the core refuses.
    fn served<R>(&self, space: &Space<Hosted>, access: impl Fn() -> Result<R, PageFault>) -> Result<R, FaultError> {
        for _ in 0..FAULTS {
            let fault = match access() {
                Ok(r) => return Ok(r),
                Err(fault) => fault,
            };
            self.interrupts();
            let _kind = space.fault(fault.va, fault.access)?;
            self.interrupts();
        }
        panic!("no progress: an access still faults after {FAULTS} faults were served");
    }

    /// Fetches an instruction at `va`: only the translation counts.
    pub fn fetch(&self, va: u64) -> Result<(), PageFault> {
        self.translate(va, Access::Exec)?;
        self.interrupts();
        Ok(())
    }

    fn word(&self, e: &Entry, va: u64) -> &AtomicU64 {
        assert!(va.is_multiple_of(8), "accesses are aligned words");
        let p = self.machine().frame_ptr(e.frame).wrapping_add((va % PAGE_SIZE) as usize);
        // SAFETY: within a frame of RAM; memory that programs reach is touched as atomics here.
        unsafe { &*p.cast::<AtomicU64>() }
    }

    /// One translation, as the hardware makes it, checked.
    fn translate(&self, va: u64, access: Access) -> Result<Entry, PageFault> {
        let (_, pcid) = self.machine().cr3(self.id);
        let page = va >> PAGE_SHIFT;
        let fault = |present| {
            // A fault takes the page's translation with it, and the upper levels that led there.
            let prefixes = (1..LEVELS).map(|l| (l, prefix(va, l)));
            self.machine().with_tlb(self.id, |t| t.faulted(pcid, page, prefixes));
            PageFault { va, access, present }
        };
        let cached = self.machine().with_tlb(self.id, |t| t.get(pcid, page));
        let entry = match cached {
            Some(e) => {
                self.check(&e, va, "cached");
                if !allows(&e, access) {
                    return Err(fault(true));
                }
                // A store through a translation that is not known to be dirty looks at the tables again.
                if access == Access::Write && !e.dirty { self.walk(va, access, pcid).map_err(fault)? } else { e }
            }
            None => self.walk(va, access, pcid).map_err(fault)?,
        };
        self.check(&entry, va, "fresh");
        Ok(entry)
    }

    /// The heart of the oracle: a translation is used only in the life of the frame that it was made for.
    fn check(&self, e: &Entry, va: u64, how: &str) {
        let (life, kind) = (self.machine().life(e.frame), self.vm.page(e.frame).kind());
        assert!(
            e.life == life && kind == Kind::Object,
            "stale translation: CPU {} reaches {va:#x} through a {how} translation to {:?}, made in its life {}, which is now \
             {kind:?} in life {life}",
            self.id,
            e.frame,
            e.life
        );
    }

    /// Translates `va` ahead of any use, as speculation and prefetch do.
    pub fn speculate(&self, va: u64) {
        let (_, pcid) = self.machine().cr3(self.id);
        if self.machine().with_tlb(self.id, |t| t.get(pcid, va >> PAGE_SHIFT)).is_none() {
            let _ = self.walk(va, Access::Read, pcid);
        }
        self.interrupts();
    }

    /// Walks the tables; the error says whether something was present that forbade the access.
    fn walk(&self, va: u64, access: Access, pcid: u16) -> Result<Entry, bool> {
        let m = self.machine();
        let (root, _) = m.cr3(self.id);
        // From the lowest upper level that is cached.
        let cached =
            m.with_tlb(self.id, |t| (1..LEVELS).find_map(|l| t.get_upper(pcid, l, prefix(va, l)).map(|u| (l, u))));
        let (mut level, mut at) = match cached {
            Some((l, u)) => (l - 1, u),
            None => (LEVELS - 1, Upper { table: root, user: true, write: true, life: m.life(root) }),
        };
        loop {
            self.check_table(&at, va);
            let slot = self.slot(at.table, word::index(va, level));
            let mut w = slot.load(Ordering::Acquire);
            if !word::present(w) {
                return Err(false);
            }
            if level == 0 || w & LARGE != 0 {
                loop {
                    let mut e = Entry {
                        frame: Pfn((word::frame(w).0 & !((word::span(level) >> PAGE_SHIFT) - 1))
                            + ((va & (word::span(level) - 1)) >> PAGE_SHIFT)),
                        user: at.user && w & USER != 0,
                        write: at.write && w & WRITE != 0,
                        execute: w & NO_EXECUTE == 0,
                        dirty: w & DIRTY != 0,
                        life: 0,
                    };
                    if !allows(&e, access) {
                        return Err(true);
                    }
                    let seen = w | ACCESSED | if access == Access::Write { DIRTY } else { 0 };
                    if let Err(now) = slot.compare_exchange(w, seen, Ordering::AcqRel, Ordering::Acquire) {
                        // Changed under the walk: hardware looks again.
                        if !word::present(now) {
                            return Err(false);
                        }
                        w = now;
                        continue;
                    }
                    e.dirty = seen & DIRTY != 0;
                    // The frame cannot be freed before this CPU has answered a flush, so this is its life in the tables.
                    e.life = m.life(e.frame);
                    m.with_tlb(self.id, |t| t.put(pcid, va >> PAGE_SHIFT, e, w & GLOBAL != 0));
                    return Ok(e);
                }
            }
            let table = word::frame(w);
            at =
                Upper { table, user: at.user && w & USER != 0, write: at.write && w & WRITE != 0, life: m.life(table) };
            m.with_tlb(self.id, |t| t.put_upper(pcid, level, prefix(va, level), at));
            level -= 1;
        }
    }

    fn check_table(&self, u: &Upper, va: u64) {
        let (life, kind) = (self.machine().life(u.table), self.vm.page(u.table).kind());
        assert!(
            u.life == life && matches!(kind, Kind::Table | Kind::Reserved),
            "stale upper level: CPU {} walks to {va:#x} through table page {:?} of life {}, which is now {kind:?} in life {life}",
            self.id,
            u.table,
            u.life
        );
    }

    fn slot(&self, table: Pfn, i: usize) -> &AtomicU64 {
        debug_assert!(i < FANOUT);
        // SAFETY: a frame of RAM; table pages are touched as atomics only.
        unsafe { &*self.machine().frame_ptr(table).cast::<AtomicU64>().add(i) }
    }
}

/// The address bits that an entry at `level` is found by.
fn prefix(va: u64, level: u32) -> u64 {
    va / word::span(level)
}

fn allows(e: &Entry, access: Access) -> bool {
    e.user
        && match access {
            Access::Read => true,
            Access::Write => e.write,
            Access::Exec => e.execute,
        }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.leave();
        }
        self.machine().detach(self.id);
        threads::set_relax(None);
        threads::set_disturb(None);
    }
}
