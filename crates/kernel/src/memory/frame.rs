//! Zeroing and copying whole frames.
//!
//! Zeroing with AVX stores 32 bytes an instruction, from one vector register that the loop saves and restores. The rest
//! of a program's vector state stays in the registers. A context switch in the loop saves its register like any other.
//! On CPUs with wider registers (AVX-512), writing the lower half clears the upper half, so string instructions zero
//! frames there. Frames are always copied by string instructions.
//!
//! Measured under TCG: the vector loop zeroes a frame in 0.6 µs and 166 instructions, REP STOSQ in 0.9 µs and 523.
//! Vector registers copy a frame in 2.7 µs and 304 instructions, because each load is a stall on the host. REP MOVSQ
//! takes 1.1 µs and 523.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicBool, Ordering};

static VECTORS: AtomicBool = AtomicBool::new(false);

/// Selects the vector loop for zeroing: set once at boot, after XCR0 allows vectors.
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
/// The caller may write them, and they are aligned to their size.
#[inline(always)]
pub unsafe fn zero(frame: *mut u8) {
    // SAFETY: by this function's contract; the vector loop is used only if the CPU and XCR0 allow it.
    unsafe { if VECTORS.load(Ordering::Relaxed) { frame_zero_vector(frame) } else { frame_zero_string(frame) } }
}

/// Fetches the line at `at`, to be written. A hint, for any address.
///
/// Not by the intrinsic: it requires SSE, which the kernel is compiled without, and so stays a call.
#[inline(always)]
pub fn prefetch_line(at: *const u8) {
    // SAFETY: a hint: it accesses no memory, and never faults.
    unsafe { asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly)) }
}

/// Fetches the first lines of a frame that is about to be overwritten.
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
/// `from` can be read and `to` written; both are aligned to their size, and distinct.
#[inline(always)]
pub unsafe fn copy(from: *const u8, to: *mut u8) {
    // SAFETY: the caller vouches for two distinct frames, aligned to their size, of which `to` may be written.
    unsafe { frame_copy_string(to, from) }
}
