//! The files of `/proc` about the whole machine.

use crate::about::System;
use crate::node::put;
use quire_fs::FsError;
use quire_fs::generated::Text;
use quire_linux::memory::commit;
use quire_linux::system::{RELEASE, VERSION};
use quire_linux_state::machine::{Interrupt, Machine};
use quire_linux_state::system::load::SHIFT;
use quire_linux_state::time::{SECOND, ticks};
use quire_task::CpuTimes;
use quire_vm::phys::queues::Queue;
use quire_vm::stats::Event;
use quire_vm::{FaultKind, PAGE_SIZE};

const KIB_A_PAGE: u64 = PAGE_SIZE / 1024;

pub(super) fn command_line<M: Machine>(_about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "quire\n")
}

pub(super) fn cpu_info<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    for cpu in 0..about.0.scheduler.cpus() {
        put!(out, "processor\t: {cpu}\n")?;
        about.0.machine.describe_cpu(cpu, out).map_err(|_| FsError::OutOfMemory)?;
        put!(out, "\n")?;
    }
    Ok(())
}

pub(super) fn file_systems<M: Machine>(_about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "nodev\tsysfs\nnodev\ttmpfs\nnodev\tproc\nnodev\tramfs\nnodev\tdevpts\nnodev\tmqueue\n")
}

pub(super) fn interrupts<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    let linux = about.0;
    let cpus = linux.scheduler.cpus();
    put!(out, "    ")?;
    for cpu in 0..cpus {
        put!(out, "       CPU{cpu:<4}")?;
    }
    put!(out, "\n")?;
    for kind in Interrupt::ALL {
        let (name, text) = kind.row();
        put!(out, "{name:>3}:")?;
        for cpu in 0..cpus {
            put!(out, " {:>10}", linux.machine.interrupts(cpu, *kind))?;
        }
        put!(out, "   {text}\n")?;
    }
    Ok(())
}

pub(super) fn load_average<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    let linux = about.0;
    for average in linux.load.averages() {
        let hundredths = (average * 100 + (1 << (SHIFT - 1))) >> SHIFT;
        put!(out, "{}.{:02} ", hundredths / 100, hundredths % 100)?;
    }
    put!(out, "{}/{} {}\n", linux.scheduler.runnable(), linux.scheduler.threads(), linux.ids.last())
}

pub(super) fn memory_info<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    let vm = about.0.vm;
    let kib = |pages: u64| pages * KIB_A_PAGE;
    let (total, free) = (vm.frames().total(), vm.frames().free());
    let slabs: u64 = slab_frames(about);
    let [active, inactive, laundry] = queue_lengths(about);
    let (tables, stacks) = (vm.stats().table_pages(), vm.stats().stack_pages());
    let shared = vm.stats().shared_pages();
    // A frame in use belongs to the kernel, or holds a page of an object.
    let kernel = tables + stacks + vm.stats().buffer_pages() + slabs;
    let private = total.saturating_sub(free + kernel + shared);
    let rows = [
        ("MemTotal", total),
        ("MemFree", free),
        ("MemAvailable", free.saturating_sub(vm.frames().reserve())),
        ("Buffers", 0),
        // Files exist only in memory, so their pages are counted as shared memory.
        ("Cached", shared),
        ("SwapCached", 0),
        ("Active", active),
        ("Inactive", inactive + laundry),
        ("SwapTotal", vm.swap().total()),
        ("SwapFree", vm.swap().free()),
        ("Dirty", laundry),
        ("Writeback", vm.io().writing()),
        ("AnonPages", private),
        ("Shmem", shared),
        ("KReclaimable", 0),
        ("Slab", slabs),
        ("SReclaimable", 0),
        ("SUnreclaim", slabs),
        ("KernelStack", stacks),
        ("PageTables", tables),
        ("CommitLimit", commit::limit(about.0) / PAGE_SIZE),
        ("Committed_AS", commit::committed(about.0) / PAGE_SIZE),
    ];
    for (name, pages) in rows {
        out.push(name.as_bytes())?;
        out.push(&b":               "[..1 + 15usize.saturating_sub(name.len())])?;
        out.push_decimal(kib(pages), 8)?;
        out.push(b" kB\n")?;
    }
    Ok(())
}

/// The numbers of pages on the active, the inactive and the laundry queue. Pages that are still in the CPUs' batches
/// are included.
fn queue_lengths<M: Machine>(about: &System<M>) -> [u64; 3] {
    let queues = about.0.vm.queues();
    queues.drain_batches();
    Queue::ALL.map(|queue| queues.len(queue))
}

fn slab_frames<M: Machine>(about: &System<M>) -> u64 {
    let vm = about.0.vm;
    let maps = vm.map_memory().caches();
    let objects = vm.object_memory().caches();
    let all = vm.heap().caches().iter().chain(maps).chain(objects);
    all.map(|cache| cache.frames()).sum()
}

pub(super) fn slab_info<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    let vm = about.0.vm;
    put!(out, "# name object-bytes frames objects\n")?;
    for cache in vm.heap().caches().iter().chain(vm.map_memory().caches()).chain(vm.object_memory().caches()) {
        put!(out, "{} {} {} ", cache.label(), cache.object_size(), cache.frames())?;
        // The number of objects in use is exact only if no other CPU allocates or frees, because the count walks the
        // lists of other CPUs.
        // SAFETY: `cache` belongs to `vm`, which is passed to it.
        match if cfg!(debug_assertions) { unsafe { cache.in_use(vm) }.ok() } else { None } {
            Some(objects) => put!(out, "{objects}\n")?,
            None => put!(out, "-\n")?,
        }
    }
    Ok(())
}

fn cpu_row(out: &mut Text, label: core::fmt::Arguments<'_>, times: &CpuTimes) -> Result<(), FsError> {
    let [user, system, idle] = [times.user_ns, times.system_ns, times.idle_ns].map(ticks);
    put!(out, "{label} {user} 0 {system} {idle} 0 0 0 0 0 0\n")
}

pub(super) fn stat<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    let linux = about.0;
    let mut sum = CpuTimes::default();
    for cpu in 0..linux.scheduler.cpus() {
        let times = linux.scheduler.cpu_times(cpu);
        sum.user_ns += times.user_ns;
        sum.system_ns += times.system_ns;
        sum.idle_ns += times.idle_ns;
        sum.switches += times.switches;
        sum.started += times.started;
    }
    cpu_row(out, format_args!("cpu "), &sum)?;
    for cpu in 0..linux.scheduler.cpus() {
        cpu_row(out, format_args!("cpu{cpu}"), &linux.scheduler.cpu_times(cpu))?;
    }
    let boot = (linux.machine.realtime() - quire_sync::hooks::now().min(linux.machine.realtime())) / SECOND;
    let all = Interrupt::ALL.iter().flat_map(|kind| (0..linux.scheduler.cpus()).map(|cpu| (cpu, *kind)));
    let interrupts: u64 = all.map(|(cpu, kind)| linux.machine.interrupts(cpu, kind)).sum();
    put!(out, "intr {interrupts}\nctxt {}\nbtime {boot}\nprocesses {}\n", sum.switches, sum.started)?;
    put!(out, "procs_running {}\nprocs_blocked 0\n", linux.scheduler.runnable())?;
    // All counts are 0, because this kernel has no softirqs.
    put!(out, "softirq 0 0 0 0 0 0 0 0 0 0 0\n")
}

pub(super) fn swaps<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")?;
    let swap = about.0.vm.swap();
    let (size, used) = (swap.total() * KIB_A_PAGE, (swap.total() - swap.free().min(swap.total())) * KIB_A_PAGE);
    if size == 0 { Ok(()) } else { put!(out, "memory\t\t\t\t\tpartition\t{size}\t\t{used}\t\t-2\n") }
}

pub(super) fn uptime<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    let hundredths = |ns: u64| (ns / SECOND, ns % SECOND / (SECOND / 100));
    let idle = (0..about.0.scheduler.cpus()).map(|cpu| about.0.scheduler.cpu_times(cpu).idle_ns).sum();
    let ((up, up_part), (idle, idle_part)) = (hundredths(quire_sync::hooks::now()), hundredths(idle));
    put!(out, "{up}.{up_part:02} {idle}.{idle_part:02}\n")
}

pub(super) fn version<M: Machine>(_about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "Linux version {RELEASE} (rustc) {VERSION}\n")
}

pub(super) fn vm_stat<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    let vm = about.0.vm;
    let [active, inactive, laundry] = queue_lengths(about);
    let now = [
        ("nr_free_pages", vm.frames().free()),
        ("nr_active", active),
        ("nr_inactive", inactive),
        ("nr_laundry", laundry),
        ("nr_dirty", laundry),
        ("nr_writeback", vm.io().writing()),
        ("nr_reserve", vm.frames().reserve()),
        ("nr_reserve_floor", vm.frames().floor()),
        // The lowest number of free frames so far. It is the whole reserve if memory was never low.
        ("nr_reserve_lowest", vm.frames().lowest().unwrap_or(vm.frames().reserve())),
    ];
    for (name, pages) in now {
        put!(out, "{name} {pages}\n")?;
    }
    let stats = vm.stats();
    put!(out, "nr_page_table_pages {}\n", stats.table_pages())?;
    let refused = stats.total(Event::FaultRefused);
    put!(out, "pgfault {}\npgmajfault {}\n", stats.faults() + refused, stats.faults_of(FaultKind::PagedIn))?;
    for kind in FaultKind::ALL {
        put!(out, "pgfault_{} {}\n", kind.name(), stats.faults_of(*kind))?;
    }
    for event in Event::ALL {
        put!(out, "{} {}\n", event.name(), stats.total(*event))?;
    }
    crate::kernel_memory::of_machine(about, out)
}
