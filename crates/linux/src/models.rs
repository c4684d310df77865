//! Models of this crate's protocols, run by `RUSTFLAGS="--cfg loom"` and `"--cfg shuttle"`.

#[cfg(loom)]
mod barrier;
mod clock_page;
mod day;
mod signals;
