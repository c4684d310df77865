//! `F_SETLEASE` and `F_GETLEASE`.

use linux_raw_sys::general as raw;
use quire_fs::OpenFlags;
use quire_fs::lease::LeaseKind;
use quire_heap::Arc;
use quire_linux_state::errno::Errno;
use quire_linux_state::file::host::File;
use quire_linux_state::file::notices;
use quire_linux_state::file::notices::{Leased, refused};
use quire_linux_state::machine::Machine;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::{Ctx, Linux};

/// Whether the inode of `file` has another open file. The search does not find a file that another CPU is just opening,
/// or a file that is only in a socket message.
fn is_open_elsewhere<M: Machine>(linux: &Linux<M>, file: &Arc<File<M>>) -> Result<bool, Errno> {
    /// The number of descriptors that are checked in one step.
    const BATCH: usize = 64;
    for process in linux.ids.processes() {
        for task in &process.all_threads()? {
            let Some(files) = task.payload().as_ref().and_then(|thread| thread.files.look(|files| files.clone()))
            else {
                continue;
            };
            let mut from = 0;
            loop {
                let batch = files.list(from, BATCH)?;
                let Some((last, _)) = batch.last() else { break };
                from = *last as u32 + 1;
                let other = |other: &Arc<File<M>>| {
                    !Arc::ptr_eq(other, file)
                        && Arc::ptr_eq(&other.dentry.inode, &file.dentry.inode)
                        && !other.flags().contains(OpenFlags::PATH)
                };
                if batch.iter().any(|(_, file)| other(file)) {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

/// `F_SETLEASE`
pub(super) fn set<M: Machine>(ctx: &Ctx<'_, M>, file: &Arc<File<M>>, fd: i32, kind: u32) -> Result<(), Errno> {
    let kind = match kind {
        raw::F_RDLCK => Some(LeaseKind::Read),
        raw::F_WRLCK => Some(LeaseKind::Write),
        raw::F_UNLCK => None,
        _ => return Err(Errno::EINVAL),
    };
    let (inode, own) = (&file.dentry.inode, file.lock_owner());
    let Some(kind) = kind else {
        if !inode.drop_lease(own) {
            return Err(Errno::EAGAIN);
        }
        notices::forget(file);
        return Ok(());
    };
    let owns = ctx.file_credentials().uid == inode.fixed_attr().uid;
    if !owns && !ctx.credentials().may(cap::LEASE) {
        return Err(Errno::EACCES);
    }
    let regular = file.regular().ok_or(Errno::EINVAL)?;
    let had = inode.lease_of(own);
    inode.set_lease(own, kind, Leased::of(ctx, file, fd)?).map_err(refused)?;
    // Other openers count themselves before they search for leases, and this call stores the lease before it reads the
    // counts. So either the opener finds this lease, or this call finds the opener.
    let own_write = u64::from(file.flags().contains(OpenFlags::WRITE));
    let in_use = match kind {
        LeaseKind::Read => Ok(regular.writing.writers() > 0),
        LeaseKind::Write if regular.writing.writers() > own_write => Ok(true),
        LeaseKind::Write => is_open_elsewhere(ctx.linux, file),
    };
    if matches!(in_use, Ok(false)) {
        return Ok(());
    }
    // The lease is refused. An earlier lease of the file is restored.
    match had {
        Some(Some(before)) => inode.set_lease(own, before, Leased::of(ctx, file, fd)?).map_err(refused)?,
        _ => {
            inode.drop_lease(own);
        }
    }
    in_use.and(Err(Errno::EAGAIN))
}

/// `F_GETLEASE`
pub(super) fn get<M: Machine>(file: &File<M>) -> u32 {
    match file.dentry.inode.lease_of(file.lock_owner()) {
        Some(Some(LeaseKind::Read)) => raw::F_RDLCK,
        Some(Some(LeaseKind::Write)) => raw::F_WRLCK,
        Some(None) | None => raw::F_UNLCK,
    }
}
