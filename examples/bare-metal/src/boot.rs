//! The first instructions: a PVH boot loader enters in 32-bit mode, with EBX = start info. They map the first 4 GiB
//! low, in the direct map, and (1 GiB of it) at the image, then call [`start`](crate::start). The page fault's entry is
//! here too.

core::arch::global_asm!(
    r#"
    .section .note.pvh, "a", @note
    .balign 4
    .long 4, 8, 18              // XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .quad pvh_start

    .section .boot.tables, "aw", @nobits
    .balign 4096
    boot_root:   .skip 4096
    boot_low:    .skip 4096
    boot_high:   .skip 4096
    boot_leaves: .skip 4 * 4096
    boot_call:   .skip 64

    .section .boot.data, "a"
    .balign 8
    boot_gdt: .quad 0, 0x00af9b000000ffff, 0x00cf93000000ffff
    boot_gdt_pointer:
        .word 23
        .long boot_gdt

    high_gdt_pointer:               // the same table through the direct map, because the low half is unmapped later
        .word 23
        .quad boot_gdt + 0xffff800000000000

    .section .boot.text, "ax"
    .code32
    .global pvh_start
    pvh_start:
        cld
        cli
        mov esi, ebx
        mov esp, offset boot_call + 64
        mov edi, offset boot_leaves
        mov eax, 0x83               // present, writable, 2 MiB
        mov ecx, 2048
    2:  mov [edi], eax
        add eax, 0x200000
        add edi, 8
        dec ecx
        jnz 2b
        mov eax, offset boot_leaves + 3
        mov [boot_high + 510 * 8], eax
        mov edi, offset boot_low
        mov ecx, 4
    3:  mov [edi], eax
        add eax, 4096
        add edi, 8
        dec ecx
        jnz 3b
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
        or eax, 0x900               // long mode, no-execute
        wrmsr
        mov eax, cr0
        or eax, 0x80010001          // paging, write protection for the kernel too
        mov cr0, eax
        lgdt [boot_gdt_pointer]
        push 8
        mov eax, offset boot_long
        push eax
        retf
    .code64
    boot_long:
        mov eax, 16
        mov ds, eax
        mov es, eax
        mov ss, eax
        lgdt [high_gdt_pointer]
        mov edi, esi
        movabs rax, offset boot_high_entry
        jmp rax

    .text
    boot_high_entry:
        lea rsp, [rip + boot_stack_end]
        xor ebp, ebp
        call {start}
        ud2

    .global page_fault_entry
    page_fault_entry:               // the error code is on the stack
        push rax
        push rcx
        push rdx
        push rsi
        push rdi
        push r8
        push r9
        push r10
        push r11
        mov rdi, cr2
        mov rsi, [rsp + 72]
        cld
        call {fault}
        pop r11
        pop r10
        pop r9
        pop r8
        pop rdi
        pop rsi
        pop rdx
        pop rcx
        pop rax
        add rsp, 8
        iretq

    .bss
    .balign 4096
    .skip 65536
    boot_stack_end:
    .text
    "#,
    start = sym crate::start,
    fault = sym crate::page_fault,
);

unsafe extern "C" {
    /// The CPU's entry for a page fault.
    pub fn page_fault_entry();
}
