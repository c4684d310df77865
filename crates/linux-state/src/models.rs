//! Models of this crate's protocols, run by `RUSTFLAGS="--cfg loom"` and `"--cfg shuttle"`.

mod clock_page;
mod day;
mod signals;
