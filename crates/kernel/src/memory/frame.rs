//! Zeroing and copying whole frames.
//!
//! Zeroing with AVX stores 32 bytes per instruction from one vector register, which the loop saves and restores. The
//! other vector registers keep the program's state. A context switch during the loop saves and restores the register as
//! any other. On CPUs with wider registers (AVX-512), a write to the lower half of a register clears its upper half. So
//! string instructions zero frames on those CPUs. Frames are always copied by string instructions.
//!
//! Measured under TCG: the vector loop zeroes a frame in 0.6 µs and 166 instructions, REP STOSQ in 0.9 µs and 523
//! instructions. Vector registers copy a frame in 2.7 µs and 304 instructions, because each load is a stall on the
//! host. REP MOVSQ takes 1.1 µs and 523 instructions.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicBool, Ordering};

static VECTORS: AtomicBool = AtomicBool::new(false);

/// Selects whether the vector loop is used for zeroing. Called once at boot, after XCR0 was set.
pub fn use_vectors(yes: bool) {
    VECTORS.store(yes, Ordering::Relaxed);
}

global_asm!(
    r#"
    .section .text.frame, "ax"
    // rdi = frame
    .balign 64
    .global frame_zero_vector
    frame_zero_vector:
        sub rsp, 40
        vmovdqu [rsp], ymm0
        vpxor xmm0, xmm0, xmm0
        lea rax, [rdi + 4096]
    2:
        .set at, 0
        .rept 16
        vmovdqa [rdi + at], ymm0
        .set at, at + 32
        .endr
        add rdi, 512
        cmp rdi, rax
        jne 2b
        vmovdqu ymm0, [rsp]
        add rsp, 40
        ret

    .balign 16
    .global frame_zero_string
    frame_zero_string:
        xor eax, eax
        mov ecx, 512
        rep stosq
        ret

    .balign 16
    .global frame_copy_string
    frame_copy_string:
        mov ecx, 512
        rep movsq
        ret
    .text
    "#
);

unsafe extern "C" {
    fn frame_zero_vector(frame: *mut u8);
    fn frame_zero_string(frame: *mut u8);
    fn frame_copy_string(to: *mut u8, from: *const u8);
}

/// Zeroes the 4 KiB at `frame`.
///
/// # Safety
/// The caller may write these bytes, and `frame` is aligned to 4 KiB.
#[inline(always)]
pub unsafe fn zero(frame: *mut u8) {
    // SAFETY: the caller may write the frame. The vector loop is used only if the CPU and XCR0 allow it.
    unsafe { if VECTORS.load(Ordering::Relaxed) { frame_zero_vector(frame) } else { frame_zero_string(frame) } }
}

/// Prefetches the cache line at `at` for a store. It is a hint, and allowed for any address.
///
/// The intrinsic is not used, because it requires SSE. The kernel is compiled without SSE, so the intrinsic would not
/// be inlined.
#[inline(always)]
pub fn prefetch_line(at: *const u8) {
    // SAFETY: the instruction is a hint, which changes no memory and never faults.
    unsafe { asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly)) }
}

/// Prefetches the first `LINES` cache lines of a frame that is about to be overwritten.
#[inline(always)]
pub fn prefetch<const LINES: usize>(frame: *const u8) {
    // SAFETY: a prefetch has no visible effect on memory, and an unmapped address is ignored.
    unsafe {
        asm!(
            ".set line, 0",
            ".rept {lines}",
            "prefetchw [{frame} + line]",
            ".set line, line + 64",
            ".endr",
            frame = in(reg) frame,
            lines = const LINES,
            options(nostack, preserves_flags, readonly)
        )
    }
}

/// Copies 4 KiB.
///
/// # Safety
/// The caller may read `from` and write `to`. They are different frames, both aligned to 4 KiB.
#[inline(always)]
pub unsafe fn copy(from: *const u8, to: *mut u8) {
    // SAFETY: the caller vouches that the two frames are different and aligned, and that it may write `to`.
    unsafe { frame_copy_string(to, from) }
}
