//! Calls on plain values (flags, ranges, sets, cursors), and on the machine as the core sees it.
#![forbid(unsafe_code)]

use super::{Operation, inside};
use quire_vm::machine::{Enter, KernelPages};
use quire_vm::map::Flags;
use quire_vm::mutant::{Mutant, mutant};
use quire_vm::object::SlotFilter;
use quire_vm::object::index::Cursor;
use quire_vm::tlb::flush::FlushSet;
use quire_vm::{Access, Machine, Pfn, Phys, Prot, VirtRange};

/// Calls all operations of `bitflags` on two values of one type.
macro_rules! flags {
    ($p:ident, $type:ty, $bits:expr) => {{
        let (a, b) = ($bits, $bits);
        let (mut x, y) = (<$type>::from_bits_retain(a), <$type>::from_bits_truncate(b));
        assert_eq!(<$type>::from_bits(b).is_some(), y.bits() == b);
        assert_eq!(x.union(y).contains(y), true);
        assert_eq!(x.intersects(y), !x.intersection(y).is_empty());
        assert_eq!(x.symmetric_difference(y), x.difference(y).union(<$type>::from_bits_retain(b & y.bits() & !a)));
        assert!(<$type>::all().is_all() && <$type>::empty().is_empty());
        assert!(!y.complement().intersects(y));
        assert_eq!(y.iter().count(), y.iter_names().count());
        assert!(<$type>::from_name("no flag").is_none());
        for (name, flag) in y.iter_names() {
            assert!(<$type>::from_name(name) == Some(flag));
        }
        x.insert(y);
        x.remove(y);
        x.toggle(y);
        x.set(y, a & 1 != 0);
    }};
}

pub const OPERATIONS: &[Operation] = &[
    ("flags", |p| match p.below(3) {
        0 => flags!(p, Prot, p.input.byte()),
        1 => flags!(p, Flags, u16::from_le_bytes([p.input.byte(), p.input.byte()])),
        _ => flags!(p, SlotFilter, p.input.byte()),
    }),
    ("ranges", |p| {
        let (start, len, other) = (p.address(), p.offset(), p.range());
        if let Some(range) = VirtRange::checked(start, len) {
            assert!(range.len() == len && range.is_empty() == (len == 0));
            assert_eq!(range.contains(start), len != 0);
            if let Some(both) = range.intersect(&other) {
                assert!(both.start >= range.start && both.end <= range.end);
            }
        }
        let frame = Pfn::containing(start);
        assert!(frame.address() <= start);
        let (prot, access) = (p.prot(), p.one_of(&[Access::Read, Access::Write, Access::Exec]));
        assert!(!prot.contains(access.needs()) || prot.allows(access));
        assert_eq!(Enter::new(frame, prot).pfn, frame);
        let map = inside::direct_map(start);
        assert_eq!(map.frame_ptr(frame).addr() as u64, map.address(frame.address()));
        assert_eq!(map.pfn_of(map.frame_ptr(frame)), frame);
        assert_eq!(Enter::existing(frame, prot, start % 2 == 0).prot, prot);
        assert!(!Enter::zeroes(frame, prot).prot.contains(Prot::WRITE));
        let _off = mutant(Mutant::MissInClosedArena);
    }),
    ("cursors", |p| {
        let (pages, back) = (p.pages(), p.page());
        let mut cursor = Cursor::over(pages.clone());
        assert_eq!(cursor.key(), pages.start);
        assert!(cursor.is_done() || !pages.is_empty());
        cursor.rewind(back);
    }),
    ("flush", |p| {
        let (vm, mut set, range) = (p.vm(), FlushSet::new(), p.range());
        if p.flip() {
            set.add_structure(range);
        }
        if p.flip() {
            set.add_all();
        }
        let _empty = (set.hull(), set.ranges().map(<[_]>::len), set.structure());
        vm.machine().flush_kernel(&set);
    }),
    ("ask the machine", |p| {
        let (vm, cpu) = (p.vm(), p.below(3) as usize);
        let machine = vm.machine();
        assert_eq!(machine.cpus(), 3);
        assert!(machine.domain_of_cpu(cpu) < machine.domains());
        let zero = vm.zero_frame();
        assert!(machine.domain_of_frame(zero).0 < machine.domains());
        let _settings = (machine.ends_something(), machine.is_ending(), machine.refuses_allocation());
        let (_now, _tier) = (machine.store_time(), machine.standing());
        machine.prefetch(machine.frame_ptr(zero));
        machine.prefetch_frame::<4>(zero);
    }),
];
