//! `./quire fuzz`: runs libFuzzer on the targets of `crates/fuzz`, through the drivers in `fuzz/`. The coverage pass is
//! part of the compiler, so any stable toolchain works. Some targets also run under AddressSanitizer, with the
//! toolchain of `./quire test sanitize`.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    cli,
    failure::{Doing, Failure, Result},
    places::Places,
    progress::Step,
    setup::{
        runtime,
        sanitizer::{self, Sanitizer},
    },
};

/// A fuzz target, the code that it tests, and the number of inputs for the check in `./quire test`.
pub struct Target {
    /// The target's name. Its driver, its corpus and its function in `crates/fuzz` have the same name.
    pub name: &'static str,
    /// The code that the target tests, in a few words.
    pub about: &'static str,
    /// The number of inputs in the check, which takes some seconds.
    pub runs: u32,
    /// Whether the target also runs under AddressSanitizer.
    pub address: bool,
    /// Whether the target needs the Linux layer.
    pub linux: bool,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "calls",
        about: "any system calls; each input runs as a process on a machine of its own",
        runs: 600,
        address: false,
        linux: true,
    },
    Target {
        name: "cpio",
        about: "the archive reader, and unpacking into a file tree",
        runs: 20_000,
        address: false,
        linux: true,
    },
    Target { name: "elf", about: "headers of programs", runs: 100_000, address: false, linux: true },
    Target {
        name: "embedder",
        about: "all safe public functions of the memory core, called by two threads on two systems, with misuse",
        runs: 120,
        address: true,
        linux: false,
    },
    Target {
        name: "frames",
        about: "frames, runs and slabs against a record of their owners",
        runs: 1_000,
        address: false,
        linux: false,
    },
    Target {
        name: "index",
        about: "the page index and its cursors against a sorted map",
        runs: 10_000,
        address: false,
        linux: false,
    },
    Target {
        name: "ipc",
        about: "calls of System V IPC and of message queues, made of likely parts",
        runs: 1_000,
        address: false,
        linux: true,
    },
    Target {
        name: "map",
        about: "operations on address spaces and forks against a page-by-page model",
        runs: 800,
        address: false,
        linux: false,
    },
    Target { name: "script", about: "`#!` lines", runs: 100_000, address: false, linux: true },
    Target {
        name: "sigframe",
        about: "signal frames that a program has rewritten",
        runs: 100_000,
        address: false,
        linux: true,
    },
    Target {
        name: "sockets",
        about: "calls of sockets: addresses, control messages, options, netlink requests, made of likely parts",
        runs: 1_000,
        address: false,
        linux: true,
    },
    Target {
        name: "tables",
        about: "page tables and the hardware's walk of them against a sorted map",
        runs: 5_000,
        address: false,
        linux: false,
    },
    Target {
        name: "user",
        about: "copies by system calls from and to a program's memory, checked byte by byte",
        runs: 10_000,
        address: false,
        linux: true,
    },
];

const HOST: &str = "x86_64-unknown-linux-gnu";
/// The flags for libFuzzer's feedback: the edges that were taken, and the operands of comparisons.
const COVERAGE: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Fuzzes one target, or runs one input.
pub fn command(places: &Places, options: &cli::Fuzz) -> Result<u8> {
    if options.list {
        TARGETS.iter().for_each(|t| println!("{:<10} {}", t.name, t.about));
        return Ok(0);
    }
    let name = options
        .target
        .as_deref()
        .ok_or_else(|| Failure::usage("name a fuzz target; ./quire fuzz --list prints all targets"))?;
    let target = TARGETS.iter().find(|t| t.name == name).ok_or_else(|| {
        Failure::usage(format_args!("no fuzz target has the name {name}; ./quire fuzz --list prints all targets"))
    })?;
    let step = Step::new("building the fuzz targets");
    let log = places.target.join("fuzz-build.log");
    fs::create_dir_all(&places.target).doing(|| format!("cannot make {}", places.target.display()))?;
    let file = fs::File::create(&log).doing(|| format!("cannot make {}", log.display()))?;
    let programs = build(places, &[target], target.address, file)?;
    drop(step);
    let mut command = match &options.input {
        Some(input) => {
            let mut command = Command::new(programs.join(target.name));
            report_by(&mut command);
            command.arg(std::path::absolute(input).doing(|| input.display())?);
            command
        }
        None => {
            let mut command = session(places, &programs, target.name)?;
            command.arg(format!("-max_total_time={}", options.seconds)).arg("-print_final_stats=1");
            command
        }
    };
    Err(Failure::usage(format_args!("cannot run {}: {}", target.name, command.stdin(Stdio::null()).exec())))
}

/// Builds the drivers of `targets`, with AddressSanitizer if `address` is set. Returns the directory of the drivers.
pub fn build(places: &Places, targets: &[&Target], address: bool, log: fs::File) -> Result<PathBuf> {
    // Each set of flags has its own directory. In a shared directory, each build would compile everything again.
    let target = places.target.join(if address { "fuzz-address" } else { "fuzz" });
    let library = runtime::libfuzzer()?;
    let flags: Vec<String> = COVERAGE.iter().map(|f| (*f).to_owned()).chain(library.flags).collect();
    let flags = flags.join(" ");
    let mut command = if address {
        sanitizer::find(Sanitizer::Address)?.cargo("build", &flags)
    } else {
        let mut command = Command::new("cargo");
        command.args(["build", "--target", HOST]).env("RUSTFLAGS", flags);
        command
    };
    command.args(["--release", "--locked", "--color", "never", "--target-dir"]).arg(&target);
    command.args(targets.iter().flat_map(|t| ["--bin", t.name])).current_dir(places.root.join("fuzz"));
    command.envs(library.variables);
    if address {
        // The optimisation level is low. The passes for coverage and for AddressSanitizer add much code, and optimising
        // that code would take longer than the check.
        command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    }
    if !targets.iter().any(|t| t.linux) {
        command.arg("--no-default-features");
    }
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).status();
    if !status.doing(|| "cannot run cargo".to_string())?.success() {
        return Err(Failure::usage("the fuzz targets did not build: see the build's log in target/"));
    }
    Ok(target.join(HOST).join("release"))
}

/// A command that fuzzes with the committed corpus and the inputs of earlier sessions. The caller may add options.
pub fn session(places: &Places, programs: &Path, name: &str) -> Result<Command> {
    let kept = places.target.join("fuzz/corpus").join(name);
    let artifacts = places.target.join("fuzz/artifacts");
    for place in [&kept, &artifacts] {
        fs::create_dir_all(place).doing(|| format!("cannot make {}", place.display()))?;
    }
    let mut command = Command::new(programs.join(name));
    command.arg(format!("-artifact_prefix={}/{name}-", artifacts.display()));
    // An input is a list of operations, so long inputs are tried from the beginning.
    command.args(["-max_len=2048", "-len_control=0", "-timeout=20"]);
    command.arg(kept).arg(places.root.join("fuzz/corpus").join(name));
    report_by(&mut command);
    Ok(command)
}

/// Configures the reports of AddressSanitizer. Leaks are not reported, because a machine lives across inputs and keeps
/// its memory.
fn report_by(command: &mut Command) {
    let symbols =
        sanitizer::symbolizer().map_or(String::new(), |p| format!(":external_symbolizer_path={}", p.display()));
    command.env("ASAN_OPTIONS", format!("detect_leaks=0:quarantine_size_mb=64{symbols}")).arg("-detect_leaks=0");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_a_driver_and_the_other_way_round() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
        let mut drivers: Vec<String> = fs::read_dir(root.join("fuzz_targets"))
            .unwrap()
            .map(|e| e.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        drivers.sort();
        assert_eq!(drivers, TARGETS.iter().map(|t| t.name).collect::<Vec<_>>());
        let manifest: toml::Table = toml::from_str(&fs::read_to_string(root.join("Cargo.toml")).unwrap()).unwrap();
        let bins: Vec<_> = manifest["bin"].as_array().unwrap().iter().map(|b| b["name"].as_str().unwrap()).collect();
        assert_eq!(bins, drivers);
    }
}
