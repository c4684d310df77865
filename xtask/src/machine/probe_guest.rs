//! The smallest guest that needs what an ordinary kernel needs: it enters long mode with paging, executes `cpuid`, and ends
//! QEMU through the debug-exit port. A machine whose `/dev/kvm` opens but cannot run guests fails it.

/// Where the code is loaded and entered.
const AT: u32 = 0x10_0000;

/// ```text
///     mov $0x2000,%edi; xor %eax,%eax; mov $3072,%ecx; rep stosl    three empty tables
///     movl $0x3003,0x2000; movl $0x4003,0x3000; movl $0x83,0x4000   identity map of 2 MiB
///     mov $0x2000,%eax; mov %eax,%cr3
///     mov %cr4,%eax; or $0x20,%eax; mov %eax,%cr4                   PAE
///     mov $0xc0000080,%ecx; rdmsr; or $0x100,%eax; wrmsr            long mode
///     mov %cr0,%eax; or $0x80000001,%eax; mov %eax,%cr0             paging
///     lgdt gdtr; ljmp $8,$1f
/// 1:  mov $1,%eax; cpuid; mov $0x10,%al; out %al,$0xf4
/// 2:  hlt; jmp 2b
/// gdt: .quad 0, 0x00209a0000000000    gdtr: .word 15; .long gdt
/// ```
const CODE: [u8; 142] = [
    0xbf, 0x00, 0x20, 0x00, 0x00, 0x31, 0xc0, 0xb9, 0x00, 0x0c, 0x00, 0x00, 0xf3, 0xab, 0xc7, 0x05, 0x00, 0x20, 0x00,
    0x00, 0x03, 0x30, 0x00, 0x00, 0xc7, 0x05, 0x00, 0x30, 0x00, 0x00, 0x03, 0x40, 0x00, 0x00, 0xc7, 0x05, 0x00, 0x40,
    0x00, 0x00, 0x83, 0x00, 0x00, 0x00, 0xb8, 0x00, 0x20, 0x00, 0x00, 0x0f, 0x22, 0xd8, 0x0f, 0x20, 0xe0, 0x83, 0xc8,
    0x20, 0x0f, 0x22, 0xe0, 0xb9, 0x80, 0x00, 0x00, 0xc0, 0x0f, 0x32, 0x0d, 0x00, 0x01, 0x00, 0x00, 0x0f, 0x30, 0x0f,
    0x20, 0xc0, 0x0d, 0x01, 0x00, 0x00, 0x80, 0x0f, 0x22, 0xc0, 0x0f, 0x01, 0x15, 0x88, 0x00, 0x10, 0x00, 0xea, 0x64,
    0x00, 0x10, 0x00, 0x08, 0x00, 0xb8, 0x01, 0x00, 0x00, 0x00, 0x0f, 0xa2, 0xb0, 0x10, 0xe6, 0xf4, 0xf4, 0xeb, 0xfd,
    0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x9a, 0x20, 0x00, 0x0f, 0x00, 0x78, 0x00, 0x10, 0x00,
];

/// A PVH-bootable ELF file around that code.
pub fn elf() -> Vec<u8> {
    let code_at = 64 + 2 * 56 + 20;
    let mut out = Vec::with_capacity(code_at + CODE.len());
    out.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    out.extend([2u16, 62].iter().flat_map(|v| v.to_le_bytes())); // ET_EXEC, x86-64
    out.extend(1u32.to_le_bytes());
    out.extend([u64::from(AT), 64, 0].iter().flat_map(|v| v.to_le_bytes())); // entry, program headers, no sections
    out.extend(0u32.to_le_bytes());
    out.extend([64u16, 56, 2, 64, 0, 0].iter().flat_map(|v| v.to_le_bytes()));
    let mut segment = |kind: u32, flags: u32, offset: u64, address: u64, size: u64| {
        out.extend([kind, flags].iter().flat_map(|v| v.to_le_bytes()));
        out.extend([offset, address, address, size, size, 4].iter().flat_map(|v| v.to_le_bytes()));
    };
    segment(1, 7, code_at as u64, u64::from(AT), CODE.len() as u64); // PT_LOAD
    segment(4, 4, 64 + 2 * 56, 0, 20); // PT_NOTE
    out.extend([4u32, 4, 18].iter().flat_map(|v| v.to_le_bytes())); // XEN_ELFNOTE_PHYS32_ENTRY
    out.extend_from_slice(b"Xen\0");
    out.extend(AT.to_le_bytes());
    out.extend_from_slice(&CODE);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_is_a_proper_elf_file() {
        let needs = crate::image::libraries::needs(&elf()).unwrap();
        assert_eq!(needs.entry, u64::from(AT));
        assert_eq!(needs.interpreter, None);
    }
}
