//! The credentials of threads and processes.

pub mod capabilities;

use capabilities::{Capabilities, cap};
use quire_heap::{Arc, Vec};

/// Users, groups, capabilities. Each thread has its own credentials, and reads them without a lock. Another thread
/// reads the credentials of a given thread, or of a process's first thread
/// ([`Process::credentials`](crate::Process::credentials)).
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Credentials {
    pub real_user: u32,
    pub effective_user: u32,
    pub saved_user: u32,
    pub file_user: u32,
    pub real_group: u32,
    pub effective_group: u32,
    pub saved_group: u32,
    pub file_group: u32,
    /// Supplementary groups in ascending order, if there are any. Threads that inherit them share the list.
    pub groups: Option<Arc<Vec<u32>>>,
    pub capabilities: Capabilities,
}

impl Credentials {
    /// The credentials of process 1.
    pub fn root() -> Credentials {
        Credentials::of(0, 0)
    }

    /// Credentials whose user ids are all `user` and whose group ids are all `group`, with all capabilities.
    pub fn of(user: u32, group: u32) -> Credentials {
        Credentials {
            real_user: user,
            effective_user: user,
            saved_user: user,
            file_user: user,
            real_group: group,
            effective_group: group,
            saved_group: group,
            file_group: group,
            groups: None,
            capabilities: Capabilities::FIRST,
        }
    }

    /// Whether capability `number` is effective. This check decides all privilege: user id 0 without capabilities gives
    /// no privilege.
    pub fn may(&self, number: u32) -> bool {
        self.capabilities.effective.has(number)
    }

    /// Whether a thread with these credentials may signal a process with `other`.
    pub fn may_signal(&self, other: &Credentials) -> bool {
        [self.effective_user, self.real_user].iter().any(|u| *u == other.real_user || *u == other.saved_user)
            || self.may(cap::KILL)
    }

    /// Whether all user and group ids are `user` and `group`. Such a thread can get no other ids without privilege.
    pub fn is_all_of(&self, user: u32, group: u32) -> bool {
        [self.real_user, self.effective_user, self.saved_user].iter().all(|id| *id == user)
            && [self.real_group, self.effective_group, self.saved_group].iter().all(|id| *id == group)
    }

    /// Whether a thread with these credentials may change the scheduling of threads with `other`.
    pub fn may_schedule(&self, other: &Credentials) -> bool {
        [other.real_user, other.effective_user].contains(&self.effective_user) || self.may(cap::SYS_NICE)
    }

    /// Whether [`may_schedule`](Self::may_schedule) allows the change, and each permitted capability of `other` is
    /// permitted for `self` too. `CAP_SYS_NICE` allows it in any case.
    pub fn may_reschedule(&self, other: &Credentials) -> bool {
        self.may(cap::SYS_NICE)
            || (self.may_schedule(other) && other.capabilities.permitted.within(self.capabilities.permitted))
    }

    /// Whether a thread with these credentials may change the device priority of a thread with `other`.
    pub fn may_change_io_priority(&self, other: &Credentials) -> bool {
        let same = [self.effective_user, self.real_user].contains(&other.real_user);
        self.may(cap::SYS_NICE) || (same && other.capabilities.permitted.within(self.capabilities.permitted))
    }

    pub fn has_user(&self, id: u32) -> bool {
        [self.real_user, self.effective_user, self.saved_user].contains(&id) || self.may(cap::SETUID)
    }

    pub fn has_group(&self, id: u32) -> bool {
        [self.real_group, self.effective_group, self.saved_group].contains(&id) || self.may(cap::SETGID)
    }

    /// Whether `new` has other effective or file-system ids than `self`, or capabilities that `self` lacks. A process
    /// with such a change becomes non-dumpable, because its memory may hold secrets.
    pub fn powers_differ(&self, new: &Credentials) -> bool {
        let ids = |c: &Credentials| [c.effective_user, c.effective_group, c.file_user, c.file_group];
        ids(self) != ids(new) || !new.capabilities.permitted.within(self.capabilities.permitted)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::capabilities::Caps;
    use super::*;

    fn user(id: u32) -> Credentials {
        let capabilities = Capabilities { permitted: Caps::NONE, effective: Caps::NONE, ..Capabilities::FIRST };
        Credentials { capabilities, ..Credentials::of(id, id) }
    }

    #[test]
    fn only_root_and_oneself_may_be_signalled_from() {
        let (root, one, other) = (Credentials::root(), user(5), user(6));
        assert!(root.may_signal(&one) && one.may_signal(&one.clone()));
        assert!(!one.may_signal(&other) && !one.may_signal(&root));
        assert!(!user(0).may_signal(&one));
        // The saved id of the target decides, not its effective id.
        let acts = Credentials { effective_user: 0, ..user(5) };
        let had = Credentials { effective_user: 5, ..user(0) };
        assert!(one.may_signal(&acts) && !one.may_signal(&had));
    }

    #[test]
    fn other_ids_or_more_capabilities_are_other_powers() {
        let one = user(5);
        assert!(!one.powers_differ(&one.clone()));
        assert!(!one.powers_differ(&Credentials { real_user: 1, saved_user: 1, ..one.clone() }));
        for new in [
            Credentials { effective_user: 1, ..one.clone() },
            Credentials { effective_group: 1, ..one.clone() },
            Credentials { file_user: 1, ..one.clone() },
            Credentials { file_group: 1, ..one.clone() },
            Credentials { capabilities: Capabilities::FIRST, ..one.clone() },
        ] {
            assert!(one.powers_differ(&new), "{new:?}");
        }
        assert!(!Credentials::of(5, 5).powers_differ(&one));
    }
}
