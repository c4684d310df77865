//! Access to user memory from the kernel.
//!
//! The routines below access user addresses between STAC and CLAC. Each of their instructions that may fault has an
//! entry in the exception table. If the page fault cannot be repaired, the kernel continues at the entry's fix-up
//! address. The routine then returns the number of remaining bytes. Addresses outside user space are refused before an
//! access. An access to an unmapped user address faults.
//!
//! Copies and clears use the string instructions (`rep movsq`, `rep stosq`). Under QEMU's TCG, one iteration of these
//! costs less than a load and a store. Real CPUs have fast string instructions.

use crate::memory::layout::USER_END;
use core::arch::global_asm;

global_asm!(
    include_str!("../cpu/smap.s"),
    r#"
    // If the instruction at the first address faults on user memory, the kernel continues at the second address.
    .macro FIXUP at, to
    .pushsection .exceptions, "a"
    .quad \at, \to
    .popsection
    .endm

    .section .text.user, "ax"

    // rdi = to, rsi = from, rdx = bytes; returns the bytes that were not copied. One of the two is a user address.
    .balign 32
    .global user_copy
    user_copy:
        STAC
        mov rcx, rdx
        shr rcx, 3
        and edx, 7
    1:  rep movsq
        mov ecx, edx
    2:  rep movsb
        CLAC
        xor eax, eax
        ret
        // Copies the remaining bytes one by one, up to the faulting byte.
    3:  lea rcx, [rdx + rcx * 8]
        jmp 2b
    4:  mov rax, rcx
        CLAC
        ret
        FIXUP 1b, 3b
        FIXUP 2b, 4b

    // rdi = to (user), rsi = bytes; returns the bytes that were not zeroed.
    .balign 32
    .global user_clear
    user_clear:
        STAC
        xor eax, eax
        mov rcx, rsi
        shr rcx, 3
        and esi, 7
    1:  rep stosq
        mov ecx, esi
    2:  rep stosb
        CLAC
        ret
    3:  lea rcx, [rsi + rcx * 8]
        jmp 2b
    4:  mov rax, rcx
        CLAC
        ret
        FIXUP 1b, 3b
        FIXUP 2b, 4b

    // rdi = to, rsi = from (user), rdx = room; returns the bytes before the zero byte, or the room; bit 63 set after a
    // fault. Reads eight bytes at once only inside one page, so that it never touches a page beyond the string's last.
    .balign 32
    .global user_string
    user_string:
        STAC
        xor eax, eax
        movabs r8, 0x0101010101010101
        movabs r9, 0x8080808080808080
    1:  mov rcx, rdx
        sub rcx, rax
        cmp rcx, 8
        jb 5f
        lea r10, [rsi + rax]
        and r10d, 4095
        cmp r10d, 4088
        ja 5f
    2:  mov r11, [rsi + rax]
        mov [rdi + rax], r11
        mov r10, r11
        sub r10, r8
        not r11
        and r10, r11
        and r10, r9
        jnz 4f
        add rax, 8
        jmp 1b
    4:  bsf r10, r10
        shr r10, 3
        add rax, r10
        CLAC
        ret
    5:  cmp rax, rdx
        jae 7f
    6:  movzx r11d, byte ptr [rsi + rax]
        mov [rdi + rax], r11b
        test r11b, r11b
        jz 7f
        inc rax
        jmp 1b
    7:  CLAC
        ret
    8:  bts rax, 63
        CLAC
        ret
        FIXUP 2b, 8b
        FIXUP 6b, 8b

    // rdi = at (user); returns the word, and 1 after a fault.
    .balign 16
    .global user_load
    user_load:
        STAC
    1:  mov eax, [rdi]
        CLAC
        xor edx, edx
        ret
    2:  CLAC
        mov edx, 1
        ret
        FIXUP 1b, 2b

    // rdi = at (user), esi = old, edx = new; returns the word's earlier value, and 1 after a fault.
    .balign 16
    .global user_exchange
    user_exchange:
        STAC
        mov eax, esi
        mov ecx, edx
    1:  lock cmpxchg [rdi], ecx
        CLAC
        xor edx, edx
        ret
    2:  CLAC
        mov edx, 1
        ret
        FIXUP 1b, 2b
    .text
    .purgem FIXUP
    "#,
    include_str!("../cpu/smap_end.s"),
);

/// The result of `user_load` and `user_exchange`: the word, and 1 in `fault` if there was a fault.
#[repr(C)]
struct Word {
    value: u64,
    fault: u64,
}

unsafe extern "C" {
    fn user_copy(to: u64, from: u64, len: usize) -> usize;
    fn user_clear(to: u64, len: usize) -> usize;
    fn user_string(to: *mut u8, from: u64, len: usize) -> u64;
    fn user_load(at: u64) -> Word;
    fn user_exchange(at: u64, old: u32, new: u32) -> Word;
    static __exceptions_start: [u64; 2];
    static __exceptions_end: [u64; 2];
}

/// The address at which the kernel continues if the instruction at `rip` faults and the fault cannot be repaired.
/// `None` if a fault of that instruction is a bug.
pub fn fixup(rip: u64) -> Option<u64> {
    let start = &raw const __exceptions_start;
    let len = (&raw const __exceptions_end as usize - start as usize) / 16;
    // SAFETY: the two symbols of the linker script are the ends of the table, which is constant.
    let table = unsafe { core::slice::from_raw_parts(start, len) };
    table.iter().find(|[at, _]| *at == rip).map(|[_, to]| *to)
}

/// Whether the `len` bytes from `at` are in user space.
#[inline(always)]
fn in_user(at: u64, len: usize) -> bool {
    at <= USER_END && len as u64 <= USER_END - at
}

/// Copies `len` bytes from user address `from`. The error is the number of bytes at the end that were not copied.
///
/// # Safety
/// `to` is valid for writes of `len` bytes.
#[inline(always)]
pub unsafe fn copy_from(to: *mut u8, from: u64, len: usize) -> Result<(), usize> {
    if !in_user(from, len) {
        return Err(len);
    }
    // SAFETY: the routine reads user space only, and writes the `len` bytes for which the caller vouches.
    match unsafe { user_copy(to as u64, from, len) } {
        0 => Ok(()),
        left => Err(left),
    }
}

/// Copies `len` bytes to user address `to`. The error is the number of bytes at the end that were not copied.
///
/// # Safety
/// `from` is valid for reads of `len` bytes.
#[inline(always)]
pub unsafe fn copy_to(to: u64, from: *const u8, len: usize) -> Result<(), usize> {
    if !in_user(to, len) {
        return Err(len);
    }
    // SAFETY: the routine writes user space only, and reads the `len` bytes for which the caller vouches.
    match unsafe { user_copy(to, from as u64, len) } {
        0 => Ok(()),
        left => Err(left),
    }
}

/// Zeroes `len` bytes at user address `to`. The error is the number of bytes at the end that were not zeroed.
pub fn clear(to: u64, len: usize) -> Result<(), usize> {
    if !in_user(to, len) {
        return Err(len);
    }
    // SAFETY: `in_user` held, so the routine writes user space only, and it catches its faults.
    match unsafe { user_clear(to, len) } {
        0 => Ok(()),
        left => Err(left),
    }
}

/// Copies a string of at most `len` bytes from user address `from`, including its zero byte. Returns the number of
/// bytes before the zero byte, or `len` if none of them is zero. A fault or the end of user space is an error. The
/// error is the number of bytes, out of `len`, that were not copied.
///
/// # Safety
/// `to` is valid for writes of `len` bytes.
pub unsafe fn string(to: *mut u8, from: u64, len: usize) -> Result<usize, usize> {
    if from >= USER_END {
        return Err(len);
    }
    // The copy must stop at the end of user space, even if `to` has more room.
    let room = len.min((USER_END - from) as usize);
    // SAFETY: the routine reads user space only, and writes the bytes for which the caller vouches.
    let done = unsafe { user_string(to, from, room) };
    match done as i64 {
        0.. if done as usize == room && room < len => Err(len - room),
        0.. => Ok(done as usize),
        _ => Err(len - (done & !(1 << 63)) as usize),
    }
}

/// Loads the word at user address `at`. An error means a fault, or an address that is not aligned or not in user space.
#[inline(always)]
pub fn load_u32(at: u64) -> Result<u32, ()> {
    if !in_user(at, 4) || !at.is_multiple_of(4) {
        return Err(());
    }
    // SAFETY: `in_user` held, so the routine reads user space only, and it catches its faults.
    let word = unsafe { user_load(at) };
    if word.fault == 0 { Ok(word.value as u32) } else { Err(()) }
}

/// Stores `new` at user address `at` if the word there is `old`. Returns the word that was there. An error means a
/// fault, or an address that is not aligned or not in user space.
pub fn compare_exchange_u32(at: u64, old: u32, new: u32) -> Result<u32, ()> {
    if !in_user(at, 4) || !at.is_multiple_of(4) {
        return Err(());
    }
    // SAFETY: `in_user` held, so the routine writes user space only, and it catches its faults.
    let word = unsafe { user_exchange(at, old, new) };
    if word.fault == 0 { Ok(word.value as u32) } else { Err(()) }
}
