//! `mount` and `umount2`.

use crate::file::AT_FDCWD;
use crate::file::path::{find_path, only};
use crate::ipc;
use linux_raw_sys::general as raw;
use quire_fs::mounts::Content;
use quire_fs::{FileKind, FsError, Limits, NewAttr, OpenFlags, Restrictions};
use quire_heap::{Arc, Vec};
use quire_linux_state::file::host::{Dentry, FileHost};
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::{Ctx, Errno, Linux, Machine};
use quire_vm::PAGE_SIZE;

// Flags of `mount`, from Linux's mount.h.
/// The first four flags restrict the use of the file system.
const RESTRICTIONS: u64 = 15;
const REMOUNT: u64 = 32;
const BIND: u64 = 4096;
const MOVE: u64 = 8192;
const RECURSIVE: u64 = 16384;
const UNBINDABLE: u64 = 1 << 17;
const PRIVATE: u64 = 1 << 18;
const SLAVE: u64 = 1 << 19;
const SHARED: u64 = 1 << 20;
/// The flags of mount propagation. They have no effect, because there is only one mount namespace.
const PROPAGATION: u64 = UNBINDABLE | PRIVATE | SLAVE | SHARED;
/// A number that old programs put into the high half of the flags.
const MAGIC: u64 = 0xc0ed_0000;
const MAGIC_MASK: u64 = 0xffff_0000;

// Flags of `umount2`.
const FORCE: u32 = 1;
const DETACH: u32 = 2;
const EXPIRE: u32 = 4;
const NO_FOLLOW: u32 = 8;

/// The name of the file system type of pseudo-terminals.
const TERMINALS: &str = "devpts";
/// The most bytes of the option string, as on Linux.
const OPTIONS: usize = PAGE_SIZE as usize;
/// The most bytes of the name of a file system type.
const KIND: usize = 64;

/// The uses for which [`in_use`] searches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Uses {
    /// A directory, an open file or a mapping below the root.
    All,
    /// An open file below the root that may be written to.
    Writes,
    /// An open file of the file system that may be written to, through any of its mounts.
    SystemWrites,
}

/// Whether a process uses the tree below `root`.
fn in_use<M: Machine>(linux: &Linux<M>, root: &Arc<Dentry<M>>, uses: Uses) -> Result<bool, FsError> {
    /// The number of descriptors that are checked in one step.
    const BATCH: usize = 64;
    let writes = uses != Uses::All;
    let below = |dentry: &Arc<Dentry<M>>| match uses {
        Uses::All | Uses::Writes => Dentry::<M>::is_below(dentry, root),
        Uses::SystemWrites => core::ptr::eq(dentry.inode.system(), root.inode.system()),
    };
    let device = root.inode.ident.device;
    // A mapping records the identity of its file, but not the mount through which the file was opened.
    let first = !root.is_view();
    for process in linux.ids.processes() {
        for task in &process.all_threads().map_err(|_| FsError::OutOfMemory)? {
            let Some(thread) = task.payload().as_ref() else { continue };
            let places = thread.fs.look(|fs| fs.clone()).map(|fs| fs.places());
            if !writes && places.is_some_and(|places| below(&places.root) || below(&places.cwd)) {
                return Ok(true);
            }
            if let Some(files) = thread.files.look(|files| files.clone()) {
                let mut from = 0;
                loop {
                    let batch = files.list(from, BATCH)?;
                    let Some((last, _)) = batch.last() else { break };
                    from = *last as u32 + 1;
                    let counts = |flags: OpenFlags| !writes || flags.contains(OpenFlags::WRITE);
                    if batch.iter().any(|(_, file)| counts(file.flags()) && below(&file.dentry)) {
                        return Ok(true);
                    }
                }
            }
            let Some(memory) = thread.space.borrow().filter(|_| !writes) else { continue };
            let mut found = false;
            memory.entries(0, &mut |entry| {
                found = first && entry.ident().0 == device && entry.ident().1 != 0;
                !found
            });
            if found {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The options of a memory file system.
struct Options {
    limits: Limits,
    root: NewAttr,
}

/// Parses a number of bytes or inodes. A suffix `k`, `m` or `g` multiplies the number, and `%` means a percentage of
/// `whole`.
fn amount(text: &[u8], whole: u64) -> Result<u64, Errno> {
    let (digits, unit) = match text.split_last() {
        Some((unit, digits)) if !unit.is_ascii_digit() => (digits, unit.to_ascii_lowercase()),
        _ => (text, b' '),
    };
    let number: u64 = number(digits, 10)?;
    let shift = match unit {
        b' ' => 0,
        b'k' => 10,
        b'm' => 20,
        b'g' => 30,
        b'%' => return Ok((u128::from(whole) * u128::from(number) / 100).min(u128::from(u64::MAX)) as u64),
        _ => return Err(Errno::EINVAL),
    };
    number.checked_mul(1 << shift).ok_or(Errno::EINVAL)
}

fn number(digits: &[u8], base: u32) -> Result<u64, Errno> {
    let text = core::str::from_utf8(digits).map_err(|_| Errno::EINVAL)?;
    u64::from_str_radix(text, base).map_err(|_| Errno::EINVAL)
}

impl Options {
    /// Applies `text` to these options. `pages` is the memory of the machine.
    fn read(&mut self, text: &[u8], pages: u64) -> Result<(), Errno> {
        // A value of 0 means no limit, and is stored as the largest number. With `None` the file system would not count
        // its pages and inodes, so a later remount could set no limit.
        let limit = |n: u64| Some(if n == 0 { u64::MAX } else { n });
        for option in text.split(|byte| *byte == b',').filter(|option| !option.is_empty()) {
            let at = option.iter().position(|byte| *byte == b'=').unwrap_or(option.len());
            let (name, value) = (&option[..at], option.get(at + 1..));
            let value = value.ok_or(Errno::EINVAL);
            match name {
                b"size" => {
                    let bytes = amount(value?, pages * PAGE_SIZE)?;
                    self.limits.pages = limit(bytes.div_ceil(PAGE_SIZE));
                }
                b"nr_blocks" => self.limits.pages = limit(amount(value?, pages)?),
                b"nr_inodes" => self.limits.inodes = limit(amount(value?, pages)?),
                b"mode" => self.root.mode = number(value?, 8)? as u16 & 0o7777,
                b"uid" => self.root.uid = number(value?, 10)?.try_into().map_err(|_| Errno::EINVAL)?,
                b"gid" => self.root.gid = number(value?, 10)?.try_into().map_err(|_| Errno::EINVAL)?,
                // Large pages are not supported, so `huge` must be `never`. Other options, such as the options for
                // swap, are refused.
                b"huge" if value? == b"never" => {}
                _ => return Err(Errno::EINVAL),
            }
        }
        Ok(())
    }
}

/// Reads a string argument. A null pointer gives an empty string.
fn string<M: Machine>(ctx: &Ctx<'_, M>, at: u64, most: usize) -> Result<Vec<u8>, Errno> {
    if at == 0 { Ok(Vec::new()) } else { ctx.user().read_string(at, most, Errno::EINVAL) }
}

/// `mount`
pub fn sys_mount<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    from: u64,
    target: u64,
    kind: u64,
    flags: u64,
    data: u64,
) -> Result<usize, Errno> {
    let flags = if flags & MAGIC_MASK == MAGIC { flags & !MAGIC_MASK } else { flags };
    let (kind, source) = (string(ctx, kind, KIND)?, string(ctx, from, OPTIONS)?);
    let options = string(ctx, data, OPTIONS)?;
    let target = ctx.path(target)?;
    let (_, target) = find_path(ctx, AT_FDCWD, &target, 0)?;
    if !ctx.credentials().may(cap::SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    // A link in `/proc/PID/fd` may lead to a symbolic link, on which nothing can be mounted.
    if target.inode.kind() == FileKind::Symlink {
        return Err(Errno::ENOENT);
    }
    let (linux, vfs) = (ctx.linux, ctx.vfs());
    let used = |root: &Arc<Dentry<M>>| in_use(linux, root, Uses::All);
    let pages = linux.vm.frames().total();
    let restrictions = Restrictions::from_bits_truncate((flags & RESTRICTIONS) as u8);
    if flags & REMOUNT != 0 {
        let mount = vfs.mount_of(&target).ok_or(Errno::EINVAL)?;
        if flags & BIND == 0 {
            return remount(ctx, &mount, restrictions, &options, pages);
        }
        may_restrict(linux, &mount, restrictions - mount.restrictions(), Uses::Writes)?;
        vfs.restrict_mount(&mount, restrictions, false);
        return Ok(0);
    }
    if flags & BIND != 0 {
        let source = if source.is_empty() { Err(Errno::EINVAL) } else { ctx.path(from) }?;
        let (_, source) = find_path(ctx, AT_FDCWD, &source, 0)?;
        vfs.bind_on(&target, &source, flags & RECURSIVE != 0, &used)?;
        return Ok(0);
    }
    if flags & PROPAGATION != 0 {
        return if vfs.mount_of(&target).is_some() { Ok(0) } else { Err(Errno::EINVAL) };
    }
    if flags & MOVE != 0 {
        let moved = if source.is_empty() { Err(Errno::EINVAL) } else { ctx.path(from) }?;
        let (_, moved) = find_path(ctx, AT_FDCWD, &moved, 0)?;
        vfs.move_on(&target, &moved, &used)?;
        return Ok(0);
    }
    if kind.is_empty() {
        return Err(Errno::EINVAL);
    }
    let half = Some(pages / 2);
    let root = NewAttr { mode: 0o1777, uid: ctx.file_credentials().uid, gid: ctx.file_credentials().gid };
    let mut memory = Options { limits: Limits { pages: half, inodes: half }, root };
    let (name, content) = match &kind[..] {
        b"tmpfs" => {
            memory.read(&options, pages)?;
            ("tmpfs", Content::Memory { limits: memory.limits, root: memory.root })
        }
        b"ramfs" => ("ramfs", Content::Memory { limits: Limits::NONE, root: NewAttr { mode: 0o755, ..root } }),
        b"proc" => ("proc", Content::Generated(linux.trees.proc(linux)?, 0o555)),
        b"sysfs" => ("sysfs", Content::Generated(linux.trees.sys(linux)?, 0o555)),
        b"mqueue" => ("mqueue", Content::Generated(ipc::queue_root(linux)?, 0o1777)),
        b"devpts" => {
            check_terminal_options(&options)?;
            let root = vfs.mounted(TERMINALS).ok_or(Errno::ENODEV)?;
            vfs.mount_again(&target, &root, named(&source), restrictions, &used)?;
            return Ok(0);
        }
        _ => return Err(Errno::ENODEV),
    };
    vfs.mount_on(&target, name, content, named(&source), restrictions, &used)?;
    Ok(0)
}

/// The name of a mount's source in the list of mounts: `none` if it is empty.
fn named(source: &[u8]) -> &[u8] {
    if source.is_empty() { b"none" } else { source }
}

/// Checks the options of `devpts`. They have no effect, because all mounts of `devpts` show the same nodes.
fn check_terminal_options(text: &[u8]) -> Result<(), Errno> {
    for option in text.split(|byte| *byte == b',').filter(|option| !option.is_empty()) {
        let at = option.iter().position(|byte| *byte == b'=');
        let (name, value) = (&option[..at.unwrap_or(option.len())], at.map(|at| &option[at + 1..]));
        match (name, value) {
            (b"newinstance", None) => {}
            (b"mode" | b"ptmxmode", Some(value)) => {
                number(value, 8)?;
            }
            (b"uid" | b"gid" | b"max", Some(value)) => {
                number(value, 10)?;
            }
            _ => return Err(Errno::EINVAL),
        }
    }
    Ok(())
}

/// Changes the options of a mounted file system.
fn remount<M: Machine>(
    ctx: &Ctx<'_, M>,
    mount: &quire_fs::mounts::Mount<FileHost<M>>,
    restrictions: Restrictions,
    options: &[u8],
    pages: u64,
) -> Result<usize, Errno> {
    let system = mount.system();
    let present = if system.is_read_only() { Restrictions::READ_ONLY } else { Restrictions::empty() };
    may_restrict(ctx.linux, mount, restrictions - present, Uses::SystemWrites)?;
    if matches!(system.kind, "tmpfs" | "devtmpfs") && !options.is_empty() {
        let mut new = Options { limits: system.limits(), root: NewAttr { mode: 0, uid: 0, gid: 0 } };
        new.read(options, pages)?;
        // The present contents of the file system must fit within the new limits.
        let (taken, inodes) = system.taken();
        let fits = |limit: Option<u64>, taken: u64| limit.is_none_or(|limit| limit >= taken);
        if !fits(new.limits.pages, taken) || !fits(new.limits.inodes, inodes) {
            return Err(Errno::EINVAL);
        }
        system.set_limits(new.limits);
    }
    ctx.vfs().restrict_mount(mount, restrictions, true);
    Ok(0)
}

/// Refuses to make a mount read-only while a file is open for writing. `new` are the restrictions that the mount did
/// not have before.
fn may_restrict<M: Machine>(
    linux: &Linux<M>,
    mount: &quire_fs::mounts::Mount<FileHost<M>>,
    new: Restrictions,
    uses: Uses,
) -> Result<(), Errno> {
    let begins = new.contains(Restrictions::READ_ONLY);
    if begins && in_use(linux, &mount.root, uses)? { Err(Errno::EBUSY) } else { Ok(()) }
}

/// `umount2`
pub fn sys_umount2<M: Machine>(ctx: &mut Ctx<'_, M>, target: u64, flags: u32) -> Result<usize, Errno> {
    only(flags, FORCE | DETACH | EXPIRE | NO_FOLLOW)?;
    let path = ctx.path(target)?;
    let follow = if flags & NO_FOLLOW != 0 { raw::AT_SYMLINK_NOFOLLOW } else { 0 };
    let (_, target) = find_path(ctx, AT_FDCWD, &path, follow)?;
    if !ctx.credentials().may(cap::SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let (linux, vfs) = (ctx.linux, ctx.vfs());
    if flags & EXPIRE != 0 {
        // On Linux, the first call with `MNT_EXPIRE` marks an unused mount and fails with EAGAIN, and the second call
        // unmounts it. This kernel stores no mark, so each call counts as the first.
        return Err(if flags & (FORCE | DETACH) != 0 || vfs.mount_of(&target).is_none() {
            Errno::EINVAL
        } else {
            Errno::EAGAIN
        });
    }
    // The hold of the path walk must not make the tree busy, so it is changed into a counted reference of this call.
    let root = target.counted();
    vfs.unmount(&root, flags & DETACH != 0, &|root| in_use(linux, root, Uses::All))?;
    Ok(0)
}

// The file layer uses Linux's numbers for restrictions, so no conversion is needed.
const _: () = assert!(
    Restrictions::READ_ONLY.bits() as u32 == raw::MS_RDONLY
        && Restrictions::NO_SET_IDS.bits() as u32 == raw::MS_NOSUID
        && Restrictions::NO_DEVICES.bits() as u32 == raw::MS_NODEV
        && Restrictions::NO_EXECUTION.bits() as u32 == raw::MS_NOEXEC
);

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn options(text: &[u8]) -> Result<(Option<u64>, Option<u64>, u16, u32), Errno> {
        let root = NewAttr { mode: 0o1777, uid: 0, gid: 0 };
        let mut all = Options { limits: Limits { pages: Some(7), inodes: Some(8) }, root };
        all.read(text, 1000).map(|()| (all.limits.pages, all.limits.inodes, all.root.mode, all.root.uid))
    }

    #[test]
    fn options_are_read_as_linux_reads_them() {
        assert_eq!(options(b""), Ok((Some(7), Some(8), 0o1777, 0)));
        assert_eq!(options(b"size=1m,nr_inodes=2k,mode=755,uid=9"), Ok((Some(256), Some(2048), 0o755, 9)));
        assert_eq!(options(b"size=50%,,nr_blocks=3"), Ok((Some(3), Some(8), 0o1777, 0)));
        assert_eq!(options(b"size=1").map(|o| o.0), Ok(Some(1)));
        assert_eq!(options(b"size=0").map(|o| o.0), Ok(Some(u64::MAX)));
        for bad in [
            &b"size"[..],
            b"size=",
            b"size=x",
            b"size=1q",
            b"mode=9",
            b"what=1",
            b"size=99999999999999999999",
            b"uid=-1",
        ] {
            assert_eq!(options(bad), Err(Errno::EINVAL), "{:?}", core::str::from_utf8(bad));
        }
    }
}
