//! Models of table pages that are store-protected as a whole, and made writable again
//! ([`Table::is_store_protected`](crate::machine::Table::is_store_protected)).

use super::*;

/// Private memory of a whole table page, of which the first two pages were stored into.
fn whole() -> World {
    let w = World::private(crate::testing::SPAN);
    w.space.pmap().protect_tables();
    (0..2).for_each(|n| store(&w.space, n, 1));
    w
}

/// A fork store-protects a table page, and a fault on another CPU makes it writable again.
fn protect_against_store() {
    let w = whole();
    // No other space sees the memory; the table page is store-protected.
    drop(w.space.fork().unwrap());
    beside(
        w,
        |w| (0..2).for_each(|n| store(&w.space, n, 2)),
        |w| {
            let child = w.space.fork().unwrap();
            let first = [0, 1].map(|n| load(&child, n));
            (first, child)
        },
        |w, _, (first, child)| {
            assert_eq!([0, 1].map(|n| load(&w.space, n)), [Some(2); 2]);
            (0..2).for_each(|n| store(&w.space, n, 3));
            assert_eq!([0, 1].map(|n| load(&child, n)), first, "the parent's store reaches the child");
        },
    );
}

protocol! {
    the_memory_of_a_child_is_of_one_moment_as_stores_come_back = protect_against_store, Some(2);
    NoStaleCheck: "the parent's store reaches the child";
    StoresUnnoted: "the parent's store reaches the child";
}

/// Parent and child store after a fork, and then the child exits.
fn restore_against_exit() {
    let w = whole();
    let child = w.space.fork().unwrap();
    beside(
        w,
        move |_| {
            let seen = load(&child, 1);
            store(&child, 0, 5);
            let then = load(&child, 1);
            drop(child);
            [seen, then]
        },
        |w| (0..2).for_each(|n| store(&w.space, n, 2)),
        |w, seen, _| {
            assert_eq!(seen, [Some(1); 2], "the parent's store reaches the child");
            assert_eq!([0, 1].map(|n| load(&w.space, n)), [Some(2); 2]);
        },
    );
}

protocol! {
    stores_come_back_by_the_table_page_without_other_sharers = restore_against_exit, Some(2);
    StoresRestoredUnlooked: "the parent's store reaches the child";
}

/// `MADV_FREE` makes a page clean while a fault ends the store protection of its table page.
fn restore_against_give_up() {
    let w = whole();
    drop(w.space.fork().unwrap());
    beside(
        w,
        |w| w.space.advise(ONE, crate::map::Advice::Free).unwrap(),
        |w| store(&w.space, 1, 2),
        |w, _, _| {
            let vm = w.boot.vm;
            let clean = |n| {
                w.space
                    .pmap()
                    .peek(page(n))
                    .is_some_and(|l| l.prot.contains(Prot::WRITE) && !vm.page(l.pfn).state().dirty())
            };
            assert!(!clean(0) && !clean(1), "a clean page can be stored into");
            assert_eq!(load(&w.space, 1), Some(2));
        },
    );
}

protocol! {
    a_cleaned_store_protected_page_is_dirty_before_a_store = restore_against_give_up, Some(2);
    FreeLeavesWritable: "a clean page can be stored into";
}
