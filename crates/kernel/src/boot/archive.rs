//! The archive of the initial file system. The memory system gets its frames, one after the other, as files are
//! unpacked: no file is in memory twice for long.

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
    /// Its first byte, and its length.
    start: *const u8,
    len: usize,
    /// The physical address of the first byte.
    physical: u64,
    /// The bytes before it are unpacked.
    at: usize,
    /// Frames that hold nothing but files that are not unpacked yet.
    frames: PhysRange,
    /// Frames of a piece, 0 without pieces.
    piece: u64,
}

impl Archive {
    /// The archive of `module`. It registers no free range above `largest` bytes, because the memory system places its
    /// tables in the largest range.
    ///
    /// # Safety
    /// The module lies in RAM that the direct map shows, and that no other code uses.
    pub unsafe fn new(module: Module, largest: u64) -> Archive {
        let start = direct(module.start).cast_const();
        let len = module.len as usize;
        // SAFETY: by this function's contract.
        let bytes = unsafe { core::slice::from_raw_parts(start, len) };
        // Backtraces read the symbols for ever.
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

    /// The symbols at its start; empty without symbols.
    pub fn symbols(&self) -> &'static [u8] {
        // SAFETY: by the contract of `new`, and because these bytes are not among the frames that are given away.
        unsafe {
            let whole = core::slice::from_raw_parts(self.start, self.len);
            core::slice::from_raw_parts(self.start, Symbols::end_in_archive(whole))
        }
    }

    /// The ranges of frames that the memory system gets. Their boundaries are those of large pages where
    /// possible.
    pub fn pieces(&self) -> impl Iterator<Item = PhysRange> {
        let frames = |(start, end)| PhysRange { start: Pfn(start), end: Pfn(end) };
        pieces(self.frames.start.0, self.frames.end.0, self.piece).map(frames)
    }

    /// Takes the frames out of the memory system again, before another user can have them.
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
        // SAFETY: by the contract of `new`. The frames before `at` may be gone, and those behind it are still held.
        unsafe { core::slice::from_raw_parts(self.start.add(self.at), self.len - self.at) }
    }

    fn give_up(&mut self, bytes: usize) {
        self.at = (self.at + bytes).min(self.len);
        let next = self.frames.end.0.min((self.physical + self.at as u64) / PAGE_SIZE);
        while self.frames.start.0 < next {
            // SAFETY: `hold` took the frame, and its bytes are never read again.
            unsafe { vm().free_pfn(self.frames.start) };
            self.frames.start.0 += 1;
        }
    }
}
