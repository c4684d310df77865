//! The kernel's own page tables: made once at boot, extended only by kernel stacks and devices.
//!
//! User address spaces share the upper half by copying the root's upper entries, so every entry of the root that will ever
//! be used is made at boot and never changes.

use crate::cpu::features::{Feature, has};
use crate::layout::{self, DEVICES, DIRECT, IMAGE, PAGE, STACKS, direct};
use core::sync::atomic::{AtomicU64, Ordering};
use quire_kernel::memory_map::{Ram, Span};

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const WRITE_THROUGH: u64 = 1 << 3;
const UNCACHED: u64 = 1 << 4;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// What a kernel mapping allows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Instructions.
    Text,
    /// Constants.
    Constants,
    /// Data and stacks.
    Data,
    /// Device registers.
    Device,
}

impl Rights {
    fn bits(self) -> u64 {
        let base = PRESENT | ACCESSED | GLOBAL;
        match self {
            Rights::Text => base,
            Rights::Constants => base | NO_EXECUTE,
            Rights::Data => base | WRITABLE | DIRTY | NO_EXECUTE,
            Rights::Device => base | WRITABLE | DIRTY | NO_EXECUTE | UNCACHED | WRITE_THROUGH,
        }
    }
}

static ROOT: AtomicU64 = AtomicU64::new(0);

/// Physical address of the root of the kernel's tables.
pub fn root() -> u64 {
    ROOT.load(Ordering::Relaxed)
}

/// No frame was left for a table page.
#[derive(Clone, Copy, Debug)]
pub struct NoFrame;

fn entry(table: u64, va: u64, level: u32) -> *mut u64 {
    let index = va >> (12 + 9 * level) & 511;
    direct(table + index * 8).cast()
}

/// The table below `slot`, made by `frame` where there is none.
///
/// # Safety
/// `slot` lies in one of the kernel's tables, which only the caller changes.
unsafe fn below(slot: *mut u64, frame: &mut dyn FnMut() -> Option<u64>) -> Result<u64, NoFrame> {
    // SAFETY: by this function's contract.
    unsafe {
        if *slot & PRESENT != 0 {
            assert!(*slot & LARGE == 0, "a large kernel page is not split");
            return Ok(*slot & ADDRESS);
        }
        let table = frame().ok_or(NoFrame)?;
        core::ptr::write_bytes(direct(table), 0, PAGE as usize);
        slot.write_volatile(table | PRESENT | WRITABLE | ACCESSED);
        Ok(table)
    }
}

/// Maps `len` bytes of physical memory from `pa` at `va` with the largest pages that fit.
///
/// # Safety
/// Only one caller at a time; the range was not mapped; `frame` gives frames that nobody else uses; what is mapped may be
/// reached under the rights given.
unsafe fn map(
    root: u64,
    va: u64,
    pa: u64,
    len: u64,
    rights: Rights,
    frame: &mut dyn FnMut() -> Option<u64>,
) -> Result<(), NoFrame> {
    let mut done = 0;
    while done < len {
        let (va, pa, left) = (va + done, pa + done, len - done);
        let fits = |size: u64| va % size == 0 && pa % size == 0 && left >= size;
        // SAFETY: the tables are the kernel's, reached through the direct map.
        unsafe {
            let directory = below(entry(root, va, 3), frame)?;
            let slot = entry(directory, va, 2);
            if has(Feature::GigabytePages) && fits(1 << 30) {
                slot.write_volatile(pa | rights.bits() | LARGE);
                done += 1 << 30;
                continue;
            }
            let directory = below(slot, frame)?;
            let slot = entry(directory, va, 1);
            if fits(2 << 20) {
                slot.write_volatile(pa | rights.bits() | LARGE);
                done += 2 << 20;
                continue;
            }
            let leaves = below(slot, frame)?;
            entry(leaves, va, 0).write_volatile(pa | rights.bits());
        }
        done += PAGE;
    }
    Ok(())
}

/// Builds the kernel's tables over `all` RAM, taking table pages from `free`, and loads them. From then on nothing is
/// mapped below the kernel's half.
///
/// # Safety
/// The boot tables are loaded, the boot CPU alone runs, and `free`'s memory below 4 GiB is nobody's.
pub unsafe fn init(all: &Ram, free: &mut Ram) -> Result<(), NoFrame> {
    let mut frame = || take_low(free, PAGE);
    let root = frame().ok_or(NoFrame)?;
    let [text, constants, data, end] = layout::image();
    let physical = |va: u64| va - IMAGE;
    // SAFETY: the tables are fresh, and each range below is mapped once: the image at its own place, RAM at the direct map's.
    unsafe {
        core::ptr::write_bytes(direct(root), 0, PAGE as usize);
        map(root, text, physical(text), constants - text, Rights::Text, &mut frame)?;
        map(root, constants, physical(constants), data - constants, Rights::Constants, &mut frame)?;
        map(root, data, physical(data), end - data, Rights::Data, &mut frame)?;
        // W^X holds for the alias too: text and constants are not writable through the direct map either.
        let fixed = Span { start: physical(text), end: physical(data) };
        for span in all.spans() {
            let before = Span { start: span.start, end: span.end.min(fixed.start) };
            let inside = Span { start: span.start.max(fixed.start), end: span.end.min(fixed.end) };
            let after = Span { start: span.start.max(fixed.end), end: span.end };
            for (part, rights) in [(before, Rights::Data), (inside, Rights::Constants), (after, Rights::Data)] {
                if !part.is_empty() {
                    map(root, DIRECT + part.start, part.start, part.len(), rights, &mut frame)?;
                }
            }
        }
        for va in [STACKS, DEVICES] {
            below(entry(root, va, 3), &mut frame)?;
        }
        ROOT.store(root, Ordering::Relaxed);
        crate::cpu::registers::set_cr3(root);
    }
    Ok(())
}

/// Frames for tables and stacks while the boot tables, which show the first 4 GiB, may still be loaded.
pub fn take_low(free: &mut Ram, len: u64) -> Option<u64> {
    let at = free.take(len, PAGE, 1 << 20)?;
    (at + len <= 1 << 32).then_some(at)
}

static NEXT_DEVICE: AtomicU64 = AtomicU64::new(DEVICES);

/// Maps `len` bytes of device registers at physical address `pa`.
///
/// # Safety
/// Boot, one caller at a time; the range is a device's registers.
pub unsafe fn map_device(pa: u64, len: u64, frame: &mut dyn FnMut() -> Option<u64>) -> Result<*mut u8, NoFrame> {
    let offset = pa % PAGE;
    let pages = (offset + len).next_multiple_of(PAGE);
    let va = NEXT_DEVICE.fetch_add(pages, Ordering::Relaxed);
    // SAFETY: a fresh range of the device area; by this function's contract for the rest.
    unsafe { map(root(), va, pa - offset, pages, Rights::Device, frame)? };
    Ok((va + offset) as *mut u8)
}

/// Maps one frame of a kernel stack at `va`.
///
/// # Safety
/// One caller at a time; `va` lies in the stacks' area and is not mapped; the frame is the caller's.
pub unsafe fn map_stack_frame(va: u64, pa: u64, frame: &mut dyn FnMut() -> Option<u64>) -> Result<(), NoFrame> {
    // SAFETY: by this function's contract.
    unsafe { map(root(), va, pa, PAGE, Rights::Data, frame) }
}
