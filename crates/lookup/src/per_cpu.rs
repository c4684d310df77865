//! Counts with a part on each CPU, in memory of the global allocator that is never freed.
//!
//! `quire-sync` lays them out in memory of its caller, because it uses no heap. File systems and the table of open
//! files live as long as the machine, so their memory is never freed.

use core::alloc::Layout;
use core::ptr::NonNull;
use quire_heap::{OutOfMemory, allocate};
use quire_sync::{CachePadded, CpuId, LimitedCounter, PerCpu, Quota};

/// The alignment that `quire-sync` requires of the memory for each CPU.
const ALIGN: usize = align_of::<CachePadded<u8>>();

fn memory(bytes: usize) -> Result<NonNull<u8>, OutOfMemory> {
    allocate(Layout::from_size_align(bytes, ALIGN).map_err(|_| OutOfMemory)?)
}

/// One element for each of `cpus` CPUs.
pub fn per_cpu<T>(cpus: usize, init: impl FnMut(CpuId) -> T) -> Result<PerCpu<T>, OutOfMemory> {
    // No type needs a larger alignment than its padding.
    const { assert!(align_of::<CachePadded<T>>() == ALIGN) };
    let memory = memory(PerCpu::<T>::bytes(cpus))?;
    // SAFETY: a fresh allocation of that size, aligned as asserted, which is never freed.
    Ok(unsafe { PerCpu::new(memory, cpus, init) })
}

/// A count of nothing on a machine of `cpus` CPUs.
pub fn limited_counter(cpus: usize) -> Result<LimitedCounter, OutOfMemory> {
    let memory = memory(LimitedCounter::bytes(cpus))?;
    // SAFETY: a fresh allocation of that size, aligned to 128, which is never freed.
    Ok(unsafe { LimitedCounter::new(memory, cpus) })
}

/// A quota of `limit`, of which nothing is taken, on a machine of `cpus` CPUs.
pub fn quota(cpus: usize, limit: u64) -> Result<Quota, OutOfMemory> {
    let memory = memory(Quota::bytes(cpus))?;
    // SAFETY: a fresh allocation of that size, aligned to 128, which is never freed.
    Ok(unsafe { Quota::new(memory, cpus, limit) })
}
