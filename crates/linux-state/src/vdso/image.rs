//! The bytes of the vDSO image, assembled from `image.s`.

use crate::vdso::page::ClockPage;
use core::arch::global_asm;
use core::mem::offset_of;
use quire_vm::PAGE_SIZE;

/// The names of the symbols, in the order of the image.
pub const NAMES: [&str; 10] = [
    "__vdso_clock_gettime",
    "__vdso_gettimeofday",
    "__vdso_time",
    "__vdso_getcpu",
    "__vdso_clock_getres",
    "clock_gettime",
    "gettimeofday",
    "time",
    "getcpu",
    "clock_getres",
];
/// The version of all symbols.
pub const VERSION: &str = "LINUX_2.6";
/// The name of the shared object (`DT_SONAME`).
pub const FILE: &str = "linux-vdso.so.1";

/// The hash function of the System V ABI.
pub(super) const fn system_v_hash(name: &str) -> u32 {
    let (bytes, mut hash, mut i) = (name.as_bytes(), 0u32, 0);
    while i < bytes.len() {
        hash = (hash << 4).wrapping_add(bytes[i] as u32);
        let high = hash & 0xf000_0000;
        hash = (hash ^ high >> 24) & !high;
        i += 1;
    }
    hash
}

/// The hash function of DT_GNU_HASH.
pub(super) const fn gnu_hash(name: &str) -> u32 {
    let (bytes, mut hash, mut i) = (name.as_bytes(), 5381u32, 0);
    while i < bytes.len() {
        hash = hash.wrapping_mul(33).wrapping_add(bytes[i] as u32);
        i += 1;
    }
    hash
}

/// The hash of symbol `n` in its chain. The lowest bit is clear, because it marks the end of a chain.
const fn chained(n: usize) -> u32 {
    gnu_hash(NAMES[n]) & !1
}

/// The shift of the Bloom filter of DT_GNU_HASH: a name's second bit comes from its hash, shifted right by this number.
const FILTER_SHIFT: u32 = 6;

/// The Bloom filter of DT_GNU_HASH, with two bits for each name.
const fn filter() -> u64 {
    let (mut word, mut n) = (0, 0);
    while n < NAMES.len() {
        let hash = gnu_hash(NAMES[n]);
        word |= 1 << (hash % 64) | 1 << ((hash >> FILTER_SHIFT) % 64);
        n += 1;
    }
    word
}

global_asm!(
    include_str!("image.s"),
    filter_shift = const FILTER_SHIFT,
    filter = const filter(),
    hash_0 = const chained(0),
    hash_1 = const chained(1),
    hash_2 = const chained(2),
    hash_3 = const chained(3),
    hash_4 = const chained(4),
    hash_5 = const chained(5),
    hash_6 = const chained(6),
    hash_7 = const chained(7),
    hash_8 = const chained(8),
    hash_9 = const chained(9),
    file_hash = const system_v_hash(FILE),
    version_hash = const system_v_hash(VERSION),
    count = const offset_of!(ClockPage, count),
    clocks = const offset_of!(ClockPage, clocks),
    start = const offset_of!(ClockPage, start),
    rate = const offset_of!(ClockPage, ns_per_tick),
    resolution = const offset_of!(ClockPage, resolution),
    cpu_selector = const offset_of!(ClockPage, cpu_selector),
    offsets = const offset_of!(ClockPage, offsets),
);

unsafe extern "C" {
    #[link_name = "quire_vdso_image"]
    static IMAGE: [u8; PAGE_SIZE as usize];
}

/// The image, which is one page.
pub fn image() -> &'static [u8; PAGE_SIZE as usize] {
    // SAFETY: the assembly above defines one page of bytes, which is never written.
    unsafe { &IMAGE }
}
