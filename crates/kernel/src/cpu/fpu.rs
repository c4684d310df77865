//! Floating-point and vector state, in the standard XSAVE format.

use crate::cpu::features::{Feature, has, withdraw};
use crate::cpu::{self, registers};
use core::alloc::Layout;
use core::arch::x86_64::__cpuid_count;
use core::arch::{asm, global_asm};
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use quire_vm::OutOfMemory;

const X87: u64 = 1;
const SSE: u64 = 2;
const AVX: u64 = 4;
const AVX512: u64 = 0xe0;
/// The size in bytes of the legacy area and the header.
const SMALLEST: usize = 576;
/// The largest size of the area in bytes.
const LARGEST: usize = 8192;
/// The default x87 control word: all exceptions masked, round to nearest, extended precision. `MXCSR` is the default
/// for SSE.
const FCW: u16 = 0x37f;
const MXCSR: u32 = 0x1f80;

static LEN: AtomicUsize = AtomicUsize::new(SMALLEST);
static FEATURES: AtomicU64 = AtomicU64::new(X87 | SSE);
static MXCSR_MASK: AtomicU32 = AtomicU32::new(0xffbf);

/// Chooses the state components. Called once, on the boot CPU. Tries the vector instructions that CPUID announces,
/// because some hypervisors announce them but lose XCR0 whenever the hypervisor runs. If they do not work, withdraws
/// the features and returns the reason. Then neither the kernel nor programs use vector instructions (programs check
/// CR4.OSXSAVE).
///
/// # Safety
/// `cpu::set_registers` has run, and no other CPU has started.
pub unsafe fn detect() -> Result<(), Broken> {
    if !has(Feature::Xsave) {
        withdraw(Feature::Avx);
        return Ok(());
    }
    let offered = __cpuid_count(0xd, 0).eax as u64;
    let mut features = X87 | SSE;
    if has(Feature::Avx) && offered & AVX != 0 {
        features |= AVX;
        if has(Feature::Avx512) && offered & AVX512 == AVX512 {
            features |= AVX512;
        }
    }
    // SAFETY: CR4.OSXSAVE is on, and leaf 0xd offers the chosen components.
    let works = unsafe { attempt(features) };
    if works.is_err() {
        withdraw(Feature::Xsave);
        withdraw(Feature::Avx);
        withdraw(Feature::Avx512);
        // SAFETY: no code has used XSAVE yet.
        unsafe { cpu::set_registers() };
        features = X87 | SSE;
    } else if features & AVX == 0 {
        withdraw(Feature::Avx);
    }
    FEATURES.store(features, Ordering::Relaxed);
    works
}

/// The reason why announced vector instructions do not work.
pub enum Broken {
    /// XCR0 differs from the written value after the hypervisor has run.
    Lost { wrote: u64, reads: u64 },
    /// The area for the state would be larger than `LARGEST`.
    Large { bytes: u32 },
    /// A vector instruction faulted.
    Faults,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Lost { wrote, reads } => write!(f, "XCR0 was set to {wrote:#x} and reads {reads:#x}"),
            Broken::Large { bytes } => write!(f, "the state takes {bytes} bytes"),
            Broken::Faults => write!(f, "they are announced, and fault"),
        }
    }
}

/// Enables `features` on this CPU, and checks that they stay enabled.
///
/// # Safety
/// CR4.OSXSAVE is on, and leaf 0xd offers `features`.
unsafe fn attempt(features: u64) -> Result<(), Broken> {
    // SAFETY: CR4.OSXSAVE is on by this function's contract, and leaf 0xd offers the value for XCR0.
    unsafe { registers::set_xcr0(features) };
    // CPUID makes a hypervisor run, which then restores this CPU's XCR0 from its own copy.
    let bytes = __cpuid_count(0xd, 0).ebx;
    // SAFETY: CR4.OSXSAVE is on by this function's contract, so `xgetbv` is allowed.
    let reads = unsafe { registers::xcr0() };
    if reads != features {
        return Err(Broken::Lost { wrote: features, reads });
    }
    if bytes as usize > LARGEST {
        return Err(Broken::Large { bytes });
    }
    // SAFETY: the routine preserves all registers as the calling convention requires. If its vector instruction faults,
    // the exception table makes it continue.
    if features & AVX != 0 && !unsafe { fpu_try_vector() } {
        return Err(Broken::Faults);
    }
    Ok(())
}

global_asm!(
    r#"
    .section .text.fpu, "ax"
    // Returns whether an instruction with a 32-byte register runs. The instruction may raise an invalid-opcode fault.
    .global fpu_try_vector
    fpu_try_vector:
        sub rsp, 40
    2:  vmovdqu [rsp], ymm0
        mov eax, 1
        add rsp, 40
        ret
    3:  xor eax, eax
        add rsp, 40
        ret
    .pushsection .exceptions, "a"
    .quad 2b, 3b
    .popsection
    .text
    "#
);

unsafe extern "C" {
    fn fpu_try_vector() -> bool;
}

/// Enables the chosen components on this CPU, and initialises its FPU. CR4 already allows XSAVE if it is used. The
/// error is the reason why a component that works on the boot CPU does not work on this CPU.
///
/// # Safety
/// Called on each CPU after `cpu::set_registers`; `detect` has run.
pub unsafe fn enable() -> Result<(), Broken> {
    let features = FEATURES.load(Ordering::Relaxed);
    if has(Feature::Xsave) {
        // SAFETY: `detect` chose components that the CPU offers.
        unsafe { attempt(features)? };
        let len = (__cpuid_count(0xd, 0).ebx as usize).clamp(SMALLEST, LARGEST).next_multiple_of(64);
        LEN.store(len, Ordering::Relaxed);
    }
    // SAFETY: the instructions only initialise the FPU of this CPU, whose state is not in use yet.
    unsafe { asm!("fninit", "ldmxcsr [{}]", in(reg) &MXCSR, options(nostack)) };
    let mut image = Image([0; 512]);
    // SAFETY: FXSAVE writes 512 bytes, aligned to 16.
    unsafe { asm!("fxsave64 [{}]", in(reg) &mut image, options(nostack)) };
    let mask = u32::from_le_bytes([image.0[28], image.0[29], image.0[30], image.0[31]]);
    if mask != 0 {
        MXCSR_MASK.store(mask, Ordering::Relaxed);
    }
    Ok(())
}

#[repr(C, align(64))]
struct Image([u8; 512]);

/// Whether vector registers of 32 bytes may be used and are the widest ones. In a wider register, a write to the lower
/// half would clear the upper half.
pub fn widest_is_avx() -> bool {
    FEATURES.load(Ordering::Relaxed) & (AVX | AVX512) == AVX
}

/// The size of a state area in bytes.
#[inline(always)]
pub fn len() -> usize {
    LEN.load(Ordering::Relaxed)
}

/// The components of a state area, as bits of XCR0.
pub fn features() -> u64 {
    FEATURES.load(Ordering::Relaxed)
}

/// The bits of MXCSR that may be set.
pub fn mxcsr_mask() -> u32 {
    MXCSR_MASK.load(Ordering::Relaxed)
}

/// Saves this CPU's state to `area`.
///
/// # Safety
/// `area` is aligned to 64 and writable for [`len`] bytes. It was zeroed, or a state was saved to it before.
#[inline(always)]
pub unsafe fn save(area: *mut u8) {
    // SAFETY: the caller vouches that the area is writable for `len` bytes, aligned to 64, and has a header that XSAVE
    // accepts.
    unsafe {
        if has(Feature::Xsave) {
            asm!(
                "xsave64 [{}]",
                in(reg) area, in("eax") u32::MAX, in("edx") u32::MAX,
                options(nostack, preserves_flags)
            );
        } else {
            asm!("fxsave64 [{}]", in(reg) area, options(nostack, preserves_flags));
        }
    }
}

/// Loads this CPU's state from `area`.
///
/// # Safety
/// `area` is aligned to 64 and contains a valid state of [`len`] bytes.
#[inline(always)]
pub unsafe fn restore(area: *const u8) {
    // SAFETY: the caller vouches that the area holds a state that `save` wrote, which XRSTOR accepts.
    unsafe {
        if has(Feature::Xsave) {
            asm!(
                "xrstor64 [{}]",
                in(reg) area, in("eax") u32::MAX, in("edx") u32::MAX,
                options(nostack, preserves_flags)
            );
        } else {
            asm!("fxrstor64 [{}]", in(reg) area, options(nostack, preserves_flags));
        }
    }
}

/// Sets this CPU's floating-point and vector state to its initial value.
pub fn reset() {
    // SAFETY: `FRESH` is a valid state, large enough and aligned.
    unsafe { restore(FRESH.0.as_ptr()) }
}

static FRESH: Fresh = Fresh::new();

#[repr(C, align(64))]
struct Fresh([u8; LARGEST]);

impl Fresh {
    /// The initial state. Its XSTATE_BV is 0, so XRSTOR initialises all components and loads only MXCSR from memory.
    /// FXRSTOR loads the control word too.
    const fn new() -> Self {
        let mut fresh = [0; LARGEST];
        [fresh[0], fresh[1]] = FCW.to_le_bytes();
        [fresh[24], fresh[25], fresh[26], fresh[27]] = MXCSR.to_le_bytes();
        Fresh(fresh)
    }
}

/// The memory of a thread's saved state, with [`ROOM`] more bytes after the state.
pub struct Area(NonNull<u8>);

/// The number of bytes after the state, for other data of a program's context. On a CPU with 32-byte vectors the state
/// has 832 bytes, so state and room fill the 1,024 bytes of a heap object.
pub const ROOM: usize = 192;

// SAFETY: an area is only a pointer to memory that it owns.
unsafe impl Send for Area {}

impl Area {
    fn layout() -> Layout {
        Layout::from_size_align(len() + ROOM, 64).unwrap_or(Layout::new::<Image>())
    }

    /// An area with the initial state. The room after the state is not initialised.
    pub fn fresh() -> Result<Area, OutOfMemory> {
        let at = quire_heap::allocate(Self::layout()).map_err(|_| OutOfMemory)?;
        // SAFETY: the memory was just allocated with at least `len` bytes, and `len` is at most the size of `FRESH`.
        unsafe { at.copy_from_nonoverlapping(NonNull::from(&FRESH.0).cast(), len()) };
        Ok(Area(at))
    }

    /// An area with a copy of this CPU's present state.
    pub fn copy() -> Result<Area, OutOfMemory> {
        let area = Self::fresh()?;
        // SAFETY: the area has a valid state, is large enough and aligned.
        unsafe { save(area.0.as_ptr()) };
        Ok(area)
    }

    /// The address of the state.
    #[inline(always)]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// The address of the room after the state, aligned to 64.
    #[inline(always)]
    pub fn room(&self) -> NonNull<u8> {
        // SAFETY: the room begins at the end of the state, whose length is a multiple of 64 and does not change after
        // boot.
        unsafe { self.0.add(len()) }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: `fresh` allocated the memory with this layout, whose length does not change after boot.
        unsafe { quire_heap::deallocate(self.0, Self::layout()) }
    }
}
