//! Tests of the state that a page keeps when it moves to another frame.

use super::*;
use crate::map::Space;
use crate::phys::page::FrameKind;
use crate::testing::{TestMachine, boot, page};
use crate::tests::{Vm, anonymous, load, store};

/// The pages of all objects.
fn pages(vm: &'static Vm) -> Vec<&'static Page> {
    vm.frame_span().map(|n| vm.page(Pfn(n))).filter(|p| p.kind() == FrameKind::Object).collect()
}

fn move_away(vm: &'static Vm, page: &'static Page) {
    let mut taken = None;
    let done = vacate(vm, page, &mut |_| false, &mut MaySleep::here(), &mut |frame| taken = Some(frame));
    assert_eq!((done, taken.as_ref().map(|f| f.pfn())), (Vacated::Gone, Some(vm.pfn_of_page(page))));
    taken.into_iter().for_each(|frame| vm.return_frame(frame));
}

#[test]
fn the_last_copier_finds_a_page_in_its_new_frame() {
    quire_sync::hooks::threads::set_cpu(0);
    let m = boot(1024, 2);
    let parent = Space::<TestMachine>::new(m.vm).unwrap();
    anonymous(&parent, 0, 1);
    store(&parent, page(0), 1);
    let child = parent.fork().unwrap();
    let source = pages(m.vm)[0];
    store(&child, page(0), 2);
    move_away(m.vm, source);
    assert_eq!((load(&parent, page(0)), load(&child, page(0))), (1, 2));
    store(&parent, page(0), 3);
    assert_eq!(pages(m.vm).len(), 2, "a page that no space sees");
    assert_eq!((load(&parent, page(0)), load(&child, page(0))), (3, 2));
}

#[test]
fn an_object_is_found_by_its_page_once_the_maker_releases_it() {
    let m = boot(1024, 2);
    let file = crate::object::ObjectRef::anonymous(m.vm, 1).unwrap();
    let found = |page: &Page| m.vm.object_of(page, &m.vm.epoch().pin()).map(|o| o.address());
    let new = m.vm.page(m.vm.alloc_frame(Fill::Any, For::User).unwrap().into_pfn());
    assert_eq!(found(new), None);
    m.vm.assume_page(new, file.address(), 0, State::VALID);
    // The thread that makes the page may still find that the object is dead, and remove the page again.
    assert_eq!(found(new), None);
    m.vm.unbusy(new);
    assert_eq!(found(new), Some(file.address()));
    assert!(new.try_busy(new.state().generation()));
    m.vm.release_page(new);
    assert_eq!(found(new), None);
}
