//! Passes the linker script to the linker, for the kernel's target only.

fn main() {
    println!("cargo::rerun-if-changed=kernel.ld");
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "none") {
        let dir = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR for build scripts");
        println!("cargo::rustc-link-arg-bins=-T{dir}/kernel.ld");
        println!("cargo::rustc-link-arg-bins=-zmax-page-size=4096");
        println!("cargo::rustc-link-arg-bins=-zcommon-page-size=4096");
        println!("cargo::rustc-link-arg-bins=-znoexecstack");
    }
}
