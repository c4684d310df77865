//! Prints the page of supported system calls: `cargo run -p quire-linux --example system-calls > docs/system-calls.md`.

fn main() {
    print!("{}", quire_linux::syscall::page::page());
}
