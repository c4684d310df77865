//! `quire_memory`: the kernel memory that a process uses, by kind, in bytes.
//!
//! A reader walks the data structures of the process, so nothing is counted while no process reads the file. The bytes
//! include the unused parts of slabs. The structures of private memory that parents and children share are divided
//! between these processes ([`Structures`](quire_vm::map::Structures)). Signal actions and limits that forks share
//! until a change are divided too. Other shared tables of files or actions are counted in full for each process. Files,
//! pipes, sockets and shared memory are not counted.

use crate::about::Task;
use crate::node::put;
use core::alloc::Layout;
use quire_fs::FsError;
use quire_fs::generated::Text;
use quire_heap::{Arc, allocation};
use quire_linux_state::Process;
use quire_linux_state::file::files::Files;
use quire_linux_state::file::state::FsState;
use quire_linux_state::machine::Machine;
use quire_linux_state::memory::AddressSpace;
use quire_linux_state::process::group::Group;
use quire_linux_state::process::timers::cpu_limit::CpuLimit;
use quire_linux_state::process::timers::interval::Timers;
use quire_linux_state::signal::Actions;
use quire_task::ids::SLOT_BYTES;

/// Writes the file of a process, for readers with access to its memory.
pub(super) fn of_process<M: Machine>(about: &Task<M>, out: &mut Text) -> Result<(), FsError> {
    let granted = about.look()?;
    let process = &about.process;
    let linux = process.linux;
    let heap = |layout: Layout| if layout.size() == 0 { 0 } else { linux.vm.heap().share(layout) };
    let (threads, stacks) = {
        let threads = process.threads.lock();
        let stacks: usize = threads.iter().map(|thread| linux.machine.stack_len(thread)).sum();
        (threads.len() as u64, stacks as u64)
    };

    let mut parts = process_parts(process, &heap);
    let space = granted.memory.as_ref().map(|memory| memory.structures()).unwrap_or_default();
    let of_space = if granted.memory.is_some() { heap(allocation::<AddressSpace<M>>()) } else { 0 };
    let (mut files, mut signals) = (0, 0);
    if let Some(task) = about.task()
        && let Some(thread) = task.payload()
    {
        let table = thread.files.look(|files| files.clone());
        files +=
            table.map_or(0, |table| heap(allocation::<Files<M>>()) + table.allocations().map(heap).iter().sum::<u64>());
        let fs = thread.fs.look(|fs| fs.as_ref().map(|fs| fs.more()));
        files += fs.map_or(0, |more| heap(allocation::<FsState<M>>()) + heap(more));
        let (blocks, sharers) = process
            .actions
            .look(|actions| (actions.more_blocks(), if actions.is_frozen() { Arc::strong_count(actions) } else { 1 }));
        signals += (heap(allocation::<Actions>()) + blocks as u64 * heap(Actions::BLOCK)) / sharers as u64;
    }
    // Each thread except the first has an id of its own.
    parts += threads.saturating_sub(1) * SLOT_BYTES as u64;
    let rows = [
        ("page-tables", space.tables),
        ("kernel-stack", stacks),
        ("thread", threads * heap(Layout::new::<quire_task::Thread<M>>())),
        ("process", parts),
        ("space", space.space + of_space),
        ("entries", space.entries),
        ("backings", space.backings),
        ("objects", space.objects),
        ("index", space.index),
        ("files", files),
        ("signals", signals),
        ("fpu", threads * Layout::from_size_align(linux.machine.fpu_len(), 64).map_or(0, heap)),
    ];
    for (name, bytes) in rows {
        put!(out, "{name} {bytes}\n")?;
    }
    put!(out, "total {}\n", rows.iter().map(|(_, bytes)| bytes).sum::<u64>())
}

/// The bytes of the process itself, its id, its limits and timers, and the process group with its id.
fn process_parts<M: Machine>(process: &Process<M>, heap: &impl Fn(Layout) -> u64) -> u64 {
    let own_group = process.group().id == process.pid;
    let group = if own_group { heap(allocation::<Group<M>>()) } else { 0 };
    let timer = if process.timers.get().is_some() { heap(Layout::new::<Timers<M>>()) } else { 0 };
    let limit = if process.cpu_limit.get().is_some() { heap(Layout::new::<CpuLimit<M>>()) } else { 0 };
    let more = group + timer + limit + process.limits.bytes(heap);
    heap(allocation::<Process<M>>()) + SLOT_BYTES as u64 + more
}

/// Writes the rows of `/proc/vmstat` about kernel memory, in bytes: each slab cache, stacks and page tables, larger
/// allocations, and the tables that boot reserved.
pub(super) fn of_machine<M: Machine>(about: &crate::about::System<M>, out: &mut Text) -> Result<(), FsError> {
    let (linux, vm) = (about.0, about.0.vm);
    let bytes = |pages: u64| pages * quire_vm::PAGE_SIZE;
    let mut slabs = 0;
    for cache in vm.heap().caches().iter().chain(vm.map_memory().caches()).chain(vm.object_memory().caches()) {
        put!(out, "quire_slab_bytes_{} {}\n", cache.label(), bytes(cache.frames()))?;
        slabs += cache.frames();
    }
    let heap: u64 = vm.heap().caches().iter().map(|cache| cache.frames()).sum();
    let stats = vm.stats();
    let tables = linux.table_sizes();
    let rows = [
        ("slab", bytes(slabs)),
        ("heap", bytes(heap + stats.buffer_pages())),
        ("kernel_stack", bytes(stats.stack_pages())),
        ("page_table", bytes(stats.table_pages())),
        ("id_directory", tables.ids),
        ("futex_table", tables.futexes),
    ];
    for (name, value) in rows {
        put!(out, "quire_{name}_bytes {value}\n")?;
    }
    Ok(())
}
