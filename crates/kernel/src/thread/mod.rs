//! Threads on the hardware: saved contexts, the switch, and kernel threads.
//!
//! Contexts and kernel threads use CPUs, stacks and the machine. `scheduling` and `hooks` implement the machine for
//! `quire_task` and `quire_sync`. They lie above the tracer and the watchdog, which they call.
//!
//! Two jumps to upper rooms use the linker's names, because no argument can pass the address. A new program's thread
//! leaves through the trap entry's `trap_first_return`. `cpu::preempt_enable` calls the `preempt_stub` of `hooks`.
//!
//! Invariants:
//! - A context is changed by its own thread, or by the CPU that switches to or from it, with interrupts masked.
//! - A kernel thread has no FPU state.

pub mod context;
pub mod daemons;
mod hooks;
pub mod kthread;
pub mod scheduling;
