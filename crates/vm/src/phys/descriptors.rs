//! The array of page descriptors. It is initialised in sections, each at its first use.
//!
//! A *section* is one largest block of the buddy allocator (4 MiB of RAM, 64 KiB of descriptors). To *open* a section
//! means to initialise its descriptors. Boot opens only sections that the allocator cannot take as a whole, at the ends
//! of RAM and of domains. All other sections stay *closed*: no CPU writes or reads their descriptors. So a machine pays
//! for descriptors only as it uses memory. A closed section of RAM is *fresh*: all its frames are free, and the
//! allocator counts them as free. The allocator opens the next section when its lists are empty. Small machines open
//! all sections at boot ([`Config::describe_at_boot`](crate::Config::describe_at_boot)).
//!
//! | section | opened by | under |
//! |---|---|---|
//! | RAM of one domain, whole | the domain's allocator | the lock of the domain's depot |
//! | any other with RAM, or with the zero frame | boot | no lock: boot runs alone |
//! | no RAM, named by a device object | the object's maker | the lock of the first domain's depot |
//!
//! The CPU that opens a section writes the descriptors, and then sets the section's bit (release). Code that visits all
//! frames reads the bit (acquire) before it reads descriptors ([`Descriptors::find`], [`Descriptors::opened`]). Code
//! that has a frame's number from its owner, a list or a PTE need not read the bit. The section of that frame is
//! already open.

use crate::phys::frames::MAX_ORDER;
use crate::phys::page::Page;
use crate::types::{PAGE_SIZE, Pfn};
use core::ptr::NonNull;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::record;

/// The number of frames in a section.
pub(crate) const SECTION: u64 = 1 << MAX_ORDER;

/// A range of frames that belong to one domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub start: u64,
    pub end: u64,
    pub domain: u8,
}

impl Run {
    /// The numbers of the sections that lie wholly inside the range.
    pub fn sections(&self) -> core::ops::Range<u64> {
        let start = self.start.div_ceil(SECTION);
        start..(self.end / SECTION).max(start)
    }
}

/// A closed section, or part of it, as seen by code that visits all frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Closed {
    /// Free RAM of this domain, up to the end of the section.
    Fresh(u8),
    /// Addresses without RAM of the allocator, up to this frame.
    Hole(u64),
}

/// The descriptors of all frames, by frame number.
#[derive(Clone, Copy)]
pub(crate) struct Descriptors {
    first: NonNull<Page>,
    len: u64,
    /// One bit for each section, which is set if the section is open.
    open: &'static [AtomicU64],
    /// The ranges of the allocator's RAM, ascending.
    runs: &'static [Run],
}

// SAFETY: descriptors are made of atomics, and live as long as the system.
unsafe impl Send for Descriptors {}
// SAFETY: a shared reference gives shared references to pages and words, which are made of atomics.
unsafe impl Sync for Descriptors {}

impl Descriptors {
    /// The number of 64-bit words for one bit per section of `len` frames.
    pub const fn words(len: u64) -> usize {
        len.div_ceil(SECTION).div_ceil(64) as usize
    }

    /// The descriptors of `len` frames, with all sections closed.
    ///
    /// # Safety
    /// `first` points to memory for `len` descriptors that nothing else uses, and that outlives all values made from
    /// it. `open` has [`Descriptors::words`] zeroes. `runs` is sorted, and its ranges are disjoint.
    pub unsafe fn new(first: NonNull<Page>, len: u64, open: &'static [AtomicU64], runs: &'static [Run]) -> Descriptors {
        Descriptors { first, len, open, runs }
    }

    /// The highest frame number plus one.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The ranges of the allocator's RAM, ascending.
    pub fn runs(&self) -> &'static [Run] {
        self.runs
    }

    /// The addresses of the array.
    pub fn memory(&self) -> core::ops::Range<*const u8> {
        let first = self.first.as_ptr().cast_const().cast::<u8>();
        first..first.wrapping_add(self.len as usize * size_of::<Page>())
    }

    /// The descriptor of frame `pfn`. Its section must be open.
    ///
    /// # Panics
    /// Panics if `pfn` is beyond the machine's RAM.
    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    pub fn get(&self, pfn: Pfn) -> &'static Page {
        record::read(self);
        assert!(pfn.0 < self.len, "frame number beyond RAM");
        debug_assert!(self.is_open(pfn), "the descriptor of {pfn:?} is used before its section is open");
        // SAFETY: the descriptor is within the array, which lives as long as the system. Its section is open, so it is
        // initialised.
        unsafe { &*self.first.as_ptr().add(pfn.0 as usize) }
    }

    /// The descriptor of frame `pfn`. `None` if it has none, or its section is closed.
    pub fn find(&self, pfn: Pfn) -> Option<&'static Page> {
        (pfn.0 < self.len && self.is_open(pfn)).then(|| self.get(pfn))
    }

    /// The frame that `page` describes.
    #[inline(always)]
    pub fn pfn(&self, page: &Page) -> Pfn {
        Pfn(((page as *const Page as usize - self.first.as_ptr() as usize) / size_of::<Page>()) as u64)
    }

    /// Whether the section of `pfn` is open.
    #[inline(always)]
    pub fn is_open(&self, pfn: Pfn) -> bool {
        let section = pfn.0 / SECTION;
        self.open[(section / 64) as usize].load(Ordering::Acquire) >> (section % 64) & 1 != 0
    }

    /// The numbers of all frames whose sections are open, ascending.
    pub fn opened(&self) -> impl Iterator<Item = Pfn> + Clone + use<> {
        let this = *self;
        let sections = (0..this.len.div_ceil(SECTION)).filter(move |s| this.is_open(Pfn(s * SECTION)));
        sections.flat_map(move |s| (s * SECTION..((s + 1) * SECTION).min(this.len)).map(Pfn))
    }

    /// The kind of a frame in a closed section.
    pub fn closed(&self, pfn: Pfn) -> Closed {
        let at = self.runs.partition_point(|r| r.end <= pfn.0);
        match self.runs.get(at) {
            Some(run) if run.start <= pfn.0 => Closed::Fresh(run.domain),
            Some(run) => Closed::Hole(run.start),
            None => Closed::Hole(self.len),
        }
    }

    /// Initialises the descriptors of section `section` with values of `make`, and opens the section.
    ///
    /// # Safety
    /// The section is closed, and the caller keeps all other CPUs from opening it, by the lock in the module's table.
    pub unsafe fn open(&self, section: u64, mut make: impl FnMut() -> Page) {
        let frames = section * SECTION..((section + 1) * SECTION).min(self.len);
        debug_assert!(!frames.is_empty() && !self.is_open(Pfn(frames.start)), "section {section} is opened twice");
        for pfn in frames {
            // SAFETY: the descriptor is within the array. Its section is closed, so no reference to it exists.
            unsafe { self.first.as_ptr().add(pfn as usize).write(make()) };
        }
        self.open[(section / 64) as usize].fetch_or(1 << (section % 64), Ordering::Release);
    }

    /// Opens the closed sections of `start..end`, as frames that are not RAM of the allocator.
    ///
    /// # Safety
    /// The caller keeps all other CPUs from opening these sections, by the lock in the module's table.
    pub unsafe fn open_reserved(&self, start: u64, end: u64) {
        for section in start / SECTION..end.min(self.len).div_ceil(SECTION) {
            if !self.is_open(Pfn(section * SECTION)) {
                // SAFETY: the section is closed, as the condition above has found. The rest is this function's
                // contract.
                unsafe { self.open(section, Page::new) };
            }
        }
    }
}

/// The size in bytes of the descriptor array of a machine with frames up to `len`, in whole pages.
pub(crate) const fn bytes(len: u64) -> u64 {
    (len * size_of::<Page>() as u64).next_multiple_of(PAGE_SIZE)
}
