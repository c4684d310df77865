//! Tests of the vDSO image as a linker, an unwinder and a program use it. Its code runs in the test, with a clock page
//! of the test's own.

use crate::UserClock;
use crate::time::SECOND;
use crate::vdso::image;
use crate::vdso::image::{FILE, NAMES, VERSION, gnu_hash, system_v_hash};
use crate::vdso::page::ClockPage;
use core::arch::x86_64::_rdtsc;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, LittleEndian, RegisterRule, UnwindContext, UnwindSection, X86_64,
};
use object::elf::{self, DynamicTag};
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use proptest::prelude::*;
use quire_sync::atomic::{AtomicBool, Ordering};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

const PAGE: usize = 4096;

fn file() -> ElfFile64<'static> {
    ElfFile64::parse(&image::image()[..]).expect("the image is an ELF file")
}

fn word(at: usize) -> u32 {
    u32::from_le_bytes(image::image()[at..at + 4].try_into().expect("four bytes"))
}
fn half(at: usize) -> u16 {
    u16::from_le_bytes(image::image()[at..at + 2].try_into().expect("two bytes"))
}
fn text(at: usize) -> &'static str {
    let bytes = &image::image()[at..];
    let len = bytes.iter().position(|b| *b == 0).expect("a zero byte");
    core::str::from_utf8(&bytes[..len]).expect("ASCII")
}

/// The entries of the dynamic section, as tags and values.
fn dynamic() -> Vec<(DynamicTag, u64)> {
    let (file, data) = (file(), &image::image()[..]);
    let segments = file.elf_program_headers();
    let entries = segments.iter().find_map(|s| s.dynamic(LE, data).expect("in the file"));
    let entries = entries.expect("a dynamic section");
    entries.iter().map(|e| (e.d_tag(LE), e.d_val(LE))).collect()
}
const LE: object::Endianness = object::Endianness::Little;

fn entry(tag: DynamicTag) -> usize {
    let all = dynamic();
    all.iter().find(|(t, _)| *t == tag).unwrap_or_else(|| panic!("no entry {tag:#x}")).1 as usize
}

/// A dynamic symbol: its name, whether it is defined, and its address. All three are read as a program reads them.
fn symbol(n: usize) -> (&'static str, bool, u64) {
    let at = entry(elf::DT_SYMTAB) + n * 24;
    let value = u64::from(word(at + 8)) | u64::from(word(at + 12)) << 32;
    (text(entry(elf::DT_STRTAB) + word(at) as usize), half(at + 6) != 0, value)
}

/// Finds a symbol as musl does: by DT_HASH.
fn find_by_hash(name: &str) -> Option<usize> {
    let at = entry(elf::DT_HASH);
    let (buckets, symbols) = (word(at) as usize, word(at + 4) as usize);
    let mut n = word(at + 8 + 4 * (system_v_hash(name) as usize % buckets)) as usize;
    let mut steps = 0;
    while n != 0 {
        steps += 1;
        assert!(n < symbols && steps <= symbols, "the chain ends");
        if symbol(n).0 == name {
            return Some(n);
        }
        n = word(at + 8 + 4 * (buckets + n)) as usize;
    }
    None
}

/// Finds a symbol as glibc and Go do: by DT_GNU_HASH.
fn find_by_gnu_hash(name: &str) -> Option<usize> {
    let at = entry(elf::DT_GNU_HASH);
    let [buckets, first, filters, shift] = core::array::from_fn(|i| word(at + 4 * i) as usize);
    let hash = gnu_hash(name);
    let filter = at + 16 + 8 * (hash as usize / 64 % filters);
    let filter = u64::from(word(filter)) | u64::from(word(filter + 4)) << 32;
    if filter & 1 << (hash % 64) == 0 || filter & 1 << ((hash >> shift) % 64) == 0 {
        return None;
    }
    let bucket_at = at + 16 + 8 * filters;
    let mut n = word(bucket_at + 4 * (hash as usize % buckets)) as usize;
    loop {
        let there = word(bucket_at + 4 * (buckets + n - first));
        if there | 1 == hash | 1 && symbol(n).0 == name {
            return Some(n);
        }
        if there & 1 != 0 {
            return None;
        }
        n += 1;
    }
}

#[test]
fn the_image_is_a_shared_object_without_relocations_or_writable_memory() {
    let file = file();
    assert_eq!(file.elf_header().e_type(LE), elf::ET_DYN);
    assert_eq!(file.elf_header().e_machine(LE), elf::EM_X86_64);
    let mut loads = 0;
    for s in file.elf_program_headers() {
        assert!(!s.p_flags(LE).contains(elf::PF_W), "a writable segment");
        assert_eq!(s.p_offset(LE), s.p_vaddr(LE), "loaded as one piece from address 0");
        assert!(s.p_offset(LE) + s.p_filesz(LE) <= PAGE as u64);
        assert_eq!(s.p_filesz(LE), s.p_memsz(LE));
        loads += u32::from(s.p_type(LE) == elf::PT_LOAD);
    }
    assert_eq!(loads, 1);
    for tag in [elf::DT_REL, elf::DT_RELA, elf::DT_RELR, elf::DT_JMPREL, elf::DT_TEXTREL, elf::DT_NEEDED, elf::DT_INIT]
    {
        assert!(dynamic().iter().all(|(t, _)| *t != tag), "tag {tag:#x}");
    }
    assert!(file.dynamic_relocations().is_none_or(|mut all| all.next().is_none()));
    assert_eq!(text(entry(elf::DT_STRTAB) + entry(elf::DT_SONAME)), FILE);
}

#[test]
fn both_hash_tables_lead_to_every_name_and_to_no_other() {
    for (i, name) in NAMES.iter().enumerate() {
        let n = find_by_hash(name).unwrap_or_else(|| panic!("{name} in DT_HASH"));
        assert_eq!((n, find_by_gnu_hash(name)), (i + 1, Some(n)), "{name}");
        let (_, defined, value) = symbol(n);
        assert!(defined);
        let full = symbol(find_by_hash(NAMES[i % 5]).expect("a function")).2;
        assert_eq!(value, full, "{name} is the same function with and without its prefix");
    }
    for name in ["", "__vdso_getrandom", "clock_gettim", "clock_gettime2", "LINUX_2.6"] {
        assert_eq!((find_by_hash(name), find_by_gnu_hash(name)), (None, None), "{name}");
    }
}

#[test]
fn every_symbol_is_a_function_of_the_code_with_linuxs_version() {
    assert_eq!(system_v_hash(VERSION), 61_765_110, "glibc has this number built in");
    let file = file();
    let code = file.section_by_name(".text").expect("code");
    let symbols: Vec<_> = file.dynamic_symbols().collect();
    assert!(symbols.iter().map(|s| s.name().expect("a name")).eq(NAMES));
    for s in &symbols {
        assert_eq!(s.kind(), SymbolKind::Text);
        assert_eq!(s.is_weak(), !s.name().expect("a name").starts_with("__vdso_"));
        assert!(code.address() <= s.address() && s.address() + s.size() <= code.address() + code.size());
        assert_eq!(half(entry(elf::DT_VERSYM) + 2 * s.index().0), 2);
    }
    // The version definitions: first the definition of the file itself, then Linux's.
    let (mut at, mut found) = (entry(elf::DT_VERDEF), Vec::new());
    for _ in 0..entry(elf::DT_VERDEFNUM) {
        let name = text(entry(elf::DT_STRTAB) + word(at + word(at + 12) as usize) as usize);
        assert_eq!(word(at + 8), system_v_hash(name), "{name}");
        found.push((half(at + 2), half(at + 4), name));
        at += word(at + 16) as usize;
    }
    assert_eq!(found, [(elf::VER_FLG_BASE.0, 1, FILE), (0, 2, VERSION)]);
    let versions = file.elf_section_table().versions(LE, &image::image()[..]).expect("well formed");
    assert!(versions.is_some(), "tools find the versions");
}

#[test]
fn an_unwinder_finds_the_caller_from_every_instruction() {
    let file = file();
    let section = |name| file.section_by_name(name).expect(name);
    let (code, table, index) = (section(".text"), section(".eh_frame"), section(".eh_frame_hdr"));
    let bases = BaseAddresses::default()
        .set_text(code.address())
        .set_eh_frame(table.address())
        .set_eh_frame_hdr(index.address());
    let frames = EhFrame::new(table.data().expect("bytes"), LittleEndian);
    let index = EhFrameHdr::new(index.data().expect("bytes"), LittleEndian).parse(&bases, 8).expect("an index");
    let index = index.table().expect("of sorted rows");
    let mut context = UnwindContext::new();
    for at in code.address()..code.address() + code.size() {
        let row = index
            .unwind_info_for_address(&frames, &bases, &mut context, at, EhFrame::cie_from_offset)
            .unwrap_or_else(|e| panic!("{at:#x}: {e}"));
        assert_eq!(row.cfa(), &CfaRule::RegisterAndOffset { register: X86_64::RSP, offset: 8 });
        assert_eq!(row.register(X86_64::RA), Some(RegisterRule::Offset(-8)));
    }
}

/// The clock page followed by the image, as in a program.
struct Mapped(*mut u8);

// SAFETY: the clock page consists of atomics, and the image is only read.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new() -> Mapped {
        let all = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the memory is new, and the image is written into it before it may be executed.
        unsafe {
            let at = mmap_anonymous(null_mut(), 2 * PAGE, all, MapFlags::PRIVATE).expect("memory");
            at.cast::<u8>().add(PAGE).copy_from_nonoverlapping(image::image().as_ptr(), PAGE);
            mprotect(at.byte_add(PAGE), PAGE, MprotectFlags::READ | MprotectFlags::EXEC).expect("rights");
            Mapped(at.cast())
        }
    }
    fn page(&self) -> &ClockPage {
        // SAFETY: the first page begins as zeroes, which are a valid clock page.
        unsafe { &*self.0.cast() }
    }
    fn address(&self, name: &str) -> *const u8 {
        let at = symbol(find_by_gnu_hash(name).expect("a symbol")).2;
        // SAFETY: the symbol's address lies in the image.
        unsafe { self.0.add(PAGE + at as usize) }
    }
    /// Calls the function `name`. Returns its status, the seconds, and the nanoseconds.
    fn call(&self, name: &str, clock: c_int) -> (c_int, u64, u64) {
        let mut out = [7u64; 2];
        // SAFETY: the function has this type, and its result fits the buffer.
        let status = unsafe {
            let f: extern "C" fn(c_int, *mut u64) -> c_int = core::mem::transmute(self.address(name));
            f(clock, out.as_mut_ptr())
        };
        (status, out[0], out[1])
    }
    fn clock(&self, clock: c_int) -> u64 {
        let (status, seconds, nanos) = self.call("__vdso_clock_gettime", clock);
        assert_eq!(status, 0);
        assert!(nanos < SECOND);
        seconds * SECOND + nanos
    }
    fn day(&self) -> (u64, u64) {
        let (mut out, mut zone) = ([7u64; 2], [9u32; 2]);
        // SAFETY: the function has this type, and its results fit the buffers.
        let status = unsafe {
            let f: extern "C" fn(*mut u64, *mut u32) -> c_int =
                core::mem::transmute(self.address("__vdso_gettimeofday"));
            f(out.as_mut_ptr(), zone.as_mut_ptr())
        };
        assert_eq!((status, zone), (0, [0, 0]));
        (out[0], out[1])
    }
    fn time(&self) -> u64 {
        let mut out = 7u64;
        // SAFETY: the function has this type, and stores one word.
        let (stored, alone) = unsafe {
            let f: extern "C" fn(*mut u64) -> u64 = core::mem::transmute(self.address("__vdso_time"));
            (f(&mut out), f(null_mut()))
        };
        assert!(stored == out && alone >= out);
        out
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `new` mapped both pages, and no reference to them is left.
        unsafe { munmap(self.0.cast::<c_void>(), 2 * PAGE).expect("mapped") }
    }
}

/// A clock that stands still, `epoch` nanoseconds after 1970.
fn still(epoch: u64) -> Option<UserClock> {
    Some(UserClock { start: 0, ns_per_tick: 0, epoch })
}

proptest! {
    #[test]
    fn nanoseconds_are_split_as_a_division_splits_them(
        epoch in any::<u64>(),
        near in 0u64..u64::MAX / SECOND,
        by in 0u64..3,
    ) {
        let mapped = Mapped::new();
        for epoch in [epoch, (near * SECOND + by).saturating_sub(1)] {
            mapped.page().publish(still(epoch));
            prop_assert_eq!(mapped.call("clock_gettime", 0), (0, epoch / SECOND, epoch % SECOND));
            prop_assert_eq!(mapped.day(), (epoch / SECOND, epoch % SECOND / 1000));
            prop_assert_eq!(mapped.time(), epoch / SECOND);
            prop_assert_eq!(mapped.call("clock_gettime", 1), (0, 0, 0));
        }
    }
}

#[test]
fn each_clock_is_of_its_kind() {
    let mapped = Mapped::new();
    mapped.page().begin(25, 0);
    mapped.page().publish(still(5 * SECOND));
    for (ids, seconds) in [(&[0, 5, 11][..], 5), (&[1, 4, 6, 7], 0)] {
        for id in ids {
            assert_eq!(mapped.call("__vdso_clock_gettime", *id), (0, seconds, 0), "clock {id}");
            assert_eq!(mapped.call("__vdso_clock_getres", *id), (0, 0, 25), "clock {id}");
        }
    }
}

#[test]
fn no_program_computes_a_clock_while_it_is_set() {
    let mapped = Mapped::new();
    mapped.page().publish(still(5 * SECOND));
    mapped.page().change(|| {
        assert_eq!(mapped.page().count.load(Ordering::Relaxed) % 2, 1);
        assert_ne!(mapped.time(), 5, "the host's time, by a system call");
        still(7 * SECOND)
    });
    assert_eq!((mapped.page().count.load(Ordering::Relaxed) % 2, mapped.time()), (0, 7));
}

#[test]
fn the_counter_is_scaled_from_its_start() {
    let mapped = Mapped::new();
    for ns_per_tick in [1u64 << 30, (2 << 32) / 5, 1 << 32, 3 << 33] {
        // SAFETY: every x86-64 CPU has this instruction, which accesses no memory.
        let start = unsafe { _rdtsc() };
        // SAFETY: every x86-64 CPU has this instruction, which accesses no memory.
        let ns = || ((u128::from(unsafe { _rdtsc() } - start) * u128::from(ns_per_tick)) >> 32) as u64;
        mapped.page().publish(Some(UserClock { start, ns_per_tick, epoch: 1000 * SECOND }));
        for _ in 0..100 {
            let (before, since_boot, day, after) = (ns(), mapped.clock(1), mapped.clock(0), ns());
            assert!(before <= since_boot && since_boot <= day - 1000 * SECOND && day - 1000 * SECOND <= after);
        }
    }
}

fn host_seconds() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs()
}

/// Checks that all functions make a system call of the host that runs the test.
fn calls_the_system(mapped: &Mapped) {
    let (before, seen, after) = (host_seconds(), mapped.clock(0) / SECOND, host_seconds());
    assert!((before..=after).contains(&seen), "clock_gettime");
    assert!((before..=host_seconds()).contains(&mapped.day().0), "gettimeofday");
    // Linux's `time` may be a clock tick late.
    assert!((before - 1..=host_seconds()).contains(&mapped.time()), "time");
    let (status, seconds, nanos) = mapped.call("__vdso_clock_getres", 0);
    assert!(status == 0 && seconds == 0 && nanos != 7 && nanos != 25, "clock_getres");
}

#[test]
fn without_a_clock_every_function_makes_the_system_call() {
    let mapped = Mapped::new();
    mapped.page().begin(25, 0);
    mapped.page().publish(None);
    calls_the_system(&mapped);
    mapped.page().publish(still(5));
    mapped.page().publish(None);
    calls_the_system(&mapped);
}

#[test]
fn a_reader_that_meets_a_writer_makes_the_system_call() {
    let mapped = Mapped::new();
    mapped.page().publish(still(5));
    mapped.page().count.fetch_add(1, Ordering::Relaxed);
    let before = host_seconds();
    assert!(mapped.clock(0) / SECOND >= before && mapped.day().0 >= before && mapped.time() >= before - 1);
}

#[test]
fn other_clocks_and_wrong_ones_are_left_to_the_system_call() {
    const EINVAL: c_int = 22;
    let mapped = Mapped::new();
    mapped.page().publish(still(5));
    // The low five bits of 32 and 33 equal the valid clocks 0 and 1.
    for wrong in [-1, 12, 31, 32, 33, 64, i32::MAX, i32::MIN] {
        assert_eq!(mapped.call("clock_gettime", wrong).0, -EINVAL, "clock {wrong}");
        assert_eq!(mapped.call("clock_getres", wrong).0, -EINVAL, "clock {wrong}");
    }
    let used = mapped.clock(3);
    assert!((1..1_000_000 * SECOND).contains(&used), "the thread's CPU time");
}

#[test]
fn no_pointer_need_be_given_where_linux_asks_for_none() {
    let mapped = Mapped::new();
    mapped.page().publish(still(5));
    // SAFETY: the functions have these types, and store nothing if the pointer is null.
    unsafe {
        let day: extern "C" fn(*mut u64, *mut u32) -> c_int = core::mem::transmute(mapped.address("gettimeofday"));
        let resolution: extern "C" fn(c_int, *mut u64) -> c_int = core::mem::transmute(mapped.address("clock_getres"));
        let cpu: extern "C" fn(*mut u32, *mut u32, *mut u8) -> c_int = core::mem::transmute(mapped.address("getcpu"));
        assert_eq!((day(null_mut(), null_mut()), resolution(0, null_mut())), (0, 0));
        assert_eq!(cpu(null_mut(), null_mut(), null_mut()), 0);
    }
}

#[test]
fn without_a_segment_for_it_the_cpu_is_that_of_the_system_call() {
    let mapped = Mapped::new();
    let (mut cpu, mut node) = (u32::MAX, u32::MAX);
    // SAFETY: the function has this type, and stores two words.
    let status = unsafe {
        let f: extern "C" fn(*mut u32, *mut u32, *mut u8) -> c_int =
            core::mem::transmute(mapped.address("__vdso_getcpu"));
        f(&mut cpu, &mut node, null_mut())
    };
    assert!(status == 0 && cpu < 1 << 16 && node < 1 << 16, "status {status}, CPU {cpu}, node {node}");
}

#[test]
fn no_reader_sees_half_a_change() {
    const FAR: u64 = 1 << 62;
    let mapped = Mapped::new();
    // Two descriptions of the same clock. A mixture of their words is wrong by 2^62.
    let one = UserClock { start: 0, ns_per_tick: 1 << 32, epoch: 0 };
    let other = UserClock { start: FAR, ns_per_tick: 1 << 32, epoch: FAR };
    mapped.page().publish(Some(one));
    // SAFETY: every x86-64 CPU has this instruction, which accesses no memory.
    let (start, done) = (unsafe { _rdtsc() }, AtomicBool::new(false));
    const READINGS: u32 = 400_000;
    let wrong = std::thread::scope(|threads| {
        let reader = || {
            let mut computed = 0;
            let mut wrong = None;
            while computed < READINGS && wrong.is_none() {
                let seen = mapped.clock(0);
                if seen.abs_diff(start) <= 1 << 50 {
                    computed += 1;
                } else if host_seconds().abs_diff(seen / SECOND) > 1 {
                    // The host's time is accepted too, because a reader gets it while the writer stores.
                    wrong = Some(seen);
                }
            }
            done.store(true, Ordering::Release);
            wrong
        };
        let reader = threads.spawn(reader);
        for clock in [other, one].into_iter().cycle().take_while(|_| !done.load(Ordering::Acquire)) {
            mapped.page().publish(Some(clock));
            (0..20).for_each(|_| core::hint::spin_loop());
        }
        reader.join().expect("the reader ends")
    });
    assert_eq!(wrong, None, "a mixture of both");
}
