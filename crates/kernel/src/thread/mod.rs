//! Threads on the hardware: saved contexts, the switch, and kernel threads.
//!
//! `context` and `kthread` use CPUs, stacks and the machine. `scheduling` and `hooks` implement the machine interfaces
//! of `quire_task` and `quire_sync`. They are above the tracer and the watchdog, which they call.
//!
//! Two jumps to upper modules use symbols that the linker resolves, because no argument can pass the address. A new
//! program's thread enters user mode by `trap_first_return` of `trap::entry`. `cpu::preempt_enable` calls
//! `preempt_stub` of `hooks`.
//!
//! Invariants:
//! - A context is changed only by its own thread, or by the CPU that switches to or from that thread with interrupts
//!   masked.
//! - A kernel thread has no FPU state.

pub mod context;
pub mod daemons;
mod hooks;
pub mod kthread;
pub mod scheduling;
