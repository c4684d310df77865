//! Tests of long operations whose thread must end: they stop between two parts, and each part is done or not.

use crate::error::MapError;
use crate::map::entry::wired::Wire;
use crate::map::ops::advise::Advice;
use crate::map::ops::inherit::Inherit;
use crate::map::space::{Space, SpaceRef};
use crate::map::update::PART;
use crate::testing::{Boot, TestMachine, page};
use crate::tests::{anonymous, load, range, store, system};
use crate::types::Prot;
use quire_sync::atomic::Ordering;

/// The number of mappings: several parts, and not a multiple of them.
const MANY: u64 = 4 * PART as u64 + 3;

/// A space with many mappings of one page each, with gaps of one page where `gaps`. Each page holds its number.
fn many(m: &Boot, gaps: bool) -> SpaceRef<TestMachine> {
    let space = Space::new(m.vm).unwrap();
    for n in 0..MANY {
        let at = if gaps { 2 * n } else { n };
        anonymous(&space, at, 1);
        store(&space, page(at), n as u8 + 1);
        if !gaps && n % 2 == 0 {
            // Neighbours that differ are not joined.
            space.protect(range(at, 1), Prot::READ).unwrap();
        }
    }
    space
}

fn mapped(space: &Space<TestMachine>) -> u64 {
    let mut n = 0;
    space.entries(0, &mut |_| {
        n += 1;
        true
    });
    n
}

/// Makes the calling thread end after so many further looks, calls `f`, and lets it live on.
fn ending<R>(m: &Boot, looks: u64, f: impl FnOnce() -> R) -> R {
    m.vm.machine().looks_left.store(looks, Ordering::Relaxed);
    let result = f();
    m.vm.machine().looks_left.store(u64::MAX, Ordering::Relaxed);
    result
}

#[test]
fn an_unmapping_stops_between_two_parts_and_leaves_whole_mappings() {
    let m = system();
    let all = range(0, 2 * MANY);
    // The first looks are those of the search for sealed entries, which changes nothing.
    let mut left = Vec::new();
    for looks in 0.. {
        let space = many(&m, true);
        let result = ending(&m, looks, || space.unmap(all));
        space.check(true).unwrap();
        let there = mapped(&space);
        assert_eq!(there == 0, result.is_ok(), "after {looks} looks");
        assert!(result.is_ok() || (MANY - there).is_multiple_of(PART as u64), "{there} mappings are left");
        // The remaining mappings are the last ones, and work.
        (MANY - there..MANY).for_each(|n| assert_eq!(load(&space, page(2 * n)), n as u8 + 1));
        left.push(there);
        if result.is_ok() {
            break;
        }
        assert_eq!(result, Err(MapError::Ending));
        space.unmap(all).unwrap();
        assert_eq!(mapped(&space), 0);
    }
    assert!(left.contains(&MANY) && left.contains(&(MANY - PART as u64)), "{left:?}");
}

#[test]
fn a_sealed_mapping_far_away_refuses_the_whole_unmapping() {
    let m = system();
    let space = many(&m, true);
    space.seal(range(2 * MANY - 2, 1)).unwrap();
    assert_eq!(space.unmap(range(0, 2 * MANY)), Err(MapError::Sealed));
    assert_eq!(mapped(&space), MANY);
    space.check(true).unwrap();
}

#[test]
fn long_advice_and_wiring_look_and_may_be_repeated() {
    let m = system();
    let all = range(0, MANY);
    type Call = fn(&Space<TestMachine>) -> Result<(), MapError>;
    let calls: [(&str, Call); 9] = [
        ("forget", |s| s.advise(range(0, MANY), Advice::DontNeed)),
        ("free", |s| s.advise(range(0, MANY), Advice::Free)),
        ("page out", |s| s.advise(range(0, MANY), Advice::PageOut)),
        ("will need", |s| s.advise(range(0, MANY), Advice::WillNeed)),
        ("normal", |s| s.advise(range(0, MANY), Advice::Normal)),
        ("wire", |s| s.wire(range(0, MANY), Wire::OnFault)),
        ("wire all", |s| s.wire_all(Wire::OnFault)),
        ("inherit", |s| s.inherit(range(0, MANY), Inherit::NONE)),
        ("dump", |s| s.leave_out_of_dumps(range(0, MANY), true)),
    ];
    for (name, call) in calls {
        for looks in [0, 1, 3] {
            let space = many(&m, false);
            assert_eq!(ending(&m, looks, || call(&space)), Err(MapError::Ending), "{name} after {looks} looks");
            space.check(true).unwrap();
            assert_eq!(call(&space), Ok(()), "{name}");
            space.check(true).unwrap();
            let values = (0..MANY).filter(|n| load(&space, page(*n)) == *n as u8 + 1).count() as u64;
            assert_eq!(values, if name == "forget" { 0 } else { MANY }, "{name}");
        }
        let space = many(&m, false);
        space.wire_all(Wire::No).unwrap();
        space.unmap(all).unwrap();
        assert_eq!(mapped(&space), 0);
    }
}

#[test]
fn the_parts_of_a_wiring_are_all_wired() {
    let m = system();
    let space = many(&m, false);
    space.wire(range(0, MANY), Wire::Now).unwrap();
    assert_eq!(space.wired_in(range(0, MANY)), range(0, MANY).len());
    assert_eq!(space.wire(range(0, MANY + 1), Wire::No), Err(MapError::NotMapped));
    assert_eq!(space.wired_bytes(), 0);
}
