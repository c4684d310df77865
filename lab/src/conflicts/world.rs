//! The world of a case: a hosted machine with files and processes, and the CPUs of the scheduler. CPUs 0 and 1 do the
//! two operations. The state says how their processes are related.

use super::model::{CONTENT, Region, State};
use super::operation::Side;
use super::sim::Tasks;
use crate::Failure;
use quire_hosted::{Cpu, Hosted, Settings};
use quire_vm::check::Level;
use quire_vm::map::{MapRequest, Placement, Space, SpaceRef};
use quire_vm::object::ObjectRef;
use quire_vm::paging::pager::{Pager, PagerError};
use quire_vm::{Access, PAGE_SIZE, Prot, VirtRange, Vm};

/// The number of CPUs of the machine. Two do the operations, and threads of the two others are woken.
pub const CPUS: usize = 4;
/// The number of pages of a region, as many as one table page covers.
pub const PAGES: u64 = 512;
const REGION: u64 = PAGES * PAGE_SIZE;
/// The number of frames that the largest case needs.
pub const FRAMES: u64 = 12 * 1024;
/// The address of the first region of a process that has no other threads.
const BASE: u64 = 0x5000_0000_0000;
/// The number of further mappings of the shared file, which stand for the mappings of thousands of processes. They make
/// the file's mapping list sharded: split into parts with a lock each.
const CROWD: u64 = 1400;
/// The number of pages of the file of each CPU's process. The file has one region for mappings and faults, and another
/// for mappings and execs.
const FILE_PAGES: u64 = 2 * PAGES;

/// The pager of a file whose content is computed: each page begins with the word that the model expects.
struct Made;

impl Pager for Made {
    fn name(&self, to: &mut dyn std::fmt::Write) -> std::fmt::Result {
        to.write_str("file")
    }
    fn ident(&self) -> (u64, u64) {
        (1, 1)
    }
    fn in_memory(&self) -> bool {
        false
    }
    fn takes_writes(&self) -> bool {
        false
    }
    fn fill(&self, _page: u64, frame: &mut [u8; PAGE_SIZE as usize]) -> Result<(), PagerError> {
        frame[..8].copy_from_slice(&CONTENT.to_le_bytes());
        Ok(())
    }
}

static MADE: Made = Made;

/// The machine, its files and its processes.
pub struct World {
    /// The memory system.
    pub vm: &'static Vm<Hosted>,
    /// The scheduler and its structures.
    pub tasks: Tasks,
    /// The relation between the two processes.
    pub state: State,
    cpus: Vec<Cpu>,
    spaces: Vec<SpaceRef<Hosted>>,
    files: [ObjectRef<Hosted>; 2],
    programs: [ObjectRef<Hosted>; 2],
    shared: Option<ObjectRef<Hosted>>,
    parent: Option<SpaceRef<Hosted>>,
    bases: [u64; 2],
    _crowd: Option<SpaceRef<Hosted>>,
}

impl Drop for World {
    fn drop(&mut self) {
        // The CPUs leave their spaces first. Then CPU 0 drops the spaces and files.
        self.cpus.clear();
        quire_sync::hooks::threads::set_cpu(0);
    }
}

impl World {
    /// Makes a machine of `frames` frames with files and processes. Before the processes are forked, `fill` touches the
    /// parent's memory.
    pub fn new(
        state: State,
        tasks: Tasks,
        frames: u64,
        fill: &mut dyn FnMut(&World, &Space<Hosted>) -> Result<(), Failure>,
    ) -> Result<World, Failure> {
        // In this machine, a fault handles one page, so that an operation that touches a page is one fault.
        let (check, zero_window) = (Level::Never, 0);
        let settings = Settings { cpus: CPUS, frames, poison: false, check, zero_window, ..Settings::default() };
        let vm = Hosted::boot(settings).expect("the settings are valid for a machine");
        let cpus: Vec<Cpu> = (0..CPUS).map(|id| Cpu::attach(vm, id).expect("no other thread is this CPU")).collect();
        let file = || ObjectRef::with_pager(vm, &MADE, 2 * FILE_PAGES * PAGE_SIZE);
        let first = file()?;
        let second = if state == State::File { first.clone() } else { file()? };
        let shared = match state {
            State::Anonymous => Some(ObjectRef::anonymous(vm, 2 * PAGES)?),
            _ => None,
        };
        let bases = [BASE, BASE + (1 << 30)];
        let programs = if state == State::File { [first.clone(), first.clone()] } else { [file()?, file()?] };
        let files = [first, second];
        let mut world = World {
            vm,
            tasks,
            state,
            cpus,
            spaces: Vec::new(),
            files,
            programs,
            shared,
            parent: None,
            bases,
            _crowd: None,
        };
        if state == State::File {
            world._crowd = Some(world.crowd()?);
        }
        match state {
            State::Threads => {
                let space = Space::new(vm)?;
                for side in 0..2 {
                    world.cpus[side].enter(&space).expect("the space belongs to this machine");
                    world.bases[side] = world.cpus[side].run(|| own_stretch(&space, side))?;
                }
                for side in 0..2 {
                    world.cpus[side].run(|| world.map_regions(&space, side))?;
                }
                world.spaces = vec![space.clone(), space];
            }
            State::Parent => {
                let parent = Space::new(vm)?;
                world.cpus[2].enter(&parent).expect("the space belongs to this machine");
                for side in 0..2 {
                    world.cpus[2].run(|| world.map_regions(&parent, side))?;
                }
                world.cpus[2].run(|| fill(&world, &parent))?;
                for side in 0..2 {
                    let child = world.cpus[2].run(|| parent.fork())?;
                    world.cpus[side].enter(&child).expect("the space belongs to this machine");
                    world.spaces.push(child);
                }
                world.parent = Some(parent);
            }
            State::Apart | State::File | State::Anonymous => {
                for side in 0..2 {
                    let space = Space::new(vm)?;
                    world.cpus[side].enter(&space).expect("the space belongs to this machine");
                    world.cpus[side].run(|| world.map_regions(&space, side))?;
                    let other = 1 - side;
                    world.cpus[side].run(|| match state {
                        State::File => world.map_regions(&space, other),
                        State::Anonymous => Ok(space.map(&world.zero(other)).map(drop)?),
                        _ => Ok(()),
                    })?;
                    world.spaces.push(space);
                }
            }
        }
        Ok(world)
    }

    /// The CPU that does the operation of `side`.
    pub fn cpu(&self, side: Side) -> &Cpu {
        &self.cpus[side]
    }
    /// The address space of the process of CPU `side`.
    pub fn space(&self, side: Side) -> &SpaceRef<Hosted> {
        &self.spaces[side]
    }
    /// The program that the process of CPU `side` executes: the shared file, or a file that only this process maps.
    pub fn program(&self, side: Side) -> &ObjectRef<Hosted> {
        &self.programs[side]
    }
    /// The file that the process of CPU `side` maps.
    pub fn file(&self, side: Side) -> &ObjectRef<Hosted> {
        &self.files[side]
    }
    /// The first page of the part of the file that only CPU `side` uses.
    pub fn file_page(&self, side: Side) -> u64 {
        side as u64 * FILE_PAGES
    }

    /// The start of a region of the thread of CPU `side`.
    pub fn at(&self, region: Region, side: Side) -> u64 {
        let n = match region {
            Region::Zero => 0,
            Region::File => 1,
            Region::Copy => 2,
            Region::Fixed => 3,
            Region::Mapped => 4,
            Region::Writable => 5,
            Region::Kept => 6,
            Region::Lazy => 7,
            Region::Heap(_) => 8,
            Region::Anywhere | Region::Program => 9,
        };
        self.bases[side] + n * REGION
    }

    /// The first page of a region of the thread of CPU `side`.
    pub fn page(&self, region: Region, side: Side) -> VirtRange {
        let start = self.at(region, side);
        VirtRange { start, end: start + PAGE_SIZE }
    }

    /// A request to map `pages` pages at `at`: of the shared file in [`State::File`], and of zeroed memory in other
    /// states.
    pub fn request(&self, at: Placement, pages: u64, side: Side) -> MapRequest<'_, Hosted> {
        let request = MapRequest::private(at, pages * PAGE_SIZE);
        match self.state {
            State::File => {
                let from = (self.file_page(side) + PAGES) * PAGE_SIZE;
                MapRequest { object: Some((self.file(side), from)), ..request }
            }
            _ => request,
        }
    }

    /// Makes another process like that of CPU `side`, in the same relation to the process of the other CPU. The
    /// operation `exit` ends the new process.
    pub fn another(&self, side: Side) -> Result<SpaceRef<Hosted>, Failure> {
        if let Some(parent) = &self.parent {
            return Ok(parent.fork()?);
        }
        let space = Space::new(self.vm)?;
        self.map_regions(&space, side)?;
        for region in [Region::Zero, Region::Fixed, Region::Mapped] {
            space.fault(self.at(region, side), Access::Write)?;
        }
        space.fault(self.at(Region::File, side), Access::Read)?;
        Ok(space)
    }

    fn private(&self, region: Region, pages: u64, side: Side) -> MapRequest<'_, Hosted> {
        MapRequest::private(Placement::Fixed(self.at(region, side)), pages * PAGE_SIZE)
    }

    /// A request for memory that was never touched. In [`State::Anonymous`], it maps the memory that both processes
    /// share.
    fn zero(&self, side: Side) -> MapRequest<'_, Hosted> {
        let request = self.private(Region::Zero, PAGES, side);
        match &self.shared {
            Some(shared) => MapRequest { shared: true, object: Some((shared, side as u64 * REGION)), ..request },
            None => request,
        }
    }

    /// Makes the initial mappings of the thread of CPU `side`.
    fn map_regions(&self, space: &Space<Hosted>, side: Side) -> Result<(), Failure> {
        let private = |region, pages| self.private(region, pages, side);
        let from = Some((self.file(side), self.file_page(side) * PAGE_SIZE));
        let file = MapRequest { shared: true, prot: Prot::READ, object: from.clone(), ..private(Region::File, PAGES) };
        let copy = match self.state {
            State::Parent => private(Region::Copy, PAGES),
            _ => MapRequest { object: from, ..private(Region::Copy, PAGES) },
        };
        let mut requests = vec![self.zero(side), file, copy];
        let pages = [Region::Fixed, Region::Mapped, Region::Writable, Region::Kept, Region::Lazy];
        requests.extend(pages.map(|r| private(r, 1)));
        for request in &requests {
            space.map(request)?;
        }
        Ok(())
    }

    /// Maps a page of the shared file [`CROWD`] times, in one space that no operation uses.
    fn crowd(&self) -> Result<SpaceRef<Hosted>, Failure> {
        let space = Space::new(self.vm)?;
        let past = 2 * FILE_PAGES - 1;
        for n in 0..CROWD {
            let mut request = MapRequest::private(Placement::Fixed(BASE + n * 2 * PAGE_SIZE), PAGE_SIZE);
            request.object = Some((self.file(0), past * PAGE_SIZE));
            self.cpus[n as usize % CPUS].run(|| space.map(&request))?;
        }
        Ok(space)
    }
}

/// Opens an arena, a part of the space with its own lock, for the calling CPU. Returns an address in the arena for a
/// thread's regions.
fn own_stretch(space: &Space<Hosted>, side: Side) -> Result<u64, Failure> {
    space.open_arena(side);
    let at = space.map(&MapRequest::private(Placement::Any { hint: 0 }, PAGE_SIZE))?;
    space.unmap(VirtRange { start: at, end: at + PAGE_SIZE })?;
    Ok(at.next_multiple_of(REGION))
}
