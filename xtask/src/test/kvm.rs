//! Runs Quire under KVM on every host. The emulator has AMD's virtualisation, so Debian's Linux can run in it as a host
//! of KVM. In that Linux `./quire run` starts a guest as it does for a user.

use std::{fs::File, path::Path, time::Duration};

use super::{Context, verdict::Check};
use crate::{
    boot::{HOST_CPU, Kernel, Shape},
    failure::{Doing, Result},
    image::{order::Order, program, root, tree::Tree},
    machine::{accel, outcome::Outcome},
    programs,
};

const RUNS: &str = "kvm/a program on two CPUs, with all features and with few";
/// The time limit. The host and both guests take half a minute on an idle machine.
const LIMIT: Duration = Duration::from_secs(400);
/// The host's memory in MiB. It is enough for its files and a guest of 512 MiB.
pub const MEMORY: u64 = 2048;

/// The path of the kernel under test in the host.
const KERNEL: &str = "/.quire/kernel";
/// The firmware files that QEMU loads into guests on these boards, and the directories that may have them.
const FIRMWARE: [&str; 6] =
    ["bios-256k.bin", "bios-microvm.bin", "qboot.rom", "linuxboot_dma.bin", "kvmvapic.bin", "pvh.bin"];
const FIRMWARE_PLACES: [&str; 2] = ["/usr/share/qemu", "/usr/share/seabios"];

/// The name of the stage's only check.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(vec![RUNS.to_owned()])
}

/// Runs the check.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if !context.selects(RUNS) {
        return Ok(());
    }
    let host = match Kernel::host(context.places) {
        Ok(host) => host,
        Err(why) => {
            done(Check::skipped(RUNS, why.to_string(), true));
            return Ok(());
        }
    };
    done(Check::of(RUNS, runs(context, &host)));
    Ok(())
}

/// Returns a file tree with this program, QEMU and the kernel under test, and this program's path in it.
pub fn tree(context: &Context<'_>) -> Result<(Tree, String)> {
    let mut tree = root::tree()?;
    let own = std::env::current_exe().doing(|| "cannot find this program".to_string())?;
    let quire = program::install_host(&mut tree, &own)?.to_string_lossy().into_owned();
    program::install_host(&mut tree, &accel::find_qemu()?)?;
    for place in FIRMWARE_PLACES {
        for file in FIRMWARE.iter().map(|name| Path::new(place).join(name)).filter(|f| f.exists()) {
            tree.host_file(&file, &file)?;
        }
    }
    tree.host_file(KERNEL, &context.kernel()?)?;
    tree.directory("/.quire/programs", 0o755)?;
    Ok((tree, quire))
}

/// Returns an order for the host: `args`, with the environment in which `./quire` runs guests under KVM.
pub fn order(args: Vec<String>) -> Order {
    let env = [
        format!("PATH={}", root::PATH),
        "HOME=/root".into(),
        "LC_ALL=C".into(),
        "QUIRE_ROOT=/.quire".into(),
        "QUIRE_CACHE=/tmp/cache".into(),
        "CARGO_TARGET_DIR=/tmp/target".into(),
        format!("QUIRE_KERNEL={KERNEL}"),
        "QUIRE_ACCEL=kvm".into(),
    ];
    let [args, env] = [args, env.to_vec()].map(|words| words.into_iter().map(Into::into).collect());
    Order { args, env, cwd: "/".into(), ..Order::default() }
}

/// Boots the host once. In the host, boots a guest with each of two processors.
fn runs(context: &Context<'_>, host: &Kernel) -> Result<(), String> {
    let prepare = || -> Result<File> {
        let (mut tree, quire) = tree(context)?;
        let source = context.places.root.join("programs/processor.c");
        tree.host_file("/processor", &programs::compile(context.places, &source)?)?;
        let run = format!("{quire} run -v --cpus 2 --memory 256M -- /processor");
        let script = format!("{run} && echo first && QUIRE_CPU=qemu64 {run} && echo second");
        host.image(tree, &order(vec!["/bin/sh".into(), "-c".into(), script]))
    };
    let image = prepare().map_err(|e| e.message)?;
    let shape = Shape { cpus: 2, memory: MEMORY, cpu: Some(HOST_CPU.to_owned()), ..Shape::default() };
    let ended = host.kept(&image, &shape, LIMIT).map_err(|e| e.message)?;
    let [said, log] = [&ended.output, &ended.errors].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let wrong = |what: &str| {
        let outer = crate::run::last_lines(&ended.report.log_tail, 8);
        Err(format!("{what}; {:?}; it said:\n{said}{log}the host's log ends:\n{outer}", ended.report.outcome))
    };
    if ended.report.outcome != Outcome::Exit(0) {
        return wrong("the runs did not succeed");
    }
    // The emulator determines the width of vectors. Before QEMU 8 it loses the features that a nested guest may use.
    let [first, second] = [said.lines().next(), said.lines().nth(2)];
    if !first.is_some_and(|l| l.starts_with("vectors ")) || second != Some("vectors 16 bytes") {
        return wrong("the processor's vector width differs from the announced one");
    }
    let narrow = first == Some("vectors 16 bytes");
    if narrow != log.contains("XSAVE and AVX are not used: ") {
        return wrong("vectors are narrow, and the log has no reason");
    }
    for part in ["accelerator KVM", ": 2 CPUs", "x2APIC"] {
        if log.matches(part).count() != 2 {
            return wrong(&format!("{part:?} was expected twice in the log"));
        }
    }
    Ok(())
}
