//! An embedder of the memory core. Two threads call all its safe public functions in sequences, on objects of two
//! memory systems. Misuse is included. There is no model of the results: each call must return a value or a typed
//! error. At the end of an input both systems must be consistent and have lost nothing.
//!
//! Each of the two threads is a CPU of both systems, with the same number, because a thread has only one number. A
//! third thread, the input's own, makes the objects, serves flushes while the two run, and drops everything at the end.
//!
//! - [`world`]: the two systems, and the objects that the threads share. [`inside`]: reads of structures that only
//!   `unsafe` functions return. Only these two modules have `unsafe` code, because they do what the owner of a
//!   machine does. The compiler refuses it in the others.
//! - [`player`]: how bytes become calls. [`spaces`], [`objects`], [`system`], [`values`]: the calls.
//! - [`pagers`]: the pagers behind objects and swap. [`strangers`]: calls of threads that are not a CPU.
//!
//! `./quire test fuzz/embedder` reads the machine code of these modules. Each safe function of `docs/api.md` must be
//! called from here, or be an exception in `xtask/src/test/reach.rs`. The check sees only direct calls and closures,
//! not a function that is passed by its path. So calls are written as calls or closures.

mod inside;
mod objects;
mod pagers;
mod player;
mod spaces;
mod strangers;
mod system;
mod values;
mod world;

use crate::Input;
use player::Player;
use quire_hosted::Cpu;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use world::{PLAYERS, World};

/// The two systems; the lock allows one input at a time. The systems are kept from input to input, because making them
/// costs more than an input. So a failure may need the inputs before it.
static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// One bit for each operation, set when an input has run it.
static DONE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The calls of one operation.
type Operation = (&'static str, fn(&mut Player<'_>));

/// All operations. A byte of the input chooses one.
fn operations() -> impl Iterator<Item = &'static Operation> + Clone {
    [spaces::OPERATIONS, objects::OPERATIONS, system::OPERATIONS, values::OPERATIONS, strangers::OPERATIONS]
        .into_iter()
        .flatten()
}

/// Runs the bytes as operations, the first half on one thread and the second half on the other. The first byte decides
/// whether both run at once, and whether they yield to each other at locks.
pub fn run(data: &[u8]) {
    let mut kept = WORLD.lock().expect("the failing input is the last");
    let world = kept.get_or_insert_with(World::new);
    let (how, rest) = data.split_first().map_or((0, data), |(first, rest)| (*first, rest));
    let all: Vec<&Operation> = operations().collect();
    world.as_one(|setup| {
        let scene = world.scene();
        let play = |id: usize, bytes: &[u8]| {
            let cpus = world.vms.map(|vm| Cpu::attach(vm, id).expect("no other thread is this CPU"));
            if how & 2 != 0 {
                cpus[0].disturb_every(64, u64::from(how) + id as u64);
            }
            let mut player = Player::new(Input::new(bytes), &cpus, world, &scene, how & 1 == 0);
            while !player.input.is_over() {
                let n = player.input.below(all.len());
                DONE[n / 64].fetch_or(1 << (n % 64), Ordering::Relaxed);
                (all[n].1)(&mut player);
                cpus.iter().for_each(Cpu::interrupts);
            }
            player.end();
            cpus.iter().for_each(Cpu::leave);
        };
        let halves = if how & 1 == 0 { vec![rest] } else { rest.chunks(rest.len().div_ceil(PLAYERS).max(1)).collect() };
        std::thread::scope(|scope| {
            let play = &play;
            let threads: Vec<_> =
                halves.into_iter().enumerate().map(|(id, bytes)| scope.spawn(move || play(id, bytes))).collect();
            while threads.iter().any(|thread| !thread.is_finished()) {
                setup.iter().for_each(Cpu::interrupts);
                std::thread::yield_now();
            }
        });
        world.settle(scene);
    });
}

/// The operations that no input of this process has run.
pub fn missed() -> Vec<&'static str> {
    let done = |n: usize| DONE[n / 64].load(Ordering::Relaxed) >> (n % 64) & 1 != 0;
    operations().enumerate().filter(|(n, _)| !done(*n)).map(|(_, (name, _))| *name).collect()
}
