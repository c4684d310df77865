//! Where something happened: a backtrace, taken now and printed if it is ever wanted.

use std::backtrace::Backtrace;
use std::fmt;
use std::sync::Arc;

/// A backtrace.
#[derive(Clone)]
pub(crate) struct Trace(Arc<Backtrace>);

impl Trace {
    /// The caller's.
    pub fn here() -> Trace {
        Trace(Arc::new(Backtrace::force_capture()))
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
