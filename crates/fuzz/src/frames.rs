//! Frames, runs of frames and slabs, compared with a record of their owners. Nothing may be allocated twice, memory
//! must keep its owner's bytes, and all memory must be freed at the end.

use crate::Input;
use quire_hosted::{Account, Cpu, Hosted, Settings};
use quire_vm::phys::frames::{Contiguous, Fill, For, Frame};
use quire_vm::{PAGE_SIZE, Phys, Vm};
use std::alloc::Layout;
use std::ptr::NonNull;

std::thread_local! {
    /// A machine for all inputs, and the counts of its memory when idle. Each input frees all that it allocates. The
    /// machine is so small that an input can allocate all frames.
    static VM: (&'static Vm<Hosted>, Account) = {
        let settings = Settings { cpus: 1, frames: 1500, ..Settings::default() };
        let vm = Hosted::boot(settings).expect("the settings are valid for a machine");
        let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
        (vm, Account::of(vm))
    };
}

/// An allocation of an input.
enum HeldFrames {
    Frame(Frame),
    /// The first frame of a run, and log2 of its length.
    Run(Frame, u8),
    /// The first of consecutive frames, and their number.
    Contiguous(Frame, u64),
    Object(NonNull<u8>, Layout),
}

impl HeldFrames {
    /// Returns the address of the held memory in this process, and its size in bytes.
    fn bytes(&self, vm: &Vm<Hosted>) -> (*mut u8, usize) {
        let at = |f: &Frame| vm.machine().frame_ptr(f.pfn());
        match self {
            HeldFrames::Frame(f) => (at(f), PAGE_SIZE as usize),
            HeldFrames::Run(f, order) => (at(f), (PAGE_SIZE as usize) << order),
            HeldFrames::Contiguous(f, n) => (at(f), (PAGE_SIZE * n) as usize),
            HeldFrames::Object(at, layout) => (at.as_ptr(), layout.size()),
        }
    }

    /// Marks the first and the last byte of the held memory with the owner's tag.
    fn stamp(&self, vm: &Vm<Hosted>, tag: u8) {
        let (at, len) = self.bytes(vm);
        // SAFETY: the run of frames is held by `self` alone and has `len` bytes at `at`.
        unsafe {
            at.write(tag);
            at.add(len - 1).write(tag);
        }
    }

    fn give_back(self, vm: &'static Vm<Hosted>, tag: u8) {
        let (at, len) = self.bytes(vm);
        // SAFETY: the run of frames is held by `self` alone and has `len` bytes at `at`.
        let found = unsafe { (at.read(), at.add(len - 1).read()) };
        assert_eq!(found, (tag, tag), "another writer stored into held frames");
        match self {
            HeldFrames::Frame(f) => vm.free_frame(f).expect("the frame is the machine's"),
            // SAFETY: the frames were allocated as a run of that order, and are not used any more.
            HeldFrames::Run(f, order) => unsafe { vm.free_run(f, order) },
            // SAFETY: `n` frames were allocated together, and are not used any more.
            HeldFrames::Contiguous(f, n) => unsafe { vm.free_contiguous(f, n) },
            // SAFETY: `alloc` returned the memory with this layout; it is not used any more.
            HeldFrames::Object(at, layout) => unsafe { vm.heap().free(vm, at, layout) },
        }
    }
}

/// Runs the bytes as allocations and frees.
pub fn run(data: &[u8]) {
    let vm = VM.with(|(vm, _)| *vm);
    let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
    let input = &mut Input::new(data);
    let mut held: Vec<(HeldFrames, u8)> = Vec::new();
    let mut tag = 0u8;
    while !input.is_over() {
        let on_behalf = if input.byte() & 1 == 0 { For::User } else { For::Kernel };
        let new = match input.below(8) {
            0 => {
                let fill = if input.byte() & 1 == 0 { Fill::Zeroed } else { Fill::Any };
                vm.alloc_frame(fill, on_behalf).ok().map(|f| {
                    let bytes = vm.machine().frame_ptr(f.pfn());
                    // SAFETY: `f` owns the frame, which has `PAGE_SIZE` bytes at `bytes`.
                    let zero = (0..PAGE_SIZE as usize).all(|i| unsafe { bytes.add(i).read() } == 0);
                    assert!(fill == Fill::Any || zero, "a frame requested as zeroed is zero");
                    HeldFrames::Frame(f)
                })
            }
            1 => {
                let order = input.byte() % 12;
                vm.alloc_run(order, on_behalf).ok().map(|f| {
                    assert!(f.pfn().0.is_multiple_of(1 << order), "a run is aligned to its size");
                    HeldFrames::Run(f, order)
                })
            }
            2 => {
                let n = u64::from(input.short() % 600);
                vm.alloc_contiguous(Contiguous::anywhere(n), on_behalf).ok().map(|f| HeldFrames::Contiguous(f, n))
            }
            3 | 4 => {
                let align = 1usize << (input.byte() % 13);
                let layout = Layout::from_size_align(1 + usize::from(input.short()) % 9000, align).expect("a layout");
                // SAFETY: the heap belongs to `vm`, which it gets as an argument.
                unsafe { vm.heap().alloc(vm, layout) }.ok().map(|at| {
                    assert!(at.addr().get().is_multiple_of(align), "an object has the requested alignment");
                    HeldFrames::Object(at, layout)
                })
            }
            5 => {
                for _ in 0..input.byte() {
                    match held.len() {
                        0 => break,
                        n => {
                            let (which, tag) = held.swap_remove(input.below(n));
                            which.give_back(vm, tag);
                        }
                    }
                }
                None
            }
            6 => {
                vm.drain_magazines();
                None
            }
            _ => {
                if let Some((which, tag)) = held.pop() {
                    which.give_back(vm, tag);
                }
                None
            }
        };
        if let Some(new) = new {
            tag = tag.wrapping_add(1);
            new.stamp(vm, tag);
            held.push((new, tag));
        }
    }
    held.into_iter().for_each(|(which, tag)| which.give_back(vm, tag));
    VM.with(|(vm, before)| before.assert_settled(vm));
}
