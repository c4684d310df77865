//! The resources that a program used. They come from the report of `xtask/guest/measure.c` and from the emulator's
//! counts.

use std::collections::BTreeMap;

use crate::failure::{Failure, Result};

/// A row of the table: its name, its unit, and whether the row is shown even without figures.
pub type Resource = (&'static str, &'static str, bool);

/// All resources, in the order of the table.
pub const RESOURCES: &[Resource] = &[
    ("wall_time", "ms", true),
    ("user_time", "ms", true),
    ("system_time", "ms", true),
    ("system_share", "% of user + system", true),
    ("system_of_wall", "% of wall x CPUs", true),
    ("instructions", "", false),
    ("instructions_programs", "", false),
    ("instructions_kernel", "", false),
    ("instructions_kernel_share", "%", false),
    ("faults_minor", "", true),
    ("faults_major", "", true),
    ("faults_all", "of the system", true),
    ("faults_zero", "zero-filled", false),
    ("faults_copy", "copied", false),
    ("faults_move", "moved instead", false),
    ("faults_reuse", "mapped already, for less", false),
    ("faults_resident", "mapped", false),
    ("faults_around", "pages mapped along", false),
    ("faults_ahead", "pages made besides", false),
    ("faults_paged_in", "read", false),
    ("faults_spurious", "nothing to do", false),
    ("faults_refused", "no such mapping", false),
    ("faults_huge", "of large pages", false),
    ("faults_numa", "for placement", false),
    ("pages_allocated", "", true),
    ("pages_swapped_in", "", false),
    ("pages_swapped_out", "", false),
    ("peak_resident", "KiB", true),
    ("peak_system", "KiB more in use", false),
    ("peak_page_tables", "KiB more", false),
    ("switches_voluntary", "", true),
    ("switches_involuntary", "", true),
    ("switches_all", "of the system", true),
    ("tasks_started", "", true),
    ("shootdowns_sent", "", false),
    ("shootdowns_received", "", true),
];

/// Values by the name of the resource.
pub type Used = BTreeMap<&'static str, f64>;

/// The standard error of a run: the program's own output, followed by the report.
#[derive(Debug, PartialEq)]
pub struct SplitErrors<'a> {
    /// The program's own output.
    pub errors: &'a [u8],
    /// The report of the measuring program. `None` if the run ended before the report.
    pub report: Option<Report<'a>>,
}

/// The way in which a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The program exited with this status.
    Exit(u8),
    /// This signal killed the program.
    Signal(u8),
}

/// The parsed report of the measuring program.
#[derive(Debug, PartialEq)]
pub struct Report<'a> {
    numbers: BTreeMap<&'a str, f64>,
    /// Files of `/proc` by name: their contents before and after the program.
    files: BTreeMap<&'a str, [&'a str; 2]>,
    /// The way in which the program ended.
    pub end: End,
}

impl<'a> SplitErrors<'a> {
    /// Finds the report in the guest's standard error. The report begins at the line that starts with `tag`.
    pub fn find(bytes: &'a [u8], tag: &str) -> Result<Self> {
        let head = format!("{tag} ");
        let Some(at) = bytes.windows(head.len()).position(|w| w == head.as_bytes()) else {
            return Ok(SplitErrors { errors: bytes, report: None });
        };
        let torn = || Failure::machine("the measured figures arrived incomplete");
        let rest = &bytes[at + head.len()..];
        let line = rest.iter().position(|b| *b == b'\n').ok_or_else(torn)?;
        let length: usize = str::from_utf8(&rest[..line]).ok().and_then(|n| n.parse().ok()).ok_or_else(torn)?;
        let text = rest.get(line + 1..).and_then(|r| r.get(..length)).ok_or_else(torn)?;
        let report = Report::read(str::from_utf8(text).map_err(|_| torn())?).ok_or_else(torn)?;
        Ok(SplitErrors { errors: &bytes[..at], report: Some(report) })
    }
}

impl<'a> Report<'a> {
    fn read(mut text: &'a str) -> Option<Self> {
        let mut report = Report { numbers: BTreeMap::new(), files: BTreeMap::new(), end: End::Exit(0) };
        let mut ended = false;
        while let Some((line, rest)) = text.split_once('\n') {
            text = rest;
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["file", name, when, length] => {
                    let (content, rest) = text.split_at_checked(length.parse().ok()?)?;
                    let when = usize::from(when == "after");
                    report.files.entry(name).or_default()[when] = content;
                    text = rest;
                }
                [how @ ("exit" | "signal"), number] => {
                    let number = number.parse().ok()?;
                    report.end = if how == "exit" { End::Exit(number) } else { End::Signal(number) };
                    ended = true;
                }
                [name, value] => drop(report.numbers.insert(name, value.parse().ok()?)),
                _ => return None,
            }
        }
        (ended && text.is_empty()).then_some(report)
    }

    /// The sum of the numbers in a file's line that begins with `name`, before and after the program.
    fn rows(&self, file: &str, name: &str) -> Option<[f64; 2]> {
        let of = |text: &str| {
            let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix([' ', ':']))?;
            let numbers = line.split_whitespace().map_while(|word| word.parse::<f64>().ok());
            let all: Vec<f64> = numbers.collect();
            (!all.is_empty()).then(|| all.iter().sum())
        };
        let [before, after] = self.files.get(file)?;
        Some([of(before)?, of(after)?])
    }

    fn gained(&self, file: &str, name: &str) -> Option<f64> {
        self.rows(file, name).map(|[before, after]| (after - before).max(0.0))
    }

    /// The sum of the increases, during the program's run, of all rows of a file that begin with `prefix`.
    fn gained_by_all(&self, file: &str, prefix: &str) -> Option<f64> {
        let [_, after] = self.files.get(file)?;
        let names = after.lines().filter_map(|line| line.split(' ').next().filter(|name| name.starts_with(prefix)));
        let gains: Vec<f64> = names.filter_map(|name| self.gained(file, name)).collect();
        (!gains.is_empty()).then(|| gains.iter().sum())
    }

    /// The resources that are known, for `cpus` CPUs. `counted` has the instructions of the kernel and of programs.
    pub fn used(&self, cpus: u32, counted: Option<[u64; 2]>) -> Used {
        let number = |name: &str| self.numbers.get(name).copied();
        let ms = |name: &str, unit: f64| number(name).map(|n| n / unit);
        let (wall, user, system) = (ms("wall_ns", 1e6), ms("user_us", 1e3), ms("system_us", 1e3));
        let share = |part: Option<f64>, whole: Option<f64>| {
            let (part, whole) = part.zip(whole)?;
            (whole > 0.0).then(|| 100.0 * part / whole)
        };
        let before = |file: &str, name: &str| self.rows(file, name).map(|[before, _]| before);
        let over = |peak: Option<f64>, before: Option<f64>| peak.zip(before).map(|(p, b)| (p - b).max(0.0));
        let [kernel, programs] = match counted {
            Some(counts) => counts.map(|n| Some(n as f64)),
            None => [None; 2],
        };
        let all = kernel.zip(programs).map(|(k, p)| k + p);
        let vmstat = |name| self.gained("vmstat", name);
        let value = |name: &str| match name {
            "wall_time" => wall,
            "user_time" => user,
            "system_time" => system,
            "system_share" => share(system, user.zip(system).map(|(u, s)| u + s)),
            "system_of_wall" => share(system, wall.map(|w| w * f64::from(cpus))),
            "instructions" => all,
            "instructions_programs" => programs,
            "instructions_kernel" => kernel,
            "instructions_kernel_share" => share(kernel, all),
            "faults_minor" => number("minor"),
            "faults_major" => number("major"),
            "faults_all" => vmstat("pgfault"),
            "faults_zero" => vmstat("pgfault_zero"),
            "faults_copy" => vmstat("pgfault_copy"),
            "faults_move" => vmstat("pgfault_move"),
            "faults_reuse" => vmstat("pgfault_reuse"),
            "faults_resident" => vmstat("pgfault_resident"),
            "faults_around" => vmstat("pgfault_around"),
            "faults_ahead" => vmstat("pgfault_ahead"),
            "faults_paged_in" => vmstat("pgfault_paged_in"),
            "faults_spurious" => vmstat("pgfault_spurious"),
            "faults_refused" => vmstat("pgfault_refused"),
            "faults_huge" => vmstat("thp_fault_alloc"),
            "faults_numa" => vmstat("numa_hint_faults"),
            "pages_allocated" => self.gained_by_all("vmstat", "pgalloc_"),
            "pages_swapped_in" => vmstat("pswpin"),
            "pages_swapped_out" => vmstat("pswpout"),
            "peak_resident" => number("peak_kib"),
            "peak_system" => number("free_kib").zip(before("meminfo", "MemFree")).map(|(f, b)| (b - f).max(0.0)),
            "peak_page_tables" => over(number("tables_kib"), before("meminfo", "PageTables")),
            "switches_voluntary" => number("voluntary"),
            "switches_involuntary" => number("involuntary"),
            "switches_all" => self.gained("stat", "ctxt"),
            "tasks_started" => self.gained("stat", "processes"),
            "shootdowns_sent" => vmstat("nr_tlb_remote_flush"),
            "shootdowns_received" => self.gained("interrupts", "TLB"),
            _ => None,
        };
        RESOURCES.iter().filter_map(|(name, ..)| Some((*name, value(name)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors_with(body: &str) -> Vec<u8> {
        [b"its own errors\n\xff", format!("TAG {}\n{body}", body.len()).as_bytes()].concat()
    }

    fn file(name: &str, before: &str, after: &str) -> String {
        format!("file {name} before {}\n{before}file {name} after {}\n{after}", before.len(), after.len())
    }

    #[test]
    fn the_report_is_found_behind_the_programs_own_errors() {
        let numbers =
            "wall_ns 2000000000\nuser_us 500000\nsystem_us 1500000\nminor 7\ntables_kib 64\nfree_kib 100\nexit 3\n";
        let vmstat = file(
            "vmstat",
            "pgfault 10\npgfault_zero 4\npgalloc_dma 1\n",
            "pgfault 20\npgfault_zero 9\npgalloc_dma 4\n",
        );
        let interrupts =
            file("interrupts", "  CPU0  CPU1\n TLB:  1  2  TLB shootdowns\n", " TLB:  5  7  TLB shootdowns\n");
        let meminfo = file("meminfo", "MemFree:   300 kB\nPageTables:  60 kB\n", "MemFree: 1 kB\nPageTables: 1 kB\n");
        let bytes = errors_with(&format!("{numbers}{vmstat}{interrupts}{meminfo}"));
        let split = SplitErrors::find(&bytes, "TAG").unwrap();
        assert_eq!(split.errors, b"its own errors\n\xff");
        let report = split.report.unwrap();
        assert_eq!(report.end, End::Exit(3));
        let used = report.used(2, Some([30, 10]));
        let want = [
            ("wall_time", 2000.0),
            ("system_share", 75.0),
            ("system_of_wall", 37.5),
            ("instructions", 40.0),
            ("instructions_kernel_share", 75.0),
            ("faults_minor", 7.0),
            ("faults_all", 10.0),
            ("faults_zero", 5.0),
            ("pages_allocated", 3.0),
            ("shootdowns_received", 9.0),
            ("peak_system", 200.0),
            ("peak_page_tables", 4.0),
        ];
        for (name, value) in want {
            assert_eq!(used.get(name), Some(&value), "{name}");
        }
        // A figure that a kernel does not report is absent, not zero.
        assert_eq!(used.get("faults_copy"), None);
        assert_eq!(used.get("switches_all"), None);
    }

    #[test]
    fn a_torn_report_is_an_error_and_a_missing_report_is_no_error() {
        assert_eq!(SplitErrors::find(b"died\n", "TAG").unwrap(), SplitErrors { errors: b"died\n", report: None });
        let whole = errors_with("wall_ns 5\nexit 0\n");
        assert!(SplitErrors::find(&whole, "TAG").unwrap().report.is_some());
        assert!(SplitErrors::find(&whole[..whole.len() - 3], "TAG").is_err());
        for body in ["wall_ns 5\n", "wall_ns x\nexit 0\n", "file stat before 9\nshort", "exit 0\nmore than this is\n"] {
            assert!(SplitErrors::find(&errors_with(body), "TAG").is_err(), "{body:?}");
        }
    }
}
