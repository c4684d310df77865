//! The memory test for the word `memtest` on the kernel's command line.
//!
//! Before the first program runs, the test writes and reads the lowest and the highest frames of each range of RAM. It
//! checks that they exist and are different memory. The frames in between are not accessed, because the host may not
//! have that much memory.

use crate::machine::Machine;
use crate::memory::layout::direct;
use quire_kernel::loader::memory_map::{Ram, Span};
use quire_vm::phys::frames::{Contiguous, For, Frame};
use quire_vm::{PAGE_SIZE, Pfn, PhysRange, Vm};

/// The number of frames that are checked at each end of a range.
const AT_AN_END: usize = 8;
/// The most frames that are checked in all ranges together. Further ranges are logged but not checked.
const MOST: usize = 512;
const WORDS: u64 = PAGE_SIZE / 8;

/// The frames under test, which stay allocated until all are checked.
struct HeldFrames {
    frames: [Option<Frame>; MOST],
    len: usize,
}

/// Checks the ends of all ranges of `ram`, and logs each range.
///
/// # Panics
/// If a read value differs from the written value, because no program can run on such a machine.
// Not inlined, so that its large locals are not in the stack frame of `boot::start`, which stays for ever.
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
    // All frames are written before the first is checked, so that two frames with the same memory are detected.
    for inverted in [0, !0] {
        held.each(|at| write(at, inverted));
        held.each(|at| check(at, inverted));
    }
    log!("memtest: {} frames hold the written words", held.len);
    // SAFETY: `alloc_contiguous` returned these frames one by one, and the test no longer uses them.
    held.frames.into_iter().flatten().for_each(|frame| unsafe { vm.free_contiguous(frame, 1) });
}

impl HeldFrames {
    /// Allocates the lowest free frame with a number in `start..end`. Returns its number; `None` if there is none.
    fn take(&mut self, vm: &'static Vm<Machine>, start: u64, end: u64) -> Option<u64> {
        let within = PhysRange { start: Pfn(start), end: Pfn(end) };
        let frame = vm.alloc_contiguous(Contiguous { count: 1, align: 1, within }, For::Kernel).ok()?;
        let pfn = frame.pfn().0;
        self.frames[self.len] = Some(frame);
        self.len += 1;
        Some(pfn)
    }

    /// Allocates the lowest free frames of `span`. Returns the physical address of the first; `None` if none is free.
    fn lowest(&mut self, vm: &'static Vm<Machine>, span: Span) -> Option<u64> {
        let end = span.end / PAGE_SIZE;
        let first = self.take(vm, span.start / PAGE_SIZE, end)?;
        (1..AT_AN_END).for_each(|_| {
            self.take(vm, first, end);
        });
        Some(first * PAGE_SIZE)
    }

    /// Allocates the highest free frames of `span`. Returns the physical address of the last; `None` if none is free.
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

/// The test value for the word at `at`: its own address, so that no two words have the same value.
fn pattern(at: *mut u64, inverted: u64) -> u64 {
    at as u64 ^ inverted
}

fn words(frame: *mut u64) -> impl Iterator<Item = *mut u64> {
    (0..WORDS as usize).map(move |n| frame.wrapping_add(n))
}

fn write(frame: *mut u64, inverted: u64) {
    // SAFETY: the word is in a frame that is allocated for the test, and the direct map maps it.
    words(frame).for_each(|at| unsafe { at.write_volatile(pattern(at, inverted)) });
}

fn check(frame: *mut u64, inverted: u64) {
    for at in words(frame) {
        // SAFETY: the word is in a frame that is allocated for the test, and `write` has written it.
        let (found, wanted) = (unsafe { at.read_volatile() }, pattern(at, inverted));
        if found != wanted {
            panic!("memtest: the word at {at:p} of the direct map holds {found:#x}, not {wanted:#x}");
        }
    }
}
