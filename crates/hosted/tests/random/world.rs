//! What the workers share: spaces with the models of their lanes, objects with their stamps, a logical clock.

use quire_hosted::model::{Page, Span};
use quire_hosted::{Cpu, Hosted};
use quire_sync::Mutex;
use quire_vm::PAGE_SIZE;
use quire_vm::map::SpaceRef;
use quire_vm::object::ObjectRef;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Pages of a lane: the first lie in blocks between other lanes' blocks and share table pages with them, the rest lie
/// together across the border of two table pages.
pub const LANE_PAGES: usize = 160;
/// Pages of a lane that lie between others'.
pub const MIXED_PAGES: usize = 64;
/// Pages to a block of those.
pub const BLOCK: usize = 16;
/// Pages of each shared object that one lane stamps.
pub const PART: usize = 12;
/// Pages of the file.
pub const FILE_PAGES: usize = 64;

const MIXED: u64 = 0x4000_0000 - 5 * PAGE_SIZE;
const APART: u64 = 0x7f12_0000_0000;

/// One address space, and what it must contain.
pub struct SpaceModel {
    pub space: SpaceRef<Hosted>,
    pub lanes: Vec<Mutex<Vec<Page>>>,
    /// How many look on: forks, and accesses to other lanes.
    watchers: AtomicUsize,
    /// Where something happens: a lane and a page of it, so that CPUs meet.
    hot: AtomicUsize,
}

/// While it lives, lanes keep their past.
pub struct Watch<'a>(&'a SpaceModel);

impl SpaceModel {
    pub fn new(space: SpaceRef<Hosted>, lanes: Vec<Vec<Page>>) -> Arc<Self> {
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

    pub fn watch(&self) -> Watch<'_> {
        self.watchers.fetch_add(1, Ordering::SeqCst);
        Watch(self)
    }

    pub fn watched(&self) -> bool {
        self.watchers.load(Ordering::SeqCst) != 0
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Shared memory: each lane stamps its own part of the pages.
pub struct SharedObject {
    pub object: ObjectRef<Hosted>,
    stamps: Vec<AtomicU64>,
}

impl SharedObject {
    pub fn stamp(&self, lane: usize, page: usize) -> &AtomicU64 {
        &self.stamps[lane * PART + page]
    }
    /// The page's number in the object.
    pub fn index(lane: usize, page: usize) -> u64 {
        (lane * PART + page) as u64
    }
}

/// What a worker can do.
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
}

/// How often it does what, and where.
pub struct Mix {
    pub ops: &'static [(Op, usize)],
    /// All happens on these pages of each lane.
    pub focus: Option<(usize, usize)>,
    /// Pages of each object that each lane uses.
    pub part: usize,
    /// Of a hundred mappings so many are shared.
    pub shared: usize,
}

/// Everything everywhere.
pub const EVERYTHING: Mix = Mix {
    ops: &[
        (Op::Map, 16),
        (Op::Unmap, 6),
        (Op::Protect, 6),
        (Op::Advise, 4),
        (Op::Remap, 3),
        (Op::Touch, 25),
        (Op::LookAtAll, 4),
        (Op::LookElsewhere, 14),
        (Op::StoreElsewhere, 10),
        (Op::Object, 4),
        (Op::Anywhere, 1),
        (Op::Fork, 3),
        (Op::Exit, 2),
        (Op::Speculate, 2),
    ],
    focus: None,
    part: PART,
    shared: 25,
};

/// Few pages of shared objects are mapped, used and discarded: faults against the remover.
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
    ],
    focus: Some((102, 107)),
    part: 3,
    shared: 90,
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
    ],
    focus: Some((102, 107)),
    part: 3,
    shared: 5,
};

pub struct World {
    pub mix: &'static Mix,
    pub lanes: usize,
    pub spaces: Vec<Mutex<Option<Arc<SpaceModel>>>>,
    pub shared: Vec<SharedObject>,
    /// Mapped privately only, so its pages never change.
    pub file: ObjectRef<Hosted>,
    clock: AtomicU64,
    pub counts: Counts,
}

/// What was done, to see that the test does its work.
#[derive(Default, Debug)]
pub struct Counts {
    pub accesses: AtomicU64,
    pub faults_failed: AtomicU64,
    pub maps: AtomicU64,
    pub forks: AtomicU64,
    pub exits: AtomicU64,
    pub out_of_memory: AtomicU64,
}

/// The stamp of page `page` of the file: odd pages are holes.
pub fn file_stamp(page: usize) -> u64 {
    if page % 2 == 0 { 0xf11e_0000 + page as u64 } else { 0 }
}

impl World {
    /// An empty world: one space, two shared objects, a file.
    pub fn new(cpu: &Cpu, lanes: usize, slots: usize, mix: &'static Mix) -> World {
        let vm = cpu.vm();
        let object = |pages: usize| ObjectRef::anonymous(vm, pages as u64).expect("memory at the start");
        let shared = (0..2)
            .map(|_| SharedObject {
                object: object(lanes * PART),
                stamps: (0..lanes * PART).map(|_| AtomicU64::new(0)).collect(),
            })
            .collect();
        let file = object(FILE_PAGES);
        for page in (0..FILE_PAGES).step_by(2) {
            write_stamp(&file, page as u64, file_stamp(page)).expect("memory at the start");
        }
        let first = quire_vm::map::Space::new(vm).expect("memory at the start");
        let empty = (0..lanes).map(|_| vec![Page::new(); LANE_PAGES]).collect();
        let mut spaces: Vec<_> = (0..slots).map(|_| Mutex::new(None)).collect();
        *spaces[0].get_mut() = Some(SpaceModel::new(first, empty));
        World { mix, lanes, spaces, shared, file, clock: AtomicU64::new(1), counts: Counts::default() }
    }

    pub fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Runs `f`, and says during which span of the clock.
    pub fn during<R>(&self, f: impl FnOnce() -> R) -> (R, Span) {
        let from = self.tick();
        let r = f();
        (r, Span { from, to: self.tick() })
    }

    /// The address of page `i` of `lane`.
    pub fn va(&self, lane: usize, i: usize) -> u64 {
        if i < MIXED_PAGES {
            MIXED + (((i / BLOCK) * self.lanes + lane) * BLOCK + i % BLOCK) as u64 * PAGE_SIZE
        } else {
            let border = APART + (lane as u64 * 4 + 2) * (1 << 20);
            border - 40 * PAGE_SIZE + (i - MIXED_PAGES) as u64 * PAGE_SIZE
        }
    }

    pub fn slot(&self, n: usize) -> Option<Arc<SpaceModel>> {
        self.spaces[n].lock().clone()
    }
}

/// Writes the stamp of a page through the object.
pub fn write_stamp(
    object: &ObjectRef<Hosted>,
    page: u64,
    stamp: u64,
) -> Result<usize, quire_vm::object::IoError<Infallible>> {
    object.write::<Infallible>(page * PAGE_SIZE, 8, &mut |to| {
        to.copy_from_slice(&stamp.to_le_bytes());
        Ok(to.len())
    })
}
