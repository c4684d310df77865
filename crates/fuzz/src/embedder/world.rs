//! Two memory systems, the objects of an input, and the check for leaks at the end of each input.

use super::pagers::{Blank, Disk, Keeper, Late};
use quire_hosted::{Account, Cpu, Hosted, Settings};
use quire_sync::Quota;
use quire_vm::check::Level;
use quire_vm::map::kernel::KernelMap;
use quire_vm::map::{Maps, Space, SpaceRef};
use quire_vm::paging::memory_store::{FaultPlan, MemoryStore};
use quire_vm::phys::frames::Frame;
use quire_vm::{MemoryType, ObjectRef, PAGE_SIZE, PhysRange, Vm};
use std::ptr::NonNull;
use std::sync::Mutex;

/// A memory system on a hosted machine.
pub type V = &'static Vm<Hosted>;

/// The number of threads that run operations. The thread of the input is one more CPU.
pub const PLAYERS: usize = 2;
/// The number of spaces, and of objects, of each system.
pub const THINGS: usize = 3;
/// The frames of each system: few, so that an input can exhaust them.
const FRAMES: u64 = 2500;
/// The pages of swap.
const SLOTS: u64 = 256;
/// The limit of a quota, in pages.
const QUOTA: u64 = 24;

/// An object that threads share and sometimes replace. The lock is held only for a clone or an exchange. A thread
/// that waits for the lock cannot answer the flush requests of other CPUs.
pub struct Replaceable<T>(Mutex<T>);

impl<T: Clone> Replaceable<T> {
    fn new(thing: T) -> Self {
        Replaceable(Mutex::new(thing))
    }
    /// Returns another handle.
    pub fn get(&self) -> T {
        self.0.lock().expect("a clone does not panic").clone()
    }
    /// Replaces the object. The old one is dropped when no thread uses it any more.
    pub fn put(&self, thing: T) {
        let old = std::mem::replace(&mut *self.0.lock().expect("a clone does not panic"), thing);
        drop(old);
    }
}

/// The spaces and objects of an input. The first half of each list belongs to the first system.
pub struct Scene {
    /// Address spaces.
    pub spaces: Vec<Replaceable<SpaceRef<Hosted>>>,
    /// Objects. One of each system has a pager.
    pub objects: Vec<Replaceable<ObjectRef<Hosted>>>,
}

/// The state that is kept from input to input.
pub struct World {
    /// The two memory systems.
    pub vms: [V; 2],
    /// The kernel map of each system.
    pub kernels: [&'static KernelMap<Hosted>; 2],
    /// The quotas that are charged for files in memory.
    pub quotas: [&'static Quota; 2],
    /// The swap store of the first system.
    pub swap: &'static MemoryStore,
    /// The store with the contents of the files of both systems.
    pub file_store: &'static MemoryStore,
    before: Vec<Account>,
}

impl World {
    pub fn new() -> World {
        let settings = Settings {
            cpus: PLAYERS + 1,
            frames: FRAMES,
            device_frames: 8,
            zero_stock: 16,
            layers: 3,
            ..Settings::default()
        };
        let vms: [V; 2] = std::array::from_fn(|n| {
            Hosted::boot(Settings { pcid: n == 0, ..settings }).expect("the settings are valid for a machine")
        });
        let cpus = vms.map(|vm| Cpu::attach(vm, PLAYERS).expect("no other thread is this CPU"));
        let kernels = vms.map(|vm| {
            let window = Hosted::KERNEL_WINDOW;
            // SAFETY: the window is reserved in every space's tables, and this is the only map of it.
            let map = unsafe { KernelMap::new(vm, window, 4 * PAGE_SIZE) }.expect("memory for a map");
            &*Box::leak(Box::new(map))
        });
        let plan = FaultPlan { delay: 2, window: 4, fail_reads: 50, fail_writes: 50, seed: 7, ..FaultPlan::default() };
        let [swap, file_store] = [plan, FaultPlan::default()].map(|plan| {
            let bytes = vec![0u8; (SLOTS * PAGE_SIZE) as usize].leak();
            // SAFETY: the bytes are leaked, are as many as the store has pages, and belong only to the store.
            let store = unsafe { MemoryStore::new(NonNull::from(&mut bytes[0]), SLOTS, plan) };
            &*Box::leak(Box::new(store))
        });
        vms[0].add_polled_swap(swap).expect("there is none yet");
        vms[1].add_swap(&Blank).expect("there is none yet");
        for (vm, kernel) in vms.iter().zip(kernels) {
            vm.poll_with(&Late).expect("there is room");
            vm.reclaim_from(&Keeper);
            assert_eq!(vm.leak(7u64), Ok(&7));
            // The buffer stays for ever. It is made before `Account::of` counts the memory in use, so it is no leak.
            let _stays = kernel.buffer(PAGE_SIZE).expect("memory for a buffer").keep();
        }
        let world = World {
            vms,
            kernels,
            quotas: [(); 2].map(|()| &*Box::leak(Box::new(Quota::leaked(PLAYERS + 1, QUOTA)))),
            swap,
            file_store,
            before: Vec::new(),
        };
        drop(world.scene());
        let before = vms.iter().map(|vm| Account::of(vm)).collect();
        drop(cpus);
        World { before, ..world }
    }

    /// Runs `f`. Meanwhile the calling thread acts as the last CPU of both systems, which runs no operations.
    pub fn as_one(&self, f: impl FnOnce(&[Cpu; 2])) {
        let cpus = self.vms.map(|vm| Cpu::attach(vm, PLAYERS).expect("no other thread is this CPU"));
        f(&cpus);
    }

    pub fn scene(&self) -> Scene {
        let each = || (0..2 * THINGS).map(|n| (n, self.vms[n / THINGS]));
        let spaces = each().map(|(_, vm)| Replaceable::new(Space::new(vm).expect("memory for a space"))).collect();
        let object = |(n, vm): (usize, V)| {
            let object = match n % THINGS {
                0 => ObjectRef::anonymous(vm, 16),
                1 => ObjectRef::with_pager(vm, &Disk, 40 * PAGE_SIZE),
                _ => ObjectRef::charged(vm, &Blank, 16 * PAGE_SIZE, Some(self.quotas[n / THINGS])),
            };
            Replaceable::new(object.expect("memory for an object"))
        };
        Scene { spaces, objects: each().map(object).collect() }
    }

    /// Makes a device object of system `n`.
    pub fn device(&self, n: usize) -> Result<ObjectRef<Hosted>, quire_vm::OutOfMemory> {
        let frames = self.vms[n].machine().devices();
        // SAFETY: the frames are the simulated device's. Only device objects use them, always with this memory type.
        unsafe { ObjectRef::device(self.vms[n], PhysRange { ..frames }, MemoryType::Uncached) }
    }

    /// Ends an input: drops everything, and checks that nothing was lost.
    pub fn settle(&self, scene: Scene) {
        super::pagers::calm();
        for vm in self.vms {
            vm.fail_allocation(0);
            vm.set_check_level(Level::DEFAULT);
        }
        self.quotas.iter().for_each(|quota| quota.set_limit(QUOTA));
        for space in &scene.spaces {
            space.get().check(true).unwrap_or_else(|broken| panic!("{broken}"));
        }
        drop(scene);
        for kernel in self.kernels {
            kernel.reclaim_all();
        }
        for (n, vm) in self.vms.into_iter().enumerate() {
            self.before[n].assert_settled(vm);
            assert_eq!(super::pagers::stores(), 0, "a pager's counts of stores that began and ended differ");
            assert_eq!(self.quotas[n].taken(), 0, "pages stay charged without an object");
            vm.frames().check().unwrap_or_else(|broken| panic!("{broken:?}"));
        }
    }
}

/// How several frames were allocated together.
pub enum Run {
    /// Log2 of the number of frames.
    Aligned(u8),
    /// The number of frames.
    Contiguous(u64),
}

/// Frees the frames from `first` on, which `vm` allocated as `run` says.
pub fn give_back(vm: &Maps<Hosted>, first: Frame, run: &Run) {
    // SAFETY: the caller has stored with the first frame how it was allocated, and from which system. It does not use
    // the frames any more.
    unsafe {
        match *run {
            Run::Aligned(order) => vm.free_run(first, order),
            Run::Contiguous(count) => vm.free_contiguous(first, count),
        }
    }
}
