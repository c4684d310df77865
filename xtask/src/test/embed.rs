//! Checks that the small kernels with the memory core (`examples/bare-metal` and `examples/riscv`) build as an embedder
//! would build them, and boot.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{Context, verdict::Check};
use crate::{
    failure::{Doing, Failure, Result},
    machine::{accel, qemu},
    setup::toolchain::{KERNEL_TARGET, RISCV_TARGET, Toolchain},
};

/// A small kernel, and the machine that it boots in.
struct Example {
    name: &'static str,
    /// Its directory below `examples`, which is also the end of its crate's name.
    directory: &'static str,
    target: &'static str,
    emulator: fn() -> Result<PathBuf>,
    /// The emulator's arguments before `-kernel`.
    arguments: &'static [&'static str],
    /// The emulator's exit status after a good run.
    status: i32,
    /// Parts of the lines that the kernel must print, in this order.
    lines: &'static [&'static str],
    /// The time limit, many times the time on an idle machine.
    limit: Duration,
}

const EXAMPLES: [Example; 2] = [
    Example {
        name: "embed/a kernel of three hundred lines boots",
        directory: "bare-metal",
        target: KERNEL_TARGET,
        emulator: accel::find_qemu,
        arguments: &[
            "-M",
            "microvm,isa-serial=on",
            "-accel",
            "tcg",
            "-cpu",
            "max,-la57",
            "-m",
            "64M",
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            "-serial",
            "stdio",
            "-device",
            "isa-debug-exit,iobase=0xf4,iosize=4",
        ],
        // For a value n, the debug exit device makes the status 2 n + 1.
        status: 33,
        lines: &["the parent sees 8, the child 7"],
        limit: Duration::from_secs(60),
    },
    Example {
        name: "embed/a kernel on RISC-V runs two CPUs and pages out",
        directory: "riscv",
        target: RISCV_TARGET,
        emulator: || {
            let found = "/usr/bin/qemu-system-riscv64";
            let missing = || format!("{found}, of Debian's package qemu-system-misc: run ./quire setup");
            std::fs::metadata(found).doing(missing)?;
            Ok(found.into())
        },
        arguments: &["-M", "virt", "-smp", "3", "-m", "128M", "-nographic", "-bios", "default"],
        status: 0,
        lines: &[
            "frames for the core",
            "3 CPUs",
            "two CPUs stored into 1024 pages",
            "200 unmaps stopped another CPU's loads",
            "the parent sees 9, the child 7",
            "pages were written and read",
            "frames were free before the program",
            "all is well",
        ],
        limit: Duration::from_secs(300),
    },
];

/// The most parts in a hundred of RAM that the core may use at boot.
const USED_AT_BOOT: f64 = 3.0;

/// The names of the checks.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(EXAMPLES.iter().map(|example| example.name.to_owned()).collect())
}

/// Builds the kernels and boots them.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if context.names_another("embed") {
        return Ok(());
    }
    for example in EXAMPLES.iter().filter(|example| context.selects(example.name)) {
        let ran = build(context, example).and_then(|kernel| boot(context, example, &kernel));
        done(match ran {
            Ok((said, status)) => Check::of(example.name, judge(example, &said, status)),
            Err(why) => Check::failed(example.name, why.message),
        });
    }
    Ok(())
}

/// Whether a run was good: the status, the lines, and the memory that the core uses at boot.
fn judge(example: &Example, said: &str, status: Option<i32>) -> std::result::Result<(), String> {
    let end = said.trim();
    if status != Some(example.status) {
        return Err(format!("QEMU ended with {status:?}, {} was expected; the kernel said:\n{end}", example.status));
    }
    let mut left = said;
    for line in example.lines {
        match left.split_once(line) {
            Some((_, rest)) => left = rest,
            None => return Err(format!("there is no {line:?} in its place; the kernel said:\n{end}")),
        }
    }
    match boot_frames(said) {
        Some((all, free)) if (all - free) * 100.0 > all * USED_AT_BOOT => {
            Err(format!("the core used {} of {all} frames at boot", all - free))
        }
        _ => Ok(()),
    }
}

/// The numbers of the line `N frames for the core, M free`.
fn boot_frames(said: &str) -> Option<(f64, f64)> {
    let line = said.lines().find(|line| line.contains(" frames for the core, "))?;
    let mut numbers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

fn build(context: &Context<'_>, example: &Example) -> Result<PathBuf> {
    let Example { directory, target, .. } = example;
    let output = context.places.target.join(directory);
    let log = format!("{directory}-build");
    let mut cargo = Toolchain::for_target(context.places, target)?.cargo(context.places, "build");
    cargo.args(["--locked", "--manifest-path", &format!("examples/{directory}/Cargo.toml"), "--target", target]);
    cargo.arg("--target-dir").arg(&output).stdin(Stdio::null()).stdout(Stdio::null()).stderr(context.log(&log)?);
    if !cargo.status().doing(|| "cannot run cargo".to_string())?.success() {
        let log = context.log_path(&log);
        return Err(Failure::usage(format_args!("examples/{directory} did not build: see {}", log.display())));
    }
    Ok(output.join(target).join("debug").join(format!("quire-{directory}")))
}

/// Boots the kernel. Returns its output, and QEMU's status. The status is `None` if QEMU had to be stopped.
fn boot(context: &Context<'_>, example: &Example, kernel: &Path) -> Result<(String, Option<i32>)> {
    use std::os::unix::process::CommandExt;
    let about = || "cannot run QEMU".to_string();
    let mut command = Command::new((example.emulator)()?);
    command.args(example.arguments).arg("-kernel").arg(kernel);
    command.stdin(Stdio::null()).stdout(context.log(example.directory)?).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().doing(about)?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().doing(about)? {
            break status.code();
        }
        if start.elapsed() > example.limit {
            qemu::kill_group(&mut child);
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let said = std::fs::read(context.log_path(example.directory)).doing(about)?;
    Ok((String::from_utf8_lossy(&said).replace('\r', ""), status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_its_lines_or_with_dear_descriptors_is_bad() {
        let [_, riscv] = &EXAMPLES;
        let good: String = riscv.lines.iter().map(|line| format!("1000 {line}, 980 free\n")).collect();
        assert_eq!(judge(riscv, &good, Some(0)), Ok(()));
        assert!(judge(riscv, &good, None).is_err() && judge(riscv, &good, Some(1)).is_err());
        assert!(judge(riscv, &good.replace("980", "610"), Some(0)).unwrap_err().contains("390 of 1000"));
        for line in riscv.lines {
            assert!(judge(riscv, &good.replace(line, ""), Some(0)).is_err(), "{line}");
        }
    }
}
