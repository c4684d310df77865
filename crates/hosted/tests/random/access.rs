//! Accesses to the worker's own lane, whose outcome is known; to other lanes, which their owners may be changing; and
//! to objects.

use crate::worker::{Pages, Worker};
use crate::world::{COMMON, LANE_PAGES, SpaceModel, write_stamp};
use quire_hosted::model::{Content, Page, Seen, Span, State};
use quire_hosted::{Simulate, Simulated};
use quire_vm::content::IoError;
use quire_vm::error::PagerError;
use quire_vm::map::Space;
use quire_vm::object::ObjectRef;
use quire_vm::object::index::Slot;
use quire_vm::{Access, FaultError, PAGE_SIZE};
use std::sync::atomic::Ordering;

/// How often a failed access is tried. An injected failure of the pager may not happen the next time.
const PATIENCE: u32 = 10_000;

fn patient<R>(f: impl Fn() -> Result<R, FaultError>) -> Result<R, FaultError> {
    (0..PATIENCE)
        .map(|_| f())
        .find(|r| !matches!(r, Err(FaultError::Pager(_))))
        .unwrap_or(Err(FaultError::Pager(PagerError::Failed)))
}

impl<F: Simulate> Worker<'_, F> {
    pub fn load(&self, space: &Space<Simulated<F>>, va: u64) -> Result<u64, FaultError> {
        patient(|| self.cpu.read(space, va))
    }

    pub fn store(&self, space: &Space<Simulated<F>>, va: u64, value: u64) -> Result<(), FaultError> {
        patient(|| self.cpu.write(space, va, value))
    }

    /// Reads, writes or fetches from one page of the own lane.
    pub fn touch(&mut self, model: &SpaceModel<F>) {
        let i = self.run(model).start;
        let mut pages = self.own(model);
        match self.random(4) {
            0 => self.fetch(model, &mut pages, i),
            1 => self.read(model, &mut pages, i),
            _ => self.write(model, &mut pages, i),
        }
    }

    pub fn seen(&self, r: Result<Option<u64>, FaultError>) -> Seen {
        self.world.counts.accesses.fetch_add(1, Ordering::Relaxed);
        self.record(&r);
        r.map_or_else(
            |e| {
                if e == FaultError::OutOfMemory {
                    self.starved.set(true);
                }
                self.world.counts.faults_failed.fetch_add(1, Ordering::Relaxed);
                Seen::Failed(e)
            },
            Seen::Value,
        )
    }

    pub fn narrow(&self, page: &mut Page, access: Access, seen: Seen) {
        let before = page.clone();
        let content = |o: usize, p: usize| self.world.shared[o].content(self.lane, p);
        if !page.narrow(|s| s.explains(access, seen, content)) {
            let stamps: Vec<_> = before
                .now()
                .iter()
                .filter_map(|s| if let State::Shared(_, o, p) = s { Some(content(*o, *p)) } else { None })
                .collect();
            self.wrong(&format!(
                "{access:?} ended as {seen:x?}, which none of {:x?} explains (shared: {stamps:x?}); before: {:#?}",
                before.now(),
                before.log()
            ));
        }
    }

    pub fn read(&mut self, model: &SpaceModel<F>, pages: &mut Pages<'_>, i: usize) {
        self.doing = format!("read {i} at {:#x} in space {}", self.world.va(self.lane, i), model.space.id());
        let r = self.load(&model.space, self.world.va(self.lane, i)).map(Some);
        let seen = self.seen(r);
        self.narrow(&mut pages[i], Access::Read, seen);
    }

    pub fn fetch(&mut self, model: &SpaceModel<F>, pages: &mut Pages<'_>, i: usize) {
        self.doing = format!("fetch {i} at {:#x} in space {}", self.world.va(self.lane, i), model.space.id());
        let r = patient(|| self.cpu.execute(&model.space, self.world.va(self.lane, i))).map(|()| None);
        let seen = self.seen(r);
        self.narrow(&mut pages[i], Access::Exec, seen);
    }

    pub fn write(&mut self, model: &SpaceModel<F>, pages: &mut Pages<'_>, i: usize) {
        let stamp = self.stamp();
        let va = self.world.va(self.lane, i);
        self.doing = format!("write {i} at {va:#x} in space {}", model.space.id());
        let (r, span) = self.world.during(|| self.store(&model.space, va, stamp).map(|()| None));
        let seen = self.seen(r);
        self.narrow(&mut pages[i], Access::Write, seen);
        if let Seen::Value(_) = seen {
            // The stamp is recorded only if it is certain that the store went to a shared page. Otherwise later reads
            // show which candidate was true.
            for s in pages[i].now() {
                if let State::Shared(_, o, p) = s
                    && pages[i].certain().is_some()
                {
                    self.world.shared[*o].stamp(self.lane, *p).store(stamp, Ordering::Relaxed);
                }
            }
            let uncertain = pages[i].certain().is_none();
            if uncertain && pages[i].now().iter().any(|s| matches!(s, State::Shared(..))) {
                self.find_out(model, &mut pages[i], va, stamp);
            }
            self.set(model, pages, i..i + 1, span, |_, s| match s {
                State::Private(p, _, base) => State::Private(p, stamp, base),
                other => other,
            });
            self.read(model, pages, i);
        }
    }

    /// Decides whether a store went to a private or a shared page, by reading the objects' pages.
    pub fn find_out(&self, _model: &SpaceModel<F>, page: &mut Page, _va: u64, stamp: u64) {
        let in_object = |o: usize, p: usize| {
            let shared = &self.world.shared[o];
            read_stamp(&shared.object, shared.index(self.lane, p)) == Some(stamp)
        };
        if !page.narrow(|s| match s {
            State::Shared(_, o, p) => in_object(o, p),
            _ => true,
        }) {
            self.wrong("a store to shared memory did not reach the object");
        }
        let found = page.now().iter().find_map(|s| if let State::Shared(_, o, p) = s { Some((*o, *p)) } else { None });
        if let Some((o, p)) = found {
            page.narrow(|s| matches!(s, State::Shared(_, so, sp) if (so, sp) == (o, p)));
            self.world.shared[o].stamp(self.lane, p).store(stamp, Ordering::Relaxed);
        }
    }

    pub fn look_at_all(&mut self, model: &SpaceModel<F>) {
        let mut pages = self.own(model);
        let (start, end) = self.world.mix.focus.unwrap_or((0, LANE_PAGES));
        for i in start..end {
            self.read(model, &mut pages, i);
        }
    }

    /// Reads the stamp of a page of another lane. The lane's owner may be changing the page.
    pub fn look_elsewhere(&mut self, model: &SpaceModel<F>) {
        let (lane, i) = self.elsewhere(model);
        let va = self.world.va(lane, i);
        self.doing = format!("look at {i} of lane {lane} at {va:#x} in space {}", model.space.id());
        let _watch = model.watch();
        let (r, span) = self.world.during(|| self.load(&model.space, va).map(Some));
        let seen = self.seen(r);
        self.check_elsewhere(model, lane, i, Access::Read, seen, span);
    }

    pub fn check_elsewhere(
        &self,
        model: &SpaceModel<F>,
        lane: usize,
        i: usize,
        access: Access,
        seen: Seen,
        span: Span,
    ) {
        let page = model.lanes[lane].lock()[i].clone();
        let states = page.during(span);
        // The shared page's stamp at that moment is not known, but its owner is.
        let own = |v: u64| v == 0 || v >> 48 == lane as u64 + 1;
        let shared = |_, _| match seen {
            Seen::Value(Some(v)) if !own(v) => Content::Stamp(!v),
            _ => Content::Unknown,
        };
        if !states.iter().any(|s| s.explains(access, seen, shared)) {
            let log = page.log();
            self.wrong(&format!(
                "{access:?} ended as {seen:x?} in {span:?}, which none of {states:x?} explains: {log:#?}"
            ));
        }
    }

    /// Stores to the word beside the stamp of a page of another lane. The stamp of the lane's owner must not change.
    pub fn store_elsewhere(&mut self, model: &SpaceModel<F>) {
        let (lane, i) = self.elsewhere(model);
        let beside = self.world.va(lane, i) + 512 + self.lane as u64 * 8;
        self.doing = format!("store beside {i} of lane {lane} at {beside:#x} in space {}", model.space.id());
        let value = self.stamp();
        let _watch = model.watch();
        let (r, span) = self.world.during(|| self.store(&model.space, beside, value).map(|()| None));
        let seen = self.seen(r);
        self.check_elsewhere(model, lane, i, Access::Write, seen, span);
        // The upper bits of each word beside a stamp are the number of the CPU that stored it.
        let other = self.random_lane();
        let va = self.world.va(lane, i) + 512 + other as u64 * 8;
        if let Ok(v) = self.load(&model.space, va)
            && v != 0
            && v >> 48 != other as u64 + 1
        {
            self.wrong(&format!("{va:#x} holds {v:#x}, a value that no CPU stored there"));
        }
    }

    /// Chooses one of the objects that the lane uses.
    pub fn object(&mut self) -> usize {
        // In a mix about objects' ends this is mostly the lane's own object.
        match if self.world.mix.own && self.random(4) != 0 { COMMON } else { self.random(COMMON + 1) } {
            COMMON => COMMON + self.lane,
            common => common,
        }
    }

    /// Checks that the own object has no page beyond its end, except pages that a CPU is about to remove.
    fn no_page_beyond_the_end(&self, o: usize) {
        let (shared, vm) = (&self.world.shared[o], self.cpu.vm());
        for p in (0..self.world.mix.part).filter(|p| !shared.has(*p)) {
            let stays = || {
                let pin = vm.epoch().pin();
                // SAFETY: the index is only read, under a pin of its own system.
                let index = unsafe { shared.object.page_index() };
                match index.get(shared.index(self.lane, p), &pin) {
                    // SAFETY: the index names frames of this system, and the descriptor's state is only read.
                    Slot::Page(pfn) => !unsafe { vm.descriptor(pfn) }.state().busy(),
                    _ => false,
                }
            };
            if stays() {
                self.wrong(&format!("page {p} of object {o} is there, and the object ends before it"));
            }
        }
    }

    /// Reads, writes or discards a page of the own part of a shared object, without a mapping. Or changes the size of
    /// the own object.
    pub fn use_the_object(&mut self) {
        let (o, p) = (self.object(), self.random(self.world.mix.part));
        let shared = &self.world.shared[o];
        let index = shared.index(self.lane, p);
        self.doing = format!("use page {p} of object {o}");
        if shared.is_own() && self.random(2) == 0 {
            self.no_page_beyond_the_end(o);
            shared.resize(self.random(self.world.mix.part + 1));
            self.no_page_beyond_the_end(o);
            return;
        }
        match self.random(3) {
            0 => {
                let (got, known) = (read_stamp(&shared.object, index), shared.content(self.lane, p));
                if got.map_or(Content::Beyond, Content::Stamp) != known {
                    self.wrong(&format!("the object has {got:x?} where there should be {known:x?}"));
                }
            }
            1 if shared.has(p) => {
                let stamp = self.stamp();
                if write_stamp(&shared.object, index, stamp).is_ok_and(|n| n == 8) {
                    shared.stamp(self.lane, p).store(stamp, Ordering::Relaxed);
                }
            }
            1 => {}
            _ => {
                let end = p + 1 + self.random((self.world.mix.part - p).min(4));
                shared.object.discard(index..shared.index(self.lane, end - 1) + 1);
                (p..end).for_each(|p| shared.stamp(self.lane, p).store(0, Ordering::Relaxed));
            }
        }
    }
}

/// Returns the stamp of a page; `None` beyond the object's end.
fn read_stamp<F: Simulate>(object: &ObjectRef<Simulated<F>>, page: u64) -> Option<u64> {
    let mut stamp = 0;
    let read = object.read::<std::convert::Infallible>(page * PAGE_SIZE, 8, &mut |from| {
        let mut word = [0; 8];
        let n = from.copy_to(&mut word);
        stamp = u64::from_le_bytes(word);
        Ok(n)
    });
    match read {
        Ok(8) => Some(stamp),
        Ok(0) => None,
        Err(IoError::Pager(_) | IoError::OutOfMemory) => read_stamp(object, page),
        other => panic!("an object's page cannot be read: {other:?}"),
    }
}
