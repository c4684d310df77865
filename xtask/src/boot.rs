//! Booting a kernel with its image on this machine's emulator.

use std::{
    ffi::OsString,
    fs::File,
    os::fd::RawFd,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    build,
    failure::Result,
    image::{order::Order, tree::Tree},
    machine::{
        accel::{self, Accelerator},
        outcome::Outcome,
        qemu::{self, Guest, Launch, System},
        relay::{self, Kept},
    },
    places::Places,
    programs,
    setup::linux,
};

/// The kernels that can be booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// Ours.
    Quire,
    /// Debian's.
    Linux,
}

/// Words for Linux's command line. They remove things that would slow it unfairly, or keep it from booting on a busy
/// host (see docs/lab.md). With `oops=panic panic=-1` it ends at once if the emulator trips it up ([`untripped`]),
/// in any thread.
const FAIR: &str = "console=ttyS0 oops=panic panic=-1 rdinit=/.quire/init mitigations=off audit=0 apparmor=0 init_on_alloc=0 cryptomgr.notests \
                    transparent_hugepage=never no_timer_check";

/// The most boots of a Linux that the emulator trips up.
const BOOTS: u32 = 3;
/// The message in Linux's log then. QEMU's translator before 8.1, with several CPUs, sometimes runs an instruction that
/// another CPU has just replaced. Linux replaces its own code by a breakpoint first, then by the rest. So a CPU meets a
/// breakpoint that is already gone. Quire does not patch itself.
const TRIPPED: &str = "int3: 0000 [#1]";

/// The processor of [`Kernel::host`].
pub const HOST_CPU: &str = "max,-la57,+svm";

/// A kernel, ready for images.
#[derive(Debug, Clone)]
pub struct Kernel {
    on: On,
    file: PathBuf,
    /// The kernel's name in messages.
    pub name: String,
    qemu: PathBuf,
    accelerator: Accelerator,
    /// The reason for the accelerator.
    pub why: String,
    init: Option<PathBuf>,
    /// Modules that Linux loads first.
    modules: Vec<PathBuf>,
}

/// The size and manner of one machine.
#[derive(Debug, Clone, Default)]
pub struct Shape {
    /// 1 to 64.
    pub cpus: u32,
    /// In MiB.
    pub memory: u64,
    /// Count instructions; makes it one CPU.
    pub count: bool,
    /// Uses the translator in any case, whose plugins see every access; the CPUs take turns on one thread.
    pub translated: bool,
    /// On the q35 board: Quire has no ports there.
    pub q35: bool,
    /// The guest's processor, in QEMU's words; else `$QUIRE_CPU`, else everything that there is.
    pub cpu: Option<String>,
    /// Makes the kernel's log more verbose.
    pub verbose: bool,
    /// More words for the kernel's command line.
    pub append: String,
    /// More words for QEMU.
    pub extra: Vec<OsString>,
    /// Descriptors that `extra` mentions.
    pub inherit: Vec<RawFd>,
}

impl Kernel {
    /// Finds QEMU and the accelerator; builds or fetches the kernel.
    pub fn ready(places: &Places, on: On) -> Result<Self> {
        Self::with(places, on, || build::kernel(places))
    }

    /// The same with a kernel of ours that `quire` chooses.
    pub fn with(places: &Places, on: On, quire: impl FnOnce() -> Result<PathBuf>) -> Result<Self> {
        let qemu = accel::find_qemu()?;
        let (file, name, init) = match on {
            On::Quire => (quire()?, "Quire".to_owned(), None),
            On::Linux => {
                let linux = linux::ensure(places)?;
                let init = programs::compile(places, &places.root.join("xtask/guest/linux_init.c"))?;
                (linux.kernel, format!("Linux {}", linux.release), Some(init))
            }
        };
        let (accelerator, why) = accel::choose(places, &qemu)?;
        Ok(Self { on, file, name, qemu, accelerator, why, init, modules: Vec::new() })
    }

    /// A Linux that offers KVM to its programs, in the emulator: on an AMD processor, with [`HOST_CPU`].
    pub fn host(places: &Places) -> Result<Self> {
        let qemu = accel::find_qemu()?;
        let linux::Host { linux, modules } = linux::host(places)?;
        let init = programs::compile(places, &places.root.join("xtask/guest/linux_init.c"))?;
        let (accelerator, why) = (Accelerator::Tcg, "it emulates a processor with virtualisation".to_owned());
        let name = format!("Linux {}", linux.release);
        Ok(Self { on: On::Linux, file: linux.kernel, name, qemu, accelerator, why, init: Some(init), modules })
    }

    /// The same under the translator in any case, which emulates any processor.
    pub fn emulated(self) -> Self {
        Self { accelerator: Accelerator::Tcg, why: "processors of all kinds are emulated".to_owned(), ..self }
    }

    /// The same, by another QEMU's translator.
    pub fn emulated_by(self, qemu: PathBuf) -> Self {
        Self { qemu, ..self.emulated() }
    }

    /// The accelerator that executes the guest.
    pub fn accelerator(&self) -> Accelerator {
        self.accelerator
    }

    /// The kernel's ELF file or bzImage.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The initial file system for this kernel: the tree, the order, and the kernel's own files.
    pub fn image(&self, mut tree: Tree, order: &Order) -> Result<File> {
        /// First in the archive, so that even an early panic finds it.
        const SYMBOLS: &str = "/.quire/symbols";
        match &self.init {
            None => tree.file(SYMBOLS, 0o400, build::symbols(&self.file)?)?,
            Some(init) => tree.host_file("/.quire/init", init)?,
        }
        for module in &self.modules {
            let name = module.file_name().unwrap_or_default().to_string_lossy();
            tree.host_file(format!("/.quire/modules/{name}"), module)?;
        }
        tree.file("/.quire/run", 0o400, order.encode())?;
        qemu::image_file(|out| tree.write(out, SYMBOLS))
    }

    /// Starts a machine. The calling thread must live as long as the guest.
    pub fn start(&self, image: &File, shape: &Shape) -> Result<Guest> {
        // Only the translator can count.
        let accelerator = if shape.count || shape.translated { Accelerator::Tcg } else { self.accelerator };
        let (system, mut cmdline) = match self.on {
            On::Quire if shape.q35 => (System::QuireQ35, String::new()),
            On::Quire => (System::Quire, String::new()),
            On::Linux => (System::Linux, FAIR.to_owned()),
        };
        match self.on {
            On::Quire if shape.verbose => cmdline.push_str("verbose"),
            On::Linux if !shape.verbose => cmdline.push_str(" quiet"),
            _ => {}
        }
        if shape.count && self.on == On::Linux {
            // With a counted clock the TSC runs at 1 GHz; Linux would calibrate for a long (counted) while.
            cmdline.push_str(" tsc_early_khz=1000000");
        }
        if !shape.append.is_empty() {
            cmdline = format!("{cmdline} {}", shape.append);
        }
        Launch {
            qemu: &self.qemu,
            system,
            cmdline,
            kernel: &self.file,
            image,
            cpus: shape.cpus,
            memory: shape.memory,
            accelerator,
            cpu: shape.cpu.clone().or_else(|| std::env::var("QUIRE_CPU").ok().filter(|c| !c.is_empty())),
            count: shape.count,
            turns: shape.translated,
            extra: shape.extra.clone(),
            inherit: shape.inherit.clone(),
        }
        .start()
    }

    /// Runs a machine without a user, for `limit` at most, and keeps the output of its program. A Linux that the
    /// emulator tripped up is booted anew, with a message.
    pub fn kept(&self, image: &File, shape: &Shape, limit: Duration) -> Result<Kept> {
        let run = || relay::kept(self.start(image, shape)?, limit);
        match self.on {
            On::Quire => run(),
            On::Linux => untripped(run),
        }
    }
}

/// The first run without a trip, or the last allowed one.
fn untripped(mut run: impl FnMut() -> Result<Kept>) -> Result<Kept> {
    for _ in 1..BOOTS {
        let ended = run()?;
        if !tripped(&ended) {
            return Ok(ended);
        }
        eprintln!(
            "quire: the emulator ran an instruction of Linux that was replaced (a fault of QEMU's): booting it again"
        );
    }
    run()
}

/// Whether Linux died of the emulator.
fn tripped(ended: &Kept) -> bool {
    matches!(ended.report.outcome, Outcome::Died(_)) && ended.report.log_tail.contains(TRIPPED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::relay::Report;

    fn ended(outcome: Outcome, log: &str) -> Kept {
        let report = Report { outcome, log_tail: log.to_owned(), ready: None, ready_after: None };
        Kept { report, output: Vec::new(), errors: Vec::new() }
    }

    fn died(log: &str) -> Kept {
        ended(Outcome::of_qemu(Some(0), "exit status: 0", "", log), log)
    }

    /// Linux's own message.
    const INT3: &str = "[    2.532102] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\r\n\
                        [    2.532734] Kernel panic - not syncing: Fatal exception in interrupt\r\n";

    #[test]
    fn a_linux_that_the_emulator_trips_up_is_booted_again_and_not_for_ever() {
        for faults in 0..=BOOTS + 1 {
            let mut boots = 0;
            let last = untripped(|| {
                boots += 1;
                Ok(if boots <= faults { died(INT3) } else { ended(Outcome::Exit(7), "") })
            });
            assert_eq!(boots, (faults + 1).min(BOOTS));
            assert_eq!(last.unwrap().report.outcome == Outcome::Exit(7), faults < BOOTS, "{faults}");
        }
    }

    #[test]
    fn any_other_end_is_the_runs_own() {
        for own in
            [died("Kernel panic - not syncing: Attempted to kill init!"), ended(Outcome::Exit(0), INT3), died("")]
        {
            let mut own = Some(own);
            assert!(untripped(|| Ok(own.take().expect("one boot is enough"))).is_ok());
        }
    }
}
