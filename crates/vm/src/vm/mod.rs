//! The memory system as one value. It has all state that CPUs share, and lies in the memory that it manages.

pub mod frame_census;
pub mod frame_info;

use crate::machine::Machine;
use crate::map::maps::Maps;
use crate::object::Objects;
use crate::paging::io::Io;
use crate::phys::boot::BootMemory;
use crate::phys::descriptors::{self, Descriptors, Run};
use crate::phys::frames::{Frames, domains_of};
use crate::phys::page::Page;
use crate::phys::queues::{MAX_PARTS, Queues};
use crate::phys::{Config, Physical};
use crate::reclaim::Reclaimer;
use crate::reclaim::progress::Ghosts;
use crate::types::{PAGE_SIZE, Pfn, PhysRange};
use core::fmt;
use core::ops::Deref;
use quire_sync::atomic::AtomicU64;
use quire_sync::cpuset::MAX_CPUS;
use quire_sync::record;

/// Why a memory system cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BootError {
    /// The RAM is too small for the page descriptors and the system itself. The value is the number of frames.
    TooLittleMemory(u64),
    /// A range is empty, unsorted, overlaps another, or has frame numbers beyond 2^32 - 2.
    BadRange(PhysRange),
    /// The machine has no CPU, or more than [`MAX_CPUS`]. The value is the number that it reported.
    BadCpus(usize),
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BootError::TooLittleMemory(frames) => write!(f, "{frames} frames are too few for a memory system"),
            BootError::BadRange(r) => write!(f, "frames {}..{} cannot be RAM", r.start.0, r.end.0),
            BootError::BadCpus(cpus) => write!(f, "the machine has {cpus} CPUs; 1 to {MAX_CPUS} are supported"),
        }
    }
}
impl core::error::Error for BootError {}

/// A memory system. It lies in the RAM that it manages, and is never destroyed.
///
/// The system is a tower of nested values, called storeys. Each storey uses the storeys below and dereferences to them,
/// so that their methods can be called on a `Vm`.
pub struct Vm<M: Machine> {
    reclaimer: Reclaimer<M>,
}

impl<M: Machine> Deref for Vm<M> {
    type Target = Reclaimer<M>;
    #[inline(always)]
    fn deref(&self) -> &Reclaimer<M> {
        &self.reclaimer
    }
}

/// The most bytes that the system itself, its queues, its depots and its per-CPU parts use, without the page
/// descriptors.
const fn boot_bytes<M: Machine>(cpus: usize, queue_parts: usize, domains: usize) -> usize {
    let parts = Queues::boot_bytes(queue_parts) + Frames::boot_bytes(domains) + Io::boot_bytes() + Ghosts::BYTES + 64;
    size_of::<Vm<M>>() + 2 * PAGE_SIZE as usize + 128 * 1024 + cpus * 16 * 1024 + parts
}

/// Splits `ram` into runs of frames. All frames of a run are in one memory domain.
fn runs_of<M: Machine>(machine: &M, ram: impl Iterator<Item = PhysRange>) -> impl Iterator<Item = Run> {
    let domains = domains_of(machine);
    ram.flat_map(move |r| {
        let mut at = r.start.0;
        core::iter::from_fn(move || {
            let start = at;
            let (domain, end) = (start < r.end.0).then(|| machine.domain_of_frame(Pfn(start)))?;
            at = end.0.clamp(start + 1, r.end.0);
            Some(Run { start, end: at, domain: (domain % domains) as u8 })
        })
    })
}

impl<M: Machine> Vm<M> {
    /// Builds the system over `ram`: sorted, disjoint ranges of frames that no other code uses. The first part of the
    /// largest range is used for page descriptors and the system itself.
    ///
    /// # Safety
    /// The frames of `ram` belong to the system from now on. `machine`'s RAM stays reachable as long as the returned
    /// reference, or anything made through it, is used.
    pub unsafe fn new(machine: M, ram: &[PhysRange], config: Config) -> Result<&'static Vm<M>, BootError> {
        let cpus = machine.cpus();
        if cpus == 0 || cpus > MAX_CPUS {
            return Err(BootError::BadCpus(cpus));
        }
        let mut at = 0;
        for r in ram {
            if r.start.0 < at || r.end <= r.start || r.end.0 >= u32::MAX as u64 {
                return Err(BootError::BadRange(*r));
            }
            at = r.end.0;
        }
        let span = descriptors::span(ram.first().map_or(Pfn(0), |r| r.start), Pfn(at));
        let total: u64 = ram.iter().map(|r| r.end.0 - r.start.0).sum();
        let largest = ram.iter().copied().max_by_key(|r| r.end.0 - r.start.0).ok_or(BootError::TooLittleMemory(0))?;
        let queue_parts = config.queue_parts.map_or(Queues::scale(cpus, total), |n| n.clamp(1, MAX_PARTS));
        let domains = domains_of(&machine);
        let tables = Descriptors::words(&span) * size_of::<AtomicU64>()
            + runs_of(&machine, ram.iter().copied()).count() * size_of::<Run>();
        let bytes = descriptors::bytes(&span) + (tables + boot_bytes::<M>(cpus, queue_parts, domains)) as u64;
        let boot_frames = bytes.div_ceil(PAGE_SIZE);
        let boot_end = largest.start.0 + boot_frames;
        if boot_end + 64 > largest.end.0 {
            return Err(BootError::TooLittleMemory(total));
        }
        let next = machine.frame_ptr(largest.start);
        // SAFETY: the pointer is one past the part of the range that is set aside. Consecutive frames are consecutive
        // in memory.
        let end = unsafe { next.add((boot_frames * PAGE_SIZE) as usize) };
        let mut boot = BootMemory { machine: &machine, next, end, burst: 0 };
        let bytes = (span.end - span.start) as usize * size_of::<Page>();
        let pages = boot.take_untouched(bytes, 64).cast::<Page>();
        record::own_array(pages.as_ptr().cast(), bytes, size_of::<Page>(), "page");
        let open = boot.slice(Descriptors::words(&span), || AtomicU64::new(0));
        record::own(open.as_ptr().cast(), size_of_val(open), "open-sections");
        let managed_ram = || {
            let start = |r: &PhysRange| if r.start == largest.start { Pfn(boot_end) } else { r.start };
            ram.iter().map(move |r| PhysRange { start: start(r), end: r.end })
        };
        let runs = {
            let mut each = runs_of(&machine, managed_ram());
            let count = runs_of(&machine, managed_ram()).count();
            boot.slice(count, || each.next().expect("counted just now"))
        };
        // SAFETY: the array's memory was just allocated, and is never freed. The words are zero, and the runs are
        // sorted like `ram`.
        let pages = unsafe { Descriptors::new(pages, span, open, runs) };
        let managed = total - boot_frames;
        let place = boot.take(size_of::<Vm<M>>(), align_of::<Vm<M>>()).cast::<Vm<M>>();
        record::own(place.as_ptr().cast(), size_of::<Vm<M>>(), "vm");
        let next = boot.next;
        // SAFETY: the memory is new, has the right size and alignment, and is never freed. No other thread can reach
        // it. Each storey is initialised once, before the reference is made.
        let vm: &'static Vm<M> = unsafe {
            let reclaimer = &raw mut (*place.as_ptr()).reclaimer;
            let maps = &raw mut (*reclaimer).maps;
            let objects = &raw mut (*maps).objects;
            let physical = &raw mut (*objects).physical;
            (&raw mut (*physical).machine).write(machine);
            let mut boot = BootMemory { machine: &(*physical).machine, next, end, burst: 0 };
            Physical::write(physical, &mut boot, pages, managed, queue_parts, config);
            Objects::write(objects, &mut boot, managed);
            Maps::write(maps, &mut boot);
            Reclaimer::write(reclaimer);
            place.as_ref()
        };
        // SAFETY: no other CPU can reach the value during boot, so no CPU reads the word while it is written.
        unsafe { vm.memory.give(&vm.reclaimer) };
        // Leaves map the zero frame, so the section that has its page descriptor is initialised now.
        // SAFETY: no other CPU can reach the system yet, so no other CPU opens sections.
        unsafe { pages.open_reserved(vm.zero.0, vm.zero.0 + 1) };
        vm.donate_all(managed <= vm.config.describe_at_boot);
        Ok(vm)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
