//! The operations of the conflict matrix that act on memory, run on the real core.

use super::model::{CONTENT, Outcome, Region, stored};
use super::operation::{Act, Side};
use super::world::{PAGES, World};
use crate::Failure;
use quire_hosted::Hosted;
use quire_vm::map::{Advice, Limits, MapRequest, Placement, Space, SpaceRef, Tag};
use quire_vm::phys::frames::{Fill, For};
use quire_vm::phys::queues::Queue;
use quire_vm::{Access, FaultKind, PAGE_SIZE, Pfn, Prot, VirtRange};

/// The first page of the part of a file that only program mappings use.
const PROGRAM_PAGE: u64 = PAGES + 64;
/// The distance in pages from one load to the next. A load fault also maps some resident neighbours of its page, but
/// none at this distance. So each load faults.
const APART: u64 = 32;
/// The most pages that the heap reaches before it shrinks again.
const HEAP: u64 = 256;
/// The most frames that one CPU's operation holds.
const HOARD: usize = 600;

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, got: T, wanted: T) -> Result<(), Failure> {
    if got == wanted { Ok(()) } else { Err(Failure::Wrong(format!("{what}: {got:?} instead of {wanted:?}"))) }
}

/// Stores a word, as a program would, into the first page of the region `region` of CPU `side`.
fn touch(world: &World, region: Region, side: Side) -> Result<(), Failure> {
    Ok(world.cpu(side).write(world.space(side), world.at(region, side), CONTENT)?)
}

/// The operation: a first touch of private memory.
pub struct ZeroFill {
    next: u64,
    at: u64,
}

impl ZeroFill {
    /// Starts at the first page of the region.
    pub fn new() -> ZeroFill {
        ZeroFill { next: 0, at: 0 }
    }
}

impl Act for ZeroFill {
    fn ready(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        let region = world.at(Region::Zero, side);
        if self.next == PAGES {
            self.next = 0;
            let shared = world.state == super::model::State::Anonymous;
            let advice = if shared { Advice::Remove } else { Advice::DontNeed };
            world.space(side).advise(VirtRange { start: region, end: region + PAGES * PAGE_SIZE }, advice)?;
        }
        self.at = region + self.next * PAGE_SIZE;
        self.next += 1;
        Ok(())
    }
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        let kind = world.space(side).fault(self.at, Access::Write)?;
        expect("a first touch", kind, FaultKind::ZeroFill)?;
        Ok(Outcome::Done)
    }
    fn settle(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        expect("a load of untouched memory", world.cpu(side).read(world.space(side), self.at)?, 0)?;
        Ok(world.cpu(side).write(world.space(side), self.at, stored(side))?)
    }
}

/// The operation: a load from a page that is resident but not mapped.
pub struct ReadFault {
    next: u64,
    at: u64,
}

impl ReadFault {
    /// Starts at the first page of the region.
    pub fn new() -> ReadFault {
        ReadFault { next: 0, at: 0 }
    }
}

impl Act for ReadFault {
    fn set_up(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        let region = world.at(Region::File, side);
        for page in (0..PAGES).step_by(APART as usize) {
            world.cpu(side).read(world.space(side), region + page * PAGE_SIZE)?;
        }
        Ok(())
    }
    fn ready(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        let region = world.at(Region::File, side);
        if self.next == 0 {
            // The advice drops the PTEs and keeps the file's pages. The load then makes the table pages exist again.
            let all = VirtRange { start: region, end: region + PAGES * PAGE_SIZE };
            world.space(side).advise(all, Advice::DontNeed)?;
            world.cpu(side).read(world.space(side), region)?;
            self.next = APART;
        }
        self.at = region + self.next * PAGE_SIZE;
        self.next = (self.next + APART) % PAGES;
        Ok(())
    }
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        expect("a page in memory", world.space(side).fault(self.at, Access::Read)?, FaultKind::Resident)?;
        Ok(Outcome::Value(CONTENT))
    }
    fn settle(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        expect("the file's page", world.cpu(side).read(world.space(side), self.at)?, CONTENT)
    }
}

/// The operation: a store that copies a page.
pub struct CopyFault {
    next: u64,
    at: u64,
}

impl CopyFault {
    /// Starts at the first page of the region.
    pub fn new() -> CopyFault {
        CopyFault { next: 0, at: 0 }
    }
}

impl Act for CopyFault {
    fn inherit(&mut self, world: &World, parent: &Space<Hosted>, side: Side) -> Result<(), Failure> {
        for page in 0..PAGES {
            world.cpu(2).write(parent, world.at(Region::Copy, side) + page * PAGE_SIZE, CONTENT)?;
        }
        Ok(())
    }
    fn set_up(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        for page in 0..PAGES {
            world.cpu(side).read(world.space(side), world.at(Region::Copy, side) + page * PAGE_SIZE)?;
        }
        Ok(())
    }
    fn ready(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        let region = world.at(Region::Copy, side);
        if self.next == PAGES {
            // The region maps a file: `DontNeed` drops the private copies, so the file's pages are visible again.
            self.next = 0;
            let all = VirtRange { start: region, end: region + PAGES * PAGE_SIZE };
            world.space(side).advise(all, Advice::DontNeed)?;
            self.set_up(world, side)?;
        }
        self.at = region + self.next * PAGE_SIZE;
        self.next += 1;
        Ok(())
    }
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        expect("a store over a page", world.space(side).fault(self.at, Access::Write)?, FaultKind::Copy)?;
        Ok(Outcome::Done)
    }
    fn settle(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        expect("the copy", world.cpu(side).read(world.space(side), self.at)?, CONTENT)?;
        Ok(world.cpu(side).write(world.space(side), self.at, stored(side))?)
    }
}

/// The operation: a mapping at an address that the kernel chooses.
pub struct Map {
    at: u64,
}

impl Map {
    /// No mapping yet.
    pub fn new() -> Map {
        Map { at: 0 }
    }
}

impl Act for Map {
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        self.at = world.space(side).map(&world.request(Placement::Any { hint: 0 }, 4, side))?;
        Ok(Outcome::Fresh)
    }
    fn settle(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        Ok(world.space(side).unmap(VirtRange { start: self.at, end: self.at + 4 * PAGE_SIZE })?)
    }
}

/// The operation: a fixed mapping that replaces a touched one.
pub struct MapFixed;

impl Act for MapFixed {
    fn ready(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        touch(world, Region::Fixed, side)
    }
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        let at = world.at(Region::Fixed, side);
        let request = world.request(Placement::Fixed(at), 1, side);
        expect("a fixed mapping", world.space(side).map(&request)?, at)?;
        Ok(Outcome::Done)
    }
}

/// The operation: a mapping is removed.
pub struct Unmap;

impl Act for Unmap {
    fn ready(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        let at = Placement::Fixed(world.at(Region::Mapped, side));
        world.space(side).map(&world.request(at, 1, side))?;
        touch(world, Region::Mapped, side)
    }
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        world.space(side).unmap(world.page(Region::Mapped, side))?;
        Ok(Outcome::Done)
    }
}

/// The operation: a mapping loses the right to write.
pub struct Protect;

impl Act for Protect {
    fn ready(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        world.space(side).protect(world.page(Region::Writable, side), Prot::READ | Prot::WRITE)?;
        touch(world, Region::Writable, side)
    }
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        world.space(side).protect(world.page(Region::Writable, side), Prot::READ)?;
        Ok(Outcome::Done)
    }
}

/// The operation: the content of memory is dropped at once (`MADV_DONTNEED`).
pub struct Forget;

impl Act for Forget {
    fn ready(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        touch(world, Region::Kept, side)
    }
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        world.space(side).advise(world.page(Region::Kept, side), Advice::DontNeed)?;
        Ok(Outcome::Done)
    }
}

/// The operation: the content of memory may be dropped when memory is low (`MADV_FREE`).
pub struct GiveUp;

impl Act for GiveUp {
    fn ready(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        touch(world, Region::Lazy, side)
    }
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        world.space(side).advise(world.page(Region::Lazy, side), Advice::Free)?;
        Ok(Outcome::Done)
    }
}

/// The operation: the heap grows by a page, as with `brk`.
pub struct GrowHeap {
    pages: u64,
}

impl GrowHeap {
    /// An empty heap.
    pub fn new() -> GrowHeap {
        GrowHeap { pages: 0 }
    }
}

impl Act for GrowHeap {
    fn ready(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        if self.pages == HEAP {
            let start = world.at(Region::Heap(0), side);
            world.space(side).unmap(VirtRange { start, end: start + HEAP * PAGE_SIZE })?;
            self.pages = 0;
        }
        Ok(())
    }
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        let space = world.space(side);
        let end = world.at(Region::Heap(0), side) + self.pages * PAGE_SIZE;
        if space.is_mapped(VirtRange { start: end, end: end + 2 * PAGE_SIZE }) {
            return Ok(Outcome::Refused);
        }
        let at = Placement::FixedNoReplace(end);
        space.map(&MapRequest { tag: Tag::Heap, ..MapRequest::private(at, PAGE_SIZE) })?;
        self.pages += 1;
        // The model begins each round with an empty heap, and so expects a size of 1 page. The real heap keeps its
        // pages from round to round, so its true size is not returned.
        Ok(Outcome::Value(1))
    }
}

/// The operation: a fork.
pub struct Fork {
    child: Option<SpaceRef<Hosted>>,
}

impl Fork {
    /// No child yet.
    pub fn new() -> Fork {
        Fork { child: None }
    }
}

impl Act for Fork {
    fn ready(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        touch(world, Region::Kept, side)
    }
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        self.child = Some(world.space(side).fork()?);
        Ok(Outcome::Fresh)
    }
    fn settle(&mut self, _world: &World, _side: Side) -> Result<(), Failure> {
        self.child = None;
        Ok(())
    }
}

/// The mappings of a dynamic program: text, data and zeroed data of the program and of its interpreter, and a stack.
fn program(world: &World, side: Side) -> Vec<MapRequest<'_, Hosted>> {
    let first = world.file_page(side) + PROGRAM_PAGE;
    let file = world.program(side);
    let base = world.at(Region::Program, side);
    let text = Prot::READ | Prot::EXEC;
    let data = Prot::READ | Prot::WRITE;
    // For each segment: the first page from the base, the number of pages, the rights, and the page of the file (`None`
    // for zeroed data).
    let segments = [
        (0, 8, text, Some(0)),
        (8, 2, data, Some(8)),
        (10, 2, data, None),
        (64, 8, text, Some(16)),
        (72, 2, data, Some(24)),
        (74, 2, data, None),
    ];
    let segments = segments.map(|(page, pages, prot, of)| MapRequest {
        prot,
        object: of.map(|n| (file, (first + n) * PAGE_SIZE)),
        ..MapRequest::private(Placement::Fixed(base + page * PAGE_SIZE), pages * PAGE_SIZE)
    });
    let stack = MapRequest::private(Placement::Fixed(base + 256 * PAGE_SIZE), 34 * PAGE_SIZE);
    segments.into_iter().chain([MapRequest { grows_down: true, tag: Tag::Stack, ..stack }]).collect()
}

/// The operation: a program is mapped into a new space.
pub struct Exec {
    space: Option<SpaceRef<Hosted>>,
}

impl Exec {
    /// No space yet.
    pub fn new() -> Exec {
        Exec { space: None }
    }
}

impl Act for Exec {
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        let space = Space::new(world.vm)?;
        space.set_limits(Limits { entries: 65530, ..space.limits() });
        for request in program(world, side) {
            space.map(&request)?;
        }
        self.space = Some(space);
        Ok(Outcome::Done)
    }
    fn settle(&mut self, _world: &World, _side: Side) -> Result<(), Failure> {
        self.space = None;
        Ok(())
    }
}

/// The operation: the last reference to a space is dropped.
pub struct Exit {
    space: Option<SpaceRef<Hosted>>,
}

impl Exit {
    /// No space yet.
    pub fn new() -> Exit {
        Exit { space: None }
    }
}

impl Act for Exit {
    fn ready(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        self.space = Some(world.another(side)?);
        Ok(())
    }
    fn run(&mut self, _world: &World, _side: Side) -> Result<Outcome, Failure> {
        self.space = None;
        Ok(Outcome::Done)
    }
}

/// The operation: a frame is allocated, and kept for many rounds.
pub struct TakeFrame {
    frames: Vec<Pfn>,
}

impl TakeFrame {
    /// No frames yet.
    pub fn new() -> TakeFrame {
        TakeFrame { frames: Vec::with_capacity(HOARD) }
    }
}

fn take(world: &World) -> Result<Pfn, Failure> {
    Ok(world.vm.alloc_frame(Fill::Any, For::User)?.into_pfn())
}

fn give(world: &World, pfn: Pfn) {
    // SAFETY: the frame came from `take`, and its owner no longer uses it.
    unsafe { world.vm.free_pfn(pfn) };
}

impl Act for TakeFrame {
    fn ready(&mut self, world: &World, _side: Side) -> Result<(), Failure> {
        if self.frames.len() == HOARD {
            self.frames.drain(..).for_each(|f| give(world, f));
        }
        Ok(())
    }
    fn run(&mut self, world: &World, _side: Side) -> Result<Outcome, Failure> {
        self.frames.push(take(world)?);
        Ok(Outcome::Fresh)
    }
}

/// The operation: one of many frames is freed.
pub struct GiveFrame {
    frames: Vec<Pfn>,
}

impl GiveFrame {
    /// No frames yet.
    pub fn new() -> GiveFrame {
        GiveFrame { frames: Vec::with_capacity(HOARD) }
    }
}

impl Act for GiveFrame {
    fn ready(&mut self, world: &World, _side: Side) -> Result<(), Failure> {
        if self.frames.is_empty() {
            for _ in 0..HOARD {
                self.frames.push(take(world)?);
            }
        }
        Ok(())
    }
    fn run(&mut self, world: &World, _side: Side) -> Result<Outcome, Failure> {
        let Some(frame) = self.frames.pop() else { return Ok(Outcome::Refused) };
        give(world, frame);
        Ok(Outcome::Done)
    }
}

/// The operation: a CPU puts one of its pages into the inactive queue.
pub struct Enqueue {
    pages: Vec<Pfn>,
    next: usize,
    /// The space of `pages`, kept alive so that the pages stay allocated.
    space: Option<SpaceRef<Hosted>>,
}

impl Enqueue {
    /// No pages yet.
    pub fn new() -> Enqueue {
        Enqueue { pages: Vec::new(), next: 0, space: None }
    }
}

impl Act for Enqueue {
    fn set_up(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        // The pages are private memory of a space that no other operation uses.
        let space = Space::new(world.vm)?;
        let at = world.at(Region::Zero, side);
        space.map(&MapRequest::private(Placement::Fixed(at), PAGES * PAGE_SIZE))?;
        for page in 0..PAGES {
            space.fault(at + page * PAGE_SIZE, Access::Write)?;
        }
        let mut pages = Vec::new();
        world.vm.drain_own_queue_batch();
        // SAFETY: `self.space` keeps the space of the pages alive, and the pages are put into a queue again.
        for part in unsafe { world.vm.queues().parts_of(Queue::Active) } {
            part.take(usize::MAX, &mut |page| pages.push(world.vm.pfn_of_page(page)));
        }
        self.space = Some(space);
        self.pages = pages;
        Ok(())
    }
    fn ready(&mut self, world: &World, _side: Side) -> Result<(), Failure> {
        if self.next == self.pages.len() {
            self.next = 0;
            for pfn in &self.pages {
                // SAFETY: the page belongs to the space that `self.space` keeps; `run` puts it into a queue again.
                unsafe { world.vm.queues().take_out(world.vm.descriptor(*pfn)) };
            }
        }
        Ok(())
    }
    fn run(&mut self, world: &World, _side: Side) -> Result<Outcome, Failure> {
        let Some(pfn) = self.pages.get(self.next) else { return Ok(Outcome::Refused) };
        self.next += 1;
        // SAFETY: `pages` has frames of the space that `self.space` keeps. `ready` took their pages out of every queue.
        world.vm.put_in_queue(unsafe { world.vm.descriptor(*pfn) }, Queue::Inactive);
        Ok(Outcome::Done)
    }
}

/// The operation: the frame of a clean, mapped page of a file is reclaimed.
pub struct Reclaim {
    next: u64,
}

impl Reclaim {
    /// Starts at the first page of the region.
    pub fn new() -> Reclaim {
        Reclaim { next: 0 }
    }
}

impl Act for Reclaim {
    fn ready(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        self.next = (self.next + APART) % PAGES;
        let at = world.at(Region::File, side) + self.next * PAGE_SIZE;
        expect("the file's page", world.cpu(side).read(world.space(side), at)?, CONTENT)
    }
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        let page = world.file_page(side) + self.next;
        world.file(side).page_out(page..page + 1);
        Ok(Outcome::Done)
    }
    fn settle(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        let at = world.at(Region::File, side) + self.next * PAGE_SIZE;
        let mut there = true;
        world.space(side).resident(VirtRange { start: at, end: at + PAGE_SIZE }, &mut |_, r| there = r)?;
        expect("a page whose frame was reclaimed", there, false)
    }
}
