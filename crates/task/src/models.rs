//! Models of this crate's protocols under loom and shuttle, on the production code: `RUSTFLAGS="--cfg loom" cargo test
//! --release -p quire-task --lib`, and the same with `shuttle`.
//!
//! [`machine`] is a computer of two CPUs; each CPU's stack is a thread of the checker.

mod futex;
mod idle;
mod ids;
mod machine;
mod powers;
mod roll_call;
mod threads;
mod timers;
mod watch;
