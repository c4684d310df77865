//! The check of the processor's required features, before the first instruction that needs them.
//!
//! The check runs in 32-bit mode with paging off. Otherwise a processor without long mode or NX would fault for ever at
//! the first write of EFER. If features are missing, one sentence on the serial line names them all, and QEMU's
//! debug-exit device gets [`REFUSED`]. Optional features are in `cpu::features`.
//!
//! CPUID itself is not checked, because a PVH loader only runs on processors that have it.

use core::arch::global_asm;
use core::arch::x86_64::__cpuid;
use core::fmt;
use quire_drivers::debug_exit::{self, REFUSED};
use quire_kernel::loader::command_line::Unusable;

/// The beginning of a refusal. `./quire run` searches the log for it, and prints the rest of the line.
macro_rules! refusal {
    () => {
        "Quire cannot run on this machine: "
    };
}

/// The registers of CPUID that the table below names, as indexes of `boot_found`.
const ONE_EDX: u8 = 0;
const EXTENDED_EDX: u8 = 1;

global_asm!(
    r#"
    .section .boot.tables, "aw", @nobits
    .balign 4
    boot_found:     .skip 8

    .section .boot.data, "a"
    boot_refusal:
        .ascii "\r\n"
    "#,
    concat!(".asciz \"", refusal!(), "\""),
    r#"
    boot_lacks:
        .asciz "its processor lacks "
    boot_comma:
        .asciz ", "
    boot_end:
        .asciz "\r\n"
    // A register, a bit in it, and the feature's name in /proc/cpuinfo of Linux.
    .macro REQUIRE register, bit, name
        .byte \register, \bit
        .asciz "\name"
    .endm
    boot_required:
        REQUIRE {one}, 0, fpu
        REQUIRE {one}, 4, tsc
        REQUIRE {one}, 5, msr
        REQUIRE {one}, 6, pae
        REQUIRE {one}, 7, mce
        REQUIRE {one}, 8, cx8
        REQUIRE {one}, 9, apic
        REQUIRE {one}, 13, pge
        REQUIRE {one}, 15, cmov
        REQUIRE {one}, 16, pat
        REQUIRE {one}, 24, fxsr
        REQUIRE {one}, 25, sse
        REQUIRE {one}, 26, sse2
        REQUIRE {extended}, 20, nx
        REQUIRE {extended}, 29, lm
        .byte 0xff

    .section .boot.text, "ax"
    .code32
    // Returns only if the processor has all features. Keeps ESI.
    .global boot_require
    boot_require:
        mov eax, 1
        cpuid
        mov [boot_found], edx
        mov eax, 0x80000000
        cpuid
        cmp eax, 0x80000001
        jb 2f
        // Old processors return the values of their highest basic leaf, which mean nothing here.
        cmp eax, 0x8000ffff
        ja 2f
        mov eax, 0x80000001
        cpuid
        mov [boot_found + 4], edx
    2:  xor ebp, ebp                // 1: an absent feature was named
        mov edi, offset boot_required
    3:  movzx eax, byte ptr [edi]
        movzx ecx, byte ptr [edi + 1]
        cmp al, 0xff
        je 7f
        add edi, 2
        bt dword ptr [boot_found + eax * 4], ecx
        jc 6f
        push edi
        test ebp, ebp
        jnz 4f
        inc ebp
        call boot_uart
        mov edi, offset boot_refusal
        call boot_say
        mov edi, offset boot_lacks
        jmp 5f
    4:  mov edi, offset boot_comma
    5:  call boot_say
        pop edi
        call boot_say
        jmp 3b
    6:  cmp byte ptr [edi], 0
        lea edi, [edi + 1]
        jne 6b
        jmp 3b
    7:  test ebp, ebp
        jnz 8f
        ret
    8:  mov edi, offset boot_end
        call boot_say
        mov edx, 0xf4
        mov al, {refused}
        out dx, al
    9:  cli
        hlt
        jmp 9b

    // The first serial port: 115200 baud, 8 data bits, FIFOs on, interrupts off.
    boot_uart:
        mov edx, 0x3f9
        xor eax, eax
        out dx, al
        mov dl, 0xfb
        mov al, 0x80
        out dx, al
        mov dl, 0xf8
        mov al, 1
        out dx, al
        mov dl, 0xf9
        xor eax, eax
        out dx, al
        mov dl, 0xfb
        mov al, 3
        out dx, al
        mov dl, 0xfa
        mov al, 7
        out dx, al
        mov dl, 0xfc
        mov al, 3
        out dx, al
        ret

    // Writes the text at EDI and leaves EDI behind its end. It skips a byte after 100,000 polls, so that a port that is
    // never ready cannot stop the boot.
    boot_say:
        mov bl, [edi]
        inc edi
        test bl, bl
        jz 4f
        mov ecx, 100000
        mov edx, 0x3fd
    2:  in al, dx
        test al, 0x20
        jnz 3f
        dec ecx
        jnz 2b
    3:  mov dl, 0xf8
        mov al, bl
        out dx, al
        jmp boot_say
    4:  ret
    .code64
    .text
    "#,
    one = const ONE_EDX,
    extended = const EXTENDED_EDX,
    refused = const REFUSED,
);

/// Checks the features that a processor may announce only in 64-bit mode, as Intel's processors do for SYSCALL.
pub fn check_long_mode() {
    const SYSCALL: u32 = 1 << 11;
    if __cpuid(0x8000_0001).edx & SYSCALL == 0 {
        refuse(format_args!("its processor lacks syscall"));
    }
}

/// Logs why Quire cannot run on this machine, in one sentence, and ends the machine.
#[cold]
pub fn refuse(why: fmt::Arguments<'_>) -> ! {
    log!(concat!(refusal!(), "{}"), why);
    end()
}

/// Logs which word of the command line has an unusable value, and ends the machine. `./quire run` searches the log for
/// this sentence, too.
#[cold]
pub fn refuse_word(word: &Unusable<'_>) -> ! {
    log!("the boot word {word}");
    end()
}

fn end() -> ! {
    debug_exit::exit(REFUSED);
    crate::cpu::stop()
}
