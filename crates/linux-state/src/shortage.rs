//! Shortage of memory: the calls that wait, those that are repeated, and those that may use the last of the reserve.
//!
//! # Rule
//! Every allocation of this layer can be refused. A call that is refused memory undoes its changes, or leaves only
//! effects that a second attempt may repeat. A request to the heap waits
//! for pageout where it may sleep. A call that still fails with ENOMEM is repeated after pageout has made room. It is
//! repeated only if the failed attempt has left no effects that a second attempt would meet
//! (`Repeat` in the table of system calls).
//!
//! # Calls that end things
//! Exit, close, munmap and similar calls free memory, and never fail for want of it. Their handlers allocate
//! nothing here, and the memory core may give them frames below the [floor](quire_vm::phys::frames::Frames::floor),
//! which other calls cannot use.

use crate::Linux;
use crate::machine::Machine;
use crate::process::thread::Thread;
use linux_raw_sys::general as raw;
use quire_sync::atomic::Ordering;

/// How often a call is repeated while pageout makes room that other threads take.
pub const ATTEMPTS: u32 = 32;

/// Whether call `number` ends something.
pub const fn ends(number: u64) -> bool {
    matches!(
        number as u32,
        raw::__NR_exit
            | raw::__NR_exit_group
            | raw::__NR_close
            | raw::__NR_close_range
            | raw::__NR_wait4
            | raw::__NR_waitid
            | raw::__NR_munmap
            | raw::__NR_shmdt
            | raw::__NR_mq_unlink
            | raw::__NR_madvise
            | raw::__NR_rt_sigreturn
            | raw::__NR_unlink
            | raw::__NR_unlinkat
            | raw::__NR_rmdir
            | raw::__NR_truncate
            | raw::__NR_ftruncate
            | raw::__NR_shutdown
            | raw::__NR_reboot
    )
}

impl<M: Machine> Linux<M> {
    /// Whether to repeat a call that failed with ENOMEM: memory is short, and pageout has made room since.
    #[cold]
    pub fn has_made_room(&self) -> bool {
        self.vm.frames().is_low() && self.vm.wait_for_frames()
    }
}

impl<M: Machine> Thread<M> {
    /// Whether its present allocation is refused on purpose.
    #[cfg(debug_assertions)]
    pub fn is_refused(&self) -> bool {
        self.refusals.refuses()
    }

    /// Refuses the `number`-th allocation of its next call. The thread itself calls it.
    #[cfg(debug_assertions)]
    pub fn refuse_allocation(&self, number: u64) {
        self.refusals.set_next(number);
    }

    /// Whether it runs a call that ends something, which may use the last part of the reserve.
    pub fn ends_something(&self) -> bool {
        self.ending.load(Ordering::Relaxed) != 0
    }

    /// Runs `f` with the rights of a call that ends something. The thread itself calls it.
    #[inline(always)]
    pub fn ending<T>(&self, f: impl FnOnce() -> T) -> T {
        self.ending.store(1, Ordering::Relaxed);
        let done = f();
        self.ending.store(0, Ordering::Relaxed);
        done
    }
}
