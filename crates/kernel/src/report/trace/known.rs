//! The tracer's record of a thread. The thread's context holds it, so it lies below contexts, and the tracer above
//! them.

#[cfg(feature = "trace")]
use core::sync::atomic::{AtomicU32, Ordering};

/// Numbers of threads of the kernel's own begin here.
#[cfg(feature = "trace")]
const KERNEL: u32 = 1 << 31;
#[cfg(feature = "trace")]
static NEXT_KERNEL: AtomicU32 = AtomicU32::new(KERNEL);

/// The record: changed by the thread itself, or by the CPU that switches to it.
#[cfg(feature = "trace")]
pub struct Known {
    /// Its number, if it is the kernel's own.
    pub(super) number: u32,
    pub(super) name: &'static str,
    /// The name was recorded.
    pub(super) recorded: bool,
    /// The instruction that brought it into the kernel, or that faulted there.
    pub(super) site: u64,
}

#[cfg(feature = "trace")]
impl Known {
    /// A program's thread, whose name is stored elsewhere.
    pub const fn program() -> Known {
        Known { number: 0, name: "", recorded: false, site: 0 }
    }
    /// A thread of the kernel's own.
    pub fn kernel(name: &'static str) -> Known {
        Known { number: NEXT_KERNEL.fetch_add(1, Ordering::Relaxed), name, recorded: false, site: 0 }
    }
}

/// The record in builds without tracing: empty.
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
