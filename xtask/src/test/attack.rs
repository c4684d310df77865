//! Rounds of random system calls by root and by a user, while memory is short, a fork bomb runs and a heartbeat is
//! checked (`programs/siege.c`). Each round is one boot.
//!
//! A seed determines a round: the machine, how its time is counted, and every call. If instructions are counted, the
//! same seed gives the same run. Otherwise CPUs really race. `--soak` saves its progress in `target/attack.json` after
//! each round, and the next soak continues from there.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{Context, verdict::Check};
use crate::{
    boot::{Kernel, On, Shape},
    build,
    failure::{Doing, Result},
    image::{order::Order, root},
    machine::{outcome::Outcome, relay},
    programs,
};

const NAME: &str = "attack/random calls beside memory pressure and a fork bomb";
/// The time after which a round counts as hanging. Its program should end by itself after its seconds of guest time.
const LIMIT: Duration = Duration::from_secs(1800);
/// The seconds of guest time of a round: in every run of the tests (`SHORT`), and in a soak (`LONG`).
const SHORT: u32 = 8;
const LONG: u32 = 20;

/// The progress of a soak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    /// The seed of the first round.
    seed: u64,
    /// The number of finished rounds.
    rounds: u64,
    /// The seconds of real time that they took.
    seconds: u64,
    /// The seeds of failed rounds, with their failures.
    found: Vec<(u64, String)>,
}

impl State {
    /// Reads the saved state, or begins a new one.
    fn open(file: &Path) -> State {
        let kept = fs::read(file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        kept.unwrap_or_else(|| State { seed: fastrand::u64(1..1 << 32), rounds: 0, seconds: 0, found: Vec::new() })
    }

    fn keep(&self, file: &Path) -> Result<()> {
        let about = || format!("cannot keep {}", file.display());
        let text = serde_json::to_vec_pretty(self).doing(about)?;
        // The rename is atomic, so the file is complete even if this process is interrupted.
        let fresh = file.with_extension("new");
        fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, file)).doing(about)
    }
}

/// One round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Round {
    seed: u64,
    seconds: u32,
    cpus: u32,
    /// The machine's memory in MiB. `swap` is its swap in MiB. `pressure` is the memory in MiB that one process touches
    /// at random, so that memory is short.
    memory: u64,
    swap: u64,
    pressure: u64,
    /// Whether QEMU counts instructions. Then a seed repeats exactly, and time is the guest's own.
    counted: bool,
    /// Whether the round runs on the self-checking kernel.
    checked: bool,
}

impl Round {
    /// A round of a soak. In every second round, QEMU counts instructions. Every third round runs on the self-checking
    /// kernel.
    fn of(seed: u64) -> Round {
        let pressure = [60, 150, 190][(seed / 2 % 3) as usize];
        let cpus = [1, 2, 4][(seed % 3) as usize];
        let (counted, checked) = (seed.is_multiple_of(2), seed % 3 == 2);
        Round { seed, seconds: LONG, cpus, memory: 320, swap: 96, pressure, counted, checked }
    }

    /// The seconds that a shell of root may take to respond.
    fn patience(&self) -> u32 {
        // Without counting, guest time continues while the host runs other processes.
        if self.counted { 10 } else { 100 }
    }
}

/// The round in every run of the tests, on a machine with enough memory for all programs.
const FEW: [Round; 1] =
    [Round { seed: 1, seconds: SHORT, cpus: 2, memory: 320, swap: 64, pressure: 100, counted: false, checked: false }];

/// The name of the stage's only check.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(vec![NAME.to_owned()])
}

/// Runs a short round. In a soak, runs rounds until its minutes are over.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if !context.selects(NAME) {
        return Ok(());
    }
    let checked = |round: &Round| failure(round, attack(context, round).map_err(|e| e.to_string()).flatten());
    let result = match (context.soak, context.seed) {
        (true, Some(seed)) => checked(&Round::of(seed)),
        (true, None) => soak(context, checked)?,
        (false, _) => FEW.iter().try_for_each(checked),
    };
    done(Check::of(NAME, result));
    Ok(())
}

/// Adds to a round's failure the command that repeats it.
fn failure(round: &Round, result: Result<(), String>) -> Result<(), String> {
    result.map_err(|why| {
        format!("{why}\n{round:?}; repeat a soak's round: ./quire test --soak --seed {} attack", round.seed)
    })
}

fn soak(context: &Context<'_>, attack: impl Fn(&Round) -> Result<(), String>) -> Result<Result<(), String>> {
    let file: PathBuf = context.places.target.join("attack.json");
    let mut state = State::open(&file);
    if state.rounds > 0 {
        eprintln!("quire: the attack goes on after {} rounds, {} s", state.rounds, state.seconds);
    }
    while state.seconds < u64::from(context.minutes) * 60 {
        let round = Round::of(state.seed + state.rounds);
        let start = Instant::now();
        if let Err(why) = attack(&round) {
            eprintln!("quire: round {}: {why}", state.rounds);
            state.found.push((round.seed, why));
        }
        state.rounds += 1;
        state.seconds += start.elapsed().as_secs().max(1);
        state.keep(&file)?;
    }
    fs::remove_file(&file).doing(|| format!("cannot remove {}", file.display()))?;
    let seeds: Vec<u64> = state.found.iter().map(|(seed, _)| *seed).collect();
    Ok(match state.found.first() {
        None => Ok(()),
        Some((_, why)) => Err(format!(
            "{} of {} rounds failed, seeds {seeds:?}; the first failure:\n{why}",
            seeds.len(),
            state.rounds
        )),
    })
}

fn attack(context: &Context<'_>, round: &Round) -> Result<Result<(), String>> {
    let kernel = Kernel::with(context.places, On::Quire, || {
        if round.checked { build::checked_kernel(context.places) } else { context.kernel() }
    })?;
    let siege = programs::compile(context.places, &context.places.root.join("programs/siege.c"))?;
    let mut tree = root::tree()?;
    tree.host_file("/bin/siege", &siege)?;
    let words = [
        ("--seed", round.seed),
        ("--seconds", round.seconds.into()),
        ("--megabytes", round.pressure),
        ("--patience", round.patience().into()),
    ];
    let words = words.into_iter().flat_map(|(name, value)| [name.to_owned(), value.to_string()]);
    let args = ["/bin/siege".to_owned()].into_iter().chain(words).map(Into::into).collect();
    let order = Order { args, env: vec![], cwd: "/".into(), ..Order::default() };
    let image = kernel.image(tree, &order)?;
    let shape = Shape {
        cpus: round.cpus,
        memory: round.memory,
        count: round.counted,
        append: format!("swap={}M", round.swap),
        ..Shape::default()
    };
    let ended = kernel.kept(&image, &shape, LIMIT)?;
    fs::write(context.log_path(&format!("attack-{}", round.seed)), [&ended.output[..], &ended.errors[..]].concat())
        .doing(|| "cannot store the output of the attack".to_string())?;
    Ok(judge(round, &ended))
}

/// Requires that the program's own checks hold, and that the machine ends orderly. A report of a stuck CPU counts only
/// if instructions are counted.
fn judge(round: &Round, ended: &relay::GuestOutput) -> Result<(), String> {
    let log = &ended.report.log_tail;
    let said = || format!("{}{}", String::from_utf8_lossy(&ended.output), String::from_utf8_lossy(&ended.errors));
    let stuck = log.lines().find(|l| l.contains("] watchdog: "));
    match (&ended.report.outcome, stuck) {
        (Outcome::Exit(0), Some(stuck)) if round.counted => {
            Err(format!("{stuck}\n{}", crate::run::last_lines(log, 60)))
        }
        (Outcome::Exit(0), _) => Ok(()),
        (Outcome::Exit(_), _) => Err(format!("{}\n{}", said().trim_end(), crate::run::last_lines(log, 20))),
        (outcome, _) => Err(format!("{outcome:?}; the log ends:\n{}", crate::run::last_lines(log, 40))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_rounds_in_a_row_have_every_kind_of_machine() {
        let rounds: Vec<Round> = (40..46).map(Round::of).collect();
        for cpus in [1, 2, 4] {
            for counted in [false, true] {
                assert!(rounds.iter().any(|r| r.cpus == cpus && r.counted == counted));
            }
        }
        assert!(rounds.iter().any(|r| r.checked) && rounds.iter().any(|r| !r.checked));
        assert_eq!(Round::of(41), Round::of(41));
    }

    #[test]
    fn a_soak_that_was_interrupted_goes_on_where_it_was() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("attack.json");
        let mut state = State::open(&file);
        (state.rounds, state.seconds) = (7, 90);
        state.found.push((9, "why".to_owned()));
        state.keep(&file).expect("it is kept");
        assert_eq!(State::open(&file), state);
        fs::write(&file, "{").expect("it is damaged");
        assert_eq!(State::open(&file).rounds, 0);
    }
}
