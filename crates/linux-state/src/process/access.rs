//! Whether a thread may access another process: the check of `/proc`, limits and calls that name threads.
//!
//! The rule is Linux's `ptrace` access mode for reading. It has three parts.
//! - Ids: each id of the other process must equal the reader's.
//! - Capabilities: the reader must have every permitted capability of the other process.
//! - Memory: the other process's memory must be *dumpable*. Memory is not dumpable if a set-id program runs in it, or
//!   if its process has changed its ids or capabilities.
//!
//! A reader with `CAP_SYS_PTRACE` passes without the three conditions.
//!
//! The other process may change its ids and capabilities during the check. So reader and process take their steps in
//! the order that [`quire_task::powers`] gives. The reader then sees the old ids, or the new ids and memory that is not
//! dumpable. A process that has ended stores whether its memory was dumpable. The memory of a set-id program becomes
//! non-dumpable before any thread runs in it.
//!
//! Access is granted only to the memory that was checked. [`Granted`] holds that memory, and readers use only the
//! memory in a `Granted`. So a reader sees nothing of a program that the process execs after the check.

use crate::machine::Machine;
use crate::memory::{AddressSpace, Foreign};
use crate::process::Process;
use crate::process::credentials::Credentials;
use crate::process::credentials::capabilities::{Caps, cap};
use crate::process::thread::Thread;
use crate::{Errno, Pid};
use quire_task::powers::{self, Looked};

/// The ids and capabilities of the reader that are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The reader's file-system ids and effective capabilities: for access by a path.
    Files,
    /// The reader's real ids and permitted capabilities: for system calls.
    Real,
}

/// Access that the check has granted.
pub struct Granted<M: Machine> {
    /// The memory of the other thread; `None` if its process is a zombie.
    pub memory: Option<Foreign<M>>,
}

impl<M: Machine> Granted<M> {
    /// Whether both grants are for the same program, or both for a process that has left its memory.
    pub fn is_of_same_program(&self, other: &Self) -> bool {
        match (&self.memory, &other.memory) {
            (Some(one), Some(other)) => one.is(other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl<M: Machine> Process<M> {
    /// The memory of thread `tid`, or of another thread of the process if `tid` has ended.
    pub fn memory_of(&self, tid: Pid) -> Option<Foreign<M>> {
        let task = {
            let threads = self.threads.lock();
            threads.get(tid).or_else(|| threads.any()).cloned()?
        };
        task.payload().as_ref()?.space.borrow()
    }

    /// Makes the calling thread leave `memory` for good, by calling `go`. The process records in `left` whether that
    /// memory was open to readers. Readers of the process's files in `/proc` use the record after the memory is gone.
    pub fn leave_memory<R>(&self, memory: Option<&AddressSpace<M>>, go: impl FnOnce() -> R) -> R {
        powers::leave(memory.map(|memory| memory.dumpable()), &self.left, go)
    }

    /// Checks whether `looker`, the running thread, may access thread `tid` of this process. EPERM if access is
    /// refused.
    pub fn look_at(&self, tid: Pid, looker: &Thread<M>, by: By) -> Result<Granted<M>, Errno> {
        let own = core::ptr::eq(&*looker.process, self);
        // SAFETY: the thread `looker` itself runs this, and does not replace its credentials during the check.
        let me = unsafe { looker.credentials.get() };
        let granted = powers::look(&OneOf { process: self, tid }, |other, open| own || admits(me, by, other, open));
        granted.map(|memory| Granted { memory }).ok_or(Errno::EPERM)
    }
}

/// Thread `tid` of `process`, for a reader.
struct OneOf<'a, M: Machine> {
    process: &'a Process<M>,
    tid: Pid,
}

impl<M: Machine> Looked for OneOf<'_, M> {
    type Memory = Foreign<M>;
    type Ids = Credentials;

    fn memory(&self) -> Option<Foreign<M>> {
        self.process.memory_of(self.tid)
    }
    fn ids(&self) -> Credentials {
        self.process.credentials_of(self.tid)
    }
    fn is_open(&self, memory: Option<&Foreign<M>>) -> bool {
        memory.map_or_else(|| self.process.left.is_open(), |memory| memory.is_dumpable())
    }
}

/// The access rule, for a reader `me` in another process. `open` returns whether the memory is dumpable. `admits` calls
/// `open` after it has read the ids.
fn admits(me: &Credentials, by: By, other: &Credentials, open: impl Fn() -> bool) -> bool {
    let (user, group, mine): (u32, u32, Caps) = match by {
        By::Files => (me.file_user, me.file_group, me.capabilities.effective),
        By::Real => (me.real_user, me.real_group, me.capabilities.permitted),
    };
    let mighty = me.may(cap::SYS_PTRACE);
    mighty || (other.is_all_of(user, group) && open() && other.capabilities.permitted.within(mine))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::process::credentials::capabilities::Capabilities;

    fn user(id: u32) -> Credentials {
        let capabilities = Capabilities { permitted: Caps::NONE, effective: Caps::NONE, ..Capabilities::FIRST };
        Credentials { capabilities, ..Credentials::of(id, id) }
    }

    #[test]
    fn ones_own_may_be_looked_at_while_they_are_open() {
        for by in [By::Files, By::Real] {
            assert!(admits(&user(5), by, &user(5), || true));
            assert!(!admits(&user(5), by, &user(5), || false));
            assert!(!admits(&user(5), by, &user(6), || true));
            assert!(!admits(&user(5), by, &Credentials::root(), || true));
            assert!(admits(&Credentials::root(), by, &user(5), || false));
        }
    }

    #[test]
    fn one_other_id_is_enough_to_refuse() {
        let one = user(5);
        for other in [
            Credentials { real_user: 6, ..one.clone() },
            Credentials { effective_user: 0, ..one.clone() },
            Credentials { saved_user: 0, ..one.clone() },
            Credentials { real_group: 6, ..one.clone() },
            Credentials { effective_group: 0, ..one.clone() },
            Credentials { saved_group: 0, ..one.clone() },
        ] {
            assert!(!admits(&one, By::Files, &other, || true), "{other:?}");
        }
    }

    #[test]
    fn user_0_without_capabilities_sees_no_process_that_has_some() {
        assert!(!admits(&user(0), By::Files, &Credentials::root(), || true));
        assert!(admits(&user(0), By::Files, &user(0), || true));
    }

    #[test]
    fn paths_are_checked_by_file_ids_and_calls_by_real_ids() {
        let acting = Credentials { file_user: 6, file_group: 6, ..user(5) };
        assert!(admits(&acting, By::Files, &user(6), || true) && !admits(&acting, By::Real, &user(6), || true));
        assert!(!admits(&acting, By::Files, &user(5), || true) && admits(&acting, By::Real, &user(5), || true));
    }
}
