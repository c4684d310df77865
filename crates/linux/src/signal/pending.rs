//! Signals that were sent and not delivered yet.

use super::info::SigInfo;
use super::set::{SigSet, Signal};
use quire_heap::Deque;

/// How many queued (real-time) signals may wait in one queue: what Linux's default RLIMIT_SIGPENDING allows on a small
/// machine. Beyond it, `sigqueue` fails with EAGAIN and others lose their details.
const MOST_QUEUED: usize = 1024;

/// One queue: a thread's or a process's.
#[derive(Default)]
pub struct Pending {
    set: SigSet,
    queue: Deque<SigInfo>,
}

/// The queue is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl Pending {
    /// Nothing pending.
    pub const fn new() -> Pending {
        Pending { set: SigSet::EMPTY, queue: Deque::new() }
    }

    /// What is pending.
    pub fn set(&self) -> SigSet {
        self.set
    }

    /// Adds a signal. A standard one that is pending already swallows it. Where there is no room for the details the
    /// signal becomes pending without them, and the caller is told.
    pub fn add(&mut self, info: SigInfo) -> Result<(), Full> {
        if !info.signal.is_queued() && self.set.has(info.signal) {
            return Ok(());
        }
        self.set = self.set.with(info.signal);
        if self.queue.len() >= MOST_QUEUED {
            return Err(Full);
        }
        self.queue.try_push_back(info).map_err(|_| Full)
    }

    /// Takes the first signal that is in `wanted`, with its details.
    pub fn take(&mut self, wanted: SigSet) -> Option<SigInfo> {
        let signal = self.set.and(wanted).first()?;
        let mut found = None;
        let mut more = false;
        let mut at = 0;
        while at < self.queue.len() {
            if self.queue.get(at).is_some_and(|info| info.signal == signal) {
                if found.is_some() {
                    more = true;
                    break;
                }
                found = self.queue.remove(at);
            } else {
                at += 1;
            }
        }
        if !more {
            self.set = self.set.without(SigSet::of(&[signal]));
        }
        Some(found.unwrap_or(SigInfo { code: super::info::code::USER, ..SigInfo::kernel(signal) }))
    }

    /// Drops whatever is in `gone`.
    pub fn discard(&mut self, gone: SigSet) {
        if self.set.and(gone).is_empty() {
            return;
        }
        self.set = self.set.without(gone);
        self.queue.retain(|info| !gone.has(info.signal));
    }

    /// Whether `signal` is pending.
    pub fn has(&self, signal: Signal) -> bool {
        self.set.has(signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signal::{Detail, info::code};

    fn with_value(n: u64, value: u64) -> SigInfo {
        let signal = Signal::new(n).expect("a valid number");
        SigInfo { signal, code: code::QUEUE, errno: 0, detail: Detail::Value { pid: 0, uid: 0, value } }
    }

    #[test]
    fn standard_signals_merge_and_real_time_ones_queue_in_order() {
        let mut p = Pending::new();
        for value in 0..3 {
            p.add(with_value(10, value)).expect("room");
            p.add(with_value(40, value)).expect("room");
        }
        let all = SigSet(u64::MAX);
        assert_eq!(p.take(all), Some(with_value(10, 0)));
        for value in 0..3 {
            assert_eq!(p.take(all), Some(with_value(40, value)));
        }
        assert_eq!(p.take(all), None);
    }

    #[test]
    fn a_full_queue_loses_details_but_not_the_signal() {
        let mut p = Pending::new();
        for value in 0..MOST_QUEUED as u64 {
            p.add(with_value(40, value)).expect("room");
        }
        assert_eq!(p.add(with_value(41, 0)), Err(Full));
        assert!(p.has(Signal::new(41).expect("valid")));
        assert_eq!(p.take(SigSet::of(&[Signal::new(41).expect("valid")])).map(|i| i.signal.number()), Some(41));
    }

    #[test]
    fn what_is_discarded_is_gone() {
        let mut p = Pending::new();
        p.add(with_value(18, 0)).expect("room");
        p.add(with_value(20, 0)).expect("room");
        p.discard(SigSet::STOPPING);
        assert_eq!(p.set(), SigSet::of(&[Signal::CONT]));
    }
}
