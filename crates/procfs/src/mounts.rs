//! The tables of mounts: `mounts` and `mountinfo`. A poll of such a file reports a change of the mounts once, with
//! `POLLERR` and `POLLPRI`, as on Linux.

use crate::about::Task;
use crate::node::put;
use quire_fs::generated::{GeneratedFile, Text};
use quire_fs::mounts::FIRST_MOUNT;
use quire_fs::{FileSystem, FsError, Readiness, Ready, Restrictions, Vfs};
use quire_heap::{Arc, unsize};
use quire_linux_state::file::host::{Dentry, FileHost};
use quire_linux_state::machine::Machine;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_vm::PAGE_SIZE;

/// An open table of mounts.
struct Table<M: Machine> {
    vfs: &'static Vfs<FileHost<M>>,
    write: fn(&Vfs<FileHost<M>>, &mut Text) -> Result<(), FsError>,
    /// The number of changes that a poll of this file has reported.
    reported: AtomicU64,
}

impl<M: Machine> GeneratedFile for Table<M> {
    fn text(&self, out: &mut Text) -> Result<(), FsError> {
        (self.write)(self.vfs, out)
    }

    fn ready(&self) -> Option<Ready> {
        let now = self.vfs.mount_changes().count();
        let changed = self.reported.fetch_max(now, Ordering::Relaxed) < now;
        Some(if changed { Ready::READ | Ready::ERROR | Ready::PRIORITY } else { Ready::READ })
    }

    fn readiness(&self) -> Option<&Readiness> {
        Some(self.vfs.mount_changes().readiness())
    }
}

fn open<M: Machine>(
    about: &Task<M>,
    write: fn(&Vfs<FileHost<M>>, &mut Text) -> Result<(), FsError>,
) -> Result<Arc<dyn GeneratedFile>, FsError> {
    let vfs = about.process.linux.files.vfs();
    let reported = AtomicU64::new(vfs.mount_changes().count());
    Ok(unsize!(Arc::try_new(Table { vfs, write, reported })?))
}

/// Opens `mounts`.
pub(super) fn plain<M: Machine>(about: &Task<M>) -> Result<Arc<dyn GeneratedFile>, FsError> {
    open(about, lines)
}

/// Opens `mountinfo`.
pub(super) fn numbered<M: Machine>(about: &Task<M>) -> Result<Arc<dyn GeneratedFile>, FsError> {
    open(about, numbered_lines)
}

/// Writes the mount options for restrictions.
fn restrictions_of(has: Restrictions, out: &mut Text) -> Result<(), FsError> {
    const WORDS: [(Restrictions, &str); 3] = [
        (Restrictions::NO_SET_IDS, ",nosuid"),
        (Restrictions::NO_DEVICES, ",nodev"),
        (Restrictions::NO_EXECUTION, ",noexec"),
    ];
    put!(out, "{}", if has.contains(Restrictions::READ_ONLY) { "ro" } else { "rw" })?;
    let others = WORDS.iter().filter(|(one, _)| has.contains(*one));
    others.map(|(_, word)| word).try_for_each(|word| put!(out, "{word}"))
}

/// Writes `mounts`: a line for each mount.
fn lines<M: Machine>(vfs: &Vfs<FileHost<M>>, out: &mut Text) -> Result<(), FsError> {
    let mut result = Ok(());
    vfs.mounts(|path, mount| {
        let mut line = || {
            let system = mount.system();
            escaped(&mount.source, out)?;
            put!(out, " ")?;
            escaped(path, out)?;
            put!(out, " {} ", system.kind)?;
            let mut has = mount.restrictions();
            has.set(Restrictions::READ_ONLY, mount.root.refuses(Restrictions::READ_ONLY));
            restrictions_of(has, out)?;
            put!(out, ",noatime")?;
            limits_of(system, out)?;
            put!(out, " 0 0\n")
        };
        if result.is_ok() {
            result = line();
        }
    })?;
    result
}

/// The id of the mount through which `dentry` is reached. Files on the kernel's own mounts get an id that the table of
/// mounts does not contain.
pub(super) fn number_of<M: Machine>(vfs: &Vfs<FileHost<M>>, dentry: &Arc<Dentry<M>>) -> u64 {
    vfs.mount_id(dentry).unwrap_or(FIRST_MOUNT - 1)
}

/// Writes `mountinfo`: a line for each mount, with its id and the id of the parent mount.
fn numbered_lines<M: Machine>(vfs: &Vfs<FileHost<M>>, out: &mut Text) -> Result<(), FsError> {
    let mut result = Ok(());
    vfs.mounts(|path, mount| {
        let (system, kind) = (mount.system(), mount.system().kind);
        let device = system.device;
        let mut line = || {
            put!(out, "{} {} {}:{} ", mount.id, mount.on, device >> 8 & 0xfff, device & 0xff)?;
            escaped(&mount.root_path()?, out)?;
            put!(out, " ")?;
            escaped(path, out)?;
            let mode = if system.is_read_only() { "ro" } else { "rw" };
            put!(out, " ")?;
            restrictions_of(mount.restrictions(), out)?;
            put!(out, ",noatime - {kind} ")?;
            escaped(&mount.source, out)?;
            put!(out, " {mode}")?;
            limits_of(system, out)?;
            put!(out, "\n")
        };
        if result.is_ok() {
            result = line();
        }
    })?;
    result
}

/// Writes the mount options for the limits of a file system in memory.
fn limits_of(system: &FileSystem, out: &mut Text) -> Result<(), FsError> {
    let limits = system.limits();
    if let Some(pages) = limits.pages {
        put!(out, ",size={}k", pages * (PAGE_SIZE / 1024))?;
    }
    limits.inodes.map_or(Ok(()), |inodes| put!(out, ",nr_inodes={inodes}"))
}

/// Writes a path in a table of mounts. Bytes that would separate columns are written as octal numbers.
fn escaped(path: &[u8], out: &mut Text) -> Result<(), FsError> {
    for byte in path {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' => put!(out, "\\{byte:03o}")?,
            byte => out.push(&[*byte])?,
        }
    }
    Ok(())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_divide_columns_are_octal() {
        let mut out = Text::new();
        escaped(b"/a b\\c", &mut out).expect("memory");
        let mut bytes = [0; 16];
        let n = out.read(0, &mut quire_fs::SliceSink::new(&mut bytes)).expect("a slice");
        assert_eq!(&bytes[..n], b"/a\\040b\\134c");
    }
}
