//! The layout of the kernel's half of the address space, and of the image in memory.
//!
//! - `0xffff_8000_0000_0000`: the direct map of all RAM: writable, never executable; the image's text and constants are
//!   read-only
//! - `0xffff_c000_0000_0000`: the kernel's map: stacks, an unmapped guard page below each, buffers, device registers
//! - `0xffff_ffff_8000_0000`: the kernel's image: text is executable, constants are read-only, data is writable

/// The size of a page in bytes.
pub const PAGE: u64 = 4096;
/// The first address of the direct map of RAM.
pub const DIRECT: u64 = 0xffff_8000_0000_0000;
/// The first address of the kernel's map.
pub const MAP: u64 = 0xffff_c000_0000_0000;
/// One past the last address of the kernel's map. It has 8 TiB, enough for 400 million stacks.
pub const MAP_END: u64 = 0xffff_c800_0000_0000;
/// The difference between a virtual address of the image and its physical address.
pub const IMAGE: u64 = 0xffff_ffff_8000_0000;
/// One past the highest address that a program can map.
pub const USER_END: u64 = 0x7fff_ffff_f000;

unsafe extern "C" {
    static __image_start: u8;
    static __text_start: u8;
    static __text_end: u8;
    static __rodata_end: u8;
    static __image_end: u8;
}

/// The boundaries of the image's parts: the virtual addresses of the start of text, of constants and of data, and of
/// the end. All are multiples of the page size.
pub fn image() -> [u64; 4] {
    [
        &raw const __text_start as u64,
        &raw const __text_end as u64,
        &raw const __rodata_end as u64,
        &raw const __image_end as u64,
    ]
}

/// The start and the end of the image in physical memory, including its boot part.
pub fn image_physical() -> (u64, u64) {
    (&raw const __image_start as u64, &raw const __image_end as u64 - IMAGE)
}

/// The address in the direct map of the physical address `at`.
#[inline(always)]
pub fn direct(at: u64) -> *mut u8 {
    (DIRECT + at) as *mut u8
}
