//! Reads the output of lackey, which has a line for each instruction, load and store.
//!
//! A line `I ADDRESS,SIZE` is an instruction. The lines ` L`, ` S` and ` M` after it are its load, its store, and a
//! load with a store. A trace is far larger than memory. So it is read as a stream, and only the accesses of one round
//! at a time are kept.

use quire_sync::record::{LINE, Mark};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A load or a store. Equal accesses to a line are kept once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Touch {
    /// The CPU on whose behalf the thread acted.
    pub cpu: usize,
    /// Whether the access is a store.
    pub write: bool,
    /// The address of the instruction.
    pub pc: usize,
    /// The address of the data.
    pub address: usize,
    /// The size of the access in bytes.
    pub size: usize,
}

/// The lines that one CPU wrote and another CPU accessed in a round. The key is the line's number.
pub(super) type Round = BTreeMap<usize, Vec<Touch>>;

/// The part of a trace that counts.
#[derive(Default)]
pub(super) struct Trace {
    pub rounds: Vec<Round>,
    /// The last lines that are not lackey's. They are the program's error output if it fails.
    pub other: String,
}

/// The most accesses to a line that are kept.
const KEPT: usize = 12;
/// The most bytes that are kept of lines that are not lackey's.
const OTHER: usize = 4096;

/// The state of the reader, which follows the program's run.
#[derive(Default)]
struct Reader {
    cpu: usize,
    /// Whether the program is inside a round.
    counts: bool,
    /// The number of marks [`Mark::Apart`] whose mark [`Mark::Back`] has not been read yet.
    apart: usize,
    pc: usize,
    lines: HashMap<usize, Vec<Touch>>,
    trace: Trace,
}

/// Reads a trace to its end. `marks` is the address of the program's marks. While it is 0, all accesses are ignored.
pub(super) fn read(mut from: impl BufRead, marks: &AtomicUsize) -> io::Result<Trace> {
    let mut reader = Reader::default();
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? != 0 {
        reader.line(&line, marks.load(Ordering::Relaxed));
        line.clear();
    }
    Ok(reader.trace)
}

/// Parses an access as lackey writes it. Returns the letter, the address and the size.
fn parse(line: &[u8]) -> Option<(u8, usize, usize)> {
    let [first, second, b' ', rest @ ..] = line else { return None };
    let letter = match (first, second) {
        (b'I', b' ') => b'I',
        (b' ', letter @ (b'L' | b'S' | b'M')) => *letter,
        _ => return None,
    };
    let rest = rest.trim_ascii();
    let comma = rest.iter().position(|b| *b == b',')?;
    let digit = |b: &u8, radix| (*b as char).to_digit(radix).map(|d| d as usize);
    let address = rest[..comma].iter().try_fold(0, |n: usize, b| Some(n.checked_mul(16)? | digit(b, 16)?))?;
    let size = rest[comma + 1..].iter().try_fold(0, |n: usize, b| n.checked_mul(10)?.checked_add(digit(b, 10)?))?;
    Some((letter, address, size))
}

impl Reader {
    fn line(&mut self, line: &[u8], marks: usize) {
        let Some((letter, address, size)) = parse(line) else {
            self.other(line);
            return;
        };
        if marks == 0 {
            return;
        }
        match letter {
            b'I' => self.pc = address,
            b'S' if (marks..marks + Mark::BYTES).contains(&address) => self.mark(address - marks),
            _ if !self.counts || self.apart > 0 => {}
            b'L' => self.touch(address, size, &[false]),
            b'S' => self.touch(address, size, &[true]),
            _ => self.touch(address, size, &[false, true]),
        }
    }

    fn other(&mut self, line: &[u8]) {
        self.trace.other.push_str(&String::from_utf8_lossy(line));
        if self.trace.other.len() > 2 * OTHER {
            let from = (OTHER..).find(|n| self.trace.other.is_char_boundary(*n)).unwrap_or(0);
            self.trace.other.drain(..from);
        }
    }

    fn mark(&mut self, offset: usize) {
        match Mark::at(offset) {
            Some(Mark::Begin) => self.counts = true,
            Some(Mark::End) => {
                self.counts = false;
                self.trace.rounds.push(self.lines.drain().filter(|(_, touches)| is_shared(touches)).collect());
            }
            Some(Mark::Apart) => self.apart += 1,
            Some(Mark::Back) => self.apart = self.apart.saturating_sub(1),
            Some(Mark::Cpu(cpu)) => self.cpu = cpu,
            None => {}
        }
    }

    fn touch(&mut self, address: usize, size: usize, writes: &[bool]) {
        for line in address / LINE..=(address + size.max(1) - 1) / LINE {
            let touches = self.lines.entry(line).or_default();
            for write in writes {
                let touch = Touch { cpu: self.cpu, write: *write, pc: self.pc, address, size };
                // A few accesses are enough for the message. But the first access of each CPU and each kind is always
                // kept.
                let first = !touches.iter().any(|t| (t.cpu, t.write) == (touch.cpu, touch.write));
                if first || (touches.len() < KEPT && !touches.contains(&touch)) {
                    touches.push(touch);
                }
            }
        }
    }
}

fn is_shared(touches: &[Touch]) -> bool {
    touches.iter().any(|t| t.write) && touches.iter().any(|t| t.cpu != touches[0].cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_shared_if_one_cpu_stores_and_another_touches_it() {
        let mark = |mark: Mark| format!(" S {:08x},1\n", 0x1000 + mark.offset());
        let text = [
            "==1== Lackey, an example\n I am no line of it\n S 00005000,8\n".to_owned(),
            mark(Mark::Begin),
            mark(Mark::Cpu(0)),
            "I  00000100,4\n S 00005000,8\n L 00006000,8\n M 00007038,16\n S 00008000,4\n".to_owned(),
            mark(Mark::Apart),
            " S 00009000,8\n".to_owned(),
            mark(Mark::Back),
            mark(Mark::Cpu(1)),
            "I  00000104,4\n L 00005008,8\n L 00006000,8\n L 00007040,4\n L 00009000,8\n".to_owned(),
            mark(Mark::End),
            " S 00006000,8\n".to_owned(),
            mark(Mark::Begin),
            mark(Mark::End),
        ]
        .concat();
        let trace = read(text.as_bytes(), &AtomicUsize::new(0x1000)).unwrap();
        assert_eq!(trace.rounds.len(), 2);
        assert_eq!(trace.rounds[0].keys().map(|l| l * LINE).collect::<Vec<_>>(), [0x5000, 0x7040]);
        let touch = |cpu, write, pc, address| Touch { cpu, write, pc, address, size: 8 };
        let both = vec![touch(0, true, 0x100, 0x5000), touch(1, false, 0x104, 0x5008)];
        assert_eq!(trace.rounds[0][&(0x5000 / LINE)], both);
        assert!(trace.rounds[1].is_empty() && trace.other.contains("I am no line"));
    }
}
