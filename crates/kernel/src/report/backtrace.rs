//! Backtraces: the chain of frames on a kernel stack, and names for its addresses.
//!
//! Walking and naming take no lock and allocate nothing, because an NMI and a panic do both.

use crate::memory::layout;
use core::fmt;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use quire_kernel::loader::symbols::Symbols;

static SYMBOLS: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static SYMBOLS_LEN: AtomicUsize = AtomicUsize::new(0);

/// The most frames of a backtrace.
const DEPTH: usize = 48;

/// Stores the part of the initial file system with the kernel's symbols, its first file. It stays in place.
pub fn set_symbols(archive: &'static [u8]) {
    SYMBOLS_LEN.store(archive.len(), Ordering::Relaxed);
    SYMBOLS.store(archive.as_ptr().cast_mut(), Ordering::Release);
}

fn symbols() -> Option<Symbols<'static>> {
    let at = SYMBOLS.load(Ordering::Acquire);
    if at.is_null() {
        return None;
    }
    // SAFETY: `set_symbols` was given these bytes for ever.
    Symbols::in_archive(unsafe { core::slice::from_raw_parts(at, SYMBOLS_LEN.load(Ordering::Relaxed)) })
}

/// The caller's own frame.
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

/// Gives `f` the return addresses of the calls that led to the caller's, innermost first, until it returns false.
#[cfg(feature = "trace")]
#[inline(always)]
pub fn each_call(f: &mut dyn FnMut(u64) -> bool) {
    let _ended = return_addresses(frame_pointer()).all(f);
}

/// Gives `f` the return addresses on the chain of frames from `frame`. Takes no lock: may be called in an NMI.
pub fn each_return_address(frame: u64, f: impl FnMut(u64)) {
    return_addresses(frame).for_each(f);
}

/// The return addresses of the calls that led to the caller's, innermost first.
#[inline(never)]
pub fn each_caller(f: impl FnMut(u64)) {
    return_addresses(frame_pointer()).for_each(f);
}

fn return_addresses(first: u64) -> impl Iterator<Item = u64> {
    let [text, text_end, _, image_end] = layout::image();
    let mut frame = Some(first);
    let next = move || {
        let at = frame?;
        // A frame lies on a kernel stack or on one in the image (the boot CPU's).
        let on_stack = (layout::MAP..layout::MAP_END - 16).contains(&at) || (text_end..image_end - 16).contains(&at);
        if !on_stack || !at.is_multiple_of(8) || !crate::memory::stack::is_readable(at) {
            return None;
        }
        // SAFETY: the range is mapped kernel memory, as just tested.
        let [next, address] = unsafe { *(at as *const [u64; 2]) };
        frame = (next > at).then_some(next);
        (text..text_end).contains(&address).then_some(address)
    };
    core::iter::from_fn(next).take(DEPTH)
}
