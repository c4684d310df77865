//! The operations of the conflict matrix that act on threads and timers, run on the real scheduler.

use super::model::Outcome;
use super::operation::{Act, Side};
use super::sim::{self, Role, Sim, Word, alone, make};
use super::world::World;
use crate::Failure;
use quire_task::futex::Mixed;
use quire_task::{Machine as _, ThreadRef, Timer};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const SECOND: u64 = 1_000_000_000;

/// The operation: a program's thread sleeps on the futex word of its CPU.
pub struct Wait {
    word: &'static Word,
    program: Option<ThreadRef<Sim>>,
}

impl Wait {
    /// No thread sleeps yet.
    pub fn new() -> Wait {
        Wait { word: alone(Word(AtomicU32::new(0)), "word"), program: None }
    }
}

impl Act for Wait {
    fn set_up(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        self.program = Some(world.tasks.current(side));
        Ok(())
    }
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        let (tasks, word) = (world.tasks, self.word);
        let slept = tasks.on(side, move || tasks.wait_on(word.key(), word)).is_none();
        Ok(if slept { Outcome::Sleeps } else { Outcome::Done })
    }
    fn settle(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        let (tasks, key) = (world.tasks, self.word.key());
        let woken = tasks.on(side, move || tasks.futexes.wake(tasks.scheduler, key, 1, quire_task::futex::ANY));
        if woken != Some(Ok(1)) {
            return Err(Failure::Wrong("the thread that waits on a word was not found".into()));
        }
        self.program.iter().for_each(|p| tasks.until_current(side, p));
        Ok(())
    }
}

/// The operation: the thread that sleeps on the futex word of its CPU is woken.
pub struct Wake {
    word: &'static Word,
    program: Option<ThreadRef<Sim>>,
}

impl Wake {
    /// No thread sleeps yet.
    pub fn new() -> Wake {
        Wake { word: alone(Word(AtomicU32::new(0)), "word"), program: None }
    }
}

/// Lets every other thread of `cpu` run, until `program` is current again.
fn take_turns(world: &World, cpu: usize, program: Option<&ThreadRef<Sim>>) {
    let tasks = world.tasks;
    let Some(program) = program else { return };
    for _ in 0..2 {
        let _done_later = tasks.on(cpu, move || tasks.scheduler.yield_now());
        tasks.until_current(cpu, program);
    }
}

impl Act for Wake {
    fn set_up(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        self.program = Some(world.tasks.current(side));
        let _scheduler_has_it = world.tasks.spawn(side, Role::Waiter(self.word));
        take_turns(world, side, self.program.as_ref());
        Ok(())
    }
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        let (tasks, key) = (world.tasks, self.word.key());
        let woken = tasks.on(side, move || tasks.futexes.wake(tasks.scheduler, key, 1, quire_task::futex::ANY));
        match woken {
            None => Ok(Outcome::Sleeps),
            Some(Ok(n)) => Ok(Outcome::Value(n as u64)),
            Some(Err(Mixed)) => Err(Failure::Wrong("a thread waits there for a lock".into())),
        }
    }
    fn settle(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        take_turns(world, side, self.program.as_ref());
        Ok(())
    }
}

/// The operation: a thread is started and gets a process id.
pub struct NewThread;

impl Act for NewThread {
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        let tasks = world.tasks;
        let made = tasks.on(side, move || {
            let id = tasks.new_id();
            let thread = make(Role::Brief, tasks);
            thread.payload().id.set(id);
            tasks.ids.set_thread(id, Some(NonNull::from(&*thread)));
            tasks.scheduler.spawn(thread);
        });
        Ok(if made.is_some() { Outcome::Fresh } else { Outcome::Sleeps })
    }
    fn settle(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        take_turns(world, side, Some(&world.tasks.current(side)));
        world.tasks.collect_ids();
        Ok(())
    }
}

/// A timer, and the number of times that it has fired.
#[repr(C)]
struct Clock {
    timer: Timer,
    fired: AtomicU64,
}

unsafe fn fired(timer: NonNull<Timer>, _now: u64) -> Option<u64> {
    // SAFETY: every timer in this file is the first field of a `Clock`, which is never freed.
    unsafe { timer.cast::<Clock>().as_ref() }.fired.fetch_add(1, Ordering::Relaxed);
    None
}

fn clock() -> &'static Clock {
    alone(Clock { timer: Timer::new(fired), fired: AtomicU64::new(0) }, "timer")
}

fn arm(world: &World, side: Side, clock: &'static Clock, after: u64) -> Option<()> {
    let tasks = world.tasks;
    // SAFETY: a `Clock` is leaked, so its timer is never moved.
    tasks.on(side, move || unsafe { tasks.scheduler.arm(&clock.timer, tasks.sim.now() + after) })
}

fn cancel(world: &World, side: Side, clock: &'static Clock) -> Option<bool> {
    let tasks = world.tasks;
    tasks.on(side, move || tasks.scheduler.cancel(&clock.timer))
}

/// The operation: a timer is armed on the CPU's timer wheel.
pub struct Arm(&'static Clock);

impl Arm {
    /// The timer is not armed yet.
    pub fn new() -> Arm {
        Arm(clock())
    }
}

impl Act for Arm {
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        Ok(arm(world, side, self.0, 10 * SECOND).map_or(Outcome::Sleeps, |()| Outcome::Done))
    }
    fn settle(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        match cancel(world, side, self.0) {
            Some(true) => Ok(()),
            _ => Err(Failure::Wrong("an armed timer was not found".into())),
        }
    }
}

/// The operation: a timer is cancelled.
pub struct Cancel(&'static Clock);

impl Cancel {
    /// The timer is not armed yet.
    pub fn new() -> Cancel {
        Cancel(clock())
    }
}

impl Act for Cancel {
    fn ready(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        arm(world, side, self.0, 10 * SECOND);
        Ok(())
    }
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        Ok(cancel(world, side, self.0).map_or(Outcome::Sleeps, |armed| Outcome::Value(u64::from(armed))))
    }
}

/// The operation: the timer interrupt, while one timer is due.
pub struct Fire {
    clock: &'static Clock,
    before: u64,
}

impl Fire {
    /// The timer is not armed yet.
    pub fn new() -> Fire {
        Fire { clock: clock(), before: 0 }
    }
}

impl Act for Fire {
    fn ready(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        self.before = self.clock.fired.load(Ordering::Relaxed);
        arm(world, side, self.clock, 1000);
        world.tasks.pass(1 << 16);
        Ok(())
    }
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        let tasks = world.tasks;
        let served = tasks.on(side, move || tasks.scheduler.timer_interrupt());
        Ok(served.map_or(Outcome::Sleeps, |()| Outcome::Done))
    }
    fn settle(&mut self, _world: &World, _side: Side) -> Result<(), Failure> {
        match self.clock.fired.load(Ordering::Relaxed) - self.before {
            1 => Ok(()),
            n => Err(Failure::Wrong(format!("a timer that was due fired {n} times"))),
        }
    }
}

/// The operation: a process id is allocated.
pub struct TakeNumber(Vec<u32>);

impl TakeNumber {
    /// No ids yet.
    pub fn new() -> TakeNumber {
        TakeNumber(Vec::new())
    }
}

impl Act for TakeNumber {
    fn run(&mut self, world: &World, _side: Side) -> Result<Outcome, Failure> {
        self.0.push(world.tasks.new_id());
        Ok(Outcome::Fresh)
    }
    fn settle(&mut self, world: &World, _side: Side) -> Result<(), Failure> {
        for id in self.0.drain(..) {
            let _freed = world.tasks.ids.release(id);
        }
        Ok(())
    }
}

/// The operation: a sleeping thread is woken.
pub struct Unpark {
    /// The distance from the waker's CPU to the sleeper's CPU, in CPU numbers.
    away: usize,
    sleeper: Option<ThreadRef<Sim>>,
    program: Option<ThreadRef<Sim>>,
}

impl Unpark {
    /// Wakes a thread of the waker's own CPU.
    pub fn here() -> Unpark {
        Unpark { away: 0, sleeper: None, program: None }
    }
    /// Wakes a thread of another CPU.
    pub fn there() -> Unpark {
        Unpark { away: 2, ..Unpark::here() }
    }
}

impl Act for Unpark {
    fn set_up(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        let cpu = side + self.away;
        self.program = Some(world.tasks.current(cpu));
        self.sleeper = Some(world.tasks.spawn(cpu, Role::Sleeper));
        take_turns(world, cpu, self.program.as_ref());
        Ok(())
    }
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure> {
        let Some(sleeper) = self.sleeper.as_ref() else { return Ok(Outcome::Refused) };
        let (scheduler, sleeper) = (world.tasks.scheduler, sim::raw(sleeper));
        let woken = world.tasks.on(side, move || {
            // SAFETY: the side keeps a reference, and the job runs at once.
            scheduler.unpark(unsafe { sleeper.as_ref() });
        });
        Ok(if woken.is_some() { Outcome::Done } else { Outcome::Sleeps })
    }
    fn settle(&mut self, world: &World, side: Side) -> Result<(), Failure> {
        take_turns(world, side + self.away, self.program.as_ref());
        Ok(())
    }
}
