//! One CPU at work: random operations on its own lane of random spaces, reads and stores in other lanes, forks and
//! exits. A *lane* is the set of pages that only one CPU maps and stamps.

use crate::world::{BLOCK, DEVICE_PART, FILE_PAGES, LANE_PAGES, MIXED_PAGES, Op, SpaceModel, World, file_stamp};
use quire_hosted::model::{Fate, Page, Span, State};
use quire_hosted::{Cpu, Simulate};
use quire_vm::map::{Advice, MapRequest, Move, Placement, Tag};
use quire_vm::sleep::MaySleep;
use quire_vm::{FaultError, MapError, PAGE_SIZE, Prot, VirtRange};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The duration of a step on the simulated clock, in nanoseconds. A run with one CPU uses that clock, because it must
/// not depend on its speed.
const STEP: u64 = 1_000_000;

pub struct Worker<'w, F: Simulate> {
    pub world: &'w World<F>,
    pub cpu: &'w Cpu<F>,
    pub lane: usize,
    seed: u64,
    random: u64,
    /// The number of steps that this worker has begun.
    steps: u64,
    history: History,
    /// The contents of the lane's device registers, if known.
    pub registers: [Option<u64>; DEVICE_PART as usize],
    /// The source of stamps that were not used before.
    stamps: u64,
    /// The worker's last operation, for error messages.
    pub doing: String,
    /// Whether memory was exhausted in this step.
    pub starved: Cell<bool>,
}

/// Digests of a worker's operations and results.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    /// The operations, in order.
    pub asked: Cell<u64>,
    /// The operations' arguments and results, with every value that was read.
    pub results: Cell<u64>,
}

/// Adds `bytes` to the digest (FNV-1a).
fn fold(digest: &Cell<u64>, bytes: &[u8]) {
    digest
        .set(bytes.iter().fold(digest.get(), |d, b| (d ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3).wrapping_add(1)));
}

pub type Pages<'a> = quire_sync::MutexGuard<'a, Vec<Page>>;

/// The addresses of the mappings that CPUs make in their own arenas (ranges of addresses with their own locks).
const ARENAS: Range<u64> = 0x7e80_0000_0000 - (256 << 38)..0x7e80_0000_0000;

pub const RW: Prot = Prot::READ.union(Prot::WRITE);

impl<'w, F: Simulate> Worker<'w, F> {
    pub fn new(world: &'w World<F>, cpu: &'w Cpu<F>, lane: usize, seed: u64) -> Self {
        let seed = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(lane as u64 * 2 + 3) | 1;
        // A CPU without others is not disturbed, because it would yield only to other work of the host.
        if world.lanes > 1 {
            cpu.disturb_every(world.mix.pauses, seed);
        }
        let history = History::default();
        Worker {
            world,
            cpu,
            lane,
            seed,
            random: seed,
            steps: 0,
            history,
            registers: [None; _],
            stamps: 0,
            doing: String::new(),
            starved: Cell::new(false),
        }
    }

    /// Returns the digests of the operations so far, and of their results.
    pub fn history(&self) -> History {
        self.history.clone()
    }

    /// Adds a result to the history.
    pub fn record(&self, answer: &dyn std::fmt::Debug) {
        fold(&self.history.results, format!("{answer:?}").as_bytes());
    }

    /// Seeds the next step. Its random numbers follow only from the seed and the step's number, not from other CPUs.
    fn begin_step(&mut self) {
        // splitmix64 (Steele, Lea, Flood 2014).
        self.steps += 1;
        let z = self.seed.wrapping_add(self.steps.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.random = (z ^ z >> 31) | 1;
        if self.world.lanes == 1 {
            quire_sync::hooks::threads::set_clock(Some(self.steps * STEP));
        }
    }

    pub fn random(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 11) % n as u64) as usize
    }

    pub fn stamp(&mut self) -> u64 {
        self.stamps += 1;
        (self.lane as u64 + 1) << 48 | self.stamps
    }

    /// Counts `n` more stamps as used.
    pub fn spend_stamps(&mut self, n: u64) {
        self.stamps += n;
    }

    #[track_caller]
    pub fn wrong(&self, failure: &str) -> ! {
        panic!("lane {} of {}: {failure}; doing: {}", self.lane, self.world.lanes, self.doing)
    }

    /// Does `steps` random operations.
    pub fn work(&mut self, steps: usize) {
        for step in 0..steps {
            self.begin_step();
            // Mostly one of the first two spaces is used, so that CPUs meet.
            let n = if self.random(3) == 0 { self.random(self.world.spaces.len()) } else { self.random(2) };
            if self.cpu.vm().machine().has_failed() {
                return;
            }
            // At least one space exists. This step uses the space of number `n`, or else the next space that exists.
            let slots = self.world.spaces.len();
            let found = (0..slots).map(|i| (n + i) % slots).find_map(|n| self.world.slot(n).map(|model| (n, model)));
            let Some((n, model)) = found else { continue };
            self.cpu.enter(&model.space).unwrap();
            self.step(&model, n);
            fold(&self.history.results, self.doing.as_bytes());
            if step % 64 == 0 && self.random(2) == 0 {
                // SAFETY: the CPU has loaded these page tables.
                unsafe { self.cpu.idle(model.space.page_tables()) };
            }
            self.cpu.interrupts();
            // Without free memory, operations do nothing but search for memory. So a step that found none sometimes
            // ends its space.
            if self.starved.take() && self.random(4) == 0 {
                self.cpu.leave();
                drop(model);
                self.exit(n);
            }
        }
        self.cpu.leave();
    }

    fn step(&mut self, model: &Arc<SpaceModel<F>>, n: usize) {
        let op = self.mixed_op();
        fold(&self.history.asked, &[op as u8]);
        match op {
            Op::Map => self.map(model),
            Op::Unmap => self.unmap(model),
            Op::Protect => self.protect(model),
            Op::Advise => self.advise(model),
            Op::Remap => self.remap(model),
            Op::Touch => self.touch(model),
            Op::LookAtAll => self.look_at_all(model),
            Op::LookElsewhere => self.look_elsewhere(model),
            Op::StoreElsewhere => self.store_elsewhere(model),
            Op::Object => self.use_the_object(),
            Op::Anywhere => self.anywhere(model),
            Op::Fork => self.fork(model),
            Op::Exit => self.exit(n),
            Op::Speculate => {
                let (lane, i) = self.elsewhere(model);
                self.cpu.speculate(self.world.va(lane, i));
            }
            Op::Inherit => self.inherit(model),
            Op::Forget => self.forget(model),
            Op::PageOut => self.page_out(model),
            Op::DropTables => self.drop_tables(model),
            Op::Fill => self.fill(model),
            Op::Sync => self.sync(model),
            Op::FutexKey => self.futex_key(model),
            Op::Stack => self.stack(model),
            Op::Volatile => self.volatile(model),
            Op::Wire => self.wire(model),
            Op::Device => self.device(model),
            Op::Grow => self.grow(model),
            Op::ShareWithAChild => self.share_with_a_child(model),
            Op::Shorten => self.shorten(model),
            Op::File => self.file(model),
            Op::Hoard => self.use_hoard(model),
        }
    }

    fn mixed_op(&mut self) -> Op {
        let ops = self.world.mix.ops;
        let mut n = self.random(ops.iter().map(|(_, weight)| weight).sum());
        for (op, weight) in ops {
            if n < *weight {
                return *op;
            }
            n -= weight;
        }
        unreachable!("the weights were summed up")
    }

    pub fn random_lane(&mut self) -> usize {
        self.random(self.world.lanes)
    }

    /// Chooses a page of any lane, mostly near the hot spot.
    pub fn elsewhere(&mut self, model: &SpaceModel<F>) -> (usize, usize) {
        if self.random(4) != 0 {
            return model.hot();
        }
        let (start, end) = self.world.mix.focus.unwrap_or((0, LANE_PAGES));
        (self.random_lane(), start + self.random(end - start))
    }

    /// Chooses a run of pages of the own lane whose addresses are consecutive.
    pub fn run(&mut self, model: &SpaceModel<F>) -> Range<usize> {
        let run = self.any_run(model);
        model.heat(self.lane, run.start);
        run
    }

    fn any_run(&mut self, model: &SpaceModel<F>) -> Range<usize> {
        let (lane, page) = model.hot();
        if lane == self.lane && self.random(2) == 0 {
            return page..page + 1;
        }
        let (start, end) = if let Some(focus) = self.world.mix.focus {
            focus
        } else if self.random(2) == 0 {
            let block = self.random(MIXED_PAGES / BLOCK) * BLOCK;
            (block, block + BLOCK)
        } else {
            (MIXED_PAGES, LANE_PAGES)
        };
        let a = start + self.random(end - start);
        let most = if self.random(4) == 0 { end - a } else { (end - a).min(6) };
        a..a + 1 + self.random(most)
    }

    pub fn range(&self, run: &Range<usize>) -> VirtRange {
        let start = self.world.va(self.lane, run.start);
        VirtRange { start, end: start + run.len() as u64 * PAGE_SIZE }
    }

    fn prot(&mut self) -> Prot {
        let all = [RW, RW, RW, Prot::READ, Prot::READ | Prot::EXEC, Prot::empty(), Prot::all()];
        all[self.random(all.len())]
    }

    pub fn own<'m>(&self, model: &'m SpaceModel<F>) -> Pages<'m> {
        model.lanes[self.lane].lock()
    }

    /// Sets the model of the pages of `run` to the result of an operation that ran during `span`.
    pub fn set(
        &self,
        model: &SpaceModel<F>,
        pages: &mut Pages<'_>,
        run: Range<usize>,
        span: Span,
        f: impl Fn(usize, State) -> State,
    ) {
        let (watched, operation) = (model.watched(), Arc::from(self.doing.as_str()));
        self.record(&("done", &run, span.to));
        for i in run {
            pages[i].change(span, watched, |s| f(i, s));
            pages[i].note(span, &operation);
        }
    }

    /// Sets the model of the pages of `run` after an operation that failed half-way: each page is as before, or as `f`
    /// says.
    fn maybe(
        &self,
        model: &SpaceModel<F>,
        pages: &mut Pages<'_>,
        run: Range<usize>,
        span: Span,
        f: impl Fn(State) -> State,
    ) {
        let (watched, operation) = (model.watched(), Arc::from(self.doing.as_str()));
        self.record(&("perhaps", &run, span.to));
        for i in run {
            let mut states = pages[i].now().to_vec();
            states.extend(pages[i].now().iter().map(|s| f(*s)).collect::<Vec<_>>());
            pages[i].become_one_of(states, span, watched);
            pages[i].note(span, &operation);
        }
    }

    pub fn no_memory(&self) {
        self.record(&"no memory");
        self.starved.set(true);
        self.world.counts.out_of_memory.fetch_add(1, Ordering::Relaxed);
    }

    fn map(&mut self, model: &SpaceModel<F>) {
        let run = self.run(model);
        let r = self.range(&run);
        let prot = self.prot();
        let replace = self.random(4) != 0;
        let kind = if self.random(100) < self.world.mix.shared { 1 } else { [0, 2, 2][self.random(3)] };
        let mut request = MapRequest {
            at: if replace { Placement::Fixed(r.start) } else { Placement::FixedNoReplace(r.start) },
            len: r.len(),
            prot,
            max_prot: Prot::all(),
            shared: false,
            object: None,
            grows_down: false,
            tag: Tag::None,
            populate: self.random(8) == 0,
            wire: quire_vm::map::Wire::No,
            unreserved: false,
        };
        let file_at = self.random(FILE_PAGES);
        let (object, part_at) = (self.object(), self.random(self.world.mix.part));
        let end = match kind {
            0 => {
                request.object = Some((&self.world.file, file_at as u64 * PAGE_SIZE));
                FILE_PAGES - file_at
            }
            1 => {
                request.shared = true;
                let o = &self.world.shared[object];
                request.object = Some((&o.object, o.index(self.lane, part_at) * PAGE_SIZE));
                self.world.mix.part - part_at
            }
            _ => usize::MAX,
        };
        let run = run.start..run.end.min(run.start.saturating_add(end));
        request.len = run.len() as u64 * PAGE_SIZE;
        self.doing = format!("map {run:?} of kind {kind}, {prot:?}, replace {replace}");
        let mut pages = self.own(model);
        let (done, span) = self.world.during(|| model.space.map(&request));
        match done {
            Ok(at) if at == r.start => {
                if !replace {
                    for i in run.clone() {
                        if !pages[i].narrow(|s| s == State::Unmapped) {
                            self.wrong("a mapping was replaced against the flag");
                        }
                    }
                }
                let start = run.start;
                self.forget_fates(&mut pages, run.clone(), span);
                self.set(model, &mut pages, run, span, |i, _| match kind {
                    0 => State::Private(prot, file_stamp(file_at + i - start), file_stamp(file_at + i - start)),
                    1 => State::Shared(prot, object, part_at + i - start),
                    _ => State::Private(prot, 0, 0),
                });
                self.world.counts.maps.fetch_add(1, Ordering::Relaxed);
            }
            Ok(_) => self.wrong("a fixed mapping lies elsewhere"),
            Err(MapError::Exists) if !replace => {
                if run.clone().all(|i| pages[i].certain() == Some(State::Unmapped)) {
                    self.wrong("an unmapped range was reported as taken");
                }
            }
            Err(MapError::OutOfMemory) => self.no_memory(),
            Err(e) => self.wrong(&format!("map failed: {e:?}")),
        }
    }

    /// Resets the pages' fates, because forks inherit a new mapping.
    fn forget_fates(&self, pages: &mut Pages<'_>, run: Range<usize>, span: Span) {
        run.for_each(|i| pages[i].set_fate(Fate::Keep, span));
    }

    fn unmap(&mut self, model: &SpaceModel<F>) {
        let run = self.run(model);
        self.doing = format!("unmap {run:?}");
        let mut pages = self.own(model);
        let r = self.range(&run);
        let (done, span) = self.world.during(|| model.space.unmap(r));
        match done {
            Ok(()) => self.set(model, &mut pages, run, span, |_, _| State::Unmapped),
            Err(MapError::OutOfMemory) => self.no_memory(),
            Err(e) => self.wrong(&format!("unmap failed: {e:?}")),
        }
    }

    fn protect(&mut self, model: &SpaceModel<F>) {
        let (run, prot) = (self.run(model), self.prot());
        self.doing = format!("protect {run:?} {prot:?}");
        let mut pages = self.own(model);
        let r = self.range(&run);
        let (done, span) = self.world.during(|| model.space.protect(r, prot));
        self.whole(model, &mut pages, run, span, done, |s| s.with_prot(prot));
    }

    fn advise(&mut self, model: &SpaceModel<F>) {
        let run = self.run(model);
        let advice =
            [Advice::WillNeed, Advice::Free, Advice::DontNeed, Advice::DontNeed, Advice::DontNeed][self.random(5)];
        self.doing = format!("advise {run:?} {advice:?}");
        let mut pages = self.own(model);
        let r = self.range(&run);
        let counts = &self.world.counts;
        if advice == Advice::Free {
            counts.giving_up.fetch_add(1, Ordering::SeqCst);
            if counts.forking.load(Ordering::SeqCst) != 0 {
                counts.giving_up.fetch_sub(1, Ordering::SeqCst);
                return;
            }
        }
        let (done, span) = self.world.during(|| {
            let done = model.space.advise(r, advice);
            if advice == Advice::Free && done != Err(MapError::Invalid) {
                self.clear_up(model, &run);
            }
            done
        });
        if advice == Advice::Free {
            counts.giving_up.fetch_sub(1, Ordering::SeqCst);
            self.doing = format!("{} => {done:?}", self.doing);
            match done {
                // Advice to free does not apply to files and shared memory.
                Err(MapError::Invalid) => return,
                Ok(()) if !run.clone().all(|i| pages[i].narrow(|s| !matches!(s, State::Shared(..)))) => {
                    self.wrong("shared memory was freed")
                }
                _ => {}
            }
        }
        if advice == Advice::WillNeed {
            self.whole(model, &mut pages, run, span, done, |s| s);
            return;
        }
        // The stored words are lost. If the page maps a file, the file's contents return.
        self.whole(model, &mut pages, run, span, done, |s| match s {
            State::Private(p, _, base) => State::Private(p, base, base),
            other => other,
        });
    }

    /// Drops the pages of `run` for certain. Lazily freed pages may keep their contents until they are reclaimed.
    fn clear_up(&self, model: &SpaceModel<F>, run: &Range<usize>) {
        for page in run.clone() {
            let r = self.range(&(page..page + 1));
            loop {
                match model.space.advise(r, Advice::DontNeed) {
                    Err(MapError::OutOfMemory) => self.no_memory(),
                    Ok(()) | Err(MapError::NotMapped) => break,
                    Err(e) => self.wrong(&format!("lazily freed pages cannot be discarded: {e:?}")),
                }
            }
        }
    }

    /// Sets the model after an operation that needs every page of `run` mapped. If the operation failed, each page may
    /// have been changed or not.
    pub fn whole(
        &self,
        model: &SpaceModel<F>,
        pages: &mut Pages<'_>,
        run: Range<usize>,
        span: Span,
        done: Result<(), MapError>,
        f: impl Fn(State) -> State,
    ) {
        match done {
            Ok(()) => {
                for i in run.clone() {
                    if !pages[i].narrow(|s| s != State::Unmapped) {
                        self.wrong("a hole was not noticed");
                    }
                }
                self.set(model, pages, run, span, |_, s| f(s));
            }
            Err(MapError::NotMapped) => {
                if run.clone().all(|i| pages[i].now().iter().all(|s| *s != State::Unmapped)) {
                    self.wrong("a hole was found where there is none");
                }
                self.maybe(model, pages, run, span, f);
            }
            Err(MapError::OutOfMemory) => {
                self.no_memory();
                self.maybe(model, pages, run, span, f);
            }
            Err(e) => self.wrong(&format!("failed: {e:?}")),
        }
    }

    /// Shortens the mappings of a run to its first half.
    fn shrink(&mut self, model: &SpaceModel<F>) {
        let run = self.run(model);
        let half = run.len().div_ceil(2);
        self.doing = format!("shrink {run:?} to {half}");
        let mut pages = self.own(model);
        let r = self.range(&run);
        let (done, span) = self.world.during(|| model.space.remap(r, half as u64 * PAGE_SIZE, Move::No, false));
        let rest = run.start + half..run.end;
        match done {
            Ok(_) => self.set(model, &mut pages, rest, span, |_, _| State::Unmapped),
            Err(MapError::NotMapped | MapError::Invalid) => {}
            Err(MapError::OutOfMemory) => {
                self.no_memory();
                self.maybe(model, &mut pages, rest, span, |_| State::Unmapped);
            }
            Err(e) => self.wrong(&format!("failed: {e:?}")),
        }
    }

    /// Moves a run to another place in the lane.
    fn remap(&mut self, model: &SpaceModel<F>) {
        if self.random(4) == 0 {
            return self.shrink(model);
        }
        let (from, to) = (self.run(model), self.run(model));
        let n = from.len().min(to.len());
        let (from, to) = (from.start..from.start + n, to.start..to.start + n);
        if from.start < to.end && to.start < from.end {
            return;
        }
        self.doing = format!("remap {from:?} to {to:?}");
        let mut pages = self.own(model);
        let certain: Vec<Option<State>> = from.clone().map(|i| pages[i].certain()).collect();
        if certain.iter().any(|s| s.is_none()) {
            return;
        }
        let (r, target) = (self.range(&from), self.world.va(self.lane, to.start));
        // The old place may stay mapped. Private memory is then new memory there.
        let keep = self.random(4) == 0;
        let (done, span) = self.world.during(|| model.space.remap(r, r.len(), Move::To(target), keep));
        match done {
            Ok(at) if at == target => {
                if certain.contains(&Some(State::Unmapped)) {
                    self.wrong("a hole was moved");
                }
                let start = to.start;
                let fates: Vec<Fate> = from.clone().map(|i| pages[i].fate()).collect();
                to.clone().for_each(|i| pages[i].set_fate(fates[i - start], span));
                // The mappings at the target are removed first.
                self.set(model, &mut pages, to.clone(), span, |_, _| State::Unmapped);
                self.set(model, &mut pages, to, span, |i, _| certain[i - start].unwrap_or(State::Unmapped));
                self.set(model, &mut pages, from, span, |_, s| match s {
                    State::Private(prot, _, base) if keep => State::Private(prot, base, base),
                    shared if keep => shared,
                    _ => State::Unmapped,
                });
            }
            Ok(_) => self.wrong("it was moved elsewhere"),
            // The range has more than one mapping, or a hole. The call has changed nothing.
            Err(MapError::NotMapped | MapError::Invalid) => {}
            Err(MapError::OutOfMemory) => {
                self.no_memory();
                self.maybe(model, &mut pages, to, span, |_| State::Unmapped);
            }
            Err(e) => self.wrong(&format!("remap failed: {e:?}")),
        }
    }

    /// Makes a mapping at an address that the space chooses, uses it and removes it at once.
    fn anywhere(&mut self, model: &SpaceModel<F>) {
        // The length is at most a block, so that a mapping at the hint stays within one block of the own lane.
        let n = 1 + self.random(BLOCK) as u64;
        let hint = if self.random(2) == 0 { 0 } else { self.world.va(self.lane, 0) };
        self.doing = format!("map {n} pages anywhere, hint {hint:#x}");
        let request = MapRequest {
            at: Placement::Any { hint },
            len: n * PAGE_SIZE,
            prot: RW,
            max_prot: Prot::all(),
            shared: hint == 0 && self.random(3) == 0,
            object: None,
            grows_down: false,
            tag: Tag::None,
            populate: false,
            wire: quire_vm::map::Wire::No,
            unreserved: false,
        };
        // The lane stays locked, because a hint may lead into a hole of it.
        let mut pages = self.own(model);
        let (done, span) = self.world.during(|| model.space.map(&request));
        let at = match done {
            Ok(at) => at,
            Err(MapError::OutOfMemory) => return self.no_memory(),
            Err(e) => self.wrong(&format!("map failed: {e:?}")),
        };
        if ARENAS.contains(&at) {
            self.world.counts.in_arenas.fetch_add(1, Ordering::Relaxed);
        }
        let inside: Vec<usize> =
            (0..LANE_PAGES).filter(|i| (at..at + n * PAGE_SIZE).contains(&self.world.va(self.lane, *i))).collect();
        for i in &inside {
            if !pages[*i].narrow(|s| s == State::Unmapped) {
                self.wrong("a mapping without an address replaced one");
            }
            self.forget_fates(&mut pages, *i..*i + 1, span);
            self.set(model, &mut pages, *i..*i + 1, span, |_, _| State::Private(RW, 0, 0));
        }
        let stamp = self.stamp();
        for p in 0..n {
            match self.load(&model.space, at + p * PAGE_SIZE) {
                Ok(0) | Err(FaultError::OutOfMemory) => {}
                other => self.wrong(&format!("new memory reads as {other:x?} at {:#x}", at + p * PAGE_SIZE)),
            }
        }
        let wrote: Vec<bool> =
            (0..n).map(|p| self.store(&model.space, at + p * PAGE_SIZE + 8, stamp + p).is_ok()).collect();
        for p in (0..n).filter(|p| wrote[*p as usize]) {
            match self.load(&model.space, at + p * PAGE_SIZE + 8) {
                Ok(v) if v == stamp + p => {}
                // The page may have been paged out after the store, and cannot be read in again.
                Err(FaultError::OutOfMemory) => self.no_memory(),
                other => self.wrong(&format!("a stored value reads as {other:x?}")),
            }
        }
        self.stamps += n;
        let r = VirtRange { start: at, end: at + n * PAGE_SIZE };
        loop {
            let (done, span) = self.world.during(|| model.space.unmap(r));
            match done {
                Ok(()) => {
                    for i in inside {
                        self.set(model, &mut pages, i..i + 1, span, |_, _| State::Unmapped);
                    }
                    return;
                }
                Err(MapError::OutOfMemory) => std::thread::yield_now(),
                Err(e) => self.wrong(&format!("unmap failed: {e:?}")),
            }
            self.cpu.interrupts();
        }
    }

    fn fork(&mut self, model: &SpaceModel<F>) {
        let Some(free) = (0..self.world.spaces.len()).find(|n| self.world.slot(*n).is_none()) else { return };
        self.doing = format!("fork space {}", model.space.id());
        let _watch = model.watch();
        let counts = &self.world.counts;
        counts.forking.fetch_add(1, Ordering::SeqCst);
        while counts.giving_up.load(Ordering::SeqCst) != 0 {
            self.cpu.interrupts();
            std::thread::yield_now();
        }
        let (done, span) = self.world.during(|| model.space.fork());
        counts.forking.fetch_sub(1, Ordering::SeqCst);
        let child = match done {
            Ok(child) => child,
            Err(MapError::OutOfMemory) => return self.no_memory(),
            Err(e) => self.wrong(&format!("fork failed: {e:?}")),
        };
        let operation: Arc<str> = self.doing.as_str().into();
        let inherited = |p: &Page| p.inherited(span, &operation);
        let lanes = model.lanes.iter().map(|lane| lane.lock().iter().map(inherited).collect()).collect();
        let child = SpaceModel::new(child, lanes);
        self.world.counts.forks.fetch_add(1, Ordering::Relaxed);
        // The child's first access comes from its parent's CPU. All pages must be mapped in the child.
        self.cpu.enter(&child.space).unwrap();
        self.look_at_all(&child);
        self.unmap_pending_mappings_of_other_lanes(&child);
        let mut slot = self.world.spaces[free].lock();
        if slot.is_none() {
            *slot = Some(child);
        }
    }

    /// Unmaps mappings of the child that lie in no lane. Other lanes had such mappings in the parent at the moment of
    /// the fork.
    fn unmap_pending_mappings_of_other_lanes(&self, child: &SpaceModel<F>) {
        let mut strange = Vec::new();
        child.space.entries(0, &mut |e| {
            if !self.world.is_in_a_lane(e.range.start) {
                strange.push(e.range);
            }
            true
        });
        strange.into_iter().for_each(|range| self.insist(|| child.space.unmap(range)));
    }

    fn exit(&mut self, n: usize) {
        let alive = self.world.spaces.iter().filter(|s| s.lock().is_some()).count();
        if alive > 1 {
            self.doing = format!("exit of slot {n}");
            let gone = self.world.spaces[n].lock().take();
            self.world.counts.exits.fetch_add(u64::from(gone.is_some()), Ordering::Relaxed);
            drop(gone);
            let budget = self.random(64) as u64;
            self.cpu.vm().reap(budget, &mut MaySleep::here());
        }
    }
}
