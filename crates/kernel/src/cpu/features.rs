//! What this machine's CPUs can do. Read once, on the boot CPU; all CPUs are taken to be alike.

use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::sync::atomic::{AtomicU32, Ordering};

/// A capability that the kernel uses where it is there.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Feature {
    Smep = 1 << 0,
    Smap = 1 << 1,
    Umip = 1 << 2,
    X2apic = 1 << 3,
    TscDeadline = 1 << 4,
    Xsave = 1 << 5,
    Avx = 1 << 6,
    /// PCIDs and INVPCID, both.
    Pcid = 1 << 7,
    GigabytePages = 1 << 8,
    FastStrings = 1 << 9,
    Rdrand = 1 << 10,
    Rdseed = 1 << 11,
    Avx512 = 1 << 12,
}

static FOUND: AtomicU32 = AtomicU32::new(0);

/// Whether the CPUs have `feature`.
#[inline(always)]
pub fn has(feature: Feature) -> bool {
    FOUND.load(Ordering::Relaxed) & feature as u32 != 0
}

/// Asks the boot CPU.
pub fn detect() {
    let highest = __cpuid(0).eax;
    let one = __cpuid(1);
    let seven = if highest >= 7 { __cpuid_count(7, 0) } else { __cpuid(0x8000_0000) };
    let (b7, c7) = if highest >= 7 { (seven.ebx, seven.ecx) } else { (0, 0) };
    let extended = if __cpuid(0x8000_0000).eax >= 0x8000_0001 { __cpuid(0x8000_0001).edx } else { 0 };
    let mut found = 0;
    let mut note = |feature: Feature, there: bool| found |= if there { feature as u32 } else { 0 };
    note(Feature::Smep, b7 & 1 << 7 != 0);
    note(Feature::Smap, b7 & 1 << 20 != 0);
    note(Feature::Umip, c7 & 1 << 2 != 0);
    note(Feature::X2apic, one.ecx & 1 << 21 != 0);
    note(Feature::TscDeadline, one.ecx & 1 << 24 != 0);
    note(Feature::Xsave, one.ecx & 1 << 26 != 0);
    note(Feature::Avx, one.ecx & (1 << 26 | 1 << 28) == 1 << 26 | 1 << 28);
    note(Feature::Pcid, one.ecx & 1 << 17 != 0 && b7 & 1 << 10 != 0);
    note(Feature::GigabytePages, extended & 1 << 26 != 0);
    note(Feature::FastStrings, b7 & 1 << 9 != 0);
    note(Feature::Rdrand, one.ecx & 1 << 30 != 0);
    note(Feature::Rdseed, b7 & 1 << 18 != 0);
    note(Feature::Avx512, b7 & 1 << 16 != 0);
    FOUND.store(found, Ordering::Relaxed);
}
