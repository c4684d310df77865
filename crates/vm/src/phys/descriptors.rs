//! The array of page descriptors, initialised by sections at first use.
//!
//! A *section* is one largest block of the buddy allocator (4 MiB of RAM, 64 KiB of descriptors). To *open* a section
//! is to initialise its descriptors. Boot opens only those that the allocator cannot take whole, at the ends of RAM and
//! of domains. All others stay *closed*: no CPU writes or reads their descriptors, so a machine pays for descriptors as
//! it uses memory. A closed section of RAM is *fresh*: all its frames are free, and the allocator counts them so. The
//! allocator opens the next one when its lists are empty. Small machines open all at boot
//! ([`Config::describe_at_boot`](crate::Config::describe_at_boot)).
//!
//! | section | opened by | under |
//! |---|---|---|
//! | RAM of one domain, whole | the domain's allocator | the lock of the domain's depot |
//! | any other with RAM, or with the zero frame | boot | no lock: boot runs alone |
//! | no RAM, named by a device object | the object's maker | the lock of the first domain's depot |
//!
//! The bit that says "open" is set after the descriptors are written (release) and read before they are (acquire). Code
//! that has a frame's number from its owner, a list or a leaf need not read the bit, because that frame's section was
//! opened before. Code that goes through all frames reads it ([`Descriptors::find`], [`Descriptors::opened`]).

use crate::phys::frames::MAX_ORDER;
use crate::phys::page::Page;
use crate::types::{PAGE_SIZE, Pfn};
use core::ptr::NonNull;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::record;

/// Frames in a section.
pub(crate) const SECTION: u64 = 1 << MAX_ORDER;

/// Frames of one domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub start: u64,
    pub end: u64,
    pub domain: u8,
}

impl Run {
    /// The sections that lie wholly inside, by number.
    pub fn sections(&self) -> core::ops::Range<u64> {
        let start = self.start.div_ceil(SECTION);
        start..(self.end / SECTION).max(start)
    }
}

/// A closed section, or part of it, as code that goes through all frames meets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Closed {
    /// Free RAM of this domain, to the end of the section.
    Fresh(u8),
    /// No RAM that the allocator has, up to this frame.
    Hole(u64),
}

/// All descriptors, by frame number.
#[derive(Clone, Copy)]
pub(crate) struct Descriptors {
    first: NonNull<Page>,
    len: u64,
    /// A bit a section: it is open.
    open: &'static [AtomicU64],
    /// The allocator's RAM, ascending.
    runs: &'static [Run],
}

// SAFETY: descriptors are made of atomics, and live as long as the system.
unsafe impl Send for Descriptors {}
// SAFETY: a shared reference gives shared references to pages and words, which are made of atomics.
unsafe impl Sync for Descriptors {}

impl Descriptors {
    /// Words of bits for the sections of `len` frames.
    pub const fn words(len: u64) -> usize {
        len.div_ceil(SECTION).div_ceil(64) as usize
    }

    /// Descriptors of `len` frames, all sections closed.
    ///
    /// # Safety
    /// `first` points to memory for `len` descriptors that nothing else uses, and that outlives all values made from
    /// this. `open` has [`Descriptors::words`] zeroes; `runs` is sorted and disjoint.
    pub unsafe fn new(first: NonNull<Page>, len: u64, open: &'static [AtomicU64], runs: &'static [Run]) -> Descriptors {
        Descriptors { first, len, open, runs }
    }

    /// One more than the highest frame number.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The allocator's RAM, ascending.
    pub fn runs(&self) -> &'static [Run] {
        self.runs
    }

    /// The bytes that the array takes, as addresses.
    pub fn memory(&self) -> core::ops::Range<*const u8> {
        let first = self.first.as_ptr().cast_const().cast::<u8>();
        first..first.wrapping_add(self.len as usize * size_of::<Page>())
    }

    /// The descriptor of frame `pfn`, whose section is open.
    ///
    /// # Panics
    /// Where `pfn` lies beyond the machine's RAM.
    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    pub fn get(&self, pfn: Pfn) -> &'static Page {
        record::read(self);
        assert!(pfn.0 < self.len, "frame number beyond RAM");
        debug_assert!(self.is_open(pfn), "the descriptor of {pfn:?} is used before its section is open");
        // SAFETY: in bounds of the array, which lives as long as the system; the section is open, so it is initialised.
        unsafe { &*self.first.as_ptr().add(pfn.0 as usize) }
    }

    /// The descriptor of frame `pfn`, if there is one and its section is open.
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

    /// All frames whose sections are open, ascending.
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

    /// Initialises the descriptors of section `section` by `make`, and opens it.
    ///
    /// # Safety
    /// The section is closed, and the caller keeps every other CPU from opening it; see the module.
    pub unsafe fn open(&self, section: u64, mut make: impl FnMut() -> Page) {
        let frames = section * SECTION..((section + 1) * SECTION).min(self.len);
        debug_assert!(!frames.is_empty() && !self.is_open(Pfn(frames.start)), "section {section} is opened twice");
        for pfn in frames {
            // SAFETY: in bounds; the section is closed, so no reference to the descriptor exists.
            unsafe { self.first.as_ptr().add(pfn as usize).write(make()) };
        }
        self.open[(section / 64) as usize].fetch_or(1 << (section % 64), Ordering::Release);
    }

    /// Opens the sections of `start..end` that are closed, as frames that are no RAM of the allocator's.
    ///
    /// # Safety
    /// The caller keeps every other CPU from opening these sections; see the module.
    pub unsafe fn open_reserved(&self, start: u64, end: u64) {
        for section in start / SECTION..end.min(self.len).div_ceil(SECTION) {
            if !self.is_open(Pfn(section * SECTION)) {
                // SAFETY: closed, as was just seen; the rest is this function's contract.
                unsafe { self.open(section, Page::new) };
            }
        }
    }
}

/// Bytes that a machine with frames up to `len` takes for its array of descriptors, whole pages.
pub(crate) const fn bytes(len: u64) -> u64 {
    (len * size_of::<Page>() as u64).next_multiple_of(PAGE_SIZE)
}
