//! Switches that leave one step of a protocol out, to prove that the model checkers find the omission.

/// Declares a crate's `Mutant`, with a value for each step that can be left out. `mutant(m)` returns whether step `m`
/// is left out. A model's test leaves a step out with `set_mutant`.
///
/// Outside the checkers' builds `mutant` is constant false, and the switches are compiled away.
#[macro_export]
macro_rules! mutants {
    ($(#[$about:meta])* pub enum Mutant { $($(#[$doc:meta])* $name:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Mutant {
            $($(#[$doc])* $name,)*
        }

        #[cfg(any(loom, shuttle))]
        mod switch {
            use super::Mutant;
            use core::cell::Cell;

            // Both checkers run all threads of a model on the operating-system thread of its test. `ON` is not an
            // atomic of the checker, so a read of it is no step of the model.
            std::thread_local! {
                static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
            }

            /// Whether the step that `m` names is left out.
            pub fn mutant(m: Mutant) -> bool {
                ON.get() == Some(m)
            }
            #[cfg(test)]
            /// Leaves out `m` (or nothing) from now on, in models that run on this thread of the system.
            pub fn set_mutant(m: Option<Mutant>) {
                ON.set(m);
            }
        }
        #[cfg(any(loom, shuttle))]
        pub use switch::mutant;
        #[cfg(all(test, any(loom, shuttle)))]
        pub use switch::set_mutant;

        // Under a sanitizer's instrumentation, the switch applies to all threads.
        #[cfg(all(sanitized, not(any(loom, shuttle))))]
        mod switch {
            use super::Mutant;
            use core::sync::atomic::{AtomicUsize, Ordering};

            static ON: AtomicUsize = AtomicUsize::new(usize::MAX);

            /// Whether the step that `m` names is left out.
            pub fn mutant(m: Mutant) -> bool {
                ON.load(Ordering::Relaxed) == m as usize
            }
            /// Leaves out `m` (or nothing) from now on.
            #[allow(dead_code)]
            pub fn set_mutant(m: Option<Mutant>) {
                ON.store(m.map_or(usize::MAX, |m| m as usize), Ordering::Relaxed);
            }
        }
        #[cfg(all(sanitized, not(any(loom, shuttle))))]
        #[allow(unused_imports)]
        pub use switch::{mutant, set_mutant};

        /// Whether the step that `m` names is left out: never, outside models.
        #[cfg(not(any(loom, shuttle, sanitized)))]
        #[inline(always)]
        pub const fn mutant(m: Mutant) -> bool {
            let _named = m;
            false
        }
    };
}
