//! Runs the kernel on other processors than the usual one: models of QEMU, and models without some features. The kernel
//! must run without each optional feature. If a required feature is absent, the kernel must name it. Each run boots two
//! CPUs, keeps every register through threads, signals and forks (`programs/processor.c`), and powers off.

use std::{
    fs::File,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use super::{Context, verdict::Check};
use crate::{
    boot::{Kernel, On, Shape},
    failure::{Doing, Result},
    image::{order::Order, root},
    machine::outcome::Outcome,
    programs,
    setup::qemu,
};

/// A processor in QEMU's syntax, and the width in bytes of the widest vectors that programs must have on it.
type Model = (&'static str, u32);

/// Two very different processors, for every run of the tests: without and with XSAVE and AVX.
const FEW: &[(Board, Model)] = &[(Board::Q35, ("qemu64", 16)), (Board::Microvm, ("EPYC", 32))];

/// The processors for long runs, on both boards: fifteen models, among them the oldest and the newest of QEMU 7.2, and
/// models without some features.
const MANY: &[Model] = &[
    ("qemu64", 16),
    ("kvm64", 16),
    ("Opteron_G1", 16),
    // This model has AVX, but not in the emulator: see `hangs_on_xsave` in the kernel.
    ("Opteron_G5", 16),
    ("phenom", 16),
    ("EPYC", 32),
    ("EPYC-Milan", 32),
    ("Conroe", 16),
    ("Nehalem", 16),
    ("SandyBridge", 32),
    ("Haswell", 32),
    ("Skylake-Server", 32),
    ("Icelake-Server", 32),
    ("Denverton", 16),
    ("max", 32),
    ("max,-xsave", 16),
    ("max,-avx", 16),
    ("max,-avx2", 32),
    ("max,-xsaveopt,-xsavec,-xsaves", 32),
    ("max,-smep,-smap,-umip", 32),
    ("max,-pdpe1gb", 32),
    ("max,-rdrand,-rdseed", 32),
    ("max,-rdtscp,-fsgsbase", 32),
    ("max,-ssse3,-sse4.1,-sse4.2,-popcnt,-cx16", 32),
    ("max,-mtrr,-clflush,-monitor", 32),
    ("max,-hypervisor", 32),
];

/// The processors for long runs on the newer QEMU, which emulates x2APIC and PCIDs, and has newer models.
const NEWER: &[Model] = &[
    ("qemu64", 16),
    ("EPYC-Genoa", 32),
    ("SapphireRapids", 32),
    ("GraniteRapids", 32),
    ("SierraForest", 32),
    ("max", 32),
    ("max,-x2apic", 32),
    ("max,-pcid", 32),
    ("max,-invpcid", 32),
    ("max,-tsc-deadline", 32),
    ("max,-x2apic,-pcid,-invpcid,-xsave", 16),
];

/// The features that the kernel requires. QEMU and the kernel (`crates/kernel/src/boot/required.rs`) use the same
/// names.
const REQUIRED: [&str; 16] = [
    "fpu", "tsc", "msr", "pae", "mce", "cx8", "apic", "pge", "cmov", "pat", "fxsr", "sse", "sse2", "syscall", "nx",
    "lm",
];

const REFUSED: &str = "cpus/required and absent features are named";
const MESSAGE: &str = "cpus/the user's error message names the missing features";
const MOST: &str = "cpus/newer/64 CPUs with x2APIC";

/// The time limit. A run takes seconds, and longer on a busy host.
const LIMIT: Duration = Duration::from_secs(180);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Board {
    Microvm,
    Q35,
}

/// One run of one model.
struct Run {
    name: String,
    /// Whether it runs on the newer QEMU.
    newer: bool,
    board: Board,
    cpus: u32,
    model: Model,
}

/// All runs: few, or with `soak` all models on both boards.
fn runs(soak: bool) -> Vec<Run> {
    let run = |newer: bool, board, model: Model| {
        let on = if board == Board::Q35 { "q35" } else { "microvm" };
        let name = format!("cpus/{}/{on}/{}", if newer { "newer" } else { "own" }, model.0);
        Run { name, newer, board, cpus: 2, model }
    };
    if !soak {
        return FEW.iter().map(|(board, model)| run(false, *board, *model)).collect();
    }
    let boards = [Board::Microvm, Board::Q35];
    let own = MANY.iter().flat_map(|model| boards.map(|board| run(false, board, *model)));
    let newer = NEWER.iter().flat_map(|model| boards.map(|board| run(true, board, *model)));
    let most = Run { name: MOST.to_owned(), newer: true, board: Board::Microvm, cpus: 64, model: ("max", 32) };
    own.chain(newer).chain([most]).collect()
}

/// The checks' names.
pub fn names(context: &Context<'_>) -> Result<Vec<String>> {
    let runs = runs(context.soak).into_iter().map(|run| run.name);
    Ok([REFUSED, MESSAGE].map(str::to_owned).into_iter().chain(runs).collect())
}

/// Runs the selected checks.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    let selected: Vec<Run> = runs(context.soak).into_iter().filter(|r| context.selects(&r.name)).collect();
    let [refused, message] = [REFUSED, MESSAGE].map(|name| context.selects(name));
    if selected.is_empty() && !refused && !message {
        return Ok(());
    }
    let kernel = Kernel::with(context.places, On::Quire, || context.kernel())?;
    let image = image(context, &kernel)?;
    if refused {
        done(Check::of(REFUSED, names_absent_features(&kernel, &image)));
    }
    if message {
        done(Check::of(MESSAGE, names_the_missing(context)));
    }
    let newer = if selected.iter().any(|r| r.newer) { Some(qemu::newer(context.places)) } else { None };
    for run in selected {
        let kernel = match &newer {
            Some(Ok(qemu)) if run.newer => kernel.clone().emulated_by(qemu.clone()),
            Some(Err(why)) if run.newer => {
                done(Check::skipped(run.name, why.to_string(), true));
                continue;
            }
            _ => kernel.clone().emulated(),
        };
        done(Check::of(&run.name, runs_on(&run, &kernel, &image)));
    }
    Ok(())
}

fn image(context: &Context<'_>, kernel: &Kernel) -> Result<File> {
    let mut tree = root::tree()?;
    let program = programs::compile(context.places, &context.places.root.join("programs/processor.c"))?;
    let at = programs::in_guest("processor");
    tree.host_file(&at, &program)?;
    kernel.image(tree, &Order { args: vec![at.into()], env: vec![], cwd: "/".into(), ..Order::default() })
}

/// Boots the machine, runs the program, and powers off.
fn runs_on(run: &Run, kernel: &Kernel, image: &File) -> Result<(), String> {
    let q35 = run.board == Board::Q35;
    let shape = Shape {
        cpus: run.cpus,
        memory: 256,
        q35,
        verbose: true,
        cpu: Some(run.model.0.to_owned()),
        ..Shape::default()
    };
    let ended = kernel.kept(image, &shape, LIMIT).map_err(|e| e.message)?;
    let log = &ended.report.log_tail;
    let last = || format!("{:?}; the log ends:\n{}", ended.report.outcome, crate::run::last_lines(log, 15));
    // The board q35 has no ports. So the program's output is in the log. An orderly end can be detected, but not the
    // program's exit status.
    let (said, well) = match &ended.report.outcome {
        Outcome::Exit(0) if !q35 => (String::from_utf8_lossy(&ended.output).into_owned(), true),
        Outcome::Died(how) if q35 => (log.clone(), how.contains("powered off")),
        _ => (String::new(), false),
    };
    let expected = format!("vectors {} bytes", run.model.1);
    if !well || !said.contains(&expected) {
        return Err(format!("{expected:?} and a power-off were expected; {}", last()));
    }
    match log.contains(&format!(": {} CPUs", run.cpus)) {
        true => Ok(()),
        false => Err(format!("{} CPUs did not start: {}", run.cpus, last())),
    }
}

/// Boots once without each required feature, and once with a processor that has none of them. The kernel must name the
/// absent ones.
fn names_absent_features(kernel: &Kernel, image: &File) -> Result<(), String> {
    let emulated = kernel.clone().emulated();
    let one = REQUIRED.iter().map(|name| (format!("max,-{name}"), (*name).to_owned()));
    // The oldest model has an FPU, and Intel's processors report SYSCALL only in 64-bit mode. So the kernel does not
    // report these two features as missing on that model.
    let all = REQUIRED.into_iter().filter(|name| !["fpu", "syscall"].contains(name)).collect::<Vec<_>>().join(", ");
    for (cpu, lacks) in one.chain([("486".to_owned(), all)]) {
        let shape = Shape { cpus: 1, memory: 128, cpu: Some(cpu.clone()), ..Shape::default() };
        let ended = emulated.kept(image, &shape, LIMIT).map_err(|e| e.message)?;
        let expected = format!("Quire cannot run on this machine: its processor lacks {lacks}");
        if ended.report.outcome != Outcome::Refused(expected.clone()) {
            return Err(format!(
                "with -cpu {cpu}: {expected:?} was expected, not {:?}; the log ends:\n{}",
                ended.report.outcome,
                crate::run::last_lines(&ended.report.log_tail, 5)
            ));
        }
    }
    Ok(())
}

/// Checks that `./quire run` ends with status 2 and prints one line that names the missing features.
fn names_the_missing(context: &Context<'_>) -> Result<(), String> {
    let run = || -> Result<_> {
        let quire: PathBuf = std::env::current_exe().doing(|| "cannot find this program".to_string())?;
        let mut command = Command::new(quire);
        command.args(["run", "--", "busybox", "true"]).stdin(Stdio::null());
        command.env("QUIRE_ROOT", &context.places.root).env("QUIRE_KERNEL", context.kernel()?);
        command.env("QUIRE_CPU", "qemu64,-nx,-pat").env("QUIRE_ACCEL", "tcg");
        command.output().doing(|| "cannot run ./quire".to_string())
    };
    let out = run().map_err(|e| e.message)?;
    let said = String::from_utf8_lossy(&out.stderr);
    let expected = "quire: Quire cannot run on this machine: its processor lacks pat, nx\n";
    if out.status.code() == Some(2) && said == expected && out.stdout.is_empty() {
        return Ok(());
    }
    Err(format!("status 2 and {expected:?} were expected, not {:?} and {said:?}", out.status.code()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_has_15_models_on_both_boards_under_unique_names() {
        let all = runs(true);
        let own = |board| {
            let models = all.iter().filter(|r| !r.newer && r.board == board && !r.model.0.contains(','));
            models.map(|r| r.model.0).collect::<std::collections::BTreeSet<_>>().len()
        };
        assert!(own(Board::Microvm) >= 15 && own(Board::Q35) >= 15);
        let names: std::collections::BTreeSet<_> = all.iter().map(|r| &r.name).collect();
        assert_eq!(names.len(), all.len());
    }
}
