//! Requests for mappings, and the choice of their addresses.

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

/// An arena (a part of the map with its own lock) may use 1/`SHARES` of the space's limit of entries without counting
/// other arenas' entries. `SHARES` is twice the largest number of arenas.
const SHARES: u64 = 512;

/// The place of a new mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Anywhere: at `hint` if that range is free, else in the lowest hole. A mapping that fills whole last-level tables
    /// is aligned to them, if one of the lowest holes allows that.
    Any {
        /// The address that the caller prefers; 0 for none.
        hint: u64,
    },
    /// At this address. The new mapping replaces older ones there in one step, so that no other thread sees a hole
    /// between the removal and the mapping.
    Fixed(u64),
    /// At this address. The request fails if something is mapped there.
    FixedNoReplace(u64),
}

/// A request for a mapping.
#[derive(Clone, Debug)]
pub struct MapRequest<'o, M: Machine> {
    /// The place of the mapping.
    pub at: Placement,
    /// The length in bytes, a multiple of the page size.
    pub len: u64,
    /// The allowed accesses.
    pub prot: Prot,
    /// The accesses that may be allowed later.
    pub max_prot: Prot,
    /// Whether stores go to the object, so that other mappings of it see them. Otherwise stores go to private copies.
    pub shared: bool,
    /// The object, and the offset in bytes in it at which the mapping begins (a multiple of the page size). `None` for
    /// anonymous memory, which begins as zeroes.
    pub object: Option<(&'o ObjectRef<M>, u64)>,
    /// Whether a fault below the mapping extends it downwards (a stack).
    pub grows_down: bool,
    /// The purpose of the mapping.
    pub tag: Tag,
    /// How the mapping is wired. With [`Wire::No`], the setting of [`Space::wire_future`] applies.
    pub wire: Wire,
    /// Whether all its pages shall be resident when the call returns, as far as memory allows.
    pub populate: bool,
}

impl<M: Machine> MapRequest<'_, M> {
    /// A request for `len` bytes of private anonymous memory that may be read and written.
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
    /// Chooses the range of a new mapping of `len` bytes. Returns the range and the acquired writer of its arena.
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

    /// The range of `len` bytes at `start`. An error unless it lies in user space.
    fn range_at(&self, start: u64, len: u64) -> Result<VirtRange, MapError> {
        VirtRange::checked(start, len)
            .filter(|r| r.start >= M::Pmap::USER.start && r.end <= M::Pmap::USER.end)
            .ok_or(MapError::Invalid)
    }

    /// A free range in the writer's arena, as [`find_in`] chooses it. In the home arena the range lies at or above
    /// `Limits::base`, or below that address if no hole above fits. While other arenas are open, it lies outside the
    /// stretches of addresses of all arenas.
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

    /// Whether the space would exceed its limit of bytes, or of data, with `more` bytes of attributes `a`. The answer
    /// is exact while only the home arena (the space's first) is open. Otherwise it may miss mappings that other CPUs
    /// make at the same moment. So the limit may be exceeded by one mapping for each CPU.
    pub(in crate::map) fn exceeds(&self, more: u64, a: &Attributes) -> bool {
        let Limits { bytes, data, .. } = self.limits();
        // If the limit is the whole address space, the counts of the other arenas are not read.
        (bytes < M::Pmap::USER.len() && self.mapped().saturating_add(more) > bytes)
            || (data < M::Pmap::USER.len() && Class::of(a) == Class::Data && self.data_exceeds(more, data))
    }

    /// Whether `more` bytes would raise the space's data above `limit` bytes.
    pub(in crate::map) fn data_exceeds(&self, more: u64, limit: u64) -> bool {
        limit < M::Pmap::USER.len() && self.data().saturating_add(more) > limit
    }

    /// Whether the space would exceed its limit of entries with `more` entries in the writer's arena. Each arena has a
    /// share of the limit that it may use without counting the entries of other arenas. All shares together are half
    /// the limit.
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

/// The number of lowest holes in which [`find_in`] tries to align a mapping to a last-level table.
const HOLES: usize = 8;

/// Finds `len` free bytes in `lo..hi`, in the lowest hole that fits. If `len` is a multiple of the bytes that a
/// last-level table covers, the range is aligned to a table. Then it uses no more tables than it fills, and shares
/// none. It goes to the lowest of the first [`HOLES`] holes in which an aligned range fits. Otherwise it goes to the
/// lowest hole that is large enough for any alignment. If there is no such hole, the range is not aligned.
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

/// The lowest hole in `lo..hi` of which `len` bytes or more are usable. Returns its usable part.
fn hole<M: Machine>(writer: &Writer<'_, M>, len: u64, lo: u64, hi: u64) -> Option<VirtRange> {
    let mut lo = lo;
    while let Some(start) = (lo < hi).then(|| writer.first_fit(len, PAGE_SIZE, lo, hi)).flatten() {
        let Some(above) = writer.next(start) else { return Some(VirtRange { start, end: hi }) };
        let end = above.range().start.saturating_sub(guard(above)).min(hi);
        if end >= start + len {
            return Some(VirtRange { start, end });
        }
        // The hole ends at a stack, whose guard leaves fewer than `len` bytes.
        lo = above.range().end;
    }
    None
}

/// The number of bytes below `entry` that stay free: [`STACK_GUARD`] for a stack, else 0.
fn guard<M: Machine>(entry: &Entry<M>) -> u64 {
    if entry.flags().contains(Flags::GROWS_DOWN) { STACK_GUARD } else { 0 }
}

/// Whether nothing is mapped in `range`, and `range` does not reach into the guard of a stack above it.
fn is_free<M: Machine>(writer: &Writer<'_, M>, range: VirtRange) -> bool {
    match writer.next(range.start) {
        None => true,
        Some(above) => above.range().start.saturating_sub(guard(above)) >= range.end,
    }
}

/// Checks a program's request (relies on C10). Returns the number of the object's page at which the mapping begins.
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
    // A stack grows by anonymous private memory only.
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
