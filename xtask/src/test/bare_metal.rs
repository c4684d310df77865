//! Checks that the smallest kernel with the memory core (`examples/bare-metal`) builds as an embedder would build it,
//! and boots.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{Context, verdict::Check};
use crate::{
    failure::{Doing, Failure, Result},
    machine::{accel, qemu},
    setup::toolchain::{KERNEL_TARGET, Toolchain},
};

const NAME: &str = "embed/a kernel of three hundred lines boots";
/// QEMU's exit status after a good run. For a value n, its debug exit device makes the status 2 n + 1.
const GOOD: i32 = 33;
/// The output that the kernel must have printed before it ends.
const SAID: &str = "the parent sees 8, the child 7";
/// The time limit. The kernel needs a second, and less on an idle machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The name of the stage's only check.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(vec![NAME.to_owned()])
}

/// Builds the kernel and boots it.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if context.names_another("embed") || !context.selects(NAME) {
        return Ok(());
    }
    let kernel = build(context)?;
    let (said, status) = boot(context, &kernel)?;
    done(if status == Some(GOOD) && said.contains(SAID) {
        Check::passed(NAME)
    } else {
        Check::failed(
            NAME,
            format!("QEMU ended with {status:?}, {GOOD} was expected; the kernel said:\n{}", said.trim()),
        )
    });
    Ok(())
}

fn build(context: &Context<'_>) -> Result<PathBuf> {
    let target = context.places.target.join("bare-metal");
    let mut cargo = Toolchain::for_kernel(context.places)?.cargo(context.places, "build");
    cargo.args(["--locked", "--manifest-path", "examples/bare-metal/Cargo.toml", "--target", KERNEL_TARGET]);
    cargo
        .arg("--target-dir")
        .arg(&target)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(context.log("bare-metal-build")?);
    if !cargo.status().doing(|| "cannot run cargo".to_string())?.success() {
        let log = context.log_path("bare-metal-build");
        return Err(Failure::usage(format_args!("examples/bare-metal did not build: see {}", log.display())));
    }
    Ok(target.join(KERNEL_TARGET).join("debug/quire-bare-metal"))
}

/// Boots the kernel. Returns its output on the serial port, and QEMU's status. The status is `None` if QEMU had to be
/// stopped.
fn boot(context: &Context<'_>, kernel: &Path) -> Result<(String, Option<i32>)> {
    use std::os::unix::process::CommandExt;
    let about = || "cannot run QEMU".to_string();
    let mut command = Command::new(accel::find_qemu()?);
    command.args(["-M", "microvm,isa-serial=on", "-accel", "tcg", "-cpu", "max,-la57", "-m", "64M", "-nodefaults"]);
    command.args(["-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"]);
    command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4", "-kernel"]).arg(kernel);
    command.stdin(Stdio::null()).stdout(context.log("bare-metal")?).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().doing(about)?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().doing(about)? {
            break status.code();
        }
        if start.elapsed() > LIMIT {
            qemu::kill_group(&mut child);
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let said = std::fs::read(context.log_path("bare-metal")).doing(about)?;
    Ok((String::from_utf8_lossy(&said).into_owned(), status))
}
