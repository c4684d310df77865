//! The files about the pages of a process: `smaps`, `smaps_rollup`, `numa_maps`, `pagemap` and `mem`.

use crate::about::Task;
use crate::frames::words;
use crate::maps;
use crate::node::{parts, put};
use quire_fs::generated::{GeneratedFile, Text};
use quire_fs::{FsError, ROOT_DEVICE, Sink, Source};
use quire_heap::{Arc, Weak, unsize};
use quire_linux_state::machine::Machine;
use quire_linux_state::memory::{AddressSpace, Foreign};
use quire_linux_state::process::credentials::capabilities::cap;
use quire_vm::map::{EntryInfo, Flags, PagePlace, Tag};
use quire_vm::{FaultError, PAGE_SIZE, Prot};

type Written = Result<(), FsError>;

/// The bytes of the pages in a range, by kind. A page that several processes map counts fully in each of them, because
/// the kernel does not record how many processes share a page.
#[derive(Clone, Copy, Default)]
struct Sums {
    size: u64,
    resident: u64,
    shared_clean: u64,
    shared_dirty: u64,
    private_clean: u64,
    private_dirty: u64,
    referenced: u64,
    anonymous: u64,
    swapped: u64,
    locked: u64,
}

impl Sums {
    /// The sums over the mapping `entry`.
    fn of<M: Machine>(memory: &Foreign<M>, entry: &EntryInfo<M>) -> Result<Sums, FsError> {
        let mut sums = Sums { size: entry.range.len(), ..Sums::default() };
        let (mut looked, mut result) = (0u64, Ok(()));
        memory.each_page(entry.range, &mut |_, page| {
            sums.resident += PAGE_SIZE;
            let kind = match (page.alone, page.dirty) {
                (false, false) => &mut sums.shared_clean,
                (false, true) => &mut sums.shared_dirty,
                (true, false) => &mut sums.private_clean,
                (true, true) => &mut sums.private_dirty,
            };
            *kind += PAGE_SIZE;
            sums.referenced += if page.accessed { PAGE_SIZE } else { 0 };
            sums.anonymous += if page.shared { 0 } else { PAGE_SIZE };
            result = look(memory, &mut looked);
            result.is_ok()
        });
        result?;
        sums.swapped = memory.swapped_in(entry.range) * PAGE_SIZE;
        if entry.attributes.flags.contains(Flags::WIRED) {
            sums.locked = sums.resident;
        }
        Ok(sums)
    }

    fn add(&mut self, more: Sums) {
        let Sums { size, resident, shared_clean, shared_dirty, private_clean, private_dirty, .. } = more;
        self.size += size;
        self.resident += resident;
        self.shared_clean += shared_clean;
        self.shared_dirty += shared_dirty;
        self.private_clean += private_clean;
        self.private_dirty += private_dirty;
        self.referenced += more.referenced;
        self.anonymous += more.anonymous;
        self.swapped += more.swapped;
        self.locked += more.locked;
    }

    fn put(&self, out: &mut Text) -> Written {
        let kib = |bytes: u64| bytes / 1024;
        let dirty = self.private_dirty + self.shared_dirty;
        parts!(out, "Rss:            ", kib kib(self.resident), "Pss:            ", kib kib(self.resident))?;
        parts!(out, "Pss_Dirty:      ", kib kib(dirty), "Shared_Clean:   ", kib kib(self.shared_clean))?;
        parts!(out, "Shared_Dirty:   ", kib kib(self.shared_dirty))?;
        parts!(out, "Private_Clean:  ", kib kib(self.private_clean))?;
        parts!(out, "Private_Dirty:  ", kib kib(self.private_dirty))?;
        parts!(out, "Referenced:     ", kib kib(self.referenced), "Anonymous:      ", kib kib(self.anonymous))?;
        out.push(NEVER)?;
        parts!(out, "Swap:           ", kib kib(self.swapped), "SwapPss:        ", kib kib(self.swapped))?;
        parts!(out, "Locked:         ", kib kib(self.locked))
    }
}

/// The rows that are always zero.
const NEVER: &[u8] = b"KSM:                   0 kB
LazyFree:              0 kB
AnonHugePages:         0 kB
ShmemPmdMapped:        0 kB
FilePmdMapped:         0 kB
Shared_Hugetlb:        0 kB
Private_Hugetlb:       0 kB
";

/// Ends a long walk if the reading thread was killed. Each step of the walk calls this function, and `steps` counts the
/// calls. Each 64th call (`OFTEN`) checks the thread.
fn look<M: Machine>(memory: &Foreign<M>, steps: &mut u64) -> Result<(), FsError> {
    /// The number of steps between two checks. A step takes a few microseconds at most.
    const OFTEN: u64 = 64;
    *steps += 1;
    if steps.is_multiple_of(OFTEN) && memory.is_reader_killed() { Err(FsError::Interrupted) } else { Ok(()) }
}

/// The numbers of resident pages of a process, by kind.
#[derive(Clone, Copy, Default)]
pub(super) struct Resident {
    pub anonymous: u64,
    /// Pages of files on the root file system, and pages of the kernel.
    pub files: u64,
    /// Pages of all other memory that processes can share.
    pub shared: u64,
}

impl Resident {
    /// Splits the number of resident pages, `all`, by kind. Only mappings of files and of shared memory are searched, and
    /// page by page only private file mappings with copied pages. The rest is anonymous.
    pub fn of<M: Machine>(memory: &Foreign<M>, all: u64) -> Resident {
        let mut counts = Resident::default();
        let mut steps = 0;
        memory.entries_of_objects(&mut |entry| {
            if look(memory, &mut steps).is_err() {
                return false;
            }
            let leaves = memory.leaves_in(entry.range);
            let shared = entry.attributes.flags.contains(Flags::SHARED);
            let copies = match &entry.object {
                None => leaves,
                Some(_) if shared || !entry.copied => 0,
                Some(_) => memory.mapped_copies_in(entry.range).min(leaves),
            };
            // The kernel's own pages in a private mapping (vDSO) belong to no file system. They count as pages of a
            // file.
            let others = match entry.ident().0 {
                ROOT_DEVICE => &mut counts.files,
                0 if !shared => &mut counts.files,
                _ => &mut counts.shared,
            };
            *others += leaves - copies;
            true
        });
        counts.anonymous = all.saturating_sub(counts.files + counts.shared);
        counts
    }

    pub fn all(&self) -> u64 {
        self.anonymous + self.files + self.shared
    }
}

/// `smaps`: the lines of `maps`, each followed by the sums for its mapping.
pub(super) fn smaps<M: Machine>(
    memory: &Foreign<M>,
    from: u64,
    enough: usize,
    out: &mut Text,
) -> Result<Option<u64>, FsError> {
    maps::each(memory, from, enough, out, &mut |entry, out| {
        let sums = Sums::of(memory, entry)?;
        parts!(out, "Size:           ", kib sums.size / 1024, "KernelPageSize: ", kib PAGE_SIZE / 1024)?;
        parts!(out, "MMUPageSize:    ", kib PAGE_SIZE / 1024)?;
        sums.put(out)?;
        out.push(b"THPeligible:           0\nVmFlags:")?;
        let a = entry.attributes;
        let flags = [
            (a.prot.contains(Prot::READ), "rd"),
            (a.prot.contains(Prot::WRITE), "wr"),
            (a.prot.contains(Prot::EXEC), "ex"),
            (a.flags.contains(Flags::SHARED), "sh"),
            (a.max_prot.contains(Prot::READ), "mr"),
            (a.max_prot.contains(Prot::WRITE), "mw"),
            (a.max_prot.contains(Prot::EXEC), "me"),
            (a.flags.contains(Flags::SHARED) && a.max_prot.contains(Prot::WRITE), "ms"),
            (a.flags.contains(Flags::GROWS_DOWN), "gd"),
            (a.flags.contains(Flags::WIRED), "lo"),
            (a.flags.contains(Flags::UNRESERVED), "nr"),
            (a.flags.contains(Flags::DONT_FORK), "dc"),
            (a.flags.contains(Flags::WIPE_ON_FORK), "wf"),
            (a.flags.contains(Flags::DONT_DUMP), "dd"),
        ];
        for (_, name) in flags.into_iter().filter(|(is, _)| *is) {
            out.push(b" ")?;
            out.push(name.as_bytes())?;
        }
        out.push(b" \n")
    })
}

/// `smaps_rollup`: the sums over all mappings.
pub(super) fn rollup<M: Machine>(memory: &Foreign<M>, out: &mut Text) -> Written {
    let (mut first, mut last, mut sums) = (0, 0, Sums::default());
    let (mut counted, mut looked) = (Ok(()), 0);
    memory.entries(0, &mut |entry| {
        if first == 0 {
            first = entry.range.start;
        }
        last = entry.range.end;
        counted = look(memory, &mut looked).and_then(|()| Sums::of(memory, entry)).map(|more| sums.add(more));
        counted.is_ok()
    });
    counted?;
    put!(out, "{first:x}-{last:x} ---p 00000000 00:00 0 [rollup]\n")?;
    sums.put(out)
}

/// `numa_maps`: the pages of each mapping. All pages are shown in the first memory domain, because programs can set no
/// policy.
pub(super) fn numa_maps<M: Machine>(
    memory: &Foreign<M>,
    from: u64,
    enough: usize,
    out: &mut Text,
) -> Result<Option<u64>, FsError> {
    maps::records(memory, from, enough, out, |entry, out| domain_line(memory, entry, out))
}

/// Writes the line of one mapping in `numa_maps`.
fn domain_line<M: Machine>(memory: &Foreign<M>, entry: &EntryInfo<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{:x} default", entry.range.start)?;
    match entry.tag() {
        Tag::Heap => put!(out, " heap")?,
        Tag::Stack => put!(out, " stack")?,
        Tag::None if entry.ident().1 != 0 => {
            put!(out, " file=")?;
            entry.name(out).map_err(|_| FsError::OutOfMemory)?;
        }
        _ => {}
    }
    let sums = Sums::of(memory, entry)?;
    let (pages, anonymous) = (sums.resident / PAGE_SIZE, sums.anonymous / PAGE_SIZE);
    let dirty = (sums.private_dirty + sums.shared_dirty) / PAGE_SIZE;
    if anonymous > 0 {
        put!(out, " anon={anonymous}")?;
    }
    if dirty > 0 {
        put!(out, " dirty={dirty}")?;
    }
    if pages > anonymous {
        put!(out, " mapped={pages}")?;
    }
    if pages > 0 {
        put!(out, " N0={pages} kernelpagesize_kB=4")?;
    }
    put!(out, "\n")
}

/// A file about memory to which access was granted. It is read and written at any offset.
struct Bound<M: Machine> {
    memory: Option<Weak<AddressSpace<M>>>,
    kind: Kind,
}

enum Kind {
    /// `mem`: the bytes of the memory itself. As on Linux, the rights of mappings do not count, so that a debugger can
    /// set breakpoints in code.
    Bytes,
    /// `pagemap`: 8 bytes for each page. Frame numbers are shown only if a privileged thread opened the file.
    Pages { frames: bool },
}

/// The bits of an entry of `pagemap`.
const ALONE: u64 = 1 << 56;
const SHARED: u64 = 1 << 61;
const SWAPPED: u64 = 1 << 62;
const PRESENT: u64 = 1 << 63;
/// The page may have changed since 4 was written to `clear_refs` (*soft-dirty*). Set for every page, because a PTE has
/// no bit that identifies unchanged pages. So a program that saves changed pages saves unchanged pages too, but misses
/// none.
const MAY_HAVE_CHANGED: u64 = 1 << 55;
/// The most bytes of `mem` that are copied at a time. The buffer is on the kernel's stack, where a page fault also
/// needs room.
const PIECE: usize = 512;

impl<M: Machine> Bound<M> {
    fn entry(memory: &Foreign<M>, at: u64, frames: bool) -> u64 {
        let Some(page) = memory.page_at(at) else { return 0 };
        let place = match page.place {
            PagePlace::Frame(pfn) => PRESENT | if frames { pfn.0 } else { 0 },
            PagePlace::Swap => SWAPPED,
        };
        place | MAY_HAVE_CHANGED | if page.alone { ALONE } else { 0 } | if page.shared { SHARED } else { 0 }
    }

    fn read_pages(memory: &Foreign<M>, offset: u64, sink: &mut dyn Sink, frames: bool) -> Result<usize, FsError> {
        words(offset, sink, |page| {
            let at = page.checked_mul(PAGE_SIZE).filter(|at| *at < quire_linux_state::user::USER_END)?;
            Some(Self::entry(memory, at, frames))
        })
    }

    fn read_bytes(memory: &Foreign<M>, offset: u64, sink: &mut dyn Sink) -> Result<usize, FsError> {
        let mut piece = [0; PIECE];
        let mut done = 0;
        while sink.room() > 0 {
            let want = sink.room().min(PIECE);
            let put = memory.force_read(offset + done as u64, &mut piece[..want]).map_err(fault);
            match put.and_then(|got| Ok((got, sink.put(&piece[..got])?))) {
                Ok((_, n)) => {
                    done += n;
                    if n < want {
                        break;
                    }
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn write_bytes(memory: &Foreign<M>, offset: u64, source: &mut dyn Source) -> Result<usize, FsError> {
        let mut piece = [0; PIECE];
        let mut done = 0;
        while source.left() > 0 {
            let want = source.left().min(PIECE);
            let taken = source.take(&mut piece[..want]);
            let stored = taken.and_then(|n| memory.force_store(offset + done as u64, &piece[..n]).map_err(fault));
            match stored {
                Ok(n) => {
                    done += n;
                    if n < want {
                        break;
                    }
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}

/// As on Linux, a byte that cannot be read or written is an I/O error.
fn fault(e: FaultError) -> FsError {
    if e == FaultError::OutOfMemory { FsError::OutOfMemory } else { FsError::Io }
}

impl<M: Machine> GeneratedFile for Bound<M> {
    fn text(&self, _out: &mut Text) -> Written {
        Err(FsError::Invalid)
    }

    fn read_at(&self, offset: u64, sink: &mut dyn Sink) -> Option<Result<usize, FsError>> {
        // The file is empty if the process has ended.
        let Some(memory) = self.memory.as_ref().and_then(Foreign::again) else { return Some(Ok(0)) };
        Some(match self.kind {
            Kind::Bytes => Self::read_bytes(&memory, offset, sink),
            Kind::Pages { frames } => Self::read_pages(&memory, offset, sink, frames),
        })
    }

    fn write_at(&self, offset: u64, source: &mut dyn Source) -> Option<Result<usize, FsError>> {
        let Some(memory) = self.memory.as_ref().and_then(Foreign::again) else { return Some(Ok(0)) };
        Some(match self.kind {
            Kind::Bytes => Self::write_bytes(&memory, offset, source),
            Kind::Pages { .. } => Err(FsError::NotPermitted),
        })
    }
}

fn bind<M: Machine>(about: &Task<M>, kind: Kind) -> Result<Arc<dyn GeneratedFile>, FsError> {
    let memory = about.look()?.memory.as_ref().map(Foreign::downgrade);
    Ok(unsize!(Arc::try_new(Bound { memory, kind })?))
}

/// Opens `mem`.
pub(super) fn bytes<M: Machine>(about: &Task<M>) -> Result<Arc<dyn GeneratedFile>, FsError> {
    bind(about, Kind::Bytes)
}

/// Opens `pagemap`. Checks whether the opening thread may see frame numbers.
pub(super) fn page_map<M: Machine>(about: &Task<M>) -> Result<Arc<dyn GeneratedFile>, FsError> {
    let me = about.process.linux.current();
    // SAFETY: the thread `me` itself runs this, and does not replace its credentials during the check.
    let frames = unsafe { me.credentials.get() }.may(cap::SYS_ADMIN);
    bind(about, Kind::Pages { frames })
}
