//! Prints the page of supported system calls: `cargo run -p quire-linux --example system-calls > docs/system-calls.md`.

use quire_linux::syscall::page;
use quire_linux::syscall::page::Program;
use std::{fs, io, path::PathBuf};

fn main() -> io::Result<()> {
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../programs");
    let files = fs::read_dir(programs)?.map(|file| Ok(file?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    let mut sources = Vec::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "c")) {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        sources.push((name, fs::read_to_string(file)?));
    }
    sources.sort();
    let programs: Vec<_> = sources.iter().map(|(name, text)| Program { name, text }).collect();
    let mut page = String::new();
    // Writing to a string does not fail.
    let _written = page::write(&mut page, &programs);
    print!("{page}");
    Ok(())
}
