//! Threads as the hardware sees them: saved contexts, the switch, and the kernel's own threads.
//!
//! Uses CPUs, stacks and the machine. It knows of programs that a thread may carry one, and nothing else.
//!
//! Invariants: a context is changed by its own thread, or by the CPU that switches to or from it, with interrupts masked; a
//! thread of the kernel's own has no FPU state.

pub mod context;
pub mod daemons;
mod hooks;
pub mod kthread;
mod scheduling;
