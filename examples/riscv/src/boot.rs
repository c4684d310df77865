//! The first instructions of each CPU, the entry of traps, and accesses to user memory that may fail. The firmware
//! enters with translation off. The first tables map RAM at its own address, at the image's, and in the direct map.

core::arch::global_asm!(
    r#"
    .section .data
    .balign 4096
first_root:                     // leaves of 1 GiB
    .quad 0, 0, (0x80000000 >> 2) | 0xcf
    .fill 253, 8, 0
    .quad 0xc7, (0x40000000 >> 2) | 0xc7, (0x80000000 >> 2) | 0xc7, (0xc0000000 >> 2) | 0xc7
    .fill 250, 8, 0
    .quad (0x80000000 >> 2) | 0xcf, 0

    .section .bss
    .balign 16
    .skip 65536
first_stack_end:

    .section .text.entry, "ax"
    .global entry
entry:                          // a0: the hart
    la sp, first_stack_end
    li t2, 0xffffffff00000000
    add sp, sp, t2
    la t1, start
    j translate
    .global other_entry
other_entry:                    // a0: the hart; a1: the stack, at whose end stands the CPU's number
    li t2, 0xffffffff00000000
    mv sp, a1
    la t1, start_other
translate:
    add t1, t1, t2
    la t0, first_root
    srli t0, t0, 12
    li t2, 8 << 60
    or t0, t0, t2
    sfence.vma
    csrw satp, t0
    sfence.vma
    jr t1

    .text
    .balign 4
    .global trap_entry
trap_entry:                     // the kernel's own code alone runs, so the stack is the kernel's
    addi sp, sp, -160
    sd ra, 0(sp)
    sd t0, 8(sp)
    sd t1, 16(sp)
    sd t2, 24(sp)
    sd t3, 32(sp)
    sd t4, 40(sp)
    sd t5, 48(sp)
    sd t6, 56(sp)
    sd a0, 64(sp)
    sd a1, 72(sp)
    sd a2, 80(sp)
    sd a3, 88(sp)
    sd a4, 96(sp)
    sd a5, 104(sp)
    sd a6, 112(sp)
    sd a7, 120(sp)
    csrr t0, sepc
    sd t0, 128(sp)
    csrr t0, sstatus
    sd t0, 136(sp)
    csrr a0, scause
    csrr a1, stval
    addi a2, sp, 128
    call {trap}
    ld t0, 136(sp)
    csrw sstatus, t0
    ld t0, 128(sp)
    csrw sepc, t0
    ld ra, 0(sp)
    ld t0, 8(sp)
    ld t1, 16(sp)
    ld t2, 24(sp)
    ld t3, 32(sp)
    ld t4, 40(sp)
    ld t5, 48(sp)
    ld t6, 56(sp)
    ld a0, 64(sp)
    ld a1, 72(sp)
    ld a2, 80(sp)
    ld a3, 88(sp)
    ld a4, 96(sp)
    ld a5, 104(sp)
    ld a6, 112(sp)
    ld a7, 120(sp)
    addi sp, sp, 160
    sret

    .option push
    .option norvc               // a trap that fails steps over four bytes
    .global user_load
user_load:
    ld a0, 0(a0)
    ret
    .global user_store
user_store:
    sd a1, 0(a0)
    ret
    .option pop
    "#,
    trap = sym crate::trap,
);

unsafe extern "C" {
    pub safe fn trap_entry();
    pub safe fn other_entry();
    /// Loads a word of user memory. If the trap's handler cannot serve the access, the result has no meaning.
    pub fn user_load(at: u64) -> u64;
    /// Stores a word into user memory. If the trap's handler cannot serve the access, nothing is stored.
    pub fn user_store(at: u64, value: u64);
}
