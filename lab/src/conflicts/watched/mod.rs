//! A check that the record of shared accesses is complete. A few operations run in a program under valgrind's lackey,
//! which reports every load and store. Lackey's report gives the lines that one CPU wrote and the other CPU accessed.
//! The record must contain all of them.
//!
//! A shared line that is missing in the record was accessed without the types of `quire-sync`. The conflict matrix
//! would never show it.
//!
//! # Judged memory
//! The check judges all memory of the core and the scheduler: the machine's RAM, the memory that `sim::given` lists,
//! labelled memory, and statics. The core and the scheduler have no other memory, because both are `no_std` and do not
//! use the host's allocator. Stacks and the allocations of `quire-lab` are not judged. The simulated hardware and the
//! recorder mark their own accesses, which are not judged either ([`quire_sync::record::apart`]).

mod program;
mod trace;

pub use program::program;
pub use trace::Touch;

use crate::Failure;
use quire_sync::record::LINE;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The result of the check.
pub struct Watched {
    /// The number of rounds.
    pub rounds: usize,
    /// The number of shared lines in judged memory according to lackey, summed over all rounds.
    pub shared: usize,
    /// The shared lines that the record does not have.
    pub missed: Vec<Missed>,
    sites: Sites,
}

/// A shared line that the record does not have.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Missed {
    /// The owner of the line's memory, and the offset in the owner's object.
    pub owner: String,
    /// The operations that the program did.
    pub case: String,
    /// The line's address.
    pub address: usize,
    /// The loads from the line and the stores to it.
    pub touches: Vec<Touch>,
}

impl Watched {
    /// A description of a missed line: its owner, the accesses, and their source lines.
    pub fn told(&self, missed: &Missed) -> String {
        let mut text = format!("{}: line {:#x}, {}\n", missed.case, missed.address, missed.owner);
        for touch in &missed.touches {
            let what = if touch.write { "stores" } else { "loads" };
            let (cpu, offset) = (touch.cpu, touch.address - missed.address);
            text.push_str(&format!(
                "    CPU {cpu} {what} {} bytes at +{offset}: {}\n",
                touch.size,
                self.sites.of(touch.pc)
            ));
        }
        text
    }
}

/// The program's own output, parsed.
#[derive(Default)]
struct Said {
    /// For each round: its operations, and the lines that are shared according to the record.
    rounds: Vec<(String, BTreeSet<usize>)>,
    /// The address ranges of the judged memory.
    judged: Vec<Range<usize>>,
    /// The program's load address.
    image: usize,
    /// The owners of labelled memory by start address: end, stride, label.
    owners: BTreeMap<usize, (usize, usize, String)>,
    finished: bool,
}

impl Said {
    /// Parses a line of the program's output. Returns `None` for a line that the program never writes.
    fn line(&mut self, line: &str) -> Option<()> {
        let mut words = line.split(' ');
        let word = words.next()?;
        let mut number = || usize::from_str_radix(words.next()?, 16).ok();
        match word {
            "image" => self.image = number()?,
            "memory" => {
                let start = number()?;
                self.judged.push(start..start + number()?);
            }
            "owner" => {
                let (start, bytes, stride) = (number()?, number()?, number()?);
                self.judged.push(start..start + bytes);
                self.owners.insert(start, (start + bytes, stride, words.collect::<Vec<_>>().join(" ")));
            }
            "round" => self.rounds.push((words.collect::<Vec<_>>().join(" "), BTreeSet::new())),
            "shared" => {
                let line = number()?;
                self.rounds.last_mut()?.1.insert(line);
            }
            "end" => self.finished = true,
            _ => return None,
        }
        Some(())
    }

    fn judges(&self, address: usize) -> bool {
        self.judged.iter().any(|r| r.contains(&address))
    }

    fn owner(&self, address: usize, sites: &Sites) -> String {
        if let Some((start, (end, stride, label))) = self.owners.range(..=address).next_back()
            && address < *end
        {
            return format!("{label} +{}", (address - start) % stride);
        }
        sites.symbol(address).unwrap_or_else(|| "memory that nobody owns".to_owned())
    }
}

/// Runs `own`, the program `quire-lab`, under lackey. With `plain`, the program also shares a word that is not
/// recorded. The check must find that word.
pub fn watch(own: &Path, plain: bool) -> Result<Watched, Failure> {
    let tool = |what: String| Failure::Tool(format!("lackey: {what}"));
    let mut child = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no", "--quiet"])
        .arg(own)
        .arg("watched")
        .args(plain.then_some("--plain"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| tool(format!("valgrind cannot be run (Debian: apt-get install valgrind): {e}")))?;
    let (Some(mut input), Some(output), Some(errors)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(tool("the program has no pipes".to_owned()));
    };
    // The address of the memory into which the program stores to mark its rounds. It is 0 until the program prints the
    // address. While it is 0, `trace::read` ignores all accesses that lackey reports.
    let marks = AtomicUsize::new(0);
    let mut said = Said::default();
    let (heard, traced) = std::thread::scope(|s| {
        let traced = s.spawn(|| trace::read(BufReader::with_capacity(1 << 20, errors), &marks));
        let hear = || -> Result<(), String> {
            for line in BufReader::new(output).lines() {
                let line = line.map_err(|e| e.to_string())?;
                if let Some(at) = line.strip_prefix("marks ") {
                    marks.store(usize::from_str_radix(at, 16).map_err(|e| e.to_string())?, Ordering::Relaxed);
                    input.write_all(b"go\n").map_err(|e| e.to_string())?;
                } else {
                    said.line(&line).ok_or_else(|| format!("the program said {line:?}"))?;
                }
            }
            Ok(())
        };
        (hear(), traced.join().unwrap_or_else(|why| std::panic::resume_unwind(why)))
    });
    let status = child.wait().map_err(|e| tool(e.to_string()))?;
    let traced = traced.map_err(|e| tool(e.to_string()))?;
    if !status.success() || !said.finished {
        return Err(tool(format!("{status}: {}", traced.other)));
    }
    heard.map_err(tool)?;
    if said.rounds.len() != traced.rounds.len() {
        let (told, seen) = (said.rounds.len(), traced.rounds.len());
        return Err(tool(format!("the program reports {told} rounds, but {seen} were seen")));
    }
    let sites = Sites { program: own.to_owned(), image: said.image };
    Ok(judge(&said, &traced.rounds, sites))
}

/// Compares the record with lackey's report, and returns the missed lines. Of several lines with one owner and the same
/// accessing instructions, it returns only the first.
fn judge(said: &Said, rounds: &[trace::Round], sites: Sites) -> Watched {
    let mut shared = 0;
    let mut missed: BTreeMap<(String, Vec<usize>), Missed> = BTreeMap::new();
    for ((case, recorded), round) in said.rounds.iter().zip(rounds) {
        for (line, touches) in round {
            let address = line * LINE;
            if !touches.iter().any(|t| said.judges(t.address)) {
                continue;
            }
            shared += 1;
            if recorded.contains(&address) {
                continue;
            }
            let owner = said.owner(touches[0].address, &sites);
            let places: Vec<usize> = touches.iter().map(|t| t.pc).collect();
            missed.entry((owner.clone(), places)).or_insert_with(|| Missed {
                owner,
                case: case.clone(),
                address,
                touches: touches.clone(),
            });
        }
    }
    Watched { rounds: rounds.len(), shared, missed: missed.into_values().collect(), sites }
}

/// Finds source positions and symbols of the program, by tools that every compiler comes with.
struct Sites {
    program: PathBuf,
    /// The address at which the program is loaded.
    image: usize,
}

impl Sites {
    /// The function and source line of an instruction. If the function was inlined, its callers too.
    fn of(&self, pc: usize) -> String {
        let at = format!("{:#x}", pc.wrapping_sub(self.image));
        let out = Command::new("addr2line").args(["-f", "-C", "-i", "-p", "-e"]).arg(&self.program).arg(&at).output();
        let text = out.map(|o| String::from_utf8_lossy(&o.stdout).trim().replace('\n', " ")).unwrap_or_default();
        if text.is_empty() { format!("{pc:#x}") } else { text }
    }

    /// The name of the static at an address.
    fn symbol(&self, address: usize) -> Option<String> {
        let at = address.wrapping_sub(self.image);
        let out = Command::new("nm").args(["-S", "-C", "--defined-only"]).arg(&self.program).output().ok()?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        text.lines().find_map(|line| {
            let mut words = line.splitn(4, ' ');
            let start = usize::from_str_radix(words.next()?, 16).ok()?;
            let bytes = usize::from_str_radix(words.next()?, 16).ok()?;
            let name = words.nth(1)?;
            (start..start + bytes).contains(&at).then(|| format!("static {name} +{}", at - start))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_line_without_a_record_is_missed() {
        let mut said = Said::default();
        for line in
            ["image 0", "memory 10000 1000", "owner 20000 100 80 a table", "round a and b", "shared 10040", "end"]
        {
            assert_eq!(said.line(line), Some(()), "{line}");
        }
        assert_eq!(said.line("nonsense"), None);
        let touch = |address, cpu, write| Touch { cpu, write, pc: 0x99, address, size: 8 };
        let both = |address| (address / LINE, vec![touch(address, 0, false), touch(address, 1, true)]);
        // One line is recorded, one is in RAM, one belongs to an owner, and one to another owner.
        let round: trace::Round = [both(0x10048), both(0x10080), both(0x20088), both(0x30000)].into();
        let sites = Sites { program: "/nowhere".into(), image: 0 };
        let watched = judge(&said, &[round], sites);
        let owners: Vec<_> = watched.missed.iter().map(|m| (m.address, m.owner.as_str())).collect();
        assert_eq!(owners, [(0x20080, "a table +8"), (0x10080, "memory that nobody owns")]);
        assert_eq!((watched.rounds, watched.shared), (1, 3));
    }
}
