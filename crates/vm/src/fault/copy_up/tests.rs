//! Tests of copy-up with lines of forked generations: the depth of their chains, and the pages that they hold, copy and
//! visit.

use crate::Config;
use crate::FaultKind;
use crate::map::{Space, SpaceRef};
use crate::object::ObjectRef;
use crate::object::backing;
use crate::paging::memory_store::FaultPlan;
use crate::phys::page::FrameKind;
use crate::sleep::MaySleep;
use crate::stats::Event;
use crate::testing::{self, Boot, TestMachine, boot_with, page};
use crate::tests::{Vm, anonymous, held, load, page_out, range, settled, show, store};
use crate::types::{Access, PAGE_SIZE, Prot};

const PAGES: u64 = 256;
/// Number of pages that each generation writes.
const DIRTY: u64 = 8;

/// A machine with a low limit of layers, so that few generations suffice for copy-up.
fn boot(frames: u64) -> Boot {
    let reserve = Some(4);
    boot_with(frames, 2, Config { poison: true, reserve, describe_at_boot: 0, layers: 12, ..Config::default() })
}

/// A line of spaces, each a child of the one before it, and the content that each must have.
struct Line {
    spaces: Vec<SpaceRef<TestMachine>>,
    models: Vec<Vec<u8>>,
    random: u64,
    boot: Boot,
}

impl Line {
    fn new(frames: u64) -> Line {
        quire_sync::hooks::threads::set_cpu(0);
        Line::on(boot(frames))
    }

    fn on(boot: Boot) -> Line {
        let first = Space::new(boot.vm).unwrap();
        anonymous(&first, 0, PAGES);
        (0..PAGES).for_each(|n| store(&first, page(n), n as u8));
        let model = (0..PAGES).map(|n| n as u8).collect();
        Line { spaces: vec![first], models: vec![model], random: 88_172_645_463_325_252, boot }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % n
    }

    /// Forks one more generation, which writes some pages.
    fn next(&mut self) {
        let child = self.spaces.last().unwrap().fork().unwrap();
        let mut model = self.models.last().unwrap().clone();
        for _ in 0..DIRTY {
            let (n, value) = (self.below(PAGES), self.below(256) as u8);
            store(&child, page(n), value);
            model[n as usize] = value;
        }
        self.spaces.push(child);
        self.models.push(model);
    }

    /// The number, counted from `first`, of a page that only the first generation stored into. The number is below 64.
    fn untouched(&self, first: u64) -> u64 {
        let as_at_first = |n: &u64| self.models.iter().all(|m| m[(first + n) as usize] == (first + n) as u8);
        (0..64).find(as_at_first).unwrap()
    }

    fn verify(&self, at: usize) {
        (0..PAGES).for_each(|n| assert_eq!(load(&self.spaces[at], page(n)), self.models[at][n as usize], "page {n}"));
    }

    fn layers(&self, at: usize) -> usize {
        layers(self.boot.vm, &self.spaces[at])
    }

    /// Drops all spaces but the last.
    fn orphan(&mut self) {
        let last = self.spaces.len() - 1;
        self.spaces.drain(..last);
        self.models.drain(..last);
    }

    fn reap(&self) -> u64 {
        let mut seen = 0;
        while self.boot.vm.reapable() {
            seen += self.boot.vm.reap(10_000, &mut MaySleep::here());
        }
        seen
    }

    fn count(&self, event: Event) -> u64 {
        self.boot.vm.stats().total(event)
    }
}

fn layers(vm: &'static Vm, space: &Space<TestMachine>) -> usize {
    let pin = vm.epoch().pin();
    backing::depth(space.lookup(page(0), &pin).unwrap().front())
}

/// The most layers of a chain.
fn most(vm: &'static Vm) -> usize {
    vm.layers()
}

/// Number of pages of all objects.
fn pages(vm: &'static Vm) -> u64 {
    vm.described().filter(|page| page.kind() == FrameKind::Object).count() as u64
}

#[test]
fn living_ancestors_keep_short_chains_and_their_own_memory() {
    let generations = 60;
    let mut line = Line::new(12_000);
    for _ in 0..generations {
        line.next();
        let deep = line.layers(line.spaces.len() - 1);
        assert!(deep <= most(line.boot.vm), "{deep} layers after {DIRTY} stores");
    }
    (0..=generations).for_each(|at| line.verify(at));
    line.spaces.iter().for_each(|s| s.check(true).unwrap());
    let copied = line.count(Event::PageCopiedUp);
    assert!(copied <= DIRTY * generations as u64, "{copied} pages copied up");
}

/// With the default limit, a line of the length that shells and build systems make copies nothing up. Each generation
/// holds only the pages that it stored. A child that reads everything takes one fault for 64 pages behind a deep chain.
#[test]
fn fifty_living_generations_share_what_they_did_not_store() {
    quire_sync::hooks::threads::set_cpu(0);
    let mut line = Line::on(testing::boot(6_000, 2));
    (0..50).for_each(|_| line.next());
    let stored = (PAGES + 50 * DIRTY) as usize;
    assert_eq!(line.count(Event::PageCopiedUp), 0);
    assert!(pages(line.boot.vm) as usize <= stored, "{} pages of {stored}", pages(line.boot.vm));
    let reader = line.spaces.last().unwrap().fork().unwrap();
    let windows = PAGES / 64;
    for window in 0..windows {
        let behind_all = page(window * 64 + line.untouched(window * 64));
        assert_eq!(reader.fault(behind_all, Access::Read), Ok(FaultKind::Resident));
    }
    assert_eq!(reader.stats().resident_pages, PAGES);
    assert_eq!(line.count(Event::FaultAround), PAGES - windows);
    (0..=50).for_each(|at| line.verify(at));
}

/// For each layer of a space's chain, from the front on: how often its pages were copied up.
fn merges(line: &Line, at: usize) -> Vec<u8> {
    let pin = line.boot.vm.epoch().pin();
    let front = line.spaces[at].lookup(page(0), &pin).unwrap().front();
    core::iter::successors(Some(front), |b| b.behind()).map(|b| b.merges()).collect()
}

/// The binomial coefficient C(n, k).
fn choose(n: u64, k: u64) -> u64 {
    (0..k).fold(1, |product, i| product * (n - i) / (i + 1))
}

#[test]
fn a_page_is_copied_again_only_when_there_is_no_other_way() {
    // Either each generation stores into a page of its own, or all store into the same pages. These are 17 pages: too
    // many for a fork to examine whether layers in front hide them (`MOST_HIDDEN`).
    for (pages, generations, each) in [(240, 240, 1), (17, 200, 17)] {
        quire_sync::hooks::threads::set_cpu(0);
        let boot = boot(60_000);
        let first = Space::new(boot.vm).unwrap();
        // The first generation has more pages than all others store into, so no fault copies its layer up.
        anonymous(&first, 0, 2 * generations);
        (0..2 * generations).for_each(|n| store(&first, page(n), 255));
        let mut line = Line { spaces: vec![first], models: Vec::new(), random: 1, boot };
        let (mut worst, mut merged) = (0, 0);
        for g in 0..generations {
            let child = line.spaces.last().unwrap().fork().unwrap();
            (0..each).for_each(|n| store(&child, page((g + n) % pages), g as u8));
            line.spaces.push(child);
            let merges = merges(&line, line.spaces.len() - 1);
            assert!(merges.len() <= most(line.boot.vm));
            merged += u64::from(merges[0] > 0);
            worst = worst.max(u64::from(merges.iter().copied().max().unwrap_or(0)));
            // Each generation has a layer, and the first generation's layer is the last.
            let layers = most(line.boot.vm) as u64 - 1;
            let best = (1..).find(|n| choose(layers + n, *n) > g + 1).unwrap_or(1) - 1;
            assert!(worst <= best, "generation {g}: {merges:?}, and {best} would do");
        }
        assert!(worst > 1, "the rule is put to the test");
        assert!(merged * 3 < generations, "{merged} of {generations} generations merged layers");
        let last = line.spaces.last().unwrap();
        let last_of = |n| (0..generations).rev().find(|g| (n + pages - g % pages) % pages < each).unwrap();
        (0..pages).for_each(|n| assert_eq!(load(last, page(n)), last_of(n) as u8));
        let copied = line.count(Event::PageCopiedUp);
        assert!(copied <= 2 * generations * each, "{copied} copies");
    }
}

#[test]
fn after_ancestors_exit_only_visible_pages_remain() {
    let generations = 200;
    let mut line = Line::new(20_000);
    (0..generations).for_each(|_| line.next());
    line.orphan();
    let seen = line.reap();
    line.verify(0);
    assert!(pages(line.boot.vm) * 100 <= PAGES * 105, "{} pages are held", pages(line.boot.vm));
    let visits = seen + line.count(Event::PageCopiedUp) + line.count(Event::PageMoved);
    assert!(visits <= 8 * DIRTY * generations, "{visits} pages moved, copied up or looked at");
}

#[test]
fn while_ancestors_exit_only_visible_pages_remain() {
    let generations = 200;
    let mut line = Line::new(6_000);
    let mut seen = 0;
    for _ in 0..generations {
        line.next();
        line.orphan();
        seen += line.reap();
        assert!(pages(line.boot.vm) * 100 <= PAGES * 105, "{} pages are held", pages(line.boot.vm));
        assert!(line.layers(0) <= 3);
    }
    line.verify(0);
    let visits = seen + line.count(Event::PageCopiedUp) + line.count(Event::PageMoved);
    assert!(visits <= 8 * DIRTY * generations, "{visits} pages moved, copied up or looked at");
}

#[test]
fn a_cost_that_follows_the_generations_not_their_square() {
    let visits = |generations: u64| {
        let mut line = Line::new(40_000);
        (0..generations).for_each(|_| line.next());
        line.orphan();
        line.reap() + line.count(Event::PageCopiedUp) + line.count(Event::PageMoved)
    };
    let (one, four) = (visits(100), visits(400));
    assert!(four <= 5 * one, "{one} visits for 100 generations, {four} for 400");
}

#[test]
fn a_file_behind_a_deep_chain_stays_where_it_is() {
    quire_sync::hooks::threads::set_cpu(0);
    let m = boot(6_000);
    let file = ObjectRef::anonymous(m.vm, 64).unwrap();
    let mut at = 0u8;
    file.write(0, 64 * PAGE_SIZE as usize, &mut |b| -> Result<_, ()> {
        b.fill(at + 100);
        at += 1;
        Ok(b.len())
    })
    .unwrap();
    let first = Space::new(m.vm).unwrap();
    show(&first, 0, 64, &file, false);
    let mut spaces = vec![first];
    for g in 0..20u64 {
        let child = spaces.last().unwrap().fork().unwrap();
        for n in 0..4 {
            store(&child, page((g * 3 + n) % 32), g as u8);
        }
        spaces.push(child);
    }
    let deep = layers(m.vm, spaces.last().unwrap());
    assert!(deep <= most(m.vm), "{deep} layers");
    for (g, space) in spaces.iter().enumerate() {
        for n in 0..64 {
            let last = (0..g as u64).rev().find(|g| (0..4).any(|k| (g * 3 + k) % 32 == n));
            assert_eq!(load(space, page(n)), last.map_or(n as u8 + 100, |g| g as u8), "page {n} of {g}");
        }
    }
    assert_eq!(file.resident(), 64);
    file.set_size(0);
    let last = spaces.last().unwrap();
    assert_eq!(
        last.fault(page(0), crate::Access::Read),
        Err(crate::FaultError::BeyondEnd),
        "a load beyond the end of the file fails"
    );
}

#[test]
fn discarded_pages_stay_zero_through_a_copy_up() {
    let mut line = Line::new(6_000);
    line.next();
    for g in 0..10 {
        line.next();
        let last = line.spaces.len() - 1;
        let given_up = range(g * 20, 8);
        line.spaces[last].advise(given_up, crate::map::Advice::DontNeed).unwrap();
        (g * 20..g * 20 + 8).for_each(|n| line.models[last][n as usize] = 0);
        line.next();
    }
    (0..line.spaces.len()).for_each(|at| line.verify(at));
    line.orphan();
    line.reap();
    line.verify(0);
}

#[test]
fn a_part_with_other_rights_gets_its_own_short_chain() {
    let mut line = Line::new(12_000);
    line.spaces[0].protect(range(100, 50), Prot::READ).unwrap();
    line.spaces[0].protect(range(100, 50), Prot::READ | Prot::WRITE).unwrap();
    for g in 0..30 {
        line.next();
        let last = line.spaces.len() - 1;
        store(&line.spaces[last], page(120), g);
        line.models[last][120] = g;
        if g == 10 {
            line.spaces[last].protect(range(30, 50), Prot::READ).unwrap();
            line.spaces[last].protect(range(30, 50), Prot::READ | Prot::WRITE).unwrap();
        }
    }
    (0..line.spaces.len()).for_each(|at| line.verify(at));
    line.spaces.iter().for_each(|s| s.check(true).unwrap());
}

#[test]
fn without_memory_a_chain_stays_deep_and_right() {
    let mut line = Line::new(12_000);
    for g in 0..40u64 {
        let child = line.spaces.last().unwrap().fork().unwrap();
        let mut model = line.models.last().unwrap().clone();
        for n in 0..DIRTY {
            // The fault's own copy needs the first allocation. So from the second on, an allocation of copy-up fails.
            line.boot.vm.fail_allocation(2 + (g + n) % 7);
            let (at, value) = ((g * 13 + n * 5) % PAGES, (g + n) as u8);
            while child.fault(page(at), crate::Access::Write).is_err() {}
            line.boot.vm.fail_allocation(0);
            store(&child, page(at), value);
            model[at as usize] = value;
        }
        line.spaces.push(child);
        line.models.push(model);
    }
    (0..line.spaces.len()).for_each(|at| line.verify(at));
}

#[test]
fn a_line_in_swap_holds_only_visible_pages() {
    let generations = 150;
    let mut line = Line::new(8_000);
    let store = line.boot.swap(4096, FaultPlan::default());
    for _ in 0..generations {
        line.next();
        page_out(line.spaces.last().unwrap());
    }
    let deep = line.layers(line.spaces.len() - 1);
    (0..line.spaces.len()).step_by(7).for_each(|at| line.verify(at));
    line.spaces.iter().for_each(|s| page_out(s));
    assert_eq!(pages(line.boot.vm), 0, "everything is in swap");
    assert!(held(line.boot.vm) >= PAGES + DIRTY * generations / 2, "and there is much of it");
    line.orphan();
    let (reads, before) = (store.counts().reads, line.count(Event::PageMoved));
    line.reap();
    assert!(held(line.boot.vm) * 100 <= PAGES * 105, "{} pages and slots are held", held(line.boot.vm));
    // A fork merges the layers without a read from swap.
    let _child = line.spaces[0].fork().unwrap();
    assert!(line.layers(0) <= 3, "{} layers of {deep}", line.layers(0));
    assert!(line.count(Event::PageMoved) > before);
    assert_eq!((store.counts().reads, pages(line.boot.vm)), (reads, 0), "collapse does no I/O");
    line.spaces[0].check(true).unwrap();
    line.verify(0);
    drop(_child);
    line.spaces.clear();
    settled(line.boot.vm);
    assert_eq!(held(line.boot.vm), 0);
}

#[test]
fn only_a_layer_with_pages_in_swap_stays_of_its_run() {
    let mut line = Line::new(8_000);
    line.boot.swap(1024, FaultPlan::default());
    for g in 0..40 {
        line.next();
        if g == 10 || g == 11 {
            page_out(line.spaces.last().unwrap());
        }
    }
    let deep = line.layers(line.spaces.len() - 1);
    assert!(deep <= most(line.boot.vm) + 3, "{deep} layers");
    (0..line.spaces.len()).for_each(|at| line.verify(at));
    line.spaces.iter().for_each(|s| s.check(true).unwrap());
}
