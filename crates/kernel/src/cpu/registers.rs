//! Control registers and model-specific registers.

use core::arch::asm;

pub const EFER: u32 = 0xc000_0080;
pub const STAR: u32 = 0xc000_0081;
pub const LSTAR: u32 = 0xc000_0082;
pub const CSTAR: u32 = 0xc000_0083;
pub const SFMASK: u32 = 0xc000_0084;
pub const FS_BASE: u32 = 0xc000_0100;
pub const GS_BASE: u32 = 0xc000_0101;
pub const KERNEL_GS_BASE: u32 = 0xc000_0102;

/// Reads MSR `msr`.
///
/// # Safety
/// The CPU has this MSR.
#[inline(always)]
pub unsafe fn rdmsr(msr: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller vouches that the CPU has this MSR.
    unsafe { asm!("rdmsr", in("ecx") msr, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags)) }
    (high as u64) << 32 | low as u64
}

/// Writes MSR `msr`.
///
/// # Safety
/// The CPU has this MSR and accepts `value`. The kernel can run with the new value.
#[inline(always)]
pub unsafe fn wrmsr(msr: u32, value: u64) {
    // SAFETY: the caller vouches that the CPU has this MSR and accepts the value.
    unsafe {
        asm!(
            "wrmsr",
            in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32,
            options(nostack, preserves_flags)
        )
    }
}

macro_rules! control {
    ($read:ident, $write:ident, $name:literal) => {
        #[doc = concat!("Reads ", $name, ".")]
        #[inline(always)]
        pub fn $read() -> u64 {
            let value: u64;
            // SAFETY: reading a control register in kernel mode has no side effect.
            unsafe { asm!(concat!("mov {}, ", $name), out(reg) value, options(nomem, nostack, preserves_flags)) }
            value
        }
        #[doc = concat!("Writes ", $name, ".\n\n# Safety\nThe kernel can run with the new value.")]
        #[inline(always)]
        #[allow(dead_code)]
        pub unsafe fn $write(value: u64) {
            // SAFETY: the caller answers for the value.
            unsafe { asm!(concat!("mov ", $name, ", {}"), in(reg) value, options(nostack, preserves_flags)) }
        }
    };
}
control!(cr0, set_cr0, "cr0");
control!(cr2, set_cr2, "cr2");
control!(cr3, set_cr3, "cr3");
control!(cr4, set_cr4, "cr4");

/// Writes XCR0, the extended control register that selects the state components of XSAVE.
///
/// # Safety
/// CR4.OSXSAVE is on, and CPUID leaf 0xd allows `value`.
pub unsafe fn set_xcr0(value: u64) {
    // SAFETY: the caller answers for the value.
    unsafe {
        asm!(
            "xsetbv",
            in("ecx") 0, in("eax") value as u32, in("edx") (value >> 32) as u32,
            options(nostack, preserves_flags)
        )
    }
}

/// Reads XCR0, the extended control register that selects the state components of XSAVE.
///
/// # Safety
/// CR4.OSXSAVE is on.
pub unsafe fn xcr0() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: CR4.OSXSAVE is on by this function's contract, so `xgetbv` is allowed.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags)) }
    (high as u64) << 32 | low as u64
}

/// Drops every translation of this CPU, global ones included, by turning global pages off and on (Intel SDM volume 3,
/// 4.10.4.1).
///
/// # Safety
/// No interrupt handler that runs during this function changes CR4 or depends on cached translations. Masked interrupts
/// suffice.
pub unsafe fn drop_global() {
    const GLOBAL_PAGES: u64 = 1 << 7;
    // SAFETY: the bit affects only cached translations, and no other code changes CR4 before the second write.
    unsafe {
        let now = cr4();
        set_cr4(now & !GLOBAL_PAGES);
        set_cr4(now);
    }
}
