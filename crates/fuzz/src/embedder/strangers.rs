//! Calls of threads that are no CPU: each is refused by a panic, before it has taken a lock or changed anything.
#![forbid(unsafe_code)]

use super::Operation;
use super::player::Player;
use quire_hosted::{AttachError, Cpu};
use quire_vm::map::{MapRequest, Placement, Space};
use quire_vm::phys::frames::{Fill, For};
use quire_vm::{Access, ObjectRef, PAGE_SIZE, VirtRange};
use std::cell::Cell;
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
    /// A panic of this thread is no finding.
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// Lets the fuzzer see no panic of strangers.
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
    let (space, object, vm, what) = (p.space().1, p.object().1, p.vm(), p.below(12));
    let range = VirtRange { start: 0x1000, end: 0x2000 };
    let was_refused = std::thread::scope(|scope| {
        let call = || {
            REFUSED.set(true);
            match what {
                0 => drop(Space::new(vm)),
                1 => drop(space.map(&MapRequest::private(Placement::Any { hint: 0 }, PAGE_SIZE))),
                2 => drop(space.fault(0x1000, Access::Read)),
                3 => drop(space.unmap(range)),
                4 => drop(space.protect(range, quire_vm::Prot::READ)),
                5 => drop(space.fork()),
                6 => drop(vm.alloc_frame(Fill::Any, For::User)),
                7 => drop(vm.alloc_run(0, For::User)),
                8 => drop(ObjectRef::anonymous(vm, 1)),
                9 => drop(object.read(0, 8, &mut |bytes| Ok::<_, ()>(bytes.len()))),
                10 => drop(object.write(0, 8, &mut |bytes| Ok::<_, ()>(bytes.len()))),
                _ => object.discard(0..4),
            }
        };
        let thread = scope.spawn(call);
        while !thread.is_finished() {
            p.cpus.iter().for_each(Cpu::interrupts);
            std::thread::yield_now();
        }
        thread.join().is_err()
    });
    assert!(was_refused, "a thread that is no CPU was let do call {what}");
}
