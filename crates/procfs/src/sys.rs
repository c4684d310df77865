//! `/proc/sys`: settings. Most of them can only be read.

mod net;

use crate::about::System;
use crate::ipc;
use crate::node::{Directory, Item, ItemKind, put};
use crate::setting::{number, setting, table};
use quire_fs::FsError;
use quire_fs::generated::Text;
use quire_linux::memory::commit;
use quire_linux::process::scheduling::class as scheduling_class;
use quire_linux::system::{POOL_BITS, RELEASE, VERSION};
use quire_linux_state::machine::{Machine, WatchSetting};
use quire_linux_state::system::settings::Setting;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_vm::check::Level;
use quire_vm::frame_census::Use;

/// The file of a setting that [`Setting`] defines.
macro_rules! number {
    ($name:literal, $setting:ident) => {
        Item { name: $name, kind: setting::<M, { Setting::$setting as usize }>() }
    };
}

struct Settings<M>(core::marker::PhantomData<M>);

impl<M: Machine> Settings<M> {
    const TOP: &'static [Item<M, System<M>>] = &[
        Item { name: "fs", kind: ItemKind::Directory(|a| table(a, Self::FS, 1100)) },
        Item { name: "kernel", kind: ItemKind::Directory(|a| table(a, Self::KERNEL, 1200)) },
        Item { name: "net", kind: ItemKind::Directory(net::directory) },
        Item { name: "vm", kind: ItemKind::Directory(|a| table(a, Self::VM, 1300)) },
    ];
    const FS: &'static [Item<M, System<M>>] = &[
        Item::file("aio-nr", |_, out| put!(out, "0\n")),
        number!("aio-max-nr", MostAsynchronous),
        Item { name: "epoll", kind: ItemKind::Directory(|a| table(a, Self::EPOLL, 1150)) },
        Item { name: "file-max", kind: ItemKind::Writable(file_max, set_file_max) },
        Item::file("file-nr", |a, out| {
            let (open, most) = a.0.files.vfs().host().open_files();
            put!(out, "{open}\t0\t{most}\n")
        }),
        Item { name: "mqueue", kind: ItemKind::Directory(ipc::posix_limits) },
        Item::file("inode-nr", |a, out| put!(out, "{}\t0\n", a.0.files.vfs().inodes())),
        number!("lease-break-time", LeaseTime),
        Item { name: "inotify", kind: ItemKind::Directory(|a| table(a, Self::INOTIFY, 1160)) },
        Item::file("nr_open", |_, out| put!(out, "1048576\n")),
        Item::file("overflowgid", |_, out| put!(out, "65534\n")),
        Item::file("overflowuid", |_, out| put!(out, "65534\n")),
        Item { name: "pipe-max-size", kind: ItemKind::Writable(pipe_max_size, set_pipe_max_size) },
        Item {
            name: "pipe-user-pages-hard",
            kind: ItemKind::Writable(pipe_pages::<M, true>, set_pipe_pages::<M, true>),
        },
        Item {
            name: "pipe-user-pages-soft",
            kind: ItemKind::Writable(pipe_pages::<M, false>, set_pipe_pages::<M, false>),
        },
        Item::file("protected_fifos", |_, out| put!(out, "0\n")),
        Item::file("protected_hardlinks", |_, out| put!(out, "1\n")),
        Item::file("protected_regular", |_, out| put!(out, "0\n")),
        Item::file("protected_symlinks", |_, out| put!(out, "1\n")),
        Item::file("suid_dumpable", |_, out| put!(out, "0\n")),
    ];
    const EPOLL: &'static [Item<M, System<M>>] =
        &[Item { name: "max_user_watches", kind: ItemKind::Writable(max_watches, set_max_watches) }];
    const INOTIFY: &'static [Item<M, System<M>>] = &[
        Item { name: "max_queued_events", kind: ItemKind::Writable(notify_limit::<M, 0>, set_notify_limit::<M, 0>) },
        Item { name: "max_user_instances", kind: ItemKind::Writable(notify_limit::<M, 1>, set_notify_limit::<M, 1>) },
        Item { name: "max_user_watches", kind: ItemKind::Writable(notify_limit::<M, 2>, set_notify_limit::<M, 2>) },
    ];
    const KERNEL: &'static [Item<M, System<M>>] = &[
        Item::file("arch", |_, out| put!(out, "x86_64\n")),
        Item::file("cap_last_cap", |_, out| put!(out, "40\n")),
        Item { name: "core_pattern", kind: ItemKind::Writable(core_pattern, set_core_pattern) },
        number!("core_uses_pid", CoreUsesPid),
        number!("dmesg_restrict", HideLog),
        Item { name: "domainname", kind: ItemKind::Writable(name::<M, 1>, set_name::<M, 1>) },
        Item { name: "hung_task_panic", kind: ItemKind::Writable(watch::<M, 4>, set_watch::<M, 4>) },
        Item { name: "hung_task_timeout_secs", kind: ItemKind::Writable(watch::<M, 3>, set_watch::<M, 3>) },
        Item { name: "hostname", kind: ItemKind::Writable(name::<M, 0>, set_name::<M, 0>) },
        number!("kptr_restrict", HidePointers),
        ipc::Settings::<M>::MSG_NEXT,
        ipc::Settings::<M>::MSGMAX,
        ipc::Settings::<M>::MSGMNB,
        ipc::Settings::<M>::MSGMNI,
        Item::file("ngroups_max", |_, out| put!(out, "65536\n")),
        Item::file("osrelease", |_, out| put!(out, "{RELEASE}\n")),
        Item::file("ostype", |_, out| put!(out, "Linux\n")),
        Item::file("overflowgid", |_, out| put!(out, "65534\n")),
        Item::file("overflowuid", |_, out| put!(out, "65534\n")),
        number!("perf_event_paranoid", HideEvents),
        Item { name: "pid_max", kind: ItemKind::Writable(pid_max, set_pid_max) },
        Item { name: "printk", kind: ItemKind::Writable(log_levels, set_log_levels) },
        Item { name: "pty", kind: ItemKind::Directory(|a| table(a, Self::PTY, 1270)) },
        Item { name: "random", kind: ItemKind::Directory(|a| table(a, Self::RANDOM, 1250)) },
        number!("randomize_va_space", Randomize),
        ipc::Settings::<M>::SEM,
        ipc::Settings::<M>::SEM_NEXT,
        ipc::Settings::<M>::SHM_NEXT,
        ipc::Settings::<M>::SHMALL,
        ipc::Settings::<M>::SHMMAX,
        ipc::Settings::<M>::SHMMNI,
        Item { name: "sched_rr_timeslice_ms", kind: realtime::<M, { Setting::RoundRobin as usize }>() },
        Item { name: "sched_rt_period_us", kind: realtime::<M, { Setting::RealTimePeriod as usize }>() },
        Item { name: "sched_rt_runtime_us", kind: realtime::<M, { Setting::RealTimeRuntime as usize }>() },
        Item { name: "softlockup_panic", kind: ItemKind::Writable(watch::<M, 2>, set_watch::<M, 2>) },
        Item::file("tainted", |_, out| put!(out, "0\n")),
        Item { name: "threads-max", kind: ItemKind::Writable(threads_max, set_threads_max) },
        Item::file("version", |_, out| put!(out, "{VERSION}\n")),
        Item { name: "watchdog", kind: ItemKind::Writable(watch::<M, 0>, set_watch::<M, 0>) },
        Item { name: "watchdog_thresh", kind: ItemKind::Writable(watch::<M, 1>, set_watch::<M, 1>) },
    ];
    const RANDOM: &'static [Item<M, System<M>>] = &[
        Item::file("boot_id", |a, out| put_uuid(a.0.boot_id, out)),
        Item::file("entropy_avail", |_, out| put!(out, "{POOL_BITS}\n")),
        Item::file("poolsize", |_, out| put!(out, "{POOL_BITS}\n")),
        Item::file("urandom_min_reseed_secs", |_, out| put!(out, "60\n")),
        Item::file("uuid", uuid),
        Item::file("write_wakeup_threshold", |_, out| put!(out, "256\n")),
    ];
    const PTY: &'static [Item<M, System<M>>] = &[
        Item { name: "max", kind: ItemKind::Writable(most_ptys, set_most_ptys) },
        Item::file("nr", |a, out| put!(out, "{}\n", a.0.files.ptys.count())),
    ];
    const VM: &'static [Item<M, System<M>>] = &[
        number!("dirty_background_ratio", DirtyBackground),
        number!("dirty_expire_centisecs", DirtyExpire),
        number!("dirty_ratio", DirtyRatio),
        number!("dirty_writeback_centisecs", DirtyWriteback),
        Item { name: "drop_caches", kind: ItemKind::WriteOnly(drop_caches) },
        Item::file("legacy_va_layout", |_, out| put!(out, "0\n")),
        Item { name: "max_map_count", kind: ItemKind::Writable(max_map_count, set_max_map_count) },
        Item::file("min_free_kbytes", |a, out| put!(out, "{}\n", a.0.vm.frames().reserve() * 4)),
        Item::file("mmap_min_addr", |_, out| put!(out, "4096\n")),
        Item::file("nr_hugepages", |_, out| put!(out, "0\n")),
        Item::file("nr_overcommit_hugepages", |_, out| put!(out, "0\n")),
        Item::file("oom_dump_tasks", |_, out| put!(out, "0\n")),
        Item::file("oom_kill_allocating_task", |_, out| put!(out, "0\n")),
        Item { name: "overcommit_kbytes", kind: overcommit::<M, { Setting::OvercommitKib as usize }>() },
        Item { name: "overcommit_memory", kind: overcommit::<M, { Setting::OvercommitMode as usize }>() },
        Item { name: "overcommit_ratio", kind: overcommit::<M, { Setting::OvercommitRatio as usize }>() },
        Item::file("page-cluster", |_, out| put!(out, "3\n")),
        Item::file("panic_on_oom", |_, out| put!(out, "0\n")),
        Item { name: "quire_check", kind: ItemKind::Writable(check_level, set_check_level) },
        Item::own("quire_frames", frames),
        #[cfg(debug_assertions)]
        Item { name: "quire_refuse", kind: ItemKind::Writable(refused, refuse) },
        number!("swappiness", Swappiness),
        number!("vfs_cache_pressure", CachePressure),
    ];
}

pub(super) fn directory<M: Machine>(about: &System<M>) -> Directory<M> {
    table(about, Settings::<M>::TOP, 1000)
}

fn uuid<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    let mut bytes = [0u8; 16];
    about.0.random.fill(&mut bytes);
    put_uuid(bytes, out)
}

/// Writes 16 random bytes as a UUID of version 4.
fn put_uuid(mut bytes: [u8; 16], out: &mut Text) -> Result<(), FsError> {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            put!(out, "-")?;
        }
        put!(out, "{byte:02x}")?;
    }
    put!(out, "\n")
}

/// Writes the uses of all frames, as lines `first count use` with hexadecimal numbers. For a slab, `use` includes the
/// kind and the size of its objects.
fn frames<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    about.0.vm.uses(|first, count, used| {
        put!(out, "{:x} {count:x} ", first.0)?;
        match used {
            Use::Descriptors => put!(out, "descriptors\n"),
            Use::Boot => put!(out, "boot\n"),
            Use::Table => put!(out, "table\n"),
            Use::Object => put!(out, "object\n"),
            Use::Kernel => put!(out, "kernel\n"),
            Use::Slab(label, size) => put!(out, "slab {label} {size}\n"),
        }
    })
}

/// Frees cached memory. Linux's values 1 to 3 all have this effect. The pages of files stay, because a file in memory
/// has no other copy. Of the per-CPU caches, only the caches of the caller's CPU are freed.
fn drop_caches<M: Machine>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    let text = core::str::from_utf8(bytes).map_err(|_| FsError::Invalid)?;
    match text.trim() {
        "1" | "2" | "3" => about.0.vm.give_back_kept(),
        _ => return Err(FsError::Invalid),
    }
    Ok(bytes.len())
}

fn core_pattern<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    let pattern = about.0.core_pattern.get();
    out.push(pattern.split(|byte| *byte == 0).next().unwrap_or(&[]))?;
    put!(out, "\n")
}

/// Sets the pattern to the first line of the written bytes.
fn set_core_pattern<M: Machine>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    let line = bytes.split(|byte| matches!(byte, 0 | b'\n')).next().unwrap_or(&[]);
    about.0.core_pattern.set(line).map_err(|_| FsError::Invalid)?;
    Ok(bytes.len())
}

/// The file of a setting of the commit limit. [`setting`] makes the other files. Here a write of the ratio clears the
/// number of KiB, and a write of that number clears the ratio.
const fn overcommit<M: Machine, const OF: usize>() -> ItemKind<M, System<M>> {
    ItemKind::Writable(
        |about, out| put!(out, "{}\n", about.0.settings.get(Setting::numbered(OF))),
        |about, bytes| {
            let text = core::str::from_utf8(bytes).map_err(|_| FsError::Invalid)?;
            let value = text.trim().parse::<i64>().map_err(|_| FsError::Invalid)?;
            commit::set(about.0, Setting::numbered(OF), value).map_err(|_| FsError::Invalid)?;
            Ok(bytes.len())
        },
    )
}

/// The file of a limit on real-time threads. Unlike with [`setting`], a write also changes the scheduler's bound.
const fn realtime<M: Machine, const OF: usize>() -> ItemKind<M, System<M>> {
    ItemKind::Writable(
        |about, out| {
            let bound = scheduling_class::bound(&about.0.settings);
            match Setting::numbered(OF) {
                Setting::RoundRobin => put!(out, "{}\n", bound.turn / 1_000_000),
                of => put!(out, "{}\n", about.0.settings.get(of)),
            }
        },
        |about, bytes| {
            let text = core::str::from_utf8(bytes).map_err(|_| FsError::Invalid)?;
            let value = text.trim().parse::<i64>().map_err(|_| FsError::Invalid)?;
            let (settings, of) = (&about.0.settings, Setting::numbered(OF));
            // As on Linux, the runtime is not longer than the period.
            let fits = match of {
                Setting::RealTimeRuntime => value <= settings.get(Setting::RealTimePeriod),
                Setting::RealTimePeriod => value >= settings.get(Setting::RealTimeRuntime),
                _ => true,
            };
            if !fits {
                return Err(FsError::Invalid);
            }
            settings.set(of, value).map_err(|_| FsError::Invalid)?;
            about.0.scheduler.set_bound(scheduling_class::bound(settings));
            Ok(bytes.len())
        },
    )
}

/// Writes the host name (`OF` is 0) or the domain name (1).
fn name<M: Machine, const OF: usize>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    let name = about.0.host_name.get()[OF];
    out.push(name.split(|byte| *byte == 0).next().unwrap_or(&[]))?;
    put!(out, "\n")
}

/// Sets the host name or the domain name to the first line of the written bytes.
fn set_name<M: Machine, const OF: usize>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    let line = bytes.split(|byte| matches!(byte, 0 | b'\n')).next().unwrap_or(&[]);
    about.0.host_name.set(OF, quire_linux_state::system::host_name::name(line));
    Ok(bytes.len())
}

fn log_levels<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    let [console, message, least, first] = about.0.log.levels();
    put!(out, "{console}\t{message}\t{least}\t{first}\n")
}

fn set_log_levels<M: Machine>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    let text = core::str::from_utf8(bytes).map_err(|_| FsError::Invalid)?;
    for (at, word) in text.split_whitespace().enumerate().take(4) {
        about.0.log.set_level(at, word.parse().map_err(|_| FsError::Invalid)?);
    }
    Ok(bytes.len())
}

fn pid_max<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{}\n", about.0.pid_max())
}

fn set_pid_max<M: Machine>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    about.0.set_pid_max(number(bytes)?).map_err(|_| FsError::Invalid)?;
    Ok(bytes.len())
}

fn threads_max<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{}\n", about.0.threads_max.load(Ordering::Relaxed))
}

fn set_threads_max<M: Machine>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    about.0.set_threads_max(number(bytes)?).map_err(|_| FsError::Invalid)?;
    Ok(bytes.len())
}

fn file_max<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{}\n", about.0.files.vfs().host().open_files().1)
}

fn set_file_max<M: Machine>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    about.0.files.vfs().host().set_most_files(number(bytes)?);
    Ok(bytes.len())
}

fn max_watches<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{}\n", about.0.files.most_watches())
}

fn set_max_watches<M: Machine>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    about.0.files.set_most_watches(number(bytes)?);
    Ok(bytes.len())
}

fn limit_of_notifiers<M: Machine>(about: &System<M>, which: usize) -> &AtomicU64 {
    let limits = &about.0.files.notify_limits;
    [&limits.queued, &limits.instances, &limits.watches][which]
}

fn notify_limit<M: Machine, const WHICH: usize>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{}\n", limit_of_notifiers(about, WHICH).load(Ordering::Relaxed))
}

fn set_notify_limit<M: Machine, const WHICH: usize>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    let most = number(bytes)?;
    if most > i32::MAX as u64 {
        return Err(FsError::Invalid);
    }
    limit_of_notifiers(about, WHICH).store(most, Ordering::Relaxed);
    Ok(bytes.len())
}

fn most_ptys<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{}\n", about.0.files.ptys.most())
}

fn set_most_ptys<M: Machine>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    about.0.files.ptys.set_most(number(bytes)?).map_err(|_| FsError::Invalid)?;
    Ok(bytes.len())
}

/// Writes when the memory core checks its structures: 0 never, 1 at some releases of locks (the cost is amortised), 2
/// at each release.
fn check_level<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{}\n", about.0.vm.check_level() as u8)
}

/// Writes the result of the reader's last system call with a refused allocation: its number of allocations, and whether
/// one was refused.
#[cfg(debug_assertions)]
fn refused<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    let (made, refused) = about.0.current().refusals.last();
    put!(out, "{made} {}\n", u8::from(refused))
}

/// Sets the number of the allocation to refuse in the writer's next system call.
#[cfg(debug_assertions)]
fn refuse<M: Machine>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    let text = core::str::from_utf8(bytes).map_err(|_| FsError::Invalid)?;
    about.0.current().refusals.set_next(text.trim().parse::<u32>().map_err(|_| FsError::Invalid)?.into());
    Ok(bytes.len())
}

fn set_check_level<M: Machine>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    let text = core::str::from_utf8(bytes).map_err(|_| FsError::Invalid)?;
    let number = text.trim().parse::<u8>().map_err(|_| FsError::Invalid)?;
    about.0.vm.set_check_level(Level::from_number(number).ok_or(FsError::Invalid)?);
    Ok(bytes.len())
}

/// Writes a watchdog setting. `OF` is its index in [`WatchSetting::ALL`].
fn watch<M: Machine, const OF: usize>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{}\n", about.0.machine.watch_setting(WatchSetting::ALL[OF]))
}

fn set_watch<M: Machine, const OF: usize>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    let text = core::str::from_utf8(bytes).map_err(|_| FsError::Invalid)?;
    let value = text.trim().parse::<u32>().map_err(|_| FsError::Invalid)?;
    match about.0.machine.set_watch(WatchSetting::ALL[OF], value) {
        true => Ok(bytes.len()),
        false => Err(FsError::Invalid),
    }
}

fn max_map_count<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{}\n", about.0.max_map_count())
}

fn set_max_map_count<M: Machine>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    let text = core::str::from_utf8(bytes).map_err(|_| FsError::Invalid)?;
    let value = text.trim().parse::<u32>().map_err(|_| FsError::Invalid)?;
    quire_linux::memory::map::set_max_map_count(about.0, u64::from(value));
    Ok(bytes.len())
}

fn pipe_max_size<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{}\n", about.0.pipes.largest())
}

fn set_pipe_max_size<M: Machine>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    // As on Linux, only the low 32 bits of the number are used.
    about.0.pipes.set_largest(number(bytes)? as u32).map_err(|_| FsError::Invalid)?;
    Ok(bytes.len())
}

/// The hard or the soft limit on the pages of a user's pipes.
fn pages_of<M: Machine, const HARD: bool>(about: &System<M>) -> &AtomicU64 {
    let limits = &about.0.pipes;
    if HARD { limits.hard() } else { limits.soft() }
}

fn pipe_pages<M: Machine, const HARD: bool>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{}\n", pages_of::<M, HARD>(about).load(Ordering::Relaxed))
}

fn set_pipe_pages<M: Machine, const HARD: bool>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    pages_of::<M, HARD>(about).store(number(bytes)?, Ordering::Relaxed);
    Ok(bytes.len())
}
