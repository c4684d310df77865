//! Physical frames. Each CPU has a magazine of free frames. Each memory domain has a depot of full chains for its CPUs,
//! and buddy lists behind the depot.
//!
//! A magazine holds chains of frames, linked through their descriptors. A depot holds only full chains of up to
//! [`CHAIN`] frames, so an exchange between the two moves one pointer. A CPU does at most one shared operation in
//! [`CHAIN`] allocations or frees, in any mix. It has two chains. So alternate frees and allocations at the end of one
//! chain do not reach the depot each time (Bonwick and Adams, USENIX 2001). Blocks of several frames come directly from
//! the buddy lists. If these have no large enough block, first the depots' chains are broken up, then the magazines.
//!
//! # Domains
//! The machine reports which memory is near which CPU ([`Machine::domains`]). Each domain has its own depot and buddy
//! lists, under its own lock. A CPU allocates from its own domain, or from the next domain if its own has no frame.
//! Frames of another domain that a CPU frees collect in a chain, and return to their domain in a batch. No block spans
//! two domains.
//!
//! # Length of a chain
//! A chain has [`CHAIN`] frames, and fewer on machines with many CPUs and little memory. So all magazines together keep
//! at most a quarter of memory.
//!
//! # The reserve, and low memory
//! Requests for programs' frames ([`For::User`]) are refused when the frames outside the magazines are fewer than the
//! reserve. So a program that uses all memory does not make the kernel's own requests ([`For::Kernel`]) fail. A CPU
//! compares these numbers only when it goes to a depot, not when it takes a frame from its magazine. Frames of programs
//! and of the kernel are two groups, with chains of their own. If the depots have no chain of the requested group and
//! the buddy lists are empty, chains of the other group are broken up. A CPU that finds no chain checks whether all
//! magazines together hold more than the reserve. If they do, it drains them; otherwise the request is refused and the
//! magazines stay. So no request is refused while frames count as free, except frames that are just moving between
//! lists.
//!
//! Each domain has its own [`Watermarks`], computed from its size. A CPU whose domain is below its low mark allocates
//! from the next domain that is above its own low mark. If all domains are below their marks, memory is *low*
//! ([`Frames::is_low`]). This is one read-mostly flag. It is computed from the depots' exact counts, and only at depot
//! exchanges. While memory is low, CPUs exchange short chains and keep few frames, the depots keep no chains, and idle
//! CPUs zero no frames. The registered thread (`Frames::wake_when_low`) is woken long before a request is refused.

pub(crate) mod buddy;
mod check;
pub(crate) mod contiguous;
mod domain_info;
mod magazine;
mod stock;

use crate::error::OutOfMemory;
use crate::machine::{Machine, Standing};
use crate::mutant::{Mutant, mutant};
use crate::phys::Physical;
use crate::phys::boot::BootMemory;
use crate::phys::config::Config;
use crate::phys::descriptors::{Descriptors, SECTION};
use crate::phys::page::FrameKind;
use crate::stats::Event;
use crate::types::Pfn;
use buddy::{Buddy, Group};
pub use buddy::{LARGE, MAX_ORDER};
pub use check::FrameError;
pub use contiguous::Contiguous;
use core::fmt;
pub use domain_info::{CpuFrames, DomainInfo};
use magazine::Magazine;
use quire_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence_after_rmw, fence_full};
use quire_sync::hooks::{is_panicking, unpark};
use quire_sync::{CachePadded, PerCpu, Rank, SpinLock, ThreadHandle, record};

/// The number of frames that the reserve has for each CPU. A CPU may keep a half-used slab of each small size.
const FRAMES_A_CPU: u64 = 8;
/// The number of frames in a chain. Each exchange touches one shared cache line, so one allocation in 256 does.
#[cfg(not(any(loom, shuttle)))]
pub const CHAIN: u32 = 256;
/// The number of frames in a chain. It is small, so that exchanges happen under the checkers.
#[cfg(any(loom, shuttle))]
pub const CHAIN: u32 = 2;

/// The most frames from one watermark to the next (256 MiB). It has a limit, because the frames that programs allocate
/// during one write to the store do not grow with memory.
const MOST_STEP: u64 = 1 << 16;

/// A frame that the holder of this value owns. The value cannot be copied. It ends in
/// [`Physical::free_frame`](crate::phys::Physical::free_frame), or becomes a page or a page table.
///
/// Its drop does not free the frame, because the value does not know its system. A dropped frame stays in use for ever.
/// Where debug assertions are on, the drop panics, except while a panic unwinds.
#[derive(Debug)]
#[must_use = "an owned frame leaks unless it is freed"]
pub struct Frame {
    /// The frame number. It is below 2^32 on every machine ([`Vm::new`](crate::Vm::new)).
    pfn: u32,
    /// The system that allocated the frame (`Vm::tag`). 0 if the frame was made by [`Frame::from_pfn`], whose caller
    /// guarantees the right system.
    system: u32,
}

impl Frame {
    pub(crate) fn of<M: Machine>(vm: &Physical<M>, pfn: Pfn) -> Frame {
        Frame { pfn: pfn.0 as u32, system: vm.tag() }
    }
    /// The frame's number.
    pub fn pfn(&self) -> Pfn {
        Pfn(self.pfn.into())
    }
    /// Passes ownership to the holder of the number, such as an index slot or a page table.
    pub fn into_pfn(self) -> Pfn {
        let pfn = self.pfn();
        core::mem::forget(self);
        pfn
    }
    /// Takes ownership back from the holder of the number.
    ///
    /// # Safety
    /// The number came from [`Frame::into_pfn`] (or is a frame of a block), and its holder gave it up. The frame is
    /// returned to the system that allocated it.
    pub unsafe fn from_pfn(pfn: Pfn) -> Frame {
        Frame { pfn: pfn.0 as u32, system: 0 }
    }
}

/// Error: the frame belongs to another memory system. The frame is passed back to its owner.
#[derive(Debug)]
pub struct ForeignFrame(pub Frame);

impl fmt::Display for ForeignFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the frame belongs to another memory system")
    }
}
impl core::error::Error for ForeignFrame {}

impl Drop for Frame {
    fn drop(&mut self) {
        // A panic drops frames on its way. Their loss is not a second panic.
        debug_assert!(is_panicking(), "frame {:?} is dropped instead of freed", self.pfn());
    }
}

/// The content that a new frame must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// Any content. It may be that of the last owner.
    Any,
    /// All bytes are zero.
    Zeroed,
}

/// The purpose of a frame. It decides how much of the reserve the request may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum For {
    /// A program's data. Refused when only the reserve is left.
    User,
    /// A program's page table. Refused like a program's data. It is allocated among the kernel's frames, because it
    /// cannot be moved.
    Table,
    /// The kernel's own structures, whose makers handle a failure. Unless they are made for a
    /// [program](crate::machine::Standing::Program), they may use the reserve down to the [floor](Frames::floor).
    Kernel,
    /// Data and page tables of the administrator's programs, after a refusal. They may use the upper quarter of the
    /// reserve.
    Administrator,
    /// Data and page tables of a thread that is ending, after a refusal. They may use the reserve down to the floor.
    Leaving,
    /// The kernel's own structures, after a refusal, if they are not made for a program. They may use the reserve down
    /// to the floor.
    System,
    /// The kernel's own structures, for a thread that [ends something](crate::machine::Machine::ends_something). They
    /// may use the whole reserve.
    End,
}

impl For {
    pub(crate) fn group(self) -> Group {
        match self {
            For::User => Group::User,
            For::Table | For::Kernel | For::Administrator | For::Leaving | For::System | For::End => Group::Kernel,
        }
    }
    /// Whether the request may use a part of the reserve, because the same request without the reserve was refused.
    pub(crate) fn uses_reserve(self) -> bool {
        matches!(self, For::Administrator | For::Leaving | For::System | For::End)
    }
    /// Whether the request may not use the reserve.
    pub(crate) fn is_limited(self) -> bool {
        matches!(self, For::User | For::Table)
    }
}

/// The free frames of a domain outside the magazines.
pub(crate) struct DepotFrames {
    /// The full chains of each group. The heads of the chains are linked through `prev`.
    full: [Option<Pfn>; 2],
    pub(crate) buddy: Buddy,
}

/// One domain's depot: its free frames outside the magazines (the CPUs' caches of frames), and their counts.
#[repr(C)]
pub(crate) struct Depot {
    /// The number of frames in chains and blocks. Written under the lock, whose cache line it shares.
    uncached: AtomicU64,
    /// The number of all frames of the domain. It grows only at boot.
    total: AtomicU64,
    /// The low mark of [`Frames::marks`], computed when `total` grows.
    low: AtomicU64,
    /// The number of full chains. Written under the lock. Idle CPUs read it without the lock, and mostly find zero.
    chains: AtomicU32,
    pub(crate) held: SpinLock<DepotFrames>,
}

/// All frames of a machine.
pub struct Frames {
    pages: Descriptors,
    magazines: PerCpu<Magazine>,
    pub(crate) domains: &'static [CachePadded<Depot>],
    /// Each domain has fewer frames outside the magazines than its low mark. Read often, changed only at depot
    /// exchanges.
    low: AtomicBool,
    /// Less than a quarter of all frames is outside the magazines. Read often, changed only at depot exchanges.
    scarce: AtomicBool,
    /// Fewer frames than the reserve are outside the magazines. Changed only at depot exchanges.
    reserve_in_use: AtomicBool,
    /// The number of frames in a full chain of programs' frames.
    chain: u32,
    /// The most zeroed frames that a CPU keeps.
    stock: u32,
    reserve: u64,
    /// The least number of free frames that was ever left outside the magazines (the CPUs' caches) while memory was
    /// low.
    least: AtomicU64,
    total: u64,
    /// The thread to wake when memory becomes low; 0 if there is none.
    daemon: AtomicUsize,
    /// Memory became low, or a request was refused, since the daemon last checked.
    asked: AtomicBool,
}

/// The numbers of free frames outside the magazines (the CPUs' caches of frames) at which pageout begins and ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermarks {
    /// Requests for programs' frames are refused below the sum of this number over all domains.
    pub min: u64,
    /// Pageout begins below this.
    pub low: u64,
    /// Pageout ends at this number.
    pub high: u64,
}

/// A set of memory domains of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct DomainSet(u128);

impl DomainSet {
    /// Whether the set contains `domain`.
    pub fn contains(self, domain: u8) -> bool {
        self.0 >> domain & 1 != 0
    }
}

/// The number of memory domains that the core distinguishes on `machine`.
pub(crate) fn domains_of(machine: &impl Machine) -> usize {
    machine.domains().clamp(1, 128)
}

impl Frames {
    /// The bytes of boot memory that the depots of `domains` domains need.
    pub(crate) const fn boot_bytes(domains: usize) -> usize {
        domains * size_of::<CachePadded<Depot>>()
    }

    pub(crate) fn new<M: Machine>(
        boot: &mut BootMemory<'_, M>,
        pages: Descriptors,
        total: u64,
        config: &Config,
    ) -> Self {
        let machine = boot.machine();
        let domains = domains_of(machine);
        let cpus = machine.cpus();
        let reserve = (total / 64).clamp(256, 4096) + FRAMES_A_CPU * cpus as u64;
        let reserve = config.reserve.unwrap_or(reserve).min(total / 2);
        let magazines = boot.per_cpu(|cpu| Magazine::new((machine.domain_of_cpu(cpu) % domains) as u8));
        let mut number = 0;
        let depots = boot.slice(domains, || {
            number += 1;
            let held = DepotFrames { full: [None; 2], buddy: Buddy::new(pages, (number - 1) as u8) };
            CachePadded(Depot {
                uncached: AtomicU64::new(0),
                total: AtomicU64::new(0),
                // The mark is 1, so that a domain without frames is always low.
                low: AtomicU64::new(1),
                chains: AtomicU32::new(0),
                held: SpinLock::new(Rank::FRAMES, held),
            })
        });
        record::own_array(depots.as_ptr().cast(), size_of_val(depots), size_of::<CachePadded<Depot>>(), "frame-depot");
        let share = total / (8 * cpus as u64);
        Frames {
            pages,
            magazines,
            domains: depots,
            low: AtomicBool::new(false),
            scarce: AtomicBool::new(false),
            reserve_in_use: AtomicBool::new(false),
            chain: if cfg!(any(loom, shuttle)) { CHAIN } else { (CHAIN as u64).min(share).max(16) as u32 },
            stock: (config.zero_stock as u64).min(share / 4) as u32,
            reserve,
            least: AtomicU64::new(u64::MAX),
            total,
            daemon: AtomicUsize::new(0),
            asked: AtomicBool::new(false),
        }
    }

    /// The number of frames that the core manages.
    pub fn total(&self) -> u64 {
        self.total
    }
    /// The number of frames that are reserved for the kernel.
    pub fn reserve(&self) -> u64 {
        self.reserve
    }
    /// The half of the reserve that is kept for threads that [end something](crate::machine::Machine::ends_something).
    /// When fewer frames are left, all other threads are refused kernel structures.
    pub fn floor(&self) -> u64 {
        self.reserve / 2
    }
    /// The least number of frames that was ever left outside the magazines while memory was low. `None` if memory was
    /// never low.
    pub fn lowest(&self) -> Option<u64> {
        Some(self.least.load(Ordering::Relaxed)).filter(|n| *n != u64::MAX)
    }
    /// The number of frames that must stay outside the magazines after a request for `on_behalf`.
    pub(crate) fn limit(&self, on_behalf: For) -> u64 {
        match on_behalf {
            For::User | For::Table | For::Kernel => self.reserve(),
            For::Administrator => self.reserve() - self.reserve() / 4,
            For::Leaving | For::System => self.floor(),
            For::End => 0,
        }
    }
    /// The watermarks of `domain`, computed from its size. `min` is the domain's share of the reserve. Each further
    /// mark adds a sixty-fourth of the domain's frames, at most 256 MiB. This step covers the frames that programs
    /// allocate during one write to the store. It is small enough that a small machine does not page with a quarter of
    /// its memory free.
    ///
    /// # Panics
    /// Panics if the machine has no such domain.
    pub(crate) fn marks(&self, domain: usize) -> Watermarks {
        self.marks_of(self.domains[domain].total.load(Ordering::Relaxed))
    }
    fn marks_of(&self, frames: u64) -> Watermarks {
        let min = (self.reserve() as u128 * frames as u128).div_ceil(self.total.max(1) as u128) as u64;
        let step = (frames / 64).max(16).min(frames / 8).min(MOST_STEP);
        Watermarks { min, low: min + step, high: min + 2 * step }
    }
    /// Whether each domain had fewer frames outside the magazines than its low mark at the last depot exchange. This is
    /// one load of a word that is rarely written.
    #[inline(always)]
    pub fn is_low(&self) -> bool {
        self.low.load(Ordering::Relaxed)
    }
    /// Whether less than a quarter of all frames was outside the magazines at the last depot exchange. This happens
    /// long before memory is low.
    #[inline(always)]
    pub fn is_scarce(&self) -> bool {
        self.scarce.load(Ordering::Relaxed)
    }
    /// Whether fewer frames than the reserve were outside the magazines at the last depot exchange.
    #[inline(always)]
    fn is_reserve_in_use(&self) -> bool {
        self.reserve_in_use.load(Ordering::Relaxed)
    }
    fn all_low(&self) -> bool {
        self.domains.iter().all(|d| d.is_low())
    }
    /// The number of frames that the domains lack outside the magazines to reach their high marks, and the set of these
    /// domains.
    pub(crate) fn missing(&self) -> (u64, DomainSet) {
        let (mut missing, mut which) = (0, DomainSet::default());
        for (n, depot) in self.domains.iter().enumerate() {
            let of = self.marks(n).high.saturating_sub(depot.uncached.load(Ordering::Relaxed));
            missing += of;
            which.0 |= u128::from(of != 0) << n;
        }
        (missing, which)
    }
    /// The number of frames that are free now. It is exact if no CPU allocates or frees. Otherwise each magazine and
    /// depot counts as it was when it was read.
    pub fn free(&self) -> u64 {
        self.uncached() + self.cached(None)
    }
    /// The number of memory domains of the machine.
    pub fn domains(&self) -> usize {
        self.domains.len()
    }
    /// The number of frames of `domain` that the core manages.
    ///
    /// # Panics
    /// Panics if the machine has no such domain.
    pub fn total_in(&self, domain: usize) -> u64 {
        self.domains[domain].total.load(Ordering::Relaxed)
    }
    /// The number of frames of `domain` that are free now, in its depot or with its CPUs. Frames of another domain that
    /// these CPUs hold count as frames of `domain`.
    ///
    /// # Panics
    /// Panics if the machine has no such domain.
    pub fn free_in(&self, domain: usize) -> u64 {
        self.domains[domain].uncached.load(Ordering::Relaxed) + self.cached(Some(domain as u8))
    }
    /// The number of free frames in the depots.
    pub(crate) fn uncached(&self) -> u64 {
        self.domains.iter().map(|d| d.uncached.load(Ordering::Relaxed)).sum()
    }
    fn cached(&self, domain: Option<u8>) -> u64 {
        let of = self.magazines.iter().filter(|m| domain.is_none_or(|d| d == m.domain));
        of.map(|m| m.local.lock().chains().map(|c| c.len as u64).sum::<u64>()).sum()
    }
    /// The number of large frames (2^[`LARGE`] frames) that are wholly free, in all domains.
    pub fn large(&self) -> u64 {
        self.domains.iter().map(|d| d.held.lock().buddy.large()).sum()
    }

    /// Registers `thread`: from now on it is unparked when memory becomes low, and each time that a frame is refused.
    /// The thread must exist until another one is registered.
    pub(crate) fn wake_when_low(&self, thread: Option<ThreadHandle>) {
        self.daemon.store(thread.map_or(0, |t| t.number().wrapping_add(1)), Ordering::Release);
        // The fence orders this store before the thread checks whether memory is already low.
        fence_full();
    }

    /// Whether memory became low, or a request was refused, since the last call.
    pub(crate) fn take_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire) && self.asked.swap(false, Ordering::AcqRel)
    }

    fn wake_daemon(&self) {
        self.asked.swap(true, Ordering::AcqRel);
        fence_after_rmw();
        match self.daemon.load(Ordering::Acquire) {
            0 => {}
            // SAFETY: `wake_when_low` stored the number of a thread that exists until another one is registered.
            thread => unpark(unsafe { ThreadHandle::from_number(thread.wrapping_sub(1)) }),
        }
    }

    /// Counts `delta` frames that enter or leave a depot. The caller holds the depot's lock, so no other CPU writes its
    /// count.
    pub(crate) fn account(&self, depot: &Depot, delta: i64) {
        let now = depot.uncached.load(Ordering::Relaxed).wrapping_add_signed(delta);
        depot.uncached.store(now, Ordering::Relaxed);
        if self.domains.len() > 1 {
            // Each CPU writes its depot's count, fences, and then reads the counts of all depots. So if two CPUs take
            // the last frames of two domains, one of them sees the other's count.
            fence_full();
        }
        let left = self.uncached();
        let scarce = left < self.total / 4;
        if self.scarce.load(Ordering::Relaxed) != scarce {
            self.scarce.store(scarce, Ordering::Relaxed);
        }
        let in_use = left < self.reserve;
        if self.reserve_in_use.load(Ordering::Relaxed) != in_use {
            self.reserve_in_use.store(in_use, Ordering::Relaxed);
        }
        let low = self.all_low() || self.domains.len() > 1 && left < self.floor();
        if low && delta < 0 && left < self.least.load(Ordering::Relaxed) {
            self.least.fetch_min(left, Ordering::Relaxed);
        }
        if self.low.load(Ordering::Relaxed) != low {
            self.low.store(low, Ordering::Relaxed);
            if low {
                self.wake_daemon();
            }
        }
    }
}

impl Depot {
    /// Adds the full chain that begins with `head`.
    fn put_full(&self, held: &mut DepotFrames, pages: &Descriptors, group: Group, head: Pfn) {
        pages.get(head).set_prev(held.full[group as usize]);
        held.full[group as usize] = Some(head);
        self.chains.store(self.chains.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Removes a full chain, and returns its head.
    fn take_full(&self, held: &mut DepotFrames, pages: &Descriptors, group: Group) -> Option<Pfn> {
        let head = held.full[group as usize]?;
        held.full[group as usize] = pages.get(head).prev();
        self.chains.store(self.chains.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        Some(head)
    }

    fn is_low(&self) -> bool {
        self.uncached.load(Ordering::Relaxed) < self.low.load(Ordering::Relaxed)
    }
}

impl<M: Machine> Physical<M> {
    /// Allocates one frame. Acquires a shared lock once in [`CHAIN`] calls.
    pub fn alloc_frame(&self, fill: Fill, on_behalf: For) -> Result<Frame, OutOfMemory> {
        let (frame, zeroed) = self.take_frame(fill, on_behalf)?;
        if fill == Fill::Zeroed && !zeroed {
            // SAFETY: the frame was just taken off the free lists, so the caller is its only owner.
            unsafe { self.machine().zero_frame(frame.pfn()) };
        }
        Ok(frame)
    }

    /// Allocates a frame that the caller will fill completely. Also returns whether it is already zeroed. The caller
    /// does other work first, while the frame's cache lines are fetched.
    #[inline]
    pub(crate) fn take_frame(&self, fill: Fill, on_behalf: For) -> Result<(Frame, bool), OutOfMemory> {
        if self.inject_failure() {
            return Err(OutOfMemory);
        }
        let (pfn, zeroed) = match self.pop_frame(fill, on_behalf) {
            Some(got) => got,
            None => self.pop_frame_at_last(fill, on_behalf).ok_or(OutOfMemory)?,
        };
        self.page(pfn).set_kind(FrameKind::Unowned);
        self.stats().count(Event::FrameAlloc);
        if zeroed {
            self.check_zeroed(pfn);
        }
        Ok((Frame::of(self, pfn), zeroed))
    }

    /// Allocates frames for programs, at most the length of `into`. Takes only frames that this CPU or its depot can
    /// give at once. Returns their number, and a bit mask of the frames that are already zeroed. The caller zeroes the
    /// others.
    pub(crate) fn take_frames(&self, into: &mut [Pfn]) -> (usize, u64) {
        if self.inject_failure() {
            return (0, 0);
        }
        let (taken, zeroed) = self.pop_frames(into);
        for (n, pfn) in into[..taken].iter().enumerate() {
            self.page(*pfn).set_kind(FrameKind::Unowned);
            if zeroed >> n & 1 != 0 {
                self.check_zeroed(*pfn);
            }
        }
        self.stats().add(Event::FrameAlloc, taken as u64);
        (taken, zeroed)
    }

    /// Frees a frame. Returns an error if another system allocated it.
    pub fn free_frame(&self, frame: Frame) -> Result<(), ForeignFrame> {
        // Relies on C10: a frame of another system is an error.
        if frame.system != 0 && frame.system != self.tag() {
            return Err(ForeignFrame(frame));
        }
        self.return_frame(frame);
        Ok(())
    }

    /// Frees a frame that is known by its number.
    ///
    /// # Safety
    /// The number came from [`Frame::into_pfn`] of a frame of this system. Its holder gives it up, and nothing of the
    /// frame is used any more.
    #[inline]
    pub unsafe fn free_pfn(&self, pfn: Pfn) {
        // SAFETY: by this function's contract.
        self.return_frame(unsafe { Frame::from_pfn(pfn) });
    }

    /// A number that distinguishes memory systems. Each system is in pages of its own, so its page number is unique,
    /// for addresses below 2^44.
    #[inline(always)]
    fn tag(&self) -> u32 {
        ((core::ptr::from_ref(self).addr() >> 12) as u32).max(1)
    }

    /// Frees a frame of this system.
    pub(crate) fn return_frame(&self, frame: Frame) {
        // SAFETY: a `Frame` is the only owner of its frame, and it is consumed here.
        unsafe { self.free_frames(core::iter::once(frame.into_pfn())) };
    }

    /// Frees frames, all at once into this CPU's magazine.
    ///
    /// # Safety
    /// The caller owns the frames, as the holder of a [`Frame`] does.
    pub(crate) unsafe fn free_frames(&self, frames: impl Iterator<Item = Pfn> + Clone) {
        let mut n = 0;
        for pfn in frames.clone() {
            self.note_free(pfn);
            n += 1;
        }
        self.stats().add(Event::FrameFree, n);
        self.push_frames(frames);
        if mutant(Mutant::FreesToDepot) {
            self.drain_own_cache();
        }
    }

    /// Marks a frame as free in a magazine.
    #[inline]
    fn note_free(&self, pfn: Pfn) {
        let page = self.page(pfn);
        debug_assert!(
            !matches!(page.kind(), FrameKind::Free | FrameKind::Cached | FrameKind::Reserved),
            "frame {pfn:?} is freed twice"
        );
        debug_assert_eq!(page.holds(), 0, "frame {pfn:?} is freed while a reader copies from it");
        page.set_kind(FrameKind::Cached);
        self.poison(pfn);
    }

    /// Allocates 2^`order` consecutive frames, aligned to their size. The returned first frame stands for the block.
    pub fn alloc_run(&self, order: u8, on_behalf: For) -> Result<Frame, OutOfMemory> {
        if order > MAX_ORDER || self.inject_failure() {
            return Err(OutOfMemory);
        }
        if let Some(frame) = self.take_run(order, on_behalf) {
            return Ok(frame);
        }
        // The depots' chains are broken up one by one, until the request succeeds. Then the magazines are drained.
        while self.frames().break_one() {
            if let Some(frame) = self.take_run(order, on_behalf) {
                return Ok(frame);
            }
        }
        self.drain_magazines();
        if let Some(frame) = self.take_run(order, on_behalf) {
            return Ok(frame);
        }
        let mut refused = on_behalf;
        while let Some(lower) = self.lower_tier(refused) {
            if let Some(frame) = self.take_run(order, lower) {
                return Ok(frame);
            }
            refused = lower;
        }
        Err(OutOfMemory)
    }

    /// The part of the reserve that a refused request may use next, by the standing of the running thread. `None` if
    /// the refusal is final.
    pub(super) fn lower_tier(&self, refused: For) -> Option<For> {
        let machine = self.machine();
        match refused {
            // A thread that is ending will free memory. The frames below the floor stay for the kernel, even if many
            // threads end.
            For::User | For::Table if machine.is_ending() => Some(For::Leaving),
            For::User | For::Table if machine.standing() == Standing::Administrator => Some(For::Administrator),
            For::Kernel if machine.standing() != Standing::Program || machine.is_ending() => Some(For::System),
            For::Kernel | For::System if machine.ends_something() => Some(For::End),
            _ => None,
        }
    }

    fn take_run(&self, order: u8, on_behalf: For) -> Option<Frame> {
        let f = self.frames();
        let here = f.here();
        for i in 0..f.domains.len() {
            let depot = &f.domains[(here + i) % f.domains.len()];
            let mut held = depot.held.lock();
            if f.uncached() < f.limit(on_behalf) + (1 << order) {
                return None;
            }
            if let Some(pfn) = held.buddy.take(order, on_behalf.group()) {
                f.account(depot, -(1i64 << order));
                drop(held);
                self.hand_out(pfn.0, pfn.0 + (1 << order), on_behalf.group());
                return Some(Frame::of(self, pfn));
            }
        }
        None
    }

    /// Marks frames that were just taken from the buddy lists as allocated.
    pub(crate) fn hand_out(&self, start: u64, end: u64, group: Group) {
        for i in start..end {
            let page = self.page(Pfn(i));
            page.set_kind(FrameKind::Unowned);
            page.set_group(group as u8);
        }
        self.stats().add(Event::FrameAlloc, end - start);
    }

    /// Frees a run of [`Physical::alloc_run`](crate::phys::Physical::alloc_run), with the same order.
    ///
    /// # Safety
    /// This system's [`Physical::alloc_run`](crate::phys::Physical::alloc_run) returned the block, with this order, and
    /// none of it is used any more.
    pub unsafe fn free_run(&self, first: Frame, order: u8) {
        self.return_run(first, order);
    }

    /// Frees a run of this system, with this order.
    pub(crate) fn return_run(&self, first: Frame, order: u8) {
        let pfn = first.into_pfn();
        self.give_back(pfn.0, pfn.0 + (1 << order));
    }

    /// Frees consecutive frames of one domain.
    fn give_back(&self, start: u64, end: u64) {
        let f = self.frames();
        let page = self.page(Pfn(start));
        debug_assert!(
            (start..end).all(|i| !matches!(
                self.page(Pfn(i)).kind(),
                FrameKind::Free | FrameKind::Cached | FrameKind::Reserved
            )),
            "frames from {start} on are freed twice"
        );
        (start..end).for_each(|i| self.poison(Pfn(i)));
        self.stats().add(Event::FrameFree, end - start);
        let depot = &f.domains[page.domain() as usize];
        let mut held = depot.held.lock();
        held.buddy.put_range(start, end, Group::from_u8(page.group()));
        f.account(depot, (end - start) as i64);
    }

    /// Gives all RAM to the domains, at boot. The ends of each run, which are not whole sections, go to the buddy lists
    /// now. With `describe`, the whole sections go to the buddy lists too.
    pub(crate) fn donate_all(&self, describe: bool) {
        let f = self.frames();
        for run in f.pages.runs() {
            let whole = run.sections();
            let ends = match whole.is_empty() {
                true => [run.start..run.end, run.end..run.end],
                false => [run.start..whole.start * SECTION, whole.end * SECTION..run.end],
            };
            let depot = &f.domains[run.domain as usize];
            let mut held = depot.held.lock();
            for end in ends.into_iter().filter(|end| !end.is_empty()) {
                // SAFETY: `Vm::new` calls this before another CPU can reach the system, so no other CPU opens sections.
                unsafe { f.pages.open_reserved(end.start, end.end) };
                end.clone().for_each(|i| self.page(Pfn(i)).set_domain(run.domain));
                held.buddy.put_range(end.start, end.end, Group::User);
            }
            let frames = run.end - run.start;
            let total = depot.total.load(Ordering::Relaxed) + frames;
            depot.total.store(total, Ordering::Relaxed);
            depot.low.store(f.marks_of(total).low, Ordering::Relaxed);
            f.account(depot, frames as i64);
        }
        if describe {
            f.domains.iter().for_each(|depot| depot.held.lock().buddy.open_all());
        }
    }

    /// Makes page descriptors for the frames `start..end`, which belong to a device; see [`crate::phys::descriptors`].
    pub(crate) fn describe_device(&self, start: u64, end: u64) {
        if let Some(depot) = self.frames().domains.first() {
            depot.held.lock().buddy.open_holes(start, end);
        }
    }

    pub(crate) fn poison(&self, pfn: Pfn) {
        // SAFETY: a freed frame has no translation, because its obligation was discharged first (relies on C4).
        unsafe { self.machine().frame_freed(pfn) };
        if self.poisons() {
            // SAFETY: a free frame is valid RAM that no owner uses. A later read of the pattern reveals a bug.
            unsafe {
                crate::machine::bytes::fill(self.machine().frame_ptr(pfn), 0xd5, crate::types::PAGE_SIZE as usize)
            };
        }
    }
}

#[cfg(all(test, any(loom, shuttle)))]
mod models;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
