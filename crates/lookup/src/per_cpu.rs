//! Counters with a part for each CPU, in memory of the global allocator that is never freed.
//!
//! `quire-sync` lays such counters out in memory of its caller, because it uses no heap. File systems and the table of
//! open files live as long as the machine, so their memory need not be freed.

use core::alloc::Layout;
use core::ptr::NonNull;
use quire_heap::{OutOfMemory, allocate};
use quire_sync::{CachePadded, CpuId, LimitedCounter, PerCpu, Quota};

/// The alignment that `quire-sync` requires of memory for each CPU.
const ALIGN: usize = align_of::<CachePadded<u8>>();

fn memory(bytes: usize) -> Result<NonNull<u8>, OutOfMemory> {
    allocate(Layout::from_size_align(bytes, ALIGN).map_err(|_| OutOfMemory)?)
}

/// Allocates one element for each of `cpus` CPUs.
pub fn per_cpu<T>(cpus: usize, init: impl FnMut(CpuId) -> T) -> Result<PerCpu<T>, OutOfMemory> {
    // No type needs a larger alignment than the cache-line padding.
    const { assert!(align_of::<CachePadded<T>>() == ALIGN) };
    let memory = memory(PerCpu::<T>::bytes(cpus))?;
    // SAFETY: this is a fresh allocation of that size, aligned as asserted, and never freed.
    Ok(unsafe { PerCpu::new(memory, cpus, init) })
}

/// A counter at zero, for a machine of `cpus` CPUs.
pub fn limited_counter(cpus: usize) -> Result<LimitedCounter, OutOfMemory> {
    let memory = memory(LimitedCounter::bytes(cpus))?;
    // SAFETY: this is a fresh allocation of that size, aligned to 128 bytes, and never freed.
    Ok(unsafe { LimitedCounter::new(memory, cpus) })
}

/// A quota of `limit`, of which nothing is used, for a machine of `cpus` CPUs.
pub fn quota(cpus: usize, limit: u64) -> Result<Quota, OutOfMemory> {
    let memory = memory(Quota::bytes(cpus))?;
    // SAFETY: this is a fresh allocation of that size, aligned to 128 bytes, and never freed.
    Ok(unsafe { Quota::new(memory, cpus, limit) })
}
