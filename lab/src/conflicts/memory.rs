//! Operations of the memory core, on the real core.

use super::model::{CONTENT, Outcome, Region, stored};
use super::operation::{Act, Side};
use super::world::{PAGES, World};
use crate::Failure;
use quire_hosted::Hosted;
use quire_vm::map::{Advice, Limits, MapRequest, Placement, Space, SpaceRef, Tag};
use quire_vm::phys::frames::{Fill, For};
use quire_vm::phys::queues::Queue;
use quire_vm::{Access, FaultKind, PAGE_SIZE, Pfn, Prot, VirtRange};

/// A part of a file from which only programs are mapped.
const PROGRAM_PAGE: u64 = PAGES + 64;
/// Pages between two loads: more than a fault maps around itself.
const APART: u64 = 32;
/// Pages that the heap has at most before it shrinks again.
const HEAP: u64 = 256;
/// Frames that a side has at most.
const HOARD: usize = 600;

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, got: T, wanted: T) -> Result<(), Failure> {
    if got == wanted { Ok(()) } else { Err(Failure::Wrong(format!("{what}: {got:?} instead of {wanted:?}"))) }
}

/// Stores the side's word into the first page of a region, as its program would.
fn touch(world: &World, region: Region, side: Side) -> Result<(), Failure> {
    Ok(world.cpu(side).write(world.space(side), world.at(region, side), CONTENT)?)
}

/// The first touch of private memory.
pub struct ZeroFill {
    next: u64,
    at: u64,
}

impl ZeroFill {
    /// At the region's start.
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

/// A load from a page that is in memory.
pub struct ReadFault {
    next: u64,
    at: u64,
}

impl ReadFault {
    /// At the region's start.
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
            // Drops the leaves, keeps the pages; the rest is touched again, so that table pages are there.
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

/// A store that copies.
pub struct CopyFault {
    next: u64,
    at: u64,
}

impl CopyFault {
    /// At the region's start.
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
            // Of a file: the copies go, and the file's pages show again.
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

/// A mapping without an address.
pub struct Map {
    at: u64,
}

impl Map {
    /// Nothing yet.
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

/// A mapping that replaces a touched one.
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

/// A mapping goes.
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

/// A mapping loses a right.
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

/// Memory is given up at once.
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

/// Memory may go when it is short.
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

/// The heap grows by a page, as `brk` does it.
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
        // Each round acts as the first of its own.
        Ok(Outcome::Value(1))
    }
}

/// A fork.
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
    // Pages from the base, their number, their rights, and the page of the file; none for zeroes.
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

/// A program is mapped into a new space.
pub struct Exec {
    space: Option<SpaceRef<Hosted>>,
}

impl Exec {
    /// None yet.
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

/// The last handle of a space is dropped.
pub struct Exit {
    space: Option<SpaceRef<Hosted>>,
}

impl Exit {
    /// None yet.
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

/// A frame is taken, and kept for many rounds.
pub struct TakeFrame {
    frames: Vec<Pfn>,
}

impl TakeFrame {
    /// None yet.
    pub fn new() -> TakeFrame {
        TakeFrame { frames: Vec::with_capacity(HOARD) }
    }
}

fn take(world: &World) -> Result<Pfn, Failure> {
    Ok(world.vm.alloc_frame(Fill::Any, For::User)?.into_pfn())
}

fn give(world: &World, pfn: Pfn) {
    // SAFETY: it came from `take`, and is given up.
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

/// A frame of many is given back.
pub struct GiveFrame {
    frames: Vec<Pfn>,
}

impl GiveFrame {
    /// None yet.
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

/// A page of the side's is put into the inactive queue.
pub struct Enqueue {
    pages: Vec<Pfn>,
    next: usize,
    /// Pages keep their space.
    space: Option<SpaceRef<Hosted>>,
}

impl Enqueue {
    /// None yet.
    pub fn new() -> Enqueue {
        Enqueue { pages: Vec::new(), next: 0, space: None }
    }
}

impl Act for Enqueue {
    fn set_up(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        // Private memory of a space that nothing else uses.
        let space = Space::new(world.vm)?;
        let at = world.at(Region::Zero, side);
        space.map(&MapRequest::private(Placement::Fixed(at), PAGES * PAGE_SIZE))?;
        for page in 0..PAGES {
            space.fault(at + page * PAGE_SIZE, Access::Write)?;
        }
        let mut pages = Vec::new();
        world.vm.drain_own_queue_batch();
        // SAFETY: the space of the pages is kept, and they are put into a queue again.
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
                // SAFETY: a page of the space that is kept; `run` puts it into a queue again.
                unsafe { world.vm.queues().take_out(world.vm.descriptor(*pfn)) };
            }
        }
        Ok(())
    }
    fn run(&mut self, world: &World, _side: Side) -> Result<Outcome, Failure> {
        let Some(pfn) = self.pages.get(self.next) else { return Ok(Outcome::Refused) };
        self.next += 1;
        // SAFETY: `pages` has frames of the space that is kept, and `ready` took their pages out of every queue.
        world.vm.put_in_queue(unsafe { world.vm.descriptor(*pfn) }, Queue::Inactive);
        Ok(Outcome::Done)
    }
}

/// The frame of a clean page of a file that is mapped is taken.
pub struct Reclaim {
    next: u64,
}

impl Reclaim {
    /// At the region's start.
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
