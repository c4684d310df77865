//! Calls of threads that are not a CPU. Each is refused by a panic, before it acquires a lock or changes anything.
#![forbid(unsafe_code)]

use super::Operation;
use super::player::Player;
use quire_hosted::{AttachError, Cpu};
use quire_vm::map::{MapRequest, Placement, Space};
use quire_vm::phys::frames::{Fill, For};
use quire_vm::{Access, FaultError, MapError, ObjectRef, PAGE_SIZE, Prot, VirtRange};
use std::cell::Cell;
use std::mem::forget;
use std::sync::Once;

pub const OPERATIONS: &[Operation] = &[
    ("a stranger", stranger),
    ("attach", |p| {
        let vm = p.vm();
        for id in [3, 256, usize::MAX] {
            assert_eq!(Cpu::attach(vm, id).err(), Some(AttachError::NoSuchCpu { cpus: 3 }));
        }
        assert_eq!(Cpu::attach(vm, p.cpus[0].id()).err(), Some(AttachError::Taken));
    }),
];

std::thread_local! {
    /// Set while a panic of this thread is expected.
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// Hides the expected panics from the fuzzer.
fn expect_refusals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let finding = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !REFUSED.get() {
                finding(info);
            }
        }));
    });
}

fn stranger(p: &mut Player<'_>) {
    expect_refusals();
    let (space, object, vm, number) = (p.space().1, p.object().1, p.vm(), p.below(12));
    let range = VirtRange { start: 0x1000, end: 0x2000 };
    let done = std::thread::scope(|scope| {
        let call = || {
            REFUSED.set(true);
            match number {
                0 => Space::new(vm).map(forget).is_ok(),
                1 => space.map(&MapRequest::private(Placement::Any { hint: 0 }, PAGE_SIZE)).is_ok(),
                2 => !matches!(space.fault(0x1000, Access::Read), Err(FaultError::OutOfMemory)),
                3 => space.unmap(range).is_ok(),
                4 => !matches!(space.protect(range, Prot::READ), Err(MapError::OutOfMemory)),
                5 => space.fork().map(forget).is_ok(),
                6 => vm.alloc_frame(Fill::Any, For::User).map(forget).is_ok(),
                7 => vm.alloc_run(0, For::User).map(forget).is_ok(),
                8 => ObjectRef::anonymous(vm, 1).map(forget).is_ok(),
                9 => object.read(0, 8, &mut |bytes| Ok::<_, ()>(bytes.len())).is_ok_and(|n| n != 0),
                10 => object.write(0, 8, &mut |bytes| Ok::<_, ()>(bytes.len())).is_ok(),
                _ => {
                    let _answer = space.is_mapped(range);
                    true
                }
            }
        };
        let thread = scope.spawn(call);
        while !thread.is_finished() {
            p.cpus.iter().for_each(Cpu::interrupts);
            std::thread::yield_now();
        }
        match thread.join() {
            // An error is a valid result too: of an allocation that must fail, or of a device, which cannot be read.
            Ok(done) => done,
            Err(payload) => {
                let said =
                    payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
                assert_eq!(said, Some("the calling thread is no CPU of this machine"), "call {number}");
                false
            }
        }
    });
    assert!(!done, "call {number} succeeded on a thread that is no CPU");
}
