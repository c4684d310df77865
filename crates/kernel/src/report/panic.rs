//! Panics: what went wrong, a backtrace with names, every other CPU stopped, and an end that the outside can tell.

use crate::cpu;
use crate::memory::layout;
use core::fmt;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use quire_drivers::{debug_exit, local_apic};
use quire_kernel::loader::symbols::Symbols;

/// The CPU that panics, plus one.
static BY: AtomicU32 = AtomicU32::new(0);
static SYMBOLS: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static SYMBOLS_LEN: AtomicUsize = AtomicUsize::new(0);

/// Frames of a backtrace, at most.
const DEPTH: usize = 48;

/// Notes the initial file system, whose first file may be the kernel's symbols. It stays where it is.
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

/// Whether a CPU panics: the others stop at their next NMI.
pub fn in_progress() -> bool {
    BY.load(Ordering::Relaxed) != 0
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let _was = cpu::interrupts_off();
    let me = cpu::id() as u32 + 1;
    match BY.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {}
        // A panic in the panic: say no more.
        Err(by) if by == me => end(),
        Err(_) => cpu::stop(),
    }
    for other in 0..cpu::count() {
        // The number of one that has not arrived is a broadcast's, which would stop this one too.
        if other != cpu::id() && !cpu::block_of(other).is_null() && cpu::apic_id(other) != cpu::NOT_ARRIVED {
            local_apic::send_nmi(cpu::apic_id(other));
        }
    }
    match info.location() {
        Some(at) => log_text!("panic on CPU {} at {}:{}: {}", cpu::id(), at.file(), at.line(), info.message()),
        None => log_text!("panic on CPU {}: {}", cpu::id(), info.message()),
    }
    backtrace(frame_pointer());
    end()
}

fn end() -> ! {
    debug_exit::exit(debug_exit::PANIC);
    cpu::stop()
}

#[inline(always)]
fn frame_pointer() -> u64 {
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
