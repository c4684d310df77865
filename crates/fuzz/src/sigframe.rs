//! Signal frames, which a program may change before it returns. The return must load the registers from the places of
//! Linux's layout, and must not load kernel-only state.

use crate::Input;
use crate::memory::Memory;
use quire_linux::signal::frame::{FRAME_LEN, check_float, load, place};
use quire_linux_state::UserRegs;
use quire_linux_state::user::{USER_END, UserMemory};
use quire_vm::PAGE_SIZE;

/// Offsets of `uc_mcontext`, `uc_stack` and `uc_sigmask` in a frame, in bytes from the return address (asm/ucontext.h).
const CONTEXT: usize = 8 + 40;
const STACK: usize = 8 + 16;
const MASK: usize = 8 + 296;
/// The bytes of the floating-point state: legacy area, header, AVX.
const FLOAT: usize = 832;

/// The bytes are the frame's address, and then the frame.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let top = match input.below(4) {
        0 => input.long(),
        1 => USER_END - u64::from(input.short()),
        2 => u64::from(input.short()),
        _ => 0x7000_0000_0000 + u64::from(input.short()),
    };
    let missing = input.below(4) == 0;
    if let Some(at) = place(top, FLOAT) {
        assert!(at.float % 64 == 0 && at.frame % 16 == 8 && at.frame + FRAME_LEN as u64 <= at.float);
        assert!(at.float + FLOAT as u64 + 4 <= top);
        frame(at.frame, missing, &mut input);
    }
    float(&mut input);
}

fn frame(at: u64, missing: bool, input: &mut Input<'_>) {
    let memory = Memory::default();
    let user = UserMemory(&memory);
    let end = at + FRAME_LEN as u64;
    if end > USER_END {
        assert!(load(&user, at).is_err());
        return;
    }
    memory.map(at);
    if !missing {
        memory.map(end - 1);
    }
    let mut bytes = input.take(FRAME_LEN).to_vec();
    bytes.resize(FRAME_LEN, 0);
    if user.write_bytes(at, &bytes).is_err() {
        assert!(missing && at / PAGE_SIZE != (end - 1) / PAGE_SIZE && load(&user, at).is_err());
        return;
    }
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let register = |n: usize| word(CONTEXT + 8 * n);
    let Ok(saved) = load(&user, at) else { panic!("a frame in the program's memory is refused") };
    let r = saved.regs;
    let got = [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax, r.rcx, r.rsp,
        r.rip,
    ];
    assert!(got.iter().enumerate().all(|(n, value)| *value == register(n)));
    assert!(r.cs == UserRegs::USER_CS && r.ss == UserRegs::USER_SS);
    assert_eq!(r.orig_rax, UserRegs::NOT_A_SYSCALL);
    // Interrupts must stay enabled, and I/O privilege, nested task and virtual mode must stay off.
    assert_eq!(r.rflags, (register(17) & 0x5_0dd5) | 0x202);
    assert_eq!((saved.mask.0, saved.float), (word(MASK), word(CONTEXT + 184)));
    assert_eq!((saved.stack.base, saved.stack.size), (word(STACK), word(STACK + 16)));
}

fn float(input: &mut Input<'_>) {
    let (extended, features) = (input.byte() & 1 != 0, 3 | u64::from(input.byte() & 4));
    let mut state = input.take(FLOAT).to_vec();
    state.resize(FLOAT, 0);
    let before = state.clone();
    if check_float(&mut state, extended, features, 0xffbf).is_ok() {
        let header: Vec<u8> = state[512..576].to_vec();
        assert!(u64::from(header[0]) & !features == 0 && header[1..].iter().all(|b| *b == 0));
        let mxcsr = u32::from_le_bytes(state[24..28].try_into().expect("four bytes"));
        assert_eq!(mxcsr & !0xffbf, 0);
        // The kernel must not change the program's other bytes.
        assert!(state[..24] == before[..24] && state[28..512] == before[28..512]);
    }
}
