//! `memtest` on the kernel's command line: writes and checks memory at both ends of each range of RAM, before the first
//! program.
//!
//! `memtest` checks at boot that the lowest and the highest frames of all ranges exist and are different memory. The
//! frames between are not accessed, because a range may be larger than the host's memory for it.

use crate::machine::Machine;
use crate::memory::layout::direct;
use quire_kernel::loader::memory_map::{Ram, Span};
use quire_vm::phys::frames::{Contiguous, For, Frame};
use quire_vm::{PAGE_SIZE, Pfn, PhysRange, Vm};

/// Frames that are checked at each end of a range.
const AT_AN_END: usize = 8;
/// The most frames checked in all. Further ranges are named in the log and left out.
const MOST: usize = 512;
const WORDS: u64 = PAGE_SIZE / 8;

/// Frames that are held until all are checked.
struct HeldFrames {
    frames: [Option<Frame>; MOST],
    len: usize,
}

/// Checks the ends of all ranges of `ram`, and logs each range.
///
/// # Panics
/// If memory does not hold the written values: no program can run on such a machine.
// Not inlined, because boot's own frame stays on the stack.
#[inline(never)]
pub fn run(vm: &'static Vm<Machine>, ram: &Ram) {
    let mut held = HeldFrames { frames: [const { None }; MOST], len: 0 };
    for span in ram.spans().iter().filter(|s| s.start >= 1 << 20) {
        if held.len + 2 * AT_AN_END > MOST {
            log!("memtest: {:#x} to {:#x} are left out", span.start, span.end);
            continue;
        }
        match (held.lowest(vm, *span), held.highest(vm, *span)) {
            (Some(low), Some(high)) => {
                log!("memtest: {:#x} to {:#x} from frame {low:#x} to frame {high:#x}", span.start, span.end);
            }
            _ => log!("memtest: {:#x} to {:#x} have no free frame", span.start, span.end),
        }
    }
    // All are written before the first is checked, so that two frames with the same memory are detected.
    for inverted in [0, !0] {
        held.each(|at| write(at, inverted));
        held.each(|at| check(at, inverted));
    }
    log!("memtest: {} frames hold the written words", held.len);
    // SAFETY: `alloc_contiguous` gave them one by one, and the check is over.
    held.frames.into_iter().flatten().for_each(|frame| unsafe { vm.free_contiguous(frame, 1) });
}

impl HeldFrames {
    /// Takes the lowest free frame of `within`; its number.
    fn take(&mut self, vm: &'static Vm<Machine>, start: u64, end: u64) -> Option<u64> {
        let within = PhysRange { start: Pfn(start), end: Pfn(end) };
        let frame = vm.alloc_contiguous(Contiguous { count: 1, align: 1, within }, For::Kernel).ok()?;
        let pfn = frame.pfn().0;
        self.frames[self.len] = Some(frame);
        self.len += 1;
        Some(pfn)
    }

    /// Takes the lowest free frames of `span`; the address of the first.
    fn lowest(&mut self, vm: &'static Vm<Machine>, span: Span) -> Option<u64> {
        let end = span.end / PAGE_SIZE;
        let first = self.take(vm, span.start / PAGE_SIZE, end)?;
        (1..AT_AN_END).for_each(|_| {
            self.take(vm, first, end);
        });
        Some(first * PAGE_SIZE)
    }

    /// Takes the highest free frames of `span`; the address of the last.
    fn highest(&mut self, vm: &'static Vm<Machine>, span: Span) -> Option<u64> {
        let single = (span.start / PAGE_SIZE..span.end / PAGE_SIZE).rev();
        let mut taken = single.filter_map(|pfn| self.take(vm, pfn, pfn + 1)).take(AT_AN_END);
        let last = taken.next()?;
        taken.for_each(drop);
        Some(last * PAGE_SIZE)
    }

    fn each(&self, mut f: impl FnMut(*mut u64)) {
        self.frames.iter().flatten().for_each(|frame| f(direct(frame.pfn().address()).cast()));
    }
}

/// The value for the word at `at`: its own address, so that no two words are equal.
fn pattern(at: *mut u64, inverted: u64) -> u64 {
    at as u64 ^ inverted
}

fn words(frame: *mut u64) -> impl Iterator<Item = *mut u64> {
    (0..WORDS as usize).map(move |n| frame.wrapping_add(n))
}

fn write(frame: *mut u64, inverted: u64) {
    // SAFETY: a word of a frame that is held, which the direct map shows.
    words(frame).for_each(|at| unsafe { at.write_volatile(pattern(at, inverted)) });
}

fn check(frame: *mut u64, inverted: u64) {
    for at in words(frame) {
        // SAFETY: a word of a held frame, which the direct map shows; it was written before.
        let (found, wanted) = (unsafe { at.read_volatile() }, pattern(at, inverted));
        if found != wanted {
            panic!("memtest: the word at {at:p} of the direct map holds {found:#x}, not {wanted:#x}");
        }
    }
}
