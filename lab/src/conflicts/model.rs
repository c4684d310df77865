//! The reference model: the observable effects of a sequence of operations.
//!
//! The model has processes, the contents of their addresses, files, futex words, timers, run queues and numbers. It has
//! no page table, no lock and no list. Two operations *commute* in a state where both orders give the same results and
//! the same final state. Clements et al. define this in "The Scalable Commutativity Rule" (2013). The specification
//! leaves some results open: which frame, free address, number or kernel structure an operation gets. For an open
//! result, the model returns [`Outcome::Fresh`]. In the model's state, the name of the thing is the CPU (0 or 1) that
//! got it.
//!
//! Beside the results, these are observable:
//! - the content and rights of each address of each process, and which pages of objects are in memory (`mincore`);
//! - the threads that wait on a word, the armed timers, the numbers in use;
//! - the running thread of a CPU, and the order of the others: a run queue is first in, first out.
//!
//! The order of the page queues is not observable, because the queues are approximate and no call returns their order.

use super::operation::Side;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The result of an operation, as its caller sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The operation was done.
    Done,
    /// The operation returned this value.
    Value(u64),
    /// The operation got a thing; the specification leaves open which thing.
    Fresh,
    /// The caller sleeps.
    Sleeps,
    /// The caller's thread had ended before the operation.
    Gone,
    /// The operation was refused.
    Refused,
}

/// How the processes of the two CPUs are related.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum State {
    /// Threads of one process.
    Threads,
    /// Processes that share nothing.
    Apart,
    /// Processes that map one file, as thousands of processes would.
    File,
    /// Processes that share anonymous memory.
    Anonymous,
    /// Processes that were forked from one parent, which still lives.
    Parent,
}

impl State {
    /// All states, in the order in which they are shown.
    pub const ALL: [State; 5] = [State::Threads, State::Apart, State::File, State::Anonymous, State::Parent];

    /// The name for the command line.
    pub fn name(self) -> &'static str {
        match self {
            State::Threads => "threads",
            State::Apart => "apart",
            State::File => "file",
            State::Anonymous => "anonymous",
            State::Parent => "parent",
        }
    }

    /// A description of the relation between the two processes.
    pub fn about(self) -> &'static str {
        match self {
            State::Threads => "threads of one process",
            State::Apart => "processes that share nothing",
            State::File => "processes that map one file, modelled for thousands",
            State::Anonymous => "processes that share an anonymous region",
            State::Parent => "processes with one live parent",
        }
    }
}

/// A part of a process's addresses. The thread of each CPU has its own regions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Region {
    /// Private memory that was never touched.
    Zero,
    /// A shared mapping of a file.
    File,
    /// A private mapping with content, which a store copies.
    Copy,
    /// A mapping that a fixed mapping replaces.
    Fixed,
    /// A mapping that is unmapped.
    Mapped,
    /// A mapping that loses the right to write.
    Writable,
    /// Memory whose content is dropped at once.
    Kept,
    /// Memory whose content may be dropped when memory is low.
    Lazy,
    /// A page of the heap, by its number.
    Heap(u64),
    /// A mapping at an address that the kernel chooses.
    Anywhere,
    /// The memory of a program after `exec`.
    Program,
}

/// The name of a thing that an operation got, if the specification leaves open which thing: the CPU that got it.
type By = Side;

/// An object that has pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Object {
    File(Option<Side>),
    Program(Option<Side>),
    Shared,
}

/// The content that a private page has of its own. It hides the content of the mapped object, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Own {
    Nothing,
    Value(u64),
    /// Either the old content or nothing: open until the next store.
    GivenUp,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Shown {
    Private(Own, Option<(Object, Side)>),
    Shared(Object, Side),
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Page {
    shown: Shown,
    writable: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Process {
    threads: BTreeSet<Side>,
    pages: BTreeMap<(Region, Side), Page>,
    heap: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum ProcessName {
    Initial(Side),
    Parent,
    Child(By),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Thread {
    Program(usize),
    Busy(usize),
    Sleeper(Side),
    Far(Side),
    Waiter(Side),
    New(By),
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Cpu {
    runs: Thread,
    queue: VecDeque<Thread>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Word {
    Own(Side),
    Awaited(Side),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Clock {
    Unarmed(Side),
    Armed(Side),
    Due(Side),
}

/// The observable state of the system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Model {
    shared: bool,
    common_file: bool,
    processes: BTreeMap<ProcessName, Process>,
    of: [ProcessName; 2],
    contents: BTreeMap<(Object, Side), u64>,
    resident: BTreeSet<(Object, Side)>,
    /// The number of frames that each side holds.
    frames: [u32; 2],
    queued: BTreeSet<Side>,
    cpus: [Cpu; 4],
    waiting: BTreeMap<Word, Vec<Thread>>,
    armed: BTreeSet<Clock>,
    fired: BTreeSet<Clock>,
    numbers: BTreeMap<By, u32>,
}

/// The value that the thread of CPU `side` stores. The two CPUs store different values.
pub fn stored(side: Side) -> u64 {
    100 + side as u64
}
/// The initial content of a side's page, where the page has content.
pub const CONTENT: u64 = 7;

impl Model {
    /// The initial state of the two sides in `state`.
    pub fn new(state: State) -> Model {
        let one = state == State::Threads;
        let common_file = state == State::File;
        let of = if one { [ProcessName::Initial(0); 2] } else { [ProcessName::Initial(0), ProcessName::Initial(1)] };
        let cpu = |n| Cpu { runs: Thread::Program(n), queue: VecDeque::from([Thread::Busy(n)]) };
        let mut model = Model {
            shared: state == State::Anonymous,
            common_file,
            processes: BTreeMap::new(),
            of,
            contents: BTreeMap::new(),
            resident: BTreeSet::new(),
            frames: [1; 2],
            queued: BTreeSet::new(),
            cpus: [cpu(0), cpu(1), cpu(2), cpu(3)],
            waiting: BTreeMap::new(),
            armed: BTreeSet::new(),
            fired: BTreeSet::new(),
            numbers: BTreeMap::new(),
        };
        let mut pages: BTreeMap<_, _> = (0..2).flat_map(|s| model.first_pages(s)).collect();
        if state == State::Parent {
            // The model's fork copies the parent's pages by value.
            for page in pages.values_mut() {
                if let Shown::Private(own, behind @ Some(_)) = &mut page.shown {
                    (*own, *behind) = (Own::Value(CONTENT), None);
                }
            }
            model.processes.insert(ProcessName::Parent, Process { pages: pages.clone(), ..Process::default() });
        }
        for side in 0..2 {
            let files = [model.file(side), Object::Program(model.owner(side))];
            model.contents.extend(files.map(|f| ((f, side), CONTENT)));
            model.resident.extend(files.map(|f| (f, side)));
            // A process also has the other side's regions if the two processes share these regions.
            let has = |region: Region, s: Side| {
                s == side
                    || match state {
                        State::Threads | State::File | State::Parent => true,
                        State::Anonymous => region == Region::Zero,
                        State::Apart => false,
                    }
            };
            let own = pages.iter().filter(|((r, s), _)| has(*r, *s)).map(|(at, page)| (*at, page.clone()));
            let process = model.processes.entry(of[side]).or_default();
            process.pages.extend(own);
            process.threads.insert(side);
            model.waiting.insert(Word::Awaited(side), vec![Thread::Waiter(side)]);
            model.armed.extend([Clock::Armed(side), Clock::Due(side)]);
        }
        model
    }

    fn owner(&self, side: Side) -> Option<Side> {
        (!self.common_file).then_some(side)
    }
    fn file(&self, side: Side) -> Object {
        Object::File(self.owner(side))
    }

    fn first_pages(&self, side: Side) -> Vec<((Region, Side), Page)> {
        let private = |own| Page { shown: Shown::Private(own, None), writable: true };
        let zero = match self.shared {
            true => Page { shown: Shown::Shared(Object::Shared, side), writable: true },
            false => private(Own::Nothing),
        };
        let file = Page { shown: Shown::Shared(self.file(side), side), writable: false };
        let copy = Page { shown: Shown::Private(Own::Nothing, Some((self.file(side), side))), writable: true };
        let mut pages = vec![((Region::Zero, side), zero), ((Region::File, side), file), ((Region::Copy, side), copy)];
        let touched = [Region::Fixed, Region::Mapped, Region::Writable, Region::Kept, Region::Lazy];
        pages.extend(touched.map(|r| ((r, side), private(Own::Value(CONTENT)))));
        pages
    }

    /// Whether the thread of CPU `side` lives. An ended thread has no effect.
    fn lives(&self, side: Side) -> bool {
        self.processes.get(&self.of[side]).is_some_and(|p| p.threads.contains(&side))
    }

    /// Calls `f` with the process of the thread of CPU `side`, or returns `Gone` if the thread has ended.
    fn by(&mut self, side: Side, f: impl FnOnce(&mut Process) -> Outcome) -> Outcome {
        if !self.lives(side) {
            return Outcome::Gone;
        }
        self.processes.get_mut(&self.of[side]).map_or(Outcome::Gone, f)
    }

    /// Calls `f` if the thread of CPU `side` lives, and else returns `Gone`.
    fn alive(&mut self, side: Side, f: impl FnOnce(&mut Model) -> Outcome) -> Outcome {
        if self.lives(side) { f(self) } else { Outcome::Gone }
    }

    /// The thread of CPU `side` stores into its page of `region`.
    pub fn store(&mut self, region: Region, side: Side) -> Outcome {
        let mut to = None;
        let done = self.by(side, |p| match p.pages.get_mut(&(region, side)) {
            Some(Page { shown, writable: true }) => {
                match shown {
                    Shown::Private(own, _) => *own = Own::Value(stored(side)),
                    Shown::Shared(object, of) => to = Some((*object, *of)),
                }
                Outcome::Done
            }
            _ => Outcome::Refused,
        });
        if let Some(page) = to {
            self.contents.insert(page, stored(side));
            self.resident.insert(page);
        }
        done
    }

    /// The thread of CPU `side` loads from its page of `region`.
    pub fn load(&mut self, region: Region, side: Side) -> Outcome {
        let mut from = None;
        let done = self.by(side, |p| match p.pages.get(&(region, side)).map(|p| &p.shown) {
            Some(Shown::Private(Own::Value(v), _)) => Outcome::Value(*v),
            Some(Shown::Private(_, Some(page))) => {
                from = Some(*page);
                Outcome::Done
            }
            Some(Shown::Private(..)) => Outcome::Value(0),
            Some(Shown::Shared(object, of)) => {
                from = Some((*object, *of));
                Outcome::Done
            }
            None => Outcome::Refused,
        });
        match from {
            Some(page) => {
                self.resident.insert(page);
                Outcome::Value(self.contents.get(&page).copied().unwrap_or(0))
            }
            None => done,
        }
    }

    /// The thread of CPU `side` maps zeroed memory, or the shared file, at `region`.
    pub fn map(&mut self, region: Region, side: Side) -> Outcome {
        let file = (self.common_file).then(|| (self.file(side), side));
        self.by(side, |p| {
            p.pages.insert((region, side), Page { shown: Shown::Private(Own::Nothing, file), writable: true });
            if region == Region::Anywhere { Outcome::Fresh } else { Outcome::Done }
        })
    }

    /// The thread of CPU `side` unmaps `region`.
    pub fn unmap(&mut self, region: Region, side: Side) -> Outcome {
        self.by(side, |p| {
            p.pages.remove(&(region, side));
            Outcome::Done
        })
    }

    /// The thread of CPU `side` removes the store right from `region`.
    pub fn protect(&mut self, region: Region, side: Side) -> Outcome {
        self.by(side, |p| match p.pages.get_mut(&(region, side)) {
            Some(page) => {
                page.writable = false;
                Outcome::Done
            }
            None => Outcome::Refused,
        })
    }

    /// The thread of CPU `side` drops the content of `region`: at once, or (without `at_once`) when memory is low.
    pub fn give_up(&mut self, region: Region, side: Side, at_once: bool) -> Outcome {
        self.by(side, |p| match p.pages.get_mut(&(region, side)).map(|p| &mut p.shown) {
            Some(Shown::Private(own, _)) => {
                *own = if at_once { Own::Nothing } else { Own::GivenUp };
                Outcome::Done
            }
            _ => Outcome::Refused,
        })
    }

    /// The heap of the process on CPU `side` grows by a page. The result is the heap's new size in pages.
    pub fn grow_heap(&mut self, side: Side) -> Outcome {
        self.by(side, |p| {
            p.heap += 1;
            let page = Page { shown: Shown::Private(Own::Nothing, None), writable: true };
            p.pages.insert((Region::Heap(p.heap), 0), page);
            Outcome::Value(p.heap)
        })
    }

    /// The thread of CPU `side` forks. The child gets a copy of the memory.
    pub fn fork(&mut self, side: Side) -> Outcome {
        let mut child = None;
        let done = self.by(side, |p| {
            child = Some(Process { threads: BTreeSet::new(), ..p.clone() });
            Outcome::Fresh
        });
        if let Some(child) = child {
            self.processes.insert(ProcessName::Child(side), child);
        }
        done
    }

    /// The thread of CPU `side` replaces its process's memory by a program. The other threads of the process end.
    pub fn exec(&mut self, side: Side) -> Outcome {
        let program = (Object::Program(self.owner(side)), side);
        self.by(side, |p| {
            let page = Page { shown: Shown::Private(Own::Nothing, Some(program)), writable: true };
            *p = Process {
                threads: BTreeSet::from([side]),
                pages: BTreeMap::from([((Region::Program, side), page)]),
                heap: 0,
            };
            Outcome::Done
        })
    }

    /// The process of the thread of CPU `side` ends.
    pub fn exit(&mut self, side: Side) -> Outcome {
        self.alive(side, |m| {
            m.processes.remove(&m.of[side]);
            Outcome::Done
        })
    }

    /// The thread of CPU `side` allocates a frame.
    pub fn take_frame(&mut self, side: Side) -> Outcome {
        self.alive(side, |m| {
            m.frames[side] += 1;
            Outcome::Fresh
        })
    }

    /// The thread of CPU `side` frees a frame.
    pub fn give_frame(&mut self, side: Side) -> Outcome {
        self.alive(side, |m| {
            m.frames[side] -= 1;
            Outcome::Done
        })
    }

    /// The thread of CPU `side` puts its page into a page queue.
    pub fn enqueue_page(&mut self, side: Side) -> Outcome {
        self.alive(side, |m| {
            m.queued.insert(side);
            Outcome::Done
        })
    }

    /// The thread of CPU `side` reclaims the frame of its page of the file.
    pub fn reclaim(&mut self, side: Side) -> Outcome {
        self.alive(side, |m| {
            let page = (m.file(side), side);
            m.resident.remove(&page);
            Outcome::Done
        })
    }

    /// The thread of CPU `side` waits on its word. The next thread in the run queue of its CPU runs.
    pub fn wait(&mut self, side: Side) -> Outcome {
        self.alive(side, |m| {
            m.waiting.entry(Word::Own(side)).or_default().push(Thread::Program(side));
            let cpu = &mut m.cpus[side];
            if let Some(next) = cpu.queue.pop_front() {
                cpu.runs = next;
            }
            Outcome::Sleeps
        })
    }

    /// The thread of CPU `side` wakes the threads that wait on the word `Word::Awaited(side)`. The result is the number
    /// of woken threads.
    pub fn wake(&mut self, side: Side) -> Outcome {
        self.alive(side, |m| {
            let woken = m.waiting.remove(&Word::Awaited(side)).unwrap_or_default();
            let n = woken.len() as u64;
            m.cpus[side].queue.extend(woken);
            Outcome::Value(n)
        })
    }

    /// The thread of CPU `side` starts a thread, which gets a new number.
    pub fn spawn(&mut self, side: Side) -> Outcome {
        self.alive(side, |m| {
            *m.numbers.entry(side).or_default() += 1;
            m.cpus[side].queue.push_back(Thread::New(side));
            Outcome::Fresh
        })
    }

    /// The thread of CPU `side` wakes a sleeping thread of its own CPU, or (with `far`) of another CPU.
    pub fn unpark(&mut self, side: Side, far: bool) -> Outcome {
        self.alive(side, |m| {
            let (cpu, thread) = if far { (side + 2, Thread::Far(side)) } else { (side, Thread::Sleeper(side)) };
            m.cpus[cpu].queue.push_back(thread);
            Outcome::Done
        })
    }

    /// The thread of CPU `side` allocates a number.
    pub fn take_number(&mut self, side: Side) -> Outcome {
        self.alive(side, |m| {
            *m.numbers.entry(side).or_default() += 1;
            Outcome::Fresh
        })
    }

    /// The thread of CPU `side` arms a timer.
    pub fn arm(&mut self, side: Side) -> Outcome {
        self.alive(side, |m| {
            m.armed.insert(Clock::Unarmed(side));
            Outcome::Done
        })
    }

    /// The thread of CPU `side` cancels a timer. The result is 1 if the timer was armed, else 0.
    pub fn cancel(&mut self, side: Side) -> Outcome {
        self.alive(side, |m| Outcome::Value(u64::from(m.armed.remove(&Clock::Armed(side)))))
    }

    /// A timer of `side`'s CPU expires.
    pub fn fire(&mut self, side: Side) -> Outcome {
        self.alive(side, |m| {
            m.armed.remove(&Clock::Due(side));
            m.fired.insert(Clock::Due(side));
            Outcome::Done
        })
    }
}
