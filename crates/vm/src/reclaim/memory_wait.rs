//! Who waits for memory asks the daemon, which serves: neither sleeps for good while the other thinks that it is its turn.
//!
//! | | the daemon |
//! |---|---|
//! | **somebody asks** | counts itself, then says that the daemon is wanted. The daemon takes that word back, then looks at the count, in a step that sees who asked before (mutant [`Mutant::WantedForgotten`]); who asks later leaves the word, which the daemon looks at before it sleeps |
//! | **a pass did not help** | memory may have been taken again when those who wait look, and be there when the daemon looks. So who still has none after a pass asks again (mutant [`Mutant::AskedOnce`]) |

use crate::mutant::{Mutant, mutant};
use crate::sleep::MaySleep;
use quire_sync::WaitQueue;
use quire_sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What those who wait and the daemon tell each other.
pub(crate) struct Asking {
    /// Where faults sleep for memory.
    waits: WaitQueue,
    /// Where the daemon sleeps.
    daemon_waits: WaitQueue,
    /// Threads that sleep for memory.
    waiting: AtomicU64,
    /// Somebody saw that memory is short.
    wanted: AtomicBool,
    /// Passes that are over. It may wrap round.
    over: AtomicU64,
}

impl Asking {
    pub fn new() -> Asking {
        Asking {
            waits: WaitQueue::new(),
            daemon_waits: WaitQueue::new(),
            waiting: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
            over: AtomicU64::new(0),
        }
    }

    /// Whether somebody waits.
    pub fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Acquire) != 0
    }

    pub fn wake_daemon(&self) {
        self.wanted.swap(true, Ordering::AcqRel);
        self.daemon_waits.wake_all();
    }

    /// Those who wait look again.
    pub fn wake(&self) {
        self.waits.wake_all();
    }

    /// A pass is over: those who wait look again, and ask again.
    pub fn pass_is_over(&self) {
        self.over.fetch_add(1, Ordering::AcqRel);
        self.wake();
    }

    /// Asks the daemon, and sleeps until `ready`.
    pub fn wait(&self, may: &mut MaySleep, mut ready: impl FnMut() -> bool) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let mut done = false;
        while !done {
            // Before the daemon is asked: the pass that it makes for this is another one.
            let over = self.over.load(Ordering::Acquire);
            self.wake_daemon();
            may.sleep_on(&self.waits, || {
                done = ready();
                done || self.over.load(Ordering::Acquire) != over && !mutant(Mutant::AskedOnce)
            });
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    /// The daemon, until `stopped`. `work` is done at first and whenever the daemon is wanted or `woken`, as long as it asks for more
    /// by returning true; it is told whether somebody waits.
    pub fn serve(
        &self,
        may: &mut MaySleep,
        stopped: impl Fn() -> bool,
        woken: impl Fn() -> bool,
        mut work: impl FnMut(bool, &mut MaySleep) -> bool,
    ) {
        while !stopped() {
            if mutant(Mutant::WantedForgotten) {
                self.wanted.store(false, Ordering::Release);
            } else {
                self.wanted.swap(false, Ordering::AcqRel);
            }
            if !work(self.is_waited_for(), may) {
                may.wait_for_work(&self.daemon_waits, || self.wanted.load(Ordering::Acquire) || woken() || stopped());
            }
        }
    }
}
