//! Models of scans of an object's mapping list while backings are replaced and change their shard, a part of the list
//! with its own lock. (To close the shards moves all their backings to the first shard.) Only the order of steps
//! matters here, so these run under shuttle only.
#![cfg(shuttle)]

use super::*;
use crate::phys::page::FrameKind;
use crate::types::Prot;

/// Maps `pages` pages of the file from page `key` on, at the `n`-th address, for loads.
fn show(w: &World, n: u64, key: u64, pages: u64) {
    let object = Some((&w.file, key * PAGE_SIZE));
    let r = MapRequest {
        object,
        shared: true,
        prot: Prot::READ,
        ..MapRequest::private(Placement::Fixed(page(n)), pages * PAGE_SIZE)
    };
    w.space.map(&r).unwrap();
}

/// Asserts that the `n`-th address does not map `frame`, from which page `key` of the file was removed.
fn assert_not_mapped(w: &World, n: u64, key: u64, frame: Option<Pfn>) {
    let pmap = w.space.pmap();
    let mapped = pmap.peek(page(n)).into_iter().chain(pmap.cached(page(n))).any(|l| Some(l.pfn) == frame);
    assert!(!mapped || frame == w.frame_of(key), "a removed page is mapped");
}

/// The address of the backing over the `n`-th address.
fn place(w: &World, n: u64) -> usize {
    let pin = w.boot.vm.epoch().pin();
    w.space.lookup(page(n), &pin).map(|e| std::ptr::from_ref(e.front()).addr()).unwrap()
}

/// Whether an unmapping of the `n`-th address would count the backings of the list and close its shards.
fn closes(w: &World, n: u64) -> bool {
    let pin = w.boot.vm.epoch().pin();
    w.space.lookup(page(n), &pin).is_some_and(|e| w.file.shards().is_too_wide(e.front()))
}

/// A page is removed while a backing that shows it is replaced by another, at a place that the scan has already passed.
fn scan_against_replacement() {
    let w = World::new();
    w.file.write(PAGE_SIZE, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) }).unwrap();
    let frame = w.frame_of(1);
    // A scan visits the first two of these backings under one lock. The third is about to be joined with its neighbour.
    // The new backing begins with page 0, so it is first in the list.
    show(&w, 2, 0, 1);
    [3, 1, 0].iter().for_each(|n| show(&w, *n, 1, 1));
    let later = VirtRange { start: page(3), end: page(4) };
    w.space.protect(later, Prot::READ | Prot::WRITE).unwrap();
    [0, 1, 3].iter().for_each(|n| _ = load(&w.space, *n));
    assert!(place(&w, 3) > place(&w, 0).max(place(&w, 1)), "the backings have the intended order");
    beside(
        w,
        |w| w.file.discard(1..2),
        move |w| w.space.protect(later, Prot::READ).unwrap(),
        move |w, _, _| {
            assert_eq!(place(w, 3), place(w, 2), "the backings have the intended neighbours");
            [0, 1, 3].iter().for_each(|n| assert_not_mapped(w, *n, 1, frame));
        },
    );
}

protocol! {
    a_scan_meets_a_backing_or_its_replacement = scan_against_replacement, Some(2);
    ScanGoesOn: "a removed page is mapped";
    LinkingUnnoted: "a removed page is mapped";
}

/// A page is removed while the list becomes short. So the shards close, and the backing that shows the page moves to
/// the first shard.
fn scan_against_shrinking() {
    let w = World::new();
    let frame = w.frame();
    w.file.shards().widen(w.boot.vm);
    show(&w, 1, 0, 1);
    set_cpu(1);
    show(&w, 0, 0, 1);
    assert!(w.file.shards().is_wide());
    beside(
        w,
        |w| {
            load(&w.space, 0);
            w.file.discard(0..1);
        },
        |w| w.space.unmap(VirtRange { start: page(1), end: page(2) }).unwrap(),
        move |w, _, _| {
            assert_not_mapped(w, 0, 0, frame);
            assert!(!w.file.shards().is_wide(), "a short list has one shard");
            w.file.check(true).unwrap();
        },
    );
}

protocol! {
    a_scan_meets_a_backing_in_its_shard_or_in_the_first = scan_against_shrinking, Some(2);
    ShrinkUnseen: "a removed page is mapped";
}

/// A world in which the list's shards are open, and CPUs have linked backings there in turns. So the next CPU that
/// links a backing gets a shard of its own.
fn turned() -> World {
    let w = World::new();
    w.file.shards().widen(w.boot.vm);
    for (n, cpu) in [(1, 0), (2, 1)] {
        set_cpu(cpu);
        show(&w, n, 0, 1);
    }
    set_cpu(0);
    w
}

/// A world like [`turned`], after CPU 0 has linked one more backing, and so has got a shard of its own.
fn contended() -> World {
    let w = turned();
    show(&w, 3, 0, 1);
    assert!(w.file.shards().has_own());
    w
}

/// A page is removed while a CPU gets a shard of its own and links a backing of the page there.
fn scan_against_first_own_shard() {
    let w = turned();
    let frame = w.frame();
    assert!(!w.file.shards().has_own());
    beside(
        w,
        |w| {
            show(w, 0, 0, 1);
            load(&w.space, 0);
        },
        |w| w.file.discard(0..1),
        move |w, _, _| {
            assert!(w.file.shards().has_own(), "the list has the intended shards");
            assert_not_mapped(w, 0, 0, frame);
            w.file.check(true).unwrap();
        },
    );
}

protocol! {
    a_scan_meets_the_backings_in_the_first_own_shard_of_a_cpu = scan_against_first_own_shard, Some(2);
    OwnShardsUnscanned: "a removed page is mapped";
}

/// As [`scan_against_shrinking`], for a CPU's own shard.
fn scan_against_shrinking_of_own_shards() {
    let w = contended();
    let frame = w.frame();
    set_cpu(1);
    show(&w, 0, 0, 1);
    assert!(w.file.shards().has_own());
    // The next unlinking from this shard makes its CPU count the backings of the list.
    w.space.unmap(VirtRange { start: page(2), end: page(3) }).unwrap();
    beside(
        w,
        |w| {
            load(&w.space, 0);
            w.file.discard(0..1);
        },
        |w| w.space.unmap(VirtRange { start: page(1), end: page(2) }).unwrap(),
        move |w, _, _| {
            assert_not_mapped(w, 0, 0, frame);
            assert!(!w.file.shards().is_wide(), "a short list has one shard");
            w.file.check(true).unwrap();
        },
    );
}

protocol! {
    a_scan_meets_a_backing_in_a_cpus_own_shard_or_in_the_first = scan_against_shrinking_of_own_shards, Some(2);
    ShrinkUnseen: "a removed page is mapped";
}

/// The last handle of a file is dropped while its last mapping, which is in a CPU's own shard, is unmapped.
fn close_against_last_unmap() {
    let w = contended();
    set_cpu(1);
    show(&w, 0, 0, 1);
    // The list is so short that it has one shard until a CPU opens the others again. The last backing is unlinked from
    // the first shard. An odd number of backings is unlinked from the own shard, including that of the unmapping below.
    // So the CPU of that unmapping does not count the list: it would do so only at an even number.
    [1, 2, 3, 0].iter().for_each(|n| w.space.unmap(VirtRange { start: page(*n), end: page(n + 1) }).unwrap());
    w.file.shards().widen(w.boot.vm);
    show(&w, 0, 0, 1);
    w.space.unmap(ONE).unwrap();
    w.file.shards().widen(w.boot.vm);
    show(&w, 0, 0, 1);
    assert!(!closes(&w, 0), "the unmapping is not to close the shards");
    set_cpu(0);
    // The order matters, because a system must be dropped after the values in it, even if the model fails.
    let World { boot, space, file } = w;
    let vm = boot.vm;
    let pages = || vm.frame_span().filter(|n| vm.page(Pfn(*n)).kind() == FrameKind::Object).count();
    assert_eq!((pages(), file.shards().has_own()), (1, true));
    let other = space.clone();
    let unmap = thread::spawn(move || {
        set_cpu(1);
        other.unmap(ONE).unwrap();
    });
    set_cpu(0);
    drop(file);
    unmap.join().unwrap();
    set_cpu(0);
    assert_eq!(pages(), 0, "an object without references stays");
    drop(space);
    drop(boot);
}

protocol! {
    an_object_with_own_shards_goes_with_its_last_user = close_against_last_unmap, Some(2);
    OwnShardsKeep: "an object without references stays";
}

/// Two CPUs close the shards at the same time. One of them opens them again after that, and links a backing.
fn close_against_close() {
    let w = contended();
    let frame = w.frame();
    set_cpu(1);
    show(&w, 0, 0, 1);
    load(&w.space, 0);
    assert!(w.file.shards().has_own());
    beside(
        w,
        |w| w.file.close_shards(),
        |w| {
            w.file.close_shards();
            w.file.shards().widen(w.boot.vm);
            show(w, 4, 0, 1);
        },
        move |w, _, _| {
            assert!(w.file.check(true).is_ok(), "a shard with backings is not counted");
            w.file.discard(0..1);
            assert_not_mapped(w, 0, 0, frame);
            w.space.unmap(VirtRange { start: page(0), end: page(5) }).unwrap();
            w.file.close_shards();
            w.file.check(true).unwrap();
            assert_eq!(w.file.references(), 1, "an empty shard is counted");
        },
    );
}

protocol! {
    shards_that_two_cpus_close_at_once_keep_their_references = close_against_close, Some(2);
    StaleClose: "a shard with backings is not counted";
}

/// A page is removed while the backing that shows it is replaced in its shard, and the shards close and open again.
fn scan_against_reopening() {
    let w = World::new();
    w.file.write(PAGE_SIZE, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) }).unwrap();
    let frame = w.frame_of(1);
    // Once these backings are in the first shard, a scan visits two of them under one lock. The replaced backing comes
    // after those two in the list.
    w.file.shards().widen(w.boot.vm);
    show(&w, 3, 1, 1);
    show(&w, 2, 1, 1);
    show(&w, 0, 0, 2);
    assert!(place(&w, 3) > place(&w, 2), "the backings have the intended order");
    load(&w.space, 3);
    let world = Arc::new(w);
    let (one, other) = (world.clone(), world.clone());
    let replaces = thread::spawn(move || {
        set_cpu(1);
        one.space.protect(VirtRange { start: page(3), end: page(4) }, Prot::READ | Prot::WRITE).unwrap();
    });
    let opens = thread::spawn(move || {
        set_cpu(0);
        other.file.shards().widen(other.boot.vm);
    });
    set_cpu(0);
    world.file.close_shards();
    world.file.discard(1..2);
    replaces.join().unwrap();
    opens.join().unwrap();
    set_cpu(0);
    assert_not_mapped(&world, 3, 1, frame);
    assert!(world.file.check(true).is_ok());
}

protocol! {
    a_scan_meets_the_replacement_in_shards_that_open_again = scan_against_reopening, Some(2);
}

/// A backing is replaced while its shard is closed. The new one is linked into the first shard.
fn scan_against_replacement_in_a_closed_shard() {
    let w = World::new();
    let frame = w.frame();
    w.file.shards().widen(w.boot.vm);
    show(&w, 1, 0, 1);
    set_cpu(1);
    show(&w, 0, 0, 1);
    set_cpu(0);
    load(&w.space, 0);
    beside(
        w,
        |w| {
            w.space.unmap(VirtRange { start: page(1), end: page(2) }).unwrap();
            w.space.protect(ONE, Prot::READ | Prot::WRITE).unwrap();
        },
        |w| w.file.discard(0..1),
        move |w, _, _| {
            assert_not_mapped(w, 0, 0, frame);
            w.file.check(true).unwrap();
        },
    );
}

protocol! {
    a_scan_meets_the_replacement_of_a_backing_of_a_closed_shard = scan_against_replacement_in_a_closed_shard, Some(2);
    ShrinkUnseen: "a removed page is mapped";
}
