//! TLB shootdowns: requests to other CPUs to drop translations. Each CPU has an inbox with a slot for each sender. A
//! sender interrupts a target only if the target's inbox was empty.
//!
//! The request is on the sender's stack. The sender stores a pointer to it in its own slot of each target's inbox, and
//! then sets its bit in the inbox's mask. The target clears the mask, in its interrupt handler or while it waits as a
//! sender itself. It serves the slot of each bit, and then stores null in the slot as the answer. That is its last
//! access to the request.
//!
//! A sender waits until all its slots are null. While it waits it serves its own inbox, so that two CPUs with requests
//! to each other both make progress. A CPU has one request at a time, because the sender is not preempted before all
//! answers have come.

use crate::cpu;
use crate::cpu::interrupt::{self, Interrupt};
use crate::machine::{Machine, vm};
use crate::report::trace;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use quire_drivers::local_apic;
use quire_pmap_x86_64::Request;
use quire_sync::cpuset::CpuMask;
use quire_sync::trace::{EventKind, Span};

/// One CPU's inbox, on separate cache lines.
#[repr(C, align(128))]
struct Inbox {
    /// The mask of senders whose slots are filled.
    waiting: AtomicU64,
    slots: [AtomicPtr<Request<'static>>; cpu::MAX],
}

/// The array of inboxes, with an element for each CPU.
static INBOXES: AtomicPtr<Inbox> = AtomicPtr::new(core::ptr::null_mut());
static LEN: AtomicUsize = AtomicUsize::new(0);

/// The size in bytes of the memory that [`init`] needs for `cpus` CPUs.
pub const fn bytes(cpus: usize) -> usize {
    cpus * size_of::<Inbox>()
}

/// Initialises the inboxes.
///
/// # Safety
/// `memory` points to [`bytes`]`(cpus)` writable bytes, aligned to 128, with no other user, for ever. Called once,
/// before other CPUs run.
pub unsafe fn init(memory: NonNull<u8>, cpus: usize) {
    let base = memory.cast::<Inbox>();
    for i in 0..cpus {
        let slots = [const { AtomicPtr::new(core::ptr::null_mut()) }; cpu::MAX];
        // SAFETY: within the memory that the caller handed over.
        unsafe { base.add(i).write(Inbox { waiting: AtomicU64::new(0), slots }) };
    }
    INBOXES.store(base.as_ptr(), Ordering::Release);
    LEN.store(cpus, Ordering::Release);
}

#[inline(always)]
fn inbox(cpu: usize) -> &'static Inbox {
    assert!(cpu < LEN.load(Ordering::Relaxed));
    // SAFETY: the index is in bounds of the array, which `init` has initialised and which is never freed.
    unsafe { &*INBOXES.load(Ordering::Relaxed).add(cpu) }
}

/// Makes every CPU in `targets` serve `request`, and returns after all have done so. The caller has disabled
/// preemption, and interrupts are on.
pub fn shoot(machine: &Machine, targets: &CpuMask, request: &Request<'_>) {
    let me = cpu::id();
    let _span = trace::shootdown(targets, me);
    // The longer lifetime is sound, because no slot points to the request any more when this function returns.
    let request_ptr = core::ptr::from_ref(request).cast_mut().cast::<Request<'static>>();
    for target in targets.iter().filter(|t| *t != me) {
        let inbox = inbox(target);
        inbox.slots[me].store(request_ptr, Ordering::Relaxed);
        // Release: a CPU that acquires the bit sees the slot and the request.
        if inbox.waiting.fetch_or(1 << me, Ordering::AcqRel) == 0 {
            local_apic::send(cpu::apic_id(target), interrupt::SHOOTDOWN);
        }
    }
    if targets.contains(me) {
        request.serve(machine);
    }
    for target in targets.iter().filter(|t| *t != me) {
        while !inbox(target).slots[me].load(Ordering::Acquire).is_null() {
            serve();
            core::hint::spin_loop();
        }
    }
}

/// Serves other CPUs' requests to this CPU. Preemption is disabled, or interrupts are masked.
pub fn serve() {
    let inbox = inbox(cpu::id());
    if inbox.waiting.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut senders = inbox.waiting.swap(0, Ordering::AcqRel);
    interrupt::count(Interrupt::Shootdown, u64::from(senders.count_ones()));
    while senders != 0 {
        let sender = senders.trailing_zeros() as usize;
        senders &= senders - 1;
        let slot = &inbox.slots[sender];
        // SAFETY: the bit was set after the slot was filled. The request stays in place until null is stored below.
        if let Some(request) = unsafe { slot.load(Ordering::Acquire).as_ref() } {
            let _span = Span::begin(EventKind::Answer, sender as u64, 0);
            request.serve(vm().machine());
        }
        slot.store(core::ptr::null_mut(), Ordering::Release);
    }
}
