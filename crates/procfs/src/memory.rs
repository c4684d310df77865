//! The files that show another process's memory: arguments, environment, auxiliary vector, mappings.
//!
//! A reader's access is checked when it opens such a file. The open file then refers to the memory that was checked. So
//! the file does not show a program that the process executes later. The file does not keep the memory alive.

use crate::about::Task;
use crate::{map_query, maps, pages};
use core::any::Any;
use quire_fs::FsError;
use quire_fs::generated::{GeneratedFile, Text};
use quire_heap::{Arc, Weak, unsize};
use quire_linux_state::machine::Machine;
use quire_linux_state::memory::{AddressSpace, Foreign};
use quire_linux_state::{Ctx, Errno};
use quire_vm::FaultError;

/// How a text is written.
enum Write<M: Machine> {
    /// At once.
    Whole(fn(&Foreign<M>, &mut Text) -> Result<(), FsError>),
    /// A record for each mapping.
    Records(maps::Records<M>),
}

/// A text about granted memory. Empty for a process that has ended.
struct Bound<M: Machine>(Option<Weak<AddressSpace<M>>>, Write<M>);

impl<M: Machine> GeneratedFile for Bound<M> {
    fn text(&self, out: &mut Text) -> Result<(), FsError> {
        match (self.0.as_ref().and_then(Foreign::again), &self.1) {
            (Some(memory), Write::Whole(text)) => text(&memory, out),
            _ => Ok(()),
        }
    }

    fn records(&self, cursor: u64, enough: usize, out: &mut Text) -> Option<Result<Option<u64>, FsError>> {
        let Write::Records(records) = self.1 else { return None };
        let memory = self.0.as_ref().and_then(Foreign::again);
        Some(memory.map_or(Ok(None), |memory| records(&memory, cursor, enough, out)))
    }
}

/// The file `maps`, which also accepts the ioctl of [`map_query`].
struct Map<M: Machine>(Bound<M>);

impl<M: Machine> GeneratedFile for Map<M> {
    fn text(&self, out: &mut Text) -> Result<(), FsError> {
        self.0.text(out)
    }

    fn records(&self, cursor: u64, enough: usize, out: &mut Text) -> Option<Result<Option<u64>, FsError>> {
        self.0.records(cursor, enough, out)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

/// Executes an `ioctl` on a `maps` file. `None` for other files and requests.
pub(crate) fn ioctl<M: Machine>(
    ctx: &Ctx<'_, M>,
    file: &dyn GeneratedFile,
    request: u32,
    argument: u64,
) -> Option<Result<usize, Errno>> {
    let map = file.as_any()?.downcast_ref::<Map<M>>()?;
    (request == map_query::QUERY).then(|| map_query::serve(ctx, map.0.0.as_ref().and_then(Foreign::again), argument))
}

fn bind<M: Machine>(about: &Task<M>, write: Write<M>) -> Result<Arc<dyn GeneratedFile>, FsError> {
    let granted = about.look()?;
    Ok(unsize!(Arc::try_new(Bound(granted.memory.as_ref().map(Foreign::downgrade), write))?))
}

fn bind_whole<M: Machine>(
    about: &Task<M>,
    text: fn(&Foreign<M>, &mut Text) -> Result<(), FsError>,
) -> Result<Arc<dyn GeneratedFile>, FsError> {
    bind(about, Write::Whole(text))
}

/// The condition that ends a text in a process's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    /// The text ends with the range.
    End,
    /// The text ends after the first zero byte, or with the range.
    Zero,
}

/// Copies the bytes `start..end` of the process's memory. Stops at bytes that cannot be read. An error if there is no
/// memory to read a page.
fn show<M: Machine>(memory: &Foreign<M>, (start, end): (u64, u64), to: To, out: &mut Text) -> Result<(), FsError> {
    /// The most bytes of arguments that are shown, as on Linux. Longer arguments are rare, and are truncated.
    const MOST: u64 = 1 << 20;
    let end = end.min(start.saturating_add(MOST));
    let mut at = start;
    let mut part = [0u8; 256];
    while at < end {
        let len = ((end - at) as usize).min(part.len());
        match memory.read(at, &mut part[..len]) {
            Ok(n) if n > 0 => {
                if let Some(zero) = part[..n].iter().position(|byte| to == To::Zero && *byte == 0) {
                    return out.push(&part[..=zero]);
                }
                out.push(&part[..n])?;
                at += n as u64;
            }
            Err(FaultError::OutOfMemory) => return Err(FsError::OutOfMemory),
            _ => break,
        }
    }
    Ok(())
}

/// Writes `cmdline`, which all users may read. Some programs overwrite the last zero byte of their arguments with a
/// title. The title may continue in the environment, and ends with a zero byte.
pub(super) fn command_line<M: Machine>(about: &Task<M>, out: &mut Text) -> Result<(), FsError> {
    let Some(memory) = about.memory() else { return Ok(()) };
    let (start, end) = memory.image().arguments;
    let mut last = [0u8];
    if end > start && matches!(memory.read(end - 1, &mut last), Ok(1)) && last[0] != 0 {
        let (_, after) = memory.image().environment;
        return show(&memory, (start, after.max(end)), To::Zero, out);
    }
    show(&memory, (start, end), To::End, out)
}

pub(super) fn environment<M: Machine>(about: &Task<M>) -> Result<Arc<dyn GeneratedFile>, FsError> {
    bind_whole(about, |memory, out| show(memory, memory.image().environment, To::End, out))
}

pub(super) fn vector<M: Machine>(about: &Task<M>) -> Result<Arc<dyn GeneratedFile>, FsError> {
    bind_whole(about, |memory, out| {
        for (kind, value) in &memory.image().vector {
            out.push(&kind.to_le_bytes())?;
            out.push(&value.to_le_bytes())?;
        }
        Ok(())
    })
}

pub(super) fn map<M: Machine>(about: &Task<M>) -> Result<Arc<dyn GeneratedFile>, FsError> {
    let granted = about.look()?;
    Ok(unsize!(Arc::try_new(Map(Bound(granted.memory.as_ref().map(Foreign::downgrade), Write::Records(maps::maps))))?))
}

pub(super) fn rollup<M: Machine>(about: &Task<M>) -> Result<Arc<dyn GeneratedFile>, FsError> {
    bind_whole(about, pages::rollup)
}

pub(super) fn sums<M: Machine>(about: &Task<M>) -> Result<Arc<dyn GeneratedFile>, FsError> {
    bind(about, Write::Records(pages::smaps))
}

pub(super) fn domains<M: Machine>(about: &Task<M>) -> Result<Arc<dyn GeneratedFile>, FsError> {
    bind(about, Write::Records(pages::numa_maps))
}
