//! The targets of the fuzzers. A *target* is an ordinary function of bytes that panics on an error; nothing here knows
//! a fuzzer. `fuzz/` at the root of the repository binds each to libFuzzer and holds the corpora. `tests/corpus.rs`
//! replays them on any toolchain.
//!
//! Readers of foreign formats get the bytes as they are. The parts of the memory core get them as a list of operations
//! ([`Input`]), run beside a simple model that must agree. Without the feature `linux` only these targets exist.
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
    /// Its name in `./quire fuzz`; its corpus is the directory of that name.
    pub name: &'static str,
    /// Panics on an error.
    pub run: fn(&[u8]),
}

/// All of them.
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

/// The target of that name.
///
/// # Panics
/// Where there is none.
pub fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no fuzz target is called {name}"))
}

/// The operations of the target `embedder` that no input has done in this process.
pub fn operations_missed() -> Vec<&'static str> {
    embedder::missed()
}
