//! The signals of timers: how they are queued after an expiry, and how the receipt of a signal arms its timer again.

use crate::Linux;
use crate::machine::Machine;
use crate::process::Process;
use crate::process::timers::posix::Notify;
use crate::process::timers::posix::PosixTimers;
use crate::process::timers::posix::course::Status;
use crate::process::timers::posix::timer::PosixTimer;
use crate::signal::send::Sent;
use crate::signal::{Detail, SigInfo, SigSet};
use quire_heap::Arc;

/// The time after which a signal that found no memory is sent again, in nanoseconds.
const RETRY: u64 = 10_000_000;
/// After an ignored signal, a periodic timer is armed for a time at least this number of nanoseconds later, even if its
/// period is shorter.
const IGNORED: u64 = 4_000_000;
/// If a process has many timers, that time is longer: at least this number of nanoseconds for each timer of the
/// process. So all its timers together use a small part of a CPU.
const IGNORED_EACH: u64 = 50_000;

impl<M: Machine> PosixTimers<M> {
    /// Removes an expired timer from the list, and returns it with the signal to send.
    pub fn next_expired(&self) -> Option<(Arc<PosixTimer<M>>, SigInfo)> {
        loop {
            let timer = {
                let expired = self.expired.lock(self.linux.machine);
                let first = expired.list.first()?;
                let raw = first.as_ptr().cast_const();
                // SAFETY: a timer on the list is in an `Arc`, which its process holds until the timer is off the list.
                unsafe {
                    Arc::increment_strong_count(raw);
                    Arc::from_raw(raw)
                }
            };
            let mut state = timer.state.lock();
            // If another thread has set the timer since the lookup, `unlist` returns false. That thread has removed the
            // timer from the list, and may have added it to a wheel.
            let signal = if timer.unlist() { PosixTimer::expired(&timer, &mut state, 0) } else { None };
            drop(state);
            if let Some(signal) = signal {
                return Some((timer, signal));
            }
        }
    }

    /// Called after the signal `sent` of `timer` was queued. If the timer was set again or deleted before the signal
    /// was in the queue, the setter found no signal to remove. Then this method removes the signal. A later setter
    /// finds the signal in the queue.
    pub fn sent(&self, process: &Process<M>, timer: &PosixTimer<M>, sent: &SigInfo) {
        let Detail::Timer { setting, .. } = sent.detail else { return };
        let now = timer.state.lock().course.setting;
        if now != setting {
            timer.unqueue(process, setting);
        }
    }

    /// Called when the signal of `timer` was not sent, because it is ignored or memory was out. The next expiry tries
    /// again.
    pub fn not_sent(&self, process: &Process<M>, timer: &Arc<PosixTimer<M>>, sent: &SigInfo, ignored: bool) {
        let Detail::Timer { setting, .. } = sent.detail else { return };
        let cpu_time = timer.cpu_time(process);
        let mut state = timer.state.lock();
        if state.course.setting != setting || state.course.status != Status::Queued {
            return;
        }
        let (Ok(cpu_time), false) = (cpu_time, ignored && state.course.every == 0) else {
            state.course.status = Status::Off;
            return;
        };
        state.course.status = Status::Armed;
        let now = timer.now(&state, cpu_time);
        if ignored {
            // `IGNORED` is the tick of Linux, so that an ignored signal causes no more work than on Linux.
            let pause = IGNORED.max(self.slots.size() as u64 * IGNORED_EACH);
            state.course.forward(now.saturating_add(pause));
        } else if timer.is_on_cpu_time() {
            state.course.expires = now.saturating_add(RETRY);
        } else {
            timer.arm_at(after(RETRY));
            return;
        }
        PosixTimer::arm(timer, &mut state);
    }

    /// Called when the signal `info` of a timer was removed from a queue. Arms the timer for its next period, and
    /// returns the signal with its overrun. `None` if the timer was set again or deleted since the expiry.
    pub fn taken(&self, process: &Process<M>, info: SigInfo) -> Option<SigInfo> {
        let Detail::Timer { id, value, setting, .. } = info.detail else { return Some(info) };
        let timer = self.find(id)?;
        let cpu_time = timer.cpu_time(process);
        let mut state = timer.state.lock();
        if state.course.setting != setting || state.course.status != Status::Queued {
            return None;
        }
        let now = cpu_time.ok().map(|cpu_time| timer.now(&state, cpu_time));
        let overrun = state.course.taken(now);
        if state.course.status == Status::Armed {
            PosixTimer::arm(&timer, &mut state);
        }
        drop(state);
        if timer.is_on_cpu_time() {
            process.count_soon(&self.linux.scheduler.current());
        }
        Some(SigInfo { detail: Detail::Timer { id, overrun, value, setting }, ..info })
    }

    /// Called when queued signals in the set `gone` were dropped. Their timers continue with the next period.
    #[cold]
    pub fn dropped(&self, process: &Process<M>, gone: SigSet) {
        self.each(|timer| {
            let cpu_time = timer.cpu_time(process);
            let (Notify::Process(signal) | Notify::Thread(signal, _)) = timer.notify else { return };
            let mut state = timer.state.lock();
            if gone.has(signal) && state.course.status == Status::Queued {
                let now = cpu_time.ok().map(|cpu_time| timer.now(&state, cpu_time));
                let _overrun = state.course.taken(now);
                if state.course.status == Status::Armed {
                    PosixTimer::arm(timer, &mut state);
                }
            }
        });
        if let Some(limit) = process.cpu_limit.get() {
            limit.count_in_all_threads(self.linux, process);
        }
    }
}

/// The time `nanos` nanoseconds from now, in nanoseconds since boot.
fn after(nanos: u64) -> u64 {
    quire_sync::hooks::now().saturating_add(nanos)
}

/// Sends the signals of the expired timers of `process`, which is the caller's.
pub fn send_expired<M: Machine>(linux: &'static Linux<M>, process: &Process<M>) {
    let Some(timers) = process.posix_timers.get() else { return };
    while let Some((timer, signal)) = timers.next_expired() {
        send_signal(linux, process, &timer, signal);
    }
}

/// Sends the signal of an expired timer.
pub fn send_signal<M: Machine>(
    linux: &'static Linux<M>,
    process: &Process<M>,
    timer: &Arc<PosixTimer<M>>,
    signal: SigInfo,
) {
    let task = match timer.receiver() {
        None => None,
        Some(tid) => match process.threads.lock().get(tid).cloned() {
            // As on Linux, a timer stops when the thread that it notifies has ended.
            None => return,
            some => some,
        },
    };
    let sent = linux.signal_of_timer(process, task.as_deref(), signal);
    let Some(timers) = process.posix_timers.get() else { return };
    match sent {
        Sent::Queued => timers.sent(process, timer, &signal),
        Sent::Ignored | Sent::NoMemory => timers.not_sent(process, timer, &signal, sent == Sent::Ignored),
    }
}
