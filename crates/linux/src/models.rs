//! Models of this crate's protocols, run by `RUSTFLAGS="--cfg loom"`.

mod barrier;
