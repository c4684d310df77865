//! Out of memory: the kernel chooses a process and ends it, and other threads wait for that process's memory.
//!
//! # Trigger
//! The memory core has decided that programs make no progress ([`quire_vm::reclaim::scan`]). A fault or a system call
//! that needs memory gets an error from the core, and calls [`Linux::out_of_memory`]. That function waits until a
//! victim's memory is free. The caller then tries again.
//!
//! # Choice of the victim
//! The victim is the process with the largest sum of resident pages, pages in swap, page tables, and kernel memory that
//! its descriptors hold. Each point of `oom_score_adj` adds a thousandth of memory and swap, as on Linux. A process
//! with -1000 is exempt. Process 1 ends only if no other process can. Processes that share an address space end
//! together. `/proc/<pid>/oom_score` shows this badness on Linux's scale.
//!
//! A user with many small processes is seen as one large process: if the processes of a user hold most of the memory
//! that processes hold, the victim is one of them ([`users`]). More of that user's processes end with it, until they
//! give back a [share](BATCH) of memory. The user's forks then wait until memory is free ([`FORKS_WAIT`]). So a kill
//! frees more than the next fork takes. User 0 is exempt from this rule.
//!
//! An exact count is slow: it walks the page tables of a process, and its object indexes if pages are in swap. So a
//! process is counted exactly only if upper bounds from a few counters could make it the victim. Most processes of a
//! fork bomb are alike, and no bound excludes them. So after [`WEIGHED`] exact counts, the peak number of resident pages
//! is the bound. Such a bound may miss a process that had fewer pages in memory at once than it has in swap now. It may
//! also miss one with many page tables for few pages.
//!
//! # End of the victim
//! 1. The victim's threads are killed. An ending thread does not wait for memory, and may use a part of the reserve
//!    ([`is_ending`](quire_vm::Machine::is_ending)). Its interruptible waits end.
//! 2. The victim may still have its memory after [`GRACE`], because one of its threads waits for another event. A
//!    waiter then condemns the victim's space and frees its memory ([`reap`](quire_vm::Space::reap)). The victim's
//!    threads need not run while the waiter frees the memory. So memory becomes free even if a thread of the victim
//!    holds a lock that the waiters need.
//! 3. If the victim still has memory after a second ([`victims`](dying)), the kernel gives it up. Another victim may
//!    then be chosen.
//!
//! There is one victim at a time, so that a burst of failed faults ends one process and not ten.
//!
//! A thread that chooses a victim may run beside three kinds of threads:
//! - Waiters sleep on the queue `waits`. The choosing thread sleeps there too, after it has killed the victim. The
//!   victim's end wakes all of them.
//! - A thread of the victim may itself be a waiter. Its own end interrupts its wait.
//! - Another choosing thread waits for the lock `choosing`, and then finds the victim that the first one chose.

pub mod dying;
mod users;

use crate::Linux;
use crate::machine::Machine;
use crate::memory::Foreign;
use crate::process::Process;
use crate::process::thread::Thread;
use crate::signal::Signal;
use dying::{Dying, GRACE, Step};
use quire_heap::Arc;
use quire_sync::atomic::Ordering;
use quire_sync::hooks::now;
use quire_vm::PAGE_SIZE;
use quire_vm::map::Holdings;
use users::Sums;

/// `oom_score_adj` of a process that is never chosen.
pub const EXEMPT: i32 = -1000;

impl<M: Machine> Process<M> {
    /// The process's badness in pages, and the memory that it holds. `None` if the process is exempt or holds no
    /// memory.
    fn badness(&self) -> Option<(i64, Held)> {
        let held = Held { memory: self.memory()?.holdings(), files: self.held_by_files() / PAGE_SIZE };
        Some((self.points(held)?, held))
    }

    /// The badness of a process that holds `held`. `None` if the process is exempt.
    fn points(&self, held: Held) -> Option<i64> {
        badness(held, self.oom_adjust.load(Ordering::Relaxed), self.linux.total_pages())
    }

    /// Upper bounds of the memory that the process holds, read from counters. `rough` says that only the peak number of
    /// resident pages counts. `None` if the process holds no memory.
    fn most_held(&self, rough: bool) -> Option<Held> {
        let memory = self.memory()?;
        let memory = match rough {
            true => Holdings { resident: memory.peak_resident(), ..Holdings::default() },
            false => memory.most_holdings(),
        };
        Some(Held { memory, files: self.held_by_files() / PAGE_SIZE })
    }

    /// The score that `/proc/<pid>/oom_score` shows.
    pub fn oom_score(&self) -> u64 {
        self.badness().map_or(0, |(points, _)| score(points, self.linux.total_pages()))
    }
}

/// The number of processes whose memory is counted exactly before the peak is the bound.
const WEIGHED: u32 = 256;

/// Nanoseconds for which the forks of a user wait after a process of that user has ended for want of memory.
const FORKS_WAIT: u64 = 1_000_000_000;
/// If the processes of one user hold most memory, the kernel ends several of them at once. It stops when the ended
/// processes held one `BATCH`th of memory and swap.
const BATCH: u64 = 32;

/// The memory that a process holds, in pages.
#[derive(Clone, Copy, Default)]
struct Held {
    memory: Holdings,
    /// The kernel memory that its descriptors hold.
    files: u64,
}

impl Held {
    fn total(&self) -> u64 {
        self.memory.total().saturating_add(self.files)
    }
}

/// The badness of a process, in pages. `None` if the process is exempt.
fn badness(held: Held, adjust: i32, total: u64) -> Option<i64> {
    if adjust == EXEMPT {
        return None;
    }
    let pages = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    Some(pages(held.total()).saturating_add(i64::from(adjust).saturating_mul(pages(total / 1000))))
}

/// The badness on Linux's scale: 666 for a process that holds nothing, 1333 for one with all memory, more with
/// `oom_score_adj`.
fn score(points: i64, total: u64) -> u64 {
    let share = points.saturating_mul(1000) / i64::try_from(total.max(1)).unwrap_or(i64::MAX);
    u64::try_from(share.saturating_add(1000).saturating_mul(2) / 3).unwrap_or(0)
}

/// A chosen victim.
struct Choice<M: Machine> {
    process: Arc<Process<M>>,
    points: i64,
    held: Held,
    /// The user whose processes hold most memory, if the victim was chosen among this user's processes.
    user: Option<u32>,
}

impl<M: Machine> Linux<M> {
    /// Chooses and kills a victim, or waits for a victim that already ends. Called by a thread whose request for memory
    /// was refused, when only the end of a process can free memory. `why` describes the request, for the log.
    ///
    /// Returns whether to try again; false if the calling thread must end itself. May sleep. The caller holds no lock
    /// that a system call needs in order to end. Page faults call this method, and system calls that would otherwise
    /// fail.
    #[cold]
    pub fn out_of_memory(&'static self, why: &str) -> bool {
        let me = self.current();
        loop {
            if me.killed() {
                return false;
            }
            match self.victims.step(now()) {
                Step::Done => break,
                Step::Reap => self.reap_victim(),
                Step::Until(deadline) => {
                    if self.wait_for_victim(me, deadline) {
                        return !me.killed();
                    }
                }
            }
        }
        // One thread chooses. The others wait for the victim's end together. They do not queue for the lock, because
        // each of thousands would then check memory again, one after the other.
        if let Some(one) = self.victims.choosing.try_lock() {
            self.victims.is_choosing.store(true, Ordering::Release);
            // Another thread may have chosen a victim already, or memory became free.
            let kills = self.victims.process().is_none() && self.is_short();
            if kills {
                self.as_system(me, || self.kill_one(me, why));
            }
            self.victims.is_choosing.store(false, Ordering::Release);
            drop(one);
            self.victims.waits.wake_all();
            if !kills {
                return !me.killed();
            }
        }
        if me.killed() {
            return false;
        }
        // Most victims leave their memory before this wait ends.
        self.wait_for_victim(me, now() + GRACE);
        !me.killed()
    }

    /// Ends the caller's process, because its request `why` was refused `times` times although memory was free each
    /// time. If the caller's process is process 1 or shares its memory, the process with the most memory ends instead.
    /// Returns whether to try again. May sleep. The caller fulfils the conditions of [`Linux::out_of_memory`].
    #[cold]
    pub fn end_for_defeats(&'static self, why: &str, times: u32) -> bool {
        let me = self.current();
        let process = &me.process;
        let init = self.first.lock().clone();
        let is_first = init.as_ref().is_some_and(|init| {
            Arc::ptr_eq(init, process)
                || init.memory().is_some_and(|theirs| process.memory().is_some_and(|own| own.is_same(&theirs)))
        });
        if !is_first {
            self.machine.log(format_args!(
                "out of memory: process {} ({}) is killed: {why} was refused {times} times",
                process.pid,
                Printed(process)
            ));
            self.kill_process(process, crate::signal::Signal::KILL);
            return false;
        }
        let one = self.victims.choosing.lock();
        self.victims.is_choosing.store(true, Ordering::Release);
        if self.victims.process().is_none() {
            self.as_system(me, || self.kill_one(me, why));
        }
        self.victims.is_choosing.store(false, Ordering::Release);
        drop(one);
        self.victims.waits.wake_all();
        self.wait_for_victim(me, now() + GRACE);
        // If memory is not short, the wait above ends at once. This thread then yields, because the victim needs a CPU
        // in order to end.
        self.scheduler.yield_now();
        !me.killed()
    }

    /// Calls `f` while the calling thread `me` uses the system's share of the CPUs, not its user's. All threads that
    /// wait for memory wait for `f`, and the user may have thousands of threads that want a turn.
    fn as_system(&self, me: &Thread<M>, f: impl FnOnce()) {
        // SAFETY: the thread itself runs this, and does not replace its charge. The charge keeps the user alive.
        let user = unsafe {
            self.scheduler.become_user(None);
            me.user_charge.get().share()
        };
        f();
        // SAFETY: as before, the charge keeps the user alive until the thread leaves the user.
        unsafe { self.scheduler.become_user(user) };
    }

    /// Sleeps until the victim has left its memory, other memory is free, or `deadline` has passed. Returns true in the
    /// first two cases.
    fn wait_for_victim(&self, me: &Thread<M>, deadline: u64) -> bool {
        let gone = || {
            !self.victims.is_choosing.load(Ordering::Acquire)
                && self.victims.process().is_none_or(|process| process.has_left_memory())
        };
        let ready = || (!self.vm.frames().is_low() || gone()).then_some(());
        self.victims.waits.wait_until(Some(deadline), || me.killed(), ready).is_ok()
    }

    /// Whether memory is still short after the CPUs' cached free frames were returned.
    fn is_short(&self) -> bool {
        if !self.vm.frames().is_low() {
            return false;
        }
        self.vm.drain_caches();
        self.vm.frames().is_low()
    }

    /// The size of memory and swap, in pages.
    pub(crate) fn total_pages(&self) -> u64 {
        self.vm.frames().total() + self.vm.swap().total()
    }

    /// # Requires
    /// `choosing` is held.
    fn kill_one(&'static self, me: &Thread<M>, why: &str) {
        let Some(choice) = self.choose() else {
            // Exempt processes hold all memory. Killing process 1 stops the machine; Linux panics in this case.
            self.machine.log(format_args!("out of memory: {why}, and all processes are exempt"));
            if let Some(first) = self.first.lock().clone() {
                self.kill_process(&first, crate::signal::Signal::KILL);
            }
            return;
        };
        let victim = choice.process;
        if !victim.is_exiting() {
            let kib = |pages: u64| pages * (PAGE_SIZE / 1024);
            self.machine.log(format_args!(
                "out of memory: process {} ({}) is killed: {} KiB resident, {} KiB in swap, \
                 {} KiB of page tables, {} KiB in open files, oom_score_adj {}; {why} of \
                 process {} ({})",
                victim.pid,
                Printed(&victim),
                kib(choice.held.memory.resident),
                kib(choice.held.memory.swapped),
                kib(choice.held.memory.tables),
                kib(choice.held.files),
                victim.oom_adjust.load(Ordering::Relaxed),
                me.process.pid,
                Printed(&me.process),
            ));
        }
        if victim.is_exiting() {
            victim.hasten_end();
        }
        let memory = victim.memory();
        let before = self.victims.dying.lock().replace(Dying { process: victim.clone(), since: now(), reaped: false });
        drop(before);
        victim.make_forks_wait(now() + FORKS_WAIT);
        self.kill_process(&victim, Signal::KILL);
        // The processes that share the victim's memory end too.
        if let Some(memory) = memory {
            for other in self.ids.processes() {
                if !Arc::ptr_eq(&other, &victim) && other.memory().is_some_and(|theirs| theirs.is_same(&memory)) {
                    self.kill_process(&other, Signal::KILL);
                }
            }
        }
        if let Some(user) = choice.user {
            self.kill_more(user, choice.held.total());
        }
    }

    /// Ends further processes of a user that holds most memory with many small processes. `freed` pages are free when
    /// the first victim has ended.
    fn kill_more(&self, user: u32, mut freed: u64) {
        let wanted = self.total_pages() / BATCH;
        let mut ended = 0u32;
        let init = self.memory_of_first();
        for process in self.ids.processes() {
            if freed >= wanted {
                break;
            }
            if !Self::may_end_for(&process, user, init.as_ref()) {
                continue;
            }
            let Some((_, held)) = process.badness().filter(|(points, _)| *points >= 0) else { continue };
            freed += held.total().max(1);
            ended += 1;
            self.kill_process(&process, Signal::KILL);
        }
        if ended > 0 {
            self.machine.log(format_args!("out of memory: {ended} more processes of user {user} are killed"));
        }
    }

    /// The process to end. `None` if all processes that hold memory are exempt.
    fn choose(&self) -> Option<Choice<M>> {
        let init_memory = self.memory_of_first();
        let mut best: Option<Choice<M>> = None;
        let mut users = Sums::new();
        let (mut first, mut alone, mut weighed) = (None, true, 0);
        for process in self.ids.processes() {
            if process.given_up.load(Ordering::Acquire) {
                continue;
            }
            let Some(memory) = process.memory() else { continue };
            let shared = init_memory.as_ref().is_some_and(|theirs| memory.is_same(theirs));
            if process.is_exiting() && !shared {
                // This process already ends and frees its memory, so no other process has to end.
                return Some(Choice { process, points: i64::MAX, held: Held::default(), user: None });
            }
            if let Some(best) = best.as_ref().filter(|_| !shared) {
                let Some(most) = process.most_held(weighed >= WEIGHED) else { continue };
                match process.points(most) {
                    Some(points) if points <= best.points => {
                        // The bounds may be those of earlier times. The sums by user are of the present.
                        let resident = memory.resident_estimate();
                        let held = Held { memory: Holdings { resident, ..Holdings::default() }, ..most };
                        users.add(process.real_user(), held.total(), process.points(held).unwrap_or(0));
                        continue;
                    }
                    Some(_) => {}
                    None => {
                        alone = false;
                        continue;
                    }
                }
            }
            drop(memory);
            weighed += 1;
            let Some((points, held)) = process.badness() else {
                alone &= shared;
                continue;
            };
            let user = process.real_user();
            let choice = Choice { process, points, held, user: None };
            if !shared {
                users.add(user, held.total(), choice.points);
            }
            if shared {
                // `process` shares the memory of process 1: it is process 1 itself, or its child in a vfork.
                if first.is_none() {
                    first = Some(choice);
                }
            } else if best.as_ref().is_none_or(|b| b.points < choice.points) {
                best = Some(choice);
            }
        }
        // A larger process of another user stays.
        match users.majority().filter(|user| best.as_ref().is_some_and(|best| best.process.real_user() != *user)) {
            Some(user) => self.largest_of(user).or(best),
            None => {
                let user = users.majority();
                best.map(|best| Choice { user, ..best })
            }
        }
        .or(first.filter(|_| alone))
    }

    /// The memory of process 1.
    fn memory_of_first(&self) -> Option<Foreign<M>> {
        let init = self.first.lock().as_ref().cloned();
        init.and_then(|init| init.memory())
    }

    /// Whether a process may end because `user` holds most memory. Processes of other users, and processes that end
    /// already or share the memory of process 1 (`init`), may not. The caller also spares those that `oom_score_adj`
    /// protects: their points are negative.
    fn may_end_for(process: &Process<M>, user: u32, init: Option<&Foreign<M>>) -> bool {
        process.real_user() == user
            && !process.is_exiting()
            && !process.given_up.load(Ordering::Acquire)
            && process.memory().is_some_and(|memory| init.is_none_or(|init| !memory.is_same(init)))
    }

    /// The process of a user with the most points, as far as [`WEIGHED`] exact counts show.
    fn largest_of(&self, user: u32) -> Option<Choice<M>> {
        let init = self.memory_of_first();
        let mut best: Option<Choice<M>> = None;
        let mut weighed = 0;
        for process in self.ids.processes() {
            if !Self::may_end_for(&process, user, init.as_ref()) {
                continue;
            }
            if let Some(best) = &best
                && process.most_held(weighed >= WEIGHED).and_then(|most| process.points(most)) <= Some(best.points)
            {
                continue;
            }
            weighed += 1;
            let Some((points, held)) = process.badness().filter(|(points, _)| *points >= 0) else { continue };
            if best.as_ref().is_none_or(|b| b.points < points) {
                best = Some(Choice { process, points, held, user: Some(user) });
            }
        }
        best
    }

    /// Frees the memory of the victim, which has not left its memory within [`GRACE`].
    fn reap_victim(&self) {
        let Some(memory) = self.victims.process().and_then(|process| process.memory()) else { return };
        // All processes that share the memory were killed together with the victim, so no process needs the memory.
        memory.reap();
        drop(memory);
        self.victims.waits.wake_all();
    }
}

/// A process's name, for the log.
struct Printed<'a, M: Machine>(&'a Process<M>);

impl<M: Machine> core::fmt::Display for Printed<'_, M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let name = self.0.any_thread().and_then(|task| Some(*task.payload().as_ref()?.name.lock()));
        let name = name.unwrap_or_else(|| self.0.last_name());
        f.write_str(core::str::from_utf8(name.bytes()).unwrap_or("?"))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const HELD: Held = Held { memory: Holdings { resident: 100, swapped: 25, tables: 5 }, files: 5 };

    #[test]
    fn badness_is_the_held_memory_and_the_adjustment() {
        assert_eq!(badness(HELD, 0, 10_000), Some(135));
        assert_eq!(badness(HELD, 1000, 10_000), Some(10_135));
        assert_eq!(badness(HELD, 1, 10_000), Some(145));
        assert_eq!(badness(HELD, -999, 10_000), Some(135 - 9990));
        assert_eq!(badness(HELD, EXEMPT, 10_000), None);
        assert_eq!(badness(Held { files: u64::MAX / 2, ..HELD }, 1000, u64::MAX), Some(i64::MAX));
    }

    #[test]
    fn scores_are_scaled_as_linux_scales_them() {
        assert_eq!(score(0, 10_000), 666);
        assert_eq!(score(10_000, 10_000), 1333);
        assert_eq!(score(-9_990, 10_000), 0);
        assert_eq!(score(10_000 + 10_000, 10_000), 2000);
        assert_eq!(score(-20_000, 10_000), 0);
        assert_eq!(score(5, 0), 4000);
    }
}
