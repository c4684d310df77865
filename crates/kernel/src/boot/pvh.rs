//! The first instructions of the kernel. A PVH boot loader enters in 32-bit protected mode with paging off. EBX has the
//! physical address of the start info.
//!
//! These instructions map the first 4 GiB twice, one to one (where they run) and in the direct map. They also map the
//! image at its virtual address. Then they call [`start`](super::start). The one-to-one mapping ends when the kernel's
//! own tables are loaded.

use core::arch::global_asm;

/// The size in bytes of the boot stack, which becomes the stack of the boot CPU's idle thread. It is large, because
/// boot has its lists on it.
pub const BOOT_STACK: usize = 128 * 1024;

global_asm!(
    r#"
    .section .note.pvh, "a", @note
    .balign 4
    .long 4, 8, 18          // name size, descriptor size, XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .quad pvh_start

    .section .boot.tables, "aw", @nobits
    .balign 4096
    .global boot_root
    boot_root:      .skip 4096
    boot_low:       .skip 4096
    boot_high:      .skip 4096
    boot_leaves:    .skip 4 * 4096
    boot_entry_stack: .skip 64

    .section .boot.data, "a"
    .balign 8
    .global boot_gdt
    boot_gdt:
        .quad 0
        .quad 0x00cf9b000000ffff   // 0x08: 32-bit code, for CPUs that start
        .quad 0x00af9b000000ffff   // 0x10: 64-bit code, as in every CPU's own table
        .quad 0x00cf93000000ffff   // 0x18: data
    boot_gdt_pointer:
        .word 31
        .long boot_gdt

    .section .boot.text, "ax"
    .code32
    .global pvh_start
    pvh_start:
        cld
        cli
        mov esi, ebx
        mov esp, offset boot_entry_stack + 64
        call boot_require
        // The loader has zeroed .boot.tables, because the file does not contain it.
        mov edi, offset boot_leaves
        mov eax, 0x83               // present, writable, 2 MiB
        xor edx, edx
        mov ecx, 2048
    2:  mov [edi], eax
        mov dword ptr [edi + 4], 0
        add eax, 0x200000
        add edi, 8
        dec ecx
        jnz 2b
        mov eax, offset boot_leaves + 3
        mov edi, offset boot_low
        mov ecx, 4
    3:  mov [edi], eax
        add eax, 4096
        add edi, 8
        dec ecx
        jnz 3b
        mov eax, offset boot_leaves + 3
        mov [boot_high + 510 * 8], eax
        mov eax, offset boot_low + 3
        mov [boot_root], eax
        mov [boot_root + 256 * 8], eax
        mov eax, offset boot_high + 3
        mov [boot_root + 511 * 8], eax

        mov eax, cr4
        or eax, 0x20                // PAE
        mov cr4, eax
        mov eax, offset boot_root
        mov cr3, eax
        mov ecx, 0xc0000080
        rdmsr
        or eax, 0x900               // LME, NXE
        wrmsr
        mov eax, cr0
        or eax, 0x80000001          // PG, PE
        and eax, 0x9fffffff         // caches on
        mov cr0, eax
        lgdt [boot_gdt_pointer]
        mov eax, 0x10
        push eax
        mov eax, offset pvh_long
        push eax
        retf

    .code64
    pvh_long:
        mov eax, 0x18
        mov ds, eax
        mov es, eax
        mov ss, eax
        xor eax, eax
        mov fs, eax
        mov gs, eax
        mov edi, esi
        movabs rax, offset boot_high_entry
        jmp rax

    .section .text.entry, "ax"
    boot_high_entry:
        lea rsp, [rip + boot_stack + {stack}]
        xor ebp, ebp
        call {start}
        ud2

    .section .bss.boot_stack, "aw", @nobits
    .balign 4096
    .global boot_stack_guard
    boot_stack_guard: .skip 4096
    boot_stack: .skip {stack}
    .text
    "#,
    stack = const BOOT_STACK,
    start = sym super::start,
);

unsafe extern "C" {
    static boot_stack_guard: u8;
}

/// The address of the guard page below the boot stack, which the kernel's own tables do not map.
pub fn stack_guard() -> u64 {
    &raw const boot_stack_guard as u64
}
