//! Kernel stacks: 16 KiB each, an unmapped page below, so that an overflow is a double fault and not silent damage.
//!
//! Stacks are recycled mapped. When more than [`KEEP`] lie idle, a batch of them is unmapped, one shootdown for all, and
//! their frames are freed; their addresses are used again afterwards.

use crate::layout::{STACKS, STACKS_END};
use crate::machine::{DirectMap, Machine, vm};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use quire_pmap_x86_64::{Caching, KernelTables, Request, Rights, X86};
use quire_sync::cpuset::CpuMask;
use quire_sync::{Rank, SpinLock, preempt_off};
use quire_vm::frames::{Fill, For, Frame};
use quire_vm::{OutOfMemory, PAGE_SIZE, Pfn, VirtRange};

/// Bytes of a stack.
pub const SIZE: u64 = 16 * 1024;
const GUARD: u64 = PAGE_SIZE;
/// Idle stacks that stay mapped, at most.
const KEEP: usize = 256;
/// Stacks that are unmapped at once: one broadcast for all of them.
const BATCH: usize = 64;

/// The next address that was never used.
static NEXT: AtomicU64 = AtomicU64::new(STACKS);

struct Pool {
    /// Bottoms of idle, mapped stacks: each stack's first word is the next one's bottom.
    idle: u64,
    idle_len: usize,
    /// Bottoms of addresses that were unmapped everywhere.
    unmapped: Vec<u64>,
}

static POOL: SpinLock<Pool> = SpinLock::new(Rank::SLAB_LOCAL, Pool { idle: 0, idle_len: 0, unmapped: Vec::new() });

/// A kernel stack; given back when dropped.
pub struct Stack(u64);

impl Stack {
    /// A stack, its contents left over from whoever had it before.
    pub fn new() -> Result<Stack, OutOfMemory> {
        let address = {
            let mut pool = POOL.lock();
            if pool.idle != 0 {
                let bottom = pool.idle;
                // SAFETY: an idle stack is mapped, and its first word is the link.
                pool.idle = unsafe { *(bottom as *const u64) };
                pool.idle_len -= 1;
                return Ok(Stack(bottom));
            }
            pool.unmapped.pop()
        };
        let bottom = match address {
            Some(bottom) => bottom,
            None => fresh(SIZE).ok_or(OutOfMemory)?,
        };
        let tables = vm().machine().mmu().kernel();
        for offset in (0..SIZE).step_by(PAGE_SIZE as usize) {
            let mapped =
                vm().alloc_frame(Fill::Any, For::Kernel).and_then(|frame| map_frame(tables, bottom + offset, frame));
            if mapped.is_err() {
                // What was mapped so far was never used: no CPU holds a translation but by chance, so it is shot like any other.
                unmap(&[bottom]);
                forget(&[bottom]);
                return Err(OutOfMemory);
            }
        }
        Ok(Stack(bottom))
    }

    /// One past the highest byte.
    pub fn top(&self) -> u64 {
        self.0 + SIZE
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let mut batch = [0u64; BATCH];
        {
            let mut pool = POOL.lock();
            // SAFETY: nobody runs on the stack any more; its first word becomes the link.
            unsafe { *(self.0 as *mut u64) = pool.idle };
            pool.idle = self.0;
            pool.idle_len += 1;
            if pool.idle_len < KEEP + BATCH || pool.unmapped.try_reserve(BATCH).is_err() {
                return;
            }
            for slot in &mut batch {
                *slot = pool.idle;
                // SAFETY: as in `new`.
                pool.idle = unsafe { *(pool.idle as *const u64) };
            }
            pool.idle_len -= BATCH;
        }
        unmap(&batch);
        forget(&batch);
    }
}

/// Addresses of a stack of `size` bytes that were never used, above an unmapped guard; returns the bottom.
pub fn fresh(size: u64) -> Option<u64> {
    let at = NEXT.fetch_add(size + GUARD, Ordering::Relaxed);
    (at + size + GUARD <= STACKS_END).then_some(at + GUARD)
}

/// Whether kernel address `at` may be a stack's guard: in the stacks' area and not mapped.
pub fn is_guard(at: u64) -> bool {
    (STACKS..STACKS_END).contains(&at)
        && crate::machine::try_vm().is_some_and(|vm| vm.machine().mmu().kernel().lookup(&DirectMap, at).is_none())
}

/// Whether the two words at kernel address `at`, which lies on a kernel stack or in the image, can be read.
pub fn is_readable(at: u64) -> bool {
    !(STACKS..STACKS_END).contains(&at) || !is_guard(at) && !is_guard(at + 8)
}

fn map_frame(tables: &KernelTables, va: u64, frame: Frame) -> Result<(), OutOfMemory> {
    let pfn = frame.into_pfn();
    let mut table_frame = || vm().alloc_frame(Fill::Any, For::Kernel).ok().map(Frame::into_pfn);
    let range = VirtRange { start: va, end: va + PAGE_SIZE };
    tables.map(&DirectMap, range, pfn.address(), Rights::Write, Caching::WriteBack, &mut table_frame).map_err(|_| {
        // SAFETY: the frame came from the caller and was not mapped.
        vm().free_frame(unsafe { Frame::from_pfn(pfn) });
        OutOfMemory
    })
}

/// Unmaps the stacks at `bottoms` on every CPU and frees their frames.
fn unmap(bottoms: &[u64]) {
    let machine: &Machine = vm().machine();
    let tables = machine.mmu().kernel();
    let mut frames = [Pfn(0); BATCH * (SIZE / PAGE_SIZE) as usize];
    let mut len = 0;
    let (mut low, mut high) = (u64::MAX, 0);
    for bottom in bottoms {
        let range = VirtRange { start: *bottom, end: bottom + SIZE };
        for va in (range.start..range.end).step_by(PAGE_SIZE as usize) {
            if let Some((pa, _)) = tables.lookup(&DirectMap, va) {
                frames[len] = Pfn::containing(pa);
                len += 1;
            }
        }
        if tables.unmap(&DirectMap, range).is_err() {
            panic!("kernel stacks are mapped by single pages");
        }
        low = low.min(range.start);
        high = high.max(range.end);
    }
    let pinned = preempt_off();
    machine.shoot(&CpuMask::first(crate::cpu::count()), &Request::kernel(low, high));
    drop(pinned);
    for pfn in &frames[..len] {
        // SAFETY: unmapped everywhere, and the stacks' owners gave them up.
        vm().free_frame(unsafe { Frame::from_pfn(*pfn) });
    }
}

/// The addresses may be used again.
fn forget(bottoms: &[u64]) {
    let mut pool = POOL.lock();
    for bottom in bottoms {
        // Without room the address is lost, which harms nobody: there are 400 million.
        if pool.unmapped.try_reserve(1).is_ok() {
            pool.unmapped.push(*bottom);
        }
    }
}
