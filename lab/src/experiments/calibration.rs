//! The experiment that measures the speed of the machines. Other figures of the same machines are compared with it.

use super::threads::timed;
use super::{Figure, Plan, Round, Study};
use crate::Failure;
use quire_results::{Place, Side, Source};
use quire_vm::PAGE_SIZE;
use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::os::unix::process::parent_id;

const COST: [Figure; 1] = [Figure::time("cost", "ns/op")];

/// The calibration. `programs/calibrate.c` does the same operations in guests, so that the figures of guests and of the
/// host can be compared.
pub const STUDY: Study = Study {
    name: "calibration",
    source: Source::All,
    title: "Calibration",
    about: "The experiment measures a loop, memset, a system call and a byte through a pipe, on each side and in each \
        place. The loop and memset depend only on the machine. If they differ between two runs, all other figures \
        differ for the same reason, and the memory system is not the cause.",
    caveats: &[
        "Both kernels run in the same emulator with the same processor. Linux runs without mitigations, auditing, \
         AppArmor and zeroing at allocation. Its processor lacks ERMS and FSRM, because the emulator executes these \
         byte by byte.",
        "Before, after and ours are hosted processes of one kind on one machine, and share one row. Their system call \
         and pipe are those of the host's kernel and measure no design. The loop and memset compare the hosted times \
         of two machines.",
    ],
    claims: Vec::new,
    // `./quire lab` adds the plots of the guests' figures.
    plots: Vec::new,
    cases,
};

fn cases(plan: &Plan) -> Vec<Round> {
    let batches = plan.scale.of(2, 200, 2000);
    let round = |what: &'static str, each: fn() -> Result<Batch, Failure>| {
        Round::new(Side::Ours, Place::Hosted, [("what", what.into())], &COST, move || each()?.cost(batches))
    };
    vec![
        round("spin", || Ok(Batch::new(100_000, spin))),
        round("memset-page", fill),
        round("system-call", || Ok(Batch::new(1000, parents))),
        round("pipe-byte", through_a_pipe),
    ]
}

/// A number of operations that are done and timed together.
struct Batch {
    operations: u32,
    work: Box<dyn FnMut() -> Result<(), Failure>>,
}

impl Batch {
    fn new(operations: u32, work: impl FnMut() -> Result<(), Failure> + 'static) -> Batch {
        Batch { operations, work: Box::new(work) }
    }

    /// The nanoseconds of one operation. The first batch is not counted.
    fn cost(mut self, batches: u32) -> Result<[f64; 1], Failure> {
        (self.work)()?;
        let (done, seconds) = timed(|| (0..batches).try_for_each(|_| (self.work)()));
        done?;
        Ok([seconds * 1e9 / (f64::from(batches) * f64::from(self.operations))])
    }
}

/// A loop of additions, of which each depends on the one before.
fn spin() -> Result<(), Failure> {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = 1u64;
    for _ in 0..100_000 {
        // `black_box` keeps the compiler from computing the result in advance.
        state = black_box(state.wrapping_add(STEP));
    }
    if state == STEP.wrapping_mul(100_000).wrapping_add(1) {
        return Ok(());
    }
    Err(Failure::Wrong("the loop went wrong".into()))
}

/// Fills one mebibyte, repeatedly.
fn fill() -> Result<Batch, Failure> {
    const PAGES: usize = 256;
    let mut memory = vec![0u8; PAGES * PAGE_SIZE as usize];
    let mut value = 0u8;
    Ok(Batch::new(PAGES as u32, move || {
        value = value.wrapping_add(1);
        black_box(&mut memory).fill(value);
        if black_box(&memory).last() == Some(&value) {
            return Ok(());
        }
        Err(Failure::Wrong("memory was not filled".into()))
    }))
}

/// `getppid`, the cheapest system call that no library answers by itself.
fn parents() -> Result<(), Failure> {
    let first = parent_id();
    if (1..1000).all(|_| parent_id() == first) {
        return Ok(());
    }
    Err(Failure::Wrong("the process has a new parent".into()))
}

/// One thread writes a byte into a pipe and reads it back.
fn through_a_pipe() -> Result<Batch, Failure> {
    let wrong = |e: std::io::Error| Failure::Wrong(format!("a pipe failed: {e}"));
    let (mut reader, mut writer) = std::io::pipe().map_err(wrong)?;
    Ok(Batch::new(256, move || {
        for sent in 0..=255u8 {
            let mut byte = [!sent];
            writer.write_all(&[sent]).and_then(|()| reader.read_exact(&mut byte)).map_err(wrong)?;
            if byte != [sent] {
                return Err(Failure::Wrong("the pipe returned a different byte".into()));
            }
        }
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::Scale;

    #[test]
    fn every_batch_runs_and_takes_time() {
        let all = cases(&Plan { scale: Scale::Tiny, cpus: vec![1] });
        assert_eq!(all.len(), 4);
        for round in all {
            let cost = (round.work)().unwrap()[0];
            assert!(cost > 0.0 && cost.is_finite(), "{:?}: {cost}", round.parameters);
        }
    }
}
