//! What a page takes along to another frame.

use super::*;
use crate::map::Space;
use crate::page::Kind;
use crate::testing::{TestMachine, boot, page};
use crate::tests::{Vm, anonymous, load, store};

/// Pages of objects.
fn pages(vm: &'static Vm) -> Vec<&'static Page> {
    (0..vm.page_count()).map(|n| vm.page(Pfn(n))).filter(|p| p.kind() == Kind::Object).collect()
}

fn move_away(vm: &'static Vm, page: &'static Page) {
    let mut taken = None;
    let done = vacate(vm, page, &mut |_| false, &mut MaySleep::here(), &mut |frame| taken = Some(frame));
    assert_eq!((done, taken.as_ref().map(|f| f.pfn())), (Vacated::Gone, Some(vm.pfn_of_page(page))));
    taken.into_iter().for_each(|frame| vm.free_frame(frame));
}

#[test]
fn a_page_that_was_copied_and_moves_to_another_frame_is_found_by_its_last_copy() {
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
    assert_eq!(pages(m.vm).len(), 2, "a page that nobody sees");
    assert_eq!((load(&parent, page(0)), load(&child, page(0))), (3, 2));
}
