//! Models of the protocols between threads and their senders, run by `RUSTFLAGS="--cfg loom"` and `"--cfg shuttle"`.

mod signals;
