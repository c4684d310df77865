//! The archive of the initial file system (initramfs). While its files are unpacked, its frames are freed one after the
//! other, so that the files are not in memory twice.

use crate::machine::vm;
use crate::memory::layout::direct;
use quire_fs::cpio;
use quire_kernel::loader::memory_map::{PIECES, piece, pieces};
use quire_kernel::loader::start_info::Module;
use quire_kernel::loader::symbols::Symbols;
use quire_vm::phys::frames::{Contiguous, For};
use quire_vm::{PAGE_SIZE, Pfn, PhysRange};

/// The archive as the boot loader left it.
pub struct Archive {
    /// The address of the first byte in the direct map. `len` is the length in bytes.
    start: *const u8,
    len: usize,
    /// The physical address of the first byte.
    physical: u64,
    /// The number of bytes that were unpacked.
    at: usize,
    /// The frames that are still to be freed. Their files are not all unpacked yet.
    frames: PhysRange,
    /// The size, in frames, of the ranges in which the memory system gets the archive's frames; 0 if it gets none.
    piece: u64,
}

impl Archive {
    /// The archive in `module`. `largest` is the size in bytes of the largest free range of RAM. The archive's frames
    /// are registered in smaller ranges, because the memory system places its tables in the largest range.
    ///
    /// # Safety
    /// The module is in RAM that the direct map maps, and no other code uses it.
    pub unsafe fn new(module: Module, largest: u64) -> Archive {
        let start = direct(module.start).cast_const();
        let len = module.len as usize;
        // SAFETY: the module is readable RAM, by this function's contract.
        let bytes = unsafe { core::slice::from_raw_parts(start, len) };
        // The symbols at the start are not freed, because backtraces need them.
        let kept = Symbols::end_in_archive(bytes);
        let first = (module.start + kept as u64).div_ceil(PAGE_SIZE);
        let end = ((module.start + module.len) / PAGE_SIZE).max(first);
        let piece = piece(largest / PAGE_SIZE);
        let end = end.min(first + piece * (PIECES as u64 - 1));
        Archive {
            start,
            len,
            physical: module.start,
            at: 0,
            frames: PhysRange { start: Pfn(first), end: Pfn(end) },
            piece,
        }
    }

    /// The part of the archive with the kernel's symbols, at its start; empty if there are none.
    pub fn symbols(&self) -> &'static [u8] {
        // SAFETY: the module is readable by the contract of `new`, and these bytes are not in frames that are freed.
        unsafe {
            let whole = core::slice::from_raw_parts(self.start, self.len);
            core::slice::from_raw_parts(self.start, Symbols::end_in_archive(whole))
        }
    }

    /// The ranges of the archive's frames that the memory system gets. Their boundaries are aligned to large pages if
    /// possible.
    pub fn pieces(&self) -> impl Iterator<Item = PhysRange> {
        let frames = |(start, end)| PhysRange { start: Pfn(start), end: Pfn(end) };
        pieces(self.frames.start.0, self.frames.end.0, self.piece).map(frames)
    }

    /// Allocates the archive's frames from the memory system, before another user can get them. `give_up` frees them
    /// one after the other.
    pub fn hold(&self) {
        for piece in self.pieces() {
            let count = piece.end.0 - piece.start.0;
            let want = Contiguous { count, align: 1, within: piece };
            let taken = [For::User, For::End].into_iter().find_map(|behalf| vm().alloc_contiguous(want, behalf).ok());
            match taken {
                Some(first) => drop(first.into_pfn()),
                None => panic!("frames {}..{} of the initial file system are in use", piece.start.0, piece.end.0),
            }
        }
    }
}

impl cpio::Archive for Archive {
    fn rest(&self) -> &[u8] {
        // SAFETY: the module is readable by the contract of `new`. The frames before `at` may be freed, but those
        // behind it are still allocated.
        unsafe { core::slice::from_raw_parts(self.start.add(self.at), self.len - self.at) }
    }

    fn give_up(&mut self, bytes: usize) {
        self.at = (self.at + bytes).min(self.len);
        let next = self.frames.end.0.min((self.physical + self.at as u64) / PAGE_SIZE);
        while self.frames.start.0 < next {
            // SAFETY: `hold` allocated the frame, and its bytes are never read again.
            unsafe { vm().free_pfn(self.frames.start) };
            self.frames.start.0 += 1;
        }
    }
}
