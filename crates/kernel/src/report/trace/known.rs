//! The tracer's record of a thread. It is a field of the thread's context, so this module is below `thread::context`.
//! The tracer itself is above it.

#[cfg(feature = "trace")]
use core::sync::atomic::{AtomicU32, Ordering};

/// The first number of a kernel thread.
#[cfg(feature = "trace")]
const KERNEL: u32 = 1 << 31;
#[cfg(feature = "trace")]
static NEXT_KERNEL: AtomicU32 = AtomicU32::new(KERNEL);

/// The tracer's record of a thread. Only the thread itself changes it, or the CPU that switches to the thread.
#[cfg(feature = "trace")]
pub struct Known {
    /// The number of a kernel thread; 0 for a program's thread.
    pub(super) number: u32,
    pub(super) name: &'static str,
    /// The thread's name was recorded in the trace.
    pub(super) recorded: bool,
    /// The address of the instruction by which the thread entered the kernel, or that faulted in the kernel.
    pub(super) site: u64,
}

#[cfg(feature = "trace")]
impl Known {
    /// The record of a program's thread. Its name is in its payload.
    pub const fn program() -> Known {
        Known { number: 0, name: "", recorded: false, site: 0 }
    }
    /// The record of a kernel thread.
    pub fn kernel(name: &'static str) -> Known {
        Known { number: NEXT_KERNEL.fetch_add(1, Ordering::Relaxed), name, recorded: false, site: 0 }
    }
}

/// The record of a thread in builds without tracing: empty.
#[cfg(not(feature = "trace"))]
pub struct Known;

#[cfg(not(feature = "trace"))]
impl Known {
    pub const fn program() -> Known {
        Known
    }
    #[inline(always)]
    pub fn kernel(_name: &'static str) -> Known {
        Known
    }
}
