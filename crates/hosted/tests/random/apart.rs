//! Operations on mappings outside the lanes, while other CPUs do all other operations on the space. There are devices,
//! growing mappings, memory shared with a child, shortened objects, and a file that is written back. Wiring is here
//! too, but works on the lane.

use crate::worker::{RW, Worker};
use crate::world::{DEVICE_PART, FILE_PART, SpaceModel};
use quire_hosted::{Simulate, Simulated};
use quire_vm::map::{Advice, MapRequest, Move, Placement, Space, Wire};
use quire_vm::object::ObjectRef;
use quire_vm::{FaultError, MapError, PAGE_SIZE, Prot, VirtRange};

/// How often a failed write is tried. An injected failure may not happen the next time.
const PATIENCE: u32 = 10_000;

fn anywhere<F: Simulate>(pages: u64) -> MapRequest<'static, Simulated<F>> {
    MapRequest::private(Placement::Any { hint: 0 }, pages * PAGE_SIZE)
}

fn pages(at: u64, n: u64) -> VirtRange {
    VirtRange { start: at, end: at + n * PAGE_SIZE }
}

fn page(at: u64, n: u64) -> u64 {
    at + n * PAGE_SIZE
}

impl<F: Simulate> Worker<'_, F> {
    /// Maps memory as `request` says. Returns the address, or `None` if there is no memory.
    fn try_map(&self, space: &Space<Simulated<F>>, request: &MapRequest<'_, Simulated<F>>) -> Option<u64> {
        match space.map(request) {
            Ok(at) => Some(at),
            Err(MapError::OutOfMemory) => {
                self.no_memory();
                None
            }
            Err(e) => self.wrong(&format!("map failed: {e:?}")),
        }
    }

    /// Repeats `operation` until there is memory for it.
    pub fn insist(&self, operation: impl Fn() -> Result<(), MapError>) {
        loop {
            match operation() {
                Ok(()) => return,
                Err(MapError::OutOfMemory) => self.no_memory(),
                Err(e) => self.wrong(&format!("failed: {e:?}")),
            }
            self.cpu.interrupts();
            std::thread::yield_now();
        }
    }

    /// Loads from `va`, and checks that the result is `want`, unless memory is exhausted.
    fn expect(&self, space: &Space<Simulated<F>>, va: u64, want: u64) {
        match self.load(space, va) {
            Ok(v) if v == want => {}
            Err(FaultError::OutOfMemory) => self.no_memory(),
            other => self.wrong(&format!("{va:#x} reads as {other:x?} instead of {want:#x}")),
        }
    }

    /// Stores `value` to `va`. Returns `false` if there was no memory for it.
    fn put(&self, space: &Space<Simulated<F>>, va: u64, value: u64) -> bool {
        match self.store(space, va, value) {
            Ok(()) => true,
            Err(FaultError::OutOfMemory) => {
                self.no_memory();
                false
            }
            Err(e) => self.wrong(&format!("a store to {va:#x} failed: {e:?}")),
        }
    }

    /// Wires a run, checks that none of it is paged out, and mostly unwires it.
    pub fn wire(&mut self, model: &SpaceModel<F>) {
        let run = self.run(model);
        let how = [Wire::Now, Wire::Now, Wire::OnFault, Wire::No][self.random(4)];
        self.doing = format!("wire {run:?} {how:?}");
        let leave = self.world.hoards.is_empty() && self.random(4) == 0;
        let mut lane = self.own(model);
        let r = self.range(&run);
        let (done, span) = self.world.during(|| model.space.wire(r, how));
        self.whole(model, &mut lane, run, span, done, |s| s);
        if done.is_ok() && how == Wire::Now && model.space.make_resident(r) == Ok(()) {
            // Page-out must not evict any page of it.
            let _done = model.space.advise(r, Advice::PageOut);
            let done = model.space.resident(r, &mut |page, there| {
                if !there {
                    self.wrong(&format!("page {page} of a wired range is not in memory"));
                }
            });
            if done.is_err() {
                self.wrong("a wired range is not mapped");
            }
        }
        // If the range has holes, `wire` reports them, and so does `unwire`.
        if !leave {
            let unwire = || match model.space.wire(r, Wire::No) {
                Err(MapError::NotMapped) if done.is_err() => Ok(()),
                other => other,
            };
            self.insist(unwire);
        }
    }

    /// Maps the lane's registers, uses them, and unmaps them.
    pub fn device(&mut self, model: &SpaceModel<F>) {
        let first = self.lane as u64 * DEVICE_PART;
        self.doing = format!("use the device in space {}", model.space.id());
        let request =
            MapRequest { object: Some((&self.world.device, first * PAGE_SIZE)), shared: true, ..anywhere(DEVICE_PART) };
        let Some(at) = self.try_map(&model.space, &request) else { return };
        for n in 0..DEVICE_PART {
            if let Some(value) = self.registers[n as usize] {
                self.expect(&model.space, page(at, n), value);
            }
            let value = self.stamp();
            if self.put(&model.space, page(at, n), value) {
                self.registers[n as usize] = Some(value);
                self.expect(&model.space, page(at, n), value);
            }
        }
        // No register page can be dropped, and stores fail after the right to store was removed.
        let r = pages(at, DEVICE_PART);
        let _nothing = model.space.advise(r, [Advice::DontNeed, Advice::PageOut][self.random(2)]);
        self.insist(|| model.space.protect(r, Prot::READ));
        match self.store(&model.space, at, 1) {
            Err(FaultError::Protection | FaultError::OutOfMemory) => {}
            other => self.wrong(&format!("a store to a register that may only be read ended as {other:?}")),
        }
        self.insist(|| model.space.unmap(r));
    }

    /// Maps some pages, grows the mapping in place or elsewhere, and shrinks it.
    pub fn grow(&mut self, model: &SpaceModel<F>) {
        let (n, more) = (1 + self.random(6) as u64, 1 + self.random(70) as u64);
        let how = [Move::May, Move::May, Move::No][self.random(3)];
        let keep = 1 + self.random(n as usize) as u64;
        self.doing = format!("grow {n} pages by {more}, {how:?}, in space {}, then shrink to {keep}", model.space.id());
        let Some(mut at) = self.try_map(&model.space, &anywhere(n)) else { return };
        let stamp = self.stamp();
        self.spend_stamps(n + more);
        let stored: Vec<bool> = (0..n).map(|i| self.put(&model.space, page(at, i), stamp + i)).collect();
        let check = |at: u64, stored: &[bool]| {
            for (i, stored) in stored.iter().enumerate() {
                self.expect(&model.space, page(at, i as u64), if *stored { stamp + i as u64 } else { 0 });
            }
        };
        let mut len = n;
        match model.space.remap(pages(at, n), (n + more) * PAGE_SIZE, how, false) {
            Ok(new) => {
                (at, len) = (new, n + more);
                check(at, &stored);
                for i in [n, n + more / 2, n + more - 1] {
                    self.expect(&model.space, page(at, i), 0);
                    if self.put(&model.space, page(at, i), stamp + i) {
                        self.expect(&model.space, page(at, i), stamp + i);
                    }
                    // Two of the three page numbers may be equal, so the page is made empty for its next check.
                    self.insist(|| model.space.advise(pages(page(at, i), 1), Advice::DontNeed));
                }
            }
            // Another mapping begins at the end of this mapping, which cannot grow in place then.
            Err(MapError::NoSpace) if how == Move::No => {}
            Err(MapError::OutOfMemory) => self.no_memory(),
            Err(e) => self.wrong(&format!("remap failed: {e:?}")),
        }
        check(at, &stored);
        // A grown mapping may consist of two mappings. Cut it where the first mapping ends.
        self.insist(|| {
            model.space.unmap(pages(page(at, n), len - n)).or_else(|e| if len == n { Ok(()) } else { Err(e) })
        });
        // From here on other CPUs may map the released addresses.
        let rest = match model.space.remap(pages(at, n), keep * PAGE_SIZE, Move::No, false) {
            Ok(same) if same == at => keep,
            Ok(_) => self.wrong("a range that shrinks has moved"),
            Err(MapError::OutOfMemory) => {
                self.no_memory();
                n
            }
            Err(e) => self.wrong(&format!("it does not shrink: {e:?}")),
        };
        check(at, &stored[..rest as usize]);
        self.insist(|| model.space.unmap(pages(at, rest)));
    }

    /// Shares anonymous memory with a child: each sees the other's stores.
    pub fn share_with_a_child(&mut self, model: &SpaceModel<F>) {
        const PAGES: u64 = 3;
        self.doing = format!("share memory with a child of space {}", model.space.id());
        let Some(at) = self.try_map(&model.space, &MapRequest { shared: true, ..anywhere(PAGES) }) else { return };
        let stamp = self.stamp();
        self.spend_stamps(4);
        let before = self.put(&model.space, at, stamp);
        match model.space.fork() {
            Ok(child) => {
                self.cpu.enter(&child).unwrap();
                self.expect(&child, at, if before { stamp } else { 0 });
                let theirs = self.put(&child, page(at, 1), stamp + 1);
                self.cpu.enter(&model.space).unwrap();
                self.expect(&model.space, page(at, 1), if theirs { stamp + 1 } else { 0 });
                let ours = self.put(&model.space, page(at, 2), stamp + 2);
                self.insist(|| model.space.unmap(pages(at, PAGES)));
                self.cpu.enter(&child).unwrap();
                for (n, stored) in [before, theirs, ours].into_iter().enumerate() {
                    self.expect(&child, page(at, n as u64), if stored { stamp + n as u64 } else { 0 });
                }
                self.cpu.enter(&model.space).unwrap();
                drop(child);
            }
            Err(MapError::OutOfMemory) => {
                self.no_memory();
                self.insist(|| model.space.unmap(pages(at, PAGES)));
            }
            Err(e) => self.wrong(&format!("fork failed: {e:?}")),
        }
    }

    /// Shortens and lengthens an object under a shared and a private mapping of it.
    pub fn shorten(&mut self, model: &SpaceModel<F>) {
        const PAGES: u64 = 12;
        let end = self.random(PAGES as usize) as u64;
        self.doing = format!("shorten an object to {end} pages in space {}", model.space.id());
        let vm = self.cpu.vm();
        let Ok(object) = ObjectRef::anonymous(vm, PAGES) else { return self.no_memory() };
        let of = |shared| MapRequest { object: Some((&object, 0)), shared, ..anywhere(PAGES) };
        let Some(shared) = self.try_map(&model.space, &of(true)) else { return };
        let Some(private) = self.try_map(&model.space, &of(false)) else {
            return self.insist(|| model.space.unmap(pages(shared, PAGES)));
        };
        let stamp = self.stamp();
        self.spend_stamps(2 * PAGES);
        // Every third page is copied to the private mapping before the object changes. The outcome of a failed store is
        // unknown: it may have made a copy that was paged out before the retry.
        let copied: Vec<Option<bool>> = (0..PAGES)
            .map(|n| match n % 3 {
                0 => self.put(&model.space, page(private, n) + 8, stamp + PAGES + n).then_some(true),
                _ => Some(false),
            })
            .collect();
        let stored: Vec<bool> = (0..PAGES).map(|n| self.put(&model.space, page(shared, n), stamp + n)).collect();
        let look = |n: u64| {
            let (own, there) = (copied[n as usize], stored[n as usize]);
            self.expect(&model.space, page(shared, n), if there { stamp + n } else { 0 });
            let Some(own) = own else { return };
            self.expect(&model.space, page(private, n) + 8, if own { stamp + PAGES + n } else { 0 });
            self.expect(&model.space, page(private, n), if there && !own { stamp + n } else { 0 });
        };
        (0..PAGES).for_each(look);
        object.set_size(end * PAGE_SIZE);
        (0..end).for_each(look);
        for va in (end..PAGES).flat_map(|n| [page(shared, n), page(private, n)]) {
            match self.load(&model.space, va) {
                Err(FaultError::BeyondEnd | FaultError::OutOfMemory) => {}
                other => self.wrong(&format!("{va:#x}, beyond the end, reads as {other:x?}")),
            }
        }
        object.set_size(PAGES * PAGE_SIZE);
        (0..end).for_each(look);
        for n in end..PAGES {
            self.expect(&model.space, page(shared, n), 0);
        }
        self.insist(|| model.space.unmap(pages(shared, PAGES)));
        self.insist(|| model.space.unmap(pages(private, PAGES)));
    }

    /// Uses the lane's pages of the file through a mapping, writes them back, pages them out.
    pub fn file(&mut self, model: &SpaceModel<F>) {
        let (file, first) = (&self.world.file_on_disk, self.lane as u64 * FILE_PART);
        self.doing = format!("use the file in space {}", model.space.id());
        let shared = self.random(4) != 0;
        let request = MapRequest { object: Some((file, first * PAGE_SIZE)), shared, ..anywhere(FILE_PART) };
        let Some(at) = self.try_map(&model.space, &request) else { return };
        let known = self.world.on_disk(self.lane);
        for _ in 0..1 + self.random(6) {
            let n = self.random(FILE_PART as usize) as u64;
            self.expect(&model.space, page(at, n), known.get(n));
            if self.random(3) != 0 {
                let value = self.stamp();
                if self.put(&model.space, page(at, n) + if shared { 0 } else { 8 }, value) && shared {
                    known.set(n, value);
                }
            }
        }
        match self.random(3) {
            0 => file.page_out(first..first + FILE_PART),
            1 if shared => {
                let written = (0..PATIENCE).any(|_| match model.space.sync(pages(at, FILE_PART)) {
                    Ok(()) => true,
                    Err(MapError::Pager(_) | MapError::OutOfMemory) => false,
                    Err(e) => self.wrong(&format!("writing back failed: {e:?}")),
                });
                if !written {
                    self.wrong("all writes fail");
                }
                for n in 0..FILE_PART {
                    let (there, want) = (self.world.disk.word(first + n), known.get(n));
                    if there != want {
                        self.wrong(&format!("page {n} was written back, and has {there:#x} instead of {want:#x}"));
                    }
                }
            }
            _ => {}
        }
        for n in 0..FILE_PART {
            self.expect(&model.space, page(at, n), known.get(n));
        }
        self.insist(|| model.space.unmap(pages(at, FILE_PART)));
    }
}

/// A separate program of a lane, which has stored to more pages than there are frames for it.
pub struct Hoard<F: Simulate> {
    space: quire_vm::SpaceRef<Simulated<F>>,
    stamps: Vec<u64>,
}

const HOARD: u64 = 0x1_0000_0000;

impl<F: Simulate> Hoard<F> {
    /// Maps `n` pages in a new space, without a store.
    pub fn new(vm: &'static quire_vm::Vm<Simulated<F>>, n: usize) -> Hoard<F> {
        let space = Space::new(vm).expect("memory at the start");
        let request = MapRequest { prot: RW, ..MapRequest::private(Placement::Fixed(HOARD), n as u64 * PAGE_SIZE) };
        space.map(&request).expect("memory at the start");
        Hoard { space, stamps: vec![0; n] }
    }
}

impl<F: Simulate> Worker<'_, F> {
    /// Stores to every page of the lane's hoard.
    pub fn fill_hoard(&mut self) {
        let Some(mut hoard) = self.world.hoards.get(self.lane).map(|h| h.lock()) else { return };
        self.doing = "fill the hoard".into();
        self.cpu.enter(&hoard.space).unwrap();
        for n in 0..hoard.stamps.len() {
            hoard.stamps[n] = self.stamp();
            while !self.put(&hoard.space, page(HOARD, n as u64), hoard.stamps[n]) {
                self.cpu.interrupts();
                std::thread::yield_now();
            }
        }
        self.cpu.leave();
    }

    /// Reads a run of the hoard and stores to it again. Sometimes a forked child reads it too.
    pub fn use_hoard(&mut self, model: &SpaceModel<F>) {
        let Some(mut hoard) = self.world.hoards.get(self.lane).map(|h| h.lock()) else { return };
        let first = self.random(hoard.stamps.len());
        let run = first..hoard.stamps.len().min(first + 1 + self.random(16));
        let (stores, forks) = (self.random(2) == 0, self.random(40) == 0);
        self.doing = format!("use {run:?} of the hoard");
        self.cpu.enter(&hoard.space).unwrap();
        let child = if forks { hoard.space.fork().ok() } else { None };
        let before = hoard.stamps[run.clone()].to_vec();
        for n in run.clone() {
            self.expect(&hoard.space, page(HOARD, n as u64), hoard.stamps[n]);
            let value = self.stamp();
            if stores && self.put(&hoard.space, page(HOARD, n as u64), value) {
                hoard.stamps[n] = value;
            }
        }
        if let Some(child) = child {
            self.cpu.enter(&child).unwrap();
            run.zip(before).for_each(|(n, stamp)| self.expect(&child, page(HOARD, n as u64), stamp));
            self.cpu.enter(&model.space).unwrap();
        }
        self.cpu.enter(&model.space).unwrap();
    }

    /// Checks that all pages of the hoard hold their last stores.
    pub fn look_at_hoard(&mut self) {
        let Some(hoard) = self.world.hoards.get(self.lane).map(|h| h.lock()) else { return };
        self.doing = "look at the hoard".into();
        self.cpu.enter(&hoard.space).unwrap();
        for (n, stamp) in hoard.stamps.iter().enumerate() {
            self.expect(&hoard.space, page(HOARD, n as u64), *stamp);
        }
        if let Err(broken) = hoard.space.check(false) {
            self.wrong(&broken.to_string());
        }
        self.cpu.leave();
    }
}
