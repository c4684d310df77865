//! Prints the page of supported system calls: `cargo run -p quire-linux --example system-calls > docs/system-calls.md`.

fn main() {
    let mut page = String::new();
    // Writing to a string does not fail.
    let _written = quire_linux::syscall::page::write(&mut page);
    print!("{page}");
}
