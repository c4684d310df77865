//! System calls with arbitrary numbers, arguments and memory, made by processes on a machine with one CPU. The Linux
//! layer, the memory core, the scheduler and the file systems are the kernel's own code.
//!
//! For each input, process 1 makes a process, which may have descendants. All of them take their next steps from the
//! input. The input may also refuse any allocation of a call. The processes end when the input is consumed, or when all
//! of them sleep for ever. These rules must hold: nothing panics, and the return to user mode loads only valid user
//! values. No kernel-internal error number reaches a program. Killed processes end, and no frame is lost.

mod program;

use program::Program;
pub(crate) use program::{DATA, MOST_CALLS, OBJECTS_FIRST};
use quire_linux::test_host::{One, files, lock};
use std::sync::Mutex;

/// Runs the bytes as calls.
pub fn run(data: &[u8]) {
    let _results = results(data);
}

/// Runs `data` as calls. Returns the numbers of the calls that returned, with their results.
pub(crate) fn results(data: &[u8]) -> Vec<(u64, u64)> {
    static MACHINE: Mutex<Option<(&One, &Program)>> = Mutex::new(None);
    let mut machine = lock(&MACHINE);
    // Sleeps in inputs advance the machine's simulated clock. A new machine replaces this one before the clock reaches
    // its largest value.
    let (_, program) = match *machine {
        Some(there) if there.0.clock() < u64::MAX - 2 * program::TIME => there,
        _ => {
            let program: &Program = Box::leak(Box::default());
            *machine.insert((One::boot(files(), program, &quire_procfs::Procfs), program))
        }
    };
    program.run(data)
}

/// The machine's files: the program, which is also the file that it executes, and a directory to write in.
fn files() -> Vec<u8> {
    files::archive(&[("init", 0o100_755, &program::elf()), ("tmp", 0o41_777, b"")])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the results of the calls of a committed input, by call number.
    fn of(name: &str) -> impl Fn(u64) -> Vec<u64> {
        let place = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/calls/");
        let results = results(&std::fs::read(format!("{place}{name}")).expect("an input of the corpus"));
        move |number| results.iter().filter(|(n, _)| *n == number).map(|(_, result)| *result).collect()
    }

    #[test]
    fn calls_behave_as_on_a_kernel() {
        let files = of("files");
        assert_eq!(files(2), [3], "open");
        assert_eq!((files(1), files(0)), (vec![20], vec![20]), "the written bytes are read");
        assert_eq!(files(9), [0x7000_0000], "the file is mapped where it was to be");
        assert_eq!((files(82), files(87)), (vec![0], vec![0]), "renamed and unlinked");
        // The second run gives the same descriptor, so nothing is left of the first.
        assert_eq!(of("files")(2), [3]);
    }

    /// Encodes a call, with arguments as [`program`] decodes values of one byte.
    fn made(number: u64, arguments: [u8; 6]) -> Vec<u8> {
        let number = (number as u16).to_le_bytes();
        [&[2], &number[..], &arguments[..]].concat()
    }

    /// Encodes the refusal of the `n`-th allocation of the next call.
    fn refused(n: u16) -> Vec<u8> {
        let number = program::MOST_CALLS as u16 + n - 1;
        [&[2], &number.to_le_bytes()[..]].concat()
    }

    #[test]
    fn a_refused_allocation_is_an_error_of_the_call() {
        const ENOMEM: u64 = 12u64.wrapping_neg();
        let eventfd = made(284, [0; 6]);
        let results = results(&[refused(1), eventfd.clone(), refused(2), eventfd.clone(), eventfd].concat());
        assert_eq!(results, [(284, ENOMEM), (284, ENOMEM), (284, 3)]);
    }

    /// Makes every call with random arguments, and refuses one allocation in each. The rules for all inputs must hold.
    #[test]
    fn any_call_may_be_refused_any_allocation() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u32
        };
        let mut failed = 0;
        for number in 0..program::MOST_CALLS as u64 {
            for first in [1, 9, 17] {
                let mut input = Vec::new();
                for n in first..first + 8 {
                    input.extend(refused(n));
                    // These values exclude the encodings of nine bytes.
                    input.extend(made(number, std::array::from_fn(|_| (random() % 224) as u8)));
                }
                failed += results(&input).iter().filter(|(_, result)| *result == 12u64.wrapping_neg()).count();
            }
        }
        assert!(failed > 100, "{failed} calls without memory");
    }

    /// Encodes a store of up to 64 bytes to an address that [`made`] can encode.
    fn poked(at: u8, bytes: &[u8]) -> Vec<u8> {
        [&[0, bytes.len() as u8, at], bytes].concat()
    }

    #[test]
    fn timers_and_areas_of_restartable_sequences_are_made_and_end() {
        // Encoded addresses of the program's data.
        let [soon, late, to, area] = [72, 73, 74, 75];
        let spec = |seconds: u64, nanos: u64| [0, 0, seconds, nanos].map(u64::to_le_bytes).concat();
        let error = |errno: u64| errno.wrapping_neg();
        let (einval, ebusy) = (error(22), error(16));
        let rseq = |flags: u8| made(334, [area, 32, flags, 9, 0, 0]);
        let input = [
            poked(soon, &spec(0, 1)),
            poked(late, &spec(1000, 0)),
            made(283, [1, 0, 0, 0, 0, 0]),
            made(286, [3, 0, soon, to, 0, 0]),
            made(0, [3, to, 8, 0, 0, 0]),
            // Nothing is mapped at this address. So the call fails, and its timer's id is free again.
            made(222, [1, 0, 0, 0, 0, 0]),
            made(222, [1, 0, to, 0, 0, 0]),
            made(223, [0, 0, late, to, 0, 0]),
            made(224, [0, to, 0, 0, 0, 0]),
            made(226, [0; 6]),
            made(226, [0; 6]),
            rseq(0),
            rseq(0),
            rseq(1),
            rseq(1),
        ];
        let results: Vec<u64> = results(&input.concat()).iter().map(|(_, result)| *result).collect();
        assert_eq!(results, [3, 0, 8, error(14), 0, 0, 0, 0, einval, 0, ebusy, 0, einval]);
    }

    #[test]
    fn processes_are_made_end_and_are_waited_for() {
        let processes = of("processes");
        let children: Vec<u64> = processes(57).into_iter().filter(|pid| *pid != 0).collect();
        assert!(!children.is_empty() && children.iter().all(|pid| *pid > 1), "{children:?}");
        assert!(processes(59).contains(&0), "the program was begun anew");
    }

    #[test]
    fn a_sleeper_wakes_by_the_clock_or_is_killed() {
        let sleeps = of("sleeps");
        assert_eq!((sleeps(35), sleeps(230)), (vec![0], vec![0]), "the clock goes on when all sleep");
        assert_eq!(sleeps(202).len(), 1, "the last one sleeps for ever, and does not come back");
        assert_eq!(of("sleeps")(35), [0], "the machine goes on after that");
    }
}
