//! Models of the frame behind a page: migration to another frame, and the frame of zeroes for a hole.

use super::*;
use crate::phys::frames::Frame;
use crate::reclaim::migrate::{Vacated, vacate};
use crate::sleep::MaySleep;

/// Migrates the file's first page out of its frame, and overwrites the frame at once. So a later load from the frame
/// does not read the page, and a later store into it is lost. Returns the frame, to be freed when no thread runs.
/// `None` if the page stayed, or if a thread that was just reading it frees the frame.
fn move_away(w: &World) -> Option<Frame> {
    let vm = w.boot.vm;
    let page = w.frame().map(|pfn| vm.page(pfn))?;
    let mut taken = None;
    let done = vacate(vm, page, &mut |_| false, &mut MaySleep::here(), &mut |frame| {
        // SAFETY: `vacate` passes a frame that no page and no leaf has any more, and the pointer is valid for a page.
        unsafe { vm.machine().frame_ptr(frame.pfn()).write_bytes(0xbb, PAGE_SIZE as usize) };
        taken = Some(frame);
    });
    assert!(taken.is_none() || done == Vacated::Gone, "the frame of a page that stays is handed over");
    taken
}

/// Asserts that every leaf maps the frame that the file has, and not the old frame.
fn assert_moved(w: &World, old: Option<Frame>, content: &[u8]) {
    let (now, translations) = (w.frame(), w.translations());
    assert!(translations.iter().all(|t| Some(*t) == now), "a page that moved is mapped where it was");
    assert!(load(&w.space, 0).is_some_and(|seen| content.contains(&seen)), "a page is lost by moving");
    if let Some(old) = old {
        assert!(now != Some(old.pfn()));
        w.boot.vm.return_frame(old);
    }
}

/// C2, enter versus remove: a fault enters a leaf of the page while the page migrates.
fn migrate_against_load() {
    beside(
        World::showing(true),
        |w| {
            let _any = w.space.fault(page(0), Access::Read);
        },
        move_away,
        |w, _, old| assert_moved(w, old, &[7]),
    );
}

protocol! {
    a_page_that_leaves_its_frame_is_mapped_where_it_is = migrate_against_load, Some(2);
    NoBusyCheck: "a page that moved is mapped where it was";
}

/// A CPU that has a writable translation stores while the page migrates.
fn migrate_against_store() {
    let w = World::showing(true);
    set_cpu(1);
    store(&w.space, 0, 8);
    set_cpu(0);
    beside(
        w,
        |w| store(&w.space, 0, 9),
        |w| move_away(w),
        |w, _, old| {
            assert!(old.is_some(), "the page did not move");
            // The store came before the migration, or faulted.
            let now = load(&w.space, 0);
            assert_eq!(now, Some(9), "a store is lost by moving");
            assert_moved(w, old, &[9]);
        },
    );
}

protocol! {
    a_store_is_never_lost_to_a_move = migrate_against_store, Some(2);
    CopyBeforeRemove: "a store is lost by moving";
}

/// A system call stores through the frame while the page migrates. The call has a hold on the page.
fn migrate_against_write() {
    beside(
        World::showing(true),
        |w| {
            w.file
                .write(0, 1, &mut |b| -> Result<_, ()> {
                    // The source may be slow to supply its bytes.
                    thread::yield_now();
                    b.fill(9);
                    Ok(1)
                })
                .unwrap();
        },
        move_away,
        |w, _, old| {
            assert_eq!(load(&w.space, 0), Some(9), "a write is lost by moving");
            assert_moved(w, old, &[9]);
        },
    );
}

protocol! {
    a_write_through_the_frame_is_never_lost_to_a_move = migrate_against_write, Some(2);
    MoveUnderHold: "a write is lost by moving";
}

/// The page migrates while it is removed.
fn migrate_against_discard() {
    beside(
        World::showing(true),
        |w| w.file.discard(0..1),
        move_away,
        |w, _, old| {
            assert_eq!((w.frame(), w.file.resident()), (None, 0), "a page that moves is not removed");
            assert!(w.translations().is_empty(), "a page that moves is not removed");
            assert_moved(w, old, &[0]);
        },
    );
}

protocol! {
    a_page_that_moves_is_removed_all_the_same = migrate_against_discard, Some(2);
}

/// Holes: a private mapping maps the frame of zeroes for a hole while a write fills the hole.
fn hole_against_write() {
    let w = World::showing(false);
    w.file.discard(0..1);
    beside(
        w,
        |w| load(&w.space, 0),
        |w| {
            w.file
                .write(0, 1, &mut |b| -> Result<_, ()> {
                    b.fill(9);
                    Ok(1)
                })
                .unwrap();
        },
        |w, seen, _| {
            assert!(matches!(seen, Some(0 | 9)));
            let (zero, translations) = (w.boot.vm.zero_frame(), w.translations());
            assert!(!translations.contains(&zero), "zeroes are mapped where the file has a page");
            assert_eq!(load(&w.space, 0), Some(9));
        },
    );
}

protocol! {
    zeroes_are_mapped_where_there_is_a_hole_only = hole_against_write, Some(2);
    NoHoleScan: "zeroes are mapped where the file has a page";
    NoHoleCheck: "zeroes are mapped where the file has a page";
}

/// Private memory: a load maps the frame of zeroes while another CPU makes the first store. Then the tables drop the
/// store's leaf, so that only the slot shows the page.
fn load_against_first_store() {
    beside(
        World::private(1),
        |w| load(&w.space, 0),
        |w| {
            store(&w.space, 0, 9);
            w.space.pmap().forget(w.boot.vm, page(0));
        },
        |w, seen, _| {
            assert!(matches!(seen, Some(0 | 9)));
            let (zero, translations) = (w.boot.vm.zero_frame(), w.translations());
            assert!(!translations.contains(&zero), "zeroes are mapped where a store made a page");
            assert_eq!(load(&w.space, 0), Some(9));
        },
    );
}

protocol! {
    zeroes_are_mapped_in_private_memory_until_a_store = load_against_first_store, Some(2);
    NoZeroCheck: "zeroes are mapped where a store made a page";
}
