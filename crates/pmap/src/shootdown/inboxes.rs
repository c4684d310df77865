//! Requests between CPUs that can interrupt each other: a slot for each pair of CPUs. A machine with interrupts
//! implements [`Hardware::shoot`] by [`Inboxes::shoot`], and its interrupt handler calls [`Inboxes::serve`].
//!
//! # The protocol
//! The sender fills the slot of its target, then marks it as waiting, then interrupts the target. The target clears the
//! mark, and then owns the request until it empties the slot. The sender waits for the empty slot. An interrupt handler
//! may run in the middle of a target's work. It finds the mark cleared, so it leaves that request alone. So each target
//! serves a request exactly once, and never touches it after its answer.

use super::Request;
use crate::format::Format;
use crate::hardware::Hardware;
use core::marker::PhantomData;
use core::ptr;
use quire_sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use quire_sync::cpuset::CpuMask;
use quire_sync::hooks::{preempt_off, relax};
use quire_sync::{CachePadded, CpuId};

/// The request of one CPU to another.
struct Slot {
    /// The request on its sender's stack; null if there is none, or if it is answered.
    request: AtomicPtr<()>,
    waiting: AtomicBool,
}

/// The slots of all pairs of CPUs, without the type of the requests.
struct Slots<const CPUS: usize>([CachePadded<[Slot; CPUS]>; CPUS]);

impl<const CPUS: usize> Slots<CPUS> {
    #[cfg(not(any(loom, shuttle)))]
    const fn new() -> Self {
        Slots(
            [const {
                CachePadded(
                    [const { Slot { request: AtomicPtr::new(ptr::null_mut()), waiting: AtomicBool::new(false) } };
                        CPUS],
                )
            }; CPUS],
        )
    }

    #[cfg(any(loom, shuttle))]
    fn new() -> Self {
        let slot = || Slot { request: AtomicPtr::new(ptr::null_mut()), waiting: AtomicBool::new(false) };
        Slots(core::array::from_fn(|_| CachePadded(core::array::from_fn(|_| slot()))))
    }

    fn send(&self, me: CpuId, target: CpuId, request: *mut ()) {
        let slot = &self.0[target].0[me];
        slot.request.store(request, Ordering::Relaxed);
        // Release: a target that finds the mark also finds the request.
        slot.waiting.store(true, Ordering::Release);
    }

    fn is_answered(&self, me: CpuId, target: CpuId) -> bool {
        self.0[target].0[me].request.load(Ordering::Acquire).is_null()
    }

    /// Calls `f` with each request to `me` that no other code serves yet.
    fn serve(&self, me: CpuId, mut f: impl FnMut(*mut ())) {
        for slot in &self.0[me].0 {
            // Mostly no request waits, and a load does not take the line from its sender.
            if slot.waiting.load(Ordering::Relaxed) && slot.waiting.swap(false, Ordering::AcqRel) {
                f(slot.request.load(Ordering::Relaxed));
                slot.request.store(ptr::null_mut(), Ordering::Release);
            }
        }
    }
}

/// The requests of a machine's CPUs to each other. A machine has one such value.
pub struct Inboxes<F: Format, const CPUS: usize> {
    slots: Slots<CPUS>,
    format: PhantomData<fn(F)>,
}

impl<F: Format, const CPUS: usize> Inboxes<F, CPUS> {
    /// Empty inboxes.
    #[cfg(not(any(loom, shuttle)))]
    #[expect(clippy::new_without_default, reason = "a machine makes one such value, in a static")]
    pub const fn new() -> Self {
        Inboxes { slots: Slots::new(), format: PhantomData }
    }

    /// Serves the requests to the calling CPU. The handler of the interrupt that [`Inboxes::shoot`] sends calls it.
    pub fn serve<M: Hardware<Format = F>>(&self, machine: &M) {
        let here = preempt_off();
        self.slots.serve(here.cpu(), |request| {
            // SAFETY: the sender keeps its request in place until the slot is empty. `shoot` alone fills slots, with
            // requests of this format.
            unsafe { &*request.cast::<Request<'_, F>>() }.serve(machine);
        });
    }

    /// Makes every CPU in `targets` serve `request`, as [`Hardware::shoot`] must. `interrupt` interrupts a CPU, which
    /// then calls [`Inboxes::serve`].
    pub fn shoot<M: Hardware<Format = F>>(
        &self,
        machine: &M,
        targets: &CpuMask,
        request: &Request<'_, F>,
        mut interrupt: impl FnMut(CpuId),
    ) {
        let here = preempt_off();
        let me = here.cpu();
        // The request must not go before its answers, even if `interrupt` panics. So the drop of this value waits.
        let _answers = Answers { inboxes: self, machine, targets, me };
        for target in (0..CPUS).filter(|cpu| *cpu != me && targets.contains(*cpu)) {
            self.slots.send(me, target, ptr::from_ref(request).cast_mut().cast());
            interrupt(target);
        }
        if targets.contains(me) {
            request.serve(machine);
        }
    }
}

/// The drop of this value waits until all targets have answered the request of CPU `me`, and serves other requests
/// meanwhile. A slot that was not filled counts as answered.
struct Answers<'a, M: Hardware, const CPUS: usize> {
    inboxes: &'a Inboxes<M::Format, CPUS>,
    machine: &'a M,
    targets: &'a CpuMask,
    me: CpuId,
}

impl<M: Hardware, const CPUS: usize> Drop for Answers<'_, M, CPUS> {
    fn drop(&mut self) {
        for target in (0..CPUS).filter(|cpu| *cpu != self.me && self.targets.contains(*cpu)) {
            while !self.inboxes.slots.is_answered(self.me, target) {
                self.inboxes.serve(self.machine);
                relax();
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    #[test]
    fn a_handler_in_the_middle_of_a_request_leaves_it_alone() {
        let slots = Slots::<2>::new();
        let mut request = 7u64;
        slots.send(1, 0, ptr::from_mut(&mut request).cast());
        let mut served = 0;
        slots.serve(0, |_| {
            served += 1;
            // The interrupt that the sender has sent arrives now.
            slots.serve(0, |_| served += 1);
            assert!(!slots.is_answered(1, 0), "the sender may not free a request that is being served");
        });
        assert!(served == 1 && slots.is_answered(1, 0));
    }

    #[test]
    fn cpus_that_send_to_each_other_at_once_all_get_their_answers() {
        const CPUS: usize = 3;
        const ROUNDS: u64 = 2000;
        static SLOTS: Slots<CPUS> = Slots::new();
        let serve = |me| {
            SLOTS.serve(me, |request| {
                // SAFETY: the sender below waits for its answers before its request goes.
                unsafe { &*request.cast::<AtomicU64>() }.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
            });
        };
        let left = AtomicU64::new(CPUS as u64);
        std::thread::scope(|scope| {
            for me in 0..CPUS {
                let left = &left;
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let served = AtomicU64::new(0);
                        let others = || (0..CPUS).filter(|cpu| *cpu != me);
                        others().for_each(|cpu| SLOTS.send(me, cpu, ptr::from_ref(&served).cast_mut().cast()));
                        while !others().all(|cpu| SLOTS.is_answered(me, cpu)) {
                            serve(me);
                            std::thread::yield_now();
                        }
                        assert_eq!(served.into_inner(), CPUS as u64 - 1);
                    }
                    left.fetch_sub(1, core::sync::atomic::Ordering::AcqRel);
                    while left.load(core::sync::atomic::Ordering::Acquire) != 0 {
                        serve(me);
                        std::thread::yield_now();
                    }
                });
            }
        });
    }
}
