//! Tests of the last sharer. If every space writes every page, exactly one copy of a page exists for each space.

use crate::map::{Advice, Move, Space, SpaceRef};
use crate::object::mapping_list::looks;
use crate::paging::memory_store::FaultPlan;
use crate::phys::page::FrameKind;
use crate::sleep::MaySleep;
use crate::stats::Event;
use crate::stats::FaultKind;
use crate::testing::{Boot, TestMachine, boot, page};
use crate::tests::{Vm, anonymous, held, load, page_out, range, settled, store};
use crate::types::{PAGE_SIZE, Prot};

const PAGES: u64 = 64;
const CHILDREN: u64 = 100;

/// A parent that wrote every page, and its children.
struct Family {
    parent: Option<SpaceRef<TestMachine>>,
    children: Vec<SpaceRef<TestMachine>>,
    boot: Boot,
}

/// Pseudo-random numbers, which are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// The value that space `member` writes (0: the parent, before any fork; 1: the parent; 2 and up: children).
fn value(member: u64, n: u64) -> u8 {
    (member * 31 + n * 7 + 1) as u8
}

fn family(children: u64) -> Family {
    quire_sync::hooks::threads::set_cpu(0);
    let boot = boot((children + 2) * (PAGES + 40) + 2048, 2);
    let parent = Space::new(boot.vm).unwrap();
    anonymous(&parent, 0, PAGES);
    (0..PAGES).for_each(|n| store(&parent, page(n), value(0, n)));
    let children = (0..children).map(|_| parent.fork().unwrap()).collect();
    Family { parent: Some(parent), children, boot }
}

/// Number of pages of all objects.
fn pages(vm: &'static Vm) -> u64 {
    vm.described().filter(|page| page.kind() == FrameKind::Object).count() as u64
}

fn reap(vm: &'static Vm) -> u64 {
    let mut may = MaySleep::here();
    let mut seen = 0;
    while vm.reapable() {
        seen += vm.reap(1000, &mut may);
    }
    seen
}

impl Family {
    fn member(&self, member: u64) -> Option<&SpaceRef<TestMachine>> {
        if member == 1 { self.parent.as_ref() } else { self.children.get(member as usize - 2) }
    }

    /// Every member writes every page, in an order that follows from `seed`. `between` is called before each store.
    fn rewrite(&mut self, seed: u64, mut between: impl FnMut(&mut Family, u64)) {
        let members = self.children.len() as u64 + 1;
        let mut stores: Vec<(u64, u64)> =
            (1..=members).flat_map(|member| (0..PAGES).map(move |n| (member, n))).collect();
        Random(seed).shuffle(&mut stores);
        for (at, (member, n)) in stores.into_iter().enumerate() {
            between(self, at as u64);
            if let Some(space) = self.member(member) {
                assert!([value(0, n), value(member, n)].contains(&load(space, page(n))), "the value at the fork");
                store(space, page(n), value(member, n));
            }
        }
    }

    fn verify(&self) {
        for member in 1..=self.children.len() as u64 + 1 {
            if let Some(space) = self.member(member) {
                (0..PAGES).for_each(|n| assert_eq!(load(space, page(n)), value(member, n), "page {n} of {member}"));
            }
        }
    }
}

#[test]
fn a_page_that_all_sharers_copy_has_one_copy_per_chain() {
    let mut f = family(CHILDREN);
    let (vm, before) = (f.boot.vm, pages(f.boot.vm));
    assert_eq!(before, PAGES);
    f.rewrite(7, |_, _| {});
    assert_eq!(pages(vm), (CHILDREN + 1) * PAGES, "one copy for each chain, and no original");
    // No other thread stores at the same time. So the last sharer need not copy, and nothing is destroyed.
    assert_eq!(vm.stats().faults_of(FaultKind::Move), PAGES);
    assert_eq!(vm.stats().faults_of(FaultKind::Copy), CHILDREN * PAGES, "one copy fewer than chains");
    assert_eq!(vm.stats().total(Event::PageShadowed), 0);
    f.verify();
}

#[test]
fn parent_or_child_copies_and_the_other_takes_the_page() {
    let f = family(1);
    let (vm, parent, child) = (f.boot.vm, f.parent.as_ref().unwrap(), &f.children[0]);
    let frames = |space: &Space<TestMachine>| -> Vec<_> {
        (0..PAGES).map(|n| space.pmap().peek(page(n)).map(|l| l.pfn)).collect()
    };
    let before = frames(parent);
    (0..PAGES).step_by(2).for_each(|n| store(child, page(n), value(2, n)));
    for n in 0..PAGES {
        assert_eq!(load(parent, page(n)), value(0, n));
        store(parent, page(n), value(1, n));
    }
    // The child copied half of the pages, and the originals of these moved to the parent. The parent copied the other
    // half.
    let after = frames(parent);
    assert!((0..PAGES as usize).all(|n| (before[n] == after[n]) == (n % 2 == 0)));
    (1..PAGES).step_by(2).for_each(|n| store(child, page(n), value(2, n)));
    assert_eq!(vm.stats().faults_of(FaultKind::Move), PAGES, "every second copy is saved");
    assert_eq!(vm.stats().faults_of(FaultKind::Copy), PAGES);
    assert_eq!(pages(vm), 2 * PAGES);
    f.verify();
    [parent, child].iter().for_each(|s| assert!(s.check(true).is_ok()));
}

#[test]
fn where_the_parent_leaves_there_is_a_copy_for_each_child() {
    for leaves_at in [0, CHILDREN * PAGES / 2, CHILDREN * PAGES] {
        let mut f = family(CHILDREN);
        let vm = f.boot.vm;
        f.rewrite(9 + leaves_at, |f, at| {
            if at == leaves_at {
                f.parent = None;
            }
        });
        reap(vm);
        assert_eq!(pages(vm), CHILDREN * PAGES);
        f.verify();
    }
}

#[test]
fn children_that_leave_take_nothing_with_them_that_others_see() {
    let mut f = family(20);
    let vm = f.boot.vm;
    let mut random = Random(5);
    f.rewrite(11, |f, at| {
        if at % 97 == 50 && f.children.len() > 3 {
            let gone = random.below(f.children.len() as u64) as usize;
            // A member that exits is replaced by a new space in which all pages are written, so that the other members
            // keep their numbers.
            f.children[gone] = Space::new(f.boot.vm).unwrap();
            anonymous(&f.children[gone], 0, PAGES);
            (0..PAGES).for_each(|n| store(&f.children[gone], page(n), value(gone as u64 + 2, n)));
        }
        if at % 211 == 0 {
            reap(f.boot.vm);
        }
    });
    reap(vm);
    assert_eq!(pages(vm), 21 * PAGES);
    f.verify();
}

#[test]
fn clipped_and_moved_ranges_hide_pages_as_whole_ones_do() {
    let mut f = family(6);
    let vm = f.boot.vm;
    f.children[0].protect(range(10, 20), Prot::READ).unwrap();
    f.children[0].protect(range(10, 20), Prot::READ | Prot::WRITE).unwrap();
    f.children[1].remap(range(16, 16), 16 * PAGE_SIZE, Move::To(page(200)), false).unwrap();
    f.children[1].remap(range(200, 16), 16 * PAGE_SIZE, Move::To(page(16)), false).unwrap();
    f.children[2].protect(range(3, 5), Prot::READ).unwrap();
    f.rewrite(3, |f, at| match at {
        40 => f.children[3].protect(range(20, 30), Prot::READ).unwrap(),
        60 => f.children[3].protect(range(20, 30), Prot::READ | Prot::WRITE).unwrap(),
        0 => f.children[2].protect(range(3, 5), Prot::READ | Prot::WRITE).unwrap(),
        _ => {}
    });
    assert_eq!(pages(vm), 7 * PAGES);
    f.verify();
}

#[test]
fn an_unmapped_part_does_not_keep_the_rest_from_being_freed() {
    let mut f = family(2);
    let vm = f.boot.vm;
    f.children[0].unmap(range(0, 32)).unwrap();
    for n in 0..PAGES {
        store(f.parent.as_ref().unwrap(), page(n), 1);
        store(&f.children[1], page(n), 2);
    }
    reap(vm);
    assert_eq!(pages(vm), 2 * PAGES + 32, "the child sees the half that it kept");
    f.children.remove(0);
    reap(vm);
    assert_eq!(pages(vm), 2 * PAGES);
}

#[test]
fn discard_advice_never_brings_old_data_back() {
    let mut f = family(2);
    let vm = f.boot.vm;
    f.children[0].advise(range(0, PAGES / 2), Advice::DontNeed).unwrap();
    for n in 0..PAGES {
        store(f.parent.as_ref().unwrap(), page(n), 1);
        store(&f.children[1], page(n), 2);
    }
    assert_eq!(pages(vm), 2 * PAGES + PAGES / 2);
    f.children[0].advise(range(PAGES / 2, PAGES / 2), Advice::DontNeed).unwrap();
    reap(vm);
    assert_eq!(pages(vm), 2 * PAGES, "a zero marker hides as a page does");
    assert!((0..PAGES).all(|n| load(&f.children[0], page(n)) == 0));
    f.children[0].advise(range(0, PAGES), Advice::DontNeed).unwrap();
    f.parent = None;
    reap(vm);
    assert!((0..PAGES).all(|n| load(&f.children[0], page(n)) == 0));
    assert!((0..PAGES).all(|n| load(&f.children[1], page(n)) == 2));
}

#[test]
fn the_reaper_checks_written_pages_and_not_all_pages() {
    let f = family(0);
    let (vm, parent) = (f.boot.vm, f.parent.as_ref().unwrap());
    let mut seen = 0;
    for i in 0..100 {
        let child = parent.fork().unwrap();
        (0..PAGES).for_each(|n| store(&child, page(n), 9));
        store(parent, page(i % PAGES), i as u8);
        drop(child);
        seen += reap(vm);
    }
    assert!(seen <= 100 * 8, "{seen} pages looked at");
    assert_eq!(pages(vm), PAGES);
}

#[test]
fn a_pass_that_runs_out_of_its_budget_goes_on_where_it_was() {
    let mut f = family(2);
    let vm = f.boot.vm;
    for n in 0..PAGES {
        store(&f.children[0], page(n), 1);
        store(&f.children[1], page(n), 2);
    }
    f.parent = None;
    assert_eq!(pages(vm), 3 * PAGES);
    let mut passes = 0;
    while vm.reapable() {
        vm.reap(1, &mut MaySleep::here());
        passes += 1;
        assert!(passes < 1000);
    }
    assert_eq!(pages(vm), 2 * PAGES);
}

#[test]
fn the_last_sharer_leaves_no_pages() {
    let mut f = family(9);
    let vm = f.boot.vm;
    f.rewrite(23, |_, _| {});
    f.parent = None;
    f.children.truncate(3);
    f.children.clear();
    assert!(!vm.reapable(), "objects that are gone are on no list");
    assert_eq!(pages(vm), 0);
    settled(vm);
}

#[test]
fn hidden_pages_are_freed_under_pressure_without_swap() {
    const N: u64 = 150;
    let boot = boot(512, 2);
    let vm = boot.vm;
    let space = Space::new(vm).unwrap();
    anonymous(&space, 0, N);
    (0..N).for_each(|n| store(&space, page(n), 1));
    let child = space.fork().unwrap();
    (0..N).for_each(|n| store(&space, page(n), 2));
    drop(child);
    assert!(vm.reapable());
    let other = Space::new(vm).unwrap();
    let more = vm.frames().free() - vm.frames().reserve() + N / 2;
    anonymous(&other, 0, more);
    for n in 0..more {
        assert!(other.fault(page(n), crate::Access::Write).is_ok(), "page {n} of {more}");
    }
    assert!((0..N).all(|n| load(&space, page(n)) == 2));
}

#[test]
fn an_object_that_is_gone_is_not_left_to_the_reaper() {
    let f = family(1);
    let vm = f.boot.vm;
    let pin = vm.epoch().pin();
    let shown = vm.described().find(|p| p.kind() == FrameKind::Object).unwrap();
    let object = vm.object_of(shown, &pin).unwrap();
    let (parent, children) = (f.parent, f.children);
    std::thread::scope(|s| {
        s.spawn(move || {
            quire_sync::hooks::threads::set_cpu(1);
            drop((parent, children));
        });
    });
    // A fault may find an object and mark it for the reaper, while only the fault's pin keeps the object alive.
    vm.reaper().flag(object);
    assert!(!vm.reapable());
    drop(pin);
    settled(vm);
}

/// A family as in the tests above, with a swap store.
fn family_in_swap(children: u64, plan: FaultPlan) -> Family {
    let f = family(children);
    f.boot.swap((children + 2) * PAGES, plan);
    f
}

#[test]
fn under_swap_pressure_each_sharer_has_its_copy() {
    let awkward = FaultPlan { delay: 3, window: 5, seed: 99, ..FaultPlan::default() };
    for (plan, parent_stays) in [(FaultPlan::default(), true), (awkward, true), (awkward, false)] {
        let mut f = family_in_swap(CHILDREN, plan);
        let vm = f.boot.vm;
        f.rewrite(17, |f, at| {
            if at % 90 == 0 {
                // Page out the parent's layers, which all members show, and one child's own layer.
                page_out(f.member(1).unwrap_or(&f.children[0]));
                page_out(&f.children[at as usize / 90 % CHILDREN as usize]);
            }
            if at == CHILDREN * PAGES / 2 && !parent_stays {
                f.parent = None;
            }
        });
        vm.finish_io(&mut MaySleep::here());
        reap(vm);
        assert!(vm.stats().total(Event::SwapOut) > 10 * PAGES, "there was pressure");
        assert_eq!(held(vm), (CHILDREN + u64::from(parent_stays)) * PAGES, "one copy for each chain, and no original");
        f.verify();
        f.children.iter().for_each(|s| s.check(true).unwrap());
        f.parent = None;
        f.children.clear();
        vm.finish_io(&mut MaySleep::here());
        assert_eq!((held(vm), vm.swap().free()), (0, vm.swap().total()));
    }
}

#[test]
fn a_page_that_is_hidden_while_it_is_in_swap_gives_its_slot_up() {
    let mut f = family_in_swap(3, FaultPlan::default());
    let vm = f.boot.vm;
    for n in 0..PAGES {
        store(&f.children[0], page(n), 1);
        store(&f.children[1], page(n), 2);
        store(f.parent.as_ref().unwrap(), page(n), 3);
    }
    page_out(&f.children[2]);
    assert_eq!(held(vm), 4 * PAGES);
    let reads = vm.stats().total(Event::SwapIn);
    // The last space that sees the pages ceases to see them: one half by `MADV_DONTNEED`, the other by an exit.
    f.children[2].advise(range(0, PAGES / 2), Advice::DontNeed).unwrap();
    reap(vm);
    assert_eq!(held(vm), 3 * PAGES + PAGES / 2);
    assert!((0..PAGES / 2).all(|n| load(&f.children[2], page(n)) == 0), "a zero marker stays a zero marker");
    f.children.pop();
    reap(vm);
    assert_eq!((held(vm), vm.stats().total(Event::SwapIn)), (3 * PAGES, reads), "and nothing is read for it");
    assert!((0..PAGES).all(|n| (load(&f.children[0], page(n)), load(&f.children[1], page(n))) == (1, 2)));
}

/// The numbers of backings that were looked at in three phases. First all `sharers` copy one page. Then eight of them
/// exit. At last the parent exits, the only space that still sees the page.
fn looks_among(sharers: u64) -> [u64; 3] {
    quire_sync::hooks::threads::set_cpu(0);
    // A space of the test machine needs about forty frames.
    let boot = boot(48 * sharers + 4096, 2);
    let vm = boot.vm;
    let parent = Space::new(vm).unwrap();
    anonymous(&parent, 0, 1);
    store(&parent, page(0), 1);
    let mut children: Vec<_> = (0..sharers).map(|_| parent.fork().unwrap()).collect();
    looks::take();
    children.iter().for_each(|child| store(child, page(0), 2));
    let copies = looks::take();
    for n in 0..8 {
        children.swap_remove(n * 7919 % children.len());
        reap(vm);
    }
    let exits = looks::take();
    assert_eq!((load(&parent, page(0)), pages(vm)), (1, children.len() as u64 + 1));
    looks::take();
    drop(parent);
    reap(vm);
    assert_eq!(pages(vm), children.len() as u64, "a page stays that no space sees");
    [copies, exits, looks::take()]
}

#[test]
fn an_exit_costs_as_much_among_two_thousand_sharers_as_among_a_hundred() {
    let (few, many) = (looks_among(100), looks_among(2_000));
    println!("looks among 100 sharers: {few:?}, among 2,000: {many:?}");
    assert!(many[0] <= 3 * 2_000, "{} looks for the copies", many[0]);
    // For each exit the reaper samples eight backings at most, and checks the watch.
    assert!(few[1].max(many[1]) <= 8 * 9, "{} and {} looks for eight exits", few[1], many[1]);
    // The last exit costs one search, and the remover's scan.
    assert!(many[2] <= 3 * 2_000, "{} looks for a page that all hide", many[2]);
}

#[test]
fn a_long_search_goes_on_where_the_last_one_ended() {
    const SHARERS: usize = 1000;
    quire_sync::hooks::threads::set_cpu(0);
    let boot = boot(48 * SHARERS as u64 + 4096, 2);
    let vm = boot.vm;
    let parent = Space::new(vm).unwrap();
    anonymous(&parent, 0, 1);
    store(&parent, page(0), 1);
    let mut children: Vec<_> = (0..SHARERS).map(|_| parent.fork().unwrap()).collect();
    children[20..].iter().for_each(|child| store(child, page(0), 2));
    looks::take();
    // The space of the page's watch (the backing that the page remembers as a sharer) exits repeatedly. Each search
    // continues after the backings that were found to hide the page.
    drop(parent);
    for left in (1..=20).rev() {
        reap(vm);
        assert_eq!(pages(vm), (SHARERS - 20 + 1) as u64);
        assert_eq!(load(&children[0], page(0)), 1);
        if left > 1 {
            children.remove(left - 1);
        }
    }
    children.remove(0);
    reap(vm);
    assert_eq!(pages(vm), (SHARERS - 20) as u64);
    let seen = looks::take();
    println!("{seen} looks");
    assert!(seen <= 8 * SHARERS as u64, "{seen} looks for {SHARERS} sharers");
}

#[test]
fn a_page_in_swap_that_hundreds_hide_gives_its_slot_up() {
    const SHARERS: usize = 300;
    quire_sync::hooks::threads::set_cpu(0);
    let boot = boot(48 * SHARERS as u64 + 4096, 2);
    boot.swap(2 * SHARERS as u64, FaultPlan::default());
    let vm = boot.vm;
    let parent = Space::new(vm).unwrap();
    anonymous(&parent, 0, 1);
    store(&parent, page(0), 1);
    let children: Vec<_> = (0..SHARERS).map(|_| parent.fork().unwrap()).collect();
    children.iter().for_each(|child| store(child, page(0), 2));
    page_out(&parent);
    vm.finish_io(&mut MaySleep::here());
    let (writes, reads) = (vm.stats().total(Event::SwapOut), vm.stats().total(Event::SwapIn));
    assert_eq!((writes, held(vm)), (1, SHARERS as u64 + 1));
    looks::take();
    drop(parent);
    reap(vm);
    let seen = looks::take();
    assert_eq!((held(vm), vm.stats().total(Event::SwapIn)), (SHARERS as u64, reads), "and nothing is read for it");
    assert_eq!(vm.swap().free(), vm.swap().total());
    assert!(seen <= 2 * SHARERS as u64, "{seen} looks for {SHARERS} sharers");
    assert!(children.iter().all(|child| load(child, page(0)) == 2));
}
