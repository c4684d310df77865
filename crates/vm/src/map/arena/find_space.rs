//! Making mappings, and choosing their place.

use crate::error::MapError;
use crate::machine::{Machine, Pmap};
use crate::map::arena::Writer;
use crate::map::arena::arenas::STRETCHES;
use crate::map::arena::covered::Class;
use crate::map::entry::wired::Wire;
use crate::map::entry::{Attributes, Entry, Flags, Tag};
use crate::map::maps::Maps;
use crate::map::space::{Limits, STACK_GUARD, Space};
use crate::object::ObjectRef;
use crate::types::{PAGE_SIZE, Prot, VirtRange};

/// The share of a space's entries that an arena may have without counting the others': 1 in twice the number of arenas.
const SHARES: u64 = 512;

/// The place of a new mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Anywhere: at `hint` if possible (0: no wish), else in the lowest hole. A mapping of whole last-level tables goes
    /// to one of the lowest holes in which it can begin where a table does.
    Any {
        /// The address that the caller prefers.
        hint: u64,
    },
    /// At this address. Older mappings there are removed, and no other thread sees a hole in between.
    Fixed(u64),
    /// At this address, unless something is mapped there.
    FixedNoReplace(u64),
}

/// A request for a mapping.
#[derive(Clone, Debug)]
pub struct MapRequest<'o, M: Machine> {
    /// The place.
    pub at: Placement,
    /// Bytes, a multiple of the page size.
    pub len: u64,
    /// The allowed accesses.
    pub prot: Prot,
    /// The most that may be allowed later.
    pub max_prot: Prot,
    /// Whether stores go to the object, for all to see; otherwise the mapping has copies of its own.
    pub shared: bool,
    /// The object, and its byte at which the mapping begins (a multiple of the page size). `None`: zeroes.
    pub object: Option<(&'o ObjectRef<M>, u64)>,
    /// Whether a fault below extends it (a stack).
    pub grows_down: bool,
    /// Its purpose.
    pub tag: Tag,
    /// Whether it is wired; in any case where [`Space::wire_future`] says so.
    pub wire: Wire,
    /// Whether all of it shall be resident at the return, as far as memory allows.
    pub populate: bool,
}

impl<M: Machine> MapRequest<'_, M> {
    /// Private, empty memory that may be read and written.
    pub fn private(at: Placement, len: u64) -> Self {
        let all = Prot::all();
        MapRequest {
            at,
            len,
            prot: Prot::READ | Prot::WRITE,
            max_prot: all,
            shared: false,
            object: None,
            grows_down: false,
            tag: Tag::None,
            wire: Wire::No,
            populate: false,
        }
    }
}

impl<M: Machine> Space<M> {
    /// The range that a new mapping of `len` bytes gets, and the writer that has it.
    ///
    /// # Requires
    /// The caller removes older mappings in a fixed range.
    pub(in crate::map) fn place_new(&self, at: Placement, len: u64) -> Result<(Writer<'_, M>, VirtRange), MapError> {
        if let Placement::Fixed(start) | Placement::FixedNoReplace(start) = at {
            let range = self.range_at(start, len)?;
            return Ok((self.write(range)?, range));
        }
        if let Placement::Any { hint } = at
            && let Ok(wish) = self.range_at(hint & !(PAGE_SIZE - 1), len)
        {
            let (writer, end) = self.write_at(wish.start);
            if wish.end <= end && is_free(&writer, wish) {
                return Ok((writer, wish));
            }
        }
        let writer = self.write_somewhere();
        if let Some(range) = self.find(&writer, len) {
            return Ok((writer, range));
        }
        drop(writer);
        let writer = self.write_all()?;
        let range = self.find(&writer, len).ok_or(MapError::NoSpace)?;
        Ok((writer, range))
    }

    /// A range of user space.
    fn range_at(&self, start: u64, len: u64) -> Result<VirtRange, MapError> {
        VirtRange::checked(start, len)
            .filter(|r| r.start >= M::Pmap::USER.start && r.end <= M::Pmap::USER.end)
            .ok_or(MapError::Invalid)
    }

    /// A hole of the writer's arena, as [`find_in`] chooses it. In the home arena: at or above the base, or below it if
    /// there is none above; not in the stretches while others are open.
    pub(in crate::map) fn find(&self, writer: &Writer<'_, M>, len: u64) -> Option<VirtRange> {
        let find_in = |lo, hi| find_in(writer, len, lo, hi);
        let bounds = writer.arena().bounds();
        if bounds != M::Pmap::USER {
            return find_in(bounds.start, bounds.end);
        }
        let base = self.limits().base.clamp(M::Pmap::USER.start, M::Pmap::USER.end - PAGE_SIZE);
        for (lo, hi) in [(base, M::Pmap::USER.end), (M::Pmap::USER.start, M::Pmap::USER.end)] {
            let found = if self.arenas.fanned_out() {
                let below = find_in(lo, hi.min(STRETCHES.start));
                below.or_else(|| find_in(lo.max(STRETCHES.end), hi))
            } else {
                find_in(lo, hi)
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Whether the space would exceed its limit of bytes, or of data, with `more` of these attributes. Exact while one
    /// arena is open. Otherwise it may miss mappings that other CPUs make at the same moment: the limit may be passed
    /// by one mapping a CPU.
    pub(in crate::map) fn exceeds(&self, more: u64, a: &Attributes) -> bool {
        let Limits { bytes, data, .. } = self.limits();
        // If the limit is the address space itself, no arena reads another's count.
        (bytes < M::Pmap::USER.len() && self.mapped().saturating_add(more) > bytes)
            || (data < M::Pmap::USER.len() && Class::of(a) == Class::Data && self.data_exceeds(more, data))
    }

    /// Whether the space would have more data than `limit`, with `more`.
    pub(in crate::map) fn data_exceeds(&self, more: u64, limit: u64) -> bool {
        limit < M::Pmap::USER.len() && self.data().saturating_add(more) > limit
    }

    /// Whether the space would exceed its limit of entries, with `more` in the writer's arena. Each arena has a share
    /// that it may use without counting the others'. All shares together are half the limit.
    pub(in crate::map) fn too_many(&self, writer: &Writer<'_, M>, more: usize) -> bool {
        let limit = self.limits().entries;
        let own = (writer.arena().len() + more) as u64;
        if self.arenas.fanned_out() && own <= limit / SHARES {
            return false;
        }
        let all: usize = self.arenas.all().map(|a| a.len()).sum();
        (all + more) as u64 > limit
    }
}

/// Holes that are tried for one in which a mapping of whole tables can begin where a table does.
const HOLES: usize = 8;

/// `len` bytes in `lo..hi`: in the lowest hole, unless they fill whole last-level tables. Those begin where a table
/// does, so that they take no more tables than they fill and share none. They go to the lowest of the first few holes
/// that allows it. Otherwise they go to the lowest hole that is surely large enough, and without such a hole anywhere.
fn find_in<M: Machine>(writer: &Writer<'_, M>, len: u64, lo: u64, hi: u64) -> Option<VirtRange> {
    let table = M::Pmap::TABLE_SPAN;
    let lowest = hole(writer, len, lo, hi)?;
    let (mut next, mut looked_at) = (len.is_multiple_of(table).then_some(lowest), 0);
    while let Some(found) = next {
        let start = found.start.next_multiple_of(table);
        if start < found.end && found.end - start >= len {
            return Some(VirtRange { start, end: start + len });
        }
        looked_at += 1;
        let larger = if looked_at < HOLES { 0 } else { table - PAGE_SIZE };
        next = hole(writer, len + larger, found.end, hi);
    }
    Some(VirtRange { start: lowest.start, end: lowest.start + len })
}

/// The usable part of the lowest hole of `len` bytes or more in `lo..hi`.
fn hole<M: Machine>(writer: &Writer<'_, M>, len: u64, lo: u64, hi: u64) -> Option<VirtRange> {
    let mut lo = lo;
    while let Some(start) = (lo < hi).then(|| writer.first_fit(len, PAGE_SIZE, lo, hi)).flatten() {
        let Some(above) = writer.next(start) else { return Some(VirtRange { start, end: hi }) };
        let end = above.range().start.saturating_sub(guard(above)).min(hi);
        if end >= start + len {
            return Some(VirtRange { start, end });
        }
        // The hole ends at a stack, which needs the rest of it for itself.
        lo = above.range().end;
    }
    None
}

/// Bytes below `entry` that stay free: those of a stack that may still grow.
fn guard<M: Machine>(entry: &Entry<M>) -> u64 {
    if entry.flags().contains(Flags::GROWS_DOWN) { STACK_GUARD } else { 0 }
}

/// Whether nothing is mapped in `range`, and no stack that may still grow begins within the guard above it.
fn is_free<M: Machine>(writer: &Writer<'_, M>, range: VirtRange) -> bool {
    match writer.next(range.start) {
        None => true,
        Some(above) => above.range().start.saturating_sub(guard(above)) >= range.end,
    }
}

/// Relies on C10. Returns the first page of the object that the mapping shows.
pub(in crate::map) fn validate<M: Machine>(vm: &'static Maps<M>, r: &MapRequest<'_, M>) -> Result<u64, MapError> {
    if r.len == 0 || !r.len.is_multiple_of(PAGE_SIZE) {
        return Err(MapError::Invalid);
    }
    if r.len > M::Pmap::USER.len() {
        return Err(MapError::NoSpace);
    }
    if !r.max_prot.contains(r.prot) {
        return Err(MapError::Protection);
    }
    // A stack grows by memory of its own.
    if r.grows_down && (r.shared || r.object.is_some()) {
        return Err(MapError::Invalid);
    }
    let Some((object, offset)) = r.object else { return Ok(0) };
    if !object.is_of(vm) {
        return Err(MapError::Foreign);
    }
    if object.device().is_some() && !r.shared {
        return Err(MapError::Invalid);
    }
    let end = offset.checked_add(r.len).ok_or(MapError::Invalid)?;
    if !offset.is_multiple_of(PAGE_SIZE) || end > i64::MAX as u64 {
        return Err(MapError::Invalid);
    }
    Ok(offset / PAGE_SIZE)
}
