//! The targets of the fuzzers. A *target* is an ordinary function of bytes that panics on an error; nothing here knows
//! a fuzzer. `fuzz/` at the root of the repository binds each to libFuzzer and holds the corpora. `tests/corpus.rs`
//! replays them on any toolchain.
//!
//! Readers of foreign formats get the bytes as they are. The parts of the memory core get them as a list of operations
//! ([`Input`]), run beside a simple model that must agree.
#![deny(missing_docs)]

mod archive;
mod calls;
mod elf;
mod embedder;
mod frames;
mod index;
mod input;
mod ipc;
mod map;
mod memory;
mod script;
mod sigframe;
mod sockets;
mod steps;
mod tables;
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
    Target { name: "calls", run: calls::run },
    Target { name: "cpio", run: archive::run },
    Target { name: "elf", run: elf::run },
    Target { name: "embedder", run: embedder::run },
    Target { name: "frames", run: frames::run },
    Target { name: "index", run: index::run },
    Target { name: "ipc", run: ipc::run },
    Target { name: "map", run: map::run },
    Target { name: "script", run: script::run },
    Target { name: "sigframe", run: sigframe::run },
    Target { name: "sockets", run: sockets::run },
    Target { name: "tables", run: tables::run },
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
