//! The root directory of `/proc`.

use crate::about::{System, numbers};
use crate::node::{Directory, Each, Item, ItemKind, Short, Table, directory, number};
use crate::{devices, frames, ipc, machine, process, sys};
use quire_fs::NewAttr;
use quire_fs::generated::{Entry, Generated, GeneratedDirectory};
use quire_fs::{FileKind, FsError};
use quire_heap::{Vec, try_format};
use quire_linux_state::Linux;
use quire_linux_state::file::host::FileHost;
use quire_linux_state::machine::Machine;

/// Inode numbers: 2 and above for the root's files, 1,000 and above for `sys`. The inode numbers of a process's files
/// start at its id times 2^20.
const NUMBERS: u64 = 2;
/// Cookies of processes are above the cookies of the table's entries.
const PROCESSES: u64 = 1000;

struct Root<M: Machine> {
    names: Table<M, System<M>>,
}

struct Names<M>(core::marker::PhantomData<M>);

impl<M: Machine> Names<M> {
    const ITEMS: &'static [Item<M, System<M>>] = &[
        Item { name: "self", kind: ItemKind::Link(own, None) },
        Item { name: "thread-self", kind: ItemKind::Link(own_thread, None) },
        Item { name: "mounts", kind: ItemKind::Link(|_| Ok(Vec::try_copy(b"self/mounts")?), None) },
        Item { name: "net", kind: ItemKind::Link(|_| Ok(Vec::try_copy(b"self/net")?), None) },
        Item { name: "sys", kind: ItemKind::Directory(sys::directory) },
        Item { name: "sysvipc", kind: ItemKind::Directory(ipc::lists) },
        Item::file("buddyinfo", frames::blocks),
        Item::file("cmdline", machine::command_line),
        Item::file("cpuinfo", machine::cpu_info),
        // There are no block devices and no modules, so some of the files below are empty.
        Item::file("diskstats", |_, _| Ok(())),
        Item::file("filesystems", machine::file_systems),
        Item::file("interrupts", machine::interrupts),
        Item { name: "kpagecgroup", kind: ItemKind::Bound(0o400, frames::groups) },
        Item { name: "kpagecount", kind: ItemKind::Bound(0o400, frames::counts) },
        Item { name: "kpageflags", kind: ItemKind::Bound(0o400, frames::all_flags) },
        Item::file("loadavg", machine::load_average),
        Item::file("meminfo", machine::memory_info),
        Item::file("modules", |_, _| Ok(())),
        Item::file("partitions", |_, out| crate::node::put!(out, "major minor  #blocks  name\n\n")),
        Item::own("slabinfo", machine::slab_info),
        Item::file("stat", machine::stat),
        Item::file("swaps", machine::swaps),
        Item::file("uptime", machine::uptime),
        Item::file("version", machine::version),
        Item::file("vmstat", machine::vm_stat),
        Item::file("zoneinfo", frames::zones),
    ];
}

/// The root directory of `/proc`.
pub fn root<M: Machine>(linux: &'static Linux<M>) -> Directory<M> {
    let names = Table::of_root(System(linux), Names::<M>::ITEMS, NUMBERS);
    directory(Root { names })
}

/// The root directory of `/sys`.
pub fn sys_root<M: Machine>(linux: &'static Linux<M>) -> Directory<M> {
    devices::root(System(linux))
}

fn own<M: Machine>(about: &System<M>) -> Result<Vec<u8>, FsError> {
    Ok(try_format(format_args!("{}", about.0.current().process.pid))?)
}

fn own_thread<M: Machine>(about: &System<M>) -> Result<Vec<u8>, FsError> {
    let thread = about.0.current();
    Ok(try_format(format_args!("{}/task/{}", thread.process.pid, thread.tid()))?)
}

impl<M: Machine> GeneratedDirectory<FileHost<M>> for Root<M> {
    fn lookup(&self, name: &[u8]) -> Result<Option<Entry<FileHost<M>>>, FsError> {
        let Some(pid) = number(name) else { return self.names.lookup(name) };
        let Some(found) = self.names.about.0.ids.process_of_thread(pid) else { return Ok(None) };
        let c = found.credentials();
        let attr = NewAttr { mode: 0o555, uid: c.effective_user, gid: c.effective_group };
        let node = Generated::Directory(process::directory(found)?);
        Ok(Some(Entry { number: numbers(pid), attr, node }))
    }

    fn list(&self, after: u64, each: Each<'_>) -> Result<(), FsError> {
        if after < PROCESSES && !self.names.list_items(after, each) {
            return Ok(());
        }
        // `after` may be any number, because a program can seek to any offset.
        let mut next = u32::try_from(after.saturating_sub(PROCESSES)).ok().and_then(|pid| pid.checked_add(1));
        while let Some(found) = next.and_then(|from| self.names.about.0.ids.next_process(from)) {
            let pid = found.pid;
            let name = Short::new(format_args!("{pid}"));
            if !each(PROCESSES + u64::from(pid), name.bytes(), FileKind::Directory, numbers(pid)) {
                break;
            }
            next = pid.checked_add(1);
        }
        Ok(())
    }
}
