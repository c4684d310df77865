//! `/sys`: CPUs, memory domains and large pages, for C libraries, runtimes and `lscpu`. All CPUs are shown as cores of
//! one package.

use crate::about::System;
use crate::node::{Directory, Each, Item, ItemKind, Short, Table, directory, number, put};
use quire_fs::NewAttr;
use quire_fs::generated::{Entry, Generated, GeneratedDirectory, Text};
use quire_fs::{FileKind, FsError};
use quire_linux_state::file::host::FileHost;
use quire_linux_state::machine::Machine;
use quire_sync::cpuset::{CpuMask, MAX_CPUS};
use quire_vm::PAGE_SIZE;

type Written = Result<(), FsError>;

/// One CPU or one memory domain, by number.
struct One<M: Machine>(System<M>, usize);

impl<M: Machine> Clone for One<M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Machine> Copy for One<M> {}

impl<M: Machine> One<M> {
    fn package(&self) -> Set {
        Set { mask: CpuMask::first(cpus(&self.0)), width: cpus(&self.0) }
    }

    fn itself(&self) -> Set {
        let mut mask = CpuMask::default();
        mask.insert(self.1);
        Set { mask, width: cpus(&self.0) }
    }

    /// The CPUs near this memory domain.
    fn near(&self) -> Set {
        let linux = self.0.0;
        let mut mask = CpuMask::default();
        (0..cpus(&self.0))
            .filter(|cpu| linux.machine.domain_of_cpu(*cpu) % linux.vm.frames().domains() == self.1)
            .for_each(|cpu| mask.insert(cpu));
        Set { mask, width: cpus(&self.0) }
    }
}

fn cpus<M: Machine>(about: &System<M>) -> usize {
    about.0.scheduler.cpus()
}

fn domains<M: Machine>(about: &System<M>) -> usize {
    about.0.vm.frames().domains()
}

/// Writes the numbers below `count` as a range.
fn all(out: &mut Text, count: usize) -> Written {
    if count > 1 { put!(out, "0-{}\n", count - 1) } else { put!(out, "0\n") }
}

/// A set of CPUs of a machine with `width` CPUs.
struct Set {
    mask: CpuMask,
    width: usize,
}

impl Set {
    fn has(&self, cpu: usize) -> bool {
        self.mask.words().get(cpu / 64).is_some_and(|word| word & 1 << (cpu % 64) != 0)
    }

    /// Writes the set as ranges, such as `0-3,8`.
    fn list(&self, out: &mut Text) -> Written {
        let (mut at, mut before) = (0, "");
        while at < self.width {
            let first = at;
            while at < self.width && self.has(at) {
                at += 1;
            }
            match at - first {
                0 => {
                    at += 1;
                    continue;
                }
                1 => put!(out, "{before}{first}")?,
                _ => put!(out, "{before}{first}-{}", at - 1)?,
            }
            before = ",";
        }
        put!(out, "\n")
    }

    /// Writes the set as one of Linux's bit masks: groups of 32 bits in hexadecimal, the highest first. The number of
    /// digits depends on the number of CPUs.
    fn map(&self, out: &mut Text) -> Written {
        let groups = self.width.div_ceil(32);
        for group in (0..groups).rev() {
            let word = self.mask.words().get(group / 2).copied().unwrap_or(0);
            let bits = (word >> (group % 2 * 32)) as u32;
            let digits = match group == groups - 1 {
                true => (self.width - group * 32).div_ceil(4),
                false => 8,
            };
            put!(out, "{bits:0digits$x}{}", if group == 0 { "\n" } else { "," })?;
        }
        Ok(())
    }
}

/// A directory with the entries of a table, and a directory for each number below `count`. The name of such a directory
/// is `prefix` followed by its number.
struct Numbered<M: Machine> {
    names: Table<M, System<M>>,
    prefix: &'static str,
    count: usize,
    inner: &'static [Item<M, One<M>>],
}

/// Cookies of numbered directories are above the cookies of the table's entries.
const NUMBERED: u64 = 1000;
/// The number of inode numbers that are reserved for a numbered directory and its entries.
const STEP: u64 = 100;

impl<M: Machine> Numbered<M> {
    /// The inode number of directory `n`. The inode numbers of its entries follow.
    fn at(&self, n: usize) -> u64 {
        self.names.numbers + STEP * (1 + n as u64)
    }
}

impl<M: Machine> GeneratedDirectory<FileHost<M>> for Numbered<M> {
    fn lookup(&self, name: &[u8]) -> Result<Option<Entry<FileHost<M>>>, FsError> {
        let Some(n) = name.strip_prefix(self.prefix.as_bytes()).and_then(number) else {
            return self.names.lookup(name);
        };
        let Some(n) = usize::try_from(n).ok().filter(|n| *n < self.count) else { return Ok(None) };
        let inside = one(One(self.names.about, n), self.inner, self.at(n) + 1)?;
        let attr = NewAttr { mode: 0o555, uid: 0, gid: 0 };
        Ok(Some(Entry { number: self.at(n), attr, node: Generated::Directory(inside) }))
    }

    fn list(&self, after: u64, each: Each<'_>) -> Result<(), FsError> {
        if after < NUMBERED && !self.names.list_items(after, each) {
            return Ok(());
        }
        // The cookie of directory `n` is `NUMBERED + 1 + n`, so the listing continues with the next directory.
        let first = usize::try_from(after.saturating_sub(NUMBERED)).unwrap_or(usize::MAX);
        for n in first..self.count {
            let name = Short::new(format_args!("{}{n}", self.prefix));
            if !each(NUMBERED + 1 + n as u64, name.bytes(), FileKind::Directory, self.at(n)) {
                break;
            }
        }
        Ok(())
    }
}

fn table<M: Machine>(about: &System<M>, items: &'static [Item<M, System<M>>], numbers: u64) -> Directory<M> {
    directory(Table::of_root(*about, items, numbers))
}

fn one<M: Machine>(about: One<M>, items: &'static [Item<M, One<M>>], numbers: u64) -> Directory<M> {
    directory(Table::of_root(about, items, numbers))
}

struct Names<M>(core::marker::PhantomData<M>);

impl<M: Machine> Names<M> {
    const TOP: &'static [Item<M, System<M>>] = &[
        Item { name: "devices", kind: ItemKind::Directory(|a| table(a, Self::DEVICES, 100)) },
        Item { name: "kernel", kind: ItemKind::Directory(|a| table(a, Self::KERNEL, 200)) },
    ];
    const DEVICES: &'static [Item<M, System<M>>] =
        &[Item { name: "system", kind: ItemKind::Directory(|a| table(a, Self::SYSTEM, 150)) }];
    const SYSTEM: &'static [Item<M, System<M>>] = &[
        Item {
            name: "cpu",
            kind: ItemKind::Directory(|a| {
                let names = Table::of_root(*a, Self::CPUS, 1_000_000);
                directory(Numbered { names, prefix: "cpu", count: cpus(a), inner: Self::CPU })
            }),
        },
        Item {
            name: "node",
            kind: ItemKind::Directory(|a| {
                let names = Table::of_root(*a, Self::NODES, 2_000_000);
                directory(Numbered { names, prefix: "node", count: domains(a), inner: Self::NODE })
            }),
        },
    ];
    const CPUS: &'static [Item<M, System<M>>] = &[
        Item::file("isolated", |_, out| put!(out, "\n")),
        Item::file("kernel_max", |_, out| put!(out, "{}\n", MAX_CPUS - 1)),
        Item::file("offline", |_, out| put!(out, "\n")),
        Item::file("online", |a, out| all(out, cpus(a))),
        Item::file("possible", |a, out| all(out, cpus(a))),
        Item::file("present", |a, out| all(out, cpus(a))),
    ];
    const CPU: &'static [Item<M, One<M>>] = &[Item {
        name: "topology",
        kind: ItemKind::Directory(|cpu| one(*cpu, Self::TOPOLOGY, topology_numbers(cpu.1))),
    }];
    const TOPOLOGY: &'static [Item<M, One<M>>] = &[
        Item::file("core_cpus", |cpu, out| cpu.itself().map(out)),
        Item::file("core_cpus_list", |cpu, out| cpu.itself().list(out)),
        Item::file("core_id", |cpu, out| put!(out, "{}\n", cpu.1)),
        Item::file("core_siblings", |cpu, out| cpu.package().map(out)),
        Item::file("core_siblings_list", |cpu, out| cpu.package().list(out)),
        Item::file("die_cpus", |cpu, out| cpu.package().map(out)),
        Item::file("die_cpus_list", |cpu, out| cpu.package().list(out)),
        Item::file("die_id", |_, out| put!(out, "0\n")),
        Item::file("package_cpus", |cpu, out| cpu.package().map(out)),
        Item::file("package_cpus_list", |cpu, out| cpu.package().list(out)),
        Item::file("physical_package_id", |_, out| put!(out, "0\n")),
        Item::file("thread_siblings", |cpu, out| cpu.itself().map(out)),
        Item::file("thread_siblings_list", |cpu, out| cpu.itself().list(out)),
    ];
    const NODES: &'static [Item<M, System<M>>] = &[
        Item::file("has_cpu", has_cpu),
        Item::file("has_memory", |a, out| all(out, domains(a))),
        Item::file("has_normal_memory", |a, out| all(out, domains(a))),
        Item::file("online", |a, out| all(out, domains(a))),
        Item::file("possible", |a, out| all(out, domains(a))),
    ];
    const NODE: &'static [Item<M, One<M>>] = &[
        Item::file("cpulist", |node, out| node.near().list(out)),
        Item::file("cpumap", |node, out| node.near().map(out)),
        Item::file("distance", distance),
        Item::file("meminfo", memory),
    ];
    const KERNEL: &'static [Item<M, System<M>>] =
        &[Item { name: "mm", kind: ItemKind::Directory(|a| table(a, Self::MEMORY, 250)) }];
    const MEMORY: &'static [Item<M, System<M>>] =
        &[Item { name: "transparent_hugepage", kind: ItemKind::Directory(|a| table(a, Self::HUGE, 300)) }];
    const HUGE: &'static [Item<M, System<M>>] = &[
        Item::file("defrag", |_, out| put!(out, "always defer defer+madvise madvise [never]\n")),
        Item::file("enabled", |_, out| put!(out, "always madvise [never]\n")),
        Item::file("hpage_pmd_size", |_, out| put!(out, "2097152\n")),
        Item::file("shmem_enabled", |_, out| put!(out, "always within_size advise [never] deny force\n")),
        Item::file("use_zero_page", |_, out| put!(out, "0\n")),
    ];
}

/// The first inode number for the entries of `cpuN/topology`: in the middle of the numbers that are reserved for
/// `cpuN`.
fn topology_numbers(cpu: usize) -> u64 {
    1_000_000 + STEP * (1 + cpu as u64) + STEP / 2
}

/// The root directory of `/sys`.
pub(super) fn root<M: Machine>(about: System<M>) -> Directory<M> {
    table(&about, Names::<M>::TOP, 2)
}

/// Writes the set of memory domains that have a CPU near them.
fn has_cpu<M: Machine>(about: &System<M>, out: &mut Text) -> Written {
    let mut mask = CpuMask::default();
    let with = |domain: &usize| One(*about, *domain).near().mask.words().iter().any(|word| *word != 0);
    (0..domains(about)).filter(with).for_each(|domain| mask.insert(domain));
    Set { mask, width: domains(about) }.list(out)
}

/// Writes the distances of a domain: 10 to itself and 20 to others. Linux shows these if the firmware has no table of
/// distances; Quire never reads that table.
fn distance<M: Machine>(node: &One<M>, out: &mut Text) -> Written {
    for other in 0..domains(&node.0) {
        put!(out, "{}{}", if other == 0 { "" } else { " " }, if other == node.1 { 10 } else { 20 })?;
    }
    put!(out, "\n")
}

fn memory<M: Machine>(node: &One<M>, out: &mut Text) -> Written {
    let frames = node.0.0.vm.frames();
    let (total, free) = (frames.total_in(node.1), frames.free_in(node.1).min(frames.total_in(node.1)));
    for (name, pages) in [("MemTotal", total), ("MemFree", free), ("MemUsed", total - free)] {
        let fill = 14usize.saturating_sub(name.len());
        put!(out, "Node {} {name}:{:fill$} {:>8} kB\n", node.1, "", pages * (PAGE_SIZE / 1024))?;
    }
    Ok(())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_fs::SliceSink;

    fn shown(write: impl FnOnce(&mut Text) -> Written) -> String {
        let mut text = Text::new();
        write(&mut text).expect("memory");
        let mut bytes = vec![0; text.len()];
        text.read(0, &mut SliceSink::new(&mut bytes)).expect("a slice");
        String::from_utf8(bytes).expect("ASCII")
    }

    fn set(width: usize, of: &[usize]) -> Set {
        let mut mask = CpuMask::default();
        of.iter().for_each(|cpu| mask.insert(*cpu));
        Set { mask, width }
    }

    #[test]
    fn sets_are_written_as_linux_writes_them() {
        let cases: [(usize, &[usize], &str, &str); 6] = [
            (1, &[0], "0\n", "1\n"),
            (4, &[0, 1, 3], "0-1,3\n", "b\n"),
            (5, &[], "\n", "00\n"),
            (8, &[7], "7\n", "80\n"),
            (33, &[0, 32], "0,32\n", "1,00000001\n"),
            (64, &[30, 31, 32, 63], "30-32,63\n", "80000001,c0000000\n"),
        ];
        for (width, of, list, map) in cases {
            let set = set(width, of);
            assert_eq!(
                (shown(|out| set.list(out)).as_str(), shown(|out| set.map(out)).as_str()),
                (list, map),
                "{of:?}"
            );
        }
        assert_eq!((shown(|out| all(out, 1)), shown(|out| all(out, 3))), ("0\n".into(), "0-2\n".into()));
    }
}
