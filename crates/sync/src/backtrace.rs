//! Backtraces that are taken now and printed later if needed.

#[cfg(any(test, feature = "std"))]
mod taken {
    use std::backtrace::Backtrace;
    use std::fmt;
    use std::sync::Arc;

    /// A backtrace.
    #[derive(Clone)]
    pub struct Trace(Arc<Backtrace>);

    impl Trace {
        /// The caller's.
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

    /// Calls of a backtrace that are kept: enough to identify the caller, few enough for the stack.
    const DEPTH: usize = 20;

    /// A backtrace as return addresses, from the hooks.
    #[derive(Clone)]
    pub struct Trace {
        addresses: [usize; DEPTH],
        len: usize,
    }

    impl Trace {
        /// The caller's.
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
