//! The CPUs' optional features, beyond those that Quire requires (`boot::required`). They are read once, on the boot
//! CPU, because all CPUs are assumed to have the same features.

use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::sync::atomic::{AtomicU32, Ordering};

/// A feature that the kernel uses if it is present.
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
    /// Both PCIDs and INVPCID.
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

/// Removes a feature that CPUID announces but that does not work. Called by the boot CPU, before other CPUs start.
pub fn withdraw(feature: Feature) {
    FOUND.fetch_and(!(feature as u32), Ordering::Relaxed);
}

/// Reads the features of the boot CPU.
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
    let xsave = one.ecx & 1 << 26 != 0 && !hangs_on_xsave(one.ecx);
    note(Feature::Xsave, xsave);
    note(Feature::Avx, xsave && one.ecx & 1 << 28 != 0);
    note(Feature::Pcid, one.ecx & 1 << 17 != 0 && b7 & 1 << 10 != 0);
    note(Feature::GigabytePages, extended & 1 << 26 != 0);
    note(Feature::FastStrings, b7 & 1 << 9 != 0);
    note(Feature::Rdrand, one.ecx & 1 << 30 != 0);
    note(Feature::Rdseed, b7 & 1 << 18 != 0);
    note(Feature::Avx512, b7 & 1 << 16 != 0);
    FOUND.store(found, Ordering::Relaxed);
}

/// Whether a write of CR4.OSXSAVE hangs. QEMU's TCG treats the bit as reserved if the CPU model has no extension of
/// XSAVE (such as AMD's first CPUs with AVX). It then repeats the write of CR4 for ever, without an exception
/// (`cr4_reserved_bits`, seen in QEMU 7.2 and 10.0).
fn hangs_on_xsave(one_ecx: u32) -> bool {
    let under = __cpuid(0x4000_0000);
    one_ecx & 1 << 31 != 0 && [under.ebx, under.ecx, under.edx] == TCG && __cpuid_count(0xd, 1).eax == 0
}

/// The hypervisor signature of QEMU's TCG in CPUID: `TCGTCGTCGTCG`.
const TCG: [u32; 3] = [u32::from_le_bytes(*b"TCGT"), u32::from_le_bytes(*b"CGTC"), u32::from_le_bytes(*b"GTCG")];

/// The flags of CPUID leaf 1 that `/proc/cpuinfo` lists: the name, the register (0 for EDX, 1 for ECX) and the bit.
const FLAGS: [(&str, u32, u32); 24] = [
    ("fpu", 0, 0),
    ("tsc", 0, 4),
    ("msr", 0, 5),
    ("pae", 0, 6),
    ("cx8", 0, 8),
    ("apic", 0, 9),
    ("sep", 0, 11),
    ("pge", 0, 13),
    ("cmov", 0, 15),
    ("pat", 0, 16),
    ("clflush", 0, 19),
    ("mmx", 0, 23),
    ("fxsr", 0, 24),
    ("sse", 0, 25),
    ("sse2", 0, 26),
    ("pni", 1, 0),
    ("ssse3", 1, 9),
    ("fma", 1, 12),
    ("cx16", 1, 13),
    ("sse4_1", 1, 19),
    ("sse4_2", 1, 20),
    ("popcnt", 1, 23),
    ("xsave", 1, 26),
    ("avx", 1, 28),
];

/// Writes the lines of CPU `cpu` in `/proc/cpuinfo` that follow its number. All CPUs are listed as cores of one
/// package.
pub fn describe(cpu: usize, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
    let zero = __cpuid(0);
    let one = __cpuid(1);
    let (family, model, stepping) = (one.eax >> 8 & 15, one.eax >> 4 & 15, one.eax & 15);
    let full_family = if family == 15 { family + (one.eax >> 20 & 0xff) } else { family };
    let full_model = if family == 6 || family == 15 { model | (one.eax >> 16 & 15) << 4 } else { model };
    out.write_str("vendor_id\t: ")?;
    text(&[zero.ebx, zero.edx, zero.ecx], out)?;
    writeln!(out, "\ncpu family\t: {full_family}\nmodel\t\t: {full_model}")?;
    out.write_str("model name\t: ")?;
    if __cpuid(0x8000_0000).eax >= 0x8000_0004 {
        for leaf in 0x8000_0002..=0x8000_0004 {
            let r = __cpuid(leaf);
            text(&[r.eax, r.ebx, r.ecx, r.edx], out)?;
        }
    }
    let mhz = crate::cpu::clock::hz() / 1000;
    writeln!(out, "\nstepping\t: {stepping}\ncpu MHz\t\t: {}.{:03}", mhz / 1000, mhz % 1000)?;
    let cpus = super::count();
    writeln!(out, "physical id\t: 0\nsiblings\t: {cpus}\ncore id\t\t: {cpu}\ncpu cores\t: {cpus}")?;
    writeln!(out, "apicid\t\t: {cpu}\ninitial apicid\t: {cpu}")?;
    writeln!(out, "fpu\t\t: yes\nfpu_exception\t: yes\ncpuid level\t: {}\nwp\t\t: yes", zero.eax)?;
    out.write_str("flags\t\t:")?;
    for (name, register, bit) in FLAGS {
        let withdrawn = match name {
            "xsave" => !has(Feature::Xsave),
            "avx" | "fma" => !has(Feature::Avx),
            _ => false,
        };
        if !withdrawn && [one.edx, one.ecx][register as usize] & 1 << bit != 0 {
            write!(out, " {name}")?;
        }
    }
    for (name, there) in [
        ("syscall nx lm", true),
        ("smep", has(Feature::Smep)),
        ("smap", has(Feature::Smap)),
        ("umip", has(Feature::Umip)),
    ] {
        if there {
            write!(out, " {name}")?;
        }
    }
    // Linux's measure of a busy loop, which counts two iterations per cycle.
    let line = (one.ebx >> 8 & 0xff) * 8;
    writeln!(out, "\nbugs\t\t:\nbogomips\t: {}.{:02}", mhz / 500, mhz % 500 / 5)?;
    writeln!(out, "clflush size\t: {line}\ncache_alignment\t: {line}")?;
    writeln!(out, "address sizes\t: {} bits physical, 48 bits virtual", __cpuid(0x8000_0008).eax & 0xff)?;
    writeln!(out, "power management:")
}

/// Writes the printable bytes of registers in which CPUID returns text.
fn text(words: &[u32], out: &mut dyn core::fmt::Write) -> core::fmt::Result {
    for byte in words.iter().flat_map(|w| w.to_le_bytes()) {
        if (0x20..0x7f).contains(&byte) {
            out.write_char(byte as char)?;
        }
    }
    Ok(())
}
