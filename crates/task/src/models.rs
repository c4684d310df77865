//! Models of this crate's protocols under loom and shuttle, on the production code: `RUSTFLAGS="--cfg loom" cargo test
//! --release -p quire-task --lib`, and the same with `shuttle`.
//!
//! [`machine`] simulates two CPUs. Each CPU runs as one thread of the model checker.

mod broadcast;
mod ending;
mod futex;
mod idle;
mod ids;
mod machine;
mod pi;
mod powers;
mod threads;
mod timers;
mod urgency;
mod watch;
