//! Frame allocators behind one trait: the production allocator, and one free list with one lock.

mod global;

pub use global::GlobalList;
use quire_hosted::Hosted;
use quire_vm::Vm;
use quire_vm::phys::frames::{Fill, For};

/// An allocator of frames. A frame is its number.
pub trait FrameSource: Sync {
    /// Allocates a frame. `kernel` says that the frame will be in use for long. Returns `None` if no frame is free.
    fn take(&self, kernel: bool) -> Option<u32>;
    /// Frees a frame.
    fn give(&self, frame: u32);
    /// The number of free, aligned blocks of 2 MiB.
    fn large(&self) -> u64;
}

/// The production allocator. With `groups`, kernel frames are kept apart from programs' frames, as in production.
/// Without it, all frames are allocated in the same way, which is the naive policy.
pub struct Domains {
    /// The memory system of the hosted machine.
    pub vm: &'static Vm<Hosted>,
    /// Whether kernel frames are kept apart from programs' frames.
    pub groups: bool,
}

impl FrameSource for Domains {
    fn take(&self, kernel: bool) -> Option<u32> {
        let on_behalf = if kernel && self.groups { For::Kernel } else { For::User };
        self.vm.alloc_frame(Fill::Any, on_behalf).ok().map(|f| f.into_pfn().0 as u32)
    }
    fn give(&self, frame: u32) {
        // SAFETY: the frame came from `take`, and its owner no longer uses it.
        unsafe { self.vm.free_pfn(quire_vm::Pfn(frame as u64)) };
    }
    fn large(&self) -> u64 {
        self.vm.drain_magazines();
        self.vm.frames().large()
    }
}

/// Simulates programs that start and end while the kernel sometimes allocates a frame and keeps it. There are eight
/// rounds, each of which fills three quarters of `total` frames. Returns the number of free blocks of 2 MiB at the end,
/// and the largest possible number.
pub fn mixed_load(source: &dyn FrameSource, total: u64) -> (u64, u64) {
    let mut kept = Vec::new();
    for round in 0..8 {
        let mut taken = Vec::new();
        for i in 0..total * 3 / 4 - kept.len() as u64 {
            // The kernel's frames are few in each round, and are spread over the whole round.
            let kernel = i % 512 == round * 37;
            match source.take(kernel) {
                Some(frame) if kernel => kept.push(frame),
                Some(frame) => taken.push(frame),
                None => break,
            }
        }
        taken.into_iter().for_each(|f| source.give(f));
    }
    let whole = source.large();
    kept.iter().for_each(|f| source.give(*f));
    (whole, source.large() - (kept.len() as u64).div_ceil(512))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_hosted::Cpu;

    #[test]
    fn each_hands_a_frame_out_once_and_production_keeps_more_whole() {
        let vm = crate::machine::boot(1, 64);
        let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
        let list = GlobalList::new(4096);
        let mut seen: Vec<u32> = std::iter::from_fn(|| list.take(false)).collect();
        seen.sort_unstable();
        assert!(seen.len() == 4096 && seen.windows(2).all(|w| w[0] < w[1]));
        seen.into_iter().for_each(|f| list.give(f));
        assert_eq!(list.large(), 8);

        let total = vm.frames().free();
        let (ours, most) = mixed_load(&Domains { vm, groups: true }, total);
        let (naive, _) = mixed_load(&Domains { vm, groups: false }, total);
        assert!(ours + 2 >= most, "{ours} of {most} are whole");
        assert!(naive < ours, "{naive} and {ours}: the load distinguishes the policies");
    }
}
