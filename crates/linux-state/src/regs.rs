//! A thread's user registers, in the layout of the trap entry.

/// The user registers of a thread in the kernel, in the order in which the entry path pushes them. This is the order of
/// Linux's `struct pt_regs`, which `ptrace` and core files use too.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct UserRegs {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    /// The number of the system call after an entry by `syscall`; [`NOT_A_SYSCALL`](UserRegs::NOT_A_SYSCALL) after any
    /// other trap. The delivery of a signal uses it to restart an interrupted call.
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

const _: () = assert!(core::mem::size_of::<UserRegs>() == 21 * 8);

impl UserRegs {
    /// The value of `orig_rax` if the thread did not enter the kernel by `syscall`.
    pub const NOT_A_SYSCALL: u64 = u64::MAX;
    /// The user code segment selector.
    pub const USER_CS: u64 = 0x33;
    /// The user data segment selector.
    pub const USER_SS: u64 = 0x2b;
    /// The flags that a program may set through a signal frame: the arithmetic flags, trap, direction, alignment check
    /// and resume. The interrupt flag, the I/O privilege level and nested task are excluded.
    pub const USER_FLAGS: u64 = 0x0005_0dd5;
    /// The flags that are always set in user mode: interrupts, and the reserved bit.
    pub const FIXED_FLAGS: u64 = 0x202;

    /// The registers of a program at its first instruction.
    pub fn at_entry(entry: u64, stack: u64) -> UserRegs {
        UserRegs {
            rip: entry,
            rsp: stack,
            cs: Self::USER_CS,
            ss: Self::USER_SS,
            rflags: Self::FIXED_FLAGS,
            orig_rax: Self::NOT_A_SYSCALL,
            ..UserRegs::default()
        }
    }

    /// The six arguments of a system call.
    pub fn arguments(&self) -> [u64; 6] {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9]
    }
}
