//! Operations that change no content: inheritance by forks, dropped page tables, and page-out. Operations on volatile
//! objects and stacks are here too.

use crate::worker::Worker;
use crate::world::{LANE_PAGES, SpaceModel};
use quire_hosted::Simulate;
use quire_hosted::model::{Fate, State};
use quire_vm::map::{Advice, Content, Inherit, MapRequest, Placement};
use quire_vm::tlb::flush::Obligation;
use quire_vm::{FaultError, MapError, PAGE_SIZE, Pmap, Table, VirtRange};

/// The highest byte of each word that is written to the volatile object.
const VOLATILE: u64 = 0x7e << 56;

/// The address of the lanes' stacks, away from all other mappings.
const fn stacks<F: Simulate>() -> u64 {
    ((F::USER.end / 4 * 3) >> 30) << 30
}

impl<F: Simulate> Worker<'_, F> {
    pub fn inherit(&mut self, model: &SpaceModel<F>) {
        let run = self.run(model);
        let only = |included, content| Inherit { included, content };
        let (how, fate) = [
            (Inherit::NONE, Fate::Leave),
            (only(Some(true), None), Fate::Unknown),
            (only(None, Some(Content::Zero)), Fate::Wipe),
            (only(None, Some(Content::Copy)), Fate::Unknown),
            (Inherit::COPY, Fate::Keep),
            (Inherit::SHARE, Fate::Keep),
        ][self.random(6)];
        self.doing = format!("inherit {run:?} {how:?}");
        let mut pages = self.own(model);
        let r = self.range(&run);
        let (done, span) = self.world.during(|| model.space.inherit(r, how));
        // Two flags decide a page's fate together. The model forgets states that it cannot distinguish.
        let known = |old: Fate| match (old, fate) {
            (_, Fate::Keep) => Fate::Keep,
            (Fate::Keep, Fate::Unknown) => Fate::Keep,
            (Fate::Keep, new) => new,
            (old, new) if old == new => old,
            (Fate::Leave, Fate::Unknown) if how.content.is_none() => Fate::Keep,
            (Fate::Wipe, Fate::Unknown) if how.included.is_none() => Fate::Keep,
            _ => Fate::Unknown,
        };
        match done {
            Err(MapError::Invalid) if matches!(how.content, Some(Content::Zero | Content::Share)) => {}
            Err(MapError::OutOfMemory) => self.no_memory(),
            Ok(()) | Err(MapError::NotMapped) => {
                // An unmapped page does not keep the advice.
                for i in run.clone() {
                    let (old, certain) = (pages[i].fate(), pages[i].certain());
                    match certain {
                        Some(State::Unmapped) => {}
                        Some(_) => pages[i].set_fate(known(old), span),
                        None => pages[i].set_fate(Fate::Unknown, span),
                    }
                }
                self.whole(model, &mut pages, run, span, done, |s| s);
            }
            Err(e) => self.wrong(&format!("failed: {e:?}")),
        }
    }

    /// Drops a leaf, which a later fault enters again: page tables are only a cache of the map.
    pub fn forget(&mut self, model: &SpaceModel<F>) {
        let (lane, i) = self.elsewhere(model);
        let va = self.world.va(lane, i);
        self.doing = format!("drop the leaf of {i} of lane {lane} at {va:#x} in space {}", model.space.id());
        // SAFETY: the leaf that is removed below comes back by a fault.
        let (vm, pmap) = (self.cpu.vm(), unsafe { model.space.page_tables() });
        let mut owed = Obligation::new(vm, pmap);
        if let Some(mut table) = pmap.next_table(vm, VirtRange { start: va, end: va + PAGE_SIZE }) {
            let _gone = table.remove(va, &mut owed);
        }
        // The leaf stays removed without a flush for as long as an interrupt may take.
        if self.random(4) == 0 {
            std::thread::sleep(std::time::Duration::from_micros(30));
        }
        let _flushed = owed.discharge();
    }

    pub fn page_out(&mut self, model: &SpaceModel<F>) {
        let run = self.run(model);
        self.doing = format!("page out {run:?}");
        let mut pages = self.own(model);
        let r = self.range(&run);
        let (done, span) = self.world.during(|| model.space.advise(r, Advice::PageOut));
        self.whole(model, &mut pages, run, span, done, |s| s);
    }

    pub fn sync(&mut self, model: &SpaceModel<F>) {
        let run = self.run(model);
        self.doing = format!("write {run:?} back");
        let mut pages = self.own(model);
        let r = self.range(&run);
        let waits = self.random(2) == 0;
        let (done, span) = self.world.during(|| if waits { model.space.sync(r) } else { model.space.start_sync(r) });
        self.whole(model, &mut pages, run, span, done, |s| s);
    }

    pub fn drop_tables(&mut self, model: &SpaceModel<F>) {
        self.doing = format!("drop the tables of space {}", model.space.id());
        self.cpu.leave();
        let _refused_while_loaded = model.space.drop_tables();
        self.cpu.enter(&model.space).unwrap();
    }

    /// Stores to every page of the own lane.
    pub fn fill(&mut self, model: &SpaceModel<F>) {
        let mut pages = self.own(model);
        let (start, end) = self.world.mix.focus.unwrap_or((0, LANE_PAGES));
        for i in start..end {
            self.write(model, &mut pages, i);
        }
    }

    pub fn futex_key(&mut self, model: &SpaceModel<F>) {
        let i = self.run(model).start;
        let va = self.world.va(self.lane, i) + 16;
        self.doing = format!("key of {va:#x}");
        let pages = self.own(model);
        let key = model.space.futex_key(va);
        let right = match pages[i].certain() {
            Some(State::Unmapped) => key == Err(FaultError::NotMapped),
            Some(State::Private(..)) => key == Ok((model.space.id(), va)),
            Some(State::Shared(_, o, p)) => {
                let byte = self.world.shared[o].index(self.lane, p) * PAGE_SIZE + 16;
                key.is_ok_and(|(object, at)| at == byte && object != model.space.id())
            }
            None => true,
        };
        if !right {
            self.wrong(&format!("the key is {key:x?}, of {:?}", pages[i].now()));
        }
    }

    /// Writes or discards pages that other CPUs copy, or copies them. A copy must have the contents of one moment, not
    /// later ones.
    pub fn volatile(&mut self, model: &SpaceModel<F>) {
        let object = &self.world.volatile;
        let page = self.random(2) as u64;
        self.doing = format!("use page {page} of the volatile object in space {}", model.space.id());
        match self.random(4) {
            0 => {
                let word = VOLATILE | self.stamp();
                // If there was no memory, nothing was written.
                let _done = object.write::<std::convert::Infallible>(page * PAGE_SIZE, PAGE_SIZE as usize, &mut |to| {
                    (0..to.len()).step_by(8).for_each(|at| assert_eq!(to.copy_from_to(at, &word.to_le_bytes()), 8));
                    Ok(to.len())
                });
            }
            1 => object.discard(page..page + 1),
            _ => {
                let all = MapRequest::private(Placement::Any { hint: 0 }, 2 * PAGE_SIZE);
                let at = match model.space.map(&MapRequest { object: Some((object, 0)), ..all }) {
                    Ok(at) => at,
                    Err(MapError::OutOfMemory) => return self.no_memory(),
                    Err(e) => self.wrong(&format!("map failed: {e:?}")),
                };
                let stamp = self.stamp();
                for va in [at, at + PAGE_SIZE] {
                    if self.store(&model.space, va + 8, stamp).is_err() {
                        continue;
                    }
                    for within in [0, 16, 2048, PAGE_SIZE - 8] {
                        match self.load(&model.space, va + within) {
                            Ok(v) if v == 0 || v & !(u64::MAX >> 8) == VOLATILE => {}
                            Err(FaultError::OutOfMemory) => {}
                            other => self.wrong(&format!("a copy reads as {other:x?} at {within}")),
                        }
                    }
                }
                while model.space.unmap(VirtRange { start: at, end: at + 2 * PAGE_SIZE }).is_err() {
                    self.no_memory();
                    self.cpu.interrupts();
                }
            }
        }
    }

    /// Checks that a stack grows downward, not beyond its limit, keeps its stored words, and can be unmapped.
    pub fn stack(&mut self, model: &SpaceModel<F>) {
        let end = stacks::<F>() + (self.lane as u64 + 1) * (1 << 30);
        let depth = 1 + self.random(40) as u64;
        self.doing = format!("a stack of {depth} pages below {end:#x} in space {}", model.space.id());
        // The lane's lock allows one stack at a time in a space. No other lane uses these addresses, but a child
        // inherits them.
        let _mine = self.own(model);
        let all = VirtRange { start: end - 64 * PAGE_SIZE, end };
        let top = end - 2 * PAGE_SIZE;
        let request = MapRequest { grows_down: true, ..MapRequest::private(Placement::Fixed(top), 2 * PAGE_SIZE) };
        let cleared = model.space.unmap(all).and_then(|()| model.space.map(&request));
        match cleared {
            Ok(_) => {}
            Err(MapError::OutOfMemory) => return self.no_memory(),
            Err(e) => self.wrong(&format!("failed: {e:?}")),
        }
        let stamp = self.stamp();
        for n in 1..=depth {
            let va = top - n * PAGE_SIZE;
            match model.space.grow_stack(va) {
                Ok(()) => {}
                Err(MapError::OutOfMemory) => return self.no_memory(),
                Err(e) => self.wrong(&format!("it does not grow to {va:#x}: {e:?}")),
            }
            if self.store(&model.space, va, stamp + n).is_err() {
                return self.no_memory();
            }
        }
        for n in 1..=depth {
            match self.load(&model.space, top - n * PAGE_SIZE) {
                Ok(v) if v == stamp + n => {}
                Err(FaultError::OutOfMemory) => return self.no_memory(),
                other => self.wrong(&format!("the stored value {n} pages down reads as {other:x?}")),
            }
        }
        self.spend_stamps(depth);
        let far = model.space.grow_stack(top - (16 << 20));
        if far != Err(MapError::NotMapped) {
            self.wrong(&format!("a stack grows beyond its limit: {far:?}"));
        }
        if self.random(2) == 0 && model.space.unmap(all) == Err(MapError::OutOfMemory) {
            self.no_memory();
        }
    }
}
