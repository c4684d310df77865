//! Frame allocators behind one trait: production's, and one free list under one lock.

mod global;

pub use global::GlobalList;
use quire_hosted::Hosted;
use quire_vm::Vm;
use quire_vm::phys::frames::{Fill, For};

/// An allocator of frames, by number.
pub trait FrameSource: Sync {
    /// A frame; `kernel`: it will stay where it is for long.
    fn take(&self, kernel: bool) -> Option<u32>;
    /// Takes a frame back.
    fn give(&self, frame: u32);
    /// Free, aligned blocks of 2 MiB.
    fn large(&self) -> u64;
}

/// Production's frames. `groups`: kernel frames are kept apart from programs', as in production; else all are allocated
/// alike, which is the naive policy.
pub struct Domains {
    /// The system.
    pub vm: &'static Vm<Hosted>,
    /// Whether kernel frames are kept apart.
    pub groups: bool,
}

impl FrameSource for Domains {
    fn take(&self, kernel: bool) -> Option<u32> {
        let on_behalf = if kernel && self.groups { For::Kernel } else { For::User };
        self.vm.alloc_frame(Fill::Any, on_behalf).ok().map(|f| f.into_pfn().0 as u32)
    }
    fn give(&self, frame: u32) {
        // SAFETY: it came from `take`, whose caller gives it up.
        unsafe { self.vm.free_pfn(quire_vm::Pfn(frame as u64)) };
    }
    fn large(&self) -> u64 {
        self.vm.drain_magazines();
        self.vm.frames().large()
    }
}

/// Programs come and go while the kernel sometimes takes a frame and keeps it. There are eight rounds, each of which
/// fills three quarters of `total` frames. Returns the whole blocks of 2 MiB at the end, and the most that there could
/// be.
pub fn mixed_load(source: &dyn FrameSource, total: u64) -> (u64, u64) {
    let mut kept = Vec::new();
    for round in 0..8 {
        let mut taken = Vec::new();
        for i in 0..total * 3 / 4 - kept.len() as u64 {
            // Few in a round, spread over all of it.
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
