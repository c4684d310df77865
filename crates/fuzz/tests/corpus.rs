//! Runs every input of the committed corpora through its target.

use quire_fuzz::TARGETS;
use std::fs;
use std::path::{Path, PathBuf};

/// The most bytes of an input. A corpus holds the few inputs that seed others, not everything that a fuzzer has found.
const LARGEST: u64 = 4096;

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

#[test]
fn every_committed_input_passes() {
    for target in TARGETS {
        let place = corpora().join(target.name);
        let mut files: Vec<PathBuf> =
            fs::read_dir(&place).expect("a corpus").map(|e| e.expect("an entry").path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{} has no corpus", target.name);
        (target.run)(&[]);
        for file in files {
            let bytes = fs::read(&file).expect("a file");
            assert!(bytes.len() as u64 <= LARGEST, "{} is too large for a corpus", file.display());
            println!("{}", file.display());
            (target.run)(&bytes);
        }
    }
}

#[test]
fn every_corpus_and_every_driver_has_a_target() {
    let names = |place: PathBuf| -> Vec<String> {
        let stem = |p: PathBuf| p.file_stem().map(|s| s.to_string_lossy().into_owned());
        let mut names: Vec<_> =
            fs::read_dir(place).expect("a directory").flatten().flat_map(|e| stem(e.path())).collect();
        names.sort();
        names
    };
    let targets: Vec<_> = TARGETS.iter().map(|t| t.name).collect();
    assert_eq!(names(corpora()), targets, "corpora");
    assert_eq!(names(corpora().join("../fuzz_targets")), targets, "drivers");
}
