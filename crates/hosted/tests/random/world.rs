//! The state that the workers share: spaces with the models of their lanes, objects with their stamps, and a logical
//! clock. A *lane* is the set of pages that only one CPU maps and stamps; a *stamp* is a word that identifies a store.

use crate::apart::Hoard;
use crate::paging::Disk;
use quire_hosted::model::{Content, Page, Span};
use quire_hosted::{Cpu, Simulate, Simulated};
use quire_sync::Mutex;
use quire_vm::map::SpaceRef;
use quire_vm::object::ObjectRef;
use quire_vm::paging::memory_store::FaultPlan;
use quire_vm::paging::pager::{Pager, PagerError};
use quire_vm::{MemoryType, PAGE_SIZE};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The pages of a lane. The first [`MIXED_PAGES`] lie in blocks between other lanes' blocks and share table pages with
/// them. The rest is contiguous, across the border of two table pages.
pub const LANE_PAGES: usize = 160;
/// The pages of a lane that lie between other lanes' pages.
pub const MIXED_PAGES: usize = 64;
/// The pages of one block of a lane that lies between other lanes' blocks.
pub const BLOCK: usize = 16;
/// The pages of each shared object that one lane stamps.
pub const PART: usize = 12;
/// The pages of the device that each lane uses.
pub const DEVICE_PART: u64 = 3;
/// The pages of the file on disk that each lane uses.
pub const FILE_PART: u64 = 10;
/// The pages of the file `World::file`.
pub const FILE_PAGES: usize = 64;

const MIXED: u64 = 0x4000_0000 - 5 * PAGE_SIZE;

/// The address of the lanes' contiguous parts, near the end of user addresses.
const fn apart<F: Simulate>() -> u64 {
    ((F::USER.end >> 30) << 30) - (15 << 30)
}

/// One address space, with the models of its contents.
pub struct SpaceModel<F: Simulate> {
    pub space: SpaceRef<Simulated<F>>,
    pub lanes: Vec<Mutex<Vec<Page>>>,
    /// The number of watchers: forks under way, and accesses to other lanes.
    watchers: AtomicUsize,
    /// The hot spot: a lane and a page of it that CPUs prefer, so that they meet.
    hot: AtomicUsize,
}

/// While this value lives, the models of the lanes keep their past states.
pub struct Watch<'a, F: Simulate>(&'a SpaceModel<F>);

impl<F: Simulate> SpaceModel<F> {
    pub fn new(space: SpaceRef<Simulated<F>>, lanes: Vec<Vec<Page>>) -> Arc<Self> {
        let lanes = lanes.into_iter().map(Mutex::new).collect();
        Arc::new(SpaceModel { space, lanes, watchers: AtomicUsize::new(0), hot: AtomicUsize::new(0) })
    }

    pub fn hot(&self) -> (usize, usize) {
        let hot = self.hot.load(Ordering::Relaxed);
        (hot / LANE_PAGES, hot % LANE_PAGES)
    }

    pub fn heat(&self, lane: usize, page: usize) {
        self.hot.store(lane * LANE_PAGES + page, Ordering::Relaxed);
    }

    pub fn watch(&self) -> Watch<'_, F> {
        self.watchers.fetch_add(1, Ordering::SeqCst);
        Watch(self)
    }

    pub fn watched(&self) -> bool {
        self.watchers.load(Ordering::SeqCst) != 0
    }
}

impl<F: Simulate> Drop for Watch<'_, F> {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A shared object. Each lane stamps its own part of the pages.
pub struct SharedObject<F: Simulate> {
    pub object: ObjectRef<Simulated<F>>,
    stamps: Vec<AtomicU64>,
    /// The present number of pages, if the object belongs to one lane, which shortens and lengthens it.
    size: Option<AtomicUsize>,
}

/// The number of objects that all lanes share. After them, each lane has one object of its own.
pub const COMMON: usize = 2;

impl<F: Simulate> SharedObject<F> {
    fn new(object: ObjectRef<Simulated<F>>, pages: usize, own: bool) -> Self {
        let stamps = (0..pages).map(|_| AtomicU64::new(0)).collect();
        SharedObject { object, stamps, size: own.then(|| AtomicUsize::new(pages)) }
    }
    pub fn stamp(&self, lane: usize, page: usize) -> &AtomicU64 {
        &self.stamps[self.index(lane, page) as usize]
    }
    /// Returns the page's number in the object.
    pub fn index(&self, lane: usize, page: usize) -> u64 {
        if self.size.is_some() { page as u64 } else { (lane * PART + page) as u64 }
    }
    pub fn is_own(&self) -> bool {
        self.size.is_some()
    }
    pub fn has(&self, page: usize) -> bool {
        self.size.as_ref().is_none_or(|s| page < s.load(Ordering::Relaxed))
    }
    /// Sets the length of the object to `pages` pages. Only the lane to which the object belongs calls this.
    pub fn resize(&self, pages: usize) {
        self.object.set_size(pages as u64 * PAGE_SIZE);
        if let Some(size) = &self.size {
            size.store(pages, Ordering::Relaxed);
            self.stamps[pages..].iter().for_each(|s| s.store(0, Ordering::Relaxed));
        }
    }
    /// Returns what `lane` knows about its page `page`.
    pub fn content(&self, lane: usize, page: usize) -> Content {
        if self.has(page) { Content::Stamp(self.stamp(lane, page).load(Ordering::Relaxed)) } else { Content::Beyond }
    }
}

/// A worker's operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Map,
    Unmap,
    Protect,
    Advise,
    Remap,
    Touch,
    LookAtAll,
    LookElsewhere,
    StoreElsewhere,
    Object,
    Anywhere,
    Fork,
    Exit,
    Speculate,
    /// A range gets another rule for inheritance by forks.
    Inherit,
    /// A leaf is dropped, because page tables are only a cache.
    Forget,
    /// A range is paged out, as far as possible.
    PageOut,
    /// All page tables of a space are dropped, if no CPU runs it.
    DropTables,
    /// Every page of the own lane is stored to.
    Fill,
    /// A range is written back.
    Sync,
    /// The futex key of a word of the own lane is computed.
    FutexKey,
    /// A stack is mapped, grows, and is unmapped.
    Stack,
    /// Pages are copied while other CPUs may discard them.
    Volatile,
    /// A range is wired, and mostly unwired again.
    Wire,
    /// Device registers are mapped and used.
    Device,
    /// A mapping grows and shrinks.
    Grow,
    /// Anonymous memory is shared with a child.
    ShareWithAChild,
    /// An object is shortened and lengthened under its mappings.
    Shorten,
    /// A file is used through a mapping and written back.
    File,
    /// The lane's own large program is used.
    Hoard,
}

/// How often each operation occurs, and where.
pub struct Mix {
    pub ops: &'static [(Op, usize)],
    /// The only pages of each lane that are used.
    pub focus: Option<(usize, usize)>,
    /// The number of pages of each object that each lane uses.
    pub part: usize,
    /// The percentage of mappings that are shared.
    pub shared: usize,
    /// Whether mostly the lane's own object is used for shared mappings.
    pub own: bool,
    /// Before a lock is acquired, a CPU makes a long pause in one of `pauses` cases. In the pause, other CPUs do whole
    /// operations.
    pub pauses: u64,
}

/// All operations on all pages.
pub const EVERYTHING: Mix = Mix {
    ops: &[
        (Op::Map, 16),
        (Op::Unmap, 6),
        (Op::Protect, 6),
        (Op::Advise, 4),
        (Op::Remap, 3),
        (Op::Touch, 25),
        (Op::LookAtAll, 1),
        (Op::LookElsewhere, 14),
        (Op::StoreElsewhere, 10),
        (Op::Object, 4),
        (Op::Anywhere, 1),
        (Op::Fork, 3),
        (Op::Exit, 2),
        (Op::Speculate, 2),
        (Op::Inherit, 2),
        (Op::Forget, 3),
        (Op::PageOut, 1),
        (Op::DropTables, 1),
        (Op::Sync, 1),
        (Op::FutexKey, 1),
        (Op::Stack, 1),
        (Op::Volatile, 2),
        (Op::Wire, 2),
        (Op::Device, 1),
        (Op::Grow, 2),
        (Op::ShareWithAChild, 1),
        (Op::Shorten, 1),
        (Op::File, 2),
    ],
    focus: None,
    part: PART,
    shared: 25,
    own: false,
    pauses: 512,
};

/// The mix that uses as much memory as possible.
pub const MUCH: Mix = Mix {
    ops: &[
        (Op::Map, 24),
        (Op::Unmap, 3),
        (Op::Protect, 2),
        (Op::Advise, 3),
        (Op::Remap, 2),
        (Op::Touch, 20),
        (Op::LookAtAll, 1),
        (Op::Fill, 5),
        (Op::LookElsewhere, 14),
        (Op::StoreElsewhere, 10),
        (Op::Object, 4),
        (Op::Anywhere, 1),
        (Op::Fork, 4),
        (Op::Exit, 1),
        (Op::Speculate, 2),
        (Op::Inherit, 1),
        (Op::Forget, 3),
        (Op::PageOut, 2),
        (Op::DropTables, 1),
        (Op::Volatile, 1),
        (Op::Sync, 1),
        (Op::Wire, 1),
        (Op::Device, 1),
        (Op::Grow, 1),
        (Op::ShareWithAChild, 1),
        (Op::Shorten, 1),
        (Op::File, 2),
        (Op::Hoard, 14),
    ],
    focus: None,
    part: PART,
    shared: 15,
    own: false,
    pauses: 512,
};

/// Few pages of shared objects are mapped, used and discarded, so that faults race with the remover.
pub const DISCARDS: Mix = Mix {
    ops: &[
        (Op::Map, 12),
        (Op::Unmap, 5),
        (Op::Touch, 25),
        (Op::LookElsewhere, 25),
        (Op::StoreElsewhere, 20),
        (Op::Object, 20),
        (Op::Fork, 1),
        (Op::Exit, 1),
        (Op::Speculate, 5),
        (Op::Forget, 5),
    ],
    focus: Some((102, 107)),
    part: 3,
    shared: 90,
    own: false,
    pauses: 512,
};

/// Few pages are forked and copied again and again by several CPUs at once.
pub const COPIES: Mix = Mix {
    ops: &[
        (Op::Map, 3),
        (Op::Unmap, 1),
        (Op::Protect, 2),
        (Op::Advise, 2),
        (Op::Touch, 25),
        (Op::LookElsewhere, 25),
        (Op::StoreElsewhere, 25),
        (Op::Fork, 9),
        (Op::Exit, 6),
        (Op::Speculate, 5),
        (Op::Forget, 5),
    ],
    focus: Some((102, 107)),
    part: 3,
    shared: 5,
    own: false,
    pauses: 512,
};

/// Owners shorten and lengthen their objects, while other CPUs fault beyond the end.
pub const ENDS: Mix = Mix {
    ops: &[
        (Op::Map, 6),
        (Op::Touch, 20),
        (Op::LookElsewhere, 20),
        (Op::StoreElsewhere, 25),
        (Op::Object, 30),
        (Op::Forget, 8),
    ],
    focus: Some((102, 105)),
    part: 3,
    shared: 100,
    own: true,
    pauses: 24,
};

/// Leaves are dropped, while pages are discarded and CPUs have the leaves cached.
pub const STALE: Mix = Mix {
    ops: &[
        (Op::Map, 4),
        (Op::Touch, 15),
        (Op::LookElsewhere, 30),
        (Op::StoreElsewhere, 20),
        (Op::Object, 20),
        (Op::Forget, 25),
        (Op::Speculate, 10),
    ],
    focus: Some((102, 104)),
    part: 2,
    shared: 100,
    own: false,
    pauses: 24,
};

/// Pages are copied while other CPUs discard them.
pub const SOURCES: Mix = Mix {
    ops: &[(Op::Volatile, 60), (Op::Touch, 10), (Op::Map, 2)],
    focus: Some((102, 104)),
    part: 2,
    shared: 0,
    own: false,
    pauses: 24,
};

/// The leaves of copied pages are dropped, while other CPUs still read the copies' sources.
pub const FRONTS: Mix = Mix {
    ops: &[
        (Op::Map, 1),
        (Op::Touch, 25),
        (Op::LookElsewhere, 40),
        (Op::StoreElsewhere, 15),
        (Op::Fork, 12),
        (Op::Exit, 8),
        (Op::Forget, 30),
        (Op::PageOut, 2),
    ],
    focus: Some((102, 104)),
    part: 2,
    shared: 0,
    own: false,
    pauses: 24,
};

/// Several CPUs make mappings without a given address, while other operations need all arenas at one moment.
pub const ANYWHERE: Mix = Mix {
    ops: &[
        (Op::Anywhere, 50),
        (Op::Grow, 10),
        (Op::Device, 4),
        (Op::Map, 5),
        (Op::Touch, 10),
        (Op::Fork, 2),
        (Op::Exit, 1),
        (Op::DropTables, 1),
    ],
    focus: None,
    part: PART,
    shared: 10,
    own: false,
    pauses: 24,
};

/// The stamps of a lane's pages of the file on disk. Only that lane changes those pages.
pub struct OnDisk<'w>(&'w [AtomicU64]);

impl OnDisk<'_> {
    pub fn get(&self, page: u64) -> u64 {
        self.0[page as usize].load(Ordering::Relaxed)
    }
    pub fn set(&self, page: u64, stamp: u64) {
        self.0[page as usize].store(stamp, Ordering::Relaxed);
    }
}

pub struct World<F: Simulate> {
    pub mix: &'static Mix,
    pub lanes: usize,
    pub spaces: Vec<Mutex<Option<Arc<SpaceModel<F>>>>>,
    pub shared: Vec<SharedObject<F>>,
    /// This file is mapped only privately, so its pages never change.
    pub file: ObjectRef<Simulated<F>>,
    /// All CPUs write and discard the pages of this object at any time. Each word is zero, or names its writer.
    pub volatile: ObjectRef<Simulated<F>>,
    /// A device with some registers for each lane.
    pub device: ObjectRef<Simulated<F>>,
    pub disk: Disk,
    /// A file on `disk` with some pages for each lane.
    pub file_on_disk: ObjectRef<Simulated<F>>,
    on_disk: Vec<AtomicU64>,
    /// A separate large program for each lane, or none.
    pub hoards: Vec<Mutex<Hoard<F>>>,
    clock: AtomicU64,
    pub counts: Counts,
}

/// Counts of operations, to prove that the test does its work.
#[derive(Default, Debug)]
pub struct Counts {
    /// The number of forks under way. While a fork is under way, no pages are freed lazily (`giving_up`), because the
    /// model cannot know whether the child still has them.
    pub forking: AtomicU64,
    pub giving_up: AtomicU64,
    pub accesses: AtomicU64,
    pub faults_failed: AtomicU64,
    pub maps: AtomicU64,
    pub forks: AtomicU64,
    pub exits: AtomicU64,
    pub out_of_memory: AtomicU64,
    /// The number of mappings in CPUs' own arenas.
    pub in_arenas: AtomicU64,
}

/// The pager of `World::file`, as slow as a disk.
struct Slow;

impl Pager for Slow {
    fn name(&self, to: &mut dyn std::fmt::Write) -> std::fmt::Result {
        to.write_str("slow file")
    }
    fn ident(&self) -> (u64, u64) {
        (1, 2)
    }
    fn in_memory(&self) -> bool {
        false
    }
    fn takes_writes(&self) -> bool {
        false
    }
    fn fill(&self, page: u64, frame: &mut [u8; PAGE_SIZE as usize]) -> Result<(), PagerError> {
        // A pager may sleep. This one fills only the first word, so poison in the rest of the frame would show.
        quire_sync::hooks::park(Some(quire_sync::hooks::now() + 30_000));
        frame[..8].copy_from_slice(&file_stamp(page as usize).to_le_bytes());
        Ok(())
    }
}

/// Returns the stamp of page `page` of the file. Odd pages are holes, whose stamp is 0.
pub fn file_stamp(page: usize) -> u64 {
    if page.is_multiple_of(2) { 0xf11e_0000 + page as u64 } else { 0 }
}

impl<F: Simulate> World<F> {
    /// Makes an empty world: one space, shared objects, files, and a device. Each lane's own program has `hoard` pages.
    /// The disk has the faults `bad`.
    pub fn new(cpu: &Cpu<F>, lanes: usize, slots: usize, mix: &'static Mix, hoard: usize, bad: FaultPlan) -> World<F> {
        let vm = cpu.vm();
        let object = |pages: usize| ObjectRef::anonymous(vm, pages as u64).expect("memory at the start");
        let shared = (0..COMMON + lanes)
            .map(|n| if n < COMMON { (lanes * PART, false) } else { (PART, true) })
            .map(|(pages, own)| SharedObject::new(object(pages), pages, own))
            .collect();
        let file = ObjectRef::with_pager(vm, &Slow, FILE_PAGES as u64 * PAGE_SIZE).expect("memory at the start");
        let first = quire_vm::map::Space::new(vm).expect("memory at the start");
        let empty = (0..lanes).map(|_| vec![Page::new(); LANE_PAGES]).collect();
        let mut spaces: Vec<_> = (0..slots).map(|_| Mutex::new(None)).collect();
        *spaces[0].get_mut() = Some(SpaceModel::new(first, empty));
        let volatile = object(2);
        // SAFETY: these are the simulated device's own frames, after the end of RAM; each lane uses only its part.
        let device = unsafe { ObjectRef::device(vm, vm.machine().devices(), MemoryType::Uncached) };
        let disk_pages = lanes as u64 * FILE_PART;
        let disk = Disk::new(disk_pages, bad);
        vm.poll_with(disk.store).expect("a place for another disk");
        let on_file = ObjectRef::with_pager(vm, disk.store, disk_pages * PAGE_SIZE);
        let hoards = (0..if hoard == 0 { 0 } else { lanes }).map(|_| Mutex::new(Hoard::new(vm, hoard)));
        World {
            mix,
            lanes,
            spaces,
            shared,
            file,
            volatile,
            device: device.expect("memory at the start"),
            disk,
            file_on_disk: on_file.expect("memory at the start"),
            on_disk: (0..disk_pages).map(|_| AtomicU64::new(0)).collect(),
            hoards: hoards.collect(),
            clock: AtomicU64::new(1),
            counts: Counts::default(),
        }
    }

    /// Returns the stamps of a lane's pages of the file on disk.
    pub fn on_disk(&self, lane: usize) -> OnDisk<'_> {
        let part = FILE_PART as usize;
        OnDisk(&self.on_disk[lane * part..(lane + 1) * part])
    }

    pub fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Runs `f`, and returns the span of the clock during which it ran.
    pub fn during<R>(&self, f: impl FnOnce() -> R) -> (R, Span) {
        let from = self.tick();
        let r = f();
        (r, Span { from, to: self.tick() })
    }

    /// Returns the address of page `i` of `lane`.
    pub fn va(&self, lane: usize, i: usize) -> u64 {
        if i < MIXED_PAGES {
            MIXED + (((i / BLOCK) * self.lanes + lane) * BLOCK + i % BLOCK) as u64 * PAGE_SIZE
        } else {
            let border = apart::<F>() + (lane as u64 * 4 + 2) * (1 << 20);
            border - 40 * PAGE_SIZE + (i - MIXED_PAGES) as u64 * PAGE_SIZE
        }
    }

    /// Whether `va` belongs to a lane, and so to the models. Operations make their own mappings elsewhere and remove
    /// them.
    pub fn is_in_a_lane(&self, va: u64) -> bool {
        let mixed = MIXED..MIXED + (MIXED_PAGES * self.lanes) as u64 * PAGE_SIZE;
        let apart = apart::<F>()..apart::<F>() + (self.lanes as u64 * 4 + 4) * (1 << 20);
        mixed.contains(&va) || apart.contains(&va)
    }

    pub fn slot(&self, n: usize) -> Option<Arc<SpaceModel<F>>> {
        self.spaces[n].lock().clone()
    }
}

/// Writes the stamp of a page through the object, without a mapping.
pub fn write_stamp<F: Simulate>(
    object: &ObjectRef<Simulated<F>>,
    page: u64,
    stamp: u64,
) -> Result<usize, quire_vm::content::IoError<Infallible>> {
    object.write::<Infallible>(page * PAGE_SIZE, 8, &mut |to| Ok(to.copy_from(&stamp.to_le_bytes())))
}
