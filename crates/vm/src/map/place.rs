//! Making mappings, and where they go.

use super::arena::Writer;
use super::entry::{Attributes, Flags, Tag};
use super::leaves::Work;
use super::piece::{From, Piece};
use super::space::{STACK_GUARD, Space, USER};
use super::update::Update;
use crate::error::MapError;
use crate::machine::Machine;
use crate::object::ObjectRef;
use crate::types::{Access, PAGE_SIZE, Prot, VirtRange};

/// Where a mapping shall go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Anywhere: at `hint` where that is possible (0: no wish), else in the lowest hole.
    Any {
        /// The address that the caller would like.
        hint: u64,
    },
    /// There; whatever is mapped there goes, and nobody sees anything in between.
    Fixed(u64),
    /// There, unless something is.
    FixedNoReplace(u64),
}

/// What to map.
#[derive(Clone, Debug)]
pub struct MapRequest<M: Machine> {
    /// Where.
    pub at: Placement,
    /// Bytes, a multiple of the page size.
    pub len: u64,
    /// What accesses are allowed.
    pub prot: Prot,
    /// What may be allowed later at most.
    pub max_prot: Prot,
    /// Whether stores go to the object, for all to see; else the mapping has copies of its own.
    pub shared: bool,
    /// What it shows, and the byte of it that it begins with (a multiple of the page size); nothing: zeroes.
    pub object: Option<(ObjectRef<M>, u64)>,
    /// Whether a fault below extends it (a stack).
    pub grows_down: bool,
    /// What it is for.
    pub tag: Tag,
    /// Whether all of it shall be resident at the return, as far as memory allows.
    pub populate: bool,
}

impl<M: Machine> MapRequest<M> {
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
            populate: false,
        }
    }
}

impl<M: Machine> Space<M> {
    /// Maps; returns the address.
    ///
    /// Errors: [`MapError::Invalid`] for lengths, addresses or offsets that cannot be, [`MapError::Protection`] where `prot`
    /// exceeds `max_prot`, [`MapError::Exists`], [`MapError::NoSpace`], [`MapError::TooMany`], [`MapError::OutOfMemory`].
    /// Nothing was changed then.
    pub fn map(&self, r: &MapRequest<M>) -> Result<u64, MapError> {
        let page = validate(r)?;
        let made;
        let object = match &r.object {
            Some((object, _)) => Some(object),
            None if r.shared => {
                made = ObjectRef::anonymous(self.vm(), r.len / PAGE_SIZE)?;
                Some(&made)
            }
            None => None,
        };
        let writer = self.arena.write();
        let range = self.place(&writer, r.at, r.len)?;

        let mut flags = Flags::empty();
        flags.set(Flags::SHARED, r.shared);
        flags.set(Flags::GROWS_DOWN, r.grows_down);
        // A private mapping of an object that allows no stores yet shows the object itself.
        let add_front = object.is_some() && !r.shared && r.prot.contains(Prot::WRITE);
        flags.set(Flags::NEEDS_FRONT, object.is_some() && !r.shared && !add_front);
        let attributes = Attributes { prot: r.prot, max_prot: r.max_prot, flags, tag: r.tag };

        let mut update = Update::new(self, writer, range).showing(object.map(|o| (o, page)));
        let in_the_way = update.mapped_in(range);
        if in_the_way != 0 && !matches!(r.at, Placement::Fixed(_)) {
            return Err(MapError::Exists);
        }
        if self.arena.mapped() - in_the_way + range.len() > self.limits().bytes {
            return Err(MapError::NoSpace);
        }
        update.outside_before(range)?;
        if in_the_way == 0 {
            update.lean_on_previous(attributes);
        }
        let from = if object.is_some() { From::Object } else { From::Empty };
        let mut piece = Piece::new(range, attributes, from);
        piece.add_front = add_front;
        update.push(piece)?;
        update.outside_after(range)?;
        if in_the_way == 0 {
            update.lean_on_next(attributes);
        }
        update.apply(if in_the_way == 0 { Work::None } else { Work::Clear(range) })?;

        if r.populate {
            self.populate(range, r.prot);
        }
        Ok(range.start)
    }

    /// The range that a mapping of `len` bytes gets. => what is mapped in a fixed one is the caller's business.
    pub(super) fn place(&self, writer: &Writer<'_, M>, at: Placement, len: u64) -> Result<VirtRange, MapError> {
        let range = |start| {
            VirtRange::from_outside(start, len)
                .filter(|r| r.start >= USER.start && r.end <= USER.end)
                .ok_or(MapError::Invalid)
        };
        match at {
            Placement::Fixed(start) | Placement::FixedNoReplace(start) => range(start),
            Placement::Any { hint } => {
                let hint = hint & !(PAGE_SIZE - 1);
                if hint != 0
                    && let Ok(wish) = range(hint)
                    && is_free(writer, wish)
                {
                    return Ok(wish);
                }
                self.find(writer, len).and_then(range)
            }
        }
    }

    /// The lowest hole at or above the base; below it where there is none above.
    fn find(&self, writer: &Writer<'_, M>, len: u64) -> Result<u64, MapError> {
        let base = self.limits().base.clamp(USER.start, USER.end - PAGE_SIZE);
        for (lo, hi) in [(base, USER.end), (USER.start, USER.end)] {
            let mut lo = lo;
            while let Some(at) = writer.first_fit(len, PAGE_SIZE, lo, hi) {
                let found = VirtRange { start: at, end: at + len };
                if is_free(writer, found) {
                    return Ok(at);
                }
                // The hole ends at a stack, which needs the rest of it for itself.
                match writer.next(found.end - PAGE_SIZE) {
                    Some(stack) => lo = stack.range().end,
                    None => break,
                }
            }
        }
        Err(MapError::NoSpace)
    }

    /// Makes what can be made resident; errors show at the later access.
    pub(super) fn populate(&self, range: VirtRange, prot: Prot) {
        let access = if prot.contains(Prot::WRITE) {
            Access::Write
        } else if prot.contains(Prot::READ) {
            Access::Read
        } else {
            return;
        };
        let mut va = range.start;
        while va < range.end && self.fault(va, access).is_ok() {
            va += PAGE_SIZE;
        }
    }
}

/// Whether nothing is mapped in `range`, and no stack that may still grow begins within the guard above it.
fn is_free<M: Machine>(writer: &Writer<'_, M>, range: VirtRange) -> bool {
    match writer.next(range.start) {
        None => true,
        Some(e) => {
            let guard = if e.flags().contains(Flags::GROWS_DOWN) { STACK_GUARD } else { 0 };
            e.range().start.saturating_sub(guard) >= range.end
        }
    }
}

/// Contract C10. Returns the first page of the object that the mapping shows.
fn validate<M: Machine>(r: &MapRequest<M>) -> Result<u64, MapError> {
    if r.len == 0 || !r.len.is_multiple_of(PAGE_SIZE) {
        return Err(MapError::Invalid);
    }
    if r.len > USER.end - USER.start {
        return Err(MapError::NoSpace);
    }
    if !r.max_prot.contains(r.prot) {
        return Err(MapError::Protection);
    }
    let Some((_, offset)) = &r.object else { return Ok(0) };
    let end = offset.checked_add(r.len).ok_or(MapError::Invalid)?;
    if !offset.is_multiple_of(PAGE_SIZE) || end > i64::MAX as u64 || r.grows_down {
        return Err(MapError::Invalid);
    }
    Ok(offset / PAGE_SIZE)
}
