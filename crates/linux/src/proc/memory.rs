//! Files that show another process's memory: arguments, environment, auxiliary vector.

use super::process::About;
use crate::machine::Machine;
use crate::memory::Foreign;
use quire_fs::FsError;
use quire_fs::generated::Text;

/// Copies the bytes `range` of the process's memory; stops where they cannot be read.
fn show<M: Machine>(memory: &Foreign<M>, (start, end): (u64, u64), out: &mut Text) -> Result<(), FsError> {
    /// Linux shows no more than this of arguments in one go either; longer ones are rare and cut.
    const MOST: u64 = 1 << 20;
    let end = end.min(start.saturating_add(MOST));
    let mut at = start;
    let mut part = [0u8; 256];
    while at < end {
        let len = ((end - at) as usize).min(part.len());
        match memory.read(at, &mut part[..len]) {
            Ok(n) if n > 0 => {
                out.push(&part[..n])?;
                at += n as u64;
            }
            _ => break,
        }
    }
    Ok(())
}

pub(super) fn command_line<M: Machine>(about: &About<M>, out: &mut Text) -> Result<(), FsError> {
    about.memory().map_or(Ok(()), |memory| show(&memory, memory.image().arguments, out))
}

pub(super) fn environment<M: Machine>(about: &About<M>, out: &mut Text) -> Result<(), FsError> {
    about.memory().map_or(Ok(()), |memory| show(&memory, memory.image().environment, out))
}

pub(super) fn vector<M: Machine>(about: &About<M>, out: &mut Text) -> Result<(), FsError> {
    let Some(memory) = about.memory() else { return Ok(()) };
    for (kind, value) in &memory.image().vector {
        out.push(&kind.to_le_bytes())?;
        out.push(&value.to_le_bytes())?;
    }
    Ok(())
}
