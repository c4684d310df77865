//! Checks that the committed corpus of the target `embedder` runs each operation. An operation that never ran would
//! test nothing.

use std::fs;
use std::path::Path;

#[test]
fn the_corpus_of_the_embedder_does_every_operation() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/embedder");
    for file in fs::read_dir(corpus).expect("a corpus") {
        (quire_fuzz::target("embedder").run)(&fs::read(file.expect("an entry").path()).expect("a file"));
    }
    assert_eq!(quire_fuzz::operations_missed(), [""; 0]);
}
