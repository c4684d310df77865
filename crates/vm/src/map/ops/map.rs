//! The operation that makes a mapping.

use crate::error::MapError;
use crate::machine::Machine;
use crate::map::arena::find_space::{MapRequest, Placement, validate};
use crate::map::entry::piece::{ChainSource, Piece};
use crate::map::entry::wired::Wire;
use crate::map::entry::{Attributes, Flags};
use crate::map::space::Space;
use crate::map::update::Update;
use crate::map::update::pte_update::Work;
use crate::object::ObjectRef;
use crate::types::{Access, PAGE_SIZE, Prot, VirtRange};
use quire_sync::trace::{EventKind, Span};

impl<M: Machine> Space<M> {
    /// Makes a mapping, and returns its address.
    ///
    /// The errors are:
    /// - [`MapError::Invalid`] for impossible lengths, addresses or offsets,
    /// - [`MapError::Foreign`] for an object of another system,
    /// - [`MapError::Protection`] if `prot` exceeds `max_prot`,
    /// - [`MapError::Exists`], [`MapError::Sealed`], [`MapError::NoSpace`], [`MapError::TooMany`],
    ///   [`MapError::OutOfMemory`].
    ///
    /// After an error nothing has changed.
    pub fn map(&self, r: &MapRequest<'_, M>) -> Result<u64, MapError> {
        let mut span = Span::begin(EventKind::Map, 0, r.len);
        let result = self.with_memory(|| self.map_once(r));
        span.count(result.unwrap_or(0), r.len);
        result
    }

    fn map_once(&self, r: &MapRequest<'_, M>) -> Result<u64, MapError> {
        let page = validate(self.vm(), r)?;
        let made;
        let object = match r.object {
            Some((object, _)) => Some(object),
            None if r.shared => {
                made = ObjectRef::anonymous(self.vm(), r.len / PAGE_SIZE)?;
                Some(&made)
            }
            None => None,
        };
        let (writer, range) = self.place_new(r.at, r.len)?;

        let mut flags = Flags::empty();
        flags.set(Flags::SHARED, r.shared);
        flags.set(Flags::GROWS_DOWN, r.grows_down);
        // A private mapping of an object needs an anonymous front (a first layer for the copied pages) only if it
        // allows stores. Otherwise its front backing maps the object itself.
        let add_front = object.is_some() && !r.shared && r.prot.contains(Prot::WRITE);
        flags.set(Flags::FILE, object.is_some() && !r.shared);
        flags.set(Flags::NEEDS_FRONT, object.is_some() && !r.shared && !add_front);
        let wire = if r.wire == Wire::No { self.future() } else { r.wire };
        flags |= wire.flags();
        let attributes = Attributes { prot: r.prot, max_prot: r.max_prot, flags, tag: r.tag };

        let mut update = Update::new(self, writer, range);
        update.show(object.map(|o| (o, page)));
        let in_the_way = update.unmapped_in(range);
        if in_the_way != Ok(0) && !matches!(r.at, Placement::Fixed(_)) {
            return Err(MapError::Exists);
        }
        let in_the_way = in_the_way?;
        if self.exceeds(range.len() - in_the_way, &attributes) || !update.charge_commit(range, &attributes) {
            return Err(MapError::NoSpace);
        }
        update.outside_before(range)?;
        if in_the_way == 0 {
            update.lean_on_previous(attributes);
        }
        let from = if object.is_some() { ChainSource::Object } else { ChainSource::Empty };
        let mut piece = Piece::new(range, attributes, from);
        piece.add_front = add_front;
        update.push(piece)?;
        update.outside_after(range)?;
        if in_the_way == 0 {
            update.lean_on_next(attributes);
        }
        update.apply(if in_the_way == 0 { Work::None } else { Work::Clear(range) })?;

        if wire == Wire::Now {
            // An error is ignored, because a later access returns it.
            let _as_far_as_it_goes = self.make_resident(range);
        } else if r.populate {
            self.populate(range, r.prot, r.shared);
        }
        Ok(range.start)
    }

    /// Makes pages resident as far as possible. Errors are ignored, because later accesses return them. A shared
    /// mapping is populated for loads only, because stores would change the times of its file.
    pub(in crate::map) fn populate(&self, range: VirtRange, prot: Prot, shared: bool) {
        let access = if prot.contains(Prot::WRITE) && !shared {
            Access::Write
        } else if prot.allows(Access::Read) {
            Access::Read
        } else {
            return;
        };
        let _as_far_as_it_goes = self.fault_range(range, access);
    }
}
