//! Tests that the recording build records every line that CPUs share. To run them: `RUSTFLAGS="--cfg recording" cargo
//! test -p quire-lab --test watched`.
#![cfg(recording)]

use quire_lab::conflicts::watched::{Watched, watch};
use std::path::Path;

fn watched(plain: bool) -> Watched {
    watch(Path::new(env!("CARGO_BIN_EXE_quire-lab")), plain).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn the_record_has_the_lines_that_loads_and_stores_share() {
    let watched = watched(false);
    // At least one round must share lines. Otherwise the test would have judged nothing.
    assert!(watched.rounds > 0 && watched.shared > 0, "{} rounds, {} lines", watched.rounds, watched.shared);
    let told: String = watched.missed.iter().map(|m| watched.told(m)).collect();
    assert!(told.is_empty(), "shared, and not recorded:\n{told}");
}

#[test]
fn a_shared_word_that_says_nothing_is_found() {
    let watched = watched(true);
    let found: Vec<_> = watched.missed.iter().filter(|m| m.owner.starts_with("plain")).collect();
    let told: String = found.iter().map(|m| watched.told(m)).collect();
    assert!(told.contains("CPU 0 stores 8 bytes at +0") && told.contains("CPU 1 stores 8 bytes at +0"), "{told}");
    assert!(told.contains("watched/program.rs:"), "{told}");
}
