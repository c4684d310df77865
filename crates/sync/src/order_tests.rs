//! Tests, for every kind of lock: the first run that takes two locks in opposite orders fails, and prints both places.

use crate::{Mutex, Rank, SpinLock};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The panic message of `f`.
fn refused(f: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(f)).expect_err("the order is refused");
    payload.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[inline(never)]
fn one_way(f: impl FnOnce()) {
    f();
    std::hint::black_box(());
}

#[inline(never)]
fn the_other_way(f: impl FnOnce()) {
    f();
    std::hint::black_box(());
}

/// Asserts that the message has both backtraces, each with its own function.
fn names_both(said: &str) {
    assert!(said.contains("lock order (Contract C6)"), "{said}");
    assert!(said.contains("one_way") && said.contains("the_other_way"), "{said}");
}

#[test]
fn spin_locks_against_their_ranks() {
    // No other test uses these ranks, so this test is the first to acquire locks of these ranks.
    let (low, high) = (SpinLock::new(Rank::of_test(241), ()), SpinLock::new(Rank::of_test(242), ()));
    one_way(|| {
        let _low = low.lock();
        let _high = high.lock();
    });
    names_both(&refused(|| {
        the_other_way(|| {
            let _high = high.lock();
            let _low = low.lock();
        })
    }));
}

#[test]
fn spin_locks_of_one_rank_both_ways_round() {
    let (a, b) = (SpinLock::new(Rank::of_test(243), ()), SpinLock::new(Rank::of_test(243), ()));
    one_way(|| {
        let _a = a.lock();
        let _b = b.lock_nested();
    });
    names_both(&refused(|| {
        the_other_way(|| {
            let _b = b.lock();
            let _a = a.lock_nested();
        })
    }));
}

#[test]
fn spin_locks_of_one_rank_without_a_word() {
    let (a, b) = (SpinLock::new(Rank::of_test(244), ()), SpinLock::new(Rank::of_test(244), ()));
    let said = refused(|| {
        let _a = a.lock();
        let _b = b.lock();
    });
    assert!(said.contains("lock order (Contract C6)"), "{said}");
}

#[test]
fn mutexes_of_two_types_both_ways_round() {
    struct Left;
    struct Right;
    let (left, right) = (Mutex::new(Left), Mutex::new(Right));
    one_way(|| {
        let _left = left.lock();
        let _right = right.lock();
    });
    // Sleeping locks are ordered by the types that they guard. So the order also holds for two further locks of `Left`
    // and `Right`.
    let (left, right) = (Mutex::new(Left), Mutex::new(Right));
    names_both(&refused(|| {
        the_other_way(|| {
            let _right = right.lock();
            let _left = left.lock();
        })
    }));
}

#[test]
fn two_mutexes_of_one_type_both_ways_round() {
    struct Only;
    let (a, b) = (Mutex::new(Only), Mutex::new(Only));
    one_way(|| {
        let _a = a.lock();
        let _b = b.lock();
    });
    names_both(&refused(|| {
        the_other_way(|| {
            let _b = b.lock();
            let _a = a.lock();
        })
    }));
}

#[test]
fn a_circle_of_three() {
    struct A;
    struct B;
    struct C;
    let (a, b, c) = (Mutex::new(A), Mutex::new(B), Mutex::new(C));
    one_way(|| {
        let _a = a.lock();
        let _b = b.lock();
    });
    one_way(|| {
        let _b = b.lock();
        let _c = c.lock();
    });
    names_both(&refused(|| {
        the_other_way(|| {
            let _c = c.lock();
            let _a = a.lock();
        })
    }));
}

#[test]
fn a_mutex_twice_by_one_thread() {
    let a = Mutex::new(());
    let said = refused(|| {
        let _first = a.lock();
        let _second = a.lock();
    });
    assert!(said.contains("by the thread that holds it"), "{said}");
}

#[test]
fn a_lock_that_is_free_may_be_tried_in_any_order() {
    let (low, high) = (SpinLock::new(Rank::of_test(245), ()), SpinLock::new(Rank::of_test(246), ()));
    let _high = high.lock();
    assert!(low.try_lock().is_some());
}

#[test]
fn a_lock_that_is_gone_orders_nothing() {
    let mut places: Box<[Option<SpinLock<()>>; 2]> = Box::new([None, None]);
    for round in 0..2 {
        places.fill_with(|| Some(SpinLock::new(Rank::of_test(247), ())));
        let (a, b) = (places[round].as_ref().unwrap(), places[1 - round].as_ref().unwrap());
        let _a = a.lock();
        let _b = b.lock_nested();
    }
}

#[test]
fn a_tree_is_locked_from_its_root_down() {
    let (parent, child) = (SpinLock::new(Rank::of_test(248), ()), SpinLock::new(Rank::of_test(248), ()));
    {
        let _parent = parent.lock();
        let _child = child.lock_below();
    }
    // The tree may have been reversed since the first acquisition, so the opposite order is allowed.
    let _parent = child.lock();
    let _child = parent.lock_below();
}
