//! The array of page descriptors. It is initialised in sections, each at its first use.
//!
//! A *section* is one largest block of the buddy allocator (4 MiB of RAM, 64 KiB of descriptors). To *open* a section
//! means to initialise its descriptors. Boot opens only sections that the allocator cannot take as a whole, at the ends
//! of RAM and of domains. All other sections stay *closed*: no CPU writes or reads their descriptors. So a machine pays
//! for descriptors only as it uses memory. A closed section of RAM is *fresh*: all its frames are free, and the
//! allocator counts them as free. The allocator opens the next section when its lists are empty. Small machines open
//! all sections at boot ([`Config::describe_at_boot`](crate::Config::describe_at_boot)).
//!
//! The array begins with the section of the lowest frame of RAM. So RAM that begins at 2 GiB costs no descriptors for
//! the addresses below it. The array's pointer is *biased*: it points to the place that frame 0 would have. A lookup
//! adds the frame's number to it, so the start of RAM costs a lookup no instruction. A hole between two ranges of RAM
//! has descriptors, because a device may lie there. Frames below and above the array have none, as if they were no RAM.
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
use core::ops::Range;
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
    pub fn sections(&self) -> Range<u64> {
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

/// The numbers of the frames that have descriptors, if RAM has the frames from `start` up to `end`: from the first frame
/// of a section on, so that no section is divided.
pub(crate) fn span(start: Pfn, end: Pfn) -> Range<u64> {
    start.0 / SECTION * SECTION..end.0
}

/// The descriptors of all frames, by frame number.
#[derive(Clone, Copy)]
pub(crate) struct Descriptors {
    /// The address that the descriptor of frame 0 would have. It is not in the array if `start` is not 0.
    biased: *mut Page,
    /// The numbers of the first frame with a descriptor and of the frame after the last one.
    start: u64,
    end: u64,
    /// One bit for each section from `start` on, which is set if the section is open.
    open: &'static [AtomicU64],
    /// The ranges of the allocator's RAM, ascending.
    runs: &'static [Run],
}

// SAFETY: descriptors are made of atomics, and live as long as the system.
unsafe impl Send for Descriptors {}
// SAFETY: a shared reference gives shared references to pages and words, which are made of atomics.
unsafe impl Sync for Descriptors {}

impl Descriptors {
    /// The number of 64-bit words for one bit per section of the frames `span`.
    pub fn words(span: &Range<u64>) -> usize {
        (span.end - span.start).div_ceil(SECTION).div_ceil(64) as usize
    }

    /// The descriptors of the frames [`span`], with all sections closed.
    ///
    /// # Safety
    /// `first` points to memory for the descriptors of `span` that nothing else uses, and that outlives all values made
    /// from it. `open` has [`Descriptors::words`] zeroes. `runs` is sorted, and its ranges are disjoint and in `span`.
    pub unsafe fn new(
        first: NonNull<Page>,
        span: Range<u64>,
        open: &'static [AtomicU64],
        runs: &'static [Run],
    ) -> Descriptors {
        debug_assert!(span.start.is_multiple_of(SECTION) && span.start < span.end);
        let biased = first.as_ptr().wrapping_sub(span.start as usize);
        Descriptors { biased, start: span.start, end: span.end, open, runs }
    }

    /// The numbers of the frames that have a place in the array.
    pub fn span(&self) -> Range<u64> {
        self.start..self.end
    }

    /// The place of a frame's descriptor. It is in the array if the frame is in [`Descriptors::span`].
    #[inline(always)]
    fn place(&self, pfn: u64) -> *mut Page {
        self.biased.wrapping_add(pfn as usize)
    }

    /// The ranges of the allocator's RAM, ascending.
    pub fn runs(&self) -> &'static [Run] {
        self.runs
    }

    /// The addresses of the array.
    pub fn memory(&self) -> core::ops::Range<*const u8> {
        self.place(self.start).cast_const().cast()..self.place(self.end).cast_const().cast()
    }

    /// The descriptor of frame `pfn`. The number comes from the frame's owner, a list or a table page, so it is in the
    /// array, and its section is open.
    ///
    /// # Panics
    /// Panics if `pfn` is beyond the machine's RAM.
    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    pub fn get(&self, pfn: Pfn) -> &'static Page {
        record::read(self);
        assert!(pfn.0 < self.end, "frame number beyond RAM");
        debug_assert!(self.is_open(pfn), "the descriptor of {pfn:?} is used before its section is open");
        // SAFETY: the descriptor is within the array, which lives as long as the system. Its section is open, so it is
        // initialised.
        unsafe { &*self.place(pfn.0) }
    }

    /// The descriptor of a frame that a PTE maps. `None` for a device's frame that has no place in the array. The section
    /// of any other frame of a PTE is open.
    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    pub fn of_leaf(&self, pfn: Pfn) -> Option<&'static Page> {
        record::read(self);
        if pfn.0.wrapping_sub(self.start) >= self.end - self.start {
            return None;
        }
        debug_assert!(self.is_open(pfn), "a PTE maps {pfn:?}, whose section is not open");
        // SAFETY: the frame is in the array's span, and the array lives as long as the system. A PTE maps the frame, so
        // its section is open: RAM was allocated, and the maker of a device object opened the device's sections.
        Some(unsafe { &*self.place(pfn.0) })
    }

    /// The descriptor of frame `pfn`. `None` if it has none, or its section is closed.
    pub fn find(&self, pfn: Pfn) -> Option<&'static Page> {
        self.is_open(pfn).then(|| self.get(pfn))
    }

    /// The frame that `page` describes.
    #[inline(always)]
    pub fn pfn(&self, page: &Page) -> Pfn {
        Pfn(((page as *const Page as usize).wrapping_sub(self.biased as usize) / size_of::<Page>()) as u64)
    }

    /// Whether `pfn` is in a section of the array that is open.
    #[inline(always)]
    pub fn is_open(&self, pfn: Pfn) -> bool {
        self.span().contains(&pfn.0) && {
            let (word, bit) = self.bit(pfn.0 / SECTION);
            word.load(Ordering::Acquire) & bit != 0
        }
    }

    /// The word and the bit that show whether a section of the array is open.
    fn bit(&self, section: u64) -> (&'static AtomicU64, u64) {
        let n = section - self.start / SECTION;
        (&self.open[(n / 64) as usize], 1 << (n % 64))
    }

    /// The numbers of the array's sections that contain a frame of `start..end`.
    pub fn sections(&self, start: u64, end: u64) -> Range<u64> {
        start.max(self.start) / SECTION..end.min(self.end).div_ceil(SECTION)
    }

    /// The numbers of all frames whose sections are open, ascending.
    pub fn opened(&self) -> impl Iterator<Item = Pfn> + Clone + use<> {
        let this = *self;
        let sections = this.sections(this.start, this.end).filter(move |s| this.is_open(Pfn(s * SECTION)));
        sections.flat_map(move |s| (s * SECTION..((s + 1) * SECTION).min(this.end)).map(Pfn))
    }

    /// The kind of a frame in a closed section.
    pub fn closed(&self, pfn: Pfn) -> Closed {
        let at = self.runs.partition_point(|r| r.end <= pfn.0);
        match self.runs.get(at) {
            Some(run) if run.start <= pfn.0 => Closed::Fresh(run.domain),
            Some(run) => Closed::Hole(run.start),
            None => Closed::Hole(self.end),
        }
    }

    /// Initialises the descriptors of section `section` with values of `make`, and opens the section.
    ///
    /// # Safety
    /// The section is closed, and the caller keeps all other CPUs from opening it, by the lock in the module's table.
    pub unsafe fn open(&self, section: u64, mut make: impl FnMut() -> Page) {
        let frames = section * SECTION..((section + 1) * SECTION).min(self.end);
        debug_assert!(!frames.is_empty() && !self.is_open(Pfn(frames.start)), "section {section} is opened twice");
        for pfn in frames {
            // SAFETY: the descriptor is within the array. Its section is closed, so no reference to it exists.
            unsafe { self.place(pfn).write(make()) };
        }
        let (word, bit) = self.bit(section);
        word.fetch_or(bit, Ordering::Release);
    }

    /// Opens the closed sections of `start..end`, as frames that are not RAM of the allocator.
    ///
    /// # Safety
    /// The caller keeps all other CPUs from opening these sections, by the lock in the module's table.
    pub unsafe fn open_reserved(&self, start: u64, end: u64) {
        for section in self.sections(start, end) {
            if !self.is_open(Pfn(section * SECTION)) {
                // SAFETY: the section is closed, as the condition above has found. The rest is this function's
                // contract.
                unsafe { self.open(section, Page::new) };
            }
        }
    }
}

/// The size in bytes of the descriptors of the frames `span`, in whole pages.
pub(crate) fn bytes(span: &Range<u64>) -> u64 {
    ((span.end - span.start) * size_of::<Page>() as u64).next_multiple_of(PAGE_SIZE)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
