//! The choice between hardware virtualisation and emulation. A trial guest that is really started decides.

use std::{
    fmt, fs,
    io::{Seek, Write},
    os::fd::AsRawFd,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant, UNIX_EPOCH},
};

use super::{probe_guest, qemu};
use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
};

/// The accelerator that executes the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// The host's processor executes them, through KVM.
    Kvm,
    /// QEMU's translator executes them.
    Tcg,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "KVM",
            Self::Tcg => "TCG (emulation)",
        })
    }
}

/// The reason why KVM is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoKvm {
    /// The device does not exist.
    #[error("there is no /dev/kvm")]
    NoDevice,
    /// The device exists, but this user may not open it.
    #[error("/dev/kvm cannot be opened ({0}); join the group kvm (usermod -aG kvm USER, then log in again)")]
    NoAccess(String),
    /// The trial guest neither exited nor died within the time limit.
    #[error("a trial guest hung")]
    Hung,
    /// QEMU ended, but not by the guest's exit.
    #[error("a trial guest died ({0})")]
    Died(String),
}

/// The time limit of the trial guest, which needs about a tenth of a second.
const PATIENCE: Duration = Duration::from_secs(4);

/// Chooses the accelerator. Returns it with the reason. `$QUIRE_ACCEL` (`kvm` or `tcg`) overrides the choice. The
/// result of a trial is kept until the host's next reboot.
pub fn choose(places: &Places, qemu: &Path) -> Result<(Accelerator, String)> {
    if let Some(forced) = forced()? {
        return Ok((forced, "$QUIRE_ACCEL says so".into()));
    }
    if let Err(no) = device(Path::new("/dev/kvm")) {
        return Ok((Accelerator::Tcg, no.to_string()));
    }
    if let Some((key, found)) = fs::read_to_string(trial_file(places)).ok().as_deref().and_then(|t| t.split_once('\n'))
        && key == trial_key(qemu)
    {
        let accelerator = if found.is_empty() { Accelerator::Kvm } else { Accelerator::Tcg };
        return Ok((accelerator, if found.is_empty() { "a trial guest ran".into() } else { found.into() }));
    }
    Ok(match find_out(places, qemu) {
        Ok(()) => (Accelerator::Kvm, "a trial guest ran".into()),
        Err(no) => (Accelerator::Tcg, no.to_string()),
    })
}

/// The accelerator that `$QUIRE_ACCEL` names, if any.
pub fn forced() -> Result<Option<Accelerator>> {
    match std::env::var("QUIRE_ACCEL").as_deref() {
        Ok("kvm") => Ok(Some(Accelerator::Kvm)),
        Ok("tcg") => Ok(Some(Accelerator::Tcg)),
        Ok("") | Err(_) => Ok(None),
        Ok(other) => {
            Err(Failure::usage(format_args!("QUIRE_ACCEL={other} is not valid; set it to kvm or tcg, or unset it")))
        }
    }
}

/// Runs a trial of KVM now, and keeps the result for [`choose`].
pub fn find_out(places: &Places, qemu: &Path) -> Result<(), NoKvm> {
    device(Path::new("/dev/kvm"))?;
    let found = trial(qemu, PATIENCE);
    let _ = fs::create_dir_all(&places.cache);
    let said = found.as_ref().err().map(NoKvm::to_string).unwrap_or_default();
    let _ = fs::write(trial_file(places), format!("{}\n{said}", trial_key(qemu)));
    found
}

/// The file with the last trial's result.
fn trial_file(places: &Places) -> std::path::PathBuf {
    places.cache.join("kvm-trial")
}

/// The key of a trial's result: it identifies this boot of the host, and this QEMU.
fn trial_key(qemu: &Path) -> String {
    format!(
        "{} {} {}",
        fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim(),
        qemu.display(),
        fs::metadata(qemu)
            .and_then(|m| m.modified())
            .map_or(0, |t| { t.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()) })
    )
}

fn device(path: &Path) -> Result<(), NoKvm> {
    match fs::OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(NoKvm::NoDevice),
        Err(e) => Err(NoKvm::NoAccess(e.to_string())),
    }
}

/// Starts the trial guest under KVM and checks that it exits in time. No process is left afterwards.
pub fn trial(qemu: &Path, patience: Duration) -> Result<(), NoKvm> {
    let died = |e: &dyn fmt::Display| NoKvm::Died(e.to_string());
    let mut kernel = qemu::memory_file("quire-trial").map_err(|e| died(&e))?;
    kernel.write_all(&probe_guest::elf()).and_then(|()| kernel.rewind()).map_err(|e| died(&e))?;
    let fd = kernel.as_raw_fd();
    let mut command = Command::new(qemu);
    command
        .args(["-M", "q35", "-accel", "kvm", "-cpu", "max", "-m", "64", "-nodefaults", "-no-user-config"])
        .args(["-display", "none", "-no-reboot", "-device", "isa-debug-exit,iobase=0xf4,iosize=4", "-kernel"])
        .arg(format!("/proc/self/fd/{fd}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    qemu::inherit(&mut command, vec![fd]);
    let mut child = command.spawn().map_err(|e| died(&e))?;
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.code() == Some(qemu::ORDERLY) => return Ok(()),
            Ok(Some(status)) => return Err(died(&status)),
            Ok(None) if start.elapsed() < patience => thread::sleep(Duration::from_millis(10)),
            Ok(None) => {
                qemu::kill_group(&mut child);
                return Err(NoKvm::Hung);
            }
            Err(e) => return Err(died(&e)),
        }
    }
}

/// The path of QEMU: `$QUIRE_QEMU`, or else the QEMU on `PATH`.
pub fn find_qemu() -> Result<std::path::PathBuf> {
    if let Some(given) = std::env::var_os("QUIRE_QEMU") {
        let path = std::path::PathBuf::from(given);
        fs::metadata(&path).doing(|| format!("QUIRE_QEMU={}", path.display()))?;
        return Ok(path);
    }
    std::env::var_os("PATH")
        .and_then(|path| std::env::split_paths(&path).map(|d| d.join(qemu::NAME)).find(|p| p.is_file()))
        .ok_or_else(|| {
            Failure::usage(format_args!(
                "{} is not installed: run ./quire setup, or name one in $QUIRE_QEMU",
                qemu::NAME
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A time limit that no guest of these tests reaches, even on a busy machine.
    const LONG: Duration = Duration::from_secs(60);

    /// Makes a stand-in for QEMU that runs `script`. Another process writes the file. Otherwise a test that forks at
    /// the same time would inherit this process's open file. A file that is open for writing cannot be executed.
    fn fake(directory: &Path, script: &str) -> std::path::PathBuf {
        let path = directory.join("fake-qemu");
        let write = r#"printf '#!/bin/sh\n%s\n' "$1" >"$2" && chmod 755 "$2""#;
        let written = Command::new("/bin/sh").args(["-c", write, "sh", script]).arg(&path).status().unwrap();
        assert!(written.success(), "{written}");
        path
    }

    #[test]
    fn a_guest_that_hangs_is_given_up_and_killed_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let pid_file = dir.path().join("pid");
        let qemu = fake(dir.path(), &format!("sleep 1000 & echo $! >{}; wait", pid_file.display()));
        // On a busy machine, the stand-in may be killed before it has written its child's number. Then a longer limit
        // is tried.
        let number = [400, 4_000, 40_000].into_iter().find_map(|patience| {
            assert_eq!(trial(&qemu, Duration::from_millis(patience)), Err(NoKvm::Hung));
            fs::read_to_string(&pid_file).ok().filter(|number| number.ends_with('\n'))
        });
        let stat = format!("/proc/{}/stat", number.expect("the guest did not start").trim());
        // The end of a killed process takes a moment. The loop would not end if the process were left running.
        let runs = || fs::read_to_string(&stat).is_ok_and(|state| !state.is_empty() && !state.contains(") Z"));
        while runs() {
            thread::yield_now();
        }
    }

    #[test]
    fn a_guest_that_dies_means_emulation() {
        let dir = tempfile::tempdir().unwrap();
        for script in ["exit 1", "kill -9 $$", "exit 0", "exit 35"] {
            let qemu = fake(dir.path(), script);
            assert!(matches!(trial(&qemu, LONG), Err(NoKvm::Died(_))), "{script}");
        }
    }

    #[test]
    fn a_guest_that_ends_as_it_should_means_kvm() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(trial(&fake(dir.path(), "exit 33"), LONG), Ok(()));
    }

    #[test]
    fn no_device_is_not_tried() {
        assert_eq!(device(Path::new("/no/such/device")), Err(NoKvm::NoDevice));
    }
}
