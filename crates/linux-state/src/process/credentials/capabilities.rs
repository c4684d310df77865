//! Capabilities: a thread's rights in addition to its ids, and how they change with the ids and at exec.
//!
//! The rules are the rules of the manual page capabilities(7). There is one user namespace, and no file has
//! capabilities of its own. This module only computes sets; callers decide which changes a thread may request.

use crate::errno::Errno;
use crate::process::credentials::Credentials;

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        /// Each capability that this kernel checks, by Linux's number.
        #[allow(missing_docs)]
        pub mod cap {
            $($(#[$doc])* pub const $name: u32 = $number;)*
        }
    };
}
numbers! {
    CHOWN = 0;
    DAC_OVERRIDE = 1;
    DAC_READ_SEARCH = 2;
    FOWNER = 3;
    FSETID = 4;
    KILL = 5;
    SETGID = 6;
    SETUID = 7;
    SETPCAP = 8;
    LINUX_IMMUTABLE = 9;
    NET_BIND_SERVICE = 10;
    NET_ADMIN = 12;
    NET_RAW = 13;
    IPC_LOCK = 14;
    IPC_OWNER = 15;
    SYS_CHROOT = 18;
    SYS_PTRACE = 19;
    SYS_ADMIN = 21;
    SYS_BOOT = 22;
    SYS_NICE = 23;
    SYS_RESOURCE = 24;
    SYS_TIME = 25;
    MKNOD = 27;
    LEASE = 28;
    MAC_OVERRIDE = 32;
    SYSLOG = 34;
    WAKE_ALARM = 35;
    CHECKPOINT_RESTORE = 40;
}

/// The highest number that Linux has (CAP_CHECKPOINT_RESTORE).
pub const LAST: u32 = 40;

/// A set of capabilities.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caps(pub u64);

impl Caps {
    /// The empty set.
    pub const NONE: Caps = Caps(0);
    /// All capabilities.
    pub const ALL: Caps = Caps((1 << (LAST + 1)) - 1);
    /// The capabilities for files, which `setfsuid` removes and restores.
    const OF_FILES: Caps = Caps(
        1 << cap::CHOWN
            | 1 << cap::DAC_OVERRIDE
            | 1 << cap::DAC_READ_SEARCH
            | 1 << cap::FOWNER
            | 1 << cap::FSETID
            | 1 << cap::LINUX_IMMUTABLE
            | 1 << cap::MKNOD
            | 1 << cap::MAC_OVERRIDE,
    );

    /// The set that has only capability `number`.
    pub const fn of(number: u32) -> Caps {
        Caps(1 << number)
    }
    /// Whether capability `number` is in the set.
    pub const fn has(self, number: u32) -> bool {
        self.0 & 1 << number != 0
    }
    /// Whether `self` is a subset of `other`.
    pub const fn within(self, other: Caps) -> bool {
        self.0 & !other.0 == 0
    }
    const fn and(self, other: Caps) -> Caps {
        Caps(self.0 & other.0)
    }
    const fn or(self, other: Caps) -> Caps {
        Caps(self.0 | other.0)
    }
    const fn without(self, other: Caps) -> Caps {
        Caps(self.0 & !other.0)
    }
}

/// Bits of `PR_SET_SECUREBITS`. Each bit is locked by the next higher bit.
#[allow(missing_docs)]
pub mod secure {
    pub const NO_ROOT: u32 = 1;
    pub const NO_SETUID_FIXUP: u32 = 4;
    pub const KEEP_CAPS: u32 = 0x10;
    pub const KEEP_CAPS_LOCKED: u32 = 0x20;
    pub const NO_AMBIENT_RAISE: u32 = 0x40;
    pub const ALL_BITS: u32 = 0x55;
    pub const ALL_LOCKS: u32 = ALL_BITS << 1;
}

/// A thread's capability sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Capabilities {
    pub inheritable: Caps,
    pub permitted: Caps,
    pub effective: Caps,
    pub bounding: Caps,
    pub ambient: Caps,
    /// See [`secure`].
    pub secure: u32,
}

impl Capabilities {
    /// The capabilities of process 1.
    pub const FIRST: Capabilities = Capabilities {
        inheritable: Caps::NONE,
        permitted: Caps::ALL,
        effective: Caps::ALL,
        bounding: Caps::ALL,
        ambient: Caps::NONE,
        secure: 0,
    };

    /// Changes the capabilities as a change of the user ids from `old` to `new` requires.
    ///
    /// # Requires
    /// `self` are still the capabilities of `old`.
    pub fn users_changed(&mut self, old: &Credentials, new: &Credentials) {
        if self.secure & secure::NO_SETUID_FIXUP != 0 {
            return;
        }
        let any_root = |c: &Credentials| [c.real_user, c.effective_user, c.saved_user].contains(&0);
        if any_root(old) && !any_root(new) {
            if self.secure & secure::KEEP_CAPS == 0 {
                self.permitted = Caps::NONE;
                self.effective = Caps::NONE;
            }
            self.ambient = Caps::NONE;
        }
        match (old.effective_user, new.effective_user) {
            (0, 1..) => self.effective = Caps::NONE,
            (1.., 0) => self.effective = self.permitted,
            _ => {}
        }
    }

    /// Changes the capabilities as a change of the file-system user id from `old` to `new` requires.
    pub fn file_user_changed(&mut self, old: u32, new: u32) {
        if self.secure & secure::NO_SETUID_FIXUP != 0 {
            return;
        }
        match (old, new) {
            (0, 1..) => self.effective = self.effective.without(Caps::OF_FILES),
            (1.., 0) => self.effective = self.effective.or(Caps::OF_FILES.and(self.permitted)),
            _ => {}
        }
    }

    /// The capabilities that `access` uses: the capabilities of the real user, without capabilities that a set-id
    /// program added.
    pub fn of_real_user(&self, real_user: u32) -> Caps {
        match () {
            () if self.secure & secure::NO_SETUID_FIXUP != 0 => self.effective,
            () if real_user == 0 => self.permitted,
            () => Caps::NONE,
        }
    }

    /// Sets the three sets as `capset` does. EPERM if the thread may not have them.
    pub fn set(&mut self, effective: Caps, permitted: Caps, inheritable: Caps) -> Result<(), Errno> {
        let capped = !self.effective.has(cap::SETPCAP);
        let wrong = (capped && !inheritable.within(self.inheritable.or(self.permitted)))
            || !inheritable.within(self.inheritable.or(self.bounding))
            || !permitted.within(self.permitted)
            || !effective.within(permitted);
        if wrong {
            return Err(Errno::EPERM);
        }
        (self.effective, self.permitted, self.inheritable) = (effective, permitted, inheritable);
        self.ambient = self.ambient.and(permitted.and(inheritable));
        Ok(())
    }

    /// `PR_CAPBSET_DROP`: removes capability `number` from the bounding set.
    pub fn drop_bounding(&mut self, number: u32) -> Result<(), Errno> {
        if !self.effective.has(cap::SETPCAP) {
            return Err(Errno::EPERM);
        }
        if number > LAST {
            return Err(Errno::EINVAL);
        }
        self.bounding = self.bounding.without(Caps::of(number));
        Ok(())
    }

    /// `PR_SET_SECUREBITS`. EPERM if `bits` changes a locked bit, clears a lock or has unknown bits, or if the thread
    /// lacks `CAP_SETPCAP`.
    pub fn set_secure(&mut self, bits: u32) -> Result<(), Errno> {
        let locked = (self.secure & secure::ALL_LOCKS) >> 1;
        let wrong = locked & (self.secure ^ bits) != 0
            || self.secure & secure::ALL_LOCKS & !bits != 0
            || bits & !(secure::ALL_BITS | secure::ALL_LOCKS) != 0
            || !self.effective.has(cap::SETPCAP);
        if wrong {
            return Err(Errno::EPERM);
        }
        self.secure = bits;
        Ok(())
    }

    /// `PR_SET_KEEPCAPS`. EPERM if that bit is locked.
    pub fn keep(&mut self, keep: bool) -> Result<(), Errno> {
        if self.secure & secure::KEEP_CAPS_LOCKED != 0 {
            return Err(Errno::EPERM);
        }
        self.secure = self.secure & !secure::KEEP_CAPS | if keep { secure::KEEP_CAPS } else { 0 };
        Ok(())
    }

    /// `PR_CAP_AMBIENT` with `PR_CAP_AMBIENT_RAISE`: adds capability `number`. EPERM if it is not permitted and
    /// inheritable.
    pub fn raise_ambient(&mut self, number: u32) -> Result<(), Errno> {
        let one = Caps::of(number);
        if !one.within(self.permitted.and(self.inheritable)) || self.secure & secure::NO_AMBIENT_RAISE != 0 {
            return Err(Errno::EPERM);
        }
        self.ambient = self.ambient.or(one);
        Ok(())
    }

    /// `PR_CAP_AMBIENT` with `PR_CAP_AMBIENT_LOWER`: removes the capabilities `lowered`.
    pub fn lower_ambient(&mut self, lowered: Caps) {
        self.ambient = self.ambient.without(lowered);
    }
}

/// The ids that a new program gets from the set-user-id and set-group-id bits of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetIds {
    /// The new effective user, if the file sets one.
    pub user: Option<u32>,
    /// The new effective group, if the file sets one.
    pub group: Option<u32>,
}

/// The credentials of a thread in a new program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transformed {
    /// The credentials.
    pub credentials: Credentials,
    /// The program must not trust its environment (`AT_SECURE`), because it has more rights than the program that
    /// started it.
    pub secure: bool,
    /// The file changes ids or adds capabilities. Exec then clears the flags of `personality` that weaken a program.
    pub sets_ids: bool,
}

impl Credentials {
    /// The credentials after exec of a file with `set`.
    /// - `confined`: the program gains nothing, because the thread has `no_new_privs`.
    /// - `shared`: another process shares the working and root directories of this process. It could change them while
    ///   a privileged program runs.
    pub fn transform(&self, set: SetIds, confined: bool, shared: bool) -> Transformed {
        let old = self;
        let mut new = self.clone();
        let set = if confined { SetIds::default() } else { set };
        new.effective_user = set.user.unwrap_or(old.effective_user);
        new.effective_group = set.group.unwrap_or(old.effective_group);
        let mut caps = old.capabilities;
        caps.permitted = Caps::NONE;
        let no_root = caps.secure & secure::NO_ROOT != 0;
        if !no_root && (new.effective_user == 0 || new.real_user == 0) {
            caps.permitted = caps.bounding.or(caps.inheritable);
        }
        let effective = !no_root && new.effective_user == 0;
        // `is_set` compares the requested ids, even if they are not granted below.
        let is_set = new.effective_user != old.real_user || new.effective_group != old.real_group;
        let gained = !caps.permitted.within(old.capabilities.permitted);
        if (is_set || gained) && (confined || shared) {
            if confined || !old.may(cap::SETUID) {
                new.effective_user = new.real_user;
                new.effective_group = new.real_group;
            }
            caps.permitted = caps.permitted.and(old.capabilities.permitted);
        }
        (new.saved_user, new.file_user) = (new.effective_user, new.effective_user);
        (new.saved_group, new.file_group) = (new.effective_group, new.effective_group);
        if is_set {
            caps.ambient = Caps::NONE;
        }
        caps.permitted = caps.permitted.or(caps.ambient);
        caps.effective = if effective { caps.permitted } else { caps.ambient };
        caps.secure &= !secure::KEEP_CAPS;
        let grew = !caps.permitted.within(caps.ambient);
        new.capabilities = caps;
        Transformed {
            secure: is_set || (new.real_user != 0 && (effective || grew)),
            credentials: new,
            sets_ids: set != SetIds::default() || gained,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn user(id: u32) -> Credentials {
        Credentials {
            capabilities: Capabilities { permitted: Caps::NONE, effective: Caps::NONE, ..Capabilities::FIRST },
            ..Credentials::of(id, id)
        }
    }

    #[test]
    fn a_root_set_user_id_program_gets_all_and_is_secure() {
        let by = SetIds { user: Some(0), group: None };
        let t = user(7).transform(by, false, false);
        let c = &t.credentials;
        assert_eq!((c.real_user, c.effective_user, c.saved_user, c.file_user), (7, 0, 0, 0));
        assert_eq!((c.capabilities.permitted, c.capabilities.effective), (Caps::ALL, Caps::ALL));
        assert!(t.secure && t.sets_ids);
    }

    #[test]
    fn confined_and_directory_sharing_threads_gain_nothing() {
        let by = SetIds { user: Some(0), group: Some(0) };
        for (confined, shared) in [(true, false), (false, true), (true, true)] {
            let t = user(7).transform(by, confined, shared);
            assert_eq!(t.credentials.effective_user, 7, "{confined} {shared}");
            assert_eq!(t.credentials.effective_group, 7);
            assert_eq!(t.credentials.capabilities.permitted, Caps::NONE);
        }
    }

    #[test]
    fn leaving_root_leaves_capabilities_unless_they_are_kept() {
        for (bits, kept) in [(0, Caps::NONE), (secure::KEEP_CAPS, Caps::ALL)] {
            let mut caps = Capabilities { secure: bits, ..Capabilities::FIRST };
            caps.users_changed(&Credentials::of(0, 0), &Credentials::of(5, 5));
            assert_eq!((caps.permitted, caps.effective), (kept, Caps::NONE));
        }
        let mut caps = Capabilities::FIRST;
        let half = Credentials { effective_user: 5, ..Credentials::of(0, 0) };
        caps.users_changed(&Credentials::of(0, 0), &half);
        assert_eq!((caps.permitted, caps.effective), (Caps::ALL, Caps::NONE));
        caps.users_changed(&half, &Credentials::of(0, 0));
        assert_eq!(caps.effective, Caps::ALL);
    }

    #[test]
    fn both_ends_of_the_numbers_can_be_dropped_and_no_more() {
        let mut caps = Capabilities::FIRST;
        for number in [0, LAST] {
            assert_eq!(caps.drop_bounding(number), Ok(()));
            assert!(!caps.bounding.has(number));
        }
        for number in [LAST + 1, 63, 64, u32::MAX] {
            assert_eq!(caps.drop_bounding(number), Err(Errno::EINVAL));
        }
        caps.effective = Caps::NONE;
        assert_eq!(caps.drop_bounding(1), Err(Errno::EPERM));
    }

    #[test]
    fn locked_secure_bits_cannot_be_changed_or_unlocked() {
        let mut caps = Capabilities::FIRST;
        assert_eq!(caps.set_secure(secure::KEEP_CAPS_LOCKED), Ok(()));
        assert_eq!(caps.keep(true), Err(Errno::EPERM));
        assert_eq!(caps.set_secure(0), Err(Errno::EPERM));
        assert_eq!(caps.set_secure(secure::KEEP_CAPS_LOCKED | secure::KEEP_CAPS), Err(Errno::EPERM));
        assert_eq!(caps.set_secure(secure::KEEP_CAPS_LOCKED | 0x100), Err(Errno::EPERM));
    }

    proptest! {
        /// A request never gives a capability to a thread without capabilities. The effective set stays within the
        /// permitted set.
        #[test]
        fn nothing_is_gained_by_asking(sets in any::<[u64; 3]>(), had in any::<[u64; 4]>()) {
            let all = |n: u64| Caps(n & Caps::ALL.0);
            let permitted = all(had[0]);
            let mut caps = Capabilities {
                inheritable: all(had[1]),
                permitted,
                effective: all(had[2]).and(permitted),
                bounding: all(had[3]),
                ambient: all(had[1]).and(permitted),
                secure: 0,
            };
            let before = caps;
            let done = caps.set(all(sets[0]), all(sets[1]), all(sets[2]));
            prop_assert!(caps.permitted.within(before.permitted));
            prop_assert!(caps.effective.within(caps.permitted));
            prop_assert!(caps.ambient.within(caps.permitted.and(caps.inheritable)));
            prop_assert!(done.is_ok() || caps == before);
        }

        /// A program whose file sets no ids leaves an ordinary user's credentials unchanged.
        #[test]
        fn an_ordinary_file_grants_no_root(id in 1u32.., inheritable in any::<u64>()) {
            let mut c = user(id);
            c.capabilities.inheritable = Caps(inheritable & Caps::ALL.0);
            let t = c.transform(SetIds::default(), false, false);
            prop_assert_eq!(t.credentials.capabilities.permitted, Caps::NONE);
            prop_assert_eq!(t.credentials.effective_user, id);
            prop_assert!(!t.secure && !t.sets_ids);
        }
    }
}
