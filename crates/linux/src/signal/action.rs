//! What a process wants done when a signal comes.

use super::set::{SigSet, Signal};
use linux_raw_sys::general as raw;

/// What happens to a process that has no say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Default {
    /// It ends.
    Terminate,
    /// It ends; Linux would write a core file.
    Dump,
    /// Nothing.
    Ignore,
    /// It stops.
    Stop,
    /// It goes on where it was stopped.
    Continue,
}

impl Default {
    /// The default of `signal`.
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
    /// 0 for the default, 1 to ignore, else the handler's address.
    pub handler: u64,
    /// `SA_*`.
    pub flags: u64,
    /// Where the handler returns to.
    pub restorer: u64,
    /// Blocked while it runs.
    pub mask: SigSet,
}

// SAFETY: four words, no padding, all patterns valid.
unsafe impl crate::user::Plain for Action {}
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
    /// What this kernel stores; other bits read back as zero, as Linux's do.
    pub const KNOWN: u64 = NOCLDSTOP | NOCLDWAIT | SIGINFO | RESTORER | ONSTACK | RESTART | NODEFER | RESETHAND | 0x800;
}

impl Action {
    /// The default action.
    pub const DEFAULT: Action = Action { handler: 0, flags: 0, restorer: 0, mask: SigSet::EMPTY };

    /// What it amounts to for `signal`.
    pub fn disposition(&self, signal: Signal) -> Disposition {
        match self.handler {
            0 => Disposition::Default(Default::of(signal)),
            1 => Disposition::Ignore,
            _ => Disposition::Handle(*self),
        }
    }

    /// Whether a signal with this action is thrown away where it is not blocked.
    pub fn ignores(&self, signal: Signal) -> bool {
        self.handler == 1 || (self.handler == 0 && Default::of(signal) == Default::Ignore)
    }
}

/// What to do with a signal that is delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// The kernel's default.
    Default(Default),
    /// Nothing.
    Ignore,
    /// Run a handler.
    Handle(Action),
}

/// All 64 actions. Most processes set few: what is not the default lies in a short list, so fork copies little.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Actions {
    set: alloc::vec::Vec<(Signal, Action)>,
}

impl core::default::Default for Actions {
    fn default() -> Self {
        Self::new()
    }
}

impl Actions {
    /// All default.
    pub const fn new() -> Actions {
        Actions { set: alloc::vec::Vec::new() }
    }

    /// The action of `signal`.
    pub fn get(&self, signal: Signal) -> Action {
        self.set.iter().find(|entry| entry.0 == signal).map_or(Action::DEFAULT, |entry| entry.1)
    }

    /// Changes the action of `signal`.
    pub fn put(&mut self, signal: Signal, action: Action) -> Result<(), alloc::collections::TryReserveError> {
        if let Some(at) = self.set.iter().position(|entry| entry.0 == signal) {
            if action == Action::DEFAULT {
                self.set.swap_remove(at);
            } else {
                self.set[at].1 = action;
            }
        } else if action != Action::DEFAULT {
            self.set.try_reserve(1)?;
            self.set.push((signal, action));
        }
        Ok(())
    }

    /// What is ignored, and what is handled.
    pub fn sets(&self) -> (SigSet, SigSet) {
        self.set.iter().fold((SigSet::EMPTY, SigSet::EMPTY), |(ignored, handled), (signal, action)| {
            match action.handler {
                0 => (ignored, handled),
                1 => (ignored.with(*signal), handled),
                _ => (ignored, handled.with(*signal)),
            }
        })
    }

    /// A copy for a forked child.
    pub fn try_clone(&self) -> Result<Actions, alloc::collections::TryReserveError> {
        let mut set = alloc::vec::Vec::new();
        set.try_reserve_exact(self.set.len())?;
        set.extend_from_slice(&self.set);
        Ok(Actions { set })
    }

    /// After exec: handlers are gone, what is ignored stays ignored.
    pub fn reset_handlers(&mut self) {
        self.set.retain_mut(|(_, action)| {
            *action = Action { handler: action.handler, ..Action::DEFAULT };
            action.handler == 1
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_keeps_only_what_is_ignored() {
        let mut actions = Actions::new();
        actions.put(Signal::INT, Action { handler: 1, flags: flag::RESTART, ..Action::DEFAULT }).expect("room");
        actions.put(Signal::TERM, Action { handler: 0x1000, ..Action::DEFAULT }).expect("room");
        actions.reset_handlers();
        assert_eq!(actions.get(Signal::INT), Action { handler: 1, ..Action::DEFAULT });
        assert_eq!(actions.get(Signal::TERM), Action::DEFAULT);
    }

    #[test]
    fn defaults_are_those_of_signal_7() {
        assert!(Action::DEFAULT.ignores(Signal::CHLD) && !Action::DEFAULT.ignores(Signal::CONT));
        assert_eq!(Default::of(Signal::TSTP), Default::Stop);
        assert_eq!(Default::of(Signal::SEGV), Default::Dump);
        assert_eq!(Default::of(Signal::IO), Default::Terminate);
    }
}
