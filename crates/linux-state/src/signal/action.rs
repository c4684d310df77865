//! A process's signal actions.

use crate::Pid;
use crate::errno::Errno;
use crate::signal::set::{SigSet, Signal};
use core::alloc::Layout;
use linux_raw_sys::general as raw;
use quire_sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use quire_sync::{Rank, Sequence};

/// The default actions of signals, as in signal(7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Default {
    /// The process ends.
    Terminate,
    /// The process ends, and writes a core file if its limits allow one.
    Dump,
    /// The signal has no effect.
    Ignore,
    /// The process stops.
    Stop,
    /// A stopped process continues.
    Continue,
}

impl Default {
    /// The default action of `signal`.
    pub fn of(signal: Signal) -> Default {
        match signal {
            Signal::QUIT
            | Signal::ILL
            | Signal::TRAP
            | Signal::ABRT
            | Signal::BUS
            | Signal::FPE
            | Signal::SEGV
            | Signal::XCPU
            | Signal::XFSZ
            | Signal::SYS => Default::Dump,
            Signal::CHLD | Signal::URG | Signal::WINCH => Default::Ignore,
            Signal::STOP | Signal::TSTP | Signal::TTIN | Signal::TTOU => Default::Stop,
            Signal::CONT => Default::Continue,
            _ => Default::Terminate,
        }
    }
}

/// The user's choice for one signal: the kernel's `struct sigaction` on x86-64.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Action {
    /// 0 for the default action, 1 to ignore the signal, else the handler's address.
    pub handler: u64,
    /// `SA_*` flags.
    pub flags: u64,
    /// The address that the handler returns to.
    pub restorer: u64,
    /// The signals that are blocked while the handler runs.
    pub mask: SigSet,
}

// SAFETY: the type is four words without padding, and every bit pattern is valid.
unsafe impl crate::base::plain::Plain for Action {}
const _: () = assert!(core::mem::size_of::<Action>() == 32);

/// `SA_*` bits.
#[allow(missing_docs)]
pub mod flag {
    use super::raw;
    pub const NOCLDSTOP: u64 = raw::SA_NOCLDSTOP as u64;
    pub const NOCLDWAIT: u64 = raw::SA_NOCLDWAIT as u64;
    pub const SIGINFO: u64 = raw::SA_SIGINFO as u64;
    pub const RESTORER: u64 = 0x0400_0000;
    pub const ONSTACK: u64 = raw::SA_ONSTACK as u64;
    pub const RESTART: u64 = raw::SA_RESTART as u64;
    pub const NODEFER: u64 = raw::SA_NODEFER as u64;
    pub const RESETHAND: u64 = raw::SA_RESETHAND as u64;
    /// The bits that this kernel stores; others read back as zero, as on Linux.
    pub const KNOWN: u64 = NOCLDSTOP | NOCLDWAIT | SIGINFO | RESTORER | ONSTACK | RESTART | NODEFER | RESETHAND | 0x800;
}

impl Action {
    /// The default action.
    pub const DEFAULT: Action = Action { handler: 0, flags: 0, restorer: 0, mask: SigSet::EMPTY };

    /// What this action does with `signal`.
    pub fn disposition(&self, signal: Signal) -> Disposition {
        match self.handler {
            0 => Disposition::Default(Default::of(signal)),
            1 => Disposition::Ignore,
            _ => Disposition::Handle(*self),
        }
    }

    /// Whether the handler is reset after one delivery (`SA_RESETHAND`).
    pub fn once(&self) -> bool {
        self.handler > 1 && self.flags & flag::RESETHAND != 0
    }

    fn words(&self) -> [u64; 4] {
        [self.handler, self.flags, self.restorer, self.mask.0]
    }

    /// Whether an unblocked `signal` with this action is discarded. SIGCONT continues the process already when it is
    /// sent, so its delivery may be discarded.
    pub fn ignores(&self, signal: Signal) -> bool {
        let nothing = matches!(Default::of(signal), Default::Ignore | Default::Continue);
        self.handler == 1 || (self.handler == 0 && nothing)
    }
}

/// The handling of a delivered signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// The kernel's default.
    Default(Default),
    /// The signal is discarded.
    Ignore,
    /// The handler of this action runs.
    Handle(Action),
}

/// The number of actions in a block. Most processes do not set more actions than this.
const BLOCK: usize = 8;

/// The action of one signal that was set at least once.
struct Entry {
    /// The signal's number; 0: unused. A writer sets it once, after the entry's other words.
    signal: AtomicU64,
    /// The handler, flags, restorer and mask.
    words: [AtomicU64; 4],
}

#[derive(core::default::Default)]
struct Block {
    entries: [Entry; BLOCK],
    /// The next block, or null. Set once.
    next: AtomicPtr<Block>,
}

impl core::default::Default for Entry {
    fn default() -> Self {
        Entry { signal: AtomicU64::new(0), words: Action::DEFAULT.words().map(AtomicU64::new) }
    }
}

impl Entry {
    fn action(&self) -> Action {
        let [handler, flags, restorer, mask] = core::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        Action { handler, flags, restorer, mask: SigSet(mask) }
    }

    fn set(&self, action: Action) {
        self.words.iter().zip(action.words()).for_each(|(word, new)| word.store(new, Ordering::Relaxed));
    }
}

/// The actions of all 64 signals. Most processes set few of them. The actions that were ever set are in a short list,
/// which only grows, so fork copies little. Readers acquire no lock, so a delivery writes no cache line that other
/// threads read.
///
/// A forked child shares its parent's actions until parent or child changes an action. Shared actions are *frozen*: a
/// process copies them before it changes an action. The process then replaces the whole value, which other threads of
/// the process could be reading without a lock. So only processes with one thread share frozen actions. A child
/// also copies frozen actions before it forks. So only one parent and its children write the reference count of frozen
/// actions.
pub struct Actions {
    sequence: Sequence,
    /// The process that shares these actions with its children; 0: none. The process and its children copy the actions
    /// before a change. A process's only thread writes this field, while no other process has these actions.
    frozen_by: AtomicU32,
    first: Block,
}

impl core::default::Default for Actions {
    fn default() -> Self {
        Self::new()
    }
}

impl Actions {
    /// Default actions for all signals.
    pub fn new() -> Actions {
        Actions { sequence: Sequence::new(Rank::ACTIONS), frozen_by: AtomicU32::new(0), first: Block::default() }
    }

    /// The layout of a block beyond the first.
    pub const BLOCK: Layout = Layout::new::<Block>();

    /// The number of blocks beyond the first.
    pub fn more_blocks(&self) -> usize {
        self.blocks().count() - 1
    }

    fn blocks(&self) -> impl Iterator<Item = &Block> {
        // SAFETY: a linked block is complete, and is freed only with `self`.
        core::iter::successors(Some(&self.first), |block| unsafe { block.next.load(Ordering::Acquire).as_ref() })
    }

    fn entries(&self) -> impl Iterator<Item = (Signal, &Entry)> {
        let all = self.blocks().flat_map(|block| &block.entries);
        all.map_while(|entry| Some((Signal::new(entry.signal.load(Ordering::Acquire)).ok()?, entry)))
    }

    fn find(&self, signal: Signal) -> Option<&Entry> {
        self.entries().find(|(of, _)| *of == signal).map(|(_, entry)| entry)
    }

    /// Adds an entry for `signal`, which has none yet. `None` if there is no memory.
    ///
    /// # Requires
    /// The caller holds the write lock of `sequence`.
    fn add(&self, signal: Signal) -> Option<&Entry> {
        let mut last = &self.first;
        for block in self.blocks() {
            if let Some(free) = block.entries.iter().find(|entry| entry.signal.load(Ordering::Relaxed) == 0) {
                free.signal.store(u64::from(signal.number()), Ordering::Release);
                return Some(free);
            }
            last = block;
        }
        let block: &Block = quire_heap::try_leak(Block::default()).ok()?;
        block.entries[0].signal.store(u64::from(signal.number()), Ordering::Relaxed);
        last.next.store(core::ptr::from_ref(block).cast_mut(), Ordering::Release);
        Some(&block.entries[0])
    }

    /// The process that shares these actions with its children. `None` if they may be changed without a copy.
    pub(crate) fn frozen_by(&self) -> Option<Pid> {
        Some(self.frozen_by.load(Ordering::Relaxed)).filter(|by| *by != 0)
    }

    /// Whether the actions must be copied before a change.
    pub fn is_frozen(&self) -> bool {
        self.frozen_by().is_some()
    }

    /// Sets the process that shares the actions, or none. Called by a process's only thread, while no other process has
    /// these actions.
    pub(crate) fn freeze(&self, by: Option<Pid>) {
        self.frozen_by.store(by.unwrap_or(0), Ordering::Relaxed);
    }

    /// Whether a handler has `SA_RESETHAND`. The delivery of its signal changes the action, and must not need memory.
    pub(crate) fn change_by_delivery(&self) -> bool {
        self.sequence.read(|| self.entries().any(|(_, entry)| entry.action().once()))
    }

    /// The action of `signal`.
    pub fn get(&self, signal: Signal) -> Action {
        self.sequence.read(|| self.find(signal).map_or(Action::DEFAULT, Entry::action))
    }

    /// Sets the action of `signal` to the result of `change`. If `change` returns `None`, the action stays. Returns the
    /// old action. ENOMEM if there is no memory; a reset to the default needs none.
    pub fn update(&self, signal: Signal, change: impl FnOnce(Action) -> Option<Action>) -> Result<Action, Errno> {
        debug_assert!(!self.is_frozen(), "actions are copied before they change");
        self.sequence.write(|| {
            let entry = self.find(signal);
            let before = entry.map_or(Action::DEFAULT, Entry::action);
            if let Some(new) = change(before).filter(|new| *new != before) {
                entry.or_else(|| self.add(signal)).ok_or(Errno::ENOMEM)?.set(new);
            }
            Ok(before)
        })
    }

    /// Sets the action of `signal`, and returns the old one. ENOMEM if there is no memory; a reset to the default needs
    /// none.
    pub fn put(&self, signal: Signal, action: Action) -> Result<Action, Errno> {
        self.update(signal, |_| Some(action))
    }

    /// Resets `signal` to its default.
    pub fn reset(&self, signal: Signal) {
        // The result is ignored, because a reset needs no memory: a signal without an entry has its default action
        // already.
        let _before = self.put(signal, Action::DEFAULT);
    }

    /// The set of ignored signals, and the set of handled signals.
    pub fn sets(&self) -> (SigSet, SigSet) {
        self.sequence.read(|| {
            self.entries().fold((SigSet::EMPTY, SigSet::EMPTY), |(ignored, handled), (signal, entry)| {
                match entry.action().handler {
                    0 => (ignored, handled),
                    1 => (ignored.with(signal), handled),
                    _ => (ignored, handled.with(signal)),
                }
            })
        })
    }

    /// A copy for a forked child.
    pub fn try_clone(&self) -> Result<Actions, Errno> {
        let copy = Actions::new();
        for signal in self.entries().map(|(signal, _)| signal) {
            copy.put(signal, self.get(signal))?;
        }
        Ok(copy)
    }

    /// Resets all handlers to the default, for exec. Ignored signals stay ignored.
    pub fn reset_handlers(&self) {
        debug_assert!(!self.is_frozen(), "actions are copied before they change");
        self.sequence.write(|| {
            for (_, entry) in self.entries() {
                let handler = entry.action().handler;
                entry.set(if handler == 1 { Action { handler, ..Action::DEFAULT } } else { Action::DEFAULT });
            }
        });
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        let mut at = self.first.next.load(Ordering::Relaxed);
        while !at.is_null() {
            // SAFETY: `add` leaked the block and linked it once, and no reader is left.
            let block = unsafe { quire_heap::Box::from_raw(at) };
            at = block.next.load(Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn exec_keeps_only_ignored_signals() {
        let actions = Actions::new();
        actions.put(Signal::INT, Action { handler: 1, flags: flag::RESTART, ..Action::DEFAULT }).expect("room");
        actions.put(Signal::TERM, Action { handler: 0x1000, ..Action::DEFAULT }).expect("room");
        actions.reset_handlers();
        assert_eq!(actions.get(Signal::INT), Action { handler: 1, ..Action::DEFAULT });
        assert_eq!(actions.get(Signal::TERM), Action::DEFAULT);
    }

    #[test]
    fn all_actions_can_be_set_and_a_copy_has_them() {
        let actions = Actions::new();
        for n in 1..=64 {
            let signal = Signal::new(n).expect("a signal");
            let action = Action { handler: 0x1000 + n, flags: flag::RESETHAND, ..Action::DEFAULT };
            assert_eq!(actions.put(signal, action), Ok(Action::DEFAULT));
        }
        let copy = actions.try_clone().expect("memory");
        for n in 1..=64 {
            let signal = Signal::new(n).expect("a signal");
            assert_eq!(copy.get(signal).handler, 0x1000 + n);
            copy.reset(signal);
            assert_eq!((copy.get(signal), actions.get(signal).handler), (Action::DEFAULT, 0x1000 + n));
        }
        assert_eq!(copy.sets(), (SigSet::EMPTY, SigSet::EMPTY));
        assert_eq!(actions.sets(), (SigSet::EMPTY, SigSet(u64::MAX)));
    }

    #[test]
    fn of_two_that_take_an_action_once_one_gets_it() {
        let actions = Actions::new();
        actions
            .put(Signal::INT, Action { handler: 0x1000, flags: flag::RESETHAND, ..Action::DEFAULT })
            .expect("memory");
        let take = || actions.update(Signal::INT, |now| now.once().then_some(Action::DEFAULT));
        assert_eq!((take().map(|a| a.handler), take()), (Ok(0x1000), Ok(Action::DEFAULT)));
    }

    #[test]
    fn defaults_are_those_of_signal_7() {
        assert!(Action::DEFAULT.ignores(Signal::CHLD) && !Action::DEFAULT.ignores(Signal::TSTP));
        // SIGCONT does not end a wait of a process that is not stopped.
        assert!(
            Action::DEFAULT.ignores(Signal::CONT)
                && !Action { handler: 0x1000, ..Action::DEFAULT }.ignores(Signal::CONT)
        );
        assert_eq!(Default::of(Signal::TSTP), Default::Stop);
        assert_eq!(Default::of(Signal::SEGV), Default::Dump);
        assert_eq!(Default::of(Signal::IO), Default::Terminate);
    }
}
