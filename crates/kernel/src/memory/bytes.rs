//! `memcpy` and `memset`, which compiled code calls for every larger move.
//!
//! The versions of `compiler_builtins` first align the destination and then execute three string instructions. Most
//! moves in a kernel are of small, aligned structures, for which these versions are faster. They move up to 32 bytes by
//! registers; for odd lengths two of the moves overlap. For longer moves they use one string instruction for all words,
//! and one overlapping word for the rest.

use core::arch::global_asm;

global_asm!(
    r#"
    .section .text.bytes, "ax"

    // rdi = to, rsi = from, rdx = bytes; returns to.
    .balign 32
    .global memcpy
    memcpy:
        mov rax, rdi
        cmp rdx, 16
        jb 2f
        cmp rdx, 32
        ja 1f
        mov rcx, [rsi]
        mov r8, [rsi + 8]
        mov r9, [rsi + rdx - 16]
        mov r10, [rsi + rdx - 8]
        mov [rdi], rcx
        mov [rdi + 8], r8
        mov [rdi + rdx - 16], r9
        mov [rdi + rdx - 8], r10
        ret
    1:  mov rcx, rdx
        shr rcx, 3
        mov r8, [rsi + rdx - 8]
        lea r9, [rdi + rdx - 8]
        rep movsq
        mov [r9], r8
        ret
    2:  cmp edx, 8
        jb 3f
        mov rcx, [rsi]
        mov r8, [rsi + rdx - 8]
        mov [rdi], rcx
        mov [rdi + rdx - 8], r8
        ret
    3:  cmp edx, 4
        jb 4f
        mov ecx, [rsi]
        mov r8d, [rsi + rdx - 4]
        mov [rdi], ecx
        mov [rdi + rdx - 4], r8d
        ret
    4:  test edx, edx
        jz 5f
        movzx ecx, byte ptr [rsi]
        movzx r8d, byte ptr [rsi + rdx - 1]
        mov [rdi], cl
        mov [rdi + rdx - 1], r8b
        shr edx
        movzx ecx, byte ptr [rsi + rdx]
        mov [rdi + rdx], cl
    5:  ret

    // rdi = to, esi = byte, rdx = bytes; returns to.
    .balign 32
    .global memset
    memset:
        movzx eax, sil
        movabs rcx, 0x0101010101010101
        imul rax, rcx
        mov r8, rdi
        cmp rdx, 16
        jb 2f
        lea r9, [rdi + rdx - 16]
        mov [r9], rax
        mov [r9 + 8], rax
        cmp rdx, 32
        ja 1f
        mov [rdi], rax
        mov [rdi + 8], rax
        mov rax, r8
        ret
    1:  mov rcx, rdx
        shr rcx, 3
        rep stosq
        mov rax, r8
        ret
    2:  cmp edx, 8
        jb 3f
        mov [rdi], rax
        mov [rdi + rdx - 8], rax
        mov rax, r8
        ret
    3:  cmp edx, 4
        jb 4f
        mov [rdi], eax
        mov [rdi + rdx - 4], eax
        mov rax, r8
        ret
    4:  test edx, edx
        jz 5f
        mov [rdi], al
        mov [rdi + rdx - 1], al
        shr edx
        mov [rdi + rdx], al
    5:  mov rax, r8
        ret
    .text
    "#
);
