//! Models of C1, busy pages: a thread waits for a busy page, or finds a page that has changed its identity.

use super::*;
use crate::phys::frames::{Fill, For};
use crate::phys::page::Page;
use crate::sleep::MaySleep;

/// The file's first page.
fn first_page(w: &World) -> &'static Page {
    w.boot.vm.page(w.frame().expect("it is there"))
}

/// A CPU waits for a page until another CPU unbusies it.
fn wait_against_unbusy() {
    let w = World::new();
    let page = first_page(&w);
    assert!(page.try_busy(page.state().generation()));
    beside(
        w,
        |w| w.boot.vm.unbusy(first_page(w)),
        |w| {
            w.boot.vm.wait_unbusy(page, &mut MaySleep::here());
            assert!(!page.state().busy(), "a waiter returned while the page was busy");
        },
        |_, _, _| (),
    );
}

protocol! {
    a_waiter_for_a_busy_page_is_woken = wait_against_unbusy, Some(3);
    WaitUnannounced: "deadlock";
    WaitersForgotten: "deadlock";
}

/// Two CPUs remove the file's page, and one of them reuses its frame for another file at once.
fn discard_against_another_identity() {
    beside(
        World::new(),
        |w| {
            w.file.discard(0..1);
            let other = ObjectRef::anonymous(w.boot.vm, 1).unwrap();
            let fill = &mut |b: crate::machine::FrameBytesMut<'_>| -> Result<_, ()> {
                b.fill(9);
                Ok(b.len())
            };
            other.write(0, 1, fill).unwrap();
            other
        },
        |w| w.file.discard(0..1),
        |w, other, _| {
            assert!(w.frame().is_none());
            let pin = w.boot.vm.epoch().pin();
            let Slot::Page(pfn) = other.index().get(0, &pin) else { panic!("another file's page is taken away") };
            let state = w.boot.vm.page(pfn).state();
            assert!(!state.busy() && state.valid(), "another file's page is taken away");
        },
    );
}

protocol! {
    a_page_that_has_become_anothers_is_let_be = discard_against_another_identity, Some(3);
}

/// A CPU tries to set a removed page busy while another CPU makes a new page of its frame.
fn busy_against_another_identity() {
    let w = World::new();
    let gone = first_page(&w);
    w.file.discard(0..1);
    beside(
        w,
        move |w| {
            if let Some(page) = w.boot.vm.try_busy_page(&w.file, 0, gone) {
                w.boot.vm.unbusy(page);
            }
        },
        move |w| {
            let vm = w.boot.vm;
            let frame = vm.alloc_frame(Fill::Any, For::User).unwrap();
            assert_eq!(frame.pfn(), vm.pfn_of_page(gone), "the frame that was freed last is taken first");
            let page = vm.page(frame.into_pfn());
            vm.assume_page(page, w.space.id() << 12, 1, 0);
            thread::yield_now();
            assert!(page.state().busy(), "a new page is not busy");
            vm.release_page(page);
        },
        |_, _, _| (),
    );
}

protocol! {
    a_new_page_is_busy_until_its_maker_lets_go = busy_against_another_identity, Some(3);
    BusyNoPage: "a new page is not busy";
}
