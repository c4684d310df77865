//! An address space with mappings of every kind, its child, and the expected contents of both.

use quire_hosted::{Cpu, Simulate, Simulated};
use quire_vm::content::IoError;
use quire_vm::map::{Advice, MapRequest, Placement, SpaceRef, Tag};
use quire_vm::object::ObjectRef;
use quire_vm::paging::memory_store::{FaultPlan, MemoryStore};
use quire_vm::paging::pager::{Pager, PagerError};
use quire_vm::{FaultError, MapError, PAGE_SIZE, Prot, VirtRange, Vm};
use std::ptr::NonNull;

pub const BASE: u64 = 0x20_0000_0000;
pub const RW: Prot = Prot::READ.union(Prot::WRITE);

/// Private memory: 32 pages, of which the first 16 were stored into.
pub const PRIVATE: u64 = 0;
/// Private memory that a child shares: 32 pages, all stored into before the fork, the even ones again after it.
pub const FORKED: u64 = 64;
/// Shared memory: 32 pages of an object of 64, of which the first 8 were stored into.
pub const SHARED: u64 = 128;
/// A private, writable mapping of a file: 16 pages, of which the first four were stored into.
pub const FILE: u64 = 192;
/// A private, read-only mapping of the same file: 16 pages.
pub const TEXT: u64 = 256;
/// A stack: 4 pages, which may grow downward.
pub const STACK: u64 = 1400;
/// The first of some unmapped pages between these mappings.
pub const HOLE: u64 = 600;
/// One past the last page that is compared.
pub const END: u64 = 1500;

/// The number of frames of the simulated device.
pub const DEVICE_FRAMES: u64 = 4;

/// Why an operation ended early.
pub enum Failed {
    /// The operation reported that memory is exhausted.
    Memory,
    /// Any other failure, which is an error of the test or of the core.
    Other(String),
}

impl From<MapError> for Failed {
    fn from(e: MapError) -> Self {
        if e == MapError::OutOfMemory { Failed::Memory } else { Failed::Other(format!("{e:?}")) }
    }
}
impl From<FaultError> for Failed {
    fn from(e: FaultError) -> Self {
        if e == FaultError::OutOfMemory { Failed::Memory } else { Failed::Other(format!("{e:?}")) }
    }
}
impl From<quire_vm::OutOfMemory> for Failed {
    fn from(_: quire_vm::OutOfMemory) -> Self {
        Failed::Memory
    }
}
impl<E: std::fmt::Debug> From<IoError<E>> for Failed {
    fn from(e: IoError<E>) -> Self {
        if matches!(e, IoError::OutOfMemory) { Failed::Memory } else { Failed::Other(format!("{e:?}")) }
    }
}

/// The expected content of a page: its first word. `None` if the page cannot be read.
pub type Content = Option<u64>;

/// The expected contents of the space's and the child's pages.
pub struct Expected {
    pub pages: Vec<Content>,
    pub child: Vec<Content>,
    /// The first word of each page of the shared object.
    pub object: Vec<u64>,
}

impl Expected {
    /// Sets pages `first..first + n` of the space.
    pub fn set(&mut self, first: u64, n: u64, f: impl Fn(u64) -> Content) {
        (0..n).for_each(|i| self.pages[(first + i) as usize] = f(i));
    }
}

pub struct World<'c, F: Simulate> {
    pub cpu: &'c Cpu<F>,
    pub vm: &'static Vm<Simulated<F>>,
    pub space: SpaceRef<Simulated<F>>,
    pub child: Option<SpaceRef<Simulated<F>>>,
    pub shared: ObjectRef<Simulated<F>>,
    pub file: ObjectRef<Simulated<F>>,
    pub expected: Expected,
    /// The spaces that operations made; they are dropped with the world.
    pub made: Vec<SpaceRef<Simulated<F>>>,
}

/// A file whose pages the pager computes.
struct Made;

impl Pager for Made {
    fn name(&self, to: &mut dyn std::fmt::Write) -> std::fmt::Result {
        to.write_str("made up")
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
    fn cluster(&self) -> usize {
        4
    }
    fn fill(&self, page: u64, frame: &mut [u8; PAGE_SIZE as usize]) -> Result<(), PagerError> {
        frame[..8].copy_from_slice(&of_file(page).to_le_bytes());
        Ok(())
    }
}

/// Returns the first word of page `page` of the file.
pub fn of_file(page: u64) -> u64 {
    0xf11e_0000 + page
}

pub fn page(n: u64) -> u64 {
    BASE + n * PAGE_SIZE
}

pub fn range(first: u64, pages: u64) -> VirtRange {
    VirtRange { start: page(first), end: page(first + pages) }
}

/// Returns a request for private memory from page `first` on.
pub fn request<'o, F: Simulate>(first: u64, pages: u64) -> MapRequest<'o, Simulated<F>> {
    MapRequest::private(Placement::Fixed(page(first)), pages * PAGE_SIZE)
}

/// Makes a paging store in leaked memory.
pub fn store(pages: u64, plan: FaultPlan) -> &'static MemoryStore {
    let bytes = vec![0u8; (pages * PAGE_SIZE) as usize].leak();
    // SAFETY: the memory is leaked, so nothing else uses it.
    Box::leak(Box::new(unsafe { MemoryStore::new(NonNull::from(bytes).cast(), pages, plan) }))
}

impl<'c, F: Simulate> World<'c, F> {
    pub fn new(cpu: &'c Cpu<F>) -> World<'c, F> {
        let vm = cpu.vm();
        let space = quire_vm::Space::new(vm).expect("memory");
        let shared = ObjectRef::anonymous(vm, 64).expect("memory");
        let file = ObjectRef::with_pager(vm, &Made, 16 * PAGE_SIZE).expect("memory");
        fn of<F: Simulate>(
            object: &ObjectRef<Simulated<F>>,
            first: u64,
            pages: u64,
            shared: bool,
            prot: Prot,
        ) -> MapRequest<'_, Simulated<F>> {
            MapRequest { object: Some((object, 0)), shared, prot, ..request(first, pages) }
        }
        for r in [
            request(PRIVATE, 32),
            request(FORKED, 32),
            of(&shared, SHARED, 32, true, RW),
            of(&file, FILE, 16, false, RW),
            of(&file, TEXT, 16, false, Prot::READ | Prot::EXEC),
            MapRequest { grows_down: true, tag: Tag::Stack, ..request(STACK, 4) },
        ] {
            space.map(&r).expect("memory");
        }
        let none = || vec![None; END as usize];
        let mut world = World {
            cpu,
            vm,
            space,
            child: None,
            shared,
            file,
            expected: Expected { pages: none(), child: none(), object: vec![0; 64] },
            made: vec![],
        };
        cpu.enter(&world.space).unwrap();
        world.expected.set(PRIVATE, 32, |_| Some(0));
        world.expected.set(FORKED, 32, |_| Some(0));
        world.expected.set(SHARED, 32, |_| Some(0));
        world.expected.set(FILE, 16, |i| Some(of_file(i)));
        world.expected.set(TEXT, 16, |i| Some(of_file(i)));
        world.expected.set(STACK, 4, |_| Some(0));
        (0..16).for_each(|i| world.write(PRIVATE + i, 100 + i));
        (0..32).for_each(|i| world.write(FORKED + i, 200 + i));
        (0..8).for_each(|i| world.write(SHARED + i, 300 + i));
        (0..4).for_each(|i| world.write(FILE + i, 400 + i));
        world.write(STACK + 3, 500);
        // The child has the present contents of all pages.
        world.child = Some(world.space.fork().expect("memory"));
        world.expected.child = world.expected.pages.clone();
        (0..32).step_by(2).for_each(|i| world.write(FORKED + i, 600 + i));
        world
    }

    /// Stores `value` to page `n` as a program, and records it as the expected content.
    fn write(&mut self, n: u64, value: u64) {
        self.cpu.write(&self.space, page(n), value).expect("memory");
        self.expected.pages[n as usize] = Some(value);
        if (SHARED..SHARED + 32).contains(&n) {
            self.expected.object[(n - SHARED) as usize] = value;
        }
    }

    /// Pages out all pages that can be paged out.
    pub fn page_out_everything(&self) -> Result<(), Failed> {
        for (first, pages) in [(PRIVATE, 32), (FORKED, 32), (SHARED, 32), (FILE, 16), (STACK, 4)] {
            self.space.advise(range(first, pages), Advice::PageOut)?;
        }
        Ok(())
    }

    /// Reads every page until the read succeeds. Returns the number of failures of the pager.
    pub fn read_until_it_goes(&self, context: &str) -> u32 {
        let mut failed = 0;
        for n in 0..END {
            if self.expected.pages[n as usize].is_none() {
                continue;
            }
            while let Err(e) = self.cpu.read(&self.space, page(n)) {
                assert!(matches!(e, FaultError::Pager(_)), "{context}: page {n}");
                failed += 1;
                assert!(failed < 10_000, "{context}: page {n} never comes");
            }
        }
        failed
    }

    /// Compares all memory with its expected contents. Runs the checker before and after.
    pub fn verify(&self, context: &str) {
        let check = || {
            for space in [Some(&self.space), self.child.as_ref()].into_iter().flatten().chain(&self.made) {
                space.check(true).unwrap_or_else(|e| panic!("{context}: {e}"));
            }
            for object in [&self.shared, &self.file] {
                object.check(true).unwrap_or_else(|e| panic!("{context}: {e}"));
            }
        };
        self.vm.finish_io(&mut quire_vm::sleep::MaySleep::here());
        check();
        for (space, expected) in
            [(Some(&self.space), &self.expected.pages), (self.child.as_ref(), &self.expected.child)]
        {
            let Some(space) = space else { continue };
            self.cpu.enter(space).unwrap();
            for n in 0..END {
                // Most of the address space is empty, so only every eighth empty page is read.
                let want = expected[n as usize];
                if want.is_none() && n % 8 != 0 {
                    continue;
                }
                let got = match self.cpu.read(space, page(n)) {
                    Ok(v) => Some(v),
                    Err(FaultError::NotMapped | FaultError::Protection | FaultError::BeyondEnd) => None,
                    Err(e) => panic!("{context}: page {n} cannot be read: {e:?}"),
                };
                assert_eq!(got, want, "{context}: page {n}");
            }
        }
        for (n, want) in self.expected.object.iter().enumerate() {
            let mut bytes = [0; 8];
            let read = self.shared.read::<std::convert::Infallible>(n as u64 * PAGE_SIZE, 8, &mut |from| {
                from.copy_to(&mut bytes);
                Ok(8)
            });
            assert!(read.is_ok_and(|n| n == 8 || n == 0), "{context}: page {n} of the object");
            assert_eq!(u64::from_le_bytes(bytes), *want, "{context}: page {n} of the object");
        }
        check();
    }
}

impl<F: Simulate> Drop for World<'_, F> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.cpu.leave();
        }
    }
}
