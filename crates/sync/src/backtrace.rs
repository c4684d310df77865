//! Backtraces that are captured now, and printed later if they are needed.

#[cfg(any(test, feature = "std"))]
mod taken {
    use std::backtrace::Backtrace;
    use std::fmt;
    use std::sync::Arc;

    /// A backtrace.
    #[derive(Clone)]
    pub struct Trace(Arc<Backtrace>);

    impl Trace {
        /// Captures the caller's backtrace.
        pub fn here() -> Trace {
            crate::hooks::threads::apart(|| Trace(Arc::new(Backtrace::force_capture())))
        }
    }

    impl fmt::Display for Trace {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt(f)
        }
    }
}

#[cfg(not(any(test, feature = "std")))]
mod taken {
    use crate::hooks;
    use core::fmt;

    /// The most calls of a backtrace that are kept: enough to identify the caller, few enough for the stack.
    const DEPTH: usize = 20;

    /// A backtrace as return addresses, which the hook `Cpu::backtrace` returns.
    #[derive(Clone)]
    pub struct Trace {
        addresses: [usize; DEPTH],
        len: usize,
    }

    impl Trace {
        /// Captures the caller's backtrace.
        #[inline(never)]
        pub fn here() -> Trace {
            let mut addresses = [0; DEPTH];
            let len = hooks::backtrace(&mut addresses).min(DEPTH);
            Trace { addresses, len }
        }
    }

    impl fmt::Display for Trace {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            for (i, address) in self.addresses[..self.len].iter().enumerate() {
                if i > 0 {
                    f.write_str("\n")?;
                }
                f.write_str("  ")?;
                hooks::describe(*address, f)?;
            }
            Ok(())
        }
    }
}

pub(crate) use taken::Trace;
