//! Finds the programs that a kernel killed because memory was full, in the kernel's log.

/// The last kill in a log.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
pub struct Killed<'a> {
    /// The name of the program.
    program: &'a str,
    /// Its resident and swapped memory in KiB, if the log has it.
    kib: Option<u64>,
    /// The number of kills in the log.
    kills: usize,
}

impl<'a> Killed<'a> {
    /// Finds the last kill in the log of Quire (`crates/linux`, `out_of_memory`) or of Linux. `None` if there was none.
    pub fn find(log: &'a str) -> Option<Self> {
        let kills: Vec<_> = log.lines().filter_map(|line| quires(line).or_else(|| linuxs(line))).collect();
        let (program, kib) = *kills.last()?;
        Some(Self { program, kib, kills: kills.len() })
    }

    /// One line of advice for the user. `memory` is the guest's memory in MiB, and `swap` says whether the guest could
    /// get swap.
    pub fn advice(&self, memory: u64, swap: bool) -> String {
        let size = self.kib.map(|kib| format!(", which had {} MiB", kib.div_ceil(1024))).unwrap_or_default();
        let kills = if self.kills > 1 { format!(" (the last of {} programs)", self.kills) } else { String::new() };
        let swap = if swap { ", or swap with --append swap=SIZE" } else { "" };
        format!(
            "out of memory: the kernel killed {}{size}{kills}; give more than --memory {memory}M{swap}",
            self.program
        )
    }
}

/// Parses Quire's line `out of memory: process 7 (sort) is killed: 1024 KiB resident, 0 KiB in swap, ...`
fn quires(line: &str) -> Option<(&str, Option<u64>)> {
    let rest = line.split_once("out of memory: process ")?.1;
    let (name, rest) = rest.split_once(" (")?.1.split_once(") is killed: ")?;
    Some((name, number_before(rest, " KiB resident").zip(number_before(rest, " KiB in swap")).map(|(a, b)| a + b)))
}

/// Parses Linux's line `Out of memory: Killed process 66 (sort) total-vm:71340kB, anon-rss:66140kB, file-rss:...`
fn linuxs(line: &str) -> Option<(&str, Option<u64>)> {
    let rest = line.split_once("Out of memory: Killed process ")?.1;
    let (name, rest) = rest.split_once(" (")?.1.split_once(") ")?;
    let resident = rest.split_once("anon-rss:").and_then(|(_, rest)| rest.split_once("kB")?.0.parse().ok());
    Some((name, resident))
}

fn number_before(text: &str, end: &str) -> Option<u64> {
    text.split_once(end)?.0.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_kill_of_either_kernel_is_found() {
        let quire = "[ 1.0] up\r\n[ 2.0] out of memory: process 7 (a b) is killed: 2048 KiB resident, \
                     1024 KiB in swap, 8 KiB of page tables, oom_score_adj 0; a fault of process 7 (a b)\r\n";
        let found = Killed::find(quire).unwrap();
        assert_eq!(found, Killed { program: "a b", kib: Some(3072), kills: 1 });
        let said = found.advice(64, true);
        assert!(
            said.contains("a b, which had 3 MiB;") && said.contains("--memory 64M") && said.contains("swap="),
            "{said}"
        );
        let linux = "[ 4.1] Out of memory: Killed process 66 (sort) total-vm:71340kB, anon-rss:6144kB, file-rss:1kB\n";
        let found = Killed::find(linux).unwrap();
        assert_eq!(found, Killed { program: "sort", kib: Some(6144), kills: 1 });
        assert!(!found.advice(64, false).contains("swap"));
        let refused = "out of memory: process 3 (x) is killed: a page was refused 64 times\n";
        assert_eq!(Killed::find(refused), Some(Killed { program: "x", kib: None, kills: 1 }));
        let all = [quire, refused].concat();
        assert!(Killed::find(&all).unwrap().advice(64, true).contains("killed x (the last of 2 programs)"));
    }

    #[test]
    fn a_log_without_a_kill_has_none() {
        for log in
            ["", "out of memory: process", "out of memory: a fault, and all processes are exempt", "up (x) is killed: "]
        {
            assert_eq!(Killed::find(log), None, "{log}");
        }
    }
}
