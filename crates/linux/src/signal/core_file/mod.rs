//! Core files: the memory and the registers of a process that a signal has ended, for debuggers.
//!
//! The thread that took the signal waits until it is the last thread of its process. Then it writes the file, so no
//! other thread can change the memory during the write. [`core_pattern`] makes the file's name. [`elf`] has the layout
//! of the file, and [`notes`] the description of the process. [`parts`] selects the memory in the file by the process's
//! filter.
//!
//! # Differences from Linux
//! The file describes one thread, because the others have ended. The file cannot be piped to a program. It is cut off
//! if free memory gets low. Pages that the program may not read become holes. Pages after the first 64 GiB of mappings
//! become holes too.

mod elf;
mod notes;
mod parts;

use quire_fs::{FileKind, Final, FsError, Io, OpenFlags, SliceSource};
use quire_heap::{Arc, Vec};
use quire_linux_state::file::host::File;
use quire_linux_state::process::DUMPED;
use quire_linux_state::process::limits::which;
use quire_linux_state::regs::UserRegs;
use quire_linux_state::signal::SigInfo;
use quire_linux_state::system::core_pattern;
use quire_linux_state::system::settings::Setting;
use quire_linux_state::{Ctx, Errno, Linux, Machine, Thread};
use quire_sync::atomic::Ordering;
use quire_vm::{PAGE_SIZE, Prot};

/// The most pages that are examined for one file (64 GiB), so that the writing ends. Later pages are holes.
const MOST_LOOKS: u64 = 1 << 24;

/// Writes the core file of the calling thread's process, which is ending by the signal of `info`. If the file was
/// opened, the exit status says that there is a core file.
pub(crate) fn write<M: Machine>(linux: &'static Linux<M>, thread: &Thread<M>, regs: &mut UserRegs, info: &SigInfo) {
    let process = &thread.process;
    let most = process.soft_limit(which::CORE);
    if most < PAGE_SIZE {
        return;
    }
    // SAFETY: the thread itself delivers a signal, after its call, so it has no other context.
    let ctx = unsafe { Ctx::new(linux, thread, regs) };
    if !ctx.space().is_ok_and(|space| space.is_dumpable()) {
        return;
    }
    // All other threads of the process must end first. No ending thread waits for this thread, so the wait ends.
    let _alone = process.thread_events.wait_until(None, || false, || (process.threads.lock().len() == 1).then_some(()));
    let most = most.min(process.soft_limit(which::FSIZE));
    if let Ok(file) = name(&ctx, info, process.soft_limit(which::CORE)).and_then(|name| open(&ctx, &name))
        && let Ok(core) = describe(&ctx, info)
    {
        process.status.fetch_or(DUMPED, Ordering::AcqRel);
        // If the file reaches a size limit, or free memory is exhausted, the file is cut off at that point.
        let _cut = core.write(&ctx, &mut Output { file, most, at: 0 });
    }
}

/// The name of the core file, by the pattern.
fn name<M: Machine>(ctx: &Ctx<'_, M>, info: &SigInfo, limit: u64) -> Result<Vec<u8>, Errno> {
    let (linux, credentials) = (ctx.linux, ctx.credentials());
    let path = ctx.space()?.image.file.path()?;
    let host = linux.host_name.get()[0];
    let name = *ctx.thread.name.lock();
    let facts = core_pattern::Facts {
        pid: ctx.pid(),
        tid: ctx.thread.tid(),
        user: credentials.real_user,
        group: credentials.real_group,
        signal: info.signal.number(),
        time: linux.machine.realtime() / 1_000_000_000,
        limit,
        host: host.split(|byte| *byte == 0).next().unwrap_or(&[]),
        name: name.bytes(),
        path: &path,
        adds_pid: linux.settings.get(Setting::CoreUsesPid) != 0,
    };
    core_pattern::name(&linux.core_pattern.get(), &facts)
}

/// Opens a new file, and removes an older one first. An older file is removed only if it is a regular file of the
/// caller with one link. Otherwise the call fails, and no core file is written.
fn open<M: Machine>(ctx: &Ctx<'_, M>, name: &[u8]) -> Result<Arc<File<M>>, Errno> {
    let view = ctx.view()?;
    if let Ok(there) = ctx.vfs().find(&view, view.cwd(), name, false) {
        let attr = there.inode.attr();
        let own = attr.uid == view.credentials.uid && attr.links <= 1;
        if there.inode.kind() != FileKind::Regular || !own {
            return Err(Errno::EEXIST);
        }
    }
    match ctx.vfs().walk(&view, view.cwd(), name, Final::Name).and_then(|found| ctx.vfs().unlink(&view, &found)) {
        Ok(()) | Err(FsError::NotFound) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OpenFlags::CREATE | OpenFlags::EXCLUSIVE | OpenFlags::WRITE | OpenFlags::NOFOLLOW | OpenFlags::LARGE;
    Ok(ctx.vfs().open(&view, view.cwd(), name, flags, 0o600, &Io::NOW)?)
}

/// The description of a core file, ready to be written.
struct Core {
    parts: Vec<parts::Part>,
    notes: Vec<u8>,
}

fn describe<M: Machine>(ctx: &Ctx<'_, M>, info: &SigInfo) -> Result<Core, Errno> {
    let (parts, files) = parts::of(ctx)?;
    Ok(Core { parts, notes: notes::of(ctx, info, &files)? })
}

impl Core {
    fn write<M: Machine>(&self, ctx: &Ctx<'_, M>, out: &mut Output<M>) -> Result<(), Errno> {
        let headers = elf::headers(&self.parts, self.notes.len())?;
        out.put(&headers)?;
        out.put(&self.notes)?;
        out.at = out.at.next_multiple_of(PAGE_SIZE);
        let space = ctx.space()?;
        let mut page = Vec::new();
        page.try_resize(PAGE_SIZE as usize, 0u8)?;
        let mut looks = 0;
        for part in &self.parts {
            if !part.prot.contains(Prot::READ) {
                out.skip(part.kept)?;
                continue;
            }
            for at in (part.range.start..part.range.start + part.kept).step_by(PAGE_SIZE as usize) {
                looks += 1;
                if looks > MOST_LOOKS {
                    out.skip(part.range.start + part.kept - at)?;
                    break;
                }
                if ctx.process().killed.load(Ordering::Relaxed) {
                    return Err(Errno::EINTR);
                }
                // An ending thread may allocate from the memory reserve. The core file must not use the reserve, so the
                // write ends if memory is low.
                if ctx.linux.vm.frames().is_low() {
                    return Err(Errno::ENOMEM);
                }
                let read = match part.ours {
                    true => ctx.user().read_bytes(at, &mut page).map(|()| page.len()).map_err(drop),
                    false => space.read(at, &mut page).map_err(drop),
                };
                match read {
                    Ok(n) if n == page.len() && page.iter().any(|byte| *byte != 0) => out.put(&page)?,
                    // Pages of zeroes, and pages that cannot be read, become holes in the file.
                    _ => out.skip(PAGE_SIZE)?,
                }
            }
        }
        out.end()
    }
}

/// The open file, the largest size (`most`), and the present offset (`at`), in bytes.
struct Output<M: Machine> {
    file: Arc<File<M>>,
    most: u64,
    at: u64,
}

impl<M: Machine> Output<M> {
    /// The offset after `more` further bytes. EFBIG if that is beyond the limit.
    fn room(&self, more: u64) -> Result<u64, Errno> {
        self.at.checked_add(more).filter(|end| *end <= self.most).ok_or(Errno::EFBIG)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let end = self.room(bytes.len() as u64)?;
        let written = self.file.write_at(&Io::NOW, self.at, &mut SliceSource::new(bytes))?;
        if written < bytes.len() {
            return Err(Errno::ENOSPC);
        }
        self.at = end;
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<(), Errno> {
        self.at = self.room(bytes)?;
        Ok(())
    }

    /// Sets the file's length, because the file may end with a hole.
    fn end(&self) -> Result<(), Errno> {
        Ok(self.file.truncate(&Io::NOW, self.at)?)
    }
}
