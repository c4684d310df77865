//! Starts QEMU so that none of its processes can outlive this process: the command line, the inherited descriptors, and
//! the end of QEMU.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read, Seek},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{MemfdFlags, OFlags, fcntl_getfl, fcntl_setfl, memfd_create},
    io::{FdFlags, fcntl_setfd},
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, set_parent_process_death_signal},
    thread::disable_transparent_huge_pages,
};

use super::accel::Accelerator;
use crate::failure::{Doing, Failure, Result};

/// The name of the emulator's program.
pub const NAME: &str = "qemu-system-x86_64";
/// QEMU's exit status after the guest wrote 0x10 to the debug-exit port: an orderly end.
pub const ORDERLY: i32 = 33;
/// QEMU's exit status after the guest wrote 0x11 to the debug-exit port: the kernel panicked.
pub const PANICKED: i32 = 35;
/// QEMU's exit status after the guest wrote 0x12 to the debug-exit port: the kernel cannot run on this machine. The
/// kernel's log gives the reason.
pub const REFUSED: i32 = 37;

/// Arguments for a machine with a counted clock: the seed of RDRAND, and a time of day that advances with the count.
/// With them, a run depends only on the kernel and the image. The date is later than the dates of all files in an
/// image.
const COUNTED: [&str; 4] = ["-seed", "1", "-rtc", "base=2030-01-01T00:00:00,clock=vm"];

/// The limit in MiB above which a guest is *large*: its memory may exceed the host's. The host reserves none of a large
/// guest's memory and provides small pages. With large pages, the first touch of each descriptor, table and bitmap
/// would allocate 2 MiB.
const LARGE: u64 = 2048;

/// The kernel to boot, and its board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// Quire on a microvm board. Its ports are virtio-mmio consoles.
    Quire,
    /// Quire on a q35 board, with a log and no ports.
    QuireQ35,
    /// Debian's Linux on a q35 board. Its ports are on one virtio-serial device.
    Linux,
}

/// All inputs of the command line.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The emulator.
    pub qemu: &'a Path,
    /// The kernel to boot, and its board.
    pub system: System,
    /// Words for the kernel's command line.
    pub cmdline: String,
    /// The kernel's file.
    pub kernel: &'a Path,
    /// The initial file system.
    pub image: &'a File,
    /// The number of CPUs, 1 to 64.
    pub cpus: u32,
    /// The memory in MiB.
    pub memory: u64,
    /// The accelerator that executes the guest's instructions.
    pub accelerator: Accelerator,
    /// The guest's processor in QEMU's words. `None` stands for all features that the accelerator supports.
    pub cpu: Option<String>,
    /// Whether to count instructions instead of running as fast as possible. The clock is then the count, and random
    /// numbers have a fixed seed, so that two runs are equal.
    pub count: bool,
    /// Whether one thread executes all CPUs. A CPU that executes `pause` then yields to the next CPU at once.
    pub turns: bool,
    /// Further arguments for QEMU.
    pub extra: Vec<OsString>,
    /// The descriptors that `extra` mentions, which QEMU inherits.
    pub inherit: Vec<RawFd>,
}

/// Creates an anonymous file in memory, for a file that QEMU opens by name. A process that inherits the descriptor
/// opens the file as `/proc/self/fd/N`.
pub fn memory_file(name: &str) -> io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

/// Lets the child inherit these descriptors, and kills it when this process ends.
///
/// The kernel sends the death signal when the *thread* that spawned the child ends. So that thread must live as long as
/// the child.
pub fn inherit(command: &mut Command, descriptors: Vec<RawFd>) {
    let parent = std::process::id();
    // SAFETY: the closure runs between fork and exec. It calls only system calls, and neither allocates nor locks.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            if rustix::process::getppid().map(|p| p.as_raw_nonzero().get() as u32) != Some(parent) {
                return Err(io::Error::from(rustix::io::Errno::SRCH)); // the parent is gone already
            }
            for fd in &descriptors {
                // SAFETY: the descriptors are open, because the caller of `inherit` keeps them until after the spawn.
                let fd = rustix::fd::BorrowedFd::borrow_raw(*fd);
                fcntl_setfd(fd, FdFlags::empty())?;
            }
            Ok(())
        });
    }
}

/// Kills a child that leads its own process group, and all processes that the child started.
pub fn kill_group(child: &mut Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// A running machine. Dropping the value ends the machine.
#[derive(Debug)]
pub struct Guest {
    child: Child,
    /// A descriptor that becomes readable when QEMU has ended.
    pub ended: OwnedFd,
    /// The program's standard input and output.
    pub port_a: OwnedFd,
    /// The program's standard error.
    pub port_b: OwnedFd,
    /// The lines of the control protocol.
    pub port_c: OwnedFd,
    /// The kernel's log.
    pub log: OwnedFd,
    complaints: File,
    /// The time when QEMU started.
    pub started: Instant,
}

impl Launch<'_> {
    /// Starts QEMU. The calling thread must live as long as the guest.
    pub fn start(&self) -> Result<Guest> {
        let about = || "cannot start QEMU".to_string();
        let pair = || {
            let (ours, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).doing(about)?;
            fcntl_setfl(&ours, OFlags::NONBLOCK).doing(about)?;
            Ok::<_, Failure>((ours, theirs))
        };
        let (a, b, c, log) = (pair()?, pair()?, pair()?, pair()?);
        let theirs = [&a.1, &b.1, &c.1, &log.1];
        let [fa, fb, fc, fl] = theirs.map(|fd| fd.as_raw_fd());
        let complaints = memory_file("quire-qemu-errors").doing(about)?;
        let mut command = Command::new(self.qemu);
        command
            .args(self.arguments([fa, fb, fc, fl]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(complaints.try_clone().doing(about)?)
            .process_group(0);
        let mut keep = vec![fa, fb, fc, fl, self.image.as_raw_fd()];
        keep.extend(&self.inherit);
        inherit(&mut command, keep);
        if self.is_large() {
            // SAFETY: the closure does one system call, which neither allocates nor locks.
            unsafe { command.pre_exec(|| Ok(disable_transparent_huge_pages(true)?)) };
        }
        let started = Instant::now();
        let child =
            command.spawn().map_err(|e| Failure::usage(format_args!("cannot start {}: {e}", self.qemu.display())))?;
        let pid = Pid::from_child(&child);
        let ended = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(e) => {
                let mut child = child;
                kill_group(&mut child);
                return Err(Failure::usage(format_args!("cannot watch QEMU: {e}")));
            }
        };
        let guest = Guest { child, ended, port_a: a.0, port_b: b.0, port_c: c.0, log: log.0, complaints, started };
        make_blocking(&theirs.map(AsFd::as_fd), &guest.ended);
        Ok(guest)
    }

    fn is_large(&self) -> bool {
        self.memory > LARGE
    }

    fn arguments(&self, [a, b, c, log]: [RawFd; 4]) -> Vec<OsString> {
        let mut out: Vec<String> = Vec::new();
        let mut add = |words: &[&str]| out.extend(words.iter().map(|w| (*w).to_owned()));
        let board = match self.system {
            System::Quire => "microvm,acpi=on,pit=on,pic=on,rtc=on,isa-serial=on,auto-kernel-cmdline=on",
            System::QuireQ35 | System::Linux => "q35",
        };
        // A caller that divides memory into NUMA domains passes the memory of each domain in `extra`.
        if self.is_large() && !self.extra.iter().any(|word| word == "-numa") {
            add(&["-object", &format!("memory-backend-ram,id=ram,size={}M,reserve=off", self.memory)]);
            add(&["-M", &format!("{board},memory-backend=ram")]);
        } else {
            add(&["-M", board]);
        }
        if self.system == System::Quire {
            add(&["-global", "virtio-mmio.force-legacy=false"]);
        }
        match self.accelerator {
            Accelerator::Kvm => add(&["-accel", "kvm"]),
            Accelerator::Tcg if self.count => add(&["-accel", "tcg,thread=single", "-icount", "shift=3,sleep=off"]),
            Accelerator::Tcg if self.turns => add(&["-accel", "tcg,thread=single"]),
            Accelerator::Tcg => add(&["-accel", "tcg,thread=multi"]),
        }
        if self.count {
            add(&COUNTED);
        }
        // ERMS and FSRM are hidden under TCG. With them, Linux and other kernels would clear pages by `rep stosb`,
        // which TCG executes byte by byte.
        add(&[
            "-cpu",
            self.cpu.as_deref().unwrap_or(match self.accelerator {
                Accelerator::Kvm => "max,-la57",
                Accelerator::Tcg => "max,-la57,-erms,-fsrm",
            }),
        ]);
        add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        add(&["-smp", &self.cpus.to_string(), "-m", &format!("{}M", self.memory)]);
        add(&["-kernel", &self.kernel.to_string_lossy()]);
        add(&["-initrd", &format!("/proc/self/fd/{}", self.image.as_raw_fd())]);
        for (name, fd) in [("out", a), ("err", b), ("control", c), ("log", log)] {
            add(&["-chardev", &format!("socket,id={name},fd={fd}")]);
        }
        add(&["-serial", "chardev:log", "-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
        match &self.system {
            // Quire distinguishes the ports by their order.
            System::Quire => {
                for name in ["out", "err", "control"] {
                    add(&["-device", &format!("virtio-serial-device,max_ports=1,id=port-{name}")]);
                    add(&["-device", &format!("virtconsole,chardev={name},bus=port-{name}.0")]);
                }
            }
            System::QuireQ35 => {}
            System::Linux => {
                add(&["-device", "virtio-serial-pci,max_ports=4"]);
                for (nr, name) in [(1, "out"), (2, "err"), (3, "control")] {
                    add(&["-device", &format!("virtserialport,nr={nr},chardev={name},name=quire.{name}")]);
                }
            }
        }
        if !self.cmdline.is_empty() {
            add(&["-append", &self.cmdline]);
        }
        let mut out: Vec<OsString> = out.into_iter().map(OsString::from).collect();
        out.extend(self.extra.iter().cloned());
        out
    }
}

/// Makes QEMU's writes to its ports block while this process reads slowly, so that no output is lost.
///
/// A virtio *console* in QEMU drops output that its character device refuses. QEMU sets `O_NONBLOCK` on each socket, so
/// a full socket refuses output. QEMU's descriptor and this process's copy of it share that flag. So this function
/// waits until QEMU has set the flag, which is before any guest runs, and then clears it. The guest then waits as a
/// process waits on a full pipe.
fn make_blocking(theirs: &[rustix::fd::BorrowedFd<'_>], ended: &OwnedFd) {
    let start = Instant::now();
    let mut waiting: Vec<_> = theirs.to_vec();
    while !waiting.is_empty() && start.elapsed() < Duration::from_secs(10) {
        waiting.retain(|fd| match fcntl_getfl(fd) {
            Ok(flags) if flags.contains(OFlags::NONBLOCK) => fcntl_setfl(fd, flags - OFlags::NONBLOCK).is_err(),
            Ok(_) => true,
            Err(_) => false,
        });
        if readable(ended) {
            return;
        }
        thread::sleep(Duration::from_micros(500));
    }
}

fn readable(fd: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)).is_ok_and(|n| n > 0)
}

impl Guest {
    /// QEMU's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills QEMU now.
    pub fn kill(&mut self) {
        kill_group(&mut self.child);
    }

    /// Waits for QEMU's end. Returns its exit status.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// The last line of QEMU's error output that is no warning.
    pub fn complaints(&mut self) -> String {
        let mut text = String::new();
        let _ = self.complaints.rewind();
        let _ = self.complaints.by_ref().take(1 << 16).read_to_string(&mut text);
        text.lines().rfind(|l| !l.contains("warning")).unwrap_or_default().to_owned()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.kill();
        }
    }
}

/// Opens a listening TCP socket on a free local port, for the debugger. QEMU inherits the socket, so no other process
/// can take the port. Returns the socket and the port.
pub fn local_listener() -> Result<(OwnedFd, u16)> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").doing(|| "cannot listen for the debugger".to_string())?;
    let port = listener.local_addr().doing(|| "cannot listen for the debugger".to_string())?.port();
    Ok((OwnedFd::from(listener), port))
}

/// Writes an image into a file in memory, before QEMU starts.
pub fn image_file(write: impl FnOnce(&mut io::BufWriter<File>) -> Result<()>) -> Result<File> {
    let about = || "cannot keep the initial file system in memory".to_string();
    let mut writer = io::BufWriter::with_capacity(1 << 20, memory_file("quire-initramfs").doing(about)?);
    write(&mut writer)?;
    let mut file = writer.into_inner().doing(about)?;
    file.rewind().doing(about)?;
    Ok(file)
}
