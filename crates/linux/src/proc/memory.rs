//! Files that show another process's memory: arguments, environment, auxiliary vector.

use super::process::About;
use crate::Linux;
use crate::machine::Machine;
use crate::memory::AddressSpace;
use crate::user::UserMemory;
use alloc::sync::Arc;
use quire_fs::FsError;
use quire_fs::generated::Text;

/// Runs `look` with `other` as the calling thread's memory.
fn in_memory_of<M: Machine, R>(
    linux: &'static Linux<M>,
    other: Arc<AddressSpace<M>>,
    look: impl FnOnce(&UserMemory<'static, M>) -> R,
) -> R {
    let me = linux.current();
    // SAFETY: the thread itself runs this; the file calls that read `/proc` hold no view of the space while a text is made.
    let own = unsafe { me.space.replace(Some(other.clone())) };
    linux.machine.activate(Some(other.pmap()));
    let result = look(&UserMemory(linux.machine));
    let own_again = own.clone();
    // SAFETY: as above.
    let theirs = unsafe { me.space.replace(own) };
    linux.machine.activate(own_again.as_ref().map(|space| space.pmap()));
    // Only now may the last count of either go.
    drop((theirs, other, own_again));
    result
}

/// Copies the bytes `range` of the process's memory; stops where they cannot be read.
fn show<M: Machine>(
    about: &About<M>,
    range: impl Fn(&AddressSpace<M>) -> (u64, u64),
    out: &mut Text,
) -> Result<(), FsError> {
    /// Linux shows no more than this of arguments in one go either; longer ones are rare and cut.
    const MOST: u64 = 1 << 20;
    let Some(memory) = about.memory() else { return Ok(()) };
    let (start, end) = range(&memory);
    let end = end.min(start.saturating_add(MOST));
    in_memory_of(about.process.linux, memory, |user| {
        let mut at = start;
        let mut part = [0u8; 256];
        while at < end {
            let len = ((end - at) as usize).min(part.len());
            if user.read_bytes(at, &mut part[..len]).is_err() {
                break;
            }
            out.push(&part[..len])?;
            at += len as u64;
        }
        Ok(())
    })
}

pub(super) fn command_line<M: Machine>(about: &About<M>, out: &mut Text) -> Result<(), FsError> {
    show(about, |memory| memory.image.arguments, out)
}

pub(super) fn environment<M: Machine>(about: &About<M>, out: &mut Text) -> Result<(), FsError> {
    show(about, |memory| memory.image.environment, out)
}

pub(super) fn vector<M: Machine>(about: &About<M>, out: &mut Text) -> Result<(), FsError> {
    let Some(memory) = about.memory() else { return Ok(()) };
    for (kind, value) in &memory.image.vector {
        out.push(&kind.to_le_bytes())?;
        out.push(&value.to_le_bytes())?;
    }
    Ok(())
}
