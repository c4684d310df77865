//! Boots machines: a kernel with its image, in the emulator of the host.

use std::{
    ffi::OsString,
    fs::File,
    os::fd::RawFd,
    path::{Path, PathBuf},
    sync::OnceLock,
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
        relay::{self, GuestOutput},
    },
    places::Places,
    programs,
    setup::linux,
};

/// The kernels that can be booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// Quire.
    Quire,
    /// Debian's Linux.
    Linux,
}

/// A word of Quire's command line, for a machine with several CPUs and a counted clock, which advances with the
/// executed instructions. The CPUs take turns. Each turn ends after this time of the guest's clock.
pub const TURNS: &str = "tick=4ms";

/// Words for Linux's command line, of three kinds. Some remove costs that Quire does not have. Some let Linux boot on a
/// busy host (see docs/lab.md). And `oops=panic panic=-1` ends Linux at once after a fault of the emulator in any
/// thread (see [`untripped`]).
const FAIR: &str = "console=ttyS0 oops=panic panic=-1 rdinit=/.quire/init mitigations=off audit=0 apparmor=0 \
    init_on_alloc=0 cryptomgr.notests \
                    transparent_hugepage=never no_timer_check";

/// The most boots of a Linux that the emulator breaks.
const BOOTS: u32 = 3;
/// A line of Linux's log, which shows that the emulator broke Linux. With several CPUs, QEMU's translator before 8.1
/// sometimes executes an instruction that another CPU has just replaced. Linux patches its code in two steps: first a
/// breakpoint, then the rest. So a CPU may trap on a breakpoint that is already removed. Quire does not patch its own
/// code.
const TRIPPED: &str = "int3: 0000 [#1]";

/// The processor of the machine that [`Kernel::host`] boots.
pub const HOST_CPU: &str = "max,-la57,+svm";

/// A kernel, ready to boot with images.
#[derive(Debug, Clone)]
pub struct Kernel {
    on: On,
    file: PathBuf,
    /// The kernel's name in messages.
    pub name: String,
    qemu: PathBuf,
    accelerator: Accelerator,
    /// The reason why that accelerator was chosen.
    pub why: String,
    init: Option<PathBuf>,
    /// The modules that Linux loads first.
    modules: Vec<PathBuf>,
    /// The symbols of Quire's functions. They are read once, for the first image.
    symbols: OnceLock<Result<String>>,
}

/// The size and mode of one machine.
#[derive(Debug, Clone, Default)]
pub struct Shape {
    /// The number of CPUs, 1 to 64.
    pub cpus: u32,
    /// The memory in MiB.
    pub memory: u64,
    /// Whether to count instructions. Several CPUs then take turns, each up to the next timer of the machine. A CPU of
    /// Quire that runs a thread sets a timer only if `append` has the word `tick`.
    pub count: bool,
    /// Whether to use the translator (TCG), whose plugins see every memory access. The CPUs then take turns on one
    /// thread.
    pub translated: bool,
    /// Whether to use the q35 board, on which Quire has no ports.
    pub q35: bool,
    /// The guest's processor in QEMU's words. The default is `$QUIRE_CPU`, or else all features that the accelerator
    /// supports.
    pub cpu: Option<String>,
    /// Whether the kernel logs more.
    pub verbose: bool,
    /// Further words for the command line of either kernel.
    pub append: String,
    /// Further arguments for QEMU.
    pub extra: Vec<OsString>,
    /// The descriptors that `extra` mentions, which QEMU inherits.
    pub inherit: Vec<RawFd>,
}

impl Kernel {
    /// Finds QEMU and the accelerator, and builds or fetches the kernel.
    pub fn ready(places: &Places, on: On) -> Result<Self> {
        Self::with(places, on, || build::kernel(places))
    }

    /// As [`Self::ready`], but the function `quire` builds Quire's kernel.
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
        Ok(Self { on, file, name, qemu, accelerator, why, init, modules: Vec::new(), symbols: OnceLock::new() })
    }

    /// A Linux that offers KVM to its programs. It runs in the emulator, on an emulated AMD processor ([`HOST_CPU`]).
    pub fn host(places: &Places) -> Result<Self> {
        let qemu = accel::find_qemu()?;
        let linux::Host { linux, modules } = linux::host(places)?;
        let init = programs::compile(places, &places.root.join("xtask/guest/linux_init.c"))?;
        let (accelerator, why) = (Accelerator::Tcg, "it emulates a processor that has virtualisation".to_owned());
        let name = format!("Linux {}", linux.release);
        Ok(Self {
            on: On::Linux,
            file: linux.kernel,
            name,
            qemu,
            accelerator,
            why,
            init: Some(init),
            modules,
            symbols: OnceLock::new(),
        })
    }

    /// Returns this kernel, but run by the translator (TCG), which can emulate any processor.
    pub fn emulated(self) -> Self {
        Self { accelerator: Accelerator::Tcg, why: "the emulator runs all processor models".to_owned(), ..self }
    }

    /// Returns this kernel, but run by the translator of another QEMU.
    pub fn emulated_by(self, qemu: PathBuf) -> Self {
        Self { qemu, ..self.emulated() }
    }

    /// The accelerator that executes the guest.
    pub fn accelerator(&self) -> Accelerator {
        self.accelerator
    }

    /// The path of the kernel's ELF file or bzImage.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The initial file system for this kernel: the tree, the file that names the program to run ([`Order`]), and the
    /// kernel's own files.
    pub fn image(&self, mut tree: Tree, order: &Order) -> Result<File> {
        /// This file is the first in the archive, so that even an early panic finds the symbols.
        const SYMBOLS: &str = "/.quire/symbols";
        match &self.init {
            None => tree.file(SYMBOLS, 0o400, self.symbols.get_or_init(|| build::symbols(&self.file)).clone()?)?,
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
        // Only the translator can count instructions.
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
            // With a counted clock, the TSC runs at 1 GHz. Without this word, Linux would calibrate the TSC, which
            // takes many counted instructions.
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

    /// Runs a machine without user input, for `limit` at most, and keeps the program's output. If the emulator broke
    /// Linux, this function prints a message and boots Linux again.
    pub fn kept(&self, image: &File, shape: &Shape, limit: Duration) -> Result<GuestOutput> {
        let run = || relay::kept(self.start(image, shape)?, limit);
        match self.on {
            On::Quire => run(),
            On::Linux => untripped(run),
        }
    }
}

/// Repeats `run` until the emulator does not break Linux, at most [`BOOTS`] times. Returns the last result.
fn untripped(mut run: impl FnMut() -> Result<GuestOutput>) -> Result<GuestOutput> {
    for _ in 1..BOOTS {
        let ended = run()?;
        if !tripped(&ended) {
            return Ok(ended);
        }
        eprintln!(
            "quire: QEMU executed a stale instruction that Linux had patched (a known bug of QEMU); Linux boots again"
        );
    }
    run()
}

/// Whether the emulator broke Linux.
fn tripped(ended: &GuestOutput) -> bool {
    matches!(ended.report.outcome, Outcome::Died(_)) && ended.report.log_tail.contains(TRIPPED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::relay::Report;

    fn ended(outcome: Outcome, log: &str) -> GuestOutput {
        let report = Report { outcome, log_tail: log.to_owned(), ready: None, ready_after: None, results: None };
        GuestOutput { report, output: Vec::new(), errors: Vec::new() }
    }

    fn died(log: &str) -> GuestOutput {
        ended(Outcome::of_qemu(Some(0), "exit status: 0", "", log), log)
    }

    /// The lines that Linux logs after the emulator broke it.
    const INT3: &str = "[    2.532102] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\r\n\
                        [    2.532734] Kernel panic - not syncing: Fatal exception in interrupt\r\n";

    #[test]
    fn a_linux_boot_that_the_emulator_breaks_has_bounded_retries() {
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
