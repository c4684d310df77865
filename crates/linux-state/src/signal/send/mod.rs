//! Sending: a signal becomes pending, and a thread that may receive it is notified.
//!
//! The module [`receiver`] describes the protocol by which a sender and a thread lose no signal.

pub mod group;
pub mod mask;
pub mod stop;

use crate::errno::Errno;
use crate::machine::Machine;
use crate::process::limits::which;
use crate::process::thread::{Thread, work};
use crate::process::users::{Account, Charge};
use crate::signal::action::Default as DefaultAction;
use crate::signal::info::{SigInfo, code};
use crate::signal::pending::Full;
use crate::signal::receiver;
use crate::signal::receiver::Receiver;
use crate::signal::set::{SigSet, Signal};
use crate::{Ctx, Linux, Process};
use quire_heap::Arc;
use quire_sync::atomic::Ordering;
use quire_task::Thread as Task;

/// The result of sending a timer's signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// The signal is in a queue.
    Queued,
    /// The process ignores the signal.
    Ignored,
    /// There was no memory for the signal's entry in the queue.
    NoMemory,
}

impl<M: Machine> Thread<M> {
    /// The fields that the senders of signals to this thread use.
    #[inline]
    pub fn receiver(&self) -> Receiver<'_> {
        let Thread { work, blocked, awaited, pending, process, .. } = self;
        Receiver { work, blocked, awaited, own: pending, process: &process.pending }
    }

    /// The signals that the thread blocks.
    pub fn blocked(&self) -> SigSet {
        self.receiver().blocked()
    }

    /// Makes `set` (without SIGKILL and SIGSTOP) the blocked signals. Sets the signal flag if a pending signal is now
    /// unblocked. Called by the thread itself.
    pub fn set_blocked(&self, set: SigSet) {
        // This thread may have been notified of signals that it now blocks, so another thread is notified.
        self.hand_on(self.receiver().block(set));
    }

    /// Notifies other threads of the process's signals in `left`, of which only this thread may have been notified.
    #[inline]
    pub fn hand_on(&self, left: SigSet) {
        if !left.is_empty() {
            self.linux.notify_of_all(&self.process, left);
        }
    }

    /// Sets the thread's signal flag if an unblocked signal is pending.
    pub fn look_for_signals(&self) {
        self.receiver().look();
    }

    /// Removes a pending signal of `wanted`, for a call that returns it to the program. Called by the thread itself.
    pub fn take_pending(&self, wanted: SigSet) -> Option<SigInfo> {
        loop {
            let info = self.pending.take(wanted).or_else(|| self.process.pending.take(wanted))?;
            if let Some(info) = self.process.signal_taken(info) {
                return Some(info);
            }
        }
    }

    fn wants(&self, signal: Signal) -> bool {
        self.receiver().wants(signal)
    }
}

impl<M: Machine> Linux<M> {
    /// Sends a signal to one thread. EAGAIN if a real-time signal found no room in the queue.
    pub fn signal_thread(&self, task: &Task<M>, info: SigInfo) -> Result<(), Errno> {
        let Some(thread) = task.payload() else { return Err(Errno::ESRCH) };
        let process = &thread.process;
        if self.spares(process, info.signal) || !self.prepare(process, info.signal, Some(thread)) {
            return Ok(());
        }
        let charge = self.charge_signal(process, Some(thread), &info).unwrap_or_default();
        let room = thread.pending.add(info, charge);
        receiver::published();
        if thread.wants(info.signal) {
            thread.work.fetch_or(work::SIGNAL, Ordering::AcqRel);
            self.poke(task);
        }
        notify_signal_files(&thread.process);
        room.map_err(|Full| Errno::EAGAIN)
    }

    /// Sends a signal to a process. Any of its threads that does not block the signal may receive it. Called with no
    /// spin lock held.
    pub fn signal_process(&self, process: &Process<M>, info: SigInfo) -> Result<(), Errno> {
        let sent = self.signal_process_locked(process, info);
        notify_signal_files(process);
        sent
    }

    /// Does the work of [`signal_process`](Self::signal_process), except the call of [`notify_signal_files`]. A caller
    /// that holds locks uses this method, releases the locks, and then calls that function.
    pub fn signal_process_locked(&self, process: &Process<M>, info: SigInfo) -> Result<(), Errno> {
        if self.spares(process, info.signal) {
            return Ok(());
        }
        if info.signal == Signal::KILL {
            self.kill_process(process, Signal::KILL);
            return Ok(());
        }
        if !self.prepare(process, info.signal, None) {
            return Ok(());
        }
        // `None`: the last thread of the process has just ended.
        let Some(charge) = self.charge_signal(process, None, &info) else { return Ok(()) };
        let room = process.pending.add(info, charge);
        receiver::published();
        self.notify_one(process, info.signal);
        room.map_err(|Full| Errno::EAGAIN)
    }

    /// Sends the signal of a timer of `process`. The receiver is `task`, one of its threads, or any thread if `task` is
    /// `None`. The entry in the queue is charged to the timer.
    pub fn signal_of_timer(&self, process: &Process<M>, task: Option<&Task<M>>, info: SigInfo) -> Sent {
        if info.signal == Signal::KILL && !self.spares(process, info.signal) {
            self.kill_process(process, Signal::KILL);
            return Sent::Queued;
        }
        let thread = task.and_then(|task| task.payload().as_ref());
        if self.spares(process, info.signal) || !self.prepare(process, info.signal, thread) {
            return Sent::Ignored;
        }
        let room = thread.map_or(&process.pending, |thread| &thread.pending).add_of_timer(info);
        if room == Err(Full) {
            return Sent::NoMemory;
        }
        receiver::published();
        match (task, thread) {
            (Some(task), Some(thread)) if thread.wants(info.signal) => {
                thread.work.fetch_or(work::SIGNAL, Ordering::AcqRel);
                self.poke(task);
            }
            (Some(_), _) => {}
            (None, _) => self.notify_one(process, info.signal),
        }
        notify_signal_files(process);
        Sent::Queued
    }

    /// Charges a signal's entry in a queue to the user of `thread`, or of a thread of `process`. `None` if the process
    /// has no thread. `Some(None)` if the user is at its limit. As on Linux, the limit (the receiver's
    /// `RLIMIT_SIGPENDING`) does not apply to standard signals of `kill` and of the kernel.
    fn charge_signal(
        &self,
        process: &Process<M>,
        thread: Option<&Thread<M>>,
        info: &SigInfo,
    ) -> Option<Option<Charge>> {
        let always = !info.signal.is_queued() && info.code >= 0;
        let limit = if always { u64::MAX } else { process.soft_limit(which::SIGPENDING) };
        let of = |thread: &Thread<M>| {
            thread.user_charge.look(|user_charge| self.users.charge(user_charge, Account::Signals, 1, limit))
        };
        match thread {
            Some(thread) => Some(of(thread)),
            None => process.threads.lock().iter().find_map(|task| task.payload().as_ref()).map(of),
        }
    }

    /// Whether `signal` has no effect on `process`. Other processes cannot send SIGKILL or SIGSTOP to process 1, as in
    /// a container. Process 1 can send both to itself. A signal that can be handled, but has no handler, ends process 1
    /// like any other process. So a program behaves as usual when it runs as process 1.
    fn spares(&self, process: &Process<M>, signal: Signal) -> bool {
        SigSet::UNBLOCKABLE.has(signal) && process.pid == 1 && !process.is_callers()
    }

    /// Notifies one thread of `process` that `signal` is pending for the process. Only threads that do not block the
    /// signal are candidates. A thread without another signal to handle is preferred.
    fn notify_one(&self, process: &Process<M>, signal: Signal) {
        let threads = process.threads.lock();
        let receivers = threads.iter().filter_map(|task| Some((task, task.payload().as_ref()?.receiver())));
        if let Some(task) = receiver::notify_one(receivers, signal) {
            self.poke(task);
        }
    }

    /// Notifies one thread of `process` for each signal in `left`. These signals are pending for the process.
    #[cold]
    pub fn notify_of_all(&self, process: &Process<M>, mut left: SigSet) {
        while let Some(signal) = left.first() {
            self.notify_one(process, signal);
            left = left.without(SigSet::of(&[signal]));
        }
    }

    /// Applies the effects of `signal` that take place when it is sent, even if it is blocked. SIGCONT continues the
    /// process and removes pending stop signals. A stop signal removes a pending SIGCONT. Returns whether the signal
    /// becomes pending.
    fn prepare(&self, process: &Process<M>, signal: Signal, thread: Option<&Thread<M>>) -> bool {
        if process.is_exiting() {
            return false;
        }
        if signal == Signal::CONT {
            discard_everywhere(process, SigSet::STOPPING);
            // Also cancels a stop signal that a thread has removed from a queue but not acted upon yet.
            for thread in process.threads.lock().iter().filter_map(|task| task.payload().as_ref()) {
                thread.stop_taken.store(false, Ordering::Relaxed);
            }
            stop::go_on(process);
        } else if SigSet::STOPPING.has(signal) {
            discard_everywhere(process, SigSet::of(&[Signal::CONT]));
        }
        let ignored =
            process.with_actions(|actions| actions.get(signal)).ignores(signal) && !SigSet::UNBLOCKABLE.has(signal);
        if !ignored {
            return true;
        }
        // Blocked signals stay pending even if they are ignored now: the action may change before they are unblocked.
        match thread {
            Some(thread) => thread.blocked().has(signal),
            None => process.threads.lock().iter().all(|t| t.payload().as_ref().is_none_or(|t| t.blocked().has(signal))),
        }
    }

    /// Sends a signal that the thread itself raised. If the thread blocks or ignores the signal, the signal ends the
    /// process.
    pub fn force_signal(&self, thread: &Thread<M>, info: SigInfo) {
        let signal = info.signal;
        {
            let process = &thread.process;
            if thread.blocked().has(signal) || process.with_actions(|actions| actions.get(signal).handler == 1) {
                self.reset_action(process, signal);
            }
        }
        thread.blocked.fetch_and(!SigSet::of(&[signal]).0, Ordering::AcqRel);
        let charge = self.charge_signal(&thread.process, Some(thread), &info).unwrap_or_default();
        let _room = thread.pending.add(info, charge);
        thread.work.fetch_or(work::SIGNAL, Ordering::AcqRel);
    }

    /// Resets the action of `signal`. The caller is a thread of `process`, and is about to send itself this signal. A
    /// copy of [frozen](crate::signal::Actions) actions needs memory. If there is none, the signal ends the process at
    /// once.
    pub fn reset_action(&self, process: &Process<M>, signal: Signal) {
        // SAFETY: the caller is a thread of the process, and holds no view of its actions.
        match unsafe { process.own_actions() } {
            Ok(()) => process.with_actions(|actions| actions.reset(signal)),
            Err(_) => self.kill_process(process, signal),
        }
    }

    /// Whether `thread` has a handler that would run if [`force_signal`](Self::force_signal) sent it `signal`.
    pub fn handles(&self, thread: &Thread<M>, signal: Signal) -> bool {
        let handler = thread.process.with_actions(|actions| actions.get(signal).handler);
        // A handler of 0 is the default action, and 1 ignores the signal.
        handler > 1 && !thread.blocked().has(signal)
    }

    /// Ends all threads of `process`, with `signal` in its wait status.
    pub fn kill_process(&self, process: &Process<M>, signal: Signal) {
        if !process.begin_exit(i32::from(signal.number())) {
            process.killed.store(true, Ordering::Relaxed);
        }
    }
}

impl<M: Machine> Ctx<'_, M> {
    /// Sends the calling thread the signal for a refused write: SIGPIPE if there is no reader, SIGXFSZ beyond the file
    /// size limit. The sender is the thread itself.
    pub fn refused_write(&self, signal: Signal) {
        debug_assert!(!stops(signal));
        let info = self.process().as_sender(signal, self.credentials().real_user);
        let _merged = self.linux.signal_thread(&self.linux.scheduler.current(), info);
    }
}

/// Wakes the readers of the `signalfd` files of `process`. Called after a signal became pending, with no spin lock
/// held.
pub fn notify_signal_files<M: Machine>(process: &Process<M>) {
    if let Some(files) = process.signal_files.get() {
        files.notify();
    }
}

fn discard_everywhere<M: Machine>(process: &Process<M>, gone: SigSet) {
    let mut of_timer = process.pending.discard(gone);
    for task in process.threads.lock().iter() {
        if let Some(thread) = task.payload() {
            of_timer |= thread.pending.discard(gone);
        }
    }
    if of_timer && let Some(timers) = process.posix_timers.get() {
        timers.dropped(process, gone);
    }
}

/// Removes pending signals `signal` of a process that ignores them from now on.
pub fn discard_ignored<M: Machine>(process: &Arc<Process<M>>, signal: Signal) {
    discard_everywhere(process, SigSet::of(&[signal]));
}

/// Whether the default action of `signal` is to stop the process.
pub fn stops(signal: Signal) -> bool {
    DefaultAction::of(signal) == DefaultAction::Stop
}

/// The signal for exception `vector` at the instruction address `ip`. `float_state` returns the x87 control word, the
/// x87 status word and MXCSR.
pub fn of_exception(vector: u8, _error: u64, ip: u64, float_state: impl FnOnce() -> (u16, u16, u32)) -> SigInfo {
    match vector {
        0 => SigInfo::fault(Signal::FPE, code::FPE_INTDIV, ip),
        1 => SigInfo::fault(Signal::TRAP, code::TRAP_TRACE, ip),
        3 => SigInfo { signal: Signal::TRAP, code: code::KERNEL, errno: 0, detail: crate::signal::Detail::None },
        6 => SigInfo::fault(Signal::ILL, code::ILL_ILLOPN, ip),
        16 | 19 => {
            let (control, status, mxcsr) = float_state();
            let raised = if vector == 16 { u32::from(status & !control) } else { !(mxcsr >> 7) & mxcsr };
            SigInfo::fault(Signal::FPE, float_code(raised), ip)
        }
        17 => SigInfo::fault(Signal::BUS, code::BUS_ADRALN, ip),
        // As on Linux, segment-not-present and stack faults are SIGBUS. General protection faults and other exceptions
        // are SIGSEGV without an address.
        11 | 12 => SigInfo { signal: Signal::BUS, code: code::KERNEL, errno: 0, detail: crate::signal::Detail::None },
        _ => SigInfo { signal: Signal::SEGV, code: code::KERNEL, errno: 0, detail: crate::signal::Detail::None },
    }
}

fn float_code(raised: u32) -> i32 {
    match raised {
        r if r & 0x01 != 0 => code::FPE_FLTINV,
        r if r & 0x04 != 0 => code::FPE_FLTDIV,
        r if r & 0x08 != 0 => code::FPE_FLTOVF,
        r if r & 0x12 != 0 => code::FPE_FLTUND,
        r if r & 0x20 != 0 => code::FPE_FLTRES,
        _ => 0,
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn exceptions_become_the_signals_that_linux_sends() {
        let none = || (0, 0, 0);
        assert_eq!(of_exception(0, 0, 5, none), SigInfo::fault(Signal::FPE, code::FPE_INTDIV, 5));
        assert_eq!(of_exception(6, 0, 5, none).signal, Signal::ILL);
        assert_eq!(of_exception(13, 0, 5, none).code, code::KERNEL);
        let divide = || (0, 0, 0x0004);
        assert_eq!(of_exception(19, 0, 5, divide).code, code::FPE_FLTDIV);
        let masked = || (0, 0, 0x0204);
        assert_eq!(of_exception(19, 0, 5, masked).code, 0);
    }
}
