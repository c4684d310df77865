//! A machine with one CPU in a process, for tests of the Linux layer. Its RAM, with the memory core's page tables, is
//! an [`Arena`], a block of host memory. Each access walks the page tables, because there is no TLB. Each thread of the
//! scheduler is a host thread that runs only while it has the CPU. The clock advances when it is read. It also advances
//! to the next deadline when all threads sleep.

use crate::start::Boot;
use crate::test_host::refusal;
use quire_fs::{Port, Readiness};
use quire_heap::unsize;
use quire_hosted::{Arena, Simulate, X86_64};
use quire_linux_state::base::tables::TableMemory;
use quire_linux_state::file::trees::Trees;
use quire_linux_state::{BadAddress, End, Fpu, Interrupt, Linux, UserAccess, UserRegs};
use quire_pmap::format::index;
use quire_pmap::{Format, Hardware, KernelTables, Mmu, Request, Tables};
use quire_sync::CpuId;
use quire_sync::cpuset::CpuMask;
use quire_sync::hooks::threads::{Sleeper, set_cpu, set_sleeper};
use quire_task::{Irq, Scheduler, Thread, ThreadRef};
use quire_vm::{Access, Config, OutOfMemory, PAGE_SIZE, Pfn, Phys, PhysRange, VirtRange, Vm};
use std::alloc::{Layout, alloc_zeroed};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

/// The number of frames of RAM, which is more than any input can use.
const FRAMES: u64 = 64 << 20 >> 12;
/// The size in bytes of the floating-point state that all CPUs support.
const FLOAT: usize = 576;
/// No deadline.
const NEVER: u64 = u64::MAX;
/// The nanoseconds by which a read advances the clock.
const LOOK: u64 = 100;

/// The state of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The thread has the CPU.
    Running,
    /// The thread does not have the CPU.
    Waiting,
    /// The thread has ended.
    Gone,
}

/// The context of a thread that does not run.
pub struct Context {
    state: Mutex<State>,
    changed: Condvar,
    /// The initial registers of a thread that has not run yet.
    fresh: Mutex<Option<UserRegs>>,
    fs: AtomicU64,
    gs: AtomicU64,
    float: Mutex<[u8; FLOAT]>,
}

/// The panic payload that ends a host thread whose machine thread has ended.
struct Gone;

/// The programs of a machine. Their instructions are host code.
pub trait Programs: Send + Sync {
    /// The body of a new thread of a program. It first calls [`One::started`] and
    /// [`first_return`](crate::entry::first_return), and it ends by a system call.
    fn thread(&'static self, machine: &'static One, regs: UserRegs);

    /// Called when a thread of the machine has panicked with this text. The machine cannot be used afterwards.
    fn failed(&self, text: String);

    /// The end of the machine's time, in nanoseconds of its clock. Sleeps until a later time never end.
    fn until(&self) -> u64;

    /// Called when the CPU halts. `never` says that no thread has a deadline. Returns true if all processes except
    /// process 1 must be killed.
    fn halted(&self, never: bool) -> bool;
}

impl Context {
    fn new(fresh: Option<UserRegs>, fs: u64, gs: u64, float: [u8; FLOAT]) -> Arc<Context> {
        Arc::new(Context {
            state: Mutex::new(if fresh.is_some() { State::Waiting } else { State::Running }),
            changed: Condvar::new(),
            fresh: Mutex::new(fresh),
            fs: AtomicU64::new(fs),
            gs: AtomicU64::new(gs),
            float: Mutex::new(float),
        })
    }

    fn set(&self, state: State) {
        *lock(&self.state) = state;
        self.changed.notify_all();
    }

    /// Waits for the CPU. If the machine thread has ended, the call does not return.
    fn wait(&self) {
        let mut state = lock(&self.state);
        while *state == State::Waiting {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if *state == State::Gone {
            drop(state);
            resume_unwind(Box::new(Gone));
        }
    }
}

/// Acquires a lock, also after a thread has panicked with it.
pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The machine.
pub struct One {
    arena: Arena,
    mmu: Mmu<X86_64>,
    /// The frame of the loaded root table.
    root: AtomicU64,
    current: AtomicPtr<Thread<One>>,
    masked: AtomicBool,
    pending: AtomicBool,
    deadline: AtomicU64,
    clock: AtomicU64,
    /// Nanoseconds from 1970 to boot.
    epoch: AtomicU64,
    scheduler: OnceLock<&'static Scheduler<One>>,
    linux: OnceLock<&'static Linux<One>>,
    programs: &'static dyn Programs,
}

/// The access to RAM before the machine exists.
struct Ram<'a>(&'a Arena);

// SAFETY: the arena (the host memory that is the machine's RAM) does not move, and its frames are consecutive.
unsafe impl Phys for Ram<'_> {
    fn frame_ptr(&self, pfn: Pfn) -> *mut u8 {
        self.0.ptr(pfn)
    }
    fn pfn_of(&self, at: *const u8) -> Pfn {
        self.0.pfn(at)
    }
}

/// Allocates zeroed, page-aligned memory that is never freed.
fn memory(bytes: usize) -> NonNull<u8> {
    let layout = Layout::from_size_align(bytes, PAGE_SIZE as usize).expect("a size");
    // SAFETY: the layout's size is not zero, because no caller passes 0.
    NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory of the host's")
}

impl One {
    /// Starts a machine with these files and programs. The machine runs for ever.
    pub fn boot(files: Vec<u8>, programs: &'static dyn Programs, trees: &'static dyn Trees<One>) -> &'static One {
        let arena = Arena::new(PhysRange { start: Pfn(0x100), end: Pfn(0x100 + FRAMES) })
            .expect("the host gives memory for the arena");
        let range = arena.range();
        let (ram, mut taken) = (Ram(&arena), range.start.0);
        let mut frame = || {
            taken += 1;
            Some(Pfn(taken - 1))
        };
        let root = frame().expect("frames are counted up");
        // SAFETY: no other code gets the frames that `frame` has counted, and `ram` is the machine's memory.
        let mut kernel = unsafe { KernelTables::<X86_64>::new(&ram, root) };
        let window = VirtRange { start: X86_64::KERNEL_HALF, end: X86_64::KERNEL_HALF + (1 << 30) };
        // SAFETY: the frames that `frame` has counted go to these tables alone, and `ram` is the machine's memory.
        let reserved = unsafe { kernel.reserve(&ram, window, &mut frame) };
        reserved.expect("the first of the kernel's half can be reserved");
        let root = kernel.root();
        // SAFETY: the memory is new, has that size, and is never freed.
        let mmu = unsafe { Mmu::new(memory(Mmu::<X86_64>::bytes(1)), 1, kernel, true) };
        let machine = One {
            arena,
            mmu,
            root: AtomicU64::new(root.0),
            current: AtomicPtr::new(ptr::null_mut()),
            masked: AtomicBool::new(true),
            pending: AtomicBool::new(false),
            deadline: AtomicU64::new(NEVER),
            clock: AtomicU64::new(1_000_000),
            epoch: AtomicU64::new(1_700_000_000_000_000_000),
            scheduler: OnceLock::new(),
            linux: OnceLock::new(),
            programs,
        };
        let ram = [PhysRange { start: Pfn(taken), end: range.end }];
        // SAFETY: the frames belong to the arena, which the machine owns for ever.
        let vm = unsafe { Vm::new(machine, &ram, Config::default()) }.expect("there is enough memory");
        let machine = vm.machine();
        // SAFETY: the memory is new, has that size, and is never freed. The scheduler is not moved.
        let scheduler = unsafe { Scheduler::new(machine, memory(Scheduler::<One>::bytes(1)), 1) };
        let scheduler: &'static Scheduler<One> = Box::leak(Box::new(scheduler));
        let _ = machine.scheduler.set(scheduler);
        machine.host_thread(move || {
            unsafe fn release(_forever: NonNull<Thread<One>>) {}
            let idle = Thread::new(Context::new(None, 0, 0, [0; FLOAT]), None, release);
            // SAFETY: the thread is leaked, and the handle takes over its first reference.
            scheduler.start_cpu(unsafe { ThreadRef::adopt(NonNull::from(Box::leak(Box::new(idle)))) });
            machine.masked.store(false, SeqCst);
            let ram = vm.frames().total() * PAGE_SIZE;
            let bytes = Linux::<One>::table_bytes(ram, scheduler.cpus());
            // SAFETY: the memory is new, has that size, and is never freed.
            let tables = unsafe { TableMemory::new(memory(bytes), bytes) };
            let linux = Linux::new(vm, scheduler, ram, tables, trees).expect("the Linux layer can be built");
            let _ = machine.linux.set(linux);
            let notifier = Context::new(None, 0, 0, [0; FLOAT]);
            notifier.set(State::Waiting);
            let context = notifier.clone();
            machine.host_thread(move || {
                context.wait();
                machine.started();
                linux.notify_timer_files()
            });
            let notifier = Box::leak(Box::new(Thread::new(notifier, None, release)));
            // SAFETY: the thread is leaked, and the handle takes over its first reference.
            scheduler.spawn(unsafe { ThreadRef::adopt(NonNull::from(notifier)) });
            let boot = Boot {
                initramfs: &mut &files[..],
                io: nowhere(),
                error: nowhere(),
                size: Default::default(),
                limits: Default::default(),
            };
            crate::start::start(linux, boot).unwrap_or_else(|e| panic!("{e}"));
            scheduler.idle()
        });
        machine
    }

    /// The Linux layer.
    pub fn linux(&self) -> &'static Linux<One> {
        self.linux.get().expect("programs run after the system exists")
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &'static Scheduler<One> {
        self.scheduler.get().expect("threads run after the machine exists")
    }

    /// Runs `body` on a host thread that is a thread of the machine. A panic in it ends the machine.
    fn host_thread(&'static self, body: impl FnOnce() + Send + 'static) {
        let run = move || {
            set_cpu(0);
            set_sleeper(Some(self));
            let Err(panic) = catch_unwind(AssertUnwindSafe(body)) else { return };
            if panic.is::<Gone>() {
                return;
            }
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            self.programs.failed(text.unwrap_or_default());
        };
        let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(run);
        thread.expect("the host gives a thread");
    }

    /// Handles interrupts, and lets other threads run. Called between two instructions of a program.
    pub fn poll(&self) {
        if self.deadline.load(SeqCst) <= self.clock.load(SeqCst) {
            self.deadline.store(NEVER, SeqCst);
            self.scheduler().timer_interrupt();
        }
        if self.pending.load(SeqCst) {
            // SAFETY: this machine's threads keep their stacks.
            unsafe { self.scheduler().preempt_departing() };
        }
    }

    /// The time of the clock in nanoseconds since boot. The call does not advance the clock.
    pub fn clock(&self) -> u64 {
        self.clock.load(SeqCst)
    }

    /// The calling thread's context.
    fn context(&self) -> &Context {
        // SAFETY: the running thread is alive, and only it uses its context.
        unsafe { &*(*self.current.load(SeqCst)).context() }
    }

    /// Translates `va` by the loaded tables. `None` if a program's access to it would fault.
    fn walk(&self, va: u64, access: Access) -> Option<*mut u8> {
        let mut table = Pfn(self.root.load(SeqCst));
        let mut level = X86_64::LEVELS;
        loop {
            level -= 1;
            let slot = self.arena.ptr(table).cast::<u64>().wrapping_add(index(va, level));
            // SAFETY: the pointer is to an entry of a table page, and entries are changed only by atomic operations.
            let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(slot) }.load(SeqCst);
            let leaf = level == 0;
            let seen = X86_64::present(word).then(|| X86_64::see(word, leaf)).filter(|seen| seen.user)?;
            if access == Access::Write && !seen.write || access == Access::Exec && !seen.execute {
                return None;
            }
            table = X86_64::frame(word);
            if leaf {
                return Some(self.arena.ptr(table).wrapping_add((va % PAGE_SIZE) as usize));
            }
        }
    }

    /// Translates `va` like [`Self::walk`], and serves page faults.
    fn reach(&self, va: u64, access: Access) -> Option<*mut u8> {
        // After a fault is served, the walk succeeds, because only this CPU could remove the mapping again. The limit
        // finds endless faults.
        for _ in 0..10 {
            if let Some(at) = self.walk(va, access) {
                return Some(at);
            }
            if !crate::entry::kernel_fault(self.linux(), va, access) {
                return None;
            }
        }
        panic!("the fault at {va:#x} repeats after its repair");
    }

    /// Splits `len` bytes from `va` on at page boundaries, and calls `f` for each part. The arguments are the
    /// translated address, the offset in the whole, and the length.
    fn each(
        &self,
        va: u64,
        len: usize,
        access: Access,
        mut f: impl FnMut(*mut u8, usize, usize),
    ) -> Result<(), BadAddress> {
        let mut done = 0;
        while done < len {
            let at = va + done as u64;
            let part = (len - done).min((PAGE_SIZE - at % PAGE_SIZE) as usize);
            f(self.reach(at, access).ok_or(BadAddress { left: len - done })?, done, part);
            done += part;
        }
        Ok(())
    }
}

// SAFETY: the scheduler keeps the token of an early `unpark`, and only the machine's own threads use their handles.
unsafe impl Sleeper for One {
    fn current(&self) -> usize {
        self.current.load(SeqCst) as usize
    }
    fn park(&self, deadline: Option<u64>) {
        self.scheduler().park(deadline);
    }
    fn unpark(&self, thread: usize) {
        // SAFETY: the handle is the address of a thread that exists while another thread may wake it.
        self.scheduler().unpark(unsafe { &*(thread as *const Thread<One>) });
    }
    fn now(&self) -> u64 {
        quire_task::Machine::now(self)
    }
}

// SAFETY: each frame number is a page of the arena, which stays in place as long as the machine.
unsafe impl Phys for One {
    fn frame_ptr(&self, pfn: Pfn) -> *mut u8 {
        self.arena.ptr(pfn)
    }
    fn pfn_of(&self, at: *const u8) -> Pfn {
        self.arena.pfn(at)
    }
}

impl quire_vm::Machine for One {
    type Pmap = Tables<X86_64>;
    fn cpus(&self) -> usize {
        1
    }
    fn store_time(&self) -> u64 {
        quire_linux_state::Machine::realtime(self)
    }
    fn is_ending(&self) -> bool {
        // SAFETY: `current` returns the running thread, which exists while it runs.
        let payload = unsafe { (*quire_task::Machine::current(self)).payload() };
        payload.as_ref().is_some_and(quire_linux_state::process::thread::Thread::killed)
    }
    fn refuses_allocation(&self) -> bool {
        refusal::refuses()
    }
}

// SAFETY: there is only one CPU, and it caches no translations.
unsafe impl Hardware for One {
    type Format = X86_64;
    fn mmu(&self) -> &Mmu<X86_64> {
        &self.mmu
    }
    unsafe fn load_root(&self, root: Pfn, _tag: u16, _keep: bool) {
        self.root.store(root.0, SeqCst);
    }
    fn drop_page(&self, _va: u64) {}
    fn drop_loaded(&self, _root: Pfn, _tag: u16) {}
    fn drop_all(&self) {}
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }
    fn shoot(&self, targets: &CpuMask, request: &Request<'_, X86_64>) {
        if targets.contains(0) {
            request.serve(self);
        }
    }
}

// SAFETY: the only CPU runs one thread at a time, and interrupts are handled only in `poll` and `halt`.
unsafe impl quire_task::Machine for One {
    type Context = Arc<Context>;
    type Payload = Option<quire_linux_state::Thread<One>>;

    fn now(&self) -> u64 {
        self.clock.fetch_add(LOOK, SeqCst)
    }
    fn arm(&self, deadline: Option<u64>) {
        self.deadline.store(deadline.unwrap_or(NEVER), SeqCst);
    }
    fn kick(&self, cpu: CpuId) {
        panic!("CPU {cpu} is interrupted, but the machine has one CPU");
    }
    fn halt(&self) {
        self.masked.store(false, SeqCst);
        let due = self.deadline.swap(NEVER, SeqCst);
        // A deadline after the end of the machine's time counts as no deadline.
        let due = if due > self.programs.until() { NEVER } else { due };
        if self.programs.halted(due == NEVER) {
            // All threads sleep without a deadline, or run for ever. All processes except process 1 are killed, and
            // process 1 waits for them.
            let linux = self.linux();
            linux
                .ids
                .processes()
                .filter(|p| p.pid != 1)
                .for_each(|p| linux.kill_process(&p, quire_linux_state::signal::Signal::KILL));
        }
        if due != NEVER {
            self.clock.fetch_max(due, SeqCst);
            self.scheduler().timer_interrupt();
        }
    }
    fn mask(&self) -> Irq {
        if self.masked.swap(true, SeqCst) { Irq::Off } else { Irq::On }
    }
    fn restore(&self, was: Irq) {
        self.masked.store(was == Irq::Off, SeqCst);
    }
    fn current(&self) -> *const Thread<Self> {
        self.current.load(SeqCst)
    }
    unsafe fn set_current(&self, thread: *const Thread<Self>) {
        self.current.store(thread.cast_mut(), SeqCst);
    }
    fn set_pending(&self, pending: bool) {
        self.pending.store(pending, SeqCst);
    }
    unsafe fn switch(&self, prev: &Thread<Self>, next: &Thread<Self>) {
        assert!(self.masked.load(SeqCst), "a switch with interrupts on");
        if let Some(thread) = prev.payload() {
            thread.switched_away();
        }
        refusal::for_host(|| {
            // The contexts are cloned, because `prev` may be freed as soon as `next` runs.
            // SAFETY: by the trait's contract, this call may access both contexts.
            let (own, them) = unsafe { ((*prev.context()).clone(), (*next.context()).clone()) };
            // SAFETY: this code is the switch to `next`, and no other CPU exists, so no thread replaces the address
            // space of `next`.
            match next.payload().as_ref().and_then(|t| unsafe { t.pmap() }) {
                // SAFETY: interrupts are masked, and an address space exists as long as a thread refers to it.
                Some(pmap) => unsafe { pmap.switch_in(self, 0) },
                // SAFETY: interrupts are masked, and the CPU may load the kernel's own root at any time.
                None => unsafe { self.mmu.leave(self, 0) },
            }
            own.set(State::Waiting);
            let fresh = lock(&them.fresh).take();
            match fresh {
                None => them.set(State::Running),
                Some(regs) => {
                    *lock(&them.state) = State::Running;
                    let machine = self.linux().machine;
                    machine.host_thread(move || machine.programs.thread(machine, regs));
                }
            }
            own.wait();
        });
    }
    fn reap(&self, thread: ThreadRef<Self>) {
        // SAFETY: the thread has left its stack and never returns to it.
        unsafe { (*thread.context()).set(State::Gone) };
    }
}

impl One {
    /// Completes the switch to a new thread. The thread calls this first, on its own stack.
    pub fn started(&self) {
        self.scheduler().started();
    }
}

// SAFETY: the methods access only memory that the loaded tables allow a program to access, and translate each page at
// each access.
unsafe impl UserAccess for One {
    fn killed(&self) -> bool {
        quire_vm::Machine::is_ending(self)
    }
    unsafe fn copy_from_user(&self, to: *mut u8, from: u64, len: usize) -> Result<(), BadAddress> {
        // SAFETY: `each` gives parts of mapped pages, and the caller guarantees that `to` has `len` bytes.
        self.each(from, len, Access::Read, |at, done, part| unsafe { at.copy_to(to.add(done), part) })
    }
    unsafe fn copy_to_user(&self, to: u64, from: *const u8, len: usize) -> Result<(), BadAddress> {
        // SAFETY: `each` gives parts of the arena that the tables map for stores, and the caller guarantees that `from`
        // has `len` bytes.
        self.each(to, len, Access::Write, |at, done, part| unsafe { at.copy_from(from.add(done), part) })
    }
    fn clear_user(&self, to: u64, len: usize) -> Result<(), BadAddress> {
        // SAFETY: `each` gives parts of the arena that the tables map for stores.
        self.each(to, len, Access::Write, |at, _, part| unsafe { at.write_bytes(0, part) })
    }
    unsafe fn string_from_user(&self, to: *mut u8, from: u64, len: usize) -> Result<usize, BadAddress> {
        for i in 0..len {
            let at = self.reach(from + i as u64, Access::Read).ok_or(BadAddress { left: len - i })?;
            // SAFETY: `reach` gives an address in the arena that the tables map for loads.
            let byte = unsafe { at.read() };
            // SAFETY: the caller guarantees that `to` has `len` bytes.
            unsafe { to.add(i).write(byte) };
            if byte == 0 {
                return Ok(i);
            }
        }
        Ok(len)
    }
    fn load_user_u32(&self, at: u64) -> Result<u32, BadAddress> {
        let at = self.reach(at, Access::Read).ok_or(BadAddress { left: 4 })?;
        // SAFETY: the address is aligned by the trait's contract, so the word is within a mapped page.
        Ok(unsafe { at.cast::<u32>().read() })
    }
    fn peek_user_u32(&self, at: u64) -> Result<u32, BadAddress> {
        let at = self.walk(at, Access::Read).ok_or(BadAddress { left: 4 })?;
        // SAFETY: `walk` gives an address in the arena, and an aligned word is within one page.
        Ok(unsafe { at.cast::<u32>().read() })
    }
    fn compare_exchange_user_u32(&self, at: u64, old: u32, new: u32) -> Result<u32, BadAddress> {
        let at = self.reach(at, Access::Write).ok_or(BadAddress { left: 4 })?.cast::<u32>();
        // SAFETY: `reach` gives an address in the arena that may be stored to. The exchange is atomic, because there is
        // only one CPU.
        unsafe {
            let was = at.read();
            if was == old {
                at.write(new);
            }
            Ok(was)
        }
    }
    fn try_exchange_user_u32(&self, at: u64, old: u32, new: u32) -> Result<u32, BadAddress> {
        let at = self.walk(at, Access::Write).ok_or(BadAddress { left: 4 })?.cast::<u32>();
        // SAFETY: `walk` gives an address in the arena that may be stored to. The exchange is atomic, because there is
        // only one CPU.
        unsafe {
            let was = at.read();
            if was == old {
                at.write(new);
            }
            Ok(was)
        }
    }
}

impl quire_linux_state::Machine for One {
    fn new_context(&self, regs: &UserRegs, fs: u64, gs: u64, fpu: Fpu) -> Result<Arc<Context>, OutOfMemory> {
        if refusal::refuses() {
            return Err(OutOfMemory);
        }
        let float = match fpu {
            Fpu::Fresh => [0; FLOAT],
            Fpu::Copy => *lock(&self.context().float),
        };
        Ok(refusal::for_host(|| Context::new(Some(*regs), fs, gs, float)))
    }
    fn activate(&self, pmap: Option<&Tables<X86_64>>) {
        match pmap {
            // SAFETY: the only CPU handles no interrupts here, and an address space exists while a thread has it.
            Some(pmap) => unsafe { pmap.switch_in(self, 0) },
            // SAFETY: the CPU handles no interrupts here, and it may load the kernel's own root at any time.
            None => unsafe { self.mmu.leave(self, 0) },
        }
    }
    fn fs_base(&self) -> u64 {
        self.context().fs.load(SeqCst)
    }
    fn set_fs_base(&self, base: u64) {
        assert!(base <= quire_linux_state::user::USER_END, "{base:#x} is no program's");
        self.context().fs.store(base, SeqCst);
    }
    fn is_counter_forbidden(&self) -> bool {
        false
    }
    fn forbid_counter(&self, _forbid: bool) {}
    fn gs_base(&self) -> u64 {
        self.context().gs.load(SeqCst)
    }
    fn set_gs_base(&self, base: u64) {
        assert!(base <= quire_linux_state::user::USER_END, "{base:#x} is no program's");
        self.context().gs.store(base, SeqCst);
    }
    fn stack_len(&self, _thread: &quire_task::Thread<Self>) -> usize {
        0
    }
    fn fpu_len(&self) -> usize {
        FLOAT
    }
    fn fpu_features(&self) -> u64 {
        3
    }
    fn mxcsr_mask(&self) -> u32 {
        0xffbf
    }
    fn fpu_save(&self, area: &mut [u8]) {
        area[..FLOAT].copy_from_slice(&*lock(&self.context().float));
    }
    fn fpu_restore(&self, area: &[u8]) {
        // The assertions fail where the XRSTOR instruction would fault.
        assert!(area[512] & !3 == 0 && area[513..FLOAT].iter().all(|b| *b == 0), "an XSAVE header that faults");
        let mxcsr = u32::from_le_bytes([area[24], area[25], area[26], area[27]]);
        assert_eq!(mxcsr & !self.mxcsr_mask(), 0, "an MXCSR that faults");
        lock(&self.context().float).copy_from_slice(&area[..FLOAT]);
    }
    fn fpu_reset(&self) {
        *lock(&self.context().float) = [0; FLOAT];
    }
    fn realtime(&self) -> u64 {
        self.epoch.load(SeqCst).wrapping_add(self.clock.load(SeqCst))
    }
    fn set_realtime(&self, ns: u64) {
        self.epoch.store(ns.wrapping_sub(self.clock.load(SeqCst)), SeqCst);
    }
    fn entropy(&self) -> [u8; 32] {
        [7; 32]
    }
    fn hwcap(&self) -> u64 {
        0
    }
    fn describe_cpu(&self, cpu: usize, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, "processor\t: {cpu}\n\n")
    }
    fn interrupts(&self, _cpu: usize, _kind: Interrupt) -> u64 {
        0
    }
    fn log(&self, _line: fmt::Arguments<'_>) {}
    fn verbose(&self) -> bool {
        false
    }
    fn power_off(&self, end: End) -> ! {
        panic!("the machine is switched off: {end:?}");
    }
}

/// A port without input that discards its output.
fn nowhere() -> quire_heap::Arc<dyn Port> {
    struct Nowhere(Readiness);
    impl Port for Nowhere {
        fn write(&self, bytes: &[u8]) -> usize {
            bytes.len()
        }
        fn read(&self, _into: &mut [u8]) -> usize {
            0
        }
        fn unread(&self) -> usize {
            0
        }
        fn writable(&self) -> bool {
            true
        }
        fn at_end(&self) -> bool {
            true
        }
        fn readiness(&self) -> &Readiness {
            &self.0
        }
    }
    unsize!(quire_heap::Arc::try_new(Nowhere(Readiness::new())).expect("memory"))
}
