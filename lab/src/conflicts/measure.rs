//! The measurement of one case. In each *round*, CPU 0 and CPU 1 do their operations once, in an order that a
//! seed determines. A round yields the lines that one CPU wrote and the other CPU accessed.

use super::model::{Outcome, State};
use super::operation::{Act, Operation};
use super::sim::Tasks;
use super::world::{FRAMES, World};
use crate::Failure;
use quire_sync::record::{Conflict, Record, scope};
use std::collections::{BTreeMap, BTreeSet};

/// The number of rounds before the first counted round. In them, caches fill and the epoch advances.
const WARM: u32 = 96;
/// The number of counted rounds.
pub const ROUNDS: u32 = 64;

/// The name of a shared line: the owner of the memory, and the source files that wrote the line.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Line {
    /// The label that the owner gave the memory. Empty without an owner.
    pub label: String,
    /// The source files that wrote the line.
    pub by: String,
}

/// How a line was shared in all rounds.
#[derive(Clone, Default, Debug)]
pub struct Seen {
    /// The number of rounds in which the line was shared.
    pub rounds: u32,
    /// The number of shared lines with this name, in the round that had the most of them.
    pub lines: u32,
    /// The accesses to the line in the last round in which it was shared, as text for the reader.
    pub told: String,
}

/// The pairs of results that the two operations returned. The key says whether the operation of CPU 0 ran first.
pub type Results = BTreeMap<bool, BTreeSet<[String; 2]>>;

/// The measurement of a case.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The number of counted rounds.
    pub rounds: u32,
    /// The lines that were shared in any round.
    pub lines: BTreeMap<Line, Seen>,
    /// The number of shared lines in the round that shared the most.
    pub most: u32,
    /// The results of the operations.
    pub results: Results,
}

/// A short form of a type's path: its last two parts.
pub(super) fn short(label: &str) -> String {
    let word = label.split('<').next().unwrap_or(label);
    word.rsplit("::").take(2).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("::")
}

fn line_of(conflict: &Conflict) -> Line {
    let file = |path: &str| path.rsplit_once("/src/").map_or(path, |(_, f)| f).to_owned();
    let by: BTreeSet<String> =
        conflict.accesses.iter().filter(|a| a.kind.writes()).map(|a| file(a.site.file())).collect();
    Line { label: short(conflict.label()), by: by.into_iter().collect::<Vec<_>>().join(" ") }
}

/// Adds the shared lines of a round to `lines`. Returns their number.
fn add(lines: &mut BTreeMap<Line, Seen>, record: &Record) -> u32 {
    let mut now: BTreeMap<Line, (u32, String)> = BTreeMap::new();
    for conflict in record.conflicts() {
        let (number, told) = now.entry(line_of(&conflict)).or_default();
        *number += 1;
        told.push_str(&conflict.to_string());
    }
    let all = now.values().map(|(number, _)| number).sum();
    for (line, (number, told)) in now {
        let seen = lines.entry(line).or_default();
        seen.rounds += 1;
        seen.lines = seen.lines.max(number);
        seen.told = told;
    }
    all
}

/// The generator SplitMix64 (Steele et al. 2014).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A function that does both operations of a round, one after the other.
type Both<'a> = &'a mut dyn FnMut() -> Result<(), Failure>;

/// The plan of a case.
pub(super) struct Play<'a> {
    /// The operations of CPU 0 and of CPU 1.
    pub operations: [&'a Operation; 2],
    /// The relation between their processes.
    pub state: State,
    /// The number of frames of the machine.
    pub frames: u64,
    /// The number of rounds before the first counted round.
    pub warm: u32,
    /// The number of counted rounds.
    pub rounds: u32,
}

impl Play<'_> {
    /// Runs all rounds. For each counted round, calls `counted` with the world and a function that does both
    /// operations.
    pub fn run(
        &self,
        tasks: Tasks,
        counted: &mut dyn FnMut(&World, Both<'_>) -> Result<(), Failure>,
    ) -> Result<Results, Failure> {
        let mut acts: [Box<dyn Act>; 2] = self.operations.map(|o| (o.act)());
        let world = World::new(self.state, tasks, self.frames, &mut |world, parent| {
            acts.iter_mut().enumerate().try_for_each(|(side, act)| act.inherit(world, parent, side))
        })?;
        for (side, act) in acts.iter_mut().enumerate() {
            world.cpu(side).run(|| act.set_up(&world, side))?;
        }
        let mut seed = 1;
        let mut all = Results::new();
        for round in 0..self.warm + self.rounds {
            for (side, act) in acts.iter_mut().enumerate() {
                world.cpu(side).run(|| act.ready(&world, side))?;
            }
            let swapped = random(&mut seed) & 1 == 1;
            let mut results = [Outcome::Done; 2];
            let mut both = || -> Result<(), Failure> {
                for turn in 0..2 {
                    let side = turn ^ usize::from(swapped);
                    results[side] = world.cpu(side).run(|| acts[side].run(&world, side))?;
                }
                Ok(())
            };
            if round < self.warm {
                both()?
            } else {
                counted(&world, &mut both)?
            }
            all.entry(swapped).or_default().insert(results.map(|r| format!("{r:?}")));
            for (side, act) in acts.iter_mut().enumerate() {
                world.cpu(side).run(|| act.settle(&world, side))?;
            }
        }
        Ok(all)
    }
}

/// Measures operation `a` on CPU 0 and `b` on CPU 1 in `state`, for `rounds` counted rounds.
pub fn measure(tasks: Tasks, a: &Operation, b: &Operation, state: State, rounds: u32) -> Result<Measured, Failure> {
    let (mut lines, mut most) = (BTreeMap::new(), 0);
    let results =
        Play { operations: [a, b], state, frames: FRAMES, warm: WARM, rounds }.run(tasks, &mut |_, both| {
            let (done, record) = scope(both);
            most = most.max(add(&mut lines, &record));
            done
        })?;
    Ok(Measured { rounds, lines, most, results })
}
