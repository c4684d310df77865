//! An embedder of the memory core: sequences of all its safe public functions, by two threads, on things of two memory
//! systems. Misuse is included. Nothing is modelled: each call ends in a value or a typed error. At the end of an input
//! both systems are consistent and have lost nothing.
//!
//! Both threads are a CPU of both systems, by the same number, because a thread has one number. A third thread, the
//! input's own, makes the input's objects, serves flushes meanwhile, and drops everything at the end.
//!
//! - [`world`]: the two systems and what threads share of them. [`inside`]: reads of structures that only `unsafe`
//!   functions show. These two have `unsafe` code, because they do what the owner of a machine does. The compiler
//!   refuses it in the others.
//! - [`player`]: how bytes become calls. [`spaces`], [`objects`], [`system`], [`values`]: the calls.
//! - [`pagers`]: what stands behind objects and swap. [`strangers`]: calls of threads that are no CPU.
//!
//! `./quire test fuzz/embedder` reads these modules' machine code: each safe function of `docs/api.md` is called from
//! here, or is an exception of `xtask/src/test/reach.rs`. So a call is written as a call or a closure: a function that
//! is passed by its path is not seen.

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

/// One input at a time: both systems are kept from one to the next, since making them costs more than an input.
/// So a finding may need the inputs before it.
static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// Which operations any input has done, a bit each.
static DONE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The calls of one operation.
type Operation = (&'static str, fn(&mut Player<'_>));

/// All of them; a byte of the input chooses one.
fn operations() -> impl Iterator<Item = &'static Operation> + Clone {
    [spaces::OPERATIONS, objects::OPERATIONS, system::OPERATIONS, values::OPERATIONS, strangers::OPERATIONS]
        .into_iter()
        .flatten()
}

/// Runs the bytes as operations, the first half on one thread and the second half on the other. The first byte says
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

/// The operations that no input of this process has done.
pub fn missed() -> Vec<&'static str> {
    let done = |n: usize| DONE[n / 64].load(Ordering::Relaxed) >> (n % 64) & 1 != 0;
    operations().enumerate().filter(|(n, _)| !done(*n)).map(|(_, (name, _))| *name).collect()
}
