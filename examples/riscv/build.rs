//! Hands the linker script to the linker.

fn main() {
    println!("cargo::rerun-if-changed=kernel.ld");
    let dir = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR for build scripts");
    println!("cargo::rustc-link-arg-bins=-T{dir}/kernel.ld");
    println!("cargo::rustc-link-arg-bins=-znoexecstack");
}
