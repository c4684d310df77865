//! Lack of memory: which system calls wait, which are repeated, and which may use the last part of the reserve.
//!
//! # Rule
//! Every allocation of this layer may be refused. A call whose allocation is refused undoes its changes, or leaves only
//! effects that a second attempt may repeat. A heap allocation waits for pageout if it may sleep. A call that still
//! fails with ENOMEM is repeated after pageout has made room. It is repeated only if the failed attempt has left no
//! effects that a second attempt would see (`Repeat` in the table of system calls).
//!
//! # Calls that end something
//! Exit, close, munmap and similar calls free memory, and never fail for lack of it. Their handlers allocate nothing in
//! this layer. The memory core may give these calls frames below the
//! [floor](quire_vm::phys::frames::Frames::floor): the last part of the reserve, which other calls cannot use.

use crate::Linux;
use crate::machine::Machine;
use crate::process::thread::Thread;
use linux_raw_sys::general as raw;
use quire_sync::atomic::Ordering;
use quire_vm::Standing;

/// The most attempts of a call. An attempt fails again if other threads use the memory that pageout has freed.
pub const ATTEMPTS: u32 = 32;

/// Whether system call `number` ends something: a process, a file, a mapping.
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
    /// Whether a call that failed with ENOMEM should be repeated: memory was low, and pageout has made room since.
    #[cold]
    pub fn has_made_room(&self) -> bool {
        self.vm.frames().is_low() && self.vm.wait_for_frames()
    }
}

impl<M: Machine> Thread<M> {
    /// Whether the thread's present allocation is refused on purpose, for a test.
    #[cfg(debug_assertions)]
    pub fn is_refused(&self) -> bool {
        self.refusals.refuses()
    }

    /// Refuses the `number`-th allocation of the thread's next call, for a test. Called by the thread itself.
    #[cfg(debug_assertions)]
    pub fn refuse_allocation(&self, number: u64) {
        self.refusals.set_next(number);
    }

    /// On whose behalf the thread allocates: user 0 is the administrator. Called by the thread itself.
    pub fn standing(&self) -> Standing {
        // SAFETY: the thread itself runs this, and replaces nothing meanwhile.
        match unsafe { self.user_charge.get() }.is_root() {
            true => Standing::Administrator,
            false => Standing::Program,
        }
    }

    /// Whether the thread runs a call that ends something. Such a call may use the last part of the reserve.
    pub fn ends_something(&self) -> bool {
        self.ending.load(Ordering::Relaxed) != 0
    }

    /// Runs `f` as a part of a call that ends something, so `f` may use the last part of the reserve. Called by the
    /// thread itself.
    #[inline(always)]
    pub fn ending<T>(&self, f: impl FnOnce() -> T) -> T {
        self.ending.store(1, Ordering::Relaxed);
        let done = f();
        self.ending.store(0, Ordering::Relaxed);
        done
    }
}
