//! The targets of the fuzzers. A *target* is an ordinary function of bytes that panics on an error. It does not depend
//! on a fuzzer. The directory `fuzz/` at the repository's root binds each target to libFuzzer and holds the corpora.
//! `tests/corpus.rs` replays the corpora on any toolchain.
//!
//! Targets for readers of foreign formats get the bytes as they are. Targets for parts of the memory core use the bytes
//! as a list of operations ([`Input`]), and compare the results with a simple model. Without the feature `linux` only
//! the targets of the second kind exist.
#![deny(missing_docs)]

#[cfg(feature = "linux")]
mod archive;
#[cfg(feature = "linux")]
mod calls;
#[cfg(feature = "linux")]
mod elf;
mod embedder;
mod frames;
mod index;
mod input;
#[cfg(feature = "linux")]
mod ipc;
mod map;
#[cfg(feature = "linux")]
mod memory;
#[cfg(feature = "linux")]
mod script;
#[cfg(feature = "linux")]
mod sigframe;
#[cfg(feature = "linux")]
mod sockets;
#[cfg(feature = "linux")]
mod steps;
mod tables;
#[cfg(feature = "linux")]
mod user;

pub use input::Input;

/// A target: its name, and its function.
pub struct Target {
    /// The name in `./quire fuzz`, and of the corpus's directory.
    pub name: &'static str,
    /// The function, which panics on an error.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    #[cfg(feature = "linux")]
    Target { name: "calls", run: calls::run },
    #[cfg(feature = "linux")]
    Target { name: "cpio", run: archive::run },
    #[cfg(feature = "linux")]
    Target { name: "elf", run: elf::run },
    Target { name: "embedder", run: embedder::run },
    Target { name: "frames", run: frames::run },
    Target { name: "index", run: index::run },
    #[cfg(feature = "linux")]
    Target { name: "ipc", run: ipc::run },
    Target { name: "map", run: map::run },
    #[cfg(feature = "linux")]
    Target { name: "script", run: script::run },
    #[cfg(feature = "linux")]
    Target { name: "sigframe", run: sigframe::run },
    #[cfg(feature = "linux")]
    Target { name: "sockets", run: sockets::run },
    Target { name: "tables", run: tables::run },
    #[cfg(feature = "linux")]
    Target { name: "user", run: user::run },
];

/// Returns the target of that name.
///
/// # Panics
/// If there is no such target.
pub fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no fuzz target is called {name}"))
}

/// The operations of the target `embedder` that no input has run in this process.
pub fn operations_missed() -> Vec<&'static str> {
    embedder::missed()
}
