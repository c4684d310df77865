//! The conflict matrix. It checks that operations which commute share no cache line that one of them writes.
//!
//! Every pair of operations runs in both orders on a [`model`] of observable state, in each of the model's states. If
//! both orders have the same effect, the pair is a *case*. So cases are not chosen by hand. Each case is then measured
//! on the real core ([`measure`](mod@measure)). Two virtual CPUs do the operations, and every access to shared memory
//! is recorded. `docs/conflicts.md` describes how to read the result, and how to add an operation.

mod command;
pub mod expected;
mod fiber;
mod json;
pub mod measure;
mod memory;
pub mod model;
pub mod operation;
pub mod report;
pub mod scale;
mod sim;
mod tasks;
pub mod verdict;
pub mod watched;
mod world;

pub use command::{Options, command, run};

use crate::Failure;
use measure::{Measured, ROUNDS, measure};
use model::{Model, Outcome, State};
use operation::{ALL, Operation, Side};
use sim::Tasks;

/// Two operations that commute in a state.
#[derive(Clone, Copy)]
pub struct Case {
    /// The operation of CPU 0.
    pub a: &'static Operation,
    /// The operation of CPU 1.
    pub b: &'static Operation,
    /// The relation between their processes.
    pub state: State,
    /// The results of the two operations, which are the same in both orders.
    pub results: [Outcome; 2],
}

/// The number of all pairs, and the pairs that commute. Each operation is paired with itself and with every later one,
/// in every state.
pub fn cases() -> (usize, Vec<Case>) {
    let mut pairs = 0;
    let mut cases = Vec::new();
    for state in State::ALL {
        for (n, a) in ALL.iter().enumerate() {
            for b in &ALL[n..] {
                pairs += 1;
                cases.extend(commute(a, b, state).map(|results| Case { a, b, state, results }));
            }
        }
    }
    (pairs, cases)
}

/// The results of the two operations if their order cannot be observed. `None` if they do not commute.
fn commute(a: &Operation, b: &Operation, state: State) -> Option<[Outcome; 2]> {
    let run = |first: (&Operation, Side), second: (&Operation, Side)| {
        let mut model = Model::new(state);
        let mut results = [Outcome::Gone; 2];
        for (operation, side) in [first, second] {
            results[side] = (operation.effect)(&mut model, side);
        }
        (results, model)
    };
    let (one, other) = (run((a, 0), (b, 1)), run((b, 1), (a, 0)));
    (one == other).then_some(one.0)
}

impl Case {
    /// Measures the case. Returns an error if the results differ from the model's in either order.
    pub fn run(&self, tasks: Tasks) -> Result<Measured, Failure> {
        let measured = measure(tasks, self.a, self.b, self.state, ROUNDS)?;
        let wanted = self.results.map(|r| format!("{r:?}"));
        let both = measured.results.len() == 2;
        if !both || measured.results.values().any(|r| r.len() != 1 || !r.contains(&wanted)) {
            let (a, b) = (self.a.name, self.b.name);
            let got = &measured.results;
            return Err(Failure::Wrong(format!("{a} and {b}, {}: {got:?} instead of {wanted:?}", self.state.name())));
        }
        Ok(measured)
    }
}
