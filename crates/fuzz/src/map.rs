//! Operations on address spaces, compared page by page with a model. One CPU runs them, so the contents of every page
//! are known exactly.

use crate::Input;
use quire_hosted::{Account, Cpu, Hosted, Settings};
use quire_vm::map::{Advice, Content, Inherit, MapRequest, Move, Placement, Space, SpaceRef};
use quire_vm::{Access, FaultError, MapError, ObjectRef, PAGE_SIZE, Prot, VirtRange, Vm};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

std::thread_local! {
    /// A machine for all inputs, and the counts of its memory when idle. Each input frees all that it allocates.
    static VM: (&'static Vm<Hosted>, Account) = {
        let settings = Settings { cpus: 1, frames: 6000, layers: 3, ..Settings::default() };
        let vm = Hosted::boot(settings).expect("the settings are valid for a machine");
        let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
        (vm, Account::of(vm))
    };
}

/// The number of pages that an input works on, on both sides of the edge of a table page.
const PAGES: usize = 48;
const BASE: u64 = 0x20_0020_0000 - 24 * PAGE_SIZE;
/// The most address spaces that exist together.
const SPACES: usize = 4;
/// The number of objects that several mappings map, and the pages of each.
const OBJECTS: usize = 2;
const OBJECT_PAGES: usize = 12;

/// The content of a page of an object. `None` if the page lies beyond the object's end.
type Seen = Option<Rc<Cell<u64>>>;

#[derive(Clone)]
enum Memory {
    /// Private memory. `own` is the page's own word after a store. Before the first store, loads read the content
    /// `behind`, if there is any.
    Private { own: Option<u64>, behind: Option<Seen> },
    /// Shared memory: stores change the object.
    Shared(Seen),
}

#[derive(Clone)]
struct Page {
    prot: Prot,
    memory: Memory,
    /// If `left_out` is true, a fork leaves the page out. If `wiped` is true, the child of a fork finds the page empty.
    left_out: bool,
    wiped: bool,
}

impl Page {
    fn new(prot: Prot, memory: Memory) -> Page {
        Page { prot, memory, left_out: false, wiped: false }
    }

    /// Returns the result that a load must have.
    fn value(&self) -> Result<u64, FaultError> {
        let seen = |s: &Seen| s.as_ref().map(|s| s.get()).ok_or(FaultError::BeyondEnd);
        match &self.memory {
            Memory::Private { own: Some(v), .. } => Ok(*v),
            Memory::Private { behind: Some(s), .. } | Memory::Shared(s) => seen(s),
            Memory::Private { .. } => Ok(0),
        }
    }

    fn store(&mut self, value: u64) {
        match &mut self.memory {
            Memory::Private { own, .. } => *own = Some(value),
            Memory::Shared(Some(s)) => s.set(value),
            Memory::Shared(None) => {}
        }
    }

    /// Gives the page the state that it had before the first store.
    fn forget(&mut self) {
        if let Memory::Private { own, .. } = &mut self.memory {
            *own = None;
        }
    }

    /// Returns the page in the child of a fork; `None` if the fork leaves it out.
    fn inherited(&self) -> Option<Page> {
        let mut child = self.clone();
        if self.wiped {
            child.forget();
        }
        (!self.left_out).then_some(child)
    }
}

struct World {
    space: SpaceRef<Hosted>,
    pages: Vec<Option<Page>>,
}

/// An object, and the contents of its pages.
type Object = (ObjectRef<Hosted>, Vec<Rc<Cell<u64>>>);

struct Run<'a> {
    cpu: &'a Cpu,
    input: Input<'a>,
    objects: Vec<Object>,
    stamp: u64,
}

/// Runs the bytes as operations.
pub fn run(data: &[u8]) {
    let vm = VM.with(|(vm, _)| *vm);
    let cpu = &Cpu::attach(vm, 0).expect("no other thread is this CPU");
    let object = |_| {
        let object = ObjectRef::anonymous(vm, OBJECT_PAGES as u64).expect("memory for an object");
        (object, (0..OBJECT_PAGES).map(|_| Rc::default()).collect())
    };
    let mut run = Run { cpu, input: Input::new(data), objects: (0..OBJECTS).map(object).collect(), stamp: 0 };
    let mut worlds = vec![World { space: Space::new(vm).expect("a space"), pages: vec![None; PAGES] }];
    while !run.input.is_over() {
        let n = run.input.below(worlds.len());
        cpu.enter(&worlds[n].space).expect("the space belongs to this machine");
        match run.input.below(16) {
            15 if worlds.len() < SPACES => {
                let child = worlds[n].space.fork().expect("memory for a fork");
                let pages = worlds[n].pages.iter().map(|p| p.as_ref().and_then(Page::inherited)).collect();
                worlds.push(World { space: child, pages });
            }
            14 if worlds.len() > 1 => {
                cpu.leave();
                drop(worlds.swap_remove(n));
            }
            op => run.operate(op, &mut worlds[n]),
        }
    }
    for world in &worlds {
        cpu.enter(&world.space).expect("the space belongs to this machine");
        (0..PAGES).for_each(|page| run.look(world, page));
        world.space.check(true).unwrap_or_else(|broken| panic!("{broken}"));
    }
    cpu.leave();
    drop(worlds);
    drop(run);
    VM.with(|(vm, before)| before.assert_settled(vm));
}

fn va(page: usize) -> u64 {
    BASE + page as u64 * PAGE_SIZE
}

fn range(run: &Range<usize>) -> VirtRange {
    VirtRange { start: va(run.start), end: va(run.end) }
}

impl Run<'_> {
    fn pages(&mut self) -> Range<usize> {
        let start = self.input.below(PAGES);
        let len = 1 + self.input.below(12);
        start..(start + len).min(PAGES)
    }

    fn prot(&mut self) -> Prot {
        let rw = Prot::READ | Prot::WRITE;
        [Prot::empty(), Prot::READ, rw, rw, rw, Prot::READ | Prot::EXEC, Prot::all(), rw][self.input.below(8)]
    }

    fn operate(&mut self, op: usize, world: &mut World) {
        match op {
            0 | 1 => self.map(world),
            2 => {
                let run = self.pages();
                assert_eq!(world.space.unmap(range(&run)), Ok(()));
                world.pages[run].fill(None);
            }
            3 => self.protect(world),
            4 => self.advise(world),
            5 => self.remap(world),
            6 => self.grow(world),
            7 => self.inherit(world),
            8..12 => {
                let page = self.input.below(PAGES);
                self.write(world, page);
            }
            _ => {
                let page = self.input.below(PAGES);
                self.look(world, page);
            }
        }
    }

    fn map(&mut self, world: &mut World) {
        let (run, prot) = (self.pages(), self.prot());
        let (kind, replace, populate) = (self.input.below(4), self.input.below(4) != 0, self.input.below(8) == 0);
        let (object, first) = (self.input.below(OBJECTS), self.input.below(OBJECT_PAGES));
        let at = va(run.start);
        let request = MapRequest {
            at: if replace { Placement::Fixed(at) } else { Placement::FixedNoReplace(at) },
            len: range(&run).len(),
            prot,
            shared: matches!(kind, 1 | 3),
            object: (kind > 1).then(|| (&self.objects[object].0, first as u64 * PAGE_SIZE)),
            populate,
            ..MapRequest::private(Placement::Any { hint: 0 }, 0)
        };
        let free = world.pages[run.clone()].iter().all(Option::is_none);
        match world.space.map(&request) {
            Ok(got) => assert!(got == at && (replace || free), "a mapping was replaced against the flag"),
            Err(MapError::Exists) => {
                assert!(!replace && !free, "the range is free");
                return;
            }
            Err(e) => panic!("mapping {run:?} of kind {kind}: {e:?}"),
        }
        let start = run.start;
        for page in run {
            let seen = || self.objects[object].1.get(first + page - start).cloned();
            let memory = match kind {
                0 => Memory::Private { own: None, behind: None },
                1 => Memory::Shared(Some(Rc::default())),
                2 => Memory::Private { own: None, behind: Some(seen()) },
                _ => Memory::Shared(seen()),
            };
            let mut new = Page::new(prot, memory);
            if populate && prot.contains(Prot::WRITE) {
                written_to(&mut new);
            }
            world.pages[page] = Some(new);
        }
    }

    fn protect(&mut self, world: &mut World) {
        let (run, prot) = (self.pages(), self.prot());
        let done = world.space.protect(range(&run), prot);
        // Only the pages before the first hole are changed.
        let hole = run.clone().find(|p| world.pages[*p].is_none());
        assert_eq!(done, if hole.is_some() { Err(MapError::NotMapped) } else { Ok(()) });
        for page in run.start..hole.unwrap_or(run.end) {
            world.pages[page].iter_mut().for_each(|p| p.prot = prot);
        }
    }

    fn advise(&mut self, world: &mut World) {
        let run = self.pages();
        let advice =
            [Advice::DontNeed, Advice::Free, Advice::WillNeed, Advice::PageOut, Advice::Normal][self.input.below(5)];
        let done = world.space.advise(range(&run), advice);
        if advice == Advice::Free && done == Err(MapError::Invalid) {
            return;
        }
        let hole = run.clone().any(|p| world.pages[p].is_none());
        assert_eq!(done, if hole { Err(MapError::NotMapped) } else { Ok(()) }, "{advice:?} of {run:?}");
        if matches!(advice, Advice::DontNeed | Advice::Free) {
            // Freed pages may keep their contents for some time. After this call they have lost them.
            let _done = world.space.advise(range(&run), Advice::DontNeed);
            world.pages[run].iter_mut().flatten().for_each(Page::forget);
        }
    }

    fn remap(&mut self, world: &mut World) {
        let (from, to) = (self.pages(), self.input.below(PAGES));
        let n = from.len().min(PAGES - to);
        let (from, to) = (from.start..from.start + n, to..to + n);
        if from.start < to.end && to.start < from.end {
            return;
        }
        let keep = self.input.below(4) == 0;
        match world.space.remap(range(&from), range(&from).len(), Move::To(va(to.start)), keep) {
            Ok(at) => assert_eq!(at, va(to.start)),
            // The range has several mappings, or a hole. The call has changed nothing.
            Err(MapError::NotMapped | MapError::Invalid) => return,
            Err(e) => panic!("moving {from:?} to {to:?}: {e:?}"),
        }
        let moved: Vec<Option<Page>> = world.pages[from.clone()].to_vec();
        assert!(moved.iter().all(Option::is_some), "a hole was moved");
        world.pages[to].clone_from_slice(&moved);
        for page in from {
            match &mut world.pages[page] {
                Some(p) if keep => p.forget(),
                gone => *gone = None,
            }
        }
    }

    /// Makes a mapping of private memory longer or shorter in place.
    fn grow(&mut self, world: &mut World) {
        let run = self.pages();
        let new = 1 + self.input.below(12);
        let end = (run.start + new).min(PAGES);
        let plain =
            |p: &Option<Page>| p.as_ref().is_some_and(|p| matches!(p.memory, Memory::Private { behind: None, .. }));
        if end > run.end && !world.pages[run.clone()].iter().all(plain) {
            return;
        }
        let len = (end - run.start) as u64 * PAGE_SIZE;
        match world.space.remap(range(&run), len, Move::No, false) {
            Ok(at) => assert_eq!(at, va(run.start)),
            Err(MapError::NotMapped | MapError::Invalid | MapError::NoSpace) => return,
            Err(e) => panic!("resizing {run:?} to {new}: {e:?}"),
        }
        if end < run.end {
            world.pages[end..run.end].fill(None);
        }
        for page in run.end..end {
            assert!(world.pages[page].is_none(), "a mapping grew over another one");
            let mut more = world.pages[run.end - 1].clone().expect("it is plain");
            more.forget();
            world.pages[page] = Some(more);
        }
    }

    fn inherit(&mut self, world: &mut World) {
        let run = self.pages();
        let how = [
            Inherit::NONE,
            Inherit::COPY,
            Inherit::ZERO,
            Inherit { included: Some(true), content: None },
            Inherit { included: None, content: Some(Content::Zero) },
            Inherit { included: None, content: Some(Content::Copy) },
        ][self.input.below(6)];
        let done = world.space.inherit(range(&run), how);
        let mine = world.pages[run].iter_mut();
        if done == Err(MapError::Invalid) {
            let plain = |p: &Page| matches!(p.memory, Memory::Private { behind: None, .. });
            assert!(how.content == Some(Content::Zero) && mine.flatten().any(|p| !plain(p)));
            return;
        }
        let mut hole = false;
        for page in mine {
            let Some(page) = page else {
                hole = true;
                continue;
            };
            page.left_out = how.included.map_or(page.left_out, |included| !included);
            page.wiped = how.content.map_or(page.wiped, |content| content == Content::Zero);
        }
        assert_eq!(done, if hole { Err(MapError::NotMapped) } else { Ok(()) });
    }

    fn write(&mut self, world: &mut World, page: usize) {
        self.stamp += 1;
        let value = self.stamp;
        let done = self.cpu.write(&world.space, va(page), value);
        assert_eq!(done, expected(&world.pages[page], Access::Write).map(|_| ()), "a store to page {page}");
        if let (Ok(()), Some(page)) = (done, &mut world.pages[page]) {
            page.store(value);
        }
    }

    fn look(&self, world: &World, page: usize) {
        let found = self.cpu.read(&world.space, va(page));
        assert_eq!(found, expected(&world.pages[page], Access::Read), "a load of page {page}");
    }
}

/// Models a copy-on-write copy: the page gets a word of its own, with the content seen before.
fn written_to(page: &mut Page) {
    if let Ok(value) = page.value() {
        page.store(value);
    }
}

/// Returns the result that an access must have.
fn expected(page: &Option<Page>, access: Access) -> Result<u64, FaultError> {
    let page = page.as_ref().ok_or(FaultError::NotMapped)?;
    if !page.prot.contains(access.needs()) {
        return Err(FaultError::Protection);
    }
    page.value()
}
