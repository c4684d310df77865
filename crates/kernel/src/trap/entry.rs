//! The kernel's entries and exits, in assembly.
//!
//! Every entry stores the user's registers on the kernel stack, as a [`Regs`](super::Regs). Interrupt gates enter with
//! interrupts masked; the handlers in [`super`] unmask them. On an exit interrupts are masked from the last check for
//! pending work until user mode.
//!
//! GS: in user mode the base of GS is the program's, and in the kernel it is the address of this CPU's block. An entry
//! executes SWAPGS if it interrupted user mode. NMIs, double faults and machine checks may interrupt the few
//! instructions between an entry and its SWAPGS, so their entry reads the base itself. The kernel's base is negative. A
//! program cannot set a negative base, because FSGSBASE is off.
//!
//! SMAP: `stac` and `clac` are assembled as three-byte no-operations. Boot replaces them if the CPU has SMAP.

use crate::cpu::offset;
use core::arch::global_asm;

global_asm!(
    include_str!("../cpu/smap.s"),
    r#"
    // The registers below orig_rax and rdi.
    .macro PUSH_REST
    push rdx
    push rcx
    push rax
    push r8
    push r9
    push r10
    push r11
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    .endm
    .macro POP_ALL
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    pop r11
    pop r10
    pop r9
    pop r8
    pop rax
    pop rcx
    pop rdx
    pop rsi
    pop rdi
    .endm

    .section .text.entry, "ax"

    // One stub of 16 bytes for each vector. It pushes a zero if the CPU pushed no error code, pushes rdi, and loads the
    // vector into edi.
    .balign 16
    .global trap_stubs
    trap_stubs:
    vector = 0
    .rept 256
    .balign 16
    .if vector == 8 || (vector >= 10 && vector <= 14) || vector == 17 || vector == 21 || vector == 29 || vector == 30
    .else
    push 0
    .endif
    push rdi
    .byte 0xbf
    .long vector
    .if vector == 14
    jmp page_fault_entry
    .elseif vector == 2 || vector == 8 || vector == 18
    jmp paranoid_entry
    .elseif vector < 32
    jmp exception_entry
    .else
    jmp interrupt_entry
    .endif
    vector = vector + 1
    .endr

    .balign 16
    page_fault_entry:
        test byte ptr [rsp + 24], 3
        jz 1f
        swapgs
    1:  push rsi
        PUSH_REST
        CLAC
        cld
        mov rsi, [rsp + {orig}]
        mov qword ptr [rsp + {orig}], -1
        mov rdi, rsp
        call {page_fault}
        jmp trap_return

    .balign 16
    exception_entry:
        test byte ptr [rsp + 24], 3
        jz 1f
        swapgs
    1:  push rsi
        mov esi, edi
        PUSH_REST
        CLAC
        cld
        mov rdx, [rsp + {orig}]
        mov qword ptr [rsp + {orig}], -1
        mov rdi, rsp
        call {exception}
        jmp trap_return

    .balign 16
    interrupt_entry:
        test byte ptr [rsp + 24], 3
        jz 1f
        swapgs
    1:  push rsi
        mov esi, edi
        PUSH_REST
        CLAC
        cld
        mov qword ptr [rsp + {orig}], -1
        mov rdi, rsp
        call {interrupt}
        // Falls through.

    // Interrupts are masked, and all work before the return to user mode is done.
    trap_return:
        test byte ptr [rsp + {cs}], 3
        jz 1f
        POP_ALL
        add rsp, 8
        swapgs
        iretq
    1:  POP_ALL
        add rsp, 8
        .global trap_kernel_iret
    trap_kernel_iret:
        iretq

    // The first return of a new thread to user mode. Its registers are on its stack.
    .balign 16
    .global trap_first_return
    trap_first_return:
        jmp trap_return

    .balign 16
    paranoid_entry:
        push rsi
        mov esi, edi
        PUSH_REST
        CLAC
        cld
        mov rdx, [rsp + {orig}]
        mov qword ptr [rsp + {orig}], -1
        mov ecx, 0xc0000101
        mov r8, rdx
        rdmsr
        xor ebx, ebx
        test edx, edx
        js 1f
        swapgs
        inc ebx
    1:  mov rdx, r8
        mov rdi, rsp
        call {paranoid}
        test ebx, ebx
        jz 2f
        swapgs
    2:  POP_ALL
        add rsp, 8
        iretq

    // rax = number, rcx = rip, r11 = rflags; interrupts are masked.
    .balign 64
    .global syscall_entry
    syscall_entry:
        swapgs
        mov gs:[{user_stack}], rsp
        mov rsp, gs:[{kernel_stack}]
        push {user_ss}
        push gs:[{user_stack}]
        push r11
        push {user_cs}
        push rcx
        push rax
        push rdi
        push rsi
        PUSH_REST
        mov rdi, rsp
        call {syscall}
        // SYSRET restores the frame only if rip = rcx and flags = r11, which a signal or execve may have changed. The
        // address must be below 2^47, because SYSRET would fault in the kernel, on the user's stack, otherwise.
        mov rcx, [rsp + {rcx}]
        mov r11, [rsp + {r11}]
        cmp rcx, [rsp + {rip}]
        jne trap_return
        cmp r11, [rsp + {rflags}]
        jne trap_return
        mov rax, rcx
        shr rax, 47
        jnz trap_return
        test r11d, 0x10100           // resume and trap flags take IRET
        jnz trap_return
        cmp qword ptr [rsp + {cs}], {user_cs}
        jne trap_return
        pop r15
        pop r14
        pop r13
        pop r12
        pop rbp
        pop rbx
        pop rax
        pop r10
        pop r9
        pop r8
        pop rax
        pop rdx
        pop rdx
        pop rsi
        pop rdi
        mov rsp, [rsp + 32]
        swapgs
        sysretq
    .text
    "#,
    include_str!("../cpu/smap_end.s"),
    orig = const 15 * 8,
    rip = const 16 * 8,
    cs = const 17 * 8,
    rflags = const 18 * 8,
    rcx = const 11 * 8,
    r11 = const 6 * 8,
    user_ss = const 0x2b,
    user_cs = const 0x33,
    user_stack = const offset::USER_STACK,
    kernel_stack = const offset::KERNEL_STACK,
    page_fault = sym super::page_fault,
    exception = sym super::exception,
    interrupt = sym super::interrupt,
    paranoid = sym super::paranoid,
    syscall = sym super::syscall,
);

unsafe extern "C" {
    static trap_stubs: u8;
    static syscall_entry: u8;
    static __smap_sites_start: [u64; 2];
    static __smap_sites_end: [u64; 2];
}

/// The address of the stub of `vector`.
pub fn stub(vector: u8) -> u64 {
    &raw const trap_stubs as u64 + vector as u64 * 16
}

/// The address of the SYSCALL entry.
pub fn syscall_address() -> u64 {
    &raw const syscall_entry as u64
}

/// Replaces the no-operations by the instructions `stac` and `clac`.
///
/// # Safety
/// The kernel's text is still writable, no other CPU runs, and the CPU has SMAP.
pub unsafe fn patch_smap() {
    let mut site = &raw const __smap_sites_start;
    // SAFETY: the linker script bounds the list; each entry names three bytes of text and their replacement.
    unsafe {
        while site < &raw const __smap_sites_end {
            let [at, bytes] = *site;
            core::ptr::copy_nonoverlapping(bytes.to_le_bytes().as_ptr(), at as *mut u8, 3);
            site = site.add(1);
        }
    }
}
