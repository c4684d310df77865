//! Calls on address spaces, and the accesses of the CPUs that have them loaded.
#![forbid(unsafe_code)]

use super::player::Player;
use super::world::THINGS;
use super::{Operation, inside};
use quire_vm::map::{Advice, Content, EntryInfo, Inherit, Limits, MapRequest, Move, Placement, Space, Tag, Wire};
use quire_vm::phys::frames::{Fill, For};
use quire_vm::{FaultError, MapError, PAGE_SIZE, Prot, VirtRange};

/// Whether `range` is reversed or misaligned, so that every call must refuse it.
fn is_wrong(range: VirtRange) -> bool {
    range.start > range.end || !(range.start | range.end).is_multiple_of(PAGE_SIZE)
}

pub const OPERATIONS: &[Operation] = &[
    ("map", map),
    ("map an object", map_object),
    ("unmap", |p| {
        let (space, range) = (p.space().1, p.range());
        let done = space.unmap(range);
        assert!(done.is_err() || !is_wrong(range), "unmapped {range:?}");
        assert!(!p.alone || done.is_err() || !space.is_mapped(range));
    }),
    ("look at pages", |p| {
        let (range, va, page) = (p.range(), p.address(), p.page());
        let space = p.space().1;
        let _seen = (space.page_at(va), space.swapped_in(range), space.store(va, &[1, 2, 3]));
        if is_wrong(range) {
            assert!(space.seal(range).is_err() && space.show_from(range, page, false).is_err());
        } else {
            let (leaf, forgotten) = (space.next_leaf(range), space.forget_accesses(range));
            assert!(!p.alone || leaf.is_some() || forgotten == 0, "accesses in {range:?}");
            assert!(!p.alone || leaf.is_some() == (space.leaves_in(range) > 0), "leaves in {range:?}");
        }
    }),
    ("protect", |p| {
        let range = p.range();
        let done = p.space().1.protect(range, p.prot());
        assert!(done.is_err() || !is_wrong(range), "protected {range:?}");
    }),
    ("advise", |p| {
        use Advice::*;
        let all = [Normal, WillNeed, DontNeed, Free, Remove, PageOut, PopulateRead, PopulateWrite];
        let _typed = p.space().1.advise(p.range(), p.one_of(&all));
    }),
    ("inherit", |p| {
        let some = Inherit { included: None, content: Some(Content::Zero) };
        let all = [Inherit::NONE, Inherit::COPY, Inherit::SHARE, Inherit::ZERO, Inherit::default(), some];
        let range = p.range();
        let done = p.space().1.inherit(range, p.one_of(&all));
        assert!(done.is_err() || !is_wrong(range), "inherits {range:?}");
    }),
    ("leave out of dumps", |p| {
        let (range, left_out) = (p.range(), p.flip());
        let done = p.space().1.leave_out_of_dumps(range, left_out);
        assert!(done.is_err() || !is_wrong(range), "leaves {range:?} out");
    }),
    ("remap", |p| {
        let (space, from, to) = (p.space().1, p.range(), p.address());
        let len = if p.flip() { p.below(24) * PAGE_SIZE } else { from.end.wrapping_sub(from.start) };
        let how = p.one_of(&[Move::No, Move::May, Move::To(to)]);
        let _typed = space.remap(from, len, how, p.flip());
    }),
    ("wire", |p| {
        let (space, how) = (p.space().1, p.one_of(&[Wire::No, Wire::No, Wire::Now, Wire::OnFault]));
        let _typed = space.wire(p.range(), how);
        let range = p.range();
        let _racing = (space.wired_in(range), space.wired_bytes());
    }),
    ("wire all", |p| {
        let (space, how) = (p.space().1, p.one_of(&[Wire::No, Wire::No, Wire::Now, Wire::OnFault]));
        if p.flip() {
            let _typed = space.wire_all(how);
        } else {
            space.wire_future(how);
            let _racing = space.future();
        }
    }),
    ("fork", |p| {
        if let Ok(child) = p.space().1.fork() {
            p.keep_space(child);
        }
    }),
    ("new space", |p| {
        if let Ok(space) = Space::new(p.vm()) {
            p.keep_space(space);
        }
    }),
    ("fault", |p| {
        let _typed = p.space().1.fault(p.address(), p.access());
    }),
    ("grow a stack", |p| {
        let (space, at) = (p.space().1, p.address());
        let _typed = if p.flip() { space.grow_stack(at).is_ok() } else { space.grow_stack_at_fault(at).is_ok() };
    }),
    ("make resident", |p| {
        let range = p.range();
        let done = p.space().1.make_resident(range);
        assert!(done.is_err() || !is_wrong(range), "made {range:?} resident");
    }),
    ("sync", |p| {
        let (space, range) = (p.space().1, p.range());
        let _typed = if p.flip() { space.sync(range) } else { space.start_sync(range) };
    }),
    ("look", look),
    ("entries", |p| {
        let (space, from, mut left) = (p.space().1, p.address(), 20);
        space.entries(from, &mut |entry| {
            let mut name = String::new();
            entry.name(&mut name).expect("a string takes all");
            assert!(entry.pager().is_none() || entry.object.is_some());
            assert!(name.is_empty() || entry.ident() != (0, 0), "{name} has no number");
            assert!(entry.tag() == Tag::None || entry.tag() == Tag::Stack || entry.tag() == Tag::Heap);
            left -= 1;
            left > 0
        });
    }),
    ("mappings", |p| {
        let (space, range, mut left) = (p.space().1, p.range(), 20);
        let mut count = |entry: &EntryInfo<quire_hosted::Hosted>| {
            let rest = entry.rest(PAGE_SIZE);
            assert_eq!(rest.range.end, entry.range.end);
            left -= 1;
            left > 0
        };
        space.mappings(range.start, &mut count);
        space.entries_of_objects(&mut count);
        let mut pages = 100;
        let _racing = space.mapped_copies_in(range);
        space.each_page(range, &mut |_, _| {
            pages -= 1;
            pages > 0
        });
    }),
    ("force", |p| {
        let (space, at) = (p.space().1, p.address());
        let mut bytes = [0; 5000];
        let _typed = (space.force_read(at, &mut bytes), space.force_store(at, &bytes[..100]));
    }),
    ("limits", |p| {
        let space = p.space().1;
        let limits = space.limits();
        let (byte, long) = (p.input.byte(), p.input.long());
        space.set_limits(match byte % 6 {
            0 => Limits { base: long, ..limits },
            1 => Limits { stack: long, ..limits },
            2 => Limits { bytes: long, ..limits },
            3 => Limits { data: long, ..limits },
            4 => Limits { entries: long, ..limits },
            _ => Limits { base: 0x1000, stack: 1 << 20, bytes: 1 << 40, data: u64::MAX, entries: 1000 },
        });
    }),
    ("end a space", |p| {
        let space = p.space().1;
        match p.below(8) {
            0 => {
                space.condemn();
                space.reap();
            }
            1 => space.clear(),
            _ => {
                let _dropped = space.drop_tables();
            }
        }
    }),
    ("open an arena", |p| {
        // Some of these CPUs do not exist.
        let cpu = p.one_of(&[0, 1, 2, 3, 255, 256, usize::MAX]);
        p.space().1.open_arena(cpu);
    }),
    ("look at page tables", |p| {
        let ((n, space), range) = (p.space(), p.range());
        let spare = p.world.vms[n / THINGS].alloc_frame(Fill::Any, For::Kernel).ok();
        inside::tables(&space, range, spare);
    }),
    ("check a space", |p| {
        p.space().1.check(false).unwrap_or_else(|broken| panic!("{broken}"));
    }),
    ("enter", |p| {
        let (n, space) = p.space();
        let (own, other) = (&p.cpus[n / THINGS], &p.cpus[1 - n / THINGS]);
        own.enter(&space).expect("the space belongs to its machine");
        assert!(other.enter(&space).is_err(), "a CPU loads the tables of another machine");
    }),
    ("leave", |p| p.one_of(&[&p.cpus[0], &p.cpus[1]]).leave()),
    ("load and store", |p| {
        let (n, space) = p.space();
        let (own, other) = (&p.cpus[n / THINGS], &p.cpus[1 - n / THINGS]);
        own.enter(&space).expect("the space belongs to its machine");
        let at = p.address() & !7;
        assert_eq!(other.read(&space, at), Err(FaultError::Foreign));
        match p.below(4) {
            0 => drop(own.read(&space, at)),
            1 => drop(own.execute(&space, at)),
            2 => own.speculate(at),
            _ => drop(own.write(&space, at, at)),
        }
    }),
];

fn map(p: &mut Player<'_>) {
    let (space, at) = (p.space().1, p.address());
    let at = p.one_of(&[Placement::Fixed(at), Placement::FixedNoReplace(at), Placement::Any { hint: at }]);
    let len = match p.input.byte() {
        0..8 => p.input.long(),
        8 => u64::MAX,
        n => u64::from(n % 24) * PAGE_SIZE,
    };
    let request = MapRequest {
        prot: p.prot(),
        max_prot: if p.below(8) == 0 { p.prot() } else { Prot::all() },
        shared: p.below(4) == 0,
        grows_down: p.below(6) == 0,
        tag: p.one_of(&[Tag::None, Tag::Stack, Tag::Heap]),
        wire: if p.below(16) == 0 { Wire::Now } else { Wire::No },
        populate: p.below(6) == 0,
        ..MapRequest::private(at, len)
    };
    let _typed = space.map(&request);
}

fn map_object(p: &mut Player<'_>) {
    let ((n, space), (of, object), at) = (p.space(), p.object(), p.address());
    let offset = if p.below(8) == 0 { p.offset() } else { p.below(16) * PAGE_SIZE };
    let request = MapRequest {
        prot: p.prot(),
        shared: p.flip(),
        object: Some((&object, offset)),
        populate: p.below(6) == 0,
        ..MapRequest::private(Placement::Fixed(at), p.below(24) * PAGE_SIZE)
    };
    let done = space.map(&request);
    if n / THINGS != of / THINGS {
        assert!(
            matches!(done, Err(MapError::Foreign | MapError::Invalid)),
            "an object of another system is mapped: {done:?}"
        );
    }
}

/// Calls queries, which change nothing.
fn look(p: &mut Player<'_>) {
    let ((n, space), range) = (p.space(), p.range());
    let vm = p.world.vms[n / THINGS];
    assert!(space.is_of(vm) && std::ptr::eq(space.vm(), &raw const ***vm));
    match p.below(6) {
        0 => {
            let mut seen = 0;
            // The callback cannot end the query, so a huge range is not queried.
            if range.end.saturating_sub(range.start) < 1 << 20 {
                let _typed = space.resident(range, &mut |_, there| seen += u64::from(there));
            }
        }
        1 => drop(space.futex_key(range.start)),
        2 => {
            let mut bytes = [0; 5000];
            let _typed = space.read(range.start, &mut bytes);
        }
        3 => {
            let stats = space.stats();
            let covered = stats.covered;
            assert!(covered.data() + covered.stack() + covered.code() <= covered.bytes || !p.alone);
            space.restart_peak();
            let _racing = (
                space.peak_resident(),
                space.holdings().total(),
                (space.most_holdings().total(), space.resident_estimate()),
                space.is_mapped(range),
            );
            let memory = space.structures();
            assert!(memory.tables % PAGE_SIZE == 0 && memory.total() >= memory.tables + memory.space);
        }
        4 => inside::entry(&space, range.start),
        _ => assert_ne!(space.id(), 0),
    }
}
