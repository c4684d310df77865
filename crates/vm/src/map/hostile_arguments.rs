//! Tests of any arguments from a program (relies on C10). An operation succeeds or returns a typed error. After an
//! error the map is unchanged.

use super::*;
use crate::error::MapError;
use crate::machine::{Pmap, Table as _};
use crate::object::ObjectRef;
use crate::testing::{BASE, TestMachine, TestPmap, boot, page};
use crate::types::{Access, PAGE_SIZE, Prot, VirtRange};
use proptest::prelude::*;
use std::time::Duration;

const USER_RANGE: VirtRange = <TestPmap as Pmap<TestMachine>>::USER;

#[derive(Clone, Debug)]
struct Call {
    kind: u8,
    at: u64,
    len: u64,
    /// A second address and length, for calls that have them.
    to: (u64, u64),
    bits: u16,
}

fn address() -> impl Strategy<Value = u64> {
    let ends = [0, 1, PAGE_SIZE - 1, PAGE_SIZE, BASE - 1, USER.end, USER_RANGE.end, USER_RANGE.end - PAGE_SIZE];
    prop_oneof![
        8 => (0u64..48).prop_map(page),
        1 => (0u64..48, 1..PAGE_SIZE).prop_map(|(n, off)| page(n) + off),
        2 => prop::sample::select(ends.to_vec()),
        1 => prop::sample::select(vec![u64::MAX, u64::MAX - PAGE_SIZE + 1, 1 << 63, i64::MAX as u64]),
        1 => any::<u64>(),
    ]
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => (1u64..20).prop_map(|n| n * PAGE_SIZE),
        2 => prop::sample::select(vec![0, 1, PAGE_SIZE - 1, PAGE_SIZE + 1]),
        2 => prop::sample::select(vec![USER.end, 1 << 62, 1 << 63, u64::MAX, u64::MAX - PAGE_SIZE + 1]),
        1 => any::<u64>(),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    (0u8..12, address(), length(), (address(), length()), any::<u16>()).prop_map(|(kind, at, len, to, bits)| Call {
        kind,
        at,
        len,
        to,
        bits,
    })
}

fn entries(s: &Space<TestMachine>) -> Vec<(VirtRange, Attributes)> {
    let mut all = Vec::new();
    s.entries(0, &mut |e| {
        all.push((e.range, e.attributes));
        true
    });
    all
}

fn prot(bits: u16) -> Prot {
    Prot::from_bits_truncate(bits as u8)
}

/// The call's result, and whether it may have served a part of its range before an error.
fn perform(s: &Space<TestMachine>, object: &ObjectRef<TestMachine>, c: &Call) -> (Result<(), MapError>, bool) {
    let range = VirtRange { start: c.at, end: c.at.wrapping_add(c.len) };
    let bit = |n: u16| c.bits >> n & 1 == 1;
    let any_of = |n: usize| usize::from(c.bits >> 6) % n;
    let wire = [Wire::No, Wire::Now, Wire::OnFault][any_of(3)];
    let result = match c.kind {
        0..=2 => {
            let at = [Placement::Fixed(c.at), Placement::FixedNoReplace(c.at), Placement::Any { hint: c.at }];
            let request = MapRequest {
                at: at[any_of(3)],
                len: c.len,
                prot: prot(c.bits),
                max_prot: prot(c.bits >> 3 | c.bits),
                shared: bit(9),
                object: bit(10).then_some((object, c.to.1)),
                grows_down: bit(11),
                tag: Tag::None,
                wire: if bit(12) { wire } else { Wire::No },
                populate: bit(13),
                unreserved: bit(14),
            };
            s.map(&request).map(drop)
        }
        3 => s.unmap(range),
        4 => s.protect(range, prot(c.bits)),
        5 => {
            let how = [Move::No, Move::May, Move::To(c.to.0)][any_of(3)];
            // The mapping at the destination is unmapped first, even if the move then fails for lack of memory.
            let partly = matches!(how, Move::To(_));
            let done = s.remap(range, c.to.1, how, bit(9)).map(drop);
            return (done, partly && !matches!(done, Err(MapError::Invalid | MapError::NotMapped)));
        }
        6 => s.wire(range, wire),
        7 => {
            let content = [None, Some(Content::Copy), Some(Content::Share), Some(Content::Zero)][any_of(4)];
            s.inherit(range, Inherit { included: bit(0).then_some(bit(1)), content })
        }
        8 => {
            use Advice::*;
            let all = [Normal, WillNeed, DontNeed, Free, Remove, PageOut, PopulateRead, PopulateWrite];
            s.advise(range, all[any_of(all.len())])
        }
        9 => s.grow_stack(c.at),
        10 => {
            // None of these calls can change a map.
            let _typed = s.fault(c.at, [Access::Read, Access::Write, Access::Exec][any_of(3)]);
            let _typed = s.futex_key(c.at);
            let _counted = s.wired_in(range);
            s.resident(range, &mut |_, _| ()).map(drop)
        }
        _ => s.sync(range),
    };
    // If the range has a hole, or a part that may not have the protection, the call may change the other parts.
    let partly = matches!(c.kind, 4 | 6 | 7 | 8) && matches!(result, Err(MapError::NotMapped | MapError::Protection));
    (result, partly || (c.kind == 8 && result == Err(MapError::OutOfMemory)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_call_succeeds_or_gives_an_error_and_changes_nothing(calls in prop::collection::vec(call(), 1..40)) {
        quire_sync::hooks::threads::set_cpu(0);
        let m = boot(2048, 2);
        let object = ObjectRef::anonymous(m.vm, 16).unwrap();
        {
            let s = Space::new(m.vm).unwrap();
            s.set_limits(Limits { base: BASE, ..Limits::DEFAULT });
            for c in &calls {
                let before = entries(&s);
                let (result, partly) = perform(&s, &object, c);
                if result.is_err() && !partly {
                    prop_assert_eq!(entries(&s), before, "{:x?} gave {:?}", c, result);
                }
                for (range, _) in entries(&s) {
                    prop_assert!(range.end <= USER_RANGE.end && !range.is_empty(), "{:x?} left {:x?}", c, range);
                }
            }
            prop_assert_eq!(s.check(true), Ok(()));
        }
        drop(object);
        m.vm.epoch().drain();
    }
}

#[test]
fn mappings_below_the_test_machine_tables_get_no_tables() {
    quire_sync::hooks::threads::set_cpu(0);
    let m = boot(1024, 2);
    let s = Space::new(m.vm).unwrap();
    s.map(&MapRequest::private(Placement::Fixed(page(0)), PAGE_SIZE)).unwrap();
    s.fault(page(0), Access::Write).unwrap();
    let table = |start, end| s.pmap().next_table(m.vm, VirtRange { start, end }).map(|table| table.span().start);
    assert_eq!([table(PAGE_SIZE, 2 * PAGE_SIZE), table(0, BASE), table(0, BASE + 1)], [None, None, Some(BASE)]);
}

#[test]
fn impossible_mappings_never_reach_the_tree() {
    quire_sync::hooks::threads::set_cpu(0);
    let m = boot(1024, 2);
    let s = Space::new(m.vm).unwrap();
    let object = ObjectRef::anonymous(m.vm, 16).unwrap();
    s.map(&MapRequest::private(Placement::Fixed(page(0)), PAGE_SIZE)).unwrap();
    let outside = [
        (page(0), 0),
        (page(0) + 1, PAGE_SIZE),
        (page(0), PAGE_SIZE - 1),
        (USER_RANGE.end, PAGE_SIZE),
        (USER_RANGE.end - PAGE_SIZE, 2 * PAGE_SIZE),
        (page(0), PAGE_SIZE.wrapping_neg()),
        (u64::MAX - PAGE_SIZE + 1, PAGE_SIZE),
    ];
    // Hold the writer, so that an operation that goes as far as the tree blocks. Invalid ranges must be refused before.
    let held = s.keep_writers_out(page(0));
    let (done, all_done) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (s, object) = (&s, &object);
        scope.spawn(move || {
            quire_sync::hooks::threads::set_cpu(1);
            for (at, len) in outside {
                for kind in [0, 3, 4, 5, 6, 7, 8, 11] {
                    // The bits select a fixed address, and nothing that is an error by itself.
                    let call = Call { kind, at, len, to: (page(4), PAGE_SIZE), bits: 1 };
                    let empty_old = kind == 5 && len == 0;
                    if !empty_old {
                        done.send((at, len, kind, perform(s, object, &call).0)).unwrap();
                    }
                }
            }
        });
        let mut calls = 0;
        while let Ok((at, len, kind, result)) = all_done.recv_timeout(Duration::from_secs(20)) {
            // A length that exceeds the address space is `NoSpace`.
            let too_long = kind == 0 && len > USER_RANGE.len() && result == Err(MapError::NoSpace);
            assert!(too_long || result == Err(MapError::Invalid), "call {kind} of {at:#x}, {len:#x}: {result:?}");
            calls += 1;
        }
        // Release the writer before the count is compared, so that a blocked thread can end.
        drop(held);
        assert_eq!(calls, outside.len() * 8 - 1);
    });
}
