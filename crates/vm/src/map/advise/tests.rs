//! What advice frees, when memory is short.

use crate::map::{Advice, Space};
use crate::testing::page;
use crate::tests::{anonymous, load, range, store, system};

#[test]
fn what_was_given_up_stays_hidden_where_memory_for_the_cuts_is_missing() {
    for n in 1.. {
        let m = system();
        let space = Space::new(m.vm).unwrap();
        anonymous(&space, 0, 400);
        (0..400).for_each(|n| store(&space, page(n), 7));
        let child = space.fork().unwrap();
        child.advise(range(0, 64), Advice::DontNeed).unwrap();
        (10..20).for_each(|n| store(&child, page(n), 8));
        // Memory for the slabs' next objects may be there already; then a later allocation is the one that fails.
        m.vm.fail_allocation(n);
        let done = child.advise(range(0, 400), Advice::DontNeed);
        m.vm.fail_allocation(0);
        child.check(true).unwrap();
        (0..10).chain(20..64).for_each(|n| assert_eq!(load(&child, page(n)), 0, "old data is back"));
        (10..20).for_each(|n| assert!(matches!(load(&child, page(n)), 0 | 8), "old data is back"));
        (0..400).for_each(|n| assert_eq!(load(&space, page(n)), 7));
        if done.is_ok() {
            assert!(n > 1, "no allocation failed");
            (0..400).for_each(|n| assert_eq!(load(&child, page(n)), 0));
            break;
        }
    }
}
