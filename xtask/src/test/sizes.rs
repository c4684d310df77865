//! Boots machines from the smallest to the largest, each with a program, and checks both ends of their memory.
//!
//! A large guest has more memory than this host: the host allocates a page for it only at a touch. So QEMU's peak
//! memory shows how much memory a kernel touches only because its machine is large.

use std::{
    fs,
    os::fd::AsFd,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use super::{Context, verdict::Check};
use crate::{
    boot::{Kernel, On, Shape},
    failure::Result,
    image::{order::Order, root},
    machine::{
        outcome::Outcome,
        qemu,
        relay::{self, Report},
    },
};

const GIB: u64 = 1024;

/// A machine, and its limit of memory.
struct Size {
    /// The machine's memory in MiB.
    memory: u64,
    cpus: u32,
    /// The most MiB that QEMU may use at its peak, if there is a limit.
    resident: Option<u64>,
}

const fn size(memory: u64, cpus: u32) -> Size {
    Size { memory, cpus, resident: None }
}

/// The machines: each size of memory, each number of CPUs twice, and the four pairs of the extreme sizes and numbers.
const SIZES: [Size; 10] = [
    size(64, 1),
    size(64, 64),
    size(2100, 2),
    size(3 * GIB, 8),
    size(4 * GIB, 2),
    size(8 * GIB, 8),
    size(16 * GIB, 2),
    Size { resident: Some(300), ..size(64 * GIB, 1) },
    Size { resident: Some(1024), ..size(512 * GIB, 1) },
    size(512 * GIB, 64),
];

/// The limit of guest time from the kernel's first instruction to the program's first. Guest time counts instructions
/// of one CPU, at 8 ns each.
const BOOT: Duration = Duration::from_secs(1);
/// This limit only stops a hanging machine.
const LIMIT: Duration = Duration::from_secs(240);
/// The KiB that the kernel's image and its symbol table may take. In addition, boot may take 7 % of memory.
const OF_THE_IMAGE: u64 = 3072;
/// The KiB that boot may take for each CPU: its stacks and its part of per-CPU data.
const OF_A_CPU: u64 = 96;
/// The bytes that boot may have taken at the end of a range of RAM.
const TAKEN_AT_THE_END: u64 = 32 << 20;

const DOMAINS: &str = "sizes/5 GiB in two memory domains, a hole below 4 GiB, 4 CPUs";

impl Size {
    fn name(&self) -> String {
        let memory = if self.memory.is_multiple_of(GIB) {
            format!("{} GiB", self.memory / GIB)
        } else {
            format!("{} MiB", self.memory)
        };
        format!("sizes/{memory}, {} CPU{}", self.cpus, if self.cpus == 1 { "" } else { "s" })
    }
}

/// The checks' names.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(SIZES.iter().map(Size::name).chain([DOMAINS.to_owned()]).collect())
}

/// Boots the selected machines, one after the other.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    let selected: Vec<_> = SIZES.iter().filter(|size| context.selects(&size.name())).collect();
    if selected.is_empty() && !context.selects(DOMAINS) {
        return Ok(());
    }
    let kernel = Kernel::with(context.places, On::Quire, || context.kernel())?;
    for size in selected {
        done(Check::of(size.name(), size.boots(context, &kernel)));
    }
    if context.selects(DOMAINS) {
        done(Check::of(DOMAINS, domains(context, &kernel)));
    }
    Ok(())
}

/// The result of a machine's run.
struct Ended {
    report: Report,
    output: String,
    log: String,
    /// The peak memory of QEMU in MiB.
    resident: u64,
}

impl Ended {
    fn wrong(&self, what: impl std::fmt::Display) -> String {
        format!("{what}; {:?}; the log ends:\n{}", self.report.outcome, crate::run::last_lines(&self.log, 12))
    }

    /// Returns each range of RAM in `memtest`'s output: start, end, the lowest and the highest frame that it tested.
    fn ranges(&self) -> Vec<[u64; 4]> {
        let number = |word: Option<&str>| u64::from_str_radix(word?.strip_prefix("0x")?, 16).ok();
        let range = |line: &str| {
            let (_, rest) = line.split_once("memtest: ")?;
            let mut words = rest.split_whitespace().filter(|w| w.starts_with("0x"));
            Some([number(words.next())?, number(words.next())?, number(words.next())?, number(words.next())?])
        };
        self.log.lines().filter_map(range).collect()
    }

    /// Checks that both ends of all ranges were tested, and that the highest end is at `above` bytes or higher.
    fn ends_are_seen(&self, above: u64) -> Result<(), String> {
        let ranges = self.ranges();
        if !self.log.contains("frames hold the written words") || ranges.is_empty() {
            return Err(self.wrong("the program did not check the memory"));
        }
        if let Some([start, end, _, last]) = ranges.iter().find(|[_, end, _, last]| end - last > TAKEN_AT_THE_END) {
            return Err(self.wrong(format!("of {start:#x} to {end:#x} the last free frame is {last:#x}")));
        }
        match ranges.iter().any(|[_, end, ..]| *end > above) {
            true => Ok(()),
            false => Err(self.wrong(format!("no memory above {above:#x}"))),
        }
    }
}

/// Boots a machine whose program is `script`, and waits for its end.
fn boot(context: &Context<'_>, kernel: &Kernel, name: &str, shape: &Shape, script: &str) -> Result<Ended, String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let args = ["/bin/busybox", "sh", "-c", script];
    let order = Order {
        args: args.map(Into::into).to_vec(),
        env: vec!["PATH=/bin".into()],
        cwd: "/".into(),
        ..Order::default()
    };
    let image = root::tree().and_then(|tree| kernel.image(tree, &order)).map_err(|e| text(&e))?;
    let mut output = qemu::memory_file("output").map_err(|e| text(&e))?;
    let log = context.log(name).map_err(|e| text(&e))?;
    let guest = kernel.start(&image, shape).map_err(|e| text(&e))?;
    let watch = Watch::start(guest.id());
    let report = relay::unattended(guest, [output.as_fd(); 2], Some(log), LIMIT).map_err(|e| text(&e))?;
    let resident = watch.finish();
    let output = relay::content(&mut output).map_err(|e| text(&e))?;
    let log = fs::read(context.log_path(name)).map_err(|e| text(&e))?;
    let figures = format!("QEMU held {resident} MiB; first program after {:?} ns\n", report.ready);
    fs::write(context.log_path(&format!("{name} figures")), figures).map_err(|e| text(&e))?;
    let lossy = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Ended { report, output: lossy(output), log: lossy(log), resident })
}

impl Size {
    fn boots(&self, context: &Context<'_>, kernel: &Kernel) -> Result<(), String> {
        let alone = self.cpus == 1;
        let shape = Shape {
            cpus: self.cpus,
            memory: self.memory,
            count: alone,
            append: "memtest".to_owned(),
            ..Shape::default()
        };
        // The script sleeps at its end, so that the thread [`Watch`] samples the running machine at least once.
        let script = "grep MemTotal /proc/meminfo; nproc; sleep 0.3; exit 7";
        let ended = boot(context, kernel, &self.name(), &shape, script)?;
        if ended.report.outcome != Outcome::Exit(7) {
            return Err(ended.wrong("the program did not run"));
        }
        let numbers: Vec<u64> = ended.output.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let least = (self.memory * 1024 - OF_THE_IMAGE) * 93 / 100 - u64::from(self.cpus) * OF_A_CPU;
        match numbers[..] {
            [total, cpus] if total >= least && total <= self.memory * 1024 && cpus == u64::from(self.cpus) => {}
            _ => return Err(ended.wrong(format!("the machine has {:?}", ended.output))),
        }
        // The board has RAM up to 3 GiB, and the rest above 4 GiB.
        ended.ends_are_seen(if self.memory > 3 * GIB { 4 << 30 } else { 0 })?;
        let ready = Duration::from_nanos(ended.report.ready.unwrap_or(u64::MAX));
        if alone && ready > BOOT {
            return Err(ended.wrong(format!("its program began after {ready:?} of guest time")));
        }
        match self.resident {
            Some(most) if ended.resident > most || ended.resident == 0 => {
                Err(ended.wrong(format!("QEMU held {} MiB; at most {most}", ended.resident)))
            }
            _ => Ok(()),
        }
    }
}

/// Boots a machine with two memory domains, on the board that supports them. That board has no port for the program's
/// output.
fn domains(context: &Context<'_>, kernel: &Kernel) -> Result<(), String> {
    let words = "-object memory-backend-ram,id=near,size=1G,reserve=off -object \
        memory-backend-ram,id=far,size=4G,reserve=off \
                 -numa node,nodeid=0,cpus=0-1,memdev=near -numa node,nodeid=1,cpus=2-3,memdev=far";
    let shape = Shape {
        cpus: 4,
        memory: 5 * GIB,
        q35: true,
        append: "memtest".to_owned(),
        extra: words.split_whitespace().map(Into::into).collect(),
        ..Shape::default()
    };
    let ended = boot(context, kernel, DOMAINS, &shape, "true")?;
    if !matches!(&ended.report.outcome, Outcome::Died(how) if how.contains("powered off")) {
        return Err(ended.wrong("the machine did not power off"));
    }
    ended.ends_are_seen(5 << 30)?;
    for (domain, least, most) in [(0, 900, 1024), (1, 3900, 4096)] {
        let name = format!("memory domain {domain}: ");
        let free =
            ended.log.lines().find_map(|l| l.split_once(&name)?.1.split_whitespace().next()?.parse::<u64>().ok());
        if !free.is_some_and(|free| (least..=most).contains(&free)) {
            return Err(ended.wrong(format!("domain {domain} has {free:?} MiB free, not {least} to {most}")));
        }
    }
    Ok(())
}

/// A thread that samples the peak memory of a process.
struct Watch {
    over: Arc<AtomicBool>,
    peak: Arc<AtomicU64>,
    thread: thread::JoinHandle<()>,
}

impl Watch {
    fn start(process: u32) -> Self {
        let (over, peak) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (its_over, its_peak) = (over.clone(), peak.clone());
        let status = format!("/proc/{process}/status");
        let thread = thread::spawn(move || {
            while !its_over.load(Ordering::Relaxed) {
                if let Some(kib) = peak_resident(Path::new(&status)) {
                    its_peak.fetch_max(kib / 1024, Ordering::Relaxed);
                }
                thread::sleep(Duration::from_millis(20));
            }
        });
        Self { over, peak, thread }
    }

    /// Ends the thread. Returns the largest sample, in MiB.
    fn finish(self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        self.peak.load(Ordering::Relaxed)
    }
}

/// Returns the peak memory in KiB from this `status` file of a process.
fn peak_resident(status: &Path) -> Option<u64> {
    let text = fs::read_to_string(status).ok()?;
    text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok())
}
