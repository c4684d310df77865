//! Backtraces: the chain of frames on a kernel stack, and the symbols of its return addresses.
//!
//! The functions acquire no locks and allocate no memory, because NMI handlers and panics call them.

use crate::memory::layout;
use core::fmt;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use quire_kernel::loader::symbols::Symbols;

static SYMBOLS: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static SYMBOLS_LEN: AtomicUsize = AtomicUsize::new(0);

/// The most frames of a backtrace.
const DEPTH: usize = 48;

/// Stores the part of the initial file system's archive that contains the kernel's symbols. The symbols are its first
/// file.
pub fn set_symbols(archive: &'static [u8]) {
    SYMBOLS_LEN.store(archive.len(), Ordering::Relaxed);
    SYMBOLS.store(archive.as_ptr().cast_mut(), Ordering::Release);
}

fn symbols() -> Option<Symbols<'static>> {
    let at = SYMBOLS.load(Ordering::Acquire);
    if at.is_null() {
        return None;
    }
    // SAFETY: `set_symbols` got a `'static` slice with this address and length.
    Symbols::in_archive(unsafe { core::slice::from_raw_parts(at, SYMBOLS_LEN.load(Ordering::Relaxed)) })
}

/// The frame pointer of the caller.
#[inline(always)]
pub fn frame_pointer() -> u64 {
    let at: u64;
    // SAFETY: the instruction copies a register and touches no memory.
    unsafe { core::arch::asm!("mov {}, rbp", out(reg) at, options(nomem, nostack, preserves_flags)) }
    at
}

/// Prints an address with its symbol.
pub fn describe(address: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match symbols().and_then(|s| s.find(address)) {
        Some((name, offset)) => write!(f, "{address:#018x} {:#}+{offset:#x}", rustc_demangle::demangle(name)),
        None => write!(f, "{address:#018x}"),
    }
}

/// Logs one address with its symbol.
pub fn log_address(address: u64) {
    log!("  {}", fmt::from_fn(|f| describe(address, f)));
}

/// Logs the return addresses on the chain of frames from `frame`.
pub fn backtrace(frame: u64) {
    return_addresses(frame).for_each(log_address);
}

/// Calls `f` with the return addresses of the caller's call chain, innermost first, until `f` returns false.
#[cfg(feature = "trace")]
#[inline(always)]
pub fn each_call(f: &mut dyn FnMut(u64) -> bool) {
    let _ended = return_addresses(frame_pointer()).all(f);
}

/// Calls `f` with the return addresses on the chain of frames from `frame`. May be called in an NMI handler.
pub fn each_return_address(frame: u64, f: impl FnMut(u64)) {
    return_addresses(frame).for_each(f);
}

/// Calls `f` with the return addresses of the caller's call chain, innermost first.
#[inline(never)]
pub fn each_caller(f: impl FnMut(u64)) {
    return_addresses(frame_pointer()).for_each(f);
}

fn return_addresses(first: u64) -> impl Iterator<Item = u64> {
    let [text, text_end, _, image_end] = layout::image();
    let mut frame = Some(first);
    let next = move || {
        let at = frame?;
        // A frame is on a kernel stack in the kernel's map, or on the boot CPU's stack in the image.
        let on_stack = (layout::MAP..layout::MAP_END - 16).contains(&at) || (text_end..image_end - 16).contains(&at);
        if !on_stack || !at.is_multiple_of(8) || !crate::memory::stack::is_readable(at) {
            return None;
        }
        // SAFETY: `is_readable` has checked that the two words are mapped kernel memory.
        let [next, address] = unsafe { *(at as *const [u64; 2]) };
        frame = (next > at).then_some(next);
        (text..text_end).contains(&address).then_some(address)
    };
    core::iter::from_fn(next).take(DEPTH)
}
