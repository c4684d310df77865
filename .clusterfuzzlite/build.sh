#!/bin/bash -eu
# Run by the service inside the image that Dockerfile describes; $SRC and $OUT are its own.
cd "$SRC/quire"
cargo fuzz build --release --debug-assertions
for driver in fuzz/fuzz_targets/*.rs; do
    name=$(basename "$driver" .rs)
    cp "fuzz/target/x86_64-unknown-linux-gnu/release/$name" "$OUT/"
    zip -q -j "$OUT/${name}_seed_corpus.zip" "fuzz/corpus/$name"/*
done
