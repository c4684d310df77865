//! Signal numbers and sets of them.

use crate::base::plain::Plain;
use crate::errno::Errno;

/// A signal's number, 1 to 64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Signal(u8);

macro_rules! signals {
    ($($name:ident = $n:literal)*) => {
        #[allow(missing_docs)]
        impl Signal {
            $(pub const $name: Signal = Signal($n);)*
        }
    };
}
signals! {
    HUP = 1 INT = 2 QUIT = 3 ILL = 4 TRAP = 5 ABRT = 6 BUS = 7 FPE = 8 KILL = 9 USR1 = 10 SEGV = 11 USR2 = 12 PIPE = 13
    ALRM = 14 TERM = 15 STKFLT = 16 CHLD = 17 CONT = 18 STOP = 19 TSTP = 20 TTIN = 21 TTOU = 22 URG = 23 XCPU = 24
    XFSZ = 25 VTALRM = 26 PROF = 27 WINCH = 28 IO = 29 PWR = 30 SYS = 31
}

impl Signal {
    /// The highest signal number.
    pub const MAX: u8 = 64;

    /// The signal with a number from a program. EINVAL if there is no such signal.
    pub fn new(number: u64) -> Result<Signal, Errno> {
        if (1..=u64::from(Self::MAX)).contains(&number) { Ok(Signal(number as u8)) } else { Err(Errno::EINVAL) }
    }
    /// The signal with a number from a program, where 0 means that only permissions are checked.
    pub fn or_none(number: i32) -> Result<Option<Signal>, Errno> {
        match number {
            0 => Ok(None),
            n if n < 0 => Err(Errno::EINVAL),
            n => Signal::new(n as u64).map(Some),
        }
    }
    /// The number.
    pub const fn number(self) -> u8 {
        self.0
    }
    /// Whether the signal is a real-time signal. Real-time signals are queued, and not merged with a pending signal of
    /// the same number.
    pub const fn is_queued(self) -> bool {
        self.0 >= 32
    }
    const fn bit(self) -> u64 {
        1 << (self.0 - 1)
    }
}

/// A set of signals, laid out as the kernel's `sigset_t`: bit `n - 1` is signal `n`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(transparent)]
pub struct SigSet(pub u64);

impl SigSet {
    /// No signal.
    pub const EMPTY: SigSet = SigSet(0);
    /// The signals that no process can block, catch or ignore.
    pub const UNBLOCKABLE: SigSet = SigSet::of(&[Signal::KILL, Signal::STOP]);
    /// The signals that a thread's own instructions raise. They are delivered before others.
    pub const SYNCHRONOUS: SigSet =
        SigSet::of(&[Signal::SEGV, Signal::BUS, Signal::ILL, Signal::TRAP, Signal::FPE, Signal::SYS]);
    /// The signals whose default action stops the process.
    pub const STOPPING: SigSet = SigSet::of(&[Signal::STOP, Signal::TSTP, Signal::TTIN, Signal::TTOU]);

    /// The set that has the signals of the array `signals`.
    pub const fn of(signals: &[Signal]) -> SigSet {
        let mut bits = 0;
        let mut i = 0;
        while i < signals.len() {
            bits |= signals[i].bit();
            i += 1;
        }
        SigSet(bits)
    }
    /// Whether `signal` is in the set.
    pub const fn has(self, signal: Signal) -> bool {
        self.0 & signal.bit() != 0
    }
    /// The set with `signal` added.
    pub const fn with(self, signal: Signal) -> SigSet {
        SigSet(self.0 | signal.bit())
    }
    /// The signals of `self` that are not in `other`.
    pub const fn without(self, other: SigSet) -> SigSet {
        SigSet(self.0 & !other.0)
    }
    /// The intersection.
    pub const fn and(self, other: SigSet) -> SigSet {
        SigSet(self.0 & other.0)
    }
    /// The union.
    pub const fn or(self, other: SigSet) -> SigSet {
        SigSet(self.0 | other.0)
    }
    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// The signal to deliver first: the lowest synchronous signal, or else the lowest signal.
    pub fn first(self) -> Option<Signal> {
        let urgent = self.and(SigSet::SYNCHRONOUS);
        let from = if urgent.is_empty() { self } else { urgent };
        (!from.is_empty()).then(|| Signal(from.0.trailing_zeros() as u8 + 1))
    }
}

// SAFETY: the type is a transparent word, and every bit pattern is a set of signals.
unsafe impl Plain for SigSet {}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn synchronous_signals_go_first_and_then_the_lowest() {
        let set = SigSet::of(&[Signal::TERM, Signal::HUP, Signal::SEGV]);
        assert_eq!(set.first(), Some(Signal::SEGV));
        assert_eq!(set.without(SigSet::SYNCHRONOUS).first(), Some(Signal::HUP));
        assert_eq!(SigSet::EMPTY.first(), None);
    }

    #[test]
    fn numbers_outside_1_to_64_are_refused() {
        assert_eq!(Signal::new(0), Err(Errno::EINVAL));
        assert_eq!(Signal::new(65), Err(Errno::EINVAL));
        assert_eq!(Signal::new(64).map(|s| s.number()), Ok(64));
        assert_eq!(Signal::or_none(-1), Err(Errno::EINVAL));
        assert_eq!(Signal::or_none(0), Ok(None));
    }
}
